"""Benchmarks that make results: a trial on embedded data, from nothing to the page."""

from __future__ import annotations

import pytest

from benchmarks import audit, auto, embeddings, low_rates, regime
from curriculoss._files import write_table
from curriculoss.paper import epochs
from curriculoss.paper.experiments import CE, Cell
from curriculoss.paper.scales import CPU

pytestmark = pytest.mark.slow


def test_audit_is_measured_against_others_once_and_the_page_is_what_the_numbers_say(tmp_path, capsys):
    out = tmp_path / "audit"
    audit.main(["--out", str(out), "--dry-run"])
    assert "3 of 3 to do: digits audit, digits aum, digits cleanlab" in capsys.readouterr().out and not out.exists()
    audit.main(["--out", str(out), "--jobs", "1"])
    csv, rows = (out / "audit.csv").read_bytes(), audit.load(out / "audit.csv")
    found = {(row["method"], row["score"]) for row in rows}
    assert {("audit", "probability"), ("aum", "aum"), ("cleanlab", "self_confidence")} <= found
    assert all(float(row["noise_rate"]) == 0.4 and float(row["auroc"]) > 0.6 for row in rows if row["score"] != "slope")
    assert (out / "README.md").read_text(encoding="utf-8") == audit.page(rows)
    audit.main(["--out", str(out), "--jobs", "1"])
    assert "0 of 3 to do" in capsys.readouterr().out and (out / "audit.csv").read_bytes() == csv


def test_page_tells_means_over_settings_where_every_method_is_there():
    rows = [
        {"setting": setting, "method": method, "score": score, "samples": "10", "noise_rate": "0.4", "auroc": "0.9",
         "false_negative_rate": missed, "seconds": seconds, "estimate": "0.3", "low": "0.2", "high": "0.5"}
        for setting, missed in (("mnist-symmetric", "0.1"), ("cifar100n", "0.3"))
        for method, score, seconds in (("audit", audit.USUAL["audit"], "10"), ("aum", "aum", "12"),
                                       ("cleanlab", "self_confidence", "40"))
    ]  # fmt: skip
    alone = {**rows[0], "setting": "cifar10n-worse", "false_negative_rate": "0.9"}
    text = audit.page([*rows, alone])
    assert "over 2 of 13 settings" in text and "| cifar10n-worse" not in text
    assert f"| audit | **{audit.USUAL['audit']}** | 0.200 | 0.900 | 10 | 0.25 |" in text
    assert "| cifar100n | 0.400 | 0.300 | 0.200 to 0.500 | -0.100 | 0.300 |" in text
    assert "No setting has all methods yet." in audit.page([alone])


def test_settings_that_need_files_are_refused_without_them(capsys):
    with pytest.raises(SystemExit, match="2"):
        audit.main(["--settings", "cifar100n"])
    assert "expected some of digits, got cifar100n" in capsys.readouterr().err


def test_large_embeddings_are_audited_as_a_user_would(tmp_path):
    embeddings.main(["--quick", "--out", str(tmp_path / "embeddings.csv")])
    (row,) = audit.load(tmp_path / "embeddings.csv")
    assert row["within"] == "True" and float(row["found"]) > 0.95 and 0.1 < float(row["gigabytes"]) < 4


def test_low_rates_are_estimated_and_labels_are_counted_by_p_wrong(tmp_path):
    low_rates.main(["--quick", "--out", str(tmp_path / "rates.csv")])
    (row,) = audit.load(tmp_path / "rates.csv")
    assert row["data"] == "breast cancer" and float(row["mean_error"]) < 0.02
    groups = [row[key].split(":")[0] for key in row if key.startswith("p_wrong")]
    assert sum(map(int, groups)) == 2 * 569  # every label of both audits


def test_nce_aul_is_as_tuned_for_the_data_at_hand():
    found = {name: task.spec(auto.METHODS["nce+aul"], "clean", 0).params for name, task in auto.TASKS.items()}
    assert found["mnist"] == {"alpha": 0.0, "beta": 1.0, "a": 3.0, "q": 0.1}
    assert found["cifar10"] == {"alpha": 1.0, "beta": 4.0, "a": 6.3, "q": 1.5}
    assert found["cifar100"] == found["digits-100"] == {"alpha": 10.0, "beta": 0.015, "a": 6.0, "q": 3.0}


def test_autoloss_is_compared_at_the_scale_of_the_papers_regime():
    cifar = {name: auto.TASKS[name] for name in ("cifar10", "cifar100")}
    assert {(task.settings["epochs"], task.seeds) for task in cifar.values()} == {
        (CPU.settings["cifar10"]["epochs"], 2)
    }
    assert {"auto", "ce", "gce", "sce", "nce+aul", *auto.FIXED} == set(cifar["cifar10"].methods)
    tiny = auto.TASKS["tiny-imagenet-100"]
    assert tiny.settings["data"] == "tiny-imagenet-100" and tiny.methods == ("auto", "scale 2.6", "ce", "gce")
    shared = CPU.spec(Cell(CE, "cifar100", "symmetric:0.4"), 1)
    assert cifar["cifar100"].spec(auto.METHODS["ce"], "symmetric:0.4", 1).hash == shared.hash


def test_runs_that_reproduce_has_recorded_are_not_repeated(tmp_path):
    wanted = auto.plan(["cifar100"], tmp_path / "runs")
    recorded = CPU.spec(Cell(CE, "cifar100", "symmetric:0.4"), 1)
    record = epochs.RunRecord(epochs.RunName.of(recorded), (1, 2), dict.fromkeys(epochs.MEASURES, (41.5, 40.5)))
    write_table(tmp_path / epochs.EPOCHS_FILE, list(record.rows()))
    found = {("cifar100", "clean", "ce"): {0: 60.0}}
    auto.take_up(found, wanted)
    assert found == {("cifar100", "clean", "ce"): {0: 60.0}, ("cifar100", "symmetric:0.4", "ce"): {1: 40.5}}


def test_page_about_autoloss_says_what_is_missing_and_compares_what_both_have():
    accuracies = {"auto": 60.0, "ce": 50.0, **dict(zip(auto.FIXED, (41.0, 52.0, 43.0, 44.0), strict=True))}
    found = {("cifar100", "clean", method): {0: value, 1: value + 2} for method, value in accuracies.items()}
    found["cifar100", "clean", "ce"].pop(1)
    found["tiny-imagenet-100", "clean", "scale 2.6"] = {0: 30.0}
    text = auto.page(found)
    assert "**12 of 996 runs are done.**" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| cifar100 | clean"))
    cells = row.strip("| ").split(" | ")
    assert cells[2:5] == ["2", "61.00 ± 1.41", "42.00 ± 1.41"] and cells[8:10] == ["/", "50.00 (n = 1)"]
    assert cells[10] == "not run" and cells[-2:] == ["2.6", "+8.00"]
    assert "| ce | +10.00 |  | 1 | +10.00 | cifar100, clean |" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| tiny-imagenet-100 | clean"))
    assert row.count("/") == 7 and row.count("not run") == 3  # one τ is not the best of four


def test_page_about_the_regime_says_which_criteria_the_chosen_settings_meet():
    chosen = regime.CHOSEN
    fits = [
        regime.Fit(chosen["cifar10"], "cifar10", "clean", "CE", 100, 99.5, 99.5, None, 0, 80.0),
        regime.Fit(chosen["cifar10"], "cifar10", "clean", "MAE", 100, 78.67, 78.67, None, 2, 160.0),
        regime.Fit(chosen["cifar10"], "cifar10", "clean", "MAE", 101, 98.67, 98.67, None, 0, 80.0),
        regime.Fit(chosen["cifar10"], "cifar10", "symmetric:0.4", "CE", 100, 97.0, 99.0, 94.0, 0, 80.0),
        regime.Fit("lr 0.03, 60 epochs", "cifar10", "clean", "CE", 100, 90.0, 90.0, None, 0, 500.0),
        regime.Fit(chosen["mnist"], "mnist", "symmetric:0.2", "MAE", 100, 80.0, 95.0, 20.0, 0, 950.0),
    ]
    text = regime.page(fits)
    assert "| (a) CE with clean labels fits, % | CIFAR-10 | ≥ 99 | 99.50 (n = 1) | yes |" in text
    assert "| CIFAR-10 | ≥ 95 | 94.00 (n = 1) | no |" in text and "| CIFAR-100 | ≥ 90 |  | not run |" in text
    assert "| as near as affordable | 5.24 (mean over 2 losses) |  |" in text  # 0.48 and 10
    assert "| CIFAR-10 and CIFAR-100 | ≤ 150 | 160 (n = 4) | no |" in text
    assert "| MNIST | ≤ 900 | 950 (n = 1) | no |" in text
    assert "in 1 of 2 runs (classes lost per run: 2, 0)" in text
    assert "| MAE | 98.67 | 88.67 ± 14.14 (n = 2) | not run |" in text
    assert "Not run yet." in text and "| MAE, symmetric:0.2 | / | 20.00 (n = 1) |" in text
