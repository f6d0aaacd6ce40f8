"""A user's own images: a folder of class folders, perhaps below train and test (or val)."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import DataError
from curriculoss.data.images import SUFFIXES, Images, as_tensor, open_image, readable

SMALL = 64  # pixels: images of one size with no longer side are read into one tensor, others stay files
SMALL_BYTES = 2 << 30
PROBED = 100_000  # images whose headers are read beforehand, so that a broken one does not stop an epoch


def folder(root: Path, test: Path | None = None, unreadable: dict[int, str] | None = None) -> Dataset:
    """Class folders in `root`, or in its train folder, with test samples in its test or val folder, if any."""
    train_root, held = root, test
    if (root / "train").is_dir() and _folders(root / "train"):  # a class named train has no folders in it
        train_root = root / "train"
        held = test or next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    names = [entry.name for entry in _folders(train_root)]
    if len(names) < 2:
        got = f"only {names[0]!r}" if names else "none"
        raise DataError(f"{train_root}: expected at least two class folders with images, got {got}")
    files, target = _listed(train_root, names)
    if unreadable is not None:
        kept = readable(files, unreadable)
        files, target = [files[i] for i in kept], target[kept]
    if 0 in (counts := target.bincount(minlength=len(names)).tolist()):
        images = f"{'readable ' if unreadable else ''}images ({', '.join(SUFFIXES)})"
        raise DataError(f"{train_root / names[counts.index(0)]}: a class folder without {images}")
    test_files: list[str] = []
    if held is not None:
        unknown = [entry.name for entry in _folders(held) if entry.name not in names]
        if unknown:
            raise DataError(f"{held / unknown[0]}: a class that {train_root} does not have")
        test_files, test_target = _listed(held, names)
        if not test_files:
            raise DataError(f"{held}: expected test images in class folders, got none")
    inputs, test_inputs = image_inputs(files, test_files)
    return Dataset(
        name=root.name or str(root),
        train=Split(inputs, target, paths=tuple(files)),
        test=Split(test_inputs, test_target, paths=tuple(test_files)) if test_files else None,
        class_names=tuple(names),
        augment="crop-flip-jitter" if isinstance(inputs, Images) else "none",
    )


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root}: cannot be listed: {error.strerror}") from error


def _listed(root: Path, names: Sequence[str]) -> tuple[list[str], Tensor]:
    """Image files below each class folder, sorted, and their labels."""
    files, labels = [], []
    for label, name in enumerate(names):
        found = [
            os.path.join(place, file)
            for place, _, entries in os.walk(root / name)
            for file in entries
            if file.lower().endswith(SUFFIXES) and not file.startswith(".")
        ]
        files += sorted(found)
        labels += [label] * len(found)
    return files, torch.tensor(labels, dtype=torch.int64)


def image_inputs(train: Sequence[str], test: Sequence[str] = ()) -> tuple[Tensor | Images, Tensor | Images]:
    """Small images of one size as one uint8 tensor a split, grey if all are; else the files, to be decoded later."""
    sizes, modes = set(), set()
    for file in (*train, *test)[:PROBED]:
        image = open_image(file, decode=False)
        sizes.add(image.size)
        modes.add(image.mode)
    width, height = next(iter(sizes))
    count = len(train) + len(test)
    if len(sizes) > 1 or max(width, height) > SMALL or count * 3 * width * height > SMALL_BYTES or count > PROBED:
        return Images(tuple(train)), Images(tuple(test))
    mode = "L" if modes <= {"1", "L"} else "RGB"
    return _stacked(train, (width, height), mode), _stacked(test, (width, height), mode)


def _stacked(files: Sequence[str], size: tuple[int, int], mode: str) -> Tensor:
    pixels = torch.empty((len(files), size[1], size[0], 1 if mode == "L" else 3), dtype=torch.uint8)
    for row, file in zip(pixels, files, strict=True):
        row.copy_(as_tensor(open_image(file, mode)))
    return pixels.permute(0, 3, 1, 2)
