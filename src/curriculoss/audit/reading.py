"""What is audited: arrays, a Dataset, or anything that the engine reads, as one Dataset with labels of any kind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from curriculoss import data as engine
from curriculoss.data import DataError, Dataset, Images, Split
from curriculoss.data.files import reading
from curriculoss.data.labels import expect_distinct, features

ARRAYS = "arrays"  # what a spec calls data that are in no file
PHOTO = 64  # pixels that photos are looked at with: what they show is seen, and two cores can train on it


@dataclass(frozen=True, eq=False)
class Source:
    """Data to audit: what they are called, the samples, every label there is, and each sample's place in the input."""

    name: str
    dataset: Dataset
    classes: NDArray[Any]
    index: NDArray[np.int64]
    unreadable: dict[int, str] = field(default_factory=dict)

    def position(self, index: int) -> int:
        """Where in the data set the sample is that has this place in the input."""
        return int(np.searchsorted(self.index, index))

    @cached_property
    def paths(self) -> dict[int, str]:
        """Of image files, by their place in the input."""
        return dict(zip(self.index.tolist(), self.dataset.train.paths or (), strict=False))


def read(
    data: Any, labels: Any = None, *, label: str | None = None, data_dir: str | Path | None = None,
    download: bool = False,
) -> Source:  # fmt: skip
    if isinstance(data, Dataset):
        return _of_dataset(data, data.name, {})
    if not isinstance(data, (str, Path)):
        return of_arrays(data, labels)
    path = Path(os.path.expanduser(data))
    if path.suffix.lower() == ".npy" and path.is_file():
        return _of_npy(path, labels, label)
    if labels is not None:
        raise DataError(f"{path}: labels in a file of their own belong to features in an .npy file")
    unreadable: dict[int, str] = {}
    found = engine.load(data, data_dir=data_dir, download=download, label=label, unreadable=unreadable)
    return _of_dataset(found, str(data), unreadable)


def _of_dataset(found: Dataset, name: str, unreadable: dict[int, str]) -> Source:
    for number, each in enumerate(found.class_names):
        if not each.strip():
            position = int((found.train.target == number).nonzero()[0])
            raise DataError(f"{name}: expected a label for every sample, got none for sample {position}")
    if isinstance(found.train.inputs, Images):
        found = replace(found, train=replace(found.train, inputs=replace(found.train.inputs, size=PHOTO)), test=None)
    kept = [i for i in range(len(found.train) + len(unreadable)) if i not in unreadable]
    return Source(name, found, np.array(found.class_names), np.array(kept, dtype=np.int64), unreadable)


def _of_npy(path: Path, labels: Any, label: str | None) -> Source:
    if label is not None:
        raise DataError(
            f"{path}: a label column belongs to a table, got {label!r}; labels are a file of their own here"
        )
    if labels is None:
        raise DataError(f"{path}: expected its labels beside it, as --labels FILE (.npy, or .txt with one a line)")
    with reading(path, ".npy file"):
        values = np.load(path, mmap_mode="c", allow_pickle=False)  # nothing is read yet; nothing is ever written back
    if isinstance(labels, (str, Path)):
        labels = read_labels(Path(os.path.expanduser(labels)))
    return of_arrays(values, labels, str(path))


def read_labels(path: Path) -> NDArray[Any]:
    with reading(path, "file of labels"):
        if path.suffix.lower() == ".npy":
            found: NDArray[Any] = np.load(path, allow_pickle=False)
            return found
        return np.array(path.read_text("utf-8-sig").rstrip("\r\n").splitlines())


def of_arrays(values: Any, labels: Any, name: str = ARRAYS) -> Source:
    """Labels may be of any kind that can be sorted; classes are those that occur."""
    if labels is None:
        raise DataError(f"{name}: expected labels beside the samples, got none")
    inputs = _as_array(values)
    given = _flat_labels(name, _as_array(labels))
    if len(given) != len(inputs):
        raise DataError(f"{name}: expected as many labels as samples, {len(inputs)}, got {len(given)}")
    try:
        classes, target = np.unique(given, return_inverse=True)
    except TypeError:
        raise DataError(f"{name}: expected labels of one kind, got {_kinds(given)}") from None
    expect_distinct(name, map(str, classes.tolist()))
    if len(classes) < 2:
        raise DataError(f"{name}: expected at least two classes, got {len(classes)}")
    split = Split(features(name, inputs), torch.from_numpy(target.astype(np.int64)))
    dataset = Dataset(name, split, None, tuple(map(str, classes.tolist())))
    return Source(name, dataset, classes, np.arange(len(inputs)))


def _as_array(values: Any) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        tensor = values.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "toarray"):  # scipy's, of which numpy makes one object
        raise DataError(f"{ARRAYS}: expected a dense array, got a sparse one; give its .toarray()")
    return np.asarray(values, dtype=object if _mixed(values) else None)


def _mixed(values: Any) -> bool:
    """Whether numpy would make text of numbers, or NaN of None."""
    kinds = {type(value) for value in values} if isinstance(values, (list, tuple)) else set()
    return len(kinds) > 1 and any(kind in kinds for kind in (str, type(None)))


def _flat_labels(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{name}: expected one label a sample, got shape {labels.shape}")
    if labels.dtype.kind == "O":
        missing = np.array([_is_missing(value) for value in labels.tolist()], dtype=bool)
        if not missing.any() and len({type(value) for value in labels.tolist()}) == 1:
            labels = np.array(labels.tolist())  # as pandas has strings
    elif labels.dtype.kind in "fc":
        missing = np.isnan(labels)
    else:
        missing = labels == "" if labels.dtype.kind == "U" else np.zeros(len(labels), dtype=bool)
    if missing.any():
        raise DataError(f"{name}: expected a label for every sample, got none for sample {int(missing.argmax())}")
    return labels


def _is_missing(value: Any) -> bool:
    """None, NaN, which is not itself, or pandas' NA, of which it does not say."""
    itself = value == value
    return value is None or not isinstance(itself, (bool, np.bool_)) or not itself


def _kinds(labels: NDArray[Any]) -> str:
    return " and ".join(sorted({type(value).__name__ for value in labels.tolist()}))
