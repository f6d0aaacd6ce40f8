"""`curriculoss train`: one run, from a data set to a folder with the network and what its loss did."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from curriculoss.cli.console import app, new_table, print_json, show
from curriculoss.cli.exits import resumable
from curriculoss.cli.options import Accelerator, AsJson, Given, takes_settings
from curriculoss.cli.progress import TrainingProgress

if TYPE_CHECKING:
    from curriculoss.runs import Run
    from curriculoss.runs.facts import TrainResult


@app.command()
@takes_settings()
def train(
    given: Given,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    accelerator: Accelerator = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a classifier on noisy labels and record what its loss does.

    \b
    curriculoss train --data digits-100 --loss mae --fix scale --out run
    curriculoss train --data digits --noise symmetric:0.4 --loss auto --out run
    curriculoss train --preset cifar100 --subset 20000 --width 0.25 --out run
    curriculoss train --data my-photos/ --loss auto --out run
    torchrun --nproc-per-node 2 -m curriculoss train --data mnist --out run

    The same command resumes a run that was stopped, and only prints one that is finished.

    Your own data: a folder of class folders, perhaps below train and test; an .npz file with arrays x, y and perhaps
    x_test, y_test, y_clean, class_names; or a table with a column label, y or target, and perhaps y_clean.
    """
    from curriculoss import runs
    from curriculoss.runs import many

    wanted = runs.RunSpec.from_dict(given.settings)

    def progress() -> str:
        done = many.epochs_done(out)
        return f" after epoch {done}" if done else " before the end of the first epoch"

    with TrainingProgress(quiet=as_json) as bar, resumable(progress):
        result = runs.train(wanted, out, accelerator=accelerator, tensorboard=tensorboard, callbacks=(bar,),
                            network=given.network, **given.reading)  # fmt: skip
    if int(os.environ.get("RANK", 0)):
        return
    if as_json:
        print_json(result.as_dict())
    else:
        _print_result(result, runs.Run(result.run))


def _print_result(result: TrainResult, run: Run) -> None:
    rate = result.noise_rate
    wrong = "" if rate is None else f" ({100 * rate:.1f} % of the labels are wrong)"
    told = [f"{result.loss} on {run.spec.data}, noise {result.noise}{wrong}: {result.epochs} epochs, {result.network}"]
    told += ["finished before, not run again"] * result.already_finished
    since = "since the start"
    ratio = f"{_short(result.snr)} {since} (weight of clean samples over that of noisy ones)"
    rows = (
        ("test accuracy", f"{result.test_accuracy:.2f} %"),
        ("training accuracy", f"{result.train_accuracy:.2f} % (on the given labels)"),
        ("mean weight", f"{_short(result.mean_weight)} {since}"),
        ("effective learning rate", f"{_short(result.effective_learning_rate)} {since}"),
        ("snr", None if result.snr is None else ratio),
    )
    said = [result.note] * bool(result.note)
    said += [f"epoch {row['epoch']}: {text}" for row in run.metrics for text in row["verdicts"]]
    folder = shlex.quote(str(run.path))
    said += [f"run: {run.path}", f"report on it: curriculoss report {folder}",
             f"predict new samples: curriculoss predict {folder} DATA",
             f"the network as one file: curriculoss export {folder} model.pt2"]  # fmt: skip
    show(*told, new_table(("", "last epoch"), rows), *said)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
