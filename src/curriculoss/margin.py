r"""The soft margin Δ_y = s_y − log Σ_{i≠y} exp s_i: one pass over the N×K logits leaves N numbers.

With `top` the largest other logit and `total` = Σ_{i≠y} exp(s_i − top),

    Δ_y = (s_y − top) − log total,        ∂Δ_y/∂s_y = 1,        ∂Δ_y/∂s_i = −exp(s_i − top)/total.

Leaving the label out of the sum, rather than subtracting it afterwards, keeps large margins exact. A batch that fits
into one block keeps exp(s_i − top) for backward in place of its logits. A larger one is computed block by block: it
keeps `top` and `total`, and computes the exponentials again. linear.py computes these blocks from the last linear
layer, so that the logits are never stored at all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from curriculoss._autograd import apply_function, compute_dtype, mapped, to_float64, transformed
from curriculoss._checks import check_logits, type_name
from curriculoss._kernel import triton_kernels
from curriculoss.errors import InvalidTypeError, InvalidValueError

# Few large blocks: for small ones, starting threads takes longer than the work, most of all on a busy machine.
BLOCK_NUMBERS = 2**20  # logits per block, few enough to stay in the cache
EXP2_NUMBERS = 2**13  # on a CPU, from this many numbers on a product and exp2 are faster than exp
UNMASKED_NUMBERS = 2**14  # on a CPU, from this many numbers on a pass to mask the label costs more than a check
LEAST_TOTAL = 1e-25  # a sum of exponentials of at least this has all its digits in float32

# The least value of `top` for each dtype: where all other classes are masked, -inf − -inf would be NaN.
LOWEST_LOGIT = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.float64)}


class MarginLoss(ABC):
    """A loss l(Δ) that depends on the margin alone, with its weight w(Δ) = −l'(Δ)."""

    @abstractmethod
    def _loss_and_weight(self, margin: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """scale·l(Δ) and scale·w(Δ) of a float64 margin: a training step needs both, and they have much in common."""

    def _weight(self, margin: Tensor) -> Tensor:
        """w(Δ) alone, which can be differentiated; overridden where the loss would be costly."""
        return self._loss_and_weight(margin)[1]

    def observe(self, margin: Tensor, ignored: Tensor | None) -> None:  # noqa: B027  fixed functions have no use for it
        """See the margins of a batch before their loss is computed."""

    def loss(self, margin: Tensor) -> Tensor:
        """l(Δ), element by element, in the dtype of `margin`."""
        value: Tensor = apply_function(_LossOfMargin, self._checked(margin), self)
        return value

    def weight(self, margin: Tensor) -> Tensor:
        """w(Δ) = −l'(Δ), element by element, in the dtype of `margin`."""
        return self._weight(to_float64(self._checked(margin))).to(margin.dtype)

    def _checked(self, margin: Tensor) -> Tensor:
        if not isinstance(margin, Tensor) or not margin.is_floating_point():
            raise InvalidTypeError(f"{type(self).__name__} expects floating-point margins, got {type_name(margin)}")
        return margin


class _LossOfMargin(Function):
    """l(Δ) with gradient −w(Δ), also where automatic differentiation would meet 0·∞."""

    generate_vmap_rule = True

    @staticmethod
    def forward(margin: Tensor, margin_loss: MarginLoss) -> Tensor:
        return margin_loss._loss_and_weight(to_float64(margin), 1.0)[0].to(margin.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        margin, ctx.margin_loss = inputs
        ctx.save_for_backward(margin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (margin,) = ctx.saved_tensors
        return -grad * ctx.margin_loss._weight(to_float64(margin)).to(margin.dtype), None


class Objective(NamedTuple):
    """What is computed together with the margin."""

    margin_loss: MarginLoss | None = None  # None for the margin alone
    scale: float = 1.0
    reduction: str = "none"
    exact: bool = True  # False saves calls; the margin is then 3e38, not +inf, where all other classes are masked


def soft_margin(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """The soft margin of each label: its logit minus the log-sum-exp of all others.

    Args:
        logits: (N, K), (N, K, d1, ...) or (K,). A class with logit -inf does not exist: if all others are masked, the
            margin is +inf with zero gradient; if the label is masked, it is -inf. A logit of +inf gives NaN, except
            for the label's own, which gives the largest margin there is.
        target: int64 class indices in that shape without K.
        ignore_index: Samples with this target have margin 0 and no gradient.

    Returns:
        One number per target, float32 for logits in half precision, which are computed in float32.

    Example:
        >>> import torch
        >>> from curriculoss import soft_margin
        >>> soft_margin(torch.tensor([[40.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor([40., -1.])
    """
    check_logits(logits, target, "soft_margin")
    if not isinstance(ignore_index, int):
        raise InvalidTypeError(f"soft_margin expects an integer ignore_index, got {ignore_index!r}")
    if logits.dim() == 1:
        return soft_margin(logits.unsqueeze(0), target.unsqueeze(0), ignore_index=ignore_index).squeeze(0)
    return _apply(logits, target, ignore_index, Objective())[0].squeeze(1)


def standard_loss(logits: Tensor, target: Tensor, ignore_index: int, objective: Objective) -> tuple[Tensor, Tensor]:
    """`scale * loss(soft_margin(logits, target))`, reduced, and that margin in float64 with K's axis.

    One autograd step, for (N, K, ...) logits. Ignored samples count 0, and not at all in the "mean".
    """
    reduction = objective.reduction
    separate = reduction != "none" and transformed()  # mapped samples must not be reduced together
    if separate:
        loss, scale, _, exact = objective  # torch 2.6 cannot compile _replace
        objective = Objective(loss, scale, "none", exact)
    margin, *_, value = _apply(logits, target, ignore_index, objective)
    if objective.reduction == "none":
        value = value.squeeze(1)
    if separate:
        total = value.sum() if reduction == "sum" else to_float64(value).sum().div((target != ignore_index).sum())
        value = total.to(value.dtype)
    return value, margin


def class_index(index: Tensor, num_classes: int, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """The labels to gather with (0 for ignored samples) and the mask of ignored samples.

    On a CPU, labels are checked, and the mask is None if nothing is ignored. Elsewhere that would mean waiting for the
    device, and under a transform it is not possible.
    """
    if index.is_cpu and index.numel() and not transformed():
        low, high = map(int, torch.aminmax(index))
        if 0 <= low and high < num_classes and not low <= ignore_index <= high:
            return index, None
        wrong = index[((index < 0) | (index >= num_classes)) & (index != ignore_index)]
        if wrong.numel():
            expected = f"class indices from 0 to {num_classes - 1} (or ignore_index={ignore_index})"
            raise InvalidValueError(f"expected {expected} as target, got {int(wrong[0])}")
    ignored = index == ignore_index
    return index.masked_fill(ignored, 0), ignored


def _label_logits(logits: Tensor, index: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The logits of the labels, their indices, and the mask of ignored samples."""
    if logits.is_cpu and not 0 <= ignore_index < logits.shape[1] and not transformed():
        try:  # the kernel checks every index: if all are classes, none is ignored
            return logits.gather(1, index), index, None
        except RuntimeError:  # some are not
            pass
    index, ignored = class_index(index, logits.shape[1], ignore_index)
    return logits.gather(1, index), index, ignored


def exp_(value: Tensor) -> Tensor:
    """exp in place, by exp2 where that is faster."""
    return value.exp_() if value.numel() < EXP2_NUMBERS else value.mul_(math.log2(math.e)).exp2_()


def row_blocks(rows: int, numbers: int, block: int) -> Iterator[slice]:
    """Slices that make up all rows, each with about `block` of the `numbers` numbers; an empty one if rows is 0."""
    size = max(1, block * rows // max(1, numbers))
    for start in range(0, max(1, rows), size):
        yield slice(start, min(rows, start + size))


def _others(block: Tensor, exact: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """`top`, `total` and its logarithm; the block of logits, without the labels', becomes exp(s_i − top).

    In the label's place is -inf or, unless `exact`, finfo.min, which saves two calls. It counts only where no other
    logit is higher: if all others are masked, the margin is 3e38, which is as good as +inf to any loss; if all others
    equal finfo.min, the sum counts one extra class.
    """
    top = block.amax(1, keepdim=True)
    if exact:
        top.clamp_(min=LOWEST_LOGIT[block.dtype])
    total = exp_(block.sub_(top)).sum(1, keepdim=True)
    log_total = total.log()
    return top, total.clamp_(min=1.0) if exact else total, log_total  # backward divides by a total that may be 0


def _exponentials(logits: Tensor, index: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`top`, `total`, its logarithm and exp(s_i − top), which is 0 in the label's place.

    With many numbers on a CPU, `top` may be the label's own logit. That saves masking a copy of the logits, unless all
    others are so much smaller that their sum would lose digits.
    """
    if logits.is_cpu and logits.numel() >= UNMASKED_NUMBERS and not transformed():
        top = logits.amax(1, keepdim=True)
        others = exp_(logits - top).scatter_(1, index, 0.0)
        total = others.sum(1, keepdim=True)
        if float(total.amin()) > LEAST_TOTAL:  # false for NaN, too
            return top, total, total.log(), others
    others = logits.scatter(1, index, -math.inf if exact else LOWEST_LOGIT[logits.dtype])
    return *_others(others, exact), others


def margin_of(label: Tensor, top: Tensor, log_total: Tensor, ignored: Tensor | None, exact: bool = True) -> Tensor:
    """Δ = (s_y − top) − log total, in place of `label`, the logits of the labels."""
    if exact:  # a label that is masked together with all others would be -inf − -inf
        log_total = log_total.masked_fill(label == -math.inf, 0.0)
    margin = label.sub_(top).sub_(log_total)
    return margin if ignored is None else margin.masked_fill_(ignored, 0.0)


def _apply(logits: Tensor, target: Tensor, ignore_index: int, objective: Objective) -> tuple[Tensor, ...]:
    """The margin first and, if there is a loss, its values or their total last."""
    one_block = transformed() or (logits.numel() <= BLOCK_NUMBERS and logits.dtype in LOWEST_LOGIT)
    function = _SoftMargin if one_block and (mapped() or not triton_kernels(logits)) else _BlockedSoftMargin
    outputs: tuple[Tensor, ...] = apply_function(function, logits, target.unsqueeze(1), ignore_index, objective)
    return outputs


def with_losses(outputs: tuple[Tensor, ...], ignored: Tensor | None, objective: Objective) -> tuple[Tensor, ...]:
    """What a forward returns: the outputs so far (the margin first), the mask of ignored samples if there is one, and
    with a loss −∂loss/∂Δ and its values. These come from Δ in float64, and then so does the margin."""
    if ignored is not None:
        outputs = *outputs, ignored
    margin_loss, scale, reduction, _ = objective
    if margin_loss is None:
        return outputs
    narrow, *others = outputs
    margin_loss.observe(narrow, ignored)
    margin = to_float64(narrow)
    divisor = _divisor(margin, ignored, reduction)
    if ignored is None:
        value, slope = margin_loss._loss_and_weight(margin, scale / divisor)
    else:
        value, slope = margin_loss._loss_and_weight(margin, scale)
        value, slope = value.masked_fill(ignored, 0.0) / divisor, slope / divisor
    if reduction != "none":  # the mean of no numbers is NaN, not the sum of none
        value = value.sum() if reduction == "sum" or value.numel() else value.mean()
    return margin, *others, slope.type_as(narrow), value.type_as(narrow)


def _divisor(margin: Tensor, ignored: Tensor | None, reduction: str) -> Any:
    """What the sum of the losses is divided by; a tensor if there are samples to be ignored."""
    if reduction != "mean":
        return 1.0
    return (margin.numel() or math.nan) if ignored is None else to_float64(ignored.logical_not().sum())


def neg_margin_grad(
    ctx: Any, margin: Tensor, rest: list[Tensor], to_margin: Any, to_loss: Any
) -> tuple[Tensor | None, Tensor | None]:
    """Minus the gradient of the margin with K's axis, which comes to it directly and through the losses, and the mask
    of ignored samples. `rest` is what `with_losses` has added to the outputs, without the losses."""
    grad: Tensor | None = None
    margin_loss, scale, reduction, _ = ctx.objective
    ignored = rest[0] if len(rest) > (margin_loss is not None) else None
    if to_margin is not None:  # Δ = +inf means that there is no other class, and no logit changes that
        grad = -to_margin.masked_fill(margin == math.inf, 0.0)
    if margin_loss is not None and to_loss is not None:
        slope = rest[-1]
        if torch.is_grad_enabled():  # to be differentiated again, as a function of the margin
            slope = margin_loss._weight(margin) * (scale / _divisor(margin, ignored, reduction))
        grad = slope * to_loss if grad is None else grad + slope * to_loss
    return grad if ignored is None or grad is None else grad.masked_fill(ignored, 0.0), ignored


class _SoftMargin(Function):
    """For a batch of one block.

    exp(s_i − top) is an output, too, so that what backward computes from it can be differentiated again. It is only
    ever divided by `total`, and carries all of the quotient's derivative, so that `total` counts as a constant: with
    q_i = exp(s_i − top)/total of the other classes, ∂q_i/∂s_j = q_i (𝟙(i=j) − q_j).
    """

    @staticmethod
    def forward(logits: Tensor, index: Tensor, ignore_index: int, objective: Objective) -> tuple[Tensor, ...]:
        if logits.dtype not in LOWEST_LOGIT:
            logits = logits.float()
        label, index, ignored = _label_logits(logits, index, ignore_index)
        top, total, log_total, others = _exponentials(logits, index, objective.exact)
        margin = margin_of(label, top, log_total, ignored, objective.exact)
        return with_losses((margin, others, total), ignored, objective)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, index, _, ctx.objective = inputs
        ctx.dtype = logits.dtype
        kept = output if ctx.objective.margin_loss is None else output[:-1]
        ctx.mark_non_differentiable(*kept[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index, *kept)

    @staticmethod
    def backward(ctx: Any, to_margin: Any, to_others: Any, *to_rest: Any) -> tuple[Any, ...]:
        index, margin, others, total, *rest = ctx.saved_tensors
        grad, ignored = neg_margin_grad(ctx, margin, rest, to_margin, to_rest[-1])
        index = index if ignored is None else index.masked_fill(ignored, 0)
        if grad is None:
            out = torch.zeros_like(others)
        else:
            grad = grad if grad.dtype == others.dtype else grad.to(others.dtype)
            put = Tensor.scatter if transformed() else Tensor.scatter_  # in place it cannot be mapped
            out = put(others * (grad / total), 1, index, -grad)
        if to_others is not None:  # constant in the label's place
            moved = others * to_others.scatter(1, index, 0.0)
            out = out + (moved - others * (moved.sum(1, keepdim=True) / total)).scatter(1, index, 0.0)
        if ignored is not None:  # NaN times zero is NaN, and padding may be NaN
            out = out.masked_fill(ignored, 0.0)
        return out if out.dtype == ctx.dtype else out.to(ctx.dtype), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
        """The mapped axis becomes more rows."""
        size, (logits, index, *others) = info.batch_size, inputs
        batched = (
            x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((logits, index), in_dims[:2], strict=True)
        )
        outputs = apply_function(_SoftMargin, *(x.flatten(0, 1) for x in batched), *others)
        return tuple(x.unflatten(0, (size, -1)) for x in outputs), (0,) * len(outputs)


def read_blocks(
    make: Callable[[slice], Tensor], blocks: Iterator[slice], index: Tensor, ignored: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Forward by blocks: margin, top and total. `make` returns fresh logits of some rows."""
    parts = []
    for rows in blocks:
        block, labels = make(rows), index[rows]
        label = block.gather(1, labels)
        parts.append((label, *_others(block.scatter_(1, labels, -math.inf))))
        del block  # before the next one is made
    label, top, total, log_total = (torch.cat(part) for part in zip(*parts, strict=True))
    return margin_of(label, top, log_total, ignored), top, total


class BlockGradient:
    """Backward by blocks: ∇Δ times the incoming gradient, for rows whose logits are given."""

    def __init__(self, grad: Tensor, index: Tensor, top: Tensor, total: Tensor, ignored: Tensor | None) -> None:
        self.index = index if ignored is None else index.masked_fill(ignored, 0)
        grad = grad.to(top.dtype)
        self.top, self.label, self.others, self.ignored = top, -grad, grad / total, ignored

    def write(self, logits: Tensor, rows: slice, out: Tensor) -> Tensor:
        """Write the gradient of these rows into `out`, which may be `logits` itself."""
        torch.sub(logits, self.top[rows], out=out)
        exp_(out).mul_(self.others[rows]).scatter_(1, self.index[rows], self.label[rows])
        return out if self.ignored is None else out.masked_fill_(self.ignored[rows], 0.0)  # padding may be NaN


class _BlockedSoftMargin(Function):
    """For many blocks, for Triton, and for half precisions, whose exponentials in float32 outgrow the logits."""

    @staticmethod
    def forward(logits: Tensor, index: Tensor, ignore_index: int, objective: Objective) -> tuple[Tensor, ...]:
        labels, ignored = class_index(index, logits.shape[1], ignore_index)
        if kernels := triton_kernels(logits):
            return with_losses(kernels.read(logits, index, ignored), ignored, objective)
        dtype, blocks = compute_dtype(logits.dtype), row_blocks(len(logits), logits.numel(), BLOCK_NUMBERS)
        outputs = read_blocks(lambda rows: logits[rows].to(dtype, copy=True), blocks, labels, ignored)
        return with_losses(outputs, ignored, objective)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, index, ctx.ignore_index, ctx.objective = inputs
        kept = output if ctx.objective.margin_loss is None else output[:-1]
        ctx.mark_non_differentiable(*kept[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, index, *kept)

    @staticmethod
    def backward(ctx: Any, to_margin: Any, *to_rest: Any) -> tuple[Any, ...]:
        logits, index, margin, top, total, *rest = ctx.saved_tensors
        grad, ignored = neg_margin_grad(ctx, margin, rest, to_margin, to_rest[-1])
        if grad is None:
            return None, None, None, None
        if torch.is_grad_enabled():  # to be differentiated again: as if the batch were one block
            again = apply_function(_SoftMargin, logits, index, ctx.ignore_index, Objective())[0]
            return *torch.autograd.grad(again, logits, -grad.to(again.dtype), create_graph=True), None, None, None
        if kernels := triton_kernels(logits):
            return kernels.write(logits, index, grad, top, total), None, None, None
        out, gradient = torch.empty_like(logits), BlockGradient(grad, index, top, total, ignored)
        for rows in row_blocks(len(logits), logits.numel(), BLOCK_NUMBERS):
            if out.dtype == top.dtype:
                gradient.write(logits[rows], rows, out[rows])
            else:
                out[rows] = gradient.write(logits[rows], rows, logits[rows].to(top.dtype))
        return out, None, None, None
