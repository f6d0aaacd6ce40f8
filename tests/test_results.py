"""The results in the repository are what the records say, and the records are of the runs that they name."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from benchmarks import audit, auto, regime
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.epochs import EPOCHS_FILE as FILE
from curriculoss.paper.epochs import RunRecords
from curriculoss.paper.plans import Plan
from curriculoss.paper.scales import DEFAULT
from curriculoss.runs import RunError

RESULTS = Path(__file__).parent.parent / "results"
FROM_RECORDS = [name for name, each in ARTEFACTS.items() if each.kind in ("table", "claims")]
TEXTS = ("*.txt", "*.csv", "*.md", "*.tex", "*.json")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (RESULTS / FILE).exists(), reason="there are no results yet"),
]


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder, ignore=shutil.ignore_patterns("runs"))
    return folder


def _made_again(folder: Path) -> list[str]:
    """The files that come out otherwise than they are."""
    before = {path.name: path.read_bytes() for pattern in TEXTS for path in folder.glob(pattern)}
    for name in FROM_RECORDS:
        Plan(ARTEFACTS[name], DEFAULT, folder).make(data_dir=folder)
    after = {path.name: path.read_bytes() for pattern in TEXTS for path in folder.glob(pattern)}
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def test_tables_claims_and_page_are_what_the_records_say(copy):
    assert _made_again(copy) == []


@pytest.mark.parametrize("names", [("run",), ("run", "loss")], ids=["their names", "all that they are called"])
def test_swapping_two_losses_shows(copy, names):
    with (copy / FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    scaled, plain = (
        DEFAULT.spec(cell)
        for row in ("MAE scale", "MAE")
        for cell in ARTEFACTS["table:fix"].cells
        if cell.row.name == row and cell.noise == "clean"
    )
    called = {each.hash: {"run": each.hash, "loss": each.loss_name} for each in (scaled, plain)}
    other = {scaled.hash: plain.hash, plain.hash: scaled.hash}
    for row in rows:
        if row["run"] in other:
            row |= {name: called[other[row["run"]]][name] for name in reversed(names)}
    with (copy / FILE).open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    if names == ("run",):
        with pytest.raises(RunError, match=r"in epochs\.csv are of another run"):
            _made_again(copy)
    else:
        assert {"table-fix.csv", "table-fix.md", "claims.json", "README.md"} <= set(_made_again(copy))


def test_records_in_another_order_or_twice_are_the_same(copy):
    head, *rows = (copy / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / FILE).write_text("".join([head, *reversed(rows), *rows[:50]]), encoding="utf-8")
    assert _made_again(copy) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("claims.json", b"]", b"", "claims.json: it is not whole"),
        ("initial-margins.csv", b"cifar100,", b"cifar10,", "it does not have 128 margins of each of 8 networks"),
    ],
)
def test_a_damaged_file_is_named(copy, name, old, new, said):
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(new.join(whole.rsplit(old, 1)))
    with pytest.raises(RunError, match=f"{said}.*restore it .*or delete it"):
        _made_again(copy)


@pytest.mark.parametrize("accuracy", ["nan", "250", "-1"])
def test_an_accuracy_that_cannot_be_is_an_error(copy, accuracy):
    head, first, *rows = (copy / FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    fields = first.split(",")
    fields[head.split(",").index("test_accuracy")] = accuracy
    (copy / FILE).write_text("".join([head, ",".join(fields), *rows]), encoding="utf-8")
    with pytest.raises(RunError, match=r"epochs\.csv: line 2 .* impossible numbers"):
        Plan(ARTEFACTS["table:underfit"], DEFAULT, copy).done()


def test_every_record_is_whole_and_of_the_run_that_it_names():
    records = RunRecords.read(DEFAULT, RESULTS)
    planned = Plan(ARTEFACTS["claims"], DEFAULT, RESULTS).runs().values()
    assert set(records) == set(records.whole(planned)) <= {spec.hash for spec in planned}


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


def test_page_about_the_audit_is_what_its_numbers_say():
    folder = RESULTS / "audit"
    assert (folder / "README.md").read_text(encoding="utf-8") == audit.page(audit.load(folder / "audit.csv"))


def test_page_about_the_regime_is_what_its_numbers_say():
    folder = RESULTS / "settings"
    if (folder / "README.md").exists():  # made once, when the scale is settled
        assert (folder / "README.md").read_text(encoding="utf-8") == regime.page(regime.read(folder / "fits.csv"))
