"""Logits and targets, and the per-sample quantities that losses with a second term ask of them.

A mean surprise Σ_i v_i (−log p_i) over the classes is, because −log p_i = −log p_y + (s_y − s_i),

    (Σ v_i)·CE(Δ_y) + Σ_i v_i (s_y − s_i):

beside the margin it takes one linear function of the logits, for which backward needs none of them.
A class with logit -inf does not exist here either.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from curriculoss.curricula import CE
from curriculoss.margin import BLOCK, accurate, call, class_index, class_margins, soft_margin, transformed, walk


class _Gap(Function):
    """Σ_i v_i (s_y − s_i) and Σ_i v_i over the classes that exist, per sample, with K's axis."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, index: Tensor, share: Tensor) -> tuple[Tensor, ...]:
        dtype = accurate(logits.dtype)
        share = share.to(dtype).reshape(-1, *[1] * (logits.dim() - 2))
        plain = not transformed() and logits.device.type == "cpu"
        if plain:
            gaps = []
            for rows in walk(len(logits), logits.numel(), BLOCK):
                block = logits[rows].to(dtype)
                gaps.append(((block.gather(1, index[rows]) - block) * share).sum(1, keepdim=True))
            gap = torch.cat(gaps)
            if gap.isfinite().all():
                return gap, share.sum().expand_as(gap)
        missing = logits == -math.inf
        block = logits.to(dtype)
        label = block.gather(1, index)
        gap = ((label - block).masked_fill(missing, 0.0) * share).sum(1, keepdim=True)
        return gap, share.expand_as(block).masked_fill(missing, 0.0).sum(1, keepdim=True), missing

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, index, share = inputs
        ctx.dtype, ctx.shape = logits.dtype, logits.shape
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(index, share, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        index, share, total, *missing = ctx.saved_tensors
        share = share.to(grad.dtype).reshape(-1, *[1] * (len(ctx.shape) - 2))
        out = -grad * share
        if missing:
            out = out.masked_fill(missing[0], 0.0)
        # Out of place where this may be mapped or differentiated.
        add = Tensor.scatter_add if torch.is_grad_enabled() else Tensor.scatter_add_
        return add(out, 1, index, grad * total).to(ctx.dtype), None, None


def weight_of(target: Tensor, class_weight: Tensor | None, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """Each sample's class weight (or 1), and 0 where ignored; 1 for every row of probabilities."""
    if target.is_floating_point():
        return target.new_ones(target.shape[:1] + target.shape[2:], dtype=dtype)
    ignored = target == ignore_index
    if class_weight is None:
        return ignored.logical_not().to(dtype)
    return class_weight.to(dtype)[target.masked_fill(ignored, 0)].masked_fill(ignored, 0.0)


class OfMargin(Protocol):
    """A curriculum, or what has its loss."""

    def loss(self, margin: Tensor) -> Tensor: ...


class Batch:
    """Logits and targets, indices or probabilities, and what losses ask of them."""

    def __init__(self, logits: Tensor, target: Tensor, class_weight: Tensor | None, ignore_index: int) -> None:
        # The gradients of both terms meet here: in half precision each would be rounded before they are added.
        logits = logits.to(accurate(logits.dtype))
        self.logits, self.target, self.class_weight, self.ignore_index = logits, target, class_weight, ignore_index
        # Some existing class of each sample: the labelled one, or the likeliest where there are probabilities.
        self.label = logits.argmax(1) if target.is_floating_point() else target
        self.margin = soft_margin(logits, self.label, ignore_index=ignore_index)

    @property
    def weight(self) -> Tensor | float:
        """Of each sample: its class's, or its classes' by their probabilities; 1 without class weights."""
        if self.class_weight is None:
            return 1.0
        if self.target.is_floating_point():
            return (self.target.to(self.margin.dtype) * _along_classes(self.class_weight, self.logits)).sum(1)
        return weight_of(self.target, self.class_weight, self.ignore_index, self.margin.dtype)

    def primary(self, curriculum: OfMargin) -> Tensor:
        """w_y·l(Δ_y), 0 where ignored, or Σ_i t_i·w_i·l(Δ_i) for probabilities t."""
        if not self.target.is_floating_point():
            value = curriculum.loss(self.margin).masked_fill(self.target == self.ignore_index, 0.0)
            return value.mul(self.weight)
        value = curriculum.loss(class_margins(self.logits, self.label, self.margin))
        share = self.target.to(value.dtype)
        if self.class_weight is not None:
            share = share * _along_classes(self.class_weight.to(value.dtype), self.logits)
        impossible = (share == 0) & (value == math.inf)  # 0·inf; any other value is the gradient of its share
        return (value.masked_fill(impossible, 0.0) * share).sum(1)

    def surprise(self, share: Tensor, *, weighted: bool = True, mean: bool = True) -> Tensor:
        """Σ_i v_i·w_i (−log p_i) over the classes that exist; 0 where ignored, or where the label is masked.

        With `mean`, the shares v of the classes that exist are made to sum to 1.
        """
        index, ignored = class_index(self.label.unsqueeze(1), self.logits.shape[1], self.ignore_index)
        by_class = share if self.class_weight is None or not weighted else share * self.class_weight.to(share.dtype)
        gap, total, *missing = call(_Gap, self.logits, index, by_class)
        gap, total = gap.squeeze(1), total.squeeze(1)
        edge = self.margin == -math.inf
        if ignored is not None:
            edge = edge | ignored.squeeze(1)
        # Rows at the edge are taken out before and after: 0·inf would be NaN in backward.
        value = torch.addcmul(gap, CE().loss(self.margin.masked_fill(edge, 0.0)), total)
        if mean and missing:
            shares = _along_classes(share, self.logits).expand_as(self.logits).masked_fill(missing[0], 0.0).sum(1)
            edge, value = edge | (shares == 0), value / shares.masked_fill(shares == 0, 1.0)
        return value.masked_fill(edge, 0.0)

    def uniform(self) -> Tensor:
        """1/K for each of the K classes."""
        size = self.logits.shape[1]
        return torch.full((size,), 1 / size, dtype=self.margin.dtype, device=self.logits.device)


def _along_classes(value: Tensor, logits: Tensor) -> Tensor:
    return value.reshape(-1, *[1] * (logits.dim() - 2))
