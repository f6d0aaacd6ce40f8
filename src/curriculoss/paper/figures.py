"""The paper's figures: those of runs, from records and histograms, and the table of all. What is missing says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from curriculoss.figures import INK, MARGIN_COLOURS, Array, MarginHistory, draw_ridges, strip
from curriculoss.paper import settings, weights
from curriculoss.paper.artefacts import Artefact
from curriculoss.paper.canvas import (
    LOSS_COLOURS,
    Source,
    axis_labels,
    curriculum_of,
    heading,
    label,
    legend,
    look,
    panels,
    ramp,
    say,
    title,
)
from curriculoss.paper.histories import FILE, KINDS, Histories
from curriculoss.paper.published import find
from curriculoss.paper.records import Records
from curriculoss.paper.reproduce import Plan
from curriculoss.paper.settings import Cell, Row
from curriculoss.training import store

NOT_HERE = "run, but its margins\nwere not kept"
RIDGES = 8  # of a panel, at most
FILES: Mapping[str, Mapping[str, Any]] = {  # without what changes from day to day
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 150},
}
STYLE: dict[Any, Any] = {"svg.hashsalt": "curriculoss", "pdf.fonttype": 42}


def draw(artefact: Artefact, plan: Plan, records: Records, *, data_dir: Path | str | None = None) -> Figure:
    """The figure of an artefact, from what there is."""
    return FIGURES[artefact.name](Source(artefact, plan, records, data_dir))


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """As .pdf, .svg and .png, with the same bytes every time."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # each format would lay it out a little differently
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{stem}.{kind}" for kind in FILES}
    with matplotlib.rc_context(STYLE):
        for kind, path in paths.items():
            store.write(path, partial(figure.savefig, format=kind, **FILES[kind]))
    return list(paths.values())


@dataclass(frozen=True, eq=False)
class Curve:
    """A measure over the epochs, one row a seed; `lack` says why, if there is none."""

    label: str
    values: Array
    lack: str
    look: Mapping[str, Any]


def effective_learning_rates(source: Source) -> Figure:
    """NCE's is a bound, as monitors record it. In (a) each is divided by its maximum."""
    cells = {cell.row: cell for cell in source.artefact.cells}

    def curve(row: Row, *, relative: bool = False) -> Curve:
        values = source.curves(cells[row], "effective_learning_rate")
        unit = np.nanmax(values.mean(0)) if relative and values.size else 1e-4
        name = "NCE, upper bound" if row == settings.NCE else label(row)
        return Curve(name, values / unit, source.lack(cells[row]), look(row))

    figure, grid = panels(1, 2, (4.1, 3.3))
    title(grid[0], "(a) CE and NCE")
    title(grid[1], "(b) AUL, tuned and inferior (†)")
    _draw_epochs(grid[0], [curve(row, relative=True) for row in (settings.CE, settings.NCE)], columns=2)
    _draw_epochs(grid[1], [curve(row) for row in (settings.GOOD_AUL, settings.BAD_AUL)], columns=2)
    for axes in grid:
        axes.set_ylim(bottom=0)
    axis_labels(grid, 1, "epoch", r"$\alpha_t \cdot 10^4$")
    grid[0].set_ylabel(r"$\alpha_t$ / its maximum")
    meaning = r"$\alpha_t$: mean over all samples so far of learning rate × weight"
    heading(figure, "Effective learning rate over training", f"{source.setting()}, {source.seeds()}", meaning)
    return figure


def schedules(source: Source) -> Figure:
    """Dashes tell the noise rate, colours the loss in (a) and the learning rate in (b)."""
    cells = sorted(source.artefact.cells, key=lambda cell: (cell.row.name, cell.learning_rate or 0.0, cell.noise))
    rates = list(dict.fromkeys(cell.learning_rate for cell in cells if cell.row == settings.CE))
    middle = rates[len(rates) // 2]
    shades = dict(zip(rates, ramp(len(rates)), strict=True)) | {middle: LOSS_COLOURS["ce"]}  # the same lines as in (a)
    dashes = dict(zip(sorted({cell.noise for cell in cells}), ("solid", "dashed"), strict=True))

    def curve(cell: Cell, name: str, colour: Any) -> Curve:
        called = f"{name}, noise {cell.noise.partition(':')[2]}"
        values = source.curves(cell, "test_accuracy")
        return Curve(called, values, source.lack(cell), {"color": colour, "linestyle": dashes[cell.noise]})

    figure, grid = panels(1, 2, (4.4, 3.6), sharey=True)
    title(grid[0], f"(a) Learning rate {middle:g}")
    title(grid[1], "(b) CE by learning rate")
    same = [curve(cell, cell.row.name, LOSS_COLOURS[cell.row.loss]) for cell in cells if cell.learning_rate == middle]
    of_ce = [cell for cell in cells if cell.row == settings.CE]
    other = [curve(cell, f"{cell.learning_rate:g}", shades[cell.learning_rate]) for cell in of_ce]
    _draw_epochs(grid[0], same, columns=2)
    _draw_epochs(grid[1], other, columns=len(rates))
    axis_labels(grid, 2, "epoch", "test accuracy, %")
    told = f"{source.setting()}, symmetric noise, {source.seeds()}"
    heading(figure, "Test accuracy with constant learning rates", told)
    return figure


def dynamics(source: Source) -> Figure:
    """The first seed of each cell, three in a row, each on its own scale: MAE's margins are many times CE's."""
    cells, columns = source.artefact.cells, 3
    figure, grid = panels(-(-len(cells) // columns), columns, (3.1, 3.4))
    histories = _histories(source)
    if gone := sum(history is None and source.records.of(cell) is not None for cell, history in histories.items()):
        warnings.warn(
            f"of {gone} runs of {source.artefact.name} that are done, margins were not kept: restore {FILE}, or delete "
            "their rows in epochs.csv to have them run again",
            stacklevel=2,
        )
    for axes, (cell, history) in zip(grid, histories.items(), strict=True):
        noise = source.scale.spec(cell).noise.replace(":", " ")
        title(axes, f"{label(cell.row)}, {noise}", _accuracies(source, cell))
        if history is None:
            say(axes, source.lack(cell) if source.records.of(cell) is None else NOT_HERE)
        else:
            draw_ridges(axes, history, None, RIDGES)
    axis_labels(grid, columns, "margin Δ", "")
    key: list[Any] = [Patch(color=MARGIN_COLOURS[kind], label=f"{kind} samples") for kind in KINDS]
    key.append(Line2D([], [], color=INK, linewidth=1.5, label="weight w(Δ)"))
    figure.legend(handles=key, loc="outside lower left", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    replaced = {cell.noise: source.scale.noise[cell.noise] for cell in cells if cell.noise in source.scale.noise}
    said = "each distribution, and the weight, scaled to its peak; margins on a scale of their own"
    said += "".join(f"; {ours.replace(':', ' ')} stands for {noise} noise" for noise, ours in replaced.items())
    heading(figure, "Margins over the epochs", f"{source.setting()}, n = 1 (seed 0)", said)
    return figure


FIGURES: Mapping[str, Callable[[Source], Figure]] = {
    "figure:weights": weights.by_underfitting,
    "figure:elr": effective_learning_rates,
    "figure:dynamics": dynamics,
    "figure:dynamics-noise": dynamics,
    "figure:dynamics-losses": dynamics,
    "figure:schedules": schedules,
    "figure:hyperparameters": weights.by_hyperparameter,
    "figure:simulated-margins": weights.simulated_and_real,
    "figure:shift-scale": weights.shifted_and_scaled,
    "figure:snr-weights": weights.of_robust_losses,
}


def _histories(source: Source) -> dict[Cell, MarginHistory | None]:
    """Of each cell's first seed, None if nothing is known of it."""
    known = Histories(source.plan.folder)
    known.take_up(source.run(cell) for cell in source.artefact.cells)
    found = {cell: known.of(source.scale.spec(cell).hash) for cell in source.artefact.cells}
    return {
        cell: None if counts is None else MarginHistory(known.edges, counts, curriculum_of(cell.row))
        for cell, counts in found.items()
    }


def _accuracies(source: Source, cell: Cell) -> str:
    record, paper = source.records.of(cell), find(source.artefact.source, row=cell.row.name, noise=cell.noise)
    ours = None if record is None else record.last("test_accuracy")
    told = [] if ours is None else [f"test accuracy {ours:.2f} %"]
    return ", ".join(told + ([] if paper is None else [f"paper {paper.mean:.2f} %"]))


def _draw_epochs(axes: Axes, curves: Sequence[Curve], columns: int) -> None:
    """The mean over seeds, and their range. Those that there are not say so in the legend, or in the empty panel."""
    there = [curve for curve in curves if curve.values.size]
    if not there:
        say(axes, ", ".join(sorted({curve.lack for curve in curves})))
        return
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    strip(axes)
    for curve in curves:
        if curve in there:
            epochs, values = np.arange(1, curve.values.shape[1] + 1), curve.values
            axes.plot(epochs, values.mean(0), label=curve.label, linewidth=1.8, **curve.look)
            if len(values) > 1:
                how: dict[str, Any] = {"color": curve.look["color"], "alpha": 0.18, "linewidth": 0}
                axes.fill_between(epochs, values.min(0), values.max(0), **how)
        else:
            axes.plot([], [], label=f"{curve.label}: {curve.lack}", **curve.look)
    legend(axes, columns if len(there) == len(curves) else 1)
