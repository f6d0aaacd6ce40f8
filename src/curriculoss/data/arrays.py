"""A user's own arrays: labels and features, checked, and .npz files of them. Errors name the row and the column."""

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import reading
from curriculoss.errors import DataError

ARRAY_NAMES = ("x", "y", "x_test", "y_test", "y_clean", "class_names")  # in an .npz file; the first two are needed
ROUNDING = 1e-3  # of a column's range: the largest error by rounding to float32

Array = NDArray[Any]
NamedColumn = tuple[str, Array]  # what to call it in an error, and its values


def read_arrays(path: Path, test: Path | None = None) -> Dataset:
    """A data set from arrays. `test` is another .npz, whose x and y are the test samples."""
    found = _read(path)
    if test is not None:
        found |= {f"{name}_test": array for name, array in _read(test).items() if name in ("x", "y")}
    for name, partner in (("x", "y"), ("y", "x"), ("x_test", "y_test"), ("y_test", "x_test")):
        if name not in found and (partner in found or name in "xy"):
            expected = "arrays x and y, with both or none of x_test and y_test"
            raise DataError(f"{path}: expected {expected}; {name} is missing")
    for labels, samples in (("y", "x"), ("y_test", "x_test"), ("y_clean", "x")):
        if labels in found and found[labels].shape[:1] != found[samples].shape[:1]:
            got = f"shapes {found[labels].shape} and {found[samples].shape}"
            raise DataError(f"{path}: expected as many samples in {labels} as in {samples}, got {got}")
    names = None
    if "class_names" in found:
        names = [str(name) for name in _text(f"{path}: class_names", found["class_names"]).ravel().tolist()]
    first, *others = [(f"{path}: {name}", found[name]) for name in ("y", "y_clean", "y_test") if name in found]
    class_names, (target, *rest) = encode(first, others, names)
    train = Split(features(f"{path}: x", found["x"]), target, rest.pop(0) if "y_clean" in found else None)
    held = Split(features(f"{path}: x_test", found["x_test"]), rest.pop()) if rest else None
    if held and held.described != train.described:
        raise DataError(f"{path}: expected x_test to be like x, {train.described}, got {held.described}")
    return Dataset(path.stem, train, held, class_names)


def read_array_inputs(path: Path) -> Tensor:
    """The array x of an .npz file."""
    found = _read(path, ["x"])
    if not found:
        raise DataError(f"{path}: expected an array x")
    return features(f"{path}: x", found["x"])


def _read(path: Path, names: Sequence[str] = ARRAY_NAMES) -> dict[str, Array]:
    """The arrays of these names; nothing is unpickled."""
    found = {}
    with reading(path, "a .npz file"):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            packed = sum(entry.compress_size for entry in archive.infolist())
        if size > 1 << 30 and size > 100 * packed:
            raise DataError(f"{path}: {packed} bytes that unpack to {size}; refused as a zip bomb")
        with np.load(path, allow_pickle=False) as archive:
            for name in (each for each in names if each in archive.files):
                with reading(f"{path}: {name}", f"numbers or strings (try {name}.astype(str))"):
                    found[name] = archive[name]
    return found


def encode(
    train: NamedColumn, others: Sequence[NamedColumn] = (), names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Class names, and int64 labels of the training column followed by those of the others.

    Without `names`, the classes are the labels that occur, sorted. With `names`, labels are these names or their
    positions. Each class must occur in the training labels, and there must be two.
    """
    columns = [(what, _flat(what, values)) for what, values in (train, *others)]
    what, first = columns[0]
    if len({labels.dtype.kind for _, labels in columns}) > 1:
        raise DataError(f"{what}: expected strings in all label columns or in none")
    codes = np.unique(first) if names is None else np.array(names)
    class_names = tuple(map(str, codes.tolist()))
    expect_distinct(what, class_names)
    if names is not None and first.dtype.kind != "U":
        codes = np.arange(len(names))
    order, found = np.argsort(codes), []
    for where, labels in columns:
        if not (known := np.isin(labels, codes)).all():
            row = int(known.argmin())
            expected = f"one of the {len(codes)} classes of the training samples"
            raise DataError(f"{where}: expected {expected}, got {labels[row].item()!r} in row {row}")
        found.append(torch.from_numpy(order[np.searchsorted(codes, labels, sorter=order)]))
    counts = found[0].bincount(minlength=len(codes))
    if counts.count_nonzero() < 2:
        raise DataError(f"{what}: expected at least two classes, got only label {class_names[int(found[0][0])]!r}")
    if not counts.all():
        raise DataError(f"{what}: class {class_names[int(counts.argmin())]!r} has no training samples")
    return class_names, found


def expect_distinct(what: str, names: Iterable[str]) -> None:
    """Refuse names that differ only by spaces around them, or not at all."""
    seen: dict[str, str] = {}
    for name in names:
        if (key := name.strip()) in seen:
            raise DataError(f"{what}: labels {seen[key]!r} and {name!r} differ by spaces only, if at all; rename one")
        seen[key] = name


def _flat(what: str, values: Array) -> Array:
    """One-dimensional int64 or strings."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(f"{what}: expected one label per sample, got shape {values.shape}")
    if len(values) == 0:
        raise DataError(f"{what}: expected at least one sample, got none")
    values = _text(what, values)
    if values.dtype.kind == "U":
        if not (there := np.char.strip(values) != "").all():
            raise DataError(f"{what}: expected a label for every sample, got none in row {there.argmin()}")
        return values
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what}: expected integers or strings, got type {values.dtype}")
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and numbers that are too large become others
        labels = values.astype(np.int64)
        exact = (labels == values) & ((values.dtype.kind != "f") | (np.abs(values) < 2**53))
    if not exact.all():
        row = exact.argmin()
        raise DataError(f"{what}: expected integers or strings, got {values[row]} in row {row}")
    return labels


def _text(what: str, values: Array) -> Array:
    """Bytes as text; other arrays as they are."""
    with reading(what, "text in UTF-8"):
        return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def features(what: str, values: Array, columns: Sequence[str] | None = None) -> Tensor:
    """Inputs from an array: uint8 images stay uint8, all else becomes float32, finite.

    Shapes are (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W).
    """
    if values.dtype.kind not in "biuf":
        raise DataError(f"{what}: expected numbers, got type {values.dtype}")
    if not 1 <= values.ndim <= 4 or 0 in values.shape:
        raise DataError(f"{what}: expected (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W), got shape {values.shape}")
    if values.dtype != np.uint8 or values.ndim < 3:
        given = values
        with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, which is refused below
            values = values.astype(np.float32, copy=False)
        _expect_finite(what, given, values, columns)
        _expect_resolved(what, given, values, columns)
    inputs = torch.from_numpy(np.ascontiguousarray(values))
    if inputs.ndim in (1, 3):
        return inputs.unsqueeze(1)
    if inputs.ndim == 4 and inputs.shape[1] > 4:
        if inputs.shape[3] > 4:
            raise DataError(f"{what}: expected at most 4 channels, first or last, got shape {tuple(inputs.shape)}")
        return inputs.permute(0, 3, 1, 2)
    return inputs


def _expect_finite(what: str, given: Array, values: Array, columns: Sequence[str] | None) -> None:
    if np.isfinite((values.min(), values.max())).all():  # NaN would be both; no mask as large as the data is made
        return
    row, *rest = map(int, np.unravel_index(int(np.isfinite(values).argmin()), values.shape))
    column = repr(columns[rest[0]]) if columns and rest else ", ".join(map(str, rest)) or "0"
    raise DataError(f"{what}: expected finite numbers, got {given[(row, *rest)]} in row {row}, column {column}")


def _expect_resolved(what: str, given: Array, values: Array, columns: Sequence[str] | None) -> None:
    """Refuse columns such as times in seconds, which may differ only in digits that float32 does not keep."""
    if given.ndim != 2 or given.dtype.itemsize <= 4:
        return
    for number in range(given.shape[1]):
        column = given[:, number].astype(np.float64)
        spread, lost = np.ptp(column), np.abs(column - values[:, number]).max()
        if lost > ROUNDING * spread > 0:  # a constant column has nothing to lose
            name = repr(columns[number]) if columns else number
            raise DataError(
                f"{what}: numbers of about {column.mean():.3g} differ by no more than {spread:.3g} in column {name}, "
                "which float32 cannot tell apart; subtract their mean"
            )
