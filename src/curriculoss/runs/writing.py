"""The run folder as a callback: a checkpoint per epoch, metrics that grow with it, and the results at the end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from curriculoss import _files
from curriculoss._text import first_line
from curriculoss.errors import RunError
from curriculoss.fitting import Callback, EpochResult, Loop
from curriculoss.monitor import Histogram
from curriculoss.runs.facts import Environment, FixFacts, Result, TaskFacts
from curriculoss.runs.folder import Run
from curriculoss.runs.spec import RunSpec
from curriculoss.runs.task import Training, network_name

CHECKPOINT = "checkpoint.pt"  # what the next epoch needs, so that an interrupted run goes on to the bit
HISTOGRAMS = ("all", "clean", "noisy")


class RunWriter(Callback):
    """Keeps a run in its folder, and resumes it from there. The first of several processes writes; all of them read.

    It has to be the last callback that keeps anything: its checkpoint holds the state of all others.
    """

    def __init__(self, folder: Path, training: Training) -> None:
        self.folder, self.training, self.fabric = folder, training, training.fabric
        self.writes = self.fabric.is_global_zero
        self.rows: list[dict[str, Any]] = []
        self.histograms: dict[str, list[Tensor]] = {}
        self.resumed_from: int | None = None

    def on_fit_begin(self, loop: Loop) -> None:
        self.loop, spec, facts = loop, self.training.spec, self.training.facts()
        state = _load_checkpoint(self.folder, spec)
        if state is not None:
            expect_same(self.folder, facts)
        self.fabric.barrier()  # nobody writes before all have read
        if self.training.note:
            loop.note(self.training.note)
        if state is not None:
            with _reading_checkpoint(self.folder):
                loop.load_state_dict(state)
            self.resumed_from = len(self.rows)
            if self.writes:  # the run may have been killed between the checkpoint and these
                self._write_records()
            loop.note(f"going on after epoch {len(self.rows)}")
        elif self.writes:
            self._begin(facts)

    def on_epoch_end(self, result: EpochResult) -> None:
        spec, record = self.training.spec, self.training.monitoring.epochs[-1]
        self.rows.append({**record.as_dict(), "train_accuracy": 100 * (record.accuracy or 0.0), **asdict(result)})
        for key in HISTOGRAMS:
            self.histograms.setdefault(key, []).append(getattr(record.histogram, key).cpu())
        if self.writes:
            # The checkpoint first: everything else can be made from it.
            state = {"spec": spec.hash, "loss_version": spec.loss_version, **self.loop.state_dict()}
            _files.write(self.folder / CHECKPOINT, partial(torch.save, state), buffered=True)
            self._write_records()
            (self.folder / "failed.json").unlink(missing_ok=True)
        self.fabric.barrier()

    def on_fit_end(self) -> None:
        if self.writes:
            _files.write_arrays(self.folder / "samples.npz", vars(self.training.monitoring.monitor.samples()))
            state = self.training.network.state_dict()
            # Copies: weights that share memory, as tied ones of the user's own network do, are refused otherwise.
            weights = {
                key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in state.items()
            }
            _files.write(self.folder / "model.safetensors", lambda file: file.write(to_safetensors(weights)))
            _files.write_json(self.folder / "result.json", self.result().as_dict())
            (self.folder / CHECKPOINT).unlink(missing_ok=True)
        self.fabric.barrier()

    def result(self) -> Result:
        """The metrics of the last epoch, and what was trained."""
        spec, task, plan = self.training.spec, self.training.task, self.training.plan
        known = {
            "spec": spec.hash, "loss": spec.loss_name, "loss_version": spec.loss_version, "noise": spec.noise,
            "noise_rate": task.noise_rate, "network": network_name(spec, task), "epochs": len(self.rows),
            "parameters": sum(each.numel() for each in self.training.network.parameters()), "seed": spec.seed,
            "note": self.training.note, "fix_plan": None if plan is None else FixFacts.of(plan),
            "seconds": sum(row["train_seconds"] + row["test_seconds"] for row in self.rows),
        }  # fmt: skip
        return Result.from_dict(self.rows[-1] | known)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "histograms": self.histograms}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.histograms = list(state["rows"]), dict(state["histograms"])

    def _begin(self, facts: TaskFacts) -> None:
        task = self.training.task
        labels = {"index": task.index, "given": task.given} | ({} if task.clean is None else {"clean": task.clean})
        _files.write_arrays(self.folder / "labels.npz", labels)
        _files.write_json(self.folder / "task.json", facts.as_dict())
        _files.write_json(self.folder / "environment.json", Environment.here().as_dict())
        _files.write_text(self.folder / "spec.json", self.training.spec.to_json())

    def _write_records(self) -> None:
        lines = (json.dumps(row, allow_nan=False) + "\n" for row in self.rows)
        _files.write_text(self.folder / "metrics.jsonl", "".join(lines))
        stacked = {key: torch.stack(each) for key, each in self.histograms.items()}
        _files.write_arrays(self.folder / "histograms.npz", {"edges": Histogram.edges(), **stacked})


def _load_checkpoint(folder: Path, spec: RunSpec) -> dict[str, Any] | None:
    """The checkpoint in a folder, or None. Nothing in the file is ever executed."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    with _reading_checkpoint(folder):
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["spec"] != spec.hash:
            raise RunError(f"{path} belongs to another run; delete it to begin again")
        expect_version(path, spec, state.get("loss_version", 1))
        if "callbacks" not in state:
            raise RunError(f"{path} was made by an older version of curriculoss; delete it to begin again")
    return state


@contextmanager
def _reading_checkpoint(folder: Path) -> Iterator[None]:
    """Turn any error of a broken checkpoint into a one-line RunError."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:  # a broken zip, a foreign pickle, a missing key: each has an error of its own
        said = first_line(error)[:120]
        raise RunError(f"cannot read {folder / CHECKPOINT} ({said}); delete it to begin again") from None


def expect_version(path: Path, spec: RunSpec, version: int) -> None:
    """RunError if the file was written when the same loss meant something else."""
    if version != spec.loss_version:
        raise RunError(
            f"{path} was made by version {version} of loss {spec.loss!r}, which is now at version {spec.loss_version}; "
            "give another folder, or delete this one to train again"
        )


def expect_same(folder: Path, facts: TaskFacts) -> None:
    """RunError if the run in the folder was made from other data, or with another network of the user's own."""
    there = Run(folder).task
    if there is not None and there.fingerprint != facts.fingerprint:
        raise RunError(f"{folder} was made from other data; give another folder")
    if there is not None and facts.own_network is not None and there.own_network != facts.own_network:
        raise RunError(f"{folder} was made with another network than {facts.own_network.class_name}; give that one")


class TensorBoard(Callback):
    """Writes the numbers of each epoch to TensorBoard files in the run's folder."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer

    def on_fit_begin(self, loop: Loop) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # All epochs anew: the run may have been killed between the checkpoint of one and its numbers here.
        self.board = SummaryWriter(str(self.writer.folder / "tensorboard"), purge_step=1)
        self._add(self.writer.rows)

    def on_epoch_end(self, result: EpochResult) -> None:
        self._add(self.writer.rows[-1:])

    def _add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for key, value in row.items():
                if isinstance(value, (int, float)):
                    self.board.add_scalar(key, value, row["epoch"])
        self.board.flush()
