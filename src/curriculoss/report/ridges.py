"""Distributions of margins by epoch, drawn as ridges, with the weight function over them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from curriculoss.errors import InvalidValueError
from curriculoss.figures import GREYS, INK, MARGIN_COLOURS, Array, annotate, finish, panels, set_title, strip
from curriculoss.losses.base import Curriculum

AXES_AND_DATA = ("axes fraction", "data")


@dataclass(frozen=True, eq=False)
class MarginHistory:
    """Histograms of margins, one row of counts per epoch: of `clean` and `noisy` samples, or of `all`.

    There is one bin between each two edges, and an open bin at either end.
    """

    edges: Array
    counts: Mapping[str, Array]
    curriculum: Curriculum | None = None  # its weight is drawn over the margins
    test_accuracy: float | None = None  # percent, for the title

    @property
    def epochs(self) -> int:
        return max((len(counts) for counts in self.counts.values()), default=0)

    def densities(self, epoch: int) -> dict[str, Array]:
        """Smoothed densities of an epoch, with peak 1; open bins are counted with their neighbours."""
        found = {}
        for name, counts in self.counts.items():
            row = counts[epoch, 1:-1].astype(float)
            row[[0, -1]] += counts[epoch, [0, -1]]
            if row.any():
                smooth = np.convolve(row, self._kernel, "same")
                found[name] = smooth / smooth.max()
        return found

    @property
    def _kernel(self) -> Array:
        """A normal density with standard deviation 0.4, which removes sampling noise but no feature."""
        steps = np.arange(-5, 6) * float(self.edges[1] - self.edges[0])
        kernel: Array = np.exp(-0.5 * (steps / 0.4) ** 2)
        return kernel

    def span(self, epochs: Iterable[int]) -> tuple[float, float]:
        """A range that holds the margins of these epochs but for 1 % at either end."""
        ends = []
        for density in (x for epoch in epochs for x in self.densities(epoch).values()):
            within = np.searchsorted(np.cumsum(density) / density.sum(), [0.01, 0.99])
            ends += [self.edges[within[0]], self.edges[within[1] + 1]]
        return (float(min(ends)), float(max(ends))) if ends else (-6.0, 6.0)


def shown_counts(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Counts of clean and noisy samples if there are noisy ones, otherwise of all samples."""
    known = {kind: arrays[kind] for kind in ("clean", "noisy") if kind in arrays and arrays[kind].any()}
    return known if "noisy" in known else {"all": arrays["all"]}


def chosen_epochs(count: int, most: int = 9) -> list[int]:
    """The epochs to show, counted from 0: the first, the last, and ever fewer towards the end."""
    steps = np.geomspace(1, max(count, 1), min(most, count))
    places: list[int] = []
    for place in steps:  # no epoch twice
        places.append(max(round(float(place)) - 1, places[-1] + 1 if places else 0))
    return places


def span_of(histories: Iterable[MarginHistory]) -> tuple[float, float]:
    """A range that fits all histories."""
    spans = [history.span(chosen_epochs(history.epochs)) for history in histories]
    return min((low for low, _ in spans), default=-4.0), max((high for _, high in spans), default=4.0)


def margin_ridges(history: MarginHistory, *, span: tuple[float, float] | None = None) -> Figure:
    """Distributions of margins by epoch, from top to bottom, each scaled to its peak, and the weight over them."""
    figure = Figure(figsize=(3.0, 3.5), layout="constrained", dpi=150)
    draw_ridges(figure.add_subplot(), history, span)
    return figure


def draw_dynamics(histories: Mapping[str, MarginHistory]) -> Figure:
    """How margins of clean and noisy samples move under each loss: distributions by epoch, on one scale.

    Args:
        histories: Histograms of margins by the name of the loss.

    Returns:
        A figure with one panel per loss.

    Raises:
        InvalidValueError: If there are no histories.
    """
    if not histories:
        raise InvalidValueError("dynamics expects at least one history of margins, got none")
    figure, grid = panels(1, len(histories), (3.1, 3.8))
    span = span_of(histories.values())
    for axes, (name, history) in zip(grid, histories.items(), strict=True):
        draw_ridges(axes, history, span)
        accuracy = history.test_accuracy
        set_title(axes, name, "" if accuracy is None else f"test accuracy {accuracy:.1f} %")
    kinds = [kind for kind in MARGIN_COLOURS if any(kind in history.counts for history in histories.values())]
    return finish(figure, "", across="margin Δ", key=ridge_key(kinds))


def ridge_key(kinds: Iterable[str]) -> list[Artist]:
    """Handles of a legend for these kinds of samples and for the weight."""
    names = {kind: "samples" if kind == "all" else f"{kind} samples" for kind in kinds}
    weight = Line2D([], [], color=INK, linewidth=1.5, label="weight w(Δ)")
    return [*(Patch(color=MARGIN_COLOURS[kind], label=name) for kind, name in names.items()), weight]


def draw_ridges(axes: Axes, history: MarginHistory, span: tuple[float, float] | None, most: int = 9) -> None:
    """Draw what `margin_ridges` shows on the given axes."""
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
        annotate(axes, f"{epoch + 1}", (1, base), (5, 0), xycoords=AXES_AND_DATA, fontsize=8, va="bottom")
    height = len(shown) + 0.45
    annotate(axes, "epoch", (1, height), (5, 0), xycoords=AXES_AND_DATA, fontsize=7.5, va="top")
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
