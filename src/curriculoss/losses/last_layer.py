"""The last linear layer and a loss in one op: the mean or sum over a batch without ever storing its logits.

The slope of each sample's loss is known as soon as its block of logits is read, so the block becomes the gradient of
its logits at once. Forward forms the gradients of hidden states, weight and bias, and backward only scales them: three
matrix products, as many as with the logits stored.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from curriculoss import margin as blocks
from curriculoss._autograd import compute_dtype, mapped, to_float64, transformed
from curriculoss._checks import check_num_classes
from curriculoss._sharding import Shards
from curriculoss.linear import Layer, LayerGradients, differentiable_gradients, margin_of_layer
from curriculoss.losses.batch import Batch, weight_of
from curriculoss.losses.reduction import PerSampleLoss, Reduction
from curriculoss.margin import MarginLoss

keeps_graph: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)  # whether the backward that runs may be repeated


class LayerLoss(NamedTuple):
    """The loss of a batch as a function of the last layer.

    A call returns the loss, and the margins (None if there is a second term).
    """

    how: Reduction
    loss: PerSampleLoss
    margin_loss: MarginLoss | None  # None if there is a second term
    target: Tensor  # (N,)
    sample_weight: Tensor | None  # (N,)
    shards: Shards | None

    def __call__(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        # Gradients cannot be formed in forward for losses of single samples, nor those of weights.
        weights = (self.sample_weight, self.how.class_weight)
        learned = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in weights)
        if self.how.mode == "none" or self.shards is not None or learned or transformed():
            return self.plain(layer)
        check_num_classes(len(layer.weight))
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in layer[:3]):
            found: tuple[Tensor, Tensor | None] = _LayerLoss.apply(*layer, self)  # type: ignore[no-untyped-call]
            return found
        return self.walk(layer, None)[:2]

    def plain(self, layer: Layer) -> tuple[Tensor, Tensor | None]:
        """The same from the losses of single samples, which can be differentiated twice."""
        how, margin = self.how, None
        if self.margin_loss is None:
            again = partial(checkpoint, self._of_rows, layer, use_reentrant=False, preserve_rng_state=False)
            whole = [self._of_rows(layer, slice(None))] if mapped() else map(again, layer.row_blocks())
            value = torch.cat(list(whole)) * how.scale
        else:
            margin = margin_of_layer(layer, self.target, how.ignore_index, self.shards)
            value = self.margin_loss.loss(margin)
            value = value * how.scale * weight_of(self.target, how.class_weight, how.ignore_index, value.dtype)
        return how.reduced(value, self.target, self.sample_weight), margin

    def _of_rows(self, layer: Layer, rows: slice) -> Tensor:
        return self._of(F.linear(layer.hidden[rows], layer.weight, layer.bias), rows)

    def _of(self, logits: Tensor, rows: slice) -> Tensor:
        return self.loss.of(Batch(logits, self.target[rows], self.how.class_weight, self.how.ignore_index))

    def walk(self, layer: Layer, found: LayerGradients | None) -> tuple[Tensor, Tensor | None, Tensor | float]:
        """The loss, the margins, and what the gradients that are now in `found` are still to be multiplied by."""
        index, ignored = blocks.class_index(self.target.unsqueeze(1), len(layer.weight), self.how.ignore_index)
        factor, divisor = self.how.factors(self.target, self.sample_weight, by_class=self.margin_loss is not None)
        factor = factor.unsqueeze(1)
        silent = factor == 0
        weight: Tensor | None = None
        unit: Tensor | float = 1.0
        if found is not None:
            weight = factor / divisor
            if weight.numel() and layer.hidden.dtype == torch.float16:  # slopes over many samples are too small for it
                unit = weight.masked_fill(silent, 0.0).abs().amax()
                weight = weight / unit
        any_silent, total, margins = not silent.is_cpu or bool(silent.any()), factor.new_zeros(()), []
        for rows in layer.row_blocks():
            block, slope = layer.logits(rows), None if weight is None else weight[rows]
            if self.margin_loss is None:
                value = self._differentiate(block, rows, slope)
            else:
                value, margin = _loss_of_margin(
                    self.margin_loss, block, index[rows], None if ignored is None else ignored[rows], slope
                )
                margins.append(margin)
            total += (value * factor[rows]).masked_fill_(silent[rows], 0.0).sum()  # a sample without weight may be inf
            if found is not None:
                if any_silent:  # NaN times zero is NaN, and padding may be NaN
                    block.masked_fill_(silent[rows], 0.0)
                found.add(block, rows)
            del block  # before the next one is made
        value = (total / divisor).to(compute_dtype(layer.hidden.dtype))
        return value, torch.cat(margins).squeeze(1) if margins else None, unit

    def _differentiate(self, block: Tensor, rows: slice, weight: Tensor | None) -> Tensor:
        """The loss of each row, (N, 1) in float64, of any kind whose samples depend on their own logits alone; with
        weights, the block becomes the gradient of Σ weight·loss, by autograd."""
        values = []
        for part in blocks.row_blocks(len(block), block.numel(), blocks.BLOCK_NUMBERS):
            with torch.set_grad_enabled(weight is not None):
                logits = block[part].detach().requires_grad_(weight is not None)
                value = self._of(logits, slice(rows.start + part.start, rows.start + part.stop))
            if weight is not None:
                (block[part],) = torch.autograd.grad(value, logits, weight[part].squeeze(1).to(value.dtype))
            values.append(to_float64(value.detach()).unsqueeze(1))
        return torch.cat(values)


def _loss_of_margin(
    margin_loss: MarginLoss, block: Tensor, index: Tensor, ignored: Tensor | None, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The loss of each row as a function of its margin, and the margins; with weights, the block becomes the gradient
    of Σ weight·loss."""
    parts = blocks.row_blocks(len(block), block.numel(), blocks.BLOCK_NUMBERS)  # few enough to stay in the cache
    margin, _, total = blocks.read_blocks(lambda rows: block[rows], parts, index, ignored)
    value, slope = margin_loss._loss_and_weight(to_float64(margin))
    if weight is not None:  # the block is exp(s_i − top) now
        slope = (slope * weight).to(block.dtype)
        block.mul_(slope / total).scatter_(1, index, -slope)
    return value, margin


class _LayerLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, memory: int | None, batch: LayerLoss
    ) -> tuple[Tensor, Tensor | None]:
        layer = Layer(hidden, weight, bias, memory)
        found = LayerGradients(layer, ctx.needs_input_grad[:3])
        value, margin, ctx.unit = batch.walk(layer, found)
        ctx.memory, ctx.plain = memory, batch.plain
        ctx.save_for_backward(hidden, weight, bias, found.hidden, found.weight, found.bias)
        if margin is not None:
            ctx.mark_non_differentiable(margin)
        return value, margin

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
        hidden, weight, bias, *found = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again
            layer = Layer(hidden, weight, bias, ctx.memory)
            return *differentiable_gradients(ctx.plain(layer)[0], layer, ctx.needs_input_grad[:3], grad), None, None
        factor = to_float64(grad) * ctx.unit
        if keeps_graph():  # they may be asked for again
            found = [None if x is None else x * factor for x in found]
        elif not (factor.is_cpu and float(factor) == 1.0):
            found = [None if x is None else x.mul_(factor) for x in found]
        return *(None if x is None else x.to(weight.dtype) for x in found), None, None
