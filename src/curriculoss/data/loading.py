"""Data sets by name and from paths: `load` for training, `load_inputs` for a trained network."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from curriculoss.data import arrays, folders, tables
from curriculoss.data.dataset import Dataset, InputFormat, described, resized
from curriculoss.data.digits import read_digits
from curriculoss.data.files import DATA_SETS, data_folder, reading
from curriculoss.data.imagenet_like import read_tiny_imagenet, read_webvision
from curriculoss.data.images import SUFFIXES, Images, as_tensor, open_image
from curriculoss.data.mnist_cifar import read_cifar, read_mnist
from curriculoss.errors import DataError

TABLES = (".csv", ".parquet")
FOLDER = "folder"  # the kind of a folder; the kind of a file is its suffix
CHANGES = "changes.csv"  # the list that `clean` writes beside the data

READERS: Mapping[str, Callable[[str, int, Path, bool], Dataset]] = {
    "digits": read_digits,
    "mnist": read_mnist,
    "cifar": read_cifar,
    "tiny-imagenet": read_tiny_imagenet,
    "webvision": read_webvision,
}


def available() -> tuple[str, ...]:
    """The names that `load` knows; it also takes paths."""
    return tuple(DATA_SETS)


def load(
    source: str | Path, *, data_dir: str | Path | None = None, download: bool = False, label: str | None = None,
    test: str | Path | None = None, unreadable: dict[int, str] | None = None,
) -> Dataset:  # fmt: skip
    """Read a data set by name or from a path.

    Args:
        source: A name from `available()`, a folder of class folders, or a .npz, .csv or .parquet file.
        data_dir: The folder of published data (default: CURRICULOSS_DATA, or the cache folder).
        download: Fetch published files that are not there.
        label: The label column of a table (default: label, y or target).
        test: A path of the same kind as `source` with the test samples.
        unreadable: If given, images that cannot be read are left out, and their positions and what is wrong with them
            are entered here.

    Returns:
        The training split, the test split if there is one, and what is known about the classes.

    Raises:
        DataError: The data cannot be used; one line says why.

    Example:
        >>> load("digits").train
        Split(1442 samples of shape (1, 8, 8))
    """
    name = str(source)
    if name in DATA_SETS:
        if label is not None or test is not None:
            what = "label column" if label is not None else "test path"
            raise DataError(f"{name}: a {what} belongs to data from a path, not to a data set known by name")
        known = DATA_SETS[name]
        return READERS[known.reader](name, known.num_classes, data_folder(data_dir), download)
    path, kind = only_file(_existing(name))
    held, held_kind = (None, kind) if test is None else only_file(Path(os.path.expanduser(test)))
    if kind not in (FOLDER, ".npz", *TABLES):
        raise DataError(f"{path}: expected a folder of class folders, or a .npz, .csv or .parquet file")
    if label is not None and kind not in TABLES:
        raise DataError(f"{path}: a label column belongs to a table ({' or '.join(TABLES)}), got {label!r}")
    if held_kind != kind:
        what = "folder" if kind == FOLDER else f"{kind} file"
        raise DataError(f"{held}: expected a {what}, as {path} is")
    if kind == FOLDER:
        return folders.read_folder(path, held, unreadable)
    if kind == ".npz":
        return arrays.read_arrays(path, held)
    return tables.read_table(path, label, held, unreadable)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Samples in the form that a trained network takes; image files are decoded batch by batch.

    Attributes:
        samples: In memory, or image files.
        paths: The paths of images.
        expected: What the network takes.
        image_size: The side that images are resized to, as in training; None if their size has to match.
    """

    samples: Tensor | Images
    paths: Sequence[str] | None
    expected: InputFormat
    image_size: int | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def batches(self, size: int) -> Iterator[Tensor]:
        """Batches of at most `size` samples, in order."""
        for some in torch.arange(len(self)).split(size):
            samples = self.samples[some]
            if isinstance(samples, Images):
                yield torch.stack([self._decode(file) for file in samples.files])
            else:
                yield samples if self.image_size is None else resized(samples, self.image_size)

    def _decode(self, file: str) -> Tensor:
        """uint8 (C, H, W), cropped or resized as the training images were."""
        channels, height, width = self.expected.input_shape
        if self.expected.centre_crop:
            return Images((file,), height).decode(0).permute(2, 0, 1)
        pixels = as_tensor(open_image(file, "L" if channels == 1 else "RGB")).permute(2, 0, 1)
        if self.image_size is not None:
            return resized(pixels[None], self.image_size)[0]
        if pixels.shape[1:] != (height, width):
            got = f"{pixels.shape[2]}×{pixels.shape[1]}"
            raise DataError(f"{file}: expected {width}×{height} pixels, as in training, got {got}")
        return pixels


def load_inputs(
    source: str | Path, expected: InputFormat, *, image_size: int | None = None, label: str | None = None,
    data_dir: str | Path | None = None,
) -> Inputs:  # fmt: skip
    """Read inputs for a trained network; labels are not needed, and not looked at.

    Args:
        source: What `load` takes, a folder with images anywhere below it, or one image. Of a data set known by name,
            the test samples.
        expected: What the network was trained on. Columns of a table are matched by name where these are known.
        image_size: The side that images were resized to in training, if they were.
        label: The label column of a table, which is left out.
        data_dir: The folder of published data (default: CURRICULOSS_DATA, or the cache folder).

    Returns:
        The samples; `batches` gives them as tensors for the network.

    Raises:
        DataError: The data cannot be used, or are not like the training data; one line says why.
    """
    name = str(source)
    if name in DATA_SETS:
        found = load(name, data_dir=data_dir)
        split = found.test or found.train
        samples, paths = split.inputs, split.paths
    else:
        samples = _unlabelled(_existing(name), expected, label)
        paths = samples.files if isinstance(samples, Images) else None
    _check_like_training(name, samples, expected, image_size)
    return Inputs(samples, paths, expected, image_size)


def _unlabelled(path: Path, expected: InputFormat, label: str | None) -> Tensor | Images:
    if files := folders.image_files(path):
        return Images(tuple(files))
    path, kind = only_file(path)
    if kind in TABLES:
        return tables.read_table_inputs(path, expected, label)
    if kind == ".npz":
        return arrays.read_array_inputs(path)
    image = f"an image ({', '.join(SUFFIXES)})"
    raise DataError(f"{path}: expected {image}, a folder of images, or a .npz, .csv or .parquet file")


def _check_like_training(name: str, samples: Tensor | Images, expected: InputFormat, image_size: int | None) -> None:
    """Refuse samples that the network cannot take, but for the sizes of image files, which are not known yet."""
    shape, got = expected.input_shape, tuple(samples.shape[1:])
    if isinstance(samples, Images) and (shape[0] in (1, 3) or expected.centre_crop):
        got = shape
    elif image_size is not None and len(got) == 3:
        got = (got[0], image_size, image_size)
    dtype = str(samples.dtype).removeprefix("torch.")
    if (got, dtype) != (shape, expected.input_dtype):
        wanted = described(shape, expected.input_dtype)
        found = "image files" if isinstance(samples, Images) else described(got, dtype)
        raise DataError(f"{name}: expected {wanted}, as in training, got {found}")


def _existing(name: str) -> Path:
    path = os.path.expanduser(name)
    if not name.strip() or not (os.path.isdir(path) or os.path.isfile(path)):
        near = get_close_matches(name.lower(), DATA_SETS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(f"no data set or path {name[:200]!r}; known: {', '.join(DATA_SETS)}{hint}")
    return Path(path)


def only_file(path: Path) -> tuple[Path, str]:
    """A path and its kind, FOLDER or a suffix; a folder with one table or .npz file, as `clean` makes, is that file."""
    if not os.path.isdir(path):  # Path.is_dir raises if a name is too long
        return path, path.suffix.lower()
    with reading(path, "a folder"):
        there = [each for each in path.iterdir() if not each.name.startswith(".")]
    files = [each for each in there if each.suffix.lower() in (".npz", *TABLES) and each.name != CHANGES]
    if len(files) == 1 and not any(each.is_dir() for each in there):
        return files[0], files[0].suffix.lower()
    return path, FOLDER
