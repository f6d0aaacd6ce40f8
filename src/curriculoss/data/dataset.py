"""What every reader makes: splits of inputs and labels, and the facts about a data set that noise and training need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from curriculoss._facts import Facts
from curriculoss.data.images import IMAGENET_MEAN, IMAGENET_STD, Images
from curriculoss.errors import DataError

SAMPLES_AT_ONCE = 1024  # resized, or summed in float64, in one step


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Samples and their labels.

    Attributes:
        inputs: uint8 or float32 (N, C, H, W), float32 (N, D), or image files.
        target: int64 (N,), the labels as given.
        clean: int64 (N,), the true labels where the data have them beside the given ones.
        paths: The paths of image files; by default those of `inputs`.
    """

    inputs: Tensor | Images
    target: Tensor
    clean: Tensor | None = None
    paths: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.paths is None and isinstance(self.inputs, Images):
            object.__setattr__(self, "paths", self.inputs.files)
        for name, column in (("target", self.target), ("clean", self.clean), ("paths", self.paths)):
            if column is not None and len(column) != len(self.inputs):
                raise DataError(f"expected as many entries in {name} as inputs, {len(self.inputs)}, got {len(column)}")

    @classmethod
    def of_files(cls, samples: Sequence[tuple[str, int]]) -> "Split":
        """Image files with their labels."""
        labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return cls(Images(tuple(file for file, _ in samples)), labels)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"Split({len(self)} samples of shape {tuple(self.inputs.shape[1:])})"

    @property
    def described(self) -> str:
        """What the samples are, for errors."""
        return "image files" if isinstance(self.inputs, Images) else described(self.inputs.shape[1:], self.inputs.dtype)

    def take(self, index: Tensor) -> "Split":
        """The samples at the given positions, in that order."""
        clean = None if self.clean is None else self.clean[index]
        paths = None if self.paths is None else tuple(self.paths[i] for i in index.tolist())
        return Split(self.inputs[index], self.target[index], clean, paths)

    def resized(self, size: int) -> "Split":
        """The same samples with images of `size` × `size` pixels."""
        if isinstance(self.inputs, Images):
            return replace(self, inputs=replace(self.inputs, size=size))
        return replace(self, inputs=resized(self.inputs, size))


@dataclass(frozen=True)
class InputFormat(Facts):
    """What a network trained on a data set expects of its inputs, and what its outputs mean.

    Attributes:
        input_shape: (C, H, W) of images, (D,) of features.
        input_dtype: "uint8" or "float32".
        mean: One number per channel or feature; uint8 counts as 0 to 1.
        std: Like `mean`.
        class_names: The classes in the order of the outputs.
        feature_names: The columns of a table.
        centre_crop: Whether image files of any size are cropped to the shape; otherwise sizes must match.
    """

    input_shape: tuple[int, ...]
    input_dtype: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] | None = None
    centre_crop: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A training split, perhaps a test split, and what is known about the classes.

    Attributes:
        name: What to call it.
        train: The training samples.
        test: The test samples, if there are any.
        class_names: K names.
        flips: (K,), the class that asymmetric noise moves each class to; itself if it stays clean.
        human: Labels that people gave the training samples, by variant.
        default_human: The variant that the noise `human` means.
        human_source: The file with human labels, where it belongs and where it comes from.
        augment: The augmentation that the data are usually trained with.
        padding: The largest shift of the augmentation `shift-flip`, in pixels.
        feature_names: The columns of a table.
    """

    name: str
    train: Split
    test: Split | None
    class_names: tuple[str, ...]
    flips: Tensor | None = None
    human: Mapping[str, Tensor] = field(default_factory=dict)
    default_human: str | None = None
    human_source: str | None = None
    augment: str = "none"
    padding: int = 4
    feature_names: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, train={self.train}, test={self.test}, {self.num_classes} classes)"

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of images, (D,) of features."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def input_format(self) -> InputFormat:
        """What a network trained on these data expects."""
        inputs, dtype = self.train.inputs, str(self.train.inputs.dtype).removeprefix("torch.")
        lazy = isinstance(inputs, Images)
        return InputFormat(self.shape, dtype, self.mean, self.std, self.class_names, self.feature_names, lazy)

    def resized(self, size: int) -> "Dataset":
        """The same data with images of `size` × `size` pixels; DataError for features."""
        if len(self.shape) != 3:
            raise DataError(f"{self.name}: image_size belongs to images, got {self.shape[0]} features per sample")
        test = None if self.test is None else self.test.resized(size)
        return replace(self, train=self.train.resized(size), test=test)

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of the training inputs per channel or feature; uint8 counts as 0 to 1. ImageNet's for image files."""
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviations, like `mean`; 1 where the inputs are constant."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        inputs = self.train.inputs
        return (IMAGENET_MEAN, IMAGENET_STD) if isinstance(inputs, Images) else statistics(inputs)


def described(shape: Sequence[int], dtype: torch.dtype | str) -> str:
    """What samples of a shape and type are, for errors."""
    if len(shape) == 1:
        return f"{shape[0]} feature{'s' if shape[0] > 1 else ''} per sample"
    return f"{str(dtype).removeprefix('torch.')} images of shape {'×'.join(map(str, shape))}"


def resized(inputs: Tensor, size: int) -> Tensor:
    """Averaged over squares of pixels where `size` divides the side, interpolated elsewhere; uint8 stays uint8."""
    height, width = inputs.shape[2:]
    if (height, width) == (size, size):
        return inputs
    small = torch.empty((*inputs.shape[:2], size, size), dtype=inputs.dtype)
    for row, some in zip(small.split(SAMPLES_AT_ONCE), inputs.split(SAMPLES_AT_ONCE), strict=True):
        if height % size == width % size == 0:
            new = F.avg_pool2d(some.float(), (height // size, width // size))
        else:
            new = F.interpolate(some.float(), (size, size), mode="bilinear", antialias=True)
        row.copy_(new if inputs.is_floating_point() else new.round())
    return small


def statistics(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of (N, C, H, W) or feature of (N, D); uint8 counts as 0 to 1."""
    if len(inputs) == 0:
        raise DataError("expected at least one sample, got none")
    axes, count = [0, *range(2, inputs.ndim)], inputs.numel() // inputs.shape[1]
    parts = inputs.split(SAMPLES_AT_ONCE)
    if inputs.dtype == torch.uint8:
        levels = torch.arange(256, dtype=torch.float64) / 255
        channels = range(inputs.shape[1])
        counts = [sum(part[:, i].flatten().bincount(minlength=256) for part in parts) for i in channels]
        share = torch.stack(counts).double() / count
        mean = share @ levels
        std = (share * (levels - mean[:, None]).square()).sum(1).sqrt()
    else:
        # One tensor for all sums: small results between large ones would fragment the memory.
        sums = torch.empty(len(parts), inputs.shape[1], dtype=torch.float64)
        for row, some in zip(sums, parts, strict=True):
            row.copy_(some.double().sum(axes))
        mean = sums.sum(0) / count
        centre = mean.view(-1, *[1] * (inputs.ndim - 2))
        for row, some in zip(sums, parts, strict=True):
            row.copy_((some.double() - centre).square().sum(axes))
        std = (sums.sum(0) / count).sqrt()
    # A column that is constant up to rounding is not blown up to noise; 1e-30 is for one that is 0 throughout.
    std = torch.where(std > 1e-6 * mean.abs().clamp(min=1e-30), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())
