"""The checkpoint of a run: what its next epoch needs, so that an interrupted run goes on to the bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from curriculoss._files import write
from curriculoss._text import first_line
from curriculoss.errors import RunError
from curriculoss.runs.spec import RunSpec

NAME = "checkpoint.pt"


def save(folder: Path, spec: RunSpec, state: dict[str, Any]) -> None:
    """Write the state of a run after an epoch."""
    state = {"spec": spec.hash, "loss_version": spec.loss_version, **state}
    write(folder / NAME, partial(torch.save, state), buffered=True)


def load(folder: Path, spec: RunSpec) -> dict[str, Any] | None:
    """The checkpoint in a folder, or None. Nothing in the file is ever executed."""
    path = folder / NAME
    if not path.exists():
        return None
    with reading(folder):
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["spec"] != spec.hash:
            raise RunError(f"{path} belongs to another run; delete it to begin again")
        expect_version(path, spec, state.get("loss_version", 1))
        if "callbacks" not in state:
            raise RunError(f"{path} was made by an older version of curriculoss; delete it to begin again")
    return state


def expect_version(path: Path, spec: RunSpec, version: int) -> None:
    """RunError if the file was written when the same loss meant something else."""
    if version != spec.loss_version:
        raise RunError(
            f"{path} was made by version {version} of loss {spec.loss!r}, which is now at version {spec.loss_version}; "
            "give another folder, or delete this one to train again"
        )


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn any error of a broken checkpoint into a one-line RunError."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:  # a broken zip, a foreign pickle, a missing key: each has an error of its own
        raise RunError(f"cannot read {folder / NAME} ({first_line(error)[:120]}); delete it to begin again") from None
