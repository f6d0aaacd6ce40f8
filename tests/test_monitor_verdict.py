"""What a monitor says in words, and that it says it once."""

from __future__ import annotations

import math

import torch

from curriculoss import CE, MAE, NCE, AutoLoss, Designed, Scaled, fix, simulate_initial_margins
from curriculoss.losses import Loss
from curriculoss.monitor import Monitor, initial_verdict

UNBOUNDED = Designed(lambda margin: (-margin).clamp(min=0))


def verdicts(loss: Loss, epochs: list[tuple[float, float]], normalize: bool = True) -> list[tuple[str, ...]]:
    """Of a training where clean and noisy samples, one each, have these margins."""
    monitor = Monitor(loss, num_classes=100, normalize=normalize)
    out = []
    for margins in epochs:
        logits = torch.zeros(2, 100)
        logits[:, 0] = torch.tensor(margins) + math.log(99)
        monitor.update(logits=logits, target=torch.tensor([0, 0]), clean_target=torch.tensor([0, 1]), learning_rate=0.1)
        out.append(monitor.end_epoch().verdicts)
    return out


def test_marginal_initial_weights_are_said_after_the_first_epoch() -> None:
    share = float((4 * MAE().weight(torch.tensor([-5.0])) / CE().weight(torch.tensor([-5.0])))[0])
    sentence = f"initial weights are {100 * share:.3g} % of CE's: this will underfit, try fix=scale tau=2.6"
    assert verdicts(MAE(), [(-5.0, -5.0), (-5.0, -5.0)]) == [(sentence,), ()]
    assert verdicts(Scaled(MAE(), 0.5), [(-5.0, -5.0)]) == [()]
    assert verdicts(CE(), [(-5.0, -5.0)]) == [()]


def test_the_verdict_is_on_the_first_batch_and_not_on_what_follows() -> None:
    monitor = Monitor(MAE(), num_classes=100)
    target = torch.zeros(4, dtype=torch.int64)
    monitor.update(margin=torch.full((4,), -1.0), target=target, learning_rate=0.1)
    monitor.update(margin=torch.full((4,), -9.0), target=target, learning_rate=0.1)
    assert monitor.end_epoch().verdicts == ()


def test_the_fix_is_named_where_it_helps() -> None:
    margins = simulate_initial_margins(100)
    sentence = initial_verdict(MAE(), margins)
    assert sentence is not None and sentence.endswith("this will underfit, try fix=scale tau=2.6")
    assert initial_verdict(fix(MAE(), "scale", num_classes=100), margins) is None
    few = torch.full((9,), -2.0)
    narrow = initial_verdict(Scaled(MAE(), 3.0), few)
    assert narrow is not None and narrow.endswith("this will underfit")


def test_what_the_rule_does_not_know_is_not_judged() -> None:
    margins = torch.full((9,), -5.0)
    assert initial_verdict(NCE().curriculum, margins) is None
    assert initial_verdict(UNBOUNDED, margins) is None
    assert initial_verdict(MAE(), torch.full((9,), math.nan)) is None
    assert initial_verdict(MAE(), torch.full((9,), 1e4)) is None


def test_a_loss_that_sets_itself_is_not_judged_by_what_it_may_come_to() -> None:
    loss = AutoLoss(1000)
    monitor = Monitor(loss, num_classes=1000)
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    monitor.update(logits=logits, target=torch.arange(64), learning_rate=0.1)
    epoch = monitor.end_epoch()
    assert epoch.verdicts == () and epoch.mean_weight is not None and epoch.mean_weight > 0.9


def test_noise_that_carries_most_of_the_gradient_is_said_once() -> None:
    said = verdicts(CE(), [(0.0, 0.0), (0.2, 0.0), (3.0, 0.0)])
    share = 0.5 / (0.5 + float(torch.sigmoid(torch.tensor(-0.2))))
    assert said == [(), (f"noisy samples now carry most of the gradient ({100 * share:.3g} %)",), ()]


def test_noise_that_is_memorised_is_said_once() -> None:
    said = verdicts(Scaled(MAE(), 0.5), [(0.0, -4.0), (0.0, -6.0), (0.0, -5.1), (0.0, -4.9), (0.0, -3.0)])
    assert said == [(), (), (), ("margins of noisy samples rise (from -6 to -4.9): they are being memorised",), ()]


def test_divergence_is_said_once() -> None:
    said = verdicts(CE(), [(0.0, 0.0), (math.nan, math.nan), (math.nan, math.nan)])
    assert said == [(), ("margins are no longer finite: training has diverged",), ()]


def test_what_was_said_and_seen_is_known_after_resuming() -> None:
    first, second = (Monitor(CE(), num_classes=100) for _ in range(2))
    labels = {"target": torch.tensor([0, 0]), "clean_target": torch.tensor([0, 1])}
    first.update(margin=torch.tensor([9.0, -6.0]), **labels, learning_rate=0.1)
    assert [x[:17] for x in first.end_epoch().verdicts] == ["noisy samples now"]
    second.load_state_dict(first.state_dict())
    second.update(margin=torch.tensor([9.0, -4.0]), **labels, learning_rate=0.1)
    assert second.end_epoch().verdicts == ("margins of noisy samples rise (from -6 to -4): they are being memorised",)


def test_an_unbounded_curriculum_is_followed_without_a_verdict() -> None:
    assert verdicts(UNBOUNDED, [(-5.0, -5.0)], normalize=False) == [()]


def test_mild_underfitting_is_called_so() -> None:
    (said,) = verdicts(MAE(), [(-3.5, -3.5)])
    assert len(said) == 1 and "this will underfit mildly" in said[0]
