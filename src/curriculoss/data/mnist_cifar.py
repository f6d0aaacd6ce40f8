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
SIZE_LIMIT = 1 << 30  # bytes; no published pickle has a fifth of it
DTYPES = ("uint8", "int32", "int64")


Pickle = tuple[Path, dict[str, Any]]  # where it is, for errors, and what is in it


def read_mnist(name: str, num_classes: int, folder: Path, download: bool) -> Dataset:
    """`mnist` or `fashion-mnist`, from MNIST/raw or FashionMNIST/raw below the folder."""
    source = DATA_SETS[name]
    plain = [Remote(remote.place.removesuffix(".gz"), None) for remote in source.files]
    pairs = zip(source.files, plain, strict=True)
    there = [other if present(folder, other) and not present(folder, zipped) else zipped for zipped, other in pairs]
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
    for remote, column in ((plain[1], labels), (plain[3], test_labels)):
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
    """`cifar10` or `cifar100`, with the human labels of CIFAR-N where their file is there."""
    source = DATA_SETS[name]
    assert source.archive is not None and source.human is not None  # as data_sets.toml has it
    *batches, held = _pickles(name, folder, source.archive, download)
    key = "labels" if num_classes == 10 else "fine_labels"
    train = _split(batches, 50_000 // len(batches), key, num_classes)
    if download and not present(folder, source.human):
        fetch(folder, source.human)
    return Dataset(
        name, train, _split([held], 10_000, key, num_classes), source.class_names, flips=torch.tensor(source.flips),
        human=read_human(name, folder, train.target) if present(folder, source.human) else {},
        default_human=source.human_variants[0],
        human_source=f"{folder / source.human.place} from {source.human.address}", augment="shift-flip",
    )  # fmt: skip


def read_human(name: str, folder: Path, target: Tensor) -> dict[str, Tensor]:
    """CIFAR-N's labels by variant, whose order must be that of the training images."""
    source = DATA_SETS[name]
    assert source.human is not None
    path = verify(folder, source.human)
    found, num_classes = (path, read_torch(path)), len(source.class_names)
    if not torch.equal(_labels(found, len(target), "clean_label", num_classes), target):
        raise DataError(f"{path}: its clean labels are not those of the CIFAR-{num_classes} images in {folder}")
    return {variant: _labels(found, len(target), variant, num_classes) for variant in source.human_variants}


def _pickles(name: str, folder: Path, archive: Remote, download: bool) -> list[Pickle]:
    """The pickles in their order: from their folder, or from the published archive, which is never unpacked."""
    files = DATA_SETS[name].files
    missing = [Path(remote.place).name for remote in files if not present(folder, remote)]
    if not missing:
        paths = [verify(folder, remote) for remote in files]
        return [(path, read_pickle(path.read_bytes(), path)) for path in paths]
    if not present(folder, archive):
        if not download:
            place = (folder / files[0].place).parent
            raise DataError(
                f"{name}: {place} lacks {', '.join(missing)}; put {archive.place} from {archive.address} "
                f"into {folder} or add --download"
            )
        fetch(folder, archive)
    path = verify(folder, archive)
    contents = read_archive(path, [remote.place for remote in files])
    return [(path / place, read_pickle(content, path / place)) for place, content in contents.items()]


def read_archive(path: Path, names: list[str]) -> dict[str, bytes]:
    """The named files of a tar.gz, in memory. Other members are skipped, whatever path they have."""
    contents: dict[str, bytes] = {}
    with reading(path, "a tar.gz archive"), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            if member.size > SIZE_LIMIT or (member.name in names and not member.isfile()):
                raise DataError(f"{path}: {member.name} is not a file of the expected size")
            if member.name in names and (file := archive.extractfile(member)) is not None:
                contents[member.name] = file.read()
            if len(contents) == len(names):
                break
    if absent := [name for name in names if name not in contents]:
        raise DataError(f"{path}: lacks {', '.join(absent)}; get the archive again")
    return {name: contents[name] for name in names}


def _split(batches: list[Pickle], count: int, key: str, num_classes: int) -> Split:
    """Images as uint8 (N, 3, 32, 32), channels_last in memory as batches are, and labels, from `count` per pickle."""
    images = np.empty((len(batches), count, 32, 32, 3), dtype=np.uint8)
    for rows, (path, found) in zip(images, batches, strict=True):
        pixels = found.get("data")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, 3072):
            got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise DataError(f"{path}: expected images as uint8 ({count}, 3072) under 'data', got {got}")
        rows[:] = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    target = torch.cat([_labels(batch, count, key, num_classes) for batch in batches])
    return Split(torch.from_numpy(images.reshape(-1, 32, 32, 3)).permute(0, 3, 1, 2), target)


def _labels(pickle: Pickle, count: int, key: str, num_classes: int) -> Tensor:
    """int64 labels under a key, as many as wanted and all in range."""
    path, found = pickle
    if key not in found:
        raise DataError(f"{path}: expected labels under {key!r}, got the keys {', '.join(found) or 'none'}"[:300])
    with reading(path, f"a file with labels under {key!r}"):
        labels = torch.from_numpy(np.array(found[key], dtype=np.int64))
    if labels.shape != (count,) or int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise DataError(f"{path}: expected {count} labels from 0 to {num_classes - 1} under {key!r}")
    return labels


def _encode(text: str, encoding: str) -> bytes:
    """What `_codecs.encode` does for the bytes in an array; no other codec is run."""
    if encoding != "latin1":
        raise DataError(f"holds text encoded as {encoding!r}; expected latin1")
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
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise DataError(f"names {module}.{name}, which a data file has no use for; do not open it") from None

    def persistent_load(self, pid: object) -> Any:
        raise DataError(f"refers to outside storage {pid!r}"[:120])


def read_pickle(data: bytes, path: Path, encoding: str = "bytes") -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text."""
    with reading(path, "a pickle"):
        try:
            found = _Reader(io.BytesIO(data), encoding=encoding).load()
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a dictionary in the pickle, got {type(found).__name__}")
    for value in found.values():
        if isinstance(value, np.ndarray) and value.dtype not in DTYPES:
            raise DataError(f"{path}: holds an array of type {value.dtype}; expected one of {', '.join(DTYPES)}")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


def read_torch(path: Path) -> dict[str, Any]:
    """The dictionary in a file that torch.save made of a dictionary of arrays (a zip with a pickle in it)."""
    with reading(path, "a file of torch.save"), zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.rpartition("/")[2] == "data.pkl"]
        if len(entries) != 1 or entries[0].file_size > SIZE_LIMIT:
            raise DataError(f"{path}: expected one data.pkl of at most {SIZE_LIMIT} bytes in the archive")
        data = archive.read(entries[0])
    return read_pickle(data, path, "ASCII")
