"""Batches: normalised, augmented, in an order that depends on nothing but the seed and the epoch's number."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from curriculoss.data.dataset import Split
from curriculoss.data.images import Images
from curriculoss.errors import DataError, InvalidValueError

AUGMENTATIONS = ("none", "shift-flip", "crop-flip-jitter")


def combined_seed(*numbers: int) -> int:
    """A seed made of several numbers by a hash, so that (1, 2) and (2, 1) have nothing in common."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()) >> 1


def normalisation(mean: Sequence[float], std: Sequence[float], levels: float) -> tuple[Tensor, Tensor, Tensor]:
    """Float32 mean, scale and offset: (x − mean)·scale for features, offset + x·scale for images of `levels` levels."""
    centre, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    return centre.float(), (1 / (levels * spread)).float(), (-centre / spread).float()


class Batches:
    """The batches of each epoch: (inputs, target, index) on a device, images as float32 channels_last.

    A last batch with fewer than two samples per process joins the one before it, as batch normalisation needs two.

    Args:
        split: The samples. Tensors are moved to the device; image files are decoded batch by batch.
        target: (N,), the labels to give out.
        batch_size: Samples per step, over all processes together.
        mean: What inputs are normalised by, per channel or feature.
        std: Like `mean`.
        augment: One of `AUGMENTATIONS`; the last is for image files, the second for other images.
        padding: The largest shift of shift-flip, in pixels.
        shuffle: Whether each epoch has an order of its own.
        seed: Decides order and augmentation, together with the epoch's number.
        device: Where the batches are.
        rank: Which process this is; it takes every `world_size`-th sample of each batch.
        world_size: The number of processes.
        workers: Processes that decode image files (0: this one does).
    """

    def __init__(
        self, split: Split, target: Tensor, *, batch_size: int, mean: Sequence[float], std: Sequence[float],
        augment: str = "none", padding: int = 4, shuffle: bool = False, seed: int = 0,
        device: torch.device | str = "cpu", rank: int = 0, world_size: int = 1, workers: int = 0,
    ) -> None:  # fmt: skip
        inputs = split.inputs
        self._images = inputs if isinstance(inputs, Images) else None
        if len(target) != len(split):
            raise InvalidValueError(f"Batches expects one target per sample, {len(split)}, got {len(target)}")
        if batch_size < world_size or not 0 <= rank < world_size:
            raise InvalidValueError(
                f"Batches expects batch_size >= world_size > rank >= 0, got {batch_size=}, {world_size=}, {rank=}"
            )
        allowed = ("none", "shift-flip" if self._images is None else "crop-flip-jitter")
        if augment not in allowed:
            raise InvalidValueError(f"Batches of these inputs expects augment in {allowed}, got {augment!r}")
        if augment == "shift-flip" and len(inputs.shape) != 4:
            raise InvalidValueError(f"shift-flip expects images, got features of shape {tuple(inputs.shape[1:])}")
        self.augment, self.padding, self.shuffle, self.seed = augment, padding, shuffle, seed
        self.batch_size, self.rank, self.world_size, self.workers = batch_size, rank, world_size, workers
        self.device, self.size = torch.device(device), len(split)
        self.target = target.to(self.device)
        # Pixels in the order (row, column, channel), so that one vector normalises, and shifts move whole rows.
        self._shape = (*inputs.shape[2:], inputs.shape[1])
        if isinstance(inputs, Tensor):
            last = inputs.permute(0, 2, 3, 1) if inputs.ndim == 4 else inputs
            self._rows = last.to(self.device).reshape(len(last), -1)
        pixels, levels = math.prod(self._shape[:-1]), 255.0 if inputs.dtype == torch.uint8 else 1.0
        self._mean, self._scale, self._offset = (
            each.repeat(pixels).to(self.device) for each in normalisation(mean, std, levels)
        )

    def __len__(self) -> int:
        return len(self._bounds())

    def _bounds(self) -> list[tuple[int, int]]:
        starts = list(range(0, self.size, self.batch_size))
        if len(starts) > 1 and self.size - starts[-1] < min(2 * self.world_size, self.batch_size):
            starts.pop()
        return list(zip(starts, [*starts[1:], self.size], strict=True))

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The batches of one epoch, the same each time."""
        chance = torch.Generator().manual_seed(combined_seed(self.seed, number))
        order = torch.randperm(self.size, generator=chance) if self.shuffle else torch.arange(self.size)
        places = [slice(start + self.rank, stop, self.world_size) for start, stop in self._bounds()]
        if self._images is not None:
            yield from self._decoded(self._images, [order[place] for place in places], number)
            return
        order = order.to(self.device)
        if self.augment == "shift-flip":
            moves = torch.randint(2 * self.padding + 1, (2, self.size), generator=chance).to(self.device)
            flips = (torch.rand(self.size, generator=chance) < 0.5).to(self.device)
        for place in places:
            index = order[place]
            rows = self._rows.index_select(0, index)
            if self.augment == "shift-flip":
                rows = self._shifted(rows, moves[:, place], flips[place])
            yield self._normalised(rows), self.target[index], index

    def _normalised(self, rows: Tensor) -> Tensor:
        if len(self._shape) == 1:  # subtract the mean first: features may be far from 0 and lose digits otherwise
            return (rows.float() - self._mean) * self._scale
        inputs = torch.addcmul(self._offset, rows.float(), self._scale)
        return inputs.view(-1, *self._shape).permute(0, 3, 1, 2)

    def _shifted(self, rows: Tensor, moves: Tensor, flips: Tensor) -> Tensor:
        """Each image cut out of its zero-padded self at its own offset, and mirrored where `flips` is true."""
        height, width, channels = self._shape
        pad, count = self.padding, len(rows)
        images = rows.view(count, height, width, channels)
        both = torch.cat([images, images.flip(2)]).view(2 * count, height, width * channels)
        both = F.pad(both, (pad * channels, pad * channels, pad, pad))
        image, row, _ = both.stride()
        # A view of all stretches that are one row long, at every offset: selecting among them copies whole rows.
        stretches = both.as_strided((both.numel() - width * channels + 1, width * channels), (1, 1))
        which = torch.arange(count, device=rows.device) + count * flips
        corners = which * image + moves[0] * row + moves[1] * channels
        starts = corners[:, None] + row * torch.arange(height, device=rows.device)
        return stretches.index_select(0, starts.view(-1)).view(count, -1)

    def _decoded(self, images: Images, batches: list[Tensor], number: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        seed = combined_seed(self.seed, number) if self.augment == "crop-flip-jitter" else None
        loader: DataLoader[Any] = DataLoader(
            batches,  # type: ignore[arg-type]  # a list is a map-style dataset
            batch_size=None,
            collate_fn=partial(_decode, images, seed),
            num_workers=self.workers,
            generator=torch.Generator(),  # otherwise it draws from the global one, which belongs to the caller
            pin_memory=self.device.type == "cuda",
        )
        for pixels, index in loader:
            if isinstance(pixels, str):
                raise DataError(pixels)
            index = index.to(self.device, non_blocking=True)
            rows = pixels.to(self.device, non_blocking=True).view(len(index), -1)
            yield self._normalised(rows), self.target[index], index


def _decode(images: Images, seed: int | None, index: Tensor) -> tuple[Tensor | str, Tensor]:
    """The pixels of a batch, or what is wrong with a file (an exception of a worker would come with its traceback)."""
    try:
        seeds = [None if seed is None else combined_seed(seed, i) for i in index.tolist()]
        return torch.stack([images.decode(i, each) for i, each in zip(index.tolist(), seeds, strict=True)]), index
    except DataError as error:
        return str(error), index
