"""The Triton kernels against torch's operations, in Triton's interpreter on CPU tensors.

test_triton.py runs this file in a process of its own, since TRITON_INTERPRET=1 must be set before triton is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.func import grad, vmap
from torch.testing import assert_close

from benchmarks import losses
from curriculoss import GCE, MAE, NCE, AutoLoss, RobustLoss, Scaled, _kernel, soft_margin
from curriculoss._autograd import compute_dtype
from curriculoss.errors import InvalidValueError
from tests.reference import Largest, draw, gradient, labels, margins, naive_margins

INF, NAN = math.inf, math.nan
F32, F64 = torch.float32, torch.float64
HALVES = [torch.float16, torch.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", [*HALVES, F32, F64], ids=str)
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)

# The interpreter computes with numpy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # which torch itself has deprecated

Function = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def launches(monkeypatch) -> Iterator[list[str]]:
    """The names of the kernels that ran; a test in which none did has compared torch with itself."""
    from curriculoss import _triton

    assert _triton.INTERPRETED and _kernel.KERNEL == "triton"
    monkeypatch.setattr(_kernel, "KERNEL", "triton")  # the benchmark changes it
    names: list[str] = []
    launch = _triton._launch
    monkeypatch.setattr(
        _triton, "_launch", lambda kernel, *rest: (names.append(kernel.__name__), launch(kernel, *rest))
    )
    yield names
    assert names


@pytest.fixture(params=[4096, 32], ids=["large tiles", "small tiles"])
def tile(request, monkeypatch):
    """With small tiles, few classes take many of them."""
    from curriculoss import _triton

    monkeypatch.setattr(_triton, "TILE", request.param)
    monkeypatch.setattr(_triton, "COALESCED", 4)


def by_torch(function: Function, logits: Tensor) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernel, "KERNEL", "torch")
        return function(logits)


def assert_as_by_torch(function: Function, logits: Tensor) -> None:
    """To a few roundings of exponents up to 30 in size. In half precision, gradients to two roundings of that: the
    interpreter rounds bfloat16 towards 0."""
    got, true = function(logits), by_torch(function, logits)
    eps = torch.finfo(true.dtype).eps
    assert_close(got, true, rtol=8 * eps, atol=8 * eps, equal_nan=True)

    def slope(x: Tensor) -> Tensor:
        return gradient(function, x)[0]

    own = torch.finfo(logits.dtype)
    rtol = max(2 * own.eps, 32 * torch.finfo(compute_dtype(logits.dtype)).eps)
    assert_close(slope(logits), by_torch(slope, logits), rtol=rtol, atol=own.smallest_normal, equal_nan=True)


# ---- shapes, dtypes and strides ----


@every_dtype
@pytest.mark.parametrize("num_classes", [2, 3, 100, 1000, 50257])
def test_margin_and_gradient_are_those_of_torch_for_any_number_of_classes(num_classes, dtype):
    logits, target = draw(3, num_classes, dtype=dtype), labels(3, num_classes=num_classes)
    target[1] = num_classes - 1
    assert_as_by_torch(lambda x: soft_margin(x, target), logits)


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("num_classes", [15, 16, 17, 100])
def test_neither_rows_nor_classes_need_be_multiples_of_a_tile(rows, num_classes, tile):
    logits, target = draw(rows, num_classes), labels(rows, num_classes=num_classes)
    assert_as_by_torch(lambda x: soft_margin(x, target), logits)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 1, 3), (2, 0)], ids=str)
def test_further_axes_are_further_samples(shape, tile):
    logits, target = draw(5, 37, *shape), labels(5, *shape, num_classes=37)
    assert_as_by_torch(lambda x: soft_margin(x, target), logits)


def test_empty_batch_has_no_margins():
    assert_as_by_torch(lambda x: soft_margin(x, labels(0, num_classes=3)), draw(0, 3))


def test_single_sample_needs_no_batch_axis():
    assert_as_by_torch(lambda x: soft_margin(x, torch.tensor(4)), draw(6))


def test_strides_do_not_matter(tile):
    logits, target = draw(3, 40, 3, 2), labels(3, 3, 2, num_classes=20)
    for view in (
        logits[:, ::2],
        logits.flip(1)[:, 1:21],
        logits.transpose(1, 3).contiguous().transpose(1, 3)[:, :20],
        logits.mT.contiguous().mT[:, :20],  # whose last axes cannot be one without a copy
        logits[:, :20].contiguous(memory_format=torch.channels_last),
        logits[:, :1].expand(-1, 20, -1, -1),
        logits[:, :20].transpose(0, 1).contiguous().transpose(0, 1),
    ):
        strided = target.mT.contiguous().mT
        assert_as_by_torch(lambda x, t=strided: soft_margin(x, t), view)
        got = gradient(lambda x, t=strided: soft_margin(x, t), view)[0]
        assert_close(got, gradient(lambda x: naive_margins(x, target), view)[0], rtol=1e-12, atol=1e-14)


# ---- masks, ignored labels, large and broken numbers ----


@every_dtype
def test_masked_classes_do_not_exist(dtype, tile):
    logits, target = draw(8, 50, dtype=dtype), torch.zeros(8, dtype=torch.int64)
    logits[0, 1:] = -INF  # all others
    logits[1, 0] = -INF  # the label
    logits[2] = -INF
    logits[3, 1:40] = -INF  # all others in the first tiles
    logits[4, 20:] = -INF
    logits[5, 1:] = torch.finfo(dtype).min
    assert_as_by_torch(lambda x: soft_margin(x, target), logits)
    assert_as_by_torch(lambda x: RobustLoss(GCE(0.7), reduction="none")(x, target), logits)
    assert soft_margin(logits, target)[:3].tolist() == [INF, -INF, -INF]


@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_ignored_samples_have_margin_zero_and_no_gradient_even_if_they_are_padding(ignore_index, tile):
    logits, target = draw(5, 30, 2), labels(5, 2, num_classes=30)
    target[::2, 0] = ignore_index
    logits.movedim(1, 2)[target == ignore_index] = NAN
    assert_as_by_torch(lambda x: soft_margin(x, target, ignore_index=ignore_index), logits)
    for reduction in ("mean", "sum", "none"):
        criterion = RobustLoss(MAE(), reduction=reduction, ignore_index=ignore_index)
        assert_as_by_torch(lambda x, c=criterion: c(x, target), logits)
        assert gradient(lambda x, c=criterion: c(x, target), logits)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_margins_of_ten_thousand_come_out_exactly(dtype, offset, tile):
    logits = torch.full((3, 40), -2e4, dtype=dtype)
    logits[:, 0], logits[:, 33] = torch.tensor([5000.0, -5000.0, 40.0]), torch.tensor([-5000.0, 5000.0, 0.0])
    target = torch.zeros(3, dtype=torch.int64)
    assert soft_margin(logits + offset, target).tolist() == [1e4, -1e4, 40.0]
    assert_as_by_torch(lambda x: soft_margin(x, target), logits + offset)
    assert_as_by_torch(lambda x: RobustLoss(Scaled(MAE(), 1e-3), reduction="none")(x, target), logits + offset)


def test_logits_that_are_no_numbers_give_margins_that_are_none(tile):
    logits, target = draw(4, 40), torch.zeros(4, dtype=torch.int64)
    logits[0, 20], logits[1, 20], logits[2, 0] = NAN, INF, NAN
    got = soft_margin(logits, target)
    assert got[:3].isnan().all() and got[3].isfinite()
    (to_logits,) = gradient(lambda x: RobustLoss(MAE(), reduction="none")(x, target), logits)
    assert to_logits[:3].isnan().any(1).all() and to_logits[3].isfinite().all()


def test_label_that_is_no_class_is_refused_and_where_it_cannot_be_gives_nan():
    from curriculoss import _triton

    logits, target = draw(2, 5), torch.tensor([5, 1])
    with pytest.raises(InvalidValueError, match=r"class indices from 0 to 4 .*, got 5$"):
        soft_margin(logits, target)
    margin = _triton.read(logits, target.unsqueeze(1), None)[0]  # as on a GPU, where a check would wait for it
    assert margin.isnan().tolist() == [[True], [False]]


# ---- losses and derivatives ----


@pytest.mark.parametrize("loss", [GCE(0.7), Scaled(MAE(), 0.5), NCE()], ids=repr)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_are_those_of_torch(loss, reduction):
    logits, target = draw(6, 20, 2, dtype=F32), labels(6, 2, num_classes=20)
    assert_as_by_torch(lambda x: RobustLoss(loss, reduction=reduction)(x, target), logits)


def test_autoloss_is_that_of_torch():
    logits, target = draw(60, 10), labels(60, num_classes=10)
    assert_as_by_torch(lambda x: AutoLoss(10)(x, target), logits)


def test_training_step_runs_each_kernel_once(launches):
    gradient(lambda x: RobustLoss(GCE(0.7))(x, labels(6, num_classes=20)), draw(6, 20))
    assert launches == ["forward_kernel", "backward_kernel"]


def test_forward_makes_nothing_of_the_size_of_the_logits():
    logits, target = draw(6, 100, dtype=torch.bfloat16), labels(6, num_classes=100)
    with Largest() as largest:
        RobustLoss(GCE(0.7))(logits.requires_grad_(), target)
    assert largest.numel == 6


def test_gradient_can_be_differentiated_again():
    target = labels(4, num_classes=5)
    assert gradgradcheck(lambda x: soft_margin(x, target), draw(4, 5).requires_grad_())
    criterion = RobustLoss(GCE(0.7))
    assert gradgradcheck(lambda x: criterion(x, target), draw(4, 5).requires_grad_())


def test_transforms_of_torch_func_take_the_way_of_torch(launches):
    logits, target = draw(4, 5), labels(4, num_classes=5)
    true = gradient(lambda x: soft_margin(x, target), logits)[0]
    before = len(launches)
    assert_close(vmap(grad(soft_margin))(logits, target), true)
    assert len(launches) == before


@compiles
@pytest.mark.parametrize(("backend", "dtype"), [("inductor", F32), ("aot_eager", torch.float16)], ids=str)
def test_compiled_is_eager_for_every_batch_size(backend, dtype, launches):
    criterion = RobustLoss(GCE(0.7))

    def both(x: Tensor, target: Tensor) -> Tensor:
        return soft_margin(x, target).to(x.dtype) + criterion(x, target)

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend=backend)
    for size in (8, 5, 13):
        logits, target = draw(size, 9, seed=size, dtype=dtype), labels(size, num_classes=9)
        target[2] = -100
        tolerance = 4 * torch.finfo(dtype).eps
        launches.clear()
        got = compiled(logits.requires_grad_(), target)
        (slope,) = torch.autograd.grad(got.sum(), logits)
        assert set(launches) == {"forward_kernel", "backward_kernel"}
        assert_close(got, both(logits, target), rtol=tolerance, atol=tolerance)
        assert_close(slope, gradient(lambda x, t=target: both(x, t), logits)[0], rtol=tolerance, atol=tolerance)


@compiles
@pytest.mark.parametrize("shape", [(3, 7), (3, 7, 2, 2)], ids=str)
def test_custom_ops_keep_what_they_promise_to_the_compiler(shape):
    from curriculoss import _triton

    logits, index = draw(*shape, dtype=torch.float16), labels(shape[0], 1, *shape[2:], num_classes=7)
    for strided in (logits, logits.transpose(0, 1).contiguous().transpose(0, 1), logits.flip(1)):
        torch.library.opcheck(_triton._read, (strided, index))
        _, top, total = _triton.read(strided, index, None)
        torch.library.opcheck(_triton._write, (strided, index, torch.ones_like(top), top, total))


def test_benchmark_times_each_loss_by_torch_and_by_triton(launches):
    """As with --device cuda, on the device that is here."""
    cells = losses.measure("idle", [(4, 10)], quick=True, kernels=("torch", "triton"))
    names = [cell.loss for cell in cells]
    assert {"gce", "gce, Triton", "AutoLoss, Triton", losses.BASELINE} <= set(names) and len(set(names)) == len(names)
    ours = [name for name in names if name != losses.BASELINE and "public code" not in name]
    assert sum(name.endswith(", Triton") for name in ours) == len(ours) / 2
    assert {"forward_kernel", "backward_kernel"} == set(launches)


# ---- half precision ----


@every_half
@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_margin_in_half_precision_is_no_worse_than_the_naive_float32_formula(dtype, scale, tile):
    logits, target = draw(60, 50, scale=scale, dtype=dtype), labels(60, num_classes=50)
    got, true = soft_margin(logits, target), margins(logits, target)
    assert got.dtype == F32
    error, allowed = ((x.double() - true).abs() for x in (got, naive_margins(logits.float(), target)))
    assert error.mean() <= allowed.mean()
    assert (error <= allowed.max() + torch.finfo(F32).eps * true.abs().max()).all()  # the worst is a toss-up


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_gradient_in_half_precision_is_no_worse_than_that_of_the_naive_float32_formula(scale):
    """In float16. The interpreter does not round bfloat16 to nearest; that a GPU does is in test_triton.py."""
    logits, target = draw(200, 50, scale=scale, dtype=torch.float16), labels(200, num_classes=50)
    true = gradient(lambda x: naive_margins(x, target), logits.double())[0]
    naive = gradient(lambda x: naive_margins(x.float(), target), logits)[0]
    got = gradient(lambda x: soft_margin(x, target), logits)[0]
    error, allowed = ((x.double() - true).abs() for x in (got, naive))
    assert got.dtype == torch.float16
    assert error.mean() <= allowed.mean() + 4 * torch.finfo(F32).eps * true.abs().mean()
    assert error.max() <= allowed.max() + 4 * torch.finfo(F32).eps * true.abs().max()
