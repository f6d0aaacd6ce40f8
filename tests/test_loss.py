"""Every loss called, as a function and as a module: F.cross_entropy's conventions, the two scales, the weights."""

from __future__ import annotations

import copy
import math
import pickle
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from curriculoss import GLS, NCE, ActivePassive, AutoLoss, PeerLoss, RobustLoss, available, fix, get, soft_margin
from curriculoss.functional import robust_loss
from curriculoss.losses import AUL, CE, FL, GCE, MAE, Curriculum, Designed, Scaled, Shifted
from tests.reference import Largest, draw, gradient, labels

F64 = torch.float64
REDUCTIONS = ("mean", "sum", "none")
EVERY = {name: get(name) for name in available() if name != "rce"}  # it is mae
CURRICULA = [loss for loss in EVERY.values() if isinstance(loss, Curriculum)]
CURRICULA += [Scaled(MAE(), 0.3), Shifted(GCE(0.5), 2.0), Designed(torch.sigmoid)]
every_loss = pytest.mark.parametrize("loss", EVERY.values(), ids=EVERY.keys())
every_fixed_loss = pytest.mark.parametrize(  # peer draws anew at each call
    "loss", [loss for name, loss in EVERY.items() if name != "peer"], ids=[name for name in EVERY if name != "peer"]
)
every_curriculum = pytest.mark.parametrize("curriculum", CURRICULA, ids=lambda c: type(c).__name__)
every_reduction = pytest.mark.parametrize("reduction", REDUCTIONS)
# the compiler uses what torch itself has deprecated
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")


def batch(shape: tuple[int, ...], kind: str, dtype: torch.dtype = F64) -> tuple[Tensor, Tensor]:
    """Logits, and as target: class indices, indices with ignored samples among them, or probabilities."""
    logits = draw(*shape, dtype=dtype)
    sites = shape[:1] + shape[2:] if len(shape) > 1 else ()
    if kind == "probabilities":
        return logits, draw(*shape, seed=5, scale=1.0).softmax(min(1, len(shape) - 1)).to(dtype)
    target = labels(*sites, num_classes=shape[1] if len(shape) > 1 else shape[0])
    if kind == "ignored":
        target[::3] = -100
    return logits, target


def assert_same(ours, theirs, logits: Tensor, rtol: float = 1e-12, atol: float = 1e-14) -> None:
    """The values, and the gradients of what a caller would weigh them with."""
    got, true = ours(logits), theirs(logits)
    assert got.shape == true.shape and got.dtype == true.dtype
    assert_close(got, true, rtol=rtol, atol=atol, equal_nan=True)
    up = torch.linspace(0.5, 2.0, true.numel(), dtype=true.dtype).reshape(true.shape)
    assert_close(*(gradient(lambda x, f=f: f(x) * up, logits)[0] for f in (ours, theirs)), rtol=rtol, atol=atol)


# ---- F.cross_entropy ----

KINDS = ("indices", "ignored", "probabilities")
CASES = [(shape, kind) for shape in ((8, 6), (4, 6, 3, 2)) for kind in KINDS]
CASES += [((6,), "indices"), ((6,), "probabilities")]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("shape", "kind"), CASES, ids=str)
def test_ce_is_cross_entropy_and_gls_its_label_smoothing(shape, kind, weighted):
    logits, target = batch(shape, kind)
    weight = torch.linspace(0.2, 3.0, 6, dtype=F64) if weighted else None
    for reduction in REDUCTIONS:
        for loss, smoothing in ((CE(), 0.0), (GLS(0.0), 0.0), (GLS(0.1), 0.1), (GLS(1.0), 1.0)):
            criterion = RobustLoss(loss, reduction=reduction, class_weight=weight)
            options = {"reduction": reduction, "label_smoothing": smoothing}
            assert_same(
                lambda x, c=criterion: c(x, target),
                lambda x, o=options: F.cross_entropy(x, target, weight, **o),
                logits,
            )


@pytest.mark.parametrize("ignore_index", [-1, 2, 255])
def test_ignore_index_is_the_callers(ignore_index):
    logits, target = draw(9, 4), torch.tensor([0, 1, 3, 0, 1, 3, 0, 1, 3])
    target[::3] = ignore_index
    for loss in (CE(), GLS(0.0)):
        criterion = RobustLoss(loss, ignore_index=ignore_index)
        assert_same(
            lambda x, c=criterion: c(x, target),
            lambda x: F.cross_entropy(x, target, ignore_index=ignore_index),
            logits,
        )


@pytest.mark.parametrize("weighted", [False, True])
@every_loss
def test_batch_that_is_ignored_whole_has_no_mean_and_no_gradient(loss, weighted):
    logits, target = draw(3, 4).requires_grad_(), torch.full((3,), -100)
    weight = torch.ones(4, dtype=F64) if weighted else None
    assert F.cross_entropy(logits, target, weight).isnan()
    for reduction, expected in (("mean", math.nan), ("sum", 0.0), ("none", 0.0)):
        value = RobustLoss(loss, reduction=reduction, class_weight=weight)(logits, target)
        true = torch.full(value.shape, expected, dtype=F64)
        assert_close(value, true, rtol=0, atol=0, equal_nan=True)
        assert (torch.autograd.grad(value.sum(), logits)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@every_loss
def test_empty_batch_is_answered_as_cross_entropy_does(loss, dtype):
    for shape, kind in product(((0, 5), (0, 5, 3)), ("indices", "probabilities")):
        logits, target = batch(shape, kind, dtype)
        for reduction in REDUCTIONS:
            true = F.cross_entropy(logits.float(), target.float() if kind[0] == "p" else target, reduction=reduction)
            got = RobustLoss(loss, reduction=reduction)(logits.requires_grad_(), target)
            assert_close(got, true.to(dtype), rtol=0, atol=0, equal_nan=True)
            assert torch.autograd.grad(got.sum(), logits)[0].shape == shape


# ---- probabilities, class weights ----


@every_curriculum
def test_probabilities_weigh_the_losses_of_all_labels(curriculum):
    logits, target = batch((6, 5, 2), "probabilities")
    weight = torch.linspace(0.2, 3.0, 5, dtype=F64)

    def by_definition(x: Tensor, weight: Tensor) -> Tensor:
        each = [curriculum.loss(soft_margin(x, torch.full((6, 2), i))) for i in range(5)]
        return sum(target[:, i] * weight[i] * value for i, value in enumerate(each))

    for class_weight in (torch.ones(5, dtype=F64), weight):
        criterion = RobustLoss(curriculum, reduction="none", normalize=False, class_weight=class_weight)
        assert_same(lambda x, c=criterion: c(x, target), lambda x, w=class_weight: by_definition(x, w), logits)


@pytest.mark.parametrize("weighted", [False, True])
@every_fixed_loss
def test_one_hot_probabilities_are_class_indices(loss, weighted):
    logits, target = draw(7, 5, 2), labels(7, 2, num_classes=5)
    logits[0] *= 20  # margins far from 0
    weight = torch.linspace(0.2, 3.0, 5, dtype=F64) if weighted else None
    criterion = RobustLoss(loss, reduction="none", class_weight=weight)
    one_hot = F.one_hot(target, 5).movedim(-1, 1).double()
    assert_same(lambda x: criterion(x, one_hot), lambda x: criterion(x, target), logits, rtol=1e-10, atol=1e-13)


@every_reduction
@every_curriculum
def test_class_weights_weigh_samples_and_their_sum_divides_the_mean(curriculum, reduction):
    logits, target = batch((8, 5), "ignored")
    weight = torch.linspace(0.2, 3.0, 5, dtype=F64)
    kept = target != -100

    def by_definition(x: Tensor) -> Tensor:
        value = torch.zeros(8, dtype=F64)
        value[kept] = weight[target[kept]] * curriculum.loss(soft_margin(x, target)[kept]) / curriculum.peak.weight
        return {"none": value, "sum": value.sum(), "mean": value.sum() / weight[target[kept]].sum()}[reduction]

    criterion = RobustLoss(curriculum, reduction=reduction, class_weight=weight)
    assert_same(lambda x: criterion(x, target), by_definition, logits)


# ---- one path ----

EVERY_KIND = {**EVERY, **{type(loss).__name__: loss for loss in CURRICULA[-3:]}}
every_kind = pytest.mark.parametrize("loss", EVERY_KIND.values(), ids=EVERY_KIND.keys())


@pytest.mark.slow
@every_reduction
@pytest.mark.parametrize("kind", KINDS)
@every_kind
def test_a_call_the_function_and_the_module_are_the_same_to_the_bit(loss, kind, reduction):
    logits, target = batch((8, 5, 2), kind, torch.float32)
    options = {"reduction": reduction, "class_weight": torch.linspace(0.2, 3.0, 5)}
    for given in ({}, options, {**options, "normalize": False}):
        found = []
        for call in (
            loss,
            lambda x, y, **o: robust_loss(x, y, loss, **o),
            lambda x, y, **o: RobustLoss(loss, **o)(x, y),
        ):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                found.append(gradient(lambda x, c=call, g=given: c(x, target, **g), logits)[0])
        assert all(torch.equal(grad, found[0]) for grad in found)


def test_a_wrong_call_names_the_loss_that_was_called():
    logits, target = draw(6, 5), labels(6, num_classes=5)
    for options, message in (
        ({"reduction": "avg"}, "GCE expects reduction 'mean', 'sum' or 'none', got 'avg'"),
        ({"ignore_index": None}, "GCE expects an integer ignore_index, got None"),
        ({"class_weight": torch.ones(4)}, "GCE expects 4 classes, as many as class_weight has, got 5"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            GCE(0.7)(logits, target, **options)
    with pytest.raises(TypeError, match=r"robust_loss expects a loss such as MAE\(\) or get\('mae'\), got 'mae'"):
        robust_loss(logits, target, "mae")


# ---- sample weights ----


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@every_reduction
@every_fixed_loss
def test_sample_weights_count_as_class_weights_do(loss, reduction, kind, weighted):
    logits, target = batch((8, 5, 2), kind)
    class_weight = torch.linspace(0.2, 3.0, 5, dtype=F64) if weighted else None
    sample_weight = draw(8, 2, seed=6).exp()
    sample_weight[2, 1] = 0.0

    def by_definition(x: Tensor) -> Tensor:
        each = loss(x, target, reduction="none", class_weight=class_weight) * sample_weight
        counts = torch.ones(8, 2, dtype=F64)
        if kind != "probabilities":
            counts = (target >= 0) * (1.0 if class_weight is None else class_weight[target.clamp(min=0)])
        return {"none": each, "sum": each.sum(), "mean": each.sum() / (counts * sample_weight).sum()}[reduction]

    criterion = RobustLoss(loss, reduction=reduction, class_weight=class_weight)
    assert_same(lambda x: criterion(x, target, sample_weight), by_definition, logits)


def test_a_weight_per_row_counts_for_all_of_its_targets_and_one_for_a_single_sample():
    logits, target = batch((4, 5, 3, 2), "ignored")
    per_row = torch.tensor([0.5, 1.0, 2.0, 0.0])
    everywhere = per_row.reshape(4, 1, 1).expand(4, 3, 2)
    for labelled in (target, logits.softmax(1)):
        assert_close(MAE()(logits, labelled, sample_weight=per_row), MAE()(logits, labelled, sample_weight=everywhere))
    one = MAE()(logits[0, :, 0, 0], target[1, 0, 0], reduction="sum", sample_weight=torch.tensor(3.0))
    assert_close(one, 3 * MAE()(logits[0, :, 0, 0], target[1, 0, 0]))


def test_samples_without_weight_may_have_an_infinite_loss_and_weights_may_be_learned():
    logits, target = draw(4, 3).requires_grad_(), torch.tensor([0, 1, 2, 0])
    masked = logits.detach().clone()
    masked[1, 1] = -math.inf
    keep = torch.tensor([True, False, True, True])
    assert_close(CE()(masked, target, sample_weight=keep), CE()(logits[keep], target[keep]))
    assert gradient(lambda x: CE()(x, target, sample_weight=keep), masked)[0].isfinite().all()
    weight = torch.ones(4, dtype=F64, requires_grad=True)
    (found,) = torch.autograd.grad(MAE()(logits, target, sample_weight=weight, reduction="sum"), weight)
    assert_close(found, MAE()(logits, target, reduction="none"))


@pytest.mark.parametrize("given", [torch.ones(5), torch.ones(6, 1), torch.ones(6) * 1j, [1.0] * 6], ids=str)
def test_other_sample_weights_are_refused(given):
    logits, target = draw(6, 5), labels(6, num_classes=5)
    for criterion in (RobustLoss(MAE()), AutoLoss(5)):
        name = type(criterion).__name__
        with pytest.raises(ValueError, match=rf"{name} expects sample_weight as a tensor of shape \(6,\), got "):
            criterion(logits, target, given)


def test_linear_takes_sample_weights():
    inputs, target = (draw(8, 6), draw(5, 6, seed=2), None), batch((8, 5), "ignored")[1]
    weight = torch.linspace(0, 1, 8)
    for make in (lambda: RobustLoss(GCE(0.3)), lambda: AutoLoss(5).eval()):
        fused, plain = make().linear(*inputs, target, weight), make()(F.linear(*inputs), target, weight)
        assert_close(fused, plain, rtol=1e-11, atol=1e-13)


# ---- what loops and monitors ask ----


@pytest.mark.parametrize("size", [(20, 5), (7, 5, 2), (400, 50), (2**7, 2**14)], ids=str)  # up to two blocks
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64], ids=str)
@pytest.mark.parametrize("loss", [MAE(), NCE(), "auto"], ids=str)
def test_loss_comes_with_the_margin_that_soft_margin_gives_to_the_bit(loss, dtype, size):
    logits, target = batch(size, "ignored", dtype)
    logits[1, 1:], logits[2, :] = -math.inf, -math.inf
    target[1] = 0
    criterion = AutoLoss(size[1]).eval() if loss == "auto" else RobustLoss(loss)
    logits.requires_grad_()
    value, margin = criterion.loss_and_margin(logits, target)
    assert torch.equal(margin, soft_margin(logits, target).detach()) and margin[1].isinf().all()
    assert not margin.requires_grad and margin.dtype == (F64 if dtype == F64 else torch.float32)
    assert_close(value, criterion(logits, target), rtol=0, atol=0)
    assert_close(*(torch.autograd.grad(x, logits)[0] for x in (value, criterion(logits, target))), rtol=0, atol=0)


def test_a_single_sample_and_probabilities_come_with_margins_too():
    logits, target = batch((6, 5), "probabilities")
    assert torch.equal(RobustLoss(MAE()).loss_and_margin(logits, target)[1], soft_margin(logits, logits.argmax(1)))
    assert RobustLoss(MAE()).loss_and_margin(logits[0], torch.tensor(3))[1] == soft_margin(logits[0], torch.tensor(3))


@every_kind
def test_only_a_curriculum_has_a_fixed_weight_function_of_the_margin(loss):
    assert loss.curriculum is (loss if isinstance(loss, Curriculum) else None) is RobustLoss(loss).curriculum
    assert loss.version == RobustLoss(loss).version == AutoLoss(5).version == 1
    assert AutoLoss(5).curriculum is None


@every_kind
def test_criterion_weighs_with_the_weights_of_its_loss_times_its_scale(loss):
    logits, target = batch((40, 5), "indices")
    criterion, margin = RobustLoss(loss), soft_margin(logits, target)
    assert_close(criterion.weight(margin, logits, target), loss.weights(margin, logits, target) / loss.unit_weight)
    if loss.curriculum is not None:
        assert_close(criterion.weight(margin, None, target), loss.weight(margin) / loss.peak.weight)
    else:
        with pytest.raises(ValueError, match="has a second term: its weight expects logits, got margins alone"):
            criterion.weight(margin, None, target)


# ---- the two scales ----


@every_curriculum
@pytest.mark.parametrize("weight", [None, torch.ones(9, dtype=F64)], ids=["one step", "step by step"])
def test_logit_gradient_has_l1_norm_twice_the_weight(curriculum, weight):
    logits, target = draw(60, 9, scale=5.0), labels(60, num_classes=9)
    criterion = RobustLoss(curriculum, reduction="none", normalize=False, class_weight=weight)
    (grad,) = gradient(lambda x: criterion(x, target), logits)
    assert_close(grad.abs().sum(1), 2 * curriculum.weight(soft_margin(logits, target)), rtol=1e-13, atol=0)
    assert_close(criterion(logits, target), curriculum.loss(soft_margin(logits, target)), rtol=1e-14, atol=0)


@every_curriculum
def test_largest_weight_is_one_after_normalisation(curriculum):
    top = max(min(curriculum.peak.margin, 1e4), -1e4)
    margins = torch.cat([torch.linspace(-60, 60, 2001, dtype=F64), torch.tensor([top, -1e4, 1e4], dtype=F64)])
    logits, target = torch.stack([margins, torch.zeros_like(margins)], 1), torch.zeros(len(margins), dtype=torch.int64)
    criterion = RobustLoss(curriculum, reduction="none")
    weight = gradient(lambda x: criterion(x, target), logits)[0].abs().sum(1) / 2
    assert (weight <= 1 + 1e-12).all()
    assert_close(weight.max().item(), 1.0, rtol=1e-12, atol=0)
    plain = RobustLoss(curriculum, reduction="none", normalize=False)(logits, target)
    assert_close(criterion(logits, target) * curriculum.peak.weight, plain, rtol=1e-14, atol=0)


# ---- the module ----


def test_class_weight_is_a_buffer():
    criterion = RobustLoss(MAE(), class_weight=torch.tensor([1.0, 2.0, 3.0]))
    assert list(criterion.state_dict()) == ["class_weight"]
    other = RobustLoss(MAE(), class_weight=torch.ones(3))
    other.load_state_dict(criterion.state_dict())
    assert other.class_weight.tolist() == [1.0, 2.0, 3.0]
    assert criterion.to(F64).class_weight.dtype == F64 and not list(criterion.parameters())
    assert dict(RobustLoss(MAE()).state_dict()) == {}


@every_loss
def test_copies_compute_the_same(loss):
    logits, target = batch((6, 5), "ignored")
    criterion = RobustLoss(loss, reduction="sum", class_weight=torch.linspace(1, 2, 5, dtype=F64), normalize=False)
    for twin in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
        assert twin is not criterion and twin.loss == loss and repr(twin) == repr(criterion)
        with torch.random.fork_rng():
            values = []
            for module in (criterion, twin):
                torch.manual_seed(0)
                values.append(module(logits, target))
        assert torch.equal(*values)
    assert repr(RobustLoss(GCE(0.7))) == "RobustLoss(GCE(q=0.7), reduction='mean', normalize=True)"


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((MAE,), {}, TypeError, r"expects a loss such as MAE\(\) or get\('mae'\), got <class '.*MAE'>"),
        (("mae",), {}, TypeError, "expects a loss such as .*, got 'mae'"),
        ((CE(),), {"reduction": "avg"}, ValueError, "expects reduction 'mean', 'sum' or 'none', got 'avg'"),
        ((CE(),), {"reduction": None}, ValueError, "expects reduction 'mean', 'sum' or 'none', got None"),
        (
            (CE(),),
            {"class_weight": torch.ones(2, 2)},
            ValueError,
            r"a number for each class, got torch.float32 \(2, 2\)",
        ),
        ((CE(), "sum"), {}, TypeError, "positional argument"),
    ],
)
def test_wrong_loss_or_option_is_refused(arguments, options, error, message):
    with pytest.raises(error, match=message):
        RobustLoss(*arguments, **options)


ZEROS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize("loss", [MAE(), NCE()], ids=repr)
@pytest.mark.parametrize(
    ("logits", "target", "error", "message"),
    [
        (torch.zeros(4, 3), ZEROS[:3], ValueError, r"RobustLoss expects .* got logits \(4, 3\) and target \(3,\)"),
        (torch.zeros(4, 3), torch.zeros(4, 3).long(), ValueError, r"got logits \(4, 3\) and target \(4, 3\)"),
        (torch.zeros(4, 3, 2), torch.zeros(4, 3).long(), ValueError, r"got logits \(4, 3, 2\) and target \(4, 3\)"),
        (torch.zeros(4, 3), torch.zeros(4, 2), ValueError, "or probabilities in the shape of the logits"),
        (torch.zeros(4, 3), ZEROS.int(), TypeError, "int64 class indices as target, got torch.int32"),
        (torch.zeros(4, 3).long(), ZEROS, TypeError, "RobustLoss expects floating-point logits, got torch.int64"),
        (torch.zeros(4, 3), ZEROS + 3, ValueError, r"from 0 to 2 \(or ignore_index=-100\) as target, got 3"),
        (torch.zeros(4, 3), ZEROS - 1, ValueError, "as target, got -1"),
        (torch.zeros(3), torch.tensor(3), ValueError, "from 0 to 2 .* as target, got 3"),
        (torch.zeros(4, 1), ZEROS, ValueError, "at least 2 classes, got K=1"),
        (torch.zeros(4, 1), torch.ones(4, 1), ValueError, "at least 2 classes, got K=1"),
        (torch.zeros(4, 1, 2), torch.ones(4, 1, 2), ValueError, "at least 2 classes, got K=1"),
        (torch.zeros(1), torch.ones(1), ValueError, "at least 2 classes, got K=1"),
        (torch.tensor(0.0), torch.tensor(1.0), ValueError, "or probabilities in the shape of the logits"),
    ],
)
def test_wrong_input_is_refused_with_what_came(loss, logits, target, error, message):
    with pytest.raises(error, match=message):
        RobustLoss(loss)(logits, target)
    if logits.dim() > 1 and logits.shape[1] == 3:
        with pytest.raises(error, match=message):
            RobustLoss(loss, class_weight=torch.ones(3))(logits, target)


def test_class_weights_are_as_many_as_classes():
    criterion = RobustLoss(CE(), class_weight=torch.ones(4))
    with pytest.raises(ValueError, match="4 classes, as many as class_weight has, got 5"):
        criterion(torch.zeros(2, 5), ZEROS[:2])
    with pytest.raises(ValueError, match="4 classes, as many as class_weight has, got 3"):
        criterion(torch.zeros(3), ZEROS[0])
    with pytest.raises(ValueError, match="4 classes, as many as class_weight has"):
        criterion.linear(torch.zeros(2, 3), torch.zeros(5, 3), None, ZEROS[:2])


# ---- derivatives and transforms ----


@every_fixed_loss
def test_first_and_second_derivatives_check(loss):
    logits, target = draw(3, 3, scale=1.0).requires_grad_(), torch.tensor([2, -100, 0])
    probabilities = draw(3, 3, seed=9).softmax(1)
    weighted = RobustLoss(loss, class_weight=torch.tensor([0.5, 1.0, 2.0], dtype=F64))
    assert gradcheck(lambda x: RobustLoss(loss, reduction="none")(x, target), (logits,))
    assert gradgradcheck(lambda x: RobustLoss(loss)(x, target), (logits,))
    for labelled in (target, probabilities):
        assert gradcheck(lambda x, t=labelled: weighted(x, t), (logits,), fast_mode=True)
        assert gradgradcheck(lambda x, t=labelled: weighted(x, t), (logits,), fast_mode=True)


@every_fixed_loss
def test_mapped_gradients_are_those_of_single_samples(loss):
    logits, target = batch((5, 4), "indices")
    for labelled in (target, batch((5, 4), "probabilities")[1]):
        mapped = torch.func.vmap(torch.func.grad(RobustLoss(loss)))(logits, labelled)
        pairs = zip(logits, labelled, strict=True)
        single = torch.stack([gradient(lambda x, t=t: RobustLoss(loss)(x, t), row)[0] for row, t in pairs])
        assert_close(mapped, single, rtol=1e-13, atol=1e-15)


@pytest.mark.slow
@compiles
@pytest.mark.parametrize(
    ("losses", "backend"),
    [
        ([GCE(0.3), GCE(0.7), GCE(1.0)], "aot_eager"),
        ([Scaled(MAE(), 0.1), Scaled(MAE(), 0.5), Scaled(MAE(), 2.0)], "aot_eager"),
        ([get("nce+mae", q=0.1), get("nce+mae", q=0.5)], "aot_eager"),
        ([NCE()], "inductor"),
    ],
    ids=["GCE", "Scaled", "NCE+MAE", "NCE"],
)
def test_compiled_loss_is_the_eager_one_with_its_own_hyperparameter(losses, backend):
    torch._dynamo.reset()
    logits, target = batch((8, 5), "ignored", torch.float32)
    for loss in losses:
        criterion = RobustLoss(loss)
        compiled = torch.compile(criterion, fullgraph=True, backend=backend)
        assert_same(lambda x, c=compiled: c(x, target), lambda x, c=criterion: c(x, target), logits, 1e-5, 1e-7)


# ---- blocks ----


@every_reduction
@pytest.mark.parametrize("loss", [CE(), FL(2.0), Scaled(MAE(), 0.3), NCE(), GLS(0.2)], ids=repr)
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
def test_walked_blocks_are_one_block(loss, reduction, dtype, monkeypatch):
    logits, target = batch((16, 5, 2), "ignored", dtype)
    criterion = RobustLoss(loss, reduction=reduction)
    whole = criterion(logits, target), gradient(lambda x: criterion(x, target), logits)[0]
    monkeypatch.setattr("curriculoss.margin.BLOCK_NUMBERS", 8)
    monkeypatch.setattr("curriculoss.losses.surprise.BLOCK_NUMBERS", 8)
    with Largest() as largest:
        value = criterion(logits, target)
    assert largest.numel < logits.numel()
    walked = value, gradient(lambda x: criterion(x, target), logits)[0]
    assert_close(walked, whole, rtol=20 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)
    assert (walked[1][::3] == 0).all()  # the ignored samples


@pytest.mark.parametrize(("loss", "reduction"), [(MAE(), "mean"), (AUL(2.0, 2.0), "sum"), (NCE(), "none")], ids=str)
def test_derivatives_of_walked_blocks_check(loss, reduction, monkeypatch):
    monkeypatch.setattr("curriculoss.margin.BLOCK_NUMBERS", 8)
    monkeypatch.setattr("curriculoss.losses.surprise.BLOCK_NUMBERS", 8)
    logits, target = draw(4, 3, scale=1.0).requires_grad_(), torch.tensor([2, -100, 0, 1])
    criterion = RobustLoss(loss, reduction=reduction)
    assert gradcheck(lambda x: criterion(x, target), (logits,))
    assert gradgradcheck(lambda x: criterion(x, target), (logits,))


# ---- the last linear layer ----


@pytest.mark.parametrize("weighted", [False, True])
@every_curriculum
def test_linear_is_the_loss_of_the_linear_layer(curriculum, weighted):
    target, class_weight = batch((8, 5), "ignored")[1], torch.linspace(0.2, 3.0, 5, dtype=F64) if weighted else None
    inputs = draw(8, 6, scale=1.0), draw(5, 6, seed=2, scale=1.0), draw(5, seed=3, scale=1.0)
    for reduction, given in product(REDUCTIONS, (inputs, inputs[:2])):  # with a bias, and without
        criterion = RobustLoss(curriculum, reduction=reduction, class_weight=class_weight)
        up = torch.linspace(0.5, 2.0, 8, dtype=F64) if reduction == "none" else 1.0
        paths = (
            lambda h, w, b=None, c=criterion: c.linear(h, w, b, target),
            lambda h, w, b=None, c=criterion: c(F.linear(h, w, b), target),
        )
        fused, plain = ((f(*given), *gradient(lambda *x, f=f, up=up: f(*x) * up, *given)) for f in paths)
        assert_close(fused, plain, rtol=1e-11, atol=1e-13)


def test_linear_of_an_ignored_batch_has_no_mean_and_no_gradient():
    inputs = draw(3, 6).requires_grad_(), draw(5, 6, seed=2).requires_grad_()
    value = RobustLoss(MAE()).linear(*inputs, None, torch.full((3,), -100))
    assert value.isnan() and all((grad == 0).all() for grad in torch.autograd.grad(value, inputs))


def test_linear_refuses_losses_that_need_the_whole_batch_and_labels_that_are_no_class():
    for loss in (PeerLoss(), ActivePassive((CE(), 1.0), (PeerLoss(), 0.5))):
        with pytest.raises(TypeError, match=r"linear expects a loss of each sample's own logits, got .*PeerLoss\("):
            RobustLoss(loss).linear(torch.zeros(2, 3), torch.zeros(4, 3), None, ZEROS[:2])
    for loss in (MAE(), NCE()):
        with pytest.raises(ValueError, match=r"from 0 to 3 .* as target, got 4"):
            RobustLoss(loss).linear(torch.zeros(4, 3), torch.zeros(4, 3), None, ZEROS + 4)


# ---- in a training loop ----


def test_takes_the_place_of_cross_entropy_in_a_training_loop():
    target = labels(100, num_classes=20)
    inputs = draw(100, 8, scale=1.0, dtype=torch.float32) + draw(20, 8, seed=3, scale=4.0, dtype=torch.float32)[target]
    accuracy = []
    fixed = RobustLoss(fix(MAE(), "scale", tau=2.6, num_classes=20))
    for criterion in (nn.CrossEntropyLoss(), RobustLoss(CE()), fixed):
        layer = nn.Linear(8, 20)
        nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
        for _ in range(40):
            criterion(layer(inputs), target).backward()
            for parameter in layer.parameters():
                parameter.data -= 0.3 * parameter.grad
                parameter.grad = None
        accuracy.append((layer(inputs).argmax(1) == target).float().mean().item())
    theirs, ours, scaled = accuracy
    assert theirs == ours > 0.9 and scaled > 0.9


# ---- mistakes, and changes of mind ----


def test_scale_follows_a_loss_or_normalisation_that_is_changed_between_epochs():
    logits, target = draw(6, 5), labels(6, num_classes=5)
    criterion = RobustLoss(CE())
    criterion.loss = MAE()
    assert criterion(logits, target) == RobustLoss(MAE())(logits, target)
    criterion.normalize = False
    assert criterion(logits, target) == RobustLoss(MAE(), normalize=False)(logits, target)
    with pytest.raises(ValueError, match="reduction 'mean', 'sum' or 'none', got 'bogus'"):
        criterion.reduction = "bogus"


def test_what_is_refused_is_not_in_force():
    endless, criterion = Designed(lambda margin: margin.clamp(min=0)), RobustLoss(GCE(0.3))
    with pytest.raises(ValueError, match="no largest weight"):
        criterion.loss = endless
    assert criterion.loss == GCE(0.3) and criterion.scale == RobustLoss(GCE(0.3)).scale
    criterion = RobustLoss(endless, normalize=False)
    with pytest.raises(ValueError, match="no largest weight"):
        criterion.normalize = True
    assert not criterion.normalize and criterion.scale == 1.0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(CE(), {}), (GLS(0.1), {"label_smoothing": 0.1})],
    ids=["ce", "gls"],
)
def test_probabilities_have_the_gradient_that_cross_entropy_gives_them_also_where_they_are_0(ours, theirs):
    logits, shares = draw(6, 5), F.one_hot(labels(6, num_classes=5), 5).double().requires_grad_()
    expected = torch.autograd.grad(F.cross_entropy(logits, shares, **theirs), shares)
    found = torch.autograd.grad(RobustLoss(ours)(logits, shares), shares)
    assert_close(found, expected)
    logits[0, (shares[0] == 0).nonzero()[0]] = -math.inf  # a class that does not exist, and is not the label
    assert RobustLoss(ours)(logits, shares).isfinite()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, x, y: c(x, y.double()), "or probabilities in the shape of the logits"),
        (lambda c, x, y: c(x, x[:, 1:]), r"logits torch.float64 \(6, 5\) and target torch.float64 \(6, 4\)"),
        (lambda c, x, y: c(x, torch.nn.functional.one_hot(y, 5)), r"target\.argmax\(1\)"),
        (lambda c, x, y: c(x, y.to("meta")), "on one device, got cpu and meta"),
        (lambda c, x, y: c.linear(x, torch.nn.Linear(5, 5), None, y), "floating-point weight, got Linear"),
        (lambda c, x, y: RobustLoss(MAE(), ignore_index=1)(x, x.softmax(1)), "ignore_index=1"),
        (lambda c, x, y: RobustLoss(MAE(), ignore_index=None), "integer ignore_index, got None"),
        (lambda c, x, y: RobustLoss(MAE(), class_weight="a"), "a number for each class, got 'a'"),
        (lambda c, x, y: RobustLoss(MAE(), class_weight=torch.ones(5, 1)), r"got torch.float32 \(5, 1\)"),
        (
            lambda c, x, y: RobustLoss(MAE(), class_weight=torch.ones(5) * 1j),
            "number for each class, got torch.complex",
        ),
        (lambda c, x, y: setattr(c, "class_weight", torch.ones(5, 2)), r"each class, got torch.float32 \(5, 2\)"),
        (lambda c, x, y: c(x, x.softmax(1).to("meta")), "on one device, got cpu and meta"),
        (lambda c, x, y: c.linear(x, x[:5].to("meta"), None, y), "on one device, got cpu, meta, cpu"),
        (lambda c, x, y: c.linear(x, x[:5].float(), None, y), "of one dtype, got torch.float64, torch.float32"),
    ],
)
def test_mistakes_are_answered_with_what_was_expected(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(RobustLoss(MAE()), draw(6, 5), labels(6, num_classes=5))


def test_whole_numbers_may_weigh_classes():
    logits, target = draw(6, 3).float(), labels(6, num_classes=3)
    weights = torch.tensor([1.0, 2.0, 3.0])
    assert RobustLoss(CE(), class_weight=[1, 2, 3])(logits, target) == RobustLoss(CE(), class_weight=weights)(
        logits, target
    )


def test_shapes_can_be_worked_out_on_the_meta_device():
    for dtype in (torch.float32, torch.float16):
        logits, target = torch.empty(6, 5, dtype=dtype, device="meta"), torch.empty(6, dtype=torch.int64, device="meta")
        assert RobustLoss(MAE())(logits, target).dtype == dtype


def test_autocast_leaves_float64_hidden_states_alone():
    hidden, weight, target = draw(6, 4), draw(5, 4), labels(6, num_classes=5)
    plain = RobustLoss(MAE()).linear(hidden, weight, None, target)
    with torch.autocast("cpu", torch.bfloat16):
        assert RobustLoss(MAE()).linear(hidden, weight, None, target) == plain
