"""AutoLoss: a robust loss that sets itself.

It is MAE with scaled margins, whose weight 4σ(αΔ)σ(−αΔ) is a bell over the margin, α being one over its width. A narrow
bell is robust: where the network is sure that a label is wrong, it has no weight. But a network that knows nothing yet
gives every label a low margin, the lower the more classes there are, and under a narrow bell none would be learned. So

    α = 20·p̄,  but at least 0.05 and at most 0.45,

where p̄ is the mean probability of the given labels over the last steps. Before training p̄ is about 1/K: with up to 44
classes α is 0.45 at once, with more the bell is wider, at 0.05 so wide that all labels weigh alike. As labels become
likelier than chance, it narrows. Wrong labels cannot hurry that, as they are those that do not become likelier; nor
does it go on for ever, so that labels which the network has fitted, right or wrong, change the loss no more.

The numbers were chosen by single runs with fixed scales and other gains: the narrower and the sooner, the more robust,
the wider and the later, the more is learned. results/auto says on which data, and how it does there and elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from curriculoss.batch import Batch
from curriculoss.curricula import MAE, Curriculum, Scaled
from curriculoss.initial import checked_num_classes
from curriculoss.loss import RobustLoss
from curriculoss.margin import mapped, wide

WIDEST, NARROWEST = 0.05, 0.45  # α
GAIN = 20.0  # α over p̄
MEMORY = 0.98  # what a step leaves of the mean so far: about fifty steps count
PEAK = MAE().peak.weight
ENDS_AS = Scaled(MAE(), NARROWEST)  # the curriculum that it comes to


@dataclass(frozen=True)
class Bell:
    """`Scaled(MAE(), alpha)` with unit peak. As a tensor, alpha may change under torch.compile."""

    alpha: Tensor

    def loss(self, margin: Tensor) -> Tensor:
        return (MAE().loss(wide(margin) * self.alpha) / (PEAK * self.alpha)).to(margin.dtype)

    def weight(self, margin: Tensor) -> Tensor:
        return (MAE().weight(wide(margin) * self.alpha) / PEAK).to(margin.dtype)


class AutoLoss(RobustLoss):
    """Drop-in for `nn.CrossEntropyLoss` without a hyperparameter: `AutoLoss(num_classes)(logits, target)`.

    It follows the network while it is trained: when called with gradients enabled, and not after `eval()`. What it has
    seen is in its `state_dict`, to be saved with the model's.
    """

    likelihood: Tensor  # p̄

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
        self.register_buffer("likelihood", torch.tensor(1 / self.num_classes))

    @property
    def curriculum(self) -> Curriculum | None:
        """None that stays the same; see `bell`."""
        return None

    @property
    def bell(self) -> Bell:
        """What it weighs with now."""
        return Bell(wide(self.likelihood).mul(GAIN).clamp(WIDEST, NARROWEST))

    def extra_repr(self) -> str:
        return f"num_classes={self.num_classes}, alpha={float(self.bell.alpha):.3g}, reduction={self.reduction!r}"

    def of_margin(self, margin: Tensor, target: Tensor) -> Tensor:
        self._follow(margin.detach().sigmoid(), target)
        return self.bell.loss(margin)

    def of_batch(self, batch: Batch) -> Tensor:
        target = batch.target
        if target.is_floating_point():
            self._follow((batch.logits.detach().softmax(1) * target).sum(1), batch.label)
        else:
            self._follow(batch.margin.detach().sigmoid(), target)
        return batch.primary(self.bell)

    def _follow(self, likelihood: Tensor, target: Tensor) -> None:
        following = self.training and torch.is_grad_enabled()
        if not following or (not torch.compiler.is_compiling() and mapped()):
            return
        counted = target != self.ignore_index
        mean = likelihood.where(counted, 0.0).sum() / counted.sum()
        mean = mean.where(mean.isfinite(), self.likelihood)  # nothing but ignored samples, or a network that diverged
        self.likelihood.lerp_(mean.to(self.likelihood.dtype), 1 - MEMORY)
