"""`curriculoss data`: what data sets there are, and whether they are whole."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from curriculoss.cli.console import app, new_console, new_table, print_json
from curriculoss.cli.mistakes import mistakes
from curriculoss.cli.settings import AsJson, DataDir, Download

data_app = typer.Typer(help="Data sets: what there is, and whether it is whole.", rich_markup_mode=None)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets known by name, and whether their files are here."""
    with mistakes():
        from curriculoss import data

        rows = data.listing(data_dir)
    if as_json:
        print_json(rows)
        return
    table = new_table("name", "classes", "here", "what")
    for row in rows:
        table.add_row(row["name"], str(row["num_classes"]), "yes" if row["here"] else "no", row["what"])
    new_console().print(table)
    print(f"looked in {data.data_folder(data_dir)}")


@data_app.command("check")
def data_check(
    names: Annotated[list[str], typer.Argument(help="Data sets or paths.")],
    data_dir: DataDir = None,
    download: Download = False,
    label: Annotated[str | None, typer.Option(help="The label column of a table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read data sets whole, and say what is in them or what is wrong with them."""
    rows: list[dict[str, Any]] = []
    with mistakes():
        from curriculoss import data

        for name in names:
            found = data.load(name, data_dir=data_dir, download=download, label=label)
            test = None if found.test is None else len(found.test)
            rows.append({"name": name, "train": len(found.train), "test": test, "shape": list(found.shape),
                         "num_classes": found.num_classes, "human": list(found.human)})  # fmt: skip
    if as_json:
        print_json(rows)
        return
    for row in rows:
        held = "no test samples" if row["test"] is None else f"{row['test']} for testing"
        print(f"{row['name']}: {row['train']} training samples, {held}, {row['num_classes']} classes, "
              f"shape {'×'.join(map(str, row['shape']))}")  # fmt: skip
