"""Label noise: noisy labels drawn from clean ones, by name, rate and seed.

With exact rates (the default) nothing is lost to truncation: of 50,000 labels at a rate of 0.4, 20,000 are wrong,
spread over the classes, and over the classes that they are moved to, as evenly as whole numbers allow.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curriculoss._checks import check_known, checked_integer
from curriculoss._text import first_line
from curriculoss.errors import InvalidTypeError, InvalidValueError

RATED = ("symmetric", "asymmetric", "asymmetric-blocks", "pairflip", "instance")
NOISE_KINDS = ("clean", *RATED, "human", "matrix")
CLASSES_PER_BLOCK = 5  # in asymmetric-blocks noise
RATE_SPREAD = 0.1  # standard deviation of the samples' rates in instance noise, as in Xia et al. 2020
NUMBERS_AT_ONCE = 2**22  # features standardised in one step: 32 MB
ROW_TOLERANCE = 1e-4  # by which a matrix's row may miss 1: float32, and numbers rounded for a CSV file


@dataclass(frozen=True)
class Noise:
    """A noise model. `parse` reads it from text such as `symmetric:0.4`, `str` gives that text back.

    Attributes:
        kind: One of `NOISE_KINDS`.
        rate: The share of wrong labels, for the kinds in `RATED`.
        variant: Which human labels, or the file of a matrix.
    """

    kind: str
    rate: float = 0.0
    variant: str = ""

    def __post_init__(self) -> None:
        check_known("noise", self.kind, NOISE_KINDS)
        if self.kind in RATED and not 0 <= self.rate <= 1:
            raise InvalidValueError(f"{self.kind} noise expects 0 <= rate <= 1, got rate={self.rate}")
        if self.kind not in RATED and self.rate != 0:
            raise InvalidValueError(f"{self.kind} noise expects no rate, got rate={self.rate}")
        if self.kind not in ("human", "matrix") and self.variant:
            raise InvalidValueError(f"{self.kind} noise expects no variant, got {self.variant!r}")
        if self.kind == "matrix" and not self.variant:
            raise InvalidValueError("matrix noise expects a file, as in matrix:FILE, got none")
        object.__setattr__(self, "rate", float(self.rate) + 0.0)  # −0 is 0

    def __str__(self) -> str:
        value = repr(self.rate).removesuffix(".0") if self.kind in RATED else self.variant
        return f"{self.kind}:{value}" if value else self.kind


def parse(text: str) -> Noise:
    """Read a noise model from text.

    Args:
        text: `clean`, `symmetric:0.4`, `asymmetric:0.4`, `asymmetric-blocks:0.4`, `pairflip:0.4`, `instance:0.4`,
            `human`, `human:worse_label` or `matrix:FILE`.

    Returns:
        The noise model.

    Raises:
        InvalidValueError: The text names no noise, or lacks its rate or file.

    Example:
        >>> parse("symmetric:0.4")
        Noise(kind='symmetric', rate=0.4, variant='')
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"noise expects text such as 'symmetric:0.4', got {text!r}")
    kind, colon, value = text.strip().partition(":")
    if colon and not value:
        raise InvalidValueError(f"noise expects something after the colon, got {text!r}")
    if kind not in RATED:
        return Noise(kind, variant=value)
    try:
        rate = float(value)
    except ValueError:
        raise InvalidValueError(f"{kind} noise expects a rate, as in {kind}:0.4, got {text!r}") from None
    return Noise(kind, rate=rate)


def corrupt(
    noise: Noise | str, clean: Tensor, num_classes: int, *, seed: int, exact: bool = True, flips: Tensor | None = None,
    human: Mapping[str, Tensor] = {}, default_human: str | None = None, inputs: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Draw noisy labels for clean ones.

    Args:
        noise: A noise model, or text such as `symmetric:0.4`; see `parse`.
        clean: (N,) integer labels; they are not changed.
        num_classes: K.
        seed: The same seed gives the same labels on every machine, whatever torch's own random state is.
        exact: Meet the rate up to rounding, overall and in every class (instance noise: overall). Otherwise each
            sample is drawn independently.
        flips: (K,), the class that asymmetric noise moves each class to; a class that maps to itself stays clean.
        human: Labels given by people, by variant.
        default_human: The variant that `human` alone means.
        inputs: (N, ...), which instance noise depends on.

    Returns:
        (N,) int64 labels on the device of `clean`.

    Raises:
        InvalidValueError: The labels are not in 0 to K − 1, or the noise needs something that is not given.

    Example:
        >>> corrupt("pairflip:0.5", torch.tensor([0, 0, 1, 1, 2, 2]), 3, seed=0)
        tensor([1, 0, 1, 2, 2, 0])
    """
    noise = parse(noise) if isinstance(noise, str) else noise
    _check_labels("clean", clean, num_classes)
    seed = checked_integer("noise", "seed", seed, 0, 2**63 - 1)
    labels = clean.detach().cpu().long()
    # Hashed, so that a loop that shuffles with the same seed does not repeat our random numbers.
    digest = hashlib.sha256(f"curriculoss noise {seed}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    if noise.kind == "human":
        noisy = _human(noise, labels, num_classes, human, default_human)
    elif noise.kind == "instance":
        noisy = _instance(noise, labels, num_classes, inputs, exact=exact, generator=generator)
    else:
        noisy = _class_conditional(labels, *_rates_and_odds(noise, num_classes, flips), exact, generator)
    return noisy.to(clean.device)


def transition_matrix(noise: Noise | str, num_classes: int, *, flips: Tensor | None = None) -> Tensor:
    """Return the probabilities of noisy labels given clean ones, for noise that depends on the class alone.

    Args:
        noise: A noise model other than human and instance noise, or its text.
        num_classes: K.
        flips: As in `corrupt`.

    Returns:
        (K, K) float64, one row per clean class.

    Raises:
        InvalidValueError: The noise depends on more than the class.

    Example:
        >>> transition_matrix("symmetric:0.5", 3).tolist()
        [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
    """
    noise = parse(noise) if isinstance(noise, str) else noise
    wrong, odds = _rates_and_odds(noise, num_classes, flips)
    return wrong[:, None] * odds + torch.diag(1 - wrong)


def empirical_matrix(clean: Tensor, noisy: Tensor, num_classes: int) -> Tensor:
    """Return the shares of the noisy labels in each clean class.

    Args:
        clean: (N,) integer labels.
        noisy: (N,) integer labels.
        num_classes: K.

    Returns:
        (K, K) float64, one row per clean class; a class without samples has a row of zeros.

    Example:
        >>> empirical_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2).tolist()
        [[0.5, 0.5], [0.0, 1.0]]
    """
    _check_labels("clean", clean, num_classes)
    _check_labels("noisy", noisy, num_classes, len(clean))
    cells = clean.long() * num_classes + noisy.long()
    counts = torch.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes).double()
    return counts / counts.sum(1, keepdim=True).clamp(min=1)  # 1: a class without samples


def next_in_group(groups: Tensor) -> Tensor:
    """For each class the next one of the same group, circularly; (K,) → (K,). Flips inside super-classes."""
    order = torch.argsort(groups, stable=True)
    flips = torch.empty_like(order)
    for group in order.split(torch.unique(groups, return_counts=True)[1].tolist()):
        flips[group] = group.roll(-1)
    return flips


# Noise that depends on the class alone


def _rates_and_odds(noise: Noise, num_classes: int, flips: Tensor | None) -> tuple[Tensor, Tensor]:
    """The probability that a label of each class is wrong, (K,), and the distribution of its wrong labels, (K, K)."""
    if num_classes < (1 if noise.kind == "clean" else 2):
        raise InvalidValueError(f"{noise.kind} noise expects num_classes >= 2, got num_classes={num_classes}")
    classes = torch.arange(num_classes)
    if noise.kind in ("clean", "symmetric"):
        odds = torch.full((num_classes, num_classes), 1 / max(1, num_classes - 1), dtype=torch.float64)
        return torch.full((num_classes,), noise.rate, dtype=torch.float64), odds.fill_diagonal_(0)
    if noise.kind == "matrix":
        odds = _read_matrix(noise.variant, num_classes).fill_diagonal_(0)
        wrong = odds.sum(1)
        return wrong, odds / wrong.where(wrong > 0, 1.0)[:, None]
    if noise.kind == "pairflip":
        target = (classes + 1) % num_classes
    elif noise.kind == "asymmetric-blocks":
        if num_classes % CLASSES_PER_BLOCK:
            expected = f"a multiple of {CLASSES_PER_BLOCK} classes"
            raise InvalidValueError(f"asymmetric-blocks noise expects {expected}, got {num_classes}")
        target = next_in_group(classes // CLASSES_PER_BLOCK)
    elif noise.kind == "asymmetric":
        if flips is None:
            raise InvalidValueError("asymmetric noise expects flips, where each class goes, and these data have none")
        _check_labels("flips", flips, num_classes, num_classes)
        target = flips.cpu().long()
    else:
        raise InvalidValueError(f"{noise.kind} noise has no transition matrix of its own; see empirical_matrix")
    return noise.rate * (target != classes).double(), (classes == target[:, None]).double()


def _class_conditional(clean: Tensor, wrong: Tensor, odds: Tensor, exact: bool, generator: torch.Generator) -> Tensor:
    noisy = clean.clone()
    sizes = torch.bincount(clean, minlength=len(wrong))
    counts = _round_at_random(sizes * wrong, generator)
    for label, members in enumerate(torch.argsort(clean, stable=True).split(sizes.tolist())):
        if exact:
            moved = members[torch.randperm(len(members), generator=generator)[: counts[label]]]
        else:
            moved = members[_uniform(len(members), generator) < wrong[label]]
        if len(moved) and exact:
            shares = _round_at_random(len(moved) * odds[label], generator)
            noisy[moved] = torch.arange(len(wrong)).repeat_interleave(shares)
        elif len(moved):
            noisy[moved] = _choose(odds[label], len(moved), generator)
    return noisy


def _round_at_random(expected: Tensor, generator: torch.Generator) -> Tensor:
    """Random integers with these expectations: each is rounded up or down, their sum to the nearest.

    Systematic sampling: intervals of these lengths are put in a random order, and the integers, shifted at random, that
    fall into each are counted.
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
    """Random classes (size,); the odds are the same for all (K,) or one row per draw (size, K)."""
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
        raise InvalidValueError("human noise expects labels given by people, and these data have none")
    first, available = next(iter(human)), ", ".join(human)
    variant = noise.variant or default_human or (first if len(human) == 1 else "")
    if not variant:
        raise InvalidValueError(f"human noise expects a variant, as in human:{first}. Available: {available}")
    check_known("human labels", variant, human)
    _check_labels(f"human {variant}", human[variant], num_classes, len(clean))
    return human[variant].detach().cpu().long().clone()


def _instance(
    noise: Noise, clean: Tensor, num_classes: int, inputs: Tensor | None, *, exact: bool, generator: torch.Generator
) -> Tensor:
    """Part-dependent noise (Xia et al., NeurIPS 2020), with rates rescaled to the wanted mean.

    The label of a sample of class y is wrong with a rate of its own, from a normal distribution truncated to [0, 1].
    The wrong label is drawn from softmax(x W_y) over the other classes, with standardised features x and random
    normal W_y.
    """
    if inputs is None:
        raise InvalidValueError("instance noise expects inputs, and these data give none")
    if len(inputs) != len(clean):
        raise InvalidValueError(f"instance noise expects as many inputs as labels, {len(clean)}, got {len(inputs)}")
    if num_classes < 2:
        raise InvalidValueError(f"instance noise expects num_classes >= 2, got num_classes={num_classes}")
    if len(clean) == 0:
        return clean.clone()
    rates = _sample_rates(noise.rate, len(clean), generator)
    left = _round_at_random(rates, generator) > 0 if exact else _uniform(len(clean), generator) < rates
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
    """x W_y of the samples whose label becomes wrong, some features at a time."""
    rows = [(clean[left] == label).nonzero().squeeze(1) for label in range(num_classes)]
    scores = torch.zeros(int(left.sum()), num_classes, dtype=torch.float64)
    for some in features.split(max(1, NUMBERS_AT_ONCE // len(features)), dim=1):
        part = some.cpu().double()
        spread, mean = torch.std_mean(part, 0, correction=0)
        if not bool(spread.isfinite().all()):
            raise InvalidValueError("instance noise expects finite inputs, got NaN or infinity")
        part = (part[left] - mean) / spread.where(spread > 0, 1.0)
        for own in rows:
            if len(own):
                weight = torch.randn(part.shape[1], num_classes, dtype=torch.float64, generator=generator)
                scores[own] += part[own] @ weight
    return scores


def _read_matrix(file: str, num_classes: int) -> Tensor:
    matrix = torch.from_numpy(_read_array(Path(file)))
    if (shape := tuple(matrix.shape)) != (num_classes, num_classes):
        raise InvalidValueError(f"{file}: expected a {num_classes} x {num_classes} matrix, got shape {shape}")
    if not bool((matrix >= 0).all()):
        raise InvalidValueError(f"{file}: expected probabilities >= 0, got {float(matrix.min())}")
    off = (matrix.sum(1) - 1).abs()
    if not bool((off <= ROW_TOLERANCE).all()):
        row = int(off.argmax())
        raise InvalidValueError(f"{file}: expected rows that sum to 1, got {float(matrix[row].sum()):g} in row {row}")
    return matrix / matrix.sum(1, keepdim=True)


def _read_array(path: Path) -> Any:
    """The float64 array in a `.npy`, `.npz` (the only one), `.csv` or `.txt` file; nothing in it is ever run."""
    import numpy as np

    try:
        if path.suffix in (".npy", ".npz"):
            with path.open("rb") as file:
                found = np.load(file, allow_pickle=False)
                arrays = [found] if isinstance(found, np.ndarray) else list(found.values())
            if len(arrays) != 1:
                raise InvalidValueError(f"expected one array, got {len(arrays)}")
            array = arrays[0]
        elif path.suffix in (".csv", ".txt"):
            lines = path.read_text(encoding="utf-8-sig").replace(",", " ").splitlines()
            rows = [[float(x) for x in line.split()] for line in lines if line.strip()]
            if len({len(row) for row in rows}) > 1:
                raise InvalidValueError("expected as many numbers in every line")
            array = np.array(rows)
        else:
            raise InvalidValueError("expected a .npy, .npz, .csv or .txt file")
        if array.dtype.kind not in "iuf":
            raise InvalidValueError(f"expected numbers, got {array.dtype}")
        return np.ascontiguousarray(array, dtype=np.float64)
    except FileNotFoundError:
        raise InvalidValueError(f"{path}: no such file") from None
    except Exception as error:  # readers of broken files raise whatever they stumble on
        raise InvalidValueError(f"{path}: cannot be read ({first_line(error) if str(error) else 'empty'})") from None


def _check_labels(name: str, labels: Tensor, num_classes: int, length: int | None = None) -> None:
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        got = f"{labels.dtype} {tuple(labels.shape)}"
        raise InvalidValueError(f"{name} labels: expected integers of shape (N,), got {got}")
    if length is not None and len(labels) != length:
        raise InvalidValueError(f"{name} labels: expected {length}, got {len(labels)}")
    if len(labels):
        low, high = (int(x) for x in labels.long().aminmax())
        if low < 0 or high >= num_classes:
            raise InvalidValueError(f"{name} labels: expected 0 to {num_classes - 1}, got {low} to {high}")
