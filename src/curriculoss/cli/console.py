"""What all commands share: the app, tables, JSON, hyperparameters."""

import json
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

import curriculoss
from curriculoss.cli import exits
from curriculoss.cli.exits import UsageError as UsageError
from curriculoss.errors import InvalidValueError


class OneLineErrors(TyperGroup):
    """The app's commands, with their command line as `obj`; all errors become one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **__: Any) -> NoReturn:
        name = prog_name or "curriculoss"
        self._main_shell_completion({}, name)  # answers and exits if a shell asks what could follow

        def command() -> None:
            given = list(sys.argv[1:] if args is None else args)
            with self.make_context(name, given, obj=shlex.join([name, *given])) as context:
                self.invoke(context)

        sys.exit(exits.run(command))


app = typer.Typer(cls=OneLineErrors, rich_markup_mode=None, pretty_exceptions_enable=False, name="curriculoss")


def main() -> None:
    """The entry point."""
    app(prog_name="curriculoss")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"curriculoss {curriculoss.__version__} (torch {torch.__version__})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print this version and torch's.", is_eager=True, callback=_version)
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
    Train with it.                 curriculoss train --loss mae --out run
    Is all of it installed?        curriculoss doctor
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def numbers(given: list[str]) -> dict[str, float]:
    """Hyperparameters from texts such as `q=0.5`."""
    values: dict[str, float] = {}
    for text in given:
        key, _, number = text.partition("=")
        if key in values:
            raise InvalidValueError(f"expected each hyperparameter once, got {key!r} twice")
        try:
            values[key] = float(number)
        except ValueError:
            raise InvalidValueError(f"expected a hyperparameter as name=number, got {text!r}") from None
    return values


def new_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, justify: Any = "left", apart: bool = False
) -> Table:
    """Rows of anything as plain text; None is shown as a dash. `apart` puts blank lines between rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=apart)
    for i, column in enumerate(columns):
        table.add_column(column, justify=justify if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    return table


def show(*parts: Table | Group | str) -> None:
    """Print tables, and lines of text as they are."""
    new_console().print(*parts, sep="\n", markup=False, highlight=False, soft_wrap=True)


def new_console() -> Console:
    """A console of 100 columns, fewer in a narrower terminal, or as many as COLUMNS says."""
    console = Console()
    if "COLUMNS" in os.environ:
        return Console(width=max(40, console.width))
    return Console(width=min(100, console.width) if console.is_terminal else 100)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))
