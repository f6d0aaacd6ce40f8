"""linear_soft_margin is soft_margin of the last layer without its logits; and what both faces do under transforms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from curriculoss import linear as module
from curriculoss import margin
from curriculoss.linear import linear_soft_margin
from curriculoss.losses import CE, GCE, MAE, Scaled
from curriculoss.margin import soft_margin
from tests.reference import Largest, draw, gradient, labels, naive_margins

F64 = torch.float64
HALVES = (torch.float16, torch.bfloat16)
HIDDEN, CLASSES = 6, 11
one_block = pytest.mark.parametrize("block", [None], indirect=True, ids=["one block"])


@pytest.fixture(params=[None, 40], ids=["one block", "many blocks"], autouse=True)
def block(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(module, "BLOCK_LOGITS", request.param)
        monkeypatch.setattr(margin, "BLOCK_NUMBERS", request.param)
    return request.param


def layer(*shape: int, dtype: torch.dtype = F64, bias: bool = True) -> list[Tensor | None]:
    """Hidden states, weight, bias and target; the second sample is ignored."""
    shapes = (*shape, HIDDEN), (CLASSES, HIDDEN), (CLASSES,)
    hidden, weight, offset = (draw(*s, seed=seed, scale=1, dtype=dtype) for seed, s in enumerate(shapes))
    target = labels(*shape, num_classes=CLASSES)
    target.view(-1)[1] = -100
    return [hidden, weight, offset if bias else None, target]


def unfused(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    return soft_margin(logits.reshape(-1, logits.shape[-1]), target.reshape(-1)).reshape(target.shape)


def value_and_gradients(face, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, curriculum=None):
    inputs = (hidden, weight) if bias is None else (hidden, weight, bias)

    def loss(*given: Tensor) -> Tensor:
        return (curriculum or GCE(0.7)).loss(face(*given, *((None,) if bias is None else ()), target))

    return face(hidden, weight, bias, target), *gradient(loss, *inputs)


both_faces = pytest.mark.parametrize("face", [linear_soft_margin, unfused], ids=["linear", "unfused"])


# ---- equal to the unfused path ----


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (F64, 1e-13)], ids=["f32", "f64"])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("curriculum", [CE(), MAE(), Scaled(MAE(), 0.3)], ids=repr)
def test_fused_path_equals_the_unfused_one(shape, dtype, tolerance, bias, curriculum):
    inputs = layer(*shape, dtype=dtype, bias=bias)
    faces = (value_and_gradients(face, *inputs, curriculum) for face in (linear_soft_margin, unfused))
    for fused, plain in zip(*faces, strict=True):
        assert fused.dtype == plain.dtype and fused.shape == plain.shape
        assert_close(fused, plain, rtol=tolerance, atol=tolerance * plain.abs().max().item())


def test_margin_and_gradients_are_those_of_the_definition():
    *inputs, target = layer(40)
    target = target.clamp(min=0)
    true = gradient(lambda h, w, b: GCE(0.7).loss(naive_margins(F.linear(h, w, b), target)), *inputs)
    margin, *gradients = value_and_gradients(linear_soft_margin, *inputs, target)
    assert_close(margin, naive_margins(F.linear(*inputs), target), rtol=1e-13, atol=1e-13)
    assert_close(tuple(gradients), true, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_is_no_worse_than_the_unfused_path(dtype):
    inputs = layer(200, dtype=dtype)
    true = value_and_gradients(unfused, *(x.double() for x in inputs[:3]), inputs[3])
    fused, plain = (value_and_gradients(face, *inputs) for face in (linear_soft_margin, unfused))
    assert fused[0].dtype == torch.float32
    for f, p, t in zip(fused, plain, true, strict=True):
        assert f.dtype == p.dtype
        # one more rounding, of each block's share in the gradients of weight and bias
        assert (f.double() - t).norm() <= 1.5 * (p.double() - t).norm()


@one_block
def test_gradient_of_half_precision_weights_gathers_over_many_blocks_in_float32(monkeypatch):
    hidden, weight = torch.ones(600, 2, dtype=torch.bfloat16), torch.zeros(2, 2, dtype=torch.bfloat16)
    monkeypatch.setattr(module, "BLOCK_LOGITS", 2)
    (grad,) = gradient(lambda w: linear_soft_margin(hidden, w, None, torch.zeros(600, dtype=torch.int64)), weight)
    assert grad.tolist() == [[600.0, 600.0], [-600.0, -600.0]]  # in bfloat16, 256 + 1 is 256


def test_large_margins_and_masks_come_through():
    hidden, weight = torch.tensor([[1.0], [-1.0]]), torch.tensor([[40.0], [0.0], [0.0]])
    bias = torch.tensor([1e4, 1e4, -math.inf])
    margin, *gradients = value_and_gradients(linear_soft_margin, hidden, weight, bias, torch.tensor([0, 0]), MAE())
    assert margin.tolist() == [40.0, -40.0] and all(g.isfinite().all() for g in gradients)
    alone = torch.tensor([0.0, -math.inf, -math.inf])
    margin, *gradients = value_and_gradients(linear_soft_margin, hidden, weight, alone, torch.tensor([0, 1]), MAE())
    assert margin.tolist() == [math.inf, -math.inf] and all((g == 0).all() for g in gradients)


@pytest.mark.parametrize("poison", [1e3, math.nan])
def test_ignored_samples_have_margin_zero_and_no_gradient(poison):
    hidden, weight, bias, target = layer(6)
    kept = value_and_gradients(linear_soft_margin, hidden[2:], weight, bias, target[2:])
    target[:2] = -100
    hidden[:2] = poison
    margin, to_hidden, to_weight, to_bias = value_and_gradients(linear_soft_margin, hidden, weight, bias, target)
    assert (margin[:2] == 0).all() and (to_hidden[:2] == 0).all()
    assert_close((margin[2:], to_hidden[2:], to_bias), (kept[0], kept[1], kept[3]), rtol=1e-13, atol=1e-15)
    if poison == 1e3:  # a product with NaN is NaN, as it is in F.linear's own gradient
        assert_close(to_weight, kept[2], rtol=1e-13, atol=1e-15)


@both_faces
@pytest.mark.parametrize("dtype", [torch.bfloat16, F64], ids=str)
@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
def test_no_samples_give_no_margins(face, dtype, shape):
    hidden = torch.zeros(*shape, HIDDEN, dtype=dtype)
    target = torch.zeros(shape, dtype=torch.int64)
    _, weight, bias, _ = layer(3, dtype=dtype)
    margin, *gradients = value_and_gradients(face, hidden, weight, bias, target)
    assert margin.shape == shape and gradients[0].shape == hidden.shape and all((g == 0).all() for g in gradients)


def test_single_sample_needs_no_batch_axis():
    hidden, weight, bias, _ = layer(3)
    one = linear_soft_margin(hidden[0], weight, bias, torch.tensor(4))
    assert one.shape == ()
    assert_close(one, linear_soft_margin(hidden[:1], weight, bias, torch.tensor([4]))[0], rtol=1e-14, atol=0)


def test_strides_do_not_matter():
    hidden, weight, bias, target = layer(8)
    views = hidden.T.contiguous().T, weight.T.contiguous().T, torch.stack([bias, bias], 1)[:, 0], target
    assert not any(view.is_contiguous() for view in views[:3])
    got, true = (value_and_gradients(linear_soft_margin, *inputs) for inputs in (views, (hidden, weight, bias, target)))
    assert_close(got, true, rtol=1e-12, atol=1e-14)


# ---- derivatives ----


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_first_and_second_derivatives_check(bias):
    *inputs, target = layer(3, bias=bias)
    inputs = tuple(x.requires_grad_() for x in inputs if x is not None)

    def function(*given: Tensor) -> Tensor:
        return linear_soft_margin(*given, *(() if bias else (None,)), target)

    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)
    assert gradgradcheck(lambda *given: MAE().loss(function(*given)), inputs)


class Fresh(TorchDispatchMode):
    """The shapes of all tensors made under it that are not views of others."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in known}
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = (x for x in tree_leaves(out) if isinstance(x, Tensor))
        self.shapes |= {tuple(x.shape) for x in made if x.untyped_storage().data_ptr() not in self.known}
        return out


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
def test_no_buffer_is_made_for_what_needs_no_gradient(wanted):
    *inputs, target = layer(50)
    for i in wanted:
        inputs[i].requires_grad_()
    loss = linear_soft_margin(*inputs, target).sum()
    with Fresh(*inputs) as fresh:
        loss.backward()
    for i, value in enumerate(inputs):
        assert (value.grad is not None) == (i in wanted)
        if not (i == 2 and wanted):  # sums over a block have the bias's shape too
            assert (tuple(value.shape) in fresh.shapes) == (i in wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_logits_are_never_all_there(monkeypatch, dtype):
    monkeypatch.setattr(module, "BLOCK_LOGITS", 4 * 700)
    hidden, weight = draw(50, 5, dtype=dtype).requires_grad_(), draw(700, 5, seed=1, dtype=dtype).requires_grad_()
    with Largest() as largest:
        linear_soft_margin(hidden, weight, None, labels(50, num_classes=700)).sum().backward()
    assert largest.numel == 6 * 700  # an eighth of the rows, as four of them, a block, would be less


def test_backward_keeps_only_the_inputs_and_a_few_numbers_a_sample():
    *inputs, target = layer(60)
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        linear_soft_margin(*(x.requires_grad_() for x in inputs), target)
    assert sum(x.nbytes for x in inputs) <= sum(kept.values()) <= sum(x.nbytes for x in inputs) + 60 * 5 * 8


# ---- errors ----

H, W, B, T = torch.zeros(4, 3), torch.zeros(5, 3), torch.zeros(5), torch.zeros(4).long()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((H, torch.zeros(1, 3), None, T), ValueError, "at least 2 classes, got K=1"),
        ((H, torch.zeros(5, 2), None, T), ValueError, r"got \(4, 3\), \(5, 2\), None and \(4,\)"),
        ((H, torch.zeros(3), None, T), ValueError, r"got \(4, 3\), \(3,\), None and \(4,\)"),
        ((H, W, torch.zeros(4), T), ValueError, r"got \(4, 3\), \(5, 3\), \(4,\) and \(4,\)"),
        ((H, W, B, T[:3]), ValueError, r"got \(4, 3\), \(5, 3\), \(5,\) and \(3,\)"),
        ((H.long(), W, B, T), TypeError, "floating-point hidden, got torch.int64"),
        ((H, [[1.0]], B, T), TypeError, "floating-point weight, got list"),
        ((H, None, B, T), TypeError, "floating-point weight, got NoneType"),
        ((H, W, B.int(), T), TypeError, "floating-point bias, got torch.int32"),
        ((H, W, B, T.int()), TypeError, "int64 class indices as target, got torch.int32"),
        ((H, W, B, T + 5), ValueError, r"from 0 to 4 \(or ignore_index=-100\) as target, got 5"),
        ((H, W, B, T - 1), ValueError, "as target, got -1"),
    ],
)
def test_wrong_input_is_refused_with_what_came(inputs, error, message):
    with pytest.raises(error, match=message):
        linear_soft_margin(*inputs)


# ---- transforms, of both faces ----


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return GCE(0.7).loss(soft_margin(logits, target))


def test_torch_func_gradients_are_those_of_autograd():
    logits, target = draw(6, 5), torch.tensor([0, 4, -100, 2, 2, 1])
    (true,) = gradient(lambda x: loss_of(x, target), logits)
    assert_close(torch.func.grad(lambda x: loss_of(x, target).sum())(logits), true, rtol=1e-13, atol=1e-16)
    assert_close(torch.func.vmap(torch.func.grad(loss_of))(logits, target), true, rtol=1e-13, atol=1e-16)
    jacobian = torch.func.jacrev(lambda x: loss_of(x, target))(logits)
    assert_close(jacobian, torch.diag_embed(true.T).movedim(0, -1), rtol=1e-13, atol=1e-16)
    logits, target = logits[3:], target[3:]
    hessian = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(loss_of)))(logits, target)
    definition = torch.autograd.functional.hessian(lambda x: GCE(0.7).loss(naive_margins(x, target)).sum(), logits)
    assert_close(hessian, torch.stack([definition[i, :, i] for i in range(3)]), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("logits_axis", "target_axis"), [(0, 0), (2, 1), (0, None), (None, 0), (1, None)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, F64], ids=str)
def test_vmap_is_a_loop(logits_axis, target_axis, dtype):
    logits, target = draw(3, 4, 5, dtype=dtype), labels(3, 4, num_classes=5)
    target[1, 2] = -100
    x = logits[0] if logits_axis is None else logits.movedim(0, logits_axis)
    t = target[0] if target_axis is None else target.movedim(0, target_axis)
    got = torch.func.vmap(soft_margin, (logits_axis, target_axis))(x, t)
    pairs = [(logits[i * (logits_axis is not None)], target[i * (target_axis is not None)]) for i in range(3)]
    assert_close(got, torch.stack([soft_margin(*pair) for pair in pairs]), rtol=1e-6 if dtype != F64 else 1e-14, atol=0)


@pytest.mark.parametrize("axes", [(0, None, None, 0), (None, 0, 0, None), (0, 0, None, 0), (1, 2, 1, None)], ids=str)
def test_vmap_of_the_linear_face_and_of_its_gradient_is_a_loop(axes):
    hidden, weight, bias, target = layer(3, 4)
    stacks = hidden, torch.stack([weight, weight.flip(0), 2 * weight]), torch.stack([bias, -bias, bias + 1]), target
    each = [x[0] if axis is None else x for x, axis in zip(stacks, axes, strict=True)]
    inputs = tuple(x if axis is None else x.movedim(0, axis) for x, axis in zip(each, axes, strict=True))

    def loss(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
        return MAE().loss(linear_soft_margin(h, w, b, t)).sum()

    for function in (loss, torch.func.grad(loss, (0, 1, 2))):
        mapped = torch.func.vmap(function, axes)(*inputs)
        looped = [function(*(x if a is None else x[i] for x, a in zip(each, axes, strict=True))) for i in range(3)]
        for got, *true in zip(tree_leaves(mapped), *map(tree_leaves, looped), strict=True):
            assert_close(got, torch.stack(true), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_autocast_computes_products_in_half_precision_and_margins_in_float32(dtype):
    hidden, weight, bias, target = layer(6, dtype=dtype)
    inputs = [x.bfloat16() for x in (hidden, weight, bias)]
    for face in (linear_soft_margin, unfused):
        plain = value_and_gradients(face, *inputs, target)
        with torch.autocast("cpu", torch.bfloat16):
            inside = value_and_gradients(face, hidden, weight, bias, target)
        assert inside[0].dtype == torch.float32 and inside[1].dtype == dtype
        assert_close(inside[0], plain[0], rtol=0, atol=0)
        assert_close([x.float() for x in inside[1:]], [x.float() for x in plain[1:]], rtol=1e-2, atol=1e-2)
    logits = draw(6, 5, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):  # soft_margin itself is left as it is
        inside = soft_margin(logits, target.clamp(max=4))
    assert torch.equal(inside, soft_margin(logits, target.clamp(max=4)))


# the compiler uses what torch itself has deprecated
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def compare_compiled(compiled, eager, target: Tensor, *inputs: Tensor) -> None:
    got, true = compiled(*inputs, target), eager(*inputs, target)
    assert got.dtype == true.dtype
    assert_close(got, true, rtol=1e-5, atol=1e-5)
    gradients = [gradient(lambda *x, f=function: f(*x, target), *inputs) for function in (compiled, eager)]
    tolerance = 2e-2 if inputs[0].dtype in HALVES else 1e-5
    assert_close(*gradients, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@compiles
@one_block
@pytest.mark.parametrize(("backend", "dtype"), [("inductor", torch.float32), ("aot_eager", torch.bfloat16)], ids=str)
def test_compiled_margin_is_the_eager_one_for_every_batch_size(backend, dtype):
    torch._dynamo.reset()
    compiled = torch.compile(soft_margin, fullgraph=True, backend=backend)
    for size in (8, 5, 13):
        target = labels(size, num_classes=9, seed=size)
        target[2] = -100
        compare_compiled(compiled, soft_margin, target, draw(size, 9, seed=size, dtype=dtype))


@pytest.mark.slow
@compiles
@one_block
def test_compiled_linear_margin_is_the_eager_one_for_every_batch_size():
    torch._dynamo.reset()
    compiled = torch.compile(linear_soft_margin, fullgraph=True, backend="aot_eager")
    for size in (8, 5, 13):
        *inputs, target = layer(size, dtype=torch.float32)
        compare_compiled(compiled, linear_soft_margin, target, *inputs)


@pytest.mark.slow
@compiles
@one_block
@pytest.mark.parametrize("style", ["made inside", "made outside"])
def test_compiled_loss_knows_its_hyperparameter(style):
    logits, target = draw(7, 5, dtype=torch.float32), labels(7, num_classes=5)

    def build(q):
        curriculum = GCE(q)
        if style == "made inside":
            return lambda x, t: GCE(q).loss(soft_margin(x, t))
        return lambda x, t: curriculum.loss(soft_margin(x, t))

    for fresh in (True, False):  # compiled anew, and again from the same code object
        for q in (0.3, 0.7, 1.0):
            if fresh:
                torch._dynamo.reset()
            compare_compiled(torch.compile(build(q), fullgraph=True, backend="aot_eager"), build(q), target, logits)
