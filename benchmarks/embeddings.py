"""`curriculoss audit` of large embeddings: seconds, memory, and the share of wrong labels found.

    python -m benchmarks.embeddings [--quick] [--out FILE.csv]

Embeddings are drawn around one centre per class, and 30 % of the labels are wrong. The command runs as a user would
type it, in a process of its own: seconds are from start to end, memory is the peak.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.timing import describe, machine, write_csv

WRONG = 0.3
ROWS_AT_ONCE = 50_000  # rows that are made at a time


class Size(NamedTuple):
    samples: int
    features: int
    classes: int
    most_seconds: float = float("inf")
    most_gigabytes: float = float("inf")


SIZES = (Size(50_000, 768, 1_000, most_seconds=60.0), Size(1_000_000, 256, 100, most_gigabytes=4.0))
QUICK = (Size(2_000, 128, 20),)


def make(size: Size, folder: Path) -> np.ndarray[Any, Any]:
    """Write embeddings.npy and labels.npy, and return which labels are wrong."""
    chance = np.random.default_rng(0)
    centres = chance.standard_normal((size.classes, size.features), dtype=np.float32)
    true = chance.integers(0, size.classes, size.samples)
    wrong = chance.random(size.samples) < WRONG
    given = np.where(wrong, (true + chance.integers(1, size.classes, size.samples)) % size.classes, true)
    shape = size.samples, size.features
    kept = np.lib.format.open_memmap(folder / "embeddings.npy", mode="w+", dtype=np.float32, shape=shape)
    for start in range(0, size.samples, ROWS_AT_ONCE):
        some = true[start : start + ROWS_AT_ONCE]
        noise = chance.standard_normal((len(some), size.features), dtype=np.float32)
        kept[start : start + ROWS_AT_ONCE] = centres[some] + np.float32(1.5) * noise
    kept.flush()
    np.save(folder / "labels.npy", given)
    return wrong


def measure(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrong = make(size, folder)
        command = [sys.executable, "-m", "curriculoss", "audit", "embeddings.npy", "--labels", "labels.npy"]
        start = time.perf_counter()
        with subprocess.Popen([*command, "--out", "audit", "--json"], cwd=folder, stdout=subprocess.DEVNULL) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        seconds = time.perf_counter() - start
        with (folder / "audit" / "suspects.csv").open(encoding="utf-8", newline="") as file:
            first = [int(row["index"]) for row in csv.DictReader(file)][: int(wrong.sum())]
    return {
        "samples": size.samples,
        "features": size.features,
        "classes": size.classes,
        "seconds": f"{seconds:.1f}",
        "gigabytes": f"{used.ru_maxrss / 2**20:.2f}",  # in kB on Linux
        "found": f"{wrong[first].sum() / wrong.sum():.4f}",
        "within": seconds <= size.most_seconds and used.ru_maxrss / 2**20 <= size.most_gigabytes,
    }


def main(arguments: list[str] | None = None) -> None:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description=about)
    parser.add_argument("--quick", action="store_true", help="one small size, to try it")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "embeddings.csv")
    given = parser.parse_args(arguments)
    where = machine()
    Console().print(describe(where))
    rows = []
    for size in QUICK if given.quick else SIZES:
        print(f"{size.samples:,} × {size.features}, {size.classes:,} classes: a few minutes at most", flush=True)
        rows.append(measure(size))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    write_csv(given.out, rows, where)
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
