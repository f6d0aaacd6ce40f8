"""How many labels are wrong, which, and which class is taken for which: from the scores of an audit.

Scores are taken for a mixture of two normal distributions, one of right labels and one of wrong ones, fitted by
expectation maximisation to a histogram of the scores, so that a million samples cost as much as a thousand. The
interval is that of fits to histograms drawn again (bootstrap). A sample's true class is taken to be its given one or,
with the probability that this is wrong, the suggested one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from curriculoss.audit.score import DEFAULT, score
from curriculoss.audit.trajectories import AFTER, Trajectories
from curriculoss.training import Run

Floats = NDArray[np.float64]
BINS = 400
TRIM = 0.001  # share of the scores at either end that counts as the next ones: a few extreme ones say nothing
STEPS = 300
BOOTSTRAPS = 100
NARROWEST = 0.02  # of the whole range: a component must not sit on a single bin


@dataclass(frozen=True, eq=False, repr=False)
class NoiseEstimate:
    rate: float
    interval: tuple[float, float]  # 95 %
    p_wrong: Floats  # (N,)
    given: NDArray[np.int64]  # (N,) class numbers
    suggested: NDArray[np.int64]  # (N,)
    num_classes: int

    def __repr__(self) -> str:
        return f"NoiseEstimate(rate={self.rate:.3f}, interval=({self.interval[0]:.3f}, {self.interval[1]:.3f}))"

    @property
    def confusion(self) -> Floats:
        """(K, K): the probability of each given class (column) for samples of each true class (row)."""
        counts = np.zeros((self.num_classes, self.num_classes))
        np.add.at(counts, (self.given, self.given), 1 - self.p_wrong)
        np.add.at(counts, (self.suggested, self.given), self.p_wrong)
        total = counts.sum(1, keepdims=True)
        shares: Floats = np.divide(counts, total, out=np.eye(self.num_classes), where=total > 0)
        return shares

    def pairs(self, most: int) -> list[tuple[int, int, float]]:
        """Given class, suggested class and how many labels are estimated to be so, most frequent first."""
        codes, where = np.unique(self.given * self.num_classes + self.suggested, return_inverse=True)
        counts = np.bincount(where, weights=self.p_wrong)
        order = np.argsort(-counts, kind="stable")[:most]
        return [
            (int(codes[i] // self.num_classes), int(codes[i] % self.num_classes), float(counts[i]))
            for i in order
            if counts[i] >= 0.5
        ]


def estimate_noise(run: Run | Path | str, score_name: str = DEFAULT) -> NoiseEstimate:
    """From the folder of an audit's run."""
    run = run if isinstance(run, Run) else Run(Path(run))
    scores = score(Trajectories.read(run), score_name)
    p_wrong, rate, interval = estimate(scores)
    given, suggested = run.arrays("labels")["given"], run.arrays(AFTER)["suggested"]
    return NoiseEstimate(rate, interval, p_wrong, given, suggested, int(run.task["num_classes"]))


class Mixture(NamedTuple):
    """Shares, means and spreads of right and wrong labels' scores."""

    share: Floats
    mean: Floats
    spread: Floats

    def parts(self, at: Floats) -> Floats:
        """(2, M): log share + log density of each, up to a constant."""
        away = (at - self.mean[:, None]) / self.spread[:, None]
        parts: Floats = np.log(self.share / self.spread)[:, None] - away**2 / 2
        return parts

    def wrong(self, at: Floats) -> Floats:
        right, wrong = self.parts(at)
        odds: Floats = np.exp(np.clip(right - wrong, -700, 700))  # beyond, exp overflows
        return 1 / (1 + odds)


def estimate(scores: Floats, seed: int = 0) -> tuple[Floats, float, tuple[float, float]]:
    """`p_wrong` of each sample, the noise rate and its 95 % interval."""
    low, high = np.quantile(scores, [TRIM, 1 - TRIM])
    if not high > low:  # nothing tells samples apart
        return np.zeros(len(scores)), 0.0, (0.0, 1.0)
    edges = np.linspace(low, high, BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    place = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS).astype(np.float64)
    fitted = _fit(centres, counts, _start(centres, counts))
    chance = np.random.default_rng(seed)
    drawn = chance.multinomial(len(scores), counts / counts.sum(), size=BOOTSTRAPS)
    rates = [float(_fit(centres, each.astype(np.float64), fitted).share[1]) for each in drawn]
    below, above = np.quantile(rates, [0.025, 0.975])
    rising = np.maximum.accumulate(fitted.wrong(centres))  # a wider component must not claim the other end
    rate = float(fitted.share[1])
    return rising[place], rate, (min(float(below), rate), max(float(above), rate))


def _start(at: Floats, counts: Floats) -> Mixture:
    """Split where the variance between the two sides is largest (Otsu)."""
    share = np.cumsum(counts) / counts.sum()
    mass = np.cumsum(counts * at) / counts.sum()
    inner = (share > 0) & (share < 1)
    between = np.where(inner, (mass[-1] * share - mass) ** 2 / np.where(inner, share * (1 - share), 1), 0)
    wrong = np.arange(len(at)) > between.argmax()
    return _moments(at, counts, wrong.astype(np.float64))


def _fit(at: Floats, counts: Floats, start: Mixture) -> Mixture:
    found = start
    for _ in range(STEPS):
        again = _moments(at, counts, found.wrong(at))
        done = abs(again.share[1] - found.share[1]) < 1e-6
        found = again
        if done:
            break
    return found


def _moments(at: Floats, counts: Floats, wrong: Floats) -> Mixture:
    weight = counts * np.stack([1 - wrong, wrong])
    total = np.maximum(weight.sum(1), 1e-9)  # an empty component: its share is 0, its place does not matter
    mean = weight @ at / total
    variance = (weight * (at - mean[:, None]) ** 2).sum(1) / total
    return Mixture(total / total.sum(), mean, np.maximum(np.sqrt(variance), NARROWEST * (at[-1] - at[0])))
