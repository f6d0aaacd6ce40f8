"""RobustLoss: any loss as a module."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.losses.base import Curriculum, Loss
from curriculoss.losses.criterion import Criterion


class RobustLoss(Criterion):
    """A loss as a module: drop-in for `nn.CrossEntropyLoss`.

    In place of `nn.CrossEntropyLoss(weight=w, label_smoothing=a)` write `RobustLoss(GLS(a), class_weight=w)`.

    Args:
        loss: The loss, such as `MAE()`, `Scaled(MAE(), 0.3)` or `get("nce+mae")`. It may be replaced between epochs.
        reduction: "mean", which divides by the weights that count, "sum" or "none".
        ignore_index: Targets with this index count nothing.
        class_weight: One weight per class, kept as a buffer.
        normalize: Whether to divide by the largest weight of the loss's primary curriculum, as the paper trains, so
            that a learning rate tuned for CE carries over. Sums stay on the scale of their papers.

    Example:
        >>> import torch
        >>> from curriculoss import MAE, RobustLoss
        >>> criterion = RobustLoss(MAE())
        >>> criterion(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor(1.7005)
    """

    def __init__(
        self, loss: Loss, *, reduction: str = "mean", ignore_index: int = -100, class_weight: Tensor | None = None,
        normalize: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(reduction, ignore_index, class_weight)
        self.normalize = normalize
        self.loss = loss

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep what follows from the loss consistent with it, also where it is changed between epochs."""
        if name == "loss" and not isinstance(value, Loss):
            raise InvalidTypeError(f"RobustLoss expects a loss such as MAE() or get('mae'), got {value!r}")
        if name == "loss" or (name == "normalize" and "loss" in self.__dict__):  # first what may be refused
            loss, normalize = (value, self.normalize) if name == "loss" else (self.loss, value)
            self.scale = 1 / loss.unit_weight if normalize else 1.0
            self.curriculum, self.version = loss.curriculum, loss.version
        super().__setattr__(name, value)

    def weight(self, margin: Tensor, logits: Tensor | None, target: Tensor) -> Tensor:
        if self.curriculum is not None:
            return self.curriculum.weight(margin) * self.scale
        if logits is None:
            raise InvalidValueError(f"{self.loss} has a second term: its weight expects logits, got margins alone")
        return self.loss.weights(margin, logits, target) * self.scale

    def extra_repr(self) -> str:
        text = f"{self.loss}, reduction={self.reduction!r}, normalize={self.normalize}"
        if self.ignore_index != -100:
            text += f", ignore_index={self.ignore_index}"
        return text if self.class_weight is None else f"{text}, class_weight of {len(self.class_weight)} classes"

    def _per_sample(self) -> Loss:
        return self.loss

    def _linear_loss(self) -> Curriculum | None:
        if not self.loss.by_row:
            raise InvalidTypeError(f"linear expects a loss of each sample's own logits, got {self.loss!r}")
        return self.curriculum
