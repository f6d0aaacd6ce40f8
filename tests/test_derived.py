"""Curricula made from others (Scaled, Shifted) and from a weight function (Designed)."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from curriculoss import RobustLoss, losses
from curriculoss.losses import AEL, AGCE, AUL, CE, FL, GCE, MAE, SCE, TCE, Curriculum, Designed, Scaled, Shifted
from tests import reference

F64 = torch.float64
NEAR = torch.linspace(-30, 30, 121, dtype=F64)
FAR = torch.tensor([-1e4, -2345.0, -700.0, -300.0, -80.0, 80.0, 300.0, 690.0], dtype=F64)
BASES = [CE(), FL(2.0), MAE(), AUL(1.1, 5.0), AGCE(1.6, 2.0), AEL(0.5), GCE(0.3), SCE(0.7), TCE(3)]
every_base = pytest.mark.parametrize("base", BASES, ids=repr)


def true_values(kind: Callable, base: Curriculum, margins: list) -> Tensor:
    name, params = type(base).__name__, vars(base).keys() & {"a", "q"}
    return torch.tensor([float(kind(name, x, **{p: getattr(base, p) for p in params})) for x in margins], dtype=F64)


def exactly(change: Callable) -> list:
    """Margins changed without rounding."""
    with mp.workdps(100):
        return [change(mpf(x)) for x in torch.cat([NEAR, FAR]).tolist()]


DERIVED = [
    ("scaled", lambda c: Scaled(c, 0.37), lambda x: mpf(0.37) * x, 0.37),
    ("stretched", lambda c: Scaled(c, 2.5), lambda x: mpf(2.5) * x, 2.5),
    ("shifted", lambda c: Shifted(c, 2.6), lambda x: x + mpf(2.6), 1.0),
    ("shifted back", lambda c: Shifted(c, -4.1), lambda x: x + mpf(-4.1), 1.0),
    ("scaled shift", lambda c: Scaled(Shifted(c, 2.6), 0.5), lambda x: x / 2 + mpf(2.6), 0.5),
    ("shifted scale", lambda c: Shifted(Scaled(c, 0.5), 2.6), lambda x: (x + mpf(2.6)) / 2, 0.5),
    ("twice scaled", lambda c: Scaled(Scaled(c, 0.5), 0.25), lambda x: x / 8, 0.125),
]
every_change = pytest.mark.parametrize(
    ("derive", "change", "slope"), [d[1:] for d in DERIVED], ids=[d[0] for d in DERIVED]
)


@pytest.mark.slow
@every_base
@every_change
def test_loss_and_weight_are_those_of_the_changed_margin(base, derive, change, slope):
    derived, margin, changed = derive(base), torch.cat([NEAR, FAR]), exactly(change)
    for kind, factor in (("loss", 1.0), ("weight", slope)):
        true = factor * true_values(getattr(reference, kind), base, changed)
        visible = true > 1e-300
        assert_close(getattr(derived, kind)(margin)[visible], true[visible], rtol=1e-12, atol=0)
        assert_close(getattr(derived, kind)(margin.float()).double(), true, rtol=1e-5, atol=1e-35)


@every_base
@every_change
def test_derived_peak_is_the_supremum_and_the_facts_follow_the_base(base, derive, change, slope):
    derived = derive(base)
    weight = derived.weight(torch.linspace(-60, 60, 4001, dtype=F64))
    assert (weight <= derived.peak.weight * (1 + 1e-14)).all()
    assert weight.max() >= derived.peak.weight * (1 - 1e-3)
    assert_close(
        derived.weight(torch.tensor([derived.peak.margin], dtype=F64)).item(), derived.peak.weight, rtol=1e-13, atol=0
    )
    with mp.workdps(50):
        assert float(change(mpf(derived.peak.margin))) == pytest.approx(base.peak.margin, rel=1e-12, abs=1e-12)
    assert derived.bounded == base.bounded
    ends = torch.tensor([-math.inf, math.inf], dtype=F64)
    assert torch.equal(derived.loss(ends), base.loss(ends))
    assert torch.equal(derived.weight(ends), slope * base.weight(ends))


@every_change
def test_derived_weight_is_minus_the_derivative_of_the_loss(derive, change, slope):
    derived = derive(GCE(0.4))
    margin = torch.linspace(-7, 7, 15, dtype=F64, requires_grad=True)
    (gradient,) = torch.autograd.grad(derived.loss(margin).sum(), margin)
    assert_close(gradient, -derived.weight(margin.detach()), rtol=1e-15, atol=0)
    assert gradcheck(derived.loss, (margin,)) and gradcheck(derived.weight, (margin,))
    assert gradgradcheck(derived.loss, (margin,))


def test_changes_that_do_nothing_or_undo_each_other():
    assert torch.equal(Scaled(MAE(), 1.0).loss(NEAR), MAE().loss(NEAR))
    assert torch.equal(Shifted(MAE(), 0.0).weight(NEAR), MAE().weight(NEAR))
    assert torch.equal(Scaled(Scaled(MAE(), 0.5), 2.0).weight(NEAR), MAE().weight(NEAR))
    assert torch.equal(Shifted(Shifted(MAE(), 2.0), -2.0).loss(NEAR), MAE().loss(NEAR))


def test_derived_curricula_are_values():
    derived = Shifted(Scaled(GCE(0.4), 0.5), 1.0)
    assert derived == Shifted(Scaled(GCE(0.4), 0.5), 1.0) and hash(derived) == hash(Shifted(Scaled(GCE(0.4), 0.5), 1.0))
    assert len({derived, Shifted(Scaled(GCE(0.4), 0.5), 2.0), Scaled(GCE(0.4), 0.5), Shifted(GCE(0.4), 0.5)}) == 4
    for twin in (copy.deepcopy(derived), pickle.loads(pickle.dumps(derived))):
        assert twin == derived and torch.equal(twin.loss(NEAR), derived.loss(NEAR))


@pytest.mark.parametrize("cls", [Scaled, Shifted])
@pytest.mark.parametrize("wrong", ["mae", MAE, None, lambda x: x], ids=["name", "class", "None", "function"])
def test_what_is_derived_from_must_be_a_curriculum(cls, wrong):
    with pytest.raises(TypeError, match=rf"{cls.__name__} expects a curriculum such as MAE\(\), got"):
        cls(wrong, 1.0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf, "2"])
def test_scale_must_be_positive_and_finite(alpha):
    with pytest.raises((ValueError, TypeError), match=r"Scaled expects .*alpha"):
        Scaled(MAE(), alpha)


@pytest.mark.parametrize("beta", [math.nan, math.inf, -math.inf, None])
def test_shift_must_be_finite(beta):
    with pytest.raises((ValueError, TypeError), match=r"Shifted expects .*beta"):
        Shifted(MAE(), beta)


# ---- Designed ----


def limited(function: Callable[[Tensor], Tensor], points: int = 20_000_000) -> Callable[[Tensor], Tensor]:
    """The function, until it has been asked for so many points that something runs away."""
    asked = 0

    def weight(margin: Tensor) -> Tensor:
        nonlocal asked
        asked += margin.numel()
        if asked > points:
            pytest.fail(f"asked for {asked} weights")
        return function(margin)

    return weight


def logistic(margin: Tensor) -> Tensor:
    return torch.sigmoid(margin) * torch.sigmoid(-margin)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        (name, params)
        for name, settings in reference.SETTINGS.items()
        for params in settings
        if params.get("q", 1) > 1e-6
    ],
    ids=str,
)
def test_designed_from_a_familys_weight_is_the_family(name, params):
    family = getattr(losses, name)(**params)
    designed = Designed(limited(family.weight))
    margins = [-1e4, -1000.0, -300.0, -30.0, -5.5, -1.0, -0.1, 0.0, 0.3, 1.0, 5.0, 30.0, 300.0]
    with mp.workdps(reference.DIGITS):  # losses count from their minimum, which is 0 but for AEL
        least = reference.LOSS[name](mpf(1), **reference.exact(params))
        true = torch.tensor([float(reference.loss(name, x, **params) - least) for x in margins], dtype=F64)
    got = designed.loss(torch.tensor(margins, dtype=F64))
    visible = true > 1e-300
    assert_close(got[visible], true[visible], rtol=1e-12, atol=0)
    assert designed.bounded == family.bounded and designed.symmetric == family.symmetric
    assert designed.peak.weight == pytest.approx(family.peak.weight, rel=1e-12)
    if family.peak.weight > 1.0001 * float(reference.weight(name, -1e4, **params)):  # no plateau
        assert designed.peak.margin == pytest.approx(family.peak.margin, rel=1e-6, abs=1e-6)


def softplus(margin: Tensor) -> Tensor:
    return torch.logaddexp(margin, torch.zeros_like(margin))  # torch's own is linear above 20


def erfc(margin: Tensor) -> Tensor:
    return math.sqrt(math.pi) / 2 * torch.erfc(margin)


SHAPES = {
    "kinks": (
        lambda x: (1 - x.abs()).relu(),
        lambda x: torch.where(x < 0, 1 - (1 + x).relu() ** 2 / 2, (1 - x).relu() ** 2 / 2),
    ),
    "jumps at knots": (lambda x: (x.abs() <= 1).double(), lambda x: (1 - x).clamp(0, 2)),
    "jumps off knots": (
        lambda x: 3.0 * ((x > -1.2345) & (x < 0.777)),
        lambda x: 3 * (0.777 - x).clamp(0, 0.777 + 1.2345),
    ),
    "kink of a hinge": (lambda x: (0.3 - x).clamp(0, 1), lambda x: softhinge(0.3 - x)),
    "narrow": (lambda x: (-(((x - 3.3) / 0.01) ** 2)).exp(), lambda x: 0.01 * erfc((x - 3.3) / 0.01)),
    "far away": (lambda x: (-((x - 5000) ** 2)).exp(), lambda x: erfc(x - 5000)),
    "heavy tails": (lambda x: 1 / (1 + x * x), lambda x: torch.atan2(torch.ones_like(x), x)),
    "constant": (torch.ones_like, lambda x: -x),
    "divergent above": (torch.sigmoid, lambda x: math.log(2) - softplus(x)),
    "divergent on both sides": (lambda x: 1 / (1 + x.abs()), lambda x: -x.sign() * torch.log1p(x.abs())),
    "single precision": (lambda x: torch.sigmoid(-x.float()).double(), lambda x: softplus(-x)),
    "indicator": (lambda x: x.abs() < 1, lambda x: (1 - x).clamp(0, 2)),
}


def softhinge(x: Tensor) -> Tensor:
    """∫ of clamp(x, 0, 1)."""
    return torch.where(x < 1, x.relu() ** 2 / 2, x - 0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_designed_loss_is_the_integral_of_its_weight(shape):
    weight, integral = SHAPES[shape]
    designed = Designed(limited(weight))
    margin = torch.cat([NEAR / 9.7, NEAR, torch.tensor([-1e4, -4999.5, 4998.7, 5000.2, 5003.0, 1e4], dtype=F64)])
    true = integral(margin)
    tolerance = 1e-6 if shape == "single precision" else 1e-12
    assert_close(designed.loss(margin), true, rtol=tolerance, atol=tolerance * min(1.0, true.abs().max().item()))
    assert designed.weight(margin).dtype == designed.loss(margin).dtype == F64


def test_designed_weight_may_oscillate():
    designed = Designed(limited(lambda x: x.sin() ** 2 / (1 + x * x)))
    assert designed.loss(torch.zeros(1, dtype=F64)).item() == pytest.approx(math.pi / 4 * (1 - math.exp(-2)), rel=1e-3)


def test_designed_limits_at_infinity():
    ends = torch.tensor([-math.inf, math.inf], dtype=F64)
    assert Designed(logistic).loss(ends).tolist() == [pytest.approx(1.0, rel=1e-13), 0.0]
    assert Designed(lambda x: torch.sigmoid(-x)).loss(ends).tolist() == [math.inf, 0.0]
    assert Designed(torch.ones_like).loss(ends).tolist() == [math.inf, -math.inf]
    assert Designed(lambda x: 1 / (1 + x * x)).loss(ends).tolist() == [pytest.approx(math.pi, rel=1e-11), 0.0]


@pytest.mark.parametrize("kind", ["loss", "weight"])
def test_designed_keeps_nan_and_dtype(kind):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, F64):
        margin = torch.tensor([math.nan, 0.5, -2.0], dtype=dtype)
        got = getattr(Designed(logistic), kind)(margin)
        assert got.dtype == dtype and got.isnan().tolist() == [True, False, False]
        assert_close(got[1:], getattr(MAE(), kind)(margin[1:]), rtol=max(1e-13, 2 * torch.finfo(dtype).eps), atol=0)


@pytest.mark.parametrize(
    ("weight", "margin", "height", "tolerance"),
    [
        (lambda x: (1 - (x - 0.3).abs()).relu(), 0.3, 1.0, 1e-9),
        (lambda x: (-((x - 3) ** 2)).exp() + 0.5 * (-((x + 3) ** 2)).exp(), 3.0, 1.0, 1e-7),
        (lambda x: torch.where(x < 0.7, (x / 10).exp(), 0.0), 0.7, math.exp(0.07), 1e-9),
        (lambda x: (-((x + 1234.5) ** 2)).exp(), -1234.5, 1.0, 1e-7),
        (lambda x: torch.sigmoid(-x), -math.inf, 1.0, 0.0),
    ],
    ids=["kink", "two bumps", "jump", "far away", "at minus infinity"],
)
def test_designed_peak_is_the_supremum(weight, margin, height, tolerance):
    peak = Designed(limited(weight)).peak
    assert peak.margin == pytest.approx(margin, abs=tolerance)
    assert peak.weight == pytest.approx(height, rel=1e-9)


@pytest.mark.parametrize(
    ("weight", "side"),
    [
        (lambda x: (1 - x).relu(), -1),
        (lambda x: (1 + x).relu(), 1),
        (lambda x: x.clamp(max=0).square(), -1),
        (lambda x: x.abs().log1p().log1p(), -1),
    ],
    ids=["hinge", "right", "squared hinge", "log log"],
)
def test_designed_weight_without_a_bound_is_not_normalised(weight, side):
    designed = Designed(limited(weight))
    assert designed.peak == (side * math.inf, math.inf)
    logits, target = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    for loss in (designed, Scaled(designed, 0.5), Shifted(designed, 1.0)):
        assert RobustLoss(loss, normalize=False)(logits, target).isfinite()
        name = type(loss).__name__
        with pytest.raises(ValueError, match=f"{name} has no largest weight to normalise by.* normalize=False"):
            RobustLoss(loss)


def test_designed_peak_on_a_plateau_is_somewhere_on_it():
    peak = Designed(lambda x: (x.abs() <= 1).double()).peak
    assert -1 <= peak.margin <= 1 and peak.weight == 1.0


def test_designed_differentiates_maps_and_nests():
    designed = Shifted(Scaled(Designed(logistic), 0.5), 1.0)
    margin = torch.linspace(-7, 7, 15, dtype=F64, requires_grad=True)
    assert gradcheck(designed.loss, (margin,)) and gradgradcheck(designed.loss, (margin,))
    assert_close(designed.loss(margin), Shifted(Scaled(MAE(), 0.5), 1.0).loss(margin), rtol=1e-13, atol=0)
    mapped = torch.func.vmap(torch.func.grad(designed.loss))(margin.detach())
    assert_close(mapped, -designed.weight(margin.detach()), rtol=1e-15, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler uses what torch itself has deprecated
@pytest.mark.parametrize(
    "curriculum",
    [
        FL(2.0),
        AUL(1.1, 5.0),
        AGCE(0.1, 0.1),
        SCE(0.7),
        TCE(3),
        Scaled(AEL(0.5), 0.3),
        Shifted(CE(), 1.0),
        Designed(logistic),
    ],
    ids=lambda c: type(c).__name__,
)
def test_compiled_curriculum_is_the_eager_one(curriculum):
    torch._dynamo.reset()
    margin = torch.linspace(-9, 9, 13, requires_grad=True)
    compiled = torch.compile(lambda x: (curriculum.loss(x), curriculum.weight(x)), fullgraph=True, backend="aot_eager")
    loss, weight = compiled(margin)
    assert_close((loss, weight), (curriculum.loss(margin), curriculum.weight(margin)), rtol=1e-6, atol=1e-7)
    assert_close(torch.autograd.grad(loss.sum(), margin)[0], -curriculum.weight(margin).detach(), rtol=1e-6, atol=1e-7)


def test_designed_is_a_value():
    designed = Designed(logistic)
    assert designed == Designed(logistic) != Designed(torch.ones_like) and hash(designed) == hash(Designed(logistic))
    for twin in (copy.deepcopy(designed), pickle.loads(pickle.dumps(designed))):
        assert twin == designed and torch.equal(twin.loss(NEAR), designed.loss(NEAR))


@pytest.mark.parametrize("wrong", [None, 0.5, "logistic", torch.ones(3)], ids=["None", "number", "name", "tensor"])
def test_designed_expects_a_function(wrong):
    with pytest.raises(TypeError, match="Designed expects a function of the margin, got"):
        Designed(wrong)


@pytest.mark.parametrize(
    "wrong",
    [lambda x: x.sum(), lambda x: 1.0, lambda x: x.exp().unsqueeze(-1), lambda x: x[1:].exp(), lambda x: x.numpy()],
    ids=["sum", "number", "axis", "shorter", "numpy"],
)
def test_designed_expects_a_weight_for_each_margin(wrong):
    with pytest.raises(TypeError, match="maps a tensor of margins to one of the same shape"):
        Designed(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: -torch.sigmoid(x),
        lambda x: x * math.nan,
        lambda x: x.log(),
        lambda x: logistic(x) - 1e-3 * logistic(x - 40),
        lambda x: torch.where((x > 3) & (x < 3.1), math.nan, logistic(x)),
        lambda x: torch.where(x.abs() < 20, x.cos() + 0.99, 0.0),
    ],
    ids=["negative", "NaN", "log", "negative tail", "NaN in a gap", "negative between positives"],
)
def test_designed_expects_weights_that_are_not_negative_nor_nan(wrong):
    with pytest.raises(ValueError, match=r"Designed expects finite weights >= 0, got .* at margin"):
        Designed(limited(wrong))


def test_designed_expects_some_weight():
    with pytest.raises(ValueError, match="not 0 everywhere"):
        Designed(torch.zeros_like)


@pytest.mark.parametrize("margin", [-300.0, 5000.0])
def test_designed_weight_that_vanishes_around_zero_is_not_symmetric(margin):
    assert not Designed(limited(lambda x: (-((x - margin) ** 2)).exp())).symmetric


POINTS = ([-8.0, -4.1, 0.3, 3.0], [0.0, 1.0, 0.25, 0.0])


@pytest.mark.parametrize("weights", [[0.0, 1.0, 0.25, 0.0], [0.5, 1.0, 0.0, 0.0], [0.0, 0.2, 0.25, 0.7]], ids=str)
def test_points_are_joined_by_lines_and_the_loss_is_the_area_to_the_right(weights):
    x = POINTS[0]
    designed = Designed.from_points(x, torch.tensor(weights, dtype=F64))
    margin = torch.cat([torch.linspace(-11, 6, 341, dtype=F64), torch.tensor(x, dtype=F64)])

    def weight(at):
        if not x[0] < at < x[-1]:
            return weights[0] if at <= x[0] else weights[-1]
        k = max(i for i in range(3) if x[i] <= at)
        return weights[k] + (weights[k + 1] - weights[k]) * (at - x[k]) / (x[k + 1] - x[k])

    def area(low, high):
        """Of trapezia between the points; the line is straight between two of them."""
        ends = [low, *(each for each in x if low < each < high), high]
        return sum((weight(a) + weight(b)) / 2 * (b - a) for a, b in pairwise(ends))

    start = 0.0 if weights[-1] else 20.0  # beyond all points: the area is infinite if the last weight is not 0
    areas = [area(at, start) if at < start else -area(start, at) for at in margin.tolist()]
    assert_close(
        designed.weight(margin), torch.tensor([weight(at) for at in margin.tolist()], dtype=F64), rtol=1e-14, atol=1e-16
    )
    assert_close(designed.loss(margin), torch.tensor(areas, dtype=F64), rtol=1e-13, atol=1e-15)
    assert designed.peak.weight == max(weights)


def test_a_curriculum_from_points_is_a_value_that_differentiates():
    designed = Designed.from_points(*POINTS)
    assert pickle.loads(pickle.dumps(designed)) == designed == Designed.from_points(*map(tuple, POINTS))
    assert designed != Designed.from_points(POINTS[0], [0.0, 1.0, 0.5, 0.0]) and designed.peak == (-4.1, 1.0)
    ends = torch.tensor([-math.inf, math.inf, math.nan], dtype=F64)
    assert designed.weight(ends)[:2].tolist() == [0, 0] and designed.weight(ends)[2].isnan()
    margin = torch.linspace(-9.05, 4.95, 15, dtype=F64, requires_grad=True)  # no kink
    assert gradcheck(designed.loss, (margin,)) and gradcheck(designed.weight, (margin,))


@pytest.mark.parametrize(
    ("margins", "weights", "message"),
    [
        ([0.0], [1.0], "at least two margins and a weight for each, got 1 margins and 1 weights"),
        ([0.0, 1.0], [1.0], "got 2 margins and 1 weights"),
        ([0.0, 2.0, 2.0], [1.0, 1.0, 1.0], "expects increasing margins, got 2 after 2"),
        ([0.0, math.inf], [1.0, 1.0], "expects finite margins, got inf"),
        ([0.0, 1.0], [1.0, math.nan], "expects finite weights, got nan"),
        ([0.0, 1.0], ["much", 1.0], "expects numbers as weights, got"),
        (None, [1.0], "expects numbers as margins, got None"),
        ([0.0, 1.0], [1.0, -0.5], r"Designed expects finite weights >= 0, got -0.\d+ at margin"),
        ([0.0, 1.0], [0.0, 0.0], "not 0 everywhere"),
    ],
    ids=["one", "too few", "equal", "infinite", "nan", "text", "none", "negative", "zero"],
)  # fmt: skip
def test_points_are_checked(margins, weights, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Designed.from_points(margins, weights)
