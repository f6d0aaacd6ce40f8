"""One battery for every registered curriculum of the standard form, at the paper's hyperparameters and at the edges."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import pickle
import re

import pytest
import torch
from mpmath import mp
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from curriculoss import RobustLoss, losses
from curriculoss.losses import AEL, AGCE, AUL, CE, FL, GCE, MAE, SCE, TCE, Curriculum, Scaled, Shifted
from curriculoss.losses.registry import available, factory
from tests import reference

F64 = torch.float64
CASES = [(name, params) for name, settings in reference.SETTINGS.items() for params in settings]
every_curriculum = pytest.mark.parametrize(
    ("name", "params"), CASES, ids=[f"{name}-{'-'.join(map(str, params.values()))}" for name, params in CASES]
)
VALUES = {"loss": reference.loss, "weight": reference.weight}
UNBOUNDED = ("CE", "FL", "SCE")


def make(name: str, params: dict[str, float]) -> Curriculum:
    return getattr(losses, name)(**params)


def _grid() -> list[float]:
    """Margins from −1e4 to 1e4, dense around 0 and where exponentials underflow, the same in float32 and float64."""
    side = torch.cat(
        [
            torch.linspace(0.25, 20, 80),
            torch.logspace(math.log10(20), 4, 40)[1:],
            torch.tensor([1e-30, 1e-8, 1e-3, 85, 88, 92, 100, 103, 700, 708, 712, 720, 735, 745]),
        ]
    )
    return torch.cat([-side, torch.zeros(1), side]).unique().tolist()


GRID = _grid()
COARSE = [-800.0, -88.0, -30.0, -12.5, -6.0, -2.75, -1.0, -0.3, 0.0, 0.2, 1.0, 3.5, 7.0, 15.0, 36.0, 88.0, 300.0]


def tensor(values: list[float], dtype: torch.dtype = F64, **kwargs: bool) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, **kwargs)


def relative_errors(got: torch.Tensor, true: list, tiny: float) -> list[tuple[float, int]]:
    return [
        (float(abs(value - truth) / abs(truth)) if math.isfinite(value) else math.inf, i)
        for i, (value, truth) in enumerate(zip(got.tolist(), true, strict=True))
        if abs(truth) >= tiny
    ]


def test_every_registered_curriculum_is_in_the_battery_with_at_least_five_settings():
    found = {f for f in map(factory, available()) if isinstance(f, type) and issubclass(f, Curriculum)}
    assert {cls.__name__ for cls in found} == set(reference.SETTINGS) == set(reference.LOSS) == set(reference.WEIGHT)
    for cls in found:
        settings = {make(cls.__name__, params) for params in reference.SETTINGS[cls.__name__]}
        assert len(settings) >= (5 if dataclasses.fields(cls) else 1)
        assert cls() in settings  # the defaults


@pytest.mark.slow
@every_curriculum
@pytest.mark.parametrize("kind", ["loss", "weight"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=["f64", "f32"])
def test_value_is_exact_over_all_margins(name, params, kind, dtype, tolerance):
    got = getattr(make(name, params), kind)(tensor(GRID, dtype))
    assert got.dtype == dtype and not got.isnan().any() and (got >= 0).all()
    errors = relative_errors(got, [VALUES[kind](name, x, **params) for x in GRID], torch.finfo(dtype).tiny)
    worst, i = max(errors)
    assert worst <= tolerance, f"relative error {worst:.1e} at margin {GRID[i]}"


@pytest.mark.slow
@every_curriculum
def test_weight_is_minus_the_derivative_of_the_loss(name, params):
    curriculum = make(name, params)
    margin = tensor(COARSE, requires_grad=True)
    (gradient,) = torch.autograd.grad(curriculum.loss(margin).sum(), margin)
    assert torch.equal(-gradient, curriculum.weight(margin.detach()))
    exact = reference.exact(params)
    with mp.workdps(700):  # the derivative of the equations, not of the code
        true = [-mp.diff(lambda x: reference.LOSS[name](1 / (1 + mp.exp(-x)), **exact), x) for x in COARSE]
    assert max(relative_errors(-gradient, true, 1e-300))[0] <= 1e-12


@every_curriculum
def test_weight_is_minus_the_central_difference_of_the_loss(name, params):
    curriculum, margin, h = make(name, params), torch.linspace(-12, 12, 97, dtype=F64), 1e-4
    difference = (curriculum.loss(margin - h) - curriculum.loss(margin + h)) / (2 * h)
    noise = 1e-15 * curriculum.loss(margin).max() / h + 1e-8 * curriculum.peak.weight * max(1, params.get("q", 1)) ** 2
    assert ((difference - curriculum.weight(margin)).abs() <= noise).all()


@every_curriculum
def test_weight_is_differentiable_and_so_is_the_gradient_of_the_loss(name, params):
    curriculum = make(name, params)
    scale = 1 / curriculum.peak.weight  # so that the checks' absolute tolerance is a relative one
    margin = tensor([-9.0, -3.3, -1.0, -0.2, 0.0, 0.4, 1.5, 4.0, 11.0], requires_grad=True)
    noise = 1e-9 * scale * curriculum.loss(margin).max().item()  # of a difference quotient with a step of 1e-6
    assert gradcheck(lambda x: scale * curriculum.loss(x), (margin,), atol=1e-5 + noise)
    assert gradcheck(lambda x: scale * curriculum.weight(x), (margin,))
    assert gradgradcheck(lambda x: scale * curriculum.loss(x), (margin,))


@every_curriculum
def test_torch_func_gradient_of_the_loss_is_minus_the_weight(name, params):
    curriculum, margin = make(name, params), tensor(COARSE)
    weight = curriculum.weight(margin)
    assert torch.equal(torch.func.vmap(torch.func.grad(curriculum.loss))(margin), -weight)
    assert torch.equal(torch.func.vmap(curriculum.loss)(margin.reshape(1, -1)), curriculum.loss(margin.reshape(1, -1)))


@pytest.mark.slow
@every_curriculum
def test_peak_is_the_supremum(name, params):
    curriculum = make(name, params)
    peak, weight = curriculum.peak, curriculum.weight(tensor(GRID))
    assert (weight <= peak.weight * (1 + 1e-14)).all()
    assert_close(curriculum.weight(tensor([peak.margin])), tensor([peak.weight]), rtol=1e-13, atol=0)
    margin, highest = reference.maximum(lambda x: reference.weight(name, x, **params), GRID)
    assert peak.margin == pytest.approx(margin, rel=1e-12, abs=1e-12)
    assert abs(peak.weight / highest - 1) <= 1e-12


def test_focal_loss_peaks_above_one_and_runs_to_minus_infinity_as_q_vanishes():
    assert FL(2.0).peak == pytest.approx((-2.79, 1.129), abs=5e-3)
    assert FL(2.0).peak.weight == pytest.approx(1.129, abs=5e-4)
    for q in (1e-2, 1e-3, 1e-6, 1e-9):
        assert FL(q).peak.margin == pytest.approx(-2 - 1 / q, rel=1e-12)
        assert FL(q).peak.weight == pytest.approx(1.0, rel=1e-12)


def test_peaks_that_the_papers_name():
    assert CE().peak == (-math.inf, 1.0)
    assert MAE().peak == (0.0, 0.25)
    assert GCE(0.3).peak.margin == math.log(0.3)
    assert SCE(0.5).peak == (-math.inf, 0.5)
    assert SCE(0.7).peak.margin == pytest.approx(math.log(0.4), abs=1e-15)


@every_curriculum
def test_infinite_margins_give_the_limits_without_nan(name, params):
    curriculum = make(name, params)
    margin = tensor([-math.inf, math.inf], requires_grad=True)
    loss, weight = curriculum.loss(margin), curriculum.weight(margin)
    (gradient,) = torch.autograd.grad(loss.sum(), margin)
    bounded = name not in UNBOUNDED
    with mp.workdps(700):
        worst, best = (reference.LOSS[name](mp.mpf(p), **reference.exact(params)) for p in (0, 1))
    assert loss[0].item() == (pytest.approx(float(worst), rel=1e-12) if bounded else math.inf)
    assert loss[1].item() == pytest.approx(float(best), rel=1e-12, abs=1e-300)
    limit = 0.0 if bounded else float(reference.weight(name, -1e4, **params))
    assert weight.tolist() == [pytest.approx(limit, rel=1e-12), 0.0]
    assert torch.equal(gradient, -weight)


@every_curriculum
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_nan_stays_nan_and_the_dtype_stays_itself(name, params, dtype):
    curriculum = make(name, params)
    margin = tensor([math.nan, -40.0, -2.0, 0.5, 9.0], dtype)
    for kind, function in VALUES.items():
        got = getattr(curriculum, kind)(margin)
        assert got.dtype == dtype and got.isnan().tolist() == [True, False, False, False, False]
        true = tensor([float(function(name, x, **params)) for x in margin[1:].tolist()]).to(dtype)
        assert_close(got[1:], true, rtol=2 * torch.finfo(dtype).eps if dtype != F64 else 1e-12, atol=0)


@pytest.mark.parametrize(
    ("curriculum", "limit", "tolerance"),
    [
        (GCE(1.0), MAE(), 1e-14),
        (TCE(1), MAE(), 1e-14),
        (AUL(a=1.3, q=1.0), MAE(), 1e-14),
        (AUL(a=7.0, q=1.0), MAE(), 1e-14),
        (AGCE(a=0.2, q=1.0), MAE(), 1e-14),
        (AGCE(a=5.0, q=1.0), MAE(), 1e-14),
        (GCE(1e-10), CE(), 1e-8),
        (SCE(1e-10), CE(), 1e-8),
        (SCE(1 - 1e-12), MAE(), 1e-6),
        (FL(1e-10), CE(), 1e-8),
        (AGCE(a=1e-12, q=1e-10), CE(), 1e-5),
    ],
    ids=repr,
)
def test_limit_is_the_other_curriculum(curriculum, limit, tolerance):
    margin = torch.linspace(-12, 12, 97, dtype=F64)
    assert_close(curriculum.weight(margin), limit.weight(margin), rtol=tolerance, atol=0)
    assert_close(curriculum.loss(margin), limit.loss(margin), rtol=tolerance, atol=tolerance)


def test_taylor_cross_entropy_of_many_terms_is_cross_entropy():
    margin = torch.linspace(-4, 12, 97, dtype=F64)  # (1 − p)^2000 is below 1e-15 here
    assert_close(TCE(2000).loss(margin), CE().loss(margin), rtol=1e-13, atol=0)
    assert_close(TCE(2000).weight(margin), CE().weight(margin), rtol=1e-13, atol=0)


def test_asymmetric_exponential_loss_times_q_is_mean_absolute_error_as_q_grows():
    margin = torch.linspace(-12, 12, 97, dtype=F64)
    assert_close(AEL(1e9).weight(margin) * 1e9, MAE().weight(margin), rtol=2e-9, atol=0)


@every_curriculum
def test_formulas_are_what_the_code_computes(name, params):
    curriculum = make(name, params)
    for kind, formula in (("loss", curriculum.formula), ("weight", curriculum.weight_formula)):
        true = [reference.evaluate(formula, x, **params) for x in COARSE]
        errors = relative_errors(getattr(curriculum, kind)(tensor(COARSE)), true, 1e-300)
        assert max(errors)[0] <= 1e-12


INVALID = [
    *((FL, {"q": q}) for q in (0.0, -1.0)),
    *((AUL, params) for params in ({"a": 1.0}, {"a": 0.5}, {"q": 0.0}, {"q": -2.0}, {"a": -3.0, "q": 2.0})),
    *((AGCE, params) for params in ({"a": 0.0}, {"a": -1.0}, {"q": 0.0}, {"q": -0.1})),
    *((AEL, {"q": q}) for q in (0.0, -2.0)),
    *((GCE, {"q": q}) for q in (0.0, -0.5, 1.0000001, 1.5)),
    *((SCE, {"q": q}) for q in (0.0, 1.0, -0.3, 2.0)),
    *((TCE, {"q": q}) for q in (0, -1, 1.5)),
]


@pytest.mark.parametrize(("cls", "params"), INVALID, ids=lambda x: x.__name__ if isinstance(x, type) else str(x))
def test_violated_constraint_is_named_with_the_value(cls, params):
    name, value = next(iter(params.items()))
    with pytest.raises(
        ValueError, match=rf"^{cls.__name__} expects {re.escape(cls.constraints)}, got .*{name}={value}"
    ):
        cls(**params)


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (cls, field.name, value)
        for cls in (FL, AUL, AGCE, AEL, GCE, SCE, TCE)
        for field, value in itertools.product(dataclasses.fields(cls), (math.nan, math.inf, -math.inf, "0.5", None))
    ],
)
def test_hyperparameter_that_is_no_finite_number_is_refused(cls, field, value):
    with pytest.raises((ValueError, TypeError), match=rf"{cls.__name__} expects .*{field}={value!r}"):
        cls(**{field: value})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AEL(1e200), "AEL expects a number from 1e-30 to 1e+18 in size, got q=1e+200"),
        (lambda: AUL(1e200, 1), "AUL expects a number from 1e-30 to 1e+18 in size, got a=1e+200"),
        (lambda: AGCE(1e300, 0.5), "AGCE expects a number from 1e-30 to 1e+18 in size, got a=1e+300"),
        (lambda: FL(10**400), "FL expects a number from 1e-30 to 1e+18 in size, got q=1000"),
        (lambda: GCE(1e-320), "GCE expects a number from 1e-30 to 1e+18 in size, got q=1e-320"),
        (lambda: TCE(10**400), "TCE expects an integer q from 1 to 1000000, got q=1000"),
        (lambda: AGCE(9.0, 1e3), "AGCE expects hyperparameters with a largest weight between 1e-300 and 1e+300, got a"),
        (lambda: AUL(1e18, 18.0), "AUL expects hyperparameters with a largest weight between 1e-300 and 1e+300, got a"),
        (lambda: Scaled(MAE(), 1e-320), "Scaled expects a number from 1e-30 to 1e+18 in size, got alpha=1e-320"),
        (lambda: Shifted(MAE(), -1e300), "Shifted expects a number from 0 to 1e+18 in size, got beta=-1e+300"),
    ],
)
def test_hyperparameter_beyond_what_can_be_computed_is_refused_in_a_short_line(make, said):
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        make()
    assert len(str(caught.value)) < 200


SIZES = [1e-30, 1e-9, 0.5, 3, 700.0, 7000.0, 1e9, 10**18]


@pytest.mark.parametrize("cls", [FL, AUL, AGCE, AEL, GCE, SCE])
def test_hyperparameters_that_are_accepted_give_finite_numbers(cls):
    logits, target = reference.draw(6, 5), reference.labels(6, num_classes=5)
    accepted = 0
    for values in itertools.product(SIZES, repeat=len(dataclasses.fields(cls))):
        try:
            criterion = RobustLoss(cls(*values))
        except ValueError:
            continue
        accepted += 1
        for dtype in (torch.float32, F64):
            (gradient,) = reference.gradient(lambda x, c=criterion: c(x, target), logits.to(dtype))
            assert criterion(logits.to(dtype), target).isfinite() and gradient.isfinite().all(), values
    assert accepted > 2


@pytest.mark.parametrize("kind", ["loss", "weight"])
@pytest.mark.parametrize(("margin", "got"), [(torch.arange(-2, 3), "torch.int64"), (0.5, "float"), (None, "NoneType")])
def test_margins_are_floating_point_tensors(kind, margin, got):
    with pytest.raises(TypeError, match=f"MAE expects floating-point margins, got {got}"):
        getattr(MAE(), kind)(margin)


@every_curriculum
def test_curriculum_is_a_frozen_value(name, params):
    curriculum, same = make(name, params), make(name, params)
    margin = tensor(COARSE)
    before = hash(curriculum)
    curriculum.peak, curriculum.symmetric, curriculum.max_noise_ratio  # noqa: B018  what they cache is no part of the value
    assert curriculum == same and hash(curriculum) == hash(same) == before and len({curriculum, same}) == 1
    for field in dataclasses.fields(curriculum):
        with pytest.raises(dataclasses.FrozenInstanceError, match=field.name):
            setattr(curriculum, field.name, 1)
    for twin in (copy.deepcopy(curriculum), copy.copy(curriculum), pickle.loads(pickle.dumps(curriculum))):
        assert twin == curriculum and type(twin) is type(curriculum) and twin.peak == curriculum.peak
        assert torch.equal(twin.loss(margin), curriculum.loss(margin))


def test_different_hyperparameters_or_families_are_different_values():
    everything = [make(name, params) for name, params in CASES]
    assert len(set(everything)) == len(everything)
    assert not any(a == b for a, b in itertools.combinations(everything, 2))


@every_curriculum
def test_value_does_not_depend_on_shape_or_strides(name, params):
    curriculum = make(name, params)
    margin = torch.linspace(-6, 6, 24, dtype=F64).reshape(2, 3, 4)
    for view in (margin.mT, margin[:, ::2], margin[0, 0, 0], margin[:0]):
        assert curriculum.loss(view).shape == curriculum.weight(view).shape == view.shape
        assert_close(
            curriculum.loss(view), curriculum.loss(view.contiguous().flatten()).reshape(view.shape), rtol=1e-13, atol=0
        )
