"""Two processes, each with half of every batch, know what one process with the whole batches knows."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from curriculoss import get
from curriculoss.monitor import Monitor

pytestmark = pytest.mark.slow

SAMPLES, CLASSES, EPOCHS, WORLD = 96, 20, 3, 2
LOSSES = ("mae", "nce")
LIMIT = 120  # seconds


def observe(name: str, rank: int, world: int) -> dict[str, Any]:
    """What the process `rank` of `world` sees of one training."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    clean = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    given = torch.where(torch.rand(SAMPLES, generator=generator) < 0.4, (clean + 1) % CLASSES, clean)
    monitor = Monitor(get(name), num_classes=CLASSES, num_samples=SAMPLES)
    epochs, counts = [], []
    for epoch in range(EPOCHS):
        for index in torch.randperm(SAMPLES, generator=generator).split(16):
            logits = torch.randn(len(index), CLASSES, generator=generator) * (1 + 2 * epoch)
            logits[torch.arange(len(index)), given[index]] -= 3 - epoch
            mine = slice(rank, None, world)
            monitor.update(
                logits=logits[mine],
                target=given[index][mine],
                clean_target=clean[index][mine],
                index=index[mine],
                learning_rate=0.1 / (epoch + 1),
            )
        found = monitor.end_epoch()
        epochs.append(found.as_dict())
        counts.append({name: each.tolist() for name, each in vars(found.histogram).items()})
    samples = {key: value.tolist() for key, value in vars(monitor.samples()).items()}
    state = {key: value.tolist() for key, value in monitor._tensors().items() if key != "initial"}
    return {"epochs": epochs, "counts": counts, "samples": samples, "state": state}


def process(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=LIMIT / 2),
    )
    try:
        torch.save({name: observe(name, rank, WORLD) for name in LOSSES}, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


def test_two_processes_agree_with_one_on_the_union(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    context = mp.get_context("spawn")
    processes = [context.Process(target=process, args=(rank, str(tmp_path))) for rank in range(WORLD)]
    try:
        for each in processes:
            each.start()
        for each in processes:
            each.join(LIMIT)
            assert each.exitcode == 0
    finally:
        for each in processes:
            if each.is_alive():
                each.kill()
                each.join()
    results = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    assert str(results[0]) == str(results[1])  # NaN included
    for name in LOSSES:
        found, alone = results[0][name], observe(name, 0, 1)
        assert found["counts"] == alone["counts"]
        assert bool(found["epochs"][0]["verdicts"]) == (name == "mae")  # on the margins that both began with
        for here, there in zip(found["epochs"], alone["epochs"], strict=True):
            assert here.pop("verdicts") == there.pop("verdicts")
            assert here == pytest.approx(there, rel=1e-6)
        for key, values in alone["samples"].items():
            assert found["samples"][key] == pytest.approx(values, rel=1e-5, abs=1e-5, nan_ok=True)
