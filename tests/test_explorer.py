"""The explorer as a file: what the command writes, how large it is, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from curriculoss import _files, cli, explorer
from curriculoss.errors import RunError
from curriculoss.explorer.losses import loss_facts
from curriculoss.explorer.runs import MOST_FRAMES, run_facts
from curriculoss.losses import registry
from curriculoss.monitor import Histogram
from tests.test_report import make_run

pytestmark = pytest.mark.slow


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["explore", *map(str, arguments)], prog_name="curriculoss")


def content(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    return json.loads(found[1])


def test_the_command_writes_a_page_and_says_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke()
    assert done.exit_code == 0 and "explorer: explorer.html" in done.stdout
    assert (tmp_path / "explorer.html").as_uri() in done.stdout.replace("\n", "")
    assert content(tmp_path / "explorer.html")["runs"] == []
    make_run(tmp_path / "runs/a", loss="ce")
    make_run(tmp_path / "runs/b", loss="mae", classes=7)
    done = invoke("--run", "runs/a", "--run", "runs", "--out", "with-runs.html")
    assert done.exit_code == 0, done.output
    found = content(tmp_path / "with-runs.html")
    assert [run["name"] for run in found["runs"]] == ["a", "a", "b"]
    assert {7, 10, 100} <= {each["number"] for each in found["classes"]}  # those of the runs can be chosen, too


def test_runs_without_an_epoch_are_left_out_if_others_have_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/new", test=(), finished=False)
    done = invoke("--run", "runs")
    assert done.exit_code == 1 and "runs/new has nothing to show yet" in done.stderr
    make_run(tmp_path / "runs/old")
    done = invoke("--run", "runs")
    assert done.exit_code == 0 and "left out, as no epoch has ended: runs/new" in done.stdout
    assert [run["name"] for run in content(tmp_path / "explorer.html")["runs"]] == ["old"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "nowhere"], "nowhere holds no run: expected spec.json"),
        (["--out", "missing/page.html"], "cannot write missing/page.html: there is no folder 'missing'"),
        (["--out", "."], "cannot write .: it is a folder"),
    ],
)
def test_the_command_says_in_one_line_what_it_cannot_do(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 2 and message in done.stderr.replace("\n", " ") and not list(tmp_path.iterdir())


def test_the_page_stands_alone(tmp_path):
    text = explorer.build(tmp_path / "page.html").read_text("utf-8")
    addresses = re.findall(r"https?://[^\s\"']+", text)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # the name of SVG, which nobody asks for
    assert not re.search(r"@import|<link|<img|<iframe|url\(|fetch\(|XMLHttpRequest", text)
    assert "default-src 'none'" in text


def test_a_page_with_ten_long_runs_is_at_most_5_mb(tmp_path):
    chance, epochs = np.random.default_rng(0), 300
    runs = []
    for seed in range(10):
        run = make_run(
            tmp_path / f"run-{seed}", seed=seed, loss="mae", fix="scale", epochs=epochs, test=[50.123] * epochs
        )
        counts = {key: chance.integers(0, 500, (epochs, Histogram.BINS)) for key in ("all", "clean", "noisy")}
        _files.write_arrays(run.path / "histograms.npz", {"edges": Histogram.edges().numpy(), **counts})
        runs.append(run)
    page = explorer.build(tmp_path / "page.html", runs)
    assert page.stat().st_size <= 5_000_000
    shown = content(page)["runs"][0]
    assert len(shown["epochs"]) == MOST_FRAMES and shown["epochs"][-1] == epochs and shown["margins"]["bins"] > 400


def test_a_run_is_shown_as_its_files_have_it(tmp_path):
    shown = run_facts(make_run(tmp_path / "run", loss="mae", fix="scale", tau=2.0, test=(60.123, 97, 98.5), snr=3.9))
    assert shown["loss"] == "mae, scale 2" and shown["about"] == "digits, noise symmetric:0.4, seed 0"
    assert shown["epochs"] == [1, 2, 3] and shown["series"]["test_accuracy"] == [60.12, 97, 98.5]
    assert shown["series"]["mean_weight"] == [0.5, 0.25, 0.1667] and set(shown["densities"]) == {"clean", "noisy"}
    first, step = shown["margins"]["first"], shown["margins"]["step"]
    assert (first, step) == (-63.875, 0.25) and shown["weight"][255] == shown["weight"][256] == max(shown["weight"])


def test_a_run_with_nothing_to_show_is_refused(tmp_path):
    with pytest.raises(RunError, match="has nothing to show yet: its first epoch did not end"):
        run_facts(make_run(tmp_path / "new", test=(), finished=False))
    run = make_run(tmp_path / "cut")
    arrays = run.arrays("histograms")
    _files.write_arrays(run.path / "histograms.npz", {key: x if key == "edges" else x[:2] for key, x in arrays.items()})
    with pytest.raises(RunError, match=r"has 3 epochs in metrics.jsonl, but not as many in histograms.npz"):
        run_facts(run)


def test_every_curriculum_of_the_registry_is_offered_with_its_defaults():
    offered = {
        each["name"]: {param["name"]: param["default"] for param in each["params"]} for each in loss_facts()["losses"]
    }
    for names in registry.synonyms().values():
        if (loss := registry.get(names[0])).curriculum is not None:
            assert registry.get(names[0], **offered.pop(names[0])) == loss
    assert not offered


def test_the_package_does_not_import_the_explorer():
    code = "import sys, curriculoss; print([x for x in sys.modules if x.startswith('curriculoss.explorer')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
