"""What the figures share: their inputs, their size, and one colour per loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from curriculoss.figures import COLOURS, INK, Array, draw_legend, draw_mean, set_title, strip
from curriculoss.initial import affordable_margins
from curriculoss.paper.epochs import RunRecords
from curriculoss.paper.experiments import Cell, Row
from curriculoss.paper.plans import RUNS, Plan
from curriculoss.paper.scales import Scale
from curriculoss.paper.starting_margins import AS_TRAINED, NETWORKS, SAMPLES, Start, initial_margins, num_classes
from curriculoss.runs.folder import Run
from curriculoss.runs.many import folder_name

LOSS_COLOURS = dict(zip(("mae", "aul", "sce", "gce", "agce", "nce", "ce"), COLOURS, strict=True))
INFERIOR_MARK = "†"  # ends the paper's name of a loss with inferior hyperparameters
MEASURED = f"{SAMPLES} training samples under each of {NETWORKS} initialised networks"
NOT_RUN_YET, DIVERGED = "not run yet", "diverged"


@dataclass(frozen=True)
class FigureInputs:
    """Everything a figure may be made from."""

    plan: Plan
    records: RunRecords
    data_dir: Path | str | None = None

    @property
    def scale(self) -> Scale:
        return self.plan.scale

    @property
    def cells(self) -> list[Cell]:
        return self.scale.shown(self.plan.artefact.cells)

    def classes(self, role: str) -> int:
        return num_classes(role, self.scale)

    def starts(self, role: str) -> dict[Start, Tensor]:
        """Margins of real samples before training by kind of start; empty if they cannot be measured."""
        found = initial_margins(role, self.scale, self.plan.folder, self.data_dir) or {}
        return {start: margins.flatten() for start, margins in found.items()}

    def backdrop(self, *roles: str) -> tuple[dict[int, Tensor], str]:
        """Initial margins by number of classes, simulated where they cannot be measured, and a caption for them."""
        found = {role: self.starts(role).get(AS_TRAINED) for role in roles}
        starts, words = {}, []
        for role, margins in found.items():
            starts[self.classes(role)] = affordable_margins(self.classes(role)) if margins is None else margins
            words.append(self.scale.called(role) + (" (simulated)" if margins is None else ""))
        shades = "dark and light grey" if len(roles) > 1 else "grey"
        measured = any(margins is not None for margins in found.values())
        return starts, f"{shades}: margins of {' and '.join(words)}" + (f",\n{MEASURED}" if measured else "")

    def run(self, cell: Cell) -> Run:
        """The run folder of the first seed."""
        return Run(self.plan.folder / RUNS / folder_name(self.scale.spec(cell)))

    def lack(self, cell: Cell) -> str:
        """Why there is nothing to show of a cell."""
        return DIVERGED if self.run(cell).failed else NOT_RUN_YET

    def curves(self, cell: Cell, measure: str) -> Array:
        """One row per seed, one column per epoch; NaN where an epoch has no number."""
        found = [record.curves[measure] for record in self.records.seeds(cell, self.plan.seeds)]
        return np.array(found, dtype=float)

    def setting(self) -> str:
        """`scale smoke: digits for CIFAR-10, all images, cnn4 width 0.25, 4 epochs`."""
        spec = self.scale.spec(self.cells[0])
        images = "all" if spec.subset is None else f"{spec.subset:,}"
        network = spec.network + ("" if spec.width == 1 else f" width {spec.width:g}")
        called = self.scale.called(self.cells[0].data)
        return f"scale {self.scale.name}: {called}, {images} images, {network}, {spec.epochs} epochs"

    def seeds(self) -> str:
        """`n = 3, mean and range`; `n = 1 to 3` where some are missing. Cells without any run say so themselves."""
        counts = {len(self.records.seeds(cell, self.plan.seeds)) for cell in self.cells} - {0} or {0}
        several = " to ".join(map(str, sorted({min(counts), max(counts)})))
        return f"n = {several}" + (", mean and range" if max(counts) > 1 else "")


@dataclass(frozen=True, eq=False)
class EpochCurve:
    """A measure over the epochs, one row per seed; `lack` says why there is none."""

    label: str
    values: Array
    lack: str
    look: Mapping[str, Any]


def draw_epochs(axes: Axes, title: str, curves: Sequence[EpochCurve], columns: int) -> None:
    """Draw means over seeds and their range; the legend, or the empty panel, says what is missing."""
    set_title(axes, title)
    there = [curve for curve in curves if curve.values.size]
    if not there:
        say(axes, ", ".join(sorted({curve.lack for curve in curves})))
        return
    strip(axes)
    for curve in curves:
        if curve in there:
            draw_mean(axes, curve.values, label=curve.label, **curve.look)
        else:
            axes.plot([], [], label=f"{curve.label}: {curve.lack}", **curve.look)
    draw_legend(axes, columns if len(there) == len(curves) else 1)


@cache
def label(row: Row) -> str:
    """`AUL(a=3, q=0.7)†`; only the name of a loss with a second term."""
    loss = row.make_loss().curriculum
    return row.name if loss is None else loss.label + INFERIOR_MARK * row.name.endswith(INFERIOR_MARK)


def look(row: Row) -> dict[str, Any]:
    """Colour and dashes of a loss."""
    return {"color": LOSS_COLOURS[row.loss], "linestyle": "dashed" if row.name.endswith(INFERIOR_MARK) else "solid"}


def ramp(count: int) -> list[Any]:
    """Colours for the values of one number, from small to large."""
    return [matplotlib.colormaps["viridis"](0.78 * i / max(1, count - 1)) for i in range(count)]


def say(axes: Axes, text: str) -> None:
    """Write a text into an empty panel."""
    axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.spines[:].set_color("#CCCCCC")
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK, fontsize=9)
