"""Statistics with their 95 % intervals, and the one rule that makes a verdict of them.

A claim says that a number lies in a range. It *holds* if the whole interval of the number lies there, it *does not
hold* if none of the interval does, and otherwise it is *undecided*: also where numbers are too few for an interval, or
runs are missing. A claim of several parts holds if all of them do, and does not hold if one of them does not.

A part that is true is refuted by chance in one of forty cases, so of many parts one may be: read the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

LEVEL = 0.95
LEAST_VALUES = 3  # for the interval of a mean
TIES = 9  # digits after the point that tell ranks apart: beyond, only rounding differs
LEAST_PAIRS = 5  # for that of a rank correlation: fewer cannot be significant, however they are ordered
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Estimate:
    """A statistic of n numbers; without an interval where they are too few."""

    value: float | None
    n: int
    interval: tuple[float, float] | None = None

    def widened(self, by: float) -> Estimate:
        """For what the numbers cannot show, such as how another seed would come out."""
        if self.interval is None:
            return self
        return replace(self, interval=(self.interval[0] - by, self.interval[1] + by))

    def within(self, low: float, high: float) -> Estimate:
        """For a number that cannot lie elsewhere, which Student's interval does not know."""
        if self.interval is None:
            return self
        return replace(self, interval=(max(low, self.interval[0]), min(high, self.interval[1])))


def mean(values: Iterable[float]) -> Estimate:
    """With Student's interval. NaN stands for what is missing and is left out."""
    known = [float(value) for value in values if not math.isnan(value)]
    if len(known) < LEAST_VALUES:
        return Estimate(float(np.mean(known)) if known else None, len(known))
    return _around(float(np.mean(known)), float(stats.sem(known)), len(known))


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Of the means of two unpaired samples: Welch's interval, with the degrees of freedom of the smaller one."""
    n = min(len(first), len(second))
    if n < LEAST_VALUES:
        return Estimate(float(np.mean(first) - np.mean(second)) if n else None, n)
    return _around(float(np.mean(first) - np.mean(second)), math.hypot(stats.sem(first), stats.sem(second)), n)


def _around(value: float, error: float, n: int) -> Estimate:
    width = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    return Estimate(value, n, (value - width, value + width))


def share(hits: int, n: int) -> Estimate:
    """With the exact interval of Clopper and Pearson."""
    interval = stats.binomtest(hits, n).proportion_ci(LEVEL)
    return Estimate(hits / n, n, (float(interval.low), float(interval.high)))


def rank_correlation(first: Iterable[float], second: Iterable[float]) -> Estimate:
    """Spearman's, 0 where either does not vary. Pairs with NaN are left out.

    The interval is that of Bonett and Wright (2000), by Fisher's transform, which has none for a perfect order: that
    counts as if it were half a swap of two neighbours away. With few pairs, a bootstrap would be too sure of itself.
    """
    pairs = [(round(x, TIES), round(y, TIES)) for x, y in zip(first, second, strict=True) if not math.isnan(x + y)]
    n = len(pairs)
    if n < LEAST_PAIRS:
        return Estimate(_spearman(pairs) if n > 1 else None, n)
    rho = _spearman(pairs)
    most = 1 - 6 / (n**3 - n)
    inside = min(max(rho, -most), most)
    width = float(stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt((1 + inside**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(inside) + step) for step in (-width, width))
    return Estimate(rho, n, (min(low, rho), max(high, rho)))


def spanning(estimates: Iterable[Estimate]) -> Estimate:
    """Of a number that was estimated in several ways, none better than another: all of their intervals together."""
    some = list(estimates)
    values = [each.value for each in some if each.value is not None]
    intervals = [each.interval for each in some if each.interval is not None]
    whole = len(intervals) == len(some) > 0
    return Estimate(
        float(np.median(values)) if values else None,
        min(each.n for each in some),
        (min(low for low, _ in intervals), max(high for _, high in intervals)) if whole else None,
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    if any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return 0.0
    return float(stats.spearmanr(pairs).statistic)


@dataclass(frozen=True)
class Part:
    """One number that a claim rests on, and the range it should lie in."""

    statistic: str
    estimate: Estimate
    above: float = -math.inf
    below: float = math.inf

    @property
    def verdict(self) -> str:
        if self.estimate.interval is None:
            return UNDECIDED
        low, high = self.estimate.interval
        if self.above < low and high < self.below:
            return HOLDS
        return FAILS if high <= self.above or self.below <= low else UNDECIDED

    @property
    def strength(self) -> tuple[int, float]:
        """To find the weakest part: by its verdict, then by how far the value is inside its range, in intervals where
        there is one. A part without a value shows nothing and comes last."""
        order = (FAILS, UNDECIDED, HOLDS).index(self.verdict)
        if self.estimate.value is None:
            return order, math.inf
        room = min(self.estimate.value - self.above, self.below - self.estimate.value)
        width = 1.0 if self.estimate.interval is None else self.estimate.interval[1] - self.estimate.interval[0]
        return order, room / width if width else math.copysign(math.inf, room)

    def line(self) -> str:
        """`AUL: … 3.2 (2.1 to 4.3), n = 3; claimed above 0: holds`."""
        found = self.estimate
        told = "not known yet"
        if found.value is not None:
            interval = "no interval" if found.interval is None else " to ".join(map(signed, found.interval))
            told = f"{signed(found.value)} ({interval}), n = {found.n}"
        bounds = (("above", self.above), ("below", self.below))
        claimed = " and ".join(f"{word} {signed(bound)}" for word, bound in bounds if math.isfinite(bound))
        return f"{self.statistic}: {told}; claimed {claimed}: {self.verdict}"


def signed(value: float, digits: int = 4) -> str:
    """With a minus, not a hyphen, as in tables."""
    return f"{value:.{digits}g}".replace("-", "−")


def combined(parts: Sequence[Part], missing: int = 0) -> str:
    """The verdict on a claim of these parts, for which so many runs are missing."""
    verdicts = {part.verdict for part in parts}
    if missing or not verdicts:
        return UNDECIDED
    return FAILS if FAILS in verdicts else UNDECIDED if UNDECIDED in verdicts else HOLDS
