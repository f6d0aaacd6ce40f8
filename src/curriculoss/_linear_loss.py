"""The last linear layer and a loss in one op: the mean or sum over a batch without ever storing its logits.

The slope of each sample's loss is known as soon as its block of logits is read, so the block becomes the gradient of
its logits at once. Forward forms the gradients of hidden states, weight and bias, and backward only scales them: three
matrix products, as many as with the logits stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from curriculoss import margin as blocks
from curriculoss._autograd import compute_dtype, to_float64
from curriculoss._checks import check_num_classes
from curriculoss.linear import Layer, LayerGradients, RowLoss, differentiable_gradients
from curriculoss.margin import MarginLoss

keeps_graph: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)  # whether the backward that runs may be repeated


class Labels(NamedTuple):
    """The labels of some rows: as they are given, as columns (N, 1), and which are ignored, if any."""

    target: Tensor
    column: Tensor
    ignored: Tensor | None


# The loss of each row of a block, (N, 1) in float64; with weights, the block becomes the gradient of Σ weight·loss.
BlockLoss = Callable[[Tensor, Labels, Tensor | None], Tensor]


class MarginBlocks:
    """A loss that is a function of the margin; for one batch, whose margins it keeps."""

    def __init__(self, margin_loss: MarginLoss) -> None:
        self.margin_loss = margin_loss
        self.margins: list[Tensor] = []

    def __call__(self, block: Tensor, labels: Labels, weight: Tensor | None) -> Tensor:
        parts = blocks.row_blocks(len(block), block.numel(), blocks.BLOCK_NUMBERS)  # few enough to stay in the cache
        margin, _, total = blocks.read_blocks(lambda rows: block[rows], parts, labels.column, labels.ignored)
        self.margins.append(margin)
        value, slope = self.margin_loss._loss_and_weight(to_float64(margin))
        if weight is not None:  # the block is exp(s_i − top) now
            slope = (slope * weight).to(block.dtype)
            block.mul_(slope / total).scatter_(1, labels.column, -slope)
        return value


def write_rows(row_loss: RowLoss, block: Tensor, labels: Labels, weight: Tensor | None) -> Tensor:
    """Any loss whose samples depend on their own logits alone, differentiated by autograd; see `BlockLoss`."""
    values = []
    for rows in blocks.row_blocks(len(block), block.numel(), blocks.BLOCK_NUMBERS):
        with torch.set_grad_enabled(weight is not None):
            logits = block[rows].detach().requires_grad_(weight is not None)
            value = row_loss(logits, labels.target[rows])
        if weight is not None:
            (block[rows],) = torch.autograd.grad(value, logits, weight[rows].squeeze(1).to(value.dtype))
        values.append(to_float64(value.detach()).unsqueeze(1))
    return torch.cat(values)


class BatchLoss(NamedTuple):
    """Σ_n factor_n·loss_n / divisor: a sum or a mean, with all weights of the samples in the factors."""

    target: Tensor  # (N,)
    factor: Tensor  # (N,), float64
    divisor: Tensor | float
    loss: BlockLoss
    plain: Callable[[Layer], Tensor]  # the same by differentiable steps, if the gradient is to be differentiated again
    ignore_index: int


def linear_loss(layer: Layer, batch: BatchLoss) -> Tensor:
    """The loss of a batch, in the dtype to compute in; gradients are formed here and scaled in backward."""
    check_num_classes(len(layer.weight))
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in layer[:3]):
        value: Tensor = _LinearLoss.apply(*layer, batch)  # type: ignore[no-untyped-call]
        return value
    return _walk(layer, batch, None)[0]


class _LinearLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, memory: int | None, batch: BatchLoss
    ) -> Tensor:
        layer = Layer(hidden, weight, bias, memory)
        found = LayerGradients(layer, ctx.needs_input_grad[:3])
        value, ctx.unit = _walk(layer, batch, found)
        ctx.memory, ctx.plain = memory, batch.plain
        ctx.save_for_backward(hidden, weight, bias, found.hidden, found.weight, found.bias)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, *found = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            layer = Layer(hidden, weight, bias, ctx.memory)
            return *differentiable_gradients(ctx.plain(layer), layer, ctx.needs_input_grad[:3], grad), None, None
        factor = to_float64(grad) * ctx.unit
        if keeps_graph():  # they may be asked for again
            found = [None if x is None else x * factor for x in found]
        elif not (factor.is_cpu and float(factor) == 1.0):
            found = [None if x is None else x.mul_(factor) for x in found]
        return *(None if x is None else x.to(weight.dtype) for x in found), None, None


def _walk(layer: Layer, batch: BatchLoss, found: LayerGradients | None) -> tuple[Tensor, Tensor | float]:
    """The loss, and what the gradients that are now in `found` are still to be multiplied by."""
    index, ignored = blocks.class_index(batch.target.unsqueeze(1), len(layer.weight), batch.ignore_index)
    factor = batch.factor.unsqueeze(1)
    silent = factor == 0
    weight: Tensor | None = None
    unit: Tensor | float = 1.0
    if found is not None:
        weight = factor / batch.divisor
        if weight.numel() and layer.hidden.dtype == torch.float16:  # slopes over many samples are too small for it
            unit = weight.masked_fill(silent, 0.0).abs().amax()
            weight = weight / unit
    any_silent, total = not silent.is_cpu or bool(silent.any()), factor.new_zeros(())
    for rows in layer.row_blocks():
        block = layer.logits(rows)
        labels = Labels(batch.target[rows], index[rows], None if ignored is None else ignored[rows])
        value = batch.loss(block, labels, None if weight is None else weight[rows])
        total += (value * factor[rows]).masked_fill_(silent[rows], 0.0).sum()  # a sample without weight may be inf
        if found is not None:
            if any_silent:  # NaN times zero is NaN, and padding may be NaN
                block.masked_fill_(silent[rows], 0.0)
            found.add(block, rows)
        del block  # before the next one is made
    return (total / batch.divisor).to(compute_dtype(layer.hidden.dtype)), unit
