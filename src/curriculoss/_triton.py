"""The soft margin and its gradient as Triton kernels: forward reads the logits once, backward reads and writes once.

Forward walks over the classes in tiles and keeps the largest logit so far and the sum of exponentials relative to it.
Rows whose label is not a class are not read; their margin is NaN, or 0 if they are to be ignored. The kernels are
custom ops of torch.library, so that torch.compile can call them without looking inside.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from curriculoss._autograd import compute_dtype

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TILE = 4096  # numbers that a program holds at once
OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}  # Triton warns if fusion, off from 3.10 on, is not chosen
COALESCED = 32  # rows per tile where neighbours in memory are of different rows, not of different classes


@triton.jit
def forward_kernel(
    logits, index, margins, tops, totals, num_rows, num_classes, axis, step_n, step_k, step_d,
    lowest: tl.constexpr, rows: tl.constexpr, classes: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    start = logits + row // axis * step_n + row % axis * step_d
    label = tl.load(index + row, mask=row < num_rows, other=-1)
    wanted = (label >= 0) & (label < num_classes)
    own = tl.load(start + label * step_k, mask=wanted, other=float("nan")).to(tops.dtype.element_ty)
    top = tl.full((rows,), lowest, tops.dtype.element_ty)  # not -inf: if all others are masked, -inf − -inf is NaN
    total = tl.zeros((rows,), tops.dtype.element_ty)
    for first in range(0, num_classes, classes):
        column = first + tl.arange(0, classes).to(tl.int64)
        mask = wanted[:, None] & (column < num_classes)  # not the label: with a hole, numbers are loaded one by one
        tile = tl.load(start[:, None] + column * step_k, mask=mask, other=-float("inf")).to(tops.dtype.element_ty)
        tile = tl.where(column == label[:, None], -float("inf"), tile)
        higher = tl.maximum(top, tl.max(tile, 1))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(tile - higher[:, None]), 1)
        top = higher
    # A label that is masked together with all others would be -inf − -inf.
    margin = own - top - tl.where(own == -float("inf"), 0.0, tl.log(total))
    tl.store(margins + row, margin, mask=row < num_rows)
    tl.store(tops + row, top, mask=row < num_rows)
    tl.store(totals + row, tl.where(total == 0, 1.0, total), mask=row < num_rows)  # all masked; backward divides


@triton.jit
def backward_kernel(
    logits, index, grads, tops, totals, out, num_rows, num_classes, axis, step_n, step_k, step_d,
    out_n, out_k, out_d, rows: tl.constexpr, classes: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    inside = row < num_rows
    start = logits + row // axis * step_n + row % axis * step_d
    target = out + row // axis * out_n + row % axis * out_d
    label = tl.load(index + row, mask=inside, other=-1)
    grad = tl.load(grads + row, mask=inside, other=0.0)
    top = tl.load(tops + row, mask=inside, other=0.0)
    slope = grad / tl.load(totals + row, mask=inside, other=1.0)
    wanted = grad != 0  # others need not be read, and padding may be NaN
    for first in range(0, num_classes, classes):
        column = first + tl.arange(0, classes).to(tl.int64)
        is_class = column < num_classes
        tile = tl.load(start[:, None] + column * step_k, mask=wanted[:, None] & is_class, other=-float("inf"))
        value = tl.exp(tile.to(top.dtype) - top[:, None]) * slope[:, None]
        value = tl.where(column == label[:, None], -grad[:, None], tl.where(wanted[:, None], value, 0.0))
        place = target[:, None] + column * out_k
        tl.store(place, value.to(out.dtype.element_ty), mask=inside[:, None] & is_class)


INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)  # TRITON_INTERPRET=1: tensors on a CPU will do


def read(logits: Tensor, index: Tensor, ignored: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Forward: margin, top and total of logits (N, K, ...) and labels (N, 1, ...)."""
    margin, top, total = _read(logits, index)
    return margin if ignored is None else margin.masked_fill(ignored, 0.0), top, total


def write(logits: Tensor, index: Tensor, grad: Tensor, top: Tensor, total: Tensor) -> Tensor:
    """Backward: the gradient of the logits, where `grad` is minus that of the margin and 0 for ignored samples."""
    return _write(logits, index, grad.to(top.dtype), top, total)


@torch.library.custom_op("curriculoss::margin_forward", mutates_args=())
def _read(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits, outputs = _three_axes(logits), _margin_top_total(logits, index)
    lowest = torch.finfo(outputs[0].dtype).min
    _launch(forward_kernel, logits, (index.contiguous(), *outputs), lowest)
    return outputs


@_read.register_fake
def _margin_top_total(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the results."""
    margin, top, total = (logits.new_empty(index.shape, dtype=compute_dtype(logits.dtype)) for _ in range(3))
    return margin, top, total


@torch.library.custom_op("curriculoss::margin_backward", mutates_args=())
def _write(logits: Tensor, index: Tensor, grad: Tensor, top: Tensor, total: Tensor) -> Tensor:
    flat, out = _three_axes(logits), _gradient(logits, index, grad, top, total)
    flat_out = out.view(flat.shape)
    rows = (x.contiguous() for x in (index, grad, top, total))
    _launch(backward_kernel, flat, (*rows, flat_out), *flat_out.stride())
    return out


@_write.register_fake
def _gradient(logits: Tensor, *_: Tensor) -> Tensor:
    """Room for the result, with the strides of the logits if they have no gaps."""
    return torch.empty_like(_three_axes(logits)).view(logits.shape)


def _three_axes(logits: Tensor) -> Tensor:
    """(N, K, d1, ...) as (N, K, d1·...), without a copy if the strides allow it."""
    return logits.reshape(*logits.shape[:2], math.prod(logits.shape[2:]))


def _launch(kernel: Any, logits: Tensor, tensors: tuple[Tensor, ...], *others: Any) -> None:
    """Run a kernel over all rows of logits (N, K, D)."""
    samples, num_classes, axis = logits.shape
    rows = samples * axis
    by_class = axis == 1 or logits.stride(1) <= logits.stride(2)
    classes = min(TILE if by_class else TILE // COALESCED, triton.next_power_of_2(num_classes))
    tile = min(TILE // classes, triton.next_power_of_2(max(1, rows))), classes
    with torch.cuda.device_of(logits):
        grid, sizes = (triton.cdiv(rows, tile[0]),), (rows, num_classes, axis, *logits.stride())
        kernel[grid](logits, *tensors, *sizes, *others, *tile, **OPTIONS)
