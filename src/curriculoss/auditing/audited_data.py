"""The data to audit: arrays, a Dataset, or a path or name that `data.load` reads, with labels of any kind."""

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from curriculoss.data import DataError, Dataset, Images, Split, load
from curriculoss.data.arrays import expect_distinct, features
from curriculoss.data.files import reading

ARRAYS_NAME = "arrays"  # of data that are in no file
PHOTO_SIZE = 64  # pixels that photos are reduced to: enough to see what they show, and little enough for two cores


@dataclass(frozen=True, eq=False, repr=False)
class AuditedData:
    """Samples with labels, and where they are in the input.

    Attributes:
        name: The name or path of the data.
        dataset: The samples that can be read.
        classes: Every label there is, in the order of class numbers.
        index: The position of each sample in the input, which also counts unreadable samples.
        unreadable: What is wrong with each sample that cannot be read, by its position in the input.
    """

    name: str
    dataset: Dataset
    classes: NDArray[Any]
    index: NDArray[np.int64]
    unreadable: dict[int, str] = field(default_factory=dict)

    @cached_property
    def given(self) -> dict[int, int]:
        """The classes of the samples, by their position in the input."""
        return dict(zip(self.index.tolist(), self.dataset.train.target.tolist(), strict=True))

    @cached_property
    def paths(self) -> dict[int, str]:
        """The paths of image files, by their position in the input."""
        return dict(zip(self.index.tolist(), self.dataset.train.paths or (), strict=False))


def read_audited(
    data: Any, labels: Any = None, *, label: str | None = None, data_dir: str | Path | None = None,
    download: bool = False,
) -> AuditedData:  # fmt: skip
    """Read the data to audit; see `audit` for what they can be."""
    if isinstance(data, Dataset):
        return _from_dataset(data, data.name, {})
    if not isinstance(data, (str, Path)):
        return from_arrays(data, labels)
    path = Path(os.path.expanduser(data))
    if path.suffix.lower() == ".npy" and path.is_file():
        return _from_npy(path, labels, label)
    if labels is not None:
        raise DataError(f"{path}: labels in a file of their own belong to features in an .npy file")
    unreadable: dict[int, str] = {}
    found = load(data, data_dir=data_dir, download=download, label=label, unreadable=unreadable)
    return _from_dataset(found, str(data), unreadable)


def _from_dataset(found: Dataset, name: str, unreadable: dict[int, str]) -> AuditedData:
    for number, each in enumerate(found.class_names):
        if not each.strip():
            position = int((found.train.target == number).nonzero()[0])
            raise DataError(f"{name}: expected a label for every sample, got none for sample {position}")
    if isinstance(found.train.inputs, Images):
        found = replace(found, train=found.train.resized(PHOTO_SIZE), test=None)
    kept = [i for i in range(len(found.train) + len(unreadable)) if i not in unreadable]
    return AuditedData(name, found, np.array(found.class_names), np.array(kept, dtype=np.int64), unreadable)


def _from_npy(path: Path, labels: Any, label: str | None) -> AuditedData:
    if label is not None:
        raise DataError(
            f"{path}: a label column belongs to a table, got {label!r}; labels are a file of their own here"
        )
    if labels is None:
        raise DataError(f"{path}: expected its labels beside it, as --labels FILE (.npy, or .txt with one a line)")
    with reading(path, "an .npy file"):
        values = np.load(path, mmap_mode="c", allow_pickle=False)  # nothing is read yet, nothing is ever written back
    if isinstance(labels, (str, Path)):
        file = Path(os.path.expanduser(labels))
        with reading(file, "a file of labels"):
            if file.suffix.lower() == ".npy":
                labels = np.load(file, allow_pickle=False)
            else:
                labels = file.read_text("utf-8-sig").rstrip("\r\n").splitlines()
    return from_arrays(values, labels, str(path))


def from_arrays(values: Any, labels: Any, name: str = ARRAYS_NAME) -> AuditedData:
    """Arrays or tensors, with labels of any type that can be sorted; the classes are the labels that occur."""
    if labels is None:
        raise DataError(f"{name}: expected labels beside the samples, got none")
    inputs = _as_array(values)
    if not inputs.ndim:
        raise DataError(f"{name}: expected samples as an array or a path, got {type(values).__name__}")
    given = _flat_labels(name, _as_array(labels))
    if len(given) != len(inputs):
        raise DataError(f"{name}: expected as many labels as samples, {len(inputs)}, got {len(given)}")
    try:
        classes, target = np.unique(given, return_inverse=True)
    except TypeError:
        kinds = " and ".join(sorted({type(value).__name__ for value in given.tolist()}))
        raise DataError(f"{name}: expected labels of one kind, got {kinds}") from None
    class_names = tuple(map(str, classes.tolist()))
    expect_distinct(name, class_names)
    if len(classes) < 2:
        raise DataError(f"{name}: expected at least two classes, got {len(classes)}")
    split = Split(features(name, inputs), torch.from_numpy(target.astype(np.int64)))
    return AuditedData(name, Dataset(name, split, None, class_names), classes, np.arange(len(inputs)))


def _as_array(values: Any) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        tensor = values.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "toarray"):  # numpy would make one object of a sparse array
        raise DataError(f"{ARRAYS_NAME}: expected a dense array, got a sparse one; give its .toarray()")
    kinds = {type(value) for value in values} if isinstance(values, (list, tuple)) else set()
    mixed = len(kinds) > 1 and not kinds.isdisjoint((str, type(None)))
    return np.asarray(values, dtype=object if mixed else None)  # otherwise numbers become text, and None NaN


def _flat_labels(name: str, labels: NDArray[Any]) -> NDArray[Any]:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"{name}: expected one label per sample, got shape {labels.shape}")
    values = labels.tolist()
    for position, value in enumerate(values):
        # NaN does not equal itself; comparisons of pandas' NA are neither true nor false.
        if (
            value is None
            or not isinstance(value == value, (bool, np.bool_))
            or value != value
            or not str(value).strip()
        ):
            raise DataError(f"{name}: expected a label for every sample, got none for sample {position}")
    one_type = len({type(value) for value in values}) == 1
    return np.array(values) if labels.dtype.kind == "O" and one_type else labels  # objects: strings from pandas
