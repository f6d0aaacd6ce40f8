"""The paper's experiments: its losses, noises and data sets.

A cell is one number in a table or one panel of a figure: a loss on a data set with some noise. A scale (`scales`) turns
it into a run; cells that need the same run share it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from curriculoss.errors import InvalidValueError
from curriculoss.losses import registry
from curriculoss.losses.base import Loss
from curriculoss.paper.published import find

TUNED_FIXES = ("shift", "scale")


@dataclass(frozen=True)
class Row:
    """A loss as the paper's rows name it.

    Attributes:
        name: As the paper prints it; † marks inferior hyperparameters.
        loss: Its name in the registry.
        params: Its hyperparameters.
        fix: "shift", "scale" or "logit-bias".
        tau: τ of the fix, where it is the same for every noise.
        ours: Whether the paper has no such row.
    """

    name: str
    loss: str
    params: Mapping[str, float] = field(default_factory=dict, hash=False)
    fix: str | None = None
    tau: float | None = None
    ours: bool = False

    def make_loss(self) -> Loss:
        """The loss, without the fix."""
        loss: Loss = registry.get(self.loss, **self.params)
        return loss

    def tau_for(self, noise: str) -> float | None:
        """τ as the paper tuned it on CIFAR-100 for this noise."""
        if self.fix not in TUNED_FIXES or self.tau is not None:
            return self.tau
        printed = find("table:correct_param", row=self.name, noise=noise, measure="tau")
        if printed is None:
            raise InvalidValueError(f"the paper has no tau for {self.name} with {noise} noise")
        return printed.mean


CE, MAE, NCE = Row("CE", "ce"), Row("MAE", "mae"), Row("NCE", "nce")
GOOD_AUL, BAD_AUL = Row("AUL", "aul", {"a": 1.1, "q": 5.0}), Row("AUL†", "aul", {"a": 3.0, "q": 0.7})
AGCE = Row("AGCE", "agce", {"a": 0.1, "q": 0.1})
NCE_MAE = Row("NCE+MAE", "nce+mae", {"q": 0.3})
NCE_MAE_UNIT = Row("NCE+MAE (MAE × 4)", "nce+mae", {"q": 0.3, "unit": 4.0}, ours=True)
NCE_AUL = Row("NCE+AUL", "nce+aul", {"alpha": 10.0, "beta": 0.015, "a": 6.0, "q": 3.0})
MAE_SCALE, MAE_SHIFT = Row("MAE scale", "mae", fix="scale"), Row("MAE shift", "mae", fix="shift")

UNDERFIT = (
    CE, Row("SCE", "sce", {"q": 0.7}), Row("GCE", "gce", {"q": 0.3}), NCE_MAE, NCE_MAE_UNIT, GOOD_AUL, AGCE, NCE, MAE,
    BAD_AUL, Row("AGCE†", "agce", {"a": 1.6, "q": 2.0}),
)  # fmt: skip
FIXED = (
    CE, Row("GCE", "gce", {"q": 0.7}), NCE, NCE_AUL,
    AGCE, Row("AGCE shift", "agce", AGCE.params, "shift"), Row("AGCE scale", "agce", AGCE.params, "scale"),
    MAE, MAE_SHIFT, MAE_SCALE, Row("MAE logit bias", "mae", fix="logit-bias", ours=True),
)  # fmt: skip
ROBUST = (
    CE, Row("SCE", "sce", {"q": 0.95}), Row("GCE", "gce", {"q": 0.4}), Row("AUL", "aul", {"a": 2.0, "q": 2.0}), MAE,
    Row("AGCE", "agce", {"a": 3.0, "q": 4.0}),
)  # fmt: skip

CLEAN, HUMAN = "clean", "human"
SYMMETRIC = tuple(f"symmetric:{rate}" for rate in (0.2, 0.4, 0.6, 0.8))
ASYMMETRIC = tuple(f"asymmetric:{rate}" for rate in (0.1, 0.2, 0.3, 0.4))
FEW, MANY = "cifar10", "cifar100"  # the paper's data sets with few and with many classes
WEBVISION: Mapping[str, float] = {"webvision-50": 2.0, "webvision-200": 1.8, "webvision-400": 1.6}  # the paper's τ
PLACES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
PLACES |= {name: name.replace("webvision-", "WebVision ") for name in WEBVISION}
STAND_IN = "stand-in"  # an experiment with our own noise on data that stand for WebVision
TAUS = (2.0, 2.6, 3.0, 4.0)  # of scaled MAE on CIFAR-100 in the paper; the more noise, the larger
RATES = (1e-4, 1e-2, 1e-1)  # constant learning rates on MNIST in the paper
MORE_RATES = (1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)


@dataclass(frozen=True)
class Cell:
    """A loss on one of the paper's data sets; an experiment may have its own settings for the data set."""

    row: Row
    data: str
    noise: str = CLEAN
    experiment: str = ""
    learning_rate: float | None = None

    @property
    def ours(self) -> bool:
        """Whether the paper has no such experiment; scales that cannot run it leave it out."""
        return self.experiment == STAND_IN or self.learning_rate not in (None, *RATES)


def cells(rows: Iterable[Row], data: str, noises: Sequence[str] = (CLEAN,), experiment: str = "") -> tuple[Cell, ...]:
    """A cell for each loss and noise."""
    return tuple(Cell(row, data, noise, experiment) for row in rows for noise in noises)
