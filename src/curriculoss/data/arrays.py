"""A user's own .npz file: arrays x, y, and optionally x_test, y_test, y_clean and class_names."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import DataError, reading
from curriculoss.data.labels import encode, features

KNOWN = ("x", "y", "x_test", "y_test", "y_clean", "class_names")


def npz(path: Path, test: Path | None = None) -> Dataset:
    """A data set from arrays. `test` is another .npz, whose x and y are the test samples."""
    found = read_npz(path)
    if test is not None:
        held = read_npz(test)
        found |= {f"{name}_test": held[name] for name in ("x", "y") if name in held}
    for name, partner in (("x", "y"), ("y", "x"), ("x_test", "y_test"), ("y_test", "x_test")):
        if name not in found and (partner in found or name in "xy"):
            raise DataError(
                f"{path}: expected arrays x and y, with both or none of x_test and y_test; {name} is missing"
            )
    for labels, samples in (("y", "x"), ("y_test", "x_test"), ("y_clean", "x")):
        if labels in found and found[labels].shape[:1] != found[samples].shape[:1]:
            raise DataError(
                f"{path}: expected as many samples in {labels} as in {samples}, got shapes {found[labels].shape} "
                f"and {found[samples].shape}"
            )
    names = None
    if "class_names" in found:
        names = [str(name) for name in found["class_names"].ravel().tolist()]
    others = [name for name in ("y_clean", "y_test") if name in found]
    class_names, (target, *rest) = encode(
        (f"{path}: y", found["y"]), [(f"{path}: {name}", found[name]) for name in others], names
    )
    columns = dict(zip(others, rest, strict=True))
    inputs = features(f"{path}: x", found["x"])
    train = Split(inputs, target, columns.get("y_clean"))
    held_out = None
    if "y_test" in columns:
        test_inputs = features(f"{path}: x_test", found["x_test"])
        held_out = Split(test_inputs, columns["y_test"])
        if test_inputs.shape[1:] != inputs.shape[1:] or test_inputs.dtype != inputs.dtype:
            raise DataError(
                f"{path}: expected x_test to be like x, {found['x'].dtype} of shape {found['x'].shape[1:]} a sample, "
                f"got {found['x_test'].dtype} of {found['x_test'].shape[1:]}"
            )
    return Dataset(path.stem, train, held_out, class_names)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays that mean something here. None is unpickled."""
    with reading(path, ".npz file"):
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            packed = sum(entry.compress_size for entry in archive.infolist())
        if size > 1 << 30 and size > 100 * packed:
            raise DataError(f"{path}: {packed} bytes that unpack to {size}; refused as a zip bomb")
        with np.load(path, allow_pickle=False) as archive:
            return {name: _plain(path, archive, name) for name in KNOWN if name in archive.files}


def _plain(path: Path, archive: Any, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = archive[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        advice = f"Object arrays are not read; save strings as {name}.astype(str)"
        raise DataError(f"{path}: cannot be read as a .npz file: {advice}") from error
    return array
