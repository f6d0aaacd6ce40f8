"""The loop: plain, short, resumable after any epoch, on whatever devices Fabric finds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from curriculoss import data, noise
from curriculoss.data import Dataset
from curriculoss.data.batches import Batches
from curriculoss.loss import RobustLoss
from curriculoss.monitor import Histogram, Monitor
from curriculoss.training import checkpoint, store
from curriculoss.training.spec import RunSpec
from curriculoss.training.task import Task, make_network, make_task, network_name, quietly_fixed

RESULTS = (
    "train_accuracy", "test_accuracy", "train_loss", "snr", "mean_weight", "effective_learning_rate", "mean_margin",
    "weight_clean", "weight_noisy",
)  # fmt: skip


OURS = (".lock", "labels.npz", "task.json", "environment.json")  # what a run may leave that was stopped before it began
HISTOGRAMS = ("all", "clean", "noisy")


class Progress(Protocol):
    """Who is told how it goes."""

    def said(self, text: str) -> None: ...
    def epoch(self, number: int, epochs: int, steps: int) -> None: ...
    def step(self) -> None: ...
    def row(self, row: dict[str, Any]) -> None: ...


class Silent:
    def said(self, text: str) -> None: ...
    def epoch(self, number: int, epochs: int, steps: int) -> None: ...
    def step(self) -> None: ...
    def row(self, row: dict[str, Any]) -> None: ...


class Watcher(Protocol):
    """Who sees every batch as the network saw it, and may keep what the monitor does not."""

    def batch(self, logits: Tensor, target: Tensor, index: Tensor) -> None: ...
    def end_epoch(self, number: int, monitor: Monitor) -> None:
        """The first is 0. An epoch that was broken off before its checkpoint comes again, with the same batches."""


def train(
    spec: RunSpec,
    out: Path | str,
    *,
    data_dir: Path | str | None = None,
    download: bool = False,
    accelerator: str = "auto",
    workers: int = 0,
    tensorboard: bool = False,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
    watcher: Watcher | None = None,
    wait: bool = False,
) -> dict[str, Any]:
    """Run a spec in the folder `out` and return its result; what is there already is not done again.

    A finished run is only read, and `already_finished` tells. One that was broken off goes on after its last whole
    epoch, with metrics that are bit for bit those of a run that never stopped. Both are refused if the data have
    changed since; of a finished run on a data set known by name, these are not read again. `dataset` is what the spec
    means by its data, for those who have it already. A run that another process writes is an error, or waited for.
    """
    folder, progress = Path(out), progress or Silent()
    fabric = _fabric(spec, accelerator)
    task = partial(make_task, spec, data_dir=data_dir, download=download, dataset=dataset)
    known = partial(_known, folder, spec, task, dataset is not None or _may_have_changed(spec))
    if (result := known()) is not None:
        return result
    if not fabric.is_global_zero:
        return _train(spec, folder, fabric, task, workers, False, Silent(), watcher)
    folder.mkdir(parents=True, exist_ok=True)
    with store.locked(folder, wait=wait):
        if wait and (result := known()) is not None:
            return result
        return _train(spec, folder, fabric, task, workers, tensorboard, progress, watcher)


def _known(folder: Path, spec: RunSpec, task: Callable[[], Task], may_have_changed: bool) -> dict[str, Any] | None:
    """The result of a run that is finished."""
    if not _claimed(folder, spec):
        return None
    result = store.Run(folder).result
    if result.get("spec") != spec.hash or not {*RESULTS, "epochs"} <= result.keys():
        raise store.RunError(f"{folder / 'result.json'} is not that of this run; delete it to train again")
    if may_have_changed and store.Run(folder).task:
        _expect_same(folder, task().facts())
    return {**result, "resumed_from_epoch": result["epochs"], "already_finished": True, "run": str(folder)}


def _may_have_changed(spec: RunSpec) -> bool:
    """Whether data or noise are from a file of the user's, which is still there."""
    if noise.parse(spec.noise).kind == "matrix":
        return True
    return spec.data not in data.available() and os.path.exists(os.path.expanduser(spec.data))


def _expect_same(folder: Path, facts: dict[str, Any]) -> None:
    there = store.Run(folder).task.get("fingerprint")
    if there is not None and there != facts["fingerprint"]:
        raise store.RunError(f"{folder} was made from other data; give another folder")


def _fabric(spec: RunSpec, accelerator: str) -> Fabric:
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here.get(accelerator, True):
        raise ValueError(f"no {accelerator.upper()} device here; try --accelerator cpu")
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size > 1:  # torchrun started several of us
        local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
        several: dict[str, Any] = {"strategy": "ddp", "devices": local, "num_nodes": size // local}
    else:
        several = {"devices": 1}
    fabric = Fabric(accelerator=accelerator, precision=spec.precision, **several)  # type: ignore[arg-type]  # one of PRECISIONS
    fabric.launch()
    return fabric


def _claimed(folder: Path, spec: RunSpec) -> bool:
    """Whether the folder has this very run, finished; an error if it has another."""
    if folder.exists() and not folder.is_dir():
        raise store.RunError(f"{folder} is a file; give a folder for the run")
    run = store.Run(folder)
    if not (folder / "spec.json").exists():
        if folder.exists() and any(x.name not in OURS and x.suffix != store.PART for x in folder.iterdir()):
            raise store.RunError(f"{folder} is not empty and holds no run; give another folder")
        return False
    if run.spec != spec:
        raise store.RunError(f"{folder} holds another run ({_difference(run.spec, spec)}); give another folder")
    return run.finished


def _difference(there: RunSpec, wanted: RunSpec) -> str:
    before, after = there.as_dict(), wanted.as_dict()
    changed = [key for key in after if before[key] != after[key]]
    return ", ".join(f"{key} {before[key]!r}, not {after[key]!r}" for key in changed[:3])


def _train(
    spec: RunSpec, folder: Path, fabric: Fabric, make: Callable[[], Task], workers: int, tensorboard: bool,
    progress: Progress, watcher: Watcher | None,
) -> dict[str, Any]:  # fmt: skip
    writes = fabric.is_global_zero
    task = make()
    network = make_network(spec, task)
    criterion, said = quietly_fixed(spec, task, network)
    if said:
        progress.said(said)
    if len(task.dataset.shape) == 3:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
    optimizer = torch.optim.SGD(
        network.parameters(), lr=spec.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay
    )
    model, optimizer = fabric.setup(network, optimizer)
    place = fabric.device, fabric.global_rank, fabric.world_size
    batches = task.batches(spec, *place, workers)
    test = task.test_batches(spec, *place) if len(task.test) else None
    monitor = Monitor(
        criterion, num_classes=task.dataset.num_classes, num_samples=len(task.train), device=fabric.device
    )
    criterion = criterion.to(fabric.device)
    facts, state = task.facts(), checkpoint.load(folder, spec.hash)
    if state is not None:
        _expect_same(folder, facts)
    fabric.barrier()  # nobody writes before all have read
    rows: list[dict[str, Any]] = []
    histograms: dict[str, list[Tensor]] = {}
    if state is not None:
        with checkpoint.reading(folder):
            network.load_state_dict(state["network"])
            optimizer.load_state_dict(state["optimizer"])
            monitor.load_state_dict(state["monitor"])
            criterion.load_state_dict(state.get("criterion", {}))
            rows, histograms = list(state["rows"]), dict(state["histograms"])
        if writes:  # it may have been killed between the checkpoint and these
            _write_records(folder, rows, histograms)
        progress.said(f"going on after epoch {len(rows)}")
    resumed = len(rows) or None
    if writes and state is None:
        _begin(folder, spec, task, facts)
    board = _board(folder, len(rows)) if tensorboard and writes else None
    clean = None if task.clean is None else task.clean.to(fabric.device)
    if len(task.train) < 2 * fabric.world_size:
        raise ValueError(f"training needs at least {2 * fabric.world_size} samples, got {len(task.train)}")
    while len(rows) < spec.epochs and not _stalled(rows, spec.patience):
        number, start = len(rows), time.perf_counter()
        progress.epoch(number + 1, spec.epochs, len(batches))
        torch.manual_seed((spec.seed * 1_000_003 + number) % 2**63)  # for losses that draw, so that resuming is exact
        loss = _epoch(spec, number, batches, fabric, model, criterion, optimizer, monitor, clean, progress, watcher)
        between = time.perf_counter()
        for buffer in criterion.buffers():  # what a loss has followed, one for all processes
            buffer.copy_(torch.as_tensor(fabric.all_reduce(buffer)))
        record = monitor.end_epoch()
        if not math.isfinite(loss):
            advice = f"try a smaller learning rate than {spec.learning_rate:g}"
            reason = f"training diverged in epoch {number + 1} (loss {loss}); {advice}"
            if writes:
                store.write_json(folder / "failed.json", {"epoch": number + 1, "reason": reason})
            raise store.RunError(reason)
        if watcher is not None:
            watcher.end_epoch(number, monitor)
        row = {
            **record.as_dict(),
            "learning_rate": spec.rate_at(number),
            "train_loss": loss,
            "train_accuracy": 100 * (record.accuracy or 0.0),
            "test_accuracy": None,
        }
        rows.append(row)
        over = len(rows) == spec.epochs or _stalled(rows, spec.patience)
        if test is not None and (over or len(rows) % spec.test_every == 0):
            row["test_accuracy"] = evaluate(model, test, fabric)
        row |= {"train_seconds": between - start, "test_seconds": time.perf_counter() - between}
        for key in HISTOGRAMS:
            histograms.setdefault(key, []).append(getattr(record.histogram, key).cpu())
        if writes:
            kept = {"spec": spec.hash, "network": network.state_dict(), "optimizer": optimizer.state_dict(),
                    "criterion": criterion.state_dict()}  # fmt: skip
            # The checkpoint first: all else can be made from it.
            checkpoint.save(folder, {**kept, "monitor": monitor.state_dict(), "rows": rows, "histograms": histograms})
            _write_records(folder, rows, histograms)
            (folder / "failed.json").unlink(missing_ok=True)
            if board is not None:
                for key, value in row.items():
                    if isinstance(value, (int, float)):
                        board.add_scalar(key, value, number + 1)
                board.flush()
        fabric.barrier()
        progress.row(row)
    result = {key: rows[-1].get(key) for key in RESULTS}
    result |= {
        "spec": spec.hash, "loss": spec.loss_name, "noise": spec.noise, "noise_rate": task.noise_rate,
        "network": network_name(spec, task), "parameters": sum(p.numel() for p in network.parameters()),
        "epochs": len(rows), "seed": spec.seed, "note": said,
        "seconds": sum(row["train_seconds"] + row["test_seconds"] for row in rows),
    }  # fmt: skip
    if writes:
        store.write_arrays(folder / "samples.npz", vars(monitor.samples()))
        weights = {key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()}
        store.write(folder / "model.safetensors", lambda file: file.write(to_safetensors(weights)))
        store.write_json(folder / "result.json", result)
        checkpoint.remove(folder)
    fabric.barrier()
    return {**result, "resumed_from_epoch": resumed, "already_finished": False, "run": str(folder)}


def _epoch(
    spec: RunSpec, number: int, batches: Batches, fabric: Fabric, model: nn.Module, criterion: RobustLoss,
    optimizer: torch.optim.Optimizer, monitor: Monitor, clean: Tensor | None, progress: Progress,
    watcher: Watcher | None = None,
) -> float:  # fmt: skip
    """Once through the training samples; the mean loss."""
    model.train()
    total = torch.zeros(2, dtype=torch.float64, device=fabric.device)
    for step, (inputs, target, index) in enumerate(batches.epoch(number)):
        rate = spec.rate_at(number + step / len(batches))
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(inputs)
        loss = criterion(logits, target)
        fabric.backward(loss)
        if spec.clip_norm is not None:
            clip_grad_norm_(model.parameters(), spec.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        monitor.update(
            logits=logits.detach(), target=target, learning_rate=rate, index=index,
            clean_target=None if clean is None else clean[index],
        )  # fmt: skip
        if watcher is not None:
            watcher.batch(logits.detach(), target, index)
        total += torch.stack([loss.detach().double() * len(target), torch.full_like(loss, len(target)).double()])
        progress.step()
    both = fabric.all_reduce(total, reduce_op="sum")
    assert isinstance(both, Tensor)
    value, count = both.tolist()
    return float(value / count)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Batches, fabric: Fabric) -> float:
    """Accuracy in percent."""
    model.eval()
    right = torch.zeros(2, dtype=torch.int64, device=fabric.device)
    for inputs, target, _ in batches.epoch(0):
        right[0] += (model(inputs).argmax(1) == target).sum()
        right[1] += len(target)
    both = fabric.all_reduce(right, reduce_op="sum")
    assert isinstance(both, Tensor)
    correct, count = both.tolist()
    return float(100 * correct / count)


def _stalled(rows: list[dict[str, Any]], patience: int | None) -> bool:
    """By the training loss: there may be no clean labels to go by."""
    if patience is None or len(rows) <= patience:
        return False
    losses = [row["train_loss"] for row in rows]
    return bool(min(losses[-patience:]) >= min(losses[:-patience]))


def _begin(folder: Path, spec: RunSpec, task: Task, facts: dict[str, Any]) -> None:
    labels = {"index": task.index, "given": task.given} | ({} if task.clean is None else {"clean": task.clean})
    store.write_arrays(folder / "labels.npz", labels)
    store.write_json(folder / "task.json", facts)
    store.write_json(folder / "environment.json", store.environment())
    store.write_text(folder / "spec.json", spec.to_json())


def _write_records(folder: Path, rows: list[dict[str, Any]], histograms: dict[str, list[Tensor]]) -> None:
    store.write_text(folder / "metrics.jsonl", "".join(store.line(row) for row in rows))
    stacked = {key: torch.stack(each) for key, each in histograms.items()}
    store.write_arrays(folder / "histograms.npz", {"edges": Histogram.edges(), **stacked})


def _board(folder: Path, done: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)
