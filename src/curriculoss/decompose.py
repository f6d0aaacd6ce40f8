r"""Weight and direction of any loss whatever, by automatic differentiation.

A loss of the standard form has the gradient −w(Δ)·∇Δ. Given a loss nobody has analysed, this measures how far each
sample's gradient is of that kind: its weight ‖∇L‖₁/2, its direction beside ∇Δ, and whether one margin has one weight.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from curriculoss.initial import buffers_kept
from curriculoss.margin import kind_and_shape, soft_margin

Loss = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """One number a sample each, in float64; and whether they all say that the loss is of the standard form."""

    weight: Tensor  # ‖∇L‖₁/2
    margin: Tensor
    cosine: Tensor  # between −∇L and ∇Δ; NaN where either vanishes
    off_share: Tensor  # how much of ‖∇L‖₂ is not along ∇Δ; 0 where ∇L vanishes
    standard_form: bool

    def curve(self) -> tuple[Tensor, Tensor]:
        """Margins in ascending order and their weights: w(Δ), if the loss is of the standard form."""
        margin, order = self.margin.sort()
        return margin, self.weight[order]


class _Gradients(NamedTuple):
    values: Tensor
    gradients: Tensor
    tolerance: float  # what rounding may do, relative to the largest gradient
    tied: bool = False  # whether a sample gets something else in a batch than alone


def decompose(loss_fn: Loss, logits: Tensor, target: Tensor) -> Decomposition:
    """Weight and direction of every sample's gradient under `loss_fn(logits, target)`, any differentiable loss.

    The loss is called with `reduction="none"` where it offers that, with the whole batch if each sample then gets what
    it gets alone, and otherwise one sample at a time; in float64, or in the dtype of `logits` if it refuses that. One
    that learns while it is called, such as AutoLoss, is measured in eval mode and left as it was. It is of the standard
    form if no sample's loss hangs on the others or on chance, every gradient is along −∇Δ, and every weight is that of
    a probe: a sample with the same margin, another label and other logits.
    """
    if not callable(loss_fn):
        raise TypeError(f"decompose expects a function of (logits, target), such as RobustLoss(MAE()), got {loss_fn!r}")
    with buffers_kept(loss_fn), _evaluated(loss_fn):
        return _decompose(loss_fn, logits, target)


@contextmanager
def _evaluated(loss_fn: Loss) -> Iterator[None]:
    """In eval mode, every module of it."""
    training = [module for module in loss_fn.modules() if module.training] if isinstance(loss_fn, nn.Module) else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _decompose(loss_fn: Loss, logits: Tensor, target: Tensor) -> Decomposition:
    margin, direction = _margins(logits, target)
    form, dtype, found = _differentiate(loss_fn, logits.detach(), target)
    gradients = found.gradients.double()
    inside, squared = (gradients * direction).sum(1), direction.square().sum(1)
    along = torch.where(squared > 0, inside / squared, 0.0).unsqueeze(1) * direction
    norm, off = gradients.norm(dim=1), (gradients - along).norm(dim=1)
    weight = gradients.abs().sum(1) / 2

    slack = found.tolerance * float(norm.max())
    standard = bool(not found.tied and gradients.isfinite().all() and (off <= slack).all() and (inside <= slack).all())
    finite = margin.isfinite()  # an infinite margin has no probe
    if standard and finite.any():
        probes, labels = _probes(margin[finite], target[finite], logits.shape[1])
        probed = _gradients(form, probes.to(dtype), labels).gradients.double().abs().sum(1) / 2
        standard = bool(((weight[finite] - probed).abs() <= slack).all())
    return Decomposition(
        weight=weight,
        margin=margin,
        cosine=-inside / (norm * squared.sqrt()),
        off_share=torch.where(norm == 0, 0.0, off / norm),  # NaN stays NaN
        standard_form=standard,
    )


def _margins(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Δ and ∇Δ of each sample."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or not len(logits):
        raise ValueError(f"decompose expects logits of shape (N, K) with N >= 1, got {kind_and_shape(logits)}")
    with torch.enable_grad():
        wide = logits.detach().double().requires_grad_()
        margin = soft_margin(wide, target)
        (direction,) = torch.autograd.grad(margin.sum(), wide)
    if (target < 0).any():
        raise ValueError(f"decompose expects class indices >= 0 as target, got {int(target.min())}")
    return margin.detach(), direction


def _probes(margin: Tensor, target: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Samples of the same margins in which everything else differs: all other classes alike, and the next label."""
    labels = (target + 1) % num_classes
    probes = margin.new_zeros(len(margin), num_classes)
    return probes.scatter(1, labels.unsqueeze(1), (margin + math.log(num_classes - 1)).unsqueeze(1)), labels


def _differentiate(loss_fn: Loss, logits: Tensor, target: Tensor) -> tuple[Loss, torch.dtype, _Gradients]:
    """The first form of the loss, and the first dtype, that works; the last error if none does."""
    error: Exception | None = None
    for form in _forms(loss_fn):
        for dtype in dict.fromkeys((torch.float64, logits.dtype)):
            try:
                return form, dtype, _gradients(form, logits.to(dtype), target)
            # A loss with float32 class weights refuses float64 logits, a stranger's may refuse reduction="none".
            except (RuntimeError, TypeError, ValueError) as refused:
                error = refused
    assert error is not None
    raise error


def _forms(loss_fn: Loss) -> Iterator[Loss]:
    """The loss without reduction, if there is such a thing, and the loss as it came."""
    if _takes_reduction(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn):
        yield partial(loss_fn, reduction="none")
    elif hasattr(loss_fn, "reduction"):
        unreduced: Any = copy.copy(loss_fn)
        try:
            unreduced.reduction = "none"
            yield unreduced
        except AttributeError:  # a frozen loss
            pass
    yield loss_fn


def _takes_reduction(function: Loss) -> bool:
    try:
        return "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False


def _gradients(loss: Loss, logits: Tensor, target: Tensor) -> _Gradients:
    """Of all samples at once, if that gives the first and the last what they get alone; otherwise one by one."""
    try:
        whole = _call(loss, logits, target)
    # A loss written for one sample may stumble over more; if it is wrong in itself, it will say so again below.
    except (RuntimeError, TypeError, ValueError):
        return _one_by_one(loss, logits, target)
    each = len(whole.values) == len(logits)
    if each:
        ends = [0, len(logits) - 1]
        alone = _one_by_one(loss, logits[ends], target[ends])
        if _close(whole.values[ends], alone.values, whole.tolerance) and _close(
            whole.gradients[ends], alone.gradients, whole.tolerance
        ):
            return whole
    alone = _one_by_one(loss, logits, target)
    reduced = len(whole.values) == 1 and (alone.values.mean(), alone.values.sum())
    tied = each or (reduced and not any(_close(whole.values, x, whole.tolerance) for x in reduced))
    return alone._replace(tied=bool(tied))


def _one_by_one(loss: Loss, logits: Tensor, target: Tensor) -> _Gradients:
    samples = [_call(loss, logits[i : i + 1], target[i : i + 1]) for i in range(len(logits))]
    if any(len(sample.values) != 1 for sample in samples):
        raise TypeError(f"decompose expects the loss to return one number a sample, got {len(samples[0].values)}")
    return _Gradients(
        values=torch.cat([sample.values for sample in samples]),
        gradients=torch.cat([sample.gradients for sample in samples]),
        tolerance=max(sample.tolerance for sample in samples),
    )


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    size = b.nan_to_num(0.0, 0.0, 0.0).abs().max()
    return bool(((a == b) | ((a - b).abs() <= tolerance * size)).all())


def _call(loss: Loss, logits: Tensor, target: Tensor) -> _Gradients:
    with torch.enable_grad():
        logits = logits.clone().requires_grad_()
        value = loss(logits, target)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise TypeError(f"decompose expects the loss to return one number a sample, got {kind_and_shape(value)}")
        if not value.requires_grad:
            raise ValueError("decompose expects a loss that depends on the logits differentiably, got a constant")
        (gradient,) = torch.autograd.grad(value.sum(), logits, allow_unused=True)
    if gradient is None:
        raise ValueError("decompose expects a loss that depends on the logits differentiably, got one that does not")
    tolerance = max(math.sqrt(torch.finfo(x.dtype).eps) for x in (value, logits))
    return _Gradients(value.detach().reshape(-1), gradient, tolerance)
