"""RunSpec: everything that decides how a run comes out, as one frozen value for JSON, TOML and a file name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import curriculoss.noise as noise_kinds
from curriculoss.auto import ENDS_AS
from curriculoss.curricula import Curriculum, registry
from curriculoss.data.batches import AUGMENTATIONS
from curriculoss.initial import METHODS
from curriculoss.regularized import Regularized

SCHEDULES: Mapping[str, Callable[[RunSpec, float], float]] = {
    # The learning rate as a share of the first, given the epochs done (also parts of one).
    "constant": lambda spec, done: 1.0,
    "cosine": lambda spec, done: 0.5 * (1 + math.cos(math.pi * done / spec.epochs)),
    "step": lambda spec, done: spec.step_factor ** sum(done >= at for at in spec.step_epochs),
    "warmup": lambda spec, done: _warmup(spec, done),
}
NEWER = {"test": None, "test_every": 1}  # settings that came later, and what was so before
AUTO = "auto"  # `AutoLoss`, which is no loss of the registry: it depends on the number of classes
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "64-true")
AUGMENTS = ("auto", *AUGMENTATIONS)


def _warmup(spec: RunSpec, done: float) -> float:
    """Up in a straight line, then down by a cosine."""
    if done < spec.warmup_epochs:
        return done / spec.warmup_epochs
    rest = max(1e-9, spec.epochs - spec.warmup_epochs)
    return 0.5 * (1 + math.cos(math.pi * (done - spec.warmup_epochs) / rest))


@dataclass(frozen=True)
class RunSpec:
    """What to run. Specs that are equal have the same hash and, on one machine, the same metrics to the last bit."""

    data: str = "digits"
    label: str | None = None  # the label column of a table
    test: str | None = None  # a path of the same kind as `data` with the test samples
    subset: int | None = None  # so many training samples, the same for every seed
    holdout: float = 0.2  # share of the training samples kept as a test set where the data have none; 0: no test
    noise: str = "clean"
    noise_seed: int | None = None  # None: the run's own
    exact_noise: bool = True
    loss: str = "ce"
    params: Mapping[str, float] = field(default_factory=dict)
    normalize: bool = True
    fix: str | None = None
    tau: float | None = None
    initial_margin: str = "expected"  # or "measured"
    network: str = "auto"
    width: float = 1.0
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: str = "cosine"
    step_epochs: tuple[int, ...] = ()
    step_factor: float = 0.1
    warmup_epochs: float = 1.0
    clip_norm: float | None = None
    augment: str = "auto"
    patience: int | None = None  # stop when the training loss has not improved for so many epochs
    test_every: int = 1  # epochs from one test to the next; the last epoch is always tested
    seed: int = 0
    precision: str = "32-true"

    def __post_init__(self) -> None:
        _coerce(self)
        number_of = {"epochs": 1, "batch_size": 2, "test_every": 1, "seed": 0}
        for name in ("subset", "patience", "noise_seed"):
            if getattr(self, name) is not None:
                number_of[name] = 0 if name == "noise_seed" else 1
        for name, least in number_of.items():
            self._expect(getattr(self, name) >= least, name, f"a whole number >= {least}")
        for name in ("width", "learning_rate", "step_factor"):
            self._expect(0 < getattr(self, name) < math.inf, name, "a finite number > 0")
        for name in ("weight_decay", "warmup_epochs"):
            self._expect(0 <= getattr(self, name) < math.inf, name, "a finite number >= 0")
        for name, limit in (("width", 1e6), ("learning_rate", 1e30), ("weight_decay", 1e30)):
            self._expect(getattr(self, name) < limit, name, f"a number below {limit:g}")  # what torch can bear
        self._expect(0 <= self.momentum < 1, "momentum", "0 <= momentum < 1")
        self._expect(0 <= self.holdout < 1, "holdout", "0 <= holdout < 1")
        self._expect(self.seed < 2**63 and (self.noise_seed or 0) < 2**63, "seed", "a number below 2**63")
        self._expect(self.clip_norm is None or 0 < self.clip_norm < math.inf, "clip_norm", "a finite number > 0")
        self._expect(all(0 < x for x in self.step_epochs), "step_epochs", "epochs > 0")
        self._expect(bool(self.data.strip()), "data", "a data set or a path")
        choices = {
            "schedule": tuple(SCHEDULES),
            "precision": PRECISIONS,
            "augment": AUGMENTS,
            "initial_margin": ("expected", "measured"),
            "fix": (None, *METHODS),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                known = registry.suggestion(str(getattr(self, name)), [x for x in allowed if x])
                raise ValueError(f"unknown {name} {getattr(self, name)!r}{known}")
        if self.tau is not None and self.fix in (None, "logit-bias"):
            raise ValueError("tau belongs to a fix: add fix 'scale' or 'shift'")
        least = self.tau is None or self.tau > 0 or (self.tau == 0 and self.fix == "shift")
        self._expect(least and (self.tau or 0) < math.inf, "tau", "a finite number > 0 (shift: or 0)")
        if self.schedule == "step" and not self.step_epochs:
            raise ValueError("schedule 'step' expects step_epochs, after which the learning rate falls, got none")
        for name, schedule in (("step_epochs", "step"), ("step_factor", "step"), ("warmup_epochs", "warmup")):
            if self.schedule != schedule and getattr(self, name) != getattr(RunSpec, name):
                raise ValueError(f"{name} belongs to schedule {schedule!r}, got schedule {self.schedule!r}")
        noise_kinds.parse(self.noise)
        if self.loss == AUTO and (self.params or self.fix is not None or not self.normalize):
            raise ValueError(f"loss {AUTO!r} sets itself: leave out its params, fix and normalize")
        loss = self.make_loss()
        if self.fix is not None and not isinstance(loss, Curriculum):
            raise ValueError(f"fix works on curricula, functions of the margin alone such as mae, got {self.loss!r}")

    def _expect(self, holds: bool, name: str, what: str) -> None:
        if not holds:
            raise ValueError(f"{name} expects {what}, got {getattr(self, name)!r}")

    def make_loss(self) -> Curriculum | Regularized:
        """The loss by name, not fixed yet; of "auto", what it comes to."""
        if self.loss == AUTO:
            return ENDS_AS
        known = registry.available()
        if isinstance(self.loss, str) and self.loss.lower() not in known:
            raise ValueError(f"unknown loss {self.loss!r}{registry.suggestion(self.loss.lower(), (AUTO, *known))}")
        loss: Curriculum | Regularized = registry.get(self.loss, **self.params)
        return loss

    def rate_at(self, done: float) -> float:
        """The learning rate when so many epochs are done."""
        return self.learning_rate * SCHEDULES[self.schedule](self, done)

    @property
    def loss_name(self) -> str:
        """`gce q=0.5, scale 2.6`: what tables call it."""
        given = " ".join(f"{key}={value:g}" for key, value in self.params.items())
        fix = "" if self.fix is None else f", {self.fix}" + ("" if self.tau is None else f" {self.tau:g}")
        return f"{self.loss} {given}".strip() + fix

    @property
    def hash(self) -> str:
        """Of the content: names the run. Settings that older runs did not have count only where they are used."""
        plain = {key: value for key, value in self.as_dict().items() if NEWER.get(key, ...) != value}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {**plain, "params": dict(sorted(self.params.items())), "step_epochs": list(self.step_epochs)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def to_toml(self) -> str:
        """What is None is left out, as TOML has no word for it."""
        plain = self.as_dict()
        params = plain.pop("params")
        lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items() if value is not None]
        return "\n".join([*lines, "", "[params]", *(f"{k} = {json.dumps(v)}" for k, v in params.items())]) + "\n"

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> RunSpec:
        if not isinstance(given, Mapping):
            raise ValueError(f"a spec is an object of names and values, got {type(given).__name__}")
        names = [each.name for each in dataclasses.fields(cls)]
        for key in given:
            if key not in names:
                raise ValueError(f"unknown key {key!r} in the spec{registry.suggestion(str(key), names)}")
        return cls(**given)

    @classmethod
    def read(cls, path: Path | str) -> RunSpec:
        """From a .json or .toml file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
            plain = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
        except OSError as error:
            raise ValueError(f"cannot read the spec {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:  # of both formats, and of text that is not UTF-8
            raise ValueError(f"cannot read the spec {path}: {str(error).splitlines()[0]}") from None
        try:
            return cls.from_dict(plain)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None


def _coerce(spec: RunSpec) -> None:
    """Check every field's type, and bring what fits to the declared one, so that equal means equal."""
    hints = _hints()
    for each in dataclasses.fields(spec):
        value = getattr(spec, each.name)
        kinds = [hints[each.name]]
        if get_origin(kinds[0]) in (Union, types.UnionType):
            kinds = list(get_args(kinds[0]))
        for kind in kinds:
            fitting = _fit(value, kind)
            if fitting is not NotImplemented:
                object.__setattr__(spec, each.name, fitting)
                break
        else:
            words = " or ".join("nothing" if kind is type(None) else getattr(kind, "__name__", "?") for kind in kinds)
            raise ValueError(f"{each.name} expects {words}, got {value!r}")


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(RunSpec)


def _fit(value: Any, kind: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float:
        return float(value) if number and (isinstance(value, float) or abs(value) < 2**53) else NotImplemented
    if kind is int:
        whole = number and (isinstance(value, int) or (math.isfinite(value) and value == int(value)))
        return int(value) if whole and abs(value) <= 2**64 else NotImplemented
    if get_origin(kind) is tuple:
        whole = isinstance(value, (list, tuple)) and all(_fit(x, int) is not NotImplemented for x in value)
        return tuple(int(x) for x in value) if whole else NotImplemented
    if get_origin(kind) is Mapping:
        fits = isinstance(value, Mapping) and all(isinstance(k, str) and _fit(v, float) is not NotImplemented
                                                  for k, v in value.items())  # fmt: skip
        return {k: float(value[k]) for k in sorted(value)} if fits else NotImplemented  # one order, one name
    return value if isinstance(value, kind) else NotImplemented


_PAPER: Mapping[str, Mapping[str, Any]] = {
    "mnist": {"network": "cnn4", "learning_rate": 0.01, "weight_decay": 1e-3, "epochs": 50},
    "cifar10": {"network": "cnn8", "learning_rate": 0.01, "weight_decay": 1e-4, "epochs": 120},
    "cifar100": {"network": "resnet34", "learning_rate": 0.1, "weight_decay": 1e-5, "epochs": 200},
    "webvision": {
        "data": "webvision-50",
        "network": "resnet50",
        "learning_rate": 0.2,
        "weight_decay": 3e-5,
        "epochs": 250,
    },
}


def preset(name: str, **changes: Any) -> RunSpec:
    """The paper's settings for a data set (SGD, momentum 0.9, batch 128, cosine), with changes."""
    if name not in _PAPER:
        raise ValueError(f"unknown preset {name!r}{registry.suggestion(str(name), _PAPER)}")
    return RunSpec.from_dict({"data": name, **_PAPER[name], **changes})


def presets() -> tuple[str, ...]:
    return tuple(_PAPER)
