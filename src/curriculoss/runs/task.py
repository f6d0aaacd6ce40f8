"""From a spec to what trains: `Task`, samples with their labels, and `Training`, with network, loss and monitor."""

import atexit
import gc
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor, nn

from curriculoss import data, models, noise
from curriculoss._checks import check_known
from curriculoss.data import Dataset, Images, Split
from curriculoss.data.batches import Batches
from curriculoss.errors import InvalidValueError
from curriculoss.fitting import Callback, EarlyStopping, EpochResult, MonitorCallback, fit
from curriculoss.fixing import FixPlan, plan_fix
from curriculoss.initial import measure_initial_margins
from curriculoss.losses import Curriculum
from curriculoss.losses.auto import AutoLoss
from curriculoss.losses.criterion import Criterion
from curriculoss.losses.robust import RobustLoss
from curriculoss.models import Network
from curriculoss.monitor import Monitor
from curriculoss.runs.facts import NetworkFacts, TaskFacts
from curriculoss.runs.spec import AUTO, RunSpec

MEASURED_SAMPLES = 2_048  # samples whose margins are measured for the fix
HASHED = 2**28  # bytes of inputs in a fingerprint; larger data are sampled evenly


@dataclass(frozen=True, eq=False)
class Task:
    """Samples ready to train on, with the labels to learn (`given`) and the true ones if known (`clean`)."""

    dataset: Dataset
    train: Split
    test: Split  # may be empty
    index: Tensor  # position of each training sample in the data as read
    given: Tensor
    clean: Tensor | None

    @property
    def noise_rate(self) -> float | None:
        """The share of given labels that are wrong, if known."""
        return None if self.clean is None else float((self.given != self.clean).double().mean())

    def facts(self) -> TaskFacts:
        """What a run records about its data."""
        names = self.dataset.class_names
        digest = hashlib.sha256(json.dumps(names).encode())
        for split in (self.train, self.test):
            for part in _content(split):
                digest.update(part)
        for labels in (self.given, self.clean):
            digest.update(b"" if labels is None else labels.numpy().tobytes())
        counts = len(self.train), len(self.test)
        return TaskFacts(digest.hexdigest(), len(names), names, *counts, self.dataset.input_format)

    def batches(
        self, spec: RunSpec, device: torch.device, rank: int = 0, size: int = 1, *, workers: int = 0, test: bool = False
    ) -> Batches:
        """Batches of the training samples in a new order per epoch, or of the test samples as they are."""
        augment = "none" if test else self.dataset.augment if spec.augment == "auto" else spec.augment
        samples = (self.test, self.test.target) if test else (self.train, self.given)
        return Batches(
            *samples, batch_size=spec.batch_size, mean=self.dataset.mean, std=self.dataset.std, augment=augment,
            padding=self.dataset.padding, shuffle=not test, seed=spec.seed, device=device, rank=rank, world_size=size,
            workers=workers,
        )  # fmt: skip


def _content(split: Split) -> Iterator[bytes]:
    """Labels, shape and numbers; for image files that are not decoded yet, names and sizes."""
    yield split.target.numpy().tobytes()
    if isinstance(split.inputs, Images):
        yield "\n".join(f"{Path(file).name} {Path(file).stat().st_size}" for file in split.inputs.files).encode()
        return
    yield str((split.inputs.dtype, tuple(split.inputs.shape))).encode()
    for some in split.inputs[:: 1 + split.inputs.nbytes // HASHED].split(1024):
        yield some.numpy().tobytes()


def make_task(
    spec: RunSpec, *, data_dir: Path | str | None = None, download: bool = False, dataset: Dataset | None = None
) -> Task:
    """Read the data unless they are given, choose test samples and subset, and draw the noise."""
    found = dataset or data.load(spec.data, data_dir=data_dir, download=download, label=spec.label, test=spec.test)
    if spec.image_size is not None:
        found = found.resized(spec.image_size)
    train, test, index = found.train, found.test, torch.arange(len(found.train))
    shuffled = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))  # the same for every seed
    if test is None:
        if not spec.holdout and dataset is None:  # an audit, which brings its data, needs no test
            raise InvalidValueError("holdout expects 0 < holdout < 1 where the data have no test samples, got 0")
        count = max(1, round(spec.holdout * len(train))) if spec.holdout else 0
        if count >= len(train):
            raise InvalidValueError(f"{spec.data} has {len(train)} samples, too few to keep some for testing")
        test, shuffled = train.take(shuffled[:count].sort().values), shuffled[count:]
    if spec.subset is not None:
        if spec.subset > len(shuffled):
            raise InvalidValueError(f"subset expects at most the {len(shuffled)} training samples, got {spec.subset}")
        shuffled = shuffled[: spec.subset]
    if len(shuffled) < len(train):
        index = shuffled.sort().values
        train = train.take(index)
    truth = train.target if train.clean is None else train.clean
    kind = noise.parse(spec.noise)
    if kind.kind == "clean":
        given, clean = train.target, train.clean
    else:
        if kind.kind == "human" and not found.human and found.human_source:
            raise data.DataError(f"human noise needs {found.human_source}")
        given = noise.corrupt(
            kind, truth, found.num_classes, seed=spec.seed if spec.noise_seed is None else spec.noise_seed,
            exact=spec.exact_noise, flips=found.flips, human={k: v[index] for k, v in found.human.items()},
            default_human=found.default_human, inputs=train.inputs if isinstance(train.inputs, Tensor) else None,
        )  # fmt: skip
        clean = truth
    if test.clean is not None:  # the test is by true labels
        test = replace(test, target=test.clean)
    return Task(found, train, test, index, given, clean)


def make_network(spec: RunSpec, task: Task, own: Network | None = None) -> nn.Module:
    """The network that a spec names, made from the run's seed. A user's own is passed in: a spec imports nothing."""
    torch.manual_seed(spec.seed)
    if own is None and ":" in spec.network:
        own_only = f"only train takes one, as --network {spec.network} or network="
        raise InvalidValueError(f"{spec.network!r} is a network of your own: {own_only}")
    wanted = network_name(spec, task) if own is None else own
    return models.make_network(wanted, task.dataset.shape, task.dataset.num_classes, width=spec.width)


def network_name(spec: RunSpec, task: Task) -> str:
    """The name in the spec; "auto" is mlp for features, and cnn4, cnn8 or resnet50 for images by their size."""
    if spec.network != "auto":
        return spec.network
    shape = task.dataset.shape
    if len(shape) == 1:
        return "mlp"
    return "cnn4" if max(shape[1:]) <= 28 else "cnn8" if max(shape[1:]) <= 64 else "resnet50"


def make_plan(spec: RunSpec, task: Task, network: nn.Module) -> FixPlan | None:
    """What the fix that a spec asks for does to its loss; None if it asks for none."""
    if spec.fix is None:
        return None
    curriculum = spec.make_loss()
    assert isinstance(curriculum, Curriculum)  # the spec has checked it
    if spec.initial_margin == "measured" and spec.fix != "logit-bias":
        batches = task.batches(spec, next(network.parameters()).device).epoch(0)
        some = islice(batches, math.ceil(MEASURED_SAMPLES / spec.batch_size))
        margins = measure_initial_margins(network, [(inputs, target) for inputs, target, _ in some])
        return plan_fix(curriculum, spec.fix, tau=spec.tau, initial_margin=margins)
    return plan_fix(curriculum, spec.fix, tau=spec.tau, num_classes=task.dataset.num_classes)


def make_criterion(spec: RunSpec, task: Task, network: nn.Module, plan: FixPlan | None = None) -> Criterion:
    """The loss of a spec as a module, fixed for where the margins of the network start."""
    if spec.loss == AUTO:
        return AutoLoss(task.dataset.num_classes, group=dist.group.WORLD if dist.is_initialized() else None)
    plan = plan or make_plan(spec, task, network)
    return RobustLoss(spec.make_loss() if plan is None else plan.curriculum, normalize=spec.normalize)


@dataclass(frozen=True, eq=False)
class Training:
    """A task with the network, loss and monitor that a spec asks for; `fit` trains it in memory."""

    spec: RunSpec
    task: Task
    fabric: Fabric
    network: nn.Module
    criterion: Criterion
    plan: FixPlan | None  # of the fix, if one was asked for
    monitoring: MonitorCallback

    @classmethod
    def prepare(cls, spec: RunSpec, task: Task, fabric: Fabric, network: Network | None = None) -> "Training":
        """Make the network from the run's seed, unless it is given, and the loss for where its margins start."""
        if len(task.train) < 2 * fabric.world_size:
            raise InvalidValueError(f"training needs at least {2 * fabric.world_size} samples, got {len(task.train)}")
        made = make_network(spec, task, network)
        plan = make_plan(spec, task, made)
        criterion = make_criterion(spec, task, made, plan)
        if len(task.dataset.shape) == 3:
            made = made.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        monitor = Monitor(
            criterion, num_classes=task.dataset.num_classes, num_samples=len(task.train), device=fabric.device
        )
        return cls(spec, task, fabric, made, criterion, plan, MonitorCallback(monitor, task.clean))

    @property
    def note(self) -> str:
        """Remarks about the fix and about settings without effect, or ""."""
        notes = [] if self.plan is None or self.plan.applied else [self.plan.reason]
        if self.task.dataset.test is not None and self.spec.holdout not in (0, RunSpec.holdout):
            notes.append(f"holdout {self.spec.holdout:g} has no effect: the data have test samples of their own")
        return "; ".join(notes)

    def facts(self) -> TaskFacts:
        """What a run records about its data, and about a network of the user's own."""
        own = NetworkFacts.of(self.network) if ":" in self.spec.network else None
        return replace(self.task.facts(), own_network=own)

    def fit(self, callbacks: Sequence[Callback] = (), *, workers: int = 0) -> list[EpochResult]:
        """Train the network; `callbacks` come after the monitor."""
        spec, place = self.spec, (self.fabric.device, self.fabric.global_rank, self.fabric.world_size)
        test = self.task.batches(spec, *place, workers=workers, test=True) if len(self.task.test) else None
        stopping = [] if spec.patience is None else [EarlyStopping(spec.patience)]
        return fit(
            self.network, self.criterion, self.task.batches(spec, *place, workers=workers), epochs=spec.epochs,
            optimizer=spec.optimizer, learning_rate=spec.learning_rate, momentum=spec.momentum,
            weight_decay=spec.weight_decay, schedule=spec.rate_factor, clip_norm=spec.clip_norm, seed=spec.seed,
            test_batches=test, test_every=spec.test_every, backend=self.fabric,
            callbacks=(self.monitoring, *stopping, *callbacks),
        )  # fmt: skip


def make_fabric(spec: RunSpec, accelerator: str = "auto") -> Fabric:
    """The devices and precision to train with; under torchrun, all its processes."""
    here = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    check_known("accelerator", accelerator, here)
    if not here[accelerator]:
        raise InvalidValueError(f"no {accelerator.upper()} device here; try --accelerator cpu")
    size = int(os.environ.get("WORLD_SIZE", 1))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    processes: Any = {"strategy": "ddp", "devices": local, "num_nodes": size // local} if size > 1 else {"devices": 1}
    fabric = Fabric(accelerator=accelerator, precision=spec.precision, **processes)  # type: ignore[arg-type]  # the spec has checked it
    fabric.launch()
    if size > 1:
        atexit.register(_leave_process_group)
    return fabric


def _leave_process_group() -> None:
    """Stop gloo's threads: a process that ends with them may abort. They stop when nothing refers to the group."""
    gc.collect()  # AutoLoss and DDP do, in cycles with the callbacks
    if dist.is_initialized():
        dist.destroy_process_group()
