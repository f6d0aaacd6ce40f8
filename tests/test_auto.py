"""AutoLoss: what it weighs with, how it follows a network, and that it can stand wherever RobustLoss can."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

from curriculoss import GCE, MAE, AutoLoss, RobustLoss, Scaled, decompose, expected_initial_margin, soft_margin
from curriculoss.auto import AWAY, BACK, CLEAN, LATER, MEMORY, NARROWING, SPREAD, WIDEST
from curriculoss.monitor import Monitor
from curriculoss.training.spec import RunSpec
from curriculoss.training.task import make_criterion, make_network, make_task

LIKELIHOODS = {1e-4: WIDEST, 0.01: 0.2, 0.5: CLEAN}  # and the alpha that is due
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler uses what torch has deprecated


def batch(
    num_samples: int = 32, num_classes: int = 100, axes: tuple[int, ...] = (), dtype: torch.dtype = torch.float64
):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(num_samples, num_classes, *axes, generator=generator, dtype=torch.float64)
    target = torch.randint(num_classes, (num_samples, *axes), generator=generator)
    return logits.to(dtype).requires_grad_(), target


def at(likelihood: float, size: float = 0.0, **options) -> AutoLoss:
    criterion = AutoLoss(100, **options).eval()
    criterion.likelihood.fill_(likelihood)
    criterion.size.fill_(size)
    criterion.lowest.fill_(0.0)
    return criterion


def gradient(criterion, logits, target):
    return torch.autograd.grad(criterion(logits, target).sum(), logits)[0]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"ignore_index": 7},
        {"class_weight": torch.linspace(0.5, 2, 100)},
    ],
    ids=str,
)
@pytest.mark.parametrize("axes", [(), (3,)], ids=str)
def test_it_is_scaled_mae_with_unit_peak(likelihood, options, axes):
    logits, target = batch(axes=axes)
    fixed = RobustLoss(Scaled(MAE(), LIKELIHOODS[likelihood]), **options)
    criterion = at(likelihood, **options)
    tolerance = {"rtol": 1e-6, "atol": 1e-8}  # the likelihood is a float32
    assert_close(criterion(logits, target), fixed(logits, target), **tolerance)
    assert_close(gradient(criterion, logits, target), gradient(fixed, logits, target), **tolerance)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_bell_weighs_as_the_gradient_does(likelihood):
    logits, target = batch()
    criterion = at(likelihood)
    assert_close(criterion.bell.weight(soft_margin(logits, target)), decompose(criterion, logits, target).weight)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_margins_that_run_away_are_called_back_by_gce(reduction):
    logits, target = batch()
    criterion, fixed = at(0.5, 100.0, reduction=reduction), RobustLoss(GCE(BACK / 100), reduction=reduction)
    assert_close(criterion(logits, target), fixed(logits, target), rtol=1e-6, atol=1e-8)
    assert_close(gradient(criterion, logits, target), gradient(fixed, logits, target), rtol=1e-6, atol=1e-8)
    assert_close(criterion.bell.weight(soft_margin(logits, target)), decompose(at(0.5, 100.0), logits, target).weight)
    assert at(0.5, 1.01 * AWAY / CLEAN).bell.away and not at(0.5, 0.99 * AWAY / CLEAN).bell.away


def test_classes_that_do_not_exist_say_nothing_about_the_size_of_margins():
    logits, target = batch()
    plain, masked = AutoLoss(100), AutoLoss(100)
    plain(logits, target)
    hidden = logits.detach().clone()
    hidden[0, target[0]] = -torch.inf
    hidden[1] = -torch.inf
    hidden[1, target[1]] = 0.0
    masked(hidden.requires_grad_(), target)
    assert 0 < float(masked.size) < float(plain.size)


def test_steps_that_are_too_large_do_not_end_it():
    from sklearn.datasets import make_classification

    made = make_classification(2000, 20, n_informative=6, n_redundant=0, n_classes=3, flip_y=0, random_state=0)
    x, y = torch.tensor(made[0], dtype=torch.float32), torch.tensor(made[1])
    torch.manual_seed(1)
    network = torch.nn.Sequential(
        torch.nn.Linear(20, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 3)
    )
    criterion, optimizer = AutoLoss(3), torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    schedule, away = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000), 0
    for _ in range(1000):
        some = torch.randint(len(x), (16,))
        loss = criterion(network(x[some]), y[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        away += int(criterion.bell.away)
    assert away > 0
    assert (network(x).argmax(1) == y).float().mean() > 0.7  # a bell alone ends at a third


def test_probabilities_may_be_targets():
    logits, target = batch()
    shares = torch.nn.functional.one_hot(target, 100).double()
    for criterion in (at(0.01), AutoLoss(100)):
        other = copy.deepcopy(criterion)
        assert_close(criterion(logits, shares), other(logits, target))
    soft, hard = AutoLoss(100), AutoLoss(100)
    soft(logits, shares), hard(logits, target)
    assert_close(soft.likelihood, hard.likelihood)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_precisions(dtype):
    logits, target = batch(dtype=dtype)
    found, expected = at(0.01)(logits, target), at(0.01)(logits.double(), target)
    assert found.dtype == dtype
    assert_close(found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    huge = (logits.detach() * 1e3).requires_grad_()
    assert gradient(AutoLoss(100), huge, target).isfinite().all()


def test_the_last_layer_may_be_part_of_it():
    hidden, weight = torch.randn(32, 5, requires_grad=True), torch.randn(100, 5, requires_grad=True)
    target = batch()[1]
    fused, plain = AutoLoss(100), AutoLoss(100)
    assert_close(fused.linear(hidden, weight, None, target), plain(hidden @ weight.T, target))
    assert fused.likelihood == pytest.approx(float(plain.likelihood), rel=1e-6) != pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize(("num_classes", "alpha"), [(2, 0.7837), (10, 0.8647), (100, 0.2), (1000, 0.05)])
def test_the_more_classes_the_wider_it_starts(num_classes, alpha):
    assert float(AutoLoss(num_classes).bell.alpha) == pytest.approx(alpha, rel=1e-4)


def test_it_narrows_as_labels_become_likely():
    criterion, target = AutoLoss(1000), torch.arange(64)
    alphas = []
    for sureness in torch.linspace(0, 20, 300):
        criterion(sureness * torch.eye(64, 1000, requires_grad=True), target)
        alphas.append(float(criterion.bell.alpha))
    rising = alphas[: alphas.index(max(alphas)) + 1]  # then ranks tell that no label is wrong
    assert rising == sorted(rising) and len(rising) > 10
    assert alphas[0] == pytest.approx(WIDEST)
    assert alphas[-1] == pytest.approx(SPREAD / -expected_initial_margin(1000), rel=0.02)


@pytest.mark.parametrize("num_classes", [2, 3, 10, 100])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6])
def test_it_sees_how_many_labels_are_wrong_and_narrows_accordingly(num_classes, rate):
    generator, criterion, alphas = torch.Generator().manual_seed(0), AutoLoss(num_classes), []
    rate *= 1 - 1 / num_classes
    for _ in range(400):
        true = torch.randint(num_classes, (256,), generator=generator)
        other = (true + torch.randint(1, num_classes, (256,), generator=generator)) % num_classes
        given = torch.where(torch.rand(256, generator=generator) < rate, other, true)
        known = torch.randn(256, num_classes, generator=generator)
        criterion(known.scatter_add(1, true[:, None], torch.full((256, 1), 9.0)).requires_grad_(), given)
        alphas.append(float(criterion.bell.alpha))
    assert float(criterion.noise_rate) == pytest.approx(rate, abs=0.03)
    assert alphas[-1] == pytest.approx(CLEAN / (1 - rate) ** (NARROWING + LATER), rel=0.05)


def test_a_sample_that_counts_twice_is_seen_as_two():
    logits, target = batch()
    once, twice = AutoLoss(100).eval(), AutoLoss(100)
    once.follow(logits, target, torch.tensor([2.0, 0.0, *[1.0] * 30]))
    twice(torch.cat([logits[:1], logits[:1], logits[2:]]), torch.cat([target[:1], target[:1], target[2:]]))
    assert_close(once.likelihood, twice.likelihood)
    assert_close(once.size, twice.size)
    assert (once.seen != AutoLoss(100).seen).all()


@pytest.mark.parametrize(("likelihood", "power"), [(0.3, NARROWING + LATER / 16), (0.6, NARROWING + LATER), (0.9, 0.9)])
def test_it_narrows_once_more_when_the_right_labels_are_learned(likelihood, power):
    criterion = AutoLoss(5)
    criterion.lowest.fill_(0.1)  # of one that is wrong and four that are all the others: a quarter of 0.4
    criterion.likelihood.fill_(likelihood)
    assert float(criterion.noise_rate) == pytest.approx(0.4)
    assert float(criterion.bell.alpha) == pytest.approx(CLEAN / 0.6**power)


@pytest.mark.parametrize("likelihood", [1e-4, 0.01, 0.1, 0.3, 0.49])
@pytest.mark.parametrize("lowest", [0.0, 0.15, 0.2])
def test_an_average_label_keeps_its_weight(likelihood, lowest):
    criterion = AutoLoss(100)
    criterion.likelihood.fill_(likelihood)
    criterion.lowest.fill_(lowest)
    assert float(criterion.bell.weight(criterion.likelihood.logit())) > 0.45


def test_it_follows_in_training_only_and_counts_what_is_not_ignored():
    logits, target = batch(num_classes=100)
    for criterion, context in ((AutoLoss(100).eval(), torch.enable_grad()), (AutoLoss(100), torch.no_grad())):
        with context:
            criterion(logits, target)
        assert float(criterion.likelihood) == pytest.approx(0.01)
    target[1:] = -100
    criterion = AutoLoss(100)
    criterion(logits, target)
    first = float(logits.detach().softmax(1)[0, target[0]])
    assert float(criterion.likelihood) == pytest.approx(MEMORY * 0.01 + (1 - MEMORY) * first, rel=1e-5)


@pytest.mark.parametrize("poison", [float("nan"), "ignored", "weightless"])
def test_a_batch_that_says_nothing_changes_nothing(poison):
    logits, target = batch()
    criterion = AutoLoss(100)
    if poison == "ignored":
        criterion(logits, torch.full_like(target, -100))
    elif poison == "weightless":
        criterion.follow(logits, target, torch.zeros(len(target)))
    else:
        criterion(logits * poison, target)
    assert_close(criterion.state_dict(), AutoLoss(100).state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("mask", [-1e4, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_few_labels_masked_by_a_large_number_do_not_drive_margins_away(mask, dtype):
    criterion, (logits, target) = AutoLoss(10).to(dtype), batch(128, 10, dtype=torch.float32)
    for _ in range(20):
        masked = logits.detach().clone()
        masked[[0, 1], target[:2]] = mask
        criterion(masked.requires_grad_(), target)
    assert not criterion.bell.away and criterion.size < 10
    assert gradient(criterion, logits, target).isfinite().all()
    criterion(torch.full((8, 10), mask).index_fill(1, torch.tensor([0]), -mask).requires_grad_(), target[:8] % 9 + 1)
    assert criterion.size.isfinite() and gradient(criterion, logits, target).isfinite().all()


def test_what_it_has_seen_is_kept():
    logits, target = batch()
    criterion = AutoLoss(100)
    criterion(logits, target)
    again = AutoLoss(100)
    again.load_state_dict(criterion.state_dict())
    for other in (again, copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert torch.equal(other.likelihood, criterion.likelihood) != torch.equal(other.likelihood, torch.tensor(0.01))
        assert torch.equal(other(logits, target), copy.deepcopy(criterion)(logits, target))


@compiles
def test_compiled_it_is_the_eager_one_while_alpha_changes():
    eager, target = AutoLoss(100), torch.arange(64)
    compiled = torch.compile(copy.deepcopy(eager), fullgraph=True, backend="aot_eager")
    for sureness in (0.0, 3.0, 12.0):
        logits = (sureness * torch.eye(64, 100)).requires_grad_()
        for _ in range(20):
            values = eager(logits, target), compiled(logits, target)
        assert_close(*values)
        assert_close(*(torch.autograd.grad(value, logits)[0] for value in values))
    assert float(eager.likelihood) > 0.02


def test_transforms_of_torch_func_leave_it_as_it_is():
    logits, target = batch()
    criterion = AutoLoss(100)
    found = torch.func.grad(lambda x: criterion(x, target))(logits.detach())
    assert float(criterion.likelihood) == pytest.approx(0.01)
    assert_close(found, gradient(AutoLoss(100).eval(), logits, target))


def test_monitor_has_the_weights_of_each_step():
    criterion = AutoLoss(1000)
    monitor, weights = Monitor(criterion, num_classes=1000), []
    for sureness in (0.0, 4.0, 12.0):
        logits, target = sureness * torch.eye(64, 1000), torch.arange(64)
        for _ in range(30):
            criterion(logits, target)
        monitor.update(logits=logits, target=target, learning_rate=0.1)
        weights.append(float(criterion.bell.weight(soft_margin(logits, target)).mean()))
    epoch = monitor.end_epoch()
    assert epoch.mean_weight == pytest.approx(sum(weights) / 3, rel=1e-5)
    assert len({round(weight, 3) for weight in weights}) == 3


def test_spec_makes_it_and_refuses_settings_for_it():
    spec = RunSpec(data="digits", loss="auto", noise="symmetric:0.4")
    task = make_task(spec)
    criterion = make_criterion(spec, task, make_network(spec, task))
    assert isinstance(criterion, AutoLoss) and criterion.num_classes == 10
    assert RunSpec.from_dict(spec.as_dict()) == spec and spec.loss_name == "auto"
    for wrong in ({"fix": "scale"}, {"params": {"q": 0.5}}, {"normalize": False}):
        with pytest.raises(ValueError, match="'auto' sets itself"):
            RunSpec(loss="auto", **wrong)


@pytest.mark.parametrize("num_classes", [1, 2.5, "ten"])
def test_wrong_numbers_of_classes_are_refused(num_classes):
    with pytest.raises((TypeError, ValueError), match=r"AutoLoss expects .*num_classes"):
        AutoLoss(num_classes)


def test_without_logits_no_label_counts_as_wrong_and_the_bell_stays_wide():
    criterion, target = AutoLoss(100), torch.arange(64) % 100
    weight = torch.eye(100)
    for _ in range(400):
        criterion.linear((10 * weight[target]).requires_grad_(), weight, None, target)
    assert float(criterion.likelihood) > 0.9 and float(criterion.noise_rate) < 0.01
    assert float(criterion.bell.alpha) == pytest.approx(CLEAN, rel=0.01)


@pytest.mark.parametrize("num_classes", [3, 7])
def test_another_number_of_classes_is_an_error(num_classes):
    criterion, logits, target = AutoLoss(num_classes), torch.randn(8, 5, requires_grad=True), torch.arange(8) % 3
    for call in (
        lambda: criterion(logits, target),
        lambda: criterion.linear(torch.randn(8, 2), torch.randn(5, 2), None, target),
        lambda: criterion.follow(logits, target, torch.ones(8)),
    ):
        with pytest.raises(ValueError, match=f"AutoLoss expects logits of {num_classes} classes, got 5"):
            call()


def test_its_loss_is_its_own_and_samples_are_weighed_one_by_one():
    for name, value in (("loss", MAE()), ("normalize", True)):
        with pytest.raises(AttributeError, match=f"for a {name} of your choice take RobustLoss"):
            setattr(AutoLoss(3), name, value)
    logits, target = batch(8, 3)
    for weight, got in ((1.0, "got float"), (torch.ones(8, 1), r"got torch.float32 \(8, 1\)")):
        with pytest.raises(ValueError, match=f"a weight of each sample, in the shape of the target, {got}"):
            AutoLoss(3).follow(logits, target, weight)


def test_what_learns_beside_the_network_is_not_remembered():
    criterion, (logits, target) = AutoLoss(3), batch(8, 3)
    shares, weight = torch.zeros(8, 3, requires_grad=True), torch.ones(8, requires_grad=True)
    for _ in range(2):
        criterion(logits, shares.softmax(1)).backward()
        criterion.follow(logits, target, weight.exp())
    assert not criterion.seen.requires_grad and shares.grad.abs().sum() > 0


def test_precision_of_buffers_weights_and_logits_may_differ():
    logits, target = batch(4000, 10, dtype=torch.float32)
    plain = AutoLoss(10)
    plain.follow(logits, target, torch.ones(4000))
    for weight in (torch.full((4000,), 100.0, dtype=torch.float16), torch.ones(4000, dtype=torch.float64)):
        other = AutoLoss(10).double()
        other.follow(logits, target, weight)
        assert_close(other.seen, plain.seen.double(), rtol=1e-5, atol=0)


def test_samples_without_weight_may_hold_anything_and_one_sample_needs_no_batch():
    logits, target = batch(8, 3)
    some, all_of_them = AutoLoss(3), AutoLoss(3)
    some.follow(logits[:6], target[:6], torch.ones(6))
    bad = logits.detach().clone()
    bad[6:] = torch.nan
    all_of_them.follow(bad, target, torch.tensor([*[1.0] * 6, 0.0, -1.0]))
    assert_close(some.seen, all_of_them.seen)
    one, batched = AutoLoss(3), AutoLoss(3)
    one.follow(logits[0], target[0], torch.ones(()))
    batched.follow(logits[:1], target[:1], torch.ones(1))
    assert_close(one.seen, batched.seen)
    assert (one.seen != AutoLoss(3).seen).any()


def test_to_be_measured_leaves_no_trace():
    criterion, (logits, target) = AutoLoss(10), batch(16, 10)
    assert decompose(criterion, logits, target).standard_form
    assert criterion.training
    assert_close(criterion.state_dict(), AutoLoss(10).state_dict(), rtol=0, atol=0)
