"""How many labels are wrong, which, and which class is taken for which: from what the network made of each sample.

Neither of two signs takes a hard sample for a wrong label; each misses some wrong ones, so the larger counts.

Gaps. Where the network prefers another class to the given one, it errs or the label is wrong. It errs where it is
unsure: the gaps between its best two logits fall off exponentially from 0. It meets wrong labels whether it is sure or
not: their gaps are spread as those of all samples. The likeliest share of the second kind is taken. (It is read off
where the network is sure: the anchor points of Liu and Tao, 2016.) If people err where it is unsure, this is too low.

Ranks. A right label is seldom far down in the order of the logits: ranks fall off, as a stretched exponential. One that
is wrong at random may be anywhere below the first. This holds even where the network has memorised many labels, so that
it is least sure of wrong ones; but it does not see labels that are taken for a similar class.

Both are fitted by maximum likelihood in every epoch, to the counts as they are and to counts drawn again (bootstrap).
At first the network knows too little, and its errors look like wrong labels. At last it knows more, but where classes
are alike people err as it does, and that is not seen any more. So where most of the noise is at random, since ranks see
it, and the network is mostly right, the second half of the epochs is believed; otherwise the second quarter, in which
both mistakes are there, and of about the same size on CIFAR-10N and CIFAR-100N. The estimate is the median over these
epochs, the interval that of all of their fits.

Given the rate, scores are taken for a mixture of two normal distributions, one of right labels and one of wrong ones,
fitted by expectation maximisation to a histogram of the scores, so that a million samples cost as much as a thousand.
A sample's true class is taken to be its given one or, with the probability that this is wrong, the suggested one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from curriculoss.audit.score import DEFAULT, score
from curriculoss.audit.trajectories import AFTER, Trajectories, read_guesses
from curriculoss.training import Run

Floats = NDArray[np.float64]
SHARES = np.linspace(0, 1, 201)  # that are tried
GROUPS = 40  # of gaps, or of ranks
SCALES = np.geomspace(0.02, 4, 25)  # of the fall of gaps, over their mean
STRETCHES = np.array([0.5, 0.75, 1.0])  # of the fall of ranks
BOOTSTRAPS = 20  # of every epoch
MOSTLY = 0.75  # of the noise is at random: ranks see it
COMPETENT = 0.5  # share of right labels that the network predicts
UNSEEN = 3.0  # over the number of samples: the rate of what may well be missed among so few
BINS = 400
TRIM = 0.001  # share of the scores at either end that counts as the next ones: a few extreme ones say nothing
STEPS = 300
MOST = 300.0  # log odds: beyond, exp overflows
HALVINGS = 60
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
    """From the folder of an audit's run, or of the audit that it is in."""
    if not isinstance(run, Run):
        inner = Path(run) / "run"
        run = Run(inner if inner.is_dir() else Path(run))
    scores = score(Trajectories.read(run), score_name)
    num_classes = int(run.task["num_classes"])
    rate, interval = noise_rate(*read_guesses(run), num_classes)
    p_wrong = probabilities(scores, rate)
    given, suggested = run.arrays("labels")["given"], run.arrays(AFTER)["suggested"]
    return NoiseEstimate(rate, interval, p_wrong, given, suggested, num_classes)


def noise_rate(
    gaps: NDArray[Any], ranks: NDArray[Any], num_classes: int, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """The rate and its 95 % interval, from (E, N) signed gaps and ranks of the given labels."""
    chance = np.random.default_rng(seed)
    by_gaps = np.array([_by_gaps(row.astype(np.float64), chance) for row in gaps])
    by_ranks = np.array([_by_ranks(row.astype(np.int64), num_classes, chance) for row in ranks])
    rates, count = np.maximum(by_gaps, by_ranks), len(gaps)
    half = slice(-max(1, count // 2), None)
    found = float(np.median(rates[half, 0]))
    at_random = float(np.median(by_ranks[half, 0])) > MOSTLY * found
    competent = float((gaps[half] > 0).mean()) > COMPETENT * (1 - found)
    first = count // 4
    chosen = rates[half if at_random and competent else slice(first, max(first + 1, count // 2))]
    rate = float(np.median(chosen[:, 0]))
    low, high = np.quantile(chosen, [0.025, 0.975]).tolist()
    least = UNSEEN / gaps.shape[1]
    return rate, (max(0.0, min(low, rate - least)), min(1.0, max(high, rate + least)))


def _by_gaps(gaps: Floats, chance: np.random.Generator) -> Floats:
    """The rate by counts as they are, and by those drawn again."""
    size = np.abs(gaps)
    inner = np.quantile(size, np.linspace(0, 1, GROUPS + 1)[1:-1])
    edges = np.unique([0.0, *inner, np.inf])
    total, against = np.histogram(size, edges)[0], np.histogram(size[gaps <= 0], edges)[0]
    scale = SCALES[:, None] * max(float(size.mean()), 1e-9)  # all 0: nothing is known
    falling = np.diff(-np.exp(-edges / scale))
    chances = against / np.maximum(total, 1)  # few samples leave groups empty
    drawn = chance.binomial(total, chances, size=(BOOTSTRAPS, len(total)))
    counts = np.vstack([against, drawn])
    rates: Floats = _likeliest(counts, falling, total / total.sum()) * counts.sum(1) / len(gaps)
    return rates


def _by_ranks(ranks: NDArray[np.int64], num_classes: int, chance: np.random.Generator) -> Floats:
    """The same. Of two classes, a label that is not the first is the last: ranks say nothing."""
    if num_classes == 2:
        return np.zeros(1 + BOOTSTRAPS)
    edges = np.unique(np.geomspace(1, num_classes, GROUPS).astype(np.int64))  # each rank, then groups of many
    rank = np.arange(num_classes)
    scale = np.geomspace(0.02, num_classes / 2, 30)[:, None, None]
    falling = np.exp(-((rank / scale) ** STRETCHES[:, None])).reshape(-1, num_classes)
    falling = np.add.reduceat(falling / falling.sum(1, keepdims=True), [0, *edges[:-1]], axis=1)
    anywhere = np.diff([1, *edges]) / (num_classes - 1)
    counts = np.add.reduceat(np.bincount(ranks, minlength=num_classes), [0, *edges[:-1]])
    drawn = chance.multinomial(len(ranks), counts / len(ranks), size=BOOTSTRAPS)
    return _likeliest(np.vstack([counts, drawn]), falling, anywhere)


def _likeliest(counts: NDArray[Any], falling: Floats, spread: Floats) -> Floats:
    """Of each row of counts in M groups: the share that is spread, where the rest falls as one of the (S, M)."""
    share = SHARES[:, None, None]
    mixed = (1 - share) * falling + share * spread
    fit = counts @ np.log(np.maximum(mixed, 1e-12)).reshape(-1, len(spread)).T  # groups that nobody should be in
    found: Floats = SHARES[fit.argmax(1) // len(falling)]
    return found


def probabilities(scores: Floats, rate: float) -> Floats:
    """That each label is wrong: it rises with the score, and its mean is the rate."""
    low, high = np.quantile(scores, [TRIM, 1 - TRIM])
    if not high > low or not 0 < rate < 1:  # nothing tells samples apart
        return np.full(len(scores), rate)
    edges = np.linspace(low, high, BINS + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    place = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, BINS - 1)
    counts = np.bincount(place, minlength=BINS).astype(np.float64)
    right, wrong = _fit(centres, counts, rate).parts(centres)
    odds = np.maximum.accumulate(np.clip(wrong - right, -MOST, MOST))  # a wider component must not claim the other end
    below, above = -2 * MOST, 2 * MOST
    for _ in range(HALVINGS):  # what is added to all log odds for the mean to be the rate
        middle = (below + above) / 2
        if counts @ _logistic(odds + middle) > rate * len(scores):
            above = middle
        else:
            below = middle
    return _logistic(odds + above)[place]


def _logistic(odds: Floats) -> Floats:
    share: Floats = 1 / (1 + np.exp(-odds))
    return share


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


def _fit(at: Floats, counts: Floats, rate: float) -> Mixture:
    """With known shares. At first, the highest scores are those of wrong labels."""
    share = np.array([1 - rate, rate])
    wrong = (np.cumsum(counts) > (1 - rate) * counts.sum()).astype(np.float64)
    for _ in range(STEPS):
        weight = counts * np.stack([1 - wrong, wrong])
        total = np.maximum(weight.sum(1), 1e-9)  # an empty component: its place does not matter
        mean = weight @ at / total
        variance = (weight * (at - mean[:, None]) ** 2).sum(1) / total
        found = Mixture(share, mean, np.maximum(np.sqrt(variance), NARROWEST * (at[-1] - at[0])))
        right, other = found.parts(at)
        before, wrong = wrong, _logistic(np.clip(other - right, -MOST, MOST))
        if np.abs(wrong - before).max() < 1e-6:
            break
    return found
