r"""Weight and direction of any differentiable loss, by automatic differentiation.

A loss of the standard form has the gradient −w(Δ)·∇Δ. For a loss that nobody has analysed, this measures how close the
gradient of each sample is to that: its weight ‖∇L‖₁/2, its direction relative to ∇Δ, and whether samples with the same
margin have the same weight.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from curriculoss._checks import type_and_shape
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.initial import state_kept
from curriculoss.margin import soft_margin

LossFunction = Callable[..., Any]  # (logits, target) -> loss


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Result of `decompose`; tensors are float64 with one number per sample.

    Attributes:
        weight: ‖∇L‖₁/2.
        margin: The soft margin Δ.
        cosine: The cosine between −∇L and ∇Δ; NaN where either vanishes.
        off_share: The share of ‖∇L‖₂ that is not along ∇Δ; 0 where ∇L vanishes.
        standard_form: Whether the loss is a function of the margin alone, as far as these samples show.

    Example:
        >>> import torch
        >>> from curriculoss import MAE, decompose
        >>> decompose(MAE(), torch.zeros(1, 2), torch.tensor([0])).curve()  # losses have unit peak when called
        (tensor([0.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """

    weight: Tensor
    margin: Tensor
    cosine: Tensor
    off_share: Tensor
    standard_form: bool

    def curve(self) -> tuple[Tensor, Tensor]:
        """Margins in ascending order and their weights: w(Δ), if the loss is of the standard form."""
        margin, order = self.margin.sort()
        return margin, self.weight[order]


class _Gradients(NamedTuple):
    values: Tensor
    gradients: Tensor
    tolerance: float  # of rounding, relative to the largest gradient
    tied: bool = False  # whether a sample has another loss in a batch than alone


def decompose(loss_fn: LossFunction, logits: Tensor, target: Tensor) -> Decomposition:
    """Measure weight and direction of every sample's gradient under any differentiable loss.

    The loss is called with `reduction="none"` where it offers that: with the whole batch if each sample then gets what
    it gets alone, otherwise one sample at a time. It is called in float64, or in the dtype of `logits` if it refuses
    that. A loss with a state, such as AutoLoss, is measured in eval mode and left as it was.

    It is of the standard form if no sample's loss depends on the others or on chance, every gradient is along −∇Δ, and
    every weight equals that of a probe: a sample with the same margin, another label and other logits.

    Args:
        loss_fn: A function of (logits, target): a loss such as `MAE()`, a module, or one of your own.
        logits: (N, K).
        target: N class indices.

    Returns:
        One weight, margin, cosine and off-share per sample, and whether the loss is of the standard form.

    Raises:
        InvalidTypeError: If `loss_fn` is not callable or does not return one number per sample.

    Example:
        >>> import torch
        >>> from curriculoss import decompose
        >>> logits, target = torch.randn(20, 5), torch.arange(20) % 5
        >>> decompose(torch.nn.CrossEntropyLoss(), logits, target).standard_form
        True
        >>> decompose(torch.nn.CrossEntropyLoss(label_smoothing=0.1), logits, target).standard_form
        False
    """
    if not callable(loss_fn):
        raise InvalidTypeError(
            f"decompose expects a function of (logits, target), such as RobustLoss(MAE()), got {loss_fn!r}"
        )
    with state_kept(loss_fn):
        if isinstance(loss_fn, nn.Module):
            loss_fn.eval()
        margin, direction = _margins(logits, target)
        form, dtype, found = _differentiate(loss_fn, logits.detach(), target)
        gradients = found.gradients.double()
        inside, squared = (gradients * direction).sum(1), direction.square().sum(1)
        along = torch.where(squared > 0, inside / squared, 0.0).unsqueeze(1) * direction
        norm, off = gradients.norm(dim=1), (gradients - along).norm(dim=1)
        weight = gradients.abs().sum(1) / 2

        slack = found.tolerance * float(norm.max())
        standard = not found.tied and gradients.isfinite().all() and (off <= slack).all() and (inside <= slack).all()
        finite = margin.isfinite()  # an infinite margin has no probe
        if standard and finite.any():
            probes, labels = _probes(margin[finite], target[finite], logits.shape[1])
            probed = _gradients(form, probes.to(dtype), labels).gradients.double().abs().sum(1) / 2
            standard = ((weight[finite] - probed).abs() <= slack).all()
    cosine, off_share = -inside / (norm * squared.sqrt()), torch.where(norm == 0, 0.0, off / norm)  # NaN stays NaN
    return Decomposition(weight, margin, cosine, off_share, bool(standard))


def _margins(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Δ and ∇Δ of each sample."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or not len(logits):
        raise InvalidValueError(f"decompose expects logits of shape (N, K) with N >= 1, got {type_and_shape(logits)}")
    with torch.enable_grad():
        wide = logits.detach().double().requires_grad_()
        margin = soft_margin(wide, target)
        (direction,) = torch.autograd.grad(margin.sum(), wide)
    if (target < 0).any():
        raise InvalidValueError(f"decompose expects class indices >= 0 as target, got {int(target.min())}")
    return margin.detach(), direction


def _probes(margin: Tensor, target: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Samples with the same margins but nothing else in common: the next label, and equal logits for all others."""
    labels = (target + 1) % num_classes
    probes = margin.new_zeros(len(margin), num_classes)
    return probes.scatter(1, labels.unsqueeze(1), (margin + math.log(num_classes - 1)).unsqueeze(1)), labels


def _differentiate(
    loss_fn: LossFunction, logits: Tensor, target: Tensor
) -> tuple[LossFunction, torch.dtype, _Gradients]:
    """The first form of the loss, and the first dtype, that work; raises the last error if none does."""
    error: Exception | None = None
    for form, dtype in product(_forms(loss_fn), dict.fromkeys((torch.float64, logits.dtype))):
        try:
            return form, dtype, _gradients(form, logits.to(dtype), target)
        # A loss with float32 class weights refuses float64 logits; a user's own may refuse reduction="none".
        except (RuntimeError, TypeError, ValueError) as refused:
            error = refused
    assert error is not None
    raise error


def _forms(loss_fn: LossFunction) -> Iterator[LossFunction]:
    """The loss without reduction, if it offers that, and the loss as given."""
    try:
        known = inspect.signature(loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        known = inspect.signature(lambda: None).parameters
    if "reduction" in known:
        yield partial(loss_fn, reduction="none")
    elif hasattr(loss_fn, "reduction"):
        unreduced: Any = copy.copy(loss_fn)
        with suppress(AttributeError):  # a frozen loss
            unreduced.reduction = "none"
            yield unreduced
    yield loss_fn


def _gradients(loss: LossFunction, logits: Tensor, target: Tensor) -> _Gradients:
    """All samples at once, if that gives the first and the last what they get alone; otherwise one by one."""
    try:
        whole = _call(loss, logits, target)
    # A loss written for one sample may fail for more; if it is wrong in itself, it fails again below.
    except (RuntimeError, TypeError, ValueError):
        return _one_by_one(loss, logits, target)
    unreduced = len(whole.values) == len(logits)
    if unreduced:
        ends = [0, len(logits) - 1]
        alone = _one_by_one(loss, logits[ends], target[ends])
        pairs = (whole.values[ends], alone.values), (whole.gradients[ends], alone.gradients)
        if all(_close(*pair, whole.tolerance) for pair in pairs):
            return whole
    alone = _one_by_one(loss, logits, target)
    reduced = len(whole.values) == 1 and (alone.values.mean(), alone.values.sum())
    tied = unreduced or (reduced and not any(_close(whole.values, x, whole.tolerance) for x in reduced))
    return alone._replace(tied=bool(tied))


def _one_by_one(loss: LossFunction, logits: Tensor, target: Tensor) -> _Gradients:
    samples = [_call(loss, logits[i : i + 1], target[i : i + 1]) for i in range(len(logits))]
    if any(len(sample.values) != 1 for sample in samples):
        got = len(samples[0].values)
        raise InvalidTypeError(f"decompose expects the loss to return one number per sample, got {got}")
    values, gradients = [x.values for x in samples], [x.gradients for x in samples]
    return _Gradients(torch.cat(values), torch.cat(gradients), max(x.tolerance for x in samples))


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    size = b.nan_to_num(0.0, 0.0, 0.0).abs().max()
    return bool(((a == b) | ((a - b).abs() <= tolerance * size)).all())


def _call(loss: LossFunction, logits: Tensor, target: Tensor) -> _Gradients:
    expected = "decompose expects a loss that depends on the logits differentiably, got"
    with torch.enable_grad():
        logits = logits.clone().requires_grad_()
        value = loss(logits, target)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = type_and_shape(value)
            raise InvalidTypeError(f"decompose expects the loss to return one number per sample, got {got}")
        if not value.requires_grad:
            raise InvalidValueError(f"{expected} a constant")
        (gradient,) = torch.autograd.grad(value.sum(), logits, allow_unused=True)
    if gradient is None:
        raise InvalidValueError(f"{expected} one that does not")
    tolerance = max(math.sqrt(torch.finfo(x.dtype).eps) for x in (value, logits))
    return _Gradients(value.detach().reshape(-1), gradient, tolerance)
