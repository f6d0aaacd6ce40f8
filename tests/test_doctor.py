"""`curriculoss doctor`, the version and completion: what a user asks when something does not work."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from typer.testing import CliRunner

import curriculoss
from curriculoss import cli


def diagnose(*arguments):
    done = CliRunner().invoke(cli.app, ["doctor", "--json", *arguments], prog_name="curriculoss")
    assert done.exit_code == 0, done.output
    return {(row["part"], row["name"]): row for row in json.loads(done.stdout)}


def test_doctor_finds_what_is_here_and_says_what_to_type_for_the_rest(tmp_path):
    found = diagnose("--data-dir", str(tmp_path / "none"))
    assert found["installation", "curriculoss"]["found"].startswith(curriculoss.__version__)
    assert found["installation", "torch"]["found"] == torch.__version__
    assert found["extra", "train"]["here"] and found["extra", "train"]["found"] == "complete"
    assert found["device", "cpu"]["here"] and found["device", "cuda"]["here"] == torch.cuda.is_available()
    assert found["data", "digits"]["here"] and not found["data", "folder"]["here"]
    mnist = found["data", "mnist"]
    assert (mnist["here"], mnist["type_this"]) == (False, "curriculoss data check mnist --download")


def test_doctor_finds_data_in_the_folder_that_it_is_given(tmp_path):
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz").touch()
    found = diagnose("--data-dir", str(tmp_path))
    assert found["data", "mnist"]["here"] and found["data", "folder"]["here"]


@pytest.mark.parametrize(("version", "said"), [(None, "missing or too old: scipy"), ("1.0", "scipy>=1.12")])
def test_an_extra_is_incomplete_without_a_package_or_with_one_that_is_too_old(monkeypatch, version, said):
    real = metadata.version

    def pretend(name):
        if name != "scipy":
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", pretend)
    found = diagnose()
    for extra in ("train", "dev"):  # dev asks for it by asking for train
        assert not found["extra", extra]["here"] and said in found["extra", extra]["found"]
    assert found["extra", "train"]["type_this"] == "pip install 'curriculoss[train]'"
    assert found["extra", "plot"]["here"]


def test_doctor_says_what_is_missing_where_the_extra_train_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)  # which finds the data folder
    monkeypatch.delenv("CURRICULOSS_DATA", raising=False)
    found = diagnose()
    assert found["data", "data sets"]["found"] == "not looked for: platformdirs is missing"


def test_people_get_a_table_and_the_commands_below_it(tmp_path):
    done = CliRunner().invoke(cli.app, ["doctor", "--data-dir", str(tmp_path)], prog_name="curriculoss")
    table, _, advice = done.stdout.partition("to add what is missing")
    assert "digits-100" in table and "curriculoss data check cifar10 --download" in advice


@pytest.mark.slow
def test_a_shell_that_asks_gets_commands_and_options():
    def complete(words, position):
        asked = {"_CURRICULOSS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
        command = [sys.executable, "-m", "curriculoss"]
        done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    assert complete("curriculoss re", "1") == ["report", "reproduce"]
    assert complete("curriculoss weight --num", "2") == ["--num-classes"]
