"""What the page knows about losses: names, defaults, ranges, fixes, and where margins start."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np

from curriculoss.fixing import METHODS, MILD, SEVERE, TAU
from curriculoss.initial import affordable_margins, expected_initial_margin
from curriculoss.losses import registry
from curriculoss.losses.ranges import RANGES
from curriculoss.report.groups import FIX_PREFIXES

CLASSES = (2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)  # positions of the slider
MOST_CLASSES = 100_000  # of a run that adds a position: simulating margins for more takes a minute


def loss_facts(num_classes: Collection[int] = ()) -> dict[str, Any]:
    """Everything about losses that the page does not compute itself, ready for JSON.

    Args:
        num_classes: Numbers of classes to offer beside the usual ones.
    """
    extra = {number for number in num_classes if 2 <= number <= MOST_CLASSES}
    return {
        "losses": [found for names in registry.synonyms().values() if (found := _facts(names[0])) is not None],
        "fixes": [{"name": name, "adjective": FIX_PREFIXES[name].strip()} for name in METHODS],
        "tau": TAU,
        "severe": SEVERE,
        "mild": MILD,
        "classes": [_start(number) for number in sorted({*CLASSES, *extra})],
    }


def _facts(name: str) -> dict[str, Any] | None:
    """None for a loss with a second term, whose weight is no function of the margin, and for one without ranges."""
    loss, factory = registry.get(name), registry.factory(name)
    parameters, ranges = inspect.signature(factory).parameters, RANGES.get(name, {})
    if loss.curriculum is None or not parameters.keys() <= ranges.keys():
        return None
    return {
        "name": name,
        "class": type(loss).__name__,
        "about": (inspect.getdoc(factory) or "").partition("\n")[0],
        "params": [{"name": key, "default": each.default, **ranges[key]._asdict()} for key, each in parameters.items()],
    }


@cache
def _start(num_classes: int) -> dict[str, Any]:
    """Expected and simulated margins before training; those on which `underfitting` goes, as 32-bit numbers."""
    margins = affordable_margins(num_classes).numpy().astype("<f4")
    return {"number": num_classes, "expected": expected_initial_margin(num_classes), "margins": to_base64(margins)}


def to_base64(array: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()
