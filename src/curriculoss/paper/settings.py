"""The paper's experiments as run specs: its losses, noises and data sets, at three scales.

A cell is one number of a table or one panel of a figure: a loss on a data set with some noise. A scale says what stands
for the paper's data set and how long it is trained; cells that mean the same run share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from curriculoss.paper.published import find
from curriculoss.training.spec import RunSpec, preset

FIXES = ("shift", "scale")


@dataclass(frozen=True)
class Row:
    """A loss as the paper's rows name it; `tau` of a fix, where it is the same for every noise."""

    name: str
    loss: str
    params: Mapping[str, float] = field(default_factory=dict, hash=False)
    fix: str | None = None
    tau: float | None = None
    ours: bool = False  # not in the paper

    def tau_for(self, noise: str) -> float | None:
        """As tuned by the paper on CIFAR-100 for each noise."""
        if self.fix not in FIXES or self.tau is not None:
            return self.tau
        printed = find("table:correct_param", row=self.name, noise=noise, measure="tau")
        if printed is None:
            raise ValueError(f"the paper has no tau for {self.name} with {noise} noise")
        return printed.mean


CE, MAE, NCE = Row("CE", "ce"), Row("MAE", "mae"), Row("NCE", "nce")
GOOD_AUL, BAD_AUL = Row("AUL", "aul", {"a": 1.1, "q": 5.0}), Row("AUL†", "aul", {"a": 3.0, "q": 0.7})
AGCE = Row("AGCE", "agce", {"a": 0.1, "q": 0.1})
NCE_MAE = Row("NCE+MAE", "nce+mae", {"q": 0.3})
NCE_MAE_UNIT = Row("NCE+MAE (MAE × 4)", "nce+mae", {"q": 0.3, "unit": 4.0}, ours=True)
NCE_AUL = Row("NCE+AUL", "nce+aul", {"alpha": 10.0, "beta": 0.015, "a": 6.0, "q": 3.0})
MAE_SCALE, MAE_SHIFT = Row("MAE scale", "mae", fix="scale"), Row("MAE shift", "mae", fix="shift")

UNDERFIT = (
    CE,
    Row("SCE", "sce", {"q": 0.7}),
    Row("GCE", "gce", {"q": 0.3}),
    NCE_MAE,
    NCE_MAE_UNIT,
    GOOD_AUL,
    AGCE,
    NCE,
    MAE,
    BAD_AUL,
    Row("AGCE†", "agce", {"a": 1.6, "q": 2.0}),
)
FIXED = (
    CE,
    Row("GCE", "gce", {"q": 0.7}),
    NCE,
    NCE_AUL,
    AGCE,
    Row("AGCE shift", "agce", AGCE.params, fix="shift"),
    Row("AGCE scale", "agce", AGCE.params, fix="scale"),
    MAE,
    MAE_SHIFT,
    MAE_SCALE,
    Row("MAE logit bias", "mae", fix="logit-bias", ours=True),
)
ROBUST = (
    CE,
    Row("SCE", "sce", {"q": 0.95}),
    Row("GCE", "gce", {"q": 0.4}),
    Row("AUL", "aul", {"a": 2.0, "q": 2.0}),
    MAE,
    Row("AGCE", "agce", {"a": 3.0, "q": 4.0}),
)

CLEAN, HUMAN = "clean", "human"
SYMMETRIC = tuple(f"symmetric:{rate}" for rate in (0.2, 0.4, 0.6, 0.8))
ASYMMETRIC = tuple(f"asymmetric:{rate}" for rate in (0.1, 0.2, 0.3, 0.4))
WEBVISION = MappingProxyType({"webvision-50": 2.0, "webvision-200": 1.8, "webvision-400": 1.6})  # with their tau
TAUS = (2.0, 2.6, 3.0, 4.0)  # that the paper gives scaled MAE on CIFAR-100, the fewer labels are right the larger


@dataclass(frozen=True)
class Cell:
    """One loss on one of the paper's data sets. An experiment may have settings of its own for the data set."""

    row: Row
    data: str
    noise: str = CLEAN
    experiment: str = ""
    learning_rate: float | None = None


def cells(rows: Iterable[Row], data: str, noises: Iterable[str] = (CLEAN,), experiment: str = "") -> list[Cell]:
    """One for each loss and noise."""
    noises = tuple(noises)
    return [Cell(row, data, noise, experiment) for row in rows for noise in noises]


@dataclass(frozen=True)
class Scale:
    """What stands for the paper's data sets, networks and schedules, and how many seeds."""

    name: str
    base: Mapping[str, Mapping[str, Any]]  # by "data/experiment", or by data alone
    seeds: Mapping[str, int] = field(default_factory=dict)  # of artefacts with more than one
    noise: Mapping[str, str] = field(default_factory=dict)  # what stands for the paper's
    _known: dict[tuple[Cell, int], RunSpec] = field(default_factory=dict, init=False, repr=False, compare=False)

    def has(self, cell: Cell) -> bool:
        return cell.data in self.base

    def spec(self, cell: Cell, seed: int = 0) -> RunSpec:
        if (cell, seed) not in self._known:
            self._known[cell, seed] = self._spec(cell, seed)
        return self._known[cell, seed]

    def _spec(self, cell: Cell, seed: int) -> RunSpec:
        given = {**self.base[cell.data], **self.base.get(f"{cell.data}/{cell.experiment}", {})}
        given |= {"noise": self.noise.get(cell.noise, cell.noise), "seed": seed}
        if cell.learning_rate is not None:
            given["learning_rate"] = cell.learning_rate
        row = cell.row
        return RunSpec.from_dict(
            {**given, "loss": row.loss, "params": row.params, "fix": row.fix, "tau": row.tau_for(cell.noise)}
        )


def _paper() -> Scale:
    """Exactly its settings; with constant learning rates on MNIST it does not say for how long, 100 epochs are ours."""
    base = {name: preset(name).as_dict() for name in ("mnist", "cifar10", "cifar100")}
    base |= {name: preset("webvision", data=name).as_dict() for name in WEBVISION}
    return Scale(
        "paper",
        {
            **base,
            "cifar10/underfit": {"learning_rate": 0.1},  # as its caption says
            "mnist/schedules": {"schedule": "constant", "epochs": 100},
        },
        {"table:underfit": 3, "table:fix": 3, "table:fix-symmetric": 3, "table:fix-asymmetric": 3, "table:snr": 5},
    )


def _cpu() -> Scale:
    """Real data and narrow networks, for two cores. What is memorised in 100 epochs takes a few if images are not
    augmented, and steps are many if batches are small; the learning rate is that of the paper for its batch of 128."""
    narrow = {"network": "cnn8", "width": 0.125, "subset": 10_000, "epochs": 10, "batch_size": 32,
              "learning_rate": 0.03, "augment": "none", "test_every": 5}  # fmt: skip
    return Scale(
        "cpu",
        {
            "mnist": {"data": "mnist", "network": "cnn4", "width": 0.5, "subset": 10_000, "learning_rate": 0.01,
                      "weight_decay": 1e-3},
            "mnist/schedules": {"schedule": "constant", "epochs": 100},
            "cifar10": {"data": "cifar10", "weight_decay": 1e-4, **narrow},
            "cifar100": {"data": "cifar100", "weight_decay": 1e-5, **narrow},
        },
        {"table:underfit": 3, "table:fix": 3, "table:snr": 3},
    )  # fmt: skip


def _smoke() -> Scale:
    """Embedded digits: no files, minutes."""
    small = {"network": "cnn4", "width": 0.25, "learning_rate": 0.1}
    many = {"data": "digits-1000", "subset": 2_000, "epochs": 2, **small}
    return Scale(
        "smoke",
        {
            "mnist": {"data": "digits", "subset": 500, "epochs": 4, **small},
            "mnist/schedules": {"schedule": "constant", "epochs": 20},
            "cifar10": {"data": "digits", "epochs": 4, **small},
            "cifar100": {"data": "digits-100", "subset": 3_000, "epochs": 4, **small},
            **dict.fromkeys(WEBVISION, many),
        },
        noise={HUMAN: "instance:0.4"},
    )


SCALES = {scale.name: scale for scale in (_smoke(), _cpu(), _paper())}
