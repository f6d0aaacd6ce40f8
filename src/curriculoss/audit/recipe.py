"""How an audit trains, in one place: a loss that needs no tuning, a network, and how long."""

from __future__ import annotations

import math
from typing import Any

from curriculoss.data import Dataset, Images
from curriculoss.training.spec import AUTO

EMBEDDING = 128  # features from which on they are taken for an embedding, and a linear classifier does
EPOCHS = {"embeddings": (10, 20), "features": (12, 24), "images": (15, 30), "photos": (15, 30)}  # fewest and most
STEPS = {"embeddings": 1_000, "features": 24, "images": 2_000, "photos": 2_000}  # at least, if epochs are not too many:
# with many, wrong labels of small data are memorised


def kind_of(dataset: Dataset) -> str:
    """`embeddings`, `features` of a table, `images` in memory, or `photos` in files."""
    if isinstance(dataset.train.inputs, Images):
        return "photos"
    if len(dataset.shape) == 3:
        return "images"
    return "embeddings" if dataset.shape[0] >= EMBEDDING else "features"


def recipe(num_samples: int, kind: str) -> dict[str, Any]:
    """Fields of a RunSpec for data of that kind."""
    batch_size = 128 if num_samples < 20_000 or kind in ("images", "photos") else 512
    least, most = EPOCHS[kind]
    steps = math.ceil(num_samples / batch_size)
    epochs = min(most, max(least, math.ceil(STEPS[kind] / steps)))
    return {
        "loss": AUTO,
        "network": {"embeddings": "linear", "features": "mlp"}.get(kind, "auto"),
        "learning_rate": 0.02 if kind == "embeddings" else 0.05,
        "batch_size": batch_size,
        "epochs": epochs,
        "test_every": epochs,  # test samples, where there are any, are no part of an audit
        "holdout": 0,  # every sample is looked at
    }
