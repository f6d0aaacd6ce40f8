"""The page of results says first what was found, computed from the records, and how much is missing."""

from __future__ import annotations

import json

import pytest

from curriculoss.paper import readme
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.epochs import MEASURES, RunName, RunRecord, RunRecords
from curriculoss.paper.experiments import CE, CLEAN, FEW, MAE, MAE_SCALE, MANY, Cell
from curriculoss.paper.readme import NOT_DONE, SUMMARIES, sentence
from curriculoss.paper.scales import CPU

NOISY = "symmetric:0.4"


def record(cell: Cell, seed: int, **last: float) -> RunRecord:
    """Two epochs, of which the first had a test accuracy of 60."""
    curves = {name: (None, last.get(name, 1.0)) for name in MEASURES} | {
        "test_accuracy": (60.0, last.get("test_accuracy", 50.0))
    }
    return RunRecord(RunName.of(CPU.spec(cell, seed)), (1, 2), curves)


def underfitting(seeds: int) -> list[RunRecord]:
    fitted = {(MAE, FEW): 80.0, (CE, FEW): 99.0, (MAE, MANY): 10.0, (CE, MANY): 98.0}
    return [
        record(Cell(row, data, experiment="underfit" if data == FEW else ""), seed, train_accuracy=value + seed)
        for (row, data), value in fitted.items()
        for seed in range(seeds)
    ]


def test_a_summary_is_the_mean_over_seeds():
    said = sentence("figure:summary-underfitting", RunRecords(CPU, underfitting(3)))
    assert "With 10 classes MAE fits 81.0 % of the training labels and CE 100.0 %" in said
    assert "with 100 classes MAE fits 11.0 % and CE 99.0 % (n = 3)." in said


def test_memorising_compares_the_last_epoch_with_the_best():
    runs = [record(Cell(row, FEW, NOISY), 0, accuracy_noisy=share, test_accuracy=test)
            for row, share, test in ((CE, 0.99, 33.0), (MAE, 0.25, 48.0))]  # fmt: skip
    said = sentence("figure:summary-memorising", RunRecords(CPU, runs))
    assert "CE ends up fitting 99.0 % of the wrong labels" in said and "from 60.0 % in its best epoch to 33.0 %" in said
    assert "MAE fits 25.0 % of them and goes from 60.0 % to 48.0 % (n = 1)." in said


def test_the_fix_is_compared_with_plain_mae_and_ce():
    runs = [record(Cell(row, MANY, noise), 0, test_accuracy=10.0 * at + (noise == NOISY))
            for at, row in enumerate((MAE, MAE_SCALE, CE)) for noise in (CLEAN, NOISY)]  # fmt: skip
    said = sentence("figure:summary-fix", RunRecords(CPU, runs))
    assert "from 0.0 % to 10.0 % with clean labels (CE: 20.0 %)" in said
    assert "from 1.0 % to 11.0 % with 40 % symmetric noise (CE: 21.0 %; n = 1)." in said


def test_a_summary_says_its_n_and_what_is_not_done():
    runs = underfitting(3)
    assert "(n = 2 to 3)." in sentence("figure:summary-underfitting", RunRecords(CPU, runs[1:]))
    assert sentence("figure:summary-underfitting", RunRecords(CPU, runs[3:])) == NOT_DONE
    assert {sentence(name, RunRecords(CPU, ())) for name in SUMMARIES} == {NOT_DONE}


def test_the_page_begins_with_what_was_found(tmp_path):
    for name in SUMMARIES:
        (tmp_path / f"{ARTEFACTS[name].stem}.png").touch()
    (tmp_path / "table-fix.md").write_text("### table:fix: its title\n\na table\n")
    verdicts = (("holds", 0), ("undecided", 0), ("holds", 0), ("undecided", 2))  # and runs missing
    claims = [
        {"number": at, "claim": f"Claim {at}", "verdict": verdict, "missing": missing}
        for at, (verdict, missing) in enumerate(verdicts, 1)
    ]
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "differences.md").write_text("# What differs\n\nAll of it.\n\n## Why\n")
    runs = underfitting(1)
    page = readme.write_readme(tmp_path, RunRecords(CPU, runs), [runs[0].name.run, "other"]).read_text("utf-8")
    top, _, rest = page.partition("## Tables")
    assert "**1 of 2 runs are done.**" in top and page.count("\n\n\n") == 0
    assert (
        "- **Holds** (2 of 4 claims): (1) Claim 1; (3) Claim 3.\n- **Undecided** (1 of 4 claims): (2) Claim 2.\n"
        "- **Open, because runs are missing** (1 of 4 claims): (4) Claim 4." in top
    )
    assert top.count(".png") == 3 and top.count(NOT_DONE) == 2 and "Does not hold" not in top
    assert "(table:correct; [csv](table-fix.csv), [txt](table-fix.txt), [tex](table-fix.tex))\n\na table\n" in rest
    assert rest.endswith("## What differs from the paper, and why\n\nAll of it.\n\n### Why\n")
    assert "summary" not in rest and "## Claims" not in rest


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_need_no_runs_of_their_own(name):
    others = {cell for other, each in ARTEFACTS.items() if other not in SUMMARIES for cell in each.cells}
    assert set(ARTEFACTS[name].cells) <= others
