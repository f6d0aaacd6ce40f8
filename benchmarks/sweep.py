"""Runs per minute of a sweep: the local executor with a process per core against one single-threaded process.

    python -m benchmarks.sweep [--quick] [--jobs N] [--out FILE.csv]

Both train the same runs in fresh folders, in turns, in a new order each round. Processes are started and have trained a
run before the clock starts, as in a sweep that lasts; ratios are of the medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import wait
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from benchmarks.timing import describe, machine, write_csv
from curriculoss.runs import RunSpec, train
from curriculoss.runs.executors import LocalExecutor, Pool

LIMIT = 1.8  # on two cores


def specs(runs: int, epochs: int) -> list[RunSpec]:
    """Short runs of a network with a few layers."""
    settings = {"data": "digits", "network": "mlp", "noise": "symmetric:0.4", "epochs": epochs}
    return [RunSpec.from_dict({**settings, "seed": seed}) for seed in range(runs)]


def seconds(pool: Pool, wanted: list[RunSpec]) -> float:
    """How long a pool takes for the runs."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        futures = [pool.submit(train, spec, Path(folder) / spec.hash) for spec in wanted]
        wait(futures)
        passed = time.perf_counter() - begin
        for each in futures:
            each.result()
        return passed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes of the sweep (all cores)")
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="default: benchmarks/results/sweep.csv")
    given, where = parser.parse_args(arguments), machine()
    wanted, rounds = (specs(4, 2), 2) if given.quick else (specs(16, 10), 5)
    times: dict[int, list[float]] = {1: [], given.jobs: []}
    with ExitStack() as stack:
        pools = {jobs: stack.enter_context(LocalExecutor(jobs).pool(len(wanted))) for jobs in times}
        for pool in pools.values():
            seconds(pool, wanted[: max(times)])
        order = list(times)
        for _ in range(rounds):
            random.Random(len(times[1])).shuffle(order)
            for jobs in order:
                times[jobs].append(seconds(pools[jobs], wanted))
    per_minute = {jobs: 60 * len(wanted) / statistics.median(each) for jobs, each in times.items()}
    ratio = per_minute[given.jobs] / per_minute[1]
    rows = [{"jobs": jobs, "runs": len(wanted), "rounds": rounds, "per_minute": round(each, 2)}
            for jobs, each in per_minute.items()]  # fmt: skip
    if given.out is not None or not given.quick:
        write_csv(given.out or Path(__file__).parent / "results" / "sweep.csv", rows, where)
    Console(highlight=False).print(describe(where))
    for jobs, each in per_minute.items():
        print(f"{jobs} single-threaded process{'es' * (jobs > 1)}: {each:.1f} runs per minute")
    met = f" (target on two cores: {LIMIT}, {'met' if ratio >= LIMIT else 'missed'})" if given.jobs == 2 else ""
    print(f"ratio: {ratio:.2f}{met}")


if __name__ == "__main__":
    main()
