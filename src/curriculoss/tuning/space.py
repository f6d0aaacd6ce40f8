"""The search space: a range for each hyperparameter, and candidates drawn from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import Trial

from curriculoss._facts import Facts
from curriculoss.fixing import TAU
from curriculoss.initial import expected_initial_margin
from curriculoss.losses import registry
from curriculoss.losses.ranges import RANGES, Range
from curriculoss.runs import RunSpec

LOSSES = ("auto", "ce", "gce", "sce", "mae", "agce")  # unless others are asked for
FIXES = ("scale", "shift")
LEAST_TAU = 1.0  # the largest is |E[Δ]|, at which both fixes leave a curriculum as it is
FACTORS = {"learning_rate": Range(0.1, 3, log=True), "weight_decay": Range(0.1, 10, log=True)}  # of the setting


@dataclass(frozen=True, kw_only=True)
class Candidate(Facts):
    """The settings of a run that a search varies."""

    loss: str
    params: Mapping[str, float]
    fix: str | None = None
    tau: float | None = None
    learning_rate: float
    weight_decay: float

    def spec(self, base: RunSpec) -> RunSpec:
        """`base` with these settings."""
        return replace(base, **{name: getattr(self, name) for name in Candidate.__dataclass_fields__})


@dataclass(frozen=True)
class Space:
    """Candidates around the settings of `base`; rates in `keep` stay as they are."""

    base: RunSpec
    losses: tuple[str, ...]
    num_classes: int
    keep: frozenset[str] = frozenset()

    def suggest(self, trial: Trial) -> Candidate:
        """Draw a loss, its hyperparameters, rates, and a fix if samples start left of the loss's peak."""
        name = trial.suggest_categorical("loss", self.losses)
        found: dict[str, Any] = {
            "loss": name,
            "params": {key: _draw(trial, f"{name}.{key}", each) for key, each in RANGES.get(name, {}).items()},
        }
        curriculum = RunSpec(loss=name, params=found["params"]).curriculum
        fixable = curriculum is not None and curriculum.peak.margin > expected_initial_margin(self.num_classes)
        if fixable and self.most_tau > LEAST_TAU:
            found["fix"] = trial.suggest_categorical("fix", FIXES)
            found["tau"] = _draw(trial, "tau", Range(LEAST_TAU, self.most_tau))
        for key, (low, high, log, _) in FACTORS.items():
            found[key] = middle = getattr(self.base, key)
            if middle and key not in self.keep:
                found[key] = _draw(trial, key, Range(low * middle, high * middle, log))
        return Candidate(**found)

    def default(self, name: str) -> dict[str, Any]:
        """The first trial of a loss, in Optuna's names: default hyperparameters and rates, scaled with the usual τ."""
        params = {f"{name}.{key}": registry.defaults(name)[key] for key in RANGES.get(name, {})}
        rates = {key: getattr(self.base, key) for key in FACTORS}
        return {"loss": name, **params, "fix": "scale", "tau": min(TAU, self.most_tau), **rates}

    @property
    def most_tau(self) -> float:
        """|E[Δ]|, rounded down to two digits."""
        return math.floor(-100 * expected_initial_margin(self.num_classes)) / 100


def _draw(trial: Trial, name: str, span: Range) -> float:
    if span.whole:
        return float(trial.suggest_int(name, int(span.low), int(span.high)))
    return float(f"{trial.suggest_float(name, span.low, span.high, log=span.log):.3g}")  # three digits are readable
