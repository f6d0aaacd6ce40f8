"""The classes of the last layer spread over the processes of a `torch.distributed` group.

Every process has the same hidden states and targets, and its own rows of the weight. Of each sample the processes
exchange three numbers: the logit of the label, and `top` and `total` of the other classes (see margin.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from curriculoss._autograd import transformed
from curriculoss._checks import check_num_classes, type_name
from curriculoss.errors import GroupError, InvalidTypeError, InvalidValueError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@contextlib.contextmanager
def _group_errors() -> Iterator[None]:
    """Say what it means if the group fails."""
    try:
        yield
    except RuntimeError as error:  # the backends have no common class
        reason = str(error).strip().partition("\n")[0]
        raise GroupError(f"a process of the group has died or has not answered in time: {reason}") from error


class Shards(NamedTuple):
    """Which classes this process holds: `held` of `total`, from `first` on."""

    group: Any
    first: int
    held: int
    total: int

    def local(self, index: Tensor) -> Tensor:
        """The column of each label here; `held`, one too many, for labels that another process holds."""
        column = index - self.first
        return column.masked_fill((column < 0) | (column >= self.held), self.held)

    def merge(self, label: Tensor, top: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three numbers of each sample over the classes of all processes."""
        label, top, total = self._gather(torch.stack([label, top, total])).unbind(1)
        highest = top.amax(0)
        return label.amax(0), highest, total.mul_((top - highest).exp_()).sum(0)

    def add_up(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        with _group_errors():
            dist.all_reduce(value, group=self.group)
        return value

    def _gather(self, value: Tensor) -> Tensor:
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size(self.group))]
        with _group_errors():
            dist.all_gather(parts, value, group=self.group)
        return torch.stack(parts)


def meet(group: Any, hidden: Tensor, weight: Tensor, target: Tensor) -> Shards:
    """Learn which classes the processes hold, and refuse shards that do not belong together, on all of them at once."""
    if transformed():
        raise InvalidValueError("group= expects plain autograd, got a transform of torch.func or torch.compile")
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidValueError("group= expects torch.distributed.init_process_group to have been called")
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidTypeError(f"group= expects a process group that this process is in, got {type_name(group)}")
    order = torch.arange(1, 1 + target.numel(), device=target.device)
    fingerprint = int(target.reshape(-1).mul(order).sum())  # two batches of the same shape differ in it
    learning = torch.is_grad_enabled() and hidden.requires_grad
    mine = (len(weight), weight.shape[1], target.numel(), DTYPES.index(hidden.dtype), int(learning), fingerprint)
    found = Shards(group, 0, 0, 0)._gather(torch.tensor(mine, device=hidden.device)).tolist()
    counts = [row[0] for row in found]
    if 0 in counts:
        raise InvalidValueError(
            f"each process of a group needs at least 1 class, got {', '.join(map(str, counts))} on processes 0, 1, ..."
        )
    for rank, row in enumerate(found):
        if row[1:] != found[0][1:]:
            raise InvalidValueError(
                "the processes of a group expect the same hidden states and targets, "
                f"got {_described(found[0])} on process 0 and {_described(row)} on process {rank}"
            )
    check_num_classes(sum(counts))
    return Shards(group, sum(counts[: dist.get_rank(group)]), len(weight), sum(counts))


def _described(row: list[int]) -> str:
    _, width, samples, dtype, learning, fingerprint = row
    needs = "with" if learning else "without"
    return f"({samples}, {width}) {DTYPES[dtype]} {needs} gradient and targets of checksum {fingerprint}"
