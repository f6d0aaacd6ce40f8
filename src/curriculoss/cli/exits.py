"""How a command ends: its exit code and, if it failed, one line on stderr.

0 is success, 1 what the machine or a file refused, 2 a mistake of the user, 70 a bug, 130 and 143 an interruption.
"""

import io
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from curriculoss._text import first_line
from curriculoss.errors import CurriculossError, RunError

UsageError: Any = typer.BadParameter.__base__  # click's, or that of the copy of click inside newer versions of typer
REFUSED, MISTAKE, BUG = 1, 2, 70


def run(command: Callable[[], object]) -> int:
    """Run a command, print what went wrong as one line, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    try:
        with _sigterm_interrupts():
            command()
            sys.stdout.flush()
    except typer.Exit as end:
        return int(end.exit_code)
    except KeyboardInterrupt as stop:
        print(*stop.args or ("stopped",), file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT)
    except Exception as error:  # whatever it is, the user gets one line
        code, text = _explain(error)
        if text:
            print_error(text)
        return code
    return 0


def _explain(error: Exception) -> tuple[int, str]:
    """The exit code and the line for an error; the line is empty if nobody is left to read it."""
    match error:
        case UsageError():
            return MISTAKE, error.format_message()
        case RunError():
            return REFUSED, str(error)
        case CurriculossError():
            return MISTAKE, str(error)
        case ModuleNotFoundError(name=str(name)) if not name.startswith("curriculoss"):
            return REFUSED, f"this command needs {name.partition('.')[0]}: pip install 'curriculoss[train]'"
        case OSError(errno=int(), filename=None):  # of a file there would be a name: `_files` sees to that
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what is still buffered would fail again at exit
            left = isinstance(error, BrokenPipeError)  # the reader has gone, as `head` does
            return REFUSED, "" if left else f"cannot write the answer: {error.strerror}"
        case OSError():
            where = f" {error.filename}" if error.filename else ""
            return REFUSED, f"cannot read or write{where}: {error.strerror or error}; what was finished is kept"
    # Torch has a class of its own for this only on devices; on the CPU its message is all there is.
    no_memory = "allocate memory" in str(error) or "out of memory" in str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and no_memory):
        return REFUSED, "there is not enough memory; try a smaller --batch-size, --subset or --width"
    return BUG, f"this is a bug in curriculoss ({type(error).__name__}: {first_line(error)}); {_traceback_place(error)}"


def _traceback_place(error: Exception) -> str:
    """Write the traceback to a file, or to stderr if CURRICULOSS_DEBUG asks for that, and say where it is."""
    text = "".join(traceback.format_exception(error))
    if os.environ.get("CURRICULOSS_DEBUG", "0") != "0":
        print(text, end="", file=sys.stderr)
        return "the traceback is above"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="curriculoss-", suffix=".txt", delete=False) as file:
            file.write(text)
    except OSError:
        return "CURRICULOSS_DEBUG=1 shows the traceback"
    return f"please report it with the traceback in {file.name}"


def print_error(text: str) -> None:
    """Print one line on stderr, with a question mark for each control character."""
    line = " ".join(text.split())
    print("Error:", "".join(each if each.isprintable() else "?" for each in line), file=sys.stderr)


def end_with_errors(errors: Iterable[str], *, advice: str = "") -> NoReturn:
    """End a command some of whose runs failed: one line per error on stderr, then the advice."""
    sys.stdout.flush()
    for each in errors:
        print_error(each)
    if advice:
        print(advice, file=sys.stderr)
    raise typer.Exit(REFUSED)


@contextmanager
def resumable(progress: Callable[[], str] = str) -> Iterator[None]:
    """Tell a user who stops the block how to go on; `progress` says how far it got, as in " after epoch 3"."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = (f"stopped{progress()}; the same command goes on from there",)
        raise


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread() or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        yield  # torchrun ends its processes itself
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
