"""`curriculoss tune`: which loss and settings, by a search."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from curriculoss.cli.console import UsageError, app, new_console, new_table, print_json
from curriculoss.cli.mistakes import mistakes, stopped
from curriculoss.cli.settings import AsJson, DataDir, Download, Preset, SpecFile, Workers, collected, takes_settings
from curriculoss.cli.training import Bar

SHOWN = 12  # trials in the table


@app.command()
@takes_settings
def tune(
    settings: dict[str, Any],
    out: Annotated[Path, typer.Option(help="A folder for the search and the run of its choice.")],
    losses: Annotated[
        str | None, typer.Option(help="Which to try, as mae,gce,nce+aul (auto,ce,gce,sce,mae,agce).")
    ] = None,
    trials: Annotated[int, typer.Option(help="How many to make in all, those there already included.")] = 20,
    jobs: Annotated[int | None, typer.Option(help="Trials side by side, one thread each (as many as cores).")] = None,
    validation: Annotated[
        Path | None, typer.Option(help="A path of the same kind as --data with the validation samples.")
    ] = None,
    validation_share: Annotated[
        float | None, typer.Option(help="Without one: the share of the training samples to hold out (0.2).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the search and of each trial (0).")] = None,
    preset: Preset = None,
    spec: SpecFile = None,
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    as_json: AsJson = False,
) -> None:
    """Search for a loss, its hyperparameters and tau, a learning rate and weight decay, with Optuna.

    \b
    curriculoss tune --data digits-100 --noise symmetric:0.4 --epochs 8 --out tuned
    curriculoss tune --data my-photos/ --validation checked-photos/ --losses mae,gce --trials 40 --out tuned
    curriculoss train --spec tuned/best.toml --out run

    Trials are measured by their accuracy on validation samples after the last epoch, and given up where they fall
    behind. Labels to validate on may be noisy as well: among trials that they cannot tell apart, within two standard
    errors of the best, that one is chosen which agrees most with what the others predict. The test set has no part in
    it: the choice is tested once, trained on all training samples, at the end.

    Every loss is tried with its defaults first. Learning rate and weight decay are searched around their defaults or
    what the preset or the spec has; given as options, they stay. A search that was stopped goes on where it was when
    the same command is given again, perhaps with more --trials; a finished one is only printed.
    """
    if trials < 1 or (jobs is not None and jobs < 1):
        raise UsageError(f"expected --trials and --jobs >= 1, got {trials if trials < 1 else jobs}")
    if validation is not None and validation_share is not None:
        raise UsageError("expected --validation or --validation-share, got both")
    if validation_share is not None and not 0 < validation_share < 1:
        raise UsageError(f"expected --validation-share between 0 and 1, got {validation_share:g}")
    with mistakes():
        from curriculoss import training, tuning
        from curriculoss.tuning.space import AROUND

        names = tuning.LOSSES if losses is None else [name.strip() for name in losses.split(",")]
        given = collected(preset, spec, settings | ({} if seed is None else {"seed": seed}), out)
        with Bar(quiet=as_json) as bar:

            def watch(done: int) -> None:
                total = 0 if done == trials else trials  # then comes the run of the choice, with a total of its own
                bar.progress.update(bar.task, description=f"{done} trials done", total=total, completed=done)

            try:
                tuned = tuning.tune(
                    training.RunSpec.from_dict(given), out, losses=names, trials=trials, jobs=jobs,
                    validation=validation, validation_share=validation_share or 0.2,
                    keep=[key for key in AROUND if key in settings], data_dir=data_dir, download=download,
                    workers=workers, watch=watch, progress=bar,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                raise stopped("stopped; the same command goes on from there", stop) from None
    files = {"spec": str(out / "best.toml"), "trials": str(out / "trials.csv"), "study": str(out / "study.log")}
    again = f"curriculoss train --spec {shlex.quote(files['spec'])} --out run"
    if as_json:
        plain = {key: value for key, value in vars(tuned).items() if key not in ("spec", "run")}
        print_json({"spec": tuned.spec.as_dict(), **plain, "run": str(tuned.run), "files": files, "train": again})
        return
    _print(tuned)
    print(f"all trials: {files['trials']}\nthe run of the choice: {tuned.run}\ntrain with it: {again}")


def _print(tuned: Any) -> None:
    def order(row: dict[str, Any]) -> tuple[bool, bool, float]:
        return row["chosen"], row["near_the_best"], row["validation_accuracy"] or 0.0

    table = new_table("trial", "loss", "lr", "weight decay", "epochs", "validation %", "agreement %", "")
    for row in sorted(tuned.trials, key=order, reverse=True)[:SHOWN]:
        numbers = (f"{row[key]:.1f}" if row[key] is not None else "–" for key in ("validation_accuracy", "agreement"))
        state = "chosen" if row["chosen"] else "near the best" if row["near_the_best"] else row["state"]
        rates = f"{row['learning_rate']:.3g}", f"{row['weight_decay']:.3g}"
        table.add_row(str(row["trial"]), row["name"], *rates, str(row["epochs"] or "–"), *numbers, state)
    new_console().print(table)
    if len(tuned.trials) > SHOWN:
        print(f"and {len(tuned.trials) - SHOWN} more")
    print(f"chosen: {tuned.spec.loss_name}, {tuned.validation_accuracy:.1f} % on the validation labels; trained on all "
          f"training samples, {tuned.test_accuracy:.1f} % on the test set")  # fmt: skip
