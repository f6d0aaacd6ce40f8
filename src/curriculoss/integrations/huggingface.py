"""Hugging Face: the loss and the monitor for `transformers.Trainer`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from curriculoss.curricula import Curriculum
from curriculoss.integrations import needed
from curriculoss.integrations.watch import Watch, row
from curriculoss.loss import RobustLoss
from curriculoss.monitor import Epoch, Monitor
from curriculoss.regularized import Regularized

with needed("huggingface"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

IGNORED = -100  # what the Trainer does not count
STATE = "monitor.pt"  # in a checkpoint's folder
logger = logging.getLogger(__name__)


class TrainerLoss:
    """`Trainer(compute_loss_func=TrainerLoss(MAE()))`, for logits (N, K) or (N, T, K).

    For causal language models, whose position t predicts token t + 1, say `causal_lm=True`. The losses of all items
    that are not −100 are added up and divided by their number in all accumulated batches, as the Trainer wants it;
    so a `reduction` does not matter, and class weights multiply without being divided by.
    """

    def __init__(self, loss: Curriculum | Regularized | RobustLoss, *, causal_lm: bool = False) -> None:
        self.criterion = deepcopy(loss) if isinstance(loss, RobustLoss) else RobustLoss(loss)
        if self.criterion.ignore_index != IGNORED:
            raise ValueError(f"TrainerLoss expects ignore_index={IGNORED}, got {self.criterion.ignore_index}")
        self.criterion.reduction = "sum"
        self.causal_lm = causal_lm

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError("TrainerLoss expects labels in every batch, got none")
        if "CausalLM" in type(outputs).__name__ and not self.causal_lm:
            raise ValueError("TrainerLoss expects causal_lm=True for outputs of a causal language model")
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        target = self.aligned(labels).to(logits.device).flatten()
        count = (target != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        # With autocast the total is float32. In half precision it would have three digits, or overflow.
        with torch.autocast(
            logits.device.type, torch.bfloat16, enabled=logits.dtype in (torch.float16, torch.bfloat16)
        ):
            total: Tensor = self.criterion.to(logits.device)(logits.flatten(0, -2), target)
        return total / count

    def aligned(self, labels: Tensor) -> Tensor:
        """In place of each position's label the one that it predicts. Shifting logits instead would copy them."""
        return F.pad(labels, (0, 1), value=IGNORED)[..., 1:] if self.causal_lm else labels


class MonitorCallback(TrainerCallback):
    """`Trainer(compute_loss_func=loss, callbacks=[MonitorCallback(loss)])` follows the training with a monitor.

    Mean weight and effective learning rate (and the snr, if clean targets are known) go to `trainer.state.log_history`
    once an epoch; given `log=trainer.log`, also to whatever the trainer reports to. `index` and `clean_target` are
    columns of the training data that it keeps from the model (which takes `remove_unused_columns=False`). With `index`
    and `num_samples`, `callback.monitor.samples()` has the margins of each sample. Its state and the loss's (AutoLoss
    has one) are saved in the folders of checkpoints, and found again in those of `output_dir`.
    """

    def __init__(
        self,
        loss: TrainerLoss,
        *,
        log: Callable[[dict[str, float]], None] | None = None,
        index: str | None = None,
        clean_target: str | None = None,
        num_samples: int | None = None,
    ) -> None:
        self.loss = loss
        self.log = log
        self.epoch: Epoch | None = None  # the last that has ended
        columns = {"index": index, "clean_target": clean_target}
        self._columns = {name: column for name, column in columns.items() if column is not None}
        self._watch = Watch(num_samples)
        self._handle: RemovableHandle | None = None
        self._step: tuple[int, Optimizer] | None = None  # the epoch and who makes it, while there is one

    @property
    def monitor(self) -> Monitor | None:
        """None before the first step."""
        return self._watch.monitor

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._watch.attach(self.loss.criterion)
        self._release()
        self._step = None
        self._handle = kwargs["model"].register_forward_pre_hook(self._take, with_kwargs=True)
        if state.global_step:
            path = _folder(args, state) / STATE
            if path.exists():
                kept = torch.load(path, weights_only=True)
                self._watch.load_state_dict(kept["monitor"])
                self.loss.criterion.load_state_dict(kept["loss"])  # AutoLoss has a state
            else:
                logger.warning("no %s: the monitor starts anew", path)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._step = int(state.epoch or 0), kwargs["optimizer"]

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._step = None
        self._watch.pause()

    def _take(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before the model is called: keep our columns from it, and in a step of training hand them to the monitor."""
        if self._step is not None:
            for column in self._columns.values():
                if column not in kwargs:
                    raise ValueError(f"MonitorCallback expects a column {column!r}: is remove_unused_columns=False?")
            sample = {name: kwargs[column] for name, column in self._columns.items()}
            if "clean_target" in sample:
                sample["clean_target"] = self.loss.aligned(sample["clean_target"])
            self._watch.listen(*self._step, **sample)
        return args, {name: value for name, value in kwargs.items() if name not in self._columns.values()}

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        epoch = self._watch.end_epoch()
        if epoch is None:
            return
        self.epoch = epoch
        if self.log is None:
            state.log_history.append(row(epoch) | {"epoch": state.epoch, "step": state.global_step})
        else:
            self.log(row(epoch))
        if state.is_world_process_zero:
            for sentence in epoch.verdicts:
                logger.warning("%s", sentence)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder, saved = _folder(args, state), self._watch.state_dict()
        if state.is_world_process_zero and saved and folder.is_dir():
            torch.save({"monitor": saved, "loss": self.loss.criterion.state_dict()}, folder / STATE)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._watch.detach()
        self._release()

    def _release(self) -> None:
        if self._handle is not None:
            self._handle.remove()


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
