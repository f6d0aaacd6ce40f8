"""Figures of runs, from epochs.csv and histograms of margins: the paper's, and small ones of what matters most."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from curriculoss import _files
from curriculoss.errors import DamagedError
from curriculoss.figures import COLOURS, INK, Array, finish, panels, set_title, strip
from curriculoss.noise import parse
from curriculoss.paper import canvas, weight_figures
from curriculoss.paper.canvas import FigureInputs
from curriculoss.paper.epochs import EPOCHS_FILE, damaged
from curriculoss.paper.experiments import BAD_AUL, CE, FEW, GOOD_AUL, MAE, MAE_SCALE, MAE_SHIFT, MANY, NCE, Cell, Row
from curriculoss.paper.published import find
from curriculoss.report.ridges import MarginHistory, draw_ridges, ridge_key
from curriculoss.runs.folder import Run

NOT_KEPT = "run, but its margins\nwere not kept"
MOST_RIDGES = 8  # per panel
FIGURE_FORMATS: Mapping[str, Mapping[str, Any]] = {  # without dates, so that the same figure has the same bytes
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
    "png": {"dpi": 150},
}
HISTORIES_FILE = "margin-histograms.npz"
KINDS = ("clean", "noisy")
SUMMARY_SIZE = (4.6, 3.6)  # inches
FEW_MANY_COLOURS = {FEW: COLOURS[2], MANY: COLOURS[1]}
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
    canvas.draw_epochs(grid[0], "(a) CE and NCE", [curve(row, relative=True) for row in (CE, NCE)], columns=2)
    both = [curve(row) for row in (GOOD_AUL, BAD_AUL)]
    canvas.draw_epochs(grid[1], "(b) AUL, tuned and inferior (†)", both, columns=2)
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
        curve(cell, f"{cell.row.name}, noise {parse(cell.noise).rate:g}",
              {"color": canvas.LOSS_COLOURS[cell.row.loss], "linestyle": ("solid", "dashed")[noises.index(cell.noise)]})
        for cell in sorted(cells, key=lambda cell: (cell.row.name, cell.noise)) if cell.learning_rate == middle
    ]  # fmt: skip
    canvas.draw_epochs(grid[0], f"(a) CE and MAE, learning rate {middle:g}", both, columns=2)
    for axes, letter, noise in zip(grid[1:], "bc", noises, strict=True):
        some = {cell.learning_rate: cell for cell in cells if (cell.row, cell.noise) == (CE, noise)}
        by_rate = [curve(some[x], f"{x:g}", {"color": shades[x]}) for x in rates]
        canvas.draw_epochs(axes, f"({letter}) CE by learning rate, noise {parse(noise).rate:g}", by_rate, columns=3)
    told = f"Test accuracy with constant learning rates\n{inputs.setting()}, symmetric noise, {inputs.seeds()}"
    return finish(figure, told, across="epoch", up="test accuracy, %")


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
    kept = take_up_histories(inputs.plan.folder, map(inputs.run, inputs.cells))
    found: dict[Cell, MarginHistory | None] = {}
    for cell in inputs.cells:
        spec_hash = inputs.scale.spec(cell).hash
        counts = {kind: kept[f"{spec_hash}-{kind}"] for kind in KINDS if f"{spec_hash}-{kind}" in kept}
        found[cell] = MarginHistory(kept["edges"], counts, cell.row.make_loss().curriculum) if counts else None
    return found


def take_up_histories(folder: Path, runs: Iterable[Run]) -> dict[str, Array]:
    """Histograms of margins by epoch as `HASH-clean` and `HASH-noisy`, and their `edges`.

    They are copied from finished runs into one small file, because run folders are not kept.
    """
    file, kept = folder / HISTORIES_FILE, dict[str, Array]()
    if file.exists():
        try:
            with file.open("rb") as raw, np.load(raw, allow_pickle=False) as found:
                kept = {name: found[name] for name in found.files}
        except Exception:  # numpy and zipfile raise whatever they stumble on
            raise damaged(file, "it is not a complete .npz file") from None
    before = len(kept)
    for run in runs:
        with suppress(DamagedError):
            if run.finished and f"{run.spec.hash}-{KINDS[0]}" not in kept:
                histograms = run.arrays("histograms")
                kept |= {f"{run.spec.hash}-{kind}": histograms[kind].astype(np.int32) for kind in KINDS}
                kept["edges"] = histograms["edges"]
    if len(kept) > before:
        _files.write_arrays(file, dict(sorted(kept.items())))
    return kept


def _accuracies(inputs: FigureInputs, cell: Cell) -> str:
    record = inputs.records.of(cell)
    paper = find(inputs.plan.artefact.source, row=cell.row.name, noise=cell.noise)
    told = [] if record is None else [f"test accuracy {record.test_accuracy:.2f} %"]
    return ", ".join(told + ([] if paper is None else [f"paper {paper.mean:.2f} %"]))


def underfitting(inputs: FigureInputs) -> Figure:
    """Training accuracy of each loss with few and with many classes, and the paper's."""
    figure, (axes,) = panels(1, 1, SUMMARY_SIZE)
    names = list(dict.fromkeys(cell.row.name for cell in inputs.cells))[::-1]
    for cell in inputs.cells:
        at, colour = names.index(cell.row.name), FEW_MANY_COLOURS[cell.data]
        _draw_range(axes, at, inputs.curves(cell, "train_accuracy"), colour)
        printed = find("table:ulearn", row=cell.row.name, data=cell.data, measure="train_accuracy")
        if printed is not None:
            axes.plot(printed.mean, at, "o", markersize=8, markerfacecolor="none", markeredgecolor=colour, zorder=2)
    _finish_ranges(axes, inputs, names)
    axes.set_xlim(-3, 103)
    key = _dots({f"{inputs.classes(data)} classes": colour for data, colour in FEW_MANY_COLOURS.items()})
    key.append(Line2D([], [], color=INK, marker="o", markerfacecolor="none", linestyle="", label="the paper"))
    heading = f"Clean labels fitted, {inputs.seeds()}"
    return finish(figure, heading, across="training labels fitted, %", key=key)


def memorising(inputs: FigureInputs) -> Figure:
    """Wrong labels fitted and test accuracy over the epochs."""
    figure, grid = panels(1, 2, (SUMMARY_SIZE[0] / 2, SUMMARY_SIZE[1] - 0.3))
    for axes, measure, unit, name in (
        (grid[0], "accuracy_noisy", 100, "Wrong labels fitted, %"),
        (grid[1], "test_accuracy", 1, "Test accuracy, %"),
    ):
        curves = [
            canvas.EpochCurve(x.row.name, unit * inputs.curves(x, measure), inputs.lack(x), canvas.look(x.row))
            for x in inputs.cells
        ]
        canvas.draw_epochs(axes, name, curves, columns=3)
        axes.set_ylim(bottom=0)
    heading = f"{inputs.classes(FEW)} classes, symmetric noise 0.4, {inputs.seeds()}"
    return finish(figure, heading, across="epoch")


def fix(inputs: FigureInputs) -> Figure:
    """Test accuracy of CE and of MAE, plain and fixed, by noise."""
    figure, (axes,) = panels(1, 1, SUMMARY_SIZE)
    noises = list(dict.fromkeys(cell.noise for cell in inputs.cells))[::-1]
    colours = dict(zip((CE, MAE, MAE_SHIFT, MAE_SCALE), (COLOURS[6], COLOURS[5], COLOURS[4], COLOURS[0]), strict=True))
    for cell in inputs.cells:
        at = noises.index(cell.noise) + 0.24 - 0.16 * list(colours).index(cell.row)
        _draw_range(axes, at, inputs.curves(cell, "test_accuracy"), colours[cell.row])
    _finish_ranges(axes, inputs, [noise.replace(":", " ") for noise in noises])
    axes.set_xlim(left=0)
    key = _dots({row.name: colour for row, colour in colours.items()})
    heading = f"{inputs.classes(MANY)} classes, {inputs.seeds()}"
    return finish(figure, heading, across="test accuracy, %", key=key)


def _draw_range(axes: Axes, at: float, curves: Array, colour: str) -> None:
    """The mean of the last epoch over seeds as a dot, and their range as a line."""
    if curves.size:
        last = curves[:, -1]
        axes.plot([last.min(), last.max()], [at, at], color=colour, linewidth=3, alpha=0.5, solid_capstyle="round")
        axes.plot(last.mean(), at, "o", color=colour, markersize=6, zorder=3)


def _finish_ranges(axes: Axes, inputs: FigureInputs, names: list[str]) -> None:
    if not any(map(inputs.records.of, inputs.cells)):
        canvas.say(axes, inputs.lack(inputs.cells[0]))
        return
    strip(axes)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="x", color="#E3E6EA", linewidth=0.8)
    axes.tick_params(labelsize=9.5)


def _dots(colours: Mapping[str, str]) -> list[Line2D]:
    return [Line2D([], [], color=colour, marker="o", linestyle="", label=name) for name, colour in colours.items()]


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
    "figure:summary-underfitting": underfitting,
    "figure:summary-memorising": memorising,
    "figure:summary-fix": fix,
}
