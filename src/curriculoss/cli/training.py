"""`curriculoss train`, `compare` and `report`: from a data set to a page that explains what happened."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from curriculoss.cli.console import UsageError, app, new_console, new_table, numbers, print_json
from curriculoss.cli.mistakes import mistakes, stopped
from curriculoss.cli.settings import AsJson, DataDir, Download, Preset, SpecFile, Workers, collected, takes_settings


@app.command()
@takes_settings
def train(
    settings: dict[str, Any],
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    loss: Annotated[
        str | None, typer.Option(help="A loss by name (ce); `curriculoss losses` lists them, auto sets itself.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=NUMBER", help="A hyperparameter; repeatable.")
    ] = None,
    fix: Annotated[
        str | None, typer.Option(help="Adapt it to the number of classes: scale, shift, logit-bias.")
    ] = None,
    tau: Annotated[
        float | None, typer.Option(help="For scale and shift: samples start like margin -tau (2.6).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of initialisation, order, augmentation and noise (0).")] = None,
    preset: Preset = None,
    spec: SpecFile = None,
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a classifier on noisy labels and record what its loss does.

    \b
    curriculoss train --data digits-100 --noise symmetric:0.4 --loss mae --fix scale --out run
    curriculoss train --preset cifar100 --data-dir ~/data --subset 20000 --width 0.25 --epochs 12 --out run
    curriculoss train --data my-photos/ --loss auto --out run
    torchrun --nproc-per-node 2 -m curriculoss train --data mnist --out run

    A run that was stopped goes on where it was when the same command is given again; a finished one is only printed.

    Data of your own: a folder of class folders, perhaps below train and test; an .npz file with arrays x, y and perhaps
    x_test, y_test, y_clean, class_names; or a table with a column label, y or target, and perhaps y_clean.
    """
    named = {"loss": loss, "fix": fix, "tau": tau, "seed": seed, "params": numbers(param) if param else None}
    settings |= {key: value for key, value in named.items() if value is not None}
    if accelerator not in ("auto", "cpu", "cuda", "mps"):
        raise UsageError(f"expected --accelerator auto, cpu, cuda or mps, got {accelerator!r}")
    with mistakes():
        from curriculoss import training
        from curriculoss.training import many

        wanted = training.RunSpec.from_dict(collected(preset, spec, settings, out))
        with Bar(quiet=as_json) as bar:
            try:
                result = training.train(
                    wanted, out, data_dir=data_dir, download=download, workers=workers, accelerator=accelerator,
                    tensorboard=tensorboard, progress=bar,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                kept = many.epochs_done(out)
                done = f"after epoch {kept}" if kept else "before the first epoch was over"
                raise stopped(f"stopped {done}; the same command goes on from there", stop) from None
    if int(os.environ.get("RANK", 0)):
        return
    if as_json:
        print_json(result)
    else:
        _print_result(result, training.Run(Path(result["run"])))


class Bar:
    """The loop's progress on a terminal: a bar for the epoch, a line for what the monitors say."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(stderr=True)
        hidden = quiet or not self.console.is_terminal or int(os.environ.get("RANK", 0)) > 0
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.progress = Progress(*columns, console=self.console, transient=True, disable=hidden)
        self.task = self.progress.add_task("reading the data", total=None)
        self.scores = ""

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def said(self, text: str) -> None:
        if not self.progress.disable:
            self.console.print(text, markup=False, highlight=False)

    def epoch(self, number: int, epochs: int, steps: int) -> None:
        if not self.progress.tasks[0].total:
            self.progress.reset(self.task, total=epochs * steps, completed=(number - 1) * steps)
        self.progress.update(self.task, description=f"epoch {number} of {epochs}{self.scores}")

    def step(self) -> None:
        self.progress.advance(self.task)

    def row(self, row: dict[str, Any]) -> None:
        if row["test_accuracy"] is not None:
            self.scores = f", test {row['test_accuracy']:.1f} %"
        for text in row["verdicts"]:
            self.said(f"epoch {row['epoch']}: {text}")


def _print_result(result: dict[str, Any], run: Any) -> None:
    shown = {
        "test accuracy": f"{result['test_accuracy']:.2f} %",
        "training accuracy": f"{result['train_accuracy']:.2f} % (on the given labels)",
        "mean weight": f"{_short(result['mean_weight'])} since the start",
        "effective learning rate": f"{_short(result['effective_learning_rate'])} since the start",
        "snr": "–"
        if result["snr"] is None
        else f"{_short(result['snr'])} since the start (clean samples' weight over noisy ones')",
    }
    console = new_console()
    rate = result.get("noise_rate")
    wrong = "" if rate is None else f" ({100 * rate:.1f} % of the labels are wrong)"
    console.print(f"{result['loss']} on {run.spec.data}, noise {result['noise']}{wrong}: {result['epochs']} epochs of "
                  f"{result['network']}", markup=False, highlight=False)  # fmt: skip
    if result["already_finished"]:
        console.print("finished before, not run again")
    table = new_table("", "last epoch")
    for name, value in shown.items():
        table.add_row(name, value)
    console.print(table)
    said = [f"epoch {row['epoch']}: {text}" for row in run.metrics for text in row["verdicts"]]
    for text in (*filter(None, [result["note"]]), *said):
        console.print(text, markup=False, highlight=False)
    page = f"curriculoss report {shlex.quote(str(run.path))}"
    console.print(f"run: {run.path}\nA page about it: {page}", markup=False, highlight=False, soft_wrap=True)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


@app.command()
@takes_settings
def compare(
    settings: dict[str, Any],
    losses: Annotated[list[str], typer.Argument(help="Such as auto ce mae mae:scale gce:q=0.5 gce:q=0.5:shift=2.")],
    out: Annotated[Path, typer.Option(help="A folder for the runs, the table and the page.")],
    seeds: Annotated[int, typer.Option(help="Runs of each: seeds 0 to n-1.")] = 1,
    jobs: Annotated[int | None, typer.Option(help="Runs side by side, one thread each (as many as cores).")] = None,
    preset: Preset = None,
    spec: SpecFile = None,
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    as_json: AsJson = False,
) -> None:
    """Train several losses on the same data, noise and seeds; print a table with mean ± std, and write a page.

    \b
    curriculoss compare ce mae mae:scale=2.6 --data digits-100 --noise symmetric:0.4 --seeds 3 --out comparison
    curriculoss compare ce gce:q=0.7 --data cifar10 --noise clean,human --subset 10000 --width 0.25 --out comparison

    Runs that are there already are not done again, and one that diverges does not stop the others. With `clean` among
    the noises (separated by commas), `diff` is what noise costs in test accuracy. The table is also written to
    comparison.csv, beside the page.
    """
    if seeds < 1 or (jobs is not None and jobs < 1):
        raise UsageError(f"expected --seeds and --jobs >= 1, got {seeds if seeds < 1 else jobs}")
    with mistakes():
        from curriculoss import report, training
        from curriculoss.training import many, store

        given = collected(preset, spec, settings, out)
        specs = [
            training.RunSpec.from_dict({**given, "noise": noise, "seed": seed, **_loss(text)})
            for noise in str(given.get("noise", "clean")).split(",")
            for text in losses
            for seed in range(seeds)
        ]
        runs = {out / many.folder_name(each): each for each in specs}
        out.mkdir(parents=True, exist_ok=True)
        console = Console(stderr=True)
        hidden = as_json or not console.is_terminal
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
            task = bar.add_task(f"epochs of {len(runs)} runs", total=sum(each.epochs for each in runs.values()))
            try:
                results, failed = many.train_many(
                    runs, jobs=jobs, watch=lambda done: bar.update(task, completed=done),
                    data_dir=data_dir, download=download, workers=workers,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                raise stopped("stopped; the same command goes on from there", stop) from None
        _print_notes(results.values())
        if not results:
            _print_failures(runs, failed)
            raise typer.Exit(1)
        finished = [training.Run(folder) for folder in results]
        shown = [*finished, *(run for run in map(training.Run, failed) if run.failed)]
        rows, said = [row for row in report.table(shown) if row["finished"]], report.headline(finished)
        page = report.build(shown, out / "report.html")
        table_file = out / "comparison.csv"
        store.write_table(table_file, rows)
    if as_json:
        bad = [
            {"loss": runs[x].loss_name, "noise": runs[x].noise, "seed": runs[x].seed, "reason": str(e), "run": str(x)}
            for x, e in failed.items()
        ]
        print_json({"headline": said, "rows": rows, "report": str(page), "table": str(table_file),
                    "runs": [str(folder) for folder in results], "failed": bad})  # fmt: skip
    else:
        _print_comparison(rows, said)
        print(f"the table: {table_file}\nthe page: {page}")
    if failed:
        _print_failures(runs, failed)
        raise typer.Exit(1)


def _print_notes(results: Iterable[dict[str, Any]]) -> None:
    """What was said about a fix that was refused and the like, once with the losses that it is about."""
    about: dict[str, dict[str, None]] = {}
    for result in results:
        if result.get("note"):
            about.setdefault(result["note"], {})[result["loss"]] = None
    for note, losses in about.items():
        print(f"{'; '.join(losses)}: {note}", file=sys.stderr)


def _print_failures(runs: Mapping[Path, Any], failed: Mapping[Path, Exception]) -> None:
    sys.stdout.flush()
    for folder, error in failed.items():
        spec, reason = runs[folder], " ".join(str(error).split())
        print(f"Error: {spec.loss_name}, noise {spec.noise}, seed {spec.seed}: {reason}", file=sys.stderr)


def _print_comparison(rows: list[dict[str, Any]], said: str) -> None:
    print(f"{said}.")
    table = new_table("loss", "noise", "n", "test %", "train %", "snr", "diff", justify="right")
    for row in rows:
        cells = (_mean(row, "test_accuracy"), _mean(row, "train_accuracy"), _mean(row, "snr"))
        diff = "–" if row.get("diff") is None else f"{row['diff']:+.2f}"
        table.add_row(row["loss"], row["noise"], str(row["n"]), *cells, diff)
    new_console().print(table)


def _mean(row: dict[str, Any], key: str) -> str:
    mean, std = row[key], row[f"{key}_std"]
    return "–" if mean is None else f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")


def _loss(text: str) -> dict[str, Any]:
    """`gce:q=0.5:scale=2.6` as settings."""
    from curriculoss.initial import METHODS

    name, *rest = text.split(":")
    found: dict[str, Any] = {"loss": name, "params": {}}
    for part in rest:
        key, equals, _ = part.partition("=")
        if key in METHODS:
            found |= {"fix": key, "tau": numbers([part])[key] if equals else None}
        else:
            found["params"] |= numbers([part])
    return found


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold some.")],
    out: Annotated[Path | None, typer.Option(help="The page; report.html in the first folder if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make one self-contained HTML page about runs: curves, weights, margins over the epochs, and a table.

    \b
    curriculoss report run
    curriculoss report run-ce run-mae --out both.html
    """
    with mistakes():
        from curriculoss import report as pages
        from curriculoss import training

        found: list[training.Run] = []
        for folder in runs:
            inside = sorted(each.parent for each in (*folder.glob("spec.json"), *folder.glob("*/spec.json")))
            if not inside:
                raise ValueError(f"{folder} holds no run: expected spec.json in it or one folder below")
            found += [training.Run(each) for each in inside]
        page = pages.build(found, out or runs[0] / "report.html")
    if as_json:
        print_json({"report": str(page), "runs": [str(each.path) for each in found]})
    else:
        print(f"the page: {page}")
