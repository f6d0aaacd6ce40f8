"""How a training command ends when something is wrong: one line, and the right exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from curriculoss.cli.console import UsageError, print_error


@contextmanager
def mistakes() -> Iterator[None]:
    """What a user can mend is one line and exit 2; what the machine refuses is one line and exit 1."""
    alone = threading.current_thread() is threading.main_thread() and int(os.environ.get("WORLD_SIZE", 1)) == 1
    before = signal.signal(signal.SIGTERM, _terminated) if alone else None  # torchrun's processes just end
    try:
        yield
    except (typer.Exit, typer.Abort, BrokenPipeError):  # the last: a reader that has left, as head does
        raise
    except KeyboardInterrupt as stop:
        raise stopped("stopped", stop) from None
    except ModuleNotFoundError as missing:
        _fail(f"training needs {str(missing.name).partition('.')[0]}: pip install 'curriculoss[train]'")
    except RuntimeError as error:
        from curriculoss.training import RunError

        text = str(error)
        if not isinstance(error, RunError):  # torch's, with an account of its inside in further lines
            memory = "allocate memory" in text or "out of memory" in text
            text = NO_MEMORY if memory else f"the machine gave up: {text.partition(chr(10))[0] or type(error).__name__}"
        _fail(text)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _fail(f"cannot read or write{where}: {error.strerror or error}; what was finished is kept")
    except MemoryError:
        _fail(NO_MEMORY)
    finally:
        if alone:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


NO_MEMORY = "there is not enough memory; try a smaller --batch-size, --subset or --width"


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def _terminated(*_: object) -> None:
    raise _Terminated


def stopped(text: str, stop: KeyboardInterrupt) -> typer.Exit:
    print(text, file=sys.stderr)
    return typer.Exit(128 + (signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT))


def _fail(text: str) -> None:
    print_error(text)
    raise typer.Exit(1)
