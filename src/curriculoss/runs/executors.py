"""Executors: where runs are trained. Processes on this machine are one, a Ray cluster (`on_ray`) is another."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from curriculoss.errors import InvalidValueError, RunError

RETRIES = 3  # how often a run starts again from its checkpoint after its process, or its machine, has died


class Pool(Protocol):
    """Takes functions and runs them elsewhere, as the executors of `concurrent.futures` do."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Queue a call; the future holds its result, or the error that it raised."""


class Executor(Protocol):
    """Where many runs are trained."""

    @property
    def train_options(self) -> Mapping[str, Any]:
        """Arguments that `train` needs there."""
        return {}

    def pool(self, runs: int) -> AbstractContextManager[Pool]:
        """Open a pool for so many runs. If the block fails, runs under way end at once; finished epochs are kept."""


@dataclass(frozen=True)
class LocalExecutor(Executor):
    """Processes on this machine, each with its own cores.

    Args:
        jobs: Runs at the same time; by default as many as the cores allow.
        cpus: Threads of each run. Results are the same to the bit only for the same number of threads.

    Example:
        >>> from curriculoss.runs.executors import LocalExecutor
        >>> with LocalExecutor(jobs=1).pool(1) as pool:
        ...     pool.submit(abs, -3).result()
        3
    """

    jobs: int | None = None
    cpus: int = 1

    def pool(self, runs: int) -> AbstractContextManager[Pool]:
        """A pool whose runs start again if their process dies."""
        return _Processes(max(1, min(self.jobs or (os.cpu_count() or 1) // self.cpus, runs)), self.cpus)


class _Processes(AbstractContextManager[Pool]):
    """One thread and one process per job: a pool of many processes does not say which run killed its process."""

    def __init__(self, jobs: int, cpus: int) -> None:
        self.threads, self.cpus = ThreadPoolExecutor(jobs), cpus
        self.mine = threading.local()
        self.pools: list[ProcessPoolExecutor] = []
        self.lock, self.ending = threading.Lock(), False

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            with self.lock:
                self.ending = True
            for each in self.pools:
                _terminate(each)
        self.threads.shutdown(cancel_futures=True)
        for each in self.pools:
            each.shutdown()

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        return self.threads.submit(self._call, partial(function, *args, **options))

    def _call(self, call: Callable[[], Any]) -> Any:
        for _ in range(1 + RETRIES):
            try:
                return self._process().submit(call).result()
            except BrokenProcessPool:
                del self.mine.pool
        raise RunError(f"its process died {1 + RETRIES} times, perhaps for lack of memory")

    def _process(self) -> ProcessPoolExecutor:
        """The process of this thread; a new one if there is none yet or it has died."""
        with self.lock:
            if self.ending:
                raise RunError("the processes have been ended")
            if not hasattr(self.mine, "pool"):
                spawn = multiprocessing.get_context("spawn")
                self.mine.pool = ProcessPoolExecutor(1, spawn, initializer=_begin_process, initargs=(self.cpus,))
                self.pools.append(self.mine.pool)
        pool: ProcessPoolExecutor = self.mine.pool
        return pool


def executor_named(text: str, *, jobs: int | None = None, cpus: int = 1, gpus: float = 0) -> Executor:
    """The executor that `local`, `ray` or `ray:HOST:PORT` names.

    Args:
        text: Its name.
        jobs: Runs at the same time on this machine; a cluster at an address decides that itself.
        cpus: Cores of each run.
        gpus: GPUs of each run, for Ray; locally all runs share the first.

    Example:
        >>> from curriculoss.runs.executors import executor_named
        >>> executor_named("local", jobs=2)
        LocalExecutor(jobs=2, cpus=1)
    """
    kind, colon, address = text.partition(":")
    if text == "local":
        if gpus:
            raise InvalidValueError(f"--gpus belongs to --executor ray, got --executor local --gpus {gpus:g}")
        return LocalExecutor(jobs, cpus)
    if kind != "ray" or (colon and not address):
        raise InvalidValueError(f"--executor expects local, ray or ray:HOST:PORT, got {text!r}")
    from curriculoss.runs.on_ray import RayExecutor

    if address and jobs is not None:
        raise InvalidValueError(f"--jobs is for this machine; the cluster at {address} has its own number of cores")
    return RayExecutor(address or None, jobs=jobs, cpus=cpus, gpus=gpus)


def _terminate(pool: ProcessPoolExecutor) -> None:
    started = pool._processes or {}
    pool.shutdown(wait=False, cancel_futures=True)  # first, so that no process is started any more
    for process in list(started.values()):  # finished epochs are on the disk
        process.terminate()


def _begin_process(threads: int) -> None:
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent is gone; finished epochs are on the disk."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)
