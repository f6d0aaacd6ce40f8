"""The paper's figures of weight functions and of the margins that training starts from: no runs are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from curriculoss.curricula import Curriculum, registry
from curriculoss.figures import COLOURS, INK, Array, draw_curve, draw_starts, margin_range, strip, unit_height
from curriculoss.initial import (
    MILD,
    SEVERE,
    expected_initial_margin,
    fix,
    mean_initial_weight,
    percent,
    simulate_initial_margins,
    underfitting,
)
from curriculoss.paper import settings
from curriculoss.paper.canvas import (
    AT_FIRST,
    LOSS_COLOURS,
    NAMES,
    Source,
    axis_labels,
    curriculum_of,
    heading,
    label,
    legend,
    look,
    panels,
    ramp,
    title,
)
from curriculoss.paper.initial import initial_spec
from curriculoss.paper.settings import Row

FEW, MANY = "cifar10", "cifar100"
WEIGHT = "weight w(Δ), peak = 1"
LEVELS = {
    "none": ("No underfitting", f"initial weight ≥ {percent(MILD)} of CE's"),
    "mild": ("Mild underfitting", f"{percent(SEVERE)} to {percent(MILD)} of CE's"),
    "severe": ("Severe underfitting", f"< {percent(SEVERE)} of CE's"),
}
# By panel: what is fixed, what varies, and its values. The paper tells what is fixed; the values are ours.
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
REAL = "#BFC5CD"
SHOWN = -11.0, 3.0  # initial margins with two to a thousand classes


def by_underfitting(source: Source) -> Figure:
    """Three panels, by what `underfitting` says of margins with many classes."""
    starts, said = source.starts(FEW, MANY)
    curricula = _curricula(settings.UNDERFIT)
    many = starts[source.classes(MANY)]
    level = {row: underfitting(loss, initial_margins=many).level for row, loss in curricula.items()}
    figure, grid = panels(1, 3, (3.1, 3.7), sharey=True)
    margin = _range(curricula.values(), starts)
    for axes, (name, (text, below)) in zip(grid, LEVELS.items(), strict=True):
        title(axes, text, below)
        _draw(axes, {row: loss for row, loss in curricula.items() if level[row] == name}, starts, margin, columns=1)
    axis_labels(grid, 3, "margin Δ", WEIGHT)
    heading(figure, "Weights by the degree of underfitting to be expected with many classes", said, _points(starts))
    return figure


def of_robust_losses(source: Source) -> Figure:
    """With the hyperparameters of the robustness table, to which the paper's caption does not point."""
    starts, said = source.starts(FEW)
    curricula = _curricula(settings.ROBUST)
    figure, grid = panels(1, 1, (6.0, 4.0))
    _draw(grid[0], curricula, starts, _range(curricula.values(), starts), columns=3)
    axis_labels(grid, 1, "margin Δ", WEIGHT)
    heading(figure, "Weights of the losses whose robustness is compared", said, _points(starts))
    return figure


def shifted_and_scaled(source: Source) -> Figure:
    """Of MAE with many classes. Fixed ones are made for these, so with few they have no point."""
    starts, said = source.starts(FEW, MANY)
    few, many = source.classes(FEW), source.classes(MANY)
    tau, mae = -expected_initial_margin(few), registry.get("mae")
    shifted, scaled = (fix(mae, method, tau=tau, num_classes=many) for method in settings.FIXES)
    later = {many: starts[many]}
    curves = (("MAE", mae, starts, "-"), ("shifted", shifted, later, "--"), ("scaled", scaled, later, (0, (1.2, 1.4))))
    figure, grid = panels(1, 1, (6.0, 4.0))
    margin = _range((mae, shifted, scaled), starts)
    draw_starts(grid[0], starts, margin)
    for name, loss, points, dashes in curves:
        how = {"label": f"{name}  {_means(loss, points)}", "linestyle": dashes}
        draw_curve(grid[0], margin, loss, points, LOSS_COLOURS["mae"], **how)
    _finish(grid[0], margin, 3)
    axis_labels(grid, 1, "margin Δ", WEIGHT)
    heading(figure, f"Weights of MAE, shifted and scaled for {many} classes with τ = {tau:.2f}", said, _points(starts))
    return figure


def by_hyperparameter(source: Source) -> Figure:
    starts, said = source.starts(MANY)
    figure, grid = panels(3, 3, (3.1, 2.8), sharey=True)
    families = [
        [registry.get(name, **fixed, **{key: value}) for value in values]
        for name, fixed, key, values in HYPERPARAMETERS
    ]
    margin = _range((loss for some in families for loss in some), starts)
    for axes, (name, fixed, key, values), losses in zip(grid, HYPERPARAMETERS, families, strict=True):
        title(axes, ", ".join([name.upper(), *(f"{k} = {v:g}" for k, v in fixed.items())]))
        draw_starts(axes, starts, margin)
        for value, loss, colour in zip(values, losses, ramp(len(values)), strict=True):
            draw_curve(axes, margin, loss, starts, colour, label=f"{key} = {value:g}")
        _finish(axes, margin, 2)
    axis_labels(grid, 3, "margin Δ", WEIGHT)
    heading(figure, "Weights by hyperparameter", said, "points: mean initial weight")
    return figure


def simulated_and_real(source: Source) -> Figure:
    figure, grid = panels(2, 3, (3.1, 2.6), sharey="row")
    for axes, data in zip(grid, NAMES, strict=True):
        classes, real, spec = source.classes(data), source.margins(data), initial_spec(data, source.scale)
        name = NAMES[data] if spec is None or spec.data == data else f"{NAMES[data]}: {spec.data}"
        mean = "no such data here" if real is None else f"real mean {_signed(float(real.mean()))}"
        title(axes, name, f"K = {classes:,}, E[Δ] {_signed(expected_initial_margin(classes))}, {mean}")
        _draw_margins(axes, classes, real)
    axis_labels(grid, 3, "margin Δ", "density")
    key = [
        Line2D([], [], color=COLOURS[0], linewidth=2, label="simulated, scores N(0, 1)"),
        Line2D([], [], color=COLOURS[1], linewidth=1.2, linestyle="--", label="E[Δ], closed form"),
        Patch(color=REAL, label="real"),
    ]
    figure.legend(handles=key, loc="outside lower left", ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    heading(figure, "Initial margins, simulated and real", f"real: {AT_FIRST}")
    return figure


def _draw_margins(axes: Axes, classes: int, real: Tensor | None) -> None:
    low, high = SHOWN
    axes.plot(*_simulated_density(classes), color=COLOURS[0], linewidth=2)
    axes.axvline(expected_initial_margin(classes), color=COLOURS[1], linewidth=1.2, linestyle="--")
    if real is not None:
        counts, edges = np.histogram(real.numpy(), np.arange(low, high + 0.25, 0.25), density=True)
        axes.stairs(counts, edges, fill=True, color=REAL, zorder=0)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)
    strip(axes)


@cache
def _simulated_density(classes: int) -> tuple[Array, Array]:
    """Margins, and the density at each, smoothed by a normal density narrow enough to leave every feature."""
    margin = torch.linspace(*SHOWN, 281, dtype=torch.float64)
    kernel = torch.distributions.Normal(0.0, 0.25)
    drawn = simulate_initial_margins(classes, 30_000).double()
    return margin.numpy(), torch.stack([kernel.log_prob(at - drawn).exp().mean() for at in margin]).numpy()


def _curricula(rows: Sequence[Row]) -> dict[Row, Curriculum]:
    return {row: loss for row in rows if (loss := curriculum_of(row)) is not None}


def _range(curricula: Iterable[Curriculum], starts: Mapping[int, Tensor]) -> Tensor:
    """Margins to show, whatever the outermost hundredths of those at the start."""
    ends = torch.tensor([0.01, 0.99])
    return margin_range(curricula, [start.float().quantile(ends) for start in starts.values()])


def _draw(
    axes: Axes, curricula: Mapping[Row, Curriculum], starts: Mapping[int, Tensor], margin: Tensor, columns: int
) -> None:
    draw_starts(axes, starts, margin)
    for row, loss in curricula.items():
        how = look(row)
        draw_curve(axes, margin, loss, starts, how.pop("color"), label=f"{label(row)}  {_means(loss, starts)}", **how)
    _finish(axes, margin, columns)


def _finish(axes: Axes, margin: Tensor, columns: int) -> None:
    axes.set_xlim(float(margin[0]), float(margin[-1]))
    unit_height(axes)
    legend(axes, columns)


def _means(loss: Curriculum, starts: Mapping[int, Tensor]) -> str:
    return " → ".join(f"{mean_initial_weight(loss, initial_margins=start):#.2g}" for start in starts.values())


def _points(starts: Mapping[int, Tensor]) -> str:
    return f"points and numbers: mean initial weight with {' → '.join(f'{k:,}' for k in starts)} classes"


def _signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")
