"""Whether two source trees train to the same numbers: every number in metrics.jsonl, times apart.

    python -m benchmarks.same_numbers OLD/src NEW/src [--data-dir DIR] [--only NAME,NAME]

Runs each command once with either tree on PYTHONPATH, one thread each, and compares the metrics row by row. Sentences
and times are left out. The command with human labels needs CIFAR-10 in DIR. Exits with 1 if a number differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DEMO = ("--data", "digits-100", "--noise", "symmetric:0.4")  # the settings of `make demo`
SMALL = ("--subset", "1000", "--epochs", "2", "--width", "0.125")
COMMANDS: dict[str, tuple[str, ...]] = {
    "ce": (*DEMO, "--loss", "ce"),
    "mae": (*DEMO, "--loss", "mae"),
    "mae:scale=2.6": (*DEMO, "--loss", "mae", "--fix", "scale", "--tau", "2.6"),
    "human": ("--data", "cifar10", "--noise", "human", *SMALL),
    "nce+aul": (*DEMO, "--loss", "nce+aul", "--epochs", "5"),
    "auto": (*DEMO, "--loss", "auto", "--epochs", "5"),
    "ce in two processes": (*DEMO, "--loss", "ce", "--epochs", "3"),
}
TOGETHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(source: Path, name: str, folder: Path, data_dir: Path | None) -> list[dict[str, Any]]:
    """The metrics of a command with one of the trees."""
    where = () if data_dir is None else ("--data-dir", str(data_dir))
    launcher = TOGETHER if name.endswith("in two processes") else ()
    command = [sys.executable, *launcher, "-m", "curriculoss", "train", *COMMANDS[name], *where, "--accelerator", "cpu",
               "--json", "--out", str(folder)]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} with {source}: {done.stderr.strip().splitlines()[-1]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.endswith("seconds") and key != "verdicts"}


def compare(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """How many numbers were compared, and where they differ."""
    if len(old) != len(new):
        return 0, [f"{len(old)} and {len(new)} epochs"]
    different, count = [], 0
    for before, after in zip(map(numbers, old), map(numbers, new), strict=True):
        count += len(before)
        different += [
            f"epoch {before['epoch']}, {key}: {before.get(key)} and {after.get(key)}"
            for key in {**before, **after}
            if before.get(key) != after.get(key)
        ]
    return count, different


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.same_numbers", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--only", help="names of commands, separated by commas")
    given = parser.parse_args()
    chosen = given.only.split(",") if given.only else [*COMMANDS]
    failed = False
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            rows = [
                run(source, name, Path(folder) / str(i), given.data_dir)
                for i, source in enumerate((given.old, given.new))
            ]
        count, different = compare(*rows)
        said = f"{count} numbers identical" if not different else f"{len(different)} of {count} differ: {different[0]}"
        print(f"{name:20} {len(rows[0]):3} epochs  {said}", flush=True)
        failed |= bool(different) and name != "auto"  # which may differ in its last bits
    sys.exit(failed)


if __name__ == "__main__":
    main()
