"""Statistics with 95 % intervals, and the rule that turns them into a verdict.

A claim says that a number lies in a range. It *holds* if the whole interval of the number lies in that range, *does not
hold* if the whole interval lies outside, and is *undecided* otherwise, also if there are too few numbers for an
interval or runs are missing. A claim with several parts holds if all parts hold, and does not hold if one does not.
Intervals are not corrected for multiple comparisons.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

LEVEL = 0.95
LEAST_VALUES = 3  # for the interval of a mean
RANK_DIGITS = 9  # after the point; values that differ only beyond are tied
LEAST_PAIRS = 5  # for the interval of a rank correlation: fewer pairs are never significant
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Estimate:
    """A statistic of n numbers, with an interval if n is large enough."""

    value: float | None
    n: int
    interval: tuple[float, float] | None = None

    def widened(self, by: float) -> "Estimate":
        """Widen the interval for what the numbers cannot show, such as the effect of another seed."""
        return replace(self, interval=self.interval and (self.interval[0] - by, self.interval[1] + by))

    def within(self, low: float, high: float) -> "Estimate":
        """Clip the interval to the possible values."""
        return replace(self, interval=self.interval and (max(low, self.interval[0]), min(high, self.interval[1])))


def mean(values: Iterable[float]) -> Estimate:
    """The mean with Student's interval; NaN stands for a missing value and is left out."""
    known = [float(value) for value in values if not math.isnan(value)]
    n, average = len(known), float(np.mean(known)) if known else None
    if average is None or n < LEAST_VALUES:
        return Estimate(average, n)
    return Estimate(average, n, _around(average, float(stats.sem(known)), n))


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """The difference of two unpaired means with Welch's interval (degrees of freedom of the smaller sample)."""
    n = min(len(first), len(second))
    apart = float(np.mean(first) - np.mean(second)) if n else None
    if apart is None or n < LEAST_VALUES:
        return Estimate(apart, n)
    return Estimate(apart, n, _around(apart, math.hypot(stats.sem(first), stats.sem(second)), n))


def one_more(values: Sequence[float]) -> tuple[float, float]:
    """The prediction interval for one more value of the same kind."""
    return _around(float(np.mean(values)), float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values)), len(values))


def _around(value: float, error: float, n: int) -> tuple[float, float]:
    """Student's interval."""
    width = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    return value - width, value + width


def share(hits: int, n: int) -> Estimate:
    """A share with the exact interval of Clopper and Pearson."""
    interval = stats.binomtest(hits, n).proportion_ci(LEVEL)
    return Estimate(hits / n, n, (float(interval.low), float(interval.high)))


def rank_correlation(first: Iterable[float], second: Iterable[float]) -> Estimate:
    """Spearman's rank correlation, 0 if either side is constant; pairs with NaN are left out.

    The interval is Bonett and Wright's (2000), by Fisher's transform. It does not exist for a perfect order, which
    therefore counts as half a swap of two neighbours away from it. A bootstrap would be too narrow with few pairs.
    """
    pairs = [
        (round(x, RANK_DIGITS), round(y, RANK_DIGITS))
        for x, y in zip(first, second, strict=True)
        if not math.isnan(x + y)
    ]
    n = len(pairs)
    if n < LEAST_PAIRS:
        return Estimate(_spearman(pairs) if n > 1 else None, n)
    rho = _spearman(pairs)
    most = 1 - 6 / (n**3 - n)
    inside = min(max(rho, -most), most)
    width = float(stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt((1 + inside**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(inside) + step) for step in (-width, width))
    return Estimate(rho, n, (min(low, rho), max(high, rho)))


def spanning(estimates: Sequence[Estimate]) -> Estimate:
    """The union of the intervals of several equally good estimates of one number, and their median."""
    values = [each.value for each in estimates if each.value is not None]
    intervals = [each.interval for each in estimates if each.interval is not None]
    whole = len(intervals) == len(estimates) > 0
    union = (min(low for low, _ in intervals), max(high for _, high in intervals)) if whole else None
    return Estimate(float(np.median(values)) if values else None, min(each.n for each in estimates), union)


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    if any(len(set(side)) == 1 for side in zip(*pairs, strict=True)):
        return 0.0
    return float(stats.spearmanr(pairs).statistic)


@dataclass(frozen=True)
class Part:
    """One number that a claim rests on, and the range where the claim says it lies."""

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
        """Sort key for the weakest part: the verdict, then how far inside its range the value is, in interval widths.

        A part without a value comes last.
        """
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


def signed(value: float, form: str = ".4g") -> str:
    """The number with a minus sign, not a hyphen."""
    return f"{value:{form}}".replace("-", "−")


def combined(parts: Sequence[Part], missing: int = 0) -> str:
    """The verdict on a claim with these parts, and so many missing runs."""
    verdicts = {part.verdict for part in parts}
    if missing or not verdicts:
        return UNDECIDED
    return FAILS if FAILS in verdicts else UNDECIDED if UNDECIDED in verdicts else HOLDS
