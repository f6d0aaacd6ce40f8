"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100, with CIFAR-N's human labels, from the files in data_sets.toml.

idx files are read gzipped, as published, or unzipped, as torchvision leaves them; CIFAR's pickles from their folder or
from the published archive. Nothing in a pickle is run: it may hold arrays, lists, text and numbers only.
"""

import gzip
import io
import math
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.files import DATA_SETS, Remote, fetch, present, reading, verify
from curriculoss.errors import DataError

MNIST_SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))  # of images and labels, training and test


def read_mnist(name: str, num_classes: int, folder: Path, download: bool) -> Dataset:
    """`mnist` or `fashion-mnist`, from MNIST/raw or FashionMNIST/raw below the folder."""
    source = DATA_SETS[name]
    unzipped = [Remote(remote.place.removesuffix(".gz"), None) for remote in source.files]
    there = [
        plain if present(folder, plain) and not present(folder, zipped) else zipped
        for zipped, plain in zip(source.files, unzipped, strict=True)
    ]
    missing = [remote for remote in there if not present(folder, remote)]
    if missing and not download:
        place, address = (folder / missing[0].place).parent, str(missing[0].address).rpartition("/")[0]
        names = ", ".join(Path(remote.place).name for remote in missing)
        raise DataError(f"{name}: {place} lacks {names}; get them from {address} or add --download")
    for remote in missing:
        fetch(folder, remote)
    images, labels, test_images, test_labels = (
        read_idx(verify(folder, remote), shape) for remote, shape in zip(there, MNIST_SHAPES, strict=True)
    )
    for remote, column in ((there[1], labels), (there[3], test_labels)):
        if int(column.max()) >= num_classes:
            raise DataError(f"{folder / remote.place}: expected labels 0 to {num_classes - 1}, got {int(column.max())}")
    train, test = Split(images.unsqueeze(1), labels.long()), Split(test_images.unsqueeze(1), test_labels.long())
    return Dataset(name, train, test, source.class_names, flips=torch.tensor(source.flips))


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file, plain or gzipped, which must hold uint8 of exactly this shape."""
    expected, size = struct.pack(f">I{len(shape)}I", 0x0800 | len(shape), *shape), math.prod(shape)
    with reading(path, "an idx file"), (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        header, body = file.read(len(expected)), file.read(size + 1)
    if header != expected:
        raise DataError(f"{path}: expected the idx header of uint8 {shape}, got bytes {header.hex() or 'none'}")
    if len(body) != size:
        got = "more" if len(body) > size else len(body)
        raise DataError(f"{path}: expected {size} bytes after the header, got {got}")
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(shape)


def read_cifar(name: str, num_classes: int, folder: Path, download: bool) -> Dataset:
    """`cifar10` or `cifar100`, with the human labels of CIFAR-N where their file is there.

    All these files must have their published md5, so what is in them is not checked value by value.
    """
    source = DATA_SETS[name]
    assert source.archive is not None and source.human is not None  # as data_sets.toml has it
    *batches, held = _pickles(name, folder, source.archive, download)
    with reading(folder, f"the files of {name}"):
        key = "labels" if num_classes == 10 else "fine_labels"
        train, test = _split(batches, key), _split([held], key)
    if download and not present(folder, source.human):
        fetch(folder, source.human)
    return Dataset(
        name, train, test, source.class_names, flips=torch.tensor(source.flips),
        human=read_human(name, folder, train.target) if present(folder, source.human) else {},
        default_human=source.human_variants[0],
        human_source=f"{folder / source.human.place} from {source.human.address}", augment="shift-flip",
    )  # fmt: skip


def read_human(name: str, folder: Path, target: Tensor) -> dict[str, Tensor]:
    """CIFAR-N's labels by variant, whose order must be that of the training images."""
    source = DATA_SETS[name]
    assert source.human is not None
    path = verify(folder, source.human)
    found = read_torch(path)
    with reading(path, "CIFAR-N's labels"):
        if not np.array_equal(found["clean_label"], target.numpy()):
            raise DataError(f"{path}: its clean labels are not those of the images of {name} in {folder}")
        return {variant: torch.tensor(found[variant], dtype=torch.int64) for variant in source.human_variants}


def _pickles(name: str, folder: Path, archive: Remote, download: bool) -> list[dict[str, Any]]:
    """The pickles in their order: from their folder, or from the published archive, which is never unpacked."""
    files = DATA_SETS[name].files
    missing = [Path(remote.place).name for remote in files if not present(folder, remote)]
    if not missing:
        paths = [verify(folder, remote) for remote in files]
        return [read_pickle(path.read_bytes(), path) for path in paths]
    if not present(folder, archive):
        if not download:
            lack = f"{(folder / files[0].place).parent} lacks {', '.join(missing)}"
            advice = f"put {archive.place} from {archive.address} into {folder} or add --download"
            raise DataError(f"{name}: {lack}; {advice}")
        fetch(folder, archive)
    path, places = verify(folder, archive), [remote.place for remote in files]
    found = {}
    with reading(path, "a tar.gz archive of these files"), tarfile.open(path, "r|gz") as opened:
        for member in opened:
            if member.name in places and (file := opened.extractfile(member)) is not None:
                found[member.name] = file.read()
        contents = [(path / place, found[place]) for place in places]
    return [read_pickle(content, place) for place, content in contents]


def _split(batches: list[dict[str, Any]], key: str) -> Split:
    """Images as uint8 (N, 3, 32, 32), channels_last in memory as batches are, and the labels under a key."""
    images = np.empty((len(batches), len(batches[0]["data"]), 32, 32, 3), dtype=np.uint8)
    for rows, batch in zip(images, batches, strict=True):
        rows[:] = batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    target = torch.tensor([label for batch in batches for label in batch[key]])
    return Split(torch.from_numpy(images.reshape(-1, 32, 32, 3)).permute(0, 3, 1, 2), target)


def _encode(text: str, encoding: str) -> bytes:
    """What `_codecs.encode` does for the bytes in an array; no other codec is run."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it holds text encoded as {encoding!r}; expected latin1")
    return text.encode("latin1")


_reconstruct = np.zeros(0).__reduce__()[0]  # what numpy's own pickles call to make an array
ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"names {module}.{name}, which a data file has no use for; do not open it")
        return ADMITTED[module, name]


def read_pickle(data: bytes, path: Path, encoding: str = "bytes") -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text."""
    with reading(path, "a pickle"):
        found = _Reader(io.BytesIO(data), encoding=encoding).load()
        return {key.decode("latin1") if isinstance(key, bytes) else str(key): found[key] for key in found}


def read_torch(path: Path) -> dict[str, Any]:
    """The dictionary in a file that torch.save made of a dictionary of arrays (a zip with a pickle in it)."""
    with reading(path, "a file of torch.save"), zipfile.ZipFile(path) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
        return read_pickle(archive.read(name), path, "ASCII")
