"""Labels and features of a user's own data: checked once, with the row and column of what is wrong."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from curriculoss.data.files import DataError

LOSS = 1e-3  # of a column's range, at most, by rounding

Column = tuple[str, NDArray[Any]]  # what to call it in an error, and its values


def encode(
    train: Column, others: Sequence[Column] = (), names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Class names, and int64 labels of the training column followed by those of the others.

    Labels are the integers 0 … K−1, or strings or any other integers, which are classes in sorted order unless `names`
    gives another. Each class must occur in the training labels, and there must be two.
    """
    columns = [(what, _flat(what, values)) for what, values in (train, *others)]
    what, first = columns[0]
    texts = {labels.dtype.kind == "U" for _, labels in columns}
    if len(texts) > 1:
        raise DataError(f"{what}: expected strings in all label columns or in none")
    if names is not None and len(set(names)) < len(names):
        raise DataError(f"{what}: expected class names that differ, got {len(names)} with repetitions")
    if texts == {True}:
        names = sorted(set(first.tolist())) if names is None else names
        expect_distinct(what, names)
        columns = [(what, _positions(what, labels, names)) for what, labels in columns]
    elif names is None and not np.array_equal(known := np.unique(first), np.arange(len(known))):
        names = [str(label) for label in known]
        columns = [(what, _positions(what, labels.astype(str), names)) for what, labels in columns]
    count = max(int(first.max()) + 1, 2) if names is None else len(names)
    for what, labels in columns:
        if len(wrong := np.flatnonzero((labels < 0) | (labels >= count))):
            raise DataError(f"{what}: expected labels from 0 to {count - 1}, got {labels[wrong[0]]} in row {wrong[0]}")
    what, first = columns[0]
    used = np.unique(first)
    if len(used) < 2:
        only = first[0] if names is None else repr(names[first[0]])
        raise DataError(f"{what}: expected at least two classes, got only label {only}")
    if len(used) < count:
        empty = int(np.argmax(np.append(used, count) != np.arange(len(used) + 1)))
        name = str(empty) if names is None else repr(names[empty])
        raise DataError(f"{what}: class {name} has no training samples; expected some of each of the {count} classes")
    return tuple(names or map(str, range(count))), [torch.from_numpy(labels) for _, labels in columns]


def expect_distinct(what: str, names: Iterable[str]) -> None:
    """Also without the spaces around them."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.strip(), name)) != name:
            raise DataError(f"{what}: labels {other!r} and {name!r} differ by spaces only; take them away")


def _positions(what: str, labels: NDArray[Any], names: Sequence[str]) -> NDArray[np.int64]:
    position = {name: number for number, name in enumerate(names)}
    if unknown := sorted(set(labels.tolist()) - set(position)):
        raise DataError(f"{what}: label {unknown[0]!r} is not a class of the training samples")
    return np.array([position[label] for label in labels.tolist()], dtype=np.int64)


def _flat(what: str, values: NDArray[Any]) -> NDArray[Any]:
    """One-dimensional int64 or strings."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"{what}: expected one label a sample, got shape {values.shape}")
    if len(values) == 0:
        raise DataError(f"{what}: expected at least one sample, got none")
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{what}: expected text in UTF-8, got byte {error.object[error.start]:#x}") from error
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = (np.abs(values) < 2**53) & (values == np.floor(values))
        if not whole.all():
            row = int(np.argmin(whole))
            raise DataError(f"{what}: expected integers or strings, got {values[row]} in row {row}")
    elif values.dtype.kind not in "biu":
        raise DataError(f"{what}: expected integers or strings, got type {values.dtype}")
    if values.dtype == np.uint64 and values.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what}: expected labels from 0 to K − 1, got {values.max()}")
    return values.astype(np.int64)


def features(what: str, values: NDArray[Any], columns: Sequence[str] | None = None) -> Tensor:
    """Inputs: uint8 images stay so, all else becomes float32, finite. Shapes (N, D), (N, H, W), (N, H, W, C), NCHW."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what}: expected numbers, got type {values.dtype}")
    if not 1 <= values.ndim <= 4 or 0 in values.shape:
        raise DataError(f"{what}: expected (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W), got shape {values.shape}")
    if values.dtype != np.uint8 or values.ndim < 3:
        given = values
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, which is refused below
            values = values.astype(np.float32, copy=False)
        _finite(what, given, values, columns)
        _told_apart(what, given, values, columns)
    inputs = torch.from_numpy(np.ascontiguousarray(values))
    if inputs.ndim in (1, 3):
        return inputs.unsqueeze(1)
    if inputs.ndim == 4 and inputs.shape[1] > 4:
        if inputs.shape[3] > 4:
            raise DataError(f"{what}: expected at most 4 channels, first or last, got shape {tuple(inputs.shape)}")
        return inputs.permute(0, 3, 1, 2)
    return inputs


def _told_apart(what: str, given: NDArray[Any], values: NDArray[np.float32], columns: Sequence[str] | None) -> None:
    """Numbers such as times in seconds may differ in digits that float32 does not keep."""
    if given.ndim != 2 or given.dtype.itemsize <= 4:
        return
    for number in range(given.shape[1]):
        column = given[:, number].astype(np.float64)
        range_of, lost = np.ptp(column), np.abs(column - values[:, number]).max()
        if lost > LOSS * range_of > 0:  # numbers that are all the same need not be told apart
            name = repr(columns[number]) if columns else number
            raise DataError(
                f"{what}: numbers of about {column.mean():.3g} differ by no more than {range_of:.3g} in column {name}, "
                "which float32 cannot tell apart; subtract their mean"
            )


def _finite(what: str, given: NDArray[Any], values: NDArray[np.float32], columns: Sequence[str] | None) -> None:
    for start in range(0, len(values), 4096):
        bad = np.argwhere(~np.isfinite(values[start : start + 4096]))
        if len(bad):
            row, *rest = (int(number) for number in bad[0])
            value = given[(start + row, *rest)]
            column = repr(columns[rest[0]]) if columns and rest else ", ".join(map(str, rest)) or "0"
            raise DataError(f"{what}: expected finite numbers, got {value} in row {start + row}, column {column}")
