"""From a spec to what a loop needs: samples with given and clean labels, a network, a criterion."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from curriculoss import data, models, noise
from curriculoss.auto import AutoLoss
from curriculoss.curricula import Curriculum
from curriculoss.data import Dataset, Images, Split
from curriculoss.data.batches import Batches
from curriculoss.initial import TAU, fix, measure_initial_margins
from curriculoss.loss import RobustLoss
from curriculoss.training.spec import AUTO, RunSpec

MEASURED = 2_048  # samples whose margins are measured for the fix
HASHED = 2**28  # bytes of inputs that a fingerprint is made of; of more, every so many samples


@dataclass(frozen=True, eq=False)
class Task:
    """Data ready to train on. `given` are the labels to learn, `clean` the true ones where they are known."""

    dataset: Dataset
    train: Split
    test: Split  # perhaps without samples
    index: Tensor  # where each training sample is in the data as read
    given: Tensor
    clean: Tensor | None

    @property
    def noise_rate(self) -> float | None:
        return None if self.clean is None else float((self.given != self.clean).double().mean())

    def facts(self) -> dict[str, Any]:
        """What a run keeps about its data; `fingerprint` tells whether others are the same."""
        names = self.dataset.class_names
        digest = hashlib.sha256(json.dumps(names).encode())
        for split in (self.train, self.test):
            for part in _content(split):
                digest.update(part)
        for labels in (self.given, self.clean):
            digest.update(b"" if labels is None else labels.numpy().tobytes())
        return {
            "fingerprint": digest.hexdigest(), "num_classes": len(names), "class_names": list(names),
            "train": len(self.train), "test": len(self.test),
        }  # fmt: skip

    def batches(self, spec: RunSpec, device: torch.device, rank: int = 0, size: int = 1, workers: int = 0) -> Batches:
        augment = self.dataset.augment if spec.augment == "auto" else spec.augment
        return self._batches(
            self.train, self.given, spec, device, rank, size, workers, augment=augment, shuffle=True, seed=spec.seed
        )

    def test_batches(self, spec: RunSpec, device: torch.device, rank: int = 0, size: int = 1) -> Batches:
        return self._batches(self.test, self.test.target, spec, device, rank, size)

    def _batches(
        self, split: Split, target: Tensor, spec: RunSpec, device: torch.device, rank: int, size: int,
        workers: int = 0, augment: str = "none", shuffle: bool = False, seed: int = 0,
    ) -> Batches:  # fmt: skip
        return Batches(
            split, target, batch_size=spec.batch_size, mean=self.dataset.mean, std=self.dataset.std, augment=augment,
            padding=self.dataset.padding, shuffle=shuffle, seed=seed, device=device, rank=rank, world_size=size,
            workers=workers,
        )  # fmt: skip


def _content(split: Split) -> Iterator[bytes]:
    """Labels, shape and numbers; of image files that are not decoded yet, names and sizes."""
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
    """Read the data, unless they are given; choose the subset, draw the noise."""
    found = dataset or data.load(spec.data, data_dir=data_dir, download=download, label=spec.label, test=spec.test)
    train, test, index = found.train, found.test, torch.arange(len(found.train))
    shuffled = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))  # the same for every seed
    if test is None:
        if not spec.holdout and dataset is None:  # an audit brings its data, and looks at every sample
            raise ValueError("holdout expects 0 < holdout < 1 where the data have no test samples, got 0")
        count = max(1, round(spec.holdout * len(train))) if spec.holdout else 0
        if count >= len(train):
            raise ValueError(f"{spec.data} has {len(train)} samples, too few to keep some for testing")
        test, shuffled = train.take(shuffled[:count].sort().values), shuffled[count:]
    if spec.subset is not None:
        if spec.subset > len(shuffled):
            raise ValueError(f"subset expects at most the {len(shuffled)} training samples, got {spec.subset}")
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
    if test.clean is not None:  # accuracy is about the truth
        test = replace(test, target=test.clean)
    return Task(found, train, test, index, given, clean)


def make_network(spec: RunSpec, task: Task) -> nn.Module:
    """From the run's seed, the same on every device."""
    torch.manual_seed(spec.seed)
    return models.make_network(network_name(spec, task), task.dataset.shape, task.dataset.num_classes, width=spec.width)


def network_name(spec: RunSpec, task: Task) -> str:
    """As asked for; "auto" is an mlp for features, and for images cnn4, cnn8 or resnet50 by their size."""
    if spec.network != "auto":
        return spec.network
    shape = task.dataset.shape
    if len(shape) == 1:
        return "mlp"
    return "cnn4" if max(shape[1:]) <= 28 else "cnn8" if max(shape[1:]) <= 64 else "resnet50"


def make_criterion(spec: RunSpec, task: Task, network: nn.Module) -> RobustLoss:
    """The loss, fixed for where margins start. What a fix had to say is said again as a warning."""
    if spec.loss == AUTO:
        return AutoLoss(task.dataset.num_classes)
    loss = spec.make_loss()
    if spec.fix is not None:
        assert isinstance(loss, Curriculum)  # the spec has seen to it
        num_classes = task.dataset.num_classes
        tau = None if spec.fix == "logit-bias" else TAU if spec.tau is None else spec.tau
        if spec.initial_margin == "measured" and spec.fix != "logit-bias":
            loss = fix(loss, spec.fix, tau=tau, initial_margin=measured_margins(spec, task, network))
        else:
            loss = fix(loss, spec.fix, tau=tau, num_classes=num_classes)
    return RobustLoss(loss, normalize=spec.normalize)


def measured_margins(spec: RunSpec, task: Task, network: nn.Module) -> Tensor:
    """The network's margins before training, over some batches of the first epoch."""
    device = next(network.parameters()).device
    some = []
    for inputs, target, _ in task.batches(spec, device).epoch(0):
        some.append((inputs, target))
        if len(some) * spec.batch_size >= MEASURED:
            break
    return measure_initial_margins(network, some)


def quietly_fixed(spec: RunSpec, task: Task, network: nn.Module) -> tuple[RobustLoss, str]:
    """The criterion, and what was said about its fix and about settings that have no effect."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        criterion = make_criterion(spec, task, network)
    said = [str(warning.message) for warning in caught]
    if task.dataset.test is not None and spec.holdout not in (0, RunSpec.holdout):
        said.append(f"holdout {spec.holdout:g} has no effect: the data have test samples of their own")
    return criterion, "; ".join(said)
