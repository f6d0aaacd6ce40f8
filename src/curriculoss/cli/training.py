"""`curriculoss train`, `compare`, `report` and `data`: from a data set to a page that explains what happened."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from curriculoss.cli.console import UsageError, app, new_console, new_table, numbers, print_json

# One option for each setting of a RunSpec: (type, names, help). None leaves the preset's or the default.
SETTINGS: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "data": (str, ("--data",), "A data set (`curriculoss data list`) or a path: class folders, .npz, .csv, .parquet."),
    "label": (str, ("--label",), "The label column of a table."),
    "subset": (int, ("--subset",), "Train on so many samples."),
    "holdout": (float, ("--holdout",), "Share kept for testing where data have no test samples (0.2)."),
    "noise": (str, ("--noise",), "clean, symmetric:0.4, asymmetric:…, pairflip:…, instance:…, human, matrix:FILE."),
    "noise_seed": (int, ("--noise-seed",), "Draw the noise from this seed rather than the run's."),
    "exact_noise": (bool, ("--exact-noise/--per-sample-noise",), "Meet the rate exactly (default), or by chance."),
    "normalize": (bool, ("--normalize/--no-normalize",), "Divide the loss by its largest weight (default)."),
    "initial_margin": (str, ("--initial-margin",), "What a fix is for: expected (default) or measured."),
    "network": (str, ("--network",), "cnn4, cnn8, resnet34, resnet50, mlp, linear; auto by the shape of the data."),
    "width": (float, ("--width",), "Channels times this."),
    "epochs": (int, ("--epochs",), "Times through the data (20)."),
    "batch_size": (int, ("--batch-size",), "Samples a step (128)."),
    "learning_rate": (float, ("--lr", "--learning-rate"), "Learning rate at the start (0.1)."),
    "momentum": (float, ("--momentum",), "Of SGD (0.9)."),
    "weight_decay": (float, ("--weight-decay",), "Of SGD (1e-4)."),
    "schedule": (str, ("--schedule",), "constant, cosine (default), step, warmup."),
    "step_epochs": (list[int], ("--step-epoch",), "For --schedule step: after so many epochs; repeatable."),
    "step_factor": (float, ("--step-factor",), "For --schedule step: times this (0.1)."),
    "warmup_epochs": (float, ("--warmup-epochs",), "For --schedule warmup (1)."),
    "clip_norm": (float, ("--clip-norm",), "Clip gradients to this norm (off)."),
    "augment": (str, ("--augment",), "none, shift-flip, crop-flip-jitter; auto is the data set's own."),
    "patience": (int, ("--patience",), "Stop when the training loss has not improved for so many epochs (off)."),
    "precision": (str, ("--precision",), "32-true (default), bf16-mixed, 16-mixed, 64-true."),
}  # fmt: skip

Preset = Annotated[
    str | None, typer.Option("--preset", help="The paper's settings: mnist, cifar10, cifar100, webvision.")
]
SpecFile = Annotated[Path | None, typer.Option("--spec", help="Settings from a .json or .toml file; options override.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets are (or CURRICULOSS_DATA, or the cache folder).")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a data set that is not there.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that decode images.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable: one JSON object on stdout.")]


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting; it gets those that were used as a dictionary, `settings`."""
    own = [x for x in inspect.signature(command, eval_str=True).parameters.values() if x.name != "settings"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None,
                          annotation=Annotated[kind | None, typer.Option(*flags, help=text, show_default=False)])
        for name, (kind, flags, text) in SETTINGS.items()
    ]  # fmt: skip

    def wrapped(**given: Any) -> None:
        settings = {name: given.pop(name) for name in SETTINGS}
        command(settings={name: value for name, value in settings.items() if value not in (None, [])}, **given)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    keyword = [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in own]
    wrapped.__signature__ = inspect.Signature(keyword + added)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {x.name: x.annotation for x in keyword + added}
    return wrapped


@contextmanager
def _mistakes() -> Iterator[None]:
    """What a user can mend is one line and exit 2; what the machine refuses is one line and exit 1."""
    alone = threading.current_thread() is threading.main_thread() and int(os.environ.get("WORLD_SIZE", 1)) == 1
    before = signal.signal(signal.SIGTERM, _terminated) if alone else None  # torchrun's processes just end
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt as stop:
        raise _stopped("stopped", stop) from None
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


def _stopped(text: str, stop: KeyboardInterrupt) -> typer.Exit:
    print(text, file=sys.stderr)
    return typer.Exit(128 + (signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT))


def _fail(text: str) -> None:
    print("Error:", " ".join(text.split()), file=sys.stderr)
    raise typer.Exit(1)


def _settings(preset: str | None, file: Path | None, settings: dict[str, Any]) -> dict[str, Any]:
    from curriculoss import training

    if preset is not None and file is not None:
        raise ValueError("expected --preset or --spec, got both")
    given: dict[str, Any] = {}
    if file is not None:
        given = training.RunSpec.read(file).as_dict()
    elif preset is not None:
        given = training.preset(preset).as_dict()
    return {**given, **settings}


@app.command()
@takes_settings
def train(
    settings: dict[str, Any],
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    loss: Annotated[str | None, typer.Option(help="A loss by name; `curriculoss losses` lists them (ce).")] = None,
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
    curriculoss train --data my-photos/ --loss gce -p q=0.5 --out run
    torchrun --nproc-per-node 2 -m curriculoss train --data mnist --out run

    A run that was stopped goes on where it was when the same command is given again; a finished one is only printed.
    """
    named = {"loss": loss, "fix": fix, "tau": tau, "seed": seed, "params": numbers(param) if param else None}
    settings |= {key: value for key, value in named.items() if value is not None}
    if accelerator not in ("auto", "cpu", "cuda", "mps"):
        raise UsageError(f"expected --accelerator auto, cpu, cuda or mps, got {accelerator!r}")
    with _mistakes():
        from curriculoss import training
        from curriculoss.training import many

        wanted = training.RunSpec.from_dict(_settings(preset, spec, settings))
        with _Bar(quiet=as_json) as bar:
            try:
                result = training.train(
                    wanted, out, data_dir=data_dir, download=download, workers=workers, accelerator=accelerator,
                    tensorboard=tensorboard, progress=bar,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                kept = many.epochs_done(out)
                done = f"after epoch {kept}" if kept else "before the first epoch was over"
                raise _stopped(f"stopped {done}; the same command goes on from there", stop) from None
    if int(os.environ.get("RANK", 0)):
        return
    if as_json:
        print_json(result)
    else:
        _print_result(result, training.Run(Path(result["run"])))


class _Bar:
    """The loop's progress on a terminal: a bar for the epoch, a line for what the monitors say."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(stderr=True)
        hidden = quiet or not self.console.is_terminal or int(os.environ.get("RANK", 0)) > 0
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        self.progress = Progress(*columns, console=self.console, transient=True, disable=hidden)
        self.task = self.progress.add_task("reading the data", total=None)
        self.scores = ""

    def __enter__(self) -> _Bar:
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
        self.scores = f", test {row['test_accuracy']:.1f} %"
        for text in row["verdicts"]:
            self.said(f"epoch {row['epoch']}: {text}")


def _print_result(result: dict[str, Any], run: Any) -> None:
    shown = {
        "test accuracy": f"{result['test_accuracy']:.2f} %",
        "training accuracy": f"{result['train_accuracy']:.2f} % (on the given labels)",
        "mean weight": _short(result["mean_weight"]),
        "effective learning rate": _short(result["effective_learning_rate"]),
        "snr": _short(result["snr"])
        + (" (clean samples' weight over noisy ones')" if result["snr"] is not None else ""),
    }
    console = new_console()
    console.print(f"{result['loss']} on {run.spec.data}, noise {result['noise']}: {result['epochs']} epochs of "
                  f"{result['network']}", markup=False, highlight=False)  # fmt: skip
    table = new_table("", "last epoch")
    for name, value in shown.items():
        table.add_row(name, value)
    console.print(table)
    said = [f"epoch {row['epoch']}: {text}" for row in run.metrics for text in row["verdicts"]]
    for text in (*filter(None, [result["note"]]), *said):
        console.print(text, markup=False, highlight=False)
    console.print(f"run: {run.path}\nA page about it: curriculoss report {run.path}", markup=False, highlight=False)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


@app.command()
@takes_settings
def compare(
    settings: dict[str, Any],
    losses: Annotated[list[str], typer.Argument(help="Such as ce mae mae:scale gce:q=0.5 gce:q=0.5:shift=2.")],
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

    Runs that are there already are not done again. With `clean` among the noises (separated by commas), `diff` is
    what noise costs in test accuracy.
    """
    if seeds < 1 or (jobs is not None and jobs < 1):
        raise UsageError(f"expected --seeds and --jobs >= 1, got {seeds if seeds < 1 else jobs}")
    with _mistakes():
        from curriculoss import report, training
        from curriculoss.training import many

        given = _settings(preset, spec, settings)
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
                many.train_many(
                    runs, jobs=jobs, watch=lambda done: bar.update(task, completed=done),
                    data_dir=data_dir, download=download, workers=workers,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                raise _stopped("stopped; the same command goes on from there", stop) from None
        finished = [training.Run(folder) for folder in runs]
        rows = report.table(finished)
        page, said = report.build(finished, out / "report.html"), report.headline(finished)
    if as_json:
        print_json({"headline": said, "rows": rows, "report": str(page), "runs": [str(folder) for folder in runs]})
        return
    print(f"{said}.")
    table = new_table("loss", "noise", "n", "test %", "train %", "snr", "diff", justify="right")
    for row in rows:
        cells = (_mean(row, "test_accuracy"), _mean(row, "train_accuracy"), _mean(row, "snr"), _short(row.get("diff")))
        table.add_row(row["loss"], row["noise"], str(row["n"]), *cells)
    new_console().print(table)
    print(f"the page: {page}")


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
    with _mistakes():
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


data_app = typer.Typer(help="Data sets: what there is, and whether it is whole.", rich_markup_mode=None)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets known by name, and whether their files are here."""
    with _mistakes():
        from curriculoss import data

        rows = data.listing(data_dir)
    if as_json:
        print_json(rows)
        return
    table = new_table("name", "classes", "here", "what")
    for row in rows:
        table.add_row(row["name"], str(row["num_classes"]), "yes" if row["here"] else "no", row["what"])
    new_console().print(table)
    print(f"looked in {data.data_folder(data_dir)}")


@data_app.command("check")
def data_check(
    names: Annotated[list[str], typer.Argument(help="Data sets or paths.")],
    data_dir: DataDir = None,
    download: Download = False,
    label: Annotated[str | None, typer.Option(help="The label column of a table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read data sets whole, and say what is in them or what is wrong with them."""
    rows: list[dict[str, Any]] = []
    with _mistakes():
        from curriculoss import data

        for name in names:
            found = data.load(name, data_dir=data_dir, download=download, label=label)
            test = None if found.test is None else len(found.test)
            rows.append({"name": name, "train": len(found.train), "test": test, "shape": list(found.shape),
                         "num_classes": found.num_classes, "human": list(found.human)})  # fmt: skip
    if as_json:
        print_json(rows)
        return
    for row in rows:
        held = "no test samples" if row["test"] is None else f"{row['test']} for testing"
        print(f"{row['name']}: {row['train']} training samples, {held}, {row['num_classes']} classes, "
              f"shape {'×'.join(map(str, row['shape']))}")  # fmt: skip
