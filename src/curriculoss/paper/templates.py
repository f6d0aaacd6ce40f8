"""Fills in the templates of Markdown and LaTeX files (*.jinja beside this module)."""

import re
from typing import Any

from curriculoss import _templates
from curriculoss.paper.inference import signed

LATEX = {
    **{special: f"\\{special}" for special in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": "$<$", ">": "$>$", "|": "$|$",
    "†": r"\textsuperscript{\textdagger}", "‡": r"\textsuperscript{\textdaggerdbl}",
    "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "≤": r"$\le$", "⁴": "$^4$", "∞": r"$\infty$",
    "α": r"$\alpha$", "γ": r"$\gamma$", "ε": r"$\varepsilon$", "σ": r"$\sigma$", "τ": r"$\tau$", "Δ": r"$\Delta$",
    "Σ": r"$\Sigma$",
}  # fmt: skip


def fill(template: str, /, **values: Any) -> str:
    """The text of a template of this package with these values."""
    return _templates.fill("curriculoss.paper", template, values, md=_markdown, tex=_latex, signed=signed)


def _markdown(text: str, code: bool = False) -> str:
    if code:
        return f"`{text.replace('|', chr(92) + '|')}`" if text else ""
    return re.sub(r"([\\`*_|<>\[\]~])", r"\\\1", text)


def _latex(text: str, code: bool = False) -> str:
    safe = "".join(LATEX.get(letter, letter) for letter in text)
    return rf"\texttt{{{safe}}}" if code and text else safe
