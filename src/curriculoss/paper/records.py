"""What runs have shown, one row an epoch: the file that tables, figures of curves and claims are made from.

`epochs.csv` is small enough to be kept in a repository, so that each of them can be made again, and checked, without
training. Numbers have six digits in it, and are always read from it, so that both ways agree to the last letter.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from curriculoss.paper.settings import Cell, Scale
from curriculoss.training.spec import RunSpec
from curriculoss.training.store import DamagedError, Run, RunError, write_table

FILE = "epochs.csv"
MEASURES = (
    "test_accuracy", "train_accuracy", "learning_rate", "mean_weight", "effective_learning_rate",
    "mean_weight_this_epoch", "snr", "accuracy_clean", "accuracy_noisy", "mean_margin_clean", "mean_margin_noisy",
)  # fmt: skip
SEPARATION = "separation"  # P(margin of a clean sample > that of a noisy one): 0.5 is none, 1 is perfect
DIGITS = 6


@dataclass(frozen=True)
class Record:
    """One run: its rows, epoch by epoch."""

    hash: str
    rows: Sequence[Mapping[str, Any]]

    def last(self, measure: str) -> float | None:
        """After the last epoch, never the best."""
        return self.curve(measure)[-1]

    def curve(self, measure: str) -> list[float | None]:
        return [row[measure] for row in self.rows]


@dataclass(frozen=True)
class Sample:
    """A measure over seeds. The standard deviation (of n − 1) needs two."""

    values: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.values)

    @cached_property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @cached_property
    def std(self) -> float | None:
        return statistics.stdev(self.values) if self.n > 1 else None


class Records:
    """All that is known at one scale, by the hash of the spec."""

    def __init__(self, scale: Scale, found: Mapping[str, Record]) -> None:
        self.scale = scale
        self._found = dict(found)

    @classmethod
    def read(cls, scale: Scale, folder: Path) -> Records:
        """None at all if there is no file yet."""
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(read_rows(folder / FILE, COLUMNS), key=lambda row: int(row["epoch"])):
            some = rows.setdefault(row["run"], [])
            if not some or some[-1] != row:  # of two files put together
                some.append(row)
        return cls(scale, {name: Record(name, tuple(some)) for name, some in rows.items()})

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __contains__(self, spec_hash: str) -> bool:
        return spec_hash in self._found

    def __getitem__(self, spec_hash: str) -> Record:
        return self._found[spec_hash]

    def whole(self, specs: Iterable[RunSpec]) -> Records:
        """Without those of these specs that lack an epoch. Rows that say they are of another run are an error."""
        epochs = {}
        for spec in specs:
            epochs[spec.hash] = [*range(1, spec.epochs + 1)]
            named = _named(spec)
            for row in self._found[spec.hash].rows if spec.hash in self else ():
                if {key: row[key] for key in named} != named:
                    raise RunError(f"rows of run {spec.hash} in {FILE} are of another run; restore it, or delete them")
        return Records(
            self.scale,
            {name: record for name, record in self._found.items()
             if name not in epochs or [row["epoch"] for row in record.rows] == epochs[name]},
        )  # fmt: skip

    def of(self, cell: Cell, seed: int = 0) -> Record | None:
        return self._found.get(self.scale.spec(cell, seed).hash)

    def seeds(self, cell: Cell, seeds: int) -> list[Record]:
        return [record for seed in range(seeds) if (record := self.of(cell, seed)) is not None]

    def add(self, runs: Iterable[Run], folder: Path) -> dict[Path, RunError]:
        """Take up finished runs and write the file; what it has already stays as it is. Runs that cannot be read, and
        why."""
        rows = [row for record in self._found.values() for row in record.rows]
        damaged: dict[Path, RunError] = {}
        for run in runs:
            try:
                rows += [] if run.spec.hash in self._found else _rows(run)
            except DamagedError as error:
                damaged[run.path] = error
        order = sorted(rows, key=lambda row: (row["data"], row["noise"], row["loss"], row["run"], row["epoch"]))
        write_table(folder / FILE, order)
        self._found = Records.read(self.scale, folder)._found
        return damaged


def read_rows(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> list[dict[str, Any]]:
    """Of a .csv file of ours, none if it is not there; what is cut short is not believed."""
    if not path.exists():
        return []
    text = path.read_text("utf-8", errors="replace")
    table = csv.DictReader(io.StringIO(text))
    rows = []
    try:
        for row in table:
            if None in (*row, *row.values()):  # too many fields, or too few
                raise ValueError
            rows.append({key: read(row[key]) for key, read in columns.items()})
        if not text.endswith("\n"):
            raise ValueError
    except (ValueError, TypeError, KeyError, csv.Error):
        raise damaged(path, f"line {table.line_num} is not whole, or has impossible numbers") from None
    return rows


def damaged(path: Path, why: str) -> RunError:
    """What to do about a file that is made from runs, or by measuring."""
    advice = "restore it (in a clone: git checkout), or delete it and it is made again, if need be from new runs"
    return RunError(f"cannot read {path}: {why}; {advice}")


def _rows(run: Run) -> list[dict[str, Any]]:
    spec, histograms = run.spec, run.arrays("histograms")
    if not len(run.metrics) == len(histograms["clean"]) == spec.epochs:
        raise DamagedError(f"{run.path} has not all of its {spec.epochs} epochs")
    return [
        {**_named(spec), "epoch": row["epoch"], **{key: _rounded(row[key]) for key in MEASURES},
         SEPARATION: _rounded(_separation(histograms["clean"][place], histograms["noisy"][place]))}
        for place, row in enumerate(run.metrics)
    ]  # fmt: skip


def _named(spec: RunSpec) -> dict[str, Any]:
    return {"run": spec.hash, "data": spec.data, "noise": spec.noise, "loss": spec.loss_name, "seed": spec.seed}


def _separation(clean: np.ndarray[Any, Any], noisy: np.ndarray[Any, Any]) -> float | None:
    """From histograms; two in one bin count half."""
    if not clean.sum() or not noisy.sum():
        return None
    below = np.cumsum(noisy) - noisy / 2
    return float((clean * below).sum() / (clean.sum() * noisy.sum()))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _number(text: str) -> float | None:
    return None if text == "" else float(text)


def _percent(text: str) -> float | None:
    value = _number(text)
    if value is not None and not 0 <= value <= 100:
        raise ValueError
    return value


COLUMNS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("run", "data", "noise", "loss"), str),
    **dict.fromkeys(("seed", "epoch"), int),
    **dict.fromkeys((*MEASURES, SEPARATION), _number),
    **dict.fromkeys(("test_accuracy", "train_accuracy"), _percent),
}
