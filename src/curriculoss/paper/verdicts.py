"""What claims ask of the records, what comes out, and the files that say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.inference import Estimate, Part, combined, signed
from curriculoss.paper.records import DIGITS, Records
from curriculoss.paper.settings import Cell, Scale
from curriculoss.training.store import write_json, write_text

Array = np.ndarray[Any, np.dtype[np.float64]]
RULE = """\
A claim holds if the 95 % interval of its statistic lies where it says, does not hold if it lies elsewhere, and is
undecided otherwise, or if numbers are too few or runs missing. Of several parts all must hold, and the table shows the
weakest: the one that lies furthest outside what is claimed of it, or least inside. A part that is true is refuted by
chance in one of forty cases, so of many parts one may be. Settings, or epochs, that stand in for seeds are not quite
independent, so that their intervals are rather too narrow. All of this is computed. A verdict is about these runs, at
the scale of this folder: where the scale decides it, "what differs" says so.

Intervals of means, also of rank correlations over settings, are Student's; of differences between epochs of two runs,
Welch's with the fewer degrees of freedom; of one rank correlation, that of Bonett and Wright, a perfect order counting
as half a swap of neighbours away from it; of shares, that of Clopper and Pearson. Settings count alike, whether they
have one seed or three. "Furthest" is meant in widths of the interval. Mean weights are from the first step on.
"""


def planned_seeds(scale: Scale, seeds: int | None = None) -> dict[str, int]:
    """By the hash of a cell's first run. Without `seeds`, tables and figures have their own number."""
    planned: dict[str, int] = {}
    for artefact in ARTEFACTS.values():
        count = artefact.seeds(scale, seeds)
        for cell in artefact.cells:
            if scale.has(cell):
                name = scale.spec(cell).hash
                planned[name] = max(count, planned.get(name, 0))
    return planned


class Inquiry:
    """What one claim asks of the records; it remembers which of the planned runs are not there."""

    def __init__(self, records: Records, planned: Mapping[str, int], folder: Path, data_dir: Path | str | None) -> None:
        self.records, self.scale = records, records.scale
        self.folder, self.data_dir = folder, data_dir
        self.missing: set[str] = set()
        self._planned = planned

    def each(self, cell: Cell, measure: str, summary: Callable[[Array], float]) -> Array:
        """Of the epochs of each planned seed; NaN for what is missing."""
        curves = [self.curve(cell, measure, seed) for seed in range(self.seeds(cell))]
        return np.array([summary(curve) if len(curve) else math.nan for curve in curves])

    def last(self, cell: Cell, measure: str = "test_accuracy", seeds: int | None = None) -> Array:
        """After the last epoch of each planned seed, or of the first few; NaN for what is missing."""
        curves = [self.curve(cell, measure, seed, epochs=1) for seed in range(seeds or self.seeds(cell))]
        return np.array([curve[-1] if len(curve) else math.nan for curve in curves])

    def curve(self, cell: Cell, measure: str, seed: int = 0, epochs: int = 0) -> Array:
        """Of one run, all epochs or the last few; empty if it is missing or has no such number in one of them."""
        record = self.records.of(cell, seed)
        values = [] if record is None else record.curve(measure)[-epochs:]
        if not values or None in values:
            self.missing.add(self.scale.spec(cell, seed).hash)
            return np.array([])
        return np.array(values, dtype=float)

    def seeds(self, cell: Cell) -> int:
        return self._planned[self.scale.spec(cell).hash]


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim. Of several parts, the weakest one is shown; `evidence` has them all."""

    number: int
    claim: str
    counts: str  # what would count
    statistic: str
    value: float | None
    n: int
    interval: tuple[float, float] | None
    verdict: str
    evidence: tuple[str, ...]
    missing: int  # runs, or data sets, that it needs and does not have

    @classmethod
    def of(cls, number: int, claim: str, counts: str, found: Iterable[Part | str], missing: set[str]) -> Verdict:
        """By rule, from the parts among what was found; the rest is evidence in words."""
        found = list(found)  # which fills `missing`
        parts = [one for one in found if isinstance(one, Part)]
        weakest = min(parts, key=lambda part: part.strength, default=Part("nothing to go by", Estimate(None, 0)))
        value, interval = weakest.estimate.value, weakest.estimate.interval
        return cls(
            number,
            claim,
            counts,
            statistic=weakest.statistic,
            value=None if value is None else _rounded(value),
            n=weakest.estimate.n,
            interval=None if interval is None else (_rounded(interval[0]), _rounded(interval[1])),
            verdict=combined(parts, len(missing)),
            evidence=tuple(one.line() if isinstance(one, Part) else one for one in found),
            missing=len(missing),
        )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def text(verdicts: Sequence[Verdict]) -> str:
    """One line a claim."""
    return "\n".join(f"{each.number:2}. {each.verdict:<13} {each.claim}" for each in verdicts)


def write(verdicts: Sequence[Verdict], folder: Path) -> list[Path]:
    """claims.json and claims.md; the same verdicts make the same files."""
    files = [folder / "claims.json", folder / "claims.md"]
    write_json(files[0], [asdict(each) for each in verdicts])
    write_text(files[1], markdown(verdicts))
    return files


def markdown(verdicts: Sequence[Verdict]) -> str:
    lines = [
        "# The paper's claims, tested\n",
        RULE,
        "| | claim | verdict | statistic | value | 95 % interval | n | missing |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in verdicts:
        value = "" if each.value is None else signed(each.value)
        interval = "" if each.interval is None else " to ".join(map(signed, each.interval))
        cells = (each.number, each.claim, f"**{each.verdict}**", each.statistic, value, interval, each.n, each.missing)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for each in verdicts:
        lines += ["", f"## {each.number}. {each.claim}: {each.verdict}", "", f"What counts: {each.counts}.", ""]
        lines += [f"- {line}" for line in each.evidence]
        lines += [f"- runs or data sets missing: {each.missing}"] if each.missing else []
    return "\n".join(lines) + "\n"
