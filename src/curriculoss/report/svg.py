"""Figures as SVG that takes its fonts and colours from the page around it."""

import io
import re
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.text import Text

from curriculoss.figures import COLOURS, GREYS, INK

# The variable of the page's style sheet, which has a light and a dark side, for each colour of a figure.
VARIABLES = {
    **{colour.lower(): f"var(--c{i})" for i, colour in enumerate(COLOURS)},
    INK.lower(): "var(--ink)",
    "#999999": "var(--axis)",
    "#9aa3ad": "var(--axis)",
    GREYS[0].lower(): "var(--line)",
    "#ffffff": "var(--paper)",
}
RC_PARAMS: dict[Any, Any] = {"svg.fonttype": "none", "font.family": "sans-serif"}


def colour_variable(colour: str) -> str:
    return VARIABLES[colour.lower()]


def inline_svg(figure: Figure, salt: str) -> Markup:
    """An <svg> element for a page: no header, no addresses, ids by `salt`, text as text, colours by variable."""
    file = io.StringIO()
    for written in figure.findobj(Text):
        written.set_path_effects([])  # would turn text to outlines; the style sheet draws the halo
    with matplotlib.rc_context({**RC_PARAMS, "svg.hashsalt": salt}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', text)[:2]
    text = re.sub(r' (?:(?:xmlns(?::\w+)?|version)="[^"]*"|(?:width|height)="[\d.]+pt")', "", text, count=6)
    text = re.sub(r' id="(?!\w?[0-9a-f]{10}")[^"]*"', "", text)  # keeps ids with the salted hash that others refer to
    text = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda x: VARIABLES.get(x[0], x[0]), text)
    text = re.sub(r"font: (?:\w+ )?([\d.]+)px [^;\"]*", _font, text)
    text = re.sub(r"font-family: [^;\"]*; ", "", text)  # the page has its own
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)  # would hold for the whole page
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", _rounded, tag[0]), text)  # but not in written text
    text = re.sub(r"(?<=[\d.]) ?\n(?=[MLHVQCz\"])", "", text)
    text = re.sub(r"\n\s*", "\n", text)
    return Markup(text.replace("<svg", f'<svg style="aspect-ratio: {width}/{height}"', 1))  # made here of numbers alone


def _rounded(found: re.Match[str]) -> str:
    """To hundredths of a point."""
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _font(found: re.Match[str]) -> str:
    """Size and weight; the family is that of the page."""
    weight = "font-weight: bold; " if "bold" in found[0] or " 700 " in found[0] else ""
    return f"{weight}font-size: {found[1]}px"
