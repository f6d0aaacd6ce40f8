"""The margins of every sample in every epoch, kept on disk while an audit trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from curriculoss.data.batches import Batches
from curriculoss.margin import soft_margin
from curriculoss.monitor import Monitor
from curriculoss.training.store import Run, RunError, write_arrays

SOFT, HARD, GAP, RANK, AFTER = "margins.npy", "hard_margins.npy", "gaps.npy", "ranks.npy", "after"
LIMIT = float(np.finfo(np.float16).max)


def hard_margin(logits: Tensor, target: Tensor) -> Tensor:
    """The label's logit minus the largest other one: what AUM (Pleiss et al., NeurIPS 2020) is the mean of."""
    label = target.unsqueeze(1)
    return logits.gather(1, label).squeeze(1) - logits.scatter(1, label, -math.inf).amax(1)


def signed_gap(logits: Tensor, target: Tensor) -> Tensor:
    """The largest logit minus the next one: how sure the network is. Negative where the largest is not the label's."""
    best = logits.topk(2, 1)
    gap = best.values[:, 0] - best.values[:, 1]
    return gap.where(best.indices[:, 0] == target, -gap)


def rank_of_label(logits: Tensor, target: Tensor) -> Tensor:
    """How many classes have a larger logit."""
    return (logits > logits.gather(1, target.unsqueeze(1))).sum(1)


SEEN: Mapping[str, tuple[Callable[[Tensor, Tensor], Tensor], Any]] = {
    HARD: (hard_margin, np.float16),
    GAP: (signed_gap, np.float16),
    RANK: (rank_of_label, np.int32),
}


class Recorder:
    """A watcher of the training loop. Files hold one row an epoch, written before the epoch's checkpoint."""

    def __init__(self, folder: Path, num_samples: int, epochs: int) -> None:
        self.folder, self.shape = folder, (epochs, num_samples)
        self.seen = {name: torch.zeros(num_samples) for name in SEEN}

    def batch(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        place = index.cpu()
        for name, (of, _) in SEEN.items():
            self.seen[name][place] = of(logits, target).float().cpu()

    def end_epoch(self, number: int, monitor: Monitor) -> None:
        self._write(SOFT, np.float16, number, monitor.samples().last)
        for name, (_, kind) in SEEN.items():
            self._write(name, kind, number, self.seen[name])

    def _write(self, name: str, kind: Any, number: int, row: Tensor) -> None:
        mode: Any = "r+" if number else "w+"
        file = np.lib.format.open_memmap(self.folder / name, mode=mode, dtype=kind, shape=self.shape)
        narrow = kind == np.float16  # where training went astray, margins are beyond it
        file[number] = (row.clamp(-LIMIT, LIMIT) if narrow else row).numpy()
        file.flush()


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Margins of the given labels: one row an epoch as trained, and after training."""

    soft: NDArray[Any]  # (E, N)
    hard: NDArray[Any]  # (E, N)
    after: NDArray[Any]  # (N,), soft

    @classmethod
    def read(cls, run: Run) -> Trajectories:
        epochs = int(run.result["epochs"])
        soft, hard = (_mapped(run.path / name)[:epochs] for name in (SOFT, HARD))
        return cls(soft, hard, run.arrays(AFTER)["margin"])


def read_guesses(run: Run) -> tuple[NDArray[Any], NDArray[Any]]:
    """(E, N) each, as trained, one row an epoch: the `signed_gap` and the `rank_of_label` of every sample."""
    epochs = int(run.result["epochs"])
    return _mapped(run.path / GAP)[:epochs], _mapped(run.path / RANK)[:epochs]


def _mapped(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return found
    except (OSError, ValueError):
        raise RunError(f"{path.parent} has no margins of every epoch: it is no run of an audit") from None


@torch.no_grad()
def look(network: nn.Module, batches: Batches, folder: Path) -> None:
    """Keep in RUN/after.npz the margin of each given label after training, and the best class beside it."""
    network.eval()
    margin, other = torch.empty(batches.size), torch.empty(batches.size, dtype=torch.int64)
    for inputs, target, index in batches.epoch(0):
        logits = network(inputs)
        margin[index] = soft_margin(logits, target)
        other[index] = logits.scatter_(1, target.unsqueeze(1), -math.inf).argmax(1)
    write_arrays(folder / f"{AFTER}.npz", {"margin": margin, "suggested": other})
