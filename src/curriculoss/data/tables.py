"""A user's own CSV or Parquet file: a label column, and numeric features or one column of image paths."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import DataError, reading
from curriculoss.data.folders import image_inputs
from curriculoss.data.images import Images, readable
from curriculoss.data.labels import encode, features

LABELS = ("label", "y", "target")
SAME = 0.6  # share of rows in which a column is the label once more
CLEAN = "y_clean"
ROW_NUMBERS = ("", "Unnamed: 0", "__index_level_0__")  # what pandas writes beside the data


def table(
    path: Path, label: str | None = None, test: Path | None = None, unreadable: dict[int, str] | None = None
) -> Dataset:
    """A data set from a table. A column y_clean holds true labels; columns of row numbers are left out."""
    sheets = [_Sheet(path, label)]
    if test is not None:
        sheets.append(_Sheet(test, sheets[0].label))
        if sheets[0].inputs != sheets[1].inputs:
            raise DataError(f"{test}: expected the columns of {path}, got {_shown(sheets[1].inputs)}")
    columns = [sheet.labels(sheet.label) for sheet in sheets]
    if CLEAN in sheets[0].table.column_names:
        columns.append(sheets[0].labels(CLEAN))
    class_names, (target, *rest) = encode(columns[0], columns[1:])
    clean = rest.pop() if len(columns) > len(sheets) else None
    kinds = [sheet.is_paths() for sheet in sheets]
    if len(set(kinds)) > 1:
        raise DataError(f"{test}: expected image paths in both tables or numbers in both")
    if kinds[0]:
        files = [sheet.files() for sheet in sheets]
        if unreadable is not None:
            kept = readable(files[0], unreadable)
            files[0], target = [files[0][i] for i in kept], target[kept]
            clean = None if clean is None else clean[kept]
            _expect_all(path, class_names, target)
        inputs = image_inputs(files[0], files[1] if test is not None else ())
        splits = [
            Split(part, labels, known, tuple(names))
            for part, labels, known, names in zip(inputs, (target, *rest), (clean, None), files, strict=False)
        ]
        augment = "crop-flip-jitter" if isinstance(inputs[0], Images) else "none"
    else:
        splits = [
            Split(sheet.numbers(), labels, known)
            for sheet, labels, known in zip(sheets, (target, *rest), (clean, None), strict=False)
        ]
        augment = "none"
    return Dataset(
        path.stem, splits[0], splits[1] if test is not None else None, class_names, augment=augment,
        feature_names=None if kinds[0] else tuple(sheets[0].inputs),
    )  # fmt: skip


def _expect_all(path: Path, class_names: Sequence[str], target: Tensor) -> None:
    if 0 in (counts := target.bincount(minlength=len(class_names)).tolist()):
        raise DataError(f"{path}: class {class_names[counts.index(0)]!r} has no readable images")


class _Sheet:
    """One file: its table, the name of its label column and those of its inputs."""

    def __init__(self, path: Path, label: str | None) -> None:
        self.path = path
        self.table = _read(path)
        names: list[str] = self.table.column_names
        if len(set(names)) != len(names):
            raise DataError(f"{path}: expected different column names, got {_shown(names)}")
        if self.table.num_rows == 0:
            raise DataError(f"{path}: expected at least one row, got none")
        wanted = [label] if label is not None else [name for name in LABELS if name in names]
        if not wanted or wanted[0] not in names:
            what = repr(label) if label is not None else ", ".join(map(repr, LABELS))
            raise DataError(f"{path}: expected a label column named {what}; the columns are {_shown(names)}")
        self.label = wanted[0]
        self.inputs = [name for name in names if name not in (self.label, CLEAN, *ROW_NUMBERS)]
        if not self.inputs:
            raise DataError(f"{path}: expected columns beside the label {self.label!r}, got {_shown(names)}")
        for other in set(LABELS) & set(self.inputs):
            pairs = list(zip(self.table[self.label].to_pylist(), self.table[other].to_pylist(), strict=True))
            if sum(one == two for one, two in pairs) > SAME * len(pairs):
                same = f"columns {self.label!r} and {other!r} have mostly the same values"
                raise DataError(f"{path}: {same}, so that one would tell the other; take one away")

    def labels(self, name: str) -> tuple[str, NDArray[Any]]:
        column = self.table[name].combine_chunks()
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise DataError(f"{self.path}: expected a label in every row, got none in row {row}, column {name!r}")
        return f"{self.path}: column {name!r}", np.asarray(column.to_pylist())

    def is_paths(self) -> bool:
        """Whether the inputs are one column of text; any other text is refused."""
        if self._is_vectors():
            return False
        texts = [name for name in self.inputs if not self._is_number(name)]
        if texts and len(self.inputs) > 1:
            raise DataError(
                f"{self.path}: expected numeric columns, or one column of image paths; not numeric: {_shown(texts)}"
            )
        return bool(texts)

    def _is_vectors(self) -> bool:
        """Whether the inputs are one column of lists, as embeddings often are."""
        from pyarrow import types

        kind = self.table.schema.field(self.inputs[0]).type
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return len(self.inputs) == 1 and bool(lists and self._is_number_type(kind.value_type))

    def _is_number(self, name: str) -> bool:
        return self._is_number_type(self.table.schema.field(name).type)

    @staticmethod
    def _is_number_type(kind: Any) -> bool:
        from pyarrow import types

        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind))

    def numbers(self) -> Any:
        columns = [self.table[name] for name in self.inputs]
        if self._is_vectors():
            return features(str(self.path), self._vectors(columns[0].combine_chunks()))
        for name, column in zip(self.inputs, columns, strict=True):
            if column.null_count:
                row = column.is_null().to_pylist().index(True)
                raise DataError(f"{self.path}: expected a number, got a missing value in row {row}, column {name!r}")
        values = np.stack([np.asarray(column.to_numpy(), dtype=np.float64) for column in columns], axis=1)
        return features(str(self.path), values, self.inputs)

    def _vectors(self, column: Any) -> NDArray[Any]:
        """The rows as one array, without copying what is float32 already."""
        from pyarrow import compute

        lengths = compute.list_value_length(column)
        flat = compute.list_flatten(column)
        if column.null_count or flat.null_count or len(compute.unique(lengths)) != 1 or not lengths[0].as_py():
            raise DataError(
                f"{self.path}: expected lists of one length, without missing numbers, in column {self.inputs[0]!r}"
            )
        rows: NDArray[Any] = flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)
        return rows if rows.flags.writeable else rows.copy()  # torch warns of what it must not write to

    def files(self) -> list[str]:
        """Paths below the table's folder; one that leads out of it is refused."""
        base = self.path.resolve().parent
        found = []
        for row, name in enumerate(self.table[self.inputs[0]].to_pylist()):
            if not isinstance(name, str) or not (base / name).resolve().is_relative_to(base):
                raise DataError(
                    f"{self.path}: expected an image path below {base} in row {row}, column {self.inputs[0]!r}, "
                    f"got {str(name)[:80]!r}"
                )
            found.append(str(base / name))
        return found


def _read(path: Path) -> Any:
    with reading(path, "Parquet file" if path.suffix.lower() == ".parquet" else "CSV file"):
        if path.suffix.lower() == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        from pyarrow import csv

        _expect_commas(path)
        return csv.read_csv(path)


def _expect_commas(path: Path) -> None:
    with path.open("rb") as file:
        head = file.readline(2**16)
    for separator in (b";", b"\t"):
        if separator in head and b"," not in head:
            shown = repr(separator.decode())
            raise DataError(f"{path}: expected columns separated by commas, got {shown}; save it with commas")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
