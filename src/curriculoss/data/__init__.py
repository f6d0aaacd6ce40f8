"""Data sets: embedded, published, or the user's own, all as tensors or lazily decoded image files."""

import os
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from curriculoss.data import arrays, cifar, digits, folders, idx, tables, webvision
from curriculoss.data.batches import Batches
from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import DataError, data_folder, first_line
from curriculoss.data.images import Images

__all__ = ["Batches", "DataError", "Dataset", "Images", "Split", "available", "data_folder", "listing", "load"]

EMBEDDED: dict[str, Callable[[], Dataset]] = {
    "digits": digits.digits,
    "digits-100": partial(digits.digits, 2),
    "digits-1000": partial(digits.digits, 3),
}
PUBLISHED: dict[str, Callable[[Path, bool], Dataset]] = {
    "mnist": partial(idx.mnist, "mnist"),
    "fashion-mnist": partial(idx.mnist, "fashion-mnist"),
    "cifar10": partial(cifar.cifar, 10),
    "cifar100": partial(cifar.cifar, 100),
    "webvision": partial(webvision.webvision, 1000),
    "webvision-50": partial(webvision.webvision, 50),
    "webvision-200": partial(webvision.webvision, 200),
    "webvision-400": partial(webvision.webvision, 400),
}
TABLES = (".csv", ".parquet")


ABOUT = {  # classes, where its files are below the data folder, what it is
    "digits": (10, "", "scikit-learn's 8×8 digits"),
    "digits-100": (100, "", "two digits side by side"),
    "digits-1000": (1000, "", "three digits side by side"),
    "mnist": (10, "MNIST/raw", "28×28 digits, 60,000 + 10,000"),
    "fashion-mnist": (10, "FashionMNIST/raw", "28×28 clothes, 60,000 + 10,000"),
    "cifar10": (10, "cifar-10-*", "32×32 colour images, 50,000 + 10,000; human labels with CIFAR-10_human.pt"),
    "cifar100": (100, "cifar-100-*", "the same, with super-classes; human labels with CIFAR-100_human.pt"),
    "webvision": (1000, "info", "images from the web with their own noise"),
    "webvision-50": (50, "info", "its first 50 classes, Google's images"),
    "webvision-200": (200, "info", "its first 200 classes, Google's images"),
    "webvision-400": (400, "info", "its first 400 classes, Google's images"),
}


def listing(data_dir: str | Path | None = None) -> list[dict[str, Any]]:
    """Every data set known by name: how many classes, whether its files seem to be here, what it is."""
    folder = data_folder(data_dir)
    return [
        {"name": name, "num_classes": count, "here": not place or any(folder.glob(place)), "what": what}
        for name, (count, place, what) in ABOUT.items()
    ]


def available() -> tuple[str, ...]:
    """The names that `load` knows; it also takes paths."""
    return (*EMBEDDED, *PUBLISHED)


def load(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
    label: str | None = None,
    test: str | Path | None = None,
    unreadable: dict[int, str] | None = None,
) -> Dataset:
    """A data set by name, or from a path: a folder of class folders, or a .npz, .csv or .parquet file.

    `data_dir` holds published data (else CURRICULOSS_DATA, else the cache folder), fetched there if `download`.
    `label` names the label column of a table. `test` is a path of the same kind with the test samples. Neither goes
    with data that have no use for it. Training images that cannot be read are left out if there is a dictionary
    `unreadable`, to be told their positions and what is wrong with them.
    Raises DataError, a ValueError of one line.
    """
    try:
        held = None if test is None else Path(os.path.expanduser(test))
        return _load(str(source), data_dir, download, label, held, unreadable)
    except OSError as error:  # a folder that may not be entered, a name too long
        raise DataError(f"{source}: cannot be read: {first_line(error)}") from error


def _load(
    source: str, data_dir: str | Path | None, download: bool, label: str | None, test: Path | None,
    unreadable: dict[int, str] | None,
) -> Dataset:  # fmt: skip
    if source in available() and (label is not None or test is not None):
        what = "label column" if label is not None else "test path"
        raise DataError(f"{source}: a {what} belongs to data from a path, not to a data set known by name")
    if source in EMBEDDED:
        return EMBEDDED[source]()
    if source in PUBLISHED:
        return PUBLISHED[source](data_folder(data_dir), download)
    path = Path(os.path.expanduser(source))
    if label is not None and path.exists() and path.suffix.lower() not in TABLES:
        raise DataError(f"{path}: a label column belongs to a table ({' or '.join(TABLES)}), got {label!r}")
    if source.strip() and path.is_dir():
        if (only := _only_file(path)) is None:
            return folders.folder(path, test, unreadable)
        path = only
    if path.is_file():
        return _file(path, label, test, unreadable)
    near = get_close_matches(source, available(), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DataError(f"no data set or path {source!r}; known: {', '.join(available())}{hint}")


def _only_file(folder: Path) -> Path | None:
    """What `clean` leaves of a table or of arrays: a folder with one such file, and no folders."""
    there = [each for each in folder.iterdir() if not each.name.startswith(".")]
    files = [each for each in there if each.suffix.lower() in (".npz", *TABLES)]
    return files[0] if len(files) == 1 and not any(each.is_dir() for each in there) else None


def _file(path: Path, label: str | None, test: Path | None, unreadable: dict[int, str] | None) -> Dataset:
    kind = path.suffix.lower()
    if test is not None and test.suffix.lower() != kind:
        raise DataError(f"{test}: expected a {kind} file, as {path} is")
    if kind == ".npz":
        return arrays.npz(path, test)
    if kind in TABLES:
        return tables.table(path, label, test, unreadable)
    raise DataError(f"{path}: expected a folder of class folders, or a .npz, .csv or .parquet file")
