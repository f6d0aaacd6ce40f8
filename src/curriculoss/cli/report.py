"""`curriculoss report`: a page about runs that are there already."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from curriculoss.cli.console import app, print_json
from curriculoss.cli.options import AsJson, expect_writable
from curriculoss.cli.progress import progress_bar
from curriculoss.errors import InvalidValueError

if TYPE_CHECKING:
    from curriculoss.runs import Run


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain such folders.")],
    out: Annotated[Path | None, typer.Option(help="File to write (default: report.html in the first folder).")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained HTML page about runs: verdicts, accuracies, weights, margins by epoch, and a table.

    \b
    curriculoss report run
    curriculoss report run-ce run-mae --out both.html
    """
    from curriculoss.report import build

    found, out = find_runs(runs), expect_writable(out or runs[0] / "report.html")
    with progress_bar("drawing the report", quiet=as_json):
        page = build(found, out)
    if as_json:
        print_json({"report": str(page), "runs": [str(each.path) for each in found]})
    else:
        print(f"report: {page}")


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in these folders, or one folder below."""
    from curriculoss.runs import Run

    found: list[Run] = []
    for folder in folders:
        inside = sorted(each.parent for each in (*folder.glob("spec.json"), *folder.glob("*/spec.json")))
        if not inside:
            raise InvalidValueError(f"{folder} holds no run: expected spec.json in it or one folder below")
        found += [Run(each) for each in inside]
    return found
