"""The audit in Python: which labels it suspects, how many it takes to be wrong, and what it makes of odd input."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from curriculoss import soft_margin
from curriculoss.auditing import audit, estimate_noise, scores
from curriculoss.auditing.estimate import GRID, Fit, NoiseEstimate, _joint_rate, noise_rate, probabilities
from curriculoss.auditing.recipe import EMBEDDINGS, FEATURES, IMAGES, audit_spec
from curriculoss.auditing.spreadsheets import from_cell, to_cell
from curriculoss.auditing.trajectories import Recorder, Trajectories, hard_margin, rank_of_label, signed_gap
from curriculoss.data import DataError, Dataset, Split
from curriculoss.fitting import Callback, EpochResult, Step
from curriculoss.runs import Run, RunError, RunSpec, train

QUICK = {"epochs": 6}
ANIMALS = np.array(["ant", "bee", "cat"])


def blobs(count=240, classes=3, wrong=0.2, seed=0):
    """Well separated classes; features, given labels and true ones."""
    chance = np.random.default_rng(seed)
    truth = np.arange(count) % classes
    features = 6 * np.eye(classes, 8)[truth] + chance.standard_normal((count, 8))
    flipped = chance.random(count) < wrong
    labels = np.where(flipped, (truth + chance.integers(1, classes, count)) % classes, truth)
    return features.astype(np.float32), labels, truth


@pytest.fixture(scope="module")
def found():
    features, labels, truth = blobs()
    return audit(features, ANIMALS[labels], settings={"epochs": 12}), labels, truth


def test_wrong_labels_are_the_most_suspicious_and_the_suggestions_are_the_truth(found):
    result, labels, truth = found
    wrong = labels != truth
    assert set(result.ranked[: wrong.sum()]) == set(np.flatnonzero(wrong))
    assert (result.suggested[wrong] == ANIMALS[truth][wrong]).all() and (result.given == ANIMALS[labels]).all()


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_noise_rate_of_few_samples_is_near_the_truth_whether_labels_are_clean_or_not(wrong):
    features, labels, truth = blobs(wrong=wrong, seed=1)
    assert abs(audit(features, labels).noise_rate - (labels != truth).mean()) < 0.05


def test_noise_rate_is_near_the_truth_and_inside_its_interval(found):
    result, labels, truth = found
    low, high = result.interval
    assert abs(result.noise_rate - (labels != truth).mean()) < 0.05 and low <= result.noise_rate <= high


def test_there_are_at_least_100_suspects_and_as_many_as_labels_estimated_to_be_wrong(found):
    result, *_ = found
    assert len(result.suspects) == 100 > result.noise_rate * len(result)
    assert result.suspects.tolist() == result.ranked[:100].tolist()
    assert len(replace(result, noise_rate=0.75).suspects) == 180
    assert len(audit(*blobs(60)[:2], settings=QUICK).suspects) == 60  # all there are


@pytest.mark.parametrize(("wrong", "most"), [(0.0, 0.002), (0.003, 0.008), (0.01, 0.015), (0.05, 0.06)])
def test_low_rates_are_told_apart_and_have_calibrated_probabilities(wrong, most):
    features, labels, truth = blobs(3000, wrong=wrong, seed=2)
    result = audit(features, labels)
    bad = labels != truth
    low, high = result.interval
    assert low <= bad.mean() <= high and result.noise_rate <= most
    assert result.p_wrong[result.suspects].sum() == pytest.approx(bad[result.suspects].sum(), rel=0.25, abs=3)
    assert set(np.flatnonzero(bad)) <= set(result.suspects.tolist()) and (result.p_wrong > 0).all()


def test_an_estimate_near_zero_is_told_with_what_may_be_missed():
    features, labels, _ = blobs(600, wrong=0.0, seed=3)
    assert audit(features, labels).headline.startswith("Hardly any of the 600 labels seem to be wrong, but up to ")
    labels[:6] = (labels[:6] + 1) % 3
    assert re.match(
        r"About [4-8] of the 600 labels seem to be wrong \(\d\.\d+ %, between ", audit(features, labels).headline
    )


def test_probability_of_being_wrong_rises_with_the_score(found):
    result, *_ = found
    assert (
        np.diff(result.p_wrong[result.ranked]) <= 0
    ).all() and 0 <= result.p_wrong.min() <= result.p_wrong.max() <= 1


def test_confusion_has_rows_of_probabilities_near_the_true_ones(found):
    result, labels, truth = found
    expected = np.array(
        [[((truth == i) & (labels == j)).sum() / (truth == i).sum() for j in range(3)] for i in range(3)]
    )
    np.testing.assert_allclose(result.confusion.sum(1), 1)
    np.testing.assert_allclose(result.confusion, expected, atol=0.06)


@pytest.mark.parametrize("values", [[7, -1, 400], [True, False], [0.5, 1.5, 2.0], ["", "b"]])
def test_labels_may_be_of_any_kind_that_tells_them_apart(values):
    features, labels, _ = blobs(60, len(values))
    named = np.array(values)[labels]
    if "" in values:
        with pytest.raises(DataError, match="expected a label for every sample, got none for sample 0"):
            audit(features, named)
        return
    result = audit(features, named.tolist(), settings={"epochs": 2})
    assert result.given.tolist() == named.tolist() and set(result.suggested.tolist()) <= set(values)
    assert (result.given != result.suggested).all()


@pytest.mark.parametrize(
    ("features", "labels", "said"),
    [
        (np.ones((4, 2)), ["a", None, "b", "b"], "expected a label for every sample, got none for sample 1"),
        (np.ones((4, 2)), [0.0, 1.0, float("nan"), 1.0], "expected a label for every sample, got none for sample 2"),
        (np.ones((4, 2)), ["a", 1, "b", 2], "expected labels of one kind, got int and str"),
        (np.ones((4, 2)), ["a"] * 4, "expected at least two classes, got 1"),
        (np.ones((4, 2)), [0, 1], "expected as many labels as samples, 4, got 2"),
        ({"x": np.ones((4, 2))}, [0, 1, 0, 1], "expected samples as an array or a path, got dict"),
        (np.ones((4, 2)), None, "expected labels beside the samples, got none"),
        (np.ones((4, 2)), [[0, 1]] * 4, r"expected one label per sample, got shape \(4, 2\)"),
        (np.array([[1.0, np.nan]] * 4), [0, 1, 0, 1], "expected finite numbers, got nan in row 0, column 1"),
        (np.array([["x"]] * 4), [0, 1, 0, 1], "expected numbers, got type <U1"),
        (sparse.csr_array(np.ones((4, 2))), [0, 1, 0, 1], "expected a dense array, got a sparse one"),
        (np.ones((4, 2)), pandas.Series(["a", None, "b", "b"], dtype="string"), "got none for sample 1"),
    ],
)
def test_input_that_cannot_be_used_is_one_clear_line(features, labels, said):
    with pytest.raises(DataError, match=said) as caught:
        audit(features, labels)
    assert "\n" not in str(caught.value)


def test_a_single_sample_a_class_is_audited_all_the_same():
    result = audit(np.eye(6, dtype=np.float32), [f"class {i}" for i in range(6)], settings={"epochs": 2})
    assert len(result) == 6 and np.isfinite(result.scores).all() and 0 <= result.noise_rate <= 1


def test_tensors_images_and_datasets_are_taken_too():
    features, labels, _ = blobs(60)
    split = Split(torch.from_numpy(features), torch.from_numpy(labels))
    of_dataset = audit(Dataset("mine", split, None, tuple(ANIMALS)), settings=QUICK)
    of_tensors = audit(torch.from_numpy(features), torch.from_numpy(labels), settings=QUICK)
    np.testing.assert_array_equal(of_dataset.scores, of_tensors.scores)
    assert of_dataset.given.tolist() == ANIMALS[labels].tolist()
    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8)
    assert len(audit(images, labels[:20], settings={"epochs": 1})) == 20


def test_every_sample_is_trained_on_and_its_margins_are_those_of_the_monitor(tmp_path):
    features, labels, _ = blobs(60)
    result = audit(features, labels, out=tmp_path / "run", settings=QUICK)
    run = Run(tmp_path / "run")
    samples = run.arrays("samples")
    assert run.result.test_accuracy is None and len(run.arrays("labels")["index"]) == 60
    np.testing.assert_allclose(result.trajectories.soft[-1], samples["last"], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(-scores.mean(result.trajectories), samples["mean"], rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(-scores.slope(result.trajectories), samples["slope"], rtol=1e-2, atol=2e-3)
    assert estimate_noise(tmp_path / "run").noise_rate == result.noise_rate


def test_an_audit_that_was_broken_off_goes_on_and_ends_with_the_same_scores(tmp_path):
    features, labels, _ = blobs(60)
    whole = audit(features, labels, out=tmp_path / "whole", settings=QUICK)

    class Stop(Callback):
        def on_epoch_begin(self, epoch):
            if epoch == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(features, labels, out=tmp_path / "broken", settings=QUICK, callbacks=[Stop()])
    again = audit(features, labels, out=tmp_path / "broken", settings=QUICK)
    np.testing.assert_array_equal(again.trajectories.soft, whole.trajectories.soft)
    np.testing.assert_array_equal(again.trajectories.hard, whole.trajectories.hard)


def test_an_audit_in_memory_writes_nothing_and_gives_the_same_numbers_as_one_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    features, labels, _ = blobs(60)
    memory = audit(features, labels, settings=QUICK)
    assert list(tmp_path.iterdir()) == []
    kept = audit(features, labels, out="run", settings=QUICK)
    for name in ("soft", "hard", "gap", "rank", "after", "suggested"):
        np.testing.assert_array_equal(getattr(memory.trajectories, name), getattr(kept.trajectories, name))
    assert memory.noise_rate == kept.noise_rate and memory.interval == kept.interval
    np.testing.assert_array_equal(memory.p_wrong, kept.p_wrong)


def test_what_is_saved_is_the_list_the_estimate_and_the_gallery(tmp_path):
    features, labels, _ = blobs(120)
    result = audit(features, ANIMALS[labels], settings=QUICK)
    files = result.save(tmp_path / "new")
    assert sorted(files) == ["gallery", "noise", "suspects"]
    listed = pandas.read_csv(files["suspects"], keep_default_na=False)
    frame = result.to_frame()
    pandas.testing.assert_frame_equal(listed, frame[:100])
    assert len(frame) == 120 and frame["index"].tolist() == result.ranked.tolist()
    told = json.loads((tmp_path / "new/noise.json").read_text())
    assert told == {**result.summary(), "files": files} and told["samples"] == 120
    assert told["suspects_expected_wrong"] == pytest.approx(result.p_wrong[result.suspects].sum())
    page = (tmp_path / "new/audit.html").read_text()
    assert f"<h1>{result.headline}.</h1>" in page and "the 100 most suspicious samples" in page


def test_a_finished_audit_is_not_run_again_and_other_data_are_refused(tmp_path):
    features, labels, _ = blobs(60)
    audit(features, labels, out=tmp_path, settings=QUICK)
    before = (tmp_path / "margins.npy").stat().st_mtime_ns
    audit(features, labels, out=tmp_path, settings=QUICK)
    assert (tmp_path / "margins.npy").stat().st_mtime_ns == before
    with pytest.raises(RunError, match="was made from other data"):
        audit(features + 1, labels, out=tmp_path, settings=QUICK)


def test_a_run_that_no_audit_made_has_no_estimate(tmp_path):
    features, labels, _ = blobs(60)
    dataset = Dataset("mine", Split(torch.from_numpy(features), torch.from_numpy(labels)), None, tuple(ANIMALS))
    train(RunSpec(data="mine", epochs=1, holdout=0), tmp_path, dataset=dataset)
    with pytest.raises(RunError, match="it is no run of an audit"):
        estimate_noise(tmp_path)


def test_hard_margin_is_the_limit_of_the_soft_one_for_large_logits():
    logits, target = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 7
    sharp = soft_margin(1e4 * logits.double(), target) / 1e4
    torch.testing.assert_close(hard_margin(logits.double(), target), sharp, atol=1e-3, rtol=0)


def test_scores_are_what_they_are_called():
    soft = np.array([[0.0, 4], [1, 3], [2, 2], [3, 1]])
    seen = Trajectories(soft, 2 * soft, soft, soft, np.array([5.0, -5]), np.zeros(2))
    expected = {"mean": [-1.5, -2.5], "last": [-3, -1], "after": [-5, 5], "aum": [-3, -5], "slope": [-1, 1]}
    expected["probability"] = (0.5 - np.array([1, 2, 3, 4]) / 10 @ (1 / (1 + np.exp(-soft)))).tolist()
    for name, wanted in expected.items():
        np.testing.assert_allclose(scores.SCORES[name](seen), wanted)
    with pytest.raises(ValueError, match=r"unknown score 'best', did you mean 'last'\? Available: mean, last"):
        audit(*blobs(60)[:2], score="best")


def test_against_truth_counts_pairs_in_the_right_order_and_what_is_missed():
    found = scores.against_truth(np.array([4.0, 3, 2, 1]), np.array([True, False, True, False]))
    assert found == {"noise_rate": 0.5, "auroc": 0.75, "false_negative_rate": 0.5}
    assert scores.against_truth(np.ones(3), np.zeros(3, dtype=bool))["auroc"] is None


def rate_of(gaps, ranks, classes, given=None):
    return noise_rate(gaps, ranks, np.zeros(gaps.shape[1], dtype=int) if given is None else given, classes)


def guesses(rate, competence, count=5000, *, anywhere=False, memorised=False, seed=0):
    """Three epochs of a network whose best class of ten is true more often the larger the gap; which labels are wrong.

    Wrong labels are `anywhere` in the order of logits or next to the best; of `memorised` ones it is always unsure.
    """
    chance = np.random.default_rng(seed)
    wrong = chance.random(count) < rate
    gaps = chance.exponential(1, (3, count)) * np.where(wrong & memorised, 0.2, 1)
    errs = chance.random((3, count)) > 1 / (1 + np.exp(1 - competence * gaps))
    below = np.where(wrong & anywhere, chance.integers(1, 10, (3, count)), 1)
    return (np.where(errs | wrong, -gaps, gaps), np.where(errs | wrong, below, 0)), wrong


@pytest.mark.parametrize("competence", [2.0, 5.0])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_noise_rate_is_the_share_of_labels_refused_where_the_network_is_sure(rate, competence):
    (gaps, ranks), wrong = guesses(rate, competence)
    found, (low, high), _ = rate_of(gaps, ranks, 10)
    assert abs(found - rate) < 0.05 and low <= found <= high
    assert low - 0.02 <= wrong.mean() <= high + 0.02 and high - low < 0.2
    assert (gaps < 0).mean() > rate + 0.1  # far more than that are labels which it does not predict


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_noise_rate_is_seen_by_ranks_where_the_network_is_unsure_of_wrong_labels(rate):
    (gaps, ranks), _ = guesses(rate, 5.0, anywhere=True, memorised=True)
    assert abs(rate_of(gaps, ranks, 10)[0] - rate) < 0.03
    assert rate_of(gaps, np.minimum(ranks, 1), 10)[0] < rate / 2  # gaps alone do not see it


def test_with_two_classes_gaps_alone_say_how_many_labels_are_wrong():
    (gaps, ranks), _ = guesses(0.3, 5.0)
    assert abs(rate_of(gaps, ranks, 2)[0] - 0.3) < 0.04


def test_ranks_of_very_many_classes_are_counted_in_groups():
    chance = np.random.default_rng(0)
    ranks = np.where(chance.random((3, 5000)) < 0.3, chance.integers(1, 20_000, (3, 5000)), 0)
    assert abs(rate_of(np.ones((3, 5000)), ranks, 20_000)[0] - 0.3) < 0.03


def test_epochs_have_one_rate_the_surer_ones_count_more_and_the_last_ranks_bound_it():
    def peaked(at, sure, bound=1.0):
        return Fit(-(((GRID - at) / 0.01) ** 2) * sure, np.zeros(0), np.zeros(1), bound)

    assert _joint_rate([peaked(0.2, 1), peaked(0.6, 3)]) == pytest.approx(0.5, abs=0.01)
    assert _joint_rate([peaked(0.2, 1)]) == pytest.approx(0.2, abs=0.01)
    assert _joint_rate([peaked(0.6, 3, 0.3)]) == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.4])
def test_rare_classes_that_the_network_has_not_learned_are_no_noise(rate):
    (gaps, ranks), wrong = guesses(rate, 5.0, anywhere=True)
    rare = np.arange(len(wrong)) % 25 == 0  # all of them refused, and far from the best
    gaps, ranks = np.where(rare, -abs(gaps), gaps), np.where(rare, 8, ranks)
    found = rate_of(gaps, ranks, 10, given=np.where(rare, 9, np.arange(len(wrong)) % 9))
    assert abs(found.rate - rate) < 0.03 and found.interval[0] <= wrong.mean() <= found.interval[1]
    assert rate_of(gaps, ranks, 10).rate > found.rate + 0.01  # they would count as wrong


def test_few_samples_have_a_wide_interval():
    widths = []
    for count in (100, 10_000):
        (gaps, ranks), _ = guesses(0.3, 3.0, count)
        low, high = rate_of(gaps, ranks, 10)[1]
        widths.append(high - low)
    assert widths[0] > 3 * widths[1]


def test_of_ten_right_labels_nobody_can_be_sure():
    for classes in (2, 3):
        rate, (low, high), _ = rate_of(np.full((4, 10), 5.0), np.zeros((4, 10)), classes)
        assert 0 < rate <= 0.1 and low == 0 and high == pytest.approx(0.3 + rate)


def test_the_first_epoch_counts_only_if_there_is_no_other():
    rng, given = np.random.default_rng(0), np.arange(200) % 4
    first, later = (rng.normal(size=200), rng.integers(0, 4, 200)), (np.full(200, 5.0), np.zeros(200))
    for epochs in (2, 3):
        gaps, ranks = (np.array([a, *[b] * (epochs - 1)]) for a, b in zip(first, later, strict=True))
        assert rate_of(gaps, ranks, 4, given).rate < 0.02
    assert rate_of(first[0][None], first[1][None], 4, given).rate > 0.3


@pytest.mark.parametrize(("competence", "anywhere", "within"), [(3.0, False, 0.1), (5.0, True, 0.2)])
def test_of_labels_that_are_wrong_with_some_probability_that_share_is_wrong(competence, anywhere, within):
    (gaps, ranks), wrong = guesses(0.2, competence, 40_000, anywhere=anywhere)
    likely = rate_of(gaps[:1], ranks[:1], 10)[2]
    assert wrong[gaps[0] < 0].mean() < 0.7  # others are refused by mistake
    for group in np.array_split(np.argsort(likely), 10):
        assert wrong[group].mean() == pytest.approx(likely[group].mean(), abs=within)
    assert likely[wrong].mean() > 5 * likely[~wrong].mean()


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.4, 0.9])
def test_probabilities_rise_with_the_score_and_their_mean_is_the_rate(rate):
    chance = np.random.default_rng(0)
    wrong = chance.random(5000) < 0.3
    scores = np.where(wrong, 2.0, -4.0) + chance.standard_normal(5000)
    found = probabilities(scores, 0.9 * (scores > -1) + 0.05 * chance.random(5000), rate)
    assert found.mean() == pytest.approx(rate, abs=1e-6) and (np.diff(found[np.argsort(scores)]) >= 0).all()
    assert ((found > 0) & (found < 1)).all()  # nobody is certain
    if rate == 0.4:
        assert found[wrong].mean() > 0.9


def test_scores_that_are_all_the_same_say_nothing_but_the_rate():
    assert probabilities(np.ones(10), np.arange(10) / 10, 0.2) == pytest.approx(np.full(10, 0.2))


def test_ranks_beyond_float16_are_kept_and_margins_beyond_it_are_finite():
    recorder = Recorder(1, lambda: None)
    logits = torch.arange(70_001.0).unsqueeze(0) * 1e5
    recorder.on_step(Step(logits, torch.tensor([0]), torch.tensor([0]), torch.zeros(()), None, 0.1))
    recorder.on_epoch_end(EpochResult(1, 0.1, 0.0, None, 0.0, 0.0))
    assert recorder.rows["rank"][0].tolist() == [70_000]
    assert all(recorder.rows[name][0].isfinite().all() for name in ("soft", "hard", "gap"))


def test_a_gap_is_that_of_the_best_two_and_negative_where_the_label_is_not_the_best():
    logits = torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0], [0.0, 1.0, 1.5]])
    assert signed_gap(logits, torch.tensor([0, 2, 2])).tolist() == [2.0, -2.0, 0.5]
    assert rank_of_label(logits, torch.tensor([0, 2, 2])).tolist() == [0, 2, 0]


def test_pairs_count_expected_wrong_labels_by_class():
    noise = NoiseEstimate(
        0.5, (0, 1), np.array([1.0, 0.9, 0.8, 0.1]), np.array([0, 0, 2, 1]), np.array([1, 1, 0, 0]), 3
    )
    assert noise.pairs(9) == [(0, 1, pytest.approx(1.9)), (2, 0, 0.8)]


@given(st.text())
def test_cells_come_back_as_they_were_and_none_begins_a_formula(text):
    assert from_cell(to_cell(text)) == text and not to_cell(text).startswith(("=", "+", "-", "@", "\t", "\r"))


@given(st.text().filter(lambda text: not text.startswith("'")))
def test_cells_that_people_write_stay_as_they_are(text):
    assert from_cell(text) == text


@pytest.mark.parametrize("shape", [(200,), (5,), (3, 8, 8)])
def test_recipe_is_a_spec_that_holds_nothing_back(shape):
    data = Dataset("mine", Split(torch.zeros(4, *shape), torch.tensor([0, 1, 0, 1])), None, ("a", "b"))
    spec = audit_spec("mine", data, {})
    assert spec.holdout == 0 and spec.loss == "auto" and spec.test_every == spec.epochs
    assert audit_spec("mine", data, {"epochs": 3}).test_every == 3


def test_few_samples_are_trained_on_for_more_epochs_but_not_until_they_are_memorised():
    def epochs(recipe, *counts):
        return [recipe.settings(count)["epochs"] for count in counts]

    assert epochs(FEATURES, 10, 150, 5000, 10**6) == [24, 12, 12, 12]
    assert epochs(IMAGES, 10, 10_000, 10**6) == [30, 26, 15]
    assert epochs(EMBEDDINGS, 10, 10_000, 50_000, 10**6) == [20, 13, 11, 10]


def test_an_audit_leaves_the_callers_random_numbers_alone():
    features, labels = blobs(60)[:2]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    audit(features, labels, settings={"epochs": 1})
    assert torch.equal(torch.rand(3), expected)


def test_where_nothing_can_be_learned_that_is_said(found):
    chance = np.random.default_rng(0)
    lost = audit(chance.standard_normal((300, 4)), chance.integers(0, 5, 300))
    assert lost.learned_little and lost.predicted < 0.6
    assert not found[0].learned_little and found[0].predicted > 0.6


def test_tensors_in_bfloat16_and_labels_that_differ_by_spaces():
    features, labels = blobs(60)[:2]
    assert len(audit(torch.as_tensor(features).bfloat16(), labels, settings={"epochs": 1})) == 60
    with pytest.raises(DataError, match="labels 'a' and 'a ' differ by spaces only"):
        audit(features, ["a", "a ", "b"] * 20)
