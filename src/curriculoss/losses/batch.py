"""Logits and targets of a batch, and what each loss needs to know about them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from curriculoss._autograd import compute_dtype
from curriculoss.margin import MarginLoss, soft_margin


class Batch:
    """Logits and targets (class indices or probabilities) with the margins of the labels."""

    def __init__(
        self, logits: Tensor, target: Tensor, class_weight: Tensor | None = None, ignore_index: int = -100,
        sample_weight: Tensor | None = None,
    ) -> None:  # fmt: skip
        # The gradients of both terms meet here: in half precision each would be rounded before they are added.
        logits = logits.to(compute_dtype(logits.dtype))
        self.logits, self.target, self.class_weight, self.ignore_index = logits, target, class_weight, ignore_index
        self.sample_weight = sample_weight  # applied by the reduction
        # A class that exists: the labelled one, or for probabilities the predicted one.
        self.label = logits.argmax(1) if target.is_floating_point() else target
        self.margin = soft_margin(logits, self.label, ignore_index=ignore_index)

    @property
    def weight(self) -> Tensor | float:
        """The class weight of each sample, averaged over probabilities; 1 without class weights."""
        if self.class_weight is None:
            return 1.0
        if self.target.is_floating_point():
            return (self.target.to(self.margin.dtype) * self.along_classes(self.class_weight)).sum(1)
        return weight_of(self.target, self.class_weight, self.ignore_index, self.margin.dtype)

    def primary(self, curriculum: MarginLoss) -> Tensor:
        """w_y·l(Δ_y), 0 where ignored, or Σ_i t_i·w_i·l(Δ_i) for probabilities t."""
        if not self.target.is_floating_point():
            value = curriculum.loss(self.margin).masked_fill(self.target == self.ignore_index, 0.0)
            return value.mul(self.weight)
        value = curriculum.loss(self._class_margins())
        share = self.target.to(value.dtype)
        if self.class_weight is not None:
            share = share * self.along_classes(self.class_weight.to(value.dtype))
        impossible = (share == 0) & (value == math.inf)  # 0·inf; any other value is the gradient of its share
        return (value.masked_fill(impossible, 0.0) * share).sum(1)

    def _class_margins(self) -> Tensor:
        """The margin of every class, in the shape of the logits."""
        best = self.label.unsqueeze(1)
        # Only the largest p can be near 1, where log p − log(1 − p) would lose it; the -1 is there to be replaced.
        log_p = self.logits.log_softmax(1).scatter(1, best, -1.0)
        return (log_p - torch.log1p(-log_p.exp())).scatter(1, best, self.margin.unsqueeze(1))

    def uniform(self) -> Tensor:
        """1/K for each of the K classes."""
        size = self.logits.shape[1]
        return torch.full((size,), 1 / size, dtype=self.margin.dtype, device=self.logits.device)

    def along_classes(self, value: Tensor) -> Tensor:
        """One number per class, shaped to broadcast over the logits."""
        return value.reshape(-1, *[1] * (self.logits.dim() - 2))


def weight_of(target: Tensor, class_weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """The class weight of each sample (or 1), 0 where ignored; 1 for every row of probabilities."""
    if target.is_floating_point():
        return target.new_ones(target.shape[:1] + target.shape[2:], dtype=dtype)
    ignored = target == ignore_index
    if class_weight is None:
        return ignored.logical_not().to(dtype)
    return class_weight.to(dtype)[target.masked_fill(ignored, 0)].masked_fill(ignored, 0.0)
