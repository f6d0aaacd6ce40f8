"""Sweeps: what a file means, that no run is lost or done twice, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from curriculoss import cli
from curriculoss._files import locked
from curriculoss.errors import InvalidValueError, RunError
from curriculoss.runs import Run, RunSpec, executors
from curriculoss.runs.executors import LocalExecutor, executor_named
from curriculoss.runs.many import folder_name
from curriculoss.runs.sweep import MOST_RUNS, Sweep, read_sweep

BASE = {"data": "digits", "network": "linear", "subset": 200, "epochs": 2}
HEAD = "[base]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in BASE.items())


def write(folder: Path, text: str) -> Path:
    file = folder / "runs.toml"
    file.write_text(HEAD + text)
    return file


def run(*arguments, expect=0):
    done = CliRunner().invoke(cli.app, [str(x) for x in arguments], prog_name="curriculoss")
    assert done.exit_code == expect, (done.output, done.exception)
    return done


def test_a_file_means_every_combination_of_its_grids_and_its_single_runs(tmp_path):
    grids = '[[grid]]\nloss = ["ce", "mae"]\nseed = [0, 1]\n[[grid]]\nloss = ["gce"]\nparams.q = [0.3]\n'
    wanted = [RunSpec(**BASE, loss=loss, seed=seed) for loss in ("ce", "mae") for seed in (0, 1)]
    wanted += [RunSpec(**BASE, loss="gce", params={"q": 0.3}), RunSpec(**{**BASE, "epochs": 5})]
    assert read_sweep(write(tmp_path, grids + "[[runs]]\nepochs = 5")) == tuple(wanted)
    (tmp_path / "runs.json").write_text(json.dumps({"base": BASE, "grid": {"seed": [3]}}))
    assert read_sweep(tmp_path / "runs.json") == (RunSpec(**BASE, seed=3),)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[grids]\nseed = [0]", r"unknown key 'grids' in the sweep, did you mean 'grid'\?"),
        ("[grid]\nsede = [0]", r"grid 1, combination 1: unknown key 'sede' in the spec, did you mean 'seed'\?"),
        ("[[runs]]\nloss = 'male'", r"runs 1: unknown loss 'male', did you mean 'mae'\?"),
        ("[grid]\nseed = [0, 1, 0]", "grid 1, combination 1 and grid 1, combination 3 are the same run, with hash"),
        ("[grid]\nseed = [0]\n[[runs]]\nloss = 'ce'", "grid 1, combination 1 and runs 1 are the same run, with hash"),
        ("[grid]\nseed = 3", "grid 1: seed expects a list of values, got 3"),
        ("[grid]\nseed = []", r"grid 1: seed expects a list of values, got \[\]"),
        ("[grid]\nloss = ['gce']\nparams.q = 0.5", "grid 1: params.q expects a list of values, got 0.5"),
        ("[grid]\nparams = 1", "params of grid 1 expects a table of names and values, got 1"),
        ("[runs]\nseed = 3", r"runs expects tables, as in \[\[runs\]\], got"),
        ("[[runs]]\nnetwork = 'os:abort'", "runs 1: no sweep imports a network of your own, got network 'os:abort'"),
        ("", r"expected runs, as a table \[grid\] or as tables \[\[runs\]\], got none"),
        ("[grid]", r"expected runs, as a table \[grid\] or as tables \[\[runs\]\], got none"),
        ("[grid", "cannot read the sweep"),
        (f"[grid]\nseed = {list(range(401))}\nepochs = {list(range(1, 401))}", f"at most {MOST_RUNS:,} combinations"),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_line_and_leaves_nothing(tmp_path, text, match):
    file = write(tmp_path, text)
    with pytest.raises(InvalidValueError, match=match):
        read_sweep(file)
    said = run("sweep", file, "--out", tmp_path / "out", expect=2).stderr
    assert said.startswith("Error: ") and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_network_of_ones_own_in_a_file_is_never_imported(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import pathlib\npathlib.Path('imported').touch()\ndef factory(*_): ...\n")
    monkeypatch.chdir(tmp_path)
    run("sweep", write(tmp_path, "[[runs]]\nnetwork = 'mine:factory'"), "--out", tmp_path / "out", expect=2)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"text": "slurm"}, "--executor expects local, ray or ray:HOST:PORT, got 'slurm'"),
        ({"text": "ray:"}, "--executor expects local, ray or ray:HOST:PORT, got 'ray:'"),
        ({"text": "ray:head"}, "--executor expects ray:HOST:PORT, such as ray:10.0.0.1:6379, got 'ray:head'"),
        ({"text": "ray:ray://head:1"}, "--executor expects ray:HOST:PORT, such as"),
        ({"text": "ray:head:6379", "jobs": 2}, "--jobs is for this machine; the cluster at head:6379 has its own"),
        ({"text": "local", "gpus": 1}, "--gpus belongs to --executor ray, got --executor local --gpus 1"),
    ],
)
def test_executors_that_are_none(options, match):
    with pytest.raises(InvalidValueError, match=match):
        executor_named(**options)


def test_a_folder_that_cannot_be_used_is_one_line_and_nothing_is_lost(tmp_path):
    file = write(tmp_path, "[grid]\nseed = [0]")
    for out, code, words in (
        (file / "inside", 1, "cannot read or write"),
        (Path("/proc/sweep"), 1, "cannot read or write"),
        (file, 1, "is a file; give a folder for the sweep"),
        (tmp_path, 1, "is not empty and holds no sweep; give another folder"),
    ):
        said = run("sweep", file, "--out", out, expect=code).stderr
        assert said.startswith("Error: ") and words in said and said.count("\n") == 1
    assert [x.name for x in tmp_path.iterdir()] == ["runs.toml"]
    assert "is no sweep" in run("sweep", "status", tmp_path, expect=1).stderr
    run("sweep", "status", expect=2)
    run("sweep", file, expect=2)
    run("sweep", file, tmp_path, "--out", tmp_path / "out", expect=2)


@pytest.mark.slow
def test_a_failing_run_stops_no_other_and_the_command_that_is_told_runs_it_again(tmp_path):
    text = "[[runs]]\nlearning_rate = 1e29\n[[runs]]\ndata = 'nowhere'\n[grid]\nseed = [1, 2]"
    file, out = write(tmp_path, text), tmp_path / "my out"
    done = run("sweep", file, "--out", out, "--jobs", "1", expect=1)
    assert done.stdout.startswith("4 runs: 2 failed, 2 done\n")
    assert "training diverged in epoch" in done.stderr and "no data set or path 'nowhere'" in done.stderr
    states = json.loads(run("sweep", "status", out, "--json").stdout)
    assert [each["state"] for each in states] == ["done", "done", "failed", "failed"]
    assert "no data set or path 'nowhere'" in states[3]["reason"] and states[0]["reason"] == ""
    assert "4 runs: 2 failed, 2 done" in run("sweep", "status", out).stdout

    told = done.stderr.splitlines()[-1].partition(": curriculoss ")[2]
    assert told == f"sweep {file} --out {shlex.quote(str(out))} --jobs 1"
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    again = json.loads(run(*shlex.split(told), "--json", expect=1).stdout)
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")} and len(before) == 2
    assert len(again["done"]) == len(again["failed"]) == 2


class StopError(Exception):
    """Stands for whatever ends a driver."""


@pytest.mark.slow
def test_a_sweep_that_was_stopped_goes_on_and_its_states_are_true_all_along(tmp_path):
    specs = tuple(RunSpec(**{**BASE, "epochs": epochs}) for epochs in (1, 4000, 2))
    sweep = Sweep(tmp_path / "sweep", specs)
    first, long, last = sweep.runs()

    def stop(epochs):
        if epochs > 3:
            seen.extend(sweep.states())
            raise StopError

    seen: list = []
    with pytest.raises(StopError):
        sweep.train(LocalExecutor(jobs=1), watch=stop)
    assert [each.state for each in seen] == ["done", "running", "queued"] and seen[1].seconds_left > 0
    assert Sweep.read(sweep.folder) == sweep
    assert [each.state for each in sweep.states()] == ["done", "stopped", "queued"]
    with locked(sweep.folder), pytest.raises(RunError, match="is being written by another process"):
        sweep.train(LocalExecutor(jobs=1))
    shorter = Sweep(sweep.folder, (specs[0], specs[2]))
    results, failed = shorter.train(LocalExecutor(jobs=1))
    assert not failed and [x.already_finished for x in results.values()] == [True, False]
    assert not Run(long).finished and list(results) == [first, last]
    assert len((sweep.folder / "results.csv").read_text().splitlines()) == 3


def dies_once(marker: Path) -> int:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def dies(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_costs_only_the_run_that_kills_it(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "RETRIES", 1)
    with LocalExecutor(jobs=1, cpus=2).pool(4) as pool:
        once, never, fine = (pool.submit(x, tmp_path / "marker") for x in (dies_once, dies, dies_once))
        assert isinstance(once.result(), int) and once.result() != fine.result()
        with pytest.raises(RunError, match="its process died 2 times"):
            never.result()
        assert pool.submit(torch.get_num_threads).result() == 2


def test_run_folders_of_a_sweep_are_named_as_those_of_a_comparison():
    (spec,) = (RunSpec(**BASE),)
    assert list(Sweep(Path("out"), (spec,)).runs()) == [Path("out/runs") / folder_name(spec)]
