"""What callbacks share: a monitor that hears every call of a loss, so that nobody has to feed it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from curriculoss.loss import RobustLoss
from curriculoss.monitor import Epoch, Monitor

LOGGED = ("mean_weight", "effective_learning_rate", "snr")


def row(epoch: Epoch) -> dict[str, float]:
    """What goes to a logger: what is defined of these."""
    values = {name: getattr(epoch, name) for name in LOGGED}
    return {name: value for name, value in values.items() if value is not None}


class Watch:
    """Between `listen` and `pause`, what the loss is called with goes to a monitor, with the optimizer's learning rate
    of that moment, which is that of the next step also where gradients are accumulated.

    The monitor is made at the first call, which tells the number of classes and the device.
    """

    def __init__(self, num_samples: int | None) -> None:
        self.num_samples = num_samples
        self.monitor: Monitor | None = None
        self._handle: RemovableHandle | None = None
        self._optimizer: Optimizer | None = None  # while it listens
        self._sample: Mapping[str, Tensor] = {}
        self._listened: int | None = None  # in this epoch
        self._heard: int | None = None  # from this one, which has not ended in the monitor
        self._saved: dict[str, Any] = {}  # a state, to be loaded at the first call

    def attach(self, loss: RobustLoss) -> None:
        self.detach()  # a run that was broken off may have left it attached, and listening
        self.pause()
        self._handle = loss.register_forward_hook(self._hear, with_kwargs=True)

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def listen(self, epoch: int, optimizer: Optimizer, **sample: Tensor) -> None:
        """`sample` has the index and the clean target of each sample, as far as they are known."""
        self._listened, self._optimizer, self._sample = epoch, optimizer, sample

    def pause(self) -> None:
        self._optimizer, self._sample = None, {}

    def _hear(self, loss: RobustLoss, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        logits, target = (*args, *(kwargs[name] for name in ("logits", "target")[len(args) :]))
        if self._optimizer is None or logits.dim() == 1:  # a single sample calls again, as a batch
            return
        if self.monitor is None:
            self.monitor = Monitor(
                loss, num_classes=logits.shape[1], num_samples=self.num_samples, device=logits.device
            )
            if self._saved:
                self.monitor.load_state_dict(self._saved["monitor"])
        if self._heard not in (None, self._listened):  # resumed after an epoch's last step, but before its end
            self.monitor.end_epoch()
        sample = {name: _along(value, target) for name, value in self._sample.items()}
        rate = self._optimizer.param_groups[0]["lr"]
        self.monitor.update(logits=logits.detach(), target=target, learning_rate=rate, **sample)
        self._heard = self._listened

    def end_epoch(self) -> Epoch | None:
        """None if there was no step since the last one ended."""
        if self._listened is None:
            return None
        if self.monitor is None or self._heard is None:
            raise ValueError("MonitorCallback heard no call of its loss: is it the RobustLoss that training calls?")
        epoch = self.monitor.end_epoch()
        self._listened = self._heard = None
        if _together():
            self._saved = self._now(self.monitor)
        return epoch

    def state_dict(self) -> dict[str, Any]:
        """Of this moment; in a process group that of the last epoch's end, the only one that all processes share."""
        return self._saved if self.monitor is None or _together() else self._now(self.monitor)

    def _now(self, monitor: Monitor) -> dict[str, Any]:
        return {"epoch": self._heard, "monitor": deepcopy(monitor.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved, self._heard, self._listened, self.monitor = state, state["epoch"], None, None


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()


def _along(value: Tensor, target: Tensor) -> Tensor:
    """One number a sample, for all the targets that it has: the pixels of a picture, the tokens of a text."""
    times, rest = divmod(target.numel(), max(1, value.numel()))
    # What does not fit is the monitor's to refuse.
    return value if rest else value.flatten().repeat_interleave(times).view_as(target)
