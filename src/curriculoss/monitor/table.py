"""The history of every sample in 36 bytes: running sums over epochs, merged over processes once per epoch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from curriculoss.errors import InvalidValueError
from curriculoss.margin import row_blocks
from curriculoss.monitor.record import Samples

TABLE_SAMPLES_AT_ONCE = 2**16  # updated in one step when an epoch ends, so that intermediate results stay small
ROWS = ("epochs", "first", "last", "mean", "mean_epoch", "spread", "joint", "visits", "total")


class SampleTable:
    """Running means of epochs and margins and, around these, Σ dx² and Σ dx·dy, which give the least squares slope.

    This is accurate in float32 however far from 0 epochs and margins are (Welford).
    """

    def __init__(self, num_samples: int, device: torch.device) -> None:
        self.rows = torch.zeros(len(ROWS), num_samples, device=device)

    def __len__(self) -> int:
        return self.rows.shape[1]

    @property
    def now(self) -> Tensor:
        """The visits and margins of the epoch under way, which are added up over processes."""
        return self.rows[-2:]

    def add(self, index: Tensor, margin: Tensor, counted: Tensor) -> None:
        """Add a batch. `counted` is 1, or 0 for samples to leave out, which may have any index and have margin 0."""
        visits, total = self.now
        index = index.where(counted > 0, 0)
        try:
            visits.index_add_(0, index, counted.to(visits.dtype))
        except (IndexError, RuntimeError):
            raise InvalidValueError(
                f"Monitor expects sample indices from 0 to {len(self) - 1}, as num_samples={len(self)}, "
                f"got {int(index.min())} to {int(index.max())}"
            ) from None
        total.index_add_(0, index, margin.to(total.dtype))

    def end_epoch(self, epoch: int) -> None:
        for block in row_blocks(len(self), len(self), TABLE_SAMPLES_AT_ONCE):
            epochs, first, last, mean, mean_epoch, spread, joint, visits, total = self.rows[:, block]
            seen = visits > 0
            margin = (total / visits).where(seen, 0.0)
            first.copy_(margin.where(seen & (epochs == 0), first))
            last.copy_(margin.where(seen, last))
            epochs += seen
            each = seen / epochs.clamp(min=1)  # 0/1 for a sample never seen
            away = epoch - mean_epoch
            mean_epoch += away * each
            spread += away * (epoch - mean_epoch) * seen
            mean += ((margin - mean) * each).where(seen, 0.0)  # an infinite margin stays with its sample
            joint += (away * (margin - mean)).where(seen, 0.0)
            visits.zero_()
            total.zero_()

    def samples(self) -> Samples:
        epochs, first, last, mean, _, spread, joint, _, _ = self.rows.cpu()
        first, last, mean = (x.where(epochs > 0, math.nan) for x in (first, last, mean))
        return Samples(first, mean, last, (joint / spread).where(epochs > 1, math.nan), epochs.long())
