"""The monitor's callback in the real Trainer of Lightning."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from curriculoss import GCE, MAE, RobustLoss, Shifted
from curriculoss.integrations.lightning import LightningMonitor
from curriculoss.monitor import Epoch, Monitor

COUNT, FEATURES, CLASSES, BATCH, RATE = 24, 4, 5, 4, 0.2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning 2.6 with torch 2.13
]


class Classifier(lightning.LightningModule):
    """Whose learning rate halves at every step of the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Linear(FEATURES, CLASSES)
        self.loss = RobustLoss(GCE(0.7))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.loss(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), RATE)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def samples() -> list[torch.Tensor]:
    """Inputs, given labels, indices and clean labels; every sixth label is wrong."""
    generator = torch.Generator().manual_seed(1)
    clean = torch.randint(CLASSES, (COUNT,), generator=generator)
    index = torch.arange(COUNT)
    return [torch.randn(COUNT, FEATURES, generator=generator), (clean + (index % 6 == 0)) % CLASSES, index, clean]


def batches() -> "DataLoader[Any]":
    return DataLoader(TensorDataset(*samples()), batch_size=BATCH)


def fit(
    callback: LightningMonitor, folder: Path, *more: Any, module: Any = None, resume: Any = None, **settings: Any
) -> lightning.Trainer:
    defaults = {
        "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "log_every_n_steps": 1, "enable_checkpointing": bool(more),
        "default_root_dir": folder,
    }  # fmt: skip
    trainer = lightning.Trainer(callbacks=[callback, *more], **(defaults | settings))
    trainer.fit(module or Classifier(), batches(), batches(), ckpt_path=resume)
    return trainer


def by_hand(accumulate: int = 1, epochs: int = 2) -> tuple[Epoch, Monitor]:
    """A plain loop, with the monitor fed in it."""
    module = Classifier()
    settings = module.configure_optimizers()
    optimizer, schedule = settings["optimizer"], settings["lr_scheduler"]["scheduler"]
    monitor = Monitor(module.loss, num_classes=CLASSES, num_samples=COUNT)
    for _ in range(epochs):
        for step, (inputs, target, index, clean) in enumerate(batches()):
            logits = module.network(inputs)
            monitor.update(
                logits=logits.detach(), target=target, index=index, clean_target=clean,
                learning_rate=optimizer.param_groups[0]["lr"],
            )  # fmt: skip
            (module.loss(logits, target) / accumulate).backward()
            if (step + 1) % accumulate == 0:
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        epoch = monitor.end_epoch()
    return epoch, monitor


def watching() -> LightningMonitor:
    return LightningMonitor(index=2, clean_target=3, num_samples=COUNT)


def assert_same(callback: LightningMonitor, epoch: Epoch, monitor: Monitor) -> None:
    assert callback.epoch is not None and callback.monitor is not None
    assert callback.epoch.as_dict() == epoch.as_dict()
    ours, theirs = vars(callback.monitor.samples()), vars(monitor.samples())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_callback_hears_what_a_plain_loop_would_tell(accumulate: int, tmp_path: Path) -> None:
    callback = watching()
    fit(callback, tmp_path, accumulate_grad_batches=accumulate)
    assert_same(callback, *by_hand(accumulate))


def test_a_state_saved_before_the_first_step_starts_anew(tmp_path: Path) -> None:
    callback = watching()
    callback.load_state_dict(watching().state_dict())
    fit(callback, tmp_path)
    assert_same(callback, *by_hand(1))


def test_an_epoch_is_logged_once(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    callback = watching()
    trainer = fit(callback, tmp_path, logger=logger)
    names = ("mean_weight", "effective_learning_rate", "snr")
    for name in names:
        assert math.isclose(trainer.callback_metrics[name], getattr(callback.epoch, name), rel_tol=1e-6)
    lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("snr")
    assert sum(bool(line.split(",")[column]) for line in lines[1:]) == 2


def test_without_clean_targets_there_is_no_snr(tmp_path: Path) -> None:
    trainer = fit(LightningMonitor(), tmp_path)
    assert "mean_weight" in trainer.callback_metrics and "snr" not in trainer.callback_metrics


def every_step(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)


@pytest.mark.parametrize("step", [6, 12], ids=["at the end of an epoch", "of training"])
def test_a_resumed_run_ends_with_the_same_numbers(step: int, tmp_path: Path) -> None:
    fit(watching(), tmp_path, every_step(tmp_path))
    resumed = watching()
    fit(resumed, tmp_path, every_step(tmp_path), resume=tmp_path / f"step={step}.ckpt", max_epochs=3)
    assert_same(resumed, *by_hand(epochs=3))


@pytest.mark.filterwarnings("ignore:.*your dataloader is not resumable")
def test_a_run_resumed_amid_an_epoch_counts_it_whole(tmp_path: Path) -> None:
    fit(watching(), tmp_path, every_step(tmp_path))
    resumed = watching()
    fit(resumed, tmp_path, every_step(tmp_path), resume=tmp_path / "step=8.ckpt")
    assert resumed.epoch is not None and resumed.epoch.epoch == 2 and resumed.epoch.samples == COUNT


def test_the_pixels_of_a_picture_share_its_index(tmp_path: Path) -> None:
    class Pixels(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            logits = self.network(batch[0])
            return self.loss(torch.stack([logits, -logits], -1), torch.stack([batch[1]] * 2, -1))

    callback = watching()
    fit(callback, tmp_path, module=Pixels(), max_epochs=1)
    assert callback.epoch is not None and callback.monitor is not None
    assert callback.epoch.samples == 2 * COUNT
    assert callback.monitor.samples().epochs.tolist() == [1] * COUNT


def test_keywords_and_single_samples_are_heard_once(tmp_path: Path) -> None:
    class Single(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            logits = self.network(batch[0])
            return self.loss(logits[0], target=batch[1][0]) + self.loss(target=batch[1], logits=logits)

    callback = LightningMonitor()
    fit(callback, tmp_path, module=Single(), max_epochs=1)
    assert callback.epoch is not None and callback.epoch.samples == COUNT + COUNT / BATCH


class Two(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.other = RobustLoss(Shifted(MAE(), -9.0))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.other(self.network(batch[0]), batch[1])


def test_which_loss_is_said_where_it_is_not_clear(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="expects one RobustLoss in the module or loss=, got 2"):
        fit(LightningMonitor(), tmp_path, module=Two())
    module = Two()
    with pytest.raises(TypeError, match=r"expects a criterion such as RobustLoss\(MAE\(\)\), got MAE\(\)$"):
        fit(LightningMonitor(MAE()), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="heard no call of its loss"):
        fit(LightningMonitor(module.loss), tmp_path, module=module)
    assert "underfit" not in caplog.text
    fit(LightningMonitor(module.other), tmp_path, module=module)
    assert caplog.text.count("this will underfit") == 1


def test_a_batch_without_what_was_named_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expects index at batch\[7\], got a list of 4"):
        fit(LightningMonitor(index=7, num_samples=COUNT), tmp_path)
    with pytest.raises(ValueError, match=r"expects clean_target at batch\['clean'\], got a list of 4"):
        fit(LightningMonitor(clean_target="clean"), tmp_path)


TWO_PROCESSES = """
import sys, json, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {tests!r})
from test_integrations_lightning import fit, watching

class Writing(type(watching())):
    def on_train_epoch_end(self, trainer, module):
        super().on_train_epoch_end(trainer, module)
        if trainer.is_global_zero and self.epoch.epoch == 2:
            state = self.state_dict()["monitor"]["epochs"]
            row = self.epoch.as_dict() | {{"seen": self.monitor.samples().epochs.tolist(), "state": state}}
            open({out!r}, "w").write(json.dumps(row))

fit(Writing(index=2, clean_target=3, num_samples=24), {folder!r}, devices=2, strategy="ddp_fork")
"""


def test_two_processes_know_what_both_have_seen(tmp_path: Path) -> None:
    out = tmp_path / "row.json"
    code = TWO_PROCESSES.format(tests=str(Path(__file__).parent), out=str(out), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    row = json.loads(out.read_text())
    assert row["epoch"] == row["state"] == 2 and row["samples"] == COUNT and row["samples_noisy"] == 4
    assert row["seen"] == [2] * COUNT
