"""The example on language models: its smoke run, and the results in the repository."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from examples import language_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "language-model"


def run(*arguments: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / "language_model.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_an_interrupted_command_goes_on_and_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    run("--quick", "--jobs", "1", "--out", str(tmp_path))
    file, page = tmp_path / "records.csv", tmp_path / "README.md"
    rows = language_model.read(file)
    assert {row["loss"] for row in rows} == set(language_model.LOSSES)
    assert {row["step"] for row in rows} == {"0", "2", "4"}
    assert len({row["test_perplexity"] for row in rows if row["step"] == "4"}) > 3  # losses differ
    whole, text = file.read_bytes(), page.read_bytes()
    kept = [row if row["loss"] != "CE" else row | {"test_perplexity": "1"} for row in rows if row["loss"] != "AutoLoss"]
    with file.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(kept)
    run("--quick", "--jobs", "1", "--out", str(tmp_path))
    again = language_model.read(file)
    assert [row for row in again if row["loss"] == "AutoLoss"] == [row for row in rows if row["loss"] == "AutoLoss"]
    assert [row for row in again if row["loss"] != "AutoLoss"] == kept  # read, not computed
    page.unlink()
    file.write_bytes(whole)
    run("--page", "--out", str(tmp_path))
    assert page.read_bytes() == text and (tmp_path / "curves.png").exists()


@pytest.mark.skipif(not (RESULTS / "records.csv").exists(), reason="there are no results yet")
def test_the_page_is_what_the_records_say() -> None:
    rows = language_model.read(RESULTS / "records.csv")
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == language_model.page(rows)


def test_texts_share_no_paragraph_and_noise_replaces_by_other_tokens() -> None:
    settings = language_model.Settings()
    each = language_model.paragraphs()
    assert len(each) == len(set(each)) > 1000
    target = language_model.torch.arange(10_000) % settings.vocabulary
    wrong = (language_model.replaced(target, settings, 0) != target).double().mean()
    assert abs(float(wrong) - settings.noise_rate) < 0.02
