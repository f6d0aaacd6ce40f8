"""CIFAR-10 and CIFAR-100 from their pickles, in a folder or in the published archive, and CIFAR-N's human labels."""

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.digits import flips_of
from curriculoss.data.files import DataError, Remote, fetch, present, reading, verify
from curriculoss.data.pickles import LIMIT, read_pickle, read_torch
from curriculoss.noise import next_in_group

TORONTO = "https://www.cs.toronto.edu/~kriz/"
HUMAN = "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/"
ARCHIVES = {
    10: Remote("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", f"{TORONTO}cifar-10-python.tar.gz"),
    100: Remote("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", f"{TORONTO}cifar-100-python.tar.gz"),
}
FILES = {
    10: (
        Remote("cifar-10-batches-py/data_batch_1", "c99cafc152244af753f735de768cd75f"),
        Remote("cifar-10-batches-py/data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        Remote("cifar-10-batches-py/data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        Remote("cifar-10-batches-py/data_batch_4", "634d18415352ddfa80567beed471001a"),
        Remote("cifar-10-batches-py/data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        Remote("cifar-10-batches-py/test_batch", "40351d587109b95175f43aff81a1287e"),
    ),
    100: (
        Remote("cifar-100-python/train", "16019d7e3df5f24257cddd939b257f8d"),
        Remote("cifar-100-python/test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        Remote("cifar-100-python/meta", "7973b15100ade9c7d40fb424638fde48"),
    ),
}
HUMANS = {
    10: Remote("CIFAR-10_human.pt", "96644db5574813cae939af5f7f2a0aec", f"{HUMAN}CIFAR-10_human.pt"),
    100: Remote("CIFAR-100_human.pt", "a67b45c1d7992051865b5c755bd68bb1", f"{HUMAN}CIFAR-100_human.pt"),
}
VARIANTS = {
    10: ("worse_label", "aggre_label", "random_label1", "random_label2", "random_label3"),
    100: ("noisy_label",),
}
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_FLIPS = {9: 1, 2: 0, 3: 5, 5: 3, 4: 7}  # truck, bird, cat, dog, deer


def cifar(num_classes: int, folder: Path, download: bool) -> Dataset:
    """`cifar10` or `cifar100`, with the human labels of CIFAR-N where their file is there."""
    read = _source(num_classes, folder, download)
    parents: Tensor | None = None
    names: tuple[str, ...] = NAMES
    if num_classes == 10:
        *parts, held = [_batch(*read(remote), 10_000, "labels", 10) for remote in FILES[10]]
        train = Split(_images([pixels for pixels, _ in parts]), torch.cat([labels for _, labels in parts]))
        flips = flips_of(CIFAR10_FLIPS, 10)
    else:
        everything, path = read(FILES[100][0])
        pixels, labels = _batch(everything, path, 50_000, "fine_labels", 100)
        train = Split(_images([pixels]), labels)
        held = _batch(*read(FILES[100][1]), 10_000, "fine_labels", 100)
        names = _meta(*read(FILES[100][2]))
        parents = _parents(labels, _labels(everything, path, 50_000, "coarse_labels", 20))
        flips = next_in_group(parents)
    human = HUMANS[num_classes]
    if download and not present(folder, human):
        fetch(folder, human)
    return Dataset(
        name=f"cifar{num_classes}",
        train=train,
        test=Split(_images([held[0]]), held[1]),
        class_names=names,
        parents=parents,
        flips=flips,
        human=read_human(num_classes, folder, train.target) if present(folder, human) else {},
        default_human=VARIANTS[num_classes][0],
        human_source=f"{folder / human.place} from {human.address}",
        augment="shift-flip",
    )


def read_human(num_classes: int, folder: Path, target: Tensor) -> dict[str, Tensor]:
    """CIFAR-N's labels by variant, whose order must be that of the training images."""
    path = verify(folder, HUMANS[num_classes])
    found = read_torch(path)
    columns = {
        name: _labels(found, path, len(target), name, num_classes) for name in ("clean_label", *VARIANTS[num_classes])
    }
    if not torch.equal(columns.pop("clean_label"), target):
        raise DataError(f"{path}: its clean labels are not those of the CIFAR-{num_classes} images in {folder}")
    return columns


Read = Callable[[Remote], tuple[dict[str, Any], Path]]


def _source(num_classes: int, folder: Path, download: bool) -> Read:
    """How to get at the pickles: from their folder, or else from the published archive, which is never unpacked."""
    archive, files = ARCHIVES[num_classes], FILES[num_classes]
    missing = [Path(remote.place).name for remote in files if not present(folder, remote)]
    if not missing:
        return lambda remote: _pickle(verify(folder, remote))
    if not present(folder, archive):
        if not download:
            place = (folder / files[0].place).parent
            raise DataError(
                f"cifar{num_classes}: {place} lacks {', '.join(missing)}; put {archive.place} from {archive.address} "
                f"into {folder} or add --download"
            )
        fetch(folder, archive)
    path = verify(folder, archive)
    contents = read_archive(path, [remote.place for remote in files])
    return lambda remote: (read_pickle(contents[remote.place], path / remote.place), path / remote.place)


def _pickle(path: Path) -> tuple[dict[str, Any], Path]:
    with reading(path, "pickle"):
        data = path.read_bytes()
    return read_pickle(data, path), path


def read_archive(path: Path, names: list[str]) -> dict[str, bytes]:
    """The named files of a tar.gz, in memory. Whatever else is in it is passed over, wherever it would go."""
    contents: dict[str, bytes] = {}
    with reading(path, "tar.gz archive"), tarfile.open(path, "r|gz") as archive:
        for member in archive:
            if member.name not in names:
                if member.size > LIMIT:
                    raise DataError(f"{path}: {member.name} has {member.size} bytes; expected the published archive")
                continue
            if member.size > LIMIT or not member.isfile():
                raise DataError(f"{path}: {member.name} is not a file of the expected size")
            file = archive.extractfile(member)
            assert file is not None
            contents[member.name] = file.read()
            if len(contents) == len(names):
                break
    if absent := [name for name in names if name not in contents]:
        raise DataError(f"{path}: lacks {', '.join(absent)}; get the archive again")
    return contents


def _batch(found: dict[str, Any], path: Path, count: int, key: str, num_classes: int) -> tuple[Any, Tensor]:
    pixels = found.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (count, 3072):
        got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"{path}: expected images as uint8 ({count}, 3072) under 'data', got {got}")
    return pixels, _labels(found, path, count, key, num_classes)


def _labels(found: dict[str, Any], path: Path, count: int, key: str, num_classes: int) -> Tensor:
    """int64 labels under a key, as many as wanted and all in range."""
    if key not in found:
        raise DataError(f"{path}: expected labels under {key!r}, got the keys {', '.join(found) or 'none'}"[:300])
    with reading(path, f"file with labels under {key!r}"):
        labels = torch.from_numpy(np.array(found[key], dtype=np.int64))
    if labels.shape != (count,) or int(labels.min()) < 0 or int(labels.max()) >= num_classes:
        raise DataError(f"{path}: expected {count} labels from 0 to {num_classes - 1} under {key!r}")
    return labels


def _images(parts: list[Any]) -> Tensor:
    """uint8 (N, 3, 32, 32), kept as channels_last, which is how batches are made."""
    pixels = np.empty((sum(map(len, parts)), 32, 32, 3), dtype=np.uint8)
    start = 0
    for part in parts:
        pixels[start : start + len(part)] = part.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        start += len(part)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def _meta(found: dict[str, Any], path: Path) -> tuple[str, ...]:
    names = found.get("fine_label_names")
    if not isinstance(names, list) or len(names) != 100:
        raise DataError(f"{path}: expected 100 names under 'fine_label_names'")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names)


def _parents(fine: Tensor, coarse: Tensor) -> Tensor:
    parents = torch.empty(100, dtype=torch.int64)
    parents[fine] = coarse
    if not torch.equal(parents[fine], coarse):
        raise DataError("CIFAR-100: a class lies in more than one super-class; get the files again")
    return parents
