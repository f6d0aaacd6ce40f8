"""AutoLoss: a robust loss that sets itself.

It is MAE with scaled margins, whose weight 4σ(αΔ)σ(−αΔ) is a bell over the margin, α being one over its width. A narrow
bell is robust: where the network is sure that a label is wrong, it has no weight. But a network that knows nothing yet
gives every label a low margin, the lower the more classes there are, and under a narrow bell none would be learned. So
the bell narrows as the given labels become likelier, and the further the more of them are wrong:

    α = 20·p̄,   at most α₀/(1 − ρ)^(0.6 + 0.3·c⁴) and 1.9/|log(p̄/(1 − p̄))|,   at least 0.05.

p̄ is the mean probability of the given labels over the last steps. Before training it is about 1/K: with many classes
the bell starts wide, at 0.05 so wide that all labels weigh alike. Wrong labels cannot hurry it: they are those that do
not become likelier. log(p̄/(1 − p̄)) is the margin of a label as likely as they are on average: its weight is never below
0.45 of the peak. And ρ is the noise rate, seen from ranks: a label that is wrong at random is the lowest of itself and
m others in about one of m + 1 cases, a right one hardly ever once something is known. Labels that are taken for a
similar class do not count as noise here: they cannot be told from hard samples. c = p̄/(1 − ρ), at most 1, is how much
of the right labels is learned: near 1, wrong ones are all that is left to learn. α₀ is 0.42 or, with more than 130
classes, whose margins spread further, 2.25/|E[Δ]|, where E[Δ] is the expected initial margin.

A bell also pushes on what is learned already, and holds nothing back that has gone wrong far enough. So where steps are
too large for the network, its margins run away, to thousands, and nothing weighs any more. Where the mean size of the
margins over the last steps is above 16/α, which it seldom is otherwise, the loss is therefore GCE with q = 4/size for
as long: its weight p^q (1 − p) reaches as far as the margins do, and falls as cross entropy's where labels are learned.
The mean is a geometric one, of 1 + |Δ|: a few labels that are masked by a large number do not make it large.

The numbers were chosen by single runs with fixed scales and other gains: the narrower and the sooner, the more robust,
the wider and the later, the more is learned. results/auto says on which data, and how it does there and elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from curriculoss.batch import Batch
from curriculoss.curricula import MAE, Curriculum, Scaled
from curriculoss.initial import checked_num_classes, expected_initial_margin
from curriculoss.loss import RobustLoss
from curriculoss.margin import call, check_logits, kind_and_shape, mapped, soft_margin, transformed, wide

WIDEST, CLEAN = 0.05, 0.42  # α before anything is known with very many classes, and at last if no label is wrong
SPREAD = 2.25  # that times |E[Δ]|, at most
NARROWING, LATER, LATE = 0.6, 0.3, 4  # the power of 1 − ρ, what comes to it once all is learned, and the power of c
REACH = 1.9  # α times the margin of an average label, at most
GAIN = 20.0  # α over p̄
OTHERS = 4  # m
MOST = 0.95  # of ρ: at first nothing is known, and all labels look wrong
SURE = 0.499  # of p̄, beyond which REACH is no limit any more
MEMORY = 0.98  # what a step leaves of the means so far: about fifty steps count
QUICK = 0.7  # the same of the size of margins, which may double in a few steps
NONE = 1e30  # a margin as large is that of a class that does not exist, and tells nothing about size
AWAY = 16.0  # α times that size, at most
BACK = 4.0  # q times that size, beyond
PEAK = MAE().peak.weight
ENDS_AS = Scaled(MAE(), CLEAN)  # what it comes to with up to 130 classes if labels are clean


@dataclass(frozen=True)
class Bell:
    """`Scaled(MAE(), alpha)` or, where margins have run away, `GCE(q)`, with unit peak. As tensors, alpha and the size
    of the margins may change under torch.compile."""

    alpha: Tensor
    size: Tensor

    @property
    def away(self) -> Tensor:
        return self.alpha * self.size > AWAY

    def loss(self, margin: Tensor) -> Tensor:
        value: Tensor = call(_Loss, margin, self.alpha, self.size)
        return value

    def weight(self, margin: Tensor) -> Tensor:
        exact = wide(margin)
        bell = MAE().weight(exact * self.alpha) / PEAK
        return self._unless_away(bell, lambda q, peak: _gce_weight(exact, q) / peak).to(margin.dtype)

    def _loss(self, margin: Tensor) -> Tensor:
        exact = wide(margin)
        bell = torch.sigmoid(-self.alpha * exact) / (PEAK * self.alpha)
        return self._unless_away(bell, lambda q, peak: _gce_loss(exact, q) / peak).to(margin.dtype)

    def _unless_away(self, bell: Tensor, back: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The bell, or what calls margins back, given q and the largest weight of GCE(q)."""
        away = self.away
        if away.is_cpu and not transformed() and not away:  # elsewhere a look would mean waiting
            return bell
        q = BACK / torch.clamp(self.size, min=BACK)  # GCE has q <= 1; margins that small are not away
        return torch.where(away, back(q, q**q / (1 + q) ** (1 + q)), bell)


def _gce_loss(margin: Tensor, q: Tensor) -> Tensor:
    return torch.expm1(-q * F.softplus(-margin)) / -q


def _gce_weight(margin: Tensor, q: Tensor) -> Tensor:
    return torch.exp(-q * F.softplus(-margin)) * torch.sigmoid(-margin)


class _Loss(Function):
    """The loss of a bell, whose gradient is its weight. (That of `torch.where` takes in the branch not taken.)"""

    generate_vmap_rule = True

    @staticmethod
    def forward(margin: Tensor, alpha: Tensor, size: Tensor) -> Tensor:
        return Bell(alpha, size)._loss(margin)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        margin, alpha, size = ctx.saved_tensors
        return -grad * Bell(alpha, size).weight(margin), None, None


class AutoLoss(RobustLoss):
    """Drop-in for `nn.CrossEntropyLoss` without a hyperparameter: `AutoLoss(num_classes)(logits, target)`.

    It follows the network while it is trained: when called with gradients enabled, and not after `eval()`. A loop that
    weighs samples itself tells it how by `follow`, after `eval()`; so does one that differentiates by `torch.func`,
    inside of which nothing can be remembered. What it has seen is in its `state_dict`, to be saved with the model's.
    `noise_rate` is its guess how many labels are wrong at random, `bell` what it weighs with.
    """

    seen: Tensor  # the means so far: likelihood, lowest, size
    gain: Tensor  # what a step adds to each

    def __init__(
        self,
        num_classes: int,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        class_weight: Tensor | None = None,
    ) -> None:
        super().__init__(  # not normalised: the bell has unit peak
            ENDS_AS, reduction=reduction, ignore_index=ignore_index, class_weight=class_weight, normalize=False
        )
        self.num_classes = checked_num_classes("AutoLoss", num_classes)
        self.others = min(OTHERS, self.num_classes - 1)
        self.clean = min(CLEAN, SPREAD / max(SPREAD, -expected_initial_margin(self.num_classes)))
        self.register_buffer("seen", torch.tensor([1 / self.num_classes, 1 / (1 + self.others), 0.0]))
        self.register_buffer("gain", torch.tensor([1 - MEMORY, 1 - MEMORY, 1 - QUICK]), persistent=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("loss", "normalize") and name in self.__dict__:
            raise AttributeError(f"AutoLoss sets its loss itself: for a {name} of your choice take RobustLoss")
        super().__setattr__(name, value)

    @property
    def curriculum(self) -> Curriculum | None:
        """None that stays the same; see `bell`."""
        return None

    @property
    def likelihood(self) -> Tensor:
        """p̄."""
        return self.seen[0]

    @property
    def lowest(self) -> Tensor:
        """The share of labels that are lower than m others."""
        return self.seen[1]

    @property
    def size(self) -> Tensor:
        """Of margins."""
        return self.seen[2]

    @property
    def noise_rate(self) -> Tensor:
        """Of m others, m/(K − 1) are the true label on average, which is not lower."""
        rate = wide(self.lowest) * (1 + self.others - self.others / (self.num_classes - 1))
        return rate.clamp(max=MOST)  # at first it is about 1

    @property
    def bell(self) -> Bell:
        """What it weighs with now."""
        p = wide(self.likelihood)
        right = 1 - self.noise_rate
        learned = (p / right).clamp(max=1.0)  # more if wrong labels are learned, too
        robust = self.clean / right ** (NARROWING + LATER * learned**LATE)
        learning = -REACH / p.clamp(max=SURE).logit()  # labels likelier than a half have a margin above 0
        alpha = torch.minimum(GAIN * p, torch.minimum(robust, learning))
        return Bell(alpha.clamp(min=WIDEST), wide(self.size))  # p̄ may start at 1e-5

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, alpha={float(self.bell.alpha):.3g}, reduction={self.reduction!r}"

    def of_margin(self, margin: Tensor, target: Tensor) -> Tensor:
        """Without logits there are no ranks to see: no label counts as wrong at random, and the bell stays wider."""
        self._follow(margin.detach(), margin.detach().sigmoid(), target, None)
        return self.bell.loss(margin)

    def of_batch(self, batch: Batch) -> Tensor:
        target, logits = batch.target.detach(), batch.logits.detach()
        self._check_classes(logits.shape[1])
        if target.is_floating_point():
            likelihood, target = (logits.softmax(1) * target).sum(1), target.argmax(1)
            self._follow(soft_margin(logits, target), likelihood, target, logits)
        else:
            self._follow(batch.margin.detach(), batch.margin.detach().sigmoid(), target, logits)
        return batch.primary(self.bell)

    def follow(self, logits: Tensor, target: Tensor, sample_weight: Tensor) -> None:
        """See a batch of class indices in which samples count as told, without a loss of it."""
        check_logits(logits, target, "AutoLoss")
        if not isinstance(sample_weight, Tensor) or sample_weight.shape != target.shape:
            got = kind_and_shape(sample_weight)
            raise ValueError(f"AutoLoss expects a weight of each sample, in the shape of the target, got {got}")
        if logits.dim() == 1:
            logits, target, sample_weight = logits.unsqueeze(0), target.unsqueeze(0), sample_weight.unsqueeze(0)
        self._check_classes(logits.shape[1])
        logits = logits.detach()
        margin = soft_margin(logits, target, ignore_index=self.ignore_index)
        self._see(margin, margin.sigmoid(), target, logits, sample_weight.detach().to(margin.dtype))

    def _follow(self, margin: Tensor, likelihood: Tensor, target: Tensor, logits: Tensor | None) -> None:
        following = self.training and torch.is_grad_enabled()
        if following and (torch.compiler.is_compiling() or not mapped()):
            self._see(margin, likelihood, target, logits, torch.ones_like(margin))

    def _see(
        self, margin: Tensor, likelihood: Tensor, target: Tensor, logits: Tensor | None, sample_weight: Tensor
    ) -> None:
        counted = (target != self.ignore_index) & (sample_weight > 0)
        weight = sample_weight.where(counted, 0.0)
        lowest = torch.zeros_like(likelihood) if logits is None else self._is_lowest(logits, target.where(counted, 0))
        size = margin.abs().log1p().where(margin.abs() < NONE, 0.0)
        each = torch.stack([likelihood, lowest.to(likelihood.dtype), size]).where(counted, 0.0) * weight
        chance, rank, size = each.flatten(1).sum(1).div(weight.sum()).unbind()
        means = torch.stack([chance, rank, size.expm1()])
        # In half precision, a size may be more than the buffer holds.
        means = means.clamp(max=min(torch.finfo(x.dtype).max for x in (means, self.seen)))
        sound = means.isfinite().all()  # else it diverged, or nothing counts
        self.seen.lerp_(means.to(self.seen.dtype).where(sound, self.seen), self.gain)

    def _check_classes(self, num_classes: int) -> None:
        if num_classes != self.num_classes:
            raise ValueError(f"AutoLoss expects logits of {self.num_classes} classes, got {num_classes}")
        super()._check_classes(num_classes)

    def _is_lowest(self, logits: Tensor, target: Tensor) -> Tensor:
        """Of each sample, whether m other labels are all higher: other ones from sample to sample, without chance."""
        span = self.num_classes - 1
        place = torch.arange(target.numel(), device=target.device).reshape(target.shape).unsqueeze(1)
        step = torch.arange(self.others, device=target.device).mul(span // self.others)
        step = step.reshape(1, -1, *[1] * (target.dim() - 1))
        label = target.unsqueeze(1)
        other = (label + 1 + (place + step) % span) % self.num_classes
        return (logits.gather(1, label) < logits.gather(1, other)).all(1).to(logits.dtype)
