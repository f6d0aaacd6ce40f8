"""The last linear layer and the soft margin in one op, for class counts at which N×K logits would not fit.

It computes the batch in blocks of rows like margin.py. Each block of logits is made, read and dropped, and made again
in backward: four matrix products in place of three, and memory for one block in place of several times N×K numbers.
losses/last_layer.py needs only three for a mean or a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from curriculoss import margin as blocks
from curriculoss._autograd import apply_function, autocast, compute_dtype, mapped
from curriculoss._checks import check_num_classes, check_target, checked_integer, type_name
from curriculoss._sharding import Shards, meet
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.margin import soft_margin

BLOCK_LOGITS = 2**23  # logits per block, more than in margin.py: each writes to the whole gradient of the weight


def linear_soft_margin(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, ignore_index: int = -100,
    group: Any = None, memory: int | None = None,
) -> Tensor:  # fmt: skip
    """`soft_margin(F.linear(hidden, weight, bias), target)` without ever storing the N×K logits.

    Backward multiplies again instead of remembering, so memory is one block of logits, whatever the number of classes.

    Args:
        hidden: (..., H), the inputs of the last layer.
        weight: (K, H).
        bias: (K,) or None.
        target: (...), int64 class indices.
        ignore_index: Samples with this target have margin 0 and no gradient.
        group: A process group of `torch.distributed` over which the classes are spread: each process passes its own
            rows of weight and bias, in the order of the ranks, the same hidden states, and targets that count the
            classes of all. Each gets the same margins and the whole gradient of the hidden states.
        memory: Bytes that a block of logits may take, but at least one row; by default about 34 MB, or 128 rows.

    Returns:
        One margin per target.

    Raises:
        GroupError: If a process of the group has died or has not answered within the group's time-out.

    Example:
        >>> import torch
        >>> from curriculoss import linear_soft_margin
        >>> hidden, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
        >>> linear_soft_margin(hidden, weight, None, torch.tensor([0]))
        tensor([1.])
    """
    layer = checked_layer(hidden, weight, bias, target, memory=memory)
    shards = None if group is None else meet(group, layer.hidden, layer.weight, target)
    return margin_of_layer(layer, target, ignore_index, shards)


class Layer(NamedTuple):
    """The last layer and its inputs, one row per target."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    memory: int | None = None

    def logits(self, rows: slice) -> Tensor:
        """Fresh logits of some rows, in the dtype to compute in."""
        return F.linear(self.hidden[rows], self.weight, self.bias).to(compute_dtype(self.hidden.dtype))

    def row_blocks(self) -> Iterator[slice]:
        """Blocks of rows within the memory.

        Without a limit, and with very many classes, a block has still an eighth of the rows, up to 128, since each
        reads the whole weight.
        """
        rows, num_classes = len(self.hidden), len(self.weight)
        if self.memory is None:
            block = max(BLOCK_LOGITS, min(128, rows // 8) * num_classes)
        else:
            dtypes = {self.hidden.dtype, compute_dtype(self.hidden.dtype)}  # logits in half precision are copied
            block = self.memory // sum(each.itemsize for each in dtypes)
        return blocks.row_blocks(rows, rows * num_classes, block)


class LayerGradients:
    """Gradients of hidden states, weight and bias, gathered block by block; None where none is needed."""

    def __init__(self, layer: Layer, needed: tuple[bool, ...]) -> None:
        self.layer, dtype = layer, compute_dtype(layer.hidden.dtype)
        self.hidden = torch.empty_like(layer.hidden) if needed[0] else None
        self.weight = torch.zeros_like(layer.weight, dtype=dtype) if needed[1] else None
        self.bias = None if layer.bias is None or not needed[2] else torch.zeros_like(layer.bias, dtype=dtype)

    def add(self, block: Tensor, rows: slice) -> None:
        """Take in the gradient of the logits of some rows."""
        hidden, weight, _, _ = self.layer
        if self.bias is not None:
            self.bias += block.sum(0)
        block = block.to(weight.dtype)
        if self.hidden is not None:
            torch.mm(block, weight, out=self.hidden[rows])
        if self.weight is not None and self.weight.dtype == weight.dtype:
            self.weight.addmm_(block.mT, hidden[rows])
        elif self.weight is not None:  # half precision: the sum over blocks is in float32
            self.weight += block.mT @ hidden[rows]


def checked_layer(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, memory: int | None = None
) -> Layer:
    """The layer with its inputs as rows, cast as autocast wants it; refused if types or shapes do not fit."""
    _check(hidden, weight, bias, target)
    if memory is not None:
        memory = checked_integer("linear_soft_margin", "memory", memory, 1)
    if autocast(hidden) and torch.float64 not in (hidden.dtype, weight.dtype):
        half = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(half), weight.to(half), None if bias is None else bias.to(half)
    dtypes = [str(x.dtype) for x in (hidden, weight, bias) if x is not None]
    if len(set(dtypes)) > 1:
        expected = "hidden, weight and bias of one dtype"
        raise InvalidTypeError(f"linear_soft_margin expects {expected}, got {', '.join(dtypes)}")
    return Layer(hidden.reshape(-1, weight.shape[1]), weight, bias, memory)


def _check(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> None:
    for name, value in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        optional = name == "bias" and value is None
        if not optional and not (isinstance(value, Tensor) and value.is_floating_point()):
            raise InvalidTypeError(f"linear_soft_margin expects a floating-point {name}, got {type_name(value)}")
    check_target(target, "linear_soft_margin")
    fits = weight.dim() == 2 and hidden.shape == (*target.shape, weight.shape[1])
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        raise InvalidValueError(
            "linear_soft_margin expects hidden (..., H), weight (K, H), bias (K,) or None and target (...), "
            f"got {tuple(hidden.shape)}, {tuple(weight.shape)}, "
            f"{None if bias is None else tuple(bias.shape)} and {tuple(target.shape)}"
        )
    devices = [str(x.device) for x in (hidden, weight, bias, target) if x is not None]
    if len(set(devices)) > 1:
        raise InvalidValueError(f"linear_soft_margin expects all tensors on one device, got {', '.join(devices)}")


def margin_of_layer(layer: Layer, target: Tensor, ignore_index: int, shards: Shards | None = None) -> Tensor:
    """The margins of `linear_soft_margin`, for a layer that is checked."""
    flat = target.reshape(-1)
    if shards is None:
        check_num_classes(len(layer.weight))
    if mapped():  # a transform needs plain operations
        return soft_margin(F.linear(*layer[:3]), flat, ignore_index=ignore_index).reshape(target.shape)
    margin: Tensor = apply_function(_LinearSoftMargin, *layer, flat, ignore_index, shards)[0]
    return margin.reshape(target.shape)


class _LinearSoftMargin(Function):
    """With shards, each block has one more column, of logits -inf, for labels that another process holds."""

    @staticmethod
    def forward(
        hidden: Tensor, weight: Tensor, bias: Tensor | None, memory: int | None, target: Tensor, ignore_index: int,
        shards: Shards | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        layer = Layer(hidden, weight, bias, memory)
        total = len(weight) if shards is None else shards.total
        index, ignored = blocks.class_index(target.unsqueeze(1), total, ignore_index)
        if shards is None:
            outputs = blocks.read_blocks(layer.logits, layer.row_blocks(), index, ignored)
        else:
            outputs = _read_shards(layer, shards, index, ignored)
        return blocks.with_losses(outputs, ignored, blocks.Objective())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *layer, ctx.memory, target, ctx.ignore_index, ctx.shards = inputs
        ctx.objective = blocks.Objective()
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*layer, target, *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
        hidden, weight, bias, target, margin, top, total, *rest = ctx.saved_tensors
        layer, needed, shards = Layer(hidden, weight, bias, ctx.memory), ctx.needs_input_grad[:3], ctx.shards
        if torch.is_grad_enabled():  # to be differentiated again: with all logits at once
            if shards is not None:
                raise InvalidValueError("classes over several processes expect a first derivative, got create_graph")
            again = soft_margin(F.linear(hidden, weight, bias), target, ignore_index=ctx.ignore_index).unsqueeze(1)
            return *differentiable_gradients(again, layer, needed, grad), None, None, None, None
        neg_grad, ignored = blocks.neg_margin_grad(ctx, margin, rest, grad, None)
        assert neg_grad is not None  # it is None only for a margin whose gradient nobody asked for
        index = target.unsqueeze(1) if shards is None else shards.local(target.unsqueeze(1))
        gradient, found = blocks.BlockGradient(neg_grad, index, top, total, ignored), LayerGradients(layer, needed)
        for rows in layer.row_blocks():
            block = layer.logits(rows) if shards is None else _with_spare(layer.logits(rows))
            gradient.write(block, rows, block)
            found.add(block if shards is None else block[:, :-1], rows)
            del block  # before the next one is made
        if shards is not None and found.hidden is not None:
            found.hidden = shards.add_up(found.hidden.to(top.dtype)).to(hidden.dtype)
        sums = (None if x is None else x.to(weight.dtype) for x in (found.weight, found.bias))
        return found.hidden, *sums, None, None, None, None


def differentiable_gradients(
    value: Tensor, layer: Layer, needed: tuple[bool, ...], grad: Tensor
) -> list[Tensor | None]:
    """Gradients that can be differentiated again."""
    inputs = [x for x, wanted in zip(layer[:3], needed, strict=True) if wanted and x is not None]
    grads = iter(torch.autograd.grad(value, inputs, grad, create_graph=True))
    return [next(grads) if wanted else None for wanted in needed]


def _with_spare(logits: Tensor) -> Tensor:
    return F.pad(logits, (0, 1), value=-torch.inf)


def _read_shards(layer: Layer, shards: Shards, index: Tensor, ignored: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`read_blocks` over the classes of all processes."""
    index, labels = shards.local(index), []

    def make(rows: slice) -> Tensor:
        block = _with_spare(layer.logits(rows))
        labels.append(block.gather(1, index[rows]))
        return block

    _, top, total = blocks.read_blocks(make, layer.row_blocks(), index, None)
    label, top, total = shards.merge(torch.cat(labels), top, total)
    alone = top == blocks.LOWEST_LOGIT[top.dtype]  # no process has another class; each says 1 for its total of none
    return blocks.margin_of(label, top, total.log().masked_fill(alone, -torch.inf), ignored), top, total
