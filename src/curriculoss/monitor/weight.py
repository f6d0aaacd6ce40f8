"""The weight of each sample under any loss of the library, in a few passes over the logits and without waiting.

The weight of a sample is ‖∇_s L‖₁/2, which is w(Δ) for a loss of the standard form. What is measured for the others:

| loss             | weight                                                                                |
|------------------|---------------------------------------------------------------------------------------|
| `NCE`            | its bound γ(w_CE + ε(1 − 1/K)), never below the truth, and tight                      |
| `MSE, GLS, CR`   | exactly that, from the gradient written out                                           |
| `ActivePassive`  | the weights of its terms, added up with the sizes of their coefficients: a bound, too |
| `PeerLoss`       | that of its curriculum: the peers of the step are not known, and drawing others would |
|                  | disturb the random numbers of the training                                            |
| any other        | exactly that, by automatic differentiation, which takes as long as the loss itself    |
"""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import Tensor

from curriculoss.curricula import CE, Curriculum
from curriculoss.margin import accurate
from curriculoss.regularized import CR, GLS, MSE, NCE, ActivePassive, PeerLoss, Regularized


@singledispatch
def sample_weight(loss: Curriculum | Regularized, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    """The weight of each sample on the textbook scale of `loss`, see the table above; `margin` is that of the logits.

    No target may be ignored.
    """
    raise TypeError(f"sample_weight expects a loss such as MAE() or NCE(), got {loss!r}")


@sample_weight.register
def _(loss: Curriculum, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    return loss.weight(margin)


@sample_weight.register
def _(loss: Regularized, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    with torch.enable_grad():
        variable = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss.per_sample(variable, target).sum(), variable)
    return gradient.abs().sum(1) / 2


@sample_weight.register
def _(loss: NCE, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    """`NCE.gradient_bound` without its autograd: 1/γ = Σ_i −log p_i = Σ_i (CE + s_y − s_i) over classes that exist."""
    num_classes = logits.shape[1]
    logits = logits.to(margin.dtype)
    gap = logits.gather(1, target.unsqueeze(1)) - logits
    cross = CE().loss(margin)
    total = (gap + cross.unsqueeze(1)).masked_fill(logits == -math.inf, 0.0).sum(1)
    # No other class, or no such label: both factors are 0.
    total = total.masked_fill((margin == math.inf) | (margin == -math.inf), math.inf)
    epsilon = cross.masked_fill(margin == -math.inf, 0.0) * num_classes / total
    return (CE().weight(margin) + epsilon * (1 - 1 / num_classes)) / total


@sample_weight.register
def _(loss: MSE, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    """∂L/∂s_i = p_i·(p_y + 2α(p_i − Σ p²)) − 𝟙(i = y)·p_y."""
    p, label = _softmax(logits), target.unsqueeze(1)
    own = p.gather(1, label)
    gradient = p * (own + 2 * loss.alpha * (p - p.square().sum(1, keepdim=True)))
    return gradient.scatter_add_(1, label, -own).abs_().sum(1) / 2


@sample_weight.register
def _(loss: GLS, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    return _of_soft_label(logits, target, 1 - loss.alpha, loss.alpha, None)


@sample_weight.register
def _(loss: CR, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    return _of_soft_label(logits, target, 1.0, -loss.beta, loss.prior)


@sample_weight.register
def _(loss: PeerLoss, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    return sample_weight(loss.primary, logits, target, margin)


@sample_weight.register
def _(loss: ActivePassive, logits: Tensor, target: Tensor, margin: Tensor) -> Tensor:
    terms = [abs(factor) * sample_weight(term, logits, target, margin) for term, factor in loss.terms]
    return torch.stack(terms).sum(0)


def _softmax(logits: Tensor) -> Tensor:
    return logits.to(accurate(logits.dtype)).softmax(1)


def _of_soft_label(
    logits: Tensor, target: Tensor, own: float, spread: float, prior: tuple[float, ...] | None
) -> Tensor:
    """Of Σ_i t_i (−log p_i), whose gradient is p·Σt − t, where t gives `own` to the label and spreads `spread` over all
    classes that exist, by their prior (or evenly)."""
    p = _softmax(logits)
    share = p.new_ones(p.shape[1]) if prior is None else p.new_tensor(prior)
    share = share.view(-1, *[1] * (p.dim() - 2)) * (logits != -math.inf)
    total = share.sum(1, keepdim=True)
    share = share * (spread / total)
    gradient = p * (own + spread) - share
    return gradient.scatter_add_(1, target.unsqueeze(1), torch.full_like(total, -own)).abs_().sum(1) / 2
