"""Sensible ranges of hyperparameters, for a search to draw from and for sliders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Range(NamedTuple):
    """The ends of a range; `log` if it is even on a logarithmic axis, `whole` if it holds whole numbers alone."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


# Within the constraints of each loss and around the values of papers; other hyperparameters keep their defaults.
RANGES: Mapping[str, Mapping[str, Range]] = {
    "fl": {"q": Range(0.5, 5)},
    "aul": {"a": Range(1.05, 8, log=True), "q": Range(0.5, 6)},
    "agce": {"a": Range(0.05, 8, log=True), "q": Range(0.05, 4, log=True)},
    "ael": {"q": Range(0.5, 10, log=True)},
    "gce": {"q": Range(0.05, 1)},
    "sce": {"q": Range(0.05, 0.95)},
    "tce": {"q": Range(1, 10, whole=True)},
    "mse": {"alpha": Range(0.1, 0.9)},
    "gls": {"alpha": Range(0.05, 0.6)},
    "cr": {"beta": Range(0.05, 1)},
    "peer": {"alpha": Range(0.05, 1)},
    "nce+mae": {"q": Range(0.05, 0.95)},
    "nce+aul": {"alpha": Range(0.5, 10, log=True), "beta": Range(0.5, 10, log=True)},
}
