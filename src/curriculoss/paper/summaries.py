"""What was seen in the three results that matter most, in one sentence each, computed from the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from curriculoss.paper.artefacts import artefact_named
from curriculoss.paper.epochs import RunRecord, RunRecords
from curriculoss.paper.experiments import CE, CLEAN, FEW, MAE, MAE_SCALE, MANY, Cell, Row
from curriculoss.paper.starting_margins import num_classes
from curriculoss.paper.templates import fill
from curriculoss.report.groups import Mean

SUMMARIES = ("figure:summary-underfitting", "figure:summary-memorising", "figure:summary-fix")
NOT_DONE = "Not all of its runs are done yet."
PERCENT_OF: Mapping[str, Callable[[RunRecord], float | None]] = {
    "train": lambda run: run.last("train_accuracy"),
    "test": lambda run: run.last("test_accuracy"),
    "best": lambda run: max(value for value in run.curves["test_accuracy"] if value is not None),
    "wrong": lambda run: None if (share := run.last("accuracy_noisy")) is None else 100 * share,
}


@dataclass(frozen=True)
class _Means:
    """Means over seeds for a sentence, and how many seeds each of them has."""

    records: RunRecords
    seeds: int
    counts: set[int] = field(default_factory=set)

    def __call__(self, of: str, row: Row, data: str, noise: str = CLEAN, experiment: str = "") -> str:
        runs = self.records.seeds(Cell(row, data, noise, experiment), self.seeds)
        found = Mean.of(map(PERCENT_OF[of], runs))
        self.counts.add(found.n)
        return "" if found.mean is None else f"{found.mean:.1f} %"

    @property
    def n(self) -> str:
        return "n = " + " to ".join(map(str, sorted({min(self.counts), max(self.counts)})))


def sentence(name: str, records: RunRecords) -> str:
    """What the runs of a summary figure show."""
    mean = _Means(records, artefact_named(name).seeds(records.scale))
    classes = {data: num_classes(data, records.scale) for data in (FEW, MANY)}
    said = fill(
        "summaries", name=name, mean=mean, classes=classes, few=FEW, many=MANY, ce=CE, mae=MAE, scaled=MAE_SCALE
    )
    return NOT_DONE if 0 in mean.counts else said.strip()
