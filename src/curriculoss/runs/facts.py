"""What a run records about itself: its data, network, fix, environment and result."""

import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import nn

from curriculoss._facts import Facts
from curriculoss.data import InputFormat
from curriculoss.fixing import FixPlan


@dataclass(frozen=True)
class NetworkFacts(Facts):
    """What is recorded about a user's own network."""

    class_name: str
    parameters: Mapping[str, tuple[int, ...]]  # the shape of each

    @classmethod
    def of(cls, network: nn.Module) -> "NetworkFacts":
        shapes = {name: tuple(each.shape) for name, each in network.named_parameters()}
        return cls(f"{type(network).__module__}.{type(network).__qualname__}", shapes)


@dataclass(frozen=True)
class TaskFacts(Facts):
    """The data of a run (task.json). Older runs lack the fields that have a default."""

    fingerprint: str  # equal for equal samples and labels
    num_classes: int
    class_names: tuple[str, ...]
    train: int  # number of samples
    test: int
    input_format: InputFormat | None = None  # what the network expects
    own_network: NetworkFacts | None = None  # None for a network of this package


@dataclass(frozen=True)
class FixFacts(Facts):
    """What a fix did to the loss of a run; see `FixPlan`."""

    method: str
    alpha: float | None
    beta: float | None
    margin: float
    applied: bool
    reason: str

    @classmethod
    def of(cls, plan: FixPlan) -> "FixFacts":
        """A plan without its curriculum; alpha is None if it is infinite, as with two classes."""
        alpha = plan.alpha if plan.alpha is not None and math.isfinite(plan.alpha) else None
        return cls(plan.method, alpha, plan.beta, plan.margin, plan.applied, plan.reason)


@dataclass(frozen=True, kw_only=True)
class Result(Facts):
    """The metrics of a run's last epoch, and what was trained (result.json). Older runs lack some fields."""

    train_accuracy: float | None = None  # in percent, on the given labels
    test_accuracy: float | None = None
    train_loss: float | None = None
    snr: float | None = None  # weight_clean / weight_noisy
    mean_weight: float | None = None
    effective_learning_rate: float | None = None
    mean_margin: float | None = None
    weight_clean: float | None = None
    weight_noisy: float | None = None
    spec: str = ""  # its hash
    loss: str = ""
    loss_version: int = 1
    noise: str = ""
    noise_rate: float | None = None  # share of the given labels that are wrong, if known
    network: str = ""
    parameters: int = 0
    epochs: int = 0
    seed: int = 0
    note: str = ""  # remarks about the fix and about settings without effect
    fix_plan: FixFacts | None = None  # None if no fix was asked for, and in older runs
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainResult(Result):
    """What `train` returns: the result of a run, and how it came about."""

    run: Path
    resumed_from_epoch: int | None  # None if it was trained from the beginning
    already_finished: bool  # nothing was trained


@dataclass(frozen=True)
class Divergence(Facts):
    """When and why training diverged (failed.json)."""

    epoch: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        return "diverged" if self.epoch is None else f"diverged in epoch {self.epoch:g}"


@dataclass(frozen=True, kw_only=True)
class Environment(Facts):
    """What metrics may depend on beside the spec (environment.json)."""

    curriculoss: str | None = None
    torch: str | None = None
    python: str | None = None
    machine: str | None = None
    system: str | None = None
    cores: int | None = None
    threads: int | None = None
    cuda: str | None = None  # the name of the device
    started: str | None = None
    command: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> "Environment":
        """The environment of this process."""
        from curriculoss import __version__

        return cls(
            curriculoss=__version__, torch=torch.__version__, python=platform.python_version(),
            machine=platform.machine(), system=platform.platform(), cores=os.cpu_count(),
            threads=torch.get_num_threads(), command=tuple(sys.argv),
            cuda=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
