"""What a search tries: the ranges as one table, and settings of a run drawn from them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from curriculoss.curricula import Curriculum, registry
from curriculoss.initial import TAU, expected_initial_margin
from curriculoss.training import RunSpec

if TYPE_CHECKING:
    from optuna.trial import Trial


class Range(NamedTuple):
    low: float
    high: float
    log: bool = False
    whole: bool = False


LOSSES = ("auto", "ce", "gce", "sce", "mae", "agce")  # unless others are asked for
# Hyperparameters, within their constraints and around what papers use; others stay as they come.
RANGES: Mapping[str, Mapping[str, Range]] = {
    "fl": {"q": Range(0.5, 5)},
    "aul": {"a": Range(1.05, 8, log=True), "q": Range(0.5, 6)},
    "agce": {"a": Range(0.05, 8, log=True), "q": Range(0.05, 4, log=True)},
    "ael": {"q": Range(0.5, 10, log=True)},
    "gce": {"q": Range(0.05, 1)},
    "sce": {"q": Range(0.05, 0.95)},
    "tce": {"q": Range(1, 10, whole=True)},
    "mse": {"alpha": Range(0.1, 0.9)},
    "gls": {"alpha": Range(0.05, 0.6)},
    "cr": {"beta": Range(0.05, 1)},
    "peer": {"alpha": Range(0.05, 1)},
    "nce+mae": {"q": Range(0.05, 0.95)},
    "nce+aul": {"alpha": Range(0.5, 10, log=True), "beta": Range(0.5, 10, log=True)},
}
FIXES = ("scale", "shift")
LEAST_TAU = 1.0  # up to |E[Δ]|, where both fixes leave a curriculum as it is
AROUND = {"learning_rate": Range(0.1, 3, log=True), "weight_decay": Range(0.1, 10, log=True)}  # times the setting


SEARCHED = ("loss", "params", "fix", "tau", *AROUND)


@dataclass(frozen=True)
class Space:
    """Settings around those of `base`; `keep` are rates that stay as they are."""

    base: RunSpec
    losses: tuple[str, ...]
    num_classes: int
    keep: frozenset[str] = frozenset()

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """A loss, its hyperparameters, rates, and a fix where samples start left of the loss's peak."""
        name = trial.suggest_categorical("loss", self.losses)
        params = {key: _draw(trial, f"{name}.{key}", each) for key, each in RANGES.get(name, {}).items()}
        found: dict[str, Any] = {"loss": name, "params": params}
        loss = registry.get(name, **params) if name in registry.available() else None  # auto sets itself
        fixable = isinstance(loss, Curriculum) and loss.peak.margin > expected_initial_margin(self.num_classes)
        if fixable and self.most_tau > LEAST_TAU:
            found["fix"] = trial.suggest_categorical("fix", FIXES)
            found["tau"] = _draw(trial, "tau", Range(LEAST_TAU, self.most_tau))
        for key, (low, high, log, _) in AROUND.items():
            found[key] = middle = getattr(self.base, key)
            if middle and key not in self.keep:
                found[key] = _draw(trial, key, Range(low * middle, high * middle, log))
        return found

    def usual(self, name: str) -> dict[str, Any]:
        """What a search begins with, in Optuna's names: the loss as it comes, scaled as usual."""
        params = {f"{name}.{key}": default(name, key) for key in RANGES.get(name, {})}
        rates = {key: getattr(self.base, key) for key in AROUND}
        return {"loss": name, **params, "fix": "scale", "tau": min(TAU, self.most_tau), **rates}

    @property
    def most_tau(self) -> float:
        """|E[Δ]|, cut to digits that rounding leaves."""
        return math.floor(-100 * expected_initial_margin(self.num_classes)) / 100


def default(name: str, key: str) -> Any:
    return inspect.signature(registry.factory(name)).parameters[key].default


def _draw(trial: Trial, name: str, span: Range) -> float:
    if span.whole:
        return float(trial.suggest_int(name, int(span.low), int(span.high)))
    return float(f"{trial.suggest_float(name, span.low, span.high, log=span.log):.3g}")  # for people to read
