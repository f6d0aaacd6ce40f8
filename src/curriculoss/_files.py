"""Atomic writing of files, and a lock on a folder."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from curriculoss.errors import BusyError, RunError

PART = ".part"  # suffix of a file that is being written


def write(path: Path, fill: Callable[[IO[bytes]], object], *, buffered: bool = False) -> None:
    """Write the whole file or none: under another name beside it, flushed to the disk, then renamed.

    `buffered` fills memory first, for what turns a full disk into an error of its own, as torch.save does.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    memory = io.BytesIO()
    try:
        with temporary.open("wb") as file:
            with _uninterrupted():
                fill(memory if buffered else file)
            file.write(memory.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:
            error.filename = str(path)  # what the user knows; with a full disk there is no name at all
        raise


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay signals until the end of the block: zipfile and torch.save turn an interruption into other errors."""
    came: list[int] = []
    replaced = {}
    if threading.current_thread() is threading.main_thread():  # the only one that signals interrupt
        for number in filter(signal.getsignal, (signal.SIGINT, signal.SIGTERM)):  # not for the default action
            replaced[number] = signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
    for each in came:
        signal.raise_signal(each)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8; a file name in the text that is no Unicode is written with backslashes."""
    write(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write .csv with one column per key, and one per key of mappings inside rows; lists are joined by spaces."""
    flat: list[dict[str, Any]] = []
    for row in rows:
        plain = {key: value for key, value in row.items() if not isinstance(value, Mapping)}
        nested = {key: value for key, value in row.items() if isinstance(value, Mapping)}
        plain |= {f"{name}.{key}": each for name, value in nested.items() for key, each in value.items()}
        flat.append({k: " ".join(map(str, v)) if isinstance(v, (list, tuple)) else v for k, v in plain.items()})
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(key for row in flat for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(flat)
    write_text(path, text.getvalue())


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write .npz with deterministic bytes."""
    import numpy as np

    plain: Any = {key: np.asarray(value) for key, value in arrays.items()}
    write(path, lambda file: np.savez_compressed(file, **plain), buffered=True)


def holds(folder: Path, name: str, what: str, *, ignoring: Collection[str]) -> bool:
    """Whether a folder has a file of that name; RunError if it has others instead, or is a file itself."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give a folder for the {what}")
    if (folder / name).exists():
        return True
    if folder.exists() and any(x.name not in ignoring and x.suffix != PART for x in folder.iterdir()):
        raise RunError(f"{folder} is not empty and holds no {what}; give another folder")
    return False


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Let one process at a time write to a folder; the lock ends with the process, even if that is killed."""
    from filelock import FileLock, Timeout  # here, so that commands without runs do not need it

    try:
        held = FileLock(folder / ".lock").acquire(blocking=wait)
    except Timeout:
        raise BusyError(f"{folder} is being written by another process; wait for it or choose another") from None
    with held:
        for left in folder.glob(f".*{PART}"):  # left by a process that was killed
            left.unlink(missing_ok=True)
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process writes to the folder at this moment."""
    from filelock import FileLock, Timeout

    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock").acquire(blocking=False):
            return False
    except (Timeout, OSError):  # held, or somebody else's
        return True
