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
both mistakes are there, and of about the same size on CIFAR-10N and CIFAR-100N. The estimate is the rate that is
likeliest for all of these epochs together, the interval that of all of their fits.

A fit also says how likely a label with such a gap, or of such a rank, is wrong. The mean over these epochs, made to
rise with the score and to have the rate as its mean, is the probability that a sample's label is wrong: its true class
is then taken to be the suggested one.
"""

from __future__ import annotations

from collections.abc import Iterable
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
FAR = 100.0  # in log odds


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
    rate, interval, likely = noise_rate(*read_guesses(run), num_classes)
    p_wrong = probabilities(scores, likely, rate)
    given, suggested = run.arrays("labels")["given"], run.arrays(AFTER)["suggested"]
    return NoiseEstimate(rate, interval, p_wrong, given, suggested, num_classes)


class Sign(NamedTuple):
    """What a row of gaps, or of ranks, says."""

    rates: Floats  # by counts as they are, and by those drawn again
    support: Floats  # log likelihood of each of the SHARES of all samples
    starts: NDArray[Any]  # of each group but the first
    likely: Floats  # that a label in each group is wrong

    def of(self, row: NDArray[Any]) -> Floats:
        """The same of each sample."""
        found: Floats = self.likely[np.searchsorted(self.starts, row, "right")]
        return found


def noise_rate(
    gaps: NDArray[Any], ranks: NDArray[Any], num_classes: int, seed: int = 0
) -> tuple[float, tuple[float, float], Floats]:
    """The rate, its 95 % interval and how likely each label is wrong, from (E, N) signed gaps and ranks of labels."""
    chance = np.random.default_rng(seed)
    by_gaps = [_by_gaps(-row.astype(np.float64), chance) for row in gaps]
    by_ranks = [_by_ranks(row.astype(np.int64), num_classes, chance) for row in ranks]
    rates = np.maximum([sign.rates for sign in by_gaps], [sign.rates for sign in by_ranks])
    count = len(gaps)
    half = slice(-max(1, count // 2), None)
    found = float(np.median(rates[half, 0]))
    at_random = float(np.median([sign.rates[0] for sign in by_ranks[half]])) > MOSTLY * found
    competent = float((gaps[half] > 0).mean()) > COMPETENT * (1 - found)
    first = count // 4
    chosen = range(count)[half if at_random and competent else slice(first, max(first + 1, count // 2))]
    of_gaps, of_ranks = _together(by_gaps, chosen), _together(by_ranks, chosen)
    rate = max(of_gaps, of_ranks)
    low, high = np.quantile(rates[chosen], [0.025, 0.975]).tolist()
    least = UNSEEN / gaps.shape[1]
    interval = max(0.0, min(low, rate - least)), min(1.0, max(high, rate + least))
    likely = np.zeros(gaps.shape[1])
    for epoch in chosen:
        seen = by_gaps[epoch].of(-gaps[epoch]) if of_gaps > of_ranks else by_ranks[epoch].of(ranks[epoch])
        likely += seen / len(chosen)
    return rate, interval, likely


def _together(signs: list[Sign], chosen: Iterable[int]) -> float:
    """The likeliest rate, if it is the same in all of these epochs."""
    return float(SHARES[np.sum([signs[epoch].support for epoch in chosen], axis=0).argmax()])


def _by_gaps(against: Floats, chance: np.random.Generator) -> Sign:
    """From how much surer the network is of another class than of the next; negative where it predicts the label."""
    size = np.abs(against)
    inner = np.quantile(size, np.linspace(0, 1, GROUPS + 1)[1:-1])
    edges = np.unique([0.0, *inner, np.inf])
    total, refused = np.histogram(size, edges)[0], np.histogram(against[against >= 0], edges)[0]
    scale = SCALES[:, None] * max(float(size.mean()), 1e-9)  # all 0: nothing is known
    falling = np.diff(-np.exp(-edges / scale))
    chances = refused / np.maximum(total, 1)  # few samples leave groups empty
    drawn = chance.binomial(total, chances, size=(BOOTSTRAPS, len(total)))
    counts = np.vstack([refused, drawn])
    shares, support, likely = _likeliest(counts, falling, total / total.sum())
    most = refused.sum() / len(size)  # no more can be seen to be wrong
    of_all = np.interp(SHARES, most * SHARES, support, right=-np.inf)
    return Sign(shares * counts.sum(1) / len(size), of_all, edges[:-1], np.array([0.0, *likely]))


def _by_ranks(ranks: NDArray[np.int64], num_classes: int, chance: np.random.Generator) -> Sign:
    """Of two classes, a label that is not the first is the last: ranks say nothing."""
    if num_classes == 2:
        return Sign(np.zeros(1 + BOOTSTRAPS), np.zeros(len(SHARES)), np.array([1]), np.zeros(2))
    edges = np.unique(np.geomspace(1, num_classes, GROUPS).astype(np.int64))  # each rank, then groups of many
    rank = np.arange(num_classes)
    scale = np.geomspace(0.02, num_classes / 2, 30)[:, None, None]
    falling = np.exp(-((rank / scale) ** STRETCHES[:, None])).reshape(-1, num_classes)
    falling = np.add.reduceat(falling / falling.sum(1, keepdims=True), [0, *edges[:-1]], axis=1)
    anywhere = np.diff([1, *edges]) / (num_classes - 1)
    counts = np.add.reduceat(np.bincount(ranks, minlength=num_classes), [0, *edges[:-1]])
    drawn = chance.multinomial(len(ranks), counts / len(ranks), size=BOOTSTRAPS)
    shares, support, likely = _likeliest(np.vstack([counts, drawn]), falling, anywhere)
    return Sign(shares, support, edges[:-1], likely)


def _likeliest(counts: NDArray[Any], falling: Floats, spread: Floats) -> tuple[Floats, Floats, Floats]:
    """Of each row of counts in M groups: the share that is spread, where the rest falls as one of the (S, M). Of the
    first row also the log likelihood of each share, and how likely one in each group is of those spread."""
    share = SHARES[:, None, None]
    mixed = np.maximum((1 - share) * falling + share * spread, 1e-12)  # groups that nobody should be in
    fit = counts @ np.log(mixed).reshape(-1, len(spread)).T
    best = fit.argmax(1)
    shares: Floats = SHARES[best // len(falling)]
    likely = shares[0] * spread / mixed.reshape(-1, len(spread))[best[0]]
    return shares, fit[0].reshape(len(SHARES), -1).max(1), likely


def probabilities(scores: Floats, likely: Floats, rate: float) -> Floats:
    """How likely each label is wrong, given a guess: it rises with the score, and its mean is the rate."""
    if not 0 < rate < 1:
        return np.full(len(scores), rate)
    from scipy.optimize import brentq, isotonic_regression
    from scipy.special import expit, logit

    order = np.lexsort((-likely, scores))  # falling where scores are the same, so that they come out the same
    least = 1 / (1 + len(scores))  # of so many, none is certain
    odds = logit(np.clip(isotonic_regression(likely[order]).x, least, 1 - least))
    shift = brentq(lambda shift: float(expit(odds + shift).mean()) - rate, -FAR, FAR)
    found = np.empty(len(scores))
    found[order] = expit(odds + shift)
    return found
