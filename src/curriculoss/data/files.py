"""Where data files are, whether they are the published ones, and how they get here."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MEMORY = ".curriculoss-verified.json"  # beside the data: which files were found to be right, at which size and time


class DataError(ValueError):
    """Data that cannot be used. The message is one line: which file, what is wrong, what to do."""


@dataclass(frozen=True)
class Remote:
    """A published file: its place below the data folder, its md5 (None: not published) and its address."""

    place: str
    md5: str | None
    address: str | None = None


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder that holds data: the argument, the variable CURRICULOSS_DATA, or the platform's cache folder."""
    named = data_dir or os.environ.get("CURRICULOSS_DATA")
    if named:
        return Path(os.path.expanduser(named))
    import platformdirs

    return Path(platformdirs.user_cache_dir("curriculoss"))


def present(folder: Path, remote: Remote) -> bool:
    return (folder / remote.place).is_file()


def fetch(folder: Path, remote: Remote) -> None:
    """Download a file from its official address; it appears under its name only if whole and right."""
    import pooch

    if remote.address is None or remote.md5 is None:
        raise DataError(f"{remote.place} has no address to download from")
    pooch.get_logger().setLevel(logging.WARNING)
    path = folder / remote.place
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(remote.address, known_hash=f"md5:{remote.md5}", fname=path.name, path=path.parent)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong hash is a ValueError
        raise DataError(f"downloading {remote.address} to {path} failed: {first_line(error)}") from error


def verify(folder: Path, remote: Remote) -> Path:
    """The path of a file that is there and has its published md5, which is computed once and remembered."""
    path = folder / remote.place
    if remote.md5 is None:
        return path
    with reading(path, "file"):
        status = path.stat()
        mark = [status.st_size, status.st_mtime_ns, remote.md5]
        known = _remembered(folder)
        if known.get(remote.place) == mark:
            return path
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != remote.md5:
        source = f" from {remote.address}" if remote.address else ""
        raise DataError(
            f"{path} is not the published file: expected md5 {remote.md5}, got {found} ({status.st_size} bytes); "
            f"delete it and get it again{source}"
        )
    _remember(folder, known | {remote.place: mark})
    return path


def _remembered(folder: Path) -> dict[str, object]:
    try:
        known = json.loads((folder / MEMORY).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(folder: Path, known: dict[str, object]) -> None:
    part = None
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=MEMORY, delete=False, encoding="utf-8") as file:
            part = Path(file.name)
            json.dump(known, file, indent=1)
        part.replace(folder / MEMORY)
    except OSError:  # a folder that cannot be written to is verified each time
        if part is not None:
            part.unlink(missing_ok=True)


def first_line(error: BaseException) -> str:
    """What an exception says, shortened to one line."""
    lines = str(error).strip().splitlines() or [""]
    return lines[0].strip()[:200] or type(error).__name__


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a reader of files raises on a bad one into one line that names the file."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; expected a {kind}") from error
    except MemoryError as error:
        raise DataError(f"{path}: too large for this machine's memory") from error
    except Exception as error:  # readers of broken files raise whatever they stumble on
        raise DataError(f"{path}: cannot be read as a {kind}: {first_line(error)}") from error
