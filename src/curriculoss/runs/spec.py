"""`RunSpec`: everything that decides the outcome of a run, as one frozen value that JSON and TOML can hold."""

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import curriculoss.noise as noise_kinds
from curriculoss._checks import check_known
from curriculoss._facts import Facts
from curriculoss._text import first_line
from curriculoss.data.batches import AUGMENTATIONS
from curriculoss.errors import InvalidValueError
from curriculoss.fitting import OPTIMIZERS, cosine
from curriculoss.fixing import METHODS
from curriculoss.losses import Curriculum, Loss, registry
from curriculoss.losses.auto import ENDS_AS, AutoLoss

T = TypeVar("T")
SCHEDULES = ("constant", "cosine", "step", "warmup")
# Settings that older runs lack, and their values then.
NEWER = {"test": None, "test_every": 1, "image_size": None, "optimizer": "sgd"}
AUTO = "auto"  # `AutoLoss`, which is not in the registry because it depends on the number of classes
CHOICES: Mapping[str, tuple[str, ...]] = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "precision": ("32-true", "16-mixed", "bf16-mixed", "64-true"),
    "augment": ("auto", *AUGMENTATIONS),
    "initial_margin": ("expected", "measured"),
    "fix": METHODS,
}
LIMITS: Mapping[tuple[str, ...], tuple[Callable[[Any], bool], str]] = {
    ("epochs", "test_every", "subset", "image_size", "patience"): (lambda x: x >= 1, "a whole number >= 1"),
    ("batch_size",): (lambda x: x >= 2, "a whole number >= 2"),
    ("seed", "noise_seed"): (lambda x: 0 <= x < 2**63, "a whole number >= 0 and below 2**63"),
    ("width", "learning_rate", "step_factor", "clip_norm"): (lambda x: 0 < x < math.inf, "a finite number > 0"),
    ("weight_decay", "warmup_epochs"): (lambda x: 0 <= x < math.inf, "a finite number >= 0"),
    ("width",): (lambda x: x < 1e6, "a number below 1e+06"),  # torch fails at more
    ("learning_rate", "weight_decay"): (lambda x: x < 1e30, "a number below 1e+30"),
    ("momentum",): (lambda x: 0 <= x < 1, "0 <= momentum < 1"),
    ("holdout",): (lambda x: 0 <= x < 1, "0 <= holdout < 1"),
    ("step_epochs",): (lambda x: all(0 < each for each in x), "epochs > 0"),
    ("data",): (lambda x: bool(x.strip()), "a data set or a path"),
}
ONLY_WITH = {  # settings that mean nothing unless another has this value
    "step_epochs": ("schedule", "step"),
    "step_factor": ("schedule", "step"),
    "warmup_epochs": ("schedule", "warmup"),
    "momentum": ("optimizer", "sgd"),
}


@dataclass(frozen=True)
class RunSpec(Facts):
    """The settings of a run. Equal specs have the same hash and, on one machine, the same metrics to the bit.

    Example:
        >>> from curriculoss.runs import RunSpec
        >>> RunSpec(data="digits", loss="gce", params={"q": 0.5}, epochs=5).loss_name
        'gce q=0.5'
    """

    data: str = "digits"
    label: str | None = None  # the label column of a table
    test: str | None = None  # a path of the same kind as `data` with the test samples
    subset: int | None = None  # number of training samples, the same ones for every seed
    image_size: int | None = None  # height and width to resize images to; None: as they are
    holdout: float = 0.2  # share of the training samples kept for testing if the data have no test set
    noise: str = "clean"
    noise_seed: int | None = None  # None: that of the run
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
    optimizer: str = "sgd"  # or "adamw"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: str = "cosine"
    step_epochs: tuple[int, ...] = ()
    step_factor: float = 0.1
    warmup_epochs: float = 1.0
    clip_norm: float | None = None
    augment: str = "auto"
    patience: int | None = None  # epochs without a lower training loss after which to stop
    test_every: int = 1  # epochs between tests; the last epoch is always tested
    seed: int = 0
    precision: str = "32-true"

    def __post_init__(self) -> None:
        super().__post_init__()
        for names, (holds, words) in LIMITS.items():
            for name in names:
                if (value := getattr(self, name)) is not None and not holds(value):
                    raise InvalidValueError(f"{name} expects {words}, got {value!r}")
        for name, allowed in CHOICES.items():
            if (value := getattr(self, name)) is not None:
                check_known(name, value, allowed)
        for name, (other, wanted) in ONLY_WITH.items():
            if getattr(self, other) != wanted and getattr(self, name) != getattr(RunSpec, name):
                raise InvalidValueError(f"{name} belongs to {other} {wanted!r}, got {other} {getattr(self, other)!r}")
        if self.schedule == "step" and not self.step_epochs:
            expected = "step_epochs, after which the learning rate falls"
            raise InvalidValueError(f"schedule 'step' expects {expected}, got none")
        noise_kinds.parse(self.noise)
        self._check_loss()

    def _check_loss(self) -> None:
        if self.loss == AUTO and (self.params or self.fix is not None or not self.normalize):
            raise InvalidValueError(f"loss {AUTO!r} sets itself: leave out its params, fix and normalize")
        if self.make_loss().curriculum is None and self.fix is not None:
            expected = "curricula, functions of the margin alone such as mae"
            raise InvalidValueError(f"fix works on {expected}, got {self.loss!r}")
        if self.tau is not None and self.fix in (None, "logit-bias"):
            raise InvalidValueError("tau belongs to a fix: add fix 'scale' or 'shift'")
        least = self.tau is None or self.tau > 0 or (self.tau == 0 and self.fix == "shift")
        if not least or (self.tau or 0) == math.inf:
            raise InvalidValueError(f"tau expects a finite number > 0 (shift: or 0), got {self.tau!r}")

    def __hash__(self) -> int:
        return hash(self.hash)

    def make_loss(self) -> Loss:
        """The loss without a fix; for "auto", what it becomes if labels are clean."""
        if self.loss == AUTO:
            return ENDS_AS
        check_known("loss", self.loss.lower(), (AUTO, *registry.available()))
        loss: Loss = registry.get(self.loss, **self.params)
        return loss

    @property
    def curriculum(self) -> Curriculum | None:
        """The fixed curriculum of the loss before any fix, or None if its weight is not a fixed function of Δ."""
        return None if self.loss == AUTO else self.make_loss().curriculum

    @property
    def loss_version(self) -> int:
        """The version of the loss's rule: results of another version are not those of this spec."""
        return AutoLoss.version if self.loss == AUTO else self.make_loss().version

    def rate_factor(self, done: float) -> float:
        """The learning rate after `done` epochs, as a factor of the initial one."""
        if self.schedule == "step":
            return self.step_factor ** sum(done >= each for each in self.step_epochs)
        warmup = self.warmup_epochs if self.schedule == "warmup" else 0.0
        return 1.0 if self.schedule == "constant" else cosine(done, self.epochs, warmup)

    @property
    def loss_name(self) -> str:
        """The loss with its hyperparameters and fix, such as `gce q=0.5, scale 2.6`."""
        given = " ".join(f"{key}={value:g}" for key, value in self.params.items())
        fix = "" if self.fix is None else f", {self.fix}" + ("" if self.tau is None else f" {self.tau:g}")
        return f"{self.loss} {given}".strip() + fix

    @property
    def hash(self) -> str:
        """A hash of the content, which names the run. Settings that older runs did not have count only if used."""
        plain = {key: value for key, value in self.as_dict().items() if NEWER.get(key, ...) != value}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """The text of spec.json."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def to_toml(self) -> str:
        """The text of a .toml file; settings that are None are left out, since TOML has no word for them."""
        plain = self.as_dict()
        params = plain.pop("params")
        lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items() if value is not None]
        return "\n".join([*lines, "", "[params]", *(f"{k} = {json.dumps(v)}" for k, v in params.items())]) + "\n"

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "RunSpec":
        """The spec of a JSON or TOML object; an unknown key is an error."""
        for key in given if isinstance(given, Mapping) else ():
            check_known("key", key, cls.__dataclass_fields__, " in the spec")
        return super().from_dict(given)

    @classmethod
    def read(cls, path: Path | str) -> "RunSpec":
        """Read a .json or .toml file."""
        return read_settings(Path(path), "spec", cls.from_dict)


def read_settings(path: Path, what: str, parse: Callable[[Any], T]) -> T:
    """What a .json or .toml file means by `parse`; an error calls it by what it is, such as "spec"."""
    try:
        text = path.read_text(encoding="utf-8")
        plain = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except OSError as error:
        raise InvalidValueError(f"cannot read the {what} {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # malformed JSON or TOML, or text that is not UTF-8
        raise InvalidValueError(f"cannot read the {what} {path}: {first_line(error)}") from None
    try:
        return parse(plain)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"{path}: {error}") from None


_PAPER: Mapping[str, Mapping[str, Any]] = {
    "mnist": {"network": "cnn4", "learning_rate": 0.01, "weight_decay": 1e-3, "epochs": 50},
    "cifar10": {"network": "cnn8", "learning_rate": 0.01, "weight_decay": 1e-4, "epochs": 120},
    "cifar100": {"network": "resnet34", "learning_rate": 0.1, "weight_decay": 1e-5, "epochs": 200},
    "webvision": {"network": "resnet50", "learning_rate": 0.2, "weight_decay": 3e-5, "epochs": 250},
}


def preset(name: str, **changes: Any) -> RunSpec:
    """The paper's settings for a data set (SGD, momentum 0.9, batches of 128, cosine), with changes.

    Example:
        >>> from curriculoss.runs import preset
        >>> preset("mnist", epochs=3).network
        'cnn4'
    """
    check_known("preset", name, _PAPER)
    return RunSpec.from_dict({"data": "webvision-50" if name == "webvision" else name, **_PAPER[name], **changes})


def presets() -> tuple[str, ...]:
    """The names that `preset` knows."""
    return tuple(_PAPER)
