"""MNIST and Fashion-MNIST from their idx files, gzipped as published or unzipped as torchvision leaves them."""

import gzip
import math
import struct
from pathlib import Path

import torch
from torch import Tensor

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.digits import MNIST_FLIPS, flips_of
from curriculoss.data.files import DataError, Remote, fetch, present, reading, verify

SHAPES = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}
SOURCES = {  # folder, address, md5 of the four gz files
    "mnist": (
        "MNIST/raw",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": (
        "FashionMNIST/raw",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# Zhang & Sabuncu, NeurIPS 2018: boot to sneaker, sneaker to sandal, pullover to shirt, coat and dress to each other.
FASHION_FLIPS = {9: 7, 7: 5, 2: 6, 4: 3, 3: 4}


def mnist(name: str, folder: Path, download: bool) -> Dataset:
    """`mnist` or `fashion-mnist`, from MNIST/raw or FashionMNIST/raw below the folder."""
    place, address, sums = SOURCES[name]
    tensors = {}
    remotes = [Remote(f"{place}/{file}.gz", md5, f"{address}{file}.gz") for file, md5 in zip(SHAPES, sums, strict=True)]
    plain = [Remote(remote.place.removesuffix(".gz"), None) for remote in remotes]
    missing = [a for a, b in zip(remotes, plain, strict=True) if not present(folder, a) and not present(folder, b)]
    if missing and not download:
        names = ", ".join(Path(remote.place).name for remote in missing)
        raise DataError(f"{name}: {folder / place} lacks {names}; get them from {address} or add --download")
    for remote in missing:
        fetch(folder, remote)
    for (file, shape), packed, bare in zip(SHAPES.items(), remotes, plain, strict=True):
        path = verify(folder, packed) if present(folder, packed) else verify(folder, bare)
        tensors[file] = read_idx(path, shape)
    images, labels, test_images, test_labels = tensors.values()
    for place, column in ((plain[1].place, labels), (plain[3].place, test_labels)):
        if int(column.max()) > 9:
            raise DataError(f"{folder / place}: expected labels 0 to 9, got {int(column.max())}")
    return Dataset(
        name=name,
        train=Split(images.unsqueeze(1), labels.long()),
        test=Split(test_images.unsqueeze(1), test_labels.long()),
        class_names=tuple(map(str, range(10))) if name == "mnist" else FASHION,
        flips=flips_of(MNIST_FLIPS if name == "mnist" else FASHION_FLIPS, 10),
    )


def read_idx(path: Path, shape: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file, plain or gzipped, which must hold uint8 of exactly this shape."""
    expected = struct.pack(f">I{len(shape)}I", 0x0800 | len(shape), *shape)
    size = math.prod(shape)
    opened = gzip.open if path.suffix == ".gz" else open
    with reading(path, "gzipped idx file" if path.suffix == ".gz" else "idx file"), opened(path, "rb") as file:
        header = file.read(len(expected))
        body = file.read(size + 1) if header == expected else b""
    if header != expected:
        raise DataError(f"{path}: expected the idx header of uint8 {shape}, got bytes {header.hex() or 'none'}")
    if len(body) != size:
        raise DataError(
            f"{path}: expected {size} bytes after the header, got {'more' if len(body) > size else len(body)}"
        )
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(shape)
