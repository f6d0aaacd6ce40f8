"""soft_margin: accuracy, shapes, masks, errors, derivatives and memory, in one block of rows and in many."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from curriculoss import RobustLoss
from curriculoss import margin as module
from curriculoss.losses import CE, FL, GCE, MAE, SCE, Scaled
from curriculoss.margin import soft_margin
from tests.reference import Largest, draw, gradient, labels, margins, naive_margins

F64 = torch.float64
INF = math.inf
HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(
    params=[{}, {"EXP2_NUMBERS": 1, "UNMASKED_NUMBERS": 1}, {"BLOCK_NUMBERS": 16}],
    ids=["one block", "large", "many blocks"],
    autouse=True,
)
def block(request, monkeypatch):
    for name, value in request.param.items():
        monkeypatch.setattr(module, name, value)
    return request.param.get("BLOCK_NUMBERS")


# ---- accuracy ----


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_large_margins_come_out_exactly(dtype, offset):
    logits = torch.tensor([[40.0, 0.0], [0.0, 40.0], [90.0, -10.0], [-5000.0, 5000.0]], dtype=dtype) + offset
    assert soft_margin(logits, torch.tensor([0, 0, 0, 0])).tolist() == [40.0, -40.0, 100.0, -10000.0]
    three = torch.tensor([[40.0, 0.0, 0.0]], dtype=dtype) + offset
    assert_close(soft_margin(three, torch.tensor([0])).item(), 40 - math.log(2), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize(("scale", "num_classes"), [(1.0, 2), (1.0, 300), (20.0, 30), (2000.0, 10)])
def test_margin_is_exact_to_a_few_roundings_of_itself(dtype, offset, scale, num_classes):
    logits = (draw(60, num_classes, scale=scale) + offset).to(dtype)
    target = labels(60, num_classes=num_classes)
    true = margins(logits, target)
    eps = torch.finfo(dtype).eps
    assert (
        (soft_margin(logits, target).double() - true).abs() <= 4 * eps * true.abs().clamp(min=math.log(num_classes) + 1)
    ).all()


def test_adding_ten_thousand_to_all_logits_changes_nothing_but_rounding():
    logits, target = draw(64, 10), labels(64, num_classes=10)
    assert_close(soft_margin(logits + 1e4, target), soft_margin(logits, target), rtol=0, atol=1e-11)
    coarse = (logits * 1024).round() / 1024  # no rounding: float32 holds these and 1e4 more than these
    assert torch.equal(soft_margin(coarse.float() + 1e4, target), soft_margin(coarse.float(), target))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_half_precision_is_no_worse_than_the_naive_float32_formula(dtype, scale):
    logits, target = draw(400, 50, scale=scale, dtype=dtype), labels(400, num_classes=50)
    got, true = soft_margin(logits, target), margins(logits, target)
    assert got.dtype == torch.float32
    error, allowed = ((x.double() - true).abs() for x in (got, naive_margins(logits.float(), target)))
    assert error.mean() <= allowed.mean()
    assert (error <= allowed.max() + torch.finfo(torch.float32).eps * true.abs().max()).all()  # the worst is a toss-up


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_gradient_is_that_of_float64_to_one_rounding_of_the_logits_dtype(dtype):
    logits, target = draw(1000, 17, dtype=dtype), labels(1000, num_classes=17)
    (got,), (true,) = (
        gradient(lambda x: soft_margin(x, target), logits),
        gradient(lambda x: naive_margins(x, target), logits.double()),
    )
    assert got.dtype == dtype
    assert_close(got.double(), true, rtol=max(torch.finfo(dtype).eps, 2e-6), atol=torch.finfo(dtype).smallest_normal)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e4)] + [(dtype, torch.finfo(dtype).max / 2) for dtype in HALVES]
)
def test_huge_logits_give_finite_margins_and_gradients(dtype, size):
    logits = torch.tensor([[size, -size, 0.0], [-size, size, size], [size, size, size], [-size] * 3], dtype=dtype)
    target = torch.zeros(4, dtype=torch.int64)
    got = soft_margin(logits, target)
    size = logits[0, 0].item()
    assert_close(got, torch.tensor([size, -2 * size - math.log(2), -math.log(2), -math.log(2)]), rtol=1e-6, atol=0)
    for curriculum in (CE(), FL(2.0), MAE(), GCE(0.7), SCE(0.95), Scaled(MAE(), 0.1)):
        loss = curriculum.loss(soft_margin(logits, target))
        (grad,) = gradient(lambda x, c=curriculum: c.loss(soft_margin(x, target)), logits)
        assert loss.isfinite().all() and grad.isfinite().all()


# ---- shapes and dtypes ----


@pytest.mark.parametrize("shape", [(), (4,), (4, 3), (2, 1, 3)], ids=str)
def test_further_axes_are_further_samples(shape):
    logits, target = draw(5, 7, *shape), labels(5, *shape, num_classes=7)
    rows = logits.movedim(1, -1).reshape(-1, 7)
    got = soft_margin(logits, target)
    assert got.shape == target.shape
    assert_close(got, soft_margin(rows, target.flatten()).reshape(target.shape), rtol=1e-14, atol=1e-14)
    (grad,) = gradient(lambda x: soft_margin(x, target), logits)
    assert_close(grad, gradient(lambda x: naive_margins(x, target), logits)[0], rtol=1e-12, atol=1e-14)


def test_single_sample_needs_no_batch_axis():
    logits = draw(6)
    got = soft_margin(logits, torch.tensor(4))
    assert got.shape == () and torch.equal(got, soft_margin(logits[None], torch.tensor([4]))[0])
    assert gradient(lambda x: soft_margin(x, torch.tensor(4)), logits)[0][4] == 1


def test_strides_do_not_matter():
    logits, target = draw(12, 10, 3), labels(12, 3, num_classes=5)
    for view in (
        logits[:, ::2],
        logits.mT.contiguous().mT[:, :5],
        logits.flip(1)[:, 1:6],
        logits[:, :1].expand(-1, 5, -1),
    ):
        assert not view.is_contiguous()
        for function in (soft_margin, lambda x, t: gradient(lambda y: soft_margin(y, t), x)[0]):
            assert_close(
                function(view, target.T.contiguous().T), function(view.contiguous(), target), rtol=1e-13, atol=1e-15
            )


@pytest.mark.parametrize("dtype", [torch.float16, F64], ids=str)
def test_no_samples_give_no_margins(dtype):
    for shape in ((0, 5), (0, 5, 3), (4, 5, 0)):
        logits = torch.zeros(shape, dtype=dtype, requires_grad=True)
        got = soft_margin(logits, torch.zeros(shape[:1] + shape[2:], dtype=torch.int64))
        got.sum().backward()
        assert got.shape == shape[:1] + shape[2:] and logits.grad.shape == shape


def test_input_is_left_alone():
    logits, target = draw(9, 6).requires_grad_(), torch.tensor([0, 1, -100, 3, 4, 5, 0, 1, 2])
    before = logits.detach().clone(), target.clone()
    soft_margin(logits, target).sum().backward()
    assert torch.equal(logits.detach(), before[0]) and torch.equal(target, before[1])


# ---- ignored samples, masked classes, NaN ----


@pytest.mark.parametrize("ignore_index", [-100, -1, 2, 99])
@pytest.mark.parametrize("poison", [0.0, math.nan, INF, -INF])
@pytest.mark.parametrize("dtype", [F64, torch.bfloat16], ids=str)
def test_ignored_samples_have_margin_zero_and_no_gradient(ignore_index, poison, dtype):
    logits, target = draw(6, 4, 2, dtype=dtype), labels(6, 2, num_classes=2)
    ignored = labels(6, 2, num_classes=2, seed=7).bool()
    target[ignored] = ignore_index
    logits.movedim(1, -1)[ignored] += poison
    got = soft_margin(logits, target, ignore_index=ignore_index)
    (grad,) = gradient(lambda x: soft_margin(x, target, ignore_index=ignore_index), logits)
    grad = grad.movedim(1, -1)
    assert (got[ignored] == 0).all() and (grad[ignored] == 0).all() and ignored.any() and not ignored.all()
    kept = soft_margin(logits.movedim(1, -1)[~ignored], target[~ignored])
    assert_close(got[~ignored], kept, rtol=1e-6 if dtype != F64 else 1e-14, atol=0)
    assert_close(grad[~ignored].abs().float().sum(-1), torch.full((int((~ignored).sum()),), 2.0), rtol=1e-2, atol=0)


def test_all_samples_may_be_ignored():
    logits = torch.full((3, 4), math.nan, requires_grad=True)
    got = soft_margin(logits, torch.full((3,), -100))
    got.sum().backward()
    assert got.tolist() == [0, 0, 0] and (logits.grad == 0).all()


def test_masked_classes_do_not_exist():
    logits, target = draw(8, 5), labels(8, num_classes=3)
    wide = torch.cat([logits[:, :3], torch.full((8, 2), -INF, dtype=F64), logits[:, 3:]], 1)
    assert_close(soft_margin(wide, target), soft_margin(logits, target), rtol=1e-14, atol=0)
    (grad,) = gradient(lambda x: soft_margin(x, target), wide)
    assert (grad[:, 3:5] == 0).all() and not grad.isnan().any()


@pytest.mark.parametrize("curriculum", [CE(), FL(2.0), MAE(), GCE(0.7), SCE(0.5)], ids=repr)
def test_without_any_other_class_the_margin_is_infinite_and_there_is_nothing_to_learn(curriculum):
    logits = torch.full((2, 3), -INF, dtype=F64)
    logits[:, 1] = torch.tensor([-4.0, 1e4])
    target = torch.tensor([1, 1])
    assert soft_margin(logits, target).tolist() == [INF, INF]
    assert (gradient(lambda x: soft_margin(x, target), logits)[0] == 0).all()
    assert curriculum.loss(soft_margin(logits, target)).tolist() == [0, 0]
    assert (gradient(lambda x: curriculum.loss(soft_margin(x, target)), logits)[0] == 0).all()


def test_masked_label_has_margin_minus_infinity_and_finite_gradients():
    logits, target = draw(3, 4), torch.tensor([2, 2, 2])
    logits[1, 2] = -INF
    assert soft_margin(logits, target)[1].item() == -INF
    for curriculum in (CE(), FL(1.0), MAE(), GCE(0.7), SCE(0.7), Scaled(MAE(), 0.5)):
        loss, end = curriculum.loss(soft_margin(logits, target)), torch.tensor(-INF, dtype=F64)
        assert loss[1] == curriculum.loss(end) and loss[[0, 2]].isfinite().all()
        (grad,) = gradient(lambda x, c=curriculum: c.loss(soft_margin(x, target)), logits)
        assert grad.isfinite().all()
        assert_close(grad[1].abs().sum(), 2 * curriculum.weight(end), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, F64, *HALVES], ids=str)
def test_a_row_without_any_class_has_a_masked_label(dtype):
    logits, target = draw(4, 3).to(dtype), labels(4, num_classes=3)
    logits[1] = -INF
    logits.requires_grad_()
    margin = soft_margin(logits, target)
    assert margin[1] == -INF and margin[[0, 2, 3]].isfinite().all()
    for value in (RobustLoss(MAE())(logits, target), RobustLoss(MAE(), class_weight=torch.ones(3))(logits, target)):
        assert value.isfinite() and torch.autograd.grad(value, logits)[0].isfinite().all()
    assert RobustLoss(CE(), reduction="none")(logits, target)[1] == INF


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("others", ["lowest", "lowest and masked", "masked"])
@pytest.mark.parametrize("label", ["lowest", "zero"])
def test_the_lowest_number_there_is_is_a_logit_like_any_other(dtype, others, label):
    lowest = torch.finfo(dtype).min
    logits = torch.full((2, 3), -INF if others == "masked" else lowest, dtype=dtype)
    logits[:, 2] = lowest if others == "lowest" else -INF
    logits[:, 0] = lowest if label == "lowest" else 0.0
    target, count = torch.tensor([0, 0]), {"lowest": 2, "lowest and masked": 1, "masked": 0}[others]
    if count and label == "lowest":
        assert_close(soft_margin(logits, target), torch.full((2,), -math.log(count), dtype=dtype))
    else:
        assert (soft_margin(logits, target) > 1e38).all()
    assert soft_margin(logits, target).isinf().all() == (count == 0)
    q = 1 / max(count, 1)
    expected = torch.tensor([count > 0, -q * (count > 0), -q * (count > 1)], dtype=dtype)
    assert_close(gradient(lambda x: soft_margin(x, target), logits)[0], expected.expand(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, F64], ids=str)
@pytest.mark.parametrize("column", [0, 1], ids=["label", "other"])
def test_nan_stays_nan_and_in_its_row(column, dtype):
    logits, target = draw(4, 3, dtype=dtype), torch.zeros(4, dtype=torch.int64)
    logits[2, column] = math.nan
    got = soft_margin(logits, target)
    assert got.isnan().tolist() == [False, False, True, False]
    (grad,) = gradient(lambda x: MAE().loss(soft_margin(x, target)), logits)
    assert grad.isnan().any(1).tolist() == [False, False, True, False]


# ---- errors ----


@pytest.mark.parametrize(
    ("logits", "target", "error", "message"),
    [
        (torch.zeros(4, 1), torch.zeros(4).long(), ValueError, "at least 2 classes, got K=1"),
        (torch.zeros(4, 0), torch.zeros(4).long(), ValueError, "at least 2 classes, got K=0"),
        (torch.zeros(1), torch.tensor(0), ValueError, "at least 2 classes, got K=1"),
        (torch.tensor(0.0), torch.tensor(0), ValueError, r"got logits \(\) and target \(\)"),
        (torch.zeros(4, 3), torch.zeros(3).long(), ValueError, r"got logits \(4, 3\) and target \(3,\)"),
        (torch.zeros(4, 3), torch.zeros(4, 1).long(), ValueError, r"got logits \(4, 3\) and target \(4, 1\)"),
        (torch.zeros(4, 3), torch.tensor(1), ValueError, r"got logits \(4, 3\) and target \(\)"),
        (torch.zeros(4, 3, 2), torch.zeros(4, 3).long(), ValueError, r"got logits \(4, 3, 2\) and target \(4, 3\)"),
        (torch.zeros(3), torch.zeros(3).long(), ValueError, r"got logits \(3,\) and target \(3,\)"),
        (torch.zeros(4, 3).long(), torch.zeros(4).long(), TypeError, "floating-point logits, got torch.int64"),
        (
            torch.zeros(4, 3, dtype=torch.complex64),
            torch.zeros(4).long(),
            TypeError,
            "floating-point logits, got torch.complex64",
        ),
        ([[0.0, 1.0]], torch.zeros(1).long(), TypeError, "floating-point logits, got list"),
        (torch.zeros(4, 3), torch.zeros(4), TypeError, "int64 class indices as target, got torch.float32"),
        (torch.zeros(4, 3), torch.zeros(4).int(), TypeError, "int64 class indices as target, got torch.int32"),
        (torch.zeros(4, 3), torch.zeros(4).bool(), TypeError, "int64 class indices as target, got torch.bool"),
        (torch.zeros(4, 3), [0, 1, 2, 0], TypeError, "int64 class indices as target, got list"),
        (
            torch.zeros(4, 3),
            torch.tensor([0, 1, 3, 2]),
            ValueError,
            r"from 0 to 2 \(or ignore_index=-100\) as target, got 3",
        ),
        (torch.zeros(4, 3), torch.tensor([0, -1, 1, 2]), ValueError, "as target, got -1"),
        (torch.zeros(4, 3), torch.tensor([0, -100, 10**12, 2]), ValueError, "as target, got 1000000000000"),
        (torch.zeros(2), torch.tensor(2), ValueError, "from 0 to 1 .* as target, got 2"),
    ],
)
def test_wrong_input_is_refused_with_what_came(logits, target, error, message):
    with pytest.raises(error, match=message):
        soft_margin(logits, target)


# ---- derivatives ----


def test_gradient_of_the_margin_has_l1_norm_two():
    logits, target = draw(50, 9, scale=20.0), labels(50, num_classes=9)
    (grad,) = gradient(lambda x: soft_margin(x, target), logits)
    assert_close(grad.abs().sum(1), torch.full((50,), 2.0, dtype=F64), rtol=1e-13, atol=0)
    assert torch.equal(grad.gather(1, target[:, None]), torch.ones(50, 1, dtype=F64)) and (grad > 0).sum() == 50


@pytest.mark.parametrize("curriculum", [CE(), FL(2.0), MAE(), GCE(0.3), Scaled(MAE(), 0.3)], ids=repr)
def test_logit_gradient_has_l1_norm_twice_the_weight(curriculum):
    logits, target = draw(50, 9, scale=5.0), labels(50, num_classes=9)
    (grad,) = gradient(lambda x: curriculum.loss(soft_margin(x, target)), logits)
    assert_close(grad.abs().sum(1), 2 * curriculum.weight(soft_margin(logits, target)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_first_and_second_derivatives_check(shape):
    logits, target = draw(4, 5, *shape, scale=1.0).requires_grad_(), labels(4, *shape, num_classes=5)
    target[1] = -100
    assert gradcheck(lambda x: soft_margin(x, target), (logits,))
    assert gradgradcheck(lambda x: soft_margin(x, target), (logits,))
    assert gradgradcheck(lambda x: GCE(0.7).loss(soft_margin(x, target)), (logits,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_second_derivative_is_that_of_the_definition(dtype):
    logits, target = draw(6, 5, dtype=dtype), labels(6, num_classes=5)
    direction = draw(6, 5, seed=3, scale=1.0, dtype=dtype)

    def second(function, x, v):
        (first,) = torch.autograd.grad(function(x.requires_grad_(), target).square().sum(), x, create_graph=True)
        return torch.autograd.grad((first * v).sum(), x)[0]

    true = second(naive_margins, logits.double(), direction.double())
    tolerance = 20 * torch.finfo(dtype).eps
    assert_close(
        second(soft_margin, logits, direction).double(), true, rtol=tolerance, atol=tolerance * true.abs().max().item()
    )


def test_second_derivative_is_finite_beside_masks_and_ignored_samples():
    logits, target = draw(3, 4), torch.tensor([1, 1, -100])
    logits[0, 2] = -INF
    logits[1, [0, 2, 3]] = -INF
    logits[2] = math.nan
    x = logits.requires_grad_()
    (first,) = torch.autograd.grad(MAE().loss(soft_margin(x, target)).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 1].sum(), x)
    assert first.isfinite().all() and second.isfinite().all() and (second[1:] == 0).all()


# ---- memory ----


@pytest.mark.parametrize("size", [1, 30, 100, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_do_not_change_the_result_and_are_walked_one_by_one(size, dtype, monkeypatch):
    logits, target = draw(64, 10, 3, dtype=dtype), labels(64, 3, num_classes=10)
    target[5] = -100
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 2**20)
    whole = soft_margin(logits, target), gradient(lambda x: soft_margin(x, target), logits)[0]
    monkeypatch.setattr(module, "BLOCK_NUMBERS", size)
    with Largest() as largest:
        margin = soft_margin(logits, target)
    assert (largest.numel < logits.numel()) == (size < logits.numel())
    assert_close(margin, whole[0], rtol=1e-6, atol=1e-6)
    assert_close(
        gradient(lambda x: soft_margin(x, target), logits)[0],
        whole[1],
        rtol=1e-2 if dtype in HALVES else 1e-6,
        atol=1e-7,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64], ids=str)
def test_backward_keeps_as_many_bytes_as_the_logits_and_a_few_numbers_a_sample(dtype):
    logits, target = draw(64, 1000, dtype=dtype).requires_grad_(), labels(64, num_classes=1000)
    target[::7] = -100
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        GCE(0.7).loss(soft_margin(logits, target))
    assert logits.nbytes <= sum(kept.values()) <= logits.nbytes + 64 * 5 * 8


# ---- invariances ----

numbers = st.floats(-50, 50, width=32)
some_logits = st.lists(numbers, min_size=2, max_size=8).map(lambda row: torch.tensor([row], dtype=F64))
derandomized = settings(
    derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@derandomized
@given(some_logits, st.floats(-1e4, 1e4), st.randoms(use_true_random=False))
def test_only_differences_between_logits_count(logits, constant, random):
    target = torch.tensor([random.randrange(logits.shape[1])])
    assert_close(soft_margin(logits + constant, target), soft_margin(logits, target), rtol=0, atol=1e-10)


@derandomized
@given(some_logits, st.randoms(use_true_random=False))
def test_order_of_the_classes_does_not_count(logits, random):
    order = random.sample(range(logits.shape[1]), logits.shape[1])
    label = random.randrange(logits.shape[1])
    permuted = soft_margin(logits[:, order], torch.tensor([order.index(label)]))
    assert_close(permuted, soft_margin(logits, torch.tensor([label])), rtol=1e-13, atol=1e-13)


@derandomized
@given(numbers, numbers)
def test_margin_of_two_classes_is_the_difference_of_their_logits(label, other):
    logits = torch.tensor([[other, label]], dtype=F64)
    near = {"rel": 1e-15, "abs": 1e-15}  # large batches may round log exp once
    assert soft_margin(logits, torch.tensor([1])).item() == pytest.approx(label - other, **near)
    assert soft_margin(logits, torch.tensor([0])).item() == pytest.approx(other - label, **near)
