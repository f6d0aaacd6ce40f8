"""What a loss is, and a curriculum: a loss that depends on the margin alone."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from curriculoss._autograd import transformed
from curriculoss._checks import SMALLEST, check_logits, check_number, is_finite
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.losses.asymmetry import is_symmetric, max_noise_ratio
from curriculoss.losses.batch import Batch
from curriculoss.losses.reduction import OPTIONS, Reduction, checked_option
from curriculoss.margin import MarginLoss

LARGEST_WEIGHT = 1e300  # of a peak, and one over it for the least: beyond, the loss around it overflows


class Peak(NamedTuple):
    """Where a weight function is largest, and how large; CE's peak is at margin -inf.

    Example:
        >>> from curriculoss import MAE
        >>> MAE().peak
        Peak(margin=0.0, weight=0.25)
    """

    margin: float
    weight: float


class Parts(NamedTuple):
    """Two terms per sample with the gradient of the loss, ∇L = primary_scale·∇primary + regularizer_scale·∇regularizer.

    The loss itself need not be that sum.

    Example:
        >>> import torch
        >>> from curriculoss import MSE
        >>> parts = MSE(alpha=0.5).parts(torch.zeros(1, 4), torch.tensor([0]))
        >>> parts.primary, parts.regularizer, parts.regularizer_scale
        (tensor([0.7500]), tensor([0.2500]), tensor([0.5000]))
    """

    primary: Tensor
    regularizer: Tensor
    primary_scale: Tensor
    regularizer_scale: Tensor


def check_curriculum(caller: str, value: object) -> None:
    if not isinstance(value, Curriculum):
        raise InvalidTypeError(f"{caller} expects a curriculum such as MAE(), got {value!r}")


class Loss(ABC):
    """A classification loss: a value that can be called like `F.cross_entropy`.

    Every loss has a primary term, a curriculum, on the scale of its paper. With `normalize`, the default, a call
    divides by the largest weight of that curriculum, so that a learning rate tuned for cross entropy carries over.

    Example:
        >>> from curriculoss import Loss, get
        >>> loss = get("nce+mae")
        >>> isinstance(loss, Loss), loss.primary, loss.curriculum
        (True, MAE(), None)
    """

    formula: ClassVar[str]
    regularizer: ClassVar[str] = ""  # the formula of the second term, if there is one
    constraints: ClassVar[str] = ""
    version: ClassVar[int] = 1  # of the rule: raised when the same hyperparameters come to mean another loss

    def __call__(
        self, logits: Tensor, target: Tensor, *, sample_weight: Tensor | None = None,
        class_weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean", normalize: bool = True,
    ) -> Tensor:  # fmt: skip
        """The loss of a batch, by the conventions of `F.cross_entropy`.

        Args:
            logits: (N, K), (N, K, d1, ...) or (K,).
            target: int64 class indices in the shape of the logits without K, or probabilities in the logits' shape,
                for which the loss is Σ_i t_i·l(Δ_i).
            sample_weight: One weight per target, or (N,); in "mean" it counts as class weights do.
            class_weight: One weight per class.
            ignore_index: Targets with this index count nothing.
            reduction: "mean" (over the weights that count), "sum" or "none".
            normalize: Whether to divide by the largest weight of the primary curriculum.

        Returns:
            A scalar or, without reduction, one number per target.

        Example:
            >>> import torch
            >>> from curriculoss import GCE
            >>> logits, target = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
            >>> GCE(q=0.7)(logits, target, reduction="none", normalize=False)
            tensor([0.1215, 0.8589])
        """
        name, given = type(self).__name__, (reduction, ignore_index, class_weight)
        mode, ignored, weights = (checked_option(name, *each) for each in zip(OPTIONS, given, strict=True))
        how = Reduction(name, mode, ignored, weights, 1 / self.unit_weight if normalize else 1.0)
        return how.loss_and_margin(self, logits, target, sample_weight)[0]

    def loss_and_margin(
        self, logits: Tensor, target: Tensor, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch and the detached margin of each sample, which it has computed anyway."""
        how = Reduction(type(self).__name__, scale=1 / self.unit_weight)
        return how.with_margin(self, logits, target, sample_weight)

    @property
    def label(self) -> str:
        """A short name, as for a legend."""
        return repr(self)

    @property
    def curriculum(self) -> Curriculum | None:
        """The loss itself if its weight is a fixed function of the margin, otherwise None."""
        return None

    @property
    @abstractmethod
    def primary(self) -> Curriculum:
        """The curriculum of the first term."""

    @property
    def unit_weight(self) -> float:
        """The largest weight of the primary curriculum, by which normalisation divides."""
        return self.primary.unit_weight

    @property
    def bounded_below(self) -> bool:
        """Whether the loss has a lower bound; without one, training drives logits to infinity."""
        return True

    @property
    def by_row(self) -> bool:
        """Whether a sample's loss depends on its own logits alone, so that parts of a batch can be computed apart."""
        return True

    @abstractmethod
    def of(self, batch: Batch) -> Tensor:
        """The loss of each sample on the scale of its paper, weighed by class, 0 where ignored."""

    def parts(self, logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Parts:
        """The two terms of each sample and the factors before them."""
        check_logits(logits, target, type(self).__name__)
        if logits.dim() == 1:
            return Parts(*(x.squeeze(0) for x in self.parts(logits[None], target[None], ignore_index=ignore_index)))
        return self._parts(Batch(logits, target, ignore_index=ignore_index))

    def _parts(self, batch: Batch) -> Parts:
        """The loss and nothing, unless it has a second term."""
        zero = torch.zeros_like(batch.margin).detach()
        return Parts(self.of(batch), zero, zero + 1, zero)

    def weights(self, margin: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        """The weight ‖∇_s L‖₁/2 of each sample on the scale of the paper, or a bound on it where a loss says so.

        Computed by autograd unless a loss has a formula. No target may be ignored; `margin` is that of the logits.
        """
        with torch.enable_grad():
            variable = logits.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self(variable, target, reduction="sum", normalize=False), variable)
        return gradient.abs().sum(1) / 2

    def as_margin_loss(self, logits: Tensor, target: Tensor) -> Curriculum | None:
        """The curriculum, whose loss and gradient are computed in one autograd step."""
        return self.curriculum


@dataclass(frozen=True)
class Curriculum(Loss, MarginLoss):
    """A standard-form loss l(Δ) on the scale of its paper, and its weight w(Δ) = −l'(Δ) ≥ 0.

    A family defines `_loss_and_weight`, a function of float64 margins that may be ±inf, its peak, and whether it is
    bounded.

    Example:
        >>> import torch
        >>> from curriculoss import MAE
        >>> MAE().loss(torch.tensor([0.0])), MAE().weight(torch.tensor([0.0])), MAE().symmetric
        (tensor([0.5000]), tensor([0.2500]), True)
    """

    weight_formula: ClassVar[str]  # as the formula, a function of p = σ(Δ) in Python's notation

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_finite(value):
                raise InvalidValueError(f"{name} expects a finite number, got {field.name}={value!r}")
        if not self._valid():
            raise InvalidValueError(f"{name} expects {self.constraints}, got {self._given()}")
        for field in fields(self):
            check_number(name, field.name, getattr(self, field.name), least=SMALLEST)
        self._check_peak()

    @property
    def label(self) -> str:
        """`GCE(q=0.7)`, `Scaled(MAE, alpha=0.5)`, and `MAE` without hyperparameters."""
        given = []
        for field in fields(self):
            value = getattr(self, field.name)
            number = f"{field.name}={value:.3g}" if isinstance(value, int | float) else field.name
            given.append(value.label if isinstance(value, Curriculum) else number)
        return type(self).__name__ + (f"({', '.join(given)})" if given else "")

    def _given(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)!r:.60}" for field in fields(self))

    def _check_peak(self) -> None:
        """Refuse hyperparameters so extreme that the largest weight overflows or underflows."""
        if transformed():  # a number that torch.compile knows by name has no value yet
            return
        try:
            weight = self.peak.weight
        except (ArithmeticError, ValueError):  # an overflow, or the logarithm of what underflowed
            weight = math.nan
        # Infinity is for designs that grow without bound, which normalisation refuses.
        if not (1 / LARGEST_WEIGHT <= weight <= LARGEST_WEIGHT or weight == math.inf):
            expected = f"a largest weight between {1 / LARGEST_WEIGHT:g} and {LARGEST_WEIGHT:g}"
            raise InvalidValueError(
                f"{type(self).__name__} expects hyperparameters with {expected}, got {self._given()}"
            )

    def _valid(self) -> bool:
        """Whether the hyperparameters meet `constraints`."""
        return True

    def of(self, batch: Batch) -> Tensor:
        return batch.primary(self)

    def weights(self, margin: Tensor, logits: Tensor | None, target: Tensor) -> Tensor:
        """w(Δ), which needs no logits."""
        return self.weight(margin)

    @property
    def curriculum(self) -> Curriculum:
        """The loss itself: its weight is a fixed function of the margin."""
        return self

    @property
    def primary(self) -> Curriculum:
        """The loss itself: there is no second term."""
        return self

    @property
    def unit_weight(self) -> float:
        """What normalisation divides by."""
        weight = self.peak.weight
        if weight == math.inf:
            raise InvalidValueError(
                f"{type(self).__name__} has no largest weight to normalise by, it grows without bound: "
                "RobustLoss takes it with normalize=False"
            )
        return weight

    @property
    @abstractmethod
    def peak(self) -> Peak:
        """Where the weight is largest."""

    @property
    @abstractmethod
    def bounded(self) -> bool:
        """Whether the loss stays finite as Δ → −∞."""

    @cached_property
    def symmetric(self) -> bool:
        """Whether the loss sums to a constant over all labels, for any number of classes."""
        return is_symmetric(self._weight)

    @cached_property
    def max_noise_ratio(self) -> float:
        """The largest r̃ for which the loss is asymmetric, that is, robust while no wrong label is more than r̃ times as
        frequent as the right one; 0 without such a guarantee. Found numerically where a family has no closed form."""
        return max_noise_ratio(self._weight)
