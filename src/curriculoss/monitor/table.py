"""The history of every sample in 36 bytes: running sums over epochs, merged over processes once an epoch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from curriculoss.margin import walk
from curriculoss.monitor.record import Samples

BLOCK = 2**16  # samples handled at once when an epoch ends, so that its intermediate results stay small
ROWS = ("epochs", "first", "last", "mean", "mean_epoch", "spread", "joint", "visits", "total")


class Table:
    """Running means of epochs and margins and, around these, Σ dx² and Σ dx·dy: what a least squares slope needs, and
    sound in float32 however far from 0 epochs and margins are (Welford)."""

    def __init__(self, num_samples: int, device: torch.device) -> None:
        self.rows = torch.zeros(len(ROWS), num_samples, device=device)

    def __len__(self) -> int:
        return self.rows.shape[1]

    @property
    def now(self) -> Tensor:
        """The sums of the epoch under way, visits and margins, which add up over processes."""
        return self.rows[-2:]

    def add(self, index: Tensor, margin: Tensor, counted: Tensor) -> None:
        """`counted` is 1 or, for samples to be left out, 0, whose index may be anything and whose margin is 0."""
        visits, total = self.now
        index = index.where(counted > 0, 0)
        try:
            visits.index_add_(0, index, counted.to(visits.dtype))
        except (IndexError, RuntimeError):
            raise ValueError(
                f"Monitor expects sample indices from 0 to {len(self) - 1}, as num_samples={len(self)}, "
                f"got {int(index.min())} to {int(index.max())}"
            ) from None
        total.index_add_(0, index, margin.to(total.dtype))

    def end_epoch(self, epoch: int) -> None:
        for block in walk(len(self), len(self), BLOCK):
            epochs, first, last, mean, mean_epoch, spread, joint, visits, total = self.rows[:, block]
            seen = visits > 0
            margin = (total / visits).where(seen, 0.0)
            first.copy_(margin.where(seen & (epochs == 0), first))
            last.copy_(margin.where(seen, last))
            epochs += seen
            each = seen / epochs.clamp(min=1)  # of a sample never seen it is 0/1
            away = epoch - mean_epoch
            mean_epoch += away * each
            spread += away * (epoch - mean_epoch) * seen
            mean += ((margin - mean) * each).where(seen, 0.0)  # a margin may be infinite, and stays with its sample
            joint += (away * (margin - mean)).where(seen, 0.0)
            visits.zero_()
            total.zero_()

    def samples(self) -> Samples:
        epochs, first, last, mean, _, spread, joint, _, _ = self.rows.cpu()
        first, last, mean = (x.where(epochs > 0, math.nan) for x in (first, last, mean))
        return Samples(first, mean, last, (joint / spread).where(epochs > 1, math.nan), epochs.long())
