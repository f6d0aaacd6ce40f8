"""A user's own images: a folder of class folders, perhaps below train and test (or val)."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import reading
from curriculoss.data.images import SUFFIXES, Images, open_image, stacked, upright_size
from curriculoss.errors import DataError

LARGEST_IN_MEMORY = 64  # pixels: images of one size, with sides up to this, are read into one tensor; others stay files
SMALL_BYTES = 2 << 30  # the largest such tensor
PROBED = 100_000  # images whose headers are read at the start, so that a broken one does not stop an epoch
PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}  # not names of classes


def read_folder(root: Path, test: Path | None = None, unreadable: dict[int, str] | None = None) -> Dataset:
    """Class folders in `root`, or in its train folder, with test samples in its test or val folder, if any."""
    train_root, held = root, test
    if (root / "train").is_dir() and _folders(root / "train"):  # a class named train has no folders in it
        train_root = root / "train"
        held = test or next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
        unused = [entry.name for entry in _folders(root) if entry.name.lower() in PARTS - {"train", "test", "val"}]
        if held is None and unused:
            raise DataError(f"{root}: expected test images in a folder named test or val, got {unused[0]!r}")
    names = [entry.name for entry in _folders(train_root)]
    if {name.lower() for name in names} <= PARTS and any(_folders(train_root / name) for name in names):
        got = ", ".join(map(repr, names)) or "none"
        raise DataError(f"{train_root}: expected class folders, or folders named train and test (or val), got {got}")
    if len(names) < 2:
        got = f"only {names[0]!r}" if names else "none"
        raise DataError(f"{train_root}: expected at least two class folders with images, got {got}")
    roots = [train_root] if held is None else [train_root, held]
    splits = [
        Split.of_files([(file, label) for label, name in enumerate(names) for file in image_files(each / name)])
        for each in roots
    ]
    if held is not None:
        if unknown := [entry.name for entry in _folders(held) if entry.name not in names]:
            raise DataError(f"{held / unknown[0]}: a class that {train_root} does not have")
        if not len(splits[1]):
            raise DataError(f"{held}: expected test images in class folders, got none")
    train, *rest = decoded(train_root, splits, names, unreadable)
    augment = "crop-flip-jitter" if isinstance(train.inputs, Images) else "none"
    return Dataset(root.name or str(root), train, rest[0] if rest else None, tuple(names), augment=augment)


def _folders(root: Path) -> list[Path]:
    with reading(root, "a folder"):
        return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def image_files(root: Path) -> list[str]:
    """An image file, or all below a folder, sorted; hidden ones, and those in hidden folders, are left out."""
    if root.is_file():
        return [str(root)] if root.suffix.lower() in SUFFIXES else []
    found = []
    for place, inside, entries in os.walk(root, onerror=_refuse):
        inside[:] = [name for name in inside if not name.startswith(".")]
        found += [os.path.join(place, x) for x in entries if x.lower().endswith(SUFFIXES) and not x.startswith(".")]
    return sorted(found)


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a class may have no test images
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def decoded(where: Path, splits: list[Split], names: Sequence[str], unreadable: dict[int, str] | None) -> list[Split]:
    """Image files as uint8 tensors, grey if all are, where they are small and of one size; otherwise as they come.

    Training images that cannot be read are left out, and entered in `unreadable`, if that is given.
    """
    if unreadable is not None:
        for position, file in enumerate(splits[0].paths or ()):
            try:
                open_image(file)
            except DataError as error:
                unreadable[position] = str(error)
        kept = [position for position in range(len(splits[0])) if position not in unreadable]
        splits = [splits[0].take(torch.tensor(kept, dtype=torch.int64)), *splits[1:]]
    if 0 in (counts := splits[0].target.bincount(minlength=len(names)).tolist()):
        raise DataError(f"{where}: class {names[counts.index(0)]!r} has no readable images ({', '.join(SUFFIXES)})")
    files = [file for split in splits for file in split.paths or ()]
    images = (open_image(file, decode=False) for file in files[:PROBED])
    headers = {(upright_size(image), image.mode) for image in images}
    (width, height), *others = {size for size, _ in headers}
    total = len(files) * 3 * width * height
    if others or max(width, height) > LARGEST_IN_MEMORY or total > SMALL_BYTES or len(files) > PROBED:
        return splits
    mode = "L" if {mode for _, mode in headers} <= {"1", "L"} else "RGB"
    return [replace(split, inputs=stacked(split.paths or (), (width, height), mode)) for split in splits]
