"""`curriculoss predict` and `export`: what a trained network says about new samples, and the network as one file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curriculoss.cli.console import UsageError, app, new_table, print_json, show
from curriculoss.cli.options import AsJson, DataDir, expect_writable, import_factory
from curriculoss.cli.progress import progress_bar

if TYPE_CHECKING:
    from curriculoss.data import Inputs
    from curriculoss.runs import TrainedModel

ROWS_PRINTED = 10  # rows of the table on the screen
NUMBERS_PER_BATCH = 2**22  # about 27 photos of 224 pixels
LARGEST_BATCH = 1024

RunFolder = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
OwnNetwork = Annotated[
    str | None,
    typer.Option("--network", metavar="MODULE:FACTORY", help="What makes the network, for a run with one of your own."),
]


@app.command()
def predict(
    run: RunFolder,
    data: Annotated[str, typer.Argument(help="Images, a folder of them, .npz, .csv, .parquet, or a data set's name.")],
    *,
    out: Annotated[Path | None, typer.Option(help="The table to write (default: predictions.csv).")] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes per sample, the most probable first.")] = 3,
    data_dir: DataDir = None,
    network: OwnNetwork = None,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of new samples with the network of a finished run. Labels are not needed.

    \b
    curriculoss predict run new-photos/
    curriculoss predict run photo.jpg --top 5
    curriculoss predict run new-rows.csv --out answers.csv

    Images are cropped or resized as in training. Columns of a table are matched by name. For a data set known by name,
    the test samples are used.
    """
    from curriculoss._files import write_table
    from curriculoss.data import load_inputs
    from curriculoss.runs import Run

    if out is not None or not as_json:
        out = expect_writable(out or Path("predictions.csv"))
    model, spec = _model(run, network), Run(run).spec
    inputs = load_inputs(data, model.input_format, image_size=spec.image_size, label=spec.label, data_dir=data_dir)
    rows = list(_rows(model, inputs, top, as_json))
    if out is not None:
        write_table(out, rows)
    if as_json:
        print_json({"run": str(run), "data": data, "out": None if out is None else str(out), "predictions": rows})
        return
    _print_rows(rows)
    print(f"all {len(rows)} predictions: {out}" if len(rows) > ROWS_PRINTED else f"the table: {out}")


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Argument(help="The file to write, such as model.pt2.")],
    network: OwnNetwork = None,
    as_json: AsJson = False,
) -> None:
    """Write the network of a finished run as one file that needs torch alone (torch.export).

    \b
    curriculoss export run model.pt2

    The program takes batches of any size as the data have them (uint8 images or numbers) and returns probabilities:
    normalisation and softmax are part of it, and the class names are in the file.
    """
    if out.suffix != ".pt2":
        raise UsageError(f"expected a file name that ends with .pt2, got {out}")
    from curriculoss.runs import export_model

    out = expect_writable(out)
    model = _model(run, network)
    export_model(model, out)
    if as_json:
        inputs = {"shape": ["N", *model.input_shape], "dtype": model.input_format.input_dtype}
        print_json({"run": str(run), "out": str(out), "inputs": inputs, "class_names": model.class_names})
        return
    shape = ", ".join(map(str, model.input_shape))
    print(f"""{out}: from {model.input_format.input_dtype} (N, {shape}) to probabilities (N, {len(model.class_names)})
To use it, with torch alone:
    extra = {{"class_names.json": ""}}
    model = torch.export.load({str(out)!r}, extra_files=extra).module()
    class_names = json.loads(extra["class_names.json"])
    probabilities = model(inputs)""")


def _model(run: Path, network: str | None) -> TrainedModel:
    from curriculoss.runs import RunError, load_model

    try:
        return load_model(run, None if network is None else import_factory(network))
    except RunError as error:
        raise UsageError(str(error)) from None


def _rows(model: TrainedModel, inputs: Inputs, top: int, quiet: bool) -> Iterator[dict[str, Any]]:
    """One row per sample: its path or position, then the most probable classes."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    size = max(1, min(LARGEST_BATCH, NUMBERS_PER_BATCH // math.prod(model.input_shape)))
    done = 0
    with progress_bar("predicting", len(inputs), quiet=quiet) as update:
        for batch in inputs.batches(size):
            found = model(batch.to(device)).topk(min(top, len(model.class_names)))
            for chances, labels in zip(found.values.tolist(), found.indices.tolist(), strict=True):
                row: dict[str, Any] = {"index": done} if inputs.paths is None else {"path": inputs.paths[done]}
                for place, (chance, label) in enumerate(zip(chances, labels, strict=True), 1):
                    end = "" if place == 1 else f"_{place}"
                    row |= {f"prediction{end}": model.class_names[label], f"probability{end}": round(chance, 6)}
                yield row
                done += 1
            update(done)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    """The first rows; the most probable class has columns of its own."""
    where, *_ = rows[0]
    shown = []
    for place, label, chance, *others in (row.values() for row in rows[:ROWS_PRINTED]):
        rest = [f"{name} {share:.3f}" for name, share in zip(others[::2], others[1::2], strict=True)]
        shown.append((place, label, f"{chance:.3f}", ", ".join(rest)))
    show(new_table((where, "prediction", "probability", "then" if "prediction_2" in rows[0] else ""), shown))
