"""A user's own CSV or Parquet file: a label column, and numeric features or one column of image paths."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from curriculoss.data.arrays import NamedColumn, encode, features
from curriculoss.data.dataset import Dataset, InputFormat, Split
from curriculoss.data.files import reading
from curriculoss.data.folders import decoded
from curriculoss.data.images import Images
from curriculoss.errors import DataError

LABEL_COLUMNS = ("label", "y", "target")  # a column of one of these names is the label, unless another is given
CLEAN_COLUMN = "y_clean"  # the column of true labels
ROW_NUMBERS = ("", "Unnamed: 0", "__index_level_0__")  # columns that pandas adds; they are left out
REPEATED_SHARE = 0.6  # share of equal rows above which a column repeats the label

Table = Any  # pyarrow's, which is imported where it is used


def read_table(
    path: Path, label: str | None = None, test: Path | None = None, unreadable: dict[int, str] | None = None
) -> Dataset:
    """A data set from a table, with test samples from another table that has the same columns."""
    train = _open(path)
    label = _label_column(path, train, label)
    names = _input_columns(path, train, label)
    tables = [(path, train)] if test is None else [(path, train), (test, _open(test, [label, *names]))]
    columns = [_labels(*each, label) for each in tables]
    if CLEAN_COLUMN in train.column_names:
        columns.append(_labels(path, train, CLEAN_COLUMN))
    class_names, targets = encode(columns[0], columns[1:])
    clean = targets.pop() if len(columns) > len(tables) else None
    found = [_values(place, table.select(names)) for place, table in tables]
    is_images = isinstance(found[0], Images)
    if is_images != isinstance(found[-1], Images):
        raise DataError(f"{test}: expected image paths in both tables or numbers in both")
    splits = [Split(*each) for each in zip(found, targets, (clean, None), strict=False)]
    if is_images:
        splits = decoded(path, splits, class_names, unreadable)
    return Dataset(
        path.stem, splits[0], splits[1] if test else None, class_names,
        augment="crop-flip-jitter" if isinstance(splits[0].inputs, Images) else "none",
        feature_names=None if is_images else tuple(names),
    )  # fmt: skip


def read_table_inputs(path: Path, expected: InputFormat, label: str | None) -> Tensor | Images:
    """The features of a table without regard to labels, or the image files that it names.

    Columns are matched by name where the training data had names; otherwise all but label columns are taken.
    """
    table = _open(path, expected.feature_names or ())
    left_out = (label, *LABEL_COLUMNS, CLEAN_COLUMN, *ROW_NUMBERS)
    wanted = expected.feature_names or [name for name in table.column_names if name not in left_out]
    if not wanted:
        raise DataError(f"{path}: expected columns beside labels, got {_shown(table.column_names)}")
    return _values(path, table.select(wanted))


def _open(path: Path, needed: Sequence[str] = ()) -> Table:
    """A table, which must have the needed columns."""
    is_parquet = path.suffix.lower() == ".parquet"
    with reading(path, "a Parquet file" if is_parquet else "a CSV file"):
        if is_parquet:
            from pyarrow import parquet

            table = parquet.read_table(path)
        else:
            from pyarrow import csv

            _expect_commas(path)
            table = csv.read_csv(path)
        names = table.column_names
    if len(set(names)) != len(names):
        raise DataError(f"{path}: expected different column names, got {_shown(names)}")
    if missing := [name for name in needed if name not in names]:
        lacks = f"{_shown(missing)}, which the training data have"
        raise DataError(f"{path}: lacks {lacks}; the columns are {_shown(names)}")
    if table.num_rows == 0:
        raise DataError(f"{path}: expected at least one row, got none")
    return table


def _expect_commas(path: Path) -> None:
    with path.open("rb") as file:
        head = file.readline(2**16)
    for separator in (b";", b"\t"):
        if separator in head and b"," not in head:
            shown = repr(separator.decode())
            raise DataError(f"{path}: expected columns separated by commas, got {shown}; save it with commas")


def _label_column(path: Path, table: Table, label: str | None) -> str:
    names = table.column_names
    found = [name for name in ([label] if label is not None else LABEL_COLUMNS) if name in names]
    if not found:
        what = repr(label) if label is not None else ", ".join(map(repr, LABEL_COLUMNS))
        raise DataError(f"{path}: expected a label column named {what}; the columns are {_shown(names)}")
    return found[0]


def _input_columns(path: Path, table: Table, label: str) -> list[str]:
    names = table.column_names
    inputs = [name for name in names if name not in (label, CLEAN_COLUMN, *ROW_NUMBERS)]
    if not inputs:
        raise DataError(f"{path}: expected columns beside the label {label!r}, got {_shown(names)}")
    for other in set(LABEL_COLUMNS) & set(inputs):
        equal = [one == two for one, two in zip(table[label].to_pylist(), table[other].to_pylist(), strict=True)]
        if sum(equal) > REPEATED_SHARE * len(equal):
            same = f"columns {label!r} and {other!r} have mostly the same values"
            raise DataError(f"{path}: {same}, so the features would give the label away; remove one")
    return inputs


def _labels(path: Path, table: Table, name: str) -> NamedColumn:
    _expect_complete(path, name, table[name])
    where = f"{path}: column {name!r}"
    with reading(where, "labels"):  # lists of several lengths
        return where, np.asarray(table[name].to_pylist())


def _expect_complete(path: Path, name: str, column: Any) -> None:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{path}: expected a value in every row, got none in row {row}, column {name!r}")


def _values(path: Path, inputs: Table) -> Tensor | Images:
    """Features from numeric columns or one column of vectors; image files from one column of text."""
    from pyarrow import types

    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
    names, columns = inputs.column_names, inputs.columns
    texts = [field.name for field in inputs.schema if not any(is_kind(field.type) for is_kind in numeric)]
    if texts and len(names) > 1:
        raise DataError(f"{path}: expected numeric columns, or one column of image paths; not numeric: {_shown(texts)}")
    for name, column in zip(names, columns, strict=True):
        _expect_complete(path, name, column)
    if types.is_nested(columns[0].type):
        return features(str(path), _vectors(path, names[0], columns[0].combine_chunks()))
    if texts:
        return Images(_files(path, names[0], columns[0].to_pylist()))
    numbers = np.stack([np.asarray(column.to_numpy(), dtype=np.float64) for column in columns], axis=1)
    return features(str(path), numbers, names)


def _vectors(path: Path, name: str, column: Any) -> NDArray[Any]:
    """A column of lists as one array, without copying float32."""
    from pyarrow import compute

    with reading(f"{path}: column {name!r}", "lists of numbers"):
        lengths, flat = compute.list_value_length(column), compute.list_flatten(column)
        if flat.null_count or len(compute.unique(lengths)) != 1 or not lengths[0].as_py():
            raise DataError(f"{path}: expected lists of one length, without missing numbers, in column {name!r}")
        rows: NDArray[Any] = flat.to_numpy(zero_copy_only=False).reshape(len(column), lengths[0].as_py())
    return rows if rows.flags.writeable else rows.copy()  # torch warns about arrays that it must not write to


def _files(path: Path, column: str, names: list[Any]) -> tuple[str, ...]:
    """Paths below the table's folder; one that leads out of it is refused."""
    base = path.resolve().parent
    for row, name in enumerate(names):
        if not isinstance(name, str) or not (base / name).resolve().is_relative_to(base):
            wanted = f"numbers, or paths of images below {base}"
            raise DataError(f"{path}: expected {wanted}, got {str(name)[:80]!r} in row {row}, column {column!r}")
    return tuple(str(base / name) for name in names)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
