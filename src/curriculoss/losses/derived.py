"""Curricula made from others or from a weight function: the paper's two fixes, and designs of your own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from curriculoss._checks import SMALLEST, check_number, is_finite
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.losses.base import Curriculum, Peak, check_curriculum
from curriculoss.losses.integral import Integral


@dataclass(frozen=True)
class Scaled(Curriculum):
    """The margin times α: loss l(αΔ), weight α·w(αΔ). With α < 1 the weights reach further out on both sides.

    Args:
        base: The curriculum l.
        alpha: The factor α > 0.

    Example:
        >>> from curriculoss import MAE, Scaled
        >>> Scaled(MAE(), 0.5).peak
        Peak(margin=0.0, weight=0.125)
    """

    base: Curriculum
    alpha: float

    formula = "l(alpha*margin)"
    weight_formula = "alpha*w(alpha*margin)"
    constraints = "alpha > 0"

    def __post_init__(self) -> None:
        check_curriculum("Scaled", self.base)
        positive = is_finite(self.alpha) and self.alpha > 0
        check_number("Scaled", "alpha", self.alpha, "a finite alpha > 0", positive, least=SMALLEST)
        self._check_peak()

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        loss, weight = self.base._loss_and_weight(self.alpha * margin, scale)
        return loss, self.alpha * weight

    def _weight(self, margin: Tensor) -> Tensor:
        return self.alpha * self.base._weight(self.alpha * margin)

    @property
    def peak(self) -> Peak:
        margin, weight = self.base.peak
        return Peak(margin / self.alpha, weight * self.alpha)

    @property
    def bounded(self) -> bool:
        return self.base.bounded


@dataclass(frozen=True)
class Shifted(Curriculum):
    """The margin plus β: loss l(Δ + β), weight w(Δ + β). Adding β to the label's logit has the same effect.

    Args:
        base: The curriculum l.
        beta: What is added, β.

    Example:
        >>> from curriculoss import MAE, Shifted
        >>> Shifted(MAE(), 2.0).peak
        Peak(margin=-2.0, weight=0.25)
    """

    base: Curriculum
    beta: float

    formula = "l(margin + beta)"
    weight_formula = "w(margin + beta)"

    def __post_init__(self) -> None:
        check_curriculum("Shifted", self.base)
        check_number("Shifted", "beta", self.beta, "a finite beta")

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return self.base._loss_and_weight(margin + self.beta, scale)

    def _weight(self, margin: Tensor) -> Tensor:
        return self.base._weight(margin + self.beta)

    @property
    def peak(self) -> Peak:
        margin, weight = self.base.peak
        return Peak(margin - self.beta, weight)

    @property
    def bounded(self) -> bool:
        return self.base.bounded


@dataclass(frozen=True)
class PiecewiseLinear:
    """A weight function that joins points by straight lines and is constant outside them; see `Designed.from_points`.

    Example:
        >>> import torch
        >>> PiecewiseLinear((-1.0, 1.0), (1.0, 0.0))(torch.tensor([-5.0, 0.5]))
        tensor([1.0000, 0.2500])
    """

    margins: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.margins

    def __call__(self, margin: Tensor) -> Tensor:
        x, y = margin.new_tensor(self.margins), margin.new_tensor(self.weights)
        inside = margin.clamp(self.margins[0], self.margins[-1])  # where ±inf ends
        k = torch.searchsorted(x, inside.detach().contiguous(), right=True).sub(1).clamp(0, len(x) - 2)
        share = (inside - x[k]) / (x[k + 1] - x[k])
        return y[k] * (1 - share) + y[k + 1] * share


@dataclass(frozen=True)
class Designed(Curriculum):
    """A curriculum from a weight function w of your own; its loss is l(Δ) = ∫_Δ^∞ w.

    If that integral diverges, the loss is counted from Δ = 0 instead. If w grows without bound, its peak is infinite,
    and losses need `normalize=False`.

    Args:
        weight_function: Maps a float64 tensor of margins to weights ≥ 0, element by element, in torch operations.
            Details narrower than 1/50 may be overlooked, unless the function has an attribute `kinks`: margins
            between which it is smooth.

    Example:
        >>> import torch
        >>> from curriculoss import Designed
        >>> Designed(lambda margin: torch.exp(-margin.square())).loss(torch.tensor([0.0]))
        tensor([0.8862])
    """

    weight_function: Callable[[Tensor], Tensor]

    formula = "integral of w from margin to infinity"
    weight_formula = "weight_function(margin)"

    def __post_init__(self) -> None:
        if not callable(self.weight_function):
            raise InvalidTypeError(f"Designed expects a function of the margin, got {self.weight_function!r}")
        self._integral  # noqa: B018  made now, so that torch.compile meets a constant

    @classmethod
    def from_points(cls, margins: Iterable[float], weights: Iterable[float]) -> Designed:
        """The curriculum whose weight function joins points by straight lines and is constant outside them.

        The loss is integrated exactly. `curriculoss explore` draws such points with the mouse or the keyboard.

        Args:
            margins: At least two margins, increasing.
            weights: One weight >= 0 per margin.

        Raises:
            InvalidValueError: If margins do not increase, or weights are negative, all 0 or not as many.

        Example:
            >>> from curriculoss import Designed
            >>> triangle = Designed.from_points([-2, 0, 2], [0, 1, 0])
            >>> triangle.weight(torch.tensor([-1.0, 0.0, 5.0])), triangle.loss(torch.tensor([-1.0, 0.0, 5.0]))
            (tensor([0.5000, 1.0000, 0.0000]), tensor([1.7500, 1.0000, 0.0000]))
        """
        x, y = (_numbers(name, given) for name, given in (("margins", margins), ("weights", weights)))
        if len(x) < 2 or len(x) != len(y):
            raise InvalidValueError(
                "Designed.from_points expects at least two margins and a weight for each, "
                f"got {len(x)} margins and {len(y)} weights"
            )
        if (fall := next((pair for pair in pairwise(x) if pair[0] >= pair[1]), None)) is not None:
            raise InvalidValueError(
                f"Designed.from_points expects increasing margins, got {fall[1]:g} after {fall[0]:g}"
            )
        return cls(PiecewiseLinear(x, y))

    def _weight(self, margin: Tensor) -> Tensor:
        return self.weight_function(margin).to(margin.dtype)

    @cached_property
    def _integral(self) -> Integral:
        value = self.weight_function(torch.zeros(2, 3, dtype=torch.float64))
        if not isinstance(value, Tensor) or value.shape != (2, 3):
            raise InvalidTypeError(
                "Designed expects a weight function that maps a tensor of margins to one of the same shape"
            )
        integral = Integral(self._weight, getattr(self.weight_function, "kinks", ()))
        worst = integral.worst()
        if worst is not None:
            weight = float(self._weight(torch.tensor([worst], dtype=torch.float64)))
            raise InvalidValueError(f"Designed expects finite weights >= 0, got {weight:.4g} at margin {worst:.4g}")
        if not integral.panels.any():
            raise InvalidValueError("Designed expects a weight function that is not 0 everywhere")
        return integral

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return scale * self._integral.above(margin), scale * self._weight(margin)

    @cached_property
    def peak(self) -> Peak:
        return Peak(*self._integral.peak())

    @property
    def bounded(self) -> bool:
        return self._integral.finite_below


def _numbers(name: str, given: Iterable[float]) -> tuple[float, ...]:
    try:
        found = tuple(float(each) for each in given)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"Designed.from_points expects numbers as {name}, got {given!r:.60}") from None
    if wrong := [each for each in found if not math.isfinite(each)]:
        raise InvalidValueError(f"Designed.from_points expects finite {name}, got {wrong[0]}")
    return found
