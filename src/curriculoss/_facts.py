"""Frozen dataclasses that JSON can keep: checked when they are made, and turned to and from JSON here alone."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from curriculoss.errors import InvalidValueError


class Facts:
    """Base class of frozen dataclasses that are kept as JSON objects.

    Each field is checked against its annotation and converted where that loses nothing (a list to a tuple, 3.0 to 3),
    so that equal content makes equal values.
    """

    def __post_init__(self) -> None:
        for name, kind in _annotations(type(self)).items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, _fit(value, kind))
            except TypeError:
                kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
                words = " or ".join("nothing" if each is NoneType else each.__name__ for each in kinds)
                raise InvalidValueError(f"{name} expects {words}, got {value!r}") from None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """The value of a JSON object. Unknown keys are left out: a later version may have written them."""
        if not isinstance(given, Mapping):
            raise InvalidValueError(f"expected an object of names and values, got {type(given).__name__}")
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]  # its subclasses are dataclasses
            if each.name not in given and each.default is each.default_factory is dataclasses.MISSING:
                raise InvalidValueError(f"it lacks {each.name!r}")
        return cls(**{name: given[name] for name in _annotations(cls) if name in given})

    def as_dict(self) -> dict[str, Any]:
        """What JSON keeps of it."""
        plain = json.dumps(dataclasses.asdict(self), default=os.fspath)  # type: ignore[call-overload]  # a path is text
        return json.loads(plain)  # type: ignore[no-any-return]


_type_hints = cache(get_type_hints)


def _annotations(cls: Any) -> dict[str, Any]:
    """The type of each field."""
    hints = _type_hints(cls)
    return {each.name: hints[each.name] for each in dataclasses.fields(cls)}


def _fit(value: Any, kind: Any) -> Any:
    """`value` as an instance of the annotated type; TypeError if it is none."""
    origin, inner = get_origin(kind), get_args(kind)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if origin is UnionType:
        for each in inner:
            with suppress(TypeError):
                return _fit(value, each)
    elif origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_fit(each, inner[0]) for each in value)
    elif origin is Mapping and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _fit(value[key], inner[1]) for key in sorted(value)}  # one order, one hash
    elif kind is float and number and (isinstance(value, float) or abs(value) < 2**53):
        return float(value)
    elif kind is int and number and abs(value) <= 2**64 and value == int(value):
        return int(value)
    elif origin is None and issubclass(kind, Facts) and isinstance(value, Mapping):
        return kind.from_dict(value)
    elif origin is None and isinstance(value, kind) and kind not in (int, float):
        return value
    raise TypeError
