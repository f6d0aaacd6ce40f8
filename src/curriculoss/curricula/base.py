"""What a curriculum is: a loss that depends on the margin alone, and the weight it gives each sample."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from torch.autograd import Function

from curriculoss.curricula.asymmetry import is_symmetric, max_noise_ratio
from curriculoss.margin import call, kind, transformed, wide

# Of hyperparameters: beyond, one over them or their square overflows, or an integer that torch cannot take.
SMALLEST, LARGEST = 1e-30, 1e18
LARGEST_WEIGHT = 1e300  # of a peak, and one over it for the least: beyond, the loss around it overflows


class Peak(NamedTuple):
    """Where a weight function is largest, and how large; CE's peak is at margin -inf."""

    margin: float
    weight: float


def is_finite(value: Any) -> bool:
    """Whether it is a number and finite, also for a number that torch.compile only knows by name."""
    number = isinstance(value, numbers.Real)
    return number and -math.inf < value < math.inf


def check_number(
    name: str, symbol: str, value: Any, constraints: str = "a finite number", holds: bool = True, least: float = 0.0
) -> None:
    """Refuse what is no finite number, does not meet the constraints, or is not of an ordinary size."""
    if is_finite(value) and holds and value != 0 and not least <= abs(value) <= LARGEST:
        constraints, holds = f"a number from {least:g} to {LARGEST:g} in size", False
    if not is_finite(value) or not holds:
        raise ValueError(f"{name} expects {constraints}, got {symbol}={value!r:.60}")


def check_curriculum(caller: str, value: object) -> None:
    if not isinstance(value, Curriculum):
        raise TypeError(f"{caller} expects a curriculum such as MAE(), got {value!r}")


class _Loss(Function):
    """l(Δ) with gradient −w(Δ), also where automatic differentiation would meet 0·∞."""

    generate_vmap_rule = True

    @staticmethod
    def forward(margin: Tensor, curriculum: Curriculum) -> Tensor:
        return curriculum._loss(wide(margin)).to(margin.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        margin, ctx.curriculum = inputs
        ctx.save_for_backward(margin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (margin,) = ctx.saved_tensors
        return -grad * ctx.curriculum.weight(margin), None


@dataclass(frozen=True)
class Curriculum(ABC):
    """A standard-form loss l(Δ) on the scale of its paper, and its weight w(Δ) = −l'(Δ) ≥ 0.

    A family writes `_loss_and_weight`, functions of a float64 margin that may be ±inf, its peak and its facts.
    """

    formula: ClassVar[str]  # l and w as functions of p = σ(Δ), in Python's own notation
    weight_formula: ClassVar[str]
    constraints: ClassVar[str] = ""

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_finite(value):
                raise ValueError(f"{name} expects a finite number, got {field.name}={value!r}")
        if not self._valid():
            raise ValueError(f"{name} expects {self.constraints}, got {self._given()}")
        for field in fields(self):
            check_number(name, field.name, getattr(self, field.name), least=SMALLEST)
        self._check_peak()

    def _given(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)!r:.60}" for field in fields(self))

    def _check_peak(self) -> None:
        """Hyperparameters so extreme that the largest weight is no ordinary number break all that follows."""
        if transformed():  # a number that torch.compile knows by name has no value yet
            return
        try:
            weight = self.peak.weight
        except (ArithmeticError, ValueError):  # an overflow, or the logarithm of what underflowed
            weight = math.nan
        # Infinity is for designs that grow without bound, which normalisation refuses.
        if not (1 / LARGEST_WEIGHT <= weight <= LARGEST_WEIGHT or weight == math.inf):
            expected = f"a largest weight between {1 / LARGEST_WEIGHT:g} and {LARGEST_WEIGHT:g}"
            raise ValueError(f"{type(self).__name__} expects hyperparameters with {expected}, got {self._given()}")

    def _valid(self) -> bool:
        """Whether the hyperparameters meet `constraints`."""
        return True

    def loss(self, margin: Tensor) -> Tensor:
        """l(Δ), element by element, in the dtype of `margin`."""
        self._check_margin(margin)
        value: Tensor = call(_Loss, margin, self)
        return value

    def weight(self, margin: Tensor) -> Tensor:
        """w(Δ) = −l'(Δ), element by element, in the dtype of `margin`."""
        self._check_margin(margin)
        return self._weight(wide(margin)).to(margin.dtype)

    def _check_margin(self, margin: Tensor) -> None:
        if not isinstance(margin, Tensor) or not margin.is_floating_point():
            raise TypeError(f"{type(self).__name__} expects floating-point margins, got {kind(margin)}")

    def of(self, batch: Any) -> Tensor:
        """The loss of each sample of a batch (of logits and targets), as losses with a second term have it too."""
        value: Tensor = batch.primary(self)
        return value

    @property
    def primary(self) -> Curriculum:
        """Itself: the first term of a loss that has no second."""
        return self

    @property
    def unit_weight(self) -> float:
        """What normalisation divides by."""
        weight = self.peak.weight
        if weight == math.inf:
            raise ValueError(
                f"{type(self).__name__} has no largest weight to normalise by, it grows without bound: "
                "RobustLoss takes it with normalize=False"
            )
        return weight

    @abstractmethod
    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """scale·l(Δ) and scale·w(Δ): a step of training wants both, and they have much in common."""

    def _loss(self, margin: Tensor) -> Tensor:
        return self._loss_and_weight(margin)[0]

    def _weight(self, margin: Tensor) -> Tensor:
        """Alone, as it is differentiated; to be written where the loss would be costly."""
        return self._loss_and_weight(margin)[1]

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
