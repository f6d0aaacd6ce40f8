"""Losses with a second term: a primary curriculum on the margin plus a regulariser on the whole softmax output."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from curriculoss.batch import Batch
from curriculoss.curricula import CE, MAE, Curriculum
from curriculoss.curricula.base import check_curriculum, check_number, is_finite
from curriculoss.curricula.families import AUL
from curriculoss.curricula.registry import register
from curriculoss.margin import kind, kind_and_shape, soft_margin


class Parts(NamedTuple):
    """Per sample, a gradient-equivalent form: ∇L = primary_scale·∇primary + regularizer_scale·∇regularizer."""

    primary: Tensor
    regularizer: Tensor
    primary_scale: Tensor
    regularizer_scale: Tensor


def _times(factor: float, value: Tensor) -> Tensor:
    """A term with factor 0 counts nothing, also where it is infinite, as a masked label's cross entropy is."""
    return factor * (value if factor else value.masked_fill(value == math.inf, 0.0))


class Regularized(ABC):
    """A loss with a second term. `primary` and `regularizer` name its parts, `parts` gives them for a batch."""

    formula: ClassVar[str]
    regularizer: ClassVar[str]  # R(s), as a formula
    constraints: ClassVar[str] = ""

    @property
    @abstractmethod
    def primary(self) -> Curriculum:
        """The curriculum of the first term."""

    @property
    def unit_weight(self) -> float:
        """What normalisation divides by: the largest weight of the primary."""
        return self.primary.unit_weight

    @property
    def bounded_below(self) -> bool:
        """Whether there is a bound that the loss cannot fall below; without one, training drives logits to infinity."""
        return True

    @abstractmethod
    def of(self, batch: Batch) -> Tensor:
        """The loss of each sample, on the scale of its paper, 0 where ignored."""

    @abstractmethod
    def _parts(self, batch: Batch) -> Parts: ...

    def per_sample(
        self, logits: Tensor, target: Tensor, *, class_weight: Tensor | None = None, ignore_index: int = -100
    ) -> Tensor:
        """The loss of each sample, on the scale of its paper, 0 where ignored."""
        self._check(logits, target)
        if class_weight is not None and class_weight.shape != logits.shape[1:2]:
            got = kind_and_shape(class_weight)
            raise ValueError(f"{type(self).__name__} expects class_weight of {logits.shape[1]} numbers, got {got}")
        return self.of(Batch(logits, target, class_weight, ignore_index))

    def parts(self, logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Parts:
        """The two terms of each sample and the factors before them."""
        self._check(logits, target)
        return self._parts(Batch(logits, target, None, ignore_index))

    def _check(self, logits: Tensor, target: Tensor) -> None:
        """What a batch takes for granted; the rest it checks itself."""
        for name, value in (("logits", logits), ("target", target)):
            if not isinstance(value, Tensor):
                raise TypeError(f"{type(self).__name__} expects a tensor as {name}, got {kind(value)}")
        if logits.dim() < 2 or (target.is_floating_point() and target.shape != logits.shape):
            raise ValueError(
                f"{type(self).__name__} expects logits (N, K) or (N, K, d1, ...) and class indices, or probabilities "
                f"in the shape of the logits, got logits {tuple(logits.shape)} and target {tuple(target.shape)}"
            )


def _filled(batch: Batch, value: float) -> Tensor:
    return torch.full_like(batch.margin, value).detach()


@register("nce")
@dataclass(frozen=True)
class NCE(Regularized):
    """Normalised cross entropy: CE over its sum over all labels. Its gradient is that of γ·(CE + ε·R) with γ and ε held
    fixed: symmetric, but γ and ε vanish as a sample is learned.

    Ma et al., ICML 2020.
    """

    formula = "log(p[y])/sum(log(p[i]) for i in range(K))"
    regularizer = "sum(log(p[i]) for i in range(K))/K"

    @property
    def primary(self) -> Curriculum:
        return CE()

    def of(self, batch: Batch) -> Tensor:
        cross = batch.primary(CE())
        mean = batch.surprise(batch.uniform(), weighted=False, mean=False)
        lone, masked = mean == 0, cross == math.inf  # no other class: 0/0; no such label: the bound, 1
        cross, mean = cross.masked_fill(lone | masked, 0.0), mean.masked_fill(lone, 1.0)
        value = cross / batch.logits.shape[1] / mean
        return torch.where(masked, batch.weight, value)

    def _parts(self, batch: Batch) -> Parts:
        cross, mean = batch.primary(CE()), batch.surprise(batch.uniform(), mean=False)
        fixed = mean.detach().masked_fill(mean == 0, math.inf)  # ignored, or no other class: both factors are 0
        gamma = 1 / (fixed * batch.logits.shape[1])
        return Parts(cross, -mean, gamma, gamma * cross.detach() / fixed)

    def gradient_bound(self, logits: Tensor, target: Tensor) -> Tensor:
        """2γ(w_CE + ε(1 − 1/K)) ≥ ‖∇_s L‖₁ per sample. (The published 2γ(1 + ε)·w_CE is exceeded by some samples.)"""
        parts = self.parts(logits, target)
        weight = CE().weight(soft_margin(logits, target)).detach()
        return 2 * (parts.primary_scale * weight + parts.regularizer_scale * (1 - 1 / logits.shape[1]))


@register("mse")
@dataclass(frozen=True)
class MSE(Regularized):
    """Mean square error, but for scale and a constant: MAE plus α times the collision probability of the output.

    Ghosh et al., AAAI 2017.
    """

    alpha: float = 0.5

    formula = "1 - p[y] + alpha*sum(p[i]**2 for i in range(K))"
    regularizer = "sum(p[i]**2 for i in range(K))"

    def __post_init__(self) -> None:
        check_number("MSE", "alpha", self.alpha)

    @property
    def primary(self) -> Curriculum:
        return MAE()

    def of(self, batch: Batch) -> Tensor:
        parts = self._parts(batch)
        return parts.primary + self.alpha * parts.regularizer * batch.weight

    def _parts(self, batch: Batch) -> Parts:
        logits, ignored = batch.logits, None
        if not batch.target.is_floating_point():
            ignored = batch.target == batch.ignore_index
            logits = logits.masked_fill(ignored.unsqueeze(1), 0.0)  # padding may be NaN
        p = logits.softmax(1)
        square = (p * p).sum(1)
        square = square if ignored is None else square.masked_fill(ignored, 0.0)
        return Parts(batch.primary(MAE()), square, _filled(batch, 1.0), _filled(batch, self.alpha))


@register("gls")
@dataclass(frozen=True)
class GLS(Regularized):
    """Generalised label smoothing: cross entropy with a share α of every label spread over all classes; with α < 0
    (negative smoothing) the outputs get surer instead, and the loss is unbounded below: it takes weight decay.

    Wei et al., ICML 2022; for α > 0, Szegedy et al., CVPR 2016.
    """

    alpha: float = 0.1

    formula = "-(1 - alpha)*log(p[y]) - alpha*sum(log(p[i]) for i in range(K))/K"
    regularizer = "-sum(log(p[i]) for i in range(K))/K"
    constraints = "alpha <= 1"

    def __post_init__(self) -> None:
        check_number("GLS", "alpha", self.alpha)
        check_number("GLS", "alpha", self.alpha, self.constraints, self.alpha <= 1)

    @property
    def primary(self) -> Curriculum:
        return CE()

    def of(self, batch: Batch) -> Tensor:
        parts = self._parts(batch)
        return _times(1 - self.alpha, parts.primary) + self.alpha * parts.regularizer

    @property
    def bounded_below(self) -> bool:
        return self.alpha >= 0

    def _parts(self, batch: Batch) -> Parts:
        scales = _filled(batch, 1 - self.alpha), _filled(batch, self.alpha)
        return Parts(batch.primary(CE()), batch.surprise(batch.uniform()), *scales)


@register("cr")
@dataclass(frozen=True)
class CR(Regularized):
    """Cross entropy with the confidence regulariser: what peer loss is in expectation, minus β times the cross entropy
    of labels drawn from `prior`, the frequencies of the (noisy) labels; uniform if None.

    With β > 0 it is unbounded below: logits grow for ever, at a rate of β, unless weight decay or early stopping holds
    them. At β = 1, what peer loss has and the paper too, it is linear in the logits: with a uniform prior, their mean
    minus s_y. A small β diverges as slowly as it is small.

    Cheng et al., ICLR 2021.
    """

    beta: float = 1.0
    prior: tuple[float, ...] | None = None

    formula = "-log(p[y]) + beta*sum(prior[i]*log(p[i]) for i in range(K))"
    regularizer = "sum(prior[i]*log(p[i]) for i in range(K))"
    constraints = "prior >= 0 that sums to 1, one number a class"

    def __post_init__(self) -> None:
        check_number("CR", "beta", self.beta)
        if self.prior is not None:
            try:
                prior = torch.as_tensor(self.prior, dtype=torch.float64)
            except (TypeError, ValueError, RuntimeError):  # no numbers
                prior = torch.zeros(())
            if prior.dim() != 1 or not (prior >= 0).all() or not math.isclose(float(prior.sum()), 1, abs_tol=1e-4):
                raise ValueError(f"CR expects {self.constraints}, got prior={self.prior!r}")
            object.__setattr__(self, "prior", tuple((prior / prior.sum()).tolist()))

    @property
    def primary(self) -> Curriculum:
        return CE()

    def of(self, batch: Batch) -> Tensor:
        parts = self._parts(batch)
        return parts.primary + self.beta * parts.regularizer

    @property
    def bounded_below(self) -> bool:
        return self.beta <= 0

    def _parts(self, batch: Batch) -> Parts:
        share = batch.uniform()
        if self.prior is not None:
            if len(self.prior) != len(share):
                raise ValueError(f"CR expects a prior over {len(share)} classes, got {len(self.prior)} numbers")
            share = torch.tensor(self.prior, dtype=share.dtype, device=share.device)
        return Parts(batch.primary(CE()), -batch.surprise(share), _filled(batch, 1.0), _filled(batch, self.beta))


@register("peer")
@dataclass(frozen=True)
class PeerLoss(Regularized):
    """Peer loss: each sample's loss minus α times what it would pay for the label of a random other sample.

    Peers are drawn from the labels of the batch that are not ignored, anew at every call, with `generator` (for which
    torch.compile breaks its graph) or torch's own. Of an unbounded curriculum, such as CE, it is unbounded below if
    α > 0: logits grow for ever, at a rate of α, unless weight decay or early stopping holds them. A bounded one, such
    as `PeerLoss(MAE())`, does not need that.

    Liu & Guo, ICML 2020.
    """

    curriculum: Curriculum = CE()  # noqa: RUF009  shared, but frozen
    alpha: float = 1.0
    generator: torch.Generator | None = None

    formula = "l(p[y]) - alpha*l(p[peer])"
    regularizer = "-l(p[peer])"

    def __post_init__(self) -> None:
        check_number("PeerLoss", "alpha", self.alpha)
        check_curriculum("PeerLoss", self.curriculum)
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise TypeError(f"PeerLoss expects a torch.Generator or None, got generator={self.generator!r}")

    @property
    def primary(self) -> Curriculum:
        return self.curriculum

    def of(self, batch: Batch) -> Tensor:
        parts = self._parts(batch)
        return parts.primary + self.alpha * parts.regularizer

    @property
    def bounded_below(self) -> bool:
        return self.curriculum.bounded or self.alpha <= 0

    def _parts(self, batch: Batch) -> Parts:
        other = Batch(
            batch.logits, self._peers(batch.target, batch.ignore_index), batch.class_weight, batch.ignore_index
        )
        primary, peers = batch.primary(self.curriculum), other.primary(self.curriculum)
        peers = peers.masked_fill(peers == math.inf, 0.0)  # a peer's label may not exist for this sample
        return Parts(primary, -peers, _filled(batch, 1.0), _filled(batch, self.alpha))

    def _peers(self, target: Tensor, ignore_index: int) -> Tensor:
        """Targets of random samples, one for each sample that is not ignored."""
        if target.is_floating_point():
            return target[self._draw(target.shape[:1], target.device) % max(1, len(target))]
        labels = target.flatten()
        ignored = labels == ignore_index
        usable = torch.argsort(ignored.int(), stable=True)  # first the samples that are not ignored
        count = (~ignored).sum().clamp(min=1)  # at least 1, for a batch that is ignored whole
        peers = labels[usable[self._draw(labels.shape, target.device) % count]]
        return torch.where(ignored, labels, peers).view_as(target)

    def _draw(self, shape: torch.Size, device: torch.device) -> Tensor:
        if self.generator is None:  # torch.compile, told of one, be it None, takes no batch of another size
            return torch.randint(2**62, shape, device=device)
        return torch.randint(2**62, shape, generator=self.generator, device=device)


class ActivePassive(Regularized):
    """A weighted sum of losses, on the scale of their papers: `ActivePassive((NCE(), 0.7), (MAE(), 0.3))`.

    Ma et al., ICML 2020.
    """

    regularizer = "those of its terms"
    unit_weight = 1.0

    def __init__(self, *terms: tuple[Curriculum | Regularized, float]) -> None:
        for term in terms:
            if not (isinstance(term, tuple) and len(term) == 2 and isinstance(term[0], Curriculum | Regularized)):
                raise TypeError(f"ActivePassive expects (loss, weight) pairs such as (NCE(), 0.7), got {term!r}")
            check_number("ActivePassive", "weight", term[1])
        if not terms:
            raise ValueError("ActivePassive expects at least one (loss, weight) pair, got none")
        self.terms = terms

    @property
    def formula(self) -> str:  # type: ignore[override]  # that of the others is a constant
        return " + ".join(f"{weight:g}*{type(loss).__name__}" for loss, weight in self.terms)

    def __repr__(self) -> str:
        return f"ActivePassive({', '.join(map(repr, self.terms))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActivePassive) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    @property
    def primary(self) -> Curriculum:
        """That of the last term, the passive one by custom."""
        return self.terms[-1][0].primary

    def of(self, batch: Batch) -> Tensor:
        return torch.stack([_times(weight, loss.of(batch)) for loss, weight in self.terms]).sum(0)

    @property
    def bounded_below(self) -> bool:
        """Where all weights are positive; of a negative one nothing is promised."""
        return all(weight >= 0 and (isinstance(x, Curriculum) or x.bounded_below) for x, weight in self.terms)

    def _parts(self, batch: Batch) -> Parts:
        """All primaries and all regularisers of the terms, added up with their factors."""
        primary, regularizer = _filled(batch, 0.0), _filled(batch, 0.0)
        for loss, weight in self.terms:
            if isinstance(loss, Regularized):
                parts = loss._parts(batch)
                primary = primary + _times(weight, parts.primary_scale * parts.primary)
                regularizer = regularizer + weight * parts.regularizer_scale * parts.regularizer
            else:
                primary = primary + _times(weight, loss.of(batch))
        return Parts(primary, regularizer, _filled(batch, 1.0), _filled(batch, 1.0))


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
