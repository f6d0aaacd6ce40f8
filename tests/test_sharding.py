"""The classes of the last layer over several processes: equal to one process that holds them all."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.testing import assert_close

from curriculoss import CE, GCE, MAE, NCE, AutoLoss, RobustLoss, linear_soft_margin
from curriculoss.errors import GroupError

LIMIT = 60.0  # seconds for all processes together
TIME_OUT = 5.0  # of a group that loses a process
CLASSES, HIDDEN, SAMPLES = 23, 6, 40


def layer(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Hidden states, weight, bias and target; some samples are ignored, one class is masked, one is far ahead."""
    generator = torch.Generator().manual_seed(0)
    shapes = (SAMPLES, HIDDEN), (CLASSES, HIDDEN), (CLASSES,)
    hidden, weight, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    bias[4], bias[7] = -torch.inf, 30.0
    target = torch.randint(5, CLASSES, (SAMPLES,), generator=generator)
    target[::9] = -100
    return [*(x.to(dtype).requires_grad_() for x in (hidden, weight, bias)), target]


def losses() -> dict[str, Callable[..., Tensor]]:
    weights, samples = torch.linspace(0.5, 2.0, CLASSES), torch.linspace(0.0, 3.0, SAMPLES)
    weighted, single = RobustLoss(CE(), class_weight=weights, reduction="sum"), RobustLoss(GCE(), reduction="none")
    auto = AutoLoss(CLASSES)

    def alone(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, **how: Any) -> Tensor:
        bias = torch.where(bias == 30.0, bias, -torch.inf)  # class 7 is the only one that exists
        return linear_soft_margin(hidden, weight, bias, target.clamp(7, 7), **how).sum()

    return {
        "alone": alone,
        "margin": lambda *x, **how: linear_soft_margin(*x, **how).clamp(max=1e6).square().sum(),
        "mean": RobustLoss(MAE()).linear,
        "weighted": lambda *x, **how: weighted.linear(*x, samples, **how),
        "single": lambda *x, **how: single.linear(*x, **how).square().sum(),
        "auto": auto.linear,
    }


def results(rows: slice, **how: Any) -> dict[str, list[Tensor]]:
    """Each loss with its gradients, of the rows of weight and bias that a process has."""
    found = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        hidden, weight, bias, target = layer(dtype)
        for name, loss in losses().items():
            value = loss(hidden, weight[rows], bias[rows], target, **how)
            to_hidden, to_weight, to_bias = torch.autograd.grad(value, (hidden, weight, bias))
            found[f"{name} {dtype}"] = [value.detach(), to_hidden, to_weight[rows], to_bias[rows]]
    return found


def shard(rank: int, sizes: tuple[int, ...]) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def compute(rank: int, sizes: tuple[int, ...], folder: str) -> None:
    torch.save(results(shard(rank, sizes), group=dist.group.WORLD, memory=1000), f"{folder}/{rank}.pt")


def refuse(rank: int, sizes: tuple[int, ...], folder: str) -> None:
    """Every process writes the lines that wrong calls give it."""
    hidden, weight, bias, target = layer()
    rows, group, lines = shard(rank, sizes), dist.group.WORLD, []
    none, odd = slice(0, 0 if rank == 1 else 3), SAMPLES - (rank == 1)
    calls: list[Callable[[], object]] = [
        lambda: linear_soft_margin(hidden, weight[none], bias[none], target, group=group),
        lambda: linear_soft_margin(hidden[:odd], weight[rows], None, target[:odd], group=group),
        lambda: linear_soft_margin(hidden, weight[rows], None, target.roll(rank), group=group),
        lambda: linear_soft_margin(hidden.detach() if rank else hidden, weight[rows], None, target, group=group),
        lambda: RobustLoss(NCE()).linear(hidden, weight[rows], None, target, group=group),
        lambda: AutoLoss(CLASSES + 1).linear(hidden, weight[rows], None, target, group=group),
        lambda: linear_soft_margin(hidden, weight[rows], None, target + CLASSES, group=group),
        lambda: linear_soft_margin(hidden, weight[rows], None, target, group=7),
        lambda: torch.func.grad(lambda x: linear_soft_margin(x, weight, None, target, group=group).sum())(hidden),
        lambda: torch.autograd.grad(
            linear_soft_margin(hidden, weight[rows], None, target, group=group).sum(), hidden, create_graph=True
        ),
    ]
    for call in calls:
        try:
            call()
        except (TypeError, ValueError) as error:
            lines.append(str(error))
    Path(folder, f"{rank}.txt").write_text("\n".join(lines))


def die(rank: int, sizes: tuple[int, ...], folder: str) -> None:
    """The last process dies in forward or, if the folder says so, between forward and backward."""
    hidden, weight, _, target = layer()
    rows, last = shard(rank, sizes), rank == len(sizes) - 1
    begin = time.monotonic()
    try:
        if last and folder.endswith("forward"):
            os._exit(7)
        value = RobustLoss(MAE()).linear(hidden, weight[rows], None, target, group=dist.group.WORLD)
        if last:
            os._exit(7)
        value.backward()
    except GroupError as error:
        Path(folder, f"{rank}.txt").write_text(f"{time.monotonic() - begin}\n{error}")


def process(rank: int, work: Callable[..., None], sizes: tuple[int, ...], folder: str) -> None:
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=TIME_OUT if work is die else LIMIT / 2)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=len(sizes), timeout=timeout
    )
    try:
        work(rank, sizes, folder)
    finally:
        dist.destroy_process_group()


def run(work: Callable[..., None], sizes: tuple[int, ...], folder: Path) -> list[int | None]:
    """The exit codes of as many processes as there are sizes."""
    context = mp.get_context("spawn")
    processes = [context.Process(target=process, args=(rank, work, sizes, str(folder))) for rank in range(len(sizes))]
    until = time.monotonic() + LIMIT
    try:
        for each in processes:
            each.start()
        for each in processes:
            each.join(max(0.0, until - time.monotonic()))
        return [each.exitcode for each in processes]
    finally:
        for each in processes:
            if each.is_alive():
                each.kill()
                each.join()


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(12, 11), (1, 17, 5)], ids=str)
def test_shards_are_equal_to_one_process(tmp_path, sizes):
    assert run(compute, sizes, tmp_path) == [0] * len(sizes)
    whole = results(slice(None))
    for rank in range(len(sizes)):
        rows, found = shard(rank, sizes), torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, (value, to_hidden, to_weight, to_bias) in whole.items():
            tolerance = 2e-2 if "bfloat16" in name else 1e-5 if "float32" in name else 1e-6
            expected = [value, to_hidden, to_weight[rows], to_bias[rows]]
            for ours, theirs in zip(found[name], expected, strict=True):
                assert ours.dtype == theirs.dtype
                assert_close(ours, theirs, rtol=tolerance, atol=tolerance * max(1e-9, float(to_hidden.abs().max())))


@pytest.mark.slow
def test_shards_that_do_not_belong_together_are_refused_in_one_line_on_each_process(tmp_path):
    assert run(refuse, (12, 11), tmp_path) == [0, 0]
    first, second = ((tmp_path / f"{rank}.txt").read_text().splitlines() for rank in (0, 1))
    assert first == second
    expected = [
        "each process of a group needs at least 1 class, got 3, 0 on processes 0, 1, ...",
        "got (40, 6) torch.float64 with gradient and targets of checksum",
        "the processes of a group expect the same hidden states and targets",
        "without gradient and targets of checksum",
        "linear expects a standard-form loss with group=, got NCE()",
        "AutoLoss expects logits of 24 classes, got 23",
        "expected class indices from 0 to 22 (or ignore_index=-100) as target, got",
        "group= expects a process group that this process is in, got int",
        "group= expects plain autograd, got a transform of torch.func or torch.compile",
        "classes over several processes expect a first derivative, got create_graph",
    ]
    assert len(first) == len(expected)
    for line, part in zip(first, expected, strict=True):
        assert part in line


@pytest.mark.slow
@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_process_that_dies_makes_the_others_fail_within_the_time_out(tmp_path, when):
    folder = tmp_path / when
    folder.mkdir()
    assert run(die, (8, 8, 7), folder) == [0, 0, 7]
    for rank in (0, 1):
        seconds, line = (folder / f"{rank}.txt").read_text().splitlines()
        assert float(seconds) < 2 * TIME_OUT  # two collectives at most
        assert line.startswith("a process of the group has died or has not answered in time: ")


def test_a_group_needs_torch_distributed():
    with pytest.raises(ValueError, match=r"group= expects torch.distributed.init_process_group to have been called"):
        linear_soft_margin(*layer(), group=object())
