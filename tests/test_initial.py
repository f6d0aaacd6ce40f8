"""Where margins start, and what the fixes do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from mpmath import mp
from torch import Tensor, nn

from curriculoss import initial
from curriculoss.fixing import TAU, FixPlan, fix, mean_initial_weight, plan_fix, underfitting
from curriculoss.initial import (
    expected_initial_margin,
    measure_initial_margins,
    simulate_initial_margins,
)
from curriculoss.losses import AGCE, AUL, CE, GCE, MAE, SCE, Curriculum, Scaled, Shifted
from curriculoss.losses.regularized import NCE
from curriculoss.margin import soft_margin


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# The expectation


def test_the_closed_form_gives_the_papers_numbers() -> None:
    assert expected_initial_margin(100) == pytest.approx(-5.086, abs=5e-4)
    assert expected_initial_margin(10) == pytest.approx(-2.602, abs=5e-4)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0, 30.0])
def test_two_classes_start_at_zero_exactly(sigma: float) -> None:
    assert expected_initial_margin(2, sigma) == 0.0


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 3.0, 20.0, 100.0])
def test_three_classes_are_exact_to_ten_digits(sigma: float) -> None:
    """log(e^a + e^b) = (a + b)/2 + log 2cosh((a − b)/2), so one integral over (a − b)/(σ√2) ~ N(0, 1) is the truth."""

    def integrand(u: Any) -> Any:
        half = sigma * abs(u) / mp.sqrt(2)
        return (half + mp.log1p(mp.exp(-2 * half))) * mp.npdf(u)

    truth = -2 * mp.quad(integrand, [0, 0.01, 0.1, 1, 2, 4, 8, 12])
    assert expected_initial_margin(3, sigma) == pytest.approx(float(truth), rel=1e-10)


@pytest.mark.parametrize(("num_classes", "sigma"), [(3, 1.0), (5, 1.0), (9, 1.0), (4, 2.0), (1000, 3.0), (50, 2.5)])
def test_the_integral_agrees_with_simulation(num_classes: int, sigma: float) -> None:
    margins = simulate_initial_margins(num_classes, 20_000, sigma=sigma, generator=seeded(1)).double()
    error = float(margins.std()) / math.sqrt(len(margins))
    assert abs(expected_initial_margin(num_classes, sigma) - float(margins.mean())) < 4 * error


def test_the_integral_continues_the_closed_form() -> None:
    """Where both hold, they agree: the Taylor expansion's error falls with the number of classes."""
    for num_classes, error in ((10, 2e-2), (100, 3e-4), (1000, 3e-6)):
        integral = -initial._expected_log_sum(num_classes - 1, 1.0)
        assert expected_initial_margin(num_classes) == pytest.approx(integral, abs=error)


def test_equal_scores_start_at_minus_log_of_the_others() -> None:
    for num_classes in (3, 5, 9, 10, 1000):
        assert expected_initial_margin(num_classes, 0.0) == pytest.approx(-math.log(num_classes - 1), abs=1e-12)


def test_more_classes_start_further_left() -> None:
    starts = [expected_initial_margin(k) for k in range(2, 40)]
    assert starts == sorted(starts, reverse=True)


@pytest.mark.parametrize("call", [expected_initial_margin, simulate_initial_margins])
def test_fewer_than_two_classes_are_refused(call: Callable[[int], Any]) -> None:
    with pytest.raises(ValueError, match=rf"{call.__name__} expects num_classes >= 2, got num_classes=1"):
        call(1)
    with pytest.raises(TypeError, match=rf"{call.__name__} expects an integer num_classes >= 2, got num_classes=100.0"):
        call(100.0)  # type: ignore[arg-type]


def test_an_integer_may_be_a_tensors() -> None:
    assert type(expected_initial_margin(torch.tensor(100))) is float  # type: ignore[arg-type]
    assert fix(MAE(), "scale", num_classes=torch.tensor(100)) == fix(MAE(), "scale", num_classes=100)  # type: ignore[arg-type]


@pytest.mark.parametrize("sigma", [-1.0, math.nan, math.inf, "1"])
def test_a_spread_that_is_none_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match=r"expected_initial_margin expects 0 <= sigma <= 100, got sigma="):
        expected_initial_margin(10, sigma)
    with pytest.raises(ValueError, match=r"simulate_initial_margins expects a finite sigma >= 0, got sigma="):
        simulate_initial_margins(10, sigma=sigma)


# Simulation


def test_simulation_does_not_depend_on_global_state() -> None:
    torch.manual_seed(1)
    first, state = simulate_initial_margins(10, 50), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, simulate_initial_margins(10, 50))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


def test_simulation_is_the_margin_of_normal_scores() -> None:
    scores = torch.randn(200, 7, generator=seeded(3)) * 2
    expected = scores[:, 0] - scores[:, 1:].logsumexp(1)
    torch.testing.assert_close(simulate_initial_margins(7, 200, sigma=2, generator=seeded(3)), expected)


def test_simulation_goes_on_with_its_generator() -> None:
    generator = seeded(4)
    assert not torch.equal(*(simulate_initial_margins(5, 30, generator=generator) for _ in range(2)))


def test_simulation_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    draw = torch.randn

    def randn(size: tuple[int, int], **how: Any) -> Tensor:
        sizes.append(math.prod(size))
        return draw(size, **how)

    monkeypatch.setattr(torch, "randn", randn)
    assert len(simulate_initial_margins(10**6, 9)) == 9
    assert max(sizes) <= initial.SCORES_AT_ONCE < sum(sizes) == 9 * 10**6


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expects num_samples >= 1, got num_samples=0"):
        simulate_initial_margins(10, 0)


def test_what_is_no_number_of_classes_or_samples_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected_initial_margin expects num_classes <= 1e\+18, got num_classes=1000"
    ):
        expected_initial_margin(10**400)
    with pytest.raises(TypeError, match=r"expects an integer num_samples >= 1, got num_samples=2.5"):
        simulate_initial_margins(10, 2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expects a torch.Generator or None, got generator=3"):
        simulate_initial_margins(10, generator=3)  # type: ignore[arg-type]


def test_fewer_samples_are_afforded_of_more_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial, "simulate_initial_margins", lambda _, num_samples: num_samples)
    afforded = [initial.affordable_margins(k) for k in (2, 100, 20_000, 10**6)]
    assert afforded == [10_000, 10_000, 3355, 100]  # type: ignore[comparison-overlap]  # numbers here, not tensors


# Measurement


class Net(nn.Module):
    """Batch norm and dropout, and a buffer that is replaced instead of written to."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        out: Tensor = self.body(x)
        return out


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    generator = seeded(5)
    return [
        (torch.randn(9, 6, generator=generator), torch.randint(5, (9,), generator=generator)),
        (torch.randn(4, 6, generator=generator), torch.randint(5, (4,), generator=generator)),
    ]


def test_measuring_leaves_no_trace(net: Net, batches: list[tuple[Tensor, Tensor]]) -> None:
    before = {name: (buffer, buffer.clone()) for name, buffer in net.named_buffers()}
    state = torch.get_rng_state()
    margins = measure_initial_margins(net, batches)
    assert torch.equal(state, torch.get_rng_state())
    assert net.training
    assert not margins.requires_grad
    assert all(x.grad is None for x in net.parameters())
    for name, buffer in net.named_buffers():
        assert buffer is before[name][0]
        assert torch.equal(buffer, before[name][1])


def test_measured_are_the_margins_of_the_model_in_its_mode(net: Net, batches: list[tuple[Tensor, Tensor]]) -> None:
    torch.manual_seed(6)
    measured = measure_initial_margins(net, batches)
    torch.manual_seed(6)
    expected = torch.cat([soft_margin(net(x), y) for x, y in batches])
    assert measured.dtype == torch.float32
    torch.testing.assert_close(measured, expected.detach())
    net.eval()
    expected = torch.cat([soft_margin(net(x), y) for x, y in batches])
    torch.testing.assert_close(measure_initial_margins(net, batches), expected.detach())


def test_buffers_are_restored_when_measuring_fails(net: Net, batches: list[tuple[Tensor, Tensor]]) -> None:
    def broken() -> Iterator[tuple[Tensor, Tensor]]:
        yield batches[0]
        raise OSError("the disk is gone")

    before = net.body[1].running_mean.clone()
    with pytest.raises(OSError, match="the disk is gone"):
        measure_initial_margins(net, broken())
    assert torch.equal(net.body[1].running_mean, before)


def test_ignored_targets_are_left_out() -> None:
    logits = torch.randn(4, 5, 3, generator=seeded(7))
    target = torch.randint(5, (4, 3), generator=seeded(8))
    target[1, 2] = target[3, 0] = -100
    measured = measure_initial_margins(lambda x: x, [(logits, target)])
    assert measure_initial_margins(lambda x: x.double(), [(logits, target)]).dtype == torch.float32
    torch.testing.assert_close(measured, soft_margin(logits, target)[target != -100])
    assert measured.shape == (10,)
    relabelled = target.masked_fill(target == -100, 255)
    assert torch.equal(measured, measure_initial_margins(lambda x: x, [(logits, relabelled)], ignore_index=255))


def test_nothing_to_measure_is_an_error(net: Net) -> None:
    with pytest.raises(ValueError, match="expects at least one batch, got none"):
        measure_initial_margins(net, [])
    with pytest.raises(ValueError, match="expects targets other than ignore_index=-100, got none"):
        measure_initial_margins(net, [(torch.zeros(2, 6), torch.full((2,), -100))])
    with pytest.raises(TypeError, match=r"expects batches of \(input, target\), got Tensor"):
        measure_initial_margins(net, [torch.zeros(2, 6)])
    with pytest.raises(TypeError, match=r"expects batches of \(input, target\), got tuple of 3"):
        measure_initial_margins(net, [(torch.zeros(2, 6), torch.zeros(2), torch.zeros(2))])


# The fixes

UNDERFITTING = [MAE(), AGCE(1.6, 2.0), AUL(3.0, 0.7), GCE(0.7)]


@pytest.mark.parametrize("curriculum", UNDERFITTING, ids=repr)
@pytest.mark.parametrize("method", ["scale", "shift"])
@pytest.mark.parametrize("tau", [1.0, 2.6])
def test_a_fix_weighs_the_expected_start_like_minus_tau(curriculum: Curriculum, method: str, tau: float) -> None:
    fixed = fix(curriculum, method, tau=tau, num_classes=100)
    start = torch.tensor(expected_initial_margin(100), dtype=torch.float64)
    wanted = curriculum.weight(torch.tensor(-tau, dtype=torch.float64)) / curriculum.peak.weight
    torch.testing.assert_close(fixed.weight(start) / fixed.peak.weight, wanted)


def test_fixes_are_the_papers() -> None:
    assert fix(MAE(), "scale", tau=2.6, initial_margin=-5.2) == Scaled(MAE(), 0.5)
    assert fix(MAE(), "shift", tau=2.5, initial_margin=-5.0) == Shifted(MAE(), 2.5)
    assert fix(MAE(), "shift", tau=0, initial_margin=-5.0) == Shifted(MAE(), 5.0)


@pytest.mark.parametrize("method", ["scale", "shift"])
def test_tau_is_where_ten_classes_start_unless_given(method: str) -> None:
    assert fix(MAE(), method, num_classes=100) == fix(MAE(), method, tau=TAU, num_classes=100) != MAE()


def test_measured_margins_are_averaged() -> None:
    assert fix(MAE(), "scale", tau=2.5, initial_margin=torch.tensor([-4.0, -6.0])) == Scaled(MAE(), 0.5)
    assert fix(MAE(), "scale", tau=2.5, initial_margin=[-4, -6]) == Scaled(MAE(), 0.5)


def test_logit_bias_starts_where_ten_classes_start() -> None:
    fixed = fix(MAE(), "logit-bias", num_classes=1000)
    assert isinstance(fixed, Shifted)
    assert expected_initial_margin(1000) + fixed.beta == pytest.approx(expected_initial_margin(10), abs=1e-12)


def test_logit_bias_does_nothing_with_ten_classes() -> None:
    curriculum = MAE()
    assert fix(curriculum, "logit-bias", num_classes=10) is curriculum


HARMFUL = [
    ("scale", {"tau": 2.6, "num_classes": 2}, r"initial margin of 0 and tau=2.6 \(alpha=inf\)"),
    ("scale", {"tau": 3.0, "num_classes": 10}, r"initial margin of -2.602 and tau=3 \(alpha=1.153\)"),
    ("scale", {"tau": 0.5, "initial_margin": 1.0}, r"initial margin of 1 and tau=0.5 \(alpha=0.5\)"),
    ("shift", {"tau": 2.6, "num_classes": 2}, r"initial margin of 0 and tau=2.6 \(beta=-2.6\)"),
    ("shift", {"tau": 3.0, "num_classes": 10}, r"initial margin of -2.602 and tau=3 \(beta=-0.3982\)"),
    ("logit-bias", {"num_classes": 9}, r"initial margin of -2.489 \(beta=-0.1123\)"),
]


@pytest.mark.parametrize(("method", "given", "said"), HARMFUL)
def test_a_fix_that_would_do_harm_does_nothing_and_says_so(method: str, given: dict[str, Any], said: str) -> None:
    curriculum = MAE()
    with pytest.warns(UserWarning, match=rf"fix '{method}' would do harm with an expected {said}") as caught:
        assert fix(curriculum, method, **given) is curriculum
    assert caught[0].filename == __file__


def test_a_plan_says_what_is_done_and_why_not() -> None:
    scaled, shifted = (plan_fix(MAE(), method, num_classes=100) for method in ("scale", "shift"))
    start = expected_initial_margin(100)
    assert scaled == FixPlan(Scaled(MAE(), TAU / -start), "scale", TAU / -start, None, start)
    assert shifted == FixPlan(Shifted(MAE(), -start - TAU), "shift", None, -start - TAU, start)
    assert scaled.applied and not scaled.reason
    left = plan_fix(MAE(), "scale", tau=0.5, initial_margin=1.0)
    assert (left.curriculum, left.alpha, left.margin, left.applied) == (MAE(), 0.5, 1.0, False)
    assert left.reason.startswith("fix 'scale' would do harm") and left.reason.endswith("left as it is")
    same = plan_fix(MAE(), "logit-bias", num_classes=10)
    assert (same.curriculum, same.beta, same.applied) == (MAE(), 0.0, True)


def test_who_insists_gets_the_harm() -> None:
    scaled = fix(MAE(), "scale", tau=5.2, initial_margin=-2.6, insist=True)
    shifted = fix(MAE(), "shift", tau=5.0, initial_margin=-2.6, insist=True)
    biased = fix(MAE(), "logit-bias", num_classes=2, insist=True)
    assert (scaled, shifted) == (Scaled(MAE(), 2.0), Shifted(MAE(), -2.4))
    assert biased == Shifted(MAE(), expected_initial_margin(10))
    assert fix(MAE(), "shift", tau=1.0, initial_margin=0.5, insist=True) == Shifted(MAE(), -1.5)


def test_insisting_cannot_divide_by_zero() -> None:
    with pytest.raises(ValueError, match="divides tau by the expected initial margin, which is 0"):
        fix(MAE(), "scale", tau=2.6, num_classes=2, insist=True)


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("scal", {"tau": 1.0, "num_classes": 9}, r"unknown fix 'scal', did you mean 'scale'\? Available: scale, sh"),
        ("logit_bias", {"num_classes": 9}, "did you mean 'logit-bias'"),
        ("", {"num_classes": 9}, "unknown fix ''. Available: scale"),
        ("scale", {"tau": "2.6", "num_classes": 9}, "fix 'scale' expects a finite tau > 0 .*, got tau='2.6'"),
        ("scale", {"tau": 0.0, "num_classes": 9}, "got tau=0.0"),
        ("shift", {"tau": -1.0, "num_classes": 9}, "got tau=-1.0"),
        ("shift", {"tau": math.nan, "num_classes": 9}, "got tau=nan"),
        ("shift", {"tau": math.inf, "num_classes": 9}, "got tau=inf"),
        ("scale", {"tau": 1.0}, "expects either num_classes or initial_margin, got num_classes=None"),
        ("scale", {"tau": 1.0, "num_classes": 9, "initial_margin": -5.0}, "either num_classes or initial_margin, got"),
        ("scale", {"tau": 1.0, "initial_margin": math.nan}, "expects a finite initial_margin, got nan"),
        ("scale", {"tau": 1.0, "initial_margin": torch.zeros(0)}, "expects a finite initial_margin, got nan"),
        ("scale", {"tau": 1.0, "num_classes": 1}, "expects num_classes >= 2"),
        ("logit-bias", {"tau": 1.0, "num_classes": 9}, "'logit-bias' expects num_classes, and neither tau"),
        ("logit-bias", {"initial_margin": -5.0}, "'logit-bias' expects num_classes"),
    ],
)
def test_a_fix_that_is_not_one_is_refused(method: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fix(MAE(), method, **given)


def test_a_fix_works_on_curricula_alone() -> None:
    with pytest.raises(TypeError, match=r"fix expects a curriculum such as MAE\(\), got CrossEntropyLoss\(\)"):
        fix(nn.CrossEntropyLoss(), "scale", tau=2.6, num_classes=100)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="fix expects numbers as initial_margin, got str"):
        fix(MAE(), "scale", initial_margin="a")  # type: ignore[arg-type]


# The verdict

PAPER: list[tuple[Curriculum, str]] = [
    (CE(), "none"),
    (SCE(0.7), "none"),
    (GCE(0.3), "none"),
    (AUL(1.1, 5.0), "mild"),
    (AGCE(0.1, 0.1), "mild"),
    (MAE(), "severe"),
    (AUL(3.0, 0.7), "severe"),
    (AGCE(1.6, 2.0), "severe"),
]


@pytest.mark.parametrize(("curriculum", "level"), PAPER, ids=lambda x: str(x))
def test_the_verdict_is_the_papers(curriculum: Curriculum, level: str) -> None:
    assert underfitting(curriculum, 100).level == level
    assert underfitting(curriculum, 10).level == "none"


@pytest.mark.parametrize("num_classes", [50, 200, 400])
def test_mae_on_webvision_underfits_unless_fixed(num_classes: int) -> None:
    assert underfitting(MAE(), num_classes).level == "severe"
    for method in ("scale", "shift"):
        assert underfitting(fix(MAE(), method, tau=1.8, num_classes=num_classes), num_classes).level == "none"


def test_the_verdict_says_what_scaling_would_do() -> None:
    margins = simulate_initial_margins(100)
    verdict = underfitting(MAE(), initial_margins=margins)
    scaled = underfitting(fix(MAE(), "scale", tau=2.6, initial_margin=margins), initial_margins=margins)
    assert verdict.sentence.startswith("It will underfit severely: samples start with 3.97 % of the weight that CE ")
    assert verdict.sentence.endswith(f"Scaling it with tau=2.6 would make that {100 * scaled.share_of_ce:.3g} %.")
    assert "Scaling" not in scaled.sentence


def test_the_verdict_does_not_recommend_what_does_not_help() -> None:
    """Weights far below the initial margins are not reached by scaling."""
    verdict = underfitting(Shifted(MAE(), 30.0), 100)
    assert verdict.level == "severe"
    assert "Scaling" not in verdict.sentence


def test_cross_entropy_has_all_of_its_own_weight() -> None:
    for num_classes in (2, 10, 1000):
        assert underfitting(CE(), num_classes).share_of_ce == 1.0


def test_the_mean_initial_weight_is_an_expectation() -> None:
    """With two classes Δ ~ N(0, 2), and MAE's weight over its peak is 4 p (1 − p)."""
    truth = mp.quad(lambda x: 4 / (1 + mp.exp(-x)) / (1 + mp.exp(x)) * mp.npdf(x, 0, mp.sqrt(2)), [-20, -3, 0, 3, 20])
    margins = simulate_initial_margins(2, 10_000).double()
    error = float((4 * margins.sigmoid() * (-margins).sigmoid()).std()) / 100
    assert abs(mean_initial_weight(MAE(), 2) - float(truth)) < 4 * error


def test_the_mean_initial_weight_ignores_the_scale_of_a_loss() -> None:
    margins = torch.tensor([-5.0, -4.0])
    assert mean_initial_weight(MAE(), initial_margins=margins) == pytest.approx(float(4 * MAE().weight(margins).mean()))


@pytest.mark.parametrize("call", [mean_initial_weight, underfitting])
def test_a_verdict_needs_one_kind_of_margins(call: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=rf"{call.__name__} expects either num_classes or initial_margins"):
        call(MAE())
    with pytest.raises(ValueError, match=rf"{call.__name__} expects either num_classes or initial_margins"):
        call(MAE(), 10, initial_margins=torch.zeros(3))
    with pytest.raises(ValueError, match=rf"{call.__name__} expects num_classes >= 2, got num_classes=0"):
        call(MAE(), 0)


@pytest.mark.parametrize("call", [mean_initial_weight, underfitting])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([math.nan, -3.0], "expects at least one number and no NaN as initial_margins, got 1 NaN among 2 numbers"),
        ([], "expects at least one number and no NaN as initial_margins, got 0 NaN among 0 numbers"),
        ("a", "expects numbers as initial_margins, got str"),
    ],
)
def test_margins_that_say_nothing_are_refused(call: Callable[..., Any], given: Any, said: str) -> None:
    for margins in (given, torch.tensor(given)) if isinstance(given, list) else (given,):
        with pytest.raises((TypeError, ValueError), match=f"{call.__name__} {said}"):
            call(MAE(), initial_margins=margins)


@pytest.mark.parametrize("call", [mean_initial_weight, underfitting])
def test_a_verdict_is_about_curricula_and_takes_lists(call: Callable[..., Any]) -> None:
    assert call(MAE(), initial_margins=[-3, -5]) == call(MAE(), initial_margins=torch.tensor([-3.0, -5.0]))
    with pytest.raises(TypeError, match=rf"{call.__name__} expects a curriculum such as MAE\(\), got NCE\(\)"):
        call(NCE(), 100)


def test_samples_that_are_learned_have_no_verdict() -> None:
    with pytest.raises(ValueError, match=r"expects margins that CE gives some weight, got a mean margin of 1e\+05"):
        underfitting(MAE(), initial_margins=[1e5])
    assert underfitting(MAE(), initial_margins=[-math.inf]).level == "severe"
