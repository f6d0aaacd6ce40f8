"""`curriculoss compare`: several losses on the same data, noise and seeds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curriculoss.cli.console import app, new_table, numbers, print_json, show
from curriculoss.cli.exits import end_with_errors, resumable
from curriculoss.cli.options import LOSS_SETTINGS, AsJson, Cpus, Given, Gpus, Jobs, Where, takes_settings
from curriculoss.cli.progress import progress_bar
from curriculoss.errors import InvalidValueError
from curriculoss.fixing import METHODS

if TYPE_CHECKING:
    from curriculoss.report import ResultRow
    from curriculoss.runs import RunSpec


@app.command()
@takes_settings(without=(*LOSS_SETTINGS, "seed"))
def compare(
    given: Given,
    losses: Annotated[list[str], typer.Argument(help="Such as auto ce mae mae:scale gce:q=0.5 gce:q=0.5:shift=2.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the report.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs per loss and noise, with seeds 0 to n-1.")] = 1,
    jobs: Jobs = None,
    executor: Where = "local",
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    as_json: AsJson = False,
) -> None:
    """Train several losses on the same data, noise and seeds; print a table with mean ± std, and write a report.

    \b
    curriculoss compare ce mae mae:scale=2.6 --data digits-100 --seeds 3 --out all
    curriculoss compare ce gce:q=0.7 --data cifar10 --noise clean,human --out all

    Finished runs are not repeated, and one that diverges does not stop the others. --noise takes several kinds,
    separated by commas; with `clean` among them, `diff` is the test accuracy lost to noise. Writes comparison.csv and
    report.html.
    """
    from curriculoss import _files, report, runs
    from curriculoss.runs import executors, many

    if out.is_file():
        raise InvalidValueError(f"--out {out} is a file; give a folder")
    place = executors.executor_named(executor, jobs=jobs, cpus=cpus, gpus=gpus)
    specs = [
        runs.RunSpec.from_dict({**given.settings, "noise": noise, "seed": seed, **_loss_settings(text)})
        for noise in str(given.settings.get("noise", "clean")).split(",")
        for text in losses
        for seed in range(seeds)
    ]
    wanted = {out / many.folder_name(each): each for each in specs}
    out.mkdir(parents=True, exist_ok=True)
    epochs = sum(each.epochs for each in wanted.values())
    with progress_bar(f"epochs of {len(wanted)} runs", epochs, quiet=as_json) as update, resumable():
        results, failed = many.train_many(wanted, executor=place, watch=update, network=given.network, **given.reading)
    for note in dict.fromkeys(f"{each.loss}: {each.note}" for each in results.values() if each.note):
        print(note, file=sys.stderr)
    if results:
        finished = [runs.Run(folder) for folder in results]
        shown = [*finished, *(run for run in map(runs.Run, failed) if run.failed)]
        rows = [row for row in report.table(shown) if row.group.finished]
        headline, table_file = report.headline(finished), out / "comparison.csv"
        with progress_bar("drawing the report", quiet=as_json):
            page = report.build(shown, out / "report.html")
        plain = [row.as_dict() for row in rows]
        _files.write_table(table_file, plain)
        if as_json:
            print_json({"headline": headline, "rows": plain, "report": str(page), "table": str(table_file),
                        "runs": [str(folder) for folder in results], "failed": _failures(wanted, failed)})  # fmt: skip
        else:
            _print_comparison(rows, headline)
            print(f"table: {table_file}\nreport: {page}")
    if failed:
        end_with_errors(map("{loss}, noise {noise}, seed {seed}: {reason}".format_map, _failures(wanted, failed)))


def _failures(wanted: Mapping[Path, RunSpec], failed: Mapping[Path, Exception]) -> list[dict[str, Any]]:
    return [
        {"loss": spec.loss_name, "noise": spec.noise, "seed": spec.seed, "reason": str(failed[path]), "run": str(path)}
        for path, spec in wanted.items()
        if path in failed
    ]


def _print_comparison(rows: Sequence[ResultRow], headline: str) -> None:
    print(f"{headline}.")
    shown = []
    for row in rows:
        means = [row.group.over_seeds(key) for key in ("test_accuracy", "train_accuracy", "snr")]
        spreads = ["" if each.std is None else f" ± {each.std:.2f}" for each in means]
        cells = [None if x.mean is None else f"{x.mean:.2f}{std}" for x, std in zip(means, spreads, strict=True)]
        spec, diff = row.group.spec, None if row.diff is None else f"{row.diff:+.2f}"
        shown.append((spec.loss_name, spec.noise, len(row.group.counted), *cells, diff))
    show(new_table(("loss", "noise", "n", "test %", "train %", "snr", "diff"), shown, justify="right"))


def _loss_settings(text: str) -> dict[str, Any]:
    """The settings of a loss given as `gce:q=0.5:scale=2.6`."""
    name, *rest = text.split(":")
    fixes = [part for part in rest if part.partition("=")[0] in METHODS]
    if len(fixes) > 1:
        raise InvalidValueError(f"expected at most one fix per loss, got {text!r}")
    method, tau, _ = "".join(fixes).partition("=")
    params = numbers([part for part in rest if part not in fixes])
    return {"loss": name, "params": params, "fix": method or None, "tau": numbers(fixes)[method] if tau else None}
