"""The loop: what a run leaves, that it is the same every time, and that nothing is lost when it is broken off."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from curriculoss import MAE, Scaled, cli, expected_initial_margin, models, plan_fix
from curriculoss._files import locked, write
from curriculoss.data import Images, Split
from curriculoss.errors import CurriculossError
from curriculoss.fitting import Callback
from curriculoss.runs import Run, RunError, RunSpec, train
from curriculoss.runs.facts import FixFacts, NetworkFacts, TaskFacts
from curriculoss.runs.many import folder_name, train_many
from curriculoss.runs.task import _content, make_criterion, make_network, make_task
from curriculoss.runs.writing import RunWriter
from tests.run_folders import ARRAYS, same, timeless

QUICK = {"data": "digits", "network": "mlp", "width": 0.125, "epochs": 3, "noise": "symmetric:0.3"}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class StopAfter(Callback):
    """Pulls the plug once so many epochs are written."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch_begin(self, epoch):
        if epoch > self.epochs:
            raise KeyboardInterrupt

    def on_fit_end(self):
        raise KeyboardInterrupt


def test_tests_are_as_frequent_as_asked_and_the_last_epoch_is_tested(tmp_path):
    often = train(RunSpec(**{**QUICK, "epochs": 5}), tmp_path / "often")
    seldom = train(RunSpec(**{**QUICK, "epochs": 5}, test_every=2), tmp_path / "seldom")
    known = [row["test_accuracy"] for row in Run(tmp_path / "often").metrics]
    assert [row["test_accuracy"] for row in Run(tmp_path / "seldom").metrics] == [
        None, known[1], None, known[3], known[4]
    ]  # fmt: skip
    assert seldom.test_accuracy == often.test_accuracy


def test_a_run_that_stops_early_is_tested_all_the_same(tmp_path):
    spec = RunSpec(**{**QUICK, "epochs": 40}, test_every=100, patience=1, learning_rate=5.0)
    result = train(spec, tmp_path / "run")
    rows = Run(tmp_path / "run").metrics
    assert len(rows) < 40 and [row["test_accuracy"] is not None for row in rows] == [False] * (len(rows) - 1) + [True]
    assert result.test_accuracy == rows[-1]["test_accuracy"]


def test_run_leaves_what_it_promises(tmp_path):
    spec = RunSpec(**QUICK)
    result = train(spec, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.finished and run.spec == spec and run.environment.torch == torch.__version__
    wanted = {"test_accuracy", "train_accuracy", "snr", "mean_weight", "effective_learning_rate"}
    assert result.run == run.path and result.resumed_from_epoch is None
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3]
    assert all(run.metrics[-1][key] == getattr(result, key) == getattr(run.result, key) for key in wanted)
    labels, samples, histograms = (run.arrays(name) for name in ARRAYS)
    assert (labels["given"] != labels["clean"]).mean() == pytest.approx(0.3, abs=1e-3) == result.noise_rate
    assert len(samples["mean"]) == len(labels["given"]) and np.isfinite(samples["slope"]).all()
    assert (histograms["all"].sum(1) == len(labels["given"])).all()
    assert (histograms["clean"] + histograms["noisy"] == histograms["all"]).all()
    assert len(histograms["edges"]) == histograms["all"].shape[1] - 1
    assert result.test_accuracy > 80
    assert not [x.name for x in run.path.iterdir() if x.name.endswith((".part", "checkpoint.pt"))]


def test_finished_run_is_only_read(tmp_path):
    spec = RunSpec(**QUICK)
    first = train(spec, tmp_path)
    before = {x.name: (x.stat().st_mtime_ns, x.read_bytes()) for x in tmp_path.iterdir() if x.is_file()}
    again = train(spec, tmp_path)
    assert before == {x.name: (x.stat().st_mtime_ns, x.read_bytes()) for x in tmp_path.iterdir() if x.is_file()}
    assert again == replace(first, resumed_from_epoch=3, already_finished=True) and not first.already_finished


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [
        {"loss": "mae", "fix": "shift", "tau": 1.0},
        {"loss": "peer"},
        {"loss": "auto", "data": "digits-1000", "subset": 500},
    ],
    ids=["mae", "peer", "auto"],
)
def test_same_spec_gives_the_same_bits_also_when_broken_off(tmp_path, loss):
    """Peer loss draws random numbers as it trains, and "auto" changes."""
    spec = RunSpec(**{**QUICK, **loss}, learning_rate=0.01)
    train(spec, tmp_path / "one")
    train(spec, tmp_path / "two")
    for epochs in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            train(spec, tmp_path / "three", callbacks=[StopAfter(epochs)])
        assert not Run(tmp_path / "three").finished and len(Run(tmp_path / "three").metrics) == epochs
    assert train(spec, tmp_path / "three").resumed_from_epoch == 2
    assert same(tmp_path / "one", tmp_path / "two") and same(tmp_path / "one", tmp_path / "three")


def test_run_stopped_between_its_last_epoch_and_its_result_is_finished(tmp_path):
    """Also if the checkpoint was the last file that it could write."""
    spec = RunSpec(**QUICK)
    train(spec, tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path / "two", callbacks=[StopAfter(3)])
    for name in ("metrics.jsonl", "histograms.npz"):
        (tmp_path / "two" / name).unlink()
    assert train(spec, tmp_path / "two").resumed_from_epoch == 3
    assert same(tmp_path / "one", tmp_path / "two")


def test_other_seeds_give_other_runs_but_the_same_data(tmp_path):
    specs = [RunSpec(**QUICK, seed=seed) for seed in (0, 1)]
    tasks = [make_task(spec) for spec in specs]
    assert torch.equal(tasks[0].train.target, tasks[1].train.target)
    assert not torch.equal(tasks[0].given, tasks[1].given)
    first, second = (train(spec, tmp_path / str(spec.seed)) for spec in specs)
    assert first.train_loss != second.train_loss
    fixed = [make_task(RunSpec(**QUICK, seed=seed, noise_seed=7)).given for seed in (0, 1)]
    assert torch.equal(*fixed)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "curriculoss", "train", *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_run_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path):
    quick = ["--data", "digits", "--network", "mlp", "--epochs", "12", "--noise", "symmetric:0.3", "--json"]
    whole = start(*quick, "--out", str(tmp_path / "whole"))
    chance, kills, resumed = random.Random(0), 0, []
    for _ in range(20):
        process = start(*quick, "--out", str(tmp_path / "killed"))
        metrics = tmp_path / "killed" / "metrics.jsonl"
        begun = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        limit = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < limit:
            done = len(metrics.read_text().splitlines()) if metrics.exists() else 0
            if done > begun and kills < 3:
                time.sleep(chance.random() * 0.05)
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        out, _ = process.communicate(timeout=60)
        if process.returncode == 0:
            resumed.append(json.loads(out)["resumed_from_epoch"])
            break
        Run(tmp_path / "killed").metrics  # noqa: B018  whole files only
    assert whole.wait(60) == 0
    whole.communicate()
    assert kills == 3 and resumed[0] >= 3
    assert same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_wait_until_a_file_is_filled(tmp_path, number):
    """Interrupted in its midst, zipfile raises an error of its own in place of the interrupt."""
    answered, steps = [], []

    def fill(file):
        os.kill(os.getpid(), number)
        steps.append("on")
        file.write(b"all")

    def answer(*_):
        answered.append(list(steps))
        raise KeyboardInterrupt

    before = signal.signal(number, answer)
    try:
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "file", fill)
        assert answered == [["on"]] and signal.getsignal(number) is answer
        assert not list(tmp_path.iterdir())  # the file or nothing
    finally:
        signal.signal(number, before)


@pytest.mark.slow
def test_two_processes_train_together_and_one_writes(tmp_path):
    """Their monitors see every sample of every epoch once between them."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
        "--master-port", str(20000 + os.getpid() % 20000), "-m", "curriculoss", "train", "--data", "digits",
        "--network", "mlp", "--epochs", "2", "--noise", "symmetric:0.3", "--accelerator", "cpu", "--json",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    run = Run(tmp_path / "run")
    assert len(run.metrics) == 2 and all(row["samples"] == len(run.arrays("labels")["given"]) for row in run.metrics)
    assert np.isfinite(run.arrays("samples")["first"]).all() and result["test_accuracy"] > 50


def test_folder_of_another_run_is_left_alone(tmp_path):
    train(RunSpec(**QUICK), tmp_path / "run")
    with pytest.raises(RunError, match=r"holds another run \(seed 0, not 1\); give another folder"):
        train(RunSpec(**QUICK, seed=1), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("all my work")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        train(RunSpec(**QUICK), tmp_path / "other")
    with pytest.raises(RunError, match="is a file"):
        train(RunSpec(**QUICK), tmp_path / "other" / "thesis.txt")
    assert (tmp_path / "other" / "thesis.txt").read_text() == "all my work"


def test_run_is_written_by_one_process_at_a_time(tmp_path):
    tmp_path.joinpath("run").mkdir()
    with locked(tmp_path / "run"), pytest.raises(RunError, match="being written by another process"):
        train(RunSpec(**QUICK), tmp_path / "run")
    assert train(RunSpec(**QUICK), tmp_path / "run").epochs == 3


def test_broken_checkpoint_is_named_and_not_run(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RunSpec(**QUICK), tmp_path, callbacks=[StopAfter(1)])
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"cos\nsystem\n(S'echo no'\ntR."):
        (tmp_path / "checkpoint.pt").write_bytes(content)
        with pytest.raises(RunError, match=r"cannot read .*checkpoint\.pt .*; delete it to begin again"):
            train(RunSpec(**QUICK), tmp_path)
        assert (tmp_path / "checkpoint.pt").read_bytes() == content
    (tmp_path / "checkpoint.pt").write_bytes(whole)
    assert train(RunSpec(**QUICK), tmp_path).resumed_from_epoch == 1


def test_checkpoint_of_the_first_version_is_refused_in_one_line(tmp_path):
    """It had no states of callbacks: the monitor's, the rows and the histograms stood beside the network's."""
    with pytest.raises(KeyboardInterrupt):
        train(RunSpec(**QUICK), tmp_path, callbacks=[StopAfter(1)])
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    monitor = state.pop("callbacks")["MonitorCallback 0"]
    del state["history"]
    torch.save({**state, "monitor": monitor}, tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match=r"^\S+checkpoint\.pt was made by an older version of curriculoss; delete it "):
        train(RunSpec(**QUICK), tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    assert train(RunSpec(**QUICK), tmp_path).resumed_from_epoch is None


def test_runs_of_another_version_of_their_loss_are_refused(tmp_path, monkeypatch):
    spec = RunSpec(**QUICK, loss="mae")
    train(spec, tmp_path / "finished")
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path / "stopped", callbacks=[StopAfter(1)])
    assert Run(tmp_path / "finished").result.loss_version == 1
    monkeypatch.setattr(MAE, "version", 2)
    assert spec.hash == RunSpec(**QUICK, loss="mae").hash
    for place in ("finished", "stopped/checkpoint.pt"):
        with pytest.raises(RunError, match=f"{place} was made by version 1 of loss 'mae', which is now at version 2; "):
            train(spec, (tmp_path / place) if place == "finished" else tmp_path / "stopped")
    train(spec, tmp_path / "second")
    assert Run(tmp_path / "second").result.loss_version == 2 and train(spec, tmp_path / "second").already_finished


def test_facts_survive_json_and_say_what_does_not_fit():
    facts = make_task(RunSpec(**QUICK)).facts()
    plain = json.loads(json.dumps(facts.as_dict()))
    assert TaskFacts.from_dict({**plain, "of a later version": 1}) == facts
    assert TaskFacts.from_dict({**plain, "train": float(facts.train)}) == facts
    for change, said in (
        ({"train": 1.5}, "train expects int, got 1.5"),
        ({"input_format": {**plain["input_format"], "mean": ["a"]}}, r"mean expects tuple, got \['a'\]"),
        ({"class_names": None}, "class_names expects tuple, got None"),
    ):
        with pytest.raises(ValueError, match=f"^{said}$"):
            TaskFacts.from_dict({**plain, **change})
    del plain["train"]
    with pytest.raises(ValueError, match=r"^it lacks 'train'$"):
        TaskFacts.from_dict(plain)


def test_divergence_is_said_and_what_was_finished_is_kept(tmp_path):
    spec = RunSpec(**{**QUICK, "epochs": 5}, loss="cr", learning_rate=1e6, weight_decay=0.0, schedule="constant")
    with pytest.raises(RunError, match=r"diverged in epoch .*; try a smaller learning rate"):
        train(spec, tmp_path)
    assert (tmp_path / "spec.json").exists() and not (tmp_path / "result.json").exists()
    failed = Run(tmp_path).failed
    assert failed is not None and failed.reason.startswith(f"training diverged in epoch {failed.epoch} ")


def test_failure_is_forgotten_when_the_run_goes_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RunSpec(**QUICK), tmp_path, callbacks=[StopAfter(1)])
    (tmp_path / "failed.json").write_text('{"epoch": 2, "reason": "another machine"}')
    train(RunSpec(**QUICK), tmp_path)
    assert Run(tmp_path).failed is None


@pytest.mark.parametrize("change", ["x", "y", "y_test", "matrix"])
def test_run_on_data_that_have_changed_is_refused(tmp_path, change):
    chance = np.random.default_rng(0)
    arrays = {"x": chance.normal(size=(30, 4)).astype(np.float32), "y": np.arange(30) % 3}
    arrays |= {"x_test": arrays["x"][:6], "y_test": arrays["y"][:6]}
    np.savez(tmp_path / "own.npz", **arrays)
    np.save(tmp_path / "matrix.npy", np.eye(3))
    spec = RunSpec(data=str(tmp_path / "own.npz"), noise=f"matrix:{tmp_path / 'matrix.npy'}", epochs=2)
    train(spec, tmp_path / "finished")
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path / "stopped", callbacks=[StopAfter(1)])
    np.savez(tmp_path / "own.npz", **arrays)  # at another time, but the same
    assert train(spec, tmp_path / "finished").already_finished
    if change == "matrix":
        np.save(tmp_path / "matrix.npy", np.full((3, 3), 1 / 3))
    else:
        arrays[change] = arrays[change].copy()
        arrays[change][:2] = arrays[change][:2][::-1]
        np.savez(tmp_path / "own.npz", **arrays)
    for folder in (tmp_path / "finished", tmp_path / "stopped"):
        with pytest.raises(RunError, match=f"^{folder} was made from other data; give another folder$"):
            train(spec, folder)


def test_a_photo_of_another_size_is_another_file(tmp_path):
    files = tuple(str(tmp_path / name) for name in ("a.png", "b.png"))
    for size, file in zip((40, 50), files, strict=True):
        Image.new("RGB", (size, 30)).save(file)
    split = Split(Images(files, size=32), torch.tensor([0, 1]))
    before = [*_content(split)]
    assert [*_content(split)] == before
    Image.new("RGB", (400, 300)).save(files[1])
    assert [*_content(split)] != before


def test_finished_run_is_shown_without_its_data(tmp_path, monkeypatch):
    np.savez(tmp_path / "own.npz", x=np.eye(12, dtype=np.float32), y=np.arange(12) % 3)
    named, own = RunSpec(**QUICK), RunSpec(data=str(tmp_path / "own.npz"), epochs=1)
    train(named, tmp_path / "named")
    train(own, tmp_path / "own")
    facts = Run(tmp_path / "own").task
    assert (facts.num_classes, facts.class_names, facts.train, facts.test) == (3, ("0", "1", "2"), 10, 2)
    expected = facts.input_format
    assert (expected.input_shape, expected.input_dtype, len(expected.mean)) == ((12,), "float32", 12)
    (tmp_path / "own.npz").unlink()
    monkeypatch.setattr("curriculoss.data.load", None)
    assert train(named, tmp_path / "named").already_finished and train(own, tmp_path / "own").already_finished


def test_patience_ends_a_run_that_learns_no_more(tmp_path):
    spec = RunSpec(**{**QUICK, "epochs": 30}, learning_rate=1e-12, patience=2)
    assert train(spec, tmp_path).epochs < 30


def test_own_features_are_trained_on_with_some_held_out(tmp_path):
    chance = np.random.default_rng(0)
    y = chance.integers(3, size=300)
    x = (chance.normal(size=(300, 5)) + 3 * np.eye(3, 5)[y]).astype(np.float32)
    given = np.where(chance.random(300) < 0.2, (y + 1) % 3, y)
    np.savez(tmp_path / "mine.npz", x=x, y=given, y_clean=y)
    spec = RunSpec(data=str(tmp_path / "mine.npz"), epochs=5, holdout=0.25, loss="mae")
    result = train(spec, tmp_path / "run")
    labels = Run(tmp_path / "run").arrays("labels")
    assert len(labels["given"]) == 225 and result.network == "mlp" and result.test_accuracy > 90
    assert np.array_equal(labels["given"], given[labels["index"]])
    assert np.array_equal(labels["clean"], y[labels["index"]])
    assert result.snr > 1


@pytest.mark.parametrize("measured", [False, True])
def test_fix_is_for_the_expected_or_the_measured_margin(measured):
    how = "measured" if measured else "expected"
    spec = RunSpec(data="digits-100", network="mlp", loss="mae", fix="scale", tau=2.0, initial_margin=how)
    task = make_task(RunSpec(**{**spec.as_dict(), "subset": 500}))
    loss = make_criterion(spec, task, make_network(spec, task)).loss
    expected = Scaled(MAE(), 2.0 / -expected_initial_margin(100))
    assert isinstance(loss, Scaled)
    assert (loss != expected and loss.alpha == pytest.approx(expected.alpha, rel=0.1)) if measured else loss == expected


def test_subset_is_the_same_for_every_seed_and_never_more_than_there_is():
    picks = [make_task(RunSpec(data="digits", subset=100, seed=seed)).index for seed in (0, 1)]
    assert torch.equal(*picks) and len(picks[0].unique()) == 100
    with pytest.raises(ValueError, match="subset expects at most the 1442 training samples, got 5000"):
        make_task(RunSpec(data="digits", subset=5000))


def test_data_are_printed_in_one_line():
    shown = repr(make_task(RunSpec(data="digits")).dataset)
    split = "Split(1442 samples of shape (1, 8, 8))"
    assert shown.startswith(f"Dataset('digits', train={split}, ") and shown.endswith(", 10 classes)")


def test_options_of_the_optimiser_take_effect(tmp_path):
    losses = set()
    changes = [{}, {"clip_norm": 0.01}, {"momentum": 0.0}, {"weight_decay": 0.1}, {"schedule": "warmup"}]
    for change in (*changes, {"augment": "shift-flip"}):
        spec = RunSpec(**{**QUICK, "epochs": 1}, **change)
        losses.add(train(spec, tmp_path / spec.hash).train_loss)
    assert len(losses) == 6


def test_tensorboard_files_are_written_if_wanted(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(RunSpec(**QUICK), tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [x.step for x in events.Scalars("test_accuracy")] == [1, 2, 3]


def test_tensorboard_has_every_epoch_once_of_a_run_killed_just_after_a_checkpoint(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "_write_records", killed)
        with pytest.raises(KeyboardInterrupt):
            train(RunSpec(**QUICK), tmp_path, tensorboard=True)
    assert train(RunSpec(**QUICK), tmp_path, tensorboard=True).resumed_from_epoch == 1
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [x.step for x in events.Scalars("train_loss")] == [1, 2, 3]


@pytest.mark.slow
def test_many_runs_side_by_side_are_the_runs_one_by_one(tmp_path):
    specs = [RunSpec(**{**QUICK, "epochs": 1}, loss=loss) for loss in ("ce", "mae")]
    told: list[int] = []
    results, failed = train_many({tmp_path / folder_name(spec): spec for spec in specs}, jobs=2, watch=told.append)
    assert not failed and [x.loss for x in results.values()] == ["ce", "mae"] and told[-1] == 2
    train(specs[0], tmp_path / "alone")
    assert same(tmp_path / "alone", tmp_path / folder_name(specs[0]))
    with pytest.raises(ValueError, match="no data set or path 'nowhere'"):
        train_many({tmp_path / "x": RunSpec(data="nowhere")}, jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "side"), [("resnet34", 32), ("cnn8", 32), ("resnet50", 64)])
def test_networks_of_the_paper_take_a_few_steps(tmp_path, network, side):
    chance = np.random.default_rng(0)
    x, y = chance.integers(256, size=(12, 3, side, side), dtype=np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=x[:3], y_test=y[:3])
    spec = RunSpec(data=str(tmp_path / "mine.npz"), network=network, epochs=1, batch_size=6, learning_rate=0.01)
    assert train(spec, tmp_path / "run").epochs == 1


@pytest.mark.slow
def test_runs_side_by_side_end_with_the_process_that_started_them(tmp_path):
    code = (
        "from pathlib import Path\nfrom curriculoss.runs import RunSpec\n"
        "from curriculoss.runs.many import train_many\n"
        "if __name__ == '__main__':\n"
        "    spec = RunSpec(data='digits', network='mlp', epochs=100000)\n"
        f"    train_many({{Path({str(tmp_path / 'run')!r}): spec}}, jobs=1)\n"
    )
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py")], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    metrics, limit = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 90
    while not metrics.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    process.kill()
    process.wait()
    while time.monotonic() < limit:
        size = len(metrics.read_bytes())
        time.sleep(1.5)
        if len(metrics.read_bytes()) == size:
            break
    else:
        pytest.fail("a run goes on that nobody waits for")
    with locked(tmp_path / "run"):
        pass


# A network of one's own


class Small(nn.Module):
    """As a user might write it: called with the input shape and the number of classes."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.last = nn.Linear(math.prod(shape), num_classes)

    def forward(self, inputs):
        return self.last(inputs.flatten(1))


def test_a_network_of_ones_own_is_recorded_and_has_to_be_given_again(tmp_path):
    spec = RunSpec(**{**QUICK, "network": "auto"})
    result = train(spec, tmp_path / "whole", network=Small)
    run = Run(tmp_path / "whole")
    assert result.network == run.spec.network == f"{__name__}:Small" and run.spec.hash != spec.hash
    assert run.task.own_network == NetworkFacts(f"{__name__}.Small", {"last.weight": (10, 64), "last.bias": (10,)})
    named = replace(spec, network=f"{__name__}:Small")
    with pytest.raises(KeyboardInterrupt):
        train(named, tmp_path / "stopped", network=Small, callbacks=[StopAfter(1)])
    with pytest.raises(
        ValueError, match=rf"'{__name__}:Small' is a network of your own: only train takes one, as --network"
    ):
        train(named, tmp_path / "stopped")
    wide = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10))
    with pytest.raises(RunError, match=r"was made with another network than torch\.nn\S+Sequential; give that one"):
        train(named, tmp_path / "stopped", network=wide)
    assert train(named, tmp_path / "stopped", network=Small).resumed_from_epoch == 1
    assert same(tmp_path / "whole", tmp_path / "stopped")
    assert train(named, tmp_path / "whole").already_finished  # it is only read
    with pytest.raises(ValueError, match="a network of one's own or network 'mlp' in the spec, got both"):
        train(RunSpec(**QUICK), tmp_path / "both", network=Small)


@pytest.mark.parametrize(
    ("network", "match"),
    [
        (lambda shape, num_classes: {}["nothing"], r"fails for inputs of shape \(2, 1, 8, 8\): KeyError: 'nothing'$"),
        (nn.Linear(3, 10), r"Linear fails for inputs of shape \(2, 1, 8, 8\): RuntimeError: mat1 and mat2 shapes"),
        (nn.Identity(), r"expected a torch.nn.Module with parameters from .*:Identity, got Identity\(\)$"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), r"expected logits of shape \(2, 10\) from .*, got \(2, 5\)$"),
    ],
)
def test_a_network_of_ones_own_that_does_not_fit_is_the_users_to_mend(tmp_path, network, match):
    with pytest.raises(CurriculossError, match=match):
        train(RunSpec(**{**QUICK, "network": "auto"}), tmp_path, network=network)


def test_trying_a_network_of_ones_own_leaves_it_as_it_is():
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 10))
    before, chance = deepcopy(network.state_dict()), torch.get_rng_state()
    assert models.make_network(network, (1, 8, 8), 10) is network and network.training and network[1].training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert torch.equal(chance, torch.get_rng_state())


def test_a_network_itself_is_trained_in_place_also_if_it_shares_weights(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 10))
    network[3].weight = network[1].weight
    result = train(RunSpec(**{**QUICK, "network": "auto"}), tmp_path, network=network)
    kept = load_file(tmp_path / "model.safetensors")
    assert result.network == "torch.nn.modules.container:Sequential" and result.test_accuracy > 80
    assert torch.equal(kept["3.weight"], network[1].weight.detach()) and len(kept) == 6


def test_a_network_by_name_is_imported_on_the_command_line_alone(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nPath('imported').touch()\n"
        "def small(shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")

    def run(*arguments):
        return CliRunner().invoke(cli.app, ["train", "--data", "digits", "--epochs", "1", *arguments])

    (tmp_path / "spec.toml").write_text('network = "nets:small"')
    refused = run("--spec", "spec.toml", "--out", "run")
    assert refused.exit_code == 2 and not (tmp_path / "imported").exists()
    assert (
        refused.stderr
        == "Error: 'nets:small' is a network of your own: only train takes one, as --network nets:small or network=\n"
    )
    done = run("--network", "nets:small", "--out", "run", "--json")
    assert (
        done.exit_code == 0 and json.loads(done.stdout)["network"] == "nets:small" and (tmp_path / "imported").exists()
    )
    assert Run(Path("run")).task.own_network.class_name == "torch.nn.modules.container.Sequential"
    without = run("--out", "run")
    assert without.exit_code == 1 and without.stderr == (
        "Error: run was begun with a network of your own, nets:small: give it as network= or --network\n"
    )
    wrong = run("--network", "nets:nothing", "--out", "other")
    assert wrong.exit_code == 2 and "--network nets:nothing: cannot be imported" in wrong.stderr


# Fixes and optimisers


def test_the_plan_of_a_fix_is_recorded(tmp_path):
    settings = {**QUICK, "epochs": 1, "loss": "mae", "fix": "scale"}
    train(RunSpec(**{**settings, "data": "digits-100", "subset": 300}), tmp_path / "applied")
    plan = plan_fix(MAE(), "scale", num_classes=100)
    kept = Run(tmp_path / "applied").result
    assert kept.fix_plan == FixFacts("scale", plan.alpha, None, plan.margin, True, "") and kept.note == ""
    np.savez(tmp_path / "two.npz", x=np.eye(12, dtype=np.float32), y=np.arange(12) % 2)
    result = train(RunSpec(**{**settings, "data": str(tmp_path / "two.npz"), "noise": "clean"}), tmp_path / "refused")
    assert not result.fix_plan.applied and result.note == result.fix_plan.reason
    assert result.note.startswith("fix 'scale' would do harm with an expected initial margin of")
    assert train(RunSpec(**{**settings, "fix": None}), tmp_path / "none").fix_plan is None


def test_adamw_is_torchs_and_goes_on_to_the_bit(tmp_path):
    spec = RunSpec(**QUICK, optimizer="adamw", learning_rate=0.01)
    train(spec, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path / "stopped", callbacks=[StopAfter(1)])
    state = torch.load(tmp_path / "stopped/checkpoint.pt", weights_only=True)["optimizer"]
    assert {"exp_avg", "exp_avg_sq", "step"} == set(state["state"][0])
    train(spec, tmp_path / "stopped")
    assert same(tmp_path / "whole", tmp_path / "stopped")


def test_auto_in_two_processes_is_auto_in_one_on_the_union_of_their_batches(tmp_path):
    """With a network that has no batch normalisation, whose statistics are those of each process's own half."""
    settings = ["--data", "digits-100", "--subset", "1024", "--network", "linear", "--noise", "symmetric:0.4", "--loss",
                "auto", "--epochs", "3", "--lr", "0.02", "--accelerator", "cpu", "--json"]  # fmt: skip
    together = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for launcher, out in (([sys.executable], "one"), (together, "two")):
        command = [*launcher, "-m", "curriculoss", "train", *settings, "--out", str(tmp_path / out)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
    one, two = (timeless(Run(tmp_path / name).metrics) for name in ("one", "two"))
    for first, second in zip(one, two, strict=True):
        assert first.pop("verdicts") == second.pop("verdicts")
        assert second == pytest.approx(first, rel=1e-5)
