"""`curriculoss sweep`: many runs from one file, here or on a cluster."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from curriculoss.cli.console import UsageError, app, new_console, new_table, print_json
from curriculoss.cli.exits import end_with_errors, resumable
from curriculoss.cli.options import AsJson, Cpus, DataDir, Download, Gpus, Jobs, Where, Workers, expect_outside

if TYPE_CHECKING:
    from curriculoss.runs.sweep import RunState, Sweep

AROUND = 6  # lines of a terminal that are not rows of the live table


@app.command()
def sweep(
    file: Annotated[str, typer.Argument(help="A .toml file of runs; or `status`.")],
    folder: Annotated[Path | None, typer.Argument(help="With `status`: the folder of a sweep.")] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="Folder of the sweep.")] = None,
    executor: Where = "local",
    jobs: Jobs = None,
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    as_json: AsJson = False,
) -> None:
    """Train all runs of a file, on this machine or on a Ray cluster.

    \b
    curriculoss sweep runs.toml --out sweep
    curriculoss sweep runs.toml --out sweep --executor ray:10.0.0.1:6379 --gpus 1
    curriculoss sweep status sweep

    \b
    [base]                              settings of every run, by the names that spec.json has
    data = "digits"
    [[grid]]                            every combination of these; there may be several grids
    loss = ["gce"]
    params.q = [0.3, 0.7]
    seed = [0, 1, 2]
    [[runs]]                            a single run
    loss = "mae"

    A run that fails does not stop the others. The same command goes on where it stopped: finished runs are not
    repeated, failed ones are tried again. All nodes of a cluster must see the folder and the data by the same paths.
    """
    if file == "status":
        _status(folder, as_json)
        return
    if folder is not None:
        raise UsageError(f"expected a file or `status` with a folder, got {file} and {folder}")
    if out is None:
        raise UsageError("Missing option '--out'.")
    from curriculoss.runs.executors import executor_named
    from curriculoss.runs.sweep import RESULTS, Sweep, read_sweep

    place = executor_named(executor, jobs=jobs, cpus=cpus, gpus=gpus)
    wanted = Sweep(out, read_sweep(file))
    for data in {spec.data for spec in wanted.specs}:
        expect_outside(out, data)
    with _live(wanted, quiet=as_json) as watch, resumable():
        results, failed = wanted.train(place, watch=watch, data_dir=data_dir, download=download, workers=workers)
    given = {"--out": out, "--executor": executor, "--jobs": jobs, "--cpus": cpus, "--gpus": gpus,
             "--data-dir": data_dir, "--download": download, "--workers": workers}  # fmt: skip
    again = _command(file, given)
    if as_json:
        print_json({"runs": len(wanted.specs), "done": list(map(str, results)), "results": str(out / RESULTS),
                    "failed": {str(path): str(error) for path, error in failed.items()}, "again": again})  # fmt: skip
    else:
        print(f"{_counts(wanted.states(alive=False))}\nresults: {out / RESULTS}")
        print(f"report on them: curriculoss report {shlex.quote(str(out / 'runs'))}")
    if failed:
        errors = [f"{path.name}: {error}" for path, error in failed.items()]
        end_with_errors(errors, advice=f"run again just what failed: {again}")


def _command(file: str, given: dict[str, Any]) -> str:
    """The command with the options that differ from their defaults."""
    words = ["curriculoss", "sweep", file]
    usual = {"--executor": "local", "--cpus": 1}
    for flag, value in given.items():
        if value is True:
            words.append(flag)
        elif value and value != usual.get(flag):
            words += [flag, str(value)]
    return shlex.join(words)


def _status(folder: Path | None, as_json: bool) -> None:
    """Print how far a sweep is, whoever trains it."""
    from curriculoss.runs.sweep import Sweep

    if folder is None:
        raise UsageError("`sweep status` expects the folder of a sweep")
    states = Sweep.read(folder).states()
    if as_json:
        print_json([each.as_dict() for each in states])
        return
    new_console().print(_table(states, len(states)))


@contextmanager
def _live(sweep: Sweep, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A table on stderr that follows the sweep; on a pipe, a line whenever a run has ended."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        told = -1

        def say() -> None:
            nonlocal told
            states = sweep.states(alive=True)
            ended = sum(each.state in ("done", "failed") for each in states)
            if ended != told and not quiet:
                print(_counts(states), file=sys.stderr)
            told = ended

        yield say
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda: live.update(_table(sweep.states(alive=True), max(3, console.height - AROUND)), refresh=True)


def _counts(states: Sequence[RunState]) -> str:
    from curriculoss.runs.sweep import STATES

    found = Counter(each.state for each in states)
    return f"{len(states)} runs: " + ", ".join(f"{found[name]} {name}" for name in STATES if found[name])


def _table(states: Sequence[RunState], rows: int) -> Group:
    """The first rows, by state, and how many runs are in each."""
    from curriculoss.runs.sweep import STATES

    table = new_table("run", "state", "epoch", "left", "")
    shown = sorted(states, key=lambda each: STATES.index(each.state))[:rows]
    for each in shown:
        left = "" if each.seconds_left is None else _duration(each.seconds_left)
        cells = (each.run.name, each.state, f"{each.epochs} of {each.of}", left, each.reason)
        table.add_row(*map(Text, cells))
    more = len(states) - len(shown)
    return Group(table, Text(_counts(states) + (f" ({more} not shown)" if more else "")))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
