"""What every reader makes: splits of inputs and labels, and the facts about a data set that noise and training need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from curriculoss.data.files import DataError
from curriculoss.data.images import IMAGENET_MEAN, IMAGENET_STD, Images

CHUNK = 1024  # samples whose statistics are computed at a time


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Samples and their labels. Inputs: uint8 or float32 (N, C, H, W), float32 (N, D), or image files."""

    inputs: Tensor | Images
    target: Tensor  # int64 (N,), the labels as given
    clean: Tensor | None = None  # int64 (N,), the true labels where the data say that they differ
    paths: tuple[str, ...] | None = None  # of image files

    def __post_init__(self) -> None:
        for name, column in (("target", self.target), ("clean", self.clean), ("paths", self.paths)):
            if column is not None and len(column) != len(self.inputs):
                raise DataError(f"expected as many entries in {name} as inputs, {len(self.inputs)}, got {len(column)}")

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        shape = self.inputs.shape if isinstance(self.inputs, Images) else tuple(self.inputs.shape[1:])
        return f"Split({len(self)} samples of shape {shape})"

    def take(self, index: Tensor) -> "Split":
        """The samples at the given positions, in that order."""
        return Split(
            self.inputs.take(index) if isinstance(self.inputs, Images) else self.inputs[index],
            self.target[index],
            None if self.clean is None else self.clean[index],
            None if self.paths is None else tuple(self.paths[i] for i in index.tolist()),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A training split, perhaps a test split, and what is known about the classes."""

    name: str
    train: Split
    test: Split | None
    class_names: tuple[str, ...]
    parents: Tensor | None = None  # (K,) the super-class of each class
    flips: Tensor | None = None  # (K,) where asymmetric noise sends each class; itself: nowhere
    human: Mapping[str, Tensor] = field(default_factory=dict)  # variant -> labels that people gave the training samples
    default_human: str | None = None
    human_source: str | None = None  # the file with human labels, where it belongs and where it comes from
    augment: str = "none"
    padding: int = 4
    feature_names: tuple[str, ...] | None = None  # the columns of a table

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, train={self.train}, test={self.test}, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of images, (D,) of features."""
        inputs = self.train.inputs
        return inputs.shape if isinstance(inputs, Images) else tuple(inputs.shape[1:])

    @property
    def mean(self) -> tuple[float, ...]:
        """Means of the training inputs, one a channel or feature; uint8 counts as 0 to 1. Image files: ImageNet's."""
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviations, as `mean`; 1 where the inputs are constant."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        if isinstance(self.train.inputs, Images):
            return IMAGENET_MEAN, IMAGENET_STD
        return statistics(self.train.inputs)


def statistics(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of (N, C, H, W) or feature of (N, D); uint8 counts as 0 to 1."""
    if len(inputs) == 0:
        raise DataError("expected at least one sample, got none")
    axes = [0, *range(2, inputs.ndim)]
    if inputs.dtype == torch.uint8:
        levels = torch.arange(256, dtype=torch.float64) / 255
        counts = torch.stack([_levels(inputs, channel) for channel in range(inputs.shape[1])]).double()
        share = counts / counts.sum(1, keepdim=True)
        mean = share @ levels
        std = (share * (levels - mean[:, None]).square()).sum(1).sqrt()
    else:
        chunks = inputs.split(CHUNK)
        count = inputs.numel() // inputs.shape[1]
        # A place for all sums beforehand: small results between large ones would leave holes, as large as the inputs.
        sums = torch.empty(len(chunks), inputs.shape[1], dtype=torch.float64)
        for row, chunk in zip(sums, chunks, strict=True):
            row.copy_(chunk.double().sum(axes))
        mean = sums.sum(0) / count
        centre = mean.view(-1, *[1] * (inputs.ndim - 2))
        for row, chunk in zip(sums, chunks, strict=True):
            row.copy_((chunk.double() - centre).square().sum(axes))
        std = (sums.sum(0) / count).sqrt()
    # What is constant up to rounding is not blown up to noise; at least 1e-30, for what is 0 throughout.
    std = torch.where(std > 1e-6 * mean.abs().clamp(min=1e-30), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _levels(inputs: Tensor, channel: int) -> Tensor:
    """How often each of the 256 values occurs in a channel."""
    parts = [torch.bincount(chunk[:, channel].flatten(), minlength=256) for chunk in inputs.split(CHUNK)]
    return torch.stack(parts).sum(0)
