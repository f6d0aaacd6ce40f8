"""How suspicious each label is, from the margins of its sample: high is suspicious, 0 is undecided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curriculoss.audit.trajectories import Trajectories

Floats = NDArray[np.float64]
LAST = 0.25  # share of the epochs that counts as the last ones


def mean(seen: Trajectories) -> Floats:
    """Minus the soft margin, averaged over the epochs."""
    return -_average(seen.soft)


def last(seen: Trajectories) -> Floats:
    """Minus the soft margin, averaged over the last quarter of the epochs."""
    return -_average(seen.soft[-max(1, round(LAST * len(seen.soft))) :])


def after(seen: Trajectories) -> Floats:
    """Minus the soft margin after training."""
    return -seen.after.astype(np.float64)


def probability(seen: Trajectories) -> Floats:
    """A half minus the given label's probability, averaged over the epochs, the n-th counting n times.

    Beyond learned, a margin counts no more; later, the network knows more.
    """
    from scipy.special import expit

    total = np.zeros(seen.soft.shape[1])
    for number, row in enumerate(seen.soft, 1):
        total += number * expit(row.astype(np.float64))
    return 0.5 - 2 * total / (len(seen.soft) * (len(seen.soft) + 1))


def aum(seen: Trajectories) -> Floats:
    """Minus the area under the hard margin (Pleiss et al., NeurIPS 2020)."""
    return -_average(seen.hard)


def slope(seen: Trajectories) -> Floats:
    """Minus the soft margin's rise an epoch, by least squares."""
    time = np.arange(len(seen.soft)) - (len(seen.soft) - 1) / 2
    total = np.zeros(seen.soft.shape[1])
    for moment, row in zip(time, seen.soft, strict=True):
        total += moment * row
    return -total / max(1.0, float(time @ time))  # a single epoch has no slope: 0


def mean_and_after(seen: Trajectories) -> Floats:
    """The average of the two, each in units of its own spread: one is steady, the other has seen all of training."""
    parts = [mean(seen), after(seen)]
    spreads = [float(part.std()) or 1.0 for part in parts]
    return sum((part / spread for part, spread in zip(parts, spreads, strict=True)), np.zeros(len(parts[0]))) / 2


SCORES: Mapping[str, Callable[[Trajectories], Floats]] = {
    "mean": mean,
    "last": last,
    "after": after,
    "probability": probability,
    "aum": aum,
    "slope": slope,
    "mean+after": mean_and_after,
}
DEFAULT = "probability"


def score(seen: Trajectories, name: str = DEFAULT) -> Floats:
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}, expected one of {', '.join(SCORES)}")
    return SCORES[name](seen)


def _average(rows: NDArray[Any]) -> Floats:
    """Over epochs, in float64, without a copy of all of them."""
    total = np.zeros(rows.shape[1])
    for row in rows:
        total += row
    return total / len(rows)


def against_truth(scores: Floats, wrong: NDArray[np.bool_]) -> dict[str, float | None]:
    """For trials with known noise: AUROC, and the share of wrong labels missed if as many are flagged as there are."""
    from scipy.stats import rankdata

    count, right = int(wrong.sum()), int((~wrong).sum())
    if not count or not right:
        return {"noise_rate": count / len(wrong), "auroc": None, "false_negative_rate": None}
    ranks = rankdata(scores)
    area = (ranks[wrong].sum() - count * (count + 1) / 2) / (count * right)
    flagged = np.argsort(-scores, kind="stable")[:count]
    missed = 1 - wrong[flagged].mean()
    return {"noise_rate": count / len(wrong), "auroc": float(area), "false_negative_rate": float(missed)}
