"""The report says what the runs' files say, wherever they stop and whatever they are called."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from curriculoss import MAE, _files, fix, report
from curriculoss.errors import RunError
from curriculoss.monitor import Histogram
from curriculoss.report.charts import over_epochs
from curriculoss.report.groups import Group, by_setting, groups
from curriculoss.report.judgement import Comparison, snr_sentence
from curriculoss.report.svg import inline_svg
from curriculoss.runs.facts import Environment
from curriculoss.runs.folder import Run
from curriculoss.runs.spec import RunSpec

pytestmark = pytest.mark.slow

SECTIONS = ("words", "run", "table", "accuracy", "weights", "margins", "verdicts", "again")
VOID = ("meta", "br", "use")


class Page(HTMLParser):
    """Elements and text of a page whose elements must all be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes(self, name: str) -> list[str]:
        return [value or "" for _, attributes in self.elements for key, value in attributes.items() if key == name]


def make_run(
    path: Path,
    *,
    test: Sequence[float] = (50.0, 80.0, 90.0),
    right: float = 0.95,
    wrong: float = 0.02,
    snr: float = 2.0,
    finished: bool = True,
    note: str = "",
    clean: bool | None = None,
    said: Sequence[str] = (),
    classes: int = 10,
    failed: dict[str, Any] | None = None,
    **spec: Any,
) -> Run:
    """A folder as the loop leaves it, with 60 samples of 10 classes and 40 % wrong labels unless they are clean."""
    made = RunSpec(**{"noise": "symmetric:0.4", "epochs": 3, **spec})
    known = made.noise != "clean" if clean is None else clean
    rate = 0.4 if known else 0.0
    path.mkdir(parents=True)
    given = np.arange(60) % classes
    truth = np.where(np.arange(60) < rate * 60, (given + 1) % classes, given)
    _files.write_text(path / "spec.json", made.to_json())
    _files.write_json(path / "environment.json", {**Environment.here().as_dict(), "command": ["curriculoss", "train"]})
    _files.write_arrays(
        path / "labels.npz", {"index": np.arange(60), "given": given} | ({"clean": truth} if known else {})
    )
    rows, counts = [], {key: np.zeros((len(test), Histogram.BINS), int) for key in ("all", "clean", "noisy")}
    edges = Histogram.edges().numpy()
    middle = (edges[1:] + edges[:-1]) / 2
    for epoch, accuracy in enumerate(test, 1):
        share = right * (1 - rate) + wrong * rate
        row = {
            "epoch": epoch, "samples": 60, "train_accuracy": 100 * share, "accuracy": share, "test_accuracy": accuracy,
            "accuracy_clean": right if known else None, "accuracy_noisy": wrong if known else None,
            "mean_weight": 0.5 / epoch, "effective_learning_rate": 0.05 / epoch, "train_loss": 1 / epoch,
            "snr": snr if known else None, "verdicts": list(said) if epoch == 2 else [], "train_seconds": 1.0,
        }  # fmt: skip
        rows.append(row)
        bell = (100 * np.exp(-0.5 * (middle - epoch) ** 2)).astype(int)
        counts["clean"][epoch - 1, 1:-1] = bell if known else 0
        counts["noisy"][epoch - 1, 1:-1] = bell[::-1] if known else 0
        counts["all"][epoch - 1, 1:-1] = bell + (bell[::-1] if known else 0)
    if rows:
        _files.write_text(path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        _files.write_arrays(path / "histograms.npz", {"edges": edges, **counts})
    if failed is not None:
        _files.write_json(path / "failed.json", failed)
    if finished:
        keys = ("train_accuracy", "test_accuracy", "snr", "mean_weight", "effective_learning_rate")
        last = {key: rows[-1][key] for key in keys}
        _files.write_json(path / "result.json", {**last, "loss": made.loss_name, "epochs": len(rows), "note": note})
    return Run(path)


@pytest.fixture
def trio(tmp_path: Path) -> list[Run]:
    """The story of the paper."""
    return [
        make_run(tmp_path / "ce", loss="ce", test=(90, 80, 65.7), right=0.97, wrong=0.6, snr=0.5),
        make_run(tmp_path / "mae", loss="mae", test=(20, 40, 52.5), right=0.55, wrong=0.03, snr=1.9, said=["too slow"]),
        make_run(tmp_path / "fix", loss="mae", fix="scale", tau=2.0, test=(60, 97, 98.5), right=0.99, snr=3.9),
    ]


def built(runs: Sequence[Run], tmp_path: Path) -> Page:
    return Page(report.build(runs, tmp_path / "page.html").read_text(encoding="utf-8"))


def table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [row.as_dict() for row in report.table(runs)]


def group_of(*runs: Run) -> Group:
    (group,) = groups(runs)
    return group


def test_the_headline_is_made_from_the_numbers(trio: list[Run], tmp_path: Path) -> None:
    page = built(trio, tmp_path)
    assert "CE memorises, MAE underfits, scaled MAE does neither." in page.text
    assert "98.5 %" in page.text.replace("\u00a0", " ")
    assert "On digits with symmetric noise 0.4, where 40 % of the training labels are wrong, after 3 epochs." in (
        page.text.replace("\u00a0", " ")
    )


def test_the_page_has_all_sections_and_pictures(trio: list[Run], tmp_path: Path) -> None:
    page = built(trio, tmp_path)
    assert tuple(a["id"] for tag, a in page.elements if tag == "section") == SECTIONS
    assert sum(tag == "svg" for tag, _ in page.elements) == 6 + 3
    assert "too slow" in page.text and "epoch 2" in page.text
    for version in ("torch", "python", "curriculoss"):
        assert f"{version} {getattr(trio[0].environment, version)}" in page.text


def test_sentences_stand_apart(trio: list[Run], tmp_path: Path) -> None:
    """Jinja swallows the line break after a tag."""
    runs = [*trio, make_run(tmp_path / "auto", loss="auto"), make_run(tmp_path / "auto1", loss="auto", seed=1)]
    assert not re.search(r"[a-z]\.[A-Z]", built(runs, tmp_path).text)


def test_the_page_stands_alone(trio: list[Run], tmp_path: Path) -> None:
    page = built(trio, tmp_path)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|//\w|@import|<script|<link|<img|<iframe", text)
    assert all(x.startswith("#") for name in ("src", "href", "xlink:href") for x in page.attributes(name))
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{x}" for x in page.attributes("id")}
    assert "default-src 'none'" in page.attributes("content")[-1]


def test_ids_are_unique_and_all_that_is_referred_to_exists(trio: list[Run], tmp_path: Path) -> None:
    page = built(trio, tmp_path)
    ids = page.attributes("id")
    assert len(set(ids)) == len(ids)
    assert {x[1:] for x in page.attributes("xlink:href")} <= set(ids)


def test_colours_are_those_of_the_style_sheet(trio: list[Run], tmp_path: Path) -> None:
    """A colour written out would be wrong in the dark."""
    built(trio, tmp_path)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    body = text[text.index("</style>") :]
    assert not re.search(r"(?:fill|stroke): (?:#|black|white)", body)
    assert set(re.findall(r"var\((--\w+)\)", body)) <= set(re.findall(r"(--\w+):", text[: text.index("</style>")])) | {
        "--mark"
    }


HOSTILE = "<script>alert('$x_{$')</script>\"&"


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<img src=x onerror=alert(1)>" / "a", data=HOSTILE, note=HOSTILE, said=[HOSTILE])
    (run.path / "environment.json").write_text(json.dumps({"system": HOSTILE, "started": HOSTILE}))
    page = built([run], tmp_path)
    assert not {"script", "img"} & {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.text.count("<script>alert('$x_{$')</script>\"&") >= 5
    assert "<img src=x onerror=alert(1)>" in page.text


def test_one_run_makes_a_page(tmp_path: Path) -> None:
    page = built([make_run(tmp_path / "one", loss="gce", params={"q": 0.5})], tmp_path)
    assert "GCE (q=0.5) neither memorises nor underfits." in page.text
    assert "All settings" in page.text


def test_many_runs_are_shown_by_setting_and_seed(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{noise[:2]}{loss}{seed}", loss=loss, noise=noise, seed=seed, test=(90.0, 91.0 + seed))
        for noise in ("clean", "symmetric:0.4")
        for loss in ("ce", "mae", "gce", "sce", "fl", "tce", "aul", "agce", "ael")
        for seed in (0, 1)
    ]
    page = built(runs, tmp_path)
    assert sum(tag == "svg" for tag, _ in page.elements) == (6 + 9) + (4 + 9)
    assert page.text.count("91.5 ± 0.7") == 18
    assert "the labels as given" in page.text and "symmetric noise 0.4" in page.text
    assert "seed 0 · 1" in page.text


def test_runs_that_are_not_finished_are_shown_as_far_as_they_got(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", loss="ce", finished=False, test=(40.0, 45.0)),
        make_run(tmp_path / "b", loss="mae", finished=False, test=()),
    ]
    page = built(runs, tmp_path)
    assert "not finished: epoch 2 of 3" in page.text and "not finished: epoch 0 of 3" in page.text
    assert "2 runs are not finished" in page.text
    assert "MAE has not finished an epoch" in page.text
    assert "45.0" in page.text


def test_a_run_that_has_only_begun_makes_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "begun", finished=False, test=())
    assert "No epoch has ended yet." in built([run], tmp_path).text


def test_without_clean_labels_nothing_is_said_of_noise(tmp_path: Path) -> None:
    run = make_run(tmp_path / "own", noise="clean", test=(60.0, 70.0), right=0.9)
    page = built([run], tmp_path)
    assert sum(tag == "svg" for tag, _ in page.elements) == 4 + 1
    assert "CE overfits." in page.text
    assert "clean samples" not in page.text.split("Margins by epoch")[1]
    (row,) = table([run])
    assert row["snr"] is None and row["snr_std"] is None and row["diff"] is None


def test_no_runs_and_folders_without_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run, got none"):
        report.build([], tmp_path / "page.html")
    with pytest.raises(RunError, match=r"has no spec\.json"):
        report.build([Run(tmp_path)], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_what_was_there_is_kept_if_writing_fails(
    trio: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before")
    monkeypatch.setattr(_files.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.build(trio, page)
    assert page.read_text() == "before"
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob(".*"))


def test_the_page_is_the_same_every_time(trio: list[Run], tmp_path: Path) -> None:
    first, second = (report.build(trio, tmp_path / "page.html").read_bytes() for _ in range(2))
    assert first == second


def test_building_warns_of_nothing_and_leaves_the_runs_alone(trio: list[Run], tmp_path: Path) -> None:
    before = {file: file.read_bytes() for run in trio for file in run.path.iterdir()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report.build(trio, tmp_path / "page.html")
    assert before == {file: file.read_bytes() for run in trio for file in run.path.iterdir()}


def test_table_has_mean_and_standard_deviation_over_seeds(tmp_path: Path) -> None:
    accuracies = (91.0, 93.5, 90.2)
    runs = [make_run(tmp_path / str(i), seed=i, test=(x,), snr=2.0 + i) for i, x in enumerate(accuracies)]
    (row,) = table(runs)
    assert (row["loss"], row["noise"], row["n"], row["seeds"]) == ("ce", "symmetric:0.4", 3, [0, 1, 2])
    assert row["test_accuracy"] == pytest.approx(np.mean(accuracies), rel=1e-12)
    assert row["test_accuracy_std"] == pytest.approx(np.std(accuracies, ddof=1), rel=1e-12)
    assert row["snr"] == 3.0 and row["snr_std"] == 1.0
    json.dumps(row, allow_nan=False)


def test_table_has_no_deviation_of_one(tmp_path: Path) -> None:
    (row,) = table([make_run(tmp_path / "a")])
    assert row["n"] == 1 and row["test_accuracy_std"] is None and row["train_accuracy_std"] is None


def test_table_compares_with_the_clean_runs_of_the_same_settings(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", loss="ce", test=(70.0,)),
        make_run(tmp_path / "b", loss="ce", test=(95.0,), noise="clean"),
        make_run(tmp_path / "c", loss="ce", test=(97.0,), noise="clean", seed=1),
        make_run(tmp_path / "d", loss="mae", test=(90.0,)),
        make_run(tmp_path / "e", loss="mae", test=(94.0,), noise="clean", learning_rate=0.2),
    ]
    found = {(row["loss"], row["noise"]): row["diff"] for row in table(runs)}
    assert found == {
        ("ce", "symmetric:0.4"): -26.0, ("ce", "clean"): None, ("mae", "symmetric:0.4"): None, ("mae", "clean"): None,
    }  # fmt: skip


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    done = make_run(tmp_path / "done", test=(80.0, 85.0, 90.0))
    partial = make_run(tmp_path / "partial", test=(80.0,), finished=False)
    (row,) = table([partial, done, done])
    assert row["n"] == 1 and row["test_accuracy"] == 90.0 and row["unfinished"] == 0
    assert "2 left out" in built([partial, done, done], tmp_path).text


def test_unfinished_runs_count_only_where_none_is_finished(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", seed=0, test=(90.0,)),
        make_run(tmp_path / "b", seed=1, test=(50.0,), finished=False),
    ]
    (row,) = table(runs)
    assert (row["test_accuracy"], row["n"], row["finished"], row["unfinished"]) == (90.0, 1, True, 1)
    (row,) = table(runs[1:])
    assert (row["test_accuracy"], row["n"], row["finished"], row["unfinished"]) == (50.0, 1, False, 1)


@pytest.mark.parametrize(
    ("numbers", "verb"),
    [
        ({"wrong": 0.21}, "memorises"),  # chance hits 0.1/9 = 1.1 %, and a fifth of the rest is 19.8 %
        ({"wrong": 0.2}, "neither memorises nor underfits"),
        ({"classes": 2, "right": 0.6, "wrong": 0.34, "test": (53,)}, "underfits"),  # chance hits 47 %
        ({"classes": 3, "right": 0.42, "wrong": 0.38, "snr": 1.0, "test": (45,)}, "underfits"),
        ({"classes": 2, "right": 0.5, "wrong": 0.5, "test": (95,)}, "neither memorises nor underfits"),  # guessed, then
        ({"classes": 2, "right": 0.9, "wrong": 0.6, "test": (70,)}, "memorises"),
        ({"classes": 2, "right": 0.52, "wrong": 0.5, "test": (55, 55, 55, 48)}, "underfits"),  # had nothing to lose
        ({"test": (90, 90, 90, 85.1)}, "neither memorises nor underfits"),
        ({"test": (90, 90, 90, 85)}, "memorises"),
        ({"test": (50, 99, 50, 50)}, "neither memorises nor underfits"),  # one lucky epoch
        ({"right": 0.79, "test": (79,)}, "underfits"),
        ({"right": 0.8, "test": (79,)}, "neither memorises nor underfits"),
        ({"right": 0.3, "test": (100,)}, "neither memorises nor underfits"),  # the numbers of an epoch's steps lag
        ({"right": 0.3, "test": (70,)}, "is still learning"),
        ({"noise": "clean", "right": 0.95, "test": (84,)}, "overfits"),
        ({"noise": "clean", "right": 0.95, "test": (86,)}, "neither overfits nor underfits"),
        ({"noise": "clean", "right": 0.7, "test": (68,)}, "underfits"),
    ],
)
def test_words_follow_their_rules(numbers: dict[str, Any], verb: str, tmp_path: Path) -> None:
    group = group_of(make_run(tmp_path / "a", **numbers))
    assert Comparison([group]).verb(group) == verb
    assert Comparison([group]).headline() == f"CE {verb}"


def test_sentences_say_when_labels_were_predicted_and_what_chance_does(tmp_path: Path) -> None:
    group = group_of(make_run(tmp_path / "a", classes=2, right=0.6, wrong=0.34, test=(53,)))
    said = "predicted 60 % of the right labels and 34 % of the wrong ones (chance alone would hit 47 % of these)."
    assert f"during the last epoch, the network {said}" in Comparison([group]).sentence(group)
    other = group_of(make_run(tmp_path / "b"))
    assert "chance" not in Comparison([other]).sentence(other)


REASON = "training diverged in epoch 2 (loss nan); try a smaller learning rate than 0.1"


@pytest.mark.parametrize("test", [(), (40.0,)])
def test_a_run_that_diverged_is_said_to_have(test: tuple[float, ...], tmp_path: Path) -> None:
    epoch = len(test) + 1
    failed = {"epoch": epoch, "reason": REASON}
    runs = [make_run(tmp_path / "a", test=test, finished=False, failed=failed), make_run(tmp_path / "b", loss="mae")]
    page = built(runs, tmp_path)
    assert f"CE diverged in epoch {epoch}" in report.headline(runs)
    assert page.text.count(f"diverged in epoch {epoch}") >= 4 and "1 run diverged." in page.text
    assert REASON[1:] in page.text
    assert "not finished" not in page.text and "No epoch has ended yet" not in page.text
    assert [row["failed"] for row in table(runs)] == [f"diverged in epoch {epoch}", None]


def test_of_seeds_of_which_some_diverged_the_others_are_judged(tmp_path: Path) -> None:
    failed = {"epoch": 2, "reason": REASON}
    runs = [
        make_run(tmp_path / "a", seed=0, test=(90.0,)),
        make_run(tmp_path / "b", seed=1, test=(5.0,), finished=False, failed=failed),
        make_run(tmp_path / "c", seed=2, test=(50.0, 60.0), finished=False, failed=failed),  # and then got past it
    ]
    (row,) = table(runs)
    assert row["failed"] == "seed 1 diverged in epoch 2" and row["test_accuracy"] == 90.0
    assert "seed 1 diverged in epoch 2, 1 of 3 seeds not finished" in built(runs, tmp_path).text
    (row,) = table(runs[1:])
    assert row["test_accuracy"] == 60.0
    assert report.headline([make_run(tmp_path / "d", failed=failed)]) == "CE neither memorises nor underfits"


def test_what_failed_runs_say_may_be_nothing_but_not_nonsense(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", test=(), finished=False, failed={})
    assert "CE diverged." in built([run], tmp_path).text
    for text in ("[", '{"epoch": "<b>"}'):
        (run.path / "failed.json").write_text(text)
        with pytest.raises(RunError, match=r"^cannot read \S+failed\.json: "):
            table([Run(run.path)])


@pytest.mark.parametrize("finished", [True, False])
def test_a_fix_that_was_refused_is_not_in_the_name(finished: bool, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="left as it is") as caught:
        fix(MAE(), "scale", num_classes=2)
    note = str(caught[0].message)
    runs = [
        make_run(tmp_path / "a", loss="mae", fix="scale", classes=2, note=note, finished=finished),
        make_run(tmp_path / "b", loss="mae", classes=2),
    ]
    page = built(runs, tmp_path)
    assert [group.name for group in groups(runs)] == ["MAE (scale refused)", "MAE"]
    assert "MAE (scale refused)" in report.headline(runs) and "scaled MAE" not in page.text
    assert f"Note: {note}" in page.text
    assert [row["note"] for row in table(runs)] == [note, None]
    assert groups(runs)[0].curriculum == MAE()


def test_other_notes_refuse_no_fix(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", loss="mae", fix="scale", note="holdout 0.3 has no effect")
    assert report.headline([run]) == "Scaled MAE neither memorises nor underfits"
    assert "Note: holdout 0.3 has no effect" in built([run], tmp_path).text


@pytest.mark.parametrize(("noise", "clean"), [("clean", False), ("clean", True), ("symmetric:0.4", True)])
def test_test_labels_are_true_only_if_somebody_knows(noise: str, clean: bool, tmp_path: Path) -> None:
    text = built([make_run(tmp_path / "a", noise=noise, clean=clean)], tmp_path).text
    assert ("on samples not used for training, with the labels as given" in text) is not clean
    assert ("on samples not used for training, with their true labels" in text) is clean


def test_mean_weights_are_those_since_the_first_step_wherever_they_stand(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")  # 0.5, 0.25, 0.167
    text = built([run], tmp_path).text
    assert "Mean weight since the start" in text and "mean weight since the start" in text
    assert "over all samples from the first step to the end of each epoch" in text and "in the epoch" not in text
    assert "averaged from the first step to the end of each epoch" in text
    assert "0.167" in text and "0.17" in text  # in the table and at the end of the line


def test_headlines_of_runs_that_go_on_say_how_far_they_are(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", loss="ce", wrong=0.6, test=(90.0,) * 5, finished=False, epochs=60),
        make_run(tmp_path / "b", loss="mae", fix="scale", tau=2.0, test=(90.0,) * 5, finished=False, epochs=60),
        make_run(tmp_path / "c", loss="gce", epochs=60),
        make_run(tmp_path / "d", loss="mae", test=(), finished=False, epochs=60),
    ]
    both = "After 5 of 60 epochs: CE memorises, scaled MAE neither memorises nor underfits"
    assert report.headline(runs[:2]) == both
    assert report.headline(runs[:1] + runs[2:]) == (
        "CE (after 5 of 60 epochs) memorises, GCE neither memorises nor underfits, MAE has not finished an epoch"
    )


def test_a_slow_loss_that_leads_is_still_learning(tmp_path: Path) -> None:
    found = groups(
        [
            make_run(tmp_path / "a", loss="ce", right=0.5, test=(42.0,)),
            make_run(tmp_path / "b", loss="mae", right=0.05, test=(5.0,)),
            make_run(tmp_path / "c", loss="gce", right=0.45, test=(38.0,)),
        ]
    )
    assert Comparison(found).headline() == "MAE underfits, CE and GCE are still learning"
    guess = [make_run(tmp_path / x, loss=x, classes=2, right=0.5, wrong=0.5, test=(51.0,)) for x in ("ce", "mae")]
    assert report.headline(guess) == "CE and MAE underfit"


@pytest.mark.parametrize(
    ("snr", "said"),
    [
        (4.0, "A clean sample had 4.0 times the weight of a noisy one (snr 4.00)."),
        (0.5, "A noisy sample had 2.0 times the weight of a clean one (snr 0.50)."),
        (1.01, "Clean and noisy samples had about the same weight (snr 1.01)."),
        (0.0, "Only noisy samples had any weight (snr 0.00)."),
    ],
)
def test_snr_is_said_as_a_comparison(snr: float, said: str) -> None:
    assert snr_sentence(snr) == said


def test_a_headline_begins_like_a_sentence(trio: list[Run]) -> None:
    found = groups(trio[2:])
    assert Comparison(found).headline() == "Scaled MAE neither memorises nor underfits"


def test_names_tell_losses_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(tau), loss="mae", fix="scale", tau=tau) for tau in (1.5, 2.0)]
    assert [group.name for group in groups(runs)] == ["scaled MAE τ=1.5", "scaled MAE τ=2"]
    assert [group.name for group in groups(runs[:1])] == ["scaled MAE"]


def test_settings_hold_what_differs_in_the_loss_alone(trio: list[Run], tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", noise="clean")
    assert [len(some) for some in by_setting(groups([other, *trio]))] == [3, 1]


def test_weights_are_drawn_as_they_were_trained_with(trio: list[Run], tmp_path: Path) -> None:
    assert group_of(trio[1]).curriculum == MAE()
    assert group_of(trio[2]).curriculum == fix(MAE(), "scale", tau=2.0, num_classes=10)
    measured = make_run(tmp_path / "m", loss="mae", fix="scale", initial_margin="measured")
    changing = [make_run(tmp_path / loss, loss=loss) for loss in ("nce", "auto")]
    for run, why in ((measured, "set from measured margins"), *((run, "more than the margin") for run in changing)):
        assert group_of(run).curriculum is None
        page = built([run], tmp_path).text
        assert why in page and "weight w(Δ)" not in page
    assert "weight w(Δ)" in built(trio, tmp_path).text


def test_commands_make_the_runs_again(trio: list[Run], tmp_path: Path) -> None:
    page = built(
        [
            *trio,
            make_run(tmp_path / "it's", normalize=False, momentum=0.5),
            make_run(tmp_path / "m", momentum=0.5),
            make_run(tmp_path / "q", loss="gce", params={"q": 0.3}),
        ],
        tmp_path,
    )
    assert (
        "curriculoss train --data digits --noise symmetric:0.4 --loss mae --fix scale --tau 2.0 --epochs 3 --seed 0 "
        f"--out {tmp_path}/fix"
    ) in page.text
    assert f"curriculoss train --spec '{tmp_path}/it'\"'\"'s/spec.json' --out " in page.text
    assert f"--loss ce --epochs 3 --momentum 0.5 --seed 0 --out {tmp_path}/m" in page.text
    assert "--loss gce -p q=0.3 --epochs 3" in page.text
    assert f"curriculoss report {tmp_path}/ce {tmp_path}/mae" in page.text
    assert f"{tmp_path}/q --out {tmp_path}/page.html" in page.text


def test_numbers_written_in_pictures_are_not_rounded() -> None:
    figure = over_epochs([[[0.5, 0.000123]]], form="{:.3g}")
    assert ">0.000123<" in inline_svg(figure, "x-")


def test_lines_show_mean_and_range_and_end_with_their_value() -> None:
    figure = over_epochs([[[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]], [[7.0, None, 9.0]]], logarithmic=False)
    (axes,) = figure.axes
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[2.0, 3.0, 4.0], [7.0, 9.0]]
    assert axes.get_lines()[1].get_xdata().tolist() == [1, 3]
    assert len(axes.collections) == 1
    assert [text.get_text() for text in axes.texts] == ["4.0", "9.0"]


def test_values_at_the_ends_of_lines_do_not_overlap() -> None:
    for values in ([100.0] * 6, [0.0] * 6, [1.0, 1.01, 50.0, 50.1, 99.0, 99.1]):
        (axes,) = over_epochs([[[x, x]] for x in values], limits=(0, 104), logarithmic=False).axes
        heights = sorted(text.xy[1] for text in axes.texts)  # type: ignore[attr-defined]
        assert min(b - a for a, b in pairwise(heights)) > 0.08
        assert heights[-1] <= 1


def test_lines_over_many_sizes_are_logarithmic_and_leave_out_what_is_not_positive() -> None:
    (axes,) = over_epochs([[[1.0, 0.1, 0.0, 0.01]]]).axes
    assert axes.get_yscale() == "log"
    assert axes.get_lines()[0].get_ydata().tolist() == [1.0, 0.1, 0.01]
    assert 0 < axes.texts[0].xy[1] < 0.2  # type: ignore[attr-defined]
    assert over_epochs([[[1.0, 0.5]]]).axes[0].get_yscale() == "linear"


def test_the_picture_for_the_readme_has_a_panel_a_loss(trio: list[Run]) -> None:
    figure = report.dynamics(trio)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["CE", "MAE", "scaled MAE"]
    said = {text.get_text() for text in figure.findobj(Text)}
    assert {"test accuracy 65.7 %", "test accuracy 52.5 %", "test accuracy 98.5 %"} <= said


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    row = run.metrics[0] | {"test_accuracy": "<b>", "snr": math.inf, "mean_weight": True}
    (run.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (run.path / "result.json").unlink()
    (found,) = table([Run(run.path)])
    assert found["test_accuracy"] is None and found["snr"] is None and found["mean_weight"] is None
    built([Run(run.path)], tmp_path)
