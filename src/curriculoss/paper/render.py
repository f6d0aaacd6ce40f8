"""A table as text for terminals, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from curriculoss.training.store import write_text

WIDTH = 120  # of text, in characters
PAGE = 100  # of a LaTeX table, in characters of small print
GAP = "  "
INDENT = "    "

LATEX = {
    **{special: f"\\{special}" for special in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": "$|$",
    "†": r"\textsuperscript{\textdagger}", "‡": r"\textsuperscript{\textdaggerdbl}",
    "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "≤": r"$\le$", "⁴": "$^4$", "∞": r"$\infty$",
    "α": r"$\alpha$", "γ": r"$\gamma$", "ε": r"$\varepsilon$", "σ": r"$\sigma$", "τ": r"$\tau$", "Δ": r"$\Delta$",
    "Σ": r"$\Sigma$",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """Its head, below that of a group of columns if there is one. Code is set as such, to the left."""

    name: str
    group: str = ""
    code: bool = False


@dataclass(frozen=True)
class Line:
    """One loss: its name, and a cell for each column, of some lines each."""

    label: str
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """What is shown, and as `data` the same number by number, or formula by formula, for a CSV file."""

    name: str
    title: str
    source: str  # the paper's label
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    data: tuple[Mapping[str, Any], ...]
    scale: str = ""  # none for formulae
    n: int = 0  # runs behind a number, where a cell does not say otherwise
    planned: int = 0  # as many as there will be
    stub: str = "loss"  # the head of the column of labels

    @property
    def heading(self) -> str:
        return f"{self.name}: {self.title}"

    @property
    def subtitle(self) -> str:
        planned = f" of {self.planned} planned" if self.planned > self.n else ""
        runs = f"; scale {self.scale}, n = {self.n}{planned}" if self.scale else ""
        return f"The paper's {self.source}{runs}"

    @property
    def grouped(self) -> bool:
        return any(column.group for column in self.columns)


def _blocks(table: Table, width: int) -> list[Table]:
    """The table in pieces of at most that width, if its groups of columns allow."""
    first, *sizes = _sizes(table)
    groups = itertools.groupby(range(len(sizes)), lambda at: table.columns[at].group or at)
    blocks: list[list[int]] = [[]]
    for group in (list(at) for _, at in groups):
        needed = first + sum(len(GAP) + sizes[at] for at in (*blocks[-1], *group))
        if blocks[-1] and needed > width:
            blocks.append([])
        blocks[-1] += group
    return [
        replace(
            table,
            columns=tuple(table.columns[at] for at in block),
            lines=tuple(Line(line.label, tuple(line.cells[at] for at in block)) for line in table.lines),
        )
        for block in blocks
    ]


def _sizes(table: Table) -> list[int]:
    """Characters that each column takes, that of the labels first; a group of one column has its head in it too."""
    alone = [sum(other.group == column.group for other in table.columns) == 1 for column in table.columns]
    heads = [max(len(column.name), len(column.group) * one) for column, one in zip(table.columns, alone, strict=True)]
    cells = [[len(text) for line in table.lines for text in line.cells[at]] for at in range(len(heads))]
    labels = max(len(table.stub), *(len(line.label) for line in table.lines))
    return [labels, *(max([head, *some]) for head, some in zip(heads, cells, strict=True))]


def _groups(table: Table) -> list[tuple[str, int]]:
    """Heads of groups, each with the number of its columns."""
    return [(name, len([*some])) for name, some in itertools.groupby(column.group for column in table.columns)]


def _texts(line: Line) -> list[list[str]]:
    """Its cells, line by line: the label is in the first."""
    height = max(len(cell) for cell in line.cells)
    labels = [line.label, *[""] * (height - 1)]
    padded = [[*cell, *[""] * (height - len(cell))] for cell in line.cells]
    return [[*texts] for texts in zip(labels, *padded, strict=True)]


def text(table: Table) -> str:
    """For terminals: wide tables in several blocks."""
    notes = [textwrap.fill(note, WIDTH, initial_indent="- ", subsequent_indent="  ") for note in table.notes]
    top = [*textwrap.wrap(table.heading, WIDTH), table.subtitle, ""]
    blocks = [row for block in _blocks(table, WIDTH) for row in (*_text_block(block), "")]
    return "\n".join([*top, *blocks, *notes]) + "\n"


def _text_block(table: Table) -> list[str]:
    sizes = _sizes(table)
    left = [True, *(column.code for column in table.columns)]

    def row(texts: Sequence[str]) -> str:
        cells = zip(texts, sizes, left, strict=True)
        return GAP.join(f"{text:{'<' if to_left else '>'}{size}}" for text, size, to_left in cells).rstrip()

    head, rule = (
        row([table.stub, *(column.name for column in table.columns)]),
        "-" * (sum(sizes) + len(GAP * len(sizes))),
    )
    above, at = [" " * sizes[0]], 1
    for name, count in _groups(table):
        above.append(f"{name:^{sum(sizes[at : at + count]) + len(GAP) * (count - 1)}}")
        at += count
    heads = [GAP.join(above).rstrip()] * table.grouped + [head, rule[: -len(GAP)]]
    return [*heads, *(row(texts) for line in table.lines for texts in _texts(line))]


def comma_separated(table: Table) -> str:
    """One number, or one formula, a line."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, [*table.data[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.data)
    return lines.getvalue()


def markdown(table: Table) -> str:
    """As GitHub reads it."""
    heads = [table.stub, *(_markdown(f"{column.group} {column.name}".strip()) for column in table.columns)]
    rules = [":--", *(":--" if column.code else "--:" for column in table.columns)]
    rows = [heads, rules]
    for line in table.lines:
        cells = zip(line.cells, table.columns, strict=True)
        shown = ["<br>".join(_markdown(text, column.code) for text in cell) for cell, column in cells]
        rows.append([_markdown(line.label), *shown])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"- {_markdown(note)}" for note in table.notes]
    return "\n".join([f"### {_markdown(table.heading)}", "", _markdown(table.subtitle), "", *lines, "", *notes]) + "\n"


def _markdown(text: str, code: bool = False) -> str:
    if code:
        return f"`{text.replace('|', chr(92) + '|')}`" if text else ""
    return re.sub(r"([\\`*_|<>\[\]~])", r"\\\1", text)


def latex(table: Table) -> str:
    r"""To be \input where \usepackage{booktabs} is."""
    tabulars = ["\n".join(_tabular(block)) for block in _blocks(table, PAGE)]
    caption = " ".join(_latex(f"{part.removesuffix('.')}.") for part in (table.title, table.subtitle, *table.notes))
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering\scriptsize\setlength{\tabcolsep}{3pt}",
            "\n  \\par\\medskip\n".join(tabulars),
            rf"  \caption{{{caption}}}",
            rf"  \label{{ours:{table.name.replace(':', '-')}}}",
            r"\end{table}",
            "",
        ]
    )


def _tabular(table: Table) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return rf"{INDENT}{' & '.join(cells)} \\"

    lines = [rf"  \begin{{tabular}}{{l{''.join('rl'[column.code] for column in table.columns)}}}", rf"{INDENT}\toprule"]
    if table.grouped:
        spans, rules, at = [""], [], 2
        for name, count in _groups(table):
            spans.append(rf"\multicolumn{{{count}}}{{c}}{{{_latex(name)}}}")
            if name:
                rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
            at += count
        lines += [row(spans), INDENT + " ".join(rules)]
    lines += [row([table.stub, *(_latex(column.name) for column in table.columns)]), rf"{INDENT}\midrule"]
    code = [False, *(column.code for column in table.columns)]
    for line in table.lines:
        texts = _texts(line)
        lines += [row([_latex(text, typed) for text, typed in zip(some, code, strict=True)]) for some in texts]
        if len(texts) > 1 and line is not table.lines[-1]:
            lines.append(rf"{INDENT}\addlinespace")
    return [*lines, rf"{INDENT}\bottomrule", r"  \end{tabular}"]


def _latex(text: str, code: bool = False) -> str:
    safe = "".join(LATEX.get(letter, letter) for letter in text)
    return rf"\texttt{{{safe}}}" if code and text else safe


FORMS = {".txt": text, ".csv": comma_separated, ".md": markdown, ".tex": latex}


def write(table: Table, folder: Path, stem: str) -> list[Path]:
    """In all four forms, each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, form in FORMS.items():
        paths.append(folder / f"{stem}{suffix}")
        write_text(paths[-1], form(table))
    return paths
