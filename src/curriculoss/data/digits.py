"""Data that need no download: scikit-learn's digits, alone or side by side; the class is the number shown."""

import random

import numpy as np
import torch
from numpy.typing import NDArray

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import DATA_SETS
from curriculoss.noise import next_in_group

TEST_SHARE = 5  # every fifth digit of a class is for testing


def _pools() -> list[list[NDArray[np.uint8]]]:
    """A training pool and a test pool, disjoint; each has the digits 0 to 9 as arrays of (n, 8, 8)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    by_digit = [images[bunch.target == digit] for digit in range(10)]
    test = slice(TEST_SHARE - 1, None, TEST_SHARE)
    return [[np.delete(pool, test, axis=0) for pool in by_digit], [pool[test] for pool in by_digit]]


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


def read_digits(name: str, num_classes: int, *_: object) -> Dataset:
    """`digits`, `digits-100` or `digits-1000`: 1, 2 or 3 digits side by side, the same in every run."""
    length = len(str(num_classes)) - 1
    per_class = {1: (None, None), 2: (100, 20), 3: (20, 4)}[length]
    train, test = (
        _numbers(pools, length, count, random.Random(part))
        for part, (pools, count) in enumerate(zip(_pools(), per_class, strict=True))
    )
    class_names = tuple(f"{label:0{length}d}" for label in range(num_classes))
    tens = next_in_group(torch.arange(num_classes) // 10)  # numbers that differ in their last digit
    flips = torch.tensor(DATA_SETS["mnist"].flips) if length == 1 else tens
    return Dataset(name, train, test, class_names, flips=flips)
