"""Our loop with all monitors on against a bare PyTorch loop: time as a ratio, and what the monitors alone cost.

    python -m benchmarks.training [--quick] [--data-dir DIR] [--out FILE.csv]

Both loops train the same network from the same start on the same batches, in turns of a few steps, in a new order each
round; ratios are of minima. Ours is `curriculoss.fit` with Fabric, as in `train`. A turn is a fit of one epoch, with
`end_epoch()` and `samples()` at its end, so what these cost besides the samples is counted more often than in a real
epoch of hundreds of steps: ratios err on the safe side. The monitors are timed where they work, inside the loop. Left
out is what both loops would do between epochs: testing, and writing files.

Data are read from DIR (else CURRICULOSS_DATA, else the cache folder); where there are none, random pixels of the same
shape take their place, and the output says so. The memory of monitors is measured in a fresh process (Linux only).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import (
    Budget,
    describe,
    forget_highest_memory,
    in_fresh_process,
    interleave,
    machine,
    memory_of_this_process,
    progress_bar,
    verdict,
    write_csv,
)
from curriculoss import CE
from curriculoss.data import DataError
from curriculoss.fitting import MonitorCallback, fit
from curriculoss.monitor import Epoch, Monitor, Samples
from curriculoss.runs import RunSpec, preset
from curriculoss.runs.task import Task, make_criterion, make_fabric, make_network, make_task

BATCH = 128
NOISE = "symmetric:0.4"  # so that the monitors have clean and noisy samples to tell apart
MONITOR_LIMIT = 0.02  # of a step
SAMPLES, CLASSES, MEGABYTES_LIMIT = 1_000_000, 1_000, 100.0
DRIFT = 0.1  # how far apart the two loops may be after one turn, as a share of its way: rounding grows in training


class Case(NamedTuple):
    preset: str
    shape: tuple[int, int, int]
    augment: str
    steps: int  # of a turn
    budget: Budget
    limit: float

    @property
    def spec(self) -> RunSpec:
        """The paper's settings for as many samples as a turn takes, at a constant rate."""
        changes = {"noise": NOISE, "batch_size": BATCH, "augment": self.augment, "schedule": "constant"}
        return preset(self.preset, subset=BATCH * self.steps, **changes)


CASES = (
    Case("mnist", (1, 28, 28), "none", 100, Budget(20, 120.0), 1.03),
    Case("cifar10", (3, 32, 32), "shift-flip", 4, Budget(20, 180.0), 1.02),
)
QUICK = tuple(case._replace(steps=max(2, case.steps // 20), budget=Budget(3, 3.0)) for case in CASES)


class Row(NamedTuple):
    case: str
    data: str
    what: str
    value: float  # what the target is about
    target: float
    unit: str = ""  # none for a ratio
    median: float | None = None  # the same ratio, of medians
    seconds: float | None = None  # of one step
    bare_seconds: float | None = None
    turns: int | None = None
    steps: int | None = None


def random_data(spec: RunSpec, shape: tuple[int, int, int], folder: Path) -> RunSpec:
    """The same with random pixels, in a file that the usual reader takes."""
    assert spec.subset is not None
    chance = np.random.default_rng(0)
    pixels = chance.integers(256, size=(spec.subset, *shape), dtype=np.uint8)
    labels = np.arange(spec.subset) % 10
    np.savez(folder / "random.npz", x=pixels, y=labels, x_test=pixels[:BATCH], y_test=labels[:BATCH])
    return replace(spec, data=str(folder / "random.npz"))


def read(case: Case, data_dir: Path | None) -> tuple[RunSpec, Task, str]:
    """What to run, the data ready to train on, and where these are from."""
    try:
        return case.spec, make_task(case.spec, data_dir=data_dir), "real"
    except DataError:
        with tempfile.TemporaryDirectory() as folder:
            spec = random_data(case.spec, case.shape, Path(folder))
            return spec, make_task(spec), "random"


class Clocked(Monitor):
    """Adds up how long it is busy."""

    seconds = 0.0

    @contextmanager
    def _clock(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begin

    def update(self, **batch: Any) -> None:
        with self._clock():
            super().update(**batch)

    def end_epoch(self) -> Epoch:
        with self._clock():
            return super().end_epoch()

    def samples(self) -> Samples:
        with self._clock():
            return super().samples()


class Bare:
    """What a person would write. Each call is a turn."""

    def __init__(self, spec: RunSpec, task: Task) -> None:
        self.network = make_network(spec, task).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.network.parameters(), lr=spec.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay
        )
        self.batches = task.batches(spec, torch.device("cpu"))
        self.turns = itertools.count()

    def __call__(self) -> None:
        model, optimizer = self.network, self.optimizer
        model.train()
        for inputs, target, _ in self.batches.epoch(next(self.turns)):
            loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


class Ours(Bare):
    """The same by the loop of the library, and how long its monitors took in each turn."""

    def __init__(self, spec: RunSpec, task: Task) -> None:
        super().__init__(spec, task)
        self.spec, self.clean = spec, task.clean
        self.criterion = make_criterion(spec, task, self.network)
        self.fabric = make_fabric(spec, "cpu")
        self.device, self.backward, self.all_reduce = self.fabric.device, self.fabric.backward, self.fabric.all_reduce
        self.prepared = self.fabric.setup(self.network, self.optimizer)
        self.monitor = Clocked(self.criterion, num_classes=task.dataset.num_classes, num_samples=len(task.train))
        self.monitor_seconds: list[float] = []

    def setup(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        """As a backend of `fit`: Fabric prepares a network once, not in every turn."""
        return self.prepared

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The batches of the next turn."""
        return self.batches.epoch(next(self.turns))

    def __call__(self) -> None:
        self.monitor.seconds = 0.0
        fit(
            self.network, self.criterion, self, epochs=1, optimizer=self.optimizer, schedule=self.spec.rate_factor,
            callbacks=[MonitorCallback(self.monitor, self.clean)], backend=self,
        )  # fmt: skip
        self.monitor.samples()
        self.monitor_seconds.append(self.monitor.seconds)


def parameters(network: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in network.parameters()])


def check_same(bare: Bare, ours: Ours) -> None:
    """One turn of each must lead to the same place, or the times of different things would be compared."""
    start = parameters(bare.network)
    assert torch.equal(start, parameters(ours.network))
    bare()
    ours()
    end = parameters(bare.network)
    drift = float((parameters(ours.network) - end).norm() / (end - start).norm())
    if not drift < DRIFT:
        raise AssertionError(f"the two loops do not train alike: after one turn they differ by {drift:.2g} of its way")


def time_case(case: Case, data_dir: Path | None, progress: Progress) -> list[Row]:
    spec, task, source = read(case, data_dir)
    bare, ours = Bare(spec, task), Ours(spec, task)
    check_same(bare, ours)
    name = f"{spec.network} {case.preset}"
    timings = interleave({"bare": bare, "ours": ours}, case.budget, progress, f"{name}, {source} data")
    first, second = timings["bare"], timings["ours"]
    monitors = ours.monitor_seconds[-first.repetitions :]
    steps = len(bare.batches)
    return [
        Row(
            name, source, "loop", second.minimum / first.minimum, case.limit,
            median=second.median / first.median, seconds=second.minimum / steps, bare_seconds=first.minimum / steps,
            turns=first.repetitions, steps=steps,
        ),
        Row(
            name, source, "monitors", min(monitors) / first.minimum, MONITOR_LIMIT,
            median=statistics.median(monitors) / first.median, seconds=min(monitors) / steps,
            bare_seconds=first.minimum / steps, turns=first.repetitions, steps=steps,
        ),
    ]  # fmt: skip


def tensor_bytes() -> int:
    """Of all tensors that are alive, each storage once."""
    gc.collect()
    storages = [each.untyped_storage() for each in gc.get_objects() if type(each) is Tensor]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def feed(monitor: Monitor, order: Tensor, num_classes: int) -> None:
    """An epoch of random logits."""
    logits, target = torch.randn(BATCH, num_classes), torch.randint(num_classes, (BATCH,))
    clean = target.where(torch.rand(BATCH) < 0.6, 0)
    for index in order.split(BATCH):
        some = slice(len(index))
        monitor.update(
            logits=logits[some], target=target[some], learning_rate=0.1, index=index, clean_target=clean[some]
        )
    monitor.end_epoch()


def memory_in_this_process() -> tuple[int, int, int]:
    """Bytes: a monitor's tensors, then the largest growth of resident memory in an epoch, and with `samples()` too."""
    feed(Monitor(CE(), num_classes=CLASSES, num_samples=BATCH), torch.arange(BATCH), CLASSES)  # libraries are loaded
    order = torch.randperm(SAMPLES)
    tensors, resident = tensor_bytes(), memory_of_this_process("VmRSS")
    forget_highest_memory()
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=SAMPLES)
    own = tensor_bytes() - tensors
    feed(monitor, order, CLASSES)
    epoch = memory_of_this_process("VmHWM") - resident
    monitor.samples()
    return own, epoch, memory_of_this_process("VmHWM") - resident


def measure_memory(progress: Progress) -> list[Row]:
    bar = progress.add_task("memory of monitors", total=None)
    found = in_fresh_process("benchmarks.training", "--memory").split()
    progress.update(bar, total=1.0, completed=1.0)
    what = ("tensors", "resident, highest in an epoch", "resident, highest with samples()")
    case = f"{SAMPLES:,} samples, {CLASSES:,} classes"
    return [
        Row(case, "random", each, int(size) / 1e6, MEGABYTES_LIMIT, "MB")
        for each, size in zip(what, found, strict=True)
    ]


def show(rows: list[Row], console: Console) -> None:
    timed, sized = [row for row in rows if not row.unit], [row for row in rows if row.unit]
    table = Table("case", "data", "time", title=f"training, batches of {BATCH}: time over that of a bare loop")
    for column in ("ratio", "medians", "target", "ms", "bare ms"):
        table.add_column(column, justify="right")
    for row in timed:
        seconds = (f"{1000 * x:.2f}" for x in (row.seconds, row.bare_seconds) if x is not None)
        ratios = verdict(row.value, row.target, 3), f"{row.median:.3f}"
        table.add_row(row.case, row.data, row.what, *ratios, f"≤ {row.target:g}", *seconds)
    console.print(table)
    console.print("ms: of one step. " + ", ".join(f"{x.case}: {x.turns} turns of {x.steps}" for x in timed[::2]))
    if any(row.data == "random" for row in timed):
        console.print("[yellow]random: no data files found, so random pixels of the same shape; see --data-dir[/]")
    table = Table("memory", title=f"monitors of {sized[0].case}")
    for column in ("MB", "target"):
        table.add_column(column, justify="right")
    for row in sized:
        table.add_row(row.what, verdict(row.value, row.target, 1), f"≤ {row.target:g}")
    console.print(table)
    console.print(f"{sum(row.value <= row.target for row in rows)} of {len(rows)} targets met")


def rounded(row: Row) -> dict[str, Any]:
    return {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row._asdict().items()}


def main() -> None:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=about)
    parser.add_argument("--quick", action="store_true", help="a short look: minima not settled, nothing written")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with MNIST and CIFAR-10")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="default: benchmarks/results/training.csv")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)  # how the benchmark calls itself
    arguments = parser.parse_args()
    if arguments.memory:
        print(*memory_in_this_process())
        return
    out = arguments.out or (None if arguments.quick else Path(__file__).parent / "results" / "training.csv")

    console, where = Console(), machine()
    console.print(describe(where))
    with progress_bar() as progress:
        rows = [
            row
            for case in (QUICK if arguments.quick else CASES)
            for row in time_case(case, arguments.data_dir, progress)
        ]
        rows += measure_memory(progress)
    show(rows, console)
    if out is not None:
        write_csv(out, [rounded(row) for row in rows], where)
        console.print(f"written to {out}")


if __name__ == "__main__":
    main()
