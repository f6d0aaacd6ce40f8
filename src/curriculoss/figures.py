"""Pictures of weights over margins, as matplotlib figures: nothing is shown, written or printed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, zip_longest
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from curriculoss.curricula import registry
from curriculoss.curricula.base import Curriculum
from curriculoss.decompose import Decomposition
from curriculoss.initial import affordable_margins, describe, mean_initial_weight

# Okabe & Ito's colours, told apart by all eyes; the yellow one is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, GREYS = "#444444", ("#CDD2D9", "#E3E6EA")
MARGIN_COLOURS = {"clean": COLOURS[5], "noisy": COLOURS[4], "all": "#9AA3AD"}  # not those that losses get first
HALO = withStroke(linewidth=3, foreground="white")
# The settings of the paper's tables: tuned for many classes, the inferior ones (†), those of the robustness table.
PAPER_SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "aul": ({"a": 1.1, "q": 5.0}, {"a": 3.0, "q": 0.7}, {"a": 2.0, "q": 2.0}),
    "agce": ({"a": 0.1, "q": 0.1}, {"a": 1.6, "q": 2.0}, {"a": 3.0, "q": 4.0}),
    "gce": ({"q": 0.3}, {"q": 0.4}),
    "sce": ({"q": 0.7}, {"q": 0.95}),
}


def weight_over_initial_margins(
    curricula: Curriculum | Mapping[str, Curriculum],
    num_classes: int | Sequence[int] = 100,
    *,
    initial_margins: Tensor | None = None,
    title: str | None = None,
) -> Figure:
    """Weight functions over the margins from which training starts, and the mean weight that samples start with.

    `curricula` is one curriculum or several by label; `num_classes` one number or several to compare. Measured
    `initial_margins` take the place of simulated ones (of a single number of classes).
    """
    if isinstance(curricula, Curriculum):
        curricula = {describe(curricula): curricula}
    counts = [num_classes] if isinstance(num_classes, int) else list(num_classes)
    if initial_margins is not None and len(counts) != 1:
        raise ValueError(f"measured initial_margins belong to one number of classes, got num_classes={counts}")
    starts = {k: affordable_margins(k) if initial_margins is None else initial_margins.detach().cpu() for k in counts}
    figure = Figure(figsize=(7.2 + (1.4 if len(curricula) > 1 else 0), 4.2), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    margin = margin_range(curricula.values(), starts.values())
    many = len(curricula) > 1
    caption = ("K = {}" if len(starts) > 1 else None) if many else "initial margins\nK = {}"
    draw_starts(axes, starts, margin, caption=caption, avoid=curricula.values())
    for curriculum, colour in zip(curricula.values(), cycle(COLOURS), strict=False):
        draw_curve(axes, margin, curriculum, starts, colour)
    if many:
        _draw_key(axes, curricula, starts)
    else:
        _label_curve(axes, *next(iter(curricula.items())), starts)
    axes.set_xlim(float(margin[0]), float(margin[-1]))
    unit_height(axes)
    axes.set_xlabel("margin Δ")
    axes.set_ylabel("weight w(Δ), peak = 1")
    axes.set_title(title or "", loc="left", color=INK, pad=12)
    return figure


def all_curricula(num_classes: Sequence[int] = (10, 100), *, columns: int = 3) -> Figure:
    """Every registered curriculum in the paper's settings, over the initial margins of each number of classes."""
    panels = _paper_curricula()
    starts = {k: affordable_margins(k) for k in num_classes}
    margin = margin_range((c for panel in panels.values() for c in panel), starts.values())
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(10, 2.7 * rows + 0.8), dpi=150)
    figure.set_layout_engine("constrained", h_pad=0.08)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes_and_panels = zip_longest(grid.flat, panels.items())
    for i, (axes, panel) in enumerate(axes_and_panels):
        if panel is None:
            axes.set_visible(False)
            continue
        name, curricula = panel
        draw_starts(axes, starts, margin, caption=None if i else "K = {}", avoid=curricula)
        for j, curriculum in enumerate(curricula):
            draw_curve(axes, margin, curriculum, starts, COLOURS[j])
            settings = describe(curriculum).partition("(")[2].rstrip(")")
            line = (settings and settings + ":  ") + " → ".join(_means(curriculum, starts))
            write(axes, line, (0, 1), (0, 5 + 11 * (len(curricula) - 1 - j)), color=COLOURS[j], fontsize=8)
        axes.set_title(name.upper(), loc="left", color=INK, weight="bold", pad=9 + 11 * len(curricula), fontsize=10)
        axes.set_xlim(float(margin[0]), float(margin[-1]))
        unit_height(axes)
        axes.tick_params(labelbottom=i + columns >= len(panels))
    figure.supxlabel("margin Δ", color=INK, fontsize=10)
    figure.supylabel("weight w(Δ), peak = 1", color=INK, fontsize=10)
    arrow = " → ".join(f"{k:,}" for k in num_classes)
    said = f"Weight over the initial margins (grey). Numbers and points: mean initial weight with {arrow} classes.\n"
    figure.suptitle(said, color=INK, fontsize=11, x=0.01, ha="left")
    return figure


def _paper_curricula() -> dict[str, list[Curriculum]]:
    """By the first name of each; losses with a second term have no weight function to draw."""
    first: dict[Any, str] = {}
    for name in registry.available():
        first.setdefault(registry.factory(name), name)
    made = {name: [factory(**given) for given in PAPER_SETTINGS.get(name, ({},))] for factory, name in first.items()}
    return {name: losses for name, losses in made.items() if isinstance(losses[0], Curriculum)}


def empirical_weight(
    decomposition: Decomposition, *, initial_margins: Tensor | None = None, title: str | None = None
) -> Figure:
    """The measured weight of each sample over its margin; the colour shows how much of its gradient is off ∇Δ."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    margin, weight = (x.cpu() for x in decomposition.curve())
    off = decomposition.off_share.cpu()[decomposition.margin.cpu().argsort()]
    top = float(weight[weight.isfinite()].max())
    if initial_margins is not None:
        span = torch.stack([margin.min(), margin.max(), initial_margins.min(), initial_margins.max()])
        draw_starts(axes, {0: initial_margins}, span, height=top, caption="initial margins")
    if decomposition.standard_form:
        axes.scatter(margin.tolist(), weight.tolist(), s=9, color=COLOURS[0], linewidths=0)
        said = "standard form: the weight is a function of the margin"
    else:
        shades = ScalarMappable(Normalize(0, 1), LinearSegmentedColormap.from_list("off", COLOURS[:2]))
        axes.scatter(margin.tolist(), weight.tolist(), s=9, color=shades.to_rgba(off.numpy()), linewidths=0)
        bar = figure.colorbar(shades, ax=axes, pad=0.02, aspect=30, ticks=[0, 0.5, 1])
        bar.set_label("share of the gradient off ∇Δ", color=INK)
        bar.ax.tick_params(colors=INK, labelsize=8, length=0)
        bar.ax.spines[:].set_visible(False)
        said = "not of the standard form"
    axes.set_title(title or said, loc="left", color=INK, pad=12)
    axes.set_xlabel("margin Δ")
    axes.set_ylabel("weight ‖∇L‖₁/2")
    axes.set_ylim(0, 1.08 * top or 1.0)
    strip(axes)
    return figure


Array = np.ndarray[Any, Any]
EDGE = ("axes fraction", "data")


@dataclass(frozen=True, eq=False)
class MarginHistory:
    """How many samples had which margin, one row of counts an epoch: of `clean` and `noisy` samples, or of `all`.

    There is a bin between each two edges; with two bins more, the first and the last have one edge each.
    """

    edges: Array
    counts: Mapping[str, Array]
    curriculum: Curriculum | None = None  # whose weight is drawn over the margins
    test_accuracy: float | None = None  # percent, for the title

    @property
    def epochs(self) -> int:
        return max((len(counts) for counts in self.counts.values()), default=0)

    def densities(self, epoch: int) -> dict[str, Array]:
        """Of the samples that there are, with peak 1; open bins are counted with their neighbours."""
        found = {}
        for name, counts in self.counts.items():
            row = counts[epoch].astype(float)
            if len(row) == len(self.edges) + 1:
                row = np.concatenate([[row[0] + row[1]], row[2:-2], [row[-2] + row[-1]]])
            if row.any():
                smooth = np.convolve(row, self._kernel, "same")
                found[name] = smooth / smooth.max()
        return found

    @property
    def _kernel(self) -> Array:
        """Of a normal density with standard deviation 0.4, which takes away sampling noise and no feature."""
        steps = np.arange(-5, 6) * float(self.edges[1] - self.edges[0])
        kernel: Array = np.exp(-0.5 * (steps / 0.4) ** 2)
        return kernel

    def span(self, epochs: Iterable[int]) -> tuple[float, float]:
        """The margins of all but the outermost hundredths in any of these epochs."""
        ends = []
        for density in (x for epoch in epochs for x in self.densities(epoch).values()):
            within = np.searchsorted(np.cumsum(density) / density.sum(), [0.01, 0.99])
            ends += [self.edges[within[0]], self.edges[within[1] + 1]]
        return (float(min(ends)), float(max(ends))) if ends else (-6.0, 6.0)


def chosen_epochs(count: int, most: int = 9) -> list[int]:
    """Which of so many epochs to show, counted from 0: the first, the last, and in between ever fewer."""
    steps = np.geomspace(1, max(count, 1), min(most, count))
    places: list[int] = []
    for place in steps:  # no epoch twice
        places.append(max(round(float(place)) - 1, places[-1] + 1 if places else 0))
    return places


def span_of(histories: Iterable[MarginHistory], most: int = 9) -> tuple[float, float]:
    """One scale for all."""
    spans = [history.span(chosen_epochs(history.epochs, most)) for history in histories]
    return min((low for low, _ in spans), default=-4.0), max((high for _, high in spans), default=4.0)


def margin_ridges(history: MarginHistory, *, span: tuple[float, float] | None = None, most: int = 9) -> Figure:
    """Distributions of margins over the epochs, downwards, each scaled to its peak, and the weight over them."""
    figure = Figure(figsize=(3.0, 3.5), layout="constrained", dpi=150)
    draw_ridges(figure.add_subplot(), history, span, most)
    return figure


def dynamics(histories: Mapping[str, MarginHistory], *, most: int = 9) -> Figure:
    """How margins of clean and noisy samples move under each loss: ridges side by side, on one scale."""
    if not histories:
        raise ValueError("dynamics expects at least one history of margins, got none")
    figure = Figure(figsize=(max(4.6, 3.1 * len(histories) + 0.3), 4.4), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.08)
    span = span_of(histories.values(), most)
    grid = figure.subplots(1, len(histories), squeeze=False)
    for axes, (name, history) in zip(grid.flat, histories.items(), strict=True):
        draw_ridges(axes, history, span, most)
        axes.set_title(name, loc="left", color=INK, weight="bold", fontsize=11, pad=22, parse_math=False)
        if history.test_accuracy is not None:
            write(axes, f"test accuracy {history.test_accuracy:.1f} %", (0, 1), (0, 8))
    kinds = [name for name in MARGIN_COLOURS if any(name in history.counts for history in histories.values())]
    key = [("■ samples" if kind == "all" else f"■ {kind} samples", MARGIN_COLOURS[kind]) for kind in kinds]
    if any(history.curriculum is not None for history in histories.values()):
        key.append(("━ weight w(Δ)", INK))
    for place, (said, colour) in enumerate(key):
        how: dict[str, Any] = {"color": colour, "va": "top", "weight": "bold", "in_layout": False}
        write(grid.flat[0], said, (0, 0), (105 * place, -38), **how)
    grid.flat[0].set_xlabel("margin Δ" + "\n" * 2, fontsize=8.5)  # room for the key
    return figure


def draw_ridges(axes: Axes, history: MarginHistory, span: tuple[float, float] | None, most: int) -> None:
    """What `margin_ridges` shows, on axes of the caller's."""
    shown = chosen_epochs(history.epochs, most)
    low, high = span or history.span(shown)
    low, high = min(low, -4.0), max(high, 4.0)
    middle = (history.edges[1:] + history.edges[:-1]) / 2
    seen = (middle > low) & (middle < high)
    for row, epoch in enumerate(shown):
        base = float(len(shown) - 1 - row)
        for name, density in history.densities(epoch).items():
            there = np.flatnonzero(seen & (density > 0.003))
            if not there.size:
                continue
            x, top = (values[there[0] : there[-1] + 1] for values in (middle, base + 1.35 * density))
            how: dict[str, Any] = {"zorder": 2 + row, "clip_on": False}
            outline = np.r_[x[:1], x, x[-1:]], np.r_[base, top, base]
            axes.fill(*outline, color=MARGIN_COLOURS[name], alpha=0.72, linewidth=0, **how)
            axes.plot(x, top, color="white", linewidth=0.6, **how)
        axes.plot([low, high], [base, base], color=GREYS[0], linewidth=0.6, zorder=1)
        write(axes, f"{epoch + 1}", (1, base), (5, 0), xycoords=EDGE, fontsize=8, va="bottom")
    height = len(shown) + 0.45
    write(axes, "epoch", (1, height), (5, 0), xycoords=EDGE, fontsize=7.5, va="top")
    if history.curriculum is not None:
        margin = torch.linspace(low, high, 200, dtype=torch.float64)
        weight = history.curriculum.weight(margin) / history.curriculum.unit_weight
        halo: dict[str, Any] = {"path_effects": [withStroke(linewidth=3.2, foreground="white")], "zorder": 40}
        axes.plot(margin.tolist(), (weight * (height - 0.1)).tolist(), color=INK, linewidth=1.5, **halo)
    axes.set_xlim(low, high)
    axes.set_ylim(-0.05, height)
    axes.set_yticks([])
    axes.set_xlabel("margin Δ", fontsize=8.5)
    strip(axes)
    axes.spines["left"].set_visible(False)


def _means(curriculum: Curriculum, starts: Mapping[int, Tensor]) -> list[str]:
    return [f"{mean_initial_weight(curriculum, initial_margins=start):#.2g}" for start in starts.values()]


def margin_range(curricula: Iterable[Curriculum], starts: Iterable[Tensor]) -> Tensor:
    """Margins that hold the starts and the peaks; a peak far out, or at −∞, is left out."""
    peaks = [c.peak.margin for c in curricula if abs(c.peak.margin) < 15]
    low = min([-6.0, *(float(m.min()) - 0.5 for m in starts), *(x - 4 for x in peaks)])
    return torch.linspace(low, max([5.0, *(x + 4 for x in peaks)]), 500, dtype=torch.float64)


def draw_starts(
    axes: Axes,
    starts: Mapping[int, Tensor],
    margin: Tensor,
    *,
    height: float = 1.0,
    caption: str | None = None,
    avoid: Iterable[Curriculum] = (),
) -> None:
    """Densities as a backdrop, all on one scale that leaves the upper half to the curves; captions stand above them."""
    low, high = float(margin.min()), float(margin.max())
    bins = torch.linspace(low, high, int(5 * (high - low)) + 2)
    densities = {k: torch.histogram(start.float().cpu(), bins, density=True).hist for k, start in starts.items()}
    tallest = max(float(density.max()) for density in densities.values())
    for (k, density), grey in zip(densities.items(), cycle(GREYS), strict=False):
        steps = 0.4 * height * density / tallest
        axes.stairs(steps.tolist(), bins.tolist(), fill=True, color=grey, alpha=0.8, zorder=0)
        if caption:
            mean = starts[k].double().mean()
            around = torch.linspace(-0.6, 0.6, 7, dtype=torch.float64) + mean
            taken = [x for c in avoid for x in (c.weight(around) / c.peak.weight).tolist()]
            taken += [mean_initial_weight(c, initial_margins=starts[k]) for c in avoid]
            top = float(steps.max())
            while top < 0.9 and any(abs(top + 0.03 - x) < 0.05 for x in taken):
                top += 0.02
            how: dict[str, Any] = {"fontsize": 7.5, "ha": "center", "zorder": 2}
            write(axes, caption.format(f"{k:,}"), (float(mean), top), (0, 3), data=True, **how)


def draw_curve(
    axes: Axes, margin: Tensor, curriculum: Curriculum, starts: Mapping[int, Tensor], colour: str, **how: Any
) -> None:
    """The curve with unit peak, and a point where the mean initial margin meets the mean initial weight."""
    height = curriculum.weight(margin) / curriculum.peak.weight
    how = {"linewidth": 2, "solid_capstyle": "round", "zorder": 3, **how}
    axes.plot(margin.tolist(), height.tolist(), color=colour, **how)
    for start in starts.values():
        mean = mean_initial_weight(curriculum, initial_margins=start)
        axes.plot(float(start.mean()), mean, "o", color=colour, markersize=7, markeredgecolor="white", zorder=4)


def _label_curve(axes: Axes, name: str, curriculum: Curriculum, starts: Mapping[int, Tensor]) -> None:
    """A single curve: its name at the top, and words at the points."""
    axes.margins(x=0)
    low, high = axes.get_xlim()
    peak = min(max(curriculum.peak.margin, low), high)
    write(axes, name, (peak, 1), (0, 9), data=True, ha="left" if peak == low else "center", color=COLOURS[0])
    for start, mean in zip(starts.values(), _means(curriculum, starts), strict=True):
        high_up = float(mean) > 0.6
        write(
            axes,
            f"mean initial\nweight {mean}",
            (float(start.mean()), float(mean)),
            (-34, -24 if high_up else 12),
            data=True,
            ha="right",
            va="top" if high_up else "bottom",
            color=COLOURS[0],
            arrowprops={"arrowstyle": "-", "color": COLOURS[0], "linewidth": 0.8, "shrinkB": 4},
        )


def _draw_key(axes: Axes, curricula: Mapping[str, Curriculum], starts: Mapping[int, Tensor]) -> None:
    """Mean initial weights and names in the colours of the curves, largest first, to the right of them."""
    last = list(starts.values())[-1]
    means = {name: mean_initial_weight(curriculum, initial_margins=last) for name, curriculum in curricula.items()}
    colours = dict(zip(curricula, cycle(COLOURS), strict=False))
    write(axes, "mean initial weight", (1, 1), (16, 0), va="top")
    said = "grey: initial margins" + (f",\nK = {next(iter(starts)):,}" if len(starts) == 1 else "")
    write(axes, said, (1, 0), (16, 0), color="#7C848E", va="bottom")
    if len(starts) > 1:
        for column, k in enumerate(starts):
            write(axes, f"K = {k:,}", (1, 1), (50 + 48 * column, -14), va="top", ha="right", fontsize=7.5)
    for row, name in enumerate(sorted(curricula, key=lambda name: -means[name])):
        down = -30 - 18 * row
        how: dict[str, Any] = {"color": colours[name], "va": "top", "weight": "bold"}
        for column, mean in enumerate(_means(curricula[name], starts)):
            write(axes, mean, (1, 1), (50 + 48 * column, down), ha="right", **how)
        write(axes, name, (1, 1), (10 + 48 * len(starts), down), **how)


def write(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], *, data: bool = False, **how: Any
) -> None:
    """Text at an offset in points from a place given in data or, mostly, as a fraction of the axes."""
    units = "data" if data else "axes fraction"
    how = {"color": INK, "fontsize": 9, "path_effects": [HALO], "zorder": 6, "xycoords": units, **how}
    axes.annotate(text, at, offset, textcoords="offset points", annotation_clip=False, **how)


def unit_height(axes: Axes) -> None:
    """For weights with peak 1."""
    axes.set_ylim(0, 1.06)
    axes.set_yticks([0, 0.5, 1])
    strip(axes)


def strip(axes: Axes) -> None:
    """No frame: two thin axes and small grey ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(colors=INK, labelsize=8, length=3, color="#999999")
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
