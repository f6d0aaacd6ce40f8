"""The search for a loss: its space, its choice, and what is left of it when it is killed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import optuna
import pytest
import torch
from optuna.trial import TrialState, create_trial
from PIL import Image
from typer.testing import CliRunner

from curriculoss import cli, data, fix
from curriculoss.losses import registry
from curriculoss.runs import Run, RunError, RunSpec
from curriculoss.runs.task import Training, make_fabric, make_task
from curriculoss.tuning import choose, search, tune
from curriculoss.tuning.samples import TrialData
from curriculoss.tuning.space import FACTORS, RANGES, Space

pytestmark = pytest.mark.slow

QUICK = ("--data", "digits", "--network", "linear", "--epochs", "3", "--noise", "symmetric:0.3", "--losses", "ce,gce")
SPEC = RunSpec(data="digits", network="linear", epochs=3, noise="symmetric:0.3")


def run(*arguments, expect=0):
    done = CliRunner().invoke(cli.app, ["tune", *map(str, arguments)], prog_name="curriculoss")
    assert done.exit_code == expect, (done.output, done.exception)
    return done


# The space


@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_within_constraints_and_around_the_defaults(name):
    for key, span in RANGES[name].items():
        assert span.low <= registry.defaults(name)[key] <= span.high
        for value in span[:2]:
            registry.get(name, **{key: value})


@pytest.mark.parametrize("num_classes", [2, 3, 10, 100, 1000])
def test_every_suggestion_is_a_run_and_no_fix_is_refused(num_classes):
    base = RunSpec(learning_rate=0.05)
    space = Space(base, tuple(registry.available()), num_classes, frozenset({"weight_decay"}))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    fixed, rates = set(), set()
    for name in space.losses:
        study.enqueue_trial(space.default(name))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            spec = space.suggest(study.ask()).spec(base)
            if spec.fix is not None:
                fix(spec.make_loss(), spec.fix, tau=spec.tau, num_classes=num_classes)
                fixed.add(spec.loss)
            rates.add(spec.learning_rate)
            assert spec.weight_decay == base.weight_decay
    assert ("mae" in fixed) == (num_classes > 3) and "ce" not in fixed and "nce" not in fixed
    low, high = (0.05 * factor for factor in FACTORS["learning_rate"][:2])
    assert low <= min(rates) < 0.1 * high and 0.5 * high < max(rates) <= high


# The choice


def test_labels_decide_where_they_can():
    labels = np.arange(400) % 10
    bad = (labels + 1) % 10
    good, flock = labels.copy(), np.where(np.arange(400) < 200, labels, bad)
    choice = choose(np.stack([flock, good, flock]), labels)
    assert choice.chosen == 1 and choice.near.tolist() == [False, True, False]


def test_among_near_equals_the_majority_decides_whatever_the_labels_say():
    """Two trials that agree but for a little, and a third that errs on 40 samples, with 22 labels by chance."""
    place, truth = np.arange(500), np.arange(500) % 10
    labels = np.where(place < 22, (truth + 1) % 10, np.where(place < 300, truth, (truth + 2) % 10))
    odd, twin = np.where(place < 40, (truth + 1) % 10, truth), np.where(place >= 495, 0, truth)
    predictions = np.stack([odd, truth, twin])
    choice = choose(predictions, labels)
    assert choice.accuracy.argmax() == 0 and choice.near.all() and choice.chosen == 1
    assert choice.agreement[1] == 100


@pytest.mark.parametrize("wrong", [0, 200])
def test_near_is_two_standard_errors_of_the_difference_whatever_labels_all_miss(wrong):
    """Of m samples that one trial alone has right, among many: m ± √m, so that m = 3 may be chance and m = 5 is not."""
    place, truth = np.arange(400), np.zeros(400, dtype=int)
    labels = np.where(place < wrong, 2, truth)
    predictions = np.stack([np.where(place >= 400 - missed, 1, truth) for missed in (0, 3, 5)])
    assert choose(predictions, labels).near.tolist() == [True, True, False]


def test_noisy_validation_labels_choose_as_well_as_clean_ones():
    """Real networks on digits, 40 % of all labels wrong, those of the validation samples drawn anew twenty times."""
    spec = RunSpec(data="digits", network="mlp", width=0.25, epochs=8, noise="symmetric:0.4", test_every=8)
    dataset, task = TrialData(spec).read(), make_task(spec)
    held, tested = [], []
    for loss, rate in product(("ce", "gce", "mae"), (0.003, 0.05, 0.5)):
        tried = replace(spec, noise="clean", loss=loss, learning_rate=rate)
        training = Training.prepare(tried, make_task(tried, dataset=dataset), make_fabric(tried, "cpu"))
        training.fit()
        held.append(search.predicted(training))
        tested.append(search.predicted(replace(training, task=replace(training.task, test=task.test))))
    accuracy = 100 * (np.stack(tested) == task.test.target.numpy()).mean(1)
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(0))
    truth = task.clean[order[: len(dataset.test)].sort().values].numpy()
    rate = (truth != dataset.test.target.numpy()).mean()
    assert 0.3 < rate < 0.5  # the held-out labels are noisy, and these are the true ones
    clean = accuracy[choose(np.stack(held), truth).chosen]
    rng, noisy = np.random.default_rng(0), []
    for _ in range(20):
        wrong = rng.random(len(truth)) < 0.4
        labels = np.where(wrong, (truth + rng.integers(1, 10, size=len(truth))) % 10, truth)
        noisy.append(accuracy[choose(np.stack(held), labels).chosen])
    assert clean > accuracy.mean() + 3  # there is something to choose
    assert np.mean(noisy) > clean - 1.0 and min(noisy) > clean - 3.0


# The samples


def test_the_test_set_is_in_neither_part_and_held_out_labels_are_noisy():
    spec = RunSpec(data="digits", noise="symmetric:0.4", subset=600)
    dataset, task = TrialData(spec, share=0.25).read(), make_task(spec)
    seen = torch.cat([dataset.train.inputs, dataset.test.inputs])
    assert (len(dataset.train), len(dataset.test)) == (450, 150) and dataset.test.clean is None
    flat = [{bytes(row.numpy().tobytes()) for row in part} for part in (seen, task.train.inputs, task.test.inputs)]
    assert flat[0] == flat[1] and not flat[0] & flat[2]
    assert sorted(torch.cat([dataset.train.target, dataset.test.target])) == sorted(task.given)
    assert (dataset.train.clean != dataset.train.target).double().mean() == pytest.approx(0.4, abs=0.05)


def test_samples_to_validate_on_may_be_in_a_path(tmp_path):
    rng = np.random.default_rng(0)

    def write(name, count, width=4):
        labels = np.arange(count) % 3
        np.savez(tmp_path / name, x=rng.normal(size=(count, width)).astype(np.float32), y=labels, y_clean=labels * 0)
        return tmp_path / name

    spec = RunSpec(data=str(write("data.npz", 100)))
    dataset = TrialData(spec, str(write("checked.npz", 30))).read()
    assert len(dataset.train) == 80 and dataset.test.target.tolist() == [0, 1, 2] * 10 and dataset.test.clean is None
    with pytest.raises(data.DataError, match="expected x_test to be like x, 4 features per sample, got 5"):
        TrialData(spec, str(write("wide.npz", 30, width=5))).read()
    with pytest.raises(ValueError, match=r"no validation samples at absent\.npz"):
        TrialData(spec, "absent.npz").read()


def test_images_to_validate_on_are_like_the_others(tmp_path):
    for place, size in (("photos", 8), ("checked", 8), ("large", 16)):
        for label in ("cat", "dog"):
            (tmp_path / place / label).mkdir(parents=True)
            for number in range(5):
                Image.new("L", (size, size), 40 * number).save(tmp_path / place / label / f"{number}.png")
    spec = RunSpec(data=str(tmp_path / "photos"))
    assert TrialData(spec, tmp_path / "checked").read().test.target.tolist() == [0] * 5 + [1] * 5
    with pytest.raises(data.DataError, match=r"large: expected .*uint8 images of shape 1×8×8, got image files"):
        TrialData(spec, tmp_path / "large").read()


# The search


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "out"
    return out, json.loads(run(*QUICK, "--trials", 5, "--jobs", 2, "--out", out, "--json").stdout)


def test_every_loss_is_tried_as_it_comes_and_then_others(tuned):
    out, found = tuned
    assert [row["trial"] for row in found["trials"]] == [0, 1, 2, 3, 4]
    assert [row["name"] for row in found["trials"][:2]] == ["ce", "gce q=0.7, scale 2.6"]
    assert all(row["learning_rate"] == 0.1 for row in found["trials"][:2])
    assert len({row["learning_rate"] for row in found["trials"][1:]}) == 4
    assert {file.name for file in out.iterdir() if file.is_file()} == {"study.log", "trials.csv", "best.toml", ".lock"}
    table = list(csv.DictReader((out / "trials.csv").read_text().splitlines()))
    assert [float(row["learning_rate"]) for row in table] == [row["learning_rate"] for row in found["trials"]]
    assert table[1]["params.q"] == "0.7" and table[0]["params.q"] == ""


def test_the_choice_is_a_spec_and_was_trained_on_all_training_samples(tuned):
    out, found = tuned
    spec = RunSpec.read(out / "best.toml")
    assert spec.as_dict() == found["spec"] and found["train"].startswith(f"curriculoss train --spec {out}/best.toml")
    (row,) = [row for row in found["trials"] if row["chosen"]]
    assert row["trial"] == found["trial"] and row["near_the_best"] and row["loss"] == spec.loss
    assert row["learning_rate"] == spec.learning_rate and spec.noise == "symmetric:0.3"
    kept = Run(out / f"{found['run']}")
    assert kept.spec == spec and kept.task.train == len(data.load("digits").train)
    assert found["test_accuracy"] == kept.result.test_accuracy > 70 > found["validation_accuracy"]


def test_a_finished_search_is_only_printed(tuned):
    out, found = tuned
    before = (out / "study.log").read_bytes()
    told = run(*QUICK, "--trials", 5, "--out", out).stdout
    assert (out / "study.log").read_bytes() == before
    assert f"{found['test_accuracy']:.1f} % on the test set" in told and "curriculoss train --spec" in told
    assert json.loads(run(*QUICK, "--trials", 3, "--out", out, "--json").stdout) == found


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--losses", "gcee"), 2, "unknown loss 'gcee', did you mean 'gce'?"),
        (("--trials", "0"), 2, "Invalid value for '--trials': Input should be greater than or equal to 1"),
        (("--validation-share", "1.5"), 2, "a share of 1.5 of 1442 training samples leaves too few of them"),
        (("--validation-share", "0.2", "--validation", "x"), 2, "expected --validation or --validation-share, got"),
        (("--validation", "x"), 2, "go with data in a path; of 'digits', hold out a share"),
        (("--epochs", "4"), 1, "holds another search (epochs 3, not 4); give another folder"),
        (("--lr", "0.1"), 1, "holds another search (keep [], not ['learning_rate']); give another folder"),
    ],
)
def test_mistakes_are_one_line(tuned, arguments, code, said):
    done = run(*QUICK, "--out", tuned[0], *arguments, expect=code)
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_what_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    done = run(*QUICK, "--out", tmp_path, expect=1)
    assert "is not empty and holds no search; give another folder" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "study.log").write_text("{}\nno journal\n{}\n")
    done = run(*QUICK, "--out", tmp_path / "log", expect=1)
    assert "cannot read" in done.stderr and done.stderr.count("\n") == 1


def test_a_trial_that_falls_behind_is_given_up(tmp_path):
    study = search._open(tmp_path, SPEC.epochs)
    for place in range(5):
        good = create_trial(value=99.0, intermediate_values={1: 99.0, 2: 99.0, 3: 99.0}, user_attrs={"place": place})
        study.add_trial(good)
    source = TrialData(SPEC)
    trial, settings = search._ask(study, Space(SPEC, ("ce",), 10), 5)
    search._attempt(source, settings, trial._trial_id, tmp_path, 0)
    left = study.get_trials()[-1]
    assert left.state == TrialState.PRUNED and left.last_step == 1 and search._done(study)[5].number == left.number


def test_a_trial_that_diverges_counts_and_says_why(tmp_path):
    spec = replace(SPEC, learning_rate=1e25)
    study = search._open(tmp_path, spec.epochs)
    trial, settings = search._ask(study, Space(spec, ("ce",), 10, frozenset({"learning_rate"})), 0)
    search._attempt(TrialData(spec), settings, trial._trial_id, tmp_path, 0)
    assert search._done(study)[0].state == TrialState.FAIL
    with pytest.raises(RunError, match="no trial came to its end; the first: training diverged in epoch 1"):
        search._judged(study, np.zeros(1))


def test_killed_search_ends_as_if_it_had_not_been(tmp_path):
    """With one job, also where the journal's last line is torn and its lock is left behind."""
    command = [sys.executable, "-m", "curriculoss", "tune", *QUICK, "--trials", "4", "--jobs", "1", "--out"]
    process = subprocess.Popen([*command, str(tmp_path / "killed")], env={**os.environ, "OMP_NUM_THREADS": "1"},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    log, limit = tmp_path / "killed/study.log", time.monotonic() + 600
    while not (log.exists() and b'"predictions"' in log.read_bytes()) and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    time.sleep(1.5)  # until its child has seen it
    left = search._open(tmp_path / "killed", SPEC.epochs)
    left.ask()  # one under way and one waiting, whatever the moment was
    left.enqueue_trial({"loss": "gce"})
    with (tmp_path / "killed/study.log").open("ab") as file:
        file.write(b'{"op_code": 6, "tri')
    (tmp_path / "killed/study.log.lock").touch()
    options = {"losses": ("ce", "gce"), "trials": 4, "jobs": 1}
    killed, whole = (tune(SPEC, tmp_path / name, **options) for name in ("killed", "whole"))
    assert killed.trials == whole.trials and killed.spec == whole.spec and killed.test_accuracy == whole.test_accuracy
    states = [trial.state for trial in search._open(tmp_path / "killed", SPEC.epochs).get_trials()]
    assert states.count(TrialState.FAIL) >= 2 and {*states} <= {TrialState.FAIL, TrialState.COMPLETE, TrialState.PRUNED}
