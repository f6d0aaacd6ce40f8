"""WebVision 1.0 from its own file lists; images stay files and are decoded by worker processes."""

from pathlib import Path

import torch

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import DataError, reading
from curriculoss.data.images import Images

SOURCE = "https://data.vision.ee.ethz.ch/cvl/webvision/dataset2017.html"
CLASSES = 1000


def webvision(num_classes: int, data: Path, download: bool) -> Dataset:
    """The first classes, Google's images only, as "mini" WebVision is in the literature; all 1,000: Flickr's too.

    Reads info/train_filelist_google.txt (and _flickr.txt), info/val_filelist.txt and, for the names,
    info/synsets.txt, below the data folder or its folder webvision. Validation images are the test split.
    """
    roots = [root for root in (data / "webvision", data / "WebVision", data) if (root / "info").is_dir()]
    google, flickr = "info/train_filelist_google.txt", "info/train_filelist_flickr.txt"
    needed = [google] if num_classes < CLASSES else [google, flickr]
    root = roots[0] if roots else data / "webvision"
    missing = [name for name in (*needed, "info/val_filelist.txt") if not (root / name).is_file()]
    if missing:
        note = "; it is too large to be fetched for you" if download else ""
        raise DataError(f"webvision: {root} lacks {', '.join(missing)}; get WebVision 1.0 from {SOURCE}{note}")
    train = [_listed(root, root / name, "", num_classes) for name in needed]
    test = _listed(root, root / "info/val_filelist.txt", "val_images_256", num_classes)
    splits = []
    for name, files, labels in (("train", *_joined(train)), ("test", *test)):
        absent = sorted(set(range(num_classes)) - set(labels))
        if absent and name == "train":
            raise DataError(f"{root / google}: class {absent[0]} of {num_classes} has no images")
        if not files:
            raise DataError(f"{root / 'info/val_filelist.txt'}: no images of the first {num_classes} classes")
        paths = tuple(files)
        splits.append(Split(Images(paths), torch.tensor(labels), paths=paths))
        if not Path(paths[0]).is_file():
            raise DataError(f"webvision: {paths[0]} is in the list but not there; unpack the images from {SOURCE}")
    return Dataset(
        name="webvision" if num_classes == CLASSES else f"webvision-{num_classes}",
        train=splits[0],
        test=splits[1],
        class_names=_names(root / "info/synsets.txt", num_classes),
        augment="crop-flip-jitter",
    )


def _joined(lists: list[tuple[list[str], list[int]]]) -> tuple[list[str], list[int]]:
    return [file for files, _ in lists for file in files], [label for _, labels in lists for label in labels]


def _listed(root: Path, path: Path, folder: str, num_classes: int) -> tuple[list[str], list[int]]:
    """Files and labels of the first classes, from lines such as `google/q0001/picture.jpg 0`."""
    files, labels = [], []
    with reading(path, "list of files"):
        lines = path.read_text("utf-8").splitlines()
    base = root / folder
    for number, line in enumerate(lines, 1):
        name, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not name or not label.isascii() or not label.isdigit() or int(label) >= CLASSES:
            raise DataError(
                f"{path}: expected a file and a label from 0 to {CLASSES - 1} in line {number}, got {line[:80]!r}"
            )
        if name.startswith("/") or ".." in name.split("/"):
            raise DataError(f"{path}: line {number} leads out of the folder: {name[:80]!r}")
        if int(label) < num_classes:
            files.append(f"{base}/{name}")
            labels.append(int(label))
    return files, labels


def _names(path: Path, num_classes: int) -> tuple[str, ...]:
    """The words after the synset's number, such as `tench, Tinca tinca`; the class's number if there is no list."""
    if not path.is_file():
        return tuple(map(str, range(num_classes)))
    with reading(path, "list of synsets"):
        names = [line.partition(" ")[2] or line for line in path.read_text("utf-8").splitlines() if line.strip()]
    if len(names) < num_classes:
        raise DataError(f"{path}: expected at least {num_classes} lines, got {len(names)}")
    return tuple(names[:num_classes])
