"""Losses with a second term: against their formulas, their parts, NCE's bound, peers, masks and errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from curriculoss import CR, GLS, MSE, NCE, ActivePassive, Parts, PeerLoss, RobustLoss, get, soft_margin
from curriculoss.losses import AUL, CE, GCE, MAE
from tests.reference import draw, gradient, labels

F64 = torch.float64
INF, NAN = math.inf, math.nan
K = 5
PRIOR = (0.1, 0.0, 0.4, 0.2, 0.3)


def textbook(loss, logits: Tensor, target: Tensor, **options: object) -> Tensor:
    """The loss of each sample on the scale of its paper."""
    return loss(logits, target, reduction="none", normalize=False, **options)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def peers_of(target: Tensor) -> Tensor:
    """Read off the losses themselves: with logits 0, 1, 2, ... CE(label) − CE(peer) is peer − label."""
    peer = PeerLoss(CE(), 1.0, generator())
    ramp = torch.arange(K, dtype=F64)
    if not target.is_floating_point():
        logits = ramp.expand(*target.shape, K).movedim(-1, 1)
        return target + textbook(peer, logits, target).round().long()
    place = target @ ramp  # tells probabilities apart
    found = place + textbook(peer, ramp.expand_as(target), target)
    distance, sample = (found[:, None] - place).abs().min(1)
    assert (distance < 1e-12).all() and len(sample.unique()) > 3
    return target[sample]


# Each loss from log p and its labels t, one-hot or probabilities, both with K's axis second; w is a weight a class.
Naive = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def expected(value: Tensor, t: Tensor, w: Tensor) -> Tensor:
    return (t * w * value).sum(1)


def naive_nce(log_p: Tensor, t: Tensor, w: Tensor, peers: Tensor) -> Tensor:
    return expected(log_p, t, w) / log_p.sum(1)


def naive_mse(alpha: float) -> Naive:
    return lambda log_p, t, w, peers: expected(1 - log_p.exp() + alpha * log_p.exp().square().sum(1, True), t, w)


def naive_gls(alpha: float) -> Naive:
    return lambda log_p, t, w, peers: expected(-log_p, (1 - alpha) * t + alpha / K, w)


def naive_cr(beta: float, prior: tuple[float, ...] = (1 / K,) * K) -> Naive:
    def share(t: Tensor) -> Tensor:
        return torch.tensor(prior, dtype=F64).reshape(-1, *[1] * (t.dim() - 2))

    return lambda log_p, t, w, peers: expected(-log_p, t - beta * share(t), w)


def naive_peer(alpha: float, loss_of: Callable[[Tensor], Tensor]) -> Naive:
    return lambda log_p, t, w, peers: expected(loss_of(log_p), t - alpha * peers, w)


def naive_sum(first: Naive, one: float, second: Naive, two: float) -> Naive:
    return lambda *given: one * first(*given) + two * second(*given)


# Made anew at each use, so that a peer loss starts from its seed.
CASES: dict[str, tuple[Callable[[], object], Naive]] = {
    "nce": (NCE, naive_nce),
    "mse": (MSE, naive_mse(0.5)),
    "mse -1": (lambda: MSE(-1.0), naive_mse(-1.0)),
    "gls": (lambda: GLS(0.1), naive_gls(0.1)),
    "gls -0.6": (lambda: GLS(-0.6), naive_gls(-0.6)),
    "gls 1": (lambda: GLS(1.0), naive_gls(1.0)),
    "cr": (CR, naive_cr(1.0)),
    "cr prior": (lambda: CR(0.3, PRIOR), naive_cr(0.3, PRIOR)),
    "peer": (lambda: PeerLoss(generator=generator()), naive_peer(1.0, lambda log_p: -log_p)),
    "peer mae": (lambda: PeerLoss(MAE(), -0.5, generator()), naive_peer(-0.5, lambda log_p: 1 - log_p.exp())),
    "peer gce": (
        lambda: PeerLoss(GCE(0.5), 0.3, generator()),
        naive_peer(0.3, lambda log_p: (1 - log_p.exp() ** 0.5) / 0.5),
    ),
    "nce+mae": (lambda: get("nce+mae"), naive_sum(naive_nce, 0.7, naive_mse(0.0), 0.3)),
    "nce+aul": (
        lambda: get("nce+aul"),
        naive_sum(naive_nce, 1.0, naive_peer(0.0, lambda log_p: ((6.3 - log_p.exp()) ** 1.5 - 5.3**1.5) / 1.5), 4.0),
    ),
    "gls+cr": (
        lambda: ActivePassive((GLS(-0.6), 2.0), (CR(0.3, PRIOR), 0.5)),
        naive_sum(naive_gls(-0.6), 2.0, naive_cr(0.3, PRIOR), 0.5),
    ),
}
every_name = pytest.mark.parametrize("name", CASES)
every_loss = pytest.mark.parametrize("make", [make for make, _ in CASES.values()], ids=CASES.keys())


def batch(*shape: int) -> tuple[Tensor, Tensor]:
    """With some samples ignored."""
    target = labels(shape[0], *shape[2:], num_classes=shape[1])
    target[::4] = -100
    return draw(*shape), target


def one_hot(target: Tensor) -> Tensor:
    return F.one_hot(target.clamp(min=0), K).movedim(-1, 1).double() * (target >= 0).unsqueeze(1)


def by_parts(parts: Parts) -> Tensor:
    assert not parts.primary_scale.requires_grad and not parts.regularizer_scale.requires_grad
    return parts.primary_scale * parts.primary + parts.regularizer_scale * parts.regularizer


# ---- formulas ----


@every_name
@pytest.mark.parametrize(
    ("shape", "kind"), [((9, K), "indices"), ((5, K, 3), "indices"), ((9, K), "probabilities")], ids=str
)
@pytest.mark.parametrize("weight", [None, torch.linspace(0.2, 3.0, K, dtype=F64)], ids=["", "weighted"])
def test_loss_and_gradient_are_those_of_the_formula(name, shape, kind, weight):
    make, naive = CASES[name]
    logits, target = batch(*shape)
    t, peers, counts = one_hot(target), one_hot(peers_of(target)), (target >= 0).double()
    if kind == "probabilities":
        target = t = draw(*shape, seed=4, scale=1.0).softmax(1)
        t[0] = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
        peers, counts = peers_of(t), torch.ones(9, dtype=F64)
    column = (torch.ones(K, dtype=F64) if weight is None else weight).reshape(-1, *[1] * (len(shape) - 2))

    def ours(x: Tensor) -> Tensor:
        return RobustLoss(make(), reduction="none", normalize=False, class_weight=weight)(x, target)

    def theirs(x: Tensor) -> Tensor:
        return naive(x.log_softmax(1), t, column, peers) * counts

    assert_close(ours(logits), theirs(logits), rtol=1e-12, atol=1e-13)
    assert_close(gradient(ours, logits), gradient(theirs, logits), rtol=1e-11, atol=1e-13)
    assert torch.equal(textbook(make(), logits, target, class_weight=weight), ours(logits))


@pytest.mark.parametrize("loss", [NCE(), MSE(0.3), GLS(-0.4), CR(0.3, PRIOR)], ids=repr)
def test_declared_formulas_are_what_is_computed(loss):
    logits, target = draw(20, K), labels(20, num_classes=K)
    got, parts = textbook(loss, logits, target), loss.parts(logits, target)
    for row, p in enumerate(logits.softmax(1)):
        names = {"log": torch.log, "p": p, "y": int(target[row]), "K": K, **vars(loss)}
        assert_close(got[row], eval(loss.formula, names), rtol=1e-12, atol=0)
        assert_close(parts.regularizer[row], eval(loss.regularizer, names), rtol=1e-12, atol=0)


def test_paper_settings_of_nce_aul_are_alpha_nce_plus_beta_aul():
    logits, target = draw(20, K), labels(20, num_classes=K)
    aul = AUL(3.0, 0.1).loss(soft_margin(logits, target))
    mnist = get("nce+aul", alpha=0.0, beta=1.0, a=3.0, q=0.1)
    assert_close(textbook(mnist, logits, target), aul, rtol=1e-14, atol=0)
    assert get("nce+aul", alpha=10.0, beta=0.015, a=6.0, q=3.0) == ActivePassive((NCE(), 10.0), (AUL(6.0, 3.0), 0.015))
    assert get("nce+aul") == ActivePassive((NCE(), 1.0), (AUL(6.3, 1.5), 4.0)) != mnist
    assert get("nce+mae") == get("nce+mae", q=0.3) == ActivePassive((NCE(), 0.7), (MAE(), 0.3))
    assert get("nce+mae", q=0.1) == ActivePassive((NCE(), 0.9), (MAE(), 0.1))


# ---- parts ----


@every_loss
@pytest.mark.parametrize("shape", [(9, K), (5, K, 3)], ids=str)
def test_parts_are_gradient_equivalent_to_the_loss(make, shape):
    logits, target = batch(*shape)
    (true,) = gradient(lambda x: textbook(make(), x, target), logits)
    (got,) = gradient(lambda x: by_parts(make().parts(x, target)), logits)
    assert_close(got, true, rtol=1e-11, atol=1e-13)
    assert all(part.isfinite().all() for part in make().parts(logits, target))  # of ignored samples too
    assert (true.movedim(1, -1)[target >= 0].abs().sum(-1) > 0).any()


def test_nce_is_gamma_times_ce_plus_epsilon_times_its_regulariser():
    logits, target = draw(50, 10), labels(50, num_classes=10)
    log_p, cross = logits.log_softmax(1), F.cross_entropy(logits, target, reduction="none")
    gamma, epsilon = 1 / -log_p.sum(1), cross / -log_p.mean(1)
    parts = NCE().parts(logits, target)
    assert_close(tuple(parts), (cross, log_p.mean(1), gamma, gamma * epsilon), rtol=1e-13, atol=1e-14)
    (true,) = gradient(lambda x: naive_nce(x.log_softmax(1), F.one_hot(target, 10), torch.ones(()), target), logits)
    (got,) = gradient(lambda x: by_parts(NCE().parts(x, target)), logits)
    assert_close(got, true, rtol=1e-11, atol=1e-14)


def test_published_bound_of_nce_fails_and_ours_holds_and_is_tight():
    logits, target = draw(20000, 10, scale=3.0), labels(20000, num_classes=10)
    norm = gradient(lambda x: textbook(NCE(), x, target), logits)[0].abs().sum(1)
    gamma, gamma_epsilon = NCE().parts(logits, target)[2:]
    published = 2 * (gamma + gamma_epsilon) * (1 - logits.softmax(1).gather(1, target[:, None])[:, 0])
    assert 0.05 < (norm > published).double().mean() < 0.07 and 1.1 < (norm / published).max() < 1.25
    ours = 2 * NCE().weights(soft_margin(logits, target), logits, target)
    assert (norm <= ours * (1 + 1e-12)).all() and (norm / ours).max() > 0.99
    sure = F.one_hot(target[:100], 10) * torch.linspace(10, 30, 100, dtype=F64)[:, None]  # where it is attained
    norm = gradient(lambda x: textbook(NCE(), x, target[:100]), sure)[0].abs().sum(1)
    ratio = norm / (2 * NCE().weights(soft_margin(sure, target[:100]), sure, target[:100]))
    assert (ratio <= 1 + 1e-9).all() and (ratio[-1] > 1 - 1e-9)


@pytest.mark.parametrize(("loss", "total"), [(NCE(), 1.0), (get("nce+mae"), 0.7 + 0.3 * (K - 1))], ids=repr)
def test_losses_of_all_labels_sum_to_a_constant(loss, total):
    logits = draw(50, K)
    each = [textbook(loss, logits, torch.full((50,), label)) for label in range(K)]
    assert_close(sum(each), torch.full((50,), total, dtype=F64), rtol=1e-13, atol=0)


@every_name
def test_normalisation_divides_by_the_peak_of_the_primary_and_leaves_sums_alone(name):
    factor = {"mse": 4.0, "mse -1": 4.0, "peer gce": 1.5**1.5 / 0.5**0.5, "peer mae": 4.0}.get(name, 1.0)
    make, (logits, target) = CASES[name][0], batch(9, K)
    plain = RobustLoss(make(), normalize=False)(logits, target)
    assert_close(RobustLoss(make())(logits, target), factor * plain, rtol=1e-14, atol=0)


def test_each_loss_names_its_primary():
    primaries = {
        NCE(): CE(),
        MSE(): MAE(),
        GLS(): CE(),
        CR(): CE(),
        PeerLoss(GCE(0.5)): GCE(0.5),
        get("nce+mae"): MAE(),
    }
    assert {loss: loss.primary for loss in primaries} == primaries


# ---- peers ----


def test_cr_is_the_expectation_of_peer_loss():
    logits, target, rounds = draw(6, K), torch.tensor([0, 2, 2, 3, 4, 4]), 20000
    prior = tuple((torch.bincount(target, minlength=K) / 6).tolist())
    peer = textbook(PeerLoss(CE(), 0.7, generator()), logits.repeat(rounds, 1), target.repeat(rounds))
    mean, spread = peer.reshape(rounds, 6).mean(0), peer.reshape(rounds, 6).std(0) / math.sqrt(rounds)
    true = textbook(CR(0.7, prior), logits, target)
    assert ((mean - true).abs() < 4 * spread).all() and (spread < 0.03).all()
    assert ((mean - textbook(CR(0.7), logits, target)).abs() > 8 * spread).any()  # another prior is told apart


def test_peers_repeat_with_their_generator_and_change_from_call_to_call():
    logits, target = draw(50, K), labels(50, num_classes=K)
    losses = [RobustLoss(PeerLoss(MAE(), 1.0, generator()), reduction="none") for _ in range(2)]
    first, second = ([loss(logits, target) for _ in range(3)] for loss in losses)
    assert all(map(torch.equal, first, second)) and not torch.equal(first[0], first[1])
    with torch.random.fork_rng():
        torch.manual_seed(3)
        once = textbook(PeerLoss(), logits, target)
        assert not torch.equal(textbook(PeerLoss(), logits, target), once)
        torch.manual_seed(3)
        assert torch.equal(textbook(PeerLoss(), logits, target), once)


def test_ignored_samples_are_never_peers_and_all_others_are():
    target, ramp = torch.tensor([2, 0, 2, 1, 2, 2, 3]), torch.arange(K, dtype=F64).expand(7, -1)
    loss = PeerLoss(CE(), 1.0, generator())
    peers = torch.stack([target + textbook(loss, ramp, target, ignore_index=2).round().long() for _ in range(100)])
    assert (peers[:, target == 2] == 2).all()
    counts = torch.bincount(peers[:, target != 2].flatten(), minlength=K) / 300
    assert_close(counts, torch.tensor([1, 1, 0, 1, 0]) / 3, rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("loss", "bounded"),
    [
        (NCE(), True),
        (MSE(-1.0), True),
        (GLS(0.1), True),
        (GLS(-0.6), False),
        (CR(), False),
        (CR(0.01), False),
        (CR(-1.0), True),
        (PeerLoss(), False),
        (PeerLoss(CE(), 0.0), True),
        (PeerLoss(MAE()), True),
        (get("nce+mae"), True),
        (ActivePassive((MAE(), 1.0), (CR(), 0.1)), False),
    ],
    ids=repr,
)
def test_what_is_unbounded_below_falls_without_end(loss, bounded):
    """Along the direction that learns every label, at a distance of 1e6."""
    target = labels(64, num_classes=K)
    least = RobustLoss(loss)(1e6 * F.one_hot(target, K).double(), target)
    assert loss.bounded_below is bounded is (least > -10).item()


# ---- masked classes, NaN ----

HIDDEN = {"cr prior": lambda: CR(0.3, (*PRIOR[:3], 0.0, 0.0, *PRIOR[3:]))}  # for two classes more
HIDDEN["gls+cr"] = lambda: ActivePassive((GLS(-0.6), 2.0), (HIDDEN["cr prior"](), 0.5))


@every_name
@pytest.mark.parametrize("kind", ["indices", "probabilities"])
def test_masked_classes_do_not_exist(name, kind):
    make = CASES[name][0]
    logits, target = batch(9, K)
    none = torch.full((9, 2), -INF, dtype=F64)
    wide = torch.cat([logits[:, :3], none, logits[:, 3:]], 1)
    moved = target + 2 * (target >= 3)
    if kind == "probabilities":
        target = draw(9, K, seed=4).softmax(1)
        moved = torch.cat([target[:, :3], none.exp(), target[:, 3:]], 1)
    there, stay = HIDDEN.get(name, make), [0, 1, 2, 5, 6]
    for weight in (torch.ones(7, dtype=F64), torch.linspace(0.2, 3.0, 7, dtype=F64)):
        narrow, hidden = {"class_weight": weight[stay]}, {"class_weight": weight}
        true = textbook(make(), logits, target, **narrow)
        assert_close(textbook(there(), wide, moved, **hidden), true, rtol=1e-12, atol=1e-13)
        (grad,) = gradient(lambda x, w=hidden: textbook(there(), x, moved, **w), wide)
        (true,) = gradient(lambda x, w=narrow: textbook(make(), x, target, **w), logits)
        assert (grad[:, 3:5] == 0).all()
        assert_close(grad[:, stay], true, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in CASES if "peer" not in name and "cr" not in name])
def test_every_sample_has_masked_classes_of_its_own(name):
    make = CASES[name][0]
    logits, target = draw(4, K), torch.tensor([0, 1, 2, 3])
    masks = torch.tensor([[0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 1], [1, 1, 1, 0, 0]]).bool()
    got = textbook(make(), logits.masked_fill(masks, -INF), target)
    for row, mask in enumerate(masks):
        alone = textbook(make(), logits[row : row + 1, ~mask], target[row : row + 1] - mask[: target[row]].sum())
        assert_close(got[row], alone[0], rtol=1e-12, atol=1e-13)


@every_name
def test_without_any_other_class_there_is_nothing_to_learn(name):
    make = CASES[name][0]
    logits, target = torch.full((3, K), -INF, dtype=F64), torch.full((3,), 2)
    logits[:, 2] = torch.tensor([-3.0, 0.0, 1e4])
    least = {"mse": 0.5, "mse -1": -1.0}.get(name, 0.0)
    assert_close(textbook(make(), logits, target), torch.full((3,), least, dtype=F64), rtol=0, atol=0)
    assert (gradient(lambda x: textbook(make(), x, target), logits)[0] == 0).all()


@pytest.mark.parametrize(
    ("loss", "bound"),
    [
        (NCE(), 1.0),
        (MSE(0.5), 1.0 + 0.5 * 0.25),
        (GLS(0.1), INF),
        (GLS(-0.6), INF),
        (GLS(1.0), 0.0),
        (CR(0.5), INF),
        (PeerLoss(), INF),
        (ActivePassive((CE(), 0.0), (GLS(0.1), 0), (MAE(), 1.0)), 1.0),
        (get("nce+mae"), 1.0),
        (get("nce+aul"), 1.0 + 4.0 * (6.3**1.5 - 5.3**1.5) / 1.5),
    ],
    ids=repr,
)
def test_masked_label_costs_the_bound_or_infinity(loss, bound):
    logits, target = torch.zeros(2, K, dtype=F64), torch.tensor([3, 3])
    logits[1, 3] = -INF
    value = textbook(loss, logits, target)
    assert value[0].isfinite()
    assert_close(value[1].item(), bound, rtol=1e-13, atol=0)
    assert gradient(lambda x: textbook(loss, x, target), logits)[0].isfinite().all()


@every_loss
def test_nan_stays_nan_and_in_its_row(make):
    logits, target = draw(6, K), labels(6, num_classes=K)
    logits[2, 1] = NAN
    (grad,) = gradient(lambda x: textbook(make(), x, target), logits)
    assert textbook(make(), logits, target).isnan().tolist() == [row == 2 for row in range(6)]
    assert grad.isnan().any(1).tolist() == [row == 2 for row in range(6)]


@every_loss
@pytest.mark.parametrize("poison", [NAN, INF, -INF])
def test_ignored_samples_may_hold_anything(make, poison):
    logits, target = batch(9, K)
    true = RobustLoss(make())(logits, target), gradient(lambda x: RobustLoss(make())(x, target), logits)[0]
    logits[::4], logits[0, 1] = poison, 0.0
    got = RobustLoss(make())(logits, target), gradient(lambda x: RobustLoss(make())(x, target), logits)[0]
    assert_close(got, true, rtol=1e-13, atol=1e-15)
    assert (got[1][::4] == 0).all()


# ---- errors ----

BAD_PRIOR = "CR expects prior >= 0 that sums to 1, one number per class, got prior="


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MSE("a"), ValueError, "MSE expects a finite number, got alpha='a'"),
        (lambda: GLS(1.5), ValueError, "GLS expects alpha <= 1, got alpha=1.5"),
        (lambda: CR(-INF), ValueError, "CR expects a finite number, got beta=-inf"),
        (lambda: CR(1.0, (0.5, 0.6)), ValueError, BAD_PRIOR + "(0.5, 0.6)"),
        (lambda: CR(1.0, (1.5, -0.5)), ValueError, BAD_PRIOR + "(1.5, -0.5)"),
        (lambda: CR(1.0, ((0.5, 0.5),)), ValueError, BAD_PRIOR + "((0.5, 0.5),)"),
        (lambda: CR(prior="a"), ValueError, BAD_PRIOR + "'a'"),
        (lambda: GLS(-1e308), ValueError, "GLS expects a number from 0 to 1e+18 in size, got alpha=-1e+308"),
        (lambda: MSE(10**400), ValueError, "MSE expects a number from 0 to 1e+18 in size, got alpha=1000000"),
        (lambda: PeerLoss(generator=1), TypeError, "PeerLoss expects a torch.Generator or None, got generator=1"),
        (lambda: get("nce+mae", q="a"), ValueError, "nce+mae expects 0 < q < 1, got q='a'"),
        (lambda: PeerLoss(NCE()), TypeError, "PeerLoss expects a curriculum such as MAE(), got NCE()"),
        (lambda: PeerLoss(CE), TypeError, "PeerLoss expects a curriculum such as MAE(), got <class"),
        (lambda: PeerLoss(CE(), NAN), ValueError, "PeerLoss expects a finite number, got alpha=nan"),
        (lambda: ActivePassive(), ValueError, "ActivePassive expects at least one (loss, weight) pair, got none"),
        (lambda: ActivePassive(NCE(), MAE()), TypeError, "pairs such as (NCE(), 0.7), got NCE()"),
        (lambda: ActivePassive((NCE(), INF)), ValueError, "ActivePassive expects a finite number, got weight=inf"),
        (lambda: get("nce+mae", q=1.0), ValueError, "nce+mae expects 0 < q < 1, got q=1.0"),
        (lambda: get("nce+mae", q=0.0), ValueError, "nce+mae expects 0 < q < 1, got q=0.0"),
        (lambda: get("nce+aul", a=1.0), ValueError, "AUL expects a > 1 and q > 0"),
        (lambda: get("nce+aul", alpha=NAN), ValueError, "ActivePassive expects a finite number, got weight=nan"),
    ],
)
def test_wrong_hyperparameters_are_refused_with_what_came(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_what_is_no_tensor_is_refused():
    logits, target = torch.zeros(2, K), torch.zeros(2, dtype=torch.int64)
    for call in (NCE(), NCE().parts):
        with pytest.raises(TypeError, match="NCE expects floating-point logits, got ndarray"):
            call(logits.numpy(), target)
        with pytest.raises(TypeError, match="NCE expects int64 class indices as target, got list"):
            call(logits, [0, 0])


def test_prior_is_over_the_classes_of_the_logits():
    with pytest.raises(ValueError, match="CR expects a prior over 4 classes, got 5 numbers"):
        textbook(CR(1.0, PRIOR), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))


def test_a_single_sample_has_parts_too():
    logits, target = draw(6, 5), labels(6, num_classes=5)
    assert NCE().parts(logits[0], target[0]).regularizer_scale == NCE().parts(logits[:1], target[:1])[3].squeeze()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler uses what torch itself has deprecated
@pytest.mark.parametrize("kind", ["indices", "probabilities"])
def test_compiled_peers_are_drawn_for_batches_of_any_size(kind):
    criterion = torch.compile(RobustLoss(PeerLoss(MAE())), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)  # peers are drawn, and those of five samples may happen to be the samples themselves
    for size in (8, 5, 7):
        logits, target = draw(size, 5).requires_grad_(), labels(size, num_classes=5)
        criterion(logits, target if kind == "indices" else logits.detach().softmax(1)).backward()
        assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0
