"""The last linear layer and the loss in one op, `criterion.linear`, against torch's ways to do the same.

    python -m benchmarks.linear [--quick] [--growth] [--out FILE.csv]

Forward and backward to hidden states, weight and bias, against `F.linear` + `F.cross_entropy` and torch's own
`F.linear_cross_entropy`, unchunked and in several chunkings. Time: minima, all variants taking turns in one run.
Memory: the highest resident size of a fresh process, beyond what it had with the inputs made and beyond the gradients
it returns (read from /proc, so on Linux only). Then the growth of both from 10³ to 10⁶ classes, as a table and a plot
beside it (`--growth`: only that).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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
from curriculoss import GCE, MAE, AutoLoss, Curriculum, RobustLoss, Scaled

BASELINE = "F.linear + F.cross_entropy"
TORCH = "F.linear_cross_entropy"  # how the names of its variants begin
TIME_LIMIT = 1.0
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


SHAPES = (Shape(2_048, 512, 32_000), Shape(1_024, 256, 128_000), Shape(8_192, 256, 32_000))
GROWTH = tuple(Shape(256, 64, classes) for classes in (1_000, 10_000, 100_000, 1_000_000))
QUICK = (Shape(1_024, 64, 64_000),)
WARM_UP = Shape(64, 32, 100)


def fused(curriculum: Curriculum) -> Criterion:
    return RobustLoss(curriculum).linear


def auto(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """With a fresh AutoLoss: its bell must not depend on how often it was timed."""
    return AutoLoss(len(weight)).linear(hidden, weight, bias, target)


def of_torch(**chunking: Any) -> Criterion:
    options = torch.nn.LinearCrossEntropyOptions(**chunking) if chunking else None
    return lambda hidden, weight, bias, target: F.linear_cross_entropy(
        hidden, weight, target, linear_bias=bias, options=options
    )


VARIANTS: dict[str, Criterion] = {
    BASELINE: lambda hidden, weight, bias, target: F.cross_entropy(F.linear(hidden, weight, bias), target),
    "mae": fused(MAE()),
    "gce": fused(GCE()),
    "mae, scaled": fused(Scaled(MAE(), 0.5)),
    "auto": auto,
    TORCH: of_torch(),
    f"{TORCH}, auto": of_torch(chunking_method="auto"),
    f"{TORCH}, aspect_ratio": of_torch(chunking_method="aspect_ratio"),
    **{f"{TORCH}, {rows} rows": of_torch(chunking_method=None, batch_chunk_size=rows) for rows in (128, 256, 512)},
}
GROWING = (BASELINE, "mae", "auto", f"{TORCH}, auto")


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

    @property
    def ours(self) -> bool:
        return self.variant != BASELINE and not self.variant.startswith(TORCH)

    def beats(self, other: Row) -> bool:
        return self.seconds < other.seconds and self.peak < other.peak


def measure(shapes: tuple[Shape, ...], variants: tuple[str, ...], budget: Budget) -> list[Row]:
    rows = []
    with progress_bar() as progress:
        for shape in shapes:
            bar = progress.add_task(f"memory, {tuple(shape)}", total=len(variants))
            peaks = {}
            for variant in variants:
                peaks[variant] = int(in_fresh_process("benchmarks.linear", "--peak", variant, *map(str, shape)))
                progress.advance(bar)
            inputs = shape.inputs()
            steps = {
                variant: lambda criterion=VARIANTS[variant], inputs=inputs: gradients(criterion, inputs)
                for variant in variants
            }
            timings = interleave(steps, budget, progress, f"time, {tuple(shape)}")
            fastest = {variant: timing.minimum for variant, timing in timings.items()}
            for variant, seconds in fastest.items():
                ratios = seconds / fastest[BASELINE], peaks[variant] / max(1, peaks[BASELINE])
                rows.append(Row(variant, shape, seconds, ratios[0], peaks[variant], ratios[1]))
    return rows


def show(rows: list[Row], limits: tuple[float | None, float | None], console: Console) -> None:
    met = judged = 0
    for shape in dict.fromkeys(row.shape for row in rows):
        table = Table("variant", title="{} tokens, {} hidden, {} classes: forward + backward".format(*shape))
        for column in ("seconds", "ratio", "peak MB", "ratio"):
            table.add_column(column, justify="right")
        here = [row for row in rows if row.shape == shape]
        for row in here:
            targets = limits if row.ours else (None, None)
            ratios = (row.ratio, row.peak_ratio)
            judged += sum(target is not None for target in targets)
            met += sum(target is not None and ratio <= target for ratio, target in zip(ratios, targets, strict=True))
            time, peak = (verdict(ratio, target) for ratio, target in zip(ratios, targets, strict=True))
            table.add_row(row.variant, f"{row.seconds:.3f}", time, f"{row.peak / 1e6:.1f}", peak)
        console.print(table)
        better = [
            f"{their.variant} beats {our.variant}" for their in here for our in here
            if our.ours and their.variant.startswith(TORCH) and their.beats(our)
        ]  # fmt: skip
        console.print("; ".join(better) or f"no variant of {TORCH} beats one of ours in both time and memory")
    if judged:
        console.print(f"{met} of {judged} targets met")


def plot_growth(rows: list[Row], path: Path) -> None:
    """Time and memory over the number of classes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for variant in dict.fromkeys(row.variant for row in rows):
        mine = [row for row in rows if row.variant == variant]
        classes = [row.shape.classes for row in mine]
        panels[0].loglog(classes, [row.seconds for row in mine], marker="o", label=variant)
        panels[1].loglog(classes, [max(row.peak, 1e5) / 1e6 for row in mine], marker="o")
    for panel, label in zip(
        panels, ("seconds, forward + backward", "peak beyond inputs and gradients, MB"), strict=True
    ):
        panel.set(xlabel="classes", ylabel=label)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.suptitle("{} tokens, {} hidden units".format(*rows[0].shape))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def as_table(rows: list[Row]) -> list[dict[str, Any]]:
    return [
        {
            "variant": row.variant,
            **row.shape._asdict(),
            "minimum_seconds": f"{row.seconds:.4g}",
            "ratio": f"{row.ratio:.4f}",
            "peak_bytes": row.peak,
            "peak_ratio": f"{row.peak_ratio:.4f}",
        }
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a short look at a small shape; nothing is written")
    parser.add_argument("--growth", action="store_true", help="only the growth from 10³ to 10⁶ classes")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="default: benchmarks/results/linear.csv")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)  # how the benchmark calls itself
    arguments = parser.parse_args()
    if arguments.peak:
        variant, *sizes = arguments.peak
        print(peak_in_this_process(variant, Shape(*map(int, sizes))))
        return
    out = arguments.out or (None if arguments.quick else Path(__file__).parent / "results" / "linear.csv")
    console, where = Console(), machine()
    console.print(describe(where))
    if not arguments.growth:
        shapes, budget = (QUICK, Budget(2, 2.0)) if arguments.quick else (SHAPES, Budget(4, 80.0))
        rows = measure(shapes, tuple(VARIANTS), budget)
        show(rows, (TIME_LIMIT, MEMORY_LIMIT), console)
        if out is not None:
            write_csv(out, as_table(rows), where)
            console.print(f"written to {out}")
    if out is not None:
        rows = measure(GROWTH, GROWING, Budget(3, 10.0))
        show(rows, (None, None), console)
        table, figure = out.with_stem(f"{out.stem}-growth"), out.with_name(f"{out.stem}-growth.png")
        write_csv(table, as_table(rows), where)
        plot_growth(rows, figure)
        console.print(f"written to {table} and {figure}")


if __name__ == "__main__":
    main()
