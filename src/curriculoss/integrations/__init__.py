"""Losses and monitor in the training loops of other libraries; a module needs the library it serves."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Say in one line what to install if an import of the block finds nothing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        library, command = str(missing.name).partition(".")[0], f"pip install 'curriculoss[{extra}]'"
        raise ImportError(f"curriculoss.integrations.{extra} needs {library}: {command}") from None
