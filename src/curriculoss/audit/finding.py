"""`audit`: data in, suspicious labels out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from curriculoss.audit import score as scores_of
from curriculoss.audit.estimate import NoiseEstimate, estimate_noise
from curriculoss.audit.reading import Source, read
from curriculoss.audit.recipe import kind_of, recipe
from curriculoss.audit.trajectories import AFTER, Recorder, Trajectories, look
from curriculoss.training import Run, RunSpec, train
from curriculoss.training.loop import Progress
from curriculoss.training.task import Task, make_network, make_task


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What was found, one entry a sample. `scores` are high where a label is suspicious."""

    scores: NDArray[np.float64]
    given: NDArray[Any]  # labels as the data have them
    suggested: NDArray[Any]  # the best label beside the given one
    index: NDArray[np.int64]  # where each sample is in the input: itself, unless some were left out
    classes: NDArray[Any]  # every label there is, in the order of `noise.confusion`
    noise: NoiseEstimate
    trajectories: Trajectories
    wrong: NDArray[np.bool_] | None = None  # which labels are wrong, in trials where that is known

    def __repr__(self) -> str:
        low, high = self.interval
        return f"Audit({len(self)} samples, noise rate {self.noise_rate:.3f} ({low:.3f} to {high:.3f}))"

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def p_wrong(self) -> NDArray[np.float64]:
        """The estimated probability that a label is wrong, which rises with the score."""
        return self.noise.p_wrong

    @property
    def noise_rate(self) -> float:
        return self.noise.rate

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, of the noise rate."""
        return self.noise.interval

    @property
    def confusion(self) -> NDArray[np.float64]:
        """(K, K): the estimated probability of each given label (column) for samples of each true class (row)."""
        return self.noise.confusion

    @property
    def predicted(self) -> float:
        """The share of the labels that the network predicted in the last epoch."""
        return float((self.trajectories.hard[-1] > 0).mean())

    @property
    def learned_little(self) -> bool:
        """Whether scores and estimate may say little: the network predicts less than half of the labels, or is nearer
        to always guessing the most frequent one than to predicting all that are right by the estimate."""
        guess = float(np.unique(self.given, return_counts=True)[1].max()) / len(self)
        return self.predicted < max(0.5, (guess + 1 - self.noise_rate) / 2)

    @property
    def ranked(self) -> NDArray[np.int64]:
        """All samples, most suspicious first."""
        return np.argsort(-self.scores, kind="stable")

    @property
    def suspects(self) -> NDArray[np.int64]:
        """The samples to look at, most suspicious first: as many as labels are estimated to be wrong, or more."""
        likely = int((self.p_wrong > 0.5).sum())
        return self.ranked[: min(len(self), max(likely, int(np.ceil(self.noise_rate * len(self)))))]


def audit(
    data: Any,
    labels: Any = None,
    *,
    out: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    score: str = scores_of.DEFAULT,
    data_dir: Path | str | None = None,
    download: bool = False,
    workers: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Find the labels that are probably wrong, by one training run over all samples.

    `data` are features or images as an array or tensor, with `labels` of any kind that can be told apart; or a Dataset;
    or a name or path as of `curriculoss train`, or of an .npy file of features with `labels` (or their file) beside it.
    The run is kept in the folder `out`, where it is not done again, and forgotten if there is none. `settings` are
    fields of a RunSpec for those who want another network, or noise for a trial; nothing needs to be set.

    >>> import torch
    >>> from curriculoss.audit import audit
    >>> features = torch.randn(200, 8)
    >>> found = audit(features, ["left" if row[0] < 0 else "right" for row in features], settings={"epochs": 2})
    >>> found.suspects.tolist() == found.ranked[: len(found.suspects)].tolist()
    True
    """
    source = read(data, labels, label=(settings or {}).get("label"), data_dir=data_dir, download=download)
    with nullcontext(out) if out is not None else tempfile.TemporaryDirectory() as folder:
        assert folder is not None
        with torch.random.fork_rng():  # the caller's random numbers stay as they would have been
            return examine(source, Path(folder), settings or {}, score=score, workers=workers, progress=progress)


def examine(
    source: Source, folder: Path, settings: Mapping[str, Any], *, score: str, workers: int = 0,
    accelerator: str = "auto", progress: Progress | None = None,
) -> Audit:  # fmt: skip
    """Train in the folder, or go on, or read what is there; then score."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("an audit runs in one process: start it without torchrun")
    if score not in scores_of.SCORES:
        raise ValueError(f"unknown score {score!r}, expected one of {', '.join(scores_of.SCORES)}")
    spec, dataset = make_spec(source, settings), source.dataset
    task = make_task(spec, dataset=dataset)
    recorder = Recorder(folder, len(task.train), spec.epochs)
    train(spec, folder, dataset=dataset, watcher=recorder, workers=workers, accelerator=accelerator, progress=progress)
    if not (folder / f"{AFTER}.npz").exists():
        _look(spec, task, folder, workers)
    run = Run(folder)
    seen = Trajectories.read(run)
    return Audit(
        scores=scores_of.score(seen, score),
        given=source.classes[task.given.numpy()],
        suggested=source.classes[run.arrays(AFTER)["suggested"]],
        index=source.index[task.index.numpy()],
        classes=source.classes,
        noise=estimate_noise(run, score),
        trajectories=Trajectories(np.array(seen.soft), np.array(seen.hard), seen.after),  # the files may go
        wrong=None if task.clean is None else (task.clean != task.given).numpy(),
    )


def make_spec(source: Source, settings: Mapping[str, Any]) -> RunSpec:
    """The recipe for these data, and what is to be otherwise."""
    dataset = source.dataset
    count = min(len(dataset.train), int(settings.get("subset") or len(dataset.train)))
    chosen = recipe(count, kind_of(dataset)) | dict(settings)
    if "epochs" in settings:
        chosen["test_every"] = settings["epochs"]
    return RunSpec.from_dict({"data": source.name, **chosen})


def _look(spec: RunSpec, task: Task, folder: Path, workers: int) -> None:
    network = make_network(spec, task)
    network.load_state_dict(load_file(folder / "model.safetensors"))
    plain = RunSpec.from_dict({**spec.as_dict(), "augment": "none", "batch_size": 1024})
    look(network, task.batches(plain, torch.device("cpu"), workers=workers), folder)
