"""Options that several commands share: one for each setting of a run, and where the data are."""

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import typer

from curriculoss._text import first_line
from curriculoss.cli.console import numbers
from curriculoss.errors import InvalidValueError
from curriculoss.fixing import METHODS, TAU

Param = Annotated[
    list[str] | None, typer.Option("--param", "-p", metavar="NAME=NUMBER", help="A hyperparameter; repeatable.")
]
Fix = Annotated[str | None, typer.Option(help=f"Adapt the loss to the number of classes: {', '.join(METHODS)}.")]
Tau = Annotated[
    float | None, typer.Option(help=f"For --fix scale or shift: start with the weight of margin -tau (default {TAU}).")
]
Label = Annotated[str | None, typer.Option(help="Label column of a table (default: label, y or target).")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of data sets (default: CURRICULOSS_DATA, or the cache).")]
Download = Annotated[bool, typer.Option("--download", help="Download a data set that is missing.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that decode images.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at the same time (default: as many as the cores allow).")]
Where = Annotated[
    str, typer.Option("--executor", metavar="local|ray[:HOST:PORT]", help="Where to train: processes here, or Ray.")
]
Cpus = Annotated[int, typer.Option(min=1, help="Cores and threads per run.")]
Gpus = Annotated[float, typer.Option(min=0, help="GPUs per run, with --executor ray.")]
Accelerator = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Device to train on.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _setting(kind: Any, text: str, *flags: str) -> Any:
    return Annotated[kind | None, typer.Option(*flags, help=text, show_default=False)]


# The option for each setting of a RunSpec.
SETTING_OPTIONS: dict[str, Any] = {
    "data": _setting(str, "A data set (`curriculoss data list`) or a path: class folders, .npz, .csv, .parquet."),
    "label": Label,
    "test": _setting(str, "A path of the same kind as --data with the test samples."),
    "subset": _setting(int, "Number of training samples to use (default: all)."),
    "image_size": _setting(int, "Height and width to which images are resized (default: as they are)."),
    "holdout": _setting(float, "Share kept for testing if the data have no test samples (default 0.2)."),
    "noise": _setting(str, "Noise to add: symmetric:0.4, asymmetric(-blocks), pairflip, instance, human, matrix:FILE."),
    "noise_seed": _setting(int, "Seed of the noise (default: that of the run)."),
    "exact_noise": _setting(bool, "Meet the rate exactly (default) or by chance.", "--exact-noise/--per-sample-noise"),
    "loss": _setting(str, "Loss by name (default ce); `curriculoss losses` lists them, and auto sets itself."),
    "params": Param,
    "normalize": _setting(bool, "Divide the loss by its largest weight (default)."),
    "fix": Fix,
    "tau": Tau,
    "initial_margin": _setting(str, "Initial margin for the fix: expected (default) or measured."),
    "network": _setting(str, "cnn4, cnn8, resnet34, resnet50, mlp, linear, auto (default), or module:factory."),
    "width": _setting(float, "Multiplier for the number of channels (default 1)."),
    "epochs": _setting(int, "Number of epochs (default 20)."),
    "batch_size": _setting(int, "Samples per step (default 128)."),
    "optimizer": _setting(str, "sgd (default) or adamw."),
    "learning_rate": _setting(float, "Initial learning rate (default 0.1).", "--lr", "--learning-rate"),
    "momentum": _setting(float, "SGD momentum (default 0.9)."),
    "weight_decay": _setting(float, "Weight decay (default 1e-4)."),
    "schedule": _setting(str, "Learning-rate schedule: constant, cosine (default), step, warmup."),
    "step_epochs": _setting(list[int], "For --schedule step: epoch after which to step; repeatable.", "--step-epoch"),
    "step_factor": _setting(float, "For --schedule step: multiplier at each step (default 0.1)."),
    "warmup_epochs": _setting(float, "For --schedule warmup: epochs of warmup (default 1)."),
    "clip_norm": _setting(float, "Clip gradients to this norm (default: off)."),
    "augment": _setting(str, "none, shift-flip, crop-flip-jitter, auto (default: that of the data set)."),
    "patience": _setting(int, "Stop after this many epochs without a lower training loss (default: off)."),
    "test_every": _setting(int, "Epochs between tests (default 1); the last epoch is always tested."),
    "seed": _setting(int, "Seed of initialisation, order, augmentation and noise (default 0)."),
    "precision": _setting(str, "32-true (default), bf16-mixed, 16-mixed, 64-true."),
}  # fmt: skip
LOSS_SETTINGS = ("loss", "params", "fix", "tau")
Preset = Annotated[str | None, typer.Option(help="Settings of the paper: mnist, cifar10, cifar100, webvision.")]
SpecFile = Annotated[Path | None, typer.Option(help="A .json or .toml file of settings; options override it.")]
# Options of commands that train, beside those for settings.
SHARED_OPTIONS: dict[str, tuple[Any, Any]] = {
    "preset": (Preset, None), "spec": (SpecFile, None), "data_dir": (DataDir, None), "download": (Download, False),
    "workers": (Workers, 0),
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """What a command that trains was given: the settings of its runs, and how to read their data."""

    settings: dict[str, Any]  # for RunSpec: those of a preset or a file, overridden by options
    options: dict[str, Any]  # settings that were given as options
    reading: dict[str, Any]  # data_dir, download, workers

    @classmethod
    def collect(cls, given: dict[str, Any], shown: Sequence[str]) -> Self:
        """Take the options for settings and the shared ones out of what a command was given."""
        from curriculoss import runs

        options = {name: value for name in shown if (value := given.pop(name)) not in (None, [])}
        if "params" in options:
            options["params"] = numbers(options["params"])
        preset, file = given.pop("preset"), given.pop("spec")
        if preset is not None and file is not None:
            raise InvalidValueError("expected --preset or --spec, got both")
        base = runs.RunSpec.read(file) if file is not None else runs.preset(preset) if preset is not None else None
        settings = ({} if base is None else base.as_dict()) | options
        expect_outside(given["out"], settings.get("data"))
        return cls(settings, options, {name: given.pop(name) for name in ("data_dir", "download", "workers")})

    @property
    def network(self) -> Callable[..., Any] | None:
        """What `--network package.module:factory` names, or None. A spec file alone never imports anything."""
        name = self.options.get("network", "")
        return import_factory(name) if ":" in name else None


def takes_settings(*, without: Sequence[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command that trains: it gets an option for every setting but some, and a `Given` as first argument."""
    shown = [name for name in SETTING_OPTIONS if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        named = {x.name: (x.annotation, x.default) for x in own} | SHARED_OPTIONS
        named |= {name: (SETTING_OPTIONS[name], None) for name in shown}
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(k, keyword, annotation=x, default=y) for k, (x, y) in named.items()]

        def wrapped(**given: Any) -> None:
            command(Given.collect(given, shown), **given)

        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        wrapped.__signature__ = inspect.Signature(added)  # type: ignore[attr-defined]  # typer reads it
        wrapped.__annotations__ = {x.name: x.annotation for x in added}
        return wrapped

    return decorate


def import_factory(text: str) -> Callable[..., Any]:
    """The function that `package.module:factory` names, also in the working directory."""
    if not all(text.partition(":")):
        raise InvalidValueError(f"--network expects package.module:factory, got {text!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        factory = pkgutil.resolve_name(text)
    except Exception as error:  # the module is the user's, and may raise anything
        raise InvalidValueError(f"--network {text}: cannot be imported: {first_line(error)}") from error
    if not callable(factory):
        raise InvalidValueError(f"--network {text}: expected a function or class, got {type(factory).__name__}")
    return factory  # type: ignore[no-any-return]  # callable, as was just seen


def expect_writable(file: Path) -> Path:
    """The file with a home folder for ~; refused if it cannot be written, before the work that it is for."""
    file = file.expanduser()
    if not file.parent.is_dir():
        raise InvalidValueError(f"cannot write {file}: there is no folder {str(file.parent)!r}")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise InvalidValueError(f"cannot write {file}: {'it is a folder' if file.is_dir() else 'permission denied'}")
    return file


def expect_outside(out: Path, data: str | None) -> None:
    """Refuse an output folder inside the data, where it would be read as data."""
    folder = Path(data or "").expanduser()
    if data and folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        inside = f"--out {out} is inside {data}, where it would be taken for a class"
        raise InvalidValueError(f"{inside}; give a folder outside")
