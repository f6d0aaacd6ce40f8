"""AutoLoss: what it weighs with, how it follows a network, and that it can stand wherever RobustLoss can."""

from __future__ import annotations

import copy
import datetime
import pickle
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.testing import assert_close

from curriculoss import GCE, MAE, AutoLoss, RobustLoss, Scaled, decompose, expected_initial_margin, soft_margin
from curriculoss.losses.auto import RULE
from curriculoss.monitor import Monitor
from curriculoss.runs.spec import RunSpec
from curriculoss.runs.task import make_criterion, make_network, make_task

LIKELIHOOD, LOWEST, SIZE = range(3)  # what it has seen
LIKELIHOODS = {1e-4: RULE.widest_alpha, 0.01: 0.2, 0.5: RULE.clean_alpha}  # and the alpha that is due
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
    criterion.seen[LIKELIHOOD].fill_(likelihood)
    criterion.seen[SIZE].fill_(size)
    criterion.seen[LOWEST].fill_(0.0)
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
    criterion, fixed = at(0.5, 100.0, reduction=reduction), RobustLoss(GCE(RULE.recall / 100), reduction=reduction)
    assert_close(criterion(logits, target), fixed(logits, target), rtol=1e-6, atol=1e-8)
    assert_close(gradient(criterion, logits, target), gradient(fixed, logits, target), rtol=1e-6, atol=1e-8)
    assert_close(criterion.bell.weight(soft_margin(logits, target)), decompose(at(0.5, 100.0), logits, target).weight)
    assert (
        at(0.5, 1.01 * RULE.runaway / RULE.clean_alpha).bell.away
        and not at(0.5, 0.99 * RULE.runaway / RULE.clean_alpha).bell.away
    )


class Naive:
    """The rule as it was first written, with tensors alone: (samples, 100) logits, no weights."""

    def __init__(self) -> None:
        self.seen = torch.tensor([1 / 100, 1 / 5, 0.0])

    def alpha(self, logits: torch.Tensor, target: torch.Tensor) -> float:
        counted, margin = target != -100, soft_margin(logits, target)
        place, label = torch.arange(len(target))[:, None], target.where(counted, 0)[:, None]
        other = (label + 1 + (place + torch.arange(4) * (99 // 4)) % 99) % 100
        lowest = (logits.gather(1, label) < logits.gather(1, other)).all(1).to(margin.dtype)
        size = margin.abs().log1p().where(margin.abs() < 1e30, 0.0)
        each = torch.stack([margin.sigmoid(), lowest, size]).where(counted, 0.0)
        chance, rank, size = each.sum(1).div(counted.float().sum()).unbind()
        means = torch.stack([chance, rank, size.expm1()])
        if means.isfinite().all():
            self.seen.lerp_(means, torch.tensor([0.02, 0.02, 0.3]))
        p, lowest, _ = self.seen.double()
        right = 1 - (lowest * (5 - 4 / 99)).clamp(max=0.95)
        robust = 0.42 / right ** (0.6 + 0.3 * (p / right).clamp(max=1) ** 4)
        return float(torch.stack([20 * p, robust, -1.9 / p.clamp(max=0.499).logit()]).min().clamp(min=0.05))


def follow_training(criterion: AutoLoss, steps: int = 200) -> list[float]:
    """The largest differences of alpha, and of what it has seen, from the naive rule, while a network would learn."""
    generator, naive, worst = torch.Generator().manual_seed(4), Naive(), [0.0, 0.0]
    for step in range(steps):
        size = 128 if step % 7 else 101
        true = torch.randint(100, (size,), generator=generator)
        noisy = torch.rand(size, generator=generator) < 0.3
        given = torch.where(noisy, torch.randint(100, (size,), generator=generator), true)
        logits = torch.randn(size, 100, generator=generator) * (1 + step / 50)
        logits[torch.arange(size), true] += step / 10
        if step % 5 == 1:
            given[::9] = -100
        if step % 5 == 2:
            logits[torch.arange(3), given[:3]], logits[4, given[4]] = torch.finfo(torch.float32).min, -torch.inf
        if step % 50 == 49:
            logits[0] = torch.nan
        criterion(logits.requires_grad_(), given)
        expected = naive.alpha(logits.detach(), given)
        worst[0] = max(worst[0], abs(float(criterion.bell.alpha) / expected - 1))
        worst[1] = max(worst[1], float((criterion.seen / naive.seen - 1).abs().max()))
    assert naive.seen[0] > 0.4
    return worst


def test_alpha_is_that_of_the_rule_as_it_was_first_written():
    alpha, seen = follow_training(AutoLoss(100))
    assert alpha < 1e-12 and seen < 1e-6


def test_where_numbers_cannot_be_read_without_waiting_tensors_give_the_same(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("curriculoss.losses.auto._readable", lambda tensor: False)  # as on a GPU
        criterion = AutoLoss(100)
        alpha, seen = follow_training(criterion)
        assert alpha < 1e-12 and seen < 1e-6 and isinstance(criterion.bell.alpha, torch.Tensor)
    logits, target = batch()
    for size in (1.0, 100.0):
        criterion.eval().seen[SIZE].fill_(size)
        found = criterion(logits, target), gradient(criterion, logits, target)
        with monkeypatch.context() as patch:
            patch.setattr("curriculoss.losses.auto._readable", lambda tensor: False)
            assert_close((criterion(logits, target), gradient(criterion, logits, target)), found, rtol=1e-12, atol=0)


def test_a_label_that_ties_with_others_is_not_the_lowest():
    criterion = AutoLoss(100)
    criterion(torch.zeros(32, 100, requires_grad=True), torch.arange(32))
    assert float(criterion.seen[LOWEST]) == pytest.approx(RULE.memory / 5)


def test_backward_does_not_keep_the_logits():
    leaf, target = batch(dtype=torch.float32)
    logits = leaf * 1.0
    kept = weakref.ref(logits)
    loss = AutoLoss(100)(logits, target)
    del logits
    assert kept() is None and loss.requires_grad


def test_sample_weights_weigh_the_loss_and_what_it_sees():
    logits, target = batch()
    weight = torch.tensor([2.0, 0.0, *[1.0] * 30])
    weighed, told, twice = AutoLoss(100), AutoLoss(100).eval(), AutoLoss(100)
    value = weighed(logits, target, weight)
    told.follow(logits, target, weight)
    assert_close(weighed.seen, told.seen, rtol=0, atol=0)
    rows = [0, 0, *range(2, 32)]
    assert_close(value, twice(logits[rows], target[rows]), rtol=1e-6, atol=0)
    shares = torch.nn.functional.one_hot(target, 100).double()
    assert_close(AutoLoss(100)(logits, shares, weight), value, rtol=1e-6, atol=0)


WORLD, LIMIT = 2, 120  # processes, seconds


def see_steps(rank: int, world: int, group: dist.ProcessGroup | None) -> dict[str, object]:
    """What a process sees that is dealt every `world`-th sample of some batches, with ignored and weighed ones."""
    torch.set_num_threads(1)
    generator, criterion, values = torch.Generator().manual_seed(0), AutoLoss(30, group=group), []
    for step in range(40):
        logits = torch.randn(24, 30, 2, generator=generator) * (1 + step)
        target = torch.randint(30, (24, 2), generator=generator)
        logits.scatter_add_(1, target.unsqueeze(1), torch.full((24, 1, 2), float(step)))
        target[1::6], weight = -100, torch.rand(24, generator=generator)
        mine = slice(rank, None, world)
        given = (logits[mine].requires_grad_(), target[mine], *([weight[mine]] if step % 2 else []))
        values.append(float(criterion(*given).detach()))
    return {"seen": criterion.seen.tolist(), "alpha": float(criterion.bell.alpha), "losses": values}


def process(rank: int, folder: str) -> None:
    timeout = datetime.timedelta(seconds=LIMIT / 2)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD, timeout=timeout
    )
    try:
        together, alone = see_steps(rank, WORLD, dist.group.WORLD), see_steps(rank, WORLD, None)
        torch.save({"together": together, "alone": alone}, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_processes_of_a_group_see_the_union_of_their_batches_and_others_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = mp.get_context("spawn")
    processes = [context.Process(target=process, args=(rank, str(tmp_path))) for rank in range(WORLD)]
    try:
        for each in processes:
            each.start()
        for each in processes:
            each.join(LIMIT)
            assert each.exitcode == 0
    finally:
        for each in processes:
            if each.is_alive():
                each.kill()
                each.join()
    found, whole = [torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)], see_steps(0, 1, None)
    for each in found:
        assert each["together"]["seen"] == pytest.approx(whole["seen"], rel=1e-5)
        assert each["together"]["alpha"] == pytest.approx(whole["alpha"], rel=1e-5)
    assert found[0]["together"]["seen"] == found[1]["together"]["seen"]
    assert found[0]["alone"]["seen"] != found[1]["alone"]["seen"]


def test_classes_that_do_not_exist_say_nothing_about_the_size_of_margins():
    logits, target = batch()
    plain, masked = AutoLoss(100), AutoLoss(100)
    plain(logits, target)
    hidden = logits.detach().clone()
    hidden[0, target[0]] = -torch.inf
    hidden[1] = -torch.inf
    hidden[1, target[1]] = 0.0
    masked(hidden.requires_grad_(), target)
    assert 0 < float(masked.seen[SIZE]) < float(plain.seen[SIZE])


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
    assert_close(soft.seen[LIKELIHOOD], hard.seen[LIKELIHOOD])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_precisions(dtype):
    logits, target = batch(dtype=dtype)
    found, expected = at(0.01)(logits, target), at(0.01)(logits.double(), target)
    assert found.dtype == dtype
    assert_close(found.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)
    huge = (logits.detach() * 1e3).requires_grad_()
    assert gradient(AutoLoss(100), huge, target).isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_with_the_last_layer_it_weighs_with_what_it_knew_and_sees_what_the_logits_show(reduction):
    hidden, weight, bias = torch.randn(8, 4, 5, requires_grad=True), torch.randn(100, 5), torch.randn(100)
    target, known = torch.arange(32).reshape(8, 4), AutoLoss(100).bell
    target[0, 1] = -100
    fused, plain = AutoLoss(100, reduction=reduction), AutoLoss(100, reduction=reduction)
    value = fused.linear(hidden, weight, bias, target, torch.linspace(0.5, 2.0, 8))
    logits = (hidden @ weight.T + bias).movedim(-1, 1)
    plain(logits, target, torch.linspace(0.5, 2.0, 8))
    assert_close(fused.seen, plain.seen)
    assert not torch.equal(fused.seen, AutoLoss(100).seen)
    counts = (target != -100) * torch.linspace(0.5, 2.0, 8).unsqueeze(1)
    losses = known.loss(soft_margin(logits, target)) * counts
    assert_close(value, losses if reduction == "none" else losses.sum() / counts.sum())


def test_with_the_last_layer_alpha_stays_close_to_that_of_the_logits_over_500_steps():
    generator = torch.Generator().manual_seed(0)
    centres, criteria, alphas = torch.randn(30, 8, generator=generator), (AutoLoss(30), AutoLoss(30)), []
    weights = [torch.zeros(30, 8, requires_grad=True) for _ in criteria]
    for _ in range(500):
        clean = torch.randint(30, (64,), generator=generator)
        hidden = centres[clean] + 0.3 * torch.randn(64, 8, generator=generator)
        noisy = torch.rand(64, generator=generator) < 0.3
        target = torch.where(noisy, torch.randint(30, (64,), generator=generator), clean)
        fused, plain = criteria
        values = fused.linear(hidden, weights[0], None, target), plain(hidden @ weights[1].T, target)
        for weight, value in zip(weights, values, strict=True):
            weight.data -= 0.3 * torch.autograd.grad(value, weight)[0]
        alphas.append([float(each.bell.alpha) for each in criteria])
    fused_alpha, plain_alpha = torch.tensor(alphas).T
    assert plain_alpha.max() > 1.25 * plain_alpha.min()  # there was something to follow
    assert ((fused_alpha / plain_alpha).log().abs() < 0.005).all()
    assert float(criteria[0].noise_rate) == pytest.approx(float(criteria[1].noise_rate), abs=0.005)


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
    assert alphas[0] == pytest.approx(RULE.widest_alpha)
    assert alphas[-1] == pytest.approx(RULE.clean_reach / -expected_initial_margin(1000), rel=0.02)


@pytest.mark.slow
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
    assert alphas[-1] == pytest.approx(
        RULE.clean_alpha / (1 - rate) ** (RULE.noise_power + RULE.learned_noise_power), rel=0.05
    )


def test_a_sample_that_counts_twice_is_seen_as_two():
    logits, target = batch()
    once, twice = AutoLoss(100).eval(), AutoLoss(100)
    once.follow(logits, target, torch.tensor([2.0, 0.0, *[1.0] * 30]))
    twice(torch.cat([logits[:1], logits[:1], logits[2:]]), torch.cat([target[:1], target[:1], target[2:]]))
    assert_close(once.seen[LIKELIHOOD], twice.seen[LIKELIHOOD])
    assert_close(once.seen[SIZE], twice.seen[SIZE])
    assert (once.seen != AutoLoss(100).seen).all()


@pytest.mark.parametrize(
    ("likelihood", "power"),
    [
        (0.3, RULE.noise_power + RULE.learned_noise_power / 16),
        (0.6, RULE.noise_power + RULE.learned_noise_power),
        (0.9, 0.9),
    ],
)
def test_it_narrows_once_more_when_the_right_labels_are_learned(likelihood, power):
    criterion = AutoLoss(5)
    criterion.seen[LOWEST].fill_(0.1)  # of one that is wrong and four that are all the others: a quarter of 0.4
    criterion.seen[LIKELIHOOD].fill_(likelihood)
    assert float(criterion.noise_rate) == pytest.approx(0.4)
    assert float(criterion.bell.alpha) == pytest.approx(RULE.clean_alpha / 0.6**power)


@pytest.mark.parametrize("likelihood", [1e-4, 0.01, 0.1, 0.3, 0.49])
@pytest.mark.parametrize("lowest", [0.0, 0.15, 0.2])
def test_an_average_label_keeps_its_weight(likelihood, lowest):
    criterion = AutoLoss(100)
    criterion.seen[LIKELIHOOD].fill_(likelihood)
    criterion.seen[LOWEST].fill_(lowest)
    assert float(criterion.bell.weight(criterion.seen[LIKELIHOOD].logit())) > 0.45


def test_it_follows_in_training_only_and_counts_what_is_not_ignored():
    logits, target = batch(num_classes=100)
    for criterion, context in ((AutoLoss(100).eval(), torch.enable_grad()), (AutoLoss(100), torch.no_grad())):
        with context:
            criterion(logits, target)
        assert float(criterion.seen[LIKELIHOOD]) == pytest.approx(0.01)
    target[1:] = -100
    criterion = AutoLoss(100)
    criterion(logits, target)
    first = float(logits.detach().softmax(1)[0, target[0]])
    assert float(criterion.seen[LIKELIHOOD]) == pytest.approx(RULE.memory * 0.01 + (1 - RULE.memory) * first, rel=1e-5)


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
    assert not criterion.bell.away and criterion.seen[SIZE] < 10
    assert gradient(criterion, logits, target).isfinite().all()
    criterion(torch.full((8, 10), mask).index_fill(1, torch.tensor([0]), -mask).requires_grad_(), target[:8] % 9 + 1)
    assert criterion.seen[SIZE].isfinite() and gradient(criterion, logits, target).isfinite().all()


def test_what_it_has_seen_is_kept():
    logits, target = batch()
    criterion = AutoLoss(100)
    criterion(logits, target)
    again = AutoLoss(100)
    again.load_state_dict(criterion.state_dict())
    for other in (again, copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert torch.equal(other.seen[LIKELIHOOD], criterion.seen[LIKELIHOOD]) != torch.equal(
            other.seen[LIKELIHOOD], torch.tensor(0.01)
        )
        assert torch.equal(other(logits, target), copy.deepcopy(criterion)(logits, target))


@pytest.mark.slow
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
    assert float(eager.seen[LIKELIHOOD]) > 0.02


def test_transforms_of_torch_func_leave_it_as_it_is():
    logits, target = batch()
    criterion = AutoLoss(100)
    found = torch.func.grad(lambda x: criterion(x, target))(logits.detach())
    assert float(criterion.seen[LIKELIHOOD]) == pytest.approx(0.01)
    assert_close(found, gradient(AutoLoss(100).eval(), logits, target))
    each = torch.func.vmap(torch.func.grad(criterion))(logits.detach(), target)
    assert_close(each, gradient(AutoLoss(100, reduction="sum").eval(), logits, target))


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


def test_samples_are_weighed_one_by_one():
    logits, target = batch(8, 3)
    for weight, got in ((1.0, "got float"), (torch.ones(8, 1), r"got torch.float32 \(8, 1\)")):
        with pytest.raises(ValueError, match=rf"AutoLoss expects sample_weight as a tensor of shape \(8,\), {got}"):
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


@pytest.mark.parametrize("size", [0.0, 1000.0], ids=["bell", "recall"])
@pytest.mark.parametrize("training", [True, False])
def test_its_gradient_can_be_differentiated_again(training, size):
    criterion = at(0.5, size, reduction="sum").train(training)
    logits, target = batch(4)
    seen = criterion.seen.clone()

    def loss(logits):
        criterion.seen.copy_(seen)
        return criterion(logits, target)

    assert torch.autograd.gradgradcheck(loss, (logits,), fast_mode=True)
    margin = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(criterion.bell.weight, (margin,))
