"""The monitor: fed at every step, without waiting for the device; it tells once an epoch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from curriculoss.auto import AutoLoss
from curriculoss.curricula import Curriculum
from curriculoss.loss import RobustLoss
from curriculoss.margin import check_num_classes, check_target, kind_and_shape, soft_margin, wide
from curriculoss.monitor.record import Epoch, Groups, Histogram, Samples, Sums
from curriculoss.monitor.table import Table
from curriculoss.monitor.verdict import Judge
from curriculoss.monitor.weight import sample_weight
from curriculoss.regularized import Regularized

CHUNK = 2**15  # samples kept as they come, before sums are made of them
INITIAL = 2**10  # margins of the first batch that are kept for a verdict on the loss
UNKNOWN = -1  # no clean target or no prediction


class Monitor:
    """Follows margins and weights in any training loop:

    >>> import torch
    >>> from curriculoss import MAE, RobustLoss
    >>> from curriculoss.monitor import Monitor
    >>> loss_fn = RobustLoss(MAE())
    >>> monitor = Monitor(loss_fn, num_classes=100)
    >>> model = torch.nn.Linear(8, 100)
    >>> x, target = torch.randn(64, 8), torch.randint(100, (64,))
    >>> logits = model(x)
    >>> loss_fn(logits, target).backward()
    >>> monitor.update(logits=logits, target=target, learning_rate=0.1)  # before or after the optimiser's step
    >>> epoch = monitor.end_epoch()
    >>> epoch.samples
    64

    `update` also takes margins in place of logits, the index of each sample in the data (if `num_samples` is given,
    for `samples()`), and its clean target where that is known; a negative one is not. It never waits for the device.
    Ignored targets are not counted. Tensors are on `device` or on the CPU.

    Weights are those that the loss trains with. A `RobustLoss` brings its own normalisation and its class weights (but
    not what its "mean" divides by), and may be given another loss between steps. Any other loss is normalised like that
    if `normalize`. Losses with a second term need logits; see monitor/weight.py for what their weights are.

    In a process group of torch.distributed, `end_epoch` is to be called by every process, and gives each the result of
    the union of their batches; so do `samples` and `state_dict` after it.
    """

    def __init__(
        self,
        loss: Curriculum | Regularized | RobustLoss,
        *,
        num_classes: int,
        num_samples: int | None = None,
        device: torch.device | str = "cpu",
        normalize: bool = True,
    ) -> None:
        check_num_classes(num_classes)
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"Monitor expects num_samples >= 1, got num_samples={num_samples}")
        self.loss_fn = loss if isinstance(loss, RobustLoss) else RobustLoss(loss, normalize=normalize)
        self.num_classes = num_classes
        self.device = torch.empty(0, device=device).device  # "cuda" is "cuda:0" from now on
        self._loss, self._scale = self.loss_fn.loss, self.loss_fn.scale
        self._table = None if num_samples is None else Table(num_samples, self.device)
        self._columns = {
            "margin": self._zeros(CHUNK, dtype=torch.float32),
            "weight": self._zeros(CHUNK, dtype=torch.float32),  # of losses that are no function of the margin
            "target": self._zeros(CHUNK),
            "clean": self._zeros(CHUNK),
            "predicted": self._zeros(CHUNK),
            "index": self._zeros(CHUNK),
            "learning_rate": wide(self._zeros(CHUNK)),
        }
        self._filled = 0
        self._sums = wide(self._zeros(len(Groups._fields), len(Sums._fields)))  # of the epoch under way
        self._so_far = self._sums.clone()  # of the finished ones
        self._counts = self._zeros(len(Groups._fields), Histogram.BINS + 1)
        self._initial = self._zeros(INITIAL, dtype=torch.float32).fill_(math.nan)
        self._started = False
        self._updated = False  # since the last epoch ended
        self._epochs = 0
        self._judge = Judge()

    def _zeros(self, *size: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=self.device)

    @torch.no_grad()
    def update(
        self,
        *,
        target: Tensor,
        learning_rate: float | Tensor,
        logits: Tensor | None = None,
        margin: Tensor | None = None,
        index: Tensor | None = None,
        clean_target: Tensor | None = None,
    ) -> None:
        """A batch, as the model saw it. Give logits or, if that is all there is, the margins of the given labels."""
        self._check(target, logits, margin, index, clean_target)
        if not isinstance(learning_rate, Tensor) and not 0 <= learning_rate < math.inf:
            raise ValueError(f"Monitor expects a finite learning_rate >= 0, got learning_rate={learning_rate}")
        if self._loss is not self.loss_fn.loss or self._scale != self.loss_fn.scale:
            self._fold()
            self._loss, self._scale = self.loss_fn.loss, self.loss_fn.scale
        ignored = target == self.loss_fn.ignore_index
        label = target.masked_fill(ignored, 0)
        columns: dict[str, Tensor | float] = {"target": target, "learning_rate": learning_rate}
        columns["clean"] = UNKNOWN if clean_target is None else clean_target
        columns["predicted"] = UNKNOWN if logits is None else logits.argmax(1)
        if margin is None:
            assert logits is not None
            margin = soft_margin(logits, label)
        if isinstance(self.loss_fn, AutoLoss):
            columns["weight"] = self.loss_fn.bell.weight(margin)
        elif not isinstance(self._loss, Curriculum):
            assert logits is not None
            columns["weight"] = sample_weight(self._loss, logits, label, margin)
        if self._table is not None:
            assert index is not None
            columns["index"] = index
        columns["margin"] = margin
        if not self._started:
            self._started = True
            start = margin.masked_fill(ignored, math.nan).flatten()[:INITIAL]
            self._initial[: len(start)] = start
        self._updated = True
        self._append(target.numel(), columns)

    def _check(self, target: Tensor, logits: Tensor | None, margin: Tensor | None, *others: Tensor | None) -> None:
        """Everything that shapes, dtypes and devices tell; the rest would mean waiting for the device."""
        check_target(target, "Monitor")
        if logits is None and (margin is None or not isinstance(self.loss_fn.loss, Curriculum)):
            raise ValueError(f"Monitor expects logits (or margins, for a curriculum), got none for {self.loss_fn.loss}")
        if logits is not None:
            expected = (*target.shape[:1], self.num_classes, *target.shape[1:])
            if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.shape != expected:
                raise ValueError(f"Monitor expects floating-point logits {expected}, got {kind_and_shape(logits)}")
        if self._table is not None and others[0] is None:
            raise ValueError("Monitor expects the index of each sample, as it was given num_samples, got none")
        for tensor in (margin, *others):
            if tensor is not None and (not isinstance(tensor, Tensor) or tensor.shape != target.shape):
                raise ValueError(
                    "Monitor expects margin, index and clean_target in the shape of the target, "
                    f"{tuple(target.shape)}, got {kind_and_shape(tensor)}"
                )
        for tensor in (target, logits, margin, *others):
            if tensor is not None and tensor.device != self.device and tensor.device.type != "cpu":
                raise ValueError(f"Monitor expects tensors on its device {self.device}, got one on {tensor.device}")

    def _append(self, size: int, columns: dict[str, Tensor | float]) -> None:
        flat = {name: value.flatten() if isinstance(value, Tensor) else value for name, value in columns.items()}
        start = 0
        while start < size:
            if self._filled == CHUNK:
                self._fold()
            count = min(size - start, CHUNK - self._filled)
            for name, value in flat.items():
                part = value[start : start + count] if isinstance(value, Tensor) and len(value) == size else value
                self._columns[name][self._filled : self._filled + count] = part
            self._filled += count
            start += count

    @torch.no_grad()
    def _fold(self) -> None:
        """Make sums of the samples that have come."""
        if not self._filled:
            return
        kept = {name: column[: self._filled] for name, column in self._columns.items()}
        self._filled = 0
        counted = kept["target"] != self.loss_fn.ignore_index
        margin = kept["margin"].where(counted, 0.0)  # padding may be NaN
        if self._table is not None:
            self._table.add(kept["index"], margin, counted)

        weight = self._weight(margin, kept).where(counted, 0.0)
        rate = kept["learning_rate"]
        correct = kept["predicted"] == kept["target"]
        columns = (counted, margin, rate, rate * weight, kept["predicted"] != UNKNOWN, correct)
        right, known = kept["clean"] == kept["target"], kept["clean"] >= 0
        groups = (counted, counted & known & right, counted & known & ~right)
        values = torch.stack([wide(x) for x in columns])
        places = Histogram.bin_of(margin)
        for sums, counts, group in zip(self._sums, self._counts, groups, strict=True):
            sums += values.where(group, 0.0).sum(1)  # no product: infinite margins of other groups times 0 are NaN
            counts.index_add_(0, places, group.long())

    def _weight(self, margin: Tensor, kept: dict[str, Tensor]) -> Tensor:
        if isinstance(self._loss, Curriculum) and not isinstance(self.loss_fn, AutoLoss):
            weight = self._loss.weight(wide(margin))
        else:
            weight = wide(kept["weight"])
        if (factor := self.loss_fn.class_weight) is not None:
            # An ignored target is no class; its weight is not counted.
            weight = weight * factor.to(self.device)[kept["target"].clamp(0, self.num_classes - 1)]
        return weight * self._scale

    @torch.no_grad()
    def end_epoch(self) -> Epoch:
        """The epoch that ends here, in numbers. Waits for the device, and for the other processes if there are any.

        Raises ValueError, in every process, if none of them had an update.
        """
        together = dist.is_available() and dist.is_initialized()
        updated = self._zeros(1) + self._updated
        if together:
            dist.all_reduce(updated)
        if not updated:
            raise ValueError("Monitor expects at least one update before end_epoch, got none")
        self._fold()
        initial = self._initial[None]
        if together:
            for shared in (self._sums, self._counts, *(() if self._table is None else (self._table.now,))):
                dist.all_reduce(shared)
            if not self._epochs:
                gathered = [torch.empty_like(self._initial) for _ in range(dist.get_world_size())]
                dist.all_gather(gathered, self._initial)
                initial = torch.stack(gathered)
        self._updated = False
        self._epochs += 1
        self._so_far += self._sums
        if self._table is not None:
            self._table.end_epoch(self._epochs)

        now, so_far = torch.stack((self._sums, self._so_far)).cpu()
        histogram = Histogram(*self._counts[:, : Histogram.BINS].cpu().clone())
        epoch = Epoch.of(self._epochs, Groups.of(now), Groups.of(so_far), histogram)
        self._sums.zero_()
        self._counts.zero_()
        first = initial.flatten().cpu() if self._epochs == 1 else None
        return dataclasses.replace(epoch, verdicts=self._judge.verdicts(epoch, self.loss_fn.curriculum, first))

    def samples(self) -> Samples:
        """The margins of each sample over the finished epochs."""
        if self._table is None:
            raise ValueError("Monitor follows single samples only if it is given num_samples")
        return self._table.samples()

    def state_dict(self) -> dict[str, Any]:
        """Tensors (the monitor's own: save or copy them before the next update) and numbers, for `load_state_dict`."""
        state: dict[str, Any] = {
            "epochs": self._epochs,
            "started": self._started,
            "said": dict(self._judge.said),
            "lowest": self._judge.lowest,
            "columns": {name: column[: self._filled].clone() for name, column in self._columns.items()},
        }
        return state | self._tensors()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the monitor of that state was, to the last bit."""
        tensors = self._tensors()
        expected = {"epochs", "started", "said", "lowest", "columns", *tensors}
        if set(state) != expected or state["columns"].keys() != self._columns.keys():
            raise ValueError(f"Monitor expects a state with {sorted(expected)}, got {sorted(state)}")
        for name, tensor in tensors.items():
            if state[name].shape != tensor.shape:
                raise ValueError(
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
        self._judge.said, self._judge.lowest = dict(state["said"]), state["lowest"]

    def _tensors(self) -> dict[str, Tensor]:
        table = {} if self._table is None else {"table": self._table.rows}
        return {
            "sums": self._sums,
            "so_far": self._so_far,
            "counts": self._counts,
            "initial": self._initial,
        } | table
