"""The command line, as its users meet it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

import curriculoss
from curriculoss import cli
from curriculoss.fixing import fix, mean_initial_weight, underfitting
from curriculoss.initial import simulate_initial_margins
from curriculoss.losses import CE, GCE, MAE, Curriculum, Scaled, registry


@pytest.fixture(autouse=True)
def no_width_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), prog_name="curriculoss")


def answer(*arguments: str) -> Any:
    """What is printed as JSON, by the book: NaN and Infinity are not in it."""
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout, parse_constant=pytest.fail)


# Help


def test_no_command_teaches() -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == run("--help").stdout
    assert "curriculoss weight mae --fix scale\n" in result.stdout


@pytest.mark.parametrize("command", ["losses", "weight"])
def test_every_command_shows_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"\n  curriculoss {command}" in result.stdout


def test_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer example would be broken somewhere by the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    names = [(), ("data", "list"), ("data", "check"), *((x,) for x in typer.main.get_command(cli.app).commands)]
    for name in names:
        assert max(map(len, run(*name, "--help").stdout.splitlines())) <= 80, name


def test_examples_in_the_help_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = "\n".join(run(*x, "--help").stdout for x in ((), ("losses",), ("weight",)))
    examples = re.findall(r"  curriculoss ((?:losses|weight).*)", shown)
    assert len(examples) >= 8
    for line in examples:
        assert run(*line.partition(" | ")[0].split()).exit_code == 0, line


def test_the_version_is_the_packages_and_torchs() -> None:
    result = run("--version")
    said = f"curriculoss {curriculoss.__version__} (torch {torch.__version__})\n"
    assert (result.exit_code, result.stdout) == (0, said)


# losses


def test_every_loss_is_listed_within_a_hundred_columns() -> None:
    result = run("losses")
    assert (result.exit_code, result.stderr) == (0, "")
    assert max(len(line) for line in result.stdout.splitlines()) <= 100
    assert "…" not in result.stdout
    words = result.stdout.split()
    assert set(registry.available()) <= set(words)
    assert "l = (1 - p**q)/q" in result.stdout
    assert "L = log(p[y])/sum(log(p[i])" in result.stdout
    assert {"nce", "mse", "nce+mae"} <= set(words[words.index("second") :])


def test_listed_facts_are_those_of_the_losses() -> None:
    rows = {row["name"]: row for row in answer("losses")}
    assert {name for row in rows.values() for name in row["names"]} == set(registry.available())
    assert rows["mae"]["names"] == ["mae", "rce"]
    for name, row in rows.items():
        loss = registry.get(name)
        assert row["loss"] == loss.formula
        if isinstance(loss, Curriculum):
            assert (row["weight"], row["constraints"]) == (loss.weight_formula, loss.constraints)
            assert (row["bounded"], row["symmetric"]) == (loss.bounded, loss.symmetric)
            assert row["max_noise_ratio"] == loss.max_noise_ratio
            assert tuple(map(float, row["peak"].values())) == loss.peak
        else:
            assert (row["regularizer"], row["bounded_below"]) == (loss.regularizer, loss.bounded_below)
    assert rows["aul"]["hyperparameters"] == {"a": 1.1, "q": 5.0}
    assert (rows["mse"]["primary"], rows["gls"]["constraints"]) == ("MAE()", "alpha <= 1")


def test_losses_that_diverge_say_so() -> None:
    assert [row["name"] for row in answer("losses") if row.get("bounded_below") is False] == ["cr", "peer"]
    assert " ".join(run("losses").stdout.split()).count("unbounded below:") == 2
    said = "It is unbounded below: needs weight decay or early stopping."
    assert said in answer("weight", "cr", "-k", "10")["sentence"]
    assert said not in answer("weight", "cr", "-p", "beta=0", "-k", "10")["sentence"]


@pytest.mark.parametrize(("columns", "width"), [(None, 100), ("60", 60), ("150", 150), ("1", 40)])
def test_columns_set_the_width(columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert cli.console.new_console().width == width


# weight


def test_the_answer_is_that_of_the_library() -> None:
    found = answer("weight", "gce", "-p", "q=0.5", "--num-classes", "200")
    verdict = underfitting(GCE(0.5), 200)
    assert found["mean_initial_weight"] == verdict.mean_weight
    assert found["share_of_ce"] == verdict.share_of_ce
    assert (found["underfitting"], found["sentence"]) == (verdict.level, verdict.sentence)
    margins = simulate_initial_margins(200)
    assert found["initial_margin"]["mean"] == pytest.approx(float(margins.mean()), rel=1e-5)
    assert (found["loss"], found["hyperparameters"], found["num_classes"]) == ("gce", {"q": 0.5}, 200)


def test_the_answer_is_given_in_words() -> None:
    result = run("weight", "mae")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "MAE with 100 classes" in result.stdout
    assert underfitting(MAE(), 100).sentence in " ".join(result.stdout.split())
    assert max(len(line) for line in result.stdout.splitlines()) <= 100


def test_quantiles_belong_together() -> None:
    """Each weight stands under the margin that it belongs to."""
    lines = run("weight", "mae", "-k", "50").stdout.splitlines()
    margins, weights, cross_entropy = (
        [float(x) for x in next(line for line in lines if line.strip().startswith(name)).split()[-6:-1]]
        for name in ("initial margin", "weight", "CE's weight")
    )
    at = torch.tensor(margins)
    assert weights == pytest.approx((4 * MAE().weight(at)).tolist(), rel=0.06)
    assert cross_entropy == pytest.approx(CE().weight(at).tolist(), abs=0.01)


def test_a_fix_changes_the_answer() -> None:
    found = answer("weight", "mae", "--fix", "scale", "--tau", "2.6")
    fixed = fix(MAE(), "scale", tau=2.6, num_classes=100)
    assert isinstance(fixed, Scaled)
    assert found["share_of_ce"] == underfitting(fixed, 100).share_of_ce
    assert found["underfitting"] == "none"
    assert found["as"] == f"Scaled(MAE, alpha={fixed.alpha:.3g})"
    assert answer("weight", "mae", "--fix", "logit-bias")["as"].startswith("Shifted(MAE, beta=2.48")
    assert answer("weight", "mae", "--fix", "scale")["share_of_ce"] == found["share_of_ce"]


@pytest.mark.parametrize("arguments", [("agce", "q=7000"), ("ael", "q=1e-30"), ("fl", "q=1e18")], ids=" ".join)
def test_a_loss_without_any_initial_weight_is_answered(arguments: tuple[str, str]) -> None:
    result = run("weight", arguments[0], "-p", arguments[1])
    assert (result.exit_code, result.stderr) == (0, "")
    assert "samples start with 0 % of the weight" in " ".join(result.stdout.split())


def test_a_fix_that_would_do_harm_is_noted() -> None:
    result = run("weight", "mae", "-k", "2", "--fix", "scale", "--tau", "2.6")
    assert result.exit_code == 0
    assert result.stderr.startswith("Note: fix 'scale' would do harm with an expected initial margin of 0")
    assert "MAE with 2 classes" in result.stdout
    assert "would do harm" in answer("weight", "mae", "-k", "2", "--fix", "scale", "--tau", "2.6")["note"]


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_figures_are_written(tmp_path: Path, suffix: str, magic: bytes) -> None:
    file = tmp_path / f"mae{suffix}"
    result = run("weight", "mae", "--fix", "shift", "--tau", "3", "--out", str(file))
    assert result.exit_code == 0
    assert result.stdout.endswith(f"figure: {file}\n")
    assert file.read_bytes().startswith(magic)


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert answer("weight", "mae", "--out", "~/mae.png")["out"] == str(tmp_path / "mae.png")
    assert (tmp_path / "mae.png").exists()


def test_a_second_term_is_measured(tmp_path: Path) -> None:
    """GLS without smoothing is CE; MSE is divided by MAE's peak, as `RobustLoss` does."""
    file = tmp_path / "gls.png"
    found = answer("weight", "gls", "-p", "alpha=0", "-k", "10", "--out", str(file))
    assert found["mean_initial_weight"] == pytest.approx(mean_initial_weight(CE(), 10), rel=0.02)
    assert found["share_of_ce"] == pytest.approx(1)
    assert found["underfitting"] == "unknown"
    assert file.exists()
    assert answer("weight", "gls", "-p", "alpha=0.9", "-k", "10")["share_of_ce"] < 0.5
    plain_mae = answer("weight", "mse", "-p", "alpha=0", "-k", "10")["mean_initial_weight"]
    assert plain_mae == pytest.approx(mean_initial_weight(MAE(), 10), rel=0.05)
    assert "does not tell whether it underfits" in " ".join(run("weight", "NCE").stdout.split())


def test_peers_are_other_samples() -> None:
    """CE for one label minus CE for a random other pushes with weight 1 whenever the two differ."""
    means = set()
    for seed in range(2):
        state = torch.manual_seed(seed).get_state()
        means.add(answer("weight", "peer", "-k", "10")["mean_initial_weight"])
        assert torch.equal(state, torch.get_rng_state())
    assert list(means) == [pytest.approx(0.9, abs=0.05)]


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["weight", "agcce"], "unknown loss 'agcce', did you mean 'agce'? Available: ce, "),
        (["weight", "gce", "-p", "r=1"], "gce has no hyperparameter 'r'; it takes q"),
        (["weight", "gce", "-p", "q=1.5"], "GCE expects 0 < q <= 1, got q=1.5"),
        (["weight", "gce", "-p", "q=nan"], "GCE expects a finite number, got q=nan"),
        (["weight", "auto"], "auto sets its weight while it trains; give a loss that `curriculoss losses` lists"),
        (["weight", "gce", "-p", "q=x"], "expected a hyperparameter as name=number, got 'q=x'"),
        (["weight", "gce", "-p", "q"], "expected a hyperparameter as name=number, got 'q'"),
        (["weight", "gce", "-p", "q=0.1", "-p", "q=0.2"], "expected each hyperparameter once, got 'q' twice"),
        (["weight", "tce", "-p", "q=2.5"], "TCE expects an integer q from 1 to 1000000, got q=2.5"),
        (["weight", "tce", "-p", "q=1e300"], "TCE expects an integer q from 1 to 1000000, got q=1e+300"),
        (["weight", "ael", "-p", "q=1e200"], "AEL expects a number from 1e-30 to 1e+18 in size, got q=1e+200"),
        (["weight", "gls", "-p", "alpha=-1e308", "--json"], "GLS expects a number from 0 to 1e+18 in size, got alpha"),
        (["weight", "peer", "-p", "generator=1"], "PeerLoss expects a torch.Generator or None, got generator=1.0"),
        (["weight", "mea"], "unknown loss 'mea', did you mean 'mae'?"),
        (["weight", "mae", "-k", "1"], "expected 2 <= --num-classes <= 10,000,000, got 1"),
        (["weight", "mae", "-k", "many"], "Invalid value for '--num-classes' / '-k': "),
        (["weight", "mae", "--fix", "scal", "--tau", "1"], "unknown fix 'scal', did you mean 'scale'?"),
        (["weight", "mae", "--fix", "scale", "--tau", "0"], "fix 'scale' expects a finite tau > 0"),
        (["weight", "mae", "--tau", "1"], "--tau belongs to a fix"),
        (["weight", "nce", "--fix", "scale", "--tau", "1"], "fix expects a curriculum such as MAE(), got NCE()"),
        (["weight", "mae", "--out", "mae.gif"], "expected --out to end in .png, .svg, .pdf, got 'mae.gif'"),
        (["weight", "mae", "--out", "mae"], "expected --out to end in .png, .svg, .pdf, got 'mae'"),
        (
            ["weight", "mae", "--out", "no/such/folder/mae.png"],
            "cannot write no/such/folder/mae.png: there is no folder 'no/such/folder'",
        ),
        (["weight", "mae", "--out", "folder.png"], "cannot write folder.png: it is a folder"),
        (["weight", "mae", "--nope"], "No such option: --nope"),
        (["weight"], "Missing argument"),
        (["weights"], "No such command 'weights'"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_two(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {said}")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


# As a process of its own


def process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_module_is_the_command() -> None:
    done = process("-m", "curriculoss", "weight", "mae", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == answer("weight", "mae")
    failed = process("-m", "curriculoss", "weight", "agcce")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("Error: unknown loss 'agcce'")
    assert failed.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("arguments", ["losses", "weight mae", "weight mae --json", "--help"])
def test_an_answer_that_cannot_be_written_is_one_line(arguments: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "curriculoss", *arguments.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    said = "Error: cannot write the answer: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.slow
def test_figures_are_imported_only_to_draw() -> None:
    code = "import sys; from curriculoss.cli import main; sys.argv = ['', 'losses']\ntry: main()\nfinally: {}"
    assert process("-c", code.format("assert 'matplotlib' not in sys.modules")).returncode == 0
    assert process("-c", code.format("assert 'matplotlib' in sys.modules")).returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_package_is_named_with_its_remedy(package: str) -> None:
    done = process("-c", f"import sys; sys.modules['{package}'] = None; from curriculoss.cli import main; main()")
    said = f"Error: the command line needs {package}: pip install 'curriculoss[cli]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.slow
def test_a_missing_matplotlib_is_named_with_its_remedy(tmp_path: Path) -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from curriculoss.cli import main; main()"
    done = process("-c", code, "weight", "mae", "--out", str(tmp_path / "mae.png"))
    assert (done.returncode, done.stderr) == (
        1,
        "Error: this command needs matplotlib: pip install 'curriculoss[train]'\n",
    )
