"""`choose`: which trial to take when the validation labels may be wrong themselves."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Choice(NamedTuple):
    """The chosen trial; arrays have one entry per trial."""

    chosen: int
    accuracy: NDArray[np.float64]  # on the validation labels, in percent
    near: NDArray[np.bool_]  # within two standard errors of the best
    agreement: NDArray[np.float64]  # with the majority of the trials near the best, in percent


def choose(predictions: NDArray[Any], labels: NDArray[Any]) -> Choice:
    r"""Choose a trial by its predictions for validation samples whose labels may be noisy.

    Accuracy is a symmetric loss: if a share η of the labels is wrong at random among K classes, the expected accuracy
    is (1 − η − η/(K−1))·(true accuracy) + η/(K−1), so the ranking of trials holds. Under other noise the truth still
    scores best, as long as it is the most frequent label of its samples (for early stopping, where this suffices as
    well: Toner & Storkey, Noisy Early Stopping for Noisy Labels, 2024). But differences shrink by that factor while
    their standard error does not, and the best of many trials is the luckiest.

    So labels only rule out trials that are more than two standard errors behind the best. The error is that of the
    difference, sample by sample: a label that both trials miss, or both meet, adds nothing to it. Among the remaining
    trials the predictions decide: errors that a network learned from wrong labels are its own, so a majority vote has
    fewer of them, and the trial that agrees most with the vote is chosen without looking at a label.

    Args:
        predictions: The predicted classes, one row per trial and one column per sample.
        labels: The label of each sample.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(100) % 10
        >>> choose(np.stack([labels * 0, labels]), labels).chosen
        1
    """
    right = predictions == labels
    accuracy = right.mean(1)
    behind = right[accuracy.argmax()].astype(np.float64) - right
    near = behind.mean(1) <= 2 * behind.std(1) / np.sqrt(len(labels))
    votes = np.zeros((int(predictions.max()) + 1, len(labels)), dtype=np.int64)
    for row in predictions[near]:
        votes[row, np.arange(len(labels))] += 1
    agreement = (predictions == votes.argmax(0)).mean(1)
    chosen = max(np.flatnonzero(near), key=lambda trial: (agreement[trial], accuracy[trial]))
    return Choice(int(chosen), 100 * accuracy, near, 100 * agreement)
