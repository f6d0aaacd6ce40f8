"""The results in the repository are what the records say, and the records are of the runs that they name."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from benchmarks import audit, auto
from curriculoss.paper.artefacts import ARTEFACTS, get
from curriculoss.paper.records import FILE, Records
from curriculoss.paper.reproduce import Plan
from curriculoss.paper.settings import SCALES

RESULTS = Path(__file__).parent.parent / "results"
CPU = SCALES["cpu"]
FROM_RECORDS = [name for name, each in ARTEFACTS.items() if each.kind in ("table", "claims")]
TEXTS = ("*.txt", "*.csv", "*.md", "*.tex", "*.json")

pytestmark = pytest.mark.skipif(not (RESULTS / FILE).exists(), reason="there are no results yet")


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder, ignore=shutil.ignore_patterns("runs"))
    return folder


def _made_again(folder: Path) -> list[str]:
    """The files that come out otherwise than they are."""
    before = {path.name: path.read_bytes() for pattern in TEXTS for path in folder.glob(pattern)}
    for name in FROM_RECORDS:
        Plan(get(name), CPU, folder).make(data_dir=folder)
    after = {path.name: path.read_bytes() for pattern in TEXTS for path in folder.glob(pattern)}
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def test_tables_claims_and_page_are_what_the_records_say(copy):
    assert _made_again(copy) == []


def test_swapping_two_losses_shows(copy):
    with (copy / FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    place = rows[0].index("run")
    scaled, plain = (
        CPU.spec(cell).hash
        for row in ("MAE scale", "MAE")
        for cell in get("table:fix").cells
        if cell.row.name == row and cell.noise == "clean"
    )
    for row in rows[1:]:
        row[place] = {scaled: plain, plain: scaled}.get(row[place], row[place])
    with (copy / FILE).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    changed = _made_again(copy)
    assert {"table-fix.csv", "table-fix.md", "claims.json", "README.md"} <= set(changed)
    assert _misnamed(copy)


def _misnamed(folder: Path) -> list[str]:
    """Runs whose rows say that they are of another."""
    records, wrong = Records.read(CPU, folder), []
    for spec in Plan(get("claims"), CPU, folder).runs().values():
        if spec.hash in records:
            named = {"data": spec.data, "noise": spec.noise, "loss": spec.loss_name, "seed": spec.seed}
            rows = records[spec.hash].rows
            epochs = [row["epoch"] for row in rows]
            if any({key: row[key] for key in named} != named for row in rows) or epochs != [*range(1, spec.epochs + 1)]:
                wrong.append(spec.hash)
    return wrong


def test_every_record_is_of_the_run_that_it_names():
    assert _misnamed(RESULTS) == []


def test_every_artefact_is_there_as_far_as_real_data_allow():
    for artefact in ARTEFACTS.values():
        endings = {"table": ("txt", "csv", "md", "tex"), "figure": ("pdf", "svg", "png"), "claims": ("json", "md")}
        assert all((RESULTS / f"{artefact.stem}.{ending}").stat().st_size for ending in endings[artefact.kind])


def test_tables_have_the_columns_that_people_compare_by():
    for name, artefact in ARTEFACTS.items():
        if artefact.kind == "table" and artefact.cells:
            with (RESULTS / f"{artefact.stem}.csv").open(encoding="utf-8", newline="") as file:
                assert {"n", "mean", "std", "paper"} <= set(csv.DictReader(file).fieldnames or ()), name


def test_page_about_the_self_setting_loss_is_what_its_numbers_say():
    folder = RESULTS / "auto"
    assert (folder / "README.md").read_text(encoding="utf-8") == auto.page(auto.read(folder / "accuracy.csv"))


@pytest.mark.skipif(not (RESULTS / "audit" / "audit.csv").exists(), reason="there are no results yet")
def test_page_about_the_audit_is_what_its_numbers_say():
    folder = RESULTS / "audit"
    assert (folder / "README.md").read_text(encoding="utf-8") == audit.page(audit.load(folder / "audit.csv"))
