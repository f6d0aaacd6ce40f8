"""The numbers that the paper prints, as it prints them, one a row of published.csv.

Nothing is corrected or reconciled, so where the paper contradicts itself, so do the rows:
- "MAE shift", MAE and AGCE on CIFAR-100 differ from table to table, and each table keeps its own.
- `alpha_t` is as printed, ten thousand times what it stands for.
- `expected_margin` is printed without its minus sign: 5.097 means −5.097.
- Results that the paper took from Zhou et al., its rows with ‡, are `from_other_paper`. Its † means other
  hyperparameters, and stays in the row's name.

A number printed once for several data sets or losses has a row for each. What a number is not tied to is empty, and so
is the noise of WebVision, which brings its own. Cells with "/" have no row.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files

from curriculoss.curricula.registry import suggestion

MEASURES = (
    *("test_accuracy", "train_accuracy", "alpha_t", "snr", "diff", "expected_margin"),  # results
    *("a", "q", "tau", "learning_rate", "weight_decay", "momentum", "batch_size", "epochs", "noise_rate"),  # settings
)
STATISTICS = ("", "mean", "best")


@dataclass(frozen=True)
class Published:
    """One printed number. Accuracies are in percent, `diff` in points of it."""

    source: str  # the LaTeX label of the table, figure or section
    data: str
    noise: str  # as `curriculoss.noise.parse` reads it
    row: str  # the loss, as the paper names it
    measure: str
    mean: float  # or the best, see `statistic`
    std: float | None
    runs: int | None  # None where the paper does not say, and for settings
    statistic: str  # what `mean` is of the runs
    from_other_paper: bool
    bold: bool


COLUMNS = [field.name for field in fields(Published)]


@cache
def published() -> tuple[Published, ...]:
    """Every number of the paper."""
    return parse(files(__package__).joinpath("published.csv").read_text(encoding="utf-8").splitlines())


def find(
    source: str, *, row: str, noise: str | None = None, data: str | None = None, measure: str = "test_accuracy"
) -> Published | None:
    """The one number that fits, where None fits any noise or data; None if the paper has no such number."""
    _check("source", source, dict.fromkeys(each.source for each in published()))
    _check("measure", measure, MEASURES)
    wanted = {"source": source, "row": row, "measure": measure, "noise": noise, "data": data}
    asked = {name: value for name, value in wanted.items() if value is not None}
    fitting = [each for each in published() if all(getattr(each, name) == value for name, value in asked.items())]
    if len(fitting) > 1:
        which = "; ".join(f"data={each.data!r}, noise={each.noise!r}" for each in fitting)
        raise ValueError(f"expected one number of {source} for {row!r}, got {len(fitting)}: {which}")
    return fitting[0] if fitting else None


def parse(lines: Iterable[str]) -> tuple[Published, ...]:
    """The rows of published.csv, or of lines like it."""
    header, *rows = csv.reader(lines, strict=True)
    if header != COLUMNS:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)}, got {', '.join(header)}")
    for cells in rows:
        if len(cells) != len(COLUMNS):
            raise ValueError(f"expected {len(COLUMNS)} cells a row of published numbers, got {','.join(cells)!r}")
    return tuple(_read(cells) for cells in rows)


def _read(cells: list[str]) -> Published:
    source, data, noise, row, measure, mean, std, runs, statistic, other, bold = cells
    _check("measure", measure, MEASURES)
    _check("statistic", statistic, STATISTICS)
    numbers = _number(mean), _number(std) if std else None, int(runs) if runs else None
    return Published(source, data, noise, row, measure, *numbers, statistic, _yes(other), _yes(bold))


def _check(kind: str, word: str, known: Collection[str]) -> None:
    if word not in known:
        raise ValueError(f"unknown {kind} {word!r}{suggestion(word, known)}")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {text!r}")
    return number


def _yes(text: str) -> bool:
    if text not in ("yes", ""):
        raise ValueError(f"expected yes or nothing, got {text!r}")
    return text == "yes"
