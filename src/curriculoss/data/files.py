"""Where data files are, whether they are the published ones, and how they are downloaded."""

import hashlib
import logging
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from curriculoss._facts import Facts
from curriculoss._text import first_line
from curriculoss.errors import DataError


@dataclass(frozen=True)
class Remote(Facts):
    """A published file: its place below the data folder, its md5 (None: not published) and its address."""

    place: str
    md5: str | None
    address: str | None = None


@dataclass(frozen=True)
class NamedData(Facts):
    """A data set known by name, as data_sets.toml describes it.

    Attributes:
        reader: Its key in `loading.READERS`.
        num_classes: How many classes it has.
        description: What it is, for a list.
        patterns: Patterns of its files below the data folder; none for data that come with scikit-learn.
        files: Its files, if they are known one by one.
        class_names: The names of its classes, if its files do not tell.
        flips: The class that asymmetric noise moves each class to.
        archive: One file that has all the others in it.
        human: The file of labels that people gave.
        human_variants: The kinds of labels in that file; the first is the default.
    """

    reader: str
    num_classes: int
    description: str
    patterns: tuple[str, ...] = ()
    files: tuple[Remote, ...] = ()
    class_names: tuple[str, ...] = ()
    flips: tuple[int, ...] = ()
    archive: Remote | None = None
    human: Remote | None = None
    human_variants: tuple[str, ...] = ()

    def is_here(self, data_dir: str | Path | None = None) -> bool:
        """Whether its files seem to be in the data folder."""
        return not self.patterns or any(any(data_folder(data_dir).glob(pattern)) for pattern in self.patterns)


DATA_SETS = {
    name: NamedData.from_dict(given)
    for name, given in tomllib.loads(resources.files(__package__).joinpath("data_sets.toml").read_text("utf-8")).items()
}


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder that holds data: the argument, the variable CURRICULOSS_DATA, or the platform's cache folder."""
    named = data_dir or os.environ.get("CURRICULOSS_DATA")
    if named:
        return Path(os.path.expanduser(named))
    import platformdirs

    return Path(platformdirs.user_cache_dir("curriculoss"))


def present(folder: Path, remote: Remote) -> bool:
    """Whether a file is there, right or wrong."""
    return (folder / remote.place).is_file()


def fetch(folder: Path, remote: Remote) -> None:
    """Download a file from its official address; it appears under its name only if its md5 is right."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    path = folder / remote.place
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(remote.address, known_hash=f"md5:{remote.md5}", fname=path.name, path=path.parent)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors, a wrong hash is a ValueError
        raise DataError(f"downloading {remote.address} to {path} failed: {first_line(error)}") from error


def verify(folder: Path, remote: Remote) -> Path:
    """The path of a file, which must have its published md5."""
    path = folder / remote.place
    if remote.md5 is None:
        return path
    with reading(path, "a file"), path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != remote.md5:
        source = f" from {remote.address}" if remote.address else ""
        got = f"expected md5 {remote.md5}, got {found} ({path.stat().st_size} bytes)"
        raise DataError(f"{path} is not the published file: {got}; delete it and get it again{source}")
    return path


@contextmanager
def reading(path: object, kind: str) -> Iterator[None]:
    """Turn whatever a reader raises on a bad file into one line that names the file and says what was expected."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; expected {kind}") from error
    except MemoryError as error:
        raise DataError(f"{path}: too large for this machine's memory") from error
    except Exception as error:  # readers of broken files raise whatever they stumble on
        raise DataError(f"{path}: cannot be read as {kind}: {first_line(error)}") from error
