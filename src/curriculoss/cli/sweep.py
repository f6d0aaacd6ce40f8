"""`curriculoss sweep`: many runs from one file, here or on a cluster."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live

from curriculoss.cli.console import UsageError, app, new_table, print_json, show
from curriculoss.cli.exits import end_with_errors, resumable
from curriculoss.cli.options import AsJson, Cpus, DataDir, Download, Gpus, Jobs, Where, Workers, expect_outside

if TYPE_CHECKING:
    from curriculoss.runs.sweep import RunState, Sweep

AROUND = 6  # lines of a terminal that are not rows of the live table


@app.command()
def sweep(
    context: typer.Context,
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
    [base]                        settings of every run, named as in spec.json
    data = "digits"
    [[grid]]                      every combination; there may be several grids
    loss = ["gce"]
    params.q = [0.3, 0.7]
    seed = [0, 1, 2]
    [[runs]]                      a single run
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
    if as_json:
        print_json({"runs": len(wanted.specs), "done": list(map(str, results)), "results": str(out / RESULTS),
                    "failed": {str(x): str(error) for x, error in failed.items()}, "again": context.obj})  # fmt: skip
    else:
        print(f"{_counts(wanted.states(alive=False))}\nresults: {out / RESULTS}")
        print(f"report on them: curriculoss report {shlex.quote(str(out / 'runs'))}")
    if failed:
        errors = [f"{path.name}: {error}" for path, error in failed.items()]
        end_with_errors(errors, advice=f"run again just what failed: {context.obj}")


def _status(folder: Path | None, as_json: bool) -> None:
    """Print how far a sweep is, whoever trains it."""
    from curriculoss.runs.sweep import Sweep

    if folder is None:
        raise UsageError("`sweep status` expects the folder of a sweep")
    states = Sweep.read(folder).states()
    if as_json:
        print_json([each.as_dict() for each in states])
        return
    show(_table(states, len(states)))


@contextmanager
def _live(sweep: Sweep, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A table on stderr that follows the sweep; on a pipe, a line whenever a run has ended."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        told = -1

        def say(_: int) -> None:
            nonlocal told
            states = sweep.states(alive=True)
            ended = sum(each.state in ("done", "failed") for each in states)
            if ended != told and not quiet:
                print(_counts(states), file=sys.stderr)
            told = ended

        yield say
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda _: live.update(_table(sweep.states(alive=True), max(3, console.height - AROUND)), refresh=True)


def _counts(states: Sequence[RunState]) -> str:
    from curriculoss.runs.sweep import STATES

    found = Counter(each.state for each in states)
    return f"{len(states)} runs: " + ", ".join(f"{found[name]} {name}" for name in STATES if found[name])


def _table(states: Sequence[RunState], rows: int) -> Group:
    """The first rows, by state, and how many runs are in each."""
    from curriculoss.runs.sweep import STATES

    shown = sorted(states, key=lambda each: STATES.index(each.state))[:rows]
    cells = []
    for each in shown:
        left = "" if each.seconds_left is None else timedelta(seconds=round(each.seconds_left))
        cells.append((each.run.name, each.state, f"{each.epochs} of {each.of}", left, each.reason))
    more = len(states) - len(shown)
    told = _counts(states) + (f" ({more} not shown)" if more else "")
    return Group(new_table(("run", "state", "epoch", "left", ""), cells), told)
