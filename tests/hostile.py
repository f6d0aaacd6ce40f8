"""Makers of hostile files, each below the folder that it is given; all return the path to hand to the command line."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

Maker = Callable[[Path], Path]

Y = np.arange(24) % 3
X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32) + Y[:, None]


class Runs:
    """Unpickled by the careless, it makes a folder: the proof that code was run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def npz(**arrays: Any) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / "data.npz"
        np.savez(path, **{"x": X, "y": Y, **arrays})
        return path

    return make


def content(name: str, raw: bytes | str) -> Maker:
    def make(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
        return path

    return make


def good(folder: Path) -> Path:
    return npz()(folder)


def cut(maker: Maker, keep: int) -> Maker:
    """The first `keep` bytes of another's file (negative: all but so many)."""

    def make(folder: Path) -> Path:
        path = maker(folder)
        path.write_bytes(path.read_bytes()[:keep])
        return path

    return make


def renamed(maker: Maker, name: str) -> Maker:
    return lambda folder: maker(folder).rename(folder / name)


def directory(name: str) -> Maker:
    def make(folder: Path) -> Path:
        (folder / name).mkdir()
        return folder / name

    return make


def pickled_npz(folder: Path) -> Path:
    """An .npz whose x is a pickle that would run code."""
    path, member = folder / "data.npz", io.BytesIO()
    trap = np.empty(24, dtype=object)
    trap[:] = [Runs(folder / "ran")] * 24
    np.save(member, trap, allow_pickle=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", member.getvalue())
    with zipfile.ZipFile(path, "a") as archive:
        labels = io.BytesIO()
        np.save(labels, Y)
        archive.writestr("y.npy", labels.getvalue())
    return path


def escaping_npz(folder: Path) -> Path:
    """A zip whose only entry would land above the folder, were it unpacked."""
    path = folder / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../escaped.npy", b"x")
    return path


def lying_npz(folder: Path) -> Path:
    """An array whose header promises 4 TB."""
    path = folder / "data.npz"
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1), }"
    head += b" " * (117 - len(head)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(64))
        archive.writestr("y.npy", b"")
    return path


def photos(folder: Path, *classes: str, count: int = 3) -> Path:
    """A folder of class folders of small images."""
    for name in classes or ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (8, 8), 9 * i).save(folder / "photos" / name / f"{i}.png")
    return folder / "photos"


def photos_with(name: str, raw: bytes) -> Maker:
    def make(folder: Path) -> Path:
        root = photos(folder)
        content(name, raw)(root)
        return root

    return make


def cut_photo(folder: Path) -> Path:
    root = photos(folder)
    path = root / "cat/1.png"
    path.write_bytes(path.read_bytes()[:50])
    return root


def bomb(folder: Path) -> Path:
    """A PNG of a few bytes that says it has 10^10 pixels."""
    root = photos(folder)
    raw = bytearray((root / "cat/1.png").read_bytes())
    raw[16:24] = struct.pack(">II", 100_000, 100_000)
    raw[29:33] = struct.pack(">I", zlib.crc32(bytes(raw[12:29])))
    (root / "cat/1.png").write_bytes(raw)
    return root


def empty_class(folder: Path) -> Path:
    root = photos(folder)
    (root / "emu").mkdir()
    return root


def one_class(folder: Path) -> Path:
    return photos(folder, "cat")


def files_for_folders(folder: Path) -> Path:
    for name in ("cat", "dog"):
        content(f"photos/{name}", "miaow")(folder)
    return folder / "photos"


# Published files


def mnist(folder: Path, **files: bytes) -> Path:
    """The four files of MNIST, whole or not, as the published ones are named (_ for -)."""
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    for name in names:
        short = name.partition("-idx")[0].replace("-", "_")
        content(f"MNIST/raw/{name}{'' if short in files else '.gz'}", files.get(short, b"not gzip"))(folder)
    return folder


def idx(*shape: int, value: int = 0) -> bytes:
    size = int(np.prod(shape))
    return struct.pack(f">I{len(shape)}I", 0x0800 | len(shape), *shape) + bytes([value]) * size


def tar(entries: dict[str, bytes | str], keep: int | None = None) -> bytes:
    """A tar.gz; an entry whose content is text is a link that leads there."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        for name, inside in entries.items():
            entry = tarfile.TarInfo(name)
            if isinstance(inside, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, inside
                archive.addfile(entry)
            else:
                entry.size = len(inside)
                archive.addfile(entry, io.BytesIO(inside))
    return memory.getvalue()[:keep]


def trap(folder: Path) -> bytes:
    return pickle.dumps({b"data": Runs(folder / "ran"), b"labels": [0]}, 2)


def saved(value: Any) -> bytes:
    memory = io.BytesIO()
    torch.save(value, memory)
    return memory.getvalue()


def gz(raw: bytes) -> bytes:
    return gzip.compress(raw)


def spec(**given: Any) -> str:
    return json.dumps(given)
