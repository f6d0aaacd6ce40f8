"""Words for messages: the nearest known name, a share in percent, the first line of an error."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def suggestion(word: str, known: Collection[str]) -> str:
    """What to say after an unknown word: the nearest of the known ones, letters in another order first, and all."""

    def nearness(other: str) -> tuple[bool, float]:
        return sorted(other) == sorted(word), difflib.SequenceMatcher(None, other, word).ratio()

    nearest = max(known, key=nearness)
    asked = f", did you mean {nearest!r}?" if nearness(nearest)[1] else "."
    return f"{asked} Available: {', '.join(known)}"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def first_line(error: BaseException) -> str:
    """What an exception says, shortened to one line; a line that ends with a colon is nothing without the next."""
    first, *others = str(error).strip().splitlines() or [""]
    text = f"{first} {others[0].strip()}" if others and first.endswith(":") else first
    return text.strip()[:200] or type(error).__name__
