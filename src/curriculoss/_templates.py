"""Fills in Jinja templates that stand beside a package's modules."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup


def fill(
    package: str, template: str, values: Mapping[str, Any], *, html: bool = False, **filters: Callable[..., Any]
) -> str:
    """The text of `template`.jinja with these values, escaped where it is HTML; an unknown name is an error."""
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=html,  # names, paths and notes may hold anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
    )
    environment.globals["zip"] = zip
    environment.filters |= filters
    return environment.get_template(f"{template}.jinja").render(values)


def fill_with_script(package: str, name: str, content: Any, values: Mapping[str, Any]) -> str:
    """The page `name`.html.jinja with the script `name`.js, which no other may join, and what that reads as JSON."""
    script = resources.files(package).joinpath(f"{name}.js").read_text("utf-8")
    own = {
        "content": htmlsafe_json_dumps(content, allow_nan=False, separators=(",", ":")),
        "script": Markup(script),  # our own
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return fill(package, f"{name}.html", {**values, **own}, html=True)
