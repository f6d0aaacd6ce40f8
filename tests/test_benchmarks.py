"""Benchmarks that make results: a trial on embedded data, from nothing to the page."""

from __future__ import annotations

import pytest

from benchmarks import audit, auto, embeddings


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
    assert "over 2 of 9 settings" in text and "| cifar10n-worse" not in text
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


def test_nce_aul_is_as_tuned_for_the_data_at_hand():
    found = {name: task.spec(auto.METHODS["nce+aul"], "clean", 0).params for name, task in auto.TASKS.items()}
    assert found["mnist"] == {"alpha": 0.0, "beta": 1.0, "a": 3.0, "q": 0.1}
    assert found["cifar10"] == {"alpha": 1.0, "beta": 4.0, "a": 6.3, "q": 1.5}
    assert found["cifar100"] == found["digits-100"] == {"alpha": 10.0, "beta": 0.015, "a": 6.0, "q": 3.0}
