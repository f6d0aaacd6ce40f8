"""`curriculoss data`: the data sets known by name, and whether data can be read."""

from typing import Annotated, Any

import typer

from curriculoss.cli.console import app, new_table, print_json, show
from curriculoss.cli.options import AsJson, DataDir, Download, Label
from curriculoss.cli.progress import progress_bar

data_app = typer.Typer(help="List data sets, and check that data can be read.", rich_markup_mode=None)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets known by name, and whether their files are here.

    \b
    curriculoss data list
    curriculoss data list --data-dir ~/data
    """
    from curriculoss import data

    rows: list[dict[str, Any]] = [
        {"name": name, "num_classes": each.num_classes, "here": each.is_here(data_dir), "what": each.description}
        for name, each in data.DATA_SETS.items()
    ]
    if as_json:
        print_json(rows)
        return
    cells = [(x["name"], x["num_classes"], "yes" if x["here"] else "no", x["what"]) for x in rows]
    show(new_table(("name", "classes", "here", "what"), cells))
    print(f"folder: {data.data_folder(data_dir)}")


@data_app.command("check")
def data_check(
    names: Annotated[list[str], typer.Argument(help="Data sets or paths.")],
    data_dir: DataDir = None,
    download: Download = False,
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Read all of some data sets, and say what is in them or what is wrong with them.

    \b
    curriculoss data check digits-100
    curriculoss data check my-photos/ table.csv
    """
    from curriculoss import data

    rows: list[dict[str, Any]] = []
    with progress_bar("reading", len(names), quiet=as_json) as update:
        for name in names:
            found = data.load(name, data_dir=data_dir, download=download, label=label)
            test = None if found.test is None else len(found.test)
            rows.append({"name": name, "train": len(found.train), "test": test, "shape": list(found.shape),
                         "num_classes": found.num_classes, "human": list(found.human)})  # fmt: skip
            update(len(rows))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        held = "no test samples" if row["test"] is None else f"{row['test']} test samples"
        print(f"{row['name']}: {row['train']} training samples, {held}, {row['num_classes']} classes, "
              f"shape {'×'.join(map(str, row['shape']))}")  # fmt: skip
