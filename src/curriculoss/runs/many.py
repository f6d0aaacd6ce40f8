"""`train_many`: runs side by side, since two single-threaded runs are faster than one with two threads."""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from curriculoss._text import first_line
from curriculoss.errors import CurriculossError, RunError
from curriculoss.runs.executors import Executor, LocalExecutor
from curriculoss.runs.facts import TrainResult
from curriculoss.runs.spec import RunSpec
from curriculoss.runs.training import train


def folder_name(spec: RunSpec) -> str:
    """The loss, the noise and the seed for people to read, and the hash of the spec."""
    plain = re.sub(r"(?:[^\w.=]|_)+", "-", f"{spec.loss_name} {spec.noise} s{spec.seed}")
    return f"{plain}-{spec.hash}"


def train_many(
    runs: Mapping[Path, RunSpec], *, jobs: int | None = None, executor: Executor | None = None,
    watch: Callable[[int], None] | None = None, ended: Callable[[Path, Exception | None], None] | None = None,
    **options: Any,
) -> tuple[dict[Path, TrainResult], dict[Path, RunError]]:  # fmt: skip
    """Train several specs, each in its folder.

    Args:
        runs: The spec of each folder.
        jobs: Runs at the same time, one thread each; by default as many as there are cores.
        executor: What trains them instead of processes on this machine; see `runs.executors`.
        watch: Receives the number of epochs done.
        ended: Receives the folder of each run that has ended, and its error if it failed. If it is given, no error
            stops the other runs; errors that are no `RunError` are returned as one.
        options: Arguments of `train`.

    Returns:
        The results of the finished runs, and the errors of runs that diverged or whose folder cannot be used. Such
        errors do not stop the other runs. Any other error does; finished epochs are kept.
    """
    results: dict[Path, TrainResult] = {}
    failed: dict[Path, RunError] = {}
    if not runs:
        return results, failed
    place = executor or LocalExecutor(jobs)
    options = {**place.train_options, **options}
    with place.pool(len(runs)) as pool:
        waiting: dict[Future[TrainResult], Path] = {
            pool.submit(train, spec, folder, **options): folder for folder, spec in runs.items()
        }
        while waiting:
            done, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in done:
                folder = waiting.pop(future)
                error = future.exception()
                if error is None:
                    results[folder] = future.result()
                elif isinstance(error, RunError):
                    failed[folder] = error
                elif ended is not None and isinstance(error, Exception):
                    ours = isinstance(error, CurriculossError)
                    failed[folder] = RunError(str(error) if ours else f"{type(error).__name__}: {first_line(error)}")
                else:
                    raise error
                if ended is not None:
                    ended(folder, failed.get(folder))
            if watch is not None:
                watch(sum(epochs_done(folder) for folder in runs))
    return {x: results[x] for x in runs if x in results}, {x: failed[x] for x in runs if x in failed}


def epochs_done(folder: Path) -> int:
    """The number of epochs in the run's metrics."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
