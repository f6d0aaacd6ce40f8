"""Which trial to choose when the validation labels may be wrong themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Choice(NamedTuple):
    """One entry a trial, but for `chosen`, which is one of them."""

    chosen: int
    accuracy: NDArray[np.float64]  # on the validation labels, in percent
    near: NDArray[np.bool_]  # within two standard errors of the best
    agreement: NDArray[np.float64]  # with the vote of those near the best, in percent


def choose(predictions: NDArray[Any], labels: NDArray[Any]) -> Choice:
    r"""The trial to take, from what each (row) predicts for every validation sample (column).

    Accuracy is a symmetric loss: with a share η of labels wrong at random among K classes, the expected accuracy is
    (1 − η − η/(K−1))·(true accuracy) + η/(K−1), so the ranking of trials holds. Under other noise the truth at least
    scores best, as long as it is the most frequent label of its samples (for early stopping, where this suffices as
    well: Toner & Storkey, Noisy Early Stopping for Noisy Labels, 2024). But differences shrink by that factor while
    chance does not, and the best of many is the luckiest.

    So labels decide only as far as they can: trials stay whose accuracy is within two standard errors of the best.
    The error is that of the difference, sample by sample: a label that both miss, or both meet, adds nothing to it.
    Among those that stay the labels have no more to say, but what they predict has: errors that a network learned from
    wrong labels are its own, so a majority has fewer. The trial is taken that agrees most with the vote of those that
    stay; no label is looked at for that.
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
