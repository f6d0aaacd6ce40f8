"""Helpers for custom autograd functions: transforms, autocast, and the precision to compute in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd import Function

mapped: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def transformed() -> bool:
    """Whether torch.compile or a transform of torch.func is active: both trace our code instead of running it."""
    return torch.compiler.is_compiling() or mapped()


def apply_function(function: type[Function], *inputs: Any) -> Any:
    """`function.apply(*inputs)` without the 50 µs it takes to read its own signature, unless a transform needs it."""
    if transformed():
        return function.apply(*inputs)
    if not torch.is_grad_enabled():  # there is nothing to remember
        return function.forward(*inputs)
    return getattr(super(Function, function), "apply")(*inputs)  # noqa: B009  mypy knows no such base


def autocast(tensor: Tensor) -> bool:
    """Whether autocast is on for the tensor's device; torch refuses the question for a device without autocast."""
    device = tensor.device.type
    return is_autocast_available(device) and torch.is_autocast_enabled(device)


def to_float64(margin: Tensor) -> Tensor:
    """Float64 where the device has it: q·α·Δ rounded in float32 would already cost exp(q·α·Δ) five digits."""
    return margin.float() if margin.is_mps else margin.double()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precisions, otherwise the dtype itself."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
