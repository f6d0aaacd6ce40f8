"""epochs.csv, the per-epoch metrics of all runs: tables, curves and claims are made from it.

It is small enough for a repository, so that everything can be made again, and checked, without training. Numbers have
six digits and are always read from the file, so that results with and without training agree to the last digit.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curriculoss._files import write_table
from curriculoss.errors import DamagedError, RunError
from curriculoss.paper.experiments import Cell
from curriculoss.paper.scales import Scale
from curriculoss.runs.folder import Run
from curriculoss.runs.spec import RunSpec

EPOCHS_FILE = "epochs.csv"
SEPARATION = "separation"  # P(margin of a clean sample > that of a noisy one): 0.5 is none, 1 is perfect
RUN_MEASURES = (
    "test_accuracy", "train_accuracy", "learning_rate", "mean_weight", "effective_learning_rate",
    "mean_weight_this_epoch", "snr", "accuracy_clean", "accuracy_noisy", "mean_margin_clean", "mean_margin_noisy",
)  # fmt: skip
MEASURES = (*RUN_MEASURES, SEPARATION)
PERCENT = ("test_accuracy", "train_accuracy")
DIGITS = 6

Curve = tuple[float | None, ...]  # one value per epoch; None where an epoch has none


class RunName(NamedTuple):
    """What epochs.csv says about a run: the hash of its spec, and what people look for."""

    run: str
    data: str
    noise: str
    loss: str
    seed: int

    @classmethod
    def of(cls, spec: RunSpec) -> "RunName":
        return cls(spec.hash, spec.data, spec.noise, spec.loss_name, spec.seed)


@dataclass(frozen=True)
class RunRecord:
    """One run: its measures, epoch by epoch."""

    name: RunName
    epochs: tuple[int, ...]
    curves: Mapping[str, Curve]

    def last(self, measure: str) -> float | None:
        """The value after the last epoch, never the best one."""
        return self.curves[measure][-1]

    @property
    def test_accuracy(self) -> float:
        """Test accuracy after the last epoch."""
        value = self.last("test_accuracy")
        assert value is not None, f"run {self.name.run} has no test accuracy"  # every data set here has test samples
        return value

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows of the file."""
        for place, epoch in enumerate(self.epochs):
            yield {**self.name._asdict(), "epoch": epoch, **{key: self.curves[key][place] for key in MEASURES}}


class RunRecords(dict[str, RunRecord]):
    """All recorded runs of one scale, by the hash of their spec."""

    def __init__(self, scale: Scale, found: Iterable[RunRecord]) -> None:
        super().__init__((record.name.run, record) for record in found)
        self.scale = scale

    @classmethod
    def read(cls, scale: Scale, folder: Path) -> "RunRecords":
        """The runs in a folder's file; none if there is no file yet."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(read_rows(folder / EPOCHS_FILE, COLUMN_READERS), key=lambda row: int(row["epoch"])):
            some = groups.setdefault(row["run"], [])
            if not some or some[-1] != row:  # two files put together have rows twice
                some.append(row)
        return cls(scale, map(_record, groups.values()))

    def whole(self, specs: Iterable[RunSpec]) -> "RunRecords":
        """The records without runs of these specs that lack an epoch, or the last test accuracy.

        Raises:
            RunError: Rows under the hash of a spec name another run.
        """
        kept = dict(self)
        for spec in specs:
            if (record := kept.get(spec.hash)) is not None:
                if record.name != RunName.of(spec):
                    raise _of_another_run(spec.hash)
                if record.epochs != (*range(1, spec.epochs + 1),) or record.last("test_accuracy") is None:
                    del kept[spec.hash]
        return RunRecords(self.scale, kept.values())

    def of(self, cell: Cell, seed: int = 0) -> RunRecord | None:
        """The run of a cell, or None if it is not recorded."""
        return self.get(self.scale.spec(cell, seed).hash)

    def seeds(self, cell: Cell, seeds: int) -> list[RunRecord]:
        """Recorded runs of a cell among its first seeds."""
        return [record for seed in range(seeds) if (record := self.of(cell, seed)) is not None]

    def add(self, runs: Iterable[Run], folder: Path) -> dict[Path, RunError]:
        """Enter finished runs and write the file; recorded runs stay as they are.

        Returns:
            Errors of runs that cannot be read, by folder.
        """
        records = [*self.values()]
        errors: dict[Path, RunError] = {}
        for run in runs:
            try:
                records += [] if run.spec.hash in self else [_from_folder(run)]
            except DamagedError as error:
                errors[run.path] = error
        order = sorted(records, key=lambda each: (each.name.data, each.name.noise, each.name.loss, each.name.run))
        write_table(folder / EPOCHS_FILE, [row for record in order for row in record.rows()])
        self.update(RunRecords.read(self.scale, folder))
        return errors


def read_rows(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> list[dict[str, Any]]:
    """Rows of one of our .csv files, none if it does not exist; a truncated file is an error."""
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
    """The error for a damaged file that can be made again, with what to do about it."""
    advice = "restore it (in a clone: git checkout), or delete it and it is made again, if need be from new runs"
    return RunError(f"cannot read {path}: {why}; {advice}")


def _of_another_run(spec_hash: str) -> RunError:
    return RunError(f"rows of run {spec_hash} in {EPOCHS_FILE} are of another run; restore it, or delete them")


def _record(rows: list[dict[str, Any]]) -> RunRecord:
    """One run from its rows."""
    names = {RunName(*(row[key] for key in RunName._fields)) for row in rows}
    if len(names) > 1:
        raise _of_another_run(rows[0]["run"])
    epochs, *curves = (tuple(row[key] for row in rows) for key in ("epoch", *MEASURES))
    return RunRecord(names.pop(), epochs, dict(zip(MEASURES, curves, strict=True)))


def _from_folder(run: Run) -> RunRecord:
    spec, histograms = run.spec, run.arrays("histograms")
    if not len(run.metrics) == len(histograms["clean"]) == spec.epochs:
        raise DamagedError(f"{run.path} does not have all of its {spec.epochs} epochs")
    values = {key: [row[key] for row in run.metrics] for key in RUN_MEASURES}
    values[SEPARATION] = list(map(_separation, histograms["clean"], histograms["noisy"]))
    curves = {key: tuple(None if x is None else rounded(x) for x in some) for key, some in values.items()}
    return RunRecord(RunName.of(spec), tuple(row["epoch"] for row in run.metrics), curves)


def _separation(clean: np.ndarray[Any, Any], noisy: np.ndarray[Any, Any]) -> float | None:
    """From histograms; a pair in one bin counts half."""
    if not clean.sum() or not noisy.sum():
        return None
    below = np.cumsum(noisy) - noisy / 2
    return float((clean * below).sum() / (clean.sum() * noisy.sum()))


def rounded(value: float) -> float:
    """With the digits of the file."""
    return float(f"{value:.{DIGITS}g}")


def _number(text: str) -> float | None:
    return None if text == "" else float(text)


def _percent(text: str) -> float | None:
    value = _number(text)
    if value is not None and not 0 <= value <= 100:
        raise ValueError
    return value


COLUMN_READERS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("run", "data", "noise", "loss"), str),
    **dict.fromkeys(("seed", "epoch"), int),
    **dict.fromkeys(MEASURES, _number),
    **dict.fromkeys(PERCENT, _percent),
}
