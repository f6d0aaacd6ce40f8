"""`curriculoss reproduce`: the paper's tables, figures and claims, each from one command."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curriculoss._checks import check_known
from curriculoss.cli.console import app, new_table, print_json, show
from curriculoss.cli.exits import end_with_errors, resumable
from curriculoss.cli.options import AsJson, Cpus, DataDir, Download, Gpus, Jobs, Where, Workers
from curriculoss.cli.progress import progress_bar
from curriculoss.errors import InvalidValueError

if TYPE_CHECKING:
    from curriculoss.paper.plans import Plan


@app.command()
def reproduce(
    artefact: Annotated[str, typer.Argument(help="`list`, `all`, or a name from the list such as table:underfit.")],
    *,
    scale: Annotated[
        str | None, typer.Option(help="Scale of the experiments, a name from the list (default: that of results/).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs per cell: seeds 0 to n-1 (default: as many as the scale plans).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for files and runs (default: results, other scales: results/SCALE).")
    ] = None,
    jobs: Jobs = None,
    executor: Where = "local",
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which runs are done or missing, and estimate the time.")
    ] = False,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Train missing runs, or make everything from finished runs.")
    ] = True,
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper, or test its claims, with the paper's numbers beside ours.

    \b
    curriculoss reproduce list
    curriculoss reproduce table:underfit --scale smoke
    curriculoss reproduce table:fix --data-dir DATA --dry-run
    curriculoss reproduce claims --data-dir DATA

    Artefacts share their runs. An interrupted command continues where it stopped, and finished runs are not repeated.
    OUT/epochs.csv records finished runs: to repeat a run, delete its rows there and its folder.
    Tables are written as text, CSV, Markdown and LaTeX, figures as PDF, SVG and PNG.
    """
    from curriculoss.paper import artefacts, plans, scales
    from curriculoss.runs.executors import executor_named

    place = executor_named(executor, jobs=jobs, cpus=cpus, gpus=gpus)
    if artefact == "list":
        _list(as_json)
        return
    scale = scale or scales.DEFAULT.name
    check_known("scale", scale, scales.SCALES)
    chosen = scales.SCALES[scale]
    folder = out or Path("results") / ("" if chosen.name == scales.DEFAULT.name else chosen.name)
    if folder.is_file():
        raise InvalidValueError(f"--out {folder} is a file; give a folder")
    names = list(artefacts.ARTEFACTS) if artefact == "all" else [artefact]
    check_known("artefact", names[0], artefacts.ARTEFACTS)
    wanted = [plans.Plan(artefacts.ARTEFACTS[name], chosen, folder, seeds) for name in names]
    options: dict[str, Any] = {"data_dir": data_dir, "download": download}
    if dry_run:
        _print_plan(wanted, jobs, as_json, **options)
        return
    failed, made = dict[Path, Exception](), list[dict[str, Any]]()
    for plan in wanted:
        if train:
            failed |= _run(plan, as_json, executor=place, workers=workers, **options)
        text, files = _make(plan, data_dir, as_json)
        made.append({"artefact": plan.artefact.name, "files": files})
        if not as_json:
            print(f"{text}\nfiles: {', '.join(files)}")
    if as_json:
        print_json({"scale": chosen.name, "made": made, "failed": {str(at): str(why) for at, why in failed.items()}})
    if failed:
        end_with_errors(f"{path.name}: {error}" for path, error in failed.items())


def _make(plan: Plan, data_dir: Path | None, as_json: bool) -> tuple[str, list[str]]:
    """Make an artefact, print each warning once, and return its text and its files."""
    with progress_bar(f"making {plan.artefact.name}", quiet=as_json), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        text, paths = plan.make(data_dir=data_dir)
    for said in dict.fromkeys(str(each.message) for each in caught):
        print(f"Note: {said}", file=sys.stderr)
    return text, list(map(str, paths))


def _list(as_json: bool) -> None:
    """Print every artefact with its number of runs per scale, and the scales."""
    from curriculoss.paper import artefacts, plans
    from curriculoss.paper.scales import DEFAULT, SCALES

    runs = {
        each: {scale.name: len(plans.Plan(each, scale, Path()).runs()) for scale in SCALES.values()}
        for each in artefacts.ARTEFACTS.values()
    }
    if as_json:
        print_json([{"name": x.name, "title": x.title, "source": x.source, "runs": runs[x]} for x in runs])
        return
    heads = ("name", "shows", *(f"runs, {name}" for name in SCALES))
    table = new_table(heads, ((each.name, each.title, *counts.values()) for each, counts in runs.items()))
    table.columns[0].no_wrap = True  # to be copied
    told = ((x.name, x.about + (" (default)" if x == DEFAULT else "")) for x in SCALES.values())
    show(table, new_table(("scale", "is"), told))


def _print_plan(plans: Sequence[Plan], jobs: int | None, as_json: bool, **options: Any) -> None:
    """Print which runs are done and how long the others would take."""
    from curriculoss.data import DataError
    from curriculoss.paper.plans import estimate, expect_data

    runs = {path: spec for plan in plans for path, spec in plan.runs().items()}
    done = {path for plan in plans for path in plan.done()}
    missing = [spec for path, spec in runs.items() if path not in done]
    if not as_json:
        for path in runs:
            print(("done     " if path in done else "missing  ") + path.name)
    try:
        expect_data(missing, **options)
        with progress_bar("measuring a few steps of each kind of run", quiet=as_json):
            seconds, lack = estimate(missing, jobs=jobs, **options), ""
    except DataError as error:
        seconds, lack = None, str(error)
    if as_json:
        rows = [{"run": str(path), "done": path in done, "spec": spec.as_dict()} for path, spec in runs.items()]
        print_json({"runs": rows, "done": len(done), "missing": len(missing), "seconds": seconds})
        return
    told = f"; the time for the others is unknown: {lack}" if seconds is None else ""
    if missing and seconds is not None:
        units = ((3600, 5400, "{:.1f} hours"), (60, 90, "{:.0f} minutes"), (1, 0, "{:.0f} seconds"))
        time = next(form.format(seconds / unit) for unit, least, form in units if seconds >= least)
        told = f"; the others take about {time} on this machine"
    print(f"{len(runs)} runs, {len(done)} done already{told}")


def _run(plan: Plan, as_json: bool, **options: Any) -> dict[Path, Exception]:
    """Train what is missing, with a progress bar; on a pipe, one line per finished run."""
    from curriculoss.runs import Run

    missing, told = plan.missing(), 0
    quiet = as_json or sys.stderr.isatty()

    def watch(epochs: int) -> None:
        nonlocal told
        update(epochs)
        finished = sum(Run(path).finished for path in missing)
        if finished > told and not quiet:
            print(f"{plan.artefact.name}: {finished} of {len(missing)} runs, {epochs} epochs", file=sys.stderr)
        told = finished

    description = f"{plan.artefact.name}: epochs of {len(missing)} runs"
    epochs = sum(spec.epochs for spec in missing.values())
    with progress_bar(description, epochs, quiet=as_json) as update, resumable():
        return dict(plan.run(watch=watch, **options))
