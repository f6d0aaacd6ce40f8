"""What all commands share: the app, one-line errors, tables, JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

import curriculoss

UsageError: Any = typer.BadParameter.__base__  # click's, or that of the copy of click inside newer versions of typer


class OneLineErrors(TyperGroup):
    """A user's mistake is one line on stderr and exit code 2, never a box or a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.stdout.flush()
        except UsageError as error:
            print_error(error.format_message())
            code = 2
        except (typer.Abort, KeyboardInterrupt):  # Ctrl-C
            print("stopped", file=sys.stderr)
            code = 130
        except OSError as error:  # a full disk, or a reader that has left
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  what is still buffered would fail again at exit
            if not isinstance(error, BrokenPipeError):
                print(f"Error: cannot write the answer: {error.strerror}", file=sys.stderr)
            code = 1
        sys.exit(code or 0)


def print_error(text: str) -> None:
    """One line on stderr; what a terminal would obey, from files that are no text, is shown as a question mark."""
    line = " ".join(text.split())
    print("Error:", "".join(each if each.isprintable() else "?" for each in line), file=sys.stderr)


app = typer.Typer(
    cls=OneLineErrors, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, name="curriculoss"
)


def main() -> None:
    """The entry point."""
    app(prog_name="curriculoss")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"curriculoss {curriculoss.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Robust losses for classification with noisy labels, read as sample-weighting curricula.

    Every such loss gives a sample the weight w(Δ), a function of its margin Δ alone: the labelled class's logit minus
    the logsumexp of all others. With many classes margins start far below 0, and a loss with no weight there underfits.

    \b
    Which losses are there?        curriculoss losses
    Will MAE learn 100 classes?    curriculoss weight mae --num-classes 100
    And once it is fixed?          curriculoss weight mae --fix scale
    Draw it.                       curriculoss weight gce -p q=0.5 --out gce.png
    Train with it.                 curriculoss train --data digits --loss mae --out run
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def numbers(given: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for text in given:
        key, _, number = text.partition("=")
        if key in values:
            raise UsageError(f"expected each hyperparameter once, got {key!r} twice")
        try:
            values[key] = float(number)
        except ValueError:
            raise UsageError(f"expected -p name=number, got -p {text!r}") from None
    return values


def add(table: Table, *cells: str) -> None:
    """A row as it is: what is in brackets, as in p[y], is no markup."""
    table.add_row(*map(Text, cells), end_section=True)


def new_table(*columns: str, justify: Any = "left") -> Table:
    """No lines but one under the head."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify=justify if i else "left", overflow="fold")
    return table


def new_console() -> Console:
    """100 columns wherever it may be, fewer in a narrower terminal, and COLUMNS where that is set."""
    console = Console()
    if "COLUMNS" in os.environ:
        return Console(width=max(40, console.width))
    return Console(width=min(100, console.width) if console.is_terminal else 100)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))
