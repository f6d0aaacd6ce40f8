"""How an audit trains: a loss without tuning, and a network and a number of epochs for the kind of data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from curriculoss.data import Dataset
from curriculoss.runs.spec import AUTO, RunSpec

EMBEDDING_FEATURES = 128  # from this many on, they count as an embedding, for which a linear classifier is enough


@dataclass(frozen=True)
class Recipe:
    """Training for one kind of data: long enough for `steps`, but small data are not seen so often that wrong labels
    are memorised."""

    network: str
    learning_rate: float
    epochs: tuple[int, int]  # fewest and most
    steps: int
    large_batches: bool  # from 20,000 samples on

    def settings(self, num_samples: int) -> dict[str, Any]:
        """Fields of a RunSpec."""
        batch_size = 512 if self.large_batches and num_samples >= 20_000 else 128
        least, most = self.epochs
        epochs = min(most, max(least, math.ceil(self.steps / math.ceil(num_samples / batch_size))))
        return {
            "loss": AUTO, "network": self.network, "learning_rate": self.learning_rate, "batch_size": batch_size,
            "epochs": epochs,
        }  # fmt: skip


EMBEDDINGS = Recipe("linear", 0.02, (10, 20), 1_000, True)
FEATURES = Recipe("mlp", 0.05, (12, 24), 24, True)
IMAGES = Recipe("auto", 0.05, (15, 30), 2_000, False)


def audit_spec(name: str, dataset: Dataset, settings: Mapping[str, Any]) -> RunSpec:
    """The recipe for this kind of data, with other settings where they are given."""
    recipe = IMAGES if len(dataset.shape) == 3 else EMBEDDINGS if dataset.shape[0] >= EMBEDDING_FEATURES else FEATURES
    count = min(len(dataset.train), int(settings.get("subset") or len(dataset.train)))
    chosen = recipe.settings(count) | dict(settings)
    every = {"test_every": chosen["epochs"], "holdout": 0}  # all samples are audited; test samples have no part in it
    return RunSpec.from_dict({"data": name, **every, **chosen})
