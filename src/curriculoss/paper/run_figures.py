"""The paper's figures that show runs, from epochs.csv and histograms of margins, and the list of all figures."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from curriculoss import _files
from curriculoss.figures import finish, panels, set_title
from curriculoss.paper import canvas, summary_figures, weight_figures
from curriculoss.paper.canvas import FigureInputs
from curriculoss.paper.epochs import EPOCHS_FILE
from curriculoss.paper.experiments import BAD_AUL, CE, GOOD_AUL, MAE, NCE, Cell, Row
from curriculoss.paper.histories import HISTORIES_FILE, KINDS, Histories
from curriculoss.paper.published import find
from curriculoss.report.ridges import MarginHistory, draw_ridges, ridge_key

NOT_KEPT = "run, but its margins\nwere not kept"
MOST_RIDGES = 8  # per panel
FIGURE_FORMATS: Mapping[str, Mapping[str, Any]] = {  # without dates, so that the same figure has the same bytes
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 150},
}
STYLE: dict[Any, Any] = {"svg.hashsalt": "curriculoss", "pdf.fonttype": 42}


def save(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write .pdf, .svg and .png with deterministic bytes, and return their paths."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # each format would lay it out a little differently
    folder.mkdir(parents=True, exist_ok=True)
    paths = {kind: folder / f"{stem}.{kind}" for kind in FIGURE_FORMATS}
    with matplotlib.rc_context(STYLE):
        for kind, path in paths.items():
            _files.write(path, partial(figure.savefig, format=kind, **FIGURE_FORMATS[kind]))
    return list(paths.values())


def effective_learning_rates(inputs: FigureInputs) -> Figure:
    """In (a) each curve is divided by its maximum. NCE's is an upper bound."""
    cells = {cell.row: cell for cell in inputs.cells}

    def curve(row: Row, *, relative: bool = False) -> canvas.EpochCurve:
        values = inputs.curves(cells[row], "effective_learning_rate")
        unit = np.nanmax(values.mean(0)) if relative and values.size else 1e-4
        name = "NCE, upper bound" if row == NCE else canvas.label(row)
        return canvas.EpochCurve(name, values / unit, inputs.lack(cells[row]), canvas.look(row))

    figure, grid = panels(1, 2, (4.1, 3.3))
    set_title(grid[0], "(a) CE and NCE")
    set_title(grid[1], "(b) AUL, tuned and inferior (†)")
    canvas.draw_epochs(grid[0], [curve(row, relative=True) for row in (CE, NCE)], columns=2)
    canvas.draw_epochs(grid[1], [curve(row) for row in (GOOD_AUL, BAD_AUL)], columns=2)
    for axes in grid:
        axes.set_ylim(bottom=0)
    meaning = r"$\alpha_t$: mean of learning rate × weight over all samples so far"
    said = f"Effective learning rate during training\n{inputs.setting()}, {inputs.seeds()}\n{meaning}"
    finish(figure, said, across="epoch", up=r"$\alpha_t$ / its maximum")
    grid[1].set_ylabel(r"$\alpha_t \cdot 10^4$")
    return figure


def schedules(inputs: FigureInputs) -> Figure:
    """CE and MAE at one learning rate, dashed at the higher noise rate; then CE at every rate, one panel per noise."""
    cells = inputs.cells
    rates = sorted({cell.learning_rate or 0.0 for cell in cells if cell.row == CE})
    shades = dict(zip(rates, canvas.ramp(len(rates)), strict=True))
    noises = sorted({cell.noise for cell in cells})
    (middle,) = {cell.learning_rate for cell in cells if cell.row == MAE}

    def curve(cell: Cell, name: str, how: Mapping[str, Any]) -> canvas.EpochCurve:
        return canvas.EpochCurve(name, inputs.curves(cell, "test_accuracy"), inputs.lack(cell), how)

    figure, grid = panels(1, 3, (3.6, 3.4), sharey=True)
    both = [
        curve(cell, f"{cell.row.name}, noise {_rate(cell.noise)}",
              {"color": canvas.LOSS_COLOURS[cell.row.loss], "linestyle": ("solid", "dashed")[noises.index(cell.noise)]})
        for cell in sorted(cells, key=lambda cell: (cell.row.name, cell.noise)) if cell.learning_rate == middle
    ]  # fmt: skip
    set_title(grid[0], f"(a) CE and MAE, learning rate {middle:g}")
    canvas.draw_epochs(grid[0], both, columns=2)
    for axes, letter, noise in zip(grid[1:], "bc", noises, strict=True):
        set_title(axes, f"({letter}) CE by learning rate, noise {_rate(noise)}")
        some = {cell.learning_rate: cell for cell in cells if (cell.row, cell.noise) == (CE, noise)}
        canvas.draw_epochs(axes, [curve(some[x], f"{x:g}", {"color": shades[x]}) for x in rates], columns=3)
    told = f"Test accuracy with constant learning rates\n{inputs.setting()}, symmetric noise, {inputs.seeds()}"
    return finish(figure, told, across="epoch", up="test accuracy, %")


def _rate(noise: str) -> str:
    """`0.2` of `symmetric:0.2`."""
    return noise.partition(":")[2]


def dynamics(inputs: FigureInputs) -> Figure:
    """The first seed of each cell, three per row, each on its own scale: MAE's margins are many times CE's."""
    cells, columns = inputs.cells, 3
    figure, grid = panels(-(-len(cells) // columns), columns, (3.1, 3.4))
    histories = _histories(inputs)
    if gone := sum(history is None and inputs.records.of(cell) is not None for cell, history in histories.items()):
        warnings.warn(
            f"of {gone} runs of {inputs.plan.artefact.name} that are done, margins were not kept: restore "
            f"{HISTORIES_FILE}, or delete their rows in {EPOCHS_FILE} to have them run again",
            stacklevel=2,
        )
    for axes, (cell, history) in zip(grid, histories.items(), strict=True):
        noise = inputs.scale.spec(cell).noise.replace(":", " ")
        set_title(axes, f"{canvas.label(cell.row)}, {noise}", _accuracies(inputs, cell))
        if history is None:
            canvas.say(axes, inputs.lack(cell) if inputs.records.of(cell) is None else NOT_KEPT)
        else:
            draw_ridges(axes, history, None, MOST_RIDGES)
    replaced = {cell.noise: inputs.scale.noise[cell.noise] for cell in cells if cell.noise in inputs.scale.noise}
    said = f"Margins during training\n{inputs.setting()}, n = 1 (seed 0)\n"
    said += "each distribution, and the weight, scaled to its peak; each panel has its own scale of margins"
    said += "".join(f"; {ours.replace(':', ' ')} stands for {noise} noise" for noise, ours in replaced.items())
    return finish(figure, said, across="margin Δ", key=ridge_key(KINDS))


def _histories(inputs: FigureInputs) -> dict[Cell, MarginHistory | None]:
    """The history of each cell's first seed, None if it was not kept."""
    known = Histories(inputs.plan.folder)
    known.take_up(inputs.run(cell) for cell in inputs.cells)
    found = {cell: known.of(inputs.scale.spec(cell).hash) for cell in inputs.cells}
    return {
        cell: None if counts is None else MarginHistory(known.edges, counts, cell.row.make_loss().curriculum)
        for cell, counts in found.items()
    }


def _accuracies(inputs: FigureInputs, cell: Cell) -> str:
    record = inputs.records.of(cell)
    paper = find(inputs.plan.artefact.source, row=cell.row.name, noise=cell.noise)
    told = [] if record is None else [f"test accuracy {record.test_accuracy:.2f} %"]
    return ", ".join(told + ([] if paper is None else [f"paper {paper.mean:.2f} %"]))


FIGURES: Mapping[str, Callable[[FigureInputs], Figure]] = {
    "figure:weights": weight_figures.by_underfitting,
    "figure:elr": effective_learning_rates,
    "figure:dynamics": dynamics,
    "figure:dynamics-noise": dynamics,
    "figure:dynamics-losses": dynamics,
    "figure:schedules": schedules,
    "figure:hyperparameters": weight_figures.by_hyperparameter,
    "figure:simulated-margins": weight_figures.simulated_and_real,
    "figure:shift-scale": weight_figures.shifted_and_scaled,
    "figure:snr-weights": weight_figures.of_robust_losses,
    "figure:summary-underfitting": summary_figures.underfitting,
    "figure:summary-memorising": summary_figures.memorising,
    "figure:summary-fix": summary_figures.fix,
}
