"""The mean surprise Σ_i v_i (−log p_i) over the classes, which several second terms are made of.

Because −log p_i = −log p_y + (s_y − s_i), it equals

    (Σ v_i)·CE(Δ_y) + Σ_i v_i (s_y − s_i):

beside the margin it takes one linear function of the logits, for which backward needs none of them.
A class with logit -inf does not exist here either.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from curriculoss._autograd import apply_function, compute_dtype, transformed
from curriculoss.losses.batch import Batch
from curriculoss.losses.families import CE
from curriculoss.margin import BLOCK_NUMBERS, class_index, row_blocks


class _Gap(Function):
    """Σ_i v_i (s_y − s_i) and Σ_i v_i over the classes that exist, per sample, with K's axis."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, index: Tensor, share: Tensor) -> tuple[Tensor, ...]:
        dtype = compute_dtype(logits.dtype)
        share = share.to(dtype).reshape(-1, *[1] * (logits.dim() - 2))
        if logits.is_cpu and not transformed():
            gaps = []
            for rows in row_blocks(len(logits), logits.numel(), BLOCK_NUMBERS):
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


def surprise(batch: Batch, share: Tensor, *, weighted: bool = True, mean: bool = True) -> Tensor:
    """Σ_i v_i·w_i (−log p_i) over the classes that exist; 0 where ignored, or where the label is masked.

    Args:
        batch: The logits and targets.
        share: One number v_i per class.
        weighted: Whether class weights w_i count.
        mean: Whether the shares of the classes that exist are made to sum to 1.
    """
    index, ignored = class_index(batch.label.unsqueeze(1), batch.logits.shape[1], batch.ignore_index)
    by_class = share if batch.class_weight is None or not weighted else share * batch.class_weight.to(share.dtype)
    gap, total, *missing = apply_function(_Gap, batch.logits, index, by_class)
    gap, total = gap.squeeze(1), total.squeeze(1)
    edge = batch.margin == -math.inf
    if ignored is not None:
        edge = edge | ignored.squeeze(1)
    # Rows at the edge are taken out before and after: 0·inf would be NaN in backward.
    value = torch.addcmul(gap, CE().loss(batch.margin.masked_fill(edge, 0.0)), total)
    if mean and missing:
        shares = batch.along_classes(share).expand_as(batch.logits).masked_fill(missing[0], 0.0).sum(1)
        edge, value = edge | (shares == 0), value / shares.masked_fill(shares == 0, 1.0)
    return value.masked_fill(edge, 0.0)
