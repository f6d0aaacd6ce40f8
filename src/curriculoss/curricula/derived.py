"""Curricula made from others or from a weight function: the paper's two fixes, and designs of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from curriculoss.curricula.base import SMALLEST, Curriculum, Peak, check_curriculum, check_number, is_finite
from curriculoss.curricula.integral import Integral


@dataclass(frozen=True)
class Scaled(Curriculum):
    """The margin times α: loss l(αΔ), weight α·w(αΔ). With α < 1 the weights reach further out on both sides."""

    curriculum: Curriculum
    alpha: float

    formula = "l(alpha*margin)"
    weight_formula = "alpha*w(alpha*margin)"
    constraints = "alpha > 0"

    def __post_init__(self) -> None:
        check_curriculum("Scaled", self.curriculum)
        positive = is_finite(self.alpha) and self.alpha > 0
        check_number("Scaled", "alpha", self.alpha, "a finite alpha > 0", positive, SMALLEST)
        self._check_peak()

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        loss, weight = self.curriculum._loss_and_weight(self.alpha * margin, scale)
        return loss, self.alpha * weight

    def _weight(self, margin: Tensor) -> Tensor:
        return self.alpha * self.curriculum._weight(self.alpha * margin)

    @property
    def peak(self) -> Peak:
        margin, weight = self.curriculum.peak
        return Peak(margin / self.alpha, weight * self.alpha)

    @property
    def bounded(self) -> bool:
        return self.curriculum.bounded


@dataclass(frozen=True)
class Shifted(Curriculum):
    """The margin plus β: loss l(Δ + β), weight w(Δ + β). It is what adding β to the label's logit does."""

    curriculum: Curriculum
    beta: float

    formula = "l(margin + beta)"
    weight_formula = "w(margin + beta)"

    def __post_init__(self) -> None:
        check_curriculum("Shifted", self.curriculum)
        check_number("Shifted", "beta", self.beta, "a finite beta")

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return self.curriculum._loss_and_weight(margin + self.beta, scale)

    def _weight(self, margin: Tensor) -> Tensor:
        return self.curriculum._weight(margin + self.beta)

    @property
    def peak(self) -> Peak:
        margin, weight = self.curriculum.peak
        return Peak(margin - self.beta, weight)

    @property
    def bounded(self) -> bool:
        return self.curriculum.bounded


@dataclass(frozen=True)
class Designed(Curriculum):
    """A curriculum from a weight function of one's own; the loss follows as l(Δ) = ∫_Δ^∞ w.

    `weight_function` maps a float64 tensor of margins to weights ≥ 0, element by element, in torch operations. What is
    narrower than a fiftieth of a margin may be overlooked. If ∫^∞ w diverges, the loss is counted from Δ = 0 instead.
    If w grows without bound, its peak is infinite, and `RobustLoss` takes it with `normalize=False` alone.
    """

    weight_function: Callable[[Tensor], Tensor]

    formula = "integral of w from margin to infinity"
    weight_formula = "weight_function(margin)"

    def __post_init__(self) -> None:
        if not callable(self.weight_function):
            raise TypeError(f"Designed expects a function of the margin, got {self.weight_function!r}")
        self._integral  # noqa: B018  made now, so that torch.compile meets a constant

    def _weight(self, margin: Tensor) -> Tensor:
        return self.weight_function(margin).to(margin.dtype)

    @cached_property
    def _integral(self) -> Integral:
        value = self.weight_function(torch.zeros(2, 3, dtype=torch.float64))
        if not isinstance(value, Tensor) or value.shape != (2, 3):
            raise TypeError("Designed expects a weight function that maps a tensor of margins to one of the same shape")
        integral = Integral(self._weight)
        worst = integral.worst()
        if worst is not None:
            weight = float(self._weight(torch.tensor([worst], dtype=torch.float64)))
            raise ValueError(f"Designed expects finite weights >= 0, got {weight:.4g} at margin {worst:.4g}")
        if not integral.panels.any():
            raise ValueError("Designed expects a weight function that is not 0 everywhere")
        return integral

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return scale * self._integral.above(margin), scale * self._weight(margin)

    @cached_property
    def peak(self) -> Peak:
        return Peak(*self._integral.peak())

    @property
    def bounded(self) -> bool:
        return self._integral.finite_below
