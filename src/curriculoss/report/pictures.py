"""Figures of runs, and figures as SVG that takes its colours from the page around it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from curriculoss import figures
from curriculoss.curricula import Curriculum
from curriculoss.figures import COLOURS, GREYS, INK, Array, MarginHistory
from curriculoss.initial import fix
from curriculoss.report.lines import over_epochs
from curriculoss.report.records import Group, groups, loss_key, names, rows, value
from curriculoss.training.spec import AUTO
from curriculoss.training.store import Run

LOSS_COLOURS = tuple(COLOURS[i] for i in (0, 1, 2, 3, 6, 5, 4))  # the last two are those of margins
# What stands for each colour of a figure in the page's style sheet, for light and for dark.
VARIABLES = {
    **{colour.lower(): f"var(--c{i})" for i, colour in enumerate(COLOURS)},
    INK.lower(): "var(--ink)",
    "#999999": "var(--axis)",
    "#9aa3ad": "var(--axis)",
    GREYS[0].lower(): "var(--line)",
    "#ffffff": "var(--paper)",
}
SVG: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "curriculoss", "font.family": "sans-serif"}


def inline_svg(figure: Figure, prefix: str) -> str:
    """To stand inside a page: no header, no addresses, ids of its own, text as text, colours by variable."""
    file = io.StringIO()
    for written in figure.findobj(Text):
        written.set_path_effects([])  # would make outlines of it; the style sheet draws the halo
    with matplotlib.rc_context(SVG):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' (?:xmlns(?::\w+)?|version)="[^"]*"', "", text, count=4)
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', text)[:2]
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    used = set(re.findall(r'(?:href="|url\()#([\w.-]+)', text))
    text = re.sub(r' id="([\w.-]+)"', lambda x: f' id="{prefix}{x[1]}"' if x[1] in used else "", text)
    text = re.sub(r'(href="|url\()#', rf"\1#{prefix}", text)
    text = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda x: VARIABLES.get(x[0], x[0]), text)
    text = re.sub(r"font: (?:\w+ )?([\d.]+)px [^;\"]*", _font, text)
    text = re.sub(r"font-family: [^;\"]*; ", "", text)  # the page has its own
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # would hold for the whole page
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag[0]), text)  # and not in what is written
    text = re.sub(r"(?<=[\d.]) ?\n(?=[MLHVQCz\"])", "", text)
    text = re.sub(r"\n\s*", "\n", text)
    return text.replace("<svg", f'<svg style="aspect-ratio: {width}/{height}"', 1)


def _rounded(found: re.Match[str]) -> str:
    """To hundredths of a point."""
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _font(found: re.Match[str]) -> str:
    """The page's own; the weight is kept."""
    weight = "font-weight: bold; " if "bold" in found[0] or " 700 " in found[0] else ""
    return f"{weight}font-size: {found[1]}px"


def curriculum_of(group: Group) -> Curriculum | None:
    """The curriculum that was trained with; None if it has none, one that changes, or one that no record tells."""
    spec = group.spec
    loss = spec.make_loss()
    if spec.loss == AUTO or not isinstance(loss, Curriculum):
        return None
    if spec.fix is None or group.refused:
        return loss
    if (
        group.num_classes is None
        or group.num_classes < 2
        or (spec.initial_margin == "measured" and spec.fix != "logit-bias")
    ):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # with several seeds, some of which refused it
        return fix(loss, spec.fix, tau=spec.tau, num_classes=group.num_classes)


def margin_history(group: Group) -> MarginHistory | None:
    """Of the first seed that got furthest; None if none finished an epoch."""
    for run in sorted(group.counted, key=lambda run: -len(rows(run))):
        if not (run.path / "histograms.npz").exists():
            continue
        arrays = run.arrays("histograms")
        apart: dict[str, Array] = {
            key: arrays[key] for key in ("clean", "noisy") if key in arrays and arrays[key].any()
        }
        counts = apart if "noisy" in apart else {"all": arrays["all"]}
        return MarginHistory(arrays["edges"], counts, curriculum_of(group), group.mean("test_accuracy"))
    return None


def dynamics(runs: Iterable[Run]) -> Figure:
    """For a README: ridges of margins, one panel a loss, test accuracies in the titles."""
    found = groups(runs)
    called = names(found)
    made = {called[loss_key(group)]: margin_history(group) for group in found}
    return figures.dynamics({name: history for name, history in made.items() if history is not None})


def lines(
    some: Sequence[Group], key: str, colours: Mapping[str, str], *, factor: float = 1, **how: Any
) -> Figure | None:
    """One line a group; None if nobody knows the numbers."""

    def values(run: Run) -> list[float | None]:
        return [None if (x := value(row, key)) is None else factor * x for row in rows(run)]

    series = [[values(run) for run in group.counted] for group in some]
    if all(x is None for runs in series for numbers in runs for x in numbers):
        return None
    return over_epochs(series, colours=[colours[loss_key(group)] for group in some], **how)


def colour_by_loss(some: Iterable[Group]) -> dict[str, str]:
    """The same throughout the page."""
    keys = list(dict.fromkeys(loss_key(group) for group in some))
    return {key: LOSS_COLOURS[i % len(LOSS_COLOURS)] for i, key in enumerate(keys)}


def variable(colour: str) -> str:
    return VARIABLES[colour.lower()]
