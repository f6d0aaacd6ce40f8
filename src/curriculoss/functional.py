"""Losses and margins as functions, beside `torch.nn.functional`.

Example:
    >>> import torch
    >>> from curriculoss import functional
    >>> functional.soft_margin(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor([2.])
"""

from __future__ import annotations

from torch import Tensor

from curriculoss.errors import InvalidTypeError
from curriculoss.linear import linear_soft_margin
from curriculoss.losses.base import Loss
from curriculoss.margin import soft_margin

__all__ = ["linear_soft_margin", "robust_loss", "soft_margin"]


def robust_loss(
    logits: Tensor, target: Tensor, loss: Loss, *, sample_weight: Tensor | None = None,
    class_weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean", normalize: bool = True,
) -> Tensor:  # fmt: skip
    """`loss(logits, target, ...)`: any loss of the package with the conventions of `F.cross_entropy`.

    Args:
        logits: (N, K), (N, K, d1, ...) or (K,).
        target: int64 class indices in the shape of the logits without K, or probabilities in the logits' shape.
        loss: The loss, such as `GCE(q=0.7)` or `get("nce+mae")`.
        sample_weight: One weight per target, or (N,); in "mean" it counts as class weights do.
        class_weight: One weight per class.
        ignore_index: Targets with this index count nothing.
        reduction: "mean" (over the weights that count), "sum" or "none".
        normalize: Whether to divide by the largest weight of the loss's primary curriculum.

    Returns:
        A scalar or, without reduction, one number per target.

    Example:
        >>> import torch
        >>> from curriculoss import MAE
        >>> from curriculoss.functional import robust_loss
        >>> robust_loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), MAE())
        tensor(1.7005)
    """
    if not isinstance(loss, Loss):
        raise InvalidTypeError(f"robust_loss expects a loss such as MAE() or get('mae'), got {loss!r}")
    return loss(
        logits, target, sample_weight=sample_weight, class_weight=class_weight, ignore_index=ignore_index,
        reduction=reduction, normalize=normalize,
    )  # fmt: skip
