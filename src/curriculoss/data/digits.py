"""Embedded data: scikit-learn's digits, alone or side by side, so that the number shown is the class."""

import random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from curriculoss.data.dataset import Dataset, Split
from curriculoss.noise import next_in_group

MNIST_FLIPS = {7: 1, 2: 7, 5: 6, 6: 5, 3: 8}
TEST_SHARE = 5  # every fifth digit of a class is for testing


def flips_of(sends: dict[int, int], num_classes: int) -> Tensor:
    return torch.tensor([sends.get(label, label) for label in range(num_classes)])


def _pools() -> list[list[NDArray[np.uint8]]]:
    """Train and test pools, disjoint: for each, the digits 0 to 9 as arrays of (n, 8, 8)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    by_digit = [images[bunch.target == digit] for digit in range(10)]
    test = [np.arange(len(pool)) % TEST_SHARE == TEST_SHARE - 1 for pool in by_digit]
    return [
        [pool[~held] for pool, held in zip(by_digit, test, strict=True)],
        [pool[held] for pool, held in zip(by_digit, test, strict=True)],
    ]


def _numbers(pools: list[NDArray[np.uint8]], length: int, per_class: int | None, chance: random.Random) -> Split:
    """`per_class` different pictures of every number with `length` digits (None: all there are), shuffled."""
    images, labels = [], []
    for label in range(10**length):
        places = [pools[int(digit)] for digit in f"{label:0{length}d}"]
        sizes = tuple(len(pool) for pool in places)
        total = int(np.prod(sizes))
        picks = np.unravel_index(chance.sample(range(total), per_class or total), sizes)
        images.append(np.concatenate([pool[pick] for pool, pick in zip(places, picks, strict=True)], axis=2))
        labels += [label] * len(images[-1])
    order = torch.tensor(chance.sample(range(len(labels)), len(labels)))
    inputs = torch.from_numpy(np.concatenate(images)).unsqueeze(1)
    return Split(inputs[order], torch.tensor(labels)[order])


def digits(length: int = 1) -> Dataset:
    """`digits`, `digits-100` or `digits-1000`: 1, 2 or 3 digits side by side. The same whatever the seed of a run."""
    per_class = {1: (None, None), 2: (100, 20), 3: (20, 4)}[length]
    train, test = (
        _numbers(pools, length, count, random.Random(part))
        for part, (pools, count) in enumerate(zip(_pools(), per_class, strict=True))
    )
    classes = torch.arange(10**length)
    parents = None if length == 1 else classes // 10
    return Dataset(
        name="digits" if length == 1 else f"digits-{10**length}",
        train=train,
        test=test,
        class_names=tuple(f"{label:0{length}d}" for label in classes.tolist()),
        parents=parents,
        flips=flips_of(MNIST_FLIPS, 10) if parents is None else next_in_group(parents),
    )
