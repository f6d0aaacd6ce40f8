"""Lightning: a callback that watches the loss of a LightningModule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from curriculoss.integrations import needed
from curriculoss.integrations.watch import Watch, row
from curriculoss.loss import RobustLoss
from curriculoss.monitor import Epoch, Monitor

with needed("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

logger = logging.getLogger(__name__)


class MonitorCallback(Callback):
    """`Trainer(callbacks=[MonitorCallback()])` follows the `RobustLoss` of the module, whatever `training_step` does
    with it, and logs mean weight and effective learning rate (and the snr, if clean targets are known) once an epoch.

    Give it the `loss` if the module has none or several. `index` and `clean_target` say where in a batch the samples'
    indices and clean targets are: `batch[2]` is 2, `batch["clean"]` is "clean". With `index` and `num_samples`,
    `callback.monitor.samples()` has the margins of each sample. Its state is part of the checkpoints.
    """

    def __init__(
        self,
        loss: RobustLoss | None = None,
        *,
        index: int | str | None = None,
        clean_target: int | str | None = None,
        num_samples: int | None = None,
    ) -> None:
        self.loss = loss
        self.epoch: Epoch | None = None  # the last that has ended
        keys = {"index": index, "clean_target": clean_target}
        self._keys = {name: key for name, key in keys.items() if key is not None}
        self._watch = Watch(num_samples)

    @property
    def monitor(self) -> Monitor | None:
        """None before the first step."""
        return self._watch.monitor

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._watch.attach(self._only(pl_module) if self.loss is None else self.loss)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        sample = {name: self._of(batch, name, key) for name, key in self._keys.items()}
        self._watch.listen(trainer.current_epoch, trainer.optimizers[0], **sample)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor | Mapping[str, Any] | None,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self._watch.pause()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = self._watch.end_epoch()
        if epoch is None:
            return
        self.epoch = epoch
        pl_module.log_dict(row(epoch), sync_dist=True)
        if trainer.is_global_zero:
            for sentence in epoch.verdicts:
                logger.warning("%s", sentence)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._watch.detach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._watch.detach()

    def state_dict(self) -> dict[str, Any]:
        return self._watch.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._watch.load_state_dict(state_dict)

    @staticmethod
    def _of(batch: Any, name: str, key: int | str) -> Any:
        try:
            return batch[key]
        except (LookupError, TypeError):
            size = f" of {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else f" of {len(batch)}"
            raise ValueError(
                f"MonitorCallback expects {name} at batch[{key!r}], got a {type(batch).__name__}{size}"
            ) from None

    @staticmethod
    def _only(module: LightningModule) -> RobustLoss:
        found = [each for each in module.modules() if isinstance(each, RobustLoss)]
        if len(found) != 1:
            raise ValueError(
                f"MonitorCallback expects one RobustLoss in the module, or to be given it, got {len(found)}"
            )
        return found[0]
