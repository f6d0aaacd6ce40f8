"""What a claim asks of the records, the result of testing it, and the files that report it."""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from curriculoss._files import write_json, write_text
from curriculoss.figures import Array
from curriculoss.paper.epochs import RunRecords, rounded
from curriculoss.paper.experiments import Cell
from curriculoss.paper.inference import Estimate, Part, combined
from curriculoss.paper.scales import Scale
from curriculoss.paper.templates import fill


@dataclass(frozen=True)
class Inquiry:
    """Reads what one claim needs from the records, and notes which planned runs are missing."""

    records: RunRecords
    planned: Collection[str]  # hashes of the specs
    folder: Path
    data_dir: Path | str | None
    missing: set[str] = field(default_factory=set)

    @property
    def scale(self) -> Scale:
        return self.records.scale

    def each(
        self, cell: Cell, measure: str, summary: Callable[[Array], float], *, epochs: int = 0, seeds: int | None = None
    ) -> Array:
        """A summary of the curve, or of its last epochs, for all planned seeds or a few; NaN where it is missing."""
        curves = [self.curve(cell, measure, seed, epochs) for seed in range(seeds or self.seeds(cell))]
        return np.array([summary(curve) if len(curve) else math.nan for curve in curves])

    def last(self, cell: Cell, measure: str = "test_accuracy", seeds: int | None = None) -> Array:
        """The last epoch of each planned seed, or of the first few; NaN where it is missing."""
        return self.each(cell, measure, lambda curve: float(curve[-1]), epochs=1, seeds=seeds)

    def curve(self, cell: Cell, measure: str, seed: int = 0, epochs: int = 0) -> Array:
        """All epochs of one run, or the last few; empty if the run, or a value in one of them, is missing."""
        record = self.records.of(cell, seed)
        values = () if record is None else record.curves[measure][-epochs:]
        if not values or None in values:
            self.missing.add(self.scale.spec(cell, seed).hash)
            return np.array([])
        return np.array(values, dtype=float)

    def seeds(self, cell: Cell) -> int:
        """How many seeds of a cell are planned."""
        return next(seed for seed in itertools.count() if self.scale.spec(cell, seed).hash not in self.planned)


@dataclass(frozen=True)
class ClaimResult:
    """The result of testing a claim: its weakest part, and all parts in words as `evidence`."""

    number: int
    claim: str
    counts: str  # what would count
    statistic: str
    value: float | None
    n: int
    interval: tuple[float, float] | None
    verdict: str
    evidence: tuple[str, ...]
    missing: int  # runs or data sets that it needs and does not have

    @classmethod
    def of(cls, number: int, claim: str, counts: str, found: Sequence[Part | str], missing: set[str]) -> "ClaimResult":
        """Apply the rule to the parts that were found; texts among them are further evidence."""
        parts = [one for one in found if isinstance(one, Part)]
        weakest = min(parts, key=lambda part: part.strength, default=Part("nothing measured", Estimate(None, 0)))
        evidence = tuple(one.line() if isinstance(one, Part) else one for one in found)
        value, n, interval = weakest.estimate.value, weakest.estimate.n, weakest.estimate.interval
        value = None if value is None else rounded(value)
        interval = interval and (rounded(interval[0]), rounded(interval[1]))
        verdict = combined(parts, len(missing))
        return cls(number, claim, counts, weakest.statistic, value, n, interval, verdict, evidence, len(missing))


def claims_text(results: Sequence[ClaimResult]) -> str:
    """One line per claim."""
    return "\n".join(f"{each.number:2}. {each.verdict:<13} {each.claim}" for each in results)


def write_claims(results: Sequence[ClaimResult], folder: Path) -> list[Path]:
    """Write claims.json and claims.md, and return their paths."""
    files = [folder / "claims.json", folder / "claims.md"]
    write_json(files[0], [asdict(each) for each in results])
    write_text(files[1], fill("claims.md", results=results))
    return files
