"""The options that commands share: one for each setting of a run, and where data are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from curriculoss.cli.console import UsageError

# One option for each setting of a RunSpec: (type, names, help). None leaves the preset's or the default.
SETTINGS: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "data": (str, ("--data",), "A data set (`curriculoss data list`) or a path: class folders, .npz, .csv, .parquet."),
    "label": (str, ("--label",), "The label column of a table (label, y or target)."),
    "test": (str, ("--test",), "A path of the same kind as --data with the test samples."),
    "subset": (int, ("--subset",), "Train on so many samples."),
    "holdout": (float, ("--holdout",), "Share kept for testing where data have no test samples (0.2)."),
    "noise": (str, ("--noise",), "clean, symmetric:0.4, asymmetric(-blocks), pairflip, instance, human, matrix:FILE"),
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
    "test_every": (int, ("--test-every",), "Epochs from one test to the next (1); the last epoch is always tested."),
    "precision": (str, ("--precision",), "32-true (default), bf16-mixed, 16-mixed, 64-true."),
}  # fmt: skip

Preset = Annotated[
    str | None, typer.Option("--preset", help="The paper's settings: mnist, cifar10, cifar100, webvision.")
]
SpecFile = Annotated[Path | None, typer.Option("--spec", help="Settings from a .json or .toml file; options override.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets are (or CURRICULOSS_DATA, or the cache folder).")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a data set that is not there.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that decode images.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable: JSON on stdout.")]


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
    wrapped.__signature__ = inspect.Signature(keyword + added)  # type: ignore[attr-defined]  # typer reads it
    wrapped.__annotations__ = {x.name: x.annotation for x in keyword + added}
    return wrapped


def expect_outside(out: Path, data: str | None) -> None:
    """What is written must not become part of the data."""
    folder = Path(data or "").expanduser()
    if data and folder.is_dir() and out.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--out {out} is inside {data}, where it would be taken for a class; give a folder outside")


def collected(preset: str | None, file: Path | None, settings: dict[str, Any], out: Path) -> dict[str, Any]:
    """The settings of a run that is to be written to `out`: of a preset or a file, then those given."""
    from curriculoss import training

    if preset is not None and file is not None:
        raise ValueError("expected --preset or --spec, got both")
    given: dict[str, Any] = {}
    if file is not None:
        given = training.RunSpec.read(file).as_dict()
    elif preset is not None:
        given = training.preset(preset).as_dict()
    given |= settings
    expect_outside(out, given.get("data"))
    return given
