"""What the numbers say in words: each thing once, when it becomes true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from curriculoss._text import percent
from curriculoss.fixing import TAU, underfitting
from curriculoss.losses.base import Curriculum
from curriculoss.monitor.record import Epoch

MEMORISED_RISE = 1.0  # of the mean noisy margin above its lowest value: e times the odds of the wrong labels
VERDICT_KINDS = ("underfits", "diverged", "noise carries", "noise rises")


def initial_verdict(curriculum: Curriculum | None, margins: Tensor) -> str | None:
    """A warning if samples with these margins, those before training, get too little weight to be learned.

    The rule is that of `underfitting`, for fixed curricula alone; without one the result is None.
    """
    margins = margins[margins.isfinite()].double()
    # With a mean above 0, the network fits its labels already.
    if curriculum is None or curriculum.peak.weight == math.inf or not margins.numel() or float(margins.mean()) > 0:
        return None
    found = underfitting(curriculum, initial_margins=margins)
    if found.level == "none":
        return None
    mildly = " mildly" if found.level == "mild" else ""
    remedy = "" if found.scaled_share is None else f", try fix=scale tau={TAU:g}"
    return f"initial weights are {percent(found.share_of_ce)} of CE's: this will underfit{mildly}{remedy}"


class Judge:
    """Remembers what was said, and how low the margins of noisy samples have been."""

    def __init__(self) -> None:
        self.said = dict.fromkeys(VERDICT_KINDS, False)
        self.lowest = math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"said": dict(self.said), "lowest": self.lowest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.said, self.lowest = dict(state["said"]), state["lowest"]

    def verdicts(self, epoch: Epoch, curriculum: Curriculum | None, initial: Tensor | None) -> tuple[str, ...]:
        """What has become true in this epoch; `initial` are the margins before training, given once."""
        new = [(kind, text) for kind, text in self._true(epoch, curriculum, initial) if not self.said[kind]]
        self.said.update(dict.fromkeys((kind for kind, _ in new), True))
        return tuple(text for _, text in new)

    def _true(self, epoch: Epoch, curriculum: Curriculum | None, initial: Tensor | None) -> Iterator[tuple[str, str]]:
        if initial is not None and (sentence := initial_verdict(curriculum, initial)):
            yield "underfits", sentence
        if epoch.samples and epoch.mean_margin is None:
            yield "diverged", "margins are no longer finite: training has diverged"
        elif epoch.samples and epoch.effective_learning_rate_this_epoch is None:
            yield "diverged", "weights are no longer finite: their means are undefined from now on"
        if epoch.noisy_share is not None and epoch.noisy_share > 0.5:
            yield "noise carries", f"noisy samples now carry most of the gradient ({percent(epoch.noisy_share)})"
        if epoch.mean_margin_noisy is not None:
            self.lowest = min(self.lowest, epoch.mean_margin_noisy)
            if epoch.mean_margin_noisy > self.lowest + MEMORISED_RISE:
                change = f"from {self.lowest:.3g} to {epoch.mean_margin_noisy:.3g}"
                yield "noise rises", f"margins of noisy samples rise ({change}): they are being memorised"
