"""The last layer and a mean or sum of losses in one op: gradients are formed in forward and scaled in backward."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from curriculoss import (
    CE,
    CR,
    GCE,
    GLS,
    MAE,
    MSE,
    NCE,
    ActivePassive,
    AutoLoss,
    RobustLoss,
    Scaled,
    get,
    margin,
)
from curriculoss import linear as module
from curriculoss.losses import last_layer
from tests.reference import Largest, draw, gradient, labels

F64 = torch.float64
HALVES = (torch.float16, torch.bfloat16)
SECOND_TERMS = [NCE(), MSE(0.5), GLS(0.2), CR(0.5, tuple(x / 55 for x in range(11))), get("nce+mae"), get("nce+aul")]
every_loss = pytest.mark.parametrize("loss", [MAE(), Scaled(MAE(), 0.3), *SECOND_TERMS], ids=repr)


@pytest.fixture(params=[None, 40], ids=["one block", "many blocks"], autouse=True)
def block(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(module, "BLOCK_LOGITS", request.param)
        monkeypatch.setattr(margin, "BLOCK_NUMBERS", 20)


def layer(*shape: int, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weight, bias and target; the second sample is ignored."""
    shapes = (*shape, 6), (11, 6), (11,)
    hidden, weight, bias = (draw(*s, seed=seed, scale=1, dtype=dtype) for seed, s in enumerate(shapes))
    target = labels(*shape, num_classes=11)
    target.view(-1)[1] = -100
    return hidden, weight, bias, target


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    return logits.movedim(-1, 1) if logits.dim() > 1 else logits


@every_loss
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_linear_is_the_loss_of_the_logits(loss, reduction, weighted):
    *inputs, target = layer(5, 3)
    sample_weight = torch.linspace(0.0, 2.0, 5, dtype=F64) if weighted else None
    class_weight = torch.linspace(0.2, 3.0, 11, dtype=F64) if weighted else None
    criterion = RobustLoss(loss, reduction=reduction, class_weight=class_weight)
    faces = (
        lambda *x: criterion.linear(*x, target, sample_weight),
        lambda *x: criterion(logits_of(*x), target, sample_weight),
    )
    found, expected = ((face(*inputs), *gradient(lambda *x, f=face: 3.0 * f(*x), *inputs)) for face in faces)
    assert_close(found, expected, rtol=1e-11, atol=1e-13)


@every_loss
def test_classes_masked_in_the_bias_do_not_exist(loss):
    hidden, weight, bias, target = layer(8)
    bias[10] = -math.inf
    target = target.clamp(max=9)
    faces = (lambda h, w: loss_of.linear(h, w, bias, target), lambda h, w: loss_of(F.linear(h, w, bias), target))
    loss_of = RobustLoss(loss)
    found, expected = ((f(hidden, weight), *gradient(f, hidden, weight)) for f in faces)
    assert expected[0].isfinite()
    assert_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@every_loss
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_first_and_second_derivatives_check(loss, reduction):
    *inputs, target = layer(4)
    inputs = [x.requires_grad_() for x in inputs]
    criterion = RobustLoss(loss, reduction=reduction)
    assert gradcheck(lambda *x: criterion.linear(*x, target), inputs)
    if reduction == "sum":
        assert gradgradcheck(lambda *x: criterion.linear(*x, target), inputs)


def test_a_graph_that_is_kept_gives_each_backward_its_own_gradient():
    *inputs, target = layer(7)
    inputs = [x.requires_grad_() for x in inputs]
    value = RobustLoss(GCE(0.7)).linear(*inputs, target)
    plain = RobustLoss(GCE(0.7))(F.linear(*inputs), target)
    once = torch.autograd.grad(plain, inputs)
    first = torch.autograd.grad(value, inputs, retain_graph=True)
    second = torch.autograd.grad(value, inputs, torch.tensor(-2.0, dtype=F64), retain_graph=True)
    last = torch.autograd.grad(3 * value, inputs)
    for gradients, factor in ((first, 1), (second, -2), (last, 3)):  # none has been changed by a later one
        assert_close(gradients, tuple(factor * x for x in once), rtol=1e-12, atol=1e-14)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(value, inputs)


def test_gradients_are_handed_over_without_a_copy():
    *inputs, target = layer(7)
    weight = inputs[1].requires_grad_()
    value = RobustLoss(MAE()).linear(*inputs, target)
    formed = value.grad_fn.saved_tensors[4].data_ptr()
    (0.5 * value).backward()
    assert weight.grad.data_ptr() == formed


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("block", [None], indirect=True, ids=["one block"])
@pytest.mark.parametrize("criterion", [RobustLoss(MAE()), RobustLoss(NCE()), AutoLoss(11)], ids=repr)
def test_three_products_do_and_without_gradients_one(criterion):
    *inputs, target = layer(7)
    inputs = [x.requires_grad_() for x in inputs]
    with Products() as products:
        value = criterion.linear(*inputs, target)
    assert products.count == 3
    with Products() as products:
        value.backward()
    assert products.count == 0
    with Products() as products, torch.no_grad():
        assert not criterion.linear(*inputs, target).requires_grad
    assert products.count == 1


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], ids=str)
def test_what_is_frozen_has_no_gradient_and_no_buffer(wanted):
    *inputs, target = layer(7)
    for i in wanted:
        inputs[i].requires_grad_()
    value = RobustLoss(MAE()).linear(*inputs, target)
    assert [x is not None for x in value.grad_fn.saved_tensors[3:]] == [i in wanted for i in range(3)]
    value.backward()
    expected = torch.autograd.grad(RobustLoss(MAE())(F.linear(*inputs), target), [inputs[i] for i in wanted])
    assert_close(tuple(inputs[i].grad for i in wanted), expected, rtol=1e-12, atol=1e-14)


def test_tied_weights_add_up_both_gradients():
    torch.manual_seed(0)
    embedding, target = nn.Embedding(11, 6, dtype=F64), labels(9, num_classes=11)
    tokens = torch.arange(9)

    def grad(loss) -> Tensor:
        (found,) = torch.autograd.grad(loss(embedding(tokens).tanh(), embedding.weight), embedding.weight)
        return found

    criterion = RobustLoss(MAE())
    found = grad(lambda h, w: criterion.linear(h, w, None, target))
    assert_close(found, grad(lambda h, w: criterion(h @ w.T, target)), rtol=1e-12, atol=1e-14)


def test_learned_sample_weights_have_their_gradient():
    *inputs, target = layer(7)
    weight, criterion = torch.linspace(0.5, 2.0, 7, dtype=F64), RobustLoss(MAE())
    (found,) = gradient(lambda x: criterion.linear(*inputs, target, x), weight)
    assert_close((found,), gradient(lambda x: criterion(F.linear(*inputs), target, x), weight))


@pytest.mark.parametrize("loss", [MAE(), NCE()], ids=repr)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_is_no_worse_than_with_the_logits(loss, dtype):
    *inputs, target = layer(2000, dtype=dtype)
    criterion, up = RobustLoss(loss), 2.0**12  # as a scaler of gradients has it

    def results(face, *given):
        return face(*given), *gradient(lambda *x: face(*x).float() * up, *given)

    fused, plain = (lambda *x: criterion.linear(*x, target)), (lambda *x: criterion(F.linear(*x), target))
    exact = results(plain, *(x.double() for x in inputs))
    for found, theirs, true in zip(results(fused, *inputs), results(plain, *inputs), exact, strict=True):
        assert found.dtype == dtype
        assert (found.double() - true).norm() <= 1.5 * (theirs.double() - true).norm() + 1e-3 * true.norm()


@pytest.mark.parametrize("loss", [MAE(), NCE()], ids=repr)
def test_samples_without_weight_count_nothing_whatever_they_are(loss):
    hidden, weight, bias, target = layer(4)
    hidden[1] = 1e4
    hidden, weight, criterion = hidden.requires_grad_(), weight.requires_grad_(), RobustLoss(loss)
    sample_weight = torch.tensor([1.0, 1.0, 0.0, 2.0], dtype=F64)
    value = criterion.linear(hidden, weight, bias, target, sample_weight)
    rows = torch.tensor([0, 3])
    expected = criterion.linear(hidden[rows], weight, bias, target[rows], sample_weight[rows])
    found, true = (torch.autograd.grad(x, (hidden, weight)) for x in (value, expected))
    assert_close(value, expected)
    assert_close(found, true)
    empty = criterion.linear(hidden, weight, bias, target, torch.zeros(4))
    assert empty.isnan() and all((x == 0).all() for x in torch.autograd.grad(empty, (hidden, weight)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("loss", [MAE(), NCE(), MSE()], ids=repr)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_blocks_are_as_large_as_the_memory_allows(dtype, loss, reduction):
    hidden, weight = (draw(n, 5, dtype=dtype).requires_grad_() for n in (50, 700))
    size = 4 if dtype == torch.float32 else 6  # of a logit, as given and in float32
    with Largest() as largest:
        criterion = RobustLoss(loss, reduction=reduction)
        criterion.linear(hidden, weight, None, labels(50, num_classes=700), memory=8 * 700 * size + 5).sum().backward()
    assert largest.numel == 8 * 700
    with pytest.raises(ValueError, match="linear_soft_margin expects memory >= 1, got memory=0"):
        criterion.linear(hidden, weight, None, labels(50, num_classes=700), memory=0)


def test_torch_func_gradients_are_those_of_autograd():
    hidden, weight, bias, target = layer(6)
    for loss in (MAE(), NCE()):
        criterion = RobustLoss(loss)
        (true,) = gradient(lambda w, c=criterion: c(F.linear(hidden, w, bias), target), weight)
        found = torch.func.grad(lambda w, c=criterion: c.linear(hidden, w, bias, target))(weight)
        assert_close(found, true, rtol=1e-11, atol=1e-13)


def test_without_knowledge_of_the_graph_gradients_are_copied(monkeypatch):
    monkeypatch.setattr(last_layer, "keeps_graph", lambda: True)
    *inputs, target = layer(7)
    weight = inputs[1].requires_grad_()
    value = RobustLoss(CE()).linear(*inputs, target)
    assert_close(
        torch.autograd.grad(value, weight), torch.autograd.grad(RobustLoss(CE())(F.linear(*inputs), target), weight)
    )


def test_sums_of_losses_are_sums_of_gradients():
    *inputs, target = layer(7)
    parts = [RobustLoss(loss, normalize=False) for loss in (NCE(), MSE(0.3), MAE())]
    total = RobustLoss(ActivePassive(*((each.loss, 0.5) for each in parts)))
    found = gradient(lambda *x: total.linear(*x, target), *inputs)
    expected = gradient(lambda *x: 0.5 * sum(each.linear(*x, target) for each in parts), *inputs)
    assert_close(found, expected, rtol=1e-11, atol=1e-13)
