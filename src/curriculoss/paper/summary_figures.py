"""Small figures of the three results that matter most, for the top of the page of results."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from curriculoss.figures import COLOURS, INK, Array, finish, panels, set_title, strip
from curriculoss.paper import canvas
from curriculoss.paper.canvas import FigureInputs
from curriculoss.paper.experiments import CE, FEW, MAE, MAE_SCALE, MAE_SHIFT, MANY
from curriculoss.paper.published import find

SIZE = (4.6, 3.6)  # inches
FEW_MANY_COLOURS = {FEW: COLOURS[2], MANY: COLOURS[1]}


def underfitting(inputs: FigureInputs) -> Figure:
    """Training accuracy of each loss with few and with many classes, and the paper's."""
    figure, (axes,) = panels(1, 1, SIZE)
    names = list(dict.fromkeys(cell.row.name for cell in inputs.cells))[::-1]
    for cell in inputs.cells:
        at, colour = names.index(cell.row.name), FEW_MANY_COLOURS[cell.data]
        _draw_range(axes, at, inputs.curves(cell, "train_accuracy"), colour)
        printed = find("table:ulearn", row=cell.row.name, data=cell.data, measure="train_accuracy")
        if printed is not None:
            axes.plot(printed.mean, at, "o", markersize=8, markerfacecolor="none", markeredgecolor=colour, zorder=2)
    _finish(axes, inputs, names)
    axes.set_xlim(-3, 103)
    key = _key({f"{inputs.classes(data)} classes": colour for data, colour in FEW_MANY_COLOURS.items()})
    key.append(Line2D([], [], color=INK, marker="o", markerfacecolor="none", linestyle="", label="the paper"))
    heading = f"Clean labels fitted, {inputs.seeds()}"
    return finish(figure, heading, across="training labels fitted, %", key=key)


def memorising(inputs: FigureInputs) -> Figure:
    """Wrong labels fitted and test accuracy over the epochs."""
    figure, grid = panels(1, 2, (SIZE[0] / 2, SIZE[1] - 0.3))
    for axes, measure, unit, name in (
        (grid[0], "accuracy_noisy", 100, "Wrong labels fitted, %"),
        (grid[1], "test_accuracy", 1, "Test accuracy, %"),
    ):
        set_title(axes, name)
        curves = [
            canvas.EpochCurve(x.row.name, unit * inputs.curves(x, measure), inputs.lack(x), canvas.look(x.row))
            for x in inputs.cells
        ]
        canvas.draw_epochs(axes, curves, columns=3)
        axes.set_ylim(bottom=0)
    heading = f"{inputs.classes(FEW)} classes, symmetric noise 0.4, {inputs.seeds()}"
    return finish(figure, heading, across="epoch")


def fix(inputs: FigureInputs) -> Figure:
    """Test accuracy of CE and of MAE, plain and fixed, by noise."""
    figure, (axes,) = panels(1, 1, SIZE)
    noises = list(dict.fromkeys(cell.noise for cell in inputs.cells))[::-1]
    colours = dict(zip((CE, MAE, MAE_SHIFT, MAE_SCALE), (COLOURS[6], COLOURS[5], COLOURS[4], COLOURS[0]), strict=True))
    for cell in inputs.cells:
        at = noises.index(cell.noise) + 0.24 - 0.16 * list(colours).index(cell.row)
        _draw_range(axes, at, inputs.curves(cell, "test_accuracy"), colours[cell.row])
    _finish(axes, inputs, [noise.replace(":", " ") for noise in noises])
    axes.set_xlim(left=0)
    key = _key({row.name: colour for row, colour in colours.items()})
    heading = f"{inputs.classes(MANY)} classes, {inputs.seeds()}"
    return finish(figure, heading, across="test accuracy, %", key=key)


def _draw_range(axes: Axes, at: float, curves: Array, colour: str) -> None:
    """The mean of the last epoch over seeds as a dot, and their range as a line."""
    if curves.size:
        last = curves[:, -1]
        axes.plot([last.min(), last.max()], [at, at], color=colour, linewidth=3, alpha=0.5, solid_capstyle="round")
        axes.plot(last.mean(), at, "o", color=colour, markersize=6, zorder=3)


def _finish(axes: Axes, inputs: FigureInputs, names: list[str]) -> None:
    if not any(map(inputs.records.of, inputs.cells)):
        canvas.say(axes, inputs.lack(inputs.cells[0]))
        return
    strip(axes)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="x", color="#E3E6EA", linewidth=0.8)
    axes.tick_params(labelsize=9.5)


def _key(colours: Mapping[str, str]) -> list[Line2D]:
    return [Line2D([], [], color=colour, marker="o", linestyle="", label=name) for name, colour in colours.items()]
