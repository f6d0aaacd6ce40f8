"""Numbers over the epochs as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from curriculoss.figures import COLOURS, EDGE, INK, Array, strip, write


def over_epochs(
    series: Sequence[Sequence[Sequence[float | None]]],
    *,
    colours: Sequence[str] = COLOURS,
    form: str = "{:.1f}",
    limits: tuple[float, float | None] | None = None,
    reference: tuple[float, str] | None = None,
    logarithmic: bool | None = None,
    title: str | None = None,
) -> Figure:
    """A line for each of the series, one value an epoch; where that has several runs, their mean, and their range.

    The last value stands at the end of its line. `limits` without an upper one leave room for the values, and for 10.
    The scale is `logarithmic` unless told if values differ twentyfold.
    """
    figure = Figure(figsize=(3.2, 2.3), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    tables = [_by_epoch(runs) for runs in series]
    known = np.concatenate([table[np.isfinite(table)] for table in tables] or [np.empty(0)])
    positive = known[known > 0]
    if logarithmic is None:
        logarithmic = bool(positive.size and positive.max() > 20 * positive.min())
    if logarithmic and positive.size:
        axes.set_yscale("log")
        tables = [np.where(table > 0, table, np.nan) for table in tables]
        few = positive.max() < 100 * positive.min()
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few else (1,), numticks=12))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    ends: list[tuple[float, float, str]] = []
    for table, colour in zip(tables, cycle(colours), strict=False):
        epochs = np.arange(1, table.shape[1] + 1)
        there = np.isfinite(table).any(0)
        if not there.any():
            continue
        x, some = epochs[there], table[:, there]
        mean = np.nanmean(some, 0)
        if len(table) > 1:
            axes.fill_between(x, np.nanmin(some, 0), np.nanmax(some, 0), color=colour, alpha=0.18, linewidth=0)
        axes.plot(x, mean, color=colour, linewidth=1.8, marker="o" if len(x) == 1 else "", solid_capstyle="round")
        ends.append((float(x[-1]), float(mean[-1]), colour))
    if reference is not None:
        axes.axhline(reference[0], color="#999999", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        write(axes, reference[1], (0, reference[0]), (3, 2), xycoords=EDGE, fontsize=7.5, va="bottom")
    if limits is not None:
        axes.set_ylim(limits[0], limits[1] if limits[1] is not None else max(10.0, 1.1 * known.max(initial=0.0)))
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch", fontsize=8.5)
    axes.set_title(title or "", loc="left", color=INK, fontsize=10, parse_math=False)
    strip(axes)
    _write_ends(axes, ends, form)
    return figure


def _by_epoch(runs: Sequence[Sequence[float | None]]) -> Array:
    """One row a run, NaN where it has no value."""
    table = np.full((len(runs), max(map(len, runs), default=0)), math.nan)
    for row, values in zip(table, runs, strict=True):
        row[: len(values)] = [math.nan if x is None else x for x in values]
    return table


def _write_ends(axes: Axes, ends: Sequence[tuple[float, float, str]], form: str) -> None:
    """The last values at the right, in order and moved apart, upwards and, where that leaves the axes, down again."""
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
        write(axes, form.format(y), (1, height), (4, 0), color=colour, fontsize=8, va="center", weight="bold")
