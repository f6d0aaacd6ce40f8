"""Pickles read without running anything in them: arrays, lists, strings, bytes and numbers, nothing else."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curriculoss.data.files import DataError, reading

LIMIT = 1 << 30  # bytes; no pickle read here is a fifth of it
DTYPES = {"u1": np.uint8, "i4": np.int32, "i8": np.int64}


class _Dtype:
    """Stands in for numpy.dtype: remembers the code, and refuses what is not a little-endian integer."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        name = code.decode("ascii") if isinstance(code, bytes) else code
        if name not in DTYPES:
            raise DataError(f"holds an array of type {name!r}; expected one of {', '.join(DTYPES)}")
        self.type = np.dtype(DTYPES[name])

    def __setstate__(self, state: tuple[object, ...]) -> None:
        if state[1] not in ("<", "|", b"<", b"|"):
            raise DataError(f"holds an array of byte order {state[1]!r}; expected little-endian")


class _Array:
    """Stands in for numpy.ndarray: keeps the bytes that numpy would be handed."""

    array: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes) or fortran:
            raise DataError("holds an array that is not plain numbers in C order")
        self.array = np.frombuffer(raw, dtype.type).reshape(shape)


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise DataError(f"holds text encoded as {encoding!r}; expected latin1")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
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
    """The dictionary in a pickle, its keys as text and its arrays as numpy's."""
    with reading(path, "pickle"):
        try:
            found = _Reader(io.BytesIO(data), encoding=encoding).load()
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a dictionary in the pickle, got {type(found).__name__}")
    names = [key.decode("latin1") if isinstance(key, bytes) else str(key) for key in found]
    values = [value.array if isinstance(value, _Array) else value for value in found.values()]
    return dict(zip(names, values, strict=True))


def read_torch(path: Path) -> dict[str, Any]:
    """The dictionary in a file that torch.save made of a dictionary of arrays (a zip with a pickle in it)."""
    with reading(path, "file of torch.save"), zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.rpartition("/")[2] == "data.pkl"]
        if len(entries) != 1 or entries[0].file_size > LIMIT:
            raise DataError(f"{path}: expected one data.pkl of at most {LIMIT} bytes in the archive")
        data = archive.read(entries[0])
    return read_pickle(data, path, "ASCII")
