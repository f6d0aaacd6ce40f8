"""The paper's standard-form losses, from −log p = softplus(−Δ) and −log(1 − p) = softplus(Δ): p is never rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from curriculoss.errors import InvalidValueError
from curriculoss.losses.base import Curriculum, Peak
from curriculoss.losses.registry import register


def _softplus(value: Tensor) -> Tensor:
    """log(1 + e^value), a third of the time of logsigmoid; beyond 40 it is the value itself to the last bit."""
    return F.softplus(value, threshold=40.0)


def _split(margin: Tensor, loss: float, least: float) -> tuple[Tensor, Tensor | float]:
    """The margin as near + rest, and tail = e^(−rest), for losses that fall like e^(−Δ) beyond Δ = 300.

    Without the split, an intermediate result could underflow, or lose digits, before the loss does. `loss` and `least`,
    the smallest intermediate result, are multiples of 1 − p.
    """
    if loss < 3 and least > 1e-3 * loss:
        return margin, 1.0
    return margin.clamp(max=300.0), (300.0 - margin.clamp(min=300.0)).exp()


def _bell(
    other: Tensor, c: Tensor, exponent: Tensor, *, factor: float, constant: float, tail: Tensor | float = 1.0
) -> Tensor:
    """p (1 − p) e^(factor·exponent + constant)·tail from −Δ and c = 1 − p, as one power of e: p alone may underflow."""
    weight = c / _softplus(other).sub_(exponent, alpha=factor).sub_(constant).exp_()
    return weight * tail if isinstance(tail, Tensor) else weight


@register("ce")
@dataclass(frozen=True)
class CE(Curriculum):
    r"""Cross entropy: every badly fitted sample counts fully, whether its label is right or not.

    With p = σ(Δ):  l = −log p,  w = 1 − p,  largest at Δ → −∞.

    Example:
        >>> CE().weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.8808, 0.5000, 0.1192])
    """

    formula = "-log(p)"
    weight_formula = "1 - p"
    bounded = False
    peak = Peak(-math.inf, 1.0)

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        other = -margin
        return scale * _softplus(other), scale * torch.sigmoid(other)


@register("fl")
@dataclass(frozen=True)
class FL(Curriculum):
    r"""Focal loss: cross entropy that cares less for samples already learned; CE as q → 0.

    With p = σ(Δ):  l = −(1 − p)^q log p,  w = (1 − p)^q (1 − p − q p log p), which exceeds 1 before it falls.
    Lin et al., ICCV 2017.

    Example:
        >>> FL(q=2).weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([1.0767, 0.2983, 0.0049])
    """

    q: float = 2.0

    formula = "-(1 - p)**q * log(p)"
    weight_formula = "(1 - p)**q * (1 - p - q*p*log(p))"
    constraints = "q > 0"
    bounded = False

    def _valid(self) -> bool:
        return self.q > 0

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        other = -margin
        surprise, power = _softplus(other), scale * (-self.q * _softplus(margin)).exp()
        # p underflows long before Δ = −1000: the clamp only keeps a masked label's Δ = −∞ from giving 0·∞.
        hoped = torch.sigmoid(margin) * surprise.clamp(max=1e3)
        return power * surprise, power * torch.sigmoid(other).add(hoped, alpha=self.q)

    @cached_property
    def peak(self) -> Peak:
        """w' = 0 where (2q + 1)(1 − p) + q log p (1 − p − q p) = 0; over Δ, as the peak runs to −∞ with q → 0."""
        q = self.q

        def falling(margin: float) -> bool:
            odds = math.exp(margin)  # p/(1 − p)
            return 2 * q + 1 + q * (margin - math.log1p(odds)) * (1 - q * odds) > 0

        low, high = -max(math.log(2 * q), 4 + 2 / q), -math.log(q)
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (low, middle) if falling(middle) else (middle, high)
        return Peak(low, float(self._weight(torch.tensor(low, dtype=torch.float64))))


@register("mae", "rce")
@dataclass(frozen=True)
class MAE(Curriculum):
    r"""Mean absolute error, which is also reverse cross entropy (RCE): robust, and the one that underfits most.

    With p = σ(Δ):  l = 1 − p,  w = p (1 − p),  largest at Δ = 0. (Half of Σ_i |𝟙(i=y) − p_i|, as the paper has it.)
    Ghosh et al., AAAI 2017; as RCE, Wang et al., ICCV 2019.

    Example:
        >>> MAE().weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.1050, 0.2500, 0.1050])
    """

    formula = "1 - p"
    weight_formula = "p*(1 - p)"
    bounded = True
    max_noise_ratio = 1.0
    peak = Peak(0.0, 0.25)

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        c = scale * torch.sigmoid(-margin)
        return c, torch.sigmoid(margin) * c


RCE = MAE


@register("aul")
@dataclass(frozen=True)
class AUL(Curriculum):
    r"""Asymmetric unhinged loss; MAE at q = 1.

    With p = σ(Δ):  l = [(a − p)^q − (a − 1)^q]/q,  w = p (1 − p) (a − p)^(q−1).
    Zhou et al., ICML 2021. (The paper's extended table has AUL and AGCE swapped.)

    Example:
        >>> AUL(a=1.1, q=5).weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.0972, 0.0324, 0.0002])
    """

    a: float = 1.1
    q: float = 5.0

    formula = "((a - p)**q - (a - 1)**q)/q"
    weight_formula = "p*(1 - p)*(a - p)**(q - 1)"
    constraints = "a > 1 and q > 0"
    bounded = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.q * math.log(self.a) > 700:
            raise InvalidValueError(f"AUL expects a**q to be a finite number, got a={self.a!r}, q={self.q!r}")

    def _valid(self) -> bool:
        return self.a > 1 and self.q > 0

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        end, q = self.a - 1, self.q  # of a − p, as p → 1
        near, tail = _split(margin, float(end ** (q - 1)), min(1.0, q) / max(1.0, end))
        other = -near
        c = torch.sigmoid(other)
        ratio = torch.log1p(c * (1 / end))  # log of (a − p)/(a − 1)
        if q * math.log(end) > -600 and q * math.log1p(1 / end) < 600:
            loss = (q * ratio).expm1_() * (tail * (scale * end**q / q))
        else:  # a power of each would underflow and overflow, but not of both together
            loss = (q * (ratio + math.log(end))).exp() * torch.expm1(-q * ratio) * (tail * (-scale / q))
        constant = (q - 1) * math.log(end) + math.log(scale)
        return loss, _bell(other, c, ratio, factor=q - 1, constant=constant, tail=tail)

    @cached_property
    def peak(self) -> Peak:
        a, q = self.a, self.q
        root = q + math.sqrt(q * q + 4 * a * (a - 1))
        p, c = 2 * a / (2 * a + root), root / (2 * a + root)
        return Peak(math.log(2 * a / root), p * c * (a - 1 + c) ** (q - 1))

    @property
    def max_noise_ratio(self) -> float:
        return float(((self.a - 1) / self.a) ** max(0.0, self.q - 1))


@register("agce")
@dataclass(frozen=True)
class AGCE(Curriculum):
    r"""Asymmetric generalised cross entropy; MAE at q = 1.

    With p = σ(Δ):  l = [(a + 1)^q − (a + p)^q]/q,  w = p (1 − p) (a + p)^(q−1).
    Zhou et al., ICML 2021. (The paper prints a + 1 for (a + 1)^q; ours vanishes at p = 1.)

    Example:
        >>> AGCE(a=0.1, q=0.1).weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.4115, 0.3959, 0.1068])
    """

    a: float = 0.1
    q: float = 0.1

    formula = "((a + 1)**q - (a + p)**q)/q"
    weight_formula = "p*(1 - p)*(a + p)**(q - 1)"
    constraints = "a > 0 and q > 0"
    bounded = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.q * math.log1p(self.a) > 700:
            raise InvalidValueError(f"AGCE expects (a + 1)**q to be a finite number, got a={self.a!r}, q={self.q!r}")

    def _valid(self) -> bool:
        return self.a > 0 and self.q > 0

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        end, q = self.a + 1, self.q  # of a + p, as p → 1
        near, tail = _split(margin, float(end ** (q - 1)), min(1.0, q) / end)
        other = -near
        c = torch.sigmoid(other)
        ratio = torch.log1p(c * (-1 / end))  # log of (a + p)/(a + 1)
        if self.a < 1e-3 * max(1.0, q):  # then so may a + p be, which has lost too many digits in 1 − c/(a + 1)
            ratio = -torch.log1p(c / (self.a + torch.sigmoid(near)))
        loss = (q * ratio).expm1_() * (tail * (scale * end**q / -q))
        constant = (q - 1) * math.log(end) + math.log(scale)
        return loss, _bell(other, c, ratio, factor=q - 1, constant=constant, tail=tail)

    @cached_property
    def peak(self) -> Peak:
        a, q = self.a, self.q
        root = math.sqrt(q * q + 4 * a * (a + 1))
        p = (q - 2 * a + root) / (2 * q + 2) if q > 2 * a else 2 * a / (2 * a - q + root)
        c = 2 * (a + 1) / (q + 2 * a + 2 + root)
        return Peak(math.log(p / c), p * c * (a + p) ** (q - 1))

    @property
    def max_noise_ratio(self) -> float:
        return float(((self.a + 1) / self.a) ** min(0.0, self.q - 1))


@register("ael")
@dataclass(frozen=True)
class AEL(Curriculum):
    r"""Asymmetric exponential loss; MAE as q → ∞, but for scale and a constant.

    With p = σ(Δ):  l = e^(−p/q),  w = p (1 − p) e^(−p/q)/q. Zhou et al., ICML 2021.

    Example:
        >>> AEL(q=1).weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.0932, 0.1516, 0.0435])
    """

    q: float = 1.0

    formula = "exp(-p/q)"
    weight_formula = "p*(1 - p)*exp(-p/q)/q"
    constraints = "q > 0"
    bounded = True

    def _valid(self) -> bool:
        return self.q > 0

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        other, p, rate = -margin, torch.sigmoid(margin), -1 / self.q
        constant = math.log(scale) - math.log(self.q)
        return scale * (p * rate).exp(), _bell(other, torch.sigmoid(other), p, factor=rate, constant=constant)

    @cached_property
    def peak(self) -> Peak:
        root = 1 + math.sqrt(1 + 4 * self.q * self.q)
        p, c = 2 * self.q / (2 * self.q + root), root / (2 * self.q + root)
        return Peak(math.log(2 * self.q / root), p * c * math.exp(-p / self.q) / self.q)

    @property
    def max_noise_ratio(self) -> float:
        return math.exp(-1 / self.q)


@register("gce")
@dataclass(frozen=True)
class GCE(Curriculum):
    r"""Generalised cross entropy: CE as q → 0, MAE at q = 1.

    With p = σ(Δ):  l = (1 − p^q)/q,  w = p^q (1 − p),  largest at Δ = log q.
    Zhang & Sabuncu, NeurIPS 2018.

    Example:
        >>> GCE(q=0.7).weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.1987, 0.3078, 0.1091])
    """

    q: float = 0.7

    formula = "(1 - p**q)/q"
    weight_formula = "p**q * (1 - p)"
    constraints = "0 < q <= 1"
    bounded = True

    def _valid(self) -> bool:
        return 0 < self.q <= 1

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        near, tail = _split(margin, 1.0, self.q)
        log_power = -self.q * _softplus(-near)  # of p^q, which is 1 beyond
        return torch.expm1(log_power) * (tail * (-scale / self.q)), scale * log_power.exp() * torch.sigmoid(-margin)

    @cached_property
    def peak(self) -> Peak:
        q = self.q
        return Peak(math.log(q), math.exp(q * math.log(q) - (1 + q) * math.log1p(q)))

    @property
    def max_noise_ratio(self) -> float:
        return float(self.q == 1)


@register("sce")
@dataclass(frozen=True)
class SCE(Curriculum):
    r"""Symmetric cross entropy: a weighted mean of CE and MAE (it is not symmetric).

    With p = σ(Δ):  l = −(1 − q) log p + q (1 − p),  w = (1 − q + q p) (1 − p),
    largest at Δ = log(2q − 1), or −∞ for q ≤ 1/2.
    Wang et al., ICCV 2019.

    Example:
        >>> SCE(q=0.7).weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.3377, 0.3250, 0.1093])
    """

    q: float = 0.7

    formula = "-(1 - q)*log(p) + q*(1 - p)"
    weight_formula = "(1 - q + q*p)*(1 - p)"
    constraints = "0 < q < 1"
    bounded = False

    def _valid(self) -> bool:
        return 0 < self.q < 1

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        other = -margin
        c = torch.sigmoid(other)
        of_ce, of_mae = scale * (1 - self.q), scale * self.q
        loss = (of_ce * _softplus(other)).add(c, alpha=of_mae)
        return loss, torch.addcmul(of_ce * c, torch.sigmoid(margin), c, value=of_mae)

    @cached_property
    def peak(self) -> Peak:
        if self.q <= 0.5:
            return Peak(-math.inf, 1 - self.q)
        return Peak(math.log(2 * self.q - 1), 1 / (4 * self.q))


@register("tce")
@dataclass(frozen=True)
class TCE(Curriculum):
    r"""Taylor cross entropy: the first q terms of −log p around p = 1; MAE at q = 1, CE as q → ∞.

    With p = σ(Δ):  l = Σ_{i=1}^q (1 − p)^i / i,  w = p Σ_{i=1}^q (1 − p)^i = (1 − p) (1 − (1 − p)^q).
    Feng et al., IJCAI 2020.

    Example:
        >>> TCE(q=2).weight(torch.tensor([-2.0, 0.0, 2.0]))
        tensor([0.1975, 0.3750, 0.1175])
    """

    q: int = 2

    formula = "sum((1 - p)**i / i for i in range(1, q + 1))"
    weight_formula = "p*sum((1 - p)**i for i in range(1, q + 1))"
    constraints = "an integer q from 1 to 1000000"  # terms that are added up one by one
    bounded = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "q", int(self.q))

    def _valid(self) -> bool:
        return 1 <= self.q <= 1_000_000 and self.q == int(self.q)

    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        c = torch.sigmoid(-margin)
        loss = c * (scale / self.q)
        for i in range(self.q - 1, 0, -1):
            loss = torch.addcmul(c * (scale / i), loss, c)
        return loss, c * torch.expm1(-self.q * _softplus(margin)) * -scale

    @cached_property
    def peak(self) -> Peak:
        growth = math.log1p(self.q) / self.q  # −log(1 − p) at the peak
        return Peak(math.log(math.expm1(growth)), math.exp(-growth) * self.q / (self.q + 1))

    @property
    def max_noise_ratio(self) -> float:
        return 1 / self.q
