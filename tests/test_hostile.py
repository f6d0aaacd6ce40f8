"""Hostile inputs through the command line: one clear line each, the right exit code, and nothing lost."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from curriculoss import cli, data, report, runs
from curriculoss.data.files import DATA_SETS, Remote
from curriculoss.fitting import Callback
from tests import hostile
from tests.hostile import X, Y, content, cut, npz

pytestmark = pytest.mark.slow

NAN = np.where(np.arange(24)[:, None] == 5, np.nan, X)
SMALL = ("--network", "linear", "--epochs", "1")
KEPT = "what was finished is kept"
EXIT_CTRL_C = 130


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data of this machine, no width of this terminal."""
    monkeypatch.setenv("CURRICULOSS_DATA", str(tmp_path / "no-data"))
    monkeypatch.delenv("COLUMNS", raising=False)


def contents(folder: Path) -> dict[str, Any]:
    """Every file below the folder: its bytes, or where it leads."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else "folder"
    return found


def refused(folder: Path, code: int, said: str, *arguments: object) -> None:
    """Run a command that must fail: exit code, one line, and no file lost, changed or half-written.

    `said` is the whole line, with TMP for the folder and … for anything at all.
    """
    before = contents(folder)
    result = CliRunner().invoke(cli.app, [str(x) for x in arguments], prog_name="curriculoss")
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    says(result.stderr.replace(str(folder), "TMP"), said)
    after = contents(folder)
    assert {name: after.get(name) for name in before} == before
    left = [name for name in after if name.endswith((".part", ".tmp")) or name == "ran" or "escaped" in name]
    assert left == []


def says(line: str, said: str) -> None:
    assert re.fullmatch("Error: " + re.escape(said).replace("…", ".*") + "\n", line), line
    assert len(line) < 700


# Settings


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("--epochs 0", "epochs expects a whole number >= 1, got 0"),
        ("--epochs -3", "epochs expects a whole number >= 1, got -3"),
        ("--epochs nan", "Invalid value for '--epochs': …"),
        ("--epochs 1.5", "Invalid value for '--epochs': …"),
        ("--epochs 1" + "0" * 400, "epochs expects int, got 10…0"),
        ("--lr 0", "learning_rate expects a finite number > 0, got 0.0"),
        ("--lr -0.1", "learning_rate expects a finite number > 0, got -0.1"),
        ("--lr nan", "learning_rate expects a finite number > 0, got nan"),
        ("--lr inf", "learning_rate expects a finite number > 0, got inf"),
        ("--lr fast", "Invalid value for '--lr' / '--learning-rate': …"),
        ("--lr 1e300", "learning_rate expects a number below 1e+30, got 1e+300"),
        ("--weight-decay 1e200", "weight_decay expects a number below 1e+30, got 1e+200"),
        ("--width 1e300", "width expects a number below 1e+06, got 1e+300"),
        ("--width 0", "width expects a finite number > 0, got 0.0"),
        ("--width -1", "width expects a finite number > 0, got -1.0"),
        ("--width nan", "width expects a finite number > 0, got nan"),
        ("--batch-size 0", "batch_size expects a whole number >= 2, got 0"),
        ("--batch-size -8", "batch_size expects a whole number >= 2, got -8"),
        ("--momentum 1", "momentum expects 0 <= momentum < 1, got 1.0"),
        ("--momentum nan", "momentum expects 0 <= momentum < 1, got nan"),
        ("--weight-decay -1", "weight_decay expects a finite number >= 0, got -1.0"),
        ("--clip-norm 0", "clip_norm expects a finite number > 0, got 0.0"),
        ("--holdout 1", "holdout expects 0 <= holdout < 1, got 1.0"),
        ("--patience 0", "patience expects a whole number >= 1, got 0"),
        ("--seed -1", "seed expects a whole number >= 0 and below 2**63, got -1"),
        ("--seed 9223372036854775808", "seed expects a whole number >= 0 and below 2**63, got 9223372036854775808"),
        ("--noise-seed -1", "noise_seed expects a whole number >= 0 and below 2**63, got -1"),
        ("--loss mea", "unknown loss 'mea', did you mean 'mae'? Available: …"),
        ("--loss ''", "unknown loss ''. Available: …"),
        ("--loss gce -p z=1", "gce has no hyperparameter 'z'; it takes q"),
        ("--loss gce -p q", "expected a hyperparameter as name=number, got 'q'"),
        ("--loss gce -p q=much", "expected a hyperparameter as name=number, got 'q=much'"),
        ("--loss gce -p q=2", "GCE expects 0 < q <= 1, got q=2.0"),
        ("--loss gce -p q=nan", "GCE expects a finite number, got q=nan"),
        ("--loss gce -p q=0.5 -p q=0.6", "expected each hyperparameter once, got 'q' twice"),
        ("--loss mae --fix stretch", "unknown fix 'stretch', did you mean 'scale'? Available: …"),
        ("--loss nce --fix scale", "fix works on curricula, functions of the margin alone such as mae, got 'nce'"),
        ("--tau 2", "tau belongs to a fix: add fix 'scale' or 'shift'"),
        ("--loss mae --fix scale --tau nan", "tau expects a finite number > 0 (shift: or 0), got nan"),
        ("--loss mae --fix scale --tau -1", "tau expects a finite number > 0 (shift: or 0), got -1.0"),
        ("--loss mae --fix shift --tau inf", "tau expects a finite number > 0 (shift: or 0), got inf"),
        ("--network cnn5", "unknown network 'cnn5', did you mean 'cnn4'? Available: …"),
        ("--network cnn4", "cnn4 expects inputs of shape (channels, height, width), got shape (4,)"),
        ("--schedule cosin", "unknown schedule 'cosin', did you mean 'cosine'? Available: …"),
        ("--augment spin", "unknown augment 'spin', did you mean 'shift-flip'? Available: …"),
        ("--augment shift", "unknown augment 'shift', did you mean 'shift-flip'? Available: …"),
        ("--augment shift-flip", "shift-flip expects images, got features of shape (4,)"),
        ("--precision 8-true", "unknown precision '8-true', did you mean '32-true'? Available: …"),
        ("--initial-margin guessed", "unknown initial_margin 'guessed', did you mean 'measured'? Available: …"),
        ("--preset imagenet", "unknown preset 'imagenet', did you mean 'mnist'? Available: …"),
        (
            "--accelerator abacus",
            "Invalid value for '--accelerator': …'abacus' is not one of 'auto', 'cpu', 'cuda', 'mps'.",
        ),
        ("--accelerator tpu", "Invalid value for '--accelerator': …'tpu' is not one of 'auto', 'cpu', 'cuda', 'mps'."),
        ("--noise symmetric:1.2", "symmetric noise expects 0 <= rate <= 1, got rate=1.2"),
        ("--noise symmetric:-0.1", "symmetric noise expects 0 <= rate <= 1, got rate=-0.1"),
        ("--noise symmetric:nan", "symmetric noise expects 0 <= rate <= 1, got rate=nan"),
        ("--noise symmetric", "symmetric noise expects a rate, as in symmetric:0.4, got 'symmetric'"),
        ("--noise symetric:0.4", "unknown noise 'symetric', did you mean 'symmetric'? Available: …"),
        ("--noise asymmetric:0.4", "asymmetric noise expects flips, where each class goes, and these data have none"),
        ("--noise asymmetric-blocks:0.4", "asymmetric-blocks noise expects a multiple of 5 classes, got 3"),
        ("--noise human", "human noise expects labels given by people, and these data have none"),
        ("--noise matrix", "matrix noise expects a file, as in matrix:FILE, got none"),
        ("--noise clean:0.1", "clean noise expects no variant, got '0.1'"),
        ("--subset 0", "subset expects a whole number >= 1, got 0"),
        ("--subset 1000", "subset expects at most the 19 training samples, got 1000"),
        ("--subset 1", "training needs at least 2 samples, got 1"),
        ("--label y", "TMP/data.npz: a label column belongs to a table (.csv or .parquet), got 'y'"),
        ("--step-factor 0.5", "step_factor belongs to schedule 'step', got schedule 'cosine'"),
        ("--label y --frobnicate 3", "No such option: --frobnicate"),
        ("--preset mnist --spec spec.json", "expected --preset or --spec, got both"),
        ("--workers -1", "Invalid value for '--workers': Input should be greater than or equal to 0"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, options: str, match: str) -> None:
    data = hostile.good(tmp_path)
    given = ["" if x == "''" else x for x in options.split()]
    refused(tmp_path, 2, match, "train", "--data", data, *SMALL, *given, "--out", tmp_path / "run")


@pytest.mark.parametrize("options", ["--lr 1e29", "--width 4000"])
def test_settings_that_the_machine_cannot_bear(tmp_path: Path, options: str) -> None:
    data = hostile.good(tmp_path)
    small = ("--network", "mlp", "--epochs", "2")
    memory = "there is not enough memory; try a smaller --batch-size, --subset or --width"
    diverged = "training diverged in epoch 2 (loss nan); try a smaller learning rate than 1e+29"
    refused(
        tmp_path,
        1,
        memory if "width" in options else diverged,
        "train",
        "--data",
        data,
        *small,
        *options.split(),
        "--out",
        tmp_path / "run",
    )


# Specs


@pytest.mark.parametrize(
    ("name", "raw", "match"),
    [
        (
            "spec.json",
            hostile.spec(epoch=3),
            "TMP/spec.json: unknown key 'epoch' in the spec, did you mean 'epochs'? Available: …",
        ),
        (
            "spec.toml",
            "epoch = 3",
            "TMP/spec.toml: unknown key 'epoch' in the spec, did you mean 'epochs'? Available: …",
        ),
        ("spec.json", "[1, 2]", "TMP/spec.json: expected an object of names and values, got list"),
        ("spec.json", "null", "TMP/spec.json: expected an object of names and values, got NoneType"),
        ("spec.json", '{"epochs": 3', "cannot read the spec TMP/spec.json: …"),
        ("spec.toml", 'data = "digi', "cannot read the spec TMP/spec.toml: …"),
        ("spec.json", b'{"data": "\xff\xfe"}', "cannot read the spec TMP/spec.json: …"),
        ("spec.toml", b"\x80\x81", "cannot read the spec TMP/spec.toml: …"),
        ("spec.json", "", "cannot read the spec TMP/spec.json: …"),
        ("spec.json", "[" * 100_000, "cannot read the spec TMP/spec.json: …"),
        ("spec.toml", "data = " + "[" * 100_000, "cannot read the spec TMP/spec.toml: …"),
        ("spec.json", '{"epochs": 1' + "0" * 400 + "}", "TMP/spec.json: epochs expects int, got 10…0"),
        ("spec.json", '{"epochs": 1' + "0" * 5000 + "}", "cannot read the spec TMP/spec.json: …"),
        ("spec.json", '{"epochs": 1e999}', "TMP/spec.json: epochs expects int, got inf"),
        ("spec.json", '{"width": 1' + "0" * 400 + "}", "TMP/spec.json: width expects float, got 10…0"),
        ("spec.json", '{"epochs": "ten"}', "TMP/spec.json: epochs expects int, got 'ten'"),
        ("spec.json", '{"epochs": true}', "TMP/spec.json: epochs expects int, got True"),
        ("spec.json", '{"learning_rate": NaN}', "TMP/spec.json: learning_rate expects a finite number > 0, got nan"),
        (
            "spec.json",
            '{"tau": NaN, "fix": "scale", "loss": "mae"}',
            "TMP/spec.json: tau expects a finite number > 0 (shift: or 0), got nan",
        ),
        ("spec.json", '{"params": {"q": [1]}, "loss": "gce"}', "TMP/spec.json: params expects Mapping, got {'q': [1]}"),
        ("spec.json", '{"params": {"q": NaN}, "loss": "gce"}', "TMP/spec.json: GCE expects a finite number, got q=nan"),
        ("spec.json", '{"data": "a\\u0000b"}', "no data set or path 'a\\x00b'; known: …"),
        ("spec.json", '{"data": "\\ud800"}', "no data set or path '\\ud800'; known: …"),
        ("spec.json", '{"data": ""}', "TMP/spec.json: data expects a data set or a path, got ''"),
        ("spec.json", '{"noise": 0.4}', "TMP/spec.json: noise expects str, got 0.4"),
        ("spec.toml", 'loss = "gce"\n[params]\nq = 7', "TMP/spec.toml: GCE expects 0 < q <= 1, got q=7.0"),
    ],
)
def test_specs_that_are_none(tmp_path: Path, name: str, raw: str | bytes, match: str) -> None:
    path = content(name, raw)(tmp_path)
    refused(tmp_path, 2, match, "train", "--spec", path, "--out", tmp_path / "run")


def test_a_spec_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    refused(tmp_path, 2, "cannot read the spec TMP/absent.json: No such file or directory",
            "train", "--spec", tmp_path / "absent.json", "--out", tmp_path / "run")  # fmt: skip
    refused(
        tmp_path, 2, "cannot read the spec TMP: Is a directory", "train", "--spec", tmp_path, "--out", tmp_path / "run"
    )


# Data

DATA: dict[str, tuple[hostile.Maker, str]] = {
    "empty npz": (content("data.npz", b""), "TMP/data.npz: cannot be read as a .npz file: …"),
    "truncated npz": (cut(hostile.good, -60), "TMP/data.npz: cannot be read as a .npz file: …"),
    "half an npz": (cut(hostile.good, 200), "TMP/data.npz: cannot be read as a .npz file: …"),
    "text named npz": (content("data.npz", "hello"), "TMP/data.npz: cannot be read as a .npz file: …"),
    "npz that would run code": (
        hostile.pickled_npz,
        "TMP/data.npz: x: cannot be read as numbers or strings (try x.astype(str)): Object arrays …",
    ),
    "npz that leaves the folder": (
        hostile.escaping_npz,
        "TMP/data.npz: expected arrays x and y, with both or none of x_test and y_test; x is missing",
    ),
    "npz that promises terabytes": (hostile.lying_npz, "TMP/data.npz: x: too large for this machine's memory"),
    "npz named csv": (hostile.renamed(hostile.good, "data.csv"), "TMP/data.csv: cannot be read as a CSV file: …"),
    "npz named parquet": (
        hostile.renamed(hostile.good, "data.parquet"),
        "TMP/data.parquet: cannot be read as a Parquet file: …",
    ),
    "unknown kind": (
        content("data.tar", "hello"),
        "TMP/data.tar: expected a folder of class folders, or a .npz, .csv or .parquet file",
    ),
    "folder named npz": (
        hostile.directory("data.npz"),
        "TMP/data.npz: expected at least two class folders with images, got none",
    ),
    "folder named csv": (
        hostile.directory("data.csv"),
        "TMP/data.csv: expected at least two class folders with images, got none",
    ),
    "NaN features": (npz(x=NAN), "TMP/data.npz: x: expected finite numbers, got nan in row 5, column 0"),
    "infinite features": (
        npz(x=np.where(np.isnan(NAN), -np.inf, X)),
        "TMP/data.npz: x: expected finite numbers, got -inf in row 5, column 0",
    ),
    "NaN images": (
        npz(x=np.full((24, 8, 8), np.nan)),
        "TMP/data.npz: x: expected finite numbers, got nan in row 0, column 0, 0",
    ),
    "infinite test images": (
        npz(x_test=np.full((24, 4), np.inf), y_test=Y),
        "TMP/data.npz: x_test: expected finite numbers, got inf in row 0, column 0",
    ),
    "label out of range": (
        npz(x_test=X, y_test=Y + 1),
        "TMP/data.npz: y_test: expected one of the 3 classes of the training samples, got 3 in row 2",
    ),
    "a class of the test only": (
        npz(y=Y * 2, x_test=X, y_test=Y),
        "TMP/data.npz: y_test: expected one of the 3 classes of the training samples, got 1 in row 1",
    ),
    "a class without samples": (
        npz(class_names=np.array(list("abcd"))),
        "TMP/data.npz: y: class 'd' has no training samples",
    ),
    "one class only": (npz(y=Y * 0), "TMP/data.npz: y: expected at least two classes, got only label '0'"),
    "one class only, by name": (
        npz(y=np.full(24, "cat")),
        "TMP/data.npz: y: expected at least two classes, got only label 'cat'",
    ),
    "strings as objects": (
        npz(y=np.full(24, "cat", object)),
        "TMP/data.npz: y: cannot be read as numbers or strings (try y.astype(str)): Object arrays …",
    ),
    "labels that are no whole numbers": (
        npz(y=Y + 0.5),
        "TMP/data.npz: y: expected integers or strings, got 0.5 in row 0",
    ),
    "NaN labels": (npz(y=Y * np.nan), "TMP/data.npz: y: expected integers or strings, got nan in row 0"),
    "fewer labels than samples": (
        npz(y=Y[:-1]),
        "TMP/data.npz: expected as many samples in y as in x, got shapes (23,) and (24, 4)",
    ),
    "no samples": (npz(x=X[:0], y=Y[:0]), "TMP/data.npz: y: expected at least one sample, got none"),
    "too many dimensions": (
        npz(x=np.zeros((24, 2, 2, 2, 2))),
        "TMP/data.npz: x: expected (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W), got shape (24, 2, 2, 2, 2)",
    ),
    "complex features": (npz(x=X.astype(complex)), "TMP/data.npz: x: expected numbers, got type complex128"),
    "empty csv": (content("data.csv", ""), "TMP/data.csv: cannot be read as a CSV file: …"),
    "csv with a head alone": (content("data.csv", "a,label\n"), "TMP/data.csv: expected at least one row, got none"),
    "csv without labels": (
        content("data.csv", "a,b\n1,2\n"),
        "TMP/data.csv: expected a label column named 'label', 'y', 'target'; the columns are 'a', 'b'",
    ),
    "csv with a row too short": (
        content("data.csv", "a,label\n1,0\n2\n"),
        "TMP/data.csv: cannot be read as a CSV file: …",
    ),
    "csv with semicolons": (
        content("data.csv", "a;label\n1,5;0\n2,5;1\n"),
        "TMP/data.csv: expected columns separated by commas, got ';'; save it with commas",
    ),
    "csv with tabs": (
        content("data.csv", "a\tlabel\n1\t0\n2\t1\n"),
        "TMP/data.csv: expected columns separated by commas, got '\\t'; save it with commas",
    ),
    "csv with a hole": (
        content("data.csv", "a,label\n1,0\n,1\n"),
        "TMP/data.csv: expected a value in every row, got none in row 1, column 'a'",
    ),
    "csv with nan": (
        content("data.csv", "a,label\n1,0\nnan,1\n"),
        "TMP/data.csv: expected a value in every row, got none in row 1, column 'a'",
    ),
    "csv that is not UTF-8": (
        content("data.csv", b"a,label\n\xff\xfe,0\n1,1\n"),
        "TMP/data.csv: expected numbers, or paths of images below TMP, got \"b'\\\\xff\\\\xfe'\" in row 0, column 'a'",
    ),
    "csv of text": (
        content("data.csv", "a,b,label\nx,y,0\nz,w,1\n"),
        "TMP/data.csv: expected numeric columns, or one column of image paths; not numeric: 'a', 'b'",
    ),
    "csv whose images lie outside": (
        content("data.csv", "a,label\n../../etc/passwd,0\nb.png,1\n"),
        "TMP/data.csv: expected numbers, or paths of images below TMP, got '../../etc/passwd' in row 0, column 'a'",
    ),
    "csv whose images are absent": (
        content("data.csv", "a,label\na.png,0\nb.png,1\n"),
        "TMP/a.png: no such file; expected an image",
    ),
    "empty parquet": (content("data.parquet", b""), "TMP/data.parquet: cannot be read as a Parquet file: …"),
    "truncated parquet": (
        content("data.parquet", b"PAR1" + bytes(40)),
        "TMP/data.parquet: cannot be read as a Parquet file: …",
    ),
    "one class folder": (
        hostile.one_class,
        "TMP/photos: expected at least two class folders with images, got only 'cat'",
    ),
    "empty class folder": (hostile.empty_class, "TMP/photos: class 'emu' has no readable images (…)"),
    "unreadable image": (
        hostile.photos_with("cat/1.png", b"hello"),
        "TMP/photos/cat/1.png: cannot be read as an image: …",
    ),
    "empty image": (hostile.photos_with("dog/9.jpg", b""), "TMP/photos/dog/9.jpg: cannot be read as an image: …"),
    "truncated image": (hostile.cut_photo, "TMP/photos/cat/1.png: cannot be read as an image: …"),
    "image of 10^10 pixels": (hostile.bomb, "TMP/photos/cat/1.png: cannot be read as an image: …"),
    "PostScript named png": (
        hostile.photos_with("cat/1.png", b"%!PS-Adobe-3.0\nrun"),
        "TMP/photos/cat/1.png: cannot be read as an image: …",
    ),
    "files in the folders' place": (
        hostile.files_for_folders,
        "TMP/photos: expected at least two class folders with images, got none",
    ),
    "absent": (lambda folder: folder / "absent.npz", "no data set or path 'TMP/absent.npz'; known: …"),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    make, match = DATA[kind]
    path = make(tmp_path)
    refused(tmp_path, 2, match, "data", "check", path)
    refused(tmp_path, 2, match, "train", "--data", path, *SMALL, "--out", tmp_path / "run")


def test_the_first_of_several_that_is_bad_is_named(tmp_path: Path) -> None:
    data, bad = hostile.good(tmp_path), content("bad.npz", b"")(tmp_path)
    refused(tmp_path, 2, "TMP/bad.npz: cannot be read as a .npz file: …", "data", "check", data, bad, "digits")
    refused(tmp_path, 2, "no data set or path 'digitss'; known: …; did you mean 'digits'?", "data", "check", "digitss")
    refused(tmp_path, 2, "Missing argument 'names'.", "data", "check")
    refused(tmp_path, 2, "TMP/a.csv: expected a label column named 'class'; the columns are 'a', 'label'",
            "data", "check", content("a.csv", "a,label\n1,0\n")(tmp_path), "--label", "class")  # fmt: skip


# Published data

IMAGES, LABELS = hostile.idx(60_000, 28, 28), hostile.idx(60_000)
TEST_IMAGES, TEST_LABELS = hostile.idx(10_000, 28, 28), hostile.idx(10_000)
PLAIN = {"train_images": IMAGES, "train_labels": LABELS, "t10k_images": TEST_IMAGES, "t10k_labels": TEST_LABELS}


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({}, "TMP/MNIST/raw/train-images-idx3-ubyte.gz is not the published file: expected md5 …"),
        (
            {"train_images": IMAGES[:-1]},
            "TMP/MNIST/raw/train-images-idx3-ubyte: expected 47040000 bytes after the header, got 47039999",
        ),
        (
            {"train_images": LABELS},
            "TMP/MNIST/raw/train-images-idx3-ubyte: expected the idx header of uint8 (60000, 28, 28), got bytes 0000…",
        ),
        (
            {"train_images": b""},
            "TMP/MNIST/raw/train-images-idx3-ubyte: expected the idx header of uint8 (60000, 28, 28), got bytes none",
        ),
        (
            {**PLAIN, "train_labels": hostile.idx(60_000, value=10)},
            "TMP/MNIST/raw/train-labels-idx1-ubyte: expected labels 0 to 9, got 10",
        ),
        (
            {**PLAIN, "t10k_labels": TEST_IMAGES},
            "TMP/MNIST/raw/t10k-labels-idx1-ubyte: expected the idx header of uint8 (10000,), got bytes 00000803…",
        ),
    ],
    ids=["broken gz", "truncated", "swapped", "empty", "labels out of range", "test swapped"],
)
def test_mnist_that_is_not(tmp_path: Path, files: dict[str, bytes], match: str) -> None:
    folder = hostile.mnist(tmp_path, **files)
    refused(tmp_path, 2, match, "train", "--data", "mnist", "--data-dir", folder, *SMALL, "--out", tmp_path / "run")


@pytest.mark.parametrize(
    ("place", "raw", "match"),
    [
        ("cifar-10-python.tar.gz", b"hello", ": cannot be read as a tar.gz archive of these files: …"),
        ("cifar-10-python.tar.gz", b"", ": cannot be read as a tar.gz archive of these files: …"),
        (
            "cifar-10-python.tar.gz",
            hostile.tar({"a": bytes(5000)}, -20),
            ": cannot be read as a tar.gz archive of these files: …",
        ),
        (
            "cifar-10-python.tar.gz",
            hostile.tar({"../escaped": b"x", "/escaped": b"x"}),
            ": cannot be read as a tar.gz archive of these files: …",
        ),
        (
            "cifar-10-python.tar.gz",
            hostile.tar({DATA_SETS["cifar10"].files[0].place: "/etc/passwd"}),
            ": cannot be read as a tar.gz archive of these files: …",
        ),
        (
            "cifar-10-python.tar.gz",
            "trap",
            "/cifar-10-batches-py/data_batch_1: cannot be read as a pickle: names posix.mkdir, which …; do not open it",
        ),
    ],
    ids=["not tar", "empty", "truncated", "paths that leave the folder", "a link", "pickles that would run code"],
)
@pytest.mark.parametrize("published", [True, False])
def test_a_cifar_archive_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, raw: Any, match: str, published: bool
) -> None:
    """By its md5 or, for who would get past that, by its content."""
    if raw == "trap":
        raw = hostile.tar({remote.place: hostile.trap(tmp_path) for remote in DATA_SETS["cifar10"].files})
    content(place, raw)(tmp_path)
    if not published:
        monkeypatch.setitem(DATA_SETS, "cifar10", replace(DATA_SETS["cifar10"], archive=Remote(place, None)))
    said = " is not the published file: expected md5 …" if published else match
    refused(tmp_path, 2, f"TMP/cifar-10-python.tar.gz{said}", "data", "check", "cifar10", "--data-dir", tmp_path)


@pytest.mark.parametrize("kind", ["published", "code", "truncated", "empty", "swapped", "folder"])
def test_cifar_pickles_that_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    trap = hostile.trap(tmp_path)
    files = DATA_SETS["cifar100"].files
    for remote in files:
        content(remote.place, {"truncated": trap[:-9], "empty": b"", "swapped": hostile.gz(trap)}.get(kind, trap))(
            tmp_path
        )
    if kind == "folder":
        (tmp_path / files[0].place).unlink()
        (tmp_path / files[0].place).mkdir()
    if kind not in ("published", "folder"):
        unchecked = tuple(Remote(remote.place, None) for remote in files)
        monkeypatch.setitem(DATA_SETS, "cifar100", replace(DATA_SETS["cifar100"], files=unchecked))
    code = ": cannot be read as a pickle: names posix.mkdir, which a data file has no use for; do not open it"
    said = {"published": " is not the published file: expected md5 …", "code": code}
    said["truncated"] = code  # which comes before its end
    file = "TMP/cifar-100-python/train" + said.get(kind, ": cannot be read as a pickle: …")
    refused(tmp_path, 2, file if kind != "folder" else "cifar100: TMP/cifar-100-python lacks train; put cifar-100-…",
            "data", "check", "cifar100", "--data-dir", tmp_path)  # fmt: skip


def test_data_that_are_not_here(tmp_path: Path) -> None:
    said = {
        "mnist": "mnist: TMP/no-data/MNIST/raw lacks train-images-idx3-ubyte.gz, …; get them from … or add --download",
        "cifar10": "cifar10: TMP/no-data/cifar-10-batches-py lacks data_batch_1, …; put cifar-10-python.tar.gz from "
        "https://… into TMP/no-data or add --download",
        "cifar100": "cifar100: TMP/no-data/cifar-100-python lacks train, test; put cifar-100-python.tar.gz from "
        "https://… into TMP/no-data or add --download",
        "webvision-50": "webvision: TMP/no-data/webvision lacks info/train_filelist_google.txt, info/val_filelist.txt; "
        "get WebVision 1.0 from https://…",
    }
    for name, match in said.items():
        refused(tmp_path, 2, match, "data", "check", name)
    refused(tmp_path, 2, "mnist: TMP/file/MNIST/raw lacks train-images-idx3-ubyte.gz, …", "train", "--preset", "mnist",
            "--data-dir", content("file", "")(tmp_path), "--out", tmp_path / "run")  # fmt: skip


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("../../etc/passwd 0", "line 1 leads out of the folder: '../../etc/passwd'"),
        ("/etc/passwd 0", "line 1 leads out of the folder: '/etc/passwd'"),
        ("google/a.jpg 1000", "expected a file and a label from 0 to 999 in line 1, got 'google/a.jpg 1000'"),
        ("google/a.jpg -1", "expected a file and a label from 0 to 999 in line 1, got 'google/a.jpg -1'"),
        ("google/a.jpg", "expected a file and a label from 0 to 999 in line 1, got 'google/a.jpg'"),
        ("google/a.jpg 0", "class 1 of 50 has no images"),
    ],
)
def test_webvision_lists_that_are_wrong(tmp_path: Path, line: str, match: str) -> None:
    for name in ("train_filelist_google.txt", "val_filelist.txt"):
        content(f"info/{name}", line + "\n")(tmp_path)
    said = f"TMP/info/train_filelist_google.txt: {match}"
    refused(tmp_path, 2, said, "data", "check", "webvision-50", "--data-dir", tmp_path)


# Noise from files


@pytest.mark.parametrize(
    ("name", "raw", "match"),
    [
        ("m.csv", "", "TMP/m.csv: expected a 3 x 3 matrix, got shape (0,)"),
        ("m.csv", "1,0\n0,1\n", "TMP/m.csv: expected a 3 x 3 matrix, got shape (2, 2)"),
        ("m.csv", "1,0,0\n0,1\n0,0,1\n", "TMP/m.csv: cannot be read (expected as many numbers in every line)"),
        ("m.csv", "1,0,0\n0,1,0\n0,0,x\n", "TMP/m.csv: cannot be read (…)"),
        ("m.csv", "1,0,0\n0,1,0\n0,0,0.9\n", "TMP/m.csv: expected rows that sum to 1, got 0.9 in row 2"),
        ("m.csv", "2,-1,0\n0,1,0\n0,0,1\n", "TMP/m.csv: expected probabilities >= 0, got -1.0"),
        ("m.csv", "nan,0,0\n0,1,0\n0,0,1\n", "TMP/m.csv: expected probabilities >= 0, got nan"),
        ("m.csv", "inf,0,0\n0,1,0\n0,0,1\n", "TMP/m.csv: expected rows that sum to 1, got inf in row 0"),
        ("m.csv", b"\xff\xfe1,0", "TMP/m.csv: cannot be read (…)"),
        ("m.npy", b"", "TMP/m.npy: cannot be read (…)"),
        ("m.npy", b"hello", "TMP/m.npy: cannot be read (…)"),
        ("m.npy", hostile.saved({"a": 1}), "TMP/m.npy: cannot be read (expected one array, got 6)"),
        ("m.npz", b"PK\x03\x04", "TMP/m.npz: cannot be read (…)"),
        ("m.xlsx", "1", "TMP/m.xlsx: cannot be read (expected a .npy, .npz, .csv or .txt file)"),
        ("m.npy", "code", "TMP/m.npy: cannot be read (…)"),
        ("m.npy", "folder", "TMP/m.npy: cannot be read (…)"),
        ("m.npy", "absent", "TMP/m.npy: no such file"),
    ],
)
def test_noise_matrices_that_are_wrong(tmp_path: Path, name: str, raw: Any, match: str) -> None:
    data, path = hostile.good(tmp_path), tmp_path / name
    if raw == "code":
        np.save(path, np.array([hostile.Runs(tmp_path / "ran")], dtype=object), allow_pickle=True)
    elif raw == "folder":
        path.mkdir()
    elif raw != "absent":
        content(name, raw)(tmp_path)
    noise = f"matrix:{path}"
    refused(tmp_path, 2, match, "train", "--data", data, *SMALL, "--noise", noise, "--out", tmp_path / "run")


# Where the run goes


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same run of three epochs, finished and stopped after its first; and the data."""
    folder = tmp_path_factory.mktemp("stages")
    data = hostile.good(folder)
    spec = runs.RunSpec(data=str(data), network="linear", epochs=3, noise="symmetric:0.3")

    class Stops(Callback):
        def on_epoch_begin(self, epoch: int) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    runs.train(spec, folder / "finished")
    with pytest.raises(KeyboardInterrupt):
        runs.train(spec, folder / "stopped", callbacks=[Stops()])
    assert (folder / "stopped/checkpoint.pt").exists()
    return {"data": data, "finished": folder / "finished", "stopped": folder / "stopped"}


def again(stages: dict[str, Path], out: Path, *more: str) -> list[object]:
    """The command whose run is in the stages."""
    return ["train", "--data", stages["data"], "--network", "linear", "--epochs", "3", "--noise", "symmetric:0.3",
            "--out", out, *more]  # fmt: skip


def test_the_stages_can_be_gone_on_from(tmp_path: Path, stages: dict[str, Path]) -> None:
    """Without harm done to them, the commands below work."""
    for name, resumed in (("stopped", 1), ("finished", 3)):
        shutil.copytree(stages[name], tmp_path / name)
        result = CliRunner().invoke(cli.app, [*map(str, again(stages, tmp_path / name)), "--json"])
        assert (result.exit_code, result.stderr) == (0, "")
        assert json.loads(result.stdout)["resumed_from_epoch"] == resumed
    result = CliRunner().invoke(cli.app, ["report", str(stages["stopped"]), "--out", str(tmp_path / "page.html")])
    assert (result.exit_code, result.stderr) == (0, "")


def test_out_is_a_file(tmp_path: Path) -> None:
    out = content("run", "my thesis")(tmp_path)
    digits = ("--data", "digits", *SMALL, "--out")
    refused(tmp_path, 1, "TMP/run is a file; give a folder for the run", "train", *digits, out)
    refused(tmp_path, 2, "--out TMP/run is a file; give a folder", "compare", "ce", *digits, out)
    refused(
        tmp_path, 1, f"cannot read or write TMP/run/below: Not a directory; {KEPT}", "train", *digits, out / "below"
    )


def test_out_holds_other_things(tmp_path: Path) -> None:
    content("run/thesis.tex", "my thesis")(tmp_path)
    refused(tmp_path, 1, "TMP/run is not empty and holds no run; give another folder",
            "train", "--data", "digits", *SMALL, "--out", tmp_path / "run")  # fmt: skip


def test_out_holds_another_run(tmp_path: Path, stages: dict[str, Path]) -> None:
    for name in ("stopped", "finished"):
        shutil.copytree(stages[name], tmp_path / name)
        said = f"TMP/{name} holds another run (seed 0, not 1); give another folder"
        refused(tmp_path, 1, said, *again(stages, tmp_path / name, "--seed", "1"))


def test_out_is_being_written_by_another_process(tmp_path: Path, stages: dict[str, Path]) -> None:
    shutil.copytree(stages["stopped"], tmp_path / "run")
    with (tmp_path / "run/.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        said = "TMP/run is being written by another process; wait for it or choose another"
        refused(tmp_path, 1, said, *again(stages, tmp_path / "run"))


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path, stages: dict[str, Path]) -> None:
    """Be it killed while it wrote a checkpoint, or the very first file."""
    shutil.copytree(stages["stopped"], tmp_path / "late")
    content("late/.checkpoint.pt.123.part", b"PK")(tmp_path)
    content("early/.labels.npz.123.part", b"PK")(tmp_path)
    for name, resumed in (("late", 1), ("early", None)):
        result = CliRunner().invoke(cli.app, [*map(str, again(stages, tmp_path / name)), "--json"])
        assert (result.exit_code, result.stderr) == (0, "")
        assert json.loads(result.stdout)["resumed_from_epoch"] == resumed
        assert not list((tmp_path / name).glob(".*.part"))


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("/proc/run", "/proc/run: No such file or directory"),
        ("/sys/run", "/sys/run: …"),
        ("a" * 300, "TMP/aa…aa: File name too long"),
        ("dangling/run", "TMP/dangling: File exists"),
        ("locked/run", "TMP/locked/run: Permission denied"),
    ],
)
def test_out_cannot_be_written(tmp_path: Path, out: str, said: str) -> None:
    (tmp_path / "dangling").symlink_to("/nowhere/at/all")
    (tmp_path / "locked").mkdir(mode=0o500)
    if out == "locked/run" and os.geteuid() == 0:
        pytest.skip("nothing is locked to root")
    data = hostile.good(tmp_path)
    said = f"cannot read or write {said}; {KEPT}"
    refused(tmp_path, 1, said, "train", "--data", data, *SMALL, "--out", tmp_path / out)


def test_out_is_missing(tmp_path: Path) -> None:
    refused(tmp_path, 2, "Missing option '--out'.", "train", "--data", "digits")
    refused(tmp_path, 2, "Option '--out' requires an argument.", "train", "--data", "digits", "--out")


# Runs whose files were harmed


def spoil_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def resave(path: Path, **changes: Any) -> None:
    state = torch.load(path, weights_only=True)
    torch.save({key: value for key, value in {**state, **changes}.items() if value is not None}, path)


def resave_callback(run: Path, name: str, state: dict[str, Any]) -> None:
    callbacks = torch.load(run / "checkpoint.pt", weights_only=True)["callbacks"]
    resave(run / "checkpoint.pt", callbacks={**callbacks, name: state})


Harm = Callable[[Path], object]
CHECKPOINTS: dict[str, Harm] = {
    "empty": lambda run: (run / "checkpoint.pt").write_bytes(b""),
    "truncated": lambda run: (run / "checkpoint.pt").write_bytes((run / "checkpoint.pt").read_bytes()[:-500]),
    "half": lambda run: (run / "checkpoint.pt").write_bytes((run / "checkpoint.pt").read_bytes()[:700]),
    "text": lambda run: (run / "checkpoint.pt").write_bytes(b"hello"),
    "would run code": lambda run: torch.save({"spec": hostile.Runs(run.parent / "ran")}, run / "checkpoint.pt"),
    "a list": lambda run: torch.save([1, 2], run / "checkpoint.pt"),
    "another run's": lambda run: resave(run / "checkpoint.pt", spec="0123456789ab"),
    "without a network": lambda run: resave(run / "checkpoint.pt", network=None),
    "of another network": lambda run: resave(run / "checkpoint.pt", network={"weight": torch.zeros(3)}),
    "without an optimiser": lambda run: resave(run / "checkpoint.pt", optimizer=None),
    "with an empty optimiser": lambda run: resave(run / "checkpoint.pt", optimizer={}),
    "without callbacks": lambda run: resave(run / "checkpoint.pt", callbacks=None),
    "with callbacks that are none": lambda run: resave(run / "checkpoint.pt", callbacks=7),
    "without history": lambda run: resave(run / "checkpoint.pt", history=None),
    "with an empty monitor": lambda run: resave_callback(run, "MonitorCallback 0", {}),
    "without rows": lambda run: resave_callback(run, "RunWriter 0", {"histograms": {}}),
    "with rows that are none": lambda run: resave_callback(run, "RunWriter 0", {"histograms": {}, "rows": 7}),
    "without histograms": lambda run: resave_callback(run, "RunWriter 0", {"rows": []}),
    "a folder": lambda run: ((run / "checkpoint.pt").unlink(), (run / "checkpoint.pt").mkdir()),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_that_are_none(tmp_path: Path, stages: dict[str, Path], kind: str) -> None:
    shutil.copytree(stages["stopped"], tmp_path / "run")
    CHECKPOINTS[kind](tmp_path / "run")
    reasons = {
        "another run's": "TMP/run/checkpoint.pt belongs to another run",
        "without callbacks": "TMP/run/checkpoint.pt was made by an older version of curriculoss",
    }
    reason = reasons.get(kind, "cannot read TMP/run/checkpoint.pt (…)")
    refused(tmp_path, 1, f"{reason}; delete it to begin again", *again(stages, tmp_path / "run"))
    shutil.rmtree(tmp_path / "run/checkpoint.pt", ignore_errors=True)
    (tmp_path / "run/checkpoint.pt").unlink(missing_ok=True)
    result = CliRunner().invoke(cli.app, [*map(str, again(stages, tmp_path / "run")), "--json"])
    assert result.exit_code == 0


SPECS: dict[str, Harm] = {
    "empty": lambda run: (run / "spec.json").write_bytes(b""),
    "truncated": lambda run: (run / "spec.json").write_bytes((run / "spec.json").read_bytes()[:-9]),
    "a list": lambda run: (run / "spec.json").write_text("[]"),
    "not UTF-8": lambda run: (run / "spec.json").write_bytes(b"\xff\xfe"),
    "deep": lambda run: (run / "spec.json").write_text("[" * 100_000),
    "unknown key": lambda run: spoil_json(run / "spec.json", colour="blue"),
    "negative epochs": lambda run: spoil_json(run / "spec.json", epochs=-1),
    "edited": lambda run: spoil_json(run / "spec.json", learning_rate=0.5),
    "a folder": lambda run: ((run / "spec.json").unlink(), (run / "spec.json").mkdir()),
}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("stage", ["stopped", "finished"])
def test_runs_whose_spec_is_none(tmp_path: Path, stages: dict[str, Path], kind: str, stage: str) -> None:
    shutil.copytree(stages[stage], tmp_path / "run")
    SPECS[kind](tmp_path / "run")
    said = "cannot read TMP/run/spec.json: …"
    if kind == "edited":
        said = "TMP/run holds another run (learning_rate 0.5, not 0.1); give another folder"
    else:
        refused(tmp_path, 1, said, "report", tmp_path / "run")
    refused(tmp_path, 1, said, *again(stages, tmp_path / "run"))


def test_a_run_is_not_taken_for_what_its_spec_was_edited_to(tmp_path: Path, stages: dict[str, Path]) -> None:
    for stage, match in (
        ("stopped", "TMP/stopped/checkpoint.pt belongs to another run; delete it to begin again"),
        ("finished", "TMP/finished/result.json is not that of this run; delete it to train again"),
    ):
        shutil.copytree(stages[stage], tmp_path / stage)
        spoil_json(tmp_path / stage / "spec.json", learning_rate=0.5)
        refused(tmp_path, 1, match, *again(stages, tmp_path / stage, "--lr", "0.5"))


RESULTS: dict[str, str] = {
    "empty": "",
    "truncated": '{"epochs": 3,',
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "without what it is for": '{"spec": "0123456789ab"}',
    "not a number": '{"epochs": 3, "test_accuracy": "high"}',
}


@pytest.mark.parametrize("kind", [*RESULTS, "not UTF-8", "a folder"])
@pytest.mark.parametrize("as_json", [True, False])
def test_results_that_are_none(tmp_path: Path, stages: dict[str, Path], kind: str, as_json: bool) -> None:
    shutil.copytree(stages["finished"], tmp_path / "run")
    path = tmp_path / "run/result.json"
    if kind == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(RESULTS.get(kind, "").encode() or (b"\xff\xfe" if kind == "not UTF-8" else b""))
    foreign = kind == "without what it is for"
    said = "TMP/run/result.json is not that of this run; delete it to train again"
    said = said if foreign else "cannot read TMP/run/result.json: …"
    refused(tmp_path, 1, said, *again(stages, tmp_path / "run", *["--json"] * as_json))


REPORTED: dict[str, tuple[str, str | bytes]] = {
    "metrics truncated": ("metrics.jsonl", '{"epoch": 1, "trai'),
    "metrics that are lists": ("metrics.jsonl", "[1]\n[2]\n"),
    "metrics that are numbers": ("metrics.jsonl", "1\n2\n"),
    "metrics that are binary": ("metrics.jsonl", b"\xff\xfe\x00"),
    "deep metrics": ("metrics.jsonl", "[" * 100_000),
    "result truncated": ("result.json", '{"epochs"'),
    "result that is a list": ("result.json", "[]"),
    "environment truncated": ("environment.json", "{"),
    "environment that is a list": ("environment.json", "[]"),
    "labels truncated": ("labels.npz", b"PK\x03\x04"),
    "labels empty": ("labels.npz", b""),
    "labels that are text": ("labels.npz", "hello"),
    "histograms truncated": ("histograms.npz", b"PK\x03\x04" + bytes(30)),
    "histograms empty": ("histograms.npz", b""),
}


@pytest.mark.parametrize("kind", REPORTED)
def test_runs_that_cannot_be_reported(tmp_path: Path, stages: dict[str, Path], kind: str) -> None:
    name, raw = REPORTED[kind]
    shutil.copytree(stages["finished"], tmp_path / "runs/good")
    shutil.copytree(stages["finished"], tmp_path / "runs/bad")
    spoil_json(tmp_path / "runs/bad/spec.json", loss="mae")
    content(f"runs/bad/{name}", raw)(tmp_path)
    content("page.html", "the page of before")(tmp_path)
    said = f"cannot read TMP/runs/bad/{name}: …"
    refused(tmp_path, 1, said, "report", tmp_path / "runs", "--out", tmp_path / "page.html")


@pytest.mark.parametrize(
    "arrays", [{}, {"given": np.zeros((2, 2))}, {"given": np.array(["a"]), "clean": np.array([1])}]
)
@pytest.mark.parametrize("name", ["labels", "histograms"])
def test_arrays_that_are_other_ones(tmp_path: Path, stages: dict[str, Path], name: str, arrays: dict[str, Any]) -> None:
    """A page without them, or a line that names them."""
    shutil.copytree(stages["finished"], tmp_path / "run")
    np.savez(tmp_path / f"run/{name}.npz", **arrays)
    result = CliRunner().invoke(cli.app, ["report", str(tmp_path / "run")])
    if result.exit_code:
        assert result.exit_code == 1
        says(result.stderr, f"cannot read {tmp_path}/run/{name}.npz: …")
        assert not (tmp_path / "run/report.html").exists()


def test_reports_on_nothing(tmp_path: Path, stages: dict[str, Path]) -> None:
    file = content("file", "x")(tmp_path)
    (tmp_path / "empty").mkdir()
    said = "TMP/{} holds no run: expected spec.json in it or one folder below"
    refused(tmp_path, 2, said.format("empty"), "report", tmp_path / "empty")
    refused(tmp_path, 2, said.format("file"), "report", file)
    refused(tmp_path, 2, said.format("absent"), "report", tmp_path / "absent")
    refused(tmp_path, 2, said.format("empty"), "report", stages["finished"], tmp_path / "empty")
    refused(tmp_path, 2, "Missing argument 'runs'.", "report")


@pytest.mark.parametrize(
    ("out", "code", "said"),
    [
        ("folder", 2, "cannot write TMP/folder: it is a folder"),
        ("no/such/page.html", 2, "cannot write TMP/no/such/page.html: there is no folder 'TMP/no/such'"),
        ("a" * 300, 1, f"cannot read or write TMP/aa…aa: File name too long; {KEPT}"),
    ],
)
def test_reports_to_nowhere(tmp_path: Path, stages: dict[str, Path], out: str, code: int, said: str) -> None:
    (tmp_path / "folder").mkdir()
    refused(tmp_path, code, said, "report", stages["finished"], "--out", tmp_path / out)


# Comparisons


@pytest.mark.parametrize(
    ("losses", "match"),
    [
        ("mea", "unknown loss 'mea', did you mean 'mae'? Available: …"),
        ("ce gce:q", "expected a hyperparameter as name=number, got 'q'"),
        ("gce:q=2", "GCE expects 0 < q <= 1, got q=2.0"),
        ("gce:z=2", "gce has no hyperparameter 'z'; it takes q"),
        ("gce:q=0.5:q=0.6", "expected each hyperparameter once, got 'q' twice"),
        ("mae:scale=x", "expected a hyperparameter as name=number, got 'scale=x'"),
        ("mae:scale:shift=2", "expected at most one fix per loss, got 'mae:scale:shift=2'"),
        ("mae:scale=nan", "tau expects a finite number > 0 (shift: or 0), got nan"),
        ("mae:scale=-1", "tau expects a finite number > 0 (shift: or 0), got -1.0"),
        ("mae:logit-bias=2", "tau belongs to a fix: add fix 'scale' or 'shift'"),
        ("nce:scale", "fix works on curricula, functions of the margin alone such as mae, got 'nce'"),
        (":", "expected a hyperparameter as name=number, got ''"),
        ("ce --seeds 0", "Invalid value for '--seeds': …"),
        ("ce --jobs -1", "Invalid value for '--jobs': …"),
        ("ce --noise clean,symmetric:1.2", "symmetric noise expects 0 <= rate <= 1, got rate=1.2"),
        ("ce --noise clean,", "unknown noise ''. Available: …"),
        ("ce --loss mae", "No such option: --loss (Possible options: --jobs, --noise, --seeds)"),
        ("", "Missing argument 'losses'."),
    ],
)
def test_comparisons_of_what_is_none(tmp_path: Path, losses: str, match: str) -> None:
    refused(tmp_path, 2, match, "compare", *losses.split(), "--data", "digits", *SMALL, "--out", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_comparison_on_bad_data(tmp_path: Path) -> None:
    """What goes wrong in a process of its own is told as if it were in ours."""
    data = npz(x=NAN)(tmp_path)
    refused(tmp_path, 2, "TMP/data.npz: x: expected finite numbers, got nan in row 5, column 0",
            "compare", "ce", "--data", data, *SMALL, "--out", tmp_path / "c")  # fmt: skip


@pytest.mark.parametrize("command", [["data", "check", "digits"], ["train", "--out", "run"], ["report", "finished"]])
def test_ctrl_c_anywhere(
    tmp_path: Path, stages: dict[str, Path], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def stops(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    shutil.copytree(stages["finished"], tmp_path / "finished")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "load", stops)
    monkeypatch.setattr(report, "build", stops)
    before = contents(tmp_path / "finished")
    result = CliRunner().invoke(cli.app, command)
    assert (result.exit_code, result.stdout) == (EXIT_CTRL_C, "")
    assert result.stderr.startswith("stopped") and result.stderr.count("\n") == 1
    assert contents(tmp_path / "finished") == before


# What nobody expected


def bug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception) -> Result:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(data, "load", fails)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return CliRunner().invoke(cli.app, ["data", "check", "digits"])


@pytest.mark.parametrize("kind", [ValueError, TypeError, KeyError, RuntimeError, AssertionError])
def test_a_bug_says_that_it_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """Even if it is of a class that the package's own errors are derived from."""
    result = bug(monkeypatch, tmp_path, kind("wheels\ncame off"))
    assert (result.exit_code, result.stdout) == (70, "")
    (file,) = tmp_path.glob("curriculoss-*.txt")
    place = f"please report it with the traceback in {file}"
    says(result.stderr, f"this is a bug in curriculoss ({kind.__name__}: …wheels…); {place}")
    assert "Traceback" in file.read_text() and "in fails\n    raise error\n" in file.read_text()


def test_a_traceback_is_shown_at_once_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURRICULOSS_DEBUG", "1")
    *above, last = bug(monkeypatch, tmp_path, ValueError("wheels")).stderr.splitlines(keepends=True)
    assert above[0].startswith("Traceback") and above[-1] == "ValueError: wheels\n"
    says(last, "this is a bug in curriculoss (ValueError: wheels); the traceback is above")
    assert not list(tmp_path.iterdir())


def test_a_traceback_that_cannot_be_written_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = bug(monkeypatch, tmp_path / "absent", ValueError("wheels"))
    says(result.stderr, "this is a bug in curriculoss (ValueError: wheels); CURRICULOSS_DEBUG=1 shows the traceback")


# A disk that is full


@contextlib.contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of so many bytes."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if (
        os.geteuid()
        or not shutil.which("mount")
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a small disk is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def whole(run: Path) -> None:
    """Every file of the run is one that its reader takes, and none is half-written."""
    read = runs.Run(run)
    for path in run.iterdir():
        if path.suffix == ".npz":
            read.arrays(path.stem)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            assert [row["epoch"] for row in read.metrics] == list(range(1, len(read.metrics) + 1))
        elif path.suffix == ".pt":
            torch.load(path, weights_only=True)
        else:
            assert path.name in (".lock", "model.safetensors")


@pytest.mark.parametrize("free", [0, 4, 8, 12, 16, 20, 28, 36])
def test_a_full_disk(tmp_path: Path, stages: dict[str, Path], free: int) -> None:
    """Wherever it becomes full, what is there is whole, and with room the same command goes on."""
    place, page = tmp_path / "disk", os.sysconf("SC_PAGESIZE")
    with disk(place, 128 * page):
        keep = place / "thesis.tex"
        keep.write_bytes(b"x" * (128 - free // 4) * page) if free else None
        with contextlib.suppress(OSError), (place / "ballast").open("wb") as ballast:
            while free == 0:
                ballast.write(b"x" * page)
                ballast.flush()
        said = f"cannot read or write TMP/run/…: No space left on device; {KEPT}"
        refused(place, 1, said, *again(stages, place / "run"))
        if (place / "run").exists():
            whole(place / "run")
        (place / "ballast").unlink()
        keep.unlink(missing_ok=True)
        result = CliRunner().invoke(cli.app, [*map(str, again(stages, place / "run")), "--json"])
        assert (result.exit_code, result.stderr) == (0, "")
        whole(place / "run")
        after = [{k: v for k, v in row.items() if "seconds" not in k} for row in runs.Run(place / "run").metrics]
        never = [{k: v for k, v in row.items() if "seconds" not in k} for row in runs.Run(stages["finished"]).metrics]
        assert after == never


def test_a_full_disk_for_a_page(tmp_path: Path, stages: dict[str, Path]) -> None:
    with disk(tmp_path / "disk", 2 * os.sysconf("SC_PAGESIZE")):
        page = content("page.html", "the page of before")(tmp_path / "disk")
        said = f"cannot read or write TMP/page.html: No space left on device; {KEPT}"
        refused(tmp_path / "disk", 1, said, "report", stages["finished"], "--out", page)


# As processes of their own: limits and signals


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "curriculoss", *map(str, arguments)]


ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """A quota in effect: labels, spec and environment fit, the checkpoint does not."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    data = hostile.good(tmp_path)
    given = command("train", "--data", data, *SMALL, "--out", tmp_path / "run")
    done = subprocess.run(given, capture_output=True, text=True, check=False, env=ALONE, preexec_fn=limited)
    assert (done.returncode, done.stdout) == (1, "")
    says(done.stderr, f"cannot read or write {tmp_path}/run/checkpoint.pt: File too large; {KEPT}")
    whole(tmp_path / "run")
    assert sorted(contents(tmp_path / "run")) == [".lock", "environment.json", "labels.npz", "spec.json", "task.json"]


def test_signals_keep_what_is_finished(tmp_path: Path) -> None:
    def listening() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which shells turn off for what runs in the background

    def arguments(sent: signal.Signals) -> list[str]:
        return ["train", "--data", "digits", "--subset", "200", "--batch-size", "2", "--network", "linear",
                "--epochs", "8", "--out", str(tmp_path / sent.name), "--json"]  # fmt: skip

    codes = {signal.SIGINT: EXIT_CTRL_C, signal.SIGTERM: 143}
    started = {
        sent: subprocess.Popen(
            command(*arguments(sent)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ALONE,
            preexec_fn=listening,
        )
        for sent in codes
    }  # fmt: skip
    waiting, until = dict(started), time.monotonic() + 60
    while waiting and time.monotonic() < until:
        for sent, process in list(waiting.items()):
            if (tmp_path / sent.name / "metrics.jsonl").exists() or process.poll() is not None:
                waiting.pop(sent).send_signal(sent)
        time.sleep(0.01)
    for sent, process in started.items():
        out = tmp_path / sent.name
        printed, complained = process.communicate(timeout=60)
        assert (process.returncode, printed) == (codes[sent], ""), complained
        assert complained.startswith("stopped after epoch ") and complained.count("\n") == 1
        assert "the same command goes on from there" in complained
        whole(out)
        kept = runs.Run(out).metrics
        assert 1 <= len(kept) < 8
        result = CliRunner().invoke(cli.app, arguments(sent))
        assert (result.exit_code, result.stderr) == (0, "")
        answer = json.loads(result.stdout)
        assert 0 <= answer["resumed_from_epoch"] - len(kept) <= 1  # the checkpoint is written first
        assert math.isfinite(answer["test_accuracy"])
        assert runs.Run(out).metrics[: len(kept)] == kept


def test_a_sample_as_its_users_meet_it(tmp_path: Path) -> None:
    """A process of its own says the same, and nothing of torch's or lightning's beside it."""
    data = content("data.npz", b"PK\x03\x04")(tmp_path)
    done = subprocess.run(
        command("train", "--data", data, *SMALL, "--out", tmp_path / "run"), capture_output=True, text=True,
        check=False, env=ALONE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    says(done.stderr, f"{data}: cannot be read as a .npz file: …")
