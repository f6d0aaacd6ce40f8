"""RobustLoss: a loss, its reduction and its normalisation, with the conventions of `F.cross_entropy`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from curriculoss.batch import Batch, weight_of
from curriculoss.curricula import Curriculum
from curriculoss.linear import linear_soft_margin
from curriculoss.margin import check_logits, standard_loss, wide
from curriculoss.regularized import Regularized

REDUCTIONS = ("mean", "sum", "none")


class RobustLoss(nn.Module):
    """Drop-in for `nn.CrossEntropyLoss`: `RobustLoss(MAE())(logits, target)`.

    Logits (N, K), (N, K, d1, ...) or (K,); targets are class indices of that shape without K, or probabilities of the
    logits' shape, for which the loss is Σ_i t_i·l(Δ_i). `reduction`, `ignore_index` and `class_weight` are those of
    `F.cross_entropy`; "mean" divides by the weights of the samples that count. With `normalize` a loss is divided by
    the largest weight of its curriculum, as the paper trains, so that a learning rate tuned for CE carries over; losses
    with a second term are divided by that of their primary (CE's is 1), and sums stay on the scale of their papers.
    """

    class_weight: Tensor | None

    def __init__(
        self,
        loss: Curriculum | Regularized,
        *,
        reduction: str = "mean",
        ignore_index: int = -100,
        class_weight: Tensor | None = None,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(loss, Curriculum | Regularized):
            raise TypeError(f"RobustLoss expects a loss such as MAE() or get('mae'), got {loss!r}")
        if reduction not in REDUCTIONS:
            raise ValueError(f"RobustLoss expects reduction 'mean', 'sum' or 'none', got {reduction!r}")
        if class_weight is not None:
            class_weight = torch.as_tensor(class_weight)
            if class_weight.dim() != 1 or not class_weight.is_floating_point():
                raise ValueError(f"RobustLoss expects class_weight as K floating-point numbers, got {class_weight}")
        self.loss = loss
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.normalize = normalize
        self.scale = 1 / loss.unit_weight if normalize else 1.0
        self.register_buffer("class_weight", class_weight)

    def extra_repr(self) -> str:
        return f"{self.loss}, reduction={self.reduction!r}, normalize={self.normalize}"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        self._check(logits, target)
        if logits.dim() == 1:
            value: Tensor = self(logits.unsqueeze(0), target.unsqueeze(0))
            return value.squeeze(0) if self.reduction == "none" else value
        if isinstance(self.loss, Curriculum) and self.class_weight is None and not target.is_floating_point():
            value = standard_loss(
                logits, target, self.loss, scale=self.scale, ignore_index=self.ignore_index, reduction=self.reduction
            )
        else:
            batch = Batch(logits, target, self.class_weight, self.ignore_index)
            value = self._reduced(self.loss.of(batch) * self.scale, target)
        return _in_dtype_of(logits, value)

    def linear(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        """The loss of `F.linear(hidden, weight, bias)` without ever storing those logits; standard-form losses only."""
        if not isinstance(self.loss, Curriculum):
            raise TypeError(f"linear expects a standard-form loss such as MAE(), got {self.loss!r}")
        self._check_classes(len(weight))
        margin = linear_soft_margin(hidden, weight, bias, target, ignore_index=self.ignore_index)
        value = self.loss.loss(margin) * self.scale
        value = value * weight_of(target, self.class_weight, self.ignore_index, value.dtype)
        return _in_dtype_of(hidden, self._reduced(value, target))

    def _reduced(self, value: Tensor, target: Tensor) -> Tensor:
        """Losses that already carry their weights. Summed in float64: a sum may overflow where the mean does not."""
        if self.reduction == "none":
            return value
        total = wide(value).sum()
        if self.reduction == "mean":
            total = total / weight_of(target, self.class_weight, self.ignore_index, total.dtype).sum()
        return total.to(value.dtype)

    def _check(self, logits: Tensor, target: Tensor) -> None:
        if isinstance(target, Tensor) and target.is_floating_point() and target.shape == logits.shape and logits.dim():
            label = logits.new_zeros(logits.shape[:1] + logits.shape[2:] if logits.dim() > 1 else (), dtype=torch.int64)
            check_logits(logits, label, "RobustLoss")
        else:
            check_logits(logits, target, "RobustLoss")
        self._check_classes(logits.shape[min(1, logits.dim() - 1)])

    def _check_classes(self, num_classes: int) -> None:
        if self.class_weight is not None and len(self.class_weight) != num_classes:
            raise ValueError(
                f"RobustLoss expects {len(self.class_weight)} classes, as many as class_weight has, got {num_classes}"
            )


def _in_dtype_of(given: Tensor, value: Tensor) -> Tensor:
    """What came in half precision goes out so, but for autocast, which runs F.cross_entropy in float32 too."""
    same = value.dtype == given.dtype or torch.is_autocast_enabled(given.device.type)
    return value if same else value.to(given.dtype)
