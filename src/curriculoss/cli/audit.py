"""`curriculoss audit` and `curriculoss clean`: find suspicious labels, and apply a person's decisions about them."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from curriculoss._files import locked
from curriculoss._text import percent
from curriculoss.cli.console import app, new_table, print_json, show
from curriculoss.cli.exits import resumable
from curriculoss.cli.options import Accelerator, AsJson, DataDir, Download, Label, Workers, expect_outside
from curriculoss.cli.progress import TrainingProgress
from curriculoss.errors import InvalidValueError

if TYPE_CHECKING:
    from curriculoss.auditing import Audit

Labels = Annotated[Path | None, typer.Option(help="Labels of an .npy file: .npy, or text with one label per line.")]
SHOWN_PAIRS = 8


@app.command()
def audit(
    data: Annotated[str, typer.Argument(help="Class folders, .npz, .npy, .csv, .parquet, or the name of a data set.")],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the list, the gallery and the training run.")],
    label: Label = None,
    labels: Labels = None,
    noise: Annotated[str | None, typer.Option(help="Corrupt the labels first, to try it out: symmetric:0.4.")] = None,
    subset: Annotated[int | None, typer.Option(help="Number of samples to audit (default: all).")] = None,
    image_size: Annotated[int | None, typer.Option(help="Resize images to this height and width.")] = None,
    network: Annotated[str | None, typer.Option(help="Network (default: chosen by the kind of data).")] = None,
    width: Annotated[float | None, typer.Option(help="Multiplier for the number of channels (default 1).")] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs (default: chosen by kind and size).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of initialisation, order and noise (default 0).")] = None,
    score: Annotated[
        str, typer.Option(help="What to rank by: probability, mean, last, after, aum, slope, mean+after.")
    ] = "probability",
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    accelerator: Accelerator = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the labels that are probably wrong, estimate how many there are, and suggest other labels.

    \b
    curriculoss audit my-photos/ --out audit
    curriculoss audit embeddings.npy --labels labels.npy --out audit
    curriculoss audit digits-100 --noise symmetric:0.4 --out trial --json

    Trains once with a robust loss. Writes suspects.csv (at least the 100 most suspicious samples, with the probability
    that each label is wrong), noise.json (the estimate) and audit.html (a gallery to decide in). `curriculoss clean`
    applies the decisions. In .csv files, an apostrophe precedes names that a spreadsheet would take for a formula. An
    interrupted audit continues when the command is repeated; a finished one is not trained again.
    """
    expect_outside(out, data)
    if (out / "spec.json").exists():
        raise InvalidValueError(f"{out} holds a run; give another folder for the audit")
    asked = {"label": label, "noise": noise, "subset": subset, "image_size": image_size,
             "network": network, "width": width, "epochs": epochs, "seed": seed}  # fmt: skip
    from curriculoss import auditing

    with TrainingProgress(quiet=as_json) as bar, resumable():
        found = auditing.audit(
            data, labels, out=out / "run", settings={key: value for key, value in asked.items() if value is not None},
            score=score, data_dir=data_dir, download=download, workers=workers, accelerator=accelerator,
            callbacks=(bar,),
        )  # fmt: skip
    with locked(out, wait=True):
        files = found.save(out)
    if as_json:
        print_json({**found.summary(), "files": files})
        return
    _print(found, files)
    if Path(data).expanduser().exists():
        named = f" --label {shlex.quote(label)}" if label else ""
        named += f" --labels {shlex.quote(str(labels))}" if labels else ""
        print(f"then: curriculoss clean {shlex.quote(data)}{named} --decisions decisions.csv --out cleaned")


def _print(found: Audit, files: dict[str, str]) -> None:
    print(found.headline)
    expected = found.p_wrong[found.suspects].sum()
    are = "is" if round(expected) == 1 else "are"
    print(f"the {len(found.suspects)} most suspicious labels are listed; about {expected:.0f} of them {are} wrong")
    result = found.summary()
    if found.learned_little:
        print(f"beware: the network predicts only {percent(found.predicted)} of the labels, so it has learned little, "
              "or very many are wrong")  # fmt: skip
    if found.data.unreadable:
        print(f"{len(found.data.unreadable)} images could not be read and were left out: {files['unreadable']}")
    if truth := result.get("against_truth"):
        missed = truth["false_negative_rate"]
        scored = "" if missed is None else f"; AUROC {truth['auroc']:.3f}, {percent(missed)} of the wrong ones missed"
        print(f"in truth {percent(truth['noise_rate'])} are wrong{scored}")
    if pairs := [(each["given"], each["suggested"], f"{each['count']:.0f}") for each in result["pairs"][:SHOWN_PAIRS]]:
        show(new_table(("given", "suggested", "about"), pairs, justify="right"))
    print(f"look at them: {files['gallery']}\nthe list: {files['suspects']}")


@app.command()
def clean(
    data: Annotated[str, typer.Argument(help="The audited data: class folders, .npz, .npy, .csv or .parquet.")],
    *,
    decisions: Annotated[Path, typer.Option(help="Table index,path,decision,label, as the gallery exports it.")],
    out: Annotated[Path, typer.Option(help="New folder for the cleaned data and a report.")],
    label: Label = None,
    labels: Labels = None,
    link: Annotated[bool, typer.Option("--link", help="Make hard links to image files instead of copies.")] = False,
    as_json: AsJson = False,
) -> None:
    """Apply keep, fix and drop decisions to a copy of the data; the original is only read.

    \b
    curriculoss clean my-photos/ --decisions decisions.csv --out cleaned
    curriculoss train --data cleaned --loss auto --out run

    Samples without a decision stay as they are. Images that cannot be read are left out. Also writes changes.csv (one
    row per decision) and cleaned.json (a report).
    """
    from curriculoss import auditing

    report = auditing.clean(data, decisions, out, label=label, labels=labels, link=link)
    column = f" --label {shlex.quote(label)}" if label else ""
    train = f"curriculoss train --data {shlex.quote(report.data)}{column} --loss auto --out run"
    if as_json:
        print_json({**asdict(report), "train": train})
        return
    print(f"{report.fix} fixed, {report.drop} dropped, {report.keep} kept as they are: "
          f"{report.samples} of {report.samples_before} samples in {report.data}")  # fmt: skip
    if report.unreadable_left_out:
        print(f"{report.unreadable_left_out} images could not be read and were left out")
    if report.classes_left_empty:
        print(f"classes without samples now: {', '.join(map(repr, report.classes_left_empty))}")
    print(f"what was done: {report.changes}\ntrain on it: {train}")
