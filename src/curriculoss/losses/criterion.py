"""What RobustLoss and AutoLoss have in common: a loss as a module, with the conventions of `nn.CrossEntropyLoss`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from curriculoss._sharding import meet
from curriculoss.errors import InvalidTypeError
from curriculoss.linear import Layer, checked_layer
from curriculoss.losses.base import Curriculum
from curriculoss.losses.last_layer import LayerLoss
from curriculoss.losses.reduction import OPTIONS, PerSampleLoss, Reduction, checked_option, in_dtype_of
from curriculoss.margin import MarginLoss


class Criterion(nn.Module):
    """A loss with its reduction and class weights, called as `criterion(logits, target)`."""

    class_weight: Tensor | None
    curriculum: Curriculum | None  # the fixed curriculum, or None if the weight is not a fixed function of the margin
    version: int  # of the loss's rule
    scale: float = 1.0  # 1 over the weight that normalisation divides by
    num_classes: int | None = None  # if the loss is made for one number of classes

    def __init__(self, reduction: str, ignore_index: int, class_weight: Tensor | None) -> None:
        super().__init__()
        self.reduction, self.ignore_index = reduction, ignore_index
        self.register_buffer("class_weight", checked_option(type(self).__name__, "class_weight", class_weight))

    def __setattr__(self, name: str, value: Any) -> None:
        """Check options also where they are changed between epochs."""
        super().__setattr__(name, checked_option(type(self).__name__, name, value) if name in OPTIONS else value)

    @abstractmethod
    def _per_sample(self) -> PerSampleLoss:
        """The loss of samples, before it is normalised and reduced."""

    @abstractmethod
    def _linear_loss(self) -> MarginLoss | None:
        """The loss as a function of the margin, fixed for one call of `linear`; None if it has a second term.

        Raises:
            InvalidTypeError: If the loss cannot be computed from one block of samples after the other.
        """

    def _see_linear(
        self, layer: Layer, target: Tensor, sample_weight: Tensor | None, margin: Tensor, *, ranks: bool
    ) -> None:
        """See the margins of a batch after `linear` has computed its loss; `ranks` if the layer has all classes."""

    @abstractmethod
    def weight(self, margin: Tensor, logits: Tensor | None, target: Tensor) -> Tensor:
        """The weight of each sample at the scale of the criterion, class weights apart.

        Args:
            margin: The margins of the targets.
            logits: Where the margins come from; needed only if the loss has a second term.
            target: Class indices, none of them ignored.

        Returns:
            One number per sample: ‖∇_s L‖₁/2, or for some losses with a second term a bound on it.
        """

    def _how(self) -> Reduction:
        name, weight = type(self).__name__, self._buffers["class_weight"]  # faster than self.class_weight
        return Reduction(name, self.reduction, self.ignore_index, weight, self.scale, self.num_classes)

    def forward(self, logits: Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The loss of a batch; arguments are those of calling a `Loss`."""
        return self._how().loss_and_margin(self._per_sample(), logits, target, sample_weight)[0]

    def loss_and_margin(
        self, logits: Tensor, target: Tensor, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch and the detached margin of each sample, which it has computed anyway.

        Returns:
            What calling the criterion returns, and `soft_margin(logits, target)` in float32 (float64 for float64
            logits). Where targets are probabilities, the margins are those of the predicted classes.
        """
        return self._how().with_margin(self._per_sample(), logits, target, sample_weight)

    def linear(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, sample_weight: Tensor | None = None,
        *, group: Any = None, memory: int | None = None,
    ) -> Tensor:  # fmt: skip
        """The loss of `F.linear(hidden, weight, bias)` without ever storing those logits.

        A mean or a sum forms its gradients in the forward pass, from one block of logits after the other, and takes
        three matrix products. Losses of single samples make the blocks again in backward. `AutoLoss` weighs with what
        it knew before the batch, since the first block is done before the last one is seen, and follows afterwards.

        Args:
            hidden: (..., H), the inputs of the last layer.
            weight: (K, H).
            bias: (K,) or None.
            target: (...), int64 class indices.
            sample_weight: One weight per target, or one per entry of the first dimension.
            group: A process group over which the classes are spread, see `linear_soft_margin`; for losses that are
                functions of the margin. Class weights are those of all classes. `AutoLoss` estimates no noise rate.
            memory: Bytes that a block of logits may take, but at least one row; by default about 34 MB, or 128 rows.

        Raises:
            InvalidTypeError: If a sample's loss depends on other samples or, with a group, on more than the margin.
            GroupError: If a process of the group has died or has not answered within the group's time-out.
        """
        how, margin_loss = self._how(), self._linear_loss()
        layer = checked_layer(hidden, weight, bias, target, memory=memory)
        shards = None
        if group is not None:
            if margin_loss is None:
                raise InvalidTypeError(f"linear expects a standard-form loss with group=, got {self._per_sample()!r}")
            shards = meet(group, layer.hidden, layer.weight, target)
        how.check_classes(len(weight) if shards is None else shards.total)
        if sample_weight is not None:
            sample_weight = how.along(sample_weight, target.shape)
        flat_weight = None if sample_weight is None else sample_weight.reshape(-1)
        of_layer = LayerLoss(how, self._per_sample(), margin_loss, target.reshape(-1), flat_weight, shards)
        value, margin = of_layer(layer)
        if margin is not None:
            margin = margin.detach().reshape(target.shape)
            self._see_linear(layer, target, sample_weight, margin, ranks=shards is None)
        return in_dtype_of(hidden, value.reshape(target.shape) if how.mode == "none" else value)
