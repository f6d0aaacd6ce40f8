"""Writes a table as text for terminals, CSV, Markdown and LaTeX."""

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from curriculoss._files import write_table, write_text
from curriculoss.paper.artefacts import Artefact
from curriculoss.paper.templates import fill

TEXT_WIDTH = 120  # characters
LATEX_WIDTH = 100  # characters of small print
GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column's head, line by line; columns of code are set as code, to the left."""

    head: tuple[str, ...]
    code: bool = False


@dataclass(frozen=True)
class Line:
    """A loss: its name, and for each column a cell of one or more lines."""

    label: str
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class TableContent:
    """What a table shows, and the same number by number (`data`) for the CSV file."""

    artefact: Artefact
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    data: tuple[Mapping[str, Any], ...]
    runs: str = ""  # scale and number of runs; empty for formulae
    stub: str = "loss"  # head of the first column

    @property
    def heading(self) -> str:
        return f"{self.artefact.name}: {self.artefact.title}"

    @property
    def subtitle(self) -> str:
        return f"The paper's {self.artefact.source}" + (f"; {self.runs}" if self.runs else "")

    @property
    def head(self) -> list[tuple[str, ...]]:
        """Text rows of the head, aligned to the bottom."""
        upwards = [(self.stub,), *(column.head[::-1] for column in self.columns)]
        return [*itertools.zip_longest(*upwards, fillvalue="")][::-1]

    @property
    def body(self) -> list[list[tuple[str, ...]]]:
        """Text rows of each line, each with its label first."""
        return [[*itertools.zip_longest((line.label,), *line.cells, fillvalue="")] for line in self.lines]

    def pick(self, places: Iterable[int]) -> "TableContent":
        """The table with some of its columns."""
        places = tuple(places)
        lines = tuple(Line(line.label, tuple(line.cells[at] for at in places)) for line in self.lines)
        return replace(self, columns=tuple(self.columns[at] for at in places), lines=lines)


def _blocks(table: TableContent, width: int) -> list[TableContent]:
    """The table in pieces of at most that width, as far as columns with the same first head stay together."""
    first, *sizes = _sizes(table)
    blocks: list[list[int]] = [[]]
    for _, some in itertools.groupby(range(len(sizes)), lambda at: table.columns[at].head[0]):
        group = [*some]
        needed = first + sum(len(GAP) + sizes[at] for at in (*blocks[-1], *group))
        if blocks[-1] and needed > width:
            blocks.append([])
        blocks[-1] += group
    return [table.pick(block) for block in blocks]


def _sizes(table: TableContent) -> list[int]:
    """Width of each column in characters, the labels' column first."""
    rows = [*table.head, *itertools.chain(*table.body)]
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def table_text(table: TableContent) -> str:
    """The table for terminals; wide tables are split into blocks."""
    notes = [textwrap.fill(note, TEXT_WIDTH, initial_indent="- ", subsequent_indent="  ") for note in table.notes]
    top = [*textwrap.wrap(table.heading, TEXT_WIDTH), table.subtitle, ""]
    return "\n".join([*top, *itertools.chain(*map(_text_block, _blocks(table, TEXT_WIDTH))), *notes]) + "\n"


def _text_block(table: TableContent) -> list[str]:
    sizes = _sizes(table)
    sides = ["<", *("<" if column.code else ">" for column in table.columns)]

    def row(texts: Sequence[str]) -> str:
        return GAP.join(f"{text:{side}{size}}" for text, side, size in zip(texts, sides, sizes, strict=True)).rstrip()

    rule = "-" * (sum(sizes) + len(GAP) * len(table.columns))
    return [*map(row, table.head), rule, *map(row, itertools.chain(*table.body)), ""]


def markdown(table: TableContent) -> str:
    """The table in GitHub's Markdown."""
    return fill("table.md", table=table)


def latex(table: TableContent) -> str:
    r"""The table for \input in a document with \usepackage{booktabs}."""
    caption = (table.artefact.title, table.subtitle, *table.notes)
    return fill("table.tex", table=table, caption=caption, blocks=_blocks(table, LATEX_WIDTH))


def write_forms(table: TableContent, folder: Path) -> list[Path]:
    """Write all four forms and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {suffix: folder / f"{table.artefact.stem}{suffix}" for suffix in (".txt", ".csv", ".md", ".tex")}
    write_table(paths[".csv"], table.data)
    for suffix, form in ((".txt", table_text), (".md", markdown), (".tex", latex)):
        write_text(paths[suffix], form(table))
    return [*paths.values()]
