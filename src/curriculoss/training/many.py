"""Many runs side by side: two single-threaded runs beat one with two threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from curriculoss.training.loop import train
from curriculoss.training.spec import RunSpec
from curriculoss.training.store import RunError


def folder_name(spec: RunSpec) -> str:
    """A name for people, and the hash for everything else."""
    words = f"{spec.loss_name} {spec.noise} s{spec.seed}"
    plain = "".join(x if x.isalnum() or x in ".=" else "-" for x in words)
    while "--" in plain:
        plain = plain.replace("--", "-")
    return f"{plain}-{spec.hash}"


def train_many(
    runs: Mapping[Path, RunSpec],
    *,
    jobs: int | None = None,
    watch: Callable[[int], None] | None = None,
    **options: Any,
) -> tuple[dict[Path, dict[str, Any]], dict[Path, RunError]]:
    """`train` for each folder and spec, `jobs` at a time (as many as cores), one thread each; `watch` is told how many
    epochs are done. Results of those that finished, and why others did not: one that diverges or whose folder is not as
    it should be does not stop the others. Any other error does; what is done is kept and need not be done again."""
    results: dict[Path, dict[str, Any]] = {}
    failed: dict[Path, RunError] = {}
    with processes(max(1, min(jobs or os.cpu_count() or 1, len(runs)))) as pool:
        waiting: dict[Future[dict[str, Any]], Path] = {
            pool.submit(train, spec, folder, **options): folder for folder, spec in runs.items()
        }
        while waiting:
            done, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                folder = waiting.pop(future)
                try:
                    results[folder] = future.result()
                except RunError as error:
                    failed[folder] = error
            if watch is not None:
                watch(sum(epochs_done(folder) for folder in runs))
    return {x: results[x] for x in runs if x in results}, {x: failed[x] for x in runs if x in failed}


@contextmanager
def processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """So many, with one thread each. They end with the block at once if that fails."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_single_threaded, initargs=(os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for process in list((pool._processes or {}).values()):  # what they have finished is on the disk
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _single_threaded(parent: int | None = None) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us decides
    threading.Thread(target=_end_with, args=(parent or os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """Nobody is left to train for when the process that started us was killed; whole epochs are on the disk."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def epochs_done(folder: Path) -> int:
    """As its metrics tell."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0
