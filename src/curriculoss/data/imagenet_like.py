"""Tiny ImageNet, read into memory from its folder or zip file, and WebVision 1.0, whose images stay files."""

import zipfile
from pathlib import Path

import torch

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import reading
from curriculoss.data.images import stacked
from curriculoss.errors import DataError

TINY_IMAGENET = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
TINY_FOLDER = "tiny-imagenet-200"
WEBVISION = "https://data.vision.ee.ethz.ch/cvl/webvision/dataset2017.html"
WEBVISION_CLASSES = 1000
WEBVISION_LISTS = ("train_filelist_google", "train_filelist_flickr", "val_filelist")

Place = Path | zipfile.Path  # in a folder, or in the zip file


def read_tiny_imagenet(name: str, num_classes: int, data: Path, download: bool) -> Dataset:
    """The first classes in the order of their WordNet identifiers; the labelled validation images are the test split.

    Reads tiny-imagenet-200/ or tiny-imagenet-200.zip below the data folder, in the official layout.
    """
    if (data / TINY_FOLDER).is_dir():
        return _read_tiny(name, num_classes, data / TINY_FOLDER)
    archive = data / f"{TINY_FOLDER}.zip"
    if not archive.is_file():
        note = f"get it from {TINY_IMAGENET}{'; it is not fetched for you' if download else ''}"
        raise DataError(f"{name}: {data} has neither {TINY_FOLDER}/ nor {archive.name}; {note}")
    with reading(archive, "a zip file"), zipfile.ZipFile(archive) as opened:
        return _read_tiny(name, num_classes, zipfile.Path(opened, f"{TINY_FOLDER}/"))


def _read_tiny(name: str, num_classes: int, root: Place) -> Dataset:
    classes = sorted(_lines(root / "wnids.txt"))[:num_classes]
    if len(classes) < num_classes:
        raise DataError(f"{root / 'wnids.txt'}: expected at least {num_classes} classes, got {len(classes)}")
    words = dict(line.split("\t", 1) for line in _lines(root / "words.txt") if "\t" in line)
    train = []
    for label, wnid in enumerate(classes):
        folder = root / "train" / wnid / "images"
        files = [file for file in folder.iterdir() if file.name.lower().endswith(".jpeg")] if folder.is_dir() else []
        if not files:
            raise DataError(f"{root}: no training images of {wnid}; unpack {TINY_IMAGENET} again")
        train += [(file, label) for file in sorted(files, key=lambda file: file.name)]
    marked = [line.split("\t")[:2] for line in _lines(root / "val" / "val_annotations.txt")]
    test = [(root / "val" / "images" / file, classes.index(wnid)) for file, wnid in marked if wnid in classes]
    if not test:
        raise DataError(f"{root}: no validation images of these classes; unpack {TINY_IMAGENET} again")
    class_names = tuple(words.get(wnid, wnid) for wnid in classes)
    return Dataset(name, _in_memory(train), _in_memory(test), class_names, augment="shift-flip", padding=8)


def _in_memory(samples: list[tuple[Place, int]]) -> Split:
    places, labels = zip(*samples, strict=True)
    return Split(stacked(places, (64, 64), "RGB"), torch.tensor(labels), paths=tuple(map(str, places)))


def read_webvision(name: str, num_classes: int, data: Path, download: bool) -> Dataset:
    """The first classes, Google's images only, as "mini" WebVision is in the literature; all 1,000: Flickr's too.

    Reads info/train_filelist_google.txt (and _flickr.txt), info/val_filelist.txt and, for the names,
    info/synsets.txt, below the data folder or its folder webvision. Validation images are the test split.
    """
    roots = [root for root in (data / "webvision", data / "WebVision", data) if (root / "info").is_dir()]
    root = roots[0] if roots else data / "webvision"
    google, flickr, val = (root / f"info/{each}.txt" for each in WEBVISION_LISTS)
    needed = [google, val] if num_classes < WEBVISION_CLASSES else [google, flickr, val]
    if missing := [str(path.relative_to(root)) for path in needed if not path.is_file()]:
        note = "; it is too large to be fetched for you" if download else ""
        raise DataError(f"webvision: {root} lacks {', '.join(missing)}; get WebVision 1.0 from {WEBVISION}{note}")
    train = [sample for path in needed[:-1] for sample in _listed(root, path, num_classes)]
    test = _listed(root / "val_images_256", val, num_classes)
    if absent := sorted(set(range(num_classes)) - {label for _, label in train}):
        raise DataError(f"{google}: class {absent[0]} of {num_classes} has no images")
    if not test:
        raise DataError(f"{val}: no images of the first {num_classes} classes")
    for file in (train[0][0], test[0][0]):
        if not Path(file).is_file():
            raise DataError(f"webvision: {file} is in the list but not there; unpack the images from {WEBVISION}")
    class_names = _synsets(root / "info/synsets.txt", num_classes)
    return Dataset(name, Split.of_files(train), Split.of_files(test), class_names, augment="crop-flip-jitter")


def _listed(base: Path, path: Path, num_classes: int) -> list[tuple[str, int]]:
    """Files and labels of the first classes, from lines such as `google/q0001/picture.jpg 0`."""
    samples = []
    for number, line in enumerate(_lines(path), 1):
        name, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not name or not label.isascii() or not label.isdigit() or int(label) >= WEBVISION_CLASSES:
            expected = f"a file and a label from 0 to {WEBVISION_CLASSES - 1}"
            raise DataError(f"{path}: expected {expected} in line {number}, got {line[:80]!r}")
        if name.startswith("/") or ".." in name.split("/"):
            raise DataError(f"{path}: line {number} leads out of the folder: {name[:80]!r}")
        if int(label) < num_classes:
            samples.append((f"{base}/{name}", int(label)))
    return samples


def _synsets(path: Path, num_classes: int) -> tuple[str, ...]:
    """The words after each synset's number, such as `tench, Tinca tinca`; the classes' numbers if there is no list."""
    if not path.is_file():
        return tuple(map(str, range(num_classes)))
    names = [line.partition(" ")[2] or line for line in _lines(path) if line.strip()]
    if len(names) < num_classes:
        raise DataError(f"{path}: expected at least {num_classes} lines, got {len(names)}")
    return tuple(names[:num_classes])


def _lines(place: Place) -> list[str]:
    with reading(place, "a list"):
        return place.read_text(encoding="utf-8").splitlines()
