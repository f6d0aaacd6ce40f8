"""Every registered loss in every dtype: which dtype comes out, how far logits may reach, and the error left over."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from curriculoss import GLS, NCE, ActivePassive, PeerLoss, RobustLoss, available, get
from curriculoss.losses import CE, FL, GCE, MAE, Curriculum, Scaled
from tests.reference import draw, gradient, labels

F64 = torch.float64
Loss = Callable[[Tensor], Tensor]
HALVES = [torch.float16, torch.bfloat16]
REDUCTIONS = ("mean", "sum", "none")
EPS32 = torch.finfo(torch.float32).eps
NAMES = [name for name in available() if name != "rce"]  # it is mae
every_name = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", [*HALVES, torch.float32, F64], ids=str)
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)


def make(name: str) -> object:
    """Always the same, with the same peers."""
    return get(name, **({"generator": torch.Generator().manual_seed(3)} if name == "peer" else {}))


def peers_of(target: Tensor, num_classes: int) -> Tensor:
    """With logits 0, 1, 2, ... CE(label) − CE(peer) is peer − label."""
    ramp = torch.arange(num_classes, dtype=F64).expand(len(target), -1)
    return target + make("peer")(ramp, target, reduction="none").round().long()


def textbook(loss: object, logits: Tensor, target: Tensor) -> Tensor:
    """The declared formula as it stands, on p = softmax(s) in the dtype that comes."""
    if isinstance(loss, ActivePassive):
        return sum(weight * textbook(term, logits, target) for term, weight in loss.terms)
    if isinstance(loss, PeerLoss):
        peers = peers_of(target, logits.shape[1])
        return textbook(loss.base, logits, target) - loss.alpha * textbook(loss.base, logits, peers)
    p, num_classes = logits.softmax(1), logits.shape[1]
    names = {"log": torch.log, "exp": torch.exp, "K": num_classes, **vars(loss)}
    if isinstance(loss, Curriculum):
        return eval(loss.formula, {**names, "p": p.gather(1, target[:, None]).squeeze(1)})
    names |= {"p": p.unbind(1), "prior": [1 / num_classes] * num_classes}
    every_label = [eval(loss.formula, {**names, "y": y}) for y in range(num_classes)]
    return torch.stack(every_label, 1).gather(1, target[:, None]).squeeze(1)


# ---- dtypes ----


@every_name
@every_dtype
def test_result_has_the_dtype_that_cross_entropy_gives(name, dtype):
    logits = draw(5, 4, dtype=dtype)
    for target in (labels(5, num_classes=4), draw(5, 4, seed=5).softmax(1).to(dtype)):
        for reduction in REDUCTIONS:
            for autocast in (False, True):
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    true = F.cross_entropy(logits, target, reduction=reduction)
                    got = RobustLoss(make(name), reduction=reduction)(logits, target)
                assert (got.dtype, got.shape) == (true.dtype, true.shape)
        assert gradient(lambda x, t=target: RobustLoss(make(name))(x, t), logits)[0].dtype == dtype


def test_trains_under_autocast():
    layer, inputs, target = nn.Linear(6, 4), draw(9, 6, dtype=torch.float32), labels(9, num_classes=4)
    nn.init.ones_(layer.weight)
    grads = []
    for criterion in (nn.CrossEntropyLoss(), RobustLoss(CE()), RobustLoss(GLS(0.0))):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = layer(inputs)
            assert logits.dtype == torch.bfloat16
            value = criterion(logits, target)
        grads.append(torch.autograd.grad(value, layer.weight)[0])
    for grad in grads[1:]:
        assert grad.dtype == torch.float32
        assert_close(grad, grads[0], rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_linear_has_the_dtype_and_the_value_of_the_loss_of_the_linear_layer(dtype, autocast):
    inputs, target = (draw(8, 6, dtype=dtype), draw(5, 6, seed=2, dtype=dtype), None), labels(8, num_classes=5)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        fused, plain = RobustLoss(MAE()).linear(*inputs, target), RobustLoss(MAE())(F.linear(*inputs), target)
    assert_close(fused, plain, rtol=torch.finfo(plain.dtype).eps * 4, atol=0)


# ---- range ----


@every_name
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e4), *((dtype, torch.finfo(dtype).max / 2) for dtype in HALVES)], ids=str
)
def test_loss_and_gradient_are_finite_however_large_the_logits(name, dtype, size):
    rows = [  # the label is the first
        [size, -size, -size, -size],
        [-size, size, size, size],
        [-size, size, -size, 0.0],
        [0.0, size, -size, size],
        [size, size, size, size],
        [-size, -size, -size, -size],
        [0.0, 0.0, 0.0, 0.0],
        [size, size, -size, -size],
    ]
    logits, target = torch.tensor(rows, dtype=dtype), torch.zeros(8, dtype=torch.int64)
    soft = torch.tensor([[0.7, 0.1, 0.2, 0.0]], dtype=dtype).expand(8, 4)
    for labelled in (target, soft):
        for normalize in (True, False):
            criterion = RobustLoss(make(name), reduction="none", normalize=normalize)
            assert criterion(logits, labelled).isfinite().all()
            assert gradient(lambda x, t=labelled, c=criterion: c(x, t), logits)[0].isfinite().all()
    value = RobustLoss(make(name), reduction="none")(logits, target)
    assert_close(value[4:7], value[6].expand(3), rtol=2 * torch.finfo(dtype).eps, atol=0)
    if name != "peer":  # whose labels are all the same here
        assert value[0] < value[1]


@every_half
@pytest.mark.parametrize("loss", [CE(), FL(2.0), GLS(0.1), get("cr", beta=0.1)], ids=repr)
def test_mean_of_many_large_half_precision_losses_does_not_overflow(loss, dtype):
    size = 2.0**14 if dtype == torch.float16 else 2.0**126
    logits = torch.tensor([[-size, size]], dtype=dtype).repeat(1000, 1)
    target = torch.zeros(1000, dtype=torch.int64)
    target[::5] = -100
    for weight in (None, torch.ones(2)):
        one = RobustLoss(loss, class_weight=weight, reduction="none")(logits, target)[1]
        assert one.isfinite() and (one.float() * 1000 > torch.finfo(dtype).max)
        mean = RobustLoss(loss, class_weight=weight)(logits, target)
        assert_close(mean, one, rtol=2 * torch.finfo(dtype).eps, atol=0)
        assert gradient(lambda x, w=weight: RobustLoss(loss, class_weight=w)(x, target), logits)[0].isfinite().all()


@every_half
def test_linear_mean_of_many_large_half_precision_losses_does_not_overflow(dtype):
    size = 2.0**14 if dtype == torch.float16 else 2.0**126
    weight = torch.tensor([[-size], [size]], dtype=dtype)
    mean = RobustLoss(CE()).linear(torch.ones(1000, 1, dtype=dtype), weight, None, torch.zeros(1000, dtype=torch.int64))
    assert_close(mean.item(), 2 * size, rtol=1e-6, atol=0)


# ---- accuracy ----


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_margin_of_forty_keeps_its_tail(offset, dtype):
    logits = torch.tensor([[40.0, 0.0], [90.0, 10.0], [-40.0, 0.0]], dtype=dtype) + offset
    target, tail, tiny = torch.zeros(3, dtype=torch.int64), math.exp(-40), math.exp(-80)
    true = {
        CE(): [tail, tiny, 40.0],
        MAE(): [tail, tiny, 1.0],
        GCE(0.7): [tail, tiny, (1 - math.exp(-28)) / 0.7],
        NCE(): [tail / 40, tiny / 80, 1.0],
        Scaled(MAE(), 0.5): [1 / (1 + math.exp(20)), tail, 1 / (1 + math.exp(-20))],
    }
    for loss, values in true.items():
        criterion = RobustLoss(loss, reduction="none", normalize=False)
        got = criterion(logits, target)
        assert_close(got, torch.tensor(values, dtype=dtype), rtol=8 * torch.finfo(dtype).eps, atol=0)
        assert (gradient(lambda x, c=criterion: c(x, target), logits)[0][:2] != 0).all()


def assert_no_worse(got: Tensor, naive: Tensor, true: Tensor) -> None:
    """Both are rounded to the output's dtype last, so what may differ is a rounding of the float32 before it."""
    assert got.dtype == naive.dtype != true.dtype and got.shape == true.shape
    error, allowed = (got.double() - true).abs(), (naive.double() - true).abs()
    assert true.isfinite().all() and allowed.isfinite().all()
    assert error.max() <= allowed.max() + 4 * EPS32 * true.abs().max()
    assert error.mean() <= allowed.mean() + 4 * EPS32 * true.abs().mean()


def gradients(ours: Loss, naive: Loss, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ours, the naive one in float32, and the true one."""
    (got,), (upcast,) = (gradient(f, logits) for f in (ours, lambda x: naive(x.float())))
    return got, upcast, gradient(naive, logits.double())[0]


@pytest.mark.slow
@every_name
@every_half
@pytest.mark.parametrize(("num_classes", "scale"), [(2, 3.0), (20, 1.0), (20, 4.0)])
def test_error_in_half_precision_is_no_larger_than_that_of_the_textbook_formula_in_float32(
    name, dtype, num_classes, scale
):
    logits, target = draw(300, num_classes, scale=scale, dtype=dtype), labels(300, num_classes=num_classes)

    def naive(x: Tensor) -> Tensor:
        return textbook(make(name), x, target)

    for reduction in ("none", "mean"):
        criterion = RobustLoss(make(name), reduction=reduction, normalize=False)
        reduce = torch.mean if reduction == "mean" else torch.clone
        got, true = criterion(logits, target), reduce(naive(logits.double()))
        assert_no_worse(got, reduce(naive(logits.float())).to(dtype), true)
        grads = gradients(
            lambda x, n=reduction: RobustLoss(make(name), reduction=n, normalize=False)(x, target),
            lambda x, r=reduce: r(naive(x)),
            logits,
        )
        assert_no_worse(*grads)


@every_half
@pytest.mark.parametrize("num_classes", [3, 1000])
@pytest.mark.parametrize("loss", [CE(), GLS(0.1), GLS(-0.5), GLS(1.0)], ids=repr)
def test_error_with_large_logits_is_no_larger_than_that_of_cross_entropy_in_float32(loss, num_classes, dtype):
    logits, target = draw(100, num_classes, scale=1000.0, dtype=dtype), labels(100, num_classes=num_classes)
    alpha = getattr(loss, "alpha", 0.0)

    def naive(x: Tensor) -> Tensor:
        smooth = -x.log_softmax(1).mean(1)
        return (1 - alpha) * F.cross_entropy(x, target, reduction="none") + alpha * smooth

    def ours(x: Tensor) -> Tensor:
        return RobustLoss(loss, reduction="none")(x, target)

    assert_no_worse(ours(logits), naive(logits.float()).to(dtype), naive(logits.double()))
    assert_no_worse(*gradients(ours, naive, logits))


@every_half
@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(get(name), Curriculum)])
def test_error_with_probabilities_is_no_larger_than_that_of_the_textbook_formula_in_float32(name, dtype):
    logits, target = draw(300, 5, dtype=dtype), draw(300, 5, seed=4, scale=1.0).softmax(1).to(dtype)

    def ours(x: Tensor) -> Tensor:
        return RobustLoss(get(name), reduction="none", normalize=False)(x, target)

    def naive(x: Tensor) -> Tensor:
        return sum(target[:, y].to(x.dtype) * textbook(get(name), x, torch.full((300,), y)) for y in range(5))

    assert_no_worse(ours(logits), naive(logits.float()).to(dtype), naive(logits.double()))
    assert_no_worse(*gradients(ours, naive, logits))
