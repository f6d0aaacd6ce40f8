"""Sweeps on a Ray cluster whose workers and drivers are killed. One cluster, on the loopback address, for all tests."""

from __future__ import annotations

import csv
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from curriculoss.errors import RunError
from curriculoss.runs import Run, on_ray, train
from curriculoss.runs.on_ray import RayExecutor
from curriculoss.runs.sweep import Sweep, read_sweep
from tests.run_folders import same

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
CLUSTER = """
import sys
from curriculoss.runs.on_ray import RayExecutor
with RayExecutor(jobs=2).pool(24) as pool:
    import ray
    print(ray.get_runtime_context().gcs_address, ray.cluster_resources()["CPU"], flush=True)
    sys.stdin.read()
"""
SWEEP = """
base = {data = "digits", network = "linear", subset = 200, noise = "symmetric:0.2"}
[[grid]]
epochs = [150]
[[grid]]
epochs = [2]
loss = ["ce", "mae"]
seed = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
[[runs]]
epochs = 2
loss = "gce"
params = {q = 0.5}
"""
LIMIT = 300.0  # seconds after which a test gives up, on a machine that is busy with other things


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """The environment of commands that may use a cluster with two workers, and its address.

    It is the one that `--executor ray` would start, kept running, with a token that its users know.
    """
    env = {**os.environ, **on_ray.LOCAL_SETTINGS, "RAY_AUTH_TOKEN": secrets.token_hex(32), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", CLUSTER], env=env, text=True, stdin=-1, stdout=-1)
    try:
        address, cores = process.stdout.readline().split()
        assert address.startswith("127.0.0.1:") and float(cores) == 2
        yield {**env, "ADDRESS": address}
    finally:
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> Sweep:
    """24 runs, one after the other in this process with one thread."""
    folder = tmp_path_factory.mktemp("serial")
    (folder / "runs.toml").write_text(SWEEP)
    sweep, threads = Sweep(folder, read_sweep(folder / "runs.toml")), torch.get_num_threads()
    torch.set_num_threads(1)
    for path, spec in sweep.runs().items():
        train(spec, path)
    torch.set_num_threads(threads)
    return sweep


@pytest.fixture
def start(cluster, serial) -> Iterator[Callable[[Path], subprocess.Popen[str]]]:
    """Starts the sweep on the cluster, and ends what a failed test has left."""
    with ExitStack() as started:
        yield lambda out: started.enter_context(_driver(cluster, serial, out))


@contextmanager
def _driver(cluster: dict[str, str], serial: Sweep, out: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "curriculoss", "sweep", str(serial.folder / "runs.toml"), "--out", out.name,
               "--executor", f"ray:{cluster['ADDRESS']}", "--json"]  # fmt: skip
    with subprocess.Popen(command, env=cluster, cwd=out.parent, text=True, stdout=-1, stderr=-1) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(holds: Callable[[], object], process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + LIMIT
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)


def finished(sweep: Sweep) -> dict[Path, int]:
    """When each finished run was written."""
    return {x: (x / "result.json").stat().st_mtime_ns for x in sweep.runs() if Run(x).finished}


def expect_all(process: subprocess.Popen[str], sweep: Sweep, serial: Sweep) -> list[dict[str, str]]:
    """The rows of results.csv, once the sweep has ended with the same bits as the serial runs."""
    said, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    assert len(json.loads(said)["done"]) == 24
    assert all(same(one, other) for one, other in zip(sweep.runs(), serial.runs(), strict=True))
    assert len(list((sweep.folder / "runs").iterdir())) == 24
    with (sweep.folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["spec"] for row in rows] == [spec.hash for spec in serial.specs]
    return rows


def writers(folder: Path) -> list[int]:
    """The processes that hold the lock of a run."""
    lock, found = str(folder / ".lock"), []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            opened = {os.readlink(each) for each in Path("/proc", process, "fd").iterdir()}
        except OSError:  # it has ended, or is somebody else's
            continue
        found += [int(process)] * (lock in opened)
    return found


def test_24_runs_with_a_worker_killed_are_the_serial_ones_each_trained_once(start, serial, tmp_path):
    sweep = Sweep(tmp_path / "sweep", serial.specs)
    process, long = start(sweep.folder), next(iter(sweep.runs()))
    seen: list[int] = []  # kept, because a worker is found while it has the run's lock, and no longer
    wait_for(lambda: (long / "checkpoint.pt").exists() and (seen.extend(writers(long)) or seen), process)
    worker = seen[0]
    assert worker != process.pid
    os.kill(worker, signal.SIGSTOP)  # or it might finish before the other worker has started
    assert not Run(long).finished
    wait_for(lambda: len(finished(sweep)) >= 10, process)
    os.kill(worker, signal.SIGKILL)
    rows = expect_all(process, sweep, serial)
    resumed = [row["resumed_from_epoch"] for row in rows]
    assert int(resumed[0]) >= 1 and set(resumed[1:]) == {""}


def test_a_driver_that_was_killed_and_started_again_repeats_nothing(start, serial, tmp_path):
    sweep = Sweep(tmp_path / "sweep", serial.specs)
    process = start(sweep.folder)
    wait_for(lambda: len(finished(sweep)) >= 10, process)
    process.kill()
    process.communicate()
    before = finished(sweep)
    assert 10 <= len(before) < 24
    rows = expect_all(start(sweep.folder), sweep, serial)
    assert before.items() <= finished(sweep).items()
    again = {row["run"].rpartition("/")[2] for row in rows if row["already_finished"] == "True"}
    assert {path.name for path in before} <= again


def test_a_comparison_on_ray_takes_a_network_of_ones_own_from_the_working_directory(cluster, tmp_path):
    code = "from torch import nn\ndef factory(_, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    (tmp_path / "mine.py").write_text(code)
    command = [sys.executable, "-m", "curriculoss", "compare", "ce", "mae", "--data", "digits", "--subset", "200",
               "--epochs", "1", "--network", "mine:factory", "--out", "out", "--json",
               "--executor", f"ray:{cluster['ADDRESS']}"]  # fmt: skip
    done = subprocess.run(command, env=cluster, cwd=tmp_path, text=True, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert all(Run(tmp_path / each).result.network == "mine:factory" for each in json.loads(done.stdout)["runs"])


def test_an_address_without_a_cluster_is_one_line_soon_and_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "ANSWER_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections, and never says a word
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(RunError, match=f"no Ray cluster at {address} .no answer in 2 s.; `ray start --head`"):
            on_ray._expect_cluster(address)
    with pytest.raises(RunError, match=f"no Ray cluster at {address} .Connection refused.; `ray start --head`"):
        on_ray._expect_cluster(address)
    command = [sys.executable, "-m", "curriculoss", "compare", "ce", "--out", "out", "--executor", f"ray:{address}"]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=LIMIT)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"Error: no Ray cluster at {address}") and not list(tmp_path.glob("out/*"))


def test_a_run_that_no_node_can_take_is_refused():
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 4.0}}]
    RayExecutor(cpus=2)._expect_room(nodes)
    with pytest.raises(RunError, match="no node of Ray has 1 CPUs and 1 GPUs; they have 2 and 0"):
        RayExecutor(gpus=1)._expect_room(nodes)
