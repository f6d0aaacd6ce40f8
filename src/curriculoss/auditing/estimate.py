"""How many labels are wrong, how likely each one is, and which classes are confused.

Two fits per epoch, neither of which takes a hard sample for a wrong label. Each misses some wrong labels, so the larger
rate counts.

Gaps: where the network prefers another class, either it errs or the label is wrong. It errs where it is unsure, so the
gaps between its two best logits fall off exponentially. Wrong labels do not depend on how sure it is, so their gaps are
distributed like those of all samples (the anchor points of Liu and Tao, 2016). If people err where the network is
unsure, this rate is too low.

Ranks: a right label is seldom far down in the order of the logits, and its rank falls off as a stretched exponential. A
label that is wrong at random is equally likely at each rank below the first. This also works where the network has
memorised many labels, but it misses labels that are confused with a similar class. A rate that would put more labels
into the last fifth of the ranks than there are is cut down to what fits: otherwise the hard samples of a network that
has memorised the easy ones would count as noise.

A class that the network has not learned yet because it is rare says nothing about its labels: all of them would seem to
be wrong. Both fits leave out classes with less than half the average number of samples until their labels are predicted
half as often as others.

Rates are posterior means under a uniform prior. Early in training the network knows too little, and its own errors look
like noise; late in training it has learned people's mistakes. The second half of the epochs is used if ranks explain
most of the noise there, their fit agrees with the last ranks and the network is mostly right; otherwise the second
quarter. The interval covers the rates that the counts of any of these epochs do not refute (likelihood ratio). On top,
some of the labels that the network refused at first and has learned since may be wrong.

A fit also says how likely a label with a given gap or rank is wrong. `p_wrong` is the mean over these epochs, made to
rise with the score and to have the rate as its mean; the true class is taken to be the suggested one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
GRID = np.linspace(0, 1, 301) ** 2  # rates to try, finer where they are low
PRIOR = np.gradient(GRID)  # uniform
NUM_GROUPS = 40  # groups of gaps, or of ranks
GAP_SCALES = np.geomspace(0.02, 4, 25)  # scale of the fall of gaps, relative to their mean
STRETCHES = np.array([0.5, 0.75, 1.0])  # exponents of the fall of ranks
MOSTLY_RANDOM = 0.75  # share of the noise that ranks must explain for the second half of the epochs to be used
RARE = 0.5  # a class is rare below this share of the average number of samples
LEARNED_CLASS = 0.5  # a rare class counts once its labels are predicted this often, relative to all labels
COMPETENT = 0.5  # share of the right labels that the network must predict for the same
LEARNED_WRONG = 0.15  # share of the labels learned after the first quarter of the epochs that may be wrong
REFUTED = 1.92  # log likelihood below the largest at which a rate is refuted: half the 95 % quantile of χ²₁
UNSEEN = 3.0  # wrong labels that may go unseen in any data (95 %, by the rule of three)
FAR = 100.0  # bound on a shift in log odds


@dataclass(frozen=True, eq=False, repr=False)
class NoiseEstimate:
    """Estimated label noise of an audit.

    Attributes:
        noise_rate: The estimated share of wrong labels.
        interval: Its 95 % interval.
        p_wrong: (N,) the estimated probability that each label is wrong; it rises with the score.
        given_number: (N,) the class numbers of the given labels.
        suggested_number: (N,) the class numbers of the suggested labels.
        num_classes: The number of classes.
    """

    noise_rate: float
    interval: tuple[float, float]
    p_wrong: Floats
    given_number: NDArray[np.int64]
    suggested_number: NDArray[np.int64]
    num_classes: int

    def __repr__(self) -> str:
        low, high = self.interval
        return f"{type(self).__name__}({len(self)} samples, noise rate {self.noise_rate:.4f} ({low:.4f} to {high:.4f}))"

    def __len__(self) -> int:
        return len(self.p_wrong)

    @property
    def confusion(self) -> Floats:
        """(K, K): the estimated probability of each given label (column) for samples of each true class (row)."""
        counts = np.zeros((self.num_classes, self.num_classes))
        np.add.at(counts, (self.given_number, self.given_number), 1 - self.p_wrong)
        np.add.at(counts, (self.suggested_number, self.given_number), self.p_wrong)
        total = counts.sum(1, keepdims=True)
        shares: Floats = np.divide(counts, total, out=np.eye(self.num_classes), where=total > 0)
        return shares

    def pairs(self, most: int) -> list[tuple[int, int, float]]:
        """The most frequent confusions: given class, suggested class, and the expected number of such labels."""
        codes, where = np.unique(self.given_number * self.num_classes + self.suggested_number, return_inverse=True)
        counts = np.bincount(where, weights=self.p_wrong)
        order = np.argsort(-counts, kind="stable")[:most]
        return [(*divmod(int(codes[i]), self.num_classes), float(counts[i])) for i in order if counts[i] >= 0.5]


class NoiseRate(NamedTuple):
    """What `noise_rate` returns."""

    rate: float
    interval: tuple[float, float]  # 95 %
    likely: Floats  # how likely each label is wrong, from its gaps or ranks alone


@dataclass(frozen=True, eq=False)
class Fit:
    """The gaps, or the ranks, of one epoch as a mixture of right and wrong labels."""

    support: Floats  # log likelihood of each rate of the GRID
    starts: NDArray[Any]  # where each group but the first starts
    likely: Floats  # how likely a label of each group is wrong
    bound: float = 1.0  # the largest rate that agrees with the last ranks

    @property
    def likeliest(self) -> float:
        """The rate with the largest likelihood."""
        return float(GRID[self.support.argmax()])

    @property
    def interval(self) -> Floats:
        """The lowest and the highest rate that the counts do not refute."""
        left = GRID[self.support >= self.support.max() - REFUTED]
        return np.minimum((left[0], left[-1]), self.bound)

    def of(self, row: NDArray[Any]) -> Floats:
        """How likely each label is wrong, from its gap or rank."""
        found: Floats = self.likely[np.searchsorted(self.starts, row, "right")]
        return found


def posterior(support: Floats, bound: float = 1.0) -> Floats:
    """The probability of each rate of the GRID up to a bound, given their log likelihoods."""
    allowed = np.where(GRID <= bound, support, -np.inf)
    weight = PRIOR * np.exp(allowed - allowed.max())
    found: Floats = weight / weight.sum()
    return found


def noise_rate(gaps: NDArray[Any], ranks: NDArray[Any], given: NDArray[np.int64], num_classes: int) -> NoiseRate:
    """Estimate how many labels are wrong.

    Args:
        gaps: (E, N) gaps between the two best logits, negative where the best is not the given label.
        ranks: (E, N) ranks of the given labels among the logits; 0 is the best.
        given: (N,) class numbers of the given labels.
        num_classes: The number of classes.
    """
    count, refused = gaps.shape[1], (gaps < 0).mean(1)
    learned_classes = [_of_learned_classes(row > 0, given, num_classes) for row in gaps]
    by_gap = [_fit_gaps(-row[some].astype(np.float64)) for row, some in zip(gaps, learned_classes, strict=True)]
    by_rank = [
        _fit_ranks(row[some].astype(np.int64), num_classes) for row, some in zip(ranks, learned_classes, strict=True)
    ]
    epochs = _believed_epochs(by_gap, by_rank, refused)
    gap_rate, rank_rate = _joint_rate(by_gap[epochs]), _joint_rate(by_rank[epochs])
    rate = max(gap_rate, rank_rate, 1 / (2 + count))  # at least Laplace's rule of succession
    larger = [
        np.maximum(gap.interval, rank.interval) for gap, rank in zip(by_gap[epochs], by_rank[epochs], strict=True)
    ]
    low, high = float(np.min(larger)), float(np.max(larger))
    first = refused[min(1, len(gaps) - 1) : max(2, len(gaps) // 4)].mean()  # in the very first epoch nothing is known
    learned = LEARNED_WRONG * max(0.0, first - refused[epochs].mean())
    least = UNSEEN / count
    interval = float(max(0.0, min(low, rate - least))), float(min(1.0, max(high, rate + least) + learned))
    fits, rows = (by_gap, -gaps) if gap_rate > rank_rate else (by_rank, ranks)
    likely = np.mean([fit.of(row) for fit, row in zip(fits[epochs], rows[epochs], strict=True)], axis=0)
    return NoiseRate(rate, interval, likely)


def _of_learned_classes(predicted: NDArray[np.bool_], given: NDArray[np.int64], num_classes: int) -> NDArray[np.bool_]:
    """Which labels are of a class that is common, or that the network has learned all the same."""
    counts = np.bincount(given, minlength=num_classes)
    shares = np.bincount(given, predicted, num_classes) / np.maximum(counts, 1)
    common = counts >= RARE * len(given) / num_classes
    found: NDArray[np.bool_] = (common | (shares >= LEARNED_CLASS * predicted.mean()))[given]
    return found


def _believed_epochs(by_gap: Sequence[Fit], by_rank: Sequence[Fit], refused: Floats) -> slice:
    """The second half of the epochs or, unless ranks can be relied on there, the second quarter."""
    count = len(refused)
    # In the very first epoch nothing is known: it counts only if there is no other.
    half, quarter = slice(count // 2, count), slice(min(max(1, count // 4), count - 1), max(2, count // 2))
    gap_rate = float(np.median([fit.likeliest for fit in by_gap[half]]))
    rank_rate = float(np.median([fit.likeliest for fit in by_rank[half]]))
    found = max(gap_rate, rank_rate)
    agrees = rank_rate <= _bound(by_rank[half])
    competent = 1 - refused[half].mean() > COMPETENT * (1 - found)
    return half if rank_rate > MOSTLY_RANDOM * found and agrees and competent else quarter


def _bound(fits: Sequence[Fit]) -> float:
    return float(np.mean([fit.bound for fit in fits]))


def _joint_rate(fits: Sequence[Fit]) -> float:
    """The posterior mean of the rate. Epochs see the same samples, so together they count as one."""
    return float(posterior(np.mean([fit.support for fit in fits], axis=0), _bound(fits)) @ GRID)


def _mixture(counts: NDArray[Any], falling: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Fit counts in M groups: a share of them is spread as `spread`, the rest falls as one of the (S, M) `falling`.

    Returns:
        The log likelihood of each share, and how likely an entry of each group belongs to the share that is spread.
    """
    share = GRID[:, None, None]
    density = np.maximum((1 - share) * falling + share * spread, 1e-12)  # groups that should be empty
    support: Floats = np.log(density) @ counts
    best = density[np.arange(len(GRID)), support.argmax(1)]  # for each share, the likeliest fall
    profile = support.max(1)
    return profile, (posterior(profile) * GRID) @ (spread / best)


def _fit_gaps(against: Floats) -> Fit:
    """Fit gaps that are positive where the network prefers another class to the given one."""
    size = np.abs(against)
    edges = np.unique([0.0, *np.quantile(size, np.linspace(0, 1, NUM_GROUPS + 1)[1:-1]), np.inf])
    total, refused = np.histogram(size, edges)[0], np.histogram(against[against >= 0], edges)[0]
    scale = GAP_SCALES[:, None] * max(float(size.mean()), 1e-9)  # gaps of an untrained network may all be 0
    support, likely = _mixture(refused, np.diff(-np.exp(-edges / scale)), total / total.sum())
    most = refused.sum() / len(size)  # the share of these shares of refused labels in all labels
    of_all = np.interp(GRID, most * GRID, support, right=-np.inf) if most else np.where(GRID, -np.inf, 0.0)
    return Fit(of_all, edges[:-1], np.array([0.0, *likely]))


def _fit_ranks(ranks: NDArray[np.int64], num_classes: int) -> Fit:
    """Fit the ranks of labels."""
    if num_classes == 2:  # a label that is not the first is the last: ranks say nothing
        return Fit(np.where(GRID, -np.inf, 0.0), np.array([1]), np.zeros(2))
    edges = np.unique(np.geomspace(1, num_classes, NUM_GROUPS).astype(np.int64))  # each rank, then groups of many
    starts = [0, *edges[:-1]]
    scale = np.geomspace(0.02, num_classes / 2, 30)[:, None, None]
    falling = np.exp(-((np.arange(num_classes) / scale) ** STRETCHES[:, None])).reshape(-1, num_classes)
    falling = np.add.reduceat(falling / falling.sum(1, keepdims=True), starts, axis=1)
    of_rank = np.bincount(ranks, minlength=num_classes)
    spread = np.diff([1, *edges]) / (num_classes - 1)
    support, likely = _mixture(np.add.reduceat(of_rank, starts), falling, spread)
    tail = -(-(num_classes - 1) // 5)
    last = of_rank[-tail:].sum()
    bound = (last + np.sqrt(last) + 1) * (num_classes - 1) / (tail * len(ranks))  # one standard error above
    return Fit(support, edges[:-1], likely, float(bound))


def probabilities(scores: Floats, likely: Floats, rate: float) -> Floats:
    """Probabilities that rise with the scores and have the rate as their mean, from a first guess at them."""
    from scipy.optimize import brentq, isotonic_regression
    from scipy.special import expit, logit

    order = np.lexsort((-likely, scores))  # falling where scores are equal, so that they come out equal
    least = 1 / (1 + len(scores))  # no label is certain
    odds = logit(np.clip(isotonic_regression(likely[order]).x, least, 1 - least))
    shift = brentq(lambda shift: float(expit(odds + shift).mean()) - rate, -FAR, FAR)
    found = np.empty(len(scores))
    found[order] = expit(odds + shift)
    return found
