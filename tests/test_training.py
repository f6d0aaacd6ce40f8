"""The loop: what a run leaves, that it is the same every time, and that nothing is lost when it is broken off."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from curriculoss import MAE, Scaled, expected_initial_margin
from curriculoss.data import Images, Split
from curriculoss.training import Run, RunError, RunSpec, train
from curriculoss.training.loop import Silent
from curriculoss.training.many import folder_name, train_many
from curriculoss.training.store import locked, write
from curriculoss.training.task import _content, make_criterion, make_network, make_task

QUICK = {"data": "digits", "network": "mlp", "width": 0.125, "epochs": 3, "noise": "symmetric:0.3"}
ARRAYS = ("labels", "samples", "histograms")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def timeless(rows):
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def same(one: Path, other: Path) -> bool:
    a, b = Run(one), Run(other)
    weights = [load_file(x / "model.safetensors") for x in (one, other)]
    return (
        timeless(a.metrics) == timeless(b.metrics)
        and timeless([a.result]) == timeless([b.result])
        and all(
            np.array_equal(a.arrays(name)[key], b.arrays(name)[key], equal_nan=a.arrays(name)[key].dtype.kind == "f")
            for name in ARRAYS
            for key in a.arrays(name)
        )
        and all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    )


class StopAfter(Silent):
    """Pulls the plug once so many epochs are written."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def row(self, row):
        if row["epoch"] == self.epochs:
            raise KeyboardInterrupt


def test_tests_are_as_frequent_as_asked_and_the_last_epoch_is_tested(tmp_path):
    often = train(RunSpec(**{**QUICK, "epochs": 5}), tmp_path / "often")
    seldom = train(RunSpec(**{**QUICK, "epochs": 5}, test_every=2), tmp_path / "seldom")
    known = [row["test_accuracy"] for row in Run(tmp_path / "often").metrics]
    assert [row["test_accuracy"] for row in Run(tmp_path / "seldom").metrics] == [
        None, known[1], None, known[3], known[4]
    ]  # fmt: skip
    assert seldom["test_accuracy"] == often["test_accuracy"]


def test_a_run_that_stops_early_is_tested_all_the_same(tmp_path):
    spec = RunSpec(**{**QUICK, "epochs": 40}, test_every=100, patience=1, learning_rate=5.0)
    result = train(spec, tmp_path / "run")
    rows = Run(tmp_path / "run").metrics
    assert len(rows) < 40 and [row["test_accuracy"] is not None for row in rows] == [False] * (len(rows) - 1) + [True]
    assert result["test_accuracy"] == rows[-1]["test_accuracy"]


def test_run_leaves_what_it_promises(tmp_path):
    spec = RunSpec(**QUICK)
    result = train(spec, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.finished and run.spec == spec and run.environment["torch"] == torch.__version__
    wanted = {"test_accuracy", "train_accuracy", "snr", "mean_weight", "effective_learning_rate"}
    assert {*wanted, "resumed_from_epoch", "run"} <= set(result) and result["resumed_from_epoch"] is None
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3]
    assert all(run.metrics[-1][key] == result[key] == run.result[key] for key in wanted)
    labels, samples, histograms = (run.arrays(name) for name in ARRAYS)
    assert (labels["given"] != labels["clean"]).mean() == pytest.approx(0.3, abs=1e-3) == result["noise_rate"]
    assert len(samples["mean"]) == len(labels["given"]) and np.isfinite(samples["slope"]).all()
    assert (histograms["all"].sum(1) == len(labels["given"])).all()
    assert (histograms["clean"] + histograms["noisy"] == histograms["all"]).all()
    assert len(histograms["edges"]) == histograms["all"].shape[1] - 1
    assert result["test_accuracy"] > 80
    assert not [x.name for x in run.path.iterdir() if x.name.endswith((".part", "checkpoint.pt"))]


def test_finished_run_is_only_read(tmp_path):
    spec = RunSpec(**QUICK)
    first = train(spec, tmp_path)
    before = {x.name: (x.stat().st_mtime_ns, x.read_bytes()) for x in tmp_path.iterdir() if x.is_file()}
    again = train(spec, tmp_path)
    assert before == {x.name: (x.stat().st_mtime_ns, x.read_bytes()) for x in tmp_path.iterdir() if x.is_file()}
    assert again == {**first, "resumed_from_epoch": 3, "already_finished": True} and not first["already_finished"]


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
            train(spec, tmp_path / "three", progress=StopAfter(epochs))
        assert not Run(tmp_path / "three").finished and len(Run(tmp_path / "three").metrics) == epochs
    assert train(spec, tmp_path / "three")["resumed_from_epoch"] == 2
    assert same(tmp_path / "one", tmp_path / "two") and same(tmp_path / "one", tmp_path / "three")


def test_run_stopped_between_its_last_epoch_and_its_result_is_finished(tmp_path):
    """Also if the checkpoint was the last file that it could write."""
    spec = RunSpec(**QUICK)
    train(spec, tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        train(spec, tmp_path / "two", progress=StopAfter(3))
    for name in ("metrics.jsonl", "histograms.npz"):
        (tmp_path / "two" / name).unlink()
    assert train(spec, tmp_path / "two")["resumed_from_epoch"] == 3
    assert same(tmp_path / "one", tmp_path / "two")


def test_other_seeds_give_other_runs_but_the_same_data(tmp_path):
    specs = [RunSpec(**QUICK, seed=seed) for seed in (0, 1)]
    tasks = [make_task(spec) for spec in specs]
    assert torch.equal(tasks[0].train.target, tasks[1].train.target)
    assert not torch.equal(tasks[0].given, tasks[1].given)
    first, second = (train(spec, tmp_path / str(spec.seed)) for spec in specs)
    assert first["train_loss"] != second["train_loss"]
    fixed = [make_task(RunSpec(**QUICK, seed=seed, noise_seed=7)).given for seed in (0, 1)]
    assert torch.equal(*fixed)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "curriculoss", "train", *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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
    assert train(RunSpec(**QUICK), tmp_path / "run")["epochs"] == 3


def test_broken_checkpoint_is_named_and_not_run(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RunSpec(**QUICK), tmp_path, progress=StopAfter(1))
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"cos\nsystem\n(S'echo no'\ntR."):
        (tmp_path / "checkpoint.pt").write_bytes(content)
        with pytest.raises(RunError, match=r"cannot read .*checkpoint\.pt .*; delete it to begin again"):
            train(RunSpec(**QUICK), tmp_path)
        assert (tmp_path / "checkpoint.pt").read_bytes() == content
    (tmp_path / "checkpoint.pt").write_bytes(whole)
    assert train(RunSpec(**QUICK), tmp_path)["resumed_from_epoch"] == 1


def test_divergence_is_said_and_what_was_finished_is_kept(tmp_path):
    spec = RunSpec(**{**QUICK, "epochs": 5}, loss="cr", learning_rate=1e6, weight_decay=0.0, schedule="constant")
    with pytest.raises(RunError, match=r"diverged in epoch .*; try a smaller learning rate"):
        train(spec, tmp_path)
    assert (tmp_path / "spec.json").exists() and not (tmp_path / "result.json").exists()
    failed = Run(tmp_path).failed
    assert failed is not None and failed["reason"].startswith(f"training diverged in epoch {failed['epoch']} ")


def test_failure_is_forgotten_when_the_run_goes_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(RunSpec(**QUICK), tmp_path, progress=StopAfter(1))
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
        train(spec, tmp_path / "stopped", progress=StopAfter(1))
    np.savez(tmp_path / "own.npz", **arrays)  # at another time, but the same
    assert train(spec, tmp_path / "finished")["already_finished"]
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
    assert (facts["num_classes"], facts["class_names"], facts["train"], facts["test"]) == (3, ["0", "1", "2"], 10, 2)
    (tmp_path / "own.npz").unlink()
    monkeypatch.setattr("curriculoss.data.load", None)
    assert train(named, tmp_path / "named")["already_finished"] and train(own, tmp_path / "own")["already_finished"]


def test_patience_ends_a_run_that_learns_no_more(tmp_path):
    spec = RunSpec(**{**QUICK, "epochs": 30}, learning_rate=1e-12, patience=2)
    assert train(spec, tmp_path)["epochs"] < 30


def test_own_features_are_trained_on_with_some_held_out(tmp_path):
    chance = np.random.default_rng(0)
    y = chance.integers(3, size=300)
    x = (chance.normal(size=(300, 5)) + 3 * np.eye(3, 5)[y]).astype(np.float32)
    given = np.where(chance.random(300) < 0.2, (y + 1) % 3, y)
    np.savez(tmp_path / "mine.npz", x=x, y=given, y_clean=y)
    spec = RunSpec(data=str(tmp_path / "mine.npz"), epochs=5, holdout=0.25, loss="mae")
    result = train(spec, tmp_path / "run")
    labels = Run(tmp_path / "run").arrays("labels")
    assert len(labels["given"]) == 225 and result["network"] == "mlp" and result["test_accuracy"] > 90
    assert np.array_equal(labels["given"], given[labels["index"]])
    assert np.array_equal(labels["clean"], y[labels["index"]])
    assert result["snr"] > 1


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
        losses.add(train(spec, tmp_path / spec.hash)["train_loss"])
    assert len(losses) == 6


def test_tensorboard_files_are_written_if_wanted(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(RunSpec(**QUICK), tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [x.step for x in events.Scalars("test_accuracy")] == [1, 2, 3]


def test_many_runs_side_by_side_are_the_runs_one_by_one(tmp_path):
    specs = [RunSpec(**{**QUICK, "epochs": 1}, loss=loss) for loss in ("ce", "mae")]
    told: list[int] = []
    results, failed = train_many({tmp_path / folder_name(spec): spec for spec in specs}, jobs=2, watch=told.append)
    assert not failed and [x["loss"] for x in results.values()] == ["ce", "mae"] and told[-1] == 2
    train(specs[0], tmp_path / "alone")
    assert same(tmp_path / "alone", tmp_path / folder_name(specs[0]))
    with pytest.raises(ValueError, match="no data set or path 'nowhere'"):
        train_many({tmp_path / "x": RunSpec(data="nowhere")}, jobs=1)


@pytest.mark.parametrize(("network", "side"), [("resnet34", 32), ("cnn8", 32), ("resnet50", 64)])
def test_networks_of_the_paper_take_a_few_steps(tmp_path, network, side):
    chance = np.random.default_rng(0)
    x, y = chance.integers(256, size=(12, 3, side, side), dtype=np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "mine.npz", x=x, y=y, x_test=x[:3], y_test=y[:3])
    spec = RunSpec(data=str(tmp_path / "mine.npz"), network=network, epochs=1, batch_size=6, learning_rate=0.01)
    assert train(spec, tmp_path / "run")["epochs"] == 1


def test_runs_side_by_side_end_with_the_process_that_started_them(tmp_path):
    code = (
        "from pathlib import Path\nfrom curriculoss.training import RunSpec\n"
        "from curriculoss.training.many import train_many\n"
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
