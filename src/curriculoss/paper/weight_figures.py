"""The paper's figures of weight functions and of the margins that training starts from; they need no runs."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from curriculoss import figures
from curriculoss._text import percent
from curriculoss.figures import COLOURS, Array, WeightCurve, WeightPanel, draw_weights, mean_weights
from curriculoss.fixing import MILD, SEVERE, fix, underfitting
from curriculoss.initial import expected_initial_margin, simulate_initial_margins
from curriculoss.losses import registry
from curriculoss.paper import canvas
from curriculoss.paper.canvas import FigureInputs
from curriculoss.paper.experiments import FEW, MAE, MANY, PLACES, ROBUST, TUNED_FIXES, UNDERFIT, Row
from curriculoss.paper.inference import signed
from curriculoss.paper.published import find
from curriculoss.paper.starting_margins import AS_TRAINED, STARTS, Start

LEVELS = {
    "none": ("No underfitting", f"initial weight ≥ {percent(MILD)} of CE's"),
    "mild": ("Mild underfitting", f"{percent(SEVERE)} to {percent(MILD)} of CE's"),
    "severe": ("Severe underfitting", f"< {percent(SEVERE)} of CE's"),
}
# By panel: loss, fixed hyperparameters (the paper's), the one that varies, and its values (ours).
HYPERPARAMETERS: tuple[tuple[str, Mapping[str, float], str, Sequence[float]], ...] = (
    ("fl", {}, "q", (0.5, 1, 2, 5)),
    ("aul", {"a": 2.0}, "q", (0.1, 1, 2, 4)),
    ("aul", {"q": 0.1}, "a", (1.01, 1.1, 1.5, 3)),
    ("agce", {"a": 1.0}, "q", (0.1, 1, 2, 5)),
    ("agce", {"q": 0.5}, "a", (0.01, 0.1, 1, 5)),
    ("ael", {}, "q", (0.2, 0.5, 1, 5)),
    ("gce", {}, "q", (0.1, 0.4, 0.7, 1)),
    ("sce", {}, "q", (0.1, 0.5, 0.9, 0.99)),
    ("tce", {}, "q", (1, 2, 5, 20)),
)
START_COLOURS: Mapping[Start, str] = dict(zip(STARTS, ("#9AA3AD", COLOURS[2], COLOURS[3], COLOURS[4]), strict=True))
MARGIN_RANGE = -11.0, 3.0  # initial margins with two to a thousand classes
TALLEST = 1.05  # densities beyond are cut: without batch statistics, torch's initialisation gives nearly equal scores


def by_underfitting(inputs: FigureInputs) -> Figure:
    """Three panels by the degree of underfitting that `underfitting` expects with many classes."""
    starts, said = inputs.backdrop(FEW, MANY)
    curves, many = _curves(UNDERFIT, starts), starts[inputs.classes(MANY)]
    level = {curve.label: underfitting(curve.loss, initial_margins=many).level for curve in curves}
    shown = [
        WeightPanel(title, [curve for curve in curves if level[curve.label] == name], below)
        for name, (title, below) in LEVELS.items()
    ]
    what = "Weights by the degree of underfitting expected with many classes"
    return draw_weights(shown, starts, what, said, figures.meaning_of_points(starts), size=(3.1, 3.7), columns=3)


def of_robust_losses(inputs: FigureInputs) -> Figure:
    """Weights with the hyperparameters of the robustness table (the paper's caption points to another one)."""
    starts, said = inputs.backdrop(FEW)
    what = "Weights of the losses whose robustness is compared"
    return _one_panel(_curves(ROBUST, starts), starts, what, said)


def shifted_and_scaled(inputs: FigureInputs) -> Figure:
    """MAE's weights, fixed for many classes; points with few classes are MAE's alone."""
    starts, said = inputs.backdrop(FEW, MANY)
    few, many = inputs.classes(FEW), inputs.classes(MANY)
    tau, mae = -expected_initial_margin(few), registry.get("mae")
    shifted, scaled = (fix(mae, method, tau=tau, num_classes=many) for method in TUNED_FIXES)
    later = {many: starts[many]}
    curves = [
        WeightCurve(f"{name}  {mean_weights(loss, points)}", loss, points, {**canvas.look(MAE), "linestyle": dashes})
        for name, loss, points, dashes in (
            ("MAE", mae, starts, "-"), ("shifted", shifted, later, "--"), ("scaled", scaled, later, (0, (1.2, 1.4))),
        )
    ]  # fmt: skip
    what = f"Weights of MAE, shifted and scaled for {many} classes with τ = {tau:.2f}"
    return _one_panel(curves, starts, what, said)


def _one_panel(curves: Sequence[WeightCurve], starts: Mapping[int, Tensor], *heading: str) -> Figure:
    points = figures.meaning_of_points(starts)
    return draw_weights([WeightPanel("", curves)], starts, *heading, points, size=(6.0, 4.0), legend_columns=3)


def by_hyperparameter(inputs: FigureInputs) -> Figure:
    """One panel per hyperparameter of a loss."""
    starts, said = inputs.backdrop(MANY)
    shown = []
    for name, fixed, key, values in HYPERPARAMETERS:
        curves = [
            WeightCurve(f"{key} = {value:g}", registry.get(name, **fixed, **{key: value}), starts, {"color": colour})
            for value, colour in zip(values, canvas.ramp(len(values)), strict=True)
        ]
        shown.append(WeightPanel(", ".join([name.upper(), *(f"{k} = {v:g}" for k, v in fixed.items())]), curves))
    heading = "Weights by hyperparameter", said, "points: mean initial weight"
    return draw_weights(shown, starts, *heading, size=(3.1, 2.8), columns=3, legend_columns=2)


def simulated_and_real(inputs: FigureInputs) -> Figure:
    """Margins before training: simulated scores, and real networks in train and eval mode with two initialisations."""
    figure, grid = figures.panels(2, 3, (3.3, 2.9), sharey=True)
    for axes, role in zip(grid, PLACES, strict=True):
        classes, data = inputs.classes(role), inputs.scale.data(role)
        expected = expected_initial_margin(classes)
        printed = find("table:correct_param", row="", data=role, measure="expected_margin") if data == role else None
        said = "" if printed is None else f", in the paper {signed(-printed.mean, '.2f')}"
        name = PLACES[role] if data == role else f"{PLACES[role]}: {data}"
        figures.set_title(axes, name, f"K = {classes:,}, E[Δ] = {signed(expected, '.2f')}{said}")
        axes.plot(*_simulated_density(classes), color=COLOURS[0], linewidth=2)
        axes.axvline(expected, color=COLOURS[1], linewidth=1.2, linestyle="--")
        _draw_real(axes, inputs.starts(role), expected)
    key = [
        Line2D([], [], color=COLOURS[0], linewidth=2, label="simulated, scores N(0, 1)"),
        Line2D([], [], color=COLOURS[1], linewidth=1.2, linestyle="--", label="E[Δ], closed form"),
        *(Patch(color=START_COLOURS[start], label=f"{start}") for start in STARTS),
    ]
    said = f"Initial margins, simulated and real\nreal: {canvas.MEASURED}; numbers are mean margins\n"
    said += "train mode: statistics of the batch; eval mode: initial running statistics (mean 0, variance 1)"
    return figures.finish(figure, said, across="margin Δ", up="density", key=key)


def _draw_real(axes: Axes, starts: Mapping[Start, Tensor], expected: float) -> None:
    """Densities, and their means in the half of the axes that has fewer margins."""
    low, high = MARGIN_RANGE
    side, at = ("left", 0.02) if expected > (low + high) / 2 else ("right", 0.99)
    how: dict[str, Any] = {"horizontalalignment": side, "fontsize": 7.5}
    for place, (start, margins) in enumerate(starts.items()):
        counts, edges = np.histogram(margins.numpy(), np.arange(low, high + 0.25, 0.25))
        density = counts / (0.25 * len(margins))  # also of margins further out
        as_trained = start == AS_TRAINED
        colour = START_COLOURS[start]
        axes.stairs(density, edges, fill=as_trained, color=colour, alpha=0.6 if as_trained else 1, linewidth=1.2,
                    zorder=0 if as_trained else 1)  # fmt: skip
        said = f"{start.mode}, {start.initialisation}: {signed(float(margins.mean()), '.2f')}"
        figures.annotate(axes, said, (at, 1), (0, -9 - 10 * place), color=colour, weight="bold", **how)
    if not starts:
        figures.annotate(axes, "no such data here", (at, 1), (0, -9), **how)
    axes.set_xlim(low, high)
    axes.set_ylim(0, TALLEST)
    figures.strip(axes)


@cache
def _simulated_density(classes: int) -> tuple[Array, Array]:
    """Margins, and the density at each, smoothed by a normal density narrow enough to leave every feature."""
    margin = torch.linspace(*MARGIN_RANGE, 281, dtype=torch.float64)
    kernel = torch.distributions.Normal(0.0, 0.25)
    drawn = simulate_initial_margins(classes, 30_000).double()
    return margin.numpy(), torch.stack([kernel.log_prob(at - drawn).exp().mean() for at in margin]).numpy()


def _curves(rows: Sequence[Row], starts: Mapping[int, Tensor]) -> list[WeightCurve]:
    """The weight functions of some rows, as far as they have one."""
    found = [(row, loss) for row in rows if (loss := row.make_loss().curriculum) is not None]
    return [
        WeightCurve(f"{canvas.label(row)}  {mean_weights(loss, starts)}", loss, starts, canvas.look(row))
        for row, loss in found
    ]
