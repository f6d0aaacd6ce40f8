"""Forward and backward of every loss against `F.cross_entropy`: time as a ratio, and bytes kept for backward.

    python -m benchmarks.losses [--quick] [--no-busy] [--max-classes K] [--device cuda] [--out FILE.csv]

All losses take turns in one run, cross entropy among them, and a ratio is one of minima. The second table is the same
beside a process that never rests, as on a shared machine. The last rows are what public code does: softmax, one-hot
labels, clamp, log. With --device cuda, our losses are timed twice, by torch's operations and by Triton's kernels; the
targets and the busy process are for CPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from benchmarks.timing import (
    Budget,
    Timing,
    busy_process,
    describe,
    interleave,
    machine,
    progress_bar,
    verdict,
    write_csv,
)
from curriculoss import MAE, AutoLoss, Curriculum, RobustLoss, Scaled, Shifted, _kernel, available, get

SHAPES = ((128, 10), (128, 100), (512, 1_000), (1_024, 10_000), (512, 128_000))
BASELINE = "F.cross_entropy"
BUSY_LIMIT = 2.0
SAVED_NUMBERS = 16  # float32 numbers a sample that may be kept beside the logits: label, margin, top, total and such

Criterion = Callable[[Tensor, Tensor], Tensor]


def time_limit(num_classes: int) -> float:
    """The ratio a standard-form loss should not exceed; below 1,000 classes there is little but call overhead."""
    limits = ((100, 3.0), (1_000, 1.0), (10_000, 0.75))
    return next((limit for most, limit in limits if num_classes <= most), 0.65)


class Contender(NamedTuple):
    kind: str  # "baseline", "standard" (targets apply), "two terms", "auto" or "public code"
    criterion: Criterion
    kernel: str = "torch"

    def step(self, logits: Tensor, target: Tensor) -> None:
        """Forward and backward, to the end also on a device that runs beside us."""
        torch.autograd.grad(self.loss(logits, target), logits)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        _kernel.KERNEL = self.kernel
        return self.criterion(logits, target)


def public_mae(logits: Tensor, target: Tensor) -> Tensor:
    p = F.softmax(logits, dim=1).clamp(min=1e-7, max=1.0)
    labels = F.one_hot(target, logits.shape[1]).float()
    return (1 - (labels * p).sum(dim=1)).mean()


def public_gce(logits: Tensor, target: Tensor, q: float = 0.7) -> Tensor:
    p = F.softmax(logits, dim=1).clamp(min=1e-7, max=1.0)
    labels = F.one_hot(target, logits.shape[1]).float()
    return ((1 - (labels * p).sum(dim=1) ** q) / q).mean()


def public_sce(logits: Tensor, target: Tensor, q: float = 0.7) -> Tensor:
    p = F.softmax(logits, dim=1).clamp(min=1e-7, max=1.0)
    labels = F.one_hot(target, logits.shape[1]).float().clamp(min=1e-4, max=1.0)
    reverse = -(p * labels.log()).sum(dim=1).mean()
    return (1 - q) * F.cross_entropy(logits, target) + q * reverse


def contenders(num_classes: int, kernels: Sequence[str] = ("torch",)) -> dict[str, Contender]:
    """Every loss by each of the kernels, and what they are compared with."""
    found: dict[str, Contender] = {BASELINE: Contender("baseline", F.cross_entropy)}
    seen: list[Any] = []
    for name in available():
        loss = get(name)
        if loss not in seen:  # one name of each, if it has several
            seen.append(loss)
            found[name] = Contender("standard" if isinstance(loss, Curriculum) else "two terms", RobustLoss(loss))
    found["mae, scaled"] = Contender("standard", RobustLoss(Scaled(MAE(), 0.5)))
    found["mae, shifted"] = Contender("standard", RobustLoss(Shifted(MAE(), 2.5)))
    found["AutoLoss"] = Contender("auto", AutoLoss(num_classes))
    if "triton" in kernels:
        ours = [(name, each) for name, each in found.items() if name != BASELINE]
        found |= {f"{name}, Triton": each._replace(kernel="triton") for name, each in ours}
    for name, public in (("mae", public_mae), ("gce", public_gce), ("sce", public_sce)):
        found[f"{name}, public code"] = Contender("public code", public)
    return found


def saved_bytes(contender: Contender, logits: Tensor, target: Tensor) -> int:
    """Bytes that autograd keeps between forward and backward, each storage once, the loss's own state left out."""
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # a reference, so that no other storage takes its address
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = contender.loss(logits, target)  # noqa: F841  alive until all is counted
    criterion = contender.criterion
    state = list(criterion.state_dict(keep_vars=True).values()) if isinstance(criterion, nn.Module) else []
    for tensor in state:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storage.nbytes() for storage in kept.values())


class Cell(NamedTuple):
    """One loss at one shape beside one neighbour."""

    loss: str
    kind: str
    neighbour: str
    samples: int
    classes: int
    timing: Timing
    baseline: Timing
    saved: int
    device: str = "cpu"

    @property
    def ratio(self) -> float:
        return self.timing.minimum / self.baseline.minimum

    @property
    def median_ratio(self) -> float:
        return self.timing.median / self.baseline.median

    @property
    def limit(self) -> float | None:
        if self.kind != "standard" or self.device != "cpu":
            return None
        return BUSY_LIMIT if self.neighbour == "busy" else time_limit(self.classes)

    @property
    def saved_ratio(self) -> float:
        return self.saved / (4 * self.samples * self.classes)

    @property
    def saved_limit(self) -> float | None:
        return 1 + SAVED_NUMBERS / self.classes if self.kind == "standard" else None

    def row(self) -> dict[str, Any]:
        return {
            "loss": self.loss,
            "kind": self.kind,
            "neighbour": self.neighbour,
            "device": self.device,
            "samples": self.samples,
            "classes": self.classes,
            "repetitions": self.timing.repetitions,
            "minimum_seconds": f"{self.timing.minimum:.4g}",
            "median_seconds": f"{self.timing.median:.4g}",
            "ratio": f"{self.ratio:.4f}",
            "median_ratio": f"{self.median_ratio:.4f}",
            "target": self.limit,
            "saved_ratio": f"{self.saved_ratio:.4f}",
            "saved_target": self.saved_limit,
        }


def budget(numbers: int, quick: bool) -> Budget:
    """Time enough for minima to settle on a machine that is otherwise idle: 20 to 90 seconds a shape."""
    seconds = max(20.0, min(90.0, 4e-6 * numbers))
    return Budget(2, seconds / 10) if quick else Budget(4, seconds)


def measure(
    neighbour: str,
    shapes: list[tuple[int, int]],
    quick: bool,
    device: str = "cpu",
    kernels: Sequence[str] = ("torch",),
) -> list[Cell]:
    cells = []
    with progress_bar() as progress:
        for samples, classes in shapes:
            all_losses = contenders(classes, kernels)
            for each in all_losses.values():
                if isinstance(each.criterion, nn.Module):
                    each.criterion.to(device)
            generator = torch.Generator().manual_seed(classes)
            logits = torch.randn(samples, classes, generator=generator).to(device).requires_grad_()
            target = torch.randint(classes, (samples,), generator=generator).to(device)
            saved = {name: saved_bytes(each, logits, target) for name, each in all_losses.items()}
            steps = {name: partial(each.step, logits, target) for name, each in all_losses.items()}
            title = f"{neighbour} neighbour, N={samples}, K={classes}"
            timings = interleave(steps, budget(logits.numel(), quick), progress, title)
            place = neighbour, samples, classes
            cells += [
                Cell(name, each.kind, *place, timings[name], timings[BASELINE], saved[name], device)
                for name, each in all_losses.items()
            ]
    return cells


def show(cells: list[Cell], title: str, console: Console) -> None:
    shapes = list(dict.fromkeys((cell.samples, cell.classes) for cell in cells))
    table = Table("loss", title=title)
    for samples, classes in shapes:
        table.add_column(f"N={samples}\nK={classes}", justify="right")
    table.add_column("kept for backward\n× logits, largest K", justify="right")
    for name in dict.fromkeys(cell.loss for cell in cells):
        row = [cell for cell in cells if cell.loss == name]
        table.add_row(
            name, *(verdict(cell.ratio, cell.limit) for cell in row), verdict(row[-1].saved_ratio, row[-1].saved_limit)
        )
    console.print(table)
    judged = [(cell.ratio, cell.limit) for cell in cells if cell.limit is not None]
    judged += [(cell.saved_ratio, cell.saved_limit) for cell in cells if cell.saved_limit is not None]
    console.print(f"{sum(value <= limit for value, limit in judged)} of {len(judged)} targets met")
    worst = max((cell for cell in cells if cell.kind == "standard"), key=lambda cell: cell.median_ratio)
    where = f"{worst.loss}, K={worst.classes}"
    console.print(f"largest ratio of medians in the standard form: {worst.median_ratio:.2f} ({where})")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.losses", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short look: minima not settled, nothing written")
    parser.add_argument(
        "--busy", action=argparse.BooleanOptionalAction, help="also beside a busy one; default on a CPU"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: by torch and by Triton")
    parser.add_argument("--max-classes", type=int, default=max(classes for _, classes in SHAPES), metavar="K")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="default: losses.csv in benchmarks/results")
    arguments = parser.parse_args(argv)
    on_gpu = arguments.device == "cuda"
    name = "losses-cuda.csv" if on_gpu else "losses.csv"
    out = arguments.out or (None if arguments.quick else Path(__file__).parent / "results" / name)
    shapes = [shape for shape in SHAPES if shape[1] <= arguments.max_classes]
    if not shapes:
        parser.error(f"--max-classes expects at least {SHAPES[0][1]}, got {arguments.max_classes}")

    if on_gpu and not torch.cuda.is_available():
        parser.error(f"--device cuda expects a GPU, and torch {torch.__version__} finds none here")
    if on_gpu and find_spec("triton") is None:
        parser.error("--device cuda needs triton: pip install 'curriculoss[gpu]'")

    console, where = Console(), machine()
    console.print(describe(where))
    if on_gpu:
        where["gpu"] = torch.cuda.get_device_name()
        console.print(where["gpu"])
    kernels = ("torch", "triton") if on_gpu else ("torch",)
    cells = measure("idle", shapes, arguments.quick, arguments.device, kernels)
    show(cells, "forward + backward, time over that of F.cross_entropy", console)
    if not on_gpu if arguments.busy is None else arguments.busy:
        with busy_process():
            beside = measure("busy", shapes, arguments.quick, arguments.device, kernels)
        show(beside, "the same beside a busy process", console)
        cells += beside
    if out is not None:
        write_csv(out, [cell.row() for cell in cells], where)
        console.print(f"written to {out}")


if __name__ == "__main__":
    main()
