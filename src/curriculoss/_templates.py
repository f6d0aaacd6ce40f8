"""Fills in Jinja templates that stand beside a package's modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


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
