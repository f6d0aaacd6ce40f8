"""Charts of groups of runs: lines over the epochs, distributions of margins."""

from collections.abc import Iterable, Sequence
from itertools import cycle, zip_longest

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from curriculoss.figures import COLOURS, Array, annotate, draw_mean, strip
from curriculoss.report.groups import Group, groups, rows
from curriculoss.report.ridges import AXES_AND_DATA, MarginHistory, draw_dynamics, shown_counts
from curriculoss.runs.folder import Run

CURVE_COLOURS = tuple(COLOURS[i] for i in (0, 1, 2, 3, 6, 5, 4))  # the last two are those of margins


def colour_by_loss(some: Iterable[Group]) -> dict[str, str]:
    """A colour for each loss by name, the same throughout the page."""
    names = dict.fromkeys(group.name for group in some)
    return dict(zip(names, cycle(CURVE_COLOURS), strict=False))


def margin_histories(some: Iterable[Group]) -> dict[Group, MarginHistory]:
    """The margins of the first seed that got furthest, for each group that has finished an epoch."""
    found = {}
    for group in some:
        if known := [run for run in group.counted if (run.path / "histograms.npz").exists()]:
            arrays = max(known, key=lambda run: len(rows(run))).arrays("histograms")
            counts, accuracy = shown_counts(arrays), group.mean("test_accuracy")
            found[group] = MarginHistory(arrays["edges"], counts, group.curriculum, accuracy)
    return found


def dynamics(runs: Iterable[Run]) -> Figure:
    """Distributions of margins by epoch, one panel per loss, with test accuracies in the titles."""
    return draw_dynamics({group.name: history for group, history in margin_histories(groups(runs)).items()})


def over_epochs(
    series: Sequence[Sequence[Sequence[float | None]]], *, colours: Sequence[str] = COLOURS, factor: float = 1.0,
    form: str = "{:.1f}", limits: tuple[float, float | None] | None = None, reference: tuple[float, str] | None = None,
    logarithmic: bool | None = None,
) -> Figure | None:  # fmt: skip
    """One line per series, with one value per epoch; for several runs their mean, and their range as a band.

    Args:
        series: For each line, the values of each of its runs; None where a run has none.
        colours: One per line.
        factor: By which all values are multiplied.
        form: How to write the last value, which stands at the end of its line.
        limits: Ends of the y axis; without an upper one it fits the values, and 10.
        reference: Height and caption of a dashed line.
        logarithmic: Whether the y axis is; by default if values differ twentyfold.

    Returns:
        The figure; None if there are no values.
    """
    tables = [factor * _by_epoch(runs) for runs in series]
    known = np.concatenate([table[np.isfinite(table)] for table in tables])
    if not known.size:
        return None
    figure = Figure(figsize=(3.2, 2.3), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    positive = known[known > 0]
    if logarithmic is None:
        logarithmic = bool(positive.size and positive.max() > 20 * positive.min())
    if logarithmic and positive.size:
        _make_logarithmic(axes, few=bool(positive.max() < 100 * positive.min()))
        tables = [np.where(table > 0, table, np.nan) for table in tables]
    ends: list[tuple[float, float, str]] = []
    for table, colour in zip(tables, cycle(colours), strict=False):
        there = np.flatnonzero(np.isfinite(table).any(0))
        if there.size:
            draw_mean(axes, table, color=colour, marker="o" if there.size == 1 else "", solid_capstyle="round")
            ends.append((float(there[-1] + 1), float(np.nanmean(table[:, there[-1]])), colour))
    if reference is not None:
        axes.axhline(reference[0], color="#999999", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        annotate(axes, reference[1], (0, reference[0]), (3, 2), xycoords=AXES_AND_DATA, fontsize=7.5, va="bottom")
    if limits is not None:
        axes.set_ylim(limits[0], limits[1] if limits[1] is not None else max(10.0, 1.1 * known.max()))
    axes.margins(x=0.02)
    axes.set_xlabel("epoch", fontsize=8.5)
    strip(axes)
    _write_ends(axes, ends, form)
    return figure


def _make_logarithmic(axes: Axes, few: bool) -> None:
    """`few` powers of ten need ticks between them."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few else (1,), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _by_epoch(runs: Sequence[Sequence[float | None]]) -> Array:
    """One row per run, NaN where it has no value."""
    by_epoch = np.array([*zip_longest(*runs)], dtype=float)  # None becomes NaN
    return by_epoch.reshape(max(map(len, runs), default=0), len(runs)).T


def _write_ends(axes: Axes, ends: Sequence[tuple[float, float, str]], form: str) -> None:
    """Write the last values at the right, in order and apart: moved up and, where that leaves the axes, down again."""
    axes.get_ylim()  # settles the limits, and with them the transformation
    to_axes, apart = axes.transData + axes.transAxes.inverted(), 0.09
    ordered = sorted(ends, key=lambda end: end[1])
    heights = [float(to_axes.transform((x, y))[1]) for x, y, _ in ordered]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + apart)
    ceiling = 1.0
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - apart
    for (_, y, colour), height in zip(ordered, heights, strict=True):
        annotate(axes, form.format(y), (1, height), (4, 0), color=colour, fontsize=8, va="center", weight="bold")
