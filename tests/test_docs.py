"""The documentation: every block of code runs, the site builds without a warning, no link is dead, names are found."""

import csv
import os
import re
import shlex
import statistics
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import typer
from sphinx.util.inventory import InventoryFile

import curriculoss
from curriculoss import cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(x for x in DOCS.rglob("*.md") if x.relative_to(DOCS).parts[0] not in ("_build", "generated"))
BLOCK = re.compile(r"^```(python|sh)( notest)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = 9  # blocks that are about your own photos, need published data or a cluster, or take minutes
RUN = """
import subprocess, sys
names = {"__name__": "__page__"}
for kind, code in %r:
    print(code, flush=True)
    if kind == "sh":
        subprocess.run(["bash", "-euc", code], check=True)
    else:
        exec(compile(code, "page", "exec"), names)
"""


def blocks(page):
    return BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [x for x in PAGES if blocks(x)], ids=lambda x: str(x.relative_to(DOCS)))
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    command = tmp_path / "bin/curriculoss"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m curriculoss "$@"\n')
    command.chmod(0o755)
    code = [(kind, text) for kind, marked, text in blocks(page) if not marked]
    env = {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "MPLBACKEND": "agg"}
    script = [sys.executable, "-W", "error", "-c", RUN % code]
    done = subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_few_blocks_are_not_run():
    marked = [text for page in PAGES for _, marked, text in blocks(page) if marked]
    assert 0 < len(marked) <= NOT_RUN


def examples(command, name="curriculoss"):
    """The lines of examples in the help of a command and those below it."""
    for key, each in getattr(command, "commands", {}).items():
        yield from examples(each, f"{name} {key}")
    yield from (line for line in (command.help or "").splitlines() if line.strip().startswith("curriculoss "))


def commands_in(text):
    """Commands of a shell script, without comments, pipes and what stands before them."""
    for line in text.replace("\\\n", " ").splitlines():
        if found := re.search(r"(?:^|\s|-m )curriculoss (.+)", line):
            plain = re.sub(r"\$\w+", "0", re.split(r" \| ", found[1])[0])  # variables of the script
            yield shlex.split(plain, comments=True)


def test_commands_that_are_not_run_are_accepted_by_the_parser():
    whole = typer.main.get_command(cli.app)
    texts = [text for page in [*PAGES, ROOT / "README.md"] for kind, _, text in blocks(page) if kind == "sh"]
    given = [each for text in [*texts, *examples(whole)] for each in commands_in(text)]
    assert len(given) > 70
    for arguments in given:
        command, rest = whole, arguments
        while rest and rest[0] in getattr(command, "commands", {}):
            command, rest = command.commands[rest[0]], rest[1:]
        if rest[:1] not in (["--version"], ["--install-completion"]):
            command.make_context("curriculoss", list(rest))


def test_every_deviation_names_tests_that_are_there():
    text = (DOCS / "deviations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w, ]+) \| (.+) \|$", text, re.MULTILINE)
    errata = re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)
    choices = [name.lower() for name in re.findall(r"^- \*\*([\w ]+)", text, re.MULTILINE)]
    assert len(choices) == 4 and [x for names, _ in rows for x in names.split(", ")] == [*errata, *choices]
    missing, file = [], ""
    for each in re.findall(r"`([\w.]*::\w+)`", " ".join(named for _, named in rows)):
        file, name = each.split("::")[0] or file, each.split("::")[1]
        if f"def {name}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8"):
            missing.append(each)
    assert not missing


class Links(HTMLParser):
    """The addresses that a page asks for, and the places in it that have a name."""

    def __init__(self, path):
        super().__init__()
        self.asked, self.places = set(), {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.places |= {given[key] for key in ("id", "name") if given.get(key)}
        self.asked |= {given[key] for key in ("href", "src", "data") if given.get(key)}


def test_every_link_leads_somewhere_and_no_page_needs_the_network(site):
    pages = {path.resolve(): Links(path) for path in site.rglob("*.html")}
    assert len(pages) > 40
    dead = []
    for path, links in pages.items():
        for address in links.asked:
            if address.startswith(("http:", "https:", "data:", "mailto:", "javascript:")):
                continue
            target, place = urldefrag(address)
            there = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            found = there in pages and (unquote(place) in pages[there].places) if place else there.exists()
            if not found:
                dead.append((str(path.relative_to(site)), address))
    assert not dead
    loaded = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["'](https?:[^"']+)""")
    assert not [url for path in pages for url in loaded.findall(path.read_text(encoding="utf-8"))]


def test_every_public_name_and_every_command_is_in_the_reference(site):
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    wanted = {f"curriculoss.{name}" for name in curriculoss.__all__} - {"curriculoss.functional", "curriculoss.RCE"}
    assert wanted - known == set()
    assert {"curriculoss.runs.RunSpec", "curriculoss.data.Dataset", "curriculoss.auditing.Audit.save"} <= known
    listed = subprocess.run([sys.executable, "-m", "curriculoss", "--help"], capture_output=True, text=True).stdout
    commands = re.findall(r"^  (\w+) ", listed.partition("Commands:")[2], re.MULTILINE)
    shown = (site / "generated/commands.html").read_text(encoding="utf-8")
    assert len(commands) > 10
    assert [name for name in commands if f'id="curriculoss-{name}' not in shown] == []
    assert re.findall(r"–[a-z]+", shown) == []  # of an option, whose hyphens can be typed


def readme_row(first):
    """The cells of the row of a table in the README that starts with this one."""
    return next(line for line in README.splitlines() if line.startswith(f"| {first} |")).strip("| ").split(" | ")[1:]


def test_numbers_in_the_readme_are_those_of_the_benchmarks():
    def table(name):
        return list(csv.DictReader((ROOT / "benchmarks/results" / name).read_text().splitlines()))

    losses = {(x["loss"], x["classes"]): x for x in table("losses.csv") if x["neighbour"] == "idle"}
    shown = {"MAE": "mae", "AUL, among the slowest with one term": "aul", "NCE, with a second term": "nce"}
    for first, loss in {**shown, "AutoLoss": "AutoLoss"}.items():
        for classes, cell in zip((10, 100, 1000, 10_000, 128_000), readme_row(first), strict=True):
            ratio = float(losses[loss, str(classes)]["ratio"])
            assert f"{ratio:.{len(cell.partition('.')[2])}f}" == cell, (loss, classes)

    ours, usual = losses["mae", "128000"], losses["mae, public code", "128000"]
    for first, key, digits in (
        ("time of MAE, forward and backward", "ratio", 2),
        ("memory kept for backward", "saved_ratio", 1),
    ):
        cells = readme_row(f"{first}, 128,000 classes")
        assert cells[0].startswith(f"{float(ours[key]):.{digits}f} ×")
        assert cells[1].startswith(f"{float(usual[key]):.1f} × as usually written")

    fused = [
        float(x["peak_ratio"]) for x in table("linear.csv") if x["variant"] in ("mae", "gce", "mae, scaled", "auto")
    ]
    assert readme_row("memory of last layer and loss together")[0] == f"{min(fused):.2f} to {max(fused):.2f} ×"


def test_numbers_in_the_readme_are_those_of_the_results():
    runs = csv.DictReader((ROOT / "results/auto/accuracy.csv").read_text().splitlines())
    accuracies = {}
    for run in runs:
        if (run["task"], run["noise"]) == ("digits-100", "symmetric:0.4") and run["accuracy"]:
            accuracies.setdefault(run["method"], []).append(float(run["accuracy"]))
    cells = readme_row("test accuracy, 100 classes, 40 % wrong labels")
    said = re.findall(r"`?(\w+)`? ([\d.]+)", " ".join(cells[:2]))
    assert [name for name, _ in said] == ["AutoLoss", "GCE", "CE", "SCE"]
    for name, number in said:
        values = accuracies["auto" if name == "AutoLoss" else name.lower()]
        assert f"n = {len(values)}" in cells[2]
        assert abs(statistics.fmean(values) - float(number)) < 0.0501, name

    defaults = {("audit", "probability"): [], ("aum", "aum"): [], ("cleanlab", "self_confidence"): []}
    for row in csv.DictReader((ROOT / "results/audit/audit.csv").read_text().splitlines()):
        if (row["method"], row["score"]) in defaults and row["false_negative_rate"]:
            defaults[row["method"], row["score"]].append(float(row["false_negative_rate"]))
    cells = readme_row("wrong labels missed, 13 kinds of noise on MNIST, CIFAR and Tiny ImageNet")
    assert {len(values) for values in defaults.values()} == {13}
    assert re.findall(r"\d+ %", " ".join(cells)) == [f"{100 * statistics.fmean(x):.0f} %" for x in defaults.values()]
