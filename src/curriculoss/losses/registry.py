"""Losses by name, for command lines and configuration files."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from curriculoss._text import suggestion
from curriculoss.errors import InvalidTypeError, InvalidValueError

Factory = TypeVar("Factory", bound=Callable[..., Any])

_factories: dict[str, Callable[..., Any]] = {}


def register(*names: str) -> Callable[[Factory], Factory]:
    """Make a class, or a function that returns a loss, available under these names."""

    def add(factory: Factory) -> Factory:
        _factories.update(dict.fromkeys(names, factory))
        return factory

    return add


def available() -> tuple[str, ...]:
    """The names that `get` knows.

    Example:
        >>> from curriculoss import available
        >>> "gce" in available()
        True
    """
    return tuple(_factories)


def synonyms() -> dict[Callable[..., Any], list[str]]:
    """What makes each loss, with all of its names: MAE has two."""
    return {make: [name for name, each in _factories.items() if each is make] for make in _factories.values()}


def factory(name: str) -> Callable[..., Any]:
    """What makes the loss of that name: its class, or the function that puts it together."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"expected the name of a loss, such as 'mae', got {name!r}")
    found = _factories.get(name.lower())
    if found is None:
        raise InvalidValueError(f"unknown loss {name!r}{suggestion(name.lower(), _factories)}")
    return found


def defaults(name: str) -> dict[str, Any]:
    """The hyperparameters of the loss of that name, with their defaults."""
    return {each.name: each.default for each in inspect.signature(factory(name)).parameters.values()}


def get(name: str, **hyperparameters: Any) -> Any:
    """The loss of that name.

    Args:
        name: One of `available()`, in any case.
        hyperparameters: Those of the loss, each with a default.

    Returns:
        The loss.

    Raises:
        InvalidValueError: If there is no such loss, or it has no such hyperparameter.

    Example:
        >>> from curriculoss import get
        >>> get("gce", q=0.5)
        GCE(q=0.5)
    """
    make, known = factory(name), defaults(name)
    for given in hyperparameters:
        if given not in known:
            raise InvalidValueError(f"{name} has no hyperparameter {given!r}; it takes {', '.join(known) or 'none'}")
    try:
        inspect.signature(make).bind(**hyperparameters)
    except TypeError as error:
        raise InvalidValueError(f"{name}: {error}") from None
    return make(**hyperparameters)
