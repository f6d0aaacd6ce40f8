"""Checks of arguments; the errors say what was expected and what was given."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from curriculoss._text import suggestion
from curriculoss.errors import InvalidTypeError, InvalidValueError

# Hyperparameters outside this range overflow when squared or inverted, or are integers that torch cannot take.
SMALLEST, LARGEST = 1e-30, 1e18


def type_name(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def type_and_shape(value: object) -> str:
    return f"{type_name(value)} {tuple(value.shape)}" if isinstance(value, Tensor) else type_name(value)


def check_logits(logits: Tensor, target: Tensor, caller: str, soft: bool = False) -> None:
    """Refuse logits and targets (class indices, or probabilities if `soft`) whose types, shapes or devices differ."""
    if not soft:
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            raise InvalidTypeError(f"{caller} expects floating-point logits, got {type_name(logits)}")
        check_target(target, caller)
    elif not isinstance(logits, Tensor) or target.shape != logits.shape or not logits.dim():
        raise InvalidValueError(
            f"{caller} expects int64 class indices, or probabilities in the shape of the logits, as target, "
            f"got logits {type_and_shape(logits)} and target {type_and_shape(target)}"
        )
    shape = logits.shape
    num_samples, num_classes, *axes = shape if len(shape) > 1 else (0, *shape, 0)
    if not soft and (not shape or target.shape != ((num_samples, *axes) if len(shape) > 1 else ())):
        raise InvalidValueError(
            f"{caller} expects logits (N, K), (N, K, d1, ...) or (K,) and a target of that shape without K, "
            f"got logits {tuple(shape)} and target {tuple(target.shape)}"
            + (" (for one-hot labels give target.argmax(1))" if target.shape == shape else "")
        )
    if logits.device != target.device:
        where = f"{logits.device} and {target.device}"
        raise InvalidValueError(f"{caller} expects logits and target on one device, got {where}")
    check_num_classes(num_classes)


def check_target(target: Tensor, caller: str) -> None:
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        raise InvalidTypeError(f"{caller} expects int64 class indices as target, got {type_name(target)}")


def check_known(kind: str, word: str, known: Collection[str], where: str = "") -> None:
    """Refuse a word that is not among the known ones; the error gives the nearest of them, and all."""
    if word not in known:
        raise InvalidValueError(f"unknown {kind} {word!r}{where}{suggestion(str(word), known)}")


def check_num_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise InvalidValueError(f"a margin needs at least 2 classes, got K={num_classes}")


def is_finite(value: Any) -> bool:
    """Whether it is a finite number, also for a symbolic number of torch.compile."""
    number = isinstance(value, numbers.Real)
    return number and -math.inf < value < math.inf


def check_number(
    name: str, symbol: str, value: Any, constraints: str = "a finite number", holds: bool = True, *, least: float = 0.0
) -> None:
    """Refuse a value that is not a finite number, does not meet the constraints or is too small or too large."""
    if is_finite(value) and holds and value != 0 and not least <= abs(value) <= LARGEST:
        constraints, holds = f"a number from {least:g} to {LARGEST:g} in size", False
    if not is_finite(value) or not holds:
        raise InvalidValueError(f"{name} expects {constraints}, got {symbol}={value!r:.60}")


def check_given(caller: str, expected: str, value: object, holds: bool) -> None:
    """Refuse what is not as expected: numbers and text as wrong values, everything else as a wrong type."""
    if not holds:
        error = InvalidValueError if isinstance(value, (numbers.Real, str)) else InvalidTypeError
        raise error(f"{caller} expects {expected}, got {value!r:.80}")


def checked_integer(caller: str, name: str, value: int, least: int, most: float = LARGEST) -> int:
    """A plain integer, also if it is given as one of numpy or torch."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"{caller} expects an integer {name} >= {least}, got {name}={value!r}") from None
    if not least <= number <= most:
        limit = f"{name} >= {least}" if number < least else f"{name} <= {most:g}"
        raise InvalidValueError(f"{caller} expects {limit}, got {name}={number!s:.30}")
    return number
