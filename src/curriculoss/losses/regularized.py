"""Losses with a second term: a primary curriculum on the margin plus a regulariser on the whole softmax output."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from curriculoss._checks import check_number, is_finite
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.losses.base import Curriculum, Loss, Parts, check_curriculum
from curriculoss.losses.batch import Batch
from curriculoss.losses.families import AUL, CE, MAE
from curriculoss.losses.registry import register
from curriculoss.losses.surprise import surprise


def _times(factor: float, value: Tensor) -> Tensor:
    """A term with factor 0 counts nothing, also where it is infinite, as a masked label's cross entropy is."""
    return factor * (value if factor else value.masked_fill(value == math.inf, 0.0))


class Regularized(Loss):
    """A sum of a curriculum and a regulariser with constant factors."""

    @property
    @abstractmethod
    def _factors(self) -> tuple[float, float]:
        """The factors of the curriculum and of the regulariser."""

    @abstractmethod
    def _regularizer(self, batch: Batch) -> Tensor:
        """R(s) of each sample, weighed by class, 0 where ignored."""

    def of(self, batch: Batch) -> Tensor:
        own, other = self._factors
        return _times(own, batch.primary(self.primary)) + other * self._regularizer(batch)

    def _parts(self, batch: Batch) -> Parts:
        own, other = (torch.full_like(batch.margin, factor).detach() for factor in self._factors)
        return Parts(batch.primary(self.primary), self._regularizer(batch), own, other)


def _soft_label_weights(
    logits: Tensor, target: Tensor, factors: tuple[float, float], prior: tuple[float, ...] | None = None
) -> Tensor:
    """Exact weights of Σ_i t_i (−log p_i), whose gradient is p·Σt − t, where t gives the first factor to the label and
    spreads the second over all classes that exist, by their prior (or evenly)."""
    (own, spread), p = factors, logits.softmax(1)
    share = p.new_ones(p.shape[1]) if prior is None else p.new_tensor(prior)
    share = share.view(-1, *[1] * (p.dim() - 2)) * (logits != -math.inf)
    total = share.sum(1, keepdim=True)
    share = share * (spread / total)
    gradient = p * (own + spread) - share
    return gradient.scatter_add_(1, target.unsqueeze(1), torch.full_like(total, -own)).abs_().sum(1) / 2


@register("nce")
@dataclass(frozen=True)
class NCE(Loss):
    """Normalised cross entropy: CE divided by its sum over all labels.

    Its gradient is that of γ·(CE + ε·R) with γ and ε held fixed: symmetric, but γ and ε vanish as a sample is learned.

    Ma et al., ICML 2020.

    Example:
        >>> import torch
        >>> from curriculoss import NCE
        >>> NCE()(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.2500)
    """

    formula = "log(p[y])/sum(log(p[i]) for i in range(K))"
    regularizer = "sum(log(p[i]) for i in range(K))/K"
    primary = CE()

    def of(self, batch: Batch) -> Tensor:
        cross = batch.primary(CE())
        mean = surprise(batch, batch.uniform(), weighted=False, mean=False)
        lone, masked = mean == 0, cross == math.inf  # no other class: 0/0; no such label: the bound, 1
        cross, mean = cross.masked_fill(lone | masked, 0.0), mean.masked_fill(lone, 1.0)
        return torch.where(masked, batch.weight, cross / batch.logits.shape[1] / mean)

    def _parts(self, batch: Batch) -> Parts:
        cross, mean = batch.primary(CE()), surprise(batch, batch.uniform(), mean=False)
        fixed = mean.detach().masked_fill(mean == 0, math.inf)  # ignored, or no other class: both factors are 0
        gamma = 1 / (fixed * batch.logits.shape[1])
        return Parts(cross, -mean, gamma, gamma * cross.detach() / fixed)

    def weights(self, margin: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        """γ(w_CE + ε(1 − 1/K)) ≥ ‖∇_s L‖₁/2, a tight bound. (The published γ(1 + ε)·w_CE is exceeded by some samples.)

        1/γ = Σ_i −log p_i = Σ_i (CE + s_y − s_i) over the classes that exist.
        """
        num_classes, logits = logits.shape[1], logits.to(margin.dtype)
        gap = logits.gather(1, target.unsqueeze(1)) - logits
        cross = CE().loss(margin)
        total = (gap + cross.unsqueeze(1)).masked_fill(logits == -math.inf, 0.0).sum(1)
        # No other class, or no such label: both factors are 0.
        total = total.masked_fill((margin == math.inf) | (margin == -math.inf), math.inf)
        epsilon = cross.masked_fill(margin == -math.inf, 0.0) * num_classes / total
        return (CE().weight(margin) + epsilon * (1 - 1 / num_classes)) / total


@register("mse")
@dataclass(frozen=True)
class MSE(Regularized):
    """Mean square error up to scale and a constant: MAE plus α times the collision probability of the output.

    Ghosh et al., AAAI 2017.

    Example:
        >>> import torch
        >>> from curriculoss import MSE
        >>> MSE()(torch.zeros(1, 4), torch.tensor([0]), normalize=False)
        tensor(0.8750)
    """

    alpha: float = 0.5

    formula = "1 - p[y] + alpha*sum(p[i]**2 for i in range(K))"
    regularizer = "sum(p[i]**2 for i in range(K))"
    primary = MAE()

    def __post_init__(self) -> None:
        check_number("MSE", "alpha", self.alpha)

    @property
    def _factors(self) -> tuple[float, float]:
        return 1.0, self.alpha

    def _regularizer(self, batch: Batch) -> Tensor:
        if batch.target.is_floating_point():
            return batch.logits.softmax(1).square().sum(1) * batch.weight
        ignored = batch.target == batch.ignore_index
        p = batch.logits.masked_fill(ignored.unsqueeze(1), 0.0).softmax(1)  # padding may be NaN
        return p.square().sum(1).masked_fill(ignored, 0.0) * batch.weight

    def weights(self, margin: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        """Exact, from ∂L/∂s_i = p_i·(p_y + 2α(p_i − Σ p²)) − 𝟙(i = y)·p_y."""
        p, label = logits.to(margin.dtype).softmax(1), target.unsqueeze(1)
        own = p.gather(1, label)
        gradient = p * (own + 2 * self.alpha * (p - p.square().sum(1, keepdim=True)))
        return gradient.scatter_add_(1, label, -own).abs_().sum(1) / 2


@register("gls")
@dataclass(frozen=True)
class GLS(Regularized):
    """Generalised label smoothing: cross entropy with a share α of every label spread over all classes.

    With α < 0 (negative smoothing) outputs become more confident instead. The loss is then unbounded below and needs
    weight decay.

    Wei et al., ICML 2022; for α > 0, Szegedy et al., CVPR 2016.

    Example:
        >>> import torch
        >>> from curriculoss import GLS
        >>> GLS(0.1)(torch.zeros(1, 4), torch.tensor([0]))
        tensor(1.3863)
    """

    alpha: float = 0.1

    formula = "-(1 - alpha)*log(p[y]) - alpha*sum(log(p[i]) for i in range(K))/K"
    regularizer = "-sum(log(p[i]) for i in range(K))/K"
    constraints = "alpha <= 1"
    primary = CE()

    def __post_init__(self) -> None:
        check_number("GLS", "alpha", self.alpha, self.constraints, is_finite(self.alpha) and self.alpha <= 1)

    @property
    def bounded_below(self) -> bool:
        return self.alpha >= 0

    @property
    def _factors(self) -> tuple[float, float]:
        return 1 - self.alpha, self.alpha

    def _regularizer(self, batch: Batch) -> Tensor:
        return surprise(batch, batch.uniform())

    def weights(self, margin: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        return _soft_label_weights(logits.to(margin.dtype), target, self._factors)


@register("cr")
@dataclass(frozen=True)
class CR(Regularized):
    """Cross entropy with the confidence regulariser, which is the expectation of peer loss.

    It subtracts β times the cross entropy of labels drawn from `prior`, the frequencies of the (noisy) labels; uniform
    if None. With β > 0 it is unbounded below: logits grow for ever, at a rate proportional to β, unless weight decay or
    early stopping holds them. At β = 1, the value of peer loss and of the paper, it is linear in the logits: with a
    uniform prior, their mean minus s_y.

    Cheng et al., ICLR 2021.

    Example:
        >>> import torch
        >>> from curriculoss import CR
        >>> CR()(torch.tensor([[3.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor(-2.)
    """

    beta: float = 1.0
    prior: tuple[float, ...] | None = None

    formula = "-log(p[y]) + beta*sum(prior[i]*log(p[i]) for i in range(K))"
    regularizer = "sum(prior[i]*log(p[i]) for i in range(K))"
    constraints = "prior >= 0 that sums to 1, one number per class"
    primary = CE()

    def __post_init__(self) -> None:
        check_number("CR", "beta", self.beta)
        if self.prior is not None:
            try:
                prior = torch.as_tensor(self.prior, dtype=torch.float64)
            except (TypeError, ValueError, RuntimeError):  # no numbers
                prior = torch.zeros(())
            if prior.dim() != 1 or not (prior >= 0).all() or not math.isclose(float(prior.sum()), 1, abs_tol=1e-4):
                raise InvalidValueError(f"CR expects {self.constraints}, got prior={self.prior!r}")
            object.__setattr__(self, "prior", tuple((prior / prior.sum()).tolist()))

    @property
    def bounded_below(self) -> bool:
        return self.beta <= 0

    @property
    def _factors(self) -> tuple[float, float]:
        return 1.0, self.beta

    def _regularizer(self, batch: Batch) -> Tensor:
        share = batch.uniform()
        if self.prior is not None:
            if len(self.prior) != len(share):
                raise InvalidValueError(f"CR expects a prior over {len(share)} classes, got {len(self.prior)} numbers")
            share = torch.tensor(self.prior, dtype=share.dtype, device=share.device)
        return -surprise(batch, share)

    def weights(self, margin: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        return _soft_label_weights(logits.to(margin.dtype), target, (1.0, -self.beta), self.prior)


@register("peer")
@dataclass(frozen=True)
class PeerLoss(Regularized):
    """Peer loss: the loss of each sample minus α times its loss with the label of a random other sample.

    Peers are drawn from the labels of the batch that are not ignored, anew at every call, with `generator` (for which
    torch.compile breaks its graph) or torch's own. With an unbounded curriculum such as CE and α > 0 it is unbounded
    below: logits grow for ever, at a rate proportional to α, unless weight decay or early stopping holds them. A
    bounded one, as in `PeerLoss(MAE())`, does not need that.

    Liu & Guo, ICML 2020.

    Example:
        >>> import torch
        >>> from curriculoss import MAE, PeerLoss
        >>> loss = PeerLoss(MAE(), generator=torch.Generator().manual_seed(0))
        >>> loss(torch.eye(3), torch.arange(3)) < 0  # labels that fit better than those of others
        tensor(True)
    """

    base: Curriculum = CE()  # noqa: RUF009  shared, but frozen
    alpha: float = 1.0
    generator: torch.Generator | None = None

    formula = "l(p[y]) - alpha*l(p[peer])"
    regularizer = "-l(p[peer])"
    by_row = False  # peers are drawn from the whole batch

    def __post_init__(self) -> None:
        check_number("PeerLoss", "alpha", self.alpha)
        check_curriculum("PeerLoss", self.base)
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise InvalidTypeError(f"PeerLoss expects a torch.Generator or None, got generator={self.generator!r}")

    @property
    def primary(self) -> Curriculum:
        return self.base

    @property
    def bounded_below(self) -> bool:
        return self.base.bounded or self.alpha <= 0

    @property
    def _factors(self) -> tuple[float, float]:
        return 1.0, self.alpha

    def _regularizer(self, batch: Batch) -> Tensor:
        peers = self._peers(batch.target, batch.ignore_index)
        loss = Batch(batch.logits, peers, batch.class_weight, batch.ignore_index).primary(self.base)
        return -loss.masked_fill(loss == math.inf, 0.0)  # a peer's label may not exist for this sample

    def weights(self, margin: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        """Weights of its curriculum: the step's peers are not known, and drawing others would change the training."""
        return self.base.weight(margin)

    def _peers(self, target: Tensor, ignore_index: int) -> Tensor:
        """Targets of random samples, one for each sample that is not ignored."""
        if target.is_floating_point():
            return target[self._draw(target.shape[:1], target.device) % max(1, len(target))]
        labels = target.flatten()
        ignored = labels == ignore_index
        usable = torch.argsort(ignored.int(), stable=True)  # first the samples that are not ignored
        count = (~ignored).sum().clamp(min=1)  # at least 1, for a batch of ignored samples alone
        peers = labels[usable[self._draw(labels.shape, target.device) % count]]
        return torch.where(ignored, labels, peers).view_as(target)

    def _draw(self, shape: torch.Size, device: torch.device) -> Tensor:
        if self.generator is None:  # with generator=None, torch.compile would take no batch of another size
            return torch.randint(2**62, shape, device=device)
        return torch.randint(2**62, shape, generator=self.generator, device=device)


@dataclass(frozen=True, init=False, repr=False)
class ActivePassive(Loss):
    """A weighted sum of losses on the scale of their papers: `ActivePassive((NCE(), 0.7), (MAE(), 0.3))`.

    Ma et al., ICML 2020.

    Example:
        >>> import torch
        >>> from curriculoss import MAE, NCE, ActivePassive
        >>> ActivePassive((NCE(), 0.7), (MAE(), 0.3))(torch.zeros(1, 4), torch.tensor([0]))
        tensor(0.4000)
    """

    terms: tuple[tuple[Loss, float], ...]

    regularizer: ClassVar[str] = "those of its terms"
    unit_weight = 1.0

    def __init__(self, *terms: tuple[Loss, float]) -> None:
        for term in terms:
            if not (isinstance(term, tuple) and len(term) == 2 and isinstance(term[0], Loss)):
                raise InvalidTypeError(f"ActivePassive expects (loss, weight) pairs such as (NCE(), 0.7), got {term!r}")
            check_number("ActivePassive", "weight", term[1])
        if not terms:
            raise InvalidValueError("ActivePassive expects at least one (loss, weight) pair, got none")
        object.__setattr__(self, "terms", terms)

    @property
    def formula(self) -> str:  # type: ignore[override]  # a constant in the other losses
        return " + ".join(f"{weight:g}*{type(loss).__name__}" for loss, weight in self.terms)

    def __repr__(self) -> str:
        return f"ActivePassive({', '.join(map(repr, self.terms))})"

    @property
    def primary(self) -> Curriculum:
        """The curriculum of the last term, by custom the passive one."""
        return self.terms[-1][0].primary

    @property
    def bounded_below(self) -> bool:
        """Whether all weights are positive and all terms bounded; with a negative weight nothing is promised."""
        return all(weight >= 0 and loss.bounded_below for loss, weight in self.terms)

    @property
    def by_row(self) -> bool:
        return all(loss.by_row for loss, _ in self.terms)

    def of(self, batch: Batch) -> Tensor:
        return torch.stack([_times(weight, loss.of(batch)) for loss, weight in self.terms]).sum(0)

    def _parts(self, batch: Batch) -> Parts:
        """All primaries and all regularisers of the terms, added up with their factors."""
        all_parts = [(loss._parts(batch), weight) for loss, weight in self.terms]
        primary = torch.stack([_times(weight, x.primary_scale * x.primary) for x, weight in all_parts]).sum(0)
        other = torch.stack([weight * x.regularizer_scale * x.regularizer for x, weight in all_parts]).sum(0)
        one = torch.ones_like(batch.margin).detach()
        return Parts(primary, other, one, one)

    def weights(self, margin: Tensor, logits: Tensor, target: Tensor) -> Tensor:
        """A bound: the weights of the terms, added up with the sizes of their coefficients."""
        return torch.stack([abs(factor) * loss.weights(margin, logits, target) for loss, factor in self.terms]).sum(0)


@register("nce+mae")
def nce_mae(q: float = 0.3, unit: float = 1.0) -> ActivePassive:
    """(1 − q)·NCE + q·unit·MAE; the default q is what the paper tuned on CIFAR-100, unit=4 gives MAE unit weight."""
    check_number("nce+mae", "q", q, "0 < q < 1", is_finite(q) and 0 < q < 1)
    check_number("nce+mae", "unit", unit, "unit > 0", is_finite(unit) and unit > 0)
    return ActivePassive((NCE(), 1 - q), (MAE(), q * unit))


@register("nce+aul")
def nce_aul(alpha: float = 1.0, beta: float = 4.0, a: float = 6.3, q: float = 1.5) -> ActivePassive:
    """α·NCE + β·AUL(a, q); the defaults are those of Zhou et al. for CIFAR-10."""
    return ActivePassive((NCE(), alpha), (AUL(a, q), beta))
