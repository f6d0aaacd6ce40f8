"""What the figures share: where their numbers come from, panels, titles and legends, and one colour a loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from curriculoss.curricula import Curriculum, registry
from curriculoss.figures import COLOURS, INK, Array, write
from curriculoss.initial import affordable_margins, describe
from curriculoss.paper import settings
from curriculoss.paper.artefacts import Artefact
from curriculoss.paper.initial import NETWORKS, SAMPLES, initial_margins, initial_spec, num_classes
from curriculoss.paper.records import Records
from curriculoss.paper.reproduce import RUNS, Plan
from curriculoss.paper.settings import Cell, Row, Scale
from curriculoss.training.many import folder_name
from curriculoss.training.store import Run

LOSS_COLOURS = dict(zip(("mae", "aul", "sce", "gce", "agce", "nce", "ce"), COLOURS, strict=True))  # in every figure
INFERIOR = "†"  # ends the paper's name of a loss with hyperparameters that it shows to be bad
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
NAMES |= {name: name.replace("webvision", "WebVision") for name in settings.WEBVISION}
AT_FIRST = f"{SAMPLES} training samples under each of {NETWORKS} initialised networks"
NOT_RUN, DIVERGED = "not run yet", "diverged"


@dataclass(frozen=True)
class Source:
    """All that a figure may be made from."""

    artefact: Artefact
    plan: Plan
    records: Records
    data_dir: Path | str | None = None

    @property
    def scale(self) -> Scale:
        return self.plan.scale

    def classes(self, data: str) -> int:
        return num_classes(data, self.scale)

    def margins(self, data: str) -> Tensor | None:
        """Of real samples before training."""
        found = initial_margins(data, self.scale, self.plan.folder, self.data_dir)
        return None if found is None else found.flatten()

    def starts(self, *roles: str) -> tuple[dict[int, Tensor], str]:
        """Initial margins by the number of classes, and words for them; those that cannot be measured are simulated."""
        found = {role: self.margins(role) for role in roles}
        starts, words = {}, []
        for role, margins in found.items():
            starts[self.classes(role)] = affordable_margins(self.classes(role)) if margins is None else margins
            words.append(self.called(role) + (" (simulated)" if margins is None else ""))
        shades = "dark and light grey" if len(roles) > 1 else "grey"
        measured = any(margins is not None for margins in found.values())
        return starts, f"{shades}: margins of {' and '.join(words)}" + (f",\n{AT_FIRST}" if measured else "")

    def called(self, data: str) -> str:
        """`CIFAR-10`, or `digits for CIFAR-10`."""
        spec = initial_spec(data, self.scale)
        return NAMES[data] if spec is None or spec.data == data else f"{spec.data} for {NAMES[data]}"

    def run(self, cell: Cell) -> Run:
        """Of the first seed."""
        return Run(self.plan.folder / RUNS / folder_name(self.scale.spec(cell)))

    def lack(self, cell: Cell) -> str:
        """Why there is nothing to show of a cell."""
        return DIVERGED if self.run(cell).failed else NOT_RUN

    def curves(self, cell: Cell, measure: str) -> Array:
        """One row a seed, one column an epoch; NaN is where an epoch has no number."""
        found = [record.curve(measure) for record in self.records.seeds(cell, self.plan.seeds)]
        return np.array(found, dtype=float)

    def setting(self) -> str:
        """`scale cpu: CIFAR-10, 10,000 images, cnn8 width 0.125, 10 epochs`."""
        spec = self.scale.spec(self.artefact.cells[0])
        images = "all" if spec.subset is None else f"{spec.subset:,}"
        network = spec.network + ("" if spec.width == 1 else f" width {spec.width:g}")
        called = self.called(self.artefact.cells[0].data)
        return f"scale {self.scale.name}: {called}, {images} images, {network}, {spec.epochs} epochs"

    def seeds(self) -> str:
        """`n = 3, mean and range`; `n = 1 to 3` where some are missing. What was not run at all says so itself."""
        counts = {len(self.records.seeds(cell, self.plan.seeds)) for cell in self.artefact.cells} - {0} or {0}
        several = " to ".join(map(str, sorted({min(counts), max(counts)})))
        return f"n = {several}" + (", mean and range" if max(counts) > 1 else "")


def curriculum_of(row: Row) -> Curriculum | None:
    """None of a loss with a second term, which has no weight function to draw."""
    loss = registry.get(row.loss, **row.params)
    return loss if isinstance(loss, Curriculum) else None


def label(row: Row) -> str:
    """`AUL(a=3, q=0.7)†`."""
    loss = curriculum_of(row)
    return row.name if loss is None else describe(loss) + INFERIOR * row.name.endswith(INFERIOR)


def look(row: Row) -> dict[str, Any]:
    return {"color": LOSS_COLOURS[row.loss], "linestyle": "dashed" if row.name.endswith(INFERIOR) else "solid"}


def ramp(count: int) -> list[Any]:
    """Colours for the values of one number, from small to large."""
    return [matplotlib.colormaps["viridis"](0.78 * i / max(1, count - 1)) for i in range(count)]


def panels(rows: int, columns: int, size: tuple[float, float], **how: Any) -> tuple[Figure, list[Axes]]:
    """Of about that size in inches each, row by row."""
    figure = Figure(figsize=(size[0] * columns + 0.3, size[1] * rows + 0.6), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.08)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **how).flat)


def heading(figure: Figure, *lines: str) -> None:
    figure.suptitle("\n".join(lines), color=INK, fontsize=9.5, x=0.01, ha="left", linespacing=1.4)


def title(axes: Axes, text: str, below: str = "") -> None:
    axes.set_title(text, loc="left", color=INK, weight="bold", fontsize=10, pad=21 if below else 8)
    if below:
        write(axes, below, (0, 1), (0, 8), fontsize=8.5, path_effects=[])  # a halo would make outlines of it


def legend(axes: Axes, columns: int) -> None:
    """Below the label of the horizontal axis, where no curve is."""
    down = axes.transAxes + ScaledTranslation(0, -30 / 72, axes.get_figure(root=True).dpi_scale_trans)  # type: ignore[union-attr]
    how: dict[str, Any] = {"frameon": False, "labelcolor": INK, "handlelength": 2.2, "columnspacing": 1.2}
    axes.legend(loc="upper left", bbox_to_anchor=(-0.02, 0), bbox_transform=down, ncols=columns, fontsize=8, **how)


def say(axes: Axes, text: str) -> None:
    """In an empty panel."""
    axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.spines[:].set_color("#CCCCCC")
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK, fontsize=9)


def axis_labels(axes: list[Axes], columns: int, across: str, up: str) -> None:
    """Below every panel, and left of the first in each row."""
    for place, panel in enumerate(axes):
        panel.set_xlabel(across, fontsize=9, color=INK)
        if place % columns == 0:
            panel.set_ylabel(up, fontsize=9, color=INK)
