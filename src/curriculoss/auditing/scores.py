"""Scores from the margins of each sample: the higher, the more suspicious its label; 0 is undecided."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curriculoss.auditing.trajectories import Trajectories

Floats = NDArray[np.float64]
LAST_SHARE = 0.25  # of the epochs, for `last`


def mean(seen: Trajectories) -> Floats:
    """Minus the soft margin, averaged over the epochs."""
    return -_average(seen.soft)


def last(seen: Trajectories) -> Floats:
    """Minus the soft margin, averaged over the last quarter of the epochs."""
    return -_average(seen.soft[-max(1, round(LAST_SHARE * len(seen.soft))) :])


def after(seen: Trajectories) -> Floats:
    """Minus the soft margin after training."""
    return -seen.after.astype(np.float64)


def probability(seen: Trajectories) -> Floats:
    """1/2 minus the probability of the given label, averaged over the epochs with weights 1, 2, 3, …

    Probabilities saturate once a label is learned, and later epochs know more.
    """
    from scipy.special import expit

    total: Floats = sum(number * expit(row.astype(np.float64)) for number, row in enumerate(seen.soft, 1))
    return 0.5 - 2 * total / (len(seen.soft) * (len(seen.soft) + 1))


def aum(seen: Trajectories) -> Floats:
    """Minus the area under the hard margin (Pleiss et al., NeurIPS 2020)."""
    return -_average(seen.hard)


def slope(seen: Trajectories) -> Floats:
    """Minus the rise of the soft margin per epoch, by least squares."""
    time = np.arange(len(seen.soft)) - (len(seen.soft) - 1) / 2
    total: Floats = sum(moment * row for moment, row in zip(time, seen.soft, strict=True))
    return -total / max(1.0, float(time @ time))  # the slope of a single epoch is 0


def mean_and_after(seen: Trajectories) -> Floats:
    """The average of `mean` and `after`, each divided by its standard deviation."""
    parts = [mean(seen), after(seen)]
    found: Floats = np.mean([part / (float(part.std()) or 1.0) for part in parts], axis=0)
    return found


SCORES: Mapping[str, Callable[[Trajectories], Floats]] = {
    "mean": mean,
    "last": last,
    "after": after,
    "probability": probability,
    "aum": aum,
    "slope": slope,
    "mean+after": mean_and_after,
}
DEFAULT_SCORE = "probability"


def _average(rows: NDArray[Any]) -> Floats:
    """The mean over epochs in float64, without a copy of all rows."""
    found: Floats = np.mean(rows, axis=0, dtype=np.float64)
    return found


def against_truth(scores: Floats, wrong: NDArray[np.bool_]) -> dict[str, float | None]:
    """How well scores find known wrong labels: the AUROC, and the share missed if as many are flagged as are wrong."""
    from sklearn.metrics import roc_auc_score

    count, auroc, missed = int(wrong.sum()), None, None
    if 0 < count < len(wrong):
        auroc = float(roc_auc_score(wrong, scores))
        missed = float(1 - wrong[np.argsort(-scores, kind="stable")[:count]].mean())
    return {"noise_rate": count / len(wrong), "auroc": auroc, "false_negative_rate": missed}
