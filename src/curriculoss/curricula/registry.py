"""Losses by name, for command lines and configuration files."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Factory = TypeVar("Factory", bound=Callable[..., Any])

_factories: dict[str, Callable[..., Any]] = {}


def register(*names: str) -> Callable[[Factory], Factory]:
    """Make a class, or a function that returns a loss, available under these names."""

    def add(factory: Factory) -> Factory:
        _factories.update(dict.fromkeys(names, factory))
        return factory

    return add


def available() -> tuple[str, ...]:
    """The names that `get` knows."""
    return tuple(_factories)


def factory(name: str) -> Callable[..., Any]:
    """What makes the loss of that name: its class, or the function that puts it together."""
    found = _factories.get(name.lower())
    if found is None:
        nearest = difflib.get_close_matches(name.lower(), _factories, 1, 0.0)[0]
        raise ValueError(f"unknown loss {name!r}, did you mean {nearest!r}? Available: {', '.join(_factories)}")
    return found


def get(name: str, **hyperparameters: Any) -> Any:
    """The loss of that name: `get("gce", q=0.7)` is `GCE(q=0.7)`."""
    make = factory(name)
    known = inspect.signature(make).parameters
    for given in hyperparameters:
        if given not in known:
            raise ValueError(f"{name} has no hyperparameter {given!r}; it takes {', '.join(known) or 'none'}")
    try:
        inspect.signature(make).bind(**hyperparameters)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None
    return make(**hyperparameters)
