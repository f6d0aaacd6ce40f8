"""`curriculoss reproduce`, as a user types it, at a scale that takes seconds."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from curriculoss import cli
from curriculoss.paper import settings
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.training import many

SMOKE = settings.SCALES["smoke"]
TINY = {"data": "digits", "network": "linear", "subset": 64, "epochs": 1}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    base = {name: TINY for name in SMOKE.base if "/" not in name}
    monkeypatch.setitem(settings.SCALES, "smoke", replace(SMOKE, base=base))


def run(*arguments, expect=0):
    done = CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)], prog_name="curriculoss")
    assert done.exit_code == expect, (done.output, done.exception)
    return done


def test_list_names_every_artefact_with_its_runs():
    rows = json.loads(run("list", "--json").stdout)
    assert [row["name"] for row in rows] == list(ARTEFACTS)
    counts = {row["name"]: row["runs"] for row in rows}
    assert counts["table:fix"]["paper"] == 11 * 5 * 3 and counts["table:webvision"] == {
        "smoke": 8,
        "cpu": 0,
        "paper": 12,
    }
    assert counts["figure:weights"]["cpu"] == 0
    assert all(name in run("list").stdout for name in ARTEFACTS)


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
    assert "table:webvision" in (tmp_path / "README.md").read_text("utf-8")
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


def test_formulae_need_no_runs(tmp_path):
    done = run("table:losses", "--scale", "paper", "--out", tmp_path)
    assert "GCE" in done.stdout and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("table:undefit",), "unknown artefact 'table:undefit', did you mean 'table:underfit'?"),
        (("table:fix", "--scale", "cpus"), "unknown scale 'cpus', did you mean 'cpu'?"),
        (("table:fix", "--seeds", "0"), "expected --seeds and --jobs >= 1, got 0"),
        (("table:fix", "--jobs", "-1"), "expected --seeds and --jobs >= 1, got -1"),
        (("table:fix", "--scale", "cpu", "--data-dir", "/nowhere", "--out", "never"), "/nowhere"),
    ],
)
def test_mistakes_are_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, expect=2)
    assert said in done.stderr and done.stderr.count("\n") == 1 and not done.stdout
