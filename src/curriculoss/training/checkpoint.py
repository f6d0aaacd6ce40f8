"""The last whole epoch of a run: all that the next one needs, so that a run that was broken off goes on bit by bit."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from curriculoss.training.store import RunError, write

NAME = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    def fill(file: IO[bytes]) -> None:
        memory = io.BytesIO()  # torch turns a full disk into an error of its own
        torch.save(state, memory)
        file.write(memory.getbuffer())

    write(folder / NAME, fill)


def load(folder: Path, spec_hash: str) -> dict[str, Any] | None:
    """None if there is none. Nothing in the file is ever run."""
    path = folder / NAME
    if not path.exists():
        return None
    with reading(folder):
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["spec"] != spec_hash:
            raise RunError(f"{path} belongs to another run; delete it to begin again")
    return state


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """One line for what is wrong with a checkpoint, be it found by its reader or by those that it is for."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:  # a broken zip, a foreign pickle, a missing key: torch has an error of its own for each
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"cannot read {folder / NAME} ({reason[:120]}); delete it to begin again") from None


def remove(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)
