"""Comparing run folders, for several files of tests."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from curriculoss.runs import Run

ARRAYS = ("labels", "samples", "histograms")


def timeless(rows):
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def same(one: Path, other: Path) -> bool:
    """Whether two runs are equal to the bit, but for the time that they took."""
    a, b = Run(one), Run(other)
    weights = [load_file(x / "model.safetensors") for x in (one, other)]
    return (
        timeless(a.metrics) == timeless(b.metrics)
        and timeless([a.result.as_dict()]) == timeless([b.result.as_dict()])
        and all(
            np.array_equal(a.arrays(name)[key], b.arrays(name)[key], equal_nan=a.arrays(name)[key].dtype.kind == "f")
            for name in ARRAYS
            for key in a.arrays(name)
        )
        and all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    )
