"""What callbacks of other libraries share: a monitor that follows every call of a loss."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.losses.criterion import Criterion
from curriculoss.monitor import Epoch, Monitor
from curriculoss.monitor.stream import in_process_group

LOGGED = ("mean_weight", "effective_learning_rate", "snr")
logger = logging.getLogger(__name__)


class Watch:
    """Between `listen` and `pause`, passes each call of the loss to a monitor, with the optimiser's learning rate.

    That is the rate of the next step, also where gradients are accumulated.

    Args:
        num_samples: The size of the training set, if the monitor is to follow single samples.
        places: Where a batch has the index and the clean target of each sample, if it has them.

    Attributes:
        monitor: The monitor, made at the first call, from which it takes the number of classes and the device.
        epoch: The last epoch that has ended.
    """

    def __init__(self, num_samples: int | None, **places: Any) -> None:
        self._name, self.num_samples = type(self).__name__, num_samples
        self.monitor: Monitor | None = None
        self.epoch: Epoch | None = None
        self._places = {name: place for name, place in places.items() if place is not None}
        self._handles: list[RemovableHandle] = []
        self._optimizer: Optimizer | None = None  # while it listens
        self._sample: dict[str, Tensor] = {}
        self._listened: int | None = None  # the epoch of the last step
        self._heard: int | None = None  # the epoch of the last call, until the monitor has ended it
        self._saved: dict[str, Any] = {}  # a state, to be loaded at the first call

    def attach(self, loss: Any) -> None:
        if not isinstance(loss, Criterion):
            raise InvalidTypeError(f"{self._name} expects a criterion such as RobustLoss(MAE()), got {loss!r:.100}")
        self.detach()  # an interrupted run may have left it attached, and listening
        self.pause()
        self._handles = [loss.register_forward_hook(self._hear, with_kwargs=True)]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()

    def listen(self, epoch: int, optimizer: Optimizer, **sample: Tensor) -> None:
        """Begin a step; `sample` has the index and the clean target of each sample, if they are known."""
        self._listened, self._optimizer, self._sample = epoch, optimizer, sample

    def pause(self) -> None:
        self._optimizer, self._sample = None, {}

    def _hear(self, loss: Criterion, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        logits, target = (*args, *(kwargs[name] for name in ("logits", "target")[len(args) :]))
        if self._optimizer is None:
            return
        if logits.dim() == 1:
            logits, target = logits.unsqueeze(0), target.unsqueeze(0)
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

    def end_epoch(self, warn: bool) -> dict[str, float] | None:
        """End the epoch, log its verdicts if `warn`, and return the numbers to log; None if it had no step."""
        if self._listened is None:
            return None
        if self.monitor is None or self._heard is None:
            raise InvalidValueError(f"{self._name} heard no call of its loss: does training call this RobustLoss?")
        self.epoch = self.monitor.end_epoch()
        self._listened = self._heard = None
        if in_process_group():
            self._saved = self._now(self.monitor)
        for sentence in self.epoch.verdicts if warn else ():
            logger.warning("%s", sentence)
        values = {name: getattr(self.epoch, name) for name in LOGGED}
        return {name: value for name, value in values.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """The current state; in a process group, the one at the end of the last epoch, which all processes share."""
        return self._saved if self.monitor is None or in_process_group() else self._now(self.monitor)

    def _now(self, monitor: Monitor) -> dict[str, Any]:
        return {"epoch": self._heard, "monitor": deepcopy(monitor.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from that state; {}, as saved before the first step, starts anew."""
        self._saved, self._heard, self._listened, self.monitor = state, state.get("epoch"), None, None


def _along(value: Tensor, target: Tensor) -> Tensor:
    """One number per sample, repeated for all of its targets: the pixels of an image, the tokens of a text."""
    times, rest = divmod(target.numel(), max(1, value.numel()))
    # The monitor refuses what does not fit.
    return value if rest else value.flatten().repeat_interleave(times).view_as(target)
