"""The numbers that the paper prints, as it prints them, one per row of published.csv.

Nothing is corrected or reconciled, so the rows contradict each other where the paper contradicts itself:
- "MAE shift", MAE and AGCE on CIFAR-100 differ from table to table, and each table keeps its own.
- `alpha_t` is as printed, ten thousand times what it stands for.
- `expected_margin` is printed without its minus sign: 5.097 means −5.097.
- Results that the paper took from Zhou et al., its rows with ‡, are `from_other_paper`. Its † means other
  hyperparameters, and stays in the row's name.

A number printed once for several data sets or losses has a row for each. What a number is not tied to is empty, and so
is the noise of WebVision, which has its own. Cells with "/" have no row.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from curriculoss.errors import InvalidValueError


@dataclass(frozen=True)
class Published:
    """One printed number. Accuracies are in percent, `diff` in points.

    Attributes:
        source: The LaTeX label of the table, figure or section.
        data: The data set, in our spelling.
        noise: The noise, as `curriculoss.noise.parse` reads it.
        row: The loss, as the paper names it.
        measure: What is measured, or which setting it is.
        mean: The number: the mean of the runs, or what `statistic` says.
        std: Its standard deviation, if printed.
        runs: How many runs it is of; None for settings and where the paper does not say.
        statistic: "mean", "best", or empty.
        from_other_paper: Whether the paper took it from Zhou et al.
        bold: Whether it is printed in bold.
    """

    source: str
    data: str
    noise: str
    row: str
    measure: str
    mean: float
    std: float | None
    runs: int | None
    statistic: str
    from_other_paper: bool
    bold: bool

    @classmethod
    def of(cls, cells: list[str]) -> "Published":
        """The number in a row of the file."""
        source, data, noise, row, measure, mean, std, runs, statistic, other, bold = cells
        numbers = float(mean), float(std) if std else None, int(runs) if runs else None
        return cls(source, data, noise, row, measure, *numbers, statistic, other == "yes", bold == "yes")


@cache
def published() -> tuple[Published, ...]:
    """Every number of the paper."""
    _, *rows = csv.reader(files(__package__).joinpath("published.csv").read_text(encoding="utf-8").splitlines())
    return tuple(map(Published.of, rows))


def find(
    source: str, *, row: str, noise: str | None = None, data: str | None = None, measure: str = "test_accuracy"
) -> Published | None:
    """The one number that fits, where None fits any noise or data; None if the paper has no such number."""
    for name, word in (("source", source), ("measure", measure)):
        assert any(getattr(each, name) == word for each in published()), f"the paper has no {name} {word!r}"
    wanted = {"source": source, "row": row, "measure": measure, "noise": noise, "data": data}
    asked = {name: value for name, value in wanted.items() if value is not None}
    fitting = [each for each in published() if all(getattr(each, name) == value for name, value in asked.items())]
    if len(fitting) > 1:
        which = "; ".join(f"data={each.data!r}, noise={each.noise!r}" for each in fitting)
        raise InvalidValueError(f"expected one number of {source} for {row!r}, got {len(fitting)}: {which}")
    return fitting[0] if fitting else None
