"""The training commands, as a user types them."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from curriculoss import cli
from curriculoss.errors import InvalidValueError
from curriculoss.runs import Run, RunSpec
from curriculoss.runs.task import make_fabric

pytestmark = pytest.mark.slow

QUICK = ("--data", "digits", "--network", "mlp", "--width", "0.125", "--epochs", "2", "--noise", "symmetric:0.3")


def run(*arguments, expect=0):
    done = CliRunner().invoke(cli.app, [str(x) for x in arguments], prog_name="curriculoss")
    assert done.exit_code == expect, (done.output, done.exception)
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for loss in ("ce", "mae"):
        run("train", *QUICK, "--loss", loss, "--out", folder / loss, "--json")
    return folder


def test_json_is_one_object_with_what_scripts_need(trained):
    done = run("train", *QUICK, "--loss", "mae", "--out", trained / "mae", "--json")
    result = json.loads(done.stdout)
    wanted = {"test_accuracy", "train_accuracy", "snr", "mean_weight", "effective_learning_rate"}
    assert (
        wanted | {"resumed_from_epoch", "run"} <= set(result)
        and result["run"] == str(trained / "mae")
        and result["resumed_from_epoch"] == 2
    )
    assert 0 <= result["mean_weight"] <= 1 and 50 < result["test_accuracy"] <= 100


def test_result_is_told_to_people_too(trained):
    done = run("train", *QUICK, "--loss", "mae", "--out", trained / "mae")
    assert "finished before, not run again" in done.stdout and "(30.0 % of the labels are wrong)" in done.stdout
    assert done.stdout.count(" since the start") == 3  # mean weight, effective learning rate, snr
    assert "test accuracy" in done.stdout and f"curriculoss report {trained / 'mae'}" in done.stdout.replace("\n", "")


def test_options_reach_the_spec(tmp_path):
    (tmp_path / "base.toml").write_text('data = "mnist"\nepochs = 7\nnetwork = "mlp"\n')
    run(
        "train", "--spec", tmp_path / "base.toml", "--data", "digits", "--epochs", "1", "--lr", "0.02", "--loss", "gce",
        "-p", "q=0.5", "--fix", "shift", "--tau", "1.5", "--seed", "3", "--subset", "200", "--per-sample-noise",
        "--noise", "pairflip:0.2", "--width", "0.25", "--no-normalize", "--schedule", "step", "--step-epoch", "3",
        "--step-epoch", "5", "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert Run(tmp_path / "run").spec == RunSpec(
        data="digits", epochs=1, network="mlp", learning_rate=0.02, loss="gce", params={"q": 0.5}, fix="shift", tau=1.5,
        seed=3, subset=200, exact_noise=False, noise="pairflip:0.2", width=0.25, normalize=False,
        schedule="step", step_epochs=(3, 5),
    )  # fmt: skip


def test_command_that_is_printed_can_be_pasted(tmp_path):
    done = run("train", *QUICK, "--out", tmp_path / "my run")
    assert f"curriculoss report '{tmp_path / 'my run'}'\n" in done.stdout
    assert "not run again" not in done.stdout


def test_help_says_what_data_may_hold():
    text = " ".join(run("train", "--help").stdout.split())
    assert "arrays x, y and perhaps x_test, y_test, y_clean" in text and "a column label, y or target" in text
    assert "curriculoss train --loss mae --out run" in run("--help").stdout


def test_every_setting_of_a_spec_has_an_option():
    assert set(cli.options.SETTING_OPTIONS) == set(RunSpec().as_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epochs", "-1"), "epochs expects a whole number >= 1, got -1"),
        (("--noise", "symmetric:1.2"), "1.2"),
        (("--data", "digitz"), "did you mean 'digits'"),
        (("--preset", "mnits"), "did you mean 'mnist'"),
        (("--preset", "mnist", "--spec", "x.json"), "expected --preset or --spec, got both"),
        (("--spec", "nowhere.json"), "cannot read the spec nowhere.json: No such file or directory"),
        (("--network", "cnn5"), "cnn4"),
        (("-p", "q"), "expected a hyperparameter as name=number, got 'q'"),
        (("--label", "y"), "digits: a label column belongs to data from a path"),
        (("--test", "t.csv"), "digits: a test path belongs to data from a path"),
        (("--schedule", "step"), "expects step_epochs"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(tmp_path, arguments, message):
    done = run("train", *QUICK, *arguments, "--out", tmp_path / "run", expect=2)
    assert done.stderr.startswith("Error: ") and message in done.stderr and done.stderr.count("\n") == 1
    assert not done.stdout and not (tmp_path / "run" / "spec.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_device_that_is_not_here(tmp_path):
    done = run("train", *QUICK, "--accelerator", "cuda", "--out", tmp_path / "run", expect=2)
    assert done.stderr == "Error: no CUDA device here; try --accelerator cpu\n"


def test_device_of_another_name():
    with pytest.raises(InvalidValueError, match=r"unknown accelerator 'gpu', did you mean 'cpu'\? Available: auto"):
        make_fabric(RunSpec(), "gpu")


def test_holdout_that_has_no_effect_is_said(tmp_path):
    x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(24) % 3)
    np.savez(tmp_path / "test.npz", x=x[:6], y=np.arange(6) % 3)
    own = ("--data", tmp_path / "own.npz", "--test", tmp_path / "test.npz", "--epochs", "1", "--holdout", "0.5")
    found = json.loads(run("train", *own, "--out", tmp_path / "run", "--json").stdout)
    assert found["note"] == "holdout 0.5 has no effect: the data have test samples of their own"
    assert (Run(tmp_path / "run").task.train, Run(tmp_path / "run").task.test) == (24, 6)


def test_comparison_goes_on_without_a_loss_that_diverges(tmp_path):
    wild = ("--lr", "1e6", "--weight-decay", "0", "--schedule", "constant", "--network", "mlp", "--width", "0.125")
    options = ("--data", "digits", "--epochs", "5", *wild, "--noise", "symmetric:0.3", "--out", tmp_path)
    done = run("compare", "cr", "mae:scale=5", *options, "--json", expect=1)
    found = json.loads(done.stdout)
    assert [row["loss"] for row in found["rows"]] == ["mae, scale 5"] and len(found["runs"]) == 1
    (failed,) = found["failed"]
    assert (failed["loss"], failed["seed"]) == ("cr", 0) and "training diverged in epoch" in failed["reason"]
    note, error = done.stderr.splitlines()
    assert note.startswith("mae, scale 5: fix 'scale' would do harm")
    assert error == f"Error: cr, noise symmetric:0.3, seed 0: {failed['reason']}"
    with (tmp_path / "comparison.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["loss"] == "mae, scale 5" and float(row["test_accuracy"]) == found["rows"][0]["test_accuracy"]
    text = run("compare", "cr", "mae:scale=5", *options, expect=1)
    assert "mae, scale 5" in text.stdout and f"table: {tmp_path / 'comparison.csv'}" in text.stdout
    alone = run("compare", "cr", *options, expect=1)
    assert alone.stdout == "" and alone.stderr == error + "\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder_is_one_line_and_exit_1(tmp_path):
    tmp_path.chmod(0o500)
    done = run("train", *QUICK, "--out", tmp_path / "run", expect=1)
    assert done.stderr.count("\n") == 1


def test_comparison_has_means_over_seeds_and_what_noise_costs(tmp_path):
    options = ("--data", "digits", "--network", "mlp", "--width", "0.125", "--epochs", "1", "--out", tmp_path, "--json")
    done = run("compare", "ce", "gce:q=0.5:scale=1", *options, "--noise", "clean,symmetric:0.4", "--seeds", "2")
    found = json.loads(done.stdout)
    assert len(found["runs"]) == 8 and (tmp_path / "report.html").exists()
    rows = {(row["loss"], row["noise"]): row for row in found["rows"]}
    assert len(rows) == 4 and all(row["n"] == 2 for row in rows.values())
    name = next(loss for loss, _ in rows if loss != "ce")
    clean, noisy = rows[name, "clean"], rows[name, "symmetric:0.4"]
    assert noisy["diff"] == pytest.approx(noisy["test_accuracy"] - clean["test_accuracy"])
    text = run("compare", "ce", *options[:-1], "--noise", "clean", "--seeds", "2").stdout
    assert "±" in text and "ce" in text
    text = run("compare", "ce", *options[:-1], "--noise", "clean,symmetric:0.4", "--seeds", "2").stdout
    assert f"{rows['ce', 'symmetric:0.4']['diff']:+.2f}" in text


def test_page_is_made_of_runs_or_of_folders_that_hold_them(trained, tmp_path):
    done = run("report", trained, "--out", tmp_path / "page.html", "--json")
    assert len(json.loads(done.stdout)["runs"]) == 2 and "<html" in (tmp_path / "page.html").read_text()
    assert run("report", trained / "ce").stdout == f"report: {trained / 'ce' / 'report.html'}\n"
    assert "holds no run" in run("report", tmp_path, expect=2).stderr


def test_data_are_listed_and_checked(tmp_path):
    rows = json.loads(run("data", "list", "--json", "--data-dir", tmp_path).stdout)
    assert {row["name"]: row["here"] for row in rows}["digits"] and not {r["name"]: r["here"] for r in rows}["mnist"]
    assert "digits-1000" in run("data", "list").stdout
    (checked,) = json.loads(run("data", "check", "digits-100", "--json").stdout)
    assert (checked["train"], checked["test"], checked["num_classes"]) == (10_000, 2_000, 100)
    assert "1×8×8" in run("data", "check", "digits").stdout
    assert run("data", "check", "mnist", "--data-dir", tmp_path, expect=2).stderr.startswith("Error: ")
