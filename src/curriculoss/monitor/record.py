"""What a monitor returns: the numbers of an epoch, its histograms of margins, and the history of each sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of margins. Bin i holds edges[i-1] <= Δ < edges[i]; the first and the last bin are open."""

    LOW: ClassVar[int] = -64  # scaled curricula drive noisy samples below -30
    HIGH: ClassVar[int] = 64
    PER_UNIT: ClassVar[int] = 4  # a power of two, so that no rounding moves a margin over an edge
    BINS: ClassVar[int] = (HIGH - LOW) * PER_UNIT + 2

    all: Tensor  # int64, BINS counts each
    clean: Tensor
    noisy: Tensor

    @staticmethod
    def edges() -> Tensor:
        """The BINS − 1 edges between the bins."""
        steps = Histogram.PER_UNIT
        return torch.arange(Histogram.LOW * steps, Histogram.HIGH * steps + 1).div(steps)

    @staticmethod
    def bin_of(margin: Tensor) -> Tensor:
        """The bin of each margin; BINS, which is not a bin, for NaN."""
        low, high, steps = Histogram.LOW, Histogram.HIGH, Histogram.PER_UNIT
        # Margins beyond the edges, also infinite ones, belong to the open bins.
        place = margin.clamp(low - 1 / steps, high).mul(steps).floor() + (1 - low * steps)
        return place.nan_to_num(Histogram.BINS).long()


@dataclass(frozen=True, eq=False)
class Samples:
    """The margins of each sample over the finished epochs, float32 on the CPU, NaN where undefined.

    A sample that occurs more than once in an epoch counts with the mean of its margins.

    Attributes:
        first: The margin in the first epoch with the sample.
        mean: The mean over the epochs with the sample.
        last: The margin in the last epoch with the sample.
        slope: The slope of the least squares line through the margins; it needs two epochs.
        epochs: The number of epochs with the sample, int64.
    """

    first: Tensor
    mean: Tensor
    last: Tensor
    slope: Tensor
    epochs: Tensor


# All samples, and those whose given label is known to be right, and wrong.
GROUPS = ("all", "clean", "noisy")


class Sums(NamedTuple):
    """Sums over the samples of one group, without ignored ones."""

    samples: float
    margin: float
    learning_rate: float
    step: float  # learning rate times weight
    predicted: float  # samples with known logits
    correct: float  # samples whose given label has the largest logit

    @property
    def weight(self) -> float | None:
        return ratio(self.step, self.learning_rate)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient, or None where it is undefined: nothing to divide by, or training has diverged."""
    if numerator is None or not denominator:
        return None
    value = numerator / denominator
    return value if math.isfinite(value) else None


@dataclass(frozen=True, eq=False)
class Epoch:
    """The numbers of an epoch, None where undefined.

    Weights are those that the loss trains with: at most 1 for a normalised curriculum. `clean` and `noisy` are the
    samples whose given label is, and is not, their clean target.
    """

    epoch: int  # the first is 1
    samples: int
    samples_clean: int
    samples_noisy: int
    mean_margin: float | None
    mean_margin_clean: float | None
    mean_margin_noisy: float | None
    accuracy: float | None  # share of samples whose given label has the largest logit
    accuracy_clean: float | None
    accuracy_noisy: float | None  # memorised wrong labels
    mean_weight_this_epoch: float | None  # Σ lr·w / Σ lr
    mean_weight: float | None  # the same from the first step of training on: α_t, read as a weight
    effective_learning_rate_this_epoch: float | None  # Σ lr·w / Σ 1
    effective_learning_rate: float | None  # the same from the first step of training on: α_t, read as a learning rate
    weight_clean: float | None  # Σ lr·w / Σ lr from the first step of training on, as the paper has it
    weight_noisy: float | None
    snr: float | None  # weight_clean / weight_noisy
    snr_this_epoch: float | None
    noisy_share: float | None  # of Σ lr·w over clean and noisy samples, in this epoch
    histogram: Histogram = field(repr=False)
    verdicts: tuple[str, ...] = ()  # what has become true in this epoch

    @classmethod
    def of(cls, epoch: int, now: Tensor, so_far: Tensor, histogram: Histogram) -> Epoch:
        """From `Sums` as rows of tensors, one row per group of `GROUPS`, in this epoch and in all so far."""
        every, right, wrong = groups = [Sums(*row) for row in now.tolist()]
        every_so_far, right_so_far, wrong_so_far = (Sums(*row) for row in so_far.tolist())
        by_group: dict[str, Any] = {}
        for suffix, sums in zip(("", "_clean", "_noisy"), groups, strict=True):
            by_group["samples" + suffix] = int(sums.samples)
            by_group["mean_margin" + suffix] = ratio(sums.margin, sums.samples)
            by_group["accuracy" + suffix] = ratio(sums.correct, sums.predicted)
        clean, noisy = right_so_far.weight, wrong_so_far.weight
        return cls(
            epoch, **by_group, mean_weight_this_epoch=every.weight, mean_weight=every_so_far.weight,
            effective_learning_rate_this_epoch=ratio(every.step, every.samples),
            effective_learning_rate=ratio(every_so_far.step, every_so_far.samples),
            weight_clean=clean, weight_noisy=noisy,
            snr=ratio(clean, noisy), snr_this_epoch=ratio(right.weight, wrong.weight),
            noisy_share=ratio(wrong.step, right.step + wrong.step) if wrong.samples else None,
            histogram=histogram,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Everything except the histograms, ready for JSON."""
        row = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "histogram"}
        return row | {"verdicts": list(self.verdicts)}
