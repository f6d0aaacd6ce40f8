"""Monitor: accumulates margins and weights on the device at every step and synchronises once per epoch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from curriculoss._autograd import to_float64
from curriculoss._checks import check_num_classes, check_target, type_and_shape
from curriculoss.errors import InvalidValueError
from curriculoss.losses.base import Loss
from curriculoss.losses.criterion import Criterion
from curriculoss.losses.robust import RobustLoss
from curriculoss.margin import soft_margin
from curriculoss.monitor.record import GROUPS, Epoch, Histogram, Samples, Sums
from curriculoss.monitor.table import SampleTable
from curriculoss.monitor.verdict import Judge

BUFFERED_SAMPLES = 2**15  # kept as they come, before sums are made of them
INITIAL_MARGINS = 2**10  # of the first batch, kept for a verdict on the loss
UNKNOWN = -1  # no clean target, or no prediction


class Monitor:
    """Follows margins and weights in any training loop.

    In a process group of torch.distributed, every process must call `end_epoch`. Each then gets the result for the
    union of their batches, also from `samples` and `state_dict`.

    Args:
        loss: The criterion (a `RobustLoss` or an `AutoLoss`) or a plain loss. A criterion brings its normalisation and
            its class weights (but not what its "mean" divides by), and may be given another loss between steps.
        num_classes: The number of classes K.
        num_samples: The size of the training set, if `samples()` is wanted; `update` then needs the index of each
            sample.
        device: Where to accumulate. Tensors given to `update` are on this device or on the CPU.
        normalize: Whether weights are normalised, if `loss` is a plain loss.

    Example:
        >>> import torch
        >>> from curriculoss import MAE, Monitor, RobustLoss
        >>> criterion = RobustLoss(MAE())
        >>> monitor = Monitor(criterion, num_classes=100)
        >>> network = torch.nn.Linear(8, 100)
        >>> inputs, target = torch.randn(64, 8), torch.randint(100, (64,))
        >>> logits = network(inputs)
        >>> loss, margin = criterion.loss_and_margin(logits, target)
        >>> loss.backward()
        >>> monitor.update(logits=logits, margin=margin, target=target, learning_rate=0.1)
        >>> monitor.end_epoch().samples
        64
    """

    def __init__(
        self, loss: Loss | Criterion, *, num_classes: int, num_samples: int | None = None,
        device: torch.device | str = "cpu", normalize: bool = True,
    ) -> None:  # fmt: skip
        check_num_classes(num_classes)
        if num_samples is not None and num_samples < 1:
            raise InvalidValueError(f"Monitor expects num_samples >= 1, got num_samples={num_samples}")
        self.criterion = loss if isinstance(loss, Criterion) else RobustLoss(loss, normalize=normalize)
        self.num_classes = num_classes
        self.device = torch.empty(0, device=device).device  # "cuda" is "cuda:0" from now on
        self._weighing = self.criterion.curriculum, self.criterion.scale  # which may change between steps
        self._table = None if num_samples is None else SampleTable(num_samples, self.device)
        integers, floats = ("target", "clean", "predicted", "index"), ("margin", "weight")
        self._columns = {name: self._zeros(BUFFERED_SAMPLES, dtype=torch.float32) for name in floats}
        self._columns |= {name: self._zeros(BUFFERED_SAMPLES) for name in integers}
        self._columns["learning_rate"] = to_float64(self._zeros(BUFFERED_SAMPLES))
        self._filled = 0  # samples in the columns
        self._sums = to_float64(self._zeros(len(GROUPS), len(Sums._fields)))  # of the epoch under way
        self._so_far = self._sums.clone()  # of the finished ones
        self._counts = self._zeros(len(GROUPS), Histogram.BINS + 1)
        self._initial = self._zeros(INITIAL_MARGINS, dtype=torch.float32).fill_(math.nan)
        self._started = False
        self._updated = False  # since the last epoch ended
        self._epochs = 0
        self._judge = Judge()

    def _zeros(self, *size: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self.device)

    @torch.no_grad()
    def update(
        self, *, target: Tensor, learning_rate: float | Tensor, logits: Tensor | None = None,
        margin: Tensor | None = None, index: Tensor | None = None, clean_target: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Record a batch, before or after the optimiser's step. Never waits for the device.

        Args:
            target: The given labels. Ignored ones are not counted.
            learning_rate: That of the step.
            logits: What the network returned; losses with a second term need them, and so does the accuracy.
            margin: The margins of the targets, as `criterion.loss_and_margin` returns them; computed from the logits if
                not given.
            index: The position of each sample in the data; needed if the monitor was given `num_samples`.
            clean_target: The true labels where they are known; negative ones are not.
        """
        self._check(target, logits, margin, index, clean_target)
        if not isinstance(learning_rate, Tensor) and not 0 <= learning_rate < math.inf:
            raise InvalidValueError(f"Monitor expects a finite learning_rate >= 0, got learning_rate={learning_rate}")
        if self._weighing != (now := (self.criterion.curriculum, self.criterion.scale)):
            self._fold()
            self._weighing = now
        ignored = target == self.criterion.ignore_index
        label = target.masked_fill(ignored, 0)
        if margin is None:
            assert logits is not None
            margin = soft_margin(logits, label)
        columns: dict[str, Tensor | float] = {"target": target, "learning_rate": learning_rate, "margin": margin}
        columns["clean"] = UNKNOWN if clean_target is None else clean_target
        columns["predicted"] = UNKNOWN if logits is None else logits.argmax(1)
        if self.criterion.curriculum is None:
            columns["weight"] = self.criterion.weight(margin, logits, label)
        if self._table is not None:
            assert index is not None
            columns["index"] = index
        if not self._started:
            self._started = True
            start = margin.masked_fill(ignored, math.nan).flatten()[:INITIAL_MARGINS]
            self._initial[: len(start)] = start
        self._updated = True
        self._append(target.numel(), columns)

    def _check(self, target: Tensor, logits: Tensor | None, margin: Tensor | None, *others: Tensor | None) -> None:
        """Check shapes, dtypes and devices; to check values would mean waiting for the device."""
        check_target(target, "Monitor")
        if logits is None and margin is None:
            raise InvalidValueError("Monitor expects logits (or margins, for a curriculum), got neither")
        expected = (*target.shape[:1], self.num_classes, *target.shape[1:])
        floating = isinstance(logits, Tensor) and logits.is_floating_point()
        if logits is not None and (not floating or logits.shape != expected):
            raise InvalidValueError(f"Monitor expects floating-point logits {expected}, got {type_and_shape(logits)}")
        if self._table is not None and others[0] is None:
            raise InvalidValueError("Monitor expects the index of each sample, as it was given num_samples, got none")
        for tensor in (margin, *others):
            if tensor is not None and (not isinstance(tensor, Tensor) or tensor.shape != target.shape):
                raise InvalidValueError(
                    "Monitor expects margin, index and clean_target in the shape of the target, "
                    f"{tuple(target.shape)}, got {type_and_shape(tensor)}"
                )
        for tensor in (target, logits, margin, *others):
            if tensor is not None and tensor.device != self.device and tensor.device.type != "cpu":
                where = f"{self.device}, got one on {tensor.device}"
                raise InvalidValueError(f"Monitor expects tensors on its device {where}")

    def _append(self, size: int, columns: dict[str, Tensor | float]) -> None:
        flat = {name: value.flatten() if isinstance(value, Tensor) else value for name, value in columns.items()}
        start = 0
        while start < size:
            if self._filled == BUFFERED_SAMPLES:
                self._fold()
            count = min(size - start, BUFFERED_SAMPLES - self._filled)
            for name, value in flat.items():
                part = value[start : start + count] if isinstance(value, Tensor) and len(value) == size else value
                self._columns[name][self._filled : self._filled + count] = part
            self._filled += count
            start += count

    @torch.no_grad()
    def _fold(self) -> None:
        """Add the buffered samples to the sums."""
        if not self._filled:
            return
        kept = {name: column[: self._filled] for name, column in self._columns.items()}
        self._filled = 0
        counted = kept["target"] != self.criterion.ignore_index
        margin = kept["margin"].where(counted, 0.0)  # padding may be NaN
        if self._table is not None:
            self._table.add(kept["index"], margin, counted)

        weight = self._weight(margin, kept).where(counted, 0.0)
        rate = kept["learning_rate"]
        correct = kept["predicted"] == kept["target"]
        columns = (counted, margin, rate, rate * weight, kept["predicted"] != UNKNOWN, correct)
        right, known = kept["clean"] == kept["target"], kept["clean"] >= 0
        groups = (counted, counted & known & right, counted & known & ~right)
        values = torch.stack([to_float64(x) for x in columns])
        places = Histogram.bin_of(margin)
        for sums, counts, group in zip(self._sums, self._counts, groups, strict=True):
            sums += values.where(group, 0.0).sum(1)  # no product: infinite margins of other groups times 0 are NaN
            counts.index_add_(0, places, group.long())

    def _weight(self, margin: Tensor, kept: dict[str, Tensor]) -> Tensor:
        curriculum, scale = self._weighing
        weight = to_float64(kept["weight"]) if curriculum is None else curriculum.weight(to_float64(margin)) * scale
        if (factor := self.criterion.class_weight) is not None:
            # An ignored target is not a class; its weight is not counted.
            weight = weight * factor.to(self.device)[kept["target"].clamp(0, self.num_classes - 1)]
        return weight

    @torch.no_grad()
    def end_epoch(self) -> Epoch:
        """The epoch that ends here, in numbers. Waits for the device, and for the other processes if there are any.

        Raises:
            InvalidValueError: In every process, if none of them had an update.
        """
        together = in_process_group()
        updated = self._zeros(1) + self._updated
        if together:
            dist.all_reduce(updated)
        if not updated:
            raise InvalidValueError("Monitor expects at least one update before end_epoch, got none")
        self._fold()
        initial = [self._initial]
        if together:
            for shared in (self._sums, self._counts, *(() if self._table is None else (self._table.now,))):
                dist.all_reduce(shared)
            if not self._epochs:
                initial = [torch.empty_like(self._initial) for _ in range(dist.get_world_size())]
                dist.all_gather(initial, self._initial)
        self._updated = False
        self._epochs += 1
        self._so_far += self._sums
        if self._table is not None:
            self._table.end_epoch(self._epochs)

        now, so_far = torch.stack((self._sums, self._so_far)).cpu()
        histogram = Histogram(*self._counts[:, : Histogram.BINS].cpu().clone())
        epoch = Epoch.of(self._epochs, now, so_far, histogram)
        self._sums.zero_()
        self._counts.zero_()
        first = torch.cat(initial).cpu() if self._epochs == 1 else None
        return dataclasses.replace(epoch, verdicts=self._judge.verdicts(epoch, self.criterion.curriculum, first))

    def samples(self) -> Samples:
        """The margins of each sample over the finished epochs; needs `num_samples`."""
        if self._table is None:
            raise InvalidValueError("Monitor follows single samples only if it is given num_samples")
        return self._table.samples()

    def state_dict(self) -> dict[str, Any]:
        """The state for `load_state_dict`. Its tensors are the monitor's own: copy them before the next update."""
        columns = {name: column[: self._filled].clone() for name, column in self._columns.items()}
        numbers = {"epochs": self._epochs, "started": self._started, **self._judge.state_dict()}
        return {**numbers, "columns": columns, **self._tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the monitor of that state was, to the last bit."""
        tensors = self._tensors()
        expected = self.state_dict().keys()
        if state.keys() != expected or state["columns"].keys() != self._columns.keys():
            raise InvalidValueError(f"Monitor expects a state with {sorted(expected)}, got {sorted(state)}")
        for name, tensor in tensors.items():
            if state[name].shape != tensor.shape:
                raise InvalidValueError(
                    f"Monitor expects a state with {name} of shape {tuple(tensor.shape)}, "
                    f"got {tuple(state[name].shape)}: was it made with another num_samples?"
                )
        for name, tensor in tensors.items():
            tensor.copy_(state[name])
        self._filled = len(state["columns"]["target"])
        for name, column in self._columns.items():
            column[: self._filled] = state["columns"][name]
        self._epochs, self._started = state["epochs"], state["started"]
        self._updated = bool(self._filled or self._sums.any())
        self._judge.load_state_dict(state)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"sums": self._sums, "so_far": self._so_far, "counts": self._counts, "initial": self._initial}
        return tensors if self._table is None else {**tensors, "table": self._table.rows}


def in_process_group() -> bool:
    return dist.is_available() and dist.is_initialized()
