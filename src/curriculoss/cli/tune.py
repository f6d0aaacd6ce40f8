"""`curriculoss tune`: search for a loss and its settings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from curriculoss.cli.console import UsageError, app, new_table, print_json, show
from curriculoss.cli.exits import resumable
from curriculoss.cli.options import LOSS_SETTINGS, AsJson, Given, Jobs, takes_settings
from curriculoss.cli.progress import TrainingProgress

if TYPE_CHECKING:
    from curriculoss.tuning import Tuned

TRIALS_PRINTED = 12  # trials in the table


@app.command()
@takes_settings(without=LOSS_SETTINGS)
def tune(
    given: Given,
    *,
    out: Annotated[Path, typer.Option(help="A folder for the search and the run of its choice.")],
    losses: Annotated[
        str | None, typer.Option(help="Losses to try, as mae,gce,nce+aul (default: auto,ce,gce,sce,mae,agce).")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials, including those in the folder.")] = 20,
    jobs: Jobs = None,
    validation: Annotated[
        Path | None, typer.Option(help="A path of the same kind as --data with the validation samples.")
    ] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="Without it, the share of the training samples to hold out (default 0.2).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search for a loss, its hyperparameters and tau, a learning rate and weight decay, with Optuna.

    \b
    curriculoss tune --data digits-100 --noise symmetric:0.4 --out tuned
    curriculoss tune --data photos/ --validation checked/ --trials 40 --out tuned
    curriculoss train --spec tuned/best.toml --out run

    Trials are ranked by their accuracy on validation samples after the last epoch, and stopped if they fall behind.
    Validation labels may be noisy, too: among the trials within two standard errors of the best, the one whose
    predictions agree most with those of the others is chosen. The test set is used once, when the choice has been
    trained on all training samples.

    Every loss is tried with its defaults first. Learning rate and weight decay are searched around the values of the
    preset or spec, or their defaults, but not if given as options. A search that was stopped goes on where it was when
    the same command is given again, perhaps with more --trials; a finished one is only printed.
    """
    if validation is not None and validation_share is not None:
        raise UsageError("expected --validation or --validation-share, got both")
    import optuna

    from curriculoss import runs, tuning
    from curriculoss.tuning.space import FACTORS

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would tell of the study beside the progress bar
    names = tuning.LOSSES if losses is None else [name.strip() for name in losses.split(",")]
    with TrainingProgress(quiet=as_json) as bar, resumable():

        def watch(done: int) -> None:
            total = 0 if done == trials else trials  # then comes the run of the choice, with a total of its own
            bar.progress.update(bar.task, description=f"{done} trials done", total=total, completed=done)

        tuned = tuning.tune(
            runs.RunSpec.from_dict(given.settings), out, losses=names, trials=trials, jobs=jobs, validation=validation,
            validation_share=0.2 if validation_share is None else validation_share,
            keep=[key for key in FACTORS if key in given.options], watch=watch, callbacks=(bar,), **given.reading,
        )  # fmt: skip
    files = {"spec": str(out / "best.toml"), "trials": str(out / "trials.csv"), "study": str(out / "study.log")}
    again = f"curriculoss train --spec {shlex.quote(files['spec'])} --out run"
    if as_json:
        print_json({**tuned.as_dict(), "files": files, "train": again})
        return
    _print(tuned)
    print(f"all trials: {files['trials']}\nthe run of the choice: {tuned.run}\ntrain with it: {again}")


def _print(tuned: Tuned) -> None:
    heads = ("trial", "loss", "lr", "weight decay", "epochs", "validation %", "agreement %", "")
    rows = []
    ranked = sorted(tuned.trials, key=lambda x: (x.chosen, x.near_the_best, x.validation_accuracy or 0.0), reverse=True)
    for each in ranked[:TRIALS_PRINTED]:
        numbers = (None if x is None else f"{x:.1f}" for x in (each.validation_accuracy, each.agreement))
        state = "chosen" if each.chosen else "near the best" if each.near_the_best else each.state
        rates = f"{each.learning_rate:.3g}", f"{each.weight_decay:.3g}"
        rows.append((each.trial, each.name, *rates, each.epochs or None, *numbers, state))
    show(new_table(heads, rows))
    if len(tuned.trials) > TRIALS_PRINTED:
        print(f"and {len(tuned.trials) - TRIALS_PRINTED} more")
    print(f"chosen: {tuned.spec.loss_name}, {tuned.validation_accuracy:.1f} % on the validation labels; trained on all "
          f"training samples, {tuned.test_accuracy:.1f} % on the test set")  # fmt: skip
