"""From the losses of samples to one number: weights, reduction and normalisation, with F.cross_entropy's conventions.

This is the one path from logits to a loss: calling a loss, `functional.robust_loss`, `RobustLoss` and `AutoLoss` all
take it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from curriculoss._autograd import autocast, compute_dtype, to_float64
from curriculoss._checks import check_logits, type_and_shape
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.losses.batch import Batch, weight_of
from curriculoss.margin import MarginLoss, Objective, standard_loss

REDUCTIONS = ("mean", "sum", "none")
OPTIONS = ("reduction", "ignore_index", "class_weight")


class PerSampleLoss(Protocol):
    """A loss of each sample of a batch."""

    def of(self, batch: Batch) -> Tensor:
        """The loss of each sample, weighed by class, 0 where ignored."""

    def as_margin_loss(self, logits: Tensor, target: Tensor) -> MarginLoss | None:
        """The same as a function of the margin, to be computed in one autograd step; None if there is none."""


class Reduction(NamedTuple):
    """How the losses of samples become one number."""

    caller: str  # named in error messages
    mode: str = "mean"
    ignore_index: int = -100
    class_weight: Tensor | None = None
    scale: float = 1.0  # 1 over the weight that normalisation divides by
    num_classes: int | None = None  # if the loss is made for one number of classes

    def loss_and_margin(
        self, loss: PerSampleLoss, logits: Tensor, target: Tensor, sample_weight: Tensor | None, exact: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The reduced loss and the margins, which may have K's axis; see `Objective` for `exact`."""
        soft = isinstance(target, Tensor) and target.is_floating_point()
        check_logits(logits, target, self.caller, soft)
        if soft and self.ignore_index >= 0:
            raise InvalidValueError(f"probabilities know no ignored class, got ignore_index={self.ignore_index}")
        if self.class_weight is not None or self.num_classes is not None:
            self.check_classes(logits.shape[min(1, logits.dim() - 1)])
        if logits.dim() == 1:
            one = None if sample_weight is None else self.along(sample_weight, torch.Size()).unsqueeze(0)
            value, margin = self.loss_and_margin(loss, logits.unsqueeze(0), target.unsqueeze(0), one, exact)
            return value.squeeze(0) if self.mode == "none" else value, margin
        if self.class_weight is None and sample_weight is None and not soft:
            margin_loss = loss.as_margin_loss(logits, target)
            if margin_loss is not None:
                objective = Objective(margin_loss, self.scale, self.mode, exact)
                value, margin = standard_loss(logits, target, self.ignore_index, objective)
                return in_dtype_of(logits, value), margin
        if sample_weight is not None:
            sample_weight = self.along(sample_weight, logits.shape[:1] + logits.shape[2:])
        batch = Batch(logits, target, self.class_weight, self.ignore_index, sample_weight)
        return in_dtype_of(logits, self.reduced(loss.of(batch) * self.scale, target, sample_weight)), batch.margin

    def with_margin(
        self, loss: PerSampleLoss, logits: Tensor, target: Tensor, sample_weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The reduced loss, and the detached margins in the shape of class indices and the dtype of `soft_margin`."""
        value, margin = self.loss_and_margin(loss, logits, target, sample_weight, exact=True)
        sites = logits.shape[:1] + logits.shape[2:] if logits.dim() > 1 else ()
        return value, margin.detach().reshape(sites).to(compute_dtype(logits.dtype))

    def reduced(self, value: Tensor, target: Tensor, sample_weight: Tensor | None) -> Tensor:
        """Per-sample losses that carry their class weights, reduced in float64: a sum may overflow where the mean does
        not."""
        if sample_weight is not None:  # a sample without weight may have an infinite loss
            value = (value * sample_weight.to(value.dtype)).masked_fill(sample_weight == 0, 0.0)
        if self.mode == "none":
            return value
        total = to_float64(value).sum()
        if self.mode == "mean":
            weight = weight_of(target, self.class_weight, self.ignore_index, total.dtype)
            total = total / (weight if sample_weight is None else weight * sample_weight.to(total.dtype)).sum()
        return total.to(value.dtype)

    def factors(self, target: Tensor, sample_weight: Tensor | None, *, by_class: bool) -> tuple[Tensor, Tensor | float]:
        """What each sample's loss is multiplied by before all are added up, and what the sum is divided by.

        Both in float64. Losses with a second term carry their class weights already: for them `by_class` is False.
        """
        dtype = torch.float32 if target.is_mps else torch.float64  # as `to_float64`
        weight = weight_of(target, self.class_weight, self.ignore_index, dtype)
        samples = 1.0 if sample_weight is None else sample_weight.detach().to(dtype)
        own = weight if by_class else (target != self.ignore_index).to(dtype)
        return own * samples * self.scale, (weight * samples).sum() if self.mode == "mean" else 1.0

    def check_classes(self, given: int) -> None:
        """Refuse another number of classes than the loss, or its class weights, are for."""
        if self.num_classes is not None and given != self.num_classes:
            raise InvalidValueError(f"{self.caller} expects logits of {self.num_classes} classes, got {given}")
        if self.class_weight is not None and given != (count := len(self.class_weight)):
            raise InvalidValueError(f"{self.caller} expects {count} classes, as many as class_weight has, got {given}")

    def along(self, sample_weight: Tensor, sites: torch.Size) -> Tensor:
        """The weight of each sample in the shape of the target without classes."""
        given = sample_weight.shape if isinstance(sample_weight, Tensor) else None
        if given is None or sample_weight.is_complex() or given not in (sites, sites[:1]):
            shapes = f"{tuple(sites)}" + (f" or {tuple(sites[:1])}" if len(sites) > 1 else "")
            got = type_and_shape(sample_weight)
            raise InvalidValueError(f"{self.caller} expects sample_weight as a tensor of shape {shapes}, got {got}")
        return sample_weight.reshape(given + (1,) * (len(sites) - len(given))).expand(sites)


def checked_option(caller: str, name: str, given: Any) -> Any:
    """The value of `reduction`, `ignore_index` or `class_weight`, which becomes a floating-point tensor."""
    if name == "reduction" and given not in REDUCTIONS:
        raise InvalidValueError(f"{caller} expects reduction 'mean', 'sum' or 'none', got {given!r}")
    if name == "ignore_index" and not isinstance(given, int):
        raise InvalidTypeError(f"{caller} expects an integer ignore_index, got {given!r}")
    if name != "class_weight" or given is None:
        return given
    expected = "class_weight as a number for each class"
    try:
        weights = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidTypeError(f"{caller} expects {expected}, got {given!r}") from None
    if weights.dim() != 1 or weights.is_complex():
        raise InvalidValueError(f"{caller} expects {expected}, got {type_and_shape(weights)}")
    return weights if weights.is_floating_point() else weights.to(torch.get_default_dtype())


def in_dtype_of(given: Tensor, value: Tensor) -> Tensor:
    """Half precision in, half precision out, except under autocast, which runs F.cross_entropy in float32 too."""
    return value if value.dtype == given.dtype or autocast(given) else value.to(given.dtype)
