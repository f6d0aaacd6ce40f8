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

A class that the network has not learned yet, because it is rare, says nothing about its labels: all of them would seem
to be wrong. Both fits leave it out until it is predicted at least half as often as labels are on average.

Rates are posterior means under a uniform prior. Fits are repeated for resampled counts (bootstrap). Early in training
the network knows too little, and its own errors look like noise; late in training it has learned people's mistakes. The
second half of the epochs is used if ranks explain most of the noise there, their fit agrees with the last ranks and the
network is mostly right; otherwise the second quarter. The interval covers the bootstrap rates of these epochs. On top,
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
GROUPS = 40  # groups of gaps, or of ranks
GAP_SCALES = np.geomspace(0.02, 4, 25)  # scale of the fall of gaps, relative to their mean
STRETCHES = np.array([0.5, 0.75, 1.0])  # exponents of the fall of ranks
BOOTSTRAPS = 20  # per epoch
MOSTLY_RANDOM = 0.75  # share of the noise that ranks must explain for the second half of the epochs to be used
LEARNED_CLASS = 0.5  # a class counts once its labels are predicted this often, relative to all labels
COMPETENT = 0.5  # share of the right labels that the network must predict for the same
LEARNED_WRONG = 0.15  # share of the labels learned after the first quarter of the epochs that may be wrong
UNSEEN = 3.0  # wrong labels that may go unseen in any data (95 %, by the rule of three)
FAR = 100.0  # bound on a shift in log odds


@dataclass(frozen=True, eq=False, repr=False)
class NoiseEstimate:
    """Estimated label noise of an audit.

    Attributes:
        rate: The estimated share of wrong labels.
        interval: Its 95 % interval.
        p_wrong: (N,) the probability that each label is wrong.
        given: (N,) the class numbers of the given labels.
        suggested: (N,) the class numbers of the suggested labels.
        num_classes: The number of classes.
    """

    rate: float
    interval: tuple[float, float]
    p_wrong: Floats
    given: NDArray[np.int64]
    suggested: NDArray[np.int64]
    num_classes: int

    def __repr__(self) -> str:
        return f"NoiseEstimate(rate={self.rate:.4f}, interval=({self.interval[0]:.4f}, {self.interval[1]:.4f}))"

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
        """The most frequent confusions: given class, suggested class, and the expected number of such labels."""
        codes, where = np.unique(self.given * self.num_classes + self.suggested, return_inverse=True)
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

    rates: Floats  # the likeliest rate of the counts, then of each bootstrap
    support: Floats  # log likelihood of each rate of the GRID
    starts: NDArray[Any]  # where each group but the first starts
    likely: Floats  # how likely a label of each group is wrong
    bounds: Floats | float = 1.0  # the largest rates that agree with the last ranks, for the counts and each bootstrap

    def of(self, row: NDArray[Any]) -> Floats:
        """How likely each label is wrong, from its gap or rank."""
        found: Floats = self.likely[np.searchsorted(self.starts, row, "right")]
        return found


class Mixture:
    """Counts in M groups: a share is spread as `spread`, and the rest falls as one of the (S, M) `falling`."""

    def __init__(self, falling: Floats, spread: Floats) -> None:
        share = GRID[:, None, None]
        self.spread = spread
        self.density = np.maximum((1 - share) * falling + share * spread, 1e-12)  # groups that should be empty
        self.logs = np.log(self.density).reshape(-1, len(spread)).T

    def fit(self, counts: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
        """The likeliest share for each row of counts; for the first row also the log likelihood of each share, and how
        likely an entry of each group belongs to the share that is spread."""
        support = (counts @ self.logs).reshape(len(counts), len(GRID), -1)
        best = self.density[np.arange(len(GRID)), support[0].argmax(1)]  # for each share, the likeliest fall
        profile = support.max(2)
        likely: Floats = (posterior(profile[0]) * GRID) @ (self.spread / best)
        return GRID[profile.argmax(1)], profile[0], likely


def posterior(support: Floats) -> Floats:
    """The probability of each rate of the GRID, given their log likelihoods."""
    weight = PRIOR * np.exp(support - support.max())
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
    chance = np.random.default_rng(0)
    learned = [_of_learned_classes(row > 0, given, num_classes) for row in gaps]
    by_gap = [_fit_gaps(-row[some].astype(np.float64), chance) for row, some in zip(gaps, learned, strict=True)]
    by_rank = _fit_ranks([row[some] for row, some in zip(ranks, learned, strict=True)], num_classes, chance)
    refused = (gaps < 0).mean(1)
    chosen = _believed_epochs(by_gap, by_rank, refused)
    epochs = slice(chosen.start, chosen.stop)
    gap_rate, rank_rate = _joint_rate(by_gap[epochs]), _joint_rate(by_rank[epochs])
    rate = max(gap_rate, rank_rate, 1 / (2 + gaps.shape[1]))  # at least Laplace's rule of succession
    rates = [np.maximum(by_gap[i].rates, np.minimum(by_rank[i].rates, by_rank[i].bounds)) for i in chosen]
    low, high = np.quantile(rates, [0.025, 0.975]).tolist()
    first = refused[min(1, len(gaps) - 1) : max(2, len(gaps) // 4)].mean()  # in the very first epoch nothing is known
    learned = LEARNED_WRONG * max(0.0, first - refused[epochs].mean())
    least = UNSEEN / gaps.shape[1]
    interval = max(0.0, min(low, rate - least)), min(1.0, max(high, rate + least) + learned)
    fits, rows = (by_gap, -gaps) if gap_rate > rank_rate else (by_rank, ranks)
    likely = np.mean([fits[epoch].of(rows[epoch]) for epoch in chosen], axis=0)
    return NoiseRate(rate, interval, likely)


def _of_learned_classes(predicted: NDArray[np.bool_], given: NDArray[np.int64], num_classes: int) -> NDArray[np.bool_]:
    """Which labels are of a class that the network has learned."""
    shares = np.bincount(given, predicted, num_classes) / np.maximum(np.bincount(given, minlength=num_classes), 1)
    found: NDArray[np.bool_] = (shares >= LEARNED_CLASS * predicted.mean())[given]
    return found


def _believed_epochs(by_gap: Sequence[Fit], by_rank: Sequence[Fit], refused: Floats) -> range:
    """The second half of the epochs or, unless ranks can be relied on there, the second quarter."""
    count = len(refused)
    half, quarter = range(count)[-max(1, count // 2) :], range(count)[count // 4 : max(count // 4 + 1, count // 2)]
    late = slice(half.start, half.stop)
    gap_rate = float(np.median([fit.rates[0] for fit in by_gap[late]]))
    rank_rate = float(np.median([fit.rates[0] for fit in by_rank[late]]))
    found = max(gap_rate, rank_rate)
    agrees = rank_rate <= _bound(by_rank[late])
    competent = 1 - refused[late].mean() > COMPETENT * (1 - found)
    return half if rank_rate > MOSTLY_RANDOM * found and agrees and competent else quarter


def _bound(fits: Sequence[Fit]) -> float:
    return float(np.mean([np.ravel(fit.bounds)[0] for fit in fits]))


def _joint_rate(fits: Sequence[Fit]) -> float:
    """The posterior mean of the rate. Epochs see the same samples, so together they count as one."""
    support = np.mean([fit.support for fit in fits], axis=0)
    return float(posterior(np.where(GRID <= _bound(fits), support, -np.inf)) @ GRID)


def _fit_gaps(against: Floats, chance: np.random.Generator) -> Fit:
    """Fit gaps that are positive where the network prefers another class to the given one."""
    size = np.abs(against)
    edges = np.unique([0.0, *np.quantile(size, np.linspace(0, 1, GROUPS + 1)[1:-1]), np.inf])
    total, refused = np.histogram(size, edges)[0], np.histogram(against[against >= 0], edges)[0]
    scale = GAP_SCALES[:, None] * max(float(size.mean()), 1e-9)  # gaps of an untrained network may all be 0
    mixture = Mixture(np.diff(-np.exp(-edges / scale)), total / total.sum())
    drawn = chance.binomial(total, refused / np.maximum(total, 1), size=(BOOTSTRAPS, len(total)))
    counts = np.vstack([refused, drawn])
    shares, support, likely = mixture.fit(counts)
    most = refused.sum() / len(size)  # the share of these shares of refused labels in all labels
    of_all = np.interp(GRID, most * GRID, support, right=-np.inf) if most else np.where(GRID, -np.inf, 0.0)
    return Fit(shares * counts.sum(1) / len(size), of_all, edges[:-1], np.array([0.0, *likely]))


def _fit_ranks(ranks: Sequence[NDArray[Any]], num_classes: int, chance: np.random.Generator) -> list[Fit]:
    """Fit the ranks of labels, for each epoch."""
    if num_classes == 2:  # a label that is not the first is the last: ranks say nothing
        nothing = Fit(np.zeros(1 + BOOTSTRAPS), np.where(GRID, -np.inf, 0.0), np.array([1]), np.zeros(2))
        return [nothing] * len(ranks)
    edges = np.unique(np.geomspace(1, num_classes, GROUPS).astype(np.int64))  # each rank, then groups of many
    starts = [0, *edges[:-1]]
    scale = np.geomspace(0.02, num_classes / 2, 30)[:, None, None]
    falling = np.exp(-((np.arange(num_classes) / scale) ** STRETCHES[:, None])).reshape(-1, num_classes)
    falling = np.add.reduceat(falling / falling.sum(1, keepdims=True), starts, axis=1)
    mixture = Mixture(falling, np.diff([1, *edges]) / (num_classes - 1))
    tail = -(-(num_classes - 1) // 5)
    fits = []
    for row in ranks:
        count = len(row)
        of_rank = np.bincount(row.astype(np.int64), minlength=num_classes)
        counts = np.add.reduceat(of_rank, starts)
        drawn = chance.multinomial(count, counts / count, size=BOOTSTRAPS)
        shares, support, likely = mixture.fit(np.vstack([counts, drawn]))
        last = of_rank[-tail:].sum()
        last = np.array([last, *chance.poisson(last, BOOTSTRAPS)])
        bounds = (last + np.sqrt(last) + 1) * (num_classes - 1) / (tail * count)  # one standard error above
        fits.append(Fit(shares, support, edges[:-1], likely, bounds))
    return fits


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
