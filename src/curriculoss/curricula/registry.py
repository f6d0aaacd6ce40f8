"""Losses by name, for command lines and configuration files."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
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


def synonyms() -> dict[Callable[..., Any], list[str]]:
    """What makes each loss, with all of its names: MAE has two."""
    found: dict[Callable[..., Any], list[str]] = {}
    for name, make in _factories.items():
        found.setdefault(make, []).append(name)
    return found


def suggestion(word: str, known: Collection[str]) -> str:
    """What to say after an unknown word: the nearest of the known ones, letters in another order first, and all."""

    def nearness(other: str) -> tuple[bool, float]:
        return sorted(other) == sorted(word), difflib.SequenceMatcher(None, other, word).ratio()

    nearest = max(known, key=nearness)
    asked = f", did you mean {nearest!r}?" if nearness(nearest)[1] else "."
    return f"{asked} Available: {', '.join(known)}"


def factory(name: str) -> Callable[..., Any]:
    """What makes the loss of that name: its class, or the function that puts it together."""
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a loss, such as 'mae', got {name!r}")
    found = _factories.get(name.lower())
    if found is None:
        raise ValueError(f"unknown loss {name!r}{suggestion(name.lower(), _factories)}")
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
