"""What the numbers say, in words, each thing once: when it becomes true."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from curriculoss.curricula import Curriculum, Scaled
from curriculoss.initial import TAU, percent, underfitting
from curriculoss.monitor.record import Epoch

RISE = 1.0  # of the mean margin of noisy samples above its lowest: e times the odds of their wrong labels
KINDS = ("underfits", "diverged", "noise carries", "noise rises")


def initial_verdict(loss: object, margins: Tensor) -> str | None:
    """A warning if samples with these margins, those before training, get too little weight to be learned.

    The rule is that of `underfitting`, which knows losses of the standard form alone.
    """
    margins = margins[margins.isfinite()].double()
    if not isinstance(loss, Curriculum) or loss.peak.weight == math.inf or not margins.numel():
        return None
    start = float(margins.mean())
    if start > 0:  # a model that fits its labels already
        return None
    verdict = underfitting(loss, initial_margins=margins)
    if verdict.level == "none":
        return None
    sentence = f"initial weights are {percent(verdict.share_of_ce)} of CE's: this will underfit"
    if verdict.level == "mild":
        sentence += " mildly"
    if start < -TAU:
        scaled = underfitting(Scaled(loss, TAU / -start), initial_margins=margins)
        if scaled.share_of_ce > verdict.share_of_ce:
            sentence += f", try fix=scale tau={TAU:g}"
    return sentence


class Judge:
    """Remembers what was said and how low the noisy samples have been."""

    def __init__(self) -> None:
        self.said = dict.fromkeys(KINDS, False)
        self.lowest = math.inf

    def verdicts(self, epoch: Epoch, loss: object, initial: Tensor | None) -> tuple[str, ...]:
        """`initial` are margins before training, to be given once."""
        new = []
        for kind, sentence in self._true(epoch, loss, initial):
            if not self.said[kind]:
                self.said[kind] = True
                new.append(sentence)
        return tuple(new)

    def _true(self, epoch: Epoch, loss: object, initial: Tensor | None) -> Iterator[tuple[str, str]]:
        if initial is not None and (sentence := initial_verdict(loss, initial)):
            yield "underfits", sentence
        if epoch.samples and epoch.mean_margin is None:
            yield "diverged", "margins are no longer finite: training has diverged"
        elif epoch.samples and epoch.effective_learning_rate_this_epoch is None:
            yield "diverged", "weights are no longer finite: their means are undefined from now on"
        if epoch.noisy_share is not None and epoch.noisy_share > 0.5:
            yield "noise carries", f"noisy samples now carry most of the gradient ({percent(epoch.noisy_share)})"
        if epoch.mean_margin_noisy is not None:
            self.lowest = min(self.lowest, epoch.mean_margin_noisy)
            if epoch.mean_margin_noisy > self.lowest + RISE:
                change = f"from {self.lowest:.3g} to {epoch.mean_margin_noisy:.3g}"
                yield "noise rises", f"margins of noisy samples rise ({change}): they are being memorised"
