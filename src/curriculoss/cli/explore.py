"""`curriculoss explore`: losses and runs as an interactive page."""

from pathlib import Path
from typing import Annotated

import typer

from curriculoss.cli.console import app
from curriculoss.cli.options import expect_writable
from curriculoss.cli.progress import progress_bar
from curriculoss.cli.report import find_runs


@app.command()
def explore(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("explorer.html"),
    run: Annotated[list[Path] | None, typer.Option(help="A run, or a folder of runs, to show; repeatable.")] = None,
) -> None:
    """Write one self-contained HTML page on which losses can be moved, compared and drawn.

    \b
    curriculoss explore
    curriculoss explore --run run-ce --run run-mae --out both.html

    Pick losses, move their hyperparameters, the number of classes and the fix, and see the weight of samples before
    training; draw a weight function of your own and copy it as Python. Open the file in a browser: it needs no network.
    """
    from curriculoss.explorer import build
    from curriculoss.report.groups import rows

    out = expect_writable(out)
    found = find_runs(run or [])
    shown = [each for each in found if rows(each)] or found  # if none has an epoch, the error says so
    with progress_bar("making the page", quiet=False):
        page = build(out, shown)
    if left_out := [str(each.path) for each in found if each not in shown]:
        print(f"left out, as no epoch has ended: {', '.join(left_out)}")
    print(f"explorer: {page}")
    print(f"Open it in a browser: {page.resolve().as_uri()}")
