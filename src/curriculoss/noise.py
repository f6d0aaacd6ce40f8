"""Label noise: noisy labels drawn from clean ones, by name, rate and seed.

Every flip is drawn from the clean labels. With exact rates, nothing is lost to truncation: 0.4 of 50,000 labels is
20,000, spread over classes and over where they go as evenly as whole numbers allow.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curriculoss.curricula.registry import suggestion

RATED = ("symmetric", "asymmetric", "asymmetric-blocks", "pairflip", "instance")
KINDS = ("clean", *RATED, "human", "matrix")
BLOCK = 5  # classes in a block of asymmetric-blocks
RATE_SPREAD = 0.1  # of the rates of single samples in instance noise, as in Xia et al. 2020
CHUNK = 2**22  # features standardised at once: 32 MB
MATRIX_TOLERANCE = 1e-4  # by which a row may miss 1: float32, and numbers rounded for a CSV file


@dataclass(frozen=True)
class Noise:
    """A noise model. `parse` reads it from text such as `symmetric:0.4`, `str` gives that text back."""

    kind: str
    rate: float = 0.0
    variant: str = ""  # which human labels, or the file of a matrix

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown noise {self.kind!r}{suggestion(str(self.kind), KINDS)}")
        if self.kind in RATED and not 0 <= self.rate <= 1:
            raise ValueError(f"{self.kind} noise expects 0 <= rate <= 1, got rate={self.rate}")
        if self.kind not in RATED and self.rate != 0:
            raise ValueError(f"{self.kind} noise expects no rate, got rate={self.rate}")
        if self.kind not in ("human", "matrix") and self.variant:
            raise ValueError(f"{self.kind} noise expects no variant, got {self.variant!r}")
        if self.kind == "matrix" and not self.variant:
            raise ValueError("matrix noise expects a file, as in matrix:FILE, got none")
        object.__setattr__(self, "rate", float(self.rate) + 0.0)  # −0 is 0

    def __str__(self) -> str:
        value = repr(self.rate).removesuffix(".0") if self.kind in RATED else self.variant
        return f"{self.kind}:{value}" if value else self.kind


def parse(text: str) -> Noise:
    """`clean`, `symmetric:0.4`, `asymmetric:0.4`, `pairflip:0.4`, `human:worse_label`, `matrix:FILE` and so on."""
    if not isinstance(text, str):
        raise TypeError(f"noise expects text such as 'symmetric:0.4', got {text!r}")
    kind, colon, value = text.strip().partition(":")
    if colon and not value:
        raise ValueError(f"noise expects something after the colon, got {text!r}")
    if kind not in RATED:
        return Noise(kind, variant=value)
    try:
        rate = float(value)
    except ValueError:
        raise ValueError(f"{kind} noise expects a rate, as in {kind}:0.4, got {text!r}") from None
    return Noise(kind, rate=rate)


def corrupt(
    noise: Noise | str,
    clean: Tensor,
    num_classes: int,
    *,
    seed: int,
    exact: bool = True,
    flips: Tensor | None = None,
    human: Mapping[str, Tensor] = {},
    default_human: str | None = None,
    inputs: Tensor | None = None,
) -> Tensor:
    """Noisy labels (N,) int64 for the clean ones, which stay as they are; the same for the same seed.

    exact: meet the rate up to rounding, overall and in every class (instance noise: overall). Otherwise each sample is
    drawn by itself.
    flips: (K,), where asymmetric noise takes each class; one that maps to itself is left alone.
    human: labels by variant; `default_human` is the one meant by `human` alone.
    inputs: (N, ...), what instance noise depends on.
    """
    noise = parse(noise) if isinstance(noise, str) else noise
    _check_labels("clean", clean, num_classes)
    if not 0 <= seed < 2**63:
        raise ValueError(f"noise expects 0 <= seed < 2**63, got seed={seed}")
    labels = clean.detach().cpu().long()
    # Hashed, so that a loop that shuffles with the same seed does not repeat our random numbers.
    digest = hashlib.sha256(f"curriculoss noise {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    if noise.kind == "human":
        noisy = _human(noise, labels, num_classes, human, default_human)
    elif noise.kind == "instance":
        noisy = _instance(noise, labels, num_classes, inputs, exact, generator)
    else:
        noisy = _class_conditional(labels, *_leaving(noise, num_classes, flips), exact, generator)
    return noisy.to(clean.device)


def transition_matrix(noise: Noise | str, num_classes: int, *, flips: Tensor | None = None) -> Tensor:
    """P(noisy | clean), (K, K) float64, one row a clean class, of noise that depends on the class alone."""
    noise = parse(noise) if isinstance(noise, str) else noise
    leave, destinations = _leaving(noise, num_classes, flips)
    rows = torch.stack([destinations(label) for label in range(num_classes)])
    return leave[:, None] * rows + torch.diag(1 - leave)


def empirical_matrix(clean: Tensor, noisy: Tensor, num_classes: int) -> Tensor:
    """Shares of the noisy labels in each clean class, (K, K) float64; a class without samples has a row of zeros."""
    _check_labels("clean", clean, num_classes)
    _check_labels("noisy", noisy, num_classes, len(clean))
    cells = clean.long() * num_classes + noisy.long()
    counts = torch.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes).double()
    return counts / counts.sum(1, keepdim=True).clamp(min=1)  # 1: a class without samples


def next_in_group(groups: Tensor) -> Tensor:
    """For each class the next one of the same group, circularly: flips inside super-classes."""
    order = torch.argsort(groups, stable=True)
    flips = torch.empty_like(order)
    for group in order.split(torch.unique(groups, return_counts=True)[1].tolist()):
        flips[group] = group.roll(-1)
    return flips


# Noise that depends on the class alone


def _leaving(noise: Noise, num_classes: int, flips: Tensor | None) -> tuple[Tensor, Callable[[int], Tensor]]:
    """How probably each class is left, (K,), and a function: class -> where those that leave it go, (K,)."""
    if num_classes < (1 if noise.kind == "clean" else 2):
        raise ValueError(f"{noise.kind} noise expects num_classes >= 2, got num_classes={num_classes}")
    classes = torch.arange(num_classes)
    if noise.kind in ("clean", "symmetric"):
        return torch.full((num_classes,), noise.rate, dtype=torch.float64), lambda label: _others(label, num_classes)
    if noise.kind == "matrix":
        return _leaving_by_matrix(_read_matrix(noise.variant, num_classes))
    if noise.kind == "pairflip":
        target = (classes + 1) % num_classes
    elif noise.kind == "asymmetric-blocks":
        if num_classes % BLOCK:
            raise ValueError(f"asymmetric-blocks noise expects a multiple of {BLOCK} classes, got {num_classes}")
        target = next_in_group(classes // BLOCK)
    elif noise.kind == "asymmetric":
        if flips is None:
            raise ValueError("asymmetric noise expects flips, where each class goes, and these data have none")
        _check_labels("flips", flips, num_classes, num_classes)
        target = flips.cpu().long()
    else:
        raise ValueError(f"{noise.kind} noise has no transition matrix of its own; measure it with empirical_matrix")
    leave = noise.rate * (target != classes).double()
    return leave, lambda label: (classes == target[label]).double()


def _others(label: int, num_classes: int) -> Tensor:
    odds = torch.full((num_classes,), 1 / max(1, num_classes - 1), dtype=torch.float64)
    odds[label] = 0
    return odds


def _leaving_by_matrix(matrix: Tensor) -> tuple[Tensor, Callable[[int], Tensor]]:
    off_diagonal = matrix - torch.diag(matrix.diagonal())
    leave = off_diagonal.sum(1)
    return leave, lambda label: off_diagonal[label] / leave.where(leave > 0, 1.0)[label]


def _class_conditional(
    clean: Tensor, leave: Tensor, destinations: Callable[[int], Tensor], exact: bool, generator: torch.Generator
) -> Tensor:
    noisy = clean.clone()
    sizes = torch.bincount(clean, minlength=len(leave))
    counts = _whole(sizes * leave, generator)
    for label, members in enumerate(torch.argsort(clean, stable=True).split(sizes.tolist())):
        if exact:
            left = members[torch.randperm(len(members), generator=generator)[: counts[label]]]
        else:
            left = members[_uniform(len(members), generator) < leave[label]]
        if len(left) == 0:
            continue
        odds = destinations(label)
        if exact:
            noisy[left] = torch.arange(len(odds)).repeat_interleave(_whole(len(left) * odds, generator))
        else:
            noisy[left] = _choose(odds, len(left), generator)
    return noisy


def _whole(expected: Tensor, generator: torch.Generator) -> Tensor:
    """Random whole numbers with these expectations: each is rounded up or down, their sum to the nearest.

    Systematic sampling: put intervals of these lengths in a random order and count the integers, shifted at random,
    that fall into each.
    """
    order = torch.randperm(len(expected), generator=generator)
    ends = expected[order].cumsum(0)
    shift = float(_uniform(1, generator))
    total = float(ends[-1])
    if (total + shift) // 1 != round(total):
        shift = 1 - shift
    counts = torch.empty_like(order)
    counts[order] = torch.diff((ends + shift).floor().long(), prepend=torch.zeros(1, dtype=torch.int64))
    return counts


def _choose(odds: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Random classes (size,), with odds for all of them (K,) or for each (size, K)."""
    cumulative = odds.cumsum(-1)
    draws = _uniform(size, generator).reshape(-1, *[1] * (odds.ndim - 1))
    return torch.searchsorted(cumulative / cumulative[..., -1:], draws, right=True).reshape(size)


def _uniform(size: int, generator: torch.Generator) -> Tensor:
    return torch.rand(size, dtype=torch.float64, generator=generator)


# Noise that depends on more


def _human(
    noise: Noise, clean: Tensor, num_classes: int, human: Mapping[str, Tensor], default_human: str | None
) -> Tensor:
    if not human:
        raise ValueError("human noise expects labels given by people, and these data have none")
    available = ", ".join(human)
    variant = noise.variant or default_human or (available if len(human) == 1 else "")
    if not variant:
        raise ValueError(f"human noise expects a variant, as in human:{next(iter(human))}. Available: {available}")
    if variant not in human:
        raise ValueError(f"unknown human labels {variant!r}{suggestion(variant, human)}")
    _check_labels(f"human {variant}", human[variant], num_classes, len(clean))
    return human[variant].detach().cpu().long().clone()


def _instance(
    noise: Noise, clean: Tensor, num_classes: int, inputs: Tensor | None, exact: bool, generator: torch.Generator
) -> Tensor:
    """Part-dependent noise (Xia et al., NeurIPS 2020), with rates rescaled so that their mean is the one wanted.

    A sample of class y leaves it with a rate of its own, from a normal distribution truncated to [0, 1], and goes to
    the class drawn from softmax(x W_y) over the others, with standardised features x and random normal W_y.
    """
    if inputs is None:
        raise ValueError("instance noise expects inputs, and these data give none")
    if len(inputs) != len(clean):
        raise ValueError(f"instance noise expects as many inputs as labels, {len(clean)}, got {len(inputs)}")
    if num_classes < 2:
        raise ValueError(f"instance noise expects num_classes >= 2, got num_classes={num_classes}")
    if len(clean) == 0:
        return clean.clone()
    rates = _sample_rates(noise.rate, len(clean), generator)
    left = _whole(rates, generator) > 0 if exact else _uniform(len(clean), generator) < rates
    scores = _project(inputs.detach().reshape(len(clean), -1), clean, left, num_classes, generator)
    scores.scatter_(1, clean[left, None], -torch.inf)
    noisy = clean.clone()
    noisy[left] = _choose(torch.softmax(scores, 1), len(scores), generator)
    return noisy


def _sample_rates(rate: float, size: int, generator: torch.Generator) -> Tensor:
    low, high = torch.special.ndtr(torch.tensor([-rate, 1 - rate], dtype=torch.float64) / RATE_SPREAD)
    quantiles = low + (high - low) * _uniform(size, generator)
    rates: Tensor = (rate + RATE_SPREAD * torch.special.ndtri(quantiles)).clamp(0, 1)  # rounding may leave the ends
    mean = float(rates.mean())
    if mean > rate:
        return rates * (rate / mean)
    kept = (1 - rate) / (1 - mean)  # of 1 − rates, which stay in [0, 1] too
    return rates * kept + (1 - kept)


def _project(features: Tensor, clean: Tensor, left: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
    """x W_y of the samples that leave their class y, some features at a time."""
    rows = [(clean[left] == label).nonzero().squeeze(1) for label in range(num_classes)]
    scores = torch.zeros(int(left.sum()), num_classes, dtype=torch.float64)
    for some in features.split(max(1, CHUNK // len(features)), dim=1):
        part = some.cpu().double()
        spread, mean = torch.std_mean(part, 0, correction=0)
        if not bool(spread.isfinite().all()):
            raise ValueError("instance noise expects finite inputs, got NaN or infinity")
        part = (part[left] - mean) / spread.where(spread > 0, 1.0)
        for own in rows:
            if len(own):
                weight = torch.randn(part.shape[1], num_classes, dtype=torch.float64, generator=generator)
                scores[own] += part[own] @ weight
    return scores


# Files


def save_labels(path: str | os.PathLike[str], noisy: Tensor) -> None:
    """Write labels as an int64 array (`.npy`) or one a line (`.csv`, `.txt`). The file is whole or not there."""
    import numpy as np

    path = Path(path)
    if path.suffix not in (".npy", ".csv", ".txt"):
        raise ValueError(f"labels are saved as .npy, .csv or .txt, got {path}")
    array = noisy.detach().cpu().long().numpy()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if path.suffix == ".npy":
                np.save(file, array)
            else:
                np.savetxt(file, array, fmt="%d")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_labels(path: str | os.PathLike[str], *, length: int | None = None, num_classes: int | None = None) -> Tensor:
    """Read labels written by `save_labels`, or by anyone: (N,) int64, checked against what is known of them."""
    array = _read_array(Path(path))
    labels = array.long()
    if labels.ndim != 1 or not bool((labels == array).all()):
        raise ValueError(f"{path}: expected one whole number a label, got shape {tuple(array.shape)}, {array.dtype}")
    top = int(labels.max()) + 1 if len(labels) else 1
    _check_labels(str(path), labels, max(1, top) if num_classes is None else num_classes, length)
    return labels


def _read_matrix(file: str, num_classes: int) -> Tensor:
    matrix = _read_array(Path(file)).double()
    if matrix.shape != (num_classes, num_classes):
        raise ValueError(f"{file}: expected a {num_classes} x {num_classes} matrix, got shape {tuple(matrix.shape)}")
    if not bool((matrix >= 0).all()):
        raise ValueError(f"{file}: expected probabilities >= 0, got {float(matrix.min())}")
    off = (matrix.sum(1) - 1).abs()
    if not bool((off <= MATRIX_TOLERANCE).all()):
        row = int(off.argmax())
        raise ValueError(f"{file}: expected rows that sum to 1, got {float(matrix[row].sum()):g} in row {row}")
    return matrix / matrix.sum(1, keepdim=True)


def _read_array(path: Path) -> Tensor:
    """The array in a `.npy`, `.npz` (the only one), `.csv` or `.txt` file; nothing in it is ever run."""
    import numpy as np

    array: Any
    try:
        if path.suffix in (".npy", ".npz"):
            with path.open("rb") as file:
                array = np.load(file, allow_pickle=False)
                if not isinstance(array, np.ndarray):
                    if len(array.files) != 1:
                        raise ValueError(f"expected one array, got {len(array.files)}")
                    array = array[array.files[0]]
        elif path.suffix in (".csv", ".txt"):
            lines = path.read_text(encoding="utf-8").replace(",", " ").splitlines()
            rows = [[float(x) for x in line.split()] for line in lines if line.strip()]
            if len({len(row) for row in rows}) > 1:
                raise ValueError("expected as many numbers in every line")
            array = np.array(rows)
            array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        else:
            raise ValueError("expected a .npy, .npz, .csv or .txt file")
        if array.dtype.kind not in "iuf":
            raise ValueError(f"expected numbers, got {array.dtype}")
        return torch.from_numpy(np.ascontiguousarray(array, dtype=float if array.dtype.kind == "f" else np.int64))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (ValueError, OSError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: cannot be read ({str(error).splitlines()[0] if str(error) else 'empty'})") from None


def _check_labels(name: str, labels: Tensor, num_classes: int, length: int | None = None) -> None:
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name} labels: expected integers of shape (N,), got {labels.dtype} {tuple(labels.shape)}")
    if length is not None and len(labels) != length:
        raise ValueError(f"{name} labels: expected {length}, got {len(labels)}")
    if len(labels):
        low, high = (int(x) for x in labels.long().aminmax())
        if low < 0 or high >= num_classes:
            raise ValueError(f"{name} labels: expected 0 to {num_classes - 1}, got {low} to {high}")
