"""The last linear layer and the loss in one op, `linear_soft_margin`, against `F.linear` + `F.cross_entropy`.

    python -m benchmarks.linear [--quick] [--out FILE.csv]

Forward and backward to hidden states, weight and bias. Time: minima, all variants taking turns in one run. Memory: the
highest resident size of a fresh process, beyond what it had with the inputs made and beyond the gradients it returns
(read from /proc, so on Linux only).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
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
from curriculoss import GCE, MAE, Curriculum, Scaled, linear_soft_margin

BASELINE = "F.linear + F.cross_entropy"
TIME_LIMIT = 1.35  # four matrix products instead of three, and a little
MEMORY_LIMIT = 0.1

Criterion = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Shape(NamedTuple):
    tokens: int
    hidden: int
    classes: int

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Hidden states, weight, bias and target."""
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(self.tokens, self.hidden, generator=generator)
        weight = torch.randn(self.classes, self.hidden, generator=generator).div_(self.hidden**0.5)
        bias = torch.zeros(self.classes)
        target = torch.randint(self.classes, (self.tokens,), generator=generator)
        return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target


SHAPES = (Shape(2_048, 512, 32_000), Shape(1_024, 256, 128_000))
QUICK = (Shape(1_024, 64, 64_000),)
WARM_UP = Shape(64, 32, 100)


def fused(curriculum: Curriculum) -> Criterion:
    return lambda hidden, weight, bias, target: curriculum.loss(linear_soft_margin(hidden, weight, bias, target)).mean()


VARIANTS: dict[str, Criterion] = {
    BASELINE: lambda hidden, weight, bias, target: F.cross_entropy(F.linear(hidden, weight, bias), target),
    "mae": fused(MAE()),
    "gce": fused(GCE()),
    "mae, scaled": fused(Scaled(MAE(), 0.5)),
}


def gradients(criterion: Criterion, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(criterion(*inputs), inputs[:3])


def peak_in_this_process(variant: str, shape: Shape) -> int:
    """Bytes at the peak beyond inputs and gradients."""
    criterion = VARIANTS[variant]
    gradients(criterion, WARM_UP.inputs())  # threads and libraries take their memory now
    inputs = shape.inputs()
    before = memory_of_this_process("VmRSS")
    forget_highest_memory()
    found = gradients(criterion, inputs)
    return memory_of_this_process("VmHWM") - before - sum(each.nbytes for each in found)


class Row(NamedTuple):
    variant: str
    shape: Shape
    seconds: float
    ratio: float
    peak: int
    peak_ratio: float


def measure(shapes: tuple[Shape, ...], budget: Budget) -> list[Row]:
    rows = []
    with progress_bar() as progress:
        for shape in shapes:
            bar = progress.add_task(f"memory, {tuple(shape)}", total=len(VARIANTS))
            peaks = {}
            for variant in VARIANTS:
                peaks[variant] = int(in_fresh_process("benchmarks.linear", "--peak", variant, *map(str, shape)))
                progress.advance(bar)
            inputs = shape.inputs()
            steps = {
                variant: lambda criterion=criterion, inputs=inputs: gradients(criterion, inputs)
                for variant, criterion in VARIANTS.items()
            }
            timings = interleave(steps, budget, progress, f"time, {tuple(shape)}")
            fastest = {variant: timing.minimum for variant, timing in timings.items()}
            rows += [
                Row(
                    variant,
                    shape,
                    fastest[variant],
                    fastest[variant] / fastest[BASELINE],
                    peaks[variant],
                    peaks[variant] / peaks[BASELINE],
                )
                for variant in VARIANTS
            ]
    return rows


def show(rows: list[Row], console: Console) -> None:
    met = judged = 0
    for shape in dict.fromkeys(row.shape for row in rows):
        table = Table("variant", title="{} tokens, {} hidden, {} classes: forward + backward".format(*shape))
        for column in ("seconds", "ratio", "peak MB", "ratio"):
            table.add_column(column, justify="right")
        for row in (row for row in rows if row.shape == shape):
            targets = (None, None) if row.variant == BASELINE else (TIME_LIMIT, MEMORY_LIMIT)
            ratios = (row.ratio, row.peak_ratio)
            judged += sum(target is not None for target in targets)
            met += sum(target is not None and ratio <= target for ratio, target in zip(ratios, targets, strict=True))
            time, peak = (verdict(ratio, target) for ratio, target in zip(ratios, targets, strict=True))
            table.add_row(row.variant, f"{row.seconds:.3f}", time, f"{row.peak / 1e6:.1f}", peak)
        console.print(table)
    console.print(f"{met} of {judged} targets met")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short look at a small shape; nothing is written")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="default: benchmarks/results/linear.csv")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)  # how the benchmark calls itself
    arguments = parser.parse_args()
    if arguments.peak:
        variant, *sizes = arguments.peak
        print(peak_in_this_process(variant, Shape(*map(int, sizes))))
        return
    out = arguments.out or (None if arguments.quick else Path(__file__).parent / "results" / "linear.csv")
    budget = Budget(2, 2.0) if arguments.quick else Budget(4, 80.0)

    console, where = Console(), machine()
    console.print(describe(where))
    rows = measure(QUICK if arguments.quick else SHAPES, budget)
    show(rows, console)
    if out is not None:
        write_csv(
            out,
            [
                {
                    "variant": row.variant,
                    **row.shape._asdict(),
                    "minimum_seconds": f"{row.seconds:.4g}",
                    "ratio": f"{row.ratio:.4f}",
                    "peak_bytes": row.peak,
                    "peak_ratio": f"{row.peak_ratio:.4f}",
                }
                for row in rows
            ],
            where,
        )
        console.print(f"written to {out}")


if __name__ == "__main__":
    main()
