"""`curriculoss audit` and `curriculoss clean`: the labels to look at first, and what a person decided about them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from curriculoss.cli.console import UsageError, app, new_console, new_table, print_json
from curriculoss.cli.mistakes import mistakes, stopped
from curriculoss.cli.settings import AsJson, DataDir, Download, Workers, expect_outside
from curriculoss.cli.training import Bar

Label = Annotated[str | None, typer.Option(help="The label column of a table (label, y or target).")]
Labels = Annotated[Path | None, typer.Option(help="For an .npy file: its labels, as .npy or one a line.")]


@app.command()
def audit(
    data: Annotated[str, typer.Argument(help="Class folders, .npz, .npy, .csv, .parquet, or a data set by name.")],
    out: Annotated[Path, typer.Option(help="A folder for the list, the gallery and the run.")],
    label: Label = None,
    labels: Labels = None,
    noise: Annotated[str | None, typer.Option(help="For trials: corrupt the labels first, as symmetric:0.4.")] = None,
    subset: Annotated[int | None, typer.Option(help="Look at so many samples.")] = None,
    network: Annotated[str | None, typer.Option(help="Another network than the data suggest.")] = None,
    width: Annotated[float | None, typer.Option(help="Channels times this.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Another number than the data suggest.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of initialisation, order and noise (0).")] = None,
    score: Annotated[
        str | None, typer.Option(help="probability (default), mean, last, after, aum, slope, mean+after.")
    ] = None,
    data_dir: DataDir = None,
    download: Download = False,
    workers: Workers = 0,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the labels that are probably wrong, how many there are, and what they should be.

    \b
    curriculoss audit my-photos/ --out audit
    curriculoss audit embeddings.npy --labels labels.npy --out audit
    curriculoss audit digits-100 --noise symmetric:0.4 --out trial --json

    One training run with a robust loss. Writes suspects.csv (most suspicious first), noise.json and audit.html, a
    gallery to decide in; `curriculoss clean` applies the decisions. In .csv files, a name that a spreadsheet would take
    for a formula has an apostrophe before it. The same command again goes on where it was, or only writes again.
    """
    if accelerator not in ("auto", "cpu", "cuda", "mps"):
        raise UsageError(f"expected --accelerator auto, cpu, cuda or mps, got {accelerator!r}")
    expect_outside(out, data)
    asked = {"label": label, "noise": noise, "subset": subset, "network": network, "width": width, "epochs": epochs,
             "seed": seed}  # fmt: skip
    with mistakes():
        from curriculoss.audit import finding, output, reading
        from curriculoss.audit.score import DEFAULT

        source = reading.read(data, labels, label=label, data_dir=data_dir, download=download)
        with Bar(quiet=as_json) as bar:
            try:
                found = finding.examine(
                    source, out / "run", {k: v for k, v in asked.items() if v is not None}, score=score or DEFAULT,
                    workers=workers, accelerator=accelerator, progress=bar,
                )  # fmt: skip
            except KeyboardInterrupt as stop:
                raise stopped("stopped; the same command goes on from there", stop) from None
        result = output.write(found, source, out)
    if as_json:
        print_json(result)
    else:
        _print(result)
        if Path(data).expanduser().exists():
            named = f" --label {shlex.quote(label)}" if label else ""
            named += f" --labels {shlex.quote(str(labels))}" if labels else ""
            print(f"then: curriculoss clean {shlex.quote(data)}{named} --decisions decisions.csv --out cleaned")


def _print(result: dict[str, Any]) -> None:
    low, high = result["interval"]
    print(f"{100 * result['noise_rate']:.1f} % of the {result['samples']} labels seem to be wrong "
          f"({100 * low:.1f} to {100 * high:.1f} %); {result['suspects']} are suspicious")  # fmt: skip
    if result["learned_little"]:
        print(f"beware: the network predicts only {100 * result['predicted']:.0f} % of the labels, so it has learned "
              "little, or very many are wrong")  # fmt: skip
    if result["unreadable"]:
        print(f"{result['unreadable']} images could not be read and were left out: {result['files']['unreadable']}")
    if truth := result.get("against_truth"):
        missed = truth["false_negative_rate"]
        scored = (
            "" if missed is None else f"; AUROC {truth['auroc']:.3f}, {100 * missed:.1f} % of the wrong ones missed"
        )
        print(f"in truth {100 * truth['noise_rate']:.1f} % are wrong{scored}")
    pairs = new_table("given", "suggested", "about", justify="right")
    for pair in result["pairs"][:8]:
        pairs.add_row(*(_plain(pair[key]) for key in ("given", "suggested")), f"{pair['count']:.0f}")
    if pairs.row_count:
        new_console().print(pairs)
    files = result["files"]
    print(f"look at them: {files['gallery']}\nthe list: {files['suspects']}")


def _plain(name: str) -> Any:
    from rich.text import Text

    return Text(name)  # no markup


@app.command()
def clean(
    data: Annotated[str, typer.Argument(help="What was audited: class folders, .npz, .npy, .csv or .parquet.")],
    decisions: Annotated[Path, typer.Option(help="A .csv file: index,path,decision,label, as the gallery exports it.")],
    out: Annotated[Path, typer.Option(help="A new folder for the cleaned data and a report.")],
    label: Label = None,
    labels: Labels = None,
    link: Annotated[bool, typer.Option("--link", help="Hard links to image files in place of copies.")] = False,
    as_json: AsJson = False,
) -> None:
    """Apply keep, fix and drop decisions to a copy of the data; the original is only read.

    \b
    curriculoss clean my-photos/ --decisions decisions.csv --out cleaned
    curriculoss train --data cleaned --loss auto --out run

    Samples without a decision stay as they are. Images that cannot be read are left out. Writes changes.csv and
    cleaned.json, a report, beside the data.
    """
    with mistakes():
        from curriculoss.audit.clean import clean as apply

        report = apply(data, decisions, out, label=label, labels=labels, link=link)
    column = f" --label {shlex.quote(label)}" if label else ""
    train = f"curriculoss train --data {shlex.quote(report['data'])}{column} --loss auto --out run"
    if as_json:
        print_json({**report, "train": train})
        return
    print(f"{report['fix']} fixed, {report['drop']} dropped, {report['keep']} kept as they are: "
          f"{report['samples']} of {report['samples_before']} samples in {report['data']}")  # fmt: skip
    if report["unreadable_left_out"]:
        print(f"{report['unreadable_left_out']} images could not be read and were left out")
    if report["classes_left_empty"]:
        print(f"classes without samples now: {', '.join(map(repr, report['classes_left_empty']))}")
    print(f"what was done: {report['changes']}\ntrain on it: {train}")
