"""What the benchmarks share: interleaved timing, a busy neighbour, a record of the machine in every row of CSV."""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

Step = Callable[[], object]


class Budget(NamedTuple):
    """How long to go on: at least so many rounds, then until so many seconds have passed."""

    rounds: int
    seconds: float


class Timing(NamedTuple):
    """Seconds a step took, over all its repetitions."""

    minimum: float
    median: float
    repetitions: int


def interleave(steps: Mapping[str, Step], budget: Budget, progress: Progress, title: str) -> dict[str, Timing]:
    """Time every step once a round, in a new order each round, so that whatever the machine does meets all alike."""
    order = list(steps)
    for step in steps.values():  # first calls pay for allocations and for kernels to be chosen
        step()
    times: dict[str, list[float]] = {name: [] for name in order}
    shuffle = random.Random(0).shuffle
    bar = progress.add_task(title, total=1.0)
    start, rounds, passed = time.perf_counter(), 0, 0.0
    while rounds < budget.rounds or passed < budget.seconds:
        shuffle(order)
        for name in order:
            begin = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - begin)
        rounds, passed = rounds + 1, time.perf_counter() - start
        progress.update(bar, completed=min(rounds / budget.rounds, passed / max(budget.seconds, 1e-9)))
    progress.update(bar, completed=1.0)
    return {name: Timing(min(each), statistics.median(each), rounds) for name, each in times.items()}


def _spin(ready: Event) -> None:
    parent = os.getppid()
    ready.set()
    while os.getppid() == parent:  # so that it never outlives a benchmark that was killed
        for _ in range(1_000_000):
            pass


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """One process beside ours that computes without end."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_spin, args=(ready,), daemon=True)
    process.start()
    try:
        ready.wait()
        yield
    finally:
        process.kill()
        process.join()


def memory_of_this_process(field: str) -> int:
    """Bytes of VmRSS, the resident size, or VmHWM, the highest it has been (Linux only)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return 1024 * int(line.split()[1])


def forget_highest_memory() -> None:
    """VmHWM starts anew."""
    Path("/proc/self/clear_refs").write_text("5")


def in_fresh_process(module: str, *arguments: str) -> str:
    """What `python -m module` prints where nothing else has grown the heap and freed blocks are given back at once."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**16), "MALLOC_TRIM_THRESHOLD_": str(2**16)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def progress_bar() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), transient=True)


def machine() -> dict[str, Any]:
    """What a ratio may depend on besides the code."""
    return {
        "cpu": f"{_cpu_model()} ({torch.backends.cpu.get_cpu_capability()})",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
        "load": round(os.getloadavg()[0], 1),  # of others, if asked for before the benchmark starts
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(where: Mapping[str, Any]) -> str:
    text = "{cpu}, {cores} cores, {threads} threads, Python {python}, torch {torch}, {date}, load {load}"
    return text.format(**where) + ("\n[yellow]busy: minima may not settle[/]" if where["load"] > 0.5 else "")


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], where: Mapping[str, Any]) -> None:
    """Every row with the machine it was measured on."""
    full = [{**row, **where} for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(full[0]))
        writer.writeheader()
        writer.writerows(full)


def row_of(words: Iterable[str]) -> list[str]:
    """As the lines that it takes: one."""
    return ["| " + " | ".join(words) + " |"]


def verdict(ratio: float, limit: float | None, digits: int = 2) -> str:
    """The ratio for a table, in colour and with a mark where there is a target."""
    text = f"{ratio:.{digits}f}"
    if limit is None:
        return text
    return f"[green]{text} ✓[/]" if ratio <= limit else f"[red]{text} ✗[/]"
