"""Noisy labels: their rates, where they go, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from curriculoss import noise
from curriculoss.errors import CurriculossError
from curriculoss.noise import (
    Noise,
    corrupt,
    empirical_matrix,
    next_in_group,
    transition_matrix,
)

CIFAR10_FLIPS = torch.tensor([0, 1, 0, 5, 7, 3, 6, 7, 8, 1])  # bird, cat, deer, dog and truck leave
CLEAN = torch.arange(50_000) % 10
SHUFFLED = torch.randint(0, 10, (50_000,), generator=torch.Generator().manual_seed(7))  # classes of unequal sizes


def inputs(size: int, *shape: int, seed: int = 3) -> Tensor:
    return torch.rand(size, *shape, generator=torch.Generator().manual_seed(seed))


def rate(clean: Tensor, noisy: Tensor) -> float:
    return float((clean != noisy).double().mean())


# Text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("clean", Noise("clean")),
        ("symmetric:0.4", Noise("symmetric", 0.4)),
        ("asymmetric-blocks:0.123456789", Noise("asymmetric-blocks", 0.123456789)),
        ("pairflip:0", Noise("pairflip", 0.0)),
        ("instance:1", Noise("instance", 1.0)),
        ("asymmetric:1e-05", Noise("asymmetric", 1e-5)),
        ("human", Noise("human")),
        ("human:worse_label", Noise("human", variant="worse_label")),
        (r"matrix:C:\noise\t.npy", Noise("matrix", variant=r"C:\noise\t.npy")),
    ],
)
def test_text_and_noise_are_one(text: str, parsed: Noise) -> None:
    assert noise.parse(text) == parsed
    assert str(parsed) == text


@given(st.sampled_from(noise.RATED), st.floats(0, 1))
def test_any_rate_survives_its_text(kind: str, value: float) -> None:
    assert noise.parse(str(Noise(kind, value))) == Noise(kind, value)


def test_text_is_made_canonical() -> None:
    assert [str(noise.parse(x)) for x in (" symmetric:0.40 ", "pairflip:1.0", "pairflip:-0.0")] == [
        "symmetric:0.4",
        "pairflip:1",
        "pairflip:0",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown noise ''.*Available: clean, symmetric, asymmetric"),
        ("symetric:0.4", "unknown noise 'symetric', did you mean 'symmetric'\\?.*matrix"),
        ("symmetric", "symmetric noise expects a rate, as in symmetric:0.4, got 'symmetric'"),
        ("symmetric:", "expects something after the colon, got 'symmetric:'"),
        ("symmetric:lots", "expects a rate.*'symmetric:lots'"),
        ("symmetric:0.4:0.2", "expects a rate"),
        ("symmetric:1.2", "symmetric noise expects 0 <= rate <= 1, got rate=1.2"),
        ("asymmetric:-0.1", "0 <= rate <= 1, got rate=-0.1"),
        ("pairflip:nan", "0 <= rate <= 1, got rate=nan"),
        ("instance:inf", "0 <= rate <= 1, got rate=inf"),
        ("clean:0.4", "clean noise expects no variant, got '0.4'"),
        ("matrix", "matrix noise expects a file"),
        ("human:", "after the colon"),
    ],
)
def test_wrong_text_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        noise.parse(text)
    assert "\n" not in str(error.value)


def test_noise_refuses_what_its_text_would() -> None:
    with pytest.raises(ValueError, match="0 <= rate <= 1, got rate=2"):
        Noise("symmetric", 2)
    with pytest.raises(ValueError, match="human noise expects no rate"):
        Noise("human", 0.4)
    with pytest.raises(TypeError, match=r"expects text such as 'symmetric:0.4', got 0.4"):
        noise.parse(0.4)  # type: ignore[arg-type]


# Rates


@pytest.mark.parametrize("clean", [CLEAN, SHUFFLED], ids=["equal", "unequal"])
@pytest.mark.parametrize("wanted", [0.0, 0.0001, 0.1, 0.4, 0.777, 1.0])
@pytest.mark.parametrize("kind", ["symmetric", "asymmetric-blocks", "pairflip", "instance"])
def test_the_rate_is_met_to_the_nearest_label(kind: str, wanted: float, clean: Tensor) -> None:
    noisy = corrupt(Noise(kind, wanted), clean, 10, seed=0, inputs=inputs(50_000, 6))
    assert int((noisy != clean).sum()) == round(wanted * 50_000)


def test_truncation_loses_nothing() -> None:
    """Earlier generators truncate the count in each class: 0.1 of classes of nine gave no noise at all."""
    clean = torch.arange(900) % 100
    assert rate(clean, corrupt("symmetric:0.1", clean, 100, seed=0)) == 0.1
    assert rate(clean, corrupt("pairflip:0.4", clean, 100, seed=0)) == 0.4


@pytest.mark.parametrize("text", ["symmetric:0.4", "asymmetric-blocks:0.4", "pairflip:0.4"])
def test_every_class_has_the_rate_as_nearly_as_whole_numbers_allow(text: str) -> None:
    noisy = corrupt(text, SHUFFLED, 10, seed=1)
    sizes = torch.bincount(SHUFFLED, minlength=10)
    flipped = torch.bincount(SHUFFLED[SHUFFLED != noisy], minlength=10)
    assert (flipped - 0.4 * sizes).abs().max() < 1


def test_asymmetric_rates_are_those_of_the_classes_that_leave() -> None:
    noisy = corrupt("asymmetric:0.4", CLEAN, 10, seed=0, flips=CIFAR10_FLIPS)
    matrix = empirical_matrix(CLEAN, noisy, 10)
    leaves = torch.arange(10) != CIFAR10_FLIPS
    assert torch.equal(matrix.diagonal(), 1 - 0.4 * leaves.double())
    assert rate(CLEAN, noisy) == 0.2


@pytest.mark.parametrize("text", ["symmetric:0.4", "asymmetric:0.4", "pairflip:0.4", "instance:0.4"])
def test_independent_draws_scatter_as_they_should(text: str) -> None:
    """The number of flips over seeds has the binomial variance, which exact draws do not have at all."""
    clean, flips = torch.arange(1000) % 10, torch.arange(10).roll(-1)
    counts = torch.tensor(
        [
            float((corrupt(text, clean, 10, seed=x, exact=False, flips=flips, inputs=inputs(1000, 2)) != clean).sum())
            for x in range(200)
        ]
    )
    assert float(counts.mean()) == pytest.approx(400, abs=4)  # the mean's own deviation is 1.1
    assert 180 < float(counts.var()) < 320  # 240 expected


# Where they go


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    "text", ["clean", "symmetric:0.4", "symmetric:1", "asymmetric:0.4", "asymmetric-blocks:0.3", "pairflip:0.45"]
)
def test_the_empirical_matrix_is_the_transition_matrix(text: str, exact: bool) -> None:
    noisy = corrupt(text, SHUFFLED, 10, seed=2, exact=exact, flips=CIFAR10_FLIPS)
    wanted = transition_matrix(text, 10, flips=CIFAR10_FLIPS)
    assert torch.allclose(wanted.sum(1), torch.ones(10).double())
    error = (empirical_matrix(SHUFFLED, noisy, 10) - wanted).abs().max()
    assert error < (1e-3 if exact else 0.03)  # 0.03 is four deviations of the largest cell
    assert (empirical_matrix(SHUFFLED, noisy, 10)[wanted == 0] == 0).all()


def test_the_matrices_are_those_of_the_literature() -> None:
    assert torch.allclose(transition_matrix("symmetric:0.3", 4), 0.6 * torch.eye(4).double() + 0.1)
    assert torch.allclose(transition_matrix("pairflip:0.3", 2), torch.tensor([[0.7, 0.3], [0.3, 0.7]]).double())
    blocks = transition_matrix("asymmetric-blocks:1", 10).argmax(1)
    assert blocks.tolist() == [1, 2, 3, 4, 0, 6, 7, 8, 9, 5]


def test_cats_and_dogs_are_not_corrupted_twice() -> None:
    """Flipping cat→dog and then dog→cat in place would bring cats back and take more than 0.4 of the dogs away."""
    noisy = corrupt("asymmetric:0.4", CLEAN, 10, seed=0, flips=CIFAR10_FLIPS)
    cat, dog = 3, 5
    matrix = empirical_matrix(CLEAN, noisy, 10)
    assert matrix[cat, dog] == matrix[dog, cat] == 0.4
    everything = corrupt("asymmetric:1", CLEAN, 10, seed=0, flips=CIFAR10_FLIPS)
    assert torch.equal(everything, CIFAR10_FLIPS[CLEAN])


def test_few_flips_go_everywhere() -> None:
    """Of classes with one flip each, over seeds, every other class gets its share: rounding has no favourites."""
    clean = torch.arange(12).repeat_interleave(2)
    total = sum(empirical_matrix(clean, corrupt("symmetric:0.5", clean, 12, seed=x), 12) for x in range(250))
    assert isinstance(total, Tensor)
    off = total[~torch.eye(12, dtype=torch.bool)]
    assert float(off.sum()) == pytest.approx(0.5 * 12 * 250)
    assert 2 < off.min() and off.max() < 25  # 11.4 ± 2.3 each, beyond four deviations


def test_super_classes_are_kept() -> None:
    groups = torch.tensor([0, 1, 0, 2, 1, 0])
    assert next_in_group(groups).tolist() == [2, 4, 5, 3, 1, 0]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv", ".txt"])
def test_a_matrix_may_come_from_any_file(tmp_path: Path, suffix: str) -> None:
    matrix = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.1, 0.2, 0.7]])
    file = tmp_path / f"matrix{suffix}"
    if suffix == ".npy":
        np.save(file, matrix.astype(np.float32))
    elif suffix == ".npz":
        np.savez(file, matrix)
    else:
        np.savetxt(file, matrix, delimiter="," if suffix == ".csv" else " ")
    clean = SHUFFLED % 3
    for exact in (True, False):
        noisy = corrupt(f"matrix:{file}", clean, 3, seed=0, exact=exact)
        error = (empirical_matrix(clean, noisy, 3) - torch.from_numpy(matrix)).abs().max()
        assert error < (1e-3 if exact else 0.02)
    assert torch.allclose(transition_matrix(f"matrix:{file}", 3), torch.from_numpy(matrix))


def test_rows_rounded_for_a_file_are_made_whole(tmp_path: Path) -> None:
    file = tmp_path / "thirds.csv"
    file.write_text("0.33333,0.33333,0.33333\n" * 3)
    thirds = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    assert torch.allclose(transition_matrix(f"matrix:{file}", 3), thirds, rtol=0, atol=1e-12)


# Instance noise


def test_instance_noise_depends_on_the_features() -> None:
    """Samples of one class and one kind of feature go to one place, of the other kind to another."""
    kind = torch.arange(4000) % 2
    features = (2.0 * kind - 1)[:, None].expand(-1, 200)
    clean = (torch.arange(4000) // 2) % 4
    noisy = corrupt("instance:0.5", clean, 4, seed=0, inputs=features)
    assert rate(clean, noisy) == 0.5
    matrices = [empirical_matrix(clean[chosen], noisy[chosen], 4) for chosen in (kind == 0, kind == 1)]
    for a, b in zip(*matrices, strict=True):  # half of either kind leaves, to distant places
        assert (a - b).abs().sum() > 0.9 * (0.5 + 0.5)


def test_rates_of_samples_spread_around_the_wanted_one() -> None:
    rates = noise._sample_rates(0.4, 50_000, torch.Generator().manual_seed(0))
    assert float(rates.mean()) == pytest.approx(0.4, abs=1e-9)
    assert float(rates.std()) == pytest.approx(0.1, abs=2e-3)
    for wanted in (0.0, 0.02, 0.97, 1.0):
        rates = noise._sample_rates(wanted, 1000, torch.Generator().manual_seed(0))
        assert float(rates.mean()) == pytest.approx(wanted, abs=1e-9)
        assert 0 <= rates.min() and rates.max() <= 1


@pytest.mark.parametrize("features", [inputs(600, 3, 4, 4) * 255, torch.ones(600, 5)])
def test_instance_noise_takes_any_features(features: Tensor) -> None:
    clean = torch.arange(600) % 6
    for x in (features, features.to(torch.uint8)):
        assert int((corrupt("instance:0.35", clean, 6, seed=0, inputs=x) != clean).sum()) == 210


def test_instance_noise_is_the_same_in_other_units() -> None:
    clean, features = torch.arange(600) % 6, inputs(600, 8).double()
    noisy = [corrupt("instance:0.4", clean, 6, seed=0, inputs=x) for x in (features, 1000 * features - 3000)]
    assert torch.equal(*noisy)


# Human noise


def test_human_labels_are_taken_by_name() -> None:
    clean = torch.arange(10)
    human = {"worse_label": clean.roll(1), "random_label1": clean.roll(2)}
    assert torch.equal(corrupt("human:random_label1", clean, 10, seed=0, human=human), clean.roll(2))
    chosen = corrupt("human", clean, 10, seed=0, human=human, default_human="worse_label")
    assert torch.equal(chosen, clean.roll(1))
    chosen += 1
    assert torch.equal(human["worse_label"], clean.roll(1))
    only = {"noisy_label": clean.roll(3)}
    assert torch.equal(corrupt("human", clean, 10, seed=0, human=only), clean.roll(3))


# Seeds and shapes


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("text", ["symmetric:0.4", "pairflip:0.4", "asymmetric:0.4", "instance:0.4"])
def test_the_seed_alone_decides(text: str, exact: bool) -> None:
    def draw(seed: int) -> Tensor:
        torch.rand(1)  # the global random state has no say
        clean = SHUFFLED[:1000]
        return corrupt(text, clean, 10, seed=seed, exact=exact, flips=CIFAR10_FLIPS, inputs=inputs(1000, 4))

    assert torch.equal(draw(5), draw(5))
    assert not torch.equal(draw(5), draw(6))


def test_labels_are_the_same_on_every_machine() -> None:
    clean, features = torch.arange(12) % 3, torch.arange(48.0).reshape(12, 4).sin()
    assert corrupt("symmetric:0.5", clean, 3, seed=0).tolist() == [1, 1, 0, 0, 1, 2, 2, 2, 1, 0, 0, 2]
    assert corrupt("symmetric:0.5", clean, 3, seed=0, exact=False).tolist() == [0, 0, 2, 2, 1, 0, 1, 0, 2, 1, 1, 2]
    assert corrupt("instance:0.5", clean, 3, seed=0, inputs=features).tolist() == [2, 1, 0, 2, 0, 2, 0, 1, 2, 2, 1, 0]


@given(st.data())
def test_noise_keeps_its_promises(data: st.DataObject) -> None:
    """Any labels, tiny and absent classes, K = 2: counts to the nearest, the input untouched, the map obeyed."""
    num_classes = data.draw(st.integers(2, 12))
    clean = torch.tensor(data.draw(st.lists(st.integers(0, num_classes - 1), max_size=40)), dtype=torch.int64)
    kind = data.draw(st.sampled_from(["symmetric", "pairflip", "asymmetric", "instance"]))
    wanted, seed, exact = data.draw(st.floats(0, 1)), data.draw(st.integers(0, 2**63 - 1)), data.draw(st.booleans())
    flips = torch.tensor(
        data.draw(st.lists(st.integers(0, num_classes - 1), min_size=num_classes, max_size=num_classes))
    )
    before = clean.clone()
    noisy = corrupt(
        Noise(kind, wanted), clean, num_classes, seed=seed, exact=exact, flips=flips, inputs=inputs(len(clean), 3)
    )
    assert torch.equal(clean, before)
    assert noisy.dtype == torch.int64 and noisy.shape == clean.shape
    assert not len(noisy) or (0 <= noisy.min() and noisy.max() < num_classes)
    moved = clean != noisy
    may_move = (flips[clean] != clean) if kind == "asymmetric" else torch.ones_like(moved)
    if exact:
        assert abs(int(moved.sum()) - wanted * int(may_move.sum())) <= 0.5 + 1e-5
    assert not (moved & ~may_move).any()
    if kind == "asymmetric":
        assert torch.equal(noisy[moved], flips[clean[moved]])
    if kind == "pairflip":
        assert torch.equal(noisy[moved], (clean[moved] + 1) % num_classes)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=30), st.integers(0, 1000))
def test_whole_numbers_are_next_to_their_expectations(expected: list[float], seed: int) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    counts = noise._round_at_random(wanted, torch.Generator().manual_seed(seed))
    assert (counts - wanted).abs().max() < 1 + 1e-5
    assert abs(float(counts.sum() - wanted.sum())) <= 0.5 + 1e-5


def test_labels_of_small_types_are_taken() -> None:
    assert corrupt("symmetric:0.4", CLEAN.to(torch.uint8), 10, seed=0).equal(
        corrupt("symmetric:0.4", CLEAN, 10, seed=0)
    )
    assert corrupt("clean", torch.zeros(3, dtype=torch.int32), 1, seed=0).tolist() == [0, 0, 0]


# Errors


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("asymmetric:0.4", {}, "asymmetric noise expects flips"),
        ("asymmetric:0.4", {"flips": torch.arange(9)}, "flips labels: expected 10, got 9"),
        ("asymmetric:0.4", {"flips": torch.arange(10) + 1}, "flips labels: expected 0 to 9, got 1 to 10"),
        ("human", {}, "human noise expects labels given by people"),
        ("human", {"human": {"a": CLEAN, "b": CLEAN}}, "expects a variant, as in human:a. Available: a, b"),
        (
            "human:worst_label",
            {"human": {"worse_label": CLEAN}},
            "did you mean 'worse_label'\\? Available: worse_label",
        ),
        ("human", {"human": {"a": CLEAN[1:]}}, "human a labels: expected 50000, got 49999"),
        ("human", {"human": {"a": CLEAN - 1}}, "human a labels: expected 0 to 9, got -1 to 8"),
        ("instance:0.4", {}, "instance noise expects inputs"),
        ("instance:0.4", {"inputs": torch.zeros(7, 2)}, "as many inputs as labels, 50000, got 7"),
        ("instance:0.4", {"inputs": torch.full((50_000, 2), torch.nan)}, "finite inputs"),
        ("instance:0.4", {"inputs": torch.full((50_000, 2), torch.inf)}, "finite inputs"),
        ("symmetric:0.4", {"seed": -1}, "noise expects seed >= 0, got seed=-1"),
        ("symmetric:0.4", {"seed": 2**63}, r"noise expects seed <= 9.22337e\+18, got seed=9223372036854775808"),
        ("symmetric:0.4", {"seed": "0"}, "noise expects an integer seed >= 0, got seed='0'"),
        ("symmetric:0.4", {"clean": CLEAN + 1}, "clean labels: expected 0 to 9, got 1 to 10"),
        ("symmetric:0.4", {"clean": CLEAN.float()}, "expected integers of shape \\(N,\\), got torch.float32"),
        (
            "symmetric:0.4",
            {"clean": CLEAN[:, None]},
            "expected integers of shape \\(N,\\), got torch.int64 \\(50000, 1\\)",
        ),
        ("symmetric:0.4", {"clean": CLEAN > 3}, "expected integers"),
        ("symmetric:0.4", {"clean": CLEAN * 0, "num_classes": 1}, "symmetric noise expects num_classes >= 2, got"),
        ("instance:0.4", {"clean": CLEAN * 0, "num_classes": 1, "inputs": CLEAN}, "num_classes >= 2"),
        ("asymmetric-blocks:0.4", {"num_classes": 12}, "expects a multiple of 5 classes, got 12"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CurriculossError, match=message):
        corrupt(text, **{"clean": CLEAN, "num_classes": 10, "seed": 0} | options)


@pytest.mark.parametrize("text", ["human", "instance:0.4"])
def test_only_noise_of_classes_has_a_matrix(text: str) -> None:
    with pytest.raises(ValueError, match="has no transition matrix of its own"):
        transition_matrix(text, 10)


WRONG_MATRICES = {
    "rows.csv": ("0.5,0.6\n0,1\n", "expected rows that sum to 1, got 1.1 in row 0"),
    "negative.csv": ("1.5,-0.5\n0,1\n", "expected probabilities >= 0, got -0.5"),
    "nan.csv": ("nan,0\n0,1\n", "expected probabilities >= 0, got nan"),
    "shape.csv": ("1,0\n", "expected a 2 x 2 matrix, got shape \\(1, 2\\)"),
    "ragged.txt": ("1 0\n1\n", "expected as many numbers in every line"),
    "words.csv": ("cat,dog\n1,0\n", "cannot be read .could not convert string to float: 'cat'"),
    "empty.txt": ("", "expected a 2 x 2 matrix, got shape \\(0,\\)"),
    "broken.npy": ("not an array", "cannot be read"),
    "empty.npy": ("", "cannot be read"),
    "broken.npz": ("PK\x03\x04", "cannot be read"),
    "code.pkl": ("", "expected a .npy, .npz, .csv or .txt file"),
}


@pytest.mark.parametrize("name", WRONG_MATRICES)
def test_wrong_matrices_are_refused_by_file_and_fault(tmp_path: Path, name: str) -> None:
    content, message = WRONG_MATRICES[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name}: .*{message}") as error:
        transition_matrix(f"matrix:{tmp_path / name}", 2)
    assert "\n" not in str(error.value)


def test_files_that_are_no_arrays_of_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.npy: no such file"):
        transition_matrix(f"matrix:{tmp_path / 'absent.npy'}", 2)
    np.save(tmp_path / "code.npy", np.array([print, print]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"code.npy: cannot be read .*allow_pickle=False"):
        transition_matrix(f"matrix:{tmp_path / 'code.npy'}", 2)
    np.save(tmp_path / "words.npy", np.array([["a", "b"], ["c", "d"]]))
    with pytest.raises(ValueError, match=r"words.npy: .*expected numbers, got <U1"):
        transition_matrix(f"matrix:{tmp_path / 'words.npy'}", 2)
    np.savez(tmp_path / "two.npz", a=np.eye(2), b=np.eye(2))
    with pytest.raises(ValueError, match=r"two.npz: .*expected one array, got 2"):
        transition_matrix(f"matrix:{tmp_path / 'two.npz'}", 2)
    np.savez(tmp_path / "npz.npz", np.eye(2))
    (tmp_path / "npz.npz").rename(tmp_path / "renamed.npy")  # told apart by content
    assert torch.equal(transition_matrix(f"matrix:{tmp_path / 'renamed.npy'}", 2), torch.eye(2).double())
    whole = tmp_path / "whole.npy"
    np.save(whole, np.eye(2))
    (tmp_path / "cut.npy").write_bytes(whole.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"cut.npy: cannot be read"):
        transition_matrix(f"matrix:{tmp_path / 'cut.npy'}", 2)
    with pytest.raises(ValueError, match=r"whole.npy: expected a 3 x 3 matrix"):
        corrupt(f"matrix:{whole}", torch.arange(3), 3, seed=0)


def test_classes_without_samples_have_rows_of_zeros() -> None:
    assert empirical_matrix(torch.tensor([0, 0]), torch.tensor([0, 2]), 3).tolist() == [[0.5, 0, 0.5], [0] * 3, [0] * 3]
    with pytest.raises(ValueError, match="noisy labels: expected 2, got 1"):
        empirical_matrix(torch.tensor([0, 0]), torch.tensor([0]), 3)
