"""Batches: normalised, augmented, in an order that depends on the seed and the epoch's number alone."""

import hashlib
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from curriculoss.data.dataset import Split
from curriculoss.data.files import DataError
from curriculoss.data.images import Images

AUGMENTATIONS = ("none", "shift-flip", "crop-flip-jitter")


def mixed(*numbers: int) -> int:
    """A seed made of several numbers, such that (1, 2) and (2, 1) have nothing in common."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()) >> 1


class Batches:
    """Iterates (inputs, target, index) on a device; images come as float32 channels_last.

    `batch_size` counts the samples of all ranks together: each takes every world_size-th sample of the same batch.
    A last batch with fewer than two samples a rank joins the one before it, since batch normalisation needs two.
    Tensors live on the device; image files are decoded by `workers` processes (0: by this one).
    """

    def __init__(
        self,
        split: Split,
        target: Tensor,
        *,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        augment: str = "none",
        padding: int = 4,
        shuffle: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> None:
        if len(target) != len(split):
            raise ValueError(f"Batches expects one target a sample, {len(split)}, got {len(target)}")
        if batch_size < world_size or not 0 <= rank < world_size:
            raise ValueError(
                f"Batches expects batch_size >= world_size > rank >= 0, got {batch_size=}, {world_size=}, {rank=}"
            )
        lazy = isinstance(split.inputs, Images)
        if augment not in AUGMENTATIONS or (augment != "none" and (augment == "crop-flip-jitter") != lazy):
            wanted = ("none", "crop-flip-jitter") if lazy else ("none", "shift-flip")
            raise ValueError(f"Batches of these inputs expects augment in {wanted}, got {augment!r}")
        if augment == "shift-flip" and len(split.inputs.shape) != 4:
            raise ValueError(f"shift-flip expects images, got features of shape {tuple(split.inputs.shape[1:])}")
        self.augment, self.padding, self.shuffle, self.seed = augment, padding, shuffle, seed
        self.batch_size, self.rank, self.world_size, self.workers = batch_size, rank, world_size, workers
        self.device = torch.device(device)
        self.target = target.to(self.device)
        self.size = len(split)
        self._images = split.inputs if isinstance(split.inputs, Images) else None
        shape = split.inputs.shape if isinstance(split.inputs, Images) else tuple(split.inputs.shape[1:])
        # Pixels in the order (row, column, channel), so that one vector normalises, and shifts move whole rows.
        self._shape = (*shape[1:], shape[0])
        if isinstance(split.inputs, Images):
            levels = 255.0
        else:
            levels = 255.0 if split.inputs.dtype == torch.uint8 else 1.0
            last = split.inputs.permute(0, 2, 3, 1) if split.inputs.ndim == 4 else split.inputs
            self._rows = last.to(self.device).reshape(len(last), -1)
        repeats = math.prod(self._shape[:-1])
        spread = torch.tensor(std, dtype=torch.float64)
        self._scale = (1 / (levels * spread)).repeat(repeats).float().to(self.device)
        self._mean = torch.tensor(mean).float().to(self.device)
        self._offset = (-torch.tensor(mean, dtype=torch.float64) / spread).repeat(repeats).float().to(self.device)

    def __len__(self) -> int:
        return len(self._bounds())

    def _bounds(self) -> list[tuple[int, int]]:
        starts = list(range(0, self.size, self.batch_size))
        if len(starts) > 1 and self.size - starts[-1] < min(2 * self.world_size, self.batch_size):
            starts.pop()
        return list(zip(starts, [*starts[1:], self.size], strict=True))

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The batches of one epoch, the same whenever they are asked for."""
        chance = torch.Generator().manual_seed(mixed(self.seed, number))
        order = torch.randperm(self.size, generator=chance) if self.shuffle else torch.arange(self.size)
        places = [slice(start + self.rank, stop, self.world_size) for start, stop in self._bounds()]
        if self._images is not None:
            yield from self._decoded([order[place] for place in places], number)
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
        if len(self._shape) == 1:  # features may be far from 0: first take away what they have in common
            return (rows.float() - self._mean) * self._scale
        inputs = torch.addcmul(self._offset, rows.float(), self._scale)
        return inputs.view(-1, *self._shape).permute(0, 3, 1, 2)

    def _shifted(self, rows: Tensor, moves: Tensor, flips: Tensor) -> Tensor:
        """Each image cut out of its zero-padded self at its own place, and mirrored where `flips` says so."""
        height, width, channels = self._shape
        pad, count = self.padding, len(rows)
        images = rows.view(count, height, width, channels)
        both = torch.cat([images, images.flip(2)]).view(2 * count, height, width * channels)
        both = F.pad(both, (pad * channels, pad * channels, pad, pad))
        image, row, _ = both.stride()
        # Every stretch of one row's length, wherever it begins: selecting among them copies whole rows.
        stretches = both.as_strided((both.numel() - width * channels + 1, width * channels), (1, 1))
        which = torch.arange(count, device=rows.device) + count * flips
        corners = which * image + moves[0] * row + moves[1] * channels
        starts = corners[:, None] + row * torch.arange(height, device=rows.device)
        return stretches.index_select(0, starts.view(-1)).view(count, -1)

    def _decoded(self, batches: list[Tensor], number: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        assert self._images is not None
        seed = mixed(self.seed, number) if self.augment == "crop-flip-jitter" else None
        loader = DataLoader(
            _Decoder(self._images, batches, seed),
            batch_size=None,
            num_workers=self.workers,
            generator=torch.Generator(),  # else it draws from the global one, which is the caller's
            pin_memory=self.device.type == "cuda",
        )
        for pixels, index in loader:
            if isinstance(pixels, str):
                raise DataError(pixels)
            index = index.to(self.device, non_blocking=True)
            rows = pixels.to(self.device, non_blocking=True).view(len(index), -1)
            yield self._normalised(rows), self.target[index], index


class _Decoder(TorchDataset[tuple[Tensor | str, Tensor]]):
    """One item a batch: its pixels, or what is wrong with one of its files (an exception would bring its traceback)."""

    def __init__(self, images: Images, batches: list[Tensor], seed: int | None) -> None:
        self.images, self.batches, self.seed = images, batches, seed

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, position: int) -> tuple[Tensor | str, Tensor]:
        index = self.batches[position]
        seeds = [None if self.seed is None else mixed(self.seed, i) for i in index.tolist()]
        try:
            pixels = [self.images.decode(i, seed) for i, seed in zip(index.tolist(), seeds, strict=True)]
        except DataError as error:
            return str(error), index
        return torch.stack(pixels), index
