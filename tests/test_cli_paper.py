"""`curriculoss reproduce`, as a user types it, at a scale that takes seconds."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from curriculoss import cli
from curriculoss._files import locked
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.epochs import EPOCHS_FILE as FILE
from curriculoss.paper.scales import CPU, PAPER, QUICK, SCALES, SMOKE
from curriculoss.runs import many

pytestmark = pytest.mark.slow

TINY = {"data": "digits", "network": "linear", "subset": 64, "epochs": 2}
ELR = ("figure:elr", "--scale", "smoke", "--jobs", "2", "--out")


@pytest.fixture(autouse=True, scope="module")
def _tiny():
    settings = {name: TINY for name in SMOKE.settings if "/" not in name}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCALES, "smoke", replace(SMOKE, settings=settings))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    run(*ELR, folder)
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """Of a folder with the four runs of figure:elr, two epochs each."""
    return shutil.copytree(made, tmp_path / "copy")


def run(*arguments, expect=0):
    done = CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)], prog_name="curriculoss")
    assert done.exit_code == expect, (done.output, done.exception)
    return done


def test_list_names_every_artefact_with_its_runs():
    rows = json.loads(run("list", "--json").stdout)
    assert [row["name"] for row in rows] == list(ARTEFACTS)
    counts = {row["name"]: row["runs"] for row in rows}
    assert counts["table:fix"][PAPER.name] == 11 * 5 * 3
    assert counts["table:webvision"] == {SMOKE.name: 8, QUICK.name: 24, CPU.name: 24, PAPER.name: 12}
    assert counts["figure:weights"][QUICK.name] == 0
    said = run("list").stdout
    assert all(name in said for name in ARTEFACTS) and all(scale.about in said for scale in SCALES.values())


def test_a_reader_that_leaves_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m curriculoss reproduce list --json | true"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert not found.stderr


def test_a_dry_run_says_what_is_done_and_how_long_the_rest_takes(tmp_path):
    said = json.loads(run("figure:elr", "--scale", "smoke", "--out", tmp_path / "out", "--dry-run", "--json").stdout)
    assert (said["done"], said["missing"], len(said["runs"])) == (0, 4, 4) and said["seconds"] > 0
    assert not (tmp_path / "out").exists()
    run("figure:elr", "--scale", "smoke", "--out", tmp_path / "out", "--jobs", "1")
    text = run("figure:elr", "--scale", "smoke", "--out", tmp_path / "out", "--dry-run").stdout
    assert text.count("done     ") == 4 and "4 runs, 4 done already" in text and "missing  " not in text


def test_a_table_comes_in_four_forms_and_is_not_trained_twice(tmp_path, monkeypatch):
    done = run("table:webvision", "--scale", "smoke", "--out", tmp_path, "--jobs", "2")
    assert "MAE scale" in done.stdout and "66.40" in done.stdout  # ours and the paper's
    stem = tmp_path / "table-webvision"
    assert all(stem.with_suffix(f".{ending}").stat().st_size for ending in ("txt", "csv", "md", "tex"))
    with stem.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"n", "mean", "std", "paper", "difference"} <= set(rows[0]) and {row["n"] for row in rows} == {"1"}
    page = (tmp_path / "README.md").read_text("utf-8")
    assert "**8 of " in page and "`curriculoss reproduce table:webvision --scale smoke` (" in page
    assert "| digits for WebVision 50 |" in page and page.count("he fixes on WebVision") == 1
    monkeypatch.setattr(many, "train", None)  # cannot be called
    before = stem.with_suffix(".csv").read_bytes()
    made = json.loads(run("table:webvision", "--scale", "smoke", "--out", tmp_path, "--json").stdout)["made"]
    assert stem.with_suffix(".csv").read_bytes() == before and str(stem) + ".tex" in made[0]["files"]


def test_the_records_alone_are_enough(tmp_path):
    run("table:webvision", "--scale", "smoke", "--out", tmp_path / "one", "--jobs", "2")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/epochs.csv").write_bytes((tmp_path / "one/epochs.csv").read_bytes())
    run("table:webvision", "--scale", "smoke", "--out", tmp_path / "two")
    assert not (tmp_path / "two/runs").exists()
    assert (tmp_path / "one/table-webvision.md").read_bytes() == (tmp_path / "two/table-webvision.md").read_bytes()


def test_a_record_that_lacks_an_epoch_or_the_last_accuracy_is_read_or_trained_again(copy):
    whole = (copy / FILE).read_text("utf-8")
    head, first, second, *others = whole.splitlines(keepends=True)
    for cut in (first, second, first + re.sub(r",0,2,[\d.]+,", ",0,2,,", second)):
        (copy / FILE).write_text(head + cut + "".join(others), "utf-8")
        run(*ELR, copy)
        assert (copy / FILE).read_text("utf-8") == whole
    (copy / FILE).write_text(head + first + "".join(others), "utf-8")
    (copy / "runs").rename(copy / "gone")
    assert "4 runs, 3 done already" in run(*ELR, copy, "--dry-run").stdout


@pytest.mark.parametrize("kept", [0, 30, 400, -1, -20])
def test_a_record_that_was_cut_is_an_error_that_names_the_file(copy, kept):
    cut = (copy / FILE).read_bytes()[:kept]
    (copy / FILE).write_bytes(cut)
    said = run(*ELR, copy, expect=1).stderr
    assert f"cannot read {copy / FILE}: line " in said and "delete it and it is made again" in said
    assert said.count("\n") == 1 and (copy / FILE).read_bytes() == cut
    (copy / FILE).unlink()
    run(*ELR, copy)


def test_a_folder_has_one_scale(copy):
    before = {path: path.read_bytes() for path in copy.glob("*.*")}
    for arguments in (("figure:elr",), ("table:losses",), ("table:fix", "--dry-run")):
        said = run(*arguments, "--scale", QUICK.name, "--out", copy, expect=2).stderr
        assert f"{copy} has runs of scale smoke; give another folder for {QUICK.name}" in said and said.count("\n") == 1
    assert {path: path.read_bytes() for path in copy.glob("*.*")} == before


def test_damaged_runs_are_all_named_with_what_to_do_and_stop_nothing(copy):
    whole = (copy / FILE).read_bytes()
    (copy / FILE).unlink()
    broken = dict(
        zip(sorted((copy / "runs").iterdir()), ("spec.json", "metrics.jsonl", "histograms.npz"), strict=False)
    )
    for path, name in broken.items():
        (path / name).write_bytes((path / name).read_bytes()[:-20])
    lacking = max(set((copy / "runs").iterdir()) - set(broken))
    first, _ = (lacking / "metrics.jsonl").read_text().splitlines(keepends=True)
    (lacking / "metrics.jsonl").write_text(first)
    done = run(*ELR, copy, expect=1)
    lines = dict(zip([*broken, lacking], sorted(done.stderr.splitlines()), strict=True))
    for path, line in lines.items():
        assert path.name in line and line.endswith("; delete its folder and it is trained again")
        shutil.rmtree(path)
    assert "figure-elr.png" in done.stdout
    run(*ELR, copy)
    assert (copy / FILE).read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_a_run_that_another_process_makes_is_waited_for(tmp_path):
    (busy,) = (Path(each["run"]) for each in json.loads(run(*ELR, tmp_path, "--dry-run", "--json").stdout)["runs"]
               if each["spec"]["loss"] == "nce")  # fmt: skip
    busy.mkdir(parents=True)
    held, others_done = threading.Event(), tmp_path / "runs"

    def other():
        with locked(busy):
            held.set()
            while len([*others_done.glob("*/result.json")]) < 3:
                time.sleep(0.05)

    process = threading.Thread(target=other)
    process.start()
    held.wait()
    run(*ELR, tmp_path)
    process.join()
    assert (busy / "result.json").exists()


def test_without_a_terminal_runs_are_told_line_by_line(tmp_path):
    assert "figure:elr: 4 of 4 runs, 8 epochs\n" in run(*ELR, tmp_path).stderr


def test_a_plan_needs_no_data_and_a_run_names_all_that_are_not_there(tmp_path):
    nowhere = ("--data-dir", tmp_path / "nowhere", "--out", tmp_path / "out")
    said = run("claims", "--scale", QUICK.name, *nowhere, "--dry-run").stdout
    assert "215 runs, 0 done already; the time for the others is unknown: " in said
    failed = run("claims", "--scale", QUICK.name, *nowhere, expect=2).stderr
    assert f"{tmp_path / 'nowhere'} is not a folder, and runs need cifar10, cifar100, mnist, tiny-imagenet, " in failed
    assert not (tmp_path / "out").exists()


def test_whatever_may_take_long_has_a_bar(tmp_path, monkeypatch):
    shown = []

    def bar(text, *_, **__):
        return nullcontext(shown.append(text))

    monkeypatch.setattr("curriculoss.cli.reproduce.progress_bar", bar)
    run("table:losses", "--no-train", "--out", tmp_path)
    run("table:losses", "--dry-run", "--out", tmp_path)
    assert shown == ["making table:losses", "measuring a few steps of each kind of run"]


def test_formulae_need_no_runs(tmp_path):
    done = run("table:losses", "--scale", "paper", "--out", tmp_path)
    assert "GCE" in done.stdout and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("table:undefit",), "unknown artefact 'table:undefit', did you mean 'table:underfit'?"),
        (("table:fix", "--scale", "smok"), "unknown scale 'smok', did you mean 'smoke'?"),
        (("table:fix", "--seeds", "0"), "Invalid value for '--seeds': "),
        (("table:fix", "--jobs", "-1"), "Invalid value for '--jobs': "),
        (("table:fix", "--data-dir", "/nowhere", "--out", "never"), "/nowhere"),
    ],
)
def test_mistakes_are_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, expect=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout
