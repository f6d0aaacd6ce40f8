"""Docstrings on the site: formulas as maths, papers linked to the bibliography, names linked where there is a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import formulas
import pages

from curriculoss import Loss

PAPER = re.compile(r"\b([A-Z]\w+)((?: & [A-Z]\w+| et al\.)?), ([A-Za-z]+) (\d{4})")

HIDDEN: dict[str, str] = {}  # first lines of properties: napoleon would take what is before a colon for a type
PLACE = "curriculoss"
KINDS = ("class", "exception", "function")


def connect(app: Any) -> None:
    app.connect("autodoc-process-docstring", _on_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
    app.connect("autodoc-skip-member", _on_member)
    app.connect("missing-reference", _on_missing)
    app.connect("source-read", _on_source)


def _on_docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    if what not in ("class", "exception", "function", "method", "property", "attribute", "module", "data"):
        return
    cited = [PAPER.sub(_cite, line) for line in lines]
    lines[:] = [re.sub(r"(?<![`\w])\|([^|`]+)\|", r"\\|\1\\|", line) for line in cited]  # |x| is no substitution
    if what in ("property", "attribute"):
        HIDDEN[name], lines[0] = lines[0], PLACE
    if what == "class" and isinstance(value, type) and issubclass(value, Loss):
        lines[1:1] = _maths(value)


def _after_napoleon(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    if (first := HIDDEN.pop(name, None)) is not None:
        lines[lines.index(PLACE)] = first


def _cite(match: re.Match[str]) -> str:
    first, others, place, year = match.groups()
    return f":ref:`{first}{others}, {place} {year} <{first.lower()}-{year}>`"


def _maths(loss: type[Loss]) -> list[str]:
    """The formulas of a loss, from the attributes that `curriculoss losses` prints, too."""
    shown = {"l": getattr(loss, "formula", ""), "w": getattr(loss, "weight_formula", "")}
    if getattr(loss, "regularizer", ""):
        shown = {"L": shown["l"], "R": loss.regularizer}
    texts = {name: formulas.latex(x) for name, x in shown.items() if isinstance(x, str)}  # of a sum: a property
    made = [f"{name} = {text}" for name, text in texts.items() if text]
    return ["", ".. math::", "", "   " + r" \qquad ".join(made), ""] if made else []


def _on_member(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the methods that scikit-learn generates."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def _on_missing(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Link a name that exactly one documented object ends with; other text in backticks is code."""
    if node.get("refdomain") != "py":
        return None
    domain, wanted = env.get_domain("py"), str(node["reftarget"])
    last = wanted.rpartition(".")[2].removesuffix("()")
    found = [x for x, entry in domain.objects.items() if x.rpartition(".")[2] == last and entry.objtype in KINDS]
    if len(found) == 1:
        entry = domain.objects[found[0]]
        from sphinx.util.nodes import make_refnode

        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, found[0])
    return content if node.get("reftype") == "obj" else None


def _on_source(app: Any, docname: str, source: list[str]) -> None:
    """Links of docs/*.md to files that the site shows as pages lead to these pages."""
    path = Path(app.env.doc2path(docname))
    if pages.MADE not in path.parents:
        source[0] = pages.with_links(source[0], path, path)
