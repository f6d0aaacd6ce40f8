"""RobustLoss: a loss, its reduction and its normalisation, with the conventions of `F.cross_entropy`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from curriculoss.batch import Batch, weight_of
from curriculoss.curricula import Curriculum
from curriculoss.linear import linear_soft_margin
from curriculoss.margin import autocast, check_logits, kind_and_shape, standard_loss, wide
from curriculoss.regularized import Regularized

REDUCTIONS = ("mean", "sum", "none")


class RobustLoss(nn.Module):
    """Drop-in for `nn.CrossEntropyLoss`: `RobustLoss(MAE())(logits, target)`.

    Logits (N, K), (N, K, d1, ...) or (K,); targets are class indices of that shape without K, or probabilities of the
    logits' shape, for which the loss is Σ_i t_i·l(Δ_i). `reduction`, `ignore_index` and `class_weight` are those of
    `F.cross_entropy`; "mean" divides by the weights of the samples that count. With `normalize` a loss is divided by
    the largest weight of its curriculum, as the paper trains, so that a learning rate tuned for CE carries over; losses
    with a second term are divided by that of their primary (CE's is 1), and sums stay on the scale of their papers.

    In place of `nn.CrossEntropyLoss(weight=w, label_smoothing=a)` write `RobustLoss(GLS(a), class_weight=w)`.
    """

    class_weight: Tensor | None
    scale: float  # one over what normalisation divides by

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
        self.normalize = normalize
        self.loss = loss
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.register_buffer("class_weight", None if class_weight is None else _as_weights(class_weight))

    def __setattr__(self, name: str, value: Any) -> None:
        """Checked and consistent also when it is changed between epochs: what is worked out once follows the loss."""
        if name == "loss" and not isinstance(value, Curriculum | Regularized):
            raise TypeError(f"RobustLoss expects a loss such as MAE() or get('mae'), got {value!r}")
        if name == "reduction" and value not in REDUCTIONS:
            raise ValueError(f"RobustLoss expects reduction 'mean', 'sum' or 'none', got {value!r}")
        if name == "ignore_index" and not isinstance(value, int):
            raise TypeError(f"RobustLoss expects an integer ignore_index, got {value!r}")
        if name == "class_weight" and value is not None:
            value = _as_weights(value)
        if name == "loss" or (name == "normalize" and "loss" in self.__dict__):  # first what may be refused
            loss, normalize = (value, self.normalize) if name == "loss" else (self.loss, value)
            self.scale = 1 / loss.unit_weight if normalize else 1.0
        super().__setattr__(name, value)

    @property
    def curriculum(self) -> Curriculum | None:
        """Whose weights depend on the margin alone, now and later; None if the loss has no such."""
        return self.loss if isinstance(self.loss, Curriculum) else None

    def extra_repr(self) -> str:
        text = f"{self.loss}, reduction={self.reduction!r}, normalize={self.normalize}"
        if self.ignore_index != -100:
            text += f", ignore_index={self.ignore_index}"
        return text if self.class_weight is None else f"{text}, class_weight of {len(self.class_weight)} classes"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        soft = isinstance(target, Tensor) and target.is_floating_point()
        if soft:
            self._check_probabilities(logits, target)
        else:
            check_logits(logits, target, "RobustLoss")
        class_weight = self.class_weight
        if class_weight is not None:
            self._check_classes(logits.shape[min(1, logits.dim() - 1)])
        if logits.dim() == 1:
            value: Tensor = self(logits.unsqueeze(0), target.unsqueeze(0))
            return value.squeeze(0) if self.reduction == "none" else value
        curriculum = self.curriculum
        if curriculum is not None and class_weight is None and not soft:
            value = standard_loss(
                logits, target, curriculum, scale=self.scale, ignore_index=self.ignore_index, reduction=self.reduction
            )
        else:
            batch = Batch(logits, target, class_weight, self.ignore_index)
            value = self._reduced(self.of_batch(batch), target)
        return _in_dtype_of(logits, value)

    def linear(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        """The loss of `F.linear(hidden, weight, bias)` without ever storing those logits; standard-form losses only."""
        if not isinstance(self.loss, Curriculum):
            raise TypeError(f"linear expects a standard-form loss such as MAE(), got {self.loss!r}")
        if isinstance(weight, Tensor) and weight.dim():
            self._check_classes(len(weight))
        margin = linear_soft_margin(hidden, weight, bias, target, ignore_index=self.ignore_index)
        value = self.of_margin(margin, target)
        value = value * weight_of(target, self.class_weight, self.ignore_index, value.dtype)
        return _in_dtype_of(hidden, self._reduced(value, target))

    def of_margin(self, margin: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample with that margin of a curriculum, not weighed by class yet."""
        assert isinstance(self.loss, Curriculum)
        return self.loss.loss(margin) * self.scale

    def of_batch(self, batch: Batch) -> Tensor:
        """The loss of each sample, 0 where ignored."""
        return self.loss.of(batch) * self.scale

    def _reduced(self, value: Tensor, target: Tensor) -> Tensor:
        """Losses that already carry their weights. Summed in float64: a sum may overflow where the mean does not."""
        if self.reduction == "none":
            return value
        total = wide(value).sum()
        if self.reduction == "mean":
            total = total / weight_of(target, self.class_weight, self.ignore_index, total.dtype).sum()
        return total.to(value.dtype)

    def _check_probabilities(self, logits: Tensor, target: Tensor) -> None:
        if not isinstance(logits, Tensor) or target.shape != logits.shape or not logits.dim():
            raise ValueError(
                "RobustLoss expects int64 class indices, or probabilities in the shape of the logits, as target, "
                f"got logits {kind_and_shape(logits)} and target {kind_and_shape(target)}"
            )
        if logits.device != target.device:
            where = f"{logits.device} and {target.device}"
            raise ValueError(f"RobustLoss expects logits and target on one device, got {where}")
        if self.ignore_index >= 0:
            raise ValueError(f"probabilities know no ignored class, got ignore_index={self.ignore_index}")
        label = logits.new_zeros(logits.shape[:1] + logits.shape[2:] if logits.dim() > 1 else (), dtype=torch.int64)
        check_logits(logits, label, "RobustLoss")

    def _check_classes(self, num_classes: int) -> None:
        if self.class_weight is not None and len(self.class_weight) != num_classes:
            raise ValueError(
                f"RobustLoss expects {len(self.class_weight)} classes, as many as class_weight has, got {num_classes}"
            )


def _as_weights(given: Any) -> Tensor:
    try:
        weights = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"RobustLoss expects class_weight as a number for each class, got {given!r}") from None
    if weights.dim() != 1 or weights.is_complex():
        raise ValueError(f"RobustLoss expects class_weight as a number for each class, got {kind_and_shape(weights)}")
    return weights if weights.is_floating_point() else weights.to(torch.get_default_dtype())


def _in_dtype_of(given: Tensor, value: Tensor) -> Tensor:
    """What came in half precision goes out so, but for autocast, which runs F.cross_entropy in float32 too."""
    return value if value.dtype == given.dtype or autocast(given) else value.to(given.dtype)
