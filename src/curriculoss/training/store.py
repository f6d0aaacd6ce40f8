"""A run's folder: what is in it, written so that a crash at any moment leaves whole files, and read again.

RUN/spec.json          what was run                     RUN/labels.npz      index, given and clean labels
RUN/task.json          on which data                    RUN/samples.npz     per sample: first, mean, last, slope
RUN/metrics.jsonl      one row an epoch                 RUN/model.safetensors  the network at the end
RUN/histograms.npz     of margins, one row an epoch     RUN/result.json     the last epoch; there when it is finished
RUN/environment.json   on what machine                  RUN/failed.json     when and why training diverged
RUN/checkpoint.pt      the last whole epoch of a run that is not finished
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from curriculoss.training.spec import RunSpec

if sys.platform != "win32":
    import fcntl


PART = ".part"  # ends the name of a file that is being written


class RunError(RuntimeError):
    """A run's folder is not as it should be; one line says what to do."""


class BusyError(RunError):
    """Another process writes the run."""


class DamagedError(RunError):
    """A file of a run cannot be read."""


def write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """The whole file or none: written beside it under another name, flushed to the disk, and renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with temporary.open("wb") as file:
            with _uninterrupted():
                fill(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:
            error.filename = str(path)  # for the user: not the other name, nor none as with a full disk
        raise


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals wait until the block is over: zipfile and torch.save, interrupted, raise errors of their own instead."""
    waiting: list[Callable[[], object]] = []
    replaced = {}
    if threading.current_thread() is threading.main_thread():  # no other is interrupted
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                replaced[number] = handler
                signal.signal(number, lambda *seen, handler=handler: waiting.append(lambda: handler(*seen)))
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
    for answer in waiting:
        answer()


def write_text(path: Path, text: str) -> None:
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """As .csv: one column a key, of settings in them one each; lists are separated by spaces."""
    flat = []
    for row in rows:
        plain = {key: value for key, value in row.items() if not isinstance(value, Mapping)}
        for name, value in row.items():
            if isinstance(value, Mapping):
                plain |= {f"{name}.{key}": each for key, each in value.items()}
        flat.append({k: " ".join(map(str, v)) if isinstance(v, (list, tuple)) else v for k, v in plain.items()})
    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(key for row in flat for key in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(flat)
    write_text(path, text.getvalue())


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """As .npz, which numpy dates the same every time."""
    plain = {key: np.asarray(value) for key, value in arrays.items()}

    def fill(file: IO[bytes]) -> None:
        memory = io.BytesIO()
        np.savez_compressed(memory, **plain)  # type: ignore[arg-type]  # numpy means a keyword of its own
        file.write(memory.getbuffer())

    write(path, fill)


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """One process at a time may write a run; the lock goes with the process, however that ends."""
    with (folder / ".lock").open("w") as file:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                raise BusyError(
                    f"{folder} is being written by another process; wait for it or choose another"
                ) from None
            for left in folder.glob(f".*{PART}"):  # by one that was killed
                left.unlink(missing_ok=True)
        yield


def environment() -> dict[str, Any]:
    """What metrics may depend on beside the spec."""
    from curriculoss import __version__

    return {
        "curriculoss": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }


@dataclass(frozen=True)
class Run:
    """A run's folder, read as far as it goes."""

    path: Path

    def _read(self, name: str, parse: Callable[[Path], Any]) -> Any:
        file = self.path / name
        try:
            return parse(file)
        except FileNotFoundError:
            raise RunError(f"{self.path} is no run, or not far enough: it has no {name}") from None
        except Exception as error:  # readers of broken files raise whatever they stumble on
            raise DamagedError(f"cannot read {file}: {str(error).splitlines()[0] if str(error) else error!r}") from None

    @cached_property
    def spec(self) -> RunSpec:
        spec: RunSpec = self._read("spec.json", lambda file: RunSpec.from_dict(json.loads(file.read_text("utf-8"))))
        return spec

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @cached_property
    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self._read("result.json", lambda file: _object(file.read_text("utf-8")))
        return result

    @cached_property
    def environment(self) -> dict[str, Any]:
        found: dict[str, Any] = self._read("environment.json", lambda file: _object(file.read_text("utf-8")))
        return found

    @cached_property
    def task(self) -> dict[str, Any]:
        """What its data were; nothing of runs that are older than that file."""
        return self._optional("task.json") or {}

    @cached_property
    def failed(self) -> dict[str, Any] | None:
        """`epoch` and `reason` of a run that diverged."""
        return self._optional("failed.json")

    def _optional(self, name: str) -> dict[str, Any] | None:
        if not (self.path / name).exists():
            return None
        found: dict[str, Any] = self._read(name, lambda file: _object(file.read_text("utf-8")))
        return found

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One row an epoch."""
        rows: list[dict[str, Any]] = self._read(
            "metrics.jsonl", lambda file: [_object(line) for line in file.read_text("utf-8").splitlines()]
        )
        return rows

    def arrays(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """Of `labels`, `samples` or `histograms`."""

        def parse(file: Path) -> dict[str, np.ndarray[Any, Any]]:
            with file.open("rb") as raw, np.load(raw, allow_pickle=False) as found:
                if absent := [key for key in EXPECTED.get(name, ()) if key not in found.files]:
                    raise ValueError(f"it lacks the array {absent[0]!r}")
                return {key: found[key] for key in found.files}

        arrays: dict[str, np.ndarray[Any, Any]] = self._read(f"{name}.npz", parse)
        return arrays


EXPECTED = {"labels": ("given",), "histograms": ("edges", "all")}  # arrays without which the others say nothing


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object of names and values, got {type(value).__name__}")
    return value


def line(row: Mapping[str, Any]) -> str:
    """One row of metrics.jsonl."""
    return json.dumps(row, allow_nan=False) + "\n"
