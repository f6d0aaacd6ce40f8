"""Lightning: a callback that follows the loss of a LightningModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curriculoss.errors import InvalidValueError
from curriculoss.integrations import needed
from curriculoss.integrations.watch import Watch
from curriculoss.losses.criterion import Criterion

with needed("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


class LightningMonitor(Watch, Callback):
    """`Trainer(callbacks=[LightningMonitor()])` follows the loss of the module, whatever `training_step` does with it.

    It logs mean weight and effective learning rate (and the snr, if clean targets are known) once per epoch. Its state
    is part of the checkpoints.

    Args:
        loss: The loss to follow, if the module has none or several.
        index: Where a batch has the positions of its samples in the data: 2 for `batch[2]`, "index" for
            `batch["index"]`.
        clean_target: Where a batch has its clean targets.
        num_samples: The size of the training set. With it and `index`, `callback.monitor.samples()` has the margins of
            each sample.

    Attributes:
        monitor: The monitor; None before the first step.
        epoch: The last epoch that has ended.
    """

    def __init__(
        self, loss: Criterion | None = None, *, index: int | str | None = None, clean_target: int | str | None = None,
        num_samples: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_samples, index=index, clean_target=clean_target)
        self.loss = loss

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = [each for each in pl_module.modules() if isinstance(each, Criterion)]
        if self.loss is None and len(found) != 1:
            raise InvalidValueError(f"LightningMonitor expects one RobustLoss in the module or loss=, got {len(found)}")
        self.attach(self.loss or found[0])

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        sample = {name: _part(batch, name, place) for name, place in self._places.items()}
        self.listen(trainer.current_epoch, trainer.optimizers[0], **sample)

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.pause()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        numbers = self.end_epoch(warn=trainer.is_global_zero)
        if numbers is not None:
            pl_module.log_dict(numbers, sync_dist=True)

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self.detach()

    on_exception = teardown


def _part(batch: Any, name: str, key: int | str) -> Any:
    try:
        return batch[key]
    except (LookupError, TypeError):
        size = f" of {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else f" of {len(batch)}"
        raise InvalidValueError(
            f"LightningMonitor expects {name} at batch[{key!r}], got a {type(batch).__name__}{size}"
        ) from None
