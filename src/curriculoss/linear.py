"""The last linear layer and the soft margin in one op, for so many classes that the N×K logits would not fit.

It walks the batch in blocks of rows like margin.py. Each block of logits is made, read and forgotten, and made again in
backward: four products in place of three, and memory for one block in place of several times N×K numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from curriculoss.margin import (
    Direction,
    accurate,
    autocast,
    call,
    check_num_classes,
    check_target,
    class_index,
    kind,
    mapped,
    margin_fall,
    read,
    soft_margin,
    walk,
    with_losses,
)

BLOCK = 2**23  # numbers in a block of logits; larger than margin.py's, to keep the products efficient


def linear_soft_margin(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, ignore_index: int = -100
) -> Tensor:
    """`soft_margin(F.linear(hidden, weight, bias), target)` without ever storing the N×K logits.

    `hidden` is (..., H), `weight` (K, H), `bias` (K,) or None, `target` (...). Backward multiplies again
    instead of remembering, so memory is one block of logits, whatever the number of classes.
    """
    for name, value in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        optional = name == "bias" and value is None
        if not optional and not (isinstance(value, Tensor) and value.is_floating_point()):
            raise TypeError(f"linear_soft_margin expects a floating-point {name}, got {kind(value)}")
    check_target(target, "linear_soft_margin")
    if (
        weight.dim() != 2
        or hidden.shape != (*target.shape, weight.shape[1])
        or (bias is not None and bias.shape != weight.shape[:1])
    ):
        raise ValueError(
            "linear_soft_margin expects hidden (..., H), weight (K, H), bias (K,) or None and target (...), "
            f"got {tuple(hidden.shape)}, {tuple(weight.shape)}, "
            f"{None if bias is None else tuple(bias.shape)} and {tuple(target.shape)}"
        )
    check_num_classes(weight.shape[0])
    devices = [str(x.device) for x in (hidden, weight, bias, target) if x is not None]
    if len(set(devices)) > 1:
        raise ValueError(f"linear_soft_margin expects all tensors on one device, got {', '.join(devices)}")
    if autocast(hidden) and torch.float64 not in (hidden.dtype, weight.dtype):
        half = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(half), weight.to(half), None if bias is None else bias.to(half)
    dtypes = [str(x.dtype) for x in (hidden, weight, bias) if x is not None]
    if len(set(dtypes)) > 1:
        raise TypeError(f"linear_soft_margin expects hidden, weight and bias of one dtype, got {', '.join(dtypes)}")
    if mapped():  # a transform wants plain steps
        logits = F.linear(hidden, weight, bias)
        return soft_margin(logits.reshape(-1, len(weight)), target.reshape(-1), ignore_index=ignore_index).reshape(
            target.shape
        )
    margin: Tensor = call(
        _LinearSoftMargin, hidden.reshape(-1, weight.shape[1]), weight, bias, target.reshape(-1), ignore_index
    )[0]
    return margin.reshape(target.shape)


def _blocks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """With very many classes still an eighth of the rows, up to 128: each block reads and writes all of the weight."""
    rows, num_classes = len(hidden), len(weight)
    return walk(rows, rows * num_classes, max(BLOCK, min(128, rows // 8) * num_classes))


class _LinearSoftMargin(Function):
    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, ignore_index: int
    ) -> tuple[Tensor, ...]:
        index, ignored = class_index(target.unsqueeze(1), len(weight), ignore_index)
        dtype = accurate(hidden.dtype)
        slices = _blocks(hidden, weight)
        outputs = read(lambda rows: F.linear(hidden[rows], weight, bias).to(dtype), slices, index, ignored)
        return with_losses(outputs, ignored, None, 1.0, "none")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *tensors, ctx.ignore_index = inputs
        ctx.shape = None
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        hidden, weight, bias, target, margin, top, total, *rest = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # the gradient is to be differentiated: with all logits at once
            again = soft_margin(F.linear(hidden, weight, bias), target, ignore_index=ctx.ignore_index).unsqueeze(1)
            inputs = [x for x, wanted in zip((hidden, weight, bias), needed, strict=True) if wanted]
            grads = iter(torch.autograd.grad(again, inputs, grad, create_graph=True))
            return *(next(grads) if wanted else None for wanted in needed), None, None
        fall = margin_fall(ctx, margin, rest, grad, None)
        assert fall is not None  # it is only for a margin that nobody asked the gradient of
        direction = Direction(fall, target.unsqueeze(1), top, total, *rest)
        dtype = direction.top.dtype
        to_hidden = torch.empty_like(hidden) if needed[0] else None
        to_weight = torch.zeros_like(weight, dtype=dtype) if needed[1] else None
        to_bias = torch.zeros_like(bias, dtype=dtype) if needed[2] else None
        for rows in _blocks(hidden, weight):
            logits = F.linear(hidden[rows], weight, bias).to(dtype)
            block = direction.write(logits, rows, logits)
            if to_bias is not None:
                to_bias += block.sum(0)
            block = block.to(weight.dtype)
            if to_hidden is not None:
                torch.mm(block, weight, out=to_hidden[rows])
            if to_weight is not None and to_weight.dtype == weight.dtype:
                to_weight.addmm_(block.mT, hidden[rows])
            elif to_weight is not None:  # half precision: the sum over blocks is not
                to_weight += block.mT @ hidden[rows]
            del block, logits  # before the next ones are made
        return (
            to_hidden,
            None if to_weight is None else to_weight.to(weight.dtype),
            None if to_bias is None else to_bias.to(bias.dtype),
            None,
            None,
        )
