"""Published files that are not what they should be: truncated, swapped, hostile. One line each, and nothing is run."""

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from curriculoss import data
from curriculoss.data import mnist_cifar
from curriculoss.data.mnist_cifar import read_pickle, read_torch

REAL = os.environ.get("CURRICULOSS_DATA", "")
real = pytest.mark.skipif(not REAL, reason="the published files are not here: set CURRICULOSS_DATA to their folder")


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["code", "truncated", "list", "not a pickle", "empty"])
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_is_read_as_data_or_refused(tmp_path, kind, protocol):
    good = pickle.dumps({"data": np.arange(6, dtype=np.int64)}, 2)
    content = {
        "code": pickle.dumps({"data": Runs(tmp_path / "ran")}, protocol),
        "truncated": good[:-20],
        "list": pickle.dumps([1, 2], protocol),
        "not a pickle": b"\x00\xff" * 50,
        "empty": b"",
    }[kind]
    with pytest.raises(data.DataError, match=r"^\S*/batch: [^\n]+$"):
        read_pickle(content, tmp_path / "batch")
    assert not (tmp_path / "ran").exists()
    assert read_pickle(good, tmp_path / "batch", "ASCII")["data"].tolist() == list(range(6))


def test_a_torch_file_that_would_run_code_does_not(tmp_path):
    path = tmp_path / "labels.pt"
    torch.save({"clean_label": Runs(tmp_path / "ran")}, path)
    with pytest.raises(data.DataError, match=r"names posix\.mkdir"):
        read_torch(path)
    torch.save({"clean_label": torch.zeros(3)}, path)
    with pytest.raises(data.DataError, match=r"labels\.pt: "):
        read_torch(path)
    assert not (tmp_path / "ran").exists()


IMAGES = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda raw: raw[:-1], "expected 12 bytes after the header, got 11"),
        (lambda raw: raw + b"x", "expected 12 bytes after the header, got more"),
        (lambda raw: raw[:5], "expected the idx header"),
        (lambda raw: b"", "expected the idx header of uint8 .* got bytes none"),
        (lambda raw: struct.pack(">II", 0x0801, 3) + bytes(3), "expected the idx header"),
        (lambda raw: b"\0\0\x0d\x03" + raw[4:], "expected the idx header"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_an_idx_file_must_be_exactly_what_was_asked_for(tmp_path, spoil, match, packed):
    path = tmp_path / ("file.gz" if packed else "file")
    raw = struct.pack(">4I", 0x0803, 3, 2, 2) + IMAGES.tobytes()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert mnist_cifar.read_idx(path, (3, 2, 2)).tolist() == IMAGES.tolist()
    path.write_bytes(gzip.compress(spoil(raw)) if packed else spoil(raw))
    with pytest.raises(data.DataError, match=match):
        mnist_cifar.read_idx(path, (3, 2, 2))


@pytest.mark.parametrize(
    "content", [gzip.compress(bytes(99))[:-9], b"not gzip", b"\x1f\x8b\x08"], ids=["cut", "text", "head"]
)
def test_a_broken_gz_is_one_line(tmp_path, content):
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(data.DataError, match=r"^\S+file\.gz: [^\n]+$"):
        mnist_cifar.read_idx(tmp_path / "file.gz", (3, 2, 2))


@real
@pytest.mark.parametrize(
    ("name", "place", "other"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte.gz", "MNIST/raw/train-labels-idx1-ubyte.gz"),
        ("cifar10", "cifar-10-batches-py/data_batch_3", "cifar-10-batches-py/test_batch"),
        ("cifar100", "CIFAR-100_human.pt", "CIFAR-10_human.pt"),
    ],
)
@pytest.mark.parametrize("harm", ["truncate", "swap", "flip a byte"])
def test_published_files_must_be_the_published_ones(tmp_path, name, place, other, harm):
    for path in Path(REAL).rglob("*"):
        if path.is_file():
            (tmp_path / path.relative_to(REAL)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path.relative_to(REAL)).symlink_to(path)
    content = bytearray((Path(REAL) / (other if harm == "swap" else place)).read_bytes())
    if harm == "flip a byte":
        content[len(content) // 2] ^= 1
    (tmp_path / place).unlink()
    (tmp_path / place).write_bytes(content[:-100] if harm == "truncate" else content)
    with pytest.raises(data.DataError, match=rf"{Path(place).name} is not the published file.*delete it and get it"):
        data.load(name, data_dir=tmp_path)
