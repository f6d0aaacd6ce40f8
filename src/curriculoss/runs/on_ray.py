"""Runs as tasks of a Ray cluster, whose nodes share the folders of the runs."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from curriculoss._text import first_line
from curriculoss.errors import InvalidValueError, RunError
from curriculoss.runs.executors import RETRIES, Pool

REACH_SECONDS, ANSWER_SECONDS = 5.0, 30.0  # for a connection, and for an answer that only Ray gives
STORE_BYTES = 200_000_000  # of a local cluster; results are small
# Ray reads these when it is imported. The one with the odd name keeps a local cluster on the loopback address.
LOCAL_SETTINGS = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class RayExecutor:
    """Ray tasks. One whose worker or node dies starts again elsewhere, and its run goes on from the checkpoint.

    Args:
        address: HOST:PORT of the cluster's head; None for a cluster on this machine alone, which ends with the pool.
        jobs: Runs at the same time, without an address; by default as many as the cores allow.
        cpus: Cores of each run, and its threads.
        gpus: GPUs of each run; without any it is trained on the CPU.

    Example:
        >>> from curriculoss.runs.on_ray import RayExecutor
        >>> RayExecutor("10.0.0.1:6379", gpus=1).address
        '10.0.0.1:6379'
    """

    address: str | None = None
    jobs: int | None = None
    cpus: int = 1
    gpus: float = 0

    def __post_init__(self) -> None:
        if self.address is not None:
            _host_and_port(self.address)

    @property
    def train_options(self) -> Mapping[str, Any]:
        """The worker that had a run may not have ended when another takes over, which therefore waits for its lock."""
        return {"wait": True} | ({} if self.gpus else {"accelerator": "cpu"})

    @contextmanager
    def pool(self, runs: int) -> Iterator[Pool]:
        """Connect to the cluster, or start one here; leaving the block ends what still runs there."""
        ray = self._connect(runs)
        try:
            self._expect_room(ray.nodes())
            yield _Tasks(ray, self.cpus, self.gpus)
        finally:
            ray.shutdown()  # Ray ends the tasks of a driver that has gone

    def _connect(self, runs: int) -> Any:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            os.environ.update(LOCAL_SETTINGS)
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            jobs = max(1, min(self.jobs or (os.cpu_count() or 1) // self.cpus, runs))
            settings |= {"num_cpus": jobs * self.cpus, "include_dashboard": False, "object_store_memory": STORE_BYTES}
        try:
            ray: Any = import_module("ray")
        except ModuleNotFoundError:
            raise RunError("--executor ray needs Ray: pip install 'curriculoss[ray]'") from None
        if self.address is not None:
            _expect_cluster(self.address)
        ray._private.worker._worker_logs_enabled = False  # it would report dead workers on stdout, amid our JSON
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=self.address or "local", **settings)
        except (RuntimeError, OSError, ValueError) as error:  # of another version, no node here, initialised already
            raise RunError(f"cannot use Ray{self._where}: {first_line(error)}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray replaces it
        if self.address is None and not ray.get_runtime_context().gcs_address.startswith(LOOPBACK):
            ray.shutdown()
            raise RunError("Ray was imported before it could be told to stay on this machine; give a cluster's address")
        return ray

    def _expect_room(self, nodes: list[dict[str, Any]]) -> None:
        """RunError if no node is large enough for a run: Ray would wait silently for one that is."""
        here = [node["Resources"] for node in nodes if node["Alive"]]
        if not any(each.get("CPU", 0) >= self.cpus and each.get("GPU", 0) >= self.gpus for each in here):
            most = ", ".join(f"{each.get('CPU', 0):g} and {each.get('GPU', 0):g}" for each in here)
            raise RunError(f"no node of Ray{self._where} has {self.cpus} CPUs and {self.gpus:g} GPUs; they have {most}")

    @property
    def _where(self) -> str:
        return "" if self.address is None else f" at {self.address}"


# What a function returned or raised; Ray would wrap an error in one of its own, with a traceback as message.
Answer = tuple[Any, BaseException | None]


class _Tasks:
    def __init__(self, ray: Any, cpus: int, gpus: float) -> None:
        self.remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(_call_on_node)
        self.place = os.getcwd(), cpus

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        answer = self.remote.remote(*self.place, function, args, options).future()
        result: Future[Any] = Future()
        result.set_running_or_notify_cancel()
        answer.add_done_callback(lambda done: _hand_over(done, result))
        return result


def _hand_over(answer: Future[Answer], result: Future[Any]) -> None:
    if (error := answer.exception()) is None:
        value, error = answer.result()
        if error is None:
            result.set_result(value)
            return
    elif (cause := getattr(error, "cause", None)) is not None:  # before or after the function: it cannot be pickled
        error = RunError(f"a worker of Ray could not take it or return it: {first_line(cause)}")
    else:
        error = RunError(f"Ray gave it up after {RETRIES} retries: {first_line(error)}")
    result.set_exception(error)


def _call_on_node(
    folder: str, threads: int, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Answer:
    """Call a function in the folder of the driver, with the threads that it may use."""
    try:
        _enter(folder)
        torch.set_num_threads(threads)
        return function(*args, **options), None
    except Exception as error:  # whatever it is, the driver decides
        error.add_note("".join(traceback.format_exception(error)))
        return None, error


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        where = f"{socket.gethostname()} cannot enter {folder} ({error.strerror})"
        raise RunError(f"{where}; start from a folder that all nodes share") from None


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise InvalidValueError(f"--executor expects ray:HOST:PORT, such as ray:10.0.0.1:6379, got 'ray:{address}'")
    return host.strip("[]"), int(port)


def _expect_cluster(address: str) -> None:
    """RunError unless Ray answers at the address. A process of its own asks: Ray may wait for long, or abort."""
    try:
        socket.create_connection(_host_and_port(address), REACH_SECONDS).close()
        command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS)
        lines = [""] if done.returncode == 0 else done.stderr.strip().splitlines() or ["it does not answer"]
        reason = lines[-1].partition(". ")[0][:200]
    except subprocess.TimeoutExpired:
        reason = f"no answer in {ANSWER_SECONDS:g} s"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise RunError(f"no Ray cluster at {address} ({reason}); `ray start --head` starts one")
