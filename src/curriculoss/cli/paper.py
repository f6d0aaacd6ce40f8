"""`curriculoss reproduce`: the paper's tables, figures and claims, each from one command."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from curriculoss.cli.console import UsageError, app, new_console, new_table, print_json
from curriculoss.cli.mistakes import mistakes, stopped
from curriculoss.cli.settings import AsJson, DataDir, Download, Workers

if TYPE_CHECKING:
    from curriculoss.paper.reproduce import Plan


@app.command()
def reproduce(
    artefact: Annotated[str, typer.Argument(help="`list`, `all`, or a name from the list such as table:underfit.")],
    scale: Annotated[
        str, typer.Option(help="smoke: digits, minutes. cpu: real data, hours. paper: its settings.")
    ] = "cpu",
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each: seeds 0 to n-1 (main tables 3, at paper as its own; else 1).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for files and runs (results; other scales: results/SCALE).")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs side by side, one thread each (as many as cores).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run, how long, and what is done.")
    ] = False,
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    as_json: AsJson = False,
) -> None:
    """Make a table or figure of the paper again, or test its claims: ours beside the paper's.

    \b
    curriculoss reproduce list
    curriculoss reproduce table:underfit --scale smoke
    curriculoss reproduce table:fix --scale cpu --data-dir DATA --dry-run
    curriculoss reproduce claims --data-dir DATA

    Artefacts share their runs. Stopped and started again, it goes on where it was; what is done is not done again.
    OUT/epochs.csv is the record of what is done: to have a run made again, delete its rows there and its folder.
    Tables come as text, CSV, Markdown and LaTeX, figures as PDF, SVG and PNG.
    """
    if (seeds is not None and seeds < 1) or (jobs is not None and jobs < 1):
        raise UsageError(f"expected --seeds and --jobs >= 1, got {seeds if seeds is not None and seeds < 1 else jobs}")
    with mistakes():
        from curriculoss.paper import reproduce as room
        from curriculoss.paper.artefacts import ARTEFACTS, get

        if artefact == "list":
            _list(as_json)
            return
        names = list(ARTEFACTS) if artefact == "all" else [artefact]
        chosen = room.scale_named(scale)
        folder = out or (Path("results") if scale == "cpu" else Path("results") / scale)
        if folder.is_file():
            raise UsageError(f"--out {folder} is a file; give a folder")
        plans = [room.Plan(get(name), chosen, folder, seeds) for name in names]
        options: dict[str, Any] = {"data_dir": data_dir, "download": download}
        if dry_run:
            _say_plan(plans, jobs, as_json, **options)
            return
        failed: dict[Path, Exception] = {}
        made: list[dict[str, Any]] = []
        for plan in plans:
            failed |= _run(plan, jobs, as_json, workers=workers, **options)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                result = plan.make(data_dir=data_dir)
            for said in dict.fromkeys(str(each.message) for each in caught):
                print(f"Note: {said}", file=sys.stderr)
            made.append({"artefact": plan.artefact.name, "files": [str(file) for file in result.files]})
            if not as_json:
                print(result.text)
                print("files: " + ", ".join(str(file) for file in result.files))
    if as_json:
        print_json({"scale": scale, "made": made, "failed": {str(path): str(error) for path, error in failed.items()}})
    for path, error in failed.items():
        print(f"Error: {path.name}: {' '.join(str(error).split())}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _list(as_json: bool) -> None:
    from curriculoss.paper.artefacts import ARTEFACTS
    from curriculoss.paper.settings import SCALES

    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "title": each.title,
            "source": each.source,
            "runs": {scale.name: _count(each, scale) for scale in SCALES.values()},
        }
        for each in ARTEFACTS.values()
    ]
    if as_json:
        print_json(rows)
        return
    table = new_table("name", "what", *(f"runs, {name}" for name in SCALES))
    table.columns[0].no_wrap = True  # to be copied
    for row in rows:
        table.add_row(row["name"], row["title"], *(str(count) for count in row["runs"].values()))
    new_console().print(table)


def _count(artefact: Any, scale: Any) -> int:
    from curriculoss.paper.reproduce import Plan

    return len(Plan(artefact, scale, Path()).runs())


def _say_plan(plans: Sequence[Plan], jobs: int | None, as_json: bool, **options: Any) -> None:
    from curriculoss.data import DataError
    from curriculoss.paper.reproduce import estimate, expect_data

    runs = {path: spec for plan in plans for path, spec in plan.runs().items()}
    done = {path for plan in plans for path in plan.done()}
    missing = [spec for path, spec in runs.items() if path not in done]
    if not as_json:
        for path in runs:
            print(("done     " if path in done else "missing  ") + path.name)
    try:
        expect_data(missing, **options)
        if missing:
            print("measuring a few steps of each kind of run", file=sys.stderr)
        seconds, lack = estimate(missing, jobs=jobs, **options), ""
    except DataError as error:
        seconds, lack = None, str(error)
    if as_json:
        rows = [{"run": str(path), "done": path in done, "spec": spec.as_dict()} for path, spec in runs.items()]
        print_json({"runs": rows, "done": len(done), "missing": len(missing), "seconds": seconds})
        return
    told = f"; how long the others take is not known: {lack}"
    if seconds is not None:
        hours = f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"
        time = hours if seconds >= 90 else f"{seconds:.0f} seconds"
        told = f"; training the others takes about {time} on this machine" if missing else ""
    print(f"{len(runs)} runs, {len(done)} done already{told}")


def _run(plan: Plan, jobs: int | None, as_json: bool, **options: Any) -> dict[Path, Exception]:
    from curriculoss.training import Run

    console = Console(stderr=True)
    missing = plan.missing()
    told = 0

    def watch(epochs: int) -> None:
        nonlocal told
        bar.update(task, completed=epochs)
        finished = sum(Run(path).finished for path in missing)
        if finished > told and bar.disable and not as_json:  # a line a run, for logs
            print(f"{plan.artefact.name}: {finished} of {len(missing)} runs, {epochs} epochs", file=sys.stderr)
        told = finished

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as bar:
        task = bar.add_task(
            f"{plan.artefact.name}: epochs of {len(missing)} runs", total=sum(x.epochs for x in missing.values())
        )
        try:
            return dict(plan.run(jobs=jobs, watch=watch, **options))
        except KeyboardInterrupt as stop:
            raise stopped("stopped; the same command goes on from there", stop) from None
