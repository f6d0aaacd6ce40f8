"""RunSpec: what it accepts, what it refuses, and that it survives being written down."""

from __future__ import annotations

import json
import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curriculoss.runs import RunSpec, preset, presets
from curriculoss.runs.spec import SCHEDULES

SPECS = [
    RunSpec(),
    RunSpec(data="digits-100", noise="symmetric:0.4", loss="gce", params={"q": 0.5}, fix="scale", tau=2.6),
    RunSpec(data='odd "name"\n\\', subset=10, step_epochs=(3, 5), schedule="step", clip_norm=5, patience=3, seed=2**40),
    *(preset(name) for name in presets()),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.data)
def test_spec_survives_json_and_toml(spec, tmp_path):
    for name, text in (("spec.json", spec.to_json()), ("spec.toml", spec.to_toml())):
        (tmp_path / name).write_text(text)
        again = RunSpec.read(tmp_path / name)
        assert again == spec and again.hash == spec.hash
    assert tomllib.loads(spec.to_toml())["data"] == json.loads(spec.to_json())["data"] == spec.data


def test_every_setting_changes_the_hash():
    changes = {
        "data": "mnist", "label": "y", "test": "t.csv", "subset": 5, "image_size": 8, "holdout": 0.1,
        "noise": "pairflip:0.1", "noise_seed": 3, "exact_noise": False, "loss": "mae",
        "normalize": False, "network": "mlp", "width": 2.0,
        "epochs": 3, "batch_size": 64, "learning_rate": 0.2, "momentum": 0.5, "weight_decay": 0.0,
        "schedule": "constant", "step_epochs": [2], "step_factor": 0.5, "warmup_epochs": 2, "clip_norm": 1,
        "augment": "none", "optimizer": "adamw", "patience": 2, "test_every": 2, "seed": 1, "precision": "64-true",
        "initial_margin": "measured",
    }  # fmt: skip
    needs = {"step_epochs": {"schedule": "step"}, "warmup_epochs": {"schedule": "warmup"}}
    needs["step_factor"] = {"schedule": "step", "step_epochs": [3]}
    hashes = {RunSpec().hash} | {RunSpec(**{key: value}, **needs.get(key, {})).hash for key, value in changes.items()}
    fixed = [RunSpec(loss="gce", params={"q": q}, fix="scale", tau=tau).hash for q in (0.5, 0.6) for tau in (2, 3)]
    assert len(hashes) == len(changes) + 1 and len({*hashes, *fixed}) == len(changes) + 5
    assert {*changes, "params", "fix", "tau"} == set(RunSpec().as_dict())


def test_hyperparameters_have_one_order():
    one, other = (RunSpec(loss="aul", params=params) for params in ({"q": 2, "a": 3}, {"a": 3, "q": 2}))
    assert one.loss_name == other.loss_name == "aul a=3 q=2" and one.hash == other.hash


def test_numbers_mean_the_same_however_they_are_written():
    assert RunSpec(learning_rate=1, epochs=3.0, schedule="step", step_epochs=[1, 2]) == RunSpec(
        learning_rate=1.0, epochs=3, schedule="step", step_epochs=(1, 2)
    )


def test_hash_is_that_of_runs_from_before_there_were_test_paths():
    assert RunSpec().hash == "78de8abd3044"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": -1}, "epochs expects a whole number >= 1, got -1"),
        ({"epochs": 1.5}, "epochs expects int, got 1.5"),
        ({"epochs": True}, "epochs expects int, got True"),
        ({"epochs": "3"}, "epochs expects int, got '3'"),
        ({"learning_rate": math.nan}, "learning_rate expects a finite number > 0, got nan"),
        ({"learning_rate": None}, "learning_rate expects float, got None"),
        ({"width": 0}, "width expects"),
        ({"momentum": 1}, "0 <= momentum < 1"),
        ({"noise": "symmetric:1.2"}, r"1\.2"),
        ({"noise": "symetric:0.2"}, "symmetric"),
        ({"loss": "mea"}, "did you mean 'mae'"),
        ({"loss": "gce", "params": {"q": 2}}, "GCE expects 0 < q <= 1, got q=2"),
        ({"params": {"q": "a"}}, "params expects"),
        ({"fix": "scales"}, "did you mean 'scale'"),
        ({"tau": 2}, "tau belongs to a fix"),
        ({"loss": "nce", "fix": "scale"}, "fix works on curricula"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"schedule": "step"}, "schedule 'step' expects step_epochs, .* got none"),
        ({"step_epochs": [3]}, "step_epochs belongs to schedule 'step', got schedule 'cosine'"),
        ({"schedule": "warmup", "step_factor": 0.5}, "step_factor belongs to schedule 'step', got schedule 'warmup'"),
        ({"schedule": "constant", "warmup_epochs": 2}, "warmup_epochs belongs to schedule 'warmup'"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam', did you mean 'adamw'"),
        ({"optimizer": "adamw", "momentum": 0.5}, "momentum belongs to optimizer 'sgd', got optimizer 'adamw'"),
        ({"subset": 0}, "subset expects a whole number >= 1, got 0"),
        ({"seed": -1}, "seed expects"),
        ({"data": " "}, "data expects a data set or a path"),
        ({"epoch": 3}, "unknown key 'epoch' in the spec, did you mean 'epochs'"),
    ],
)
def test_nonsense_is_refused_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        RunSpec.from_dict(change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[1]", "expected an object of names and values, got list"),
        ("a.json", "{", "cannot read the spec"),
        ("a.toml", "= 3", "cannot read the spec"),
        ("a.toml", "epoch = 3", "unknown key 'epoch'"),
        ("missing.json", None, "No such file"),
    ],
)
def test_unreadable_spec_files_are_named(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        RunSpec.read(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_presets_are_the_papers_settings():
    chosen = {name: preset(name) for name in presets()}
    table = {name: (s.network, s.learning_rate, s.weight_decay, s.epochs) for name, s in chosen.items()}
    assert table == {
        "mnist": ("cnn4", 0.01, 1e-3, 50),
        "cifar10": ("cnn8", 0.01, 1e-4, 120),
        "cifar100": ("resnet34", 0.1, 1e-5, 200),
        "webvision": ("resnet50", 0.2, 3e-5, 250),
    }
    assert all((s.momentum, s.batch_size, s.schedule) == (0.9, 128, "cosine") for s in chosen.values())
    with pytest.raises(ValueError, match="did you mean 'cifar100'"):
        preset("cifar-100")


@settings(max_examples=50)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 50), st.floats(0, 1))
def test_learning_rates_stay_between_nothing_and_the_first(schedule, epochs, share):
    own = {"step": {"step_epochs": (1, 3)}, "warmup": {"warmup_epochs": 0.5}}
    spec = RunSpec(schedule=schedule, epochs=epochs, **own.get(schedule, {}))
    assert 0 <= spec.rate_factor(share * epochs) <= 1


def test_schedules_at_the_points_that_name_them():
    spec = RunSpec(epochs=10, schedule="cosine")
    assert [spec.rate_factor(x) for x in (0, 5, 10)] == pytest.approx([1, 0.5, 0])
    step = RunSpec(epochs=10, schedule="step", step_epochs=(2, 4))
    assert [step.rate_factor(x) for x in (0, 1.9, 2, 4)] == pytest.approx([1, 1, 0.1, 0.01])
    warmup = RunSpec(epochs=10, schedule="warmup", warmup_epochs=2)
    assert [warmup.rate_factor(x) for x in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert RunSpec(epochs=10, schedule="constant").rate_factor(9) == 1
