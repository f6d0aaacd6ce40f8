"""Weight and direction of losses, ours and strangers'."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curriculoss.decomposition import decompose
from curriculoss.losses import AEL, AGCE, AUL, CE, FL, GCE, MAE, SCE, TCE, Curriculum, Designed, Scaled, Shifted
from curriculoss.margin import soft_margin

CURRICULA = [
    CE(),
    FL(),
    MAE(),
    AUL(),
    AGCE(),
    AEL(),
    GCE(),
    SCE(),
    TCE(),
    Scaled(MAE(), 0.5),
    Shifted(GCE(), 2.0),
    Designed(lambda margin: torch.exp(-margin.square())),
]


def samples(num_samples: int = 60, num_classes: int = 7, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(num_samples, num_classes, generator=generator)
    return logits, torch.randint(num_classes, (num_samples,), generator=generator)


def probability(logits: Tensor, target: Tensor) -> Tensor:
    return logits.softmax(1).gather(1, target.unsqueeze(1)).squeeze(1)


def loss_of(curriculum: Curriculum) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda logits, target: curriculum.loss(soft_margin(logits, target))


def public_gce(logits: Tensor, target: Tensor, q: float = 0.7) -> Tensor:
    """As public code has it: an epsilon, and a mean that cannot be switched off."""
    return ((1 - (probability(logits, target) + 1e-8) ** q) / q).mean()


class PublicMAE(nn.Module):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return (F.one_hot(target, logits.shape[1]) - logits.softmax(1)).abs().sum(1).mean()


def nce(logits: Tensor, target: Tensor) -> Tensor:
    log = logits.log_softmax(1)
    return log.gather(1, target.unsqueeze(1)).squeeze(1) / log.sum(1)


WEIGHT = torch.linspace(0.5, 2, 7)

STANDARD: dict[str, Callable[..., Any]] = {
    "F.cross_entropy": F.cross_entropy,
    "nn.CrossEntropyLoss": nn.CrossEntropyLoss(),
    "sum": lambda s, y: F.cross_entropy(s, y, reduction="sum"),
    "public GCE": public_gce,
    "public MAE": PublicMAE(),
    "log(p + 1e-8)": lambda s, y: -(probability(s, y) + 1e-8).log().mean(),
    "clamped": lambda s, y: -probability(s, y).clamp(min=1e-7).log(),
    "logit bias": lambda s, y: F.cross_entropy(s + 2 * F.one_hot(y, s.shape[1]), y),
    "float32 inside": lambda s, y: F.cross_entropy(s.float(), y, reduction="none"),
    "one sample": lambda s, y: -s[0].log_softmax(0)[int(y)],
    "a column": lambda s, y: F.cross_entropy(s, y, reduction="none").unsqueeze(1),
}
OTHER: dict[str, Callable[..., Any]] = {
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "a little label smoothing": nn.CrossEntropyLoss(label_smoothing=1e-4),
    "class weights": nn.CrossEntropyLoss(weight=WEIGHT),
    "class weights, averaged": lambda s, y: F.cross_entropy(s, y, weight=WEIGHT.to(s.dtype)),
    "class weights, not averaged": lambda s, y: F.cross_entropy(s, y, weight=WEIGHT.to(s.dtype), reduction="none"),
    "multi margin": nn.MultiMarginLoss(),
    "hard margin": lambda s, y: s.scatter(1, y[:, None], -math.inf).amax(1) - s.gather(1, y[:, None]).squeeze(1),
    "temperature": lambda s, y: F.cross_entropy(s / 2, y),
    "NCE": nce,
    "squared error": lambda s, y: (s.softmax(1) - F.one_hot(y, s.shape[1])).square().sum(1),
    "gradient ascent": lambda s, y: -F.cross_entropy(s, y),
    "penalty on logits": lambda s, y: F.cross_entropy(s, y) + 1e-3 * s.square().sum(1).mean(),
    "peer of CE": lambda s, y: -(s.log_softmax(1)[range(len(y)), y] - 0.5 * s.log_softmax(1)[range(len(y)), y.roll(1)]),
    "chance": lambda s, y: torch.rand(len(s)) * F.cross_entropy(s, y, reduction="none"),
}


@pytest.mark.parametrize("curriculum", CURRICULA, ids=lambda c: type(c).__name__)
def test_every_curriculum_is_of_the_standard_form(curriculum: Curriculum) -> None:
    logits, target = samples()
    found = decompose(loss_of(curriculum), logits, target)
    margin = soft_margin(logits.double(), target)
    assert found.standard_form
    torch.testing.assert_close(found.margin, margin)
    torch.testing.assert_close(found.weight, curriculum.weight(margin))
    torch.testing.assert_close(found.cosine, torch.ones_like(margin))
    assert float(found.off_share.max()) < 1e-12


@pytest.mark.parametrize("name", STANDARD)
def test_what_depends_on_the_margin_alone_is_of_the_standard_form(name: str) -> None:
    assert decompose(STANDARD[name], *samples()).standard_form


@pytest.mark.parametrize("name", OTHER)
def test_what_depends_on_more_is_not(name: str) -> None:
    torch.manual_seed(0)
    assert not decompose(OTHER[name], *samples()).standard_form


@pytest.mark.parametrize("num_classes", [2, 3, 50])
def test_the_number_of_classes_does_not_matter(num_classes: int) -> None:
    logits, target = samples(num_classes=num_classes)
    assert decompose(F.cross_entropy, logits, target).standard_form
    # With two classes there is no other direction than ∇Δ, and a squared error is a function of Δ.
    assert decompose(OTHER["squared error"], logits, target).standard_form == (num_classes == 2)


def test_the_weight_of_cross_entropy_is_one_minus_p() -> None:
    logits, target = samples()
    expected = 1 - probability(logits.double(), target)
    for name in ("F.cross_entropy", "nn.CrossEntropyLoss", "sum", "one sample"):
        torch.testing.assert_close(decompose(STANDARD[name], logits, target).weight, expected)


def test_class_weights_multiply_the_weight() -> None:
    logits, target = samples()
    plain, weighted = (decompose(x, logits, target) for x in (F.cross_entropy, nn.CrossEntropyLoss(weight=WEIGHT)))
    # Float32 class weights force the computation into float32.
    torch.testing.assert_close(weighted.weight, plain.weight * WEIGHT[target].double(), rtol=1e-3, atol=1e-6)


def test_cosine_and_off_share_are_legs_of_a_right_triangle() -> None:
    for name in ("label smoothing", "multi margin", "NCE", "squared error"):
        found = decompose(OTHER[name], *samples())
        alive = found.weight > 0
        assert alive.any()
        legs = (found.cosine.square() + found.off_share.square())[alive]
        torch.testing.assert_close(legs, torch.ones_like(legs))
        assert float(found.off_share.max()) > 0.01


def test_a_gradient_the_other_way_has_cosine_minus_one() -> None:
    cosine = decompose(OTHER["gradient ascent"], *samples()).cosine
    torch.testing.assert_close(cosine, -torch.ones_like(cosine))


def test_a_vanishing_gradient_has_no_direction() -> None:
    logits = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    found = decompose(nn.MultiMarginLoss(), logits, torch.tensor([0, 0]))
    assert found.weight.tolist() == [0.0, pytest.approx(2 / 3)]
    assert math.isnan(found.cosine[0])
    assert found.off_share[0] == 0.0


def test_masked_classes_take_no_part() -> None:
    logits = torch.tensor([[1.0, -math.inf, 0.5, 2.0], [0.3, -math.inf, -math.inf, -math.inf]])
    for loss, curriculum in ((loss_of(MAE()), MAE()), (F.cross_entropy, CE())):
        found = decompose(loss, logits, torch.tensor([0, 0]))
        assert found.standard_form
        assert found.margin[1] == math.inf
        torch.testing.assert_close(found.weight, curriculum.weight(found.margin))


def test_the_curve_is_sorted_by_margin() -> None:
    found = decompose(F.cross_entropy, *samples())
    margin, weight = found.curve()
    assert torch.equal(margin, found.margin.sort().values)
    torch.testing.assert_close(weight, torch.sigmoid(-margin))


def test_batches_are_used_where_they_can_be() -> None:
    """One call for the batch, two for its ends, and the same for the probes; anything else takes a call a sample."""
    calls = []

    def counted(logits: Tensor, target: Tensor) -> Tensor:
        calls.append(len(logits))
        return F.cross_entropy(logits, target, reduction="none")

    decompose(counted, *samples(40))
    assert sorted(calls) == [1, 1, 1, 1, 40, 40]
    calls.clear()
    decompose(lambda s, y: counted(s, y).mean(), *samples(40))
    assert sorted(calls) == [1] * 80 + [40, 40]


def test_samples_tied_together_are_taken_alone() -> None:
    logits, target = samples()
    tied = decompose(lambda s, y: F.cross_entropy(s, y, reduction="none") * s.square().mean().detach(), logits, target)
    alone = (1 - probability(logits.double(), target)) * logits.double().square().mean(1)
    torch.testing.assert_close(tied.weight, alone)
    assert not tied.standard_form


def test_the_loss_is_not_changed() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reduction, self.scale = "mean", nn.Parameter(torch.ones(()))

        def forward(self, logits: Tensor, target: Tensor) -> Tensor:
            return self.scale * F.cross_entropy(logits, target, reduction=self.reduction)

    module = Learned()
    decompose(module, *samples())
    assert module.reduction == "mean"
    assert module.scale.grad is None


def test_a_reduction_argument_is_used() -> None:
    given = []

    def loss(logits: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
        given.append(reduction)
        return F.cross_entropy(logits, target, reduction=reduction)

    assert decompose(loss, *samples()).standard_form
    assert set(given) == {"none"}


class Stubborn:
    """Has a reduction, but none called "none"."""

    reduction = "mean"

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor | None:
        losses = F.cross_entropy(logits, target, reduction="none")
        return {"mean": losses.mean(), "sum": losses.sum()}.get(self.reduction)


@dataclass(frozen=True)
class Frozen:
    reduction: str = "mean"

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits, target, reduction=self.reduction)


@pytest.mark.parametrize("loss", [Stubborn(), Frozen()], ids=lambda x: type(x).__name__)
def test_a_reduction_that_cannot_be_switched_off_is_lived_with(loss: Callable[..., Any]) -> None:
    logits, target = samples()
    found = decompose(loss, logits, target)
    assert found.standard_form
    torch.testing.assert_close(found.weight, 1 - probability(logits.double(), target))


def test_half_precision_logits_are_differentiated_in_float64() -> None:
    logits, target = samples()
    half = logits.half()
    found = decompose(F.cross_entropy, half, target)
    # On both sides 1 − p is rounded as 1 is, in float64: a weight of 1e-4 has twelve digits, of which it may lose one.
    torch.testing.assert_close(found.weight, 1 - probability(half.double(), target), rtol=1e-12, atol=1e-15)


def test_gradients_need_not_be_enabled() -> None:
    with torch.no_grad():
        assert decompose(F.cross_entropy, *samples()).standard_form


@pytest.mark.parametrize(
    ("loss", "error", "said"),
    [
        (lambda s, y: F.cross_entropy(s, y).item(), TypeError, r"return one number per sample, got float$"),
        (lambda _s, _y: None, TypeError, "return one number per sample, got None"),
        (lambda s, _y: s, TypeError, "return one number per sample, got 7$"),
        (lambda s, y: s.argmax(1) == y, TypeError, r"return one number per sample, got torch.bool \(1,\)"),
        (lambda s, y: (s.argmax(1) == y).float(), ValueError, "depends on the logits differentiably, got a constant"),
        (lambda s, _y: torch.ones(len(s), requires_grad=True), ValueError, "differentiably, got one that does not"),
    ],
)
def test_what_is_no_differentiable_number_is_refused(loss: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        decompose(loss, *samples())


@pytest.mark.parametrize("loss", ["mae", None], ids=repr)
def test_what_is_no_function_is_refused_with_the_remedy(loss: Any) -> None:
    with pytest.raises(TypeError, match=r"function of \(logits, target\), such as RobustLoss\(MAE\(\)\), got "):
        decompose(loss, *samples())


def test_an_error_of_the_loss_itself_is_passed_on() -> None:
    def broken(_logits: Tensor, _target: Tensor) -> Tensor:
        raise RuntimeError("my own bug")

    with pytest.raises(RuntimeError, match="my own bug"):
        decompose(broken, *samples())


def test_wrong_samples_are_refused() -> None:
    logits, target = samples()
    with pytest.raises(ValueError, match=r"logits of shape \(N, K\) with N >= 1, got ndarray$"):
        decompose(F.cross_entropy, logits.numpy(), target.numpy())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"logits of shape \(N, K\) with N >= 1, got torch.float32 \(0, 7\)"):
        decompose(F.cross_entropy, logits[:0], target[:0])
    with pytest.raises(ValueError, match=r"logits of shape \(N, K\) with N >= 1, got torch.float32 \(7,\)"):
        decompose(F.cross_entropy, logits[0], target[0])
    with pytest.raises(ValueError, match="expects class indices >= 0 as target, got -100"):
        decompose(F.cross_entropy, logits, target.index_fill(0, torch.tensor([3]), -100))
