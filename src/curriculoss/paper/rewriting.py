"""Gradients of each loss as the paper prints it, in terms of p, beside those of its rewritten form.

The package's losses have gradients −w·∇Δ by construction, so the printed forms are written out here for autograd.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from curriculoss.losses import AEL, AGCE, AUL, CE, FL, GCE, MAE, SCE, TCE, Curriculum
from curriculoss.losses.regularized import NCE
from curriculoss.margin import soft_margin

CLASSES = (10, 100)
DRAWN = 1_000

IN_P: Mapping[Curriculum, Callable[[Tensor], Tensor]] = {
    CE(): lambda p: -p.log(),
    FL(2.0): lambda p: -((1 - p) ** 2) * p.log(),
    MAE(): lambda p: 1 - p,
    AUL(2.0, 3.0): lambda p: ((2 - p) ** 3 - 1) / 3,
    AGCE(3.0, 4.0): lambda p: (4**4 - (3 + p) ** 4) / 4,
    AEL(2.5): lambda p: (-p / 2.5).exp(),
    GCE(0.7): lambda p: (1 - p**0.7) / 0.7,
    SCE(0.7): lambda p: -0.3 * p.log() + 0.7 * (1 - p),
    TCE(3): lambda p: (1 - p) + (1 - p) ** 2 / 2 + (1 - p) ** 3 / 3,
}


Form = Callable[[Tensor, Tensor], Tensor]


def relative_errors() -> dict[str, Tensor]:
    """By loss, relative errors of the gradients of random samples, in norm 1 and double precision."""
    found = {"NCE": _errors(_normalised, _regularised)}
    for loss, formula in IN_P.items():
        found[type(loss).__name__] = _errors(partial(_in_p, formula), partial(_weight_times_margin, loss))
    return found


def _errors(printed: Form, rewritten: Form) -> Tensor:
    found = []
    for classes in CLASSES:
        generator = torch.Generator().manual_seed(classes)
        logits = torch.randn(DRAWN, classes, dtype=torch.float64, generator=generator).mul_(2).requires_grad_()
        target = torch.randint(classes, (DRAWN,), generator=generator)
        losses = (form(logits, target).sum() for form in (printed, rewritten))
        one, other = (torch.autograd.grad(loss, logits)[0] for loss in losses)
        found.append((one - other).abs().sum(1) / one.abs().sum(1))
    return torch.cat(found)


def _in_p(formula: Callable[[Tensor], Tensor], logits: Tensor, target: Tensor) -> Tensor:
    return formula(logits.softmax(1).gather(1, target.unsqueeze(1)))


def _weight_times_margin(loss: Curriculum, logits: Tensor, target: Tensor) -> Tensor:
    margin = soft_margin(logits, target)
    return -loss.weight(margin.detach()) * margin


def _normalised(logits: Tensor, target: Tensor) -> Tensor:
    surprise = -logits.log_softmax(1)
    return surprise.gather(1, target.unsqueeze(1)).squeeze(1) / surprise.sum(1)


def _regularised(logits: Tensor, target: Tensor) -> Tensor:
    parts = NCE().parts(logits, target)
    return parts.primary_scale * parts.primary + parts.regularizer_scale * parts.regularizer
