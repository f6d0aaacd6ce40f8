"""The folder of a run, and `Run`, which reads it. Every file is written whole or not at all.

spec.json          what was run                       labels.npz         index, given and clean labels
task.json          on which data                      samples.npz        first, mean, last margin, slope
metrics.jsonl      one row per epoch                  model.safetensors  the network at the end
histograms.npz     of margins, one row per epoch      result.json        the last epoch; written last
environment.json   on which machine                   failed.json        when and why training diverged
checkpoint.pt      the last whole epoch of a run that is not finished
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from curriculoss._facts import Facts
from curriculoss._text import first_line
from curriculoss.errors import DamagedError, InvalidValueError, RunError
from curriculoss.runs.facts import Divergence, Environment, Result, TaskFacts
from curriculoss.runs.spec import RunSpec

T = TypeVar("T")
F = TypeVar("F", bound=Facts)
Arrays = dict[str, np.ndarray[Any, Any]]
REQUIRED = {"labels": ("given",), "histograms": ("edges", "all")}  # arrays without which the others mean nothing


@dataclass(frozen=True)
class Run:
    """Reads the folder of a run, which may be unfinished.

    A file that cannot be read, or that every run has and this one lacks, is a one-line `RunError`; others are None.
    """

    path: Path

    @cached_property
    def spec(self) -> RunSpec:
        return self._facts("spec.json", RunSpec)

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @cached_property
    def result(self) -> Result:
        return self._facts("result.json", Result)

    @cached_property
    def environment(self) -> Environment | None:
        return self._facts_if_there("environment.json", Environment)

    @cached_property
    def task(self) -> TaskFacts | None:
        """The data that it was trained on; None for runs from before that was recorded."""
        return self._facts_if_there("task.json", TaskFacts)

    @cached_property
    def failed(self) -> Divergence | None:
        """When and why training diverged, if it did."""
        return self._facts_if_there("failed.json", Divergence)

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per epoch."""
        return self._read("metrics.jsonl", lambda file: [_row(line) for line in file.read_text("utf-8").splitlines()])

    def arrays(self, name: str) -> Arrays:
        """The arrays of `labels`, `samples` or `histograms`."""

        def parse(file: Path) -> Arrays:
            with file.open("rb") as raw, np.load(raw, allow_pickle=False) as found:
                if absent := [key for key in REQUIRED.get(name, ()) if key not in found.files]:
                    raise InvalidValueError(f"it lacks the array {absent[0]!r}")
                return {key: found[key] for key in found.files}

        return self._read(f"{name}.npz", parse)

    def _facts(self, name: str, kind: type[F]) -> F:
        return self._read(name, lambda file: kind.from_dict(json.loads(file.read_text("utf-8"))))

    def _facts_if_there(self, name: str, kind: type[F]) -> F | None:
        return self._facts(name, kind) if (self.path / name).exists() else None

    def _read(self, name: str, parse: Callable[[Path], T]) -> T:
        file = self.path / name
        try:
            return parse(file)
        except FileNotFoundError:
            raise RunError(f"{self.path} is no run, or not far enough: it has no {name}") from None
        except Exception as error:  # readers of broken files raise errors of many kinds
            raise DamagedError(f"cannot read {file}: {first_line(error)}") from None


def _row(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise InvalidValueError(f"expected an object of names and values, got {type(value).__name__}")
    return value
