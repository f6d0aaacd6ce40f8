r"""The soft margin Δ_y = s_y − log Σ_{i≠y} exp s_i: the only N×K code of the standard form.

With `top` the largest other logit (of many numbers, perhaps the label's own) and `total` = Σ_{i≠y} exp(s_i − top),

    Δ_y = (s_y − top) − log total,        ∂Δ_y/∂s_y = 1,        ∂Δ_y/∂s_i = −exp(s_i − top)/total.

Leaving the label out of the sum, rather than subtracting it afterwards, is what keeps large margins exact. A batch that
fits a block keeps exp(s_i − top) for backward in place of its logits. A larger one is walked in blocks of rows, keeps
`top` and `total`, and computes the exponentials again; linear.py makes the blocks of that walk from the last linear
layer, so that the logits are never stored at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd import Function

# Few large blocks: small ones drown in thread start-up, most of all beside another busy process.
BLOCK = 2**20  # numbers in a block; it should stay in the cache

SOME = 2**13  # numbers from which on a product and exp2 take less time than exp, on a CPU
MANY = 2**14  # numbers from which on their passes cost more than calls do
DROWNED = 1e-25  # at least this, and a sum of exponentials has all its digits in float32

# Of the dtypes that we compute in: the least that `top` is. Where all others are masked, -inf − -inf would be NaN.
LOWEST = {dtype: torch.finfo(dtype).min for dtype in (torch.float32, torch.float64)}


class Shape(Protocol):
    """What `standard_loss` needs of a curriculum: scale·l(Δ) and scale·w(Δ) together, and w(Δ) to be differentiated."""

    def _loss_and_weight(self, margin: Tensor, scale: float) -> tuple[Tensor, Tensor]: ...
    def _weight(self, margin: Tensor) -> Tensor: ...


def soft_margin(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """The margin of the labelled class over all others together, one number a sample.

    `logits` is (N, K), (N, K, d1, ...) or (K,), `target` holds int64 class indices of the same shape
    without K. Ignored samples have margin 0 and no gradient. A class with logit -inf does not exist: if
    all others are masked the margin is +inf with zero gradient, if the label is masked it is -inf, also where all
    is masked. A logit of +inf gives NaN, but for the label's own, which is the largest margin there is.
    Half-precision logits are computed in float32 and give float32 margins.
    """
    check_logits(logits, target, "soft_margin")
    if not isinstance(ignore_index, int):
        raise TypeError(f"soft_margin expects an integer ignore_index, got {ignore_index!r}")
    if logits.dim() == 1:
        return soft_margin(logits.unsqueeze(0), target.unsqueeze(0), ignore_index=ignore_index).squeeze(0)
    margin: Tensor = _apply(logits, target, ignore_index, None, 1.0, "none")[0]
    return margin.squeeze(1)


def standard_loss(
    logits: Tensor,
    target: Tensor,
    shape: Shape,
    *,
    scale: float = 1.0,
    ignore_index: int = -100,
    reduction: str = "none",
) -> Tensor:
    """`scale * shape.loss(soft_margin(logits, target))` in one step of autograd, for (N, K, ...) logits.

    Ignored samples count 0, and not at all in the "mean".
    """
    if reduction == "none":
        return _apply(logits, target, ignore_index, shape, scale, reduction)[-1].squeeze(1)
    if not transformed():
        return _apply(logits, target, ignore_index, shape, scale, reduction)[-1]
    # Mapped samples must not be reduced together, so here that is a step of its own.
    value = _apply(logits, target, ignore_index, shape, scale, "none")[-1].squeeze(1)
    return value.sum() if reduction == "sum" else wide(value).sum().div((target != ignore_index).sum()).to(value.dtype)


def class_margins(logits: Tensor, best: Tensor, margin: Tensor) -> Tensor:
    """The margin of every class over all others, in the shape of the (N, K, ...) logits, given that of the best."""
    best = best.unsqueeze(1)
    # Only the largest p can be near 1, where log p − log(1 − p) would lose it; the -1 is there to be replaced.
    log_p = logits.to(margin.dtype).log_softmax(1).scatter(1, best, -1.0)
    return (log_p - torch.log1p(-log_p.exp())).scatter(1, best, margin.unsqueeze(1))


def kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def kind_and_shape(value: object) -> str:
    return f"{kind(value)} {tuple(value.shape)}" if isinstance(value, Tensor) else kind(value)


def check_logits(logits: Tensor, target: Tensor, caller: str) -> None:
    """Everything about class-index targets that shapes and dtypes tell."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise TypeError(f"{caller} expects floating-point logits, got {kind(logits)}")
    check_target(target, caller)
    shape = logits.shape
    num_samples, num_classes, *axes = shape if len(shape) > 1 else (0, *shape, 0)
    if not shape or target.shape != ((num_samples, *axes) if len(shape) > 1 else ()):
        raise ValueError(
            f"{caller} expects logits (N, K), (N, K, d1, ...) or (K,) and a target of that shape without K, "
            f"got logits {tuple(shape)} and target {tuple(target.shape)}"
            + (" (for one-hot labels give target.argmax(1))" if target.shape == shape else "")
        )
    if logits.device != target.device:
        raise ValueError(f"{caller} expects logits and target on one device, got {logits.device} and {target.device}")
    check_num_classes(num_classes)


def check_target(target: Tensor, caller: str) -> None:
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        raise TypeError(f"{caller} expects int64 class indices as target, got {kind(target)}")


def check_num_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"a margin needs at least 2 classes, got K={num_classes}")


mapped: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def transformed() -> bool:
    """Whether torch.compile or a transform of torch.func is at work, which read what we do instead of running it."""
    return torch.compiler.is_compiling() or mapped()


def call(function: type[Function], *inputs: Any) -> Any:
    """`function.apply(*inputs)`, sparing the 50 µs in which it reads its own signature unless a transform needs it."""
    if transformed():
        return function.apply(*inputs)
    if not torch.is_grad_enabled():  # there is nothing to remember
        return function.forward(*inputs)
    return getattr(super(Function, function), "apply")(*inputs)  # noqa: B009  mypy knows no such base


def autocast(tensor: Tensor) -> bool:
    """Whether operations on its device are cast automatically; a device without autocast would be an error to ask."""
    device = tensor.device.type
    return is_autocast_available(device) and torch.is_autocast_enabled(device)


def wide(margin: Tensor) -> Tensor:
    """Float64 where the device has it: q·α·Δ rounded in float32 would already cost exp(q·α·Δ) five digits."""
    return margin.float() if margin.is_mps else margin.double()


def accurate(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precisions, otherwise the dtype itself."""
    return dtype if dtype in LOWEST else torch.float32


def class_index(index: Tensor, num_classes: int, ignore_index: int) -> tuple[Tensor, Tensor | None]:
    """The label to gather with (0 for ignored samples) and the mask of ignored samples.

    On a CPU the labels are looked at: their range is checked, and the mask is None if nothing is ignored.
    Elsewhere that would mean waiting for the device, and under a transform it is not possible.
    """
    if index.is_cpu and index.numel() and not transformed():
        low, high = map(int, torch.aminmax(index))
        if 0 <= low and high < num_classes and not low <= ignore_index <= high:
            return index, None
        wrong = index[((index < 0) | (index >= num_classes)) & (index != ignore_index)]
        if wrong.numel():
            raise ValueError(
                f"expected class indices from 0 to {num_classes - 1} (or ignore_index={ignore_index}) as target, "
                f"got {int(wrong[0])}"
            )
    ignored = index == ignore_index
    return index.masked_fill(ignored, 0), ignored


def _labels(logits: Tensor, index: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The logits of the labels, where they are, and the mask of ignored samples."""
    if logits.is_cpu and not 0 <= ignore_index < logits.shape[1] and not transformed():
        try:  # the kernel looks at every index: if all are classes, none is ignored and there is nothing to check
            return logits.gather(1, index), index, None
        except RuntimeError:  # some are not
            pass
    index, ignored = class_index(index, logits.shape[1], ignore_index)
    return logits.gather(1, index), index, ignored


def exp_(value: Tensor) -> Tensor:
    """In place. On a CPU exp2 is twice as fast as exp, which pays for the product once there is something to do."""
    return value.exp_() if value.numel() < SOME else value.mul_(math.log2(math.e)).exp2_()


def walk(rows: int, numbers: int, block: int) -> Iterator[slice]:
    """Slices of rows, together `rows`, each of about `block` of the `numbers` numbers; an empty one if rows is 0."""
    size = max(1, block * rows // max(1, numbers))
    for start in range(0, max(1, rows), size):
        yield slice(start, min(rows, start + size))


def _others(block: Tensor, exact: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """`top`, `total` and its logarithm; the block of logits becomes exp(s_i − top).

    In the label's place it has -inf or, unless `exact`, LOWEST, which saves two calls and counts only where no other
    logit is higher: there 3e38 stands for a margin of +inf, which it is to any loss, and others that are all LOWEST
    are one too many.
    """
    top = block.amax(1, keepdim=True)
    if exact:
        top.clamp_(min=LOWEST[block.dtype])
    total = exp_(block.sub_(top)).sum(1, keepdim=True)
    log_total = total.log()
    return top, total.clamp_(min=1.0) if exact else total, log_total  # backward divides by what may be 0


def _exponentials(logits: Tensor, index: Tensor, exact: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`top`, `total`, its logarithm and exp(s_i − top), 0 in the label's place. Of many numbers on a CPU `top` may be
    the label's own, which saves masking a copy of the logits, unless all others drown beside it: their sum must keep
    its digits."""
    if logits.is_cpu and logits.numel() >= MANY and not transformed():
        top = logits.amax(1, keepdim=True)
        others = exp_(logits - top).scatter_(1, index, 0.0)
        total = others.sum(1, keepdim=True)
        if float(total.amin()) > DROWNED:  # false for NaN, too
            return top, total, total.log(), others
    others = logits.scatter(1, index, -math.inf if exact else LOWEST[logits.dtype])
    return *_others(others, exact), others


def _margin(label: Tensor, top: Tensor, log_total: Tensor, ignored: Tensor | None, exact: bool = True) -> Tensor:
    """Uses up `label`, the logits of the labels."""
    if exact:  # a label that is masked together with all others would be -inf − -inf
        log_total = log_total.masked_fill(label == -math.inf, 0.0)
    margin = label.sub_(top).sub_(log_total)
    return margin if ignored is None else margin.masked_fill_(ignored, 0.0)


def _apply(
    logits: Tensor, target: Tensor, ignore_index: int, shape: Shape | None, scale: float, reduction: str
) -> tuple[Tensor, ...]:
    """The margin first and, given a shape, the losses or their total last."""
    keep = logits.numel() <= BLOCK and logits.dtype == accurate(logits.dtype)
    function = _SoftMargin if keep or transformed() else _WalkedSoftMargin
    outputs: tuple[Tensor, ...] = call(function, logits, target.unsqueeze(1), ignore_index, shape, scale, reduction)
    return outputs


def with_losses(
    outputs: tuple[Tensor, ...], ignored: Tensor | None, shape: Shape | None, scale: float, reduction: str
) -> tuple[Tensor, ...]:
    """What a forward returns: the outputs so far, the margin first, then the mask of ignored samples if there is one,
    then with a shape the slopes −∂loss/∂Δ and the losses. These come from Δ in float64, and so does then the margin."""
    if ignored is not None:
        outputs = *outputs, ignored
    if shape is None:
        return outputs
    narrow, *others = outputs
    margin = wide(narrow)
    divisor = _divisor(margin, ignored, reduction)
    if ignored is None:
        value, slope = shape._loss_and_weight(margin, scale / divisor)
    else:
        value, slope = shape._loss_and_weight(margin, scale)
        value, slope = value.masked_fill(ignored, 0.0) / divisor, slope / divisor
    if reduction != "none":  # the mean of no numbers is NaN, not the sum of none
        value = value.sum() if reduction == "sum" or value.numel() else value.mean()
    return margin, *others, slope.type_as(narrow), value.type_as(narrow)


def _divisor(margin: Tensor, ignored: Tensor | None, reduction: str) -> Any:
    """What the sum of the losses is divided by; a tensor if there are samples to be ignored."""
    if reduction != "mean":
        return 1.0
    return (margin.numel() or math.nan) if ignored is None else wide(ignored.logical_not().sum())


def margin_fall(ctx: Any, margin: Tensor, rest: list[Tensor], to_margin: Any, to_loss: Any) -> Tensor | None:
    """Minus the gradient of the margin, with K's axis: what comes to it directly, and through the losses. `rest` is
    what `with_losses` has added to the outputs, but for the losses."""
    fall: Tensor | None = None
    ignored = mask_in(ctx, rest)
    if to_margin is not None:  # Δ = +inf means that there is no other class, and no logit changes that
        fall = -to_margin.masked_fill(margin == math.inf, 0.0)
    if ctx.shape and to_loss is not None:
        slope = rest[-1]
        if torch.is_grad_enabled():  # it is to be differentiated: with how it follows from the margin
            slope = ctx.shape._weight(margin) * (ctx.scale / _divisor(margin, ignored, ctx.reduction))
        fall = slope * to_loss if fall is None else fall + slope * to_loss
    return fall if ignored is None or fall is None else fall.masked_fill(ignored, 0.0)


def mask_in(ctx: Any, rest: list[Tensor]) -> Tensor | None:
    """The mask of ignored samples, if `with_losses` has added one."""
    return rest[0] if len(rest) > (ctx.shape is not None) else None


class _SoftMargin(Function):
    """For a batch of one block. exp(s_i − top) is an output too, so that what backward computes from it can be
    differentiated again. It is only ever divided by `total`, and has all of the quotient's derivative, so that `total`
    counts as a constant: with q_i = exp(s_i − top)/total of the other classes, ∂q_i/∂s_j = q_i (𝟙(i=j) − q_j)."""

    @staticmethod
    def forward(
        logits: Tensor, index: Tensor, ignore_index: int, shape: Shape | None, scale: float, reduction: str
    ) -> tuple[Tensor, ...]:
        if logits.dtype not in LOWEST:
            logits = logits.float()
        label, index, ignored = _labels(logits, index, ignore_index)
        exact = shape is None
        top, total, log_total, others = _exponentials(logits, index, exact)
        margin = _margin(label, top, log_total, ignored, exact)
        return with_losses((margin, others, total), ignored, shape, scale, reduction)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, index, _, ctx.shape, ctx.scale, ctx.reduction = inputs
        ctx.dtype = logits.dtype
        kept = output[:-1] if ctx.shape else output
        ctx.mark_non_differentiable(*kept[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index, *kept)

    @staticmethod
    def backward(ctx: Any, to_margin: Any, to_others: Any, *to_rest: Any) -> tuple[Any, ...]:
        index, margin, others, total, *rest = ctx.saved_tensors
        fall, ignored = margin_fall(ctx, margin, rest, to_margin, to_rest[-1]), mask_in(ctx, rest)
        index = index if ignored is None else index.masked_fill(ignored, 0)
        if fall is None:
            out = torch.zeros_like(others)
        else:
            fall = fall if fall.dtype == others.dtype else fall.to(others.dtype)
            put = Tensor.scatter if transformed() else Tensor.scatter_  # in place it cannot be mapped
            out = put(others * (fall / total), 1, index, -fall)
        if to_others is not None:  # of the label it is constant
            moved = others * to_others.scatter(1, index, 0.0)
            out = out + (moved - others * (moved.sum(1, keepdim=True) / total)).scatter(1, index, 0.0)
        if ignored is not None:  # a NaN times zero is NaN, and padding may well be NaN
            out = out.masked_fill(ignored, 0.0)
        return out if out.dtype == ctx.dtype else out.to(ctx.dtype), None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
        """The mapped axis becomes more rows."""
        size = info.batch_size
        rows = []
        for value, dim in zip(inputs, in_dims, strict=True):
            if isinstance(value, Tensor):
                value = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
                value = value.flatten(0, 1)
            rows.append(value)
        outputs = call(_SoftMargin, *rows)
        return tuple(x.unflatten(0, (size, -1)) for x in outputs), (0,) * len(outputs)


def read(
    fill: Callable[[slice], Tensor], slices: Iterator[slice], index: Tensor, ignored: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk forward: margin, top and total. `fill` makes fresh logits of some rows."""
    parts = []
    for rows in slices:
        block, labels = fill(rows), index[rows]
        label = block.gather(1, labels)
        parts.append((label, *_others(block.scatter_(1, labels, -math.inf))))
        del block  # before the next one is made
    label, top, total, log_total = (torch.cat(part) for part in zip(*parts, strict=True))
    return _margin(label, top, log_total, ignored), top, total


class Direction:
    """Walk backward: ∇Δ times the incoming gradient, for any rows of which the logits are there."""

    def __init__(self, fall: Tensor, index: Tensor, top: Tensor, total: Tensor, ignored: Tensor | None = None) -> None:
        self.index = index if ignored is None else index.masked_fill(ignored, 0)
        fall = fall.to(top.dtype)
        self.top, self.label, self.ignored = top, -fall, ignored
        self.others = fall / total

    def write(self, logits: Tensor, rows: slice, out: Tensor) -> Tensor:
        """The gradient of these rows, written into `out`, which may be `logits` itself."""
        torch.sub(logits, self.top[rows], out=out)
        exp_(out).mul_(self.others[rows]).scatter_(1, self.index[rows], self.label[rows])
        # A NaN times zero is NaN, and padding may well be NaN.
        return out if self.ignored is None else out.masked_fill_(self.ignored[rows], 0.0)


class _WalkedSoftMargin(Function):
    """For a batch of many blocks, and for half precisions, whose q in float32 would take more room than the logits."""

    @staticmethod
    def forward(
        logits: Tensor, index: Tensor, ignore_index: int, shape: Shape | None, scale: float, reduction: str
    ) -> tuple[Tensor, ...]:
        index, ignored = class_index(index, logits.shape[1], ignore_index)
        dtype = accurate(logits.dtype)
        slices = walk(len(logits), logits.numel(), BLOCK)
        outputs = read(lambda rows: logits[rows].to(dtype, copy=True), slices, index, ignored)
        return with_losses(outputs, ignored, shape, scale, reduction)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        logits, index, ctx.ignore_index, ctx.shape, ctx.scale, ctx.reduction = inputs
        kept = output[:-1] if ctx.shape else output
        ctx.mark_non_differentiable(*kept[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, index, *kept)

    @staticmethod
    def backward(ctx: Any, to_margin: Any, *to_rest: Any) -> tuple[Any, ...]:
        logits, index, margin, top, total, *rest = ctx.saved_tensors
        fall = margin_fall(ctx, margin, rest, to_margin, to_rest[-1])
        if fall is None:
            return None, None, None, None, None, None
        if torch.is_grad_enabled():  # the gradient is to be differentiated: as if the batch were one block
            again = call(_SoftMargin, logits, index, ctx.ignore_index, None, 1.0, "none")[0]
            grads = torch.autograd.grad(again, logits, -fall.to(again.dtype), create_graph=True)
            return *grads, None, None, None, None, None
        direction, out = Direction(fall, index, top, total, mask_in(ctx, rest)), torch.empty_like(logits)
        for rows in walk(len(logits), logits.numel(), BLOCK):
            if out.dtype == direction.top.dtype:
                direction.write(logits[rows], rows, out[rows])
            else:
                out[rows] = direction.write(logits[rows], rows, logits[rows].to(direction.top.dtype))
        return out, None, None, None, None, None
