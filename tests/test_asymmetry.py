"""The facts of each curriculum (bounded, symmetric, the largest noise ratio) against numerical evidence."""

from __future__ import annotations

import math

import pytest
import torch
from mpmath import mp, mpf

from curriculoss import losses
from curriculoss.losses import AEL, AGCE, AUL, CE, GCE, MAE, TCE, Curriculum, Designed, Scaled, Shifted
from curriculoss.margin import soft_margin
from tests import reference

pytestmark = pytest.mark.slow

F64 = torch.float64
CASES = [(name, params) for name, settings in reference.SETTINGS.items() for params in settings]
every_curriculum = pytest.mark.parametrize(
    ("name", "params"), CASES, ids=[f"{name}-{'-'.join(map(str, params.values()))}" for name, params in CASES]
)


def infimum_ratio(name, params, change=lambda p: p):
    """0 for a loss that is infinite at p = 0, otherwise the smallest ratio found on a grid of (p_i, p_j)."""
    if name in ("CE", "FL", "SCE"):
        return 0.0
    return float(reference.infimum_ratio(lambda p: reference.LOSS[name](change(p), **reference.exact(params))))


def shifted(beta):
    """p of the margin Δ + β, from p of Δ."""
    return lambda p: p / (p + (1 - p) * mp.exp(-mpf(beta)))


def scaled(alpha):
    return lambda p: p**alpha / (p**alpha + (1 - p) ** alpha)


def numerical(curriculum: Curriculum) -> float:
    """What the package finds without the family's closed form."""
    return Curriculum.max_noise_ratio.func(curriculum)


@every_curriculum
def test_largest_noise_ratio_is_the_infimum_of_its_definition(name, params):
    closed = getattr(losses, name)(**params).max_noise_ratio
    assert isinstance(closed, float) and 0 <= closed <= 1
    found = infimum_ratio(name, params)
    assert closed <= found * (1 + 1e-12)
    assert found == pytest.approx(closed, rel=1e-5, abs=2e-4 if closed == 0 else 0)


@pytest.mark.parametrize(
    ("curriculum", "printed"),
    [
        *((AUL(2.0, 2.0), 1 / 2), (AGCE(1.0, 0.5), 2**-0.5), (AEL(1.0), math.exp(-1)), (TCE(4), 1 / 4), (CE(), 0.0)),
        *((loss, 1.0) for loss in (AUL(3.0, 0.7), AUL(1.1, 1.0), AGCE(1.6, 2.0), GCE(1.0), MAE())),
        (GCE(0.7), 0.0),
    ],
    ids=repr,
)
def test_largest_noise_ratio_is_the_one_of_the_papers(curriculum, printed):
    assert curriculum.max_noise_ratio == pytest.approx(printed, rel=1e-14)


def test_largest_noise_ratio_survives_extreme_hyperparameters():
    assert AGCE(a=1e-3, q=200.0).max_noise_ratio == 1.0
    assert AUL(a=1 + 1e-9, q=200.0).max_noise_ratio == 0.0
    assert AEL(1e-3).max_noise_ratio == 0.0


@pytest.mark.parametrize(
    "curriculum",
    [CE(), MAE(), AUL(1.1, 5.0), AUL(3.0, 0.7), AGCE(0.1, 0.1), AGCE(1e-3, 1e-8), AEL(0.5), GCE(0.3), GCE(0.9), TCE(6)],
    ids=repr,
)
def test_numerical_search_finds_the_closed_form(curriculum):
    assert numerical(curriculum) == pytest.approx(curriculum.max_noise_ratio, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("beta", [0.5, 3.0])
def test_shifted_mean_absolute_error_tolerates_a_ratio_of_exp_minus_twice_the_shift(beta):
    assert Shifted(MAE(), beta).max_noise_ratio == pytest.approx(math.exp(-2 * beta), rel=1e-6)


def test_mean_absolute_error_shifted_back_tolerates_every_ratio():
    assert infimum_ratio("MAE", {}, shifted(-1.0)) == Shifted(MAE(), -1.0).max_noise_ratio == 1.0


@pytest.mark.parametrize("alpha", [0.3, 0.9, 0.999])
def test_mean_absolute_error_scaled_down_tolerates_no_ratio(alpha):
    assert Scaled(MAE(), alpha).max_noise_ratio == 0.0


@pytest.mark.parametrize(
    ("curriculum", "name", "params", "change"),
    [
        (Shifted(AUL(2.0, 2.0), 1.0), "AUL", {"a": 2.0, "q": 2.0}, shifted(1.0)),
        (Shifted(AUL(1.1, 5.0), -2.0), "AUL", {"a": 1.1, "q": 5.0}, shifted(-2.0)),
        (Scaled(MAE(), 2.0), "MAE", {}, scaled(2)),
        (Scaled(GCE(0.5), 2.0), "GCE", {"q": 0.5}, scaled(2)),
        (Scaled(AGCE(0.1, 0.1), 1.5), "AGCE", {"a": 0.1, "q": 0.1}, scaled(mpf(1.5))),
        (Scaled(TCE(3), 1.5), "TCE", {"q": 3}, scaled(mpf(1.5))),
    ],
    ids=lambda x: repr(x) if isinstance(x, Curriculum) else "",
)
def test_largest_noise_ratio_of_what_is_derived_is_the_infimum_too(curriculum, name, params, change):
    found = infimum_ratio(name, params, change)
    assert curriculum.max_noise_ratio <= found * (1 + 1e-6)
    assert curriculum.max_noise_ratio == pytest.approx(found, rel=2e-2, abs=2e-4)  # the naive grid is coarse inside


def test_largest_noise_ratio_of_a_design():
    assert Designed(AEL(0.5).weight).max_noise_ratio == pytest.approx(math.exp(-2), rel=1e-6)
    assert Designed(lambda x: (x < 0.3).double()).max_noise_ratio == 0.0


@pytest.mark.parametrize("middle", [0.0, -2.75])
def test_nothing_is_promised_of_a_design_with_a_hole(middle):
    hole = Designed(lambda margin: MAE().weight(margin).masked_fill((margin - middle).abs() < 0.0363 / 2, 0.0))
    assert hole.max_noise_ratio == 0.0


@pytest.mark.parametrize("width", [0.5, 0.05, 0.005])
def test_a_notch_decides_however_narrow_it_is(width):
    def notched(margin):
        return MAE().weight(margin) * (1 - 0.9 * torch.exp(-(((margin - 0.3) / width) ** 2)))

    assert Designed(notched).max_noise_ratio == pytest.approx(0.1, rel=1e-6)


def spread_over_logits(curriculum: Curriculum, num_classes: int) -> float:
    """How much Σ_y l(Δ_y) varies from sample to sample, on the scale of the loss."""
    generator = torch.Generator().manual_seed(num_classes)
    logits = 3 * torch.randn(64, num_classes, generator=generator, dtype=F64)
    labels = torch.arange(num_classes).expand(64, -1)
    each = torch.stack([curriculum.loss(soft_margin(logits, label)) for label in labels.T.contiguous()])
    total = each.sum(0)
    return float((total.max() - total.min()) / (each.max() - each.min()))


@every_curriculum
@pytest.mark.parametrize("num_classes", [3, 30])
def test_symmetric_losses_sum_to_a_constant_over_all_labels_and_others_do_not(name, params, num_classes):
    curriculum = getattr(losses, name)(**params)
    spread = spread_over_logits(curriculum, num_classes)
    assert spread < 1e-12 if curriculum.symmetric else spread > 1e-8
    assert curriculum.symmetric == (name == "MAE" or (name in ("AGCE", "AUL", "GCE", "TCE") and curriculum.q == 1))


def test_derived_symmetry():
    for curriculum in (
        Scaled(MAE(), 1.0),
        Shifted(MAE(), 0.0),
        Designed(MAE().weight),
        Shifted(Shifted(MAE(), 1.0), -1.0),
    ):
        assert curriculum.symmetric and spread_over_logits(curriculum, 5) < 1e-11
    for curriculum in (Scaled(MAE(), 0.5), Shifted(MAE(), 1.0), Scaled(GCE(0.5), 2.0), Designed(CE().weight)):
        assert not curriculum.symmetric and spread_over_logits(curriculum, 5) > 1e-3


def test_sum_of_mean_absolute_error_over_labels_is_the_number_of_other_classes():
    logits = torch.randn(8, 7, generator=torch.Generator().manual_seed(0), dtype=F64) * 20
    total = sum(MAE().loss(soft_margin(logits, torch.full((8,), label))) for label in range(7))
    torch.testing.assert_close(total, torch.full((8,), 6.0, dtype=F64), rtol=1e-14, atol=0)


@every_curriculum
def test_loss_is_bounded_exactly_if_it_stops_growing(name, params):
    curriculum = getattr(losses, name)(**params)
    near, far = curriculum.loss(torch.tensor([-1e15, -2e15], dtype=F64)).tolist()
    assert math.isfinite(far)
    assert (far <= near * (1 + 1e-12)) == curriculum.bounded
    assert curriculum.bounded or far > 1.9 * near


def test_a_narrow_valley_of_the_ratio_around_one_half_is_found():
    """By mpmath, the ratio is least at x = 0.646 and h = 0.0025."""
    designed = Designed.from_points([-8.0, 0.0, 2.0], [0.0, 1.0, 0.5])
    assert designed.max_noise_ratio == pytest.approx(0.0367455078, rel=1e-6)
