"""Tables that a spreadsheet can open without taking a name from the data for a formula."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from curriculoss._files import write_text

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "'")  # such a cell would be evaluated, or lose its apostrophe


def to_cell(text: str) -> str:
    """The text, after an apostrophe if a spreadsheet would take it for a formula; gallery.js has the same rule."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def from_cell(text: str) -> str:
    """The inverse of `to_cell`; cells that people wrote without an apostrophe stay as they are."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA_STARTS) else text


def write_cells(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a .csv file."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([to_cell(value) if isinstance(value, str) else value for value in row] for row in rows)
    write_text(path, text.getvalue())
