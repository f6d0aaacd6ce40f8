"""Matplotlib figures of weight functions; nothing is shown, written or printed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from curriculoss.decomposition import Decomposition
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.fixing import mean_initial_weight
from curriculoss.initial import affordable_margins
from curriculoss.losses import registry
from curriculoss.losses.base import Curriculum

# Okabe & Ito's colours, which colour-blind readers can tell apart; the yellow one is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, GREYS = "#444444", ("#CDD2D9", "#E3E6EA")
MARGIN_COLOURS = {"clean": COLOURS[5], "noisy": COLOURS[4], "all": "#9AA3AD"}  # not among the first colours of losses
Array = np.ndarray[Any, Any]
HALO = withStroke(linewidth=3, foreground="white")
LEGEND: dict[str, Any] = {"frameon": False, "labelcolor": INK, "fontsize": 8}
# Hyperparameters of the paper's tables: tuned for many classes, the inferior ones (†), and the robustness table's.
PAPER_SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "aul": ({"a": 1.1, "q": 5.0}, {"a": 3.0, "q": 0.7}, {"a": 2.0, "q": 2.0}),
    "agce": ({"a": 0.1, "q": 0.1}, {"a": 1.6, "q": 2.0}, {"a": 3.0, "q": 4.0}),
    "gce": ({"q": 0.3}, {"q": 0.4}),
    "sce": ({"q": 0.7}, {"q": 0.95}),
}


def weight_over_initial_margins(
    curricula: Curriculum | Mapping[str, Curriculum], num_classes: int | Sequence[int] = 100, *,
    initial_margins: Tensor | None = None, title: str | None = None,
) -> Figure:  # fmt: skip
    """Weight functions over the distribution of initial margins, with the mean weight of samples before training.

    Args:
        curricula: One curriculum, or several by label.
        num_classes: One number of classes, or several to compare.
        initial_margins: Measured margins in place of simulated ones, for a single number of classes.
        title: Title of the figure.

    Returns:
        A figure to show or save.

    Raises:
        InvalidTypeError: If a loss is no curriculum: with a second term it has no weight function to draw.
        InvalidValueError: If there are measured margins and several numbers of classes.

    Example:
        >>> from curriculoss import CE, MAE
        >>> figure = weight_over_initial_margins({"CE": CE(), "MAE": MAE()}, num_classes=(10, 100))
        >>> figure.savefig("weights.png")  # doctest: +SKIP
    """
    curricula = {curricula.label: curricula} if isinstance(curricula, Curriculum) else curricula
    if not isinstance(curricula, Mapping) or not all(isinstance(each, Curriculum) for each in curricula.values()):
        expected = "curricula, one such as MAE() or several by label"
        raise InvalidTypeError(f"weight_over_initial_margins expects {expected}, got {curricula!r:.100}")
    counts = [num_classes] if isinstance(num_classes, int) else list(num_classes)
    if initial_margins is not None and len(counts) != 1:
        raise InvalidValueError(f"measured initial_margins belong to one number of classes, got num_classes={counts}")
    starts = {k: affordable_margins(k) if initial_margins is None else initial_margins.detach().cpu() for k in counts}
    panel = WeightPanel(title or "", _curves(curricula, starts))
    heading = f"grey: initial margins; {meaning_of_points(starts)}"
    return draw_weights([panel], starts, heading, size=(6.9, 4.0), legend_columns=min(3, len(curricula)))


def all_curricula(num_classes: Sequence[int] = (10, 100)) -> Figure:
    """Every registered curriculum with the paper's hyperparameters, over the initial margins.

    Args:
        num_classes: Numbers of classes whose initial margins are drawn.

    Returns:
        A figure with one panel per loss.

    Example:
        >>> all_curricula().savefig("curricula.png")  # doctest: +SKIP
    """
    starts = {k: affordable_margins(k) for k in num_classes}
    shown = [
        WeightPanel(name.upper(), _curves({each.label: each for each in curricula}, starts))
        for name, curricula in _paper_curricula().items()
    ]
    heading = f"Weights over the initial margins (dark to light grey); {meaning_of_points(starts)}"
    return draw_weights(shown, starts, heading, size=(3.1, 2.9), columns=3)


def _curves(curricula: Mapping[str, Curriculum], starts: Mapping[int, Tensor]) -> list[WeightCurve]:
    return [
        WeightCurve(f"{name}  {mean_weights(curriculum, starts)}", curriculum, starts, {"color": colour})
        for (name, curriculum), colour in zip(curricula.items(), cycle(COLOURS), strict=False)
    ]


def _paper_curricula() -> dict[str, list[Curriculum]]:
    """Curricula by name; losses with a second term have no weight function to draw."""
    made = {
        names[0]: [factory(**given) for given in PAPER_SETTINGS.get(names[0], ({},))]
        for factory, names in registry.synonyms().items()
    }
    return {name: losses for name, losses in made.items() if isinstance(losses[0], Curriculum)}


def empirical_weight(
    decomposition: Decomposition, *, initial_margins: Tensor | None = None, title: str | None = None
) -> Figure:
    """The measured weight of each sample over its margin, coloured by the share of its gradient off ∇Δ.

    Args:
        decomposition: What `decompose` measured.
        initial_margins: Margins whose distribution is drawn in the background.
        title: Title of the figure; by default whether the loss is of the standard form.

    Returns:
        A figure to show or save.

    Example:
        >>> import torch
        >>> from curriculoss import decompose
        >>> logits, target = torch.randn(100, 5), torch.randint(5, (100,))
        >>> figure = empirical_weight(decompose(torch.nn.functional.cross_entropy, logits, target))
    """
    figure = Figure(figsize=(7.2, 4.2), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    margin, weight = (x.cpu() for x in decomposition.curve())
    off = decomposition.off_share.cpu()[decomposition.margin.cpu().argsort()]
    top = float(weight[weight.isfinite()].max())
    if initial_margins is not None:
        span = torch.stack([margin.min(), margin.max(), initial_margins.min(), initial_margins.max()])
        _draw_starts(axes, {0: initial_margins}, span, height=top, label="initial margins")
        axes.legend(loc="upper right", **LEGEND)
    shades = ScalarMappable(Normalize(0, 1), LinearSegmentedColormap.from_list("off", COLOURS[:2]))
    axes.scatter(margin.tolist(), weight.tolist(), s=9, color=shades.to_rgba(off.numpy()), linewidths=0)
    said = "standard form: the weight is a function of the margin"
    if not decomposition.standard_form:
        said = "not of the standard form"
        bar = figure.colorbar(shades, ax=axes, pad=0.02, aspect=30, ticks=[0, 0.5, 1])
        bar.set_label("share of the gradient off ∇Δ", color=INK)
        bar.ax.tick_params(colors=INK, labelsize=8, length=0)
        bar.ax.spines[:].set_visible(False)
    axes.set_title(title or said, loc="left", color=INK, pad=12)
    axes.set_xlabel("margin Δ")
    axes.set_ylabel("weight ‖∇L‖₁/2")
    axes.set_ylim(0, 1.08 * top or 1.0)
    strip(axes)
    return figure


def mean_weights(curriculum: Curriculum, starts: Mapping[int, Tensor]) -> str:
    """Mean initial weights, `0.18 → 0.026`, one per distribution of initial margins."""
    return " → ".join(f"{mean_initial_weight(curriculum, initial_margins=start):#.2g}" for start in starts.values())


def _margin_range(curricula: Iterable[Curriculum], starts: Iterable[Tensor]) -> Tensor:
    """A range that holds the peaks, but for those far out or at −∞, and 99 % of the initial margins."""
    peaks = [c.peak.margin for c in curricula if abs(c.peak.margin) < 15]
    low = min([-6.0, *(float(m.float().quantile(0.01)) - 0.5 for m in starts), *(x - 4 for x in peaks)])
    return torch.linspace(low, max([5.0, *(x + 4 for x in peaks)]), 500, dtype=torch.float64)


def _draw_starts(
    axes: Axes, starts: Mapping[int, Tensor], margin: Tensor, *, height: float = 1.0, label: str = "_"
) -> None:
    """Draw densities in the background, on one scale that leaves the upper half to the curves; label them for a key."""
    low, high = float(margin.min()), float(margin.max())
    bins = torch.linspace(low, high, int(5 * (high - low)) + 2)
    densities = [torch.histogram(start.float().cpu(), bins, density=True).hist for start in starts.values()]
    tallest = max(float(density.max()) for density in densities)
    for k, density, grey in zip(starts, densities, cycle(GREYS), strict=False):
        steps = (0.4 * height * density / tallest).tolist()
        axes.stairs(steps, bins.tolist(), fill=True, color=grey, alpha=0.8, zorder=0, label=label.format(k))


@dataclass(frozen=True)
class WeightCurve:
    """A weight function to draw, and the initial margins whose mean weight is marked on it."""

    label: str
    loss: Curriculum
    points: Mapping[int, Tensor]
    look: Mapping[str, Any]


@dataclass(frozen=True)
class WeightPanel:
    """Curves that are drawn together, their title, and a line below it."""

    title: str
    curves: Sequence[WeightCurve]
    below: str = ""


def draw_weights(
    shown: Sequence[WeightPanel], starts: Mapping[int, Tensor], *heading: str, size: tuple[float, float],
    columns: int = 1, legend_columns: int = 1,
) -> Figure:  # fmt: skip
    """Draw weights with unit peak over the initial margins, with points at the mean initial margins and weights."""
    figure, grid = panels(-(-len(shown) // columns), columns, size, sharey=True)
    margin = _margin_range((curve.loss for panel in shown for curve in panel.curves), starts.values())
    for axes, panel in zip(grid, shown, strict=False):
        set_title(axes, panel.title, panel.below)
        _draw_starts(axes, starts, margin)
        for curve in panel.curves:
            _draw_curve(axes, curve, margin)
        axes.set_xlim(float(margin[0]), float(margin[-1]))
        axes.set_ylim(0, 1.06)
        axes.set_yticks([0, 0.5, 1])
        strip(axes)
        draw_legend(axes, legend_columns)
    for axes in grid[len(shown) :]:
        axes.remove()
    return finish(figure, "\n".join(heading), across="margin Δ", up="weight w(Δ), peak = 1")


def _draw_curve(axes: Axes, curve: WeightCurve, margin: Tensor) -> None:
    height = curve.loss.weight(margin) / curve.loss.peak.weight
    how = {"linewidth": 2, "solid_capstyle": "round", "zorder": 3, "label": curve.label, **curve.look}
    axes.plot(margin.tolist(), height.tolist(), **how)
    for start in curve.points.values():
        mean = mean_initial_weight(curve.loss, initial_margins=start)
        how = {"color": curve.look["color"], "markersize": 7, "markeredgecolor": "white", "zorder": 4}
        axes.plot(float(start.mean()), mean, "o", **how)


def meaning_of_points(starts: Mapping[int, Tensor]) -> str:
    """What points and numbers show."""
    return f"points and numbers: mean initial weight with {' → '.join(f'{k:,}' for k in starts)} classes"


def annotate(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **how: Any) -> None:
    """Write text at an offset in points from a place, by default given as a fraction of the axes."""
    how = {"color": INK, "fontsize": 9, "path_effects": [HALO], "zorder": 6, "xycoords": "axes fraction", **how}
    axes.annotate(text, at, offset, textcoords="offset points", annotation_clip=False, **how)


def draw_mean(axes: Axes, values: Array, *, color: Any, **how: Any) -> None:
    """Draw the mean over the rows by epoch, and their range as a band; epochs without any value are left out."""
    there = np.flatnonzero(np.isfinite(values).any(0))
    epochs, some = there + 1, values[:, there]
    axes.plot(epochs, np.nanmean(some, 0), color=color, linewidth=1.8, **how)
    if len(values) > 1:
        axes.fill_between(epochs, np.nanmin(some, 0), np.nanmax(some, 0), color=color, alpha=0.18, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def strip(axes: Axes) -> None:
    """Leave two thin axes and small grey ticks in place of a frame."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=8, length=3, color="#999999")
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def panels(rows: int, columns: int, size: tuple[float, float], **how: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels of about that size in inches, row by row."""
    figure = Figure(figsize=(size[0] * columns + 0.3, size[1] * rows + 0.6), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def set_title(axes: Axes, text: str, below: str = "") -> None:
    """Put a bold title above the axes, and a smaller line between the two."""
    pad = 21 if below else 8
    axes.set_title(text, loc="left", color=INK, weight="bold", fontsize=10, pad=pad, parse_math=False)
    if below:
        annotate(axes, below, (0, 1), (0, 8), fontsize=8.5, path_effects=[])  # a halo would make outlines of it


def finish(figure: Figure, heading: str, *, across: str = "", up: str = "", key: Sequence[Any] = ()) -> Figure:
    """Label every panel below, and the first of each row on the left; add the heading, and a key below all panels."""
    for panel in figure.axes:
        panel.set_xlabel(across, fontsize=9, color=INK)
        spec = panel.get_subplotspec()
        if spec is not None and spec.is_first_col():
            panel.set_ylabel(up, fontsize=9, color=INK)
    figure.suptitle(heading, color=INK, fontsize=9.5, x=0.01, ha="left", linespacing=1.4)
    if key:
        figure.legend(handles=key, loc="outside lower left", ncols=min(4, len(key)), **{**LEGEND, "fontsize": 9})
    return figure


def draw_legend(axes: Axes, columns: int) -> None:
    """Put the legend below the label of the horizontal axis, away from the curves."""
    figure = cast(Figure, axes.get_figure(root=True))
    down = axes.transAxes + ScaledTranslation(0, -30 / 72, figure.dpi_scale_trans)
    how = {**LEGEND, "handlelength": 2.2, "columnspacing": 1.2}
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, 0), bbox_transform=down, ncols=columns, **how)
