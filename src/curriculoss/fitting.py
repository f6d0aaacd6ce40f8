"""`fit`, the training loop in memory, and `Callback`, the interface of everything that watches it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

from curriculoss._autograd import to_float64
from curriculoss._checks import check_given, check_known, check_logits, checked_integer, is_finite, type_and_shape
from curriculoss.errors import DivergedError, InvalidTypeError, InvalidValueError
from curriculoss.monitor import Epoch, Monitor

LossFunction = Callable[..., Tensor]  # (logits, target) -> scalar
Schedule = Callable[[float], float]  # epochs done -> factor of the learning rate
OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True, eq=False)
class Step:
    """One step of the optimiser, as callbacks see it. Tensors are detached and on the device of the network."""

    logits: Tensor
    target: Tensor
    index: Tensor | None  # the position of each sample in the data, if the batches have it
    loss: Tensor
    margin: Tensor | None  # the soft margin of each target, if the loss has computed it
    learning_rate: float


@dataclass(frozen=True)
class EpochResult:
    """One epoch of a fit."""

    epoch: int  # the first is 1
    learning_rate: float  # at its beginning
    train_loss: float  # mean over the samples, as they were trained on
    test_accuracy: float | None  # in percent; None if the epoch was not tested
    train_seconds: float
    test_seconds: float


class Callback:
    """Base class of everything that watches a fit; every method may be overridden, none has to be.

    They are called in the order given and in every process, not for a finished run; `state_dict` is for resuming.

    Example:
        >>> import torch
        >>> from curriculoss import CE, Callback, fit
        >>> class Printing(Callback):
        ...     def on_epoch_end(self, result):
        ...         print("epoch", result.epoch)
        >>> batches = [(torch.ones(8, 4), torch.arange(8) % 2)]
        >>> _ = fit(torch.nn.Linear(4, 2), CE(), batches, epochs=2, callbacks=[Printing()])
        epoch 1
        epoch 2
    """

    def on_fit_begin(self, loop: Loop) -> None:
        """Called once before the first epoch; `loop` stays the same object throughout."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called before each epoch; the first is 1."""

    def on_step(self, step: Step) -> None:
        """Called after each step of the optimiser. Reading a number from a tensor here waits for the device."""

    def should_stop(self, history: Sequence[EpochResult]) -> bool:
        """Whether to stop now: asked before each epoch, and after its last step (to test the last epoch)."""
        return False

    def on_epoch_end(self, result: EpochResult) -> None:
        """Called after each epoch and its test."""

    def on_fit_end(self) -> None:
        """Called once after the last epoch."""

    def on_note(self, text: str) -> None:
        """Receives remarks meant for people: see `Loop.note`."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs: tensors, numbers, strings, and lists and dictionaries of these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called when a fit is resumed, unless the callback was not there before."""


class EpochBatches(Protocol):
    """Batches in an order that depends on the epoch."""

    def epoch(self, number: int, /) -> Iterable[Sequence[Tensor]]:
        """The batches of an epoch, counted from 0."""


class Backend(Protocol):
    """Device, precision and processes to train with. `lightning_fabric.Fabric` is one."""

    @property
    def device(self) -> torch.device: ...
    def setup(self, network: nn.Module, optimizer: Optimizer, /) -> Any:
        """The network and the optimiser to train with, which share their state with the given ones."""

    def backward(self, loss: Tensor, /) -> None: ...
    def all_reduce(self, data: Tensor, /, *, reduce_op: str) -> Any:
        """The sum (or mean) of a tensor over all processes."""


@dataclass(frozen=True)
class SingleDevice:
    """Plain torch in one process, the default backend."""

    device: torch.device

    def setup(self, network: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        return network, optimizer

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def all_reduce(self, data: Tensor, *, reduce_op: str) -> Tensor:
        return data


@dataclass(eq=False)
class Loop:
    """A fit under way: what it works on, and what it has done."""

    network: nn.Module
    loss: LossFunction
    optimizer: Optimizer
    epochs: int
    steps: int | None  # per epoch, if the batches have a length
    callbacks: tuple[Callback, ...]
    history: list[EpochResult] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether no epoch is left, or a callback asks to stop."""
        return len(self.history) >= self.epochs or any(each.should_stop(self.history) for each in self.callbacks)

    def tell(self, event: str, *given: Any) -> None:
        """Call the method of that name of every callback, in their order."""
        for each in self.callbacks:
            getattr(each, event)(*given)

    def note(self, text: str) -> None:
        """Pass a remark to all callbacks; one of them may show it."""
        self.tell("on_note", text)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later fit with the same arguments needs to go on from here, to the bit."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        callbacks = {name: each.state_dict() for name, each in self._named().items()}
        return {**parts, "history": [asdict(each) for each in self.history], "callbacks": callbacks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, in a callback's `on_fit_begin`."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.history[:] = [EpochResult(**each) for each in state["history"]]
        for name, each in self._named().items():
            if name in state["callbacks"]:
                each.load_state_dict(state["callbacks"][name])

    def _parts(self) -> dict[str, Any]:
        followed = {"criterion": self.loss} if isinstance(self.loss, nn.Module) else {}
        return {"network": self.network, "optimizer": self.optimizer, **followed}

    def _named(self) -> dict[str, Callback]:
        """`MonitorCallback 0`, and `MonitorCallback 1` if there is a second one."""
        names = [type(each).__name__ for each in self.callbacks]
        return {f"{names[i]} {names[:i].count(names[i])}": each for i, each in enumerate(self.callbacks)}


def fit(
    network: nn.Module, loss: LossFunction, batches: Iterable[Sequence[Tensor]] | EpochBatches, *, epochs: int,
    optimizer: str | Optimizer | Callable[[Iterator[nn.Parameter]], Optimizer] = "sgd",
    learning_rate: float = 0.1, momentum: float = 0.9, weight_decay: float = 0.0,
    schedule: str | Schedule | None = None, clip_norm: float | None = None,
    test_batches: Iterable[Sequence[Tensor]] | EpochBatches | None = None, test_every: int = 1,
    callbacks: Sequence[Callback] = (), seed: int | None = None, backend: Backend | None = None,
) -> list[EpochResult]:  # fmt: skip
    """Train a network in memory, and return what happened, one entry per epoch.

    Args:
        network: Maps a batch of inputs to logits (N, K). It is trained in place.
        loss: Maps (logits, target) to a scalar. Losses of this package also give callbacks their margins.
        batches: Anything that can be iterated once per epoch, such as a `DataLoader` or a list. Each batch is (inputs,
            target), (inputs, target, index) with the position of each sample in the data, or (inputs, target, index or
            None, sample_weight). Methods `set_epoch(number)` and then `epoch(number)`, from 0, are used if they exist.
        epochs: How often to go through the batches.
        optimizer: "sgd", "adamw", an optimiser of torch, or a function from parameters to one.
        learning_rate: Initial learning rate of "sgd" and "adamw".
        momentum: Momentum of "sgd".
        weight_decay: Weight decay of "sgd" and "adamw".
        schedule: "cosine", or a function from the number of epochs done (also parts of one, if the batches have a
            length) to a factor of the learning rate. None leaves the optimiser's learning rate alone.
        clip_norm: Clip the norm of the gradient to this.
        test_batches: Batches to compute the test accuracy on.
        test_every: Number of epochs from one test to the next. The last epoch is always tested.
        callbacks: What watches training, in the order of their calls.
        seed: Reseeds torch before each epoch, so that losses and networks that draw random numbers can be resumed.
        backend: Device, precision and processes; by default plain torch on the device of the network.

    Raises:
        DivergedError: The training loss is not finite.

    Example:
        >>> import torch
        >>> from curriculoss import MAE, RobustLoss, fit
        >>> _ = torch.manual_seed(0)
        >>> batches = [(x, (x[:, 0] > 0).long()) for x in torch.randn(8, 32, 4)]
        >>> history = fit(torch.nn.Linear(4, 2), RobustLoss(MAE()), batches, epochs=5, test_batches=batches)
        >>> [each.epoch for each in history], history[-1].test_accuracy > 90
        ([1, 2, 3, 4, 5], True)
    """
    listed = isinstance(callbacks, Sequence) and all(isinstance(each, Callback) for each in callbacks)
    check_given("fit", "a list of Callback objects as callbacks", callbacks, listed)
    epochs, test_every = (checked_integer("fit", *x) for x in (("epochs", epochs, 0), ("test_every", test_every, 1)))
    seed = None if seed is None else checked_integer("fit", "seed", seed, 0, 2**63 - 1)
    check_given("fit", "finite clip_norm > 0", clip_norm, clip_norm is None or (is_finite(clip_norm) and clip_norm > 0))
    check_given("fit", "schedule 'cosine' or a function", schedule, schedule in (None, "cosine") or callable(schedule))
    check_given("fit", "a loss such as MAE() or get('mae')", loss, callable(loss) and not isinstance(loss, type))
    parameters = [*network.parameters()] if isinstance(network, nn.Module) else []
    check_given("fit", "a module with parameters as network", network, bool(parameters))
    backend = SingleDevice(parameters[0].device) if backend is None else backend
    made = _make_optimizer(network, optimizer, learning_rate, momentum, weight_decay)
    rates = [group["lr"] for group in made.param_groups]
    factor = (lambda done: cosine(done, epochs)) if isinstance(schedule, str) else schedule
    model, made = backend.setup(network, made)
    made.zero_grad()  # gradients from before the fit do not count
    loss = loss.to(backend.device) if isinstance(loss, nn.Module) else loss
    loop = Loop(network, loss, made, epochs, len(batches) if isinstance(batches, Sized) else None, tuple(callbacks))
    loop.tell("on_fit_begin", loop)
    while not loop.done:
        number, start = len(loop.history), time.perf_counter()
        if seed is not None:
            torch.manual_seed((seed * 1_000_003 + number) % 2**63)
        loop.tell("on_epoch_begin", number + 1)
        model.train()
        total, count = to_float64(torch.zeros((), device=backend.device)), 0
        for position, (inputs, target, index, weight) in enumerate(epoch_batches(batches, number, backend.device)):
            if factor is not None:
                for group, rate in zip(made.param_groups, rates, strict=True):
                    group["lr"] = rate * factor(number + position / (loop.steps or math.inf))
            logits = model(inputs)
            value, margin = _loss_and_margin(loss, logits, target, weight)
            backend.backward(value)
            if clip_norm is not None:
                clip_grad_norm_(model.parameters(), clip_norm)
            made.step()
            made.zero_grad()
            step = Step(logits.detach(), target, index, value.detach(), margin, made.param_groups[0]["lr"])
            loop.tell("on_step", step)
            total, count = total + to_float64(step.loss) * len(target), count + len(target)
        mean = _mean("batches", total, count, backend)
        if not math.isfinite(mean):
            said = f"training diverged in epoch {number + 1} (loss {mean})"
            raise DivergedError(f"{said}; try a smaller learning rate than {rates[0]:g}", number + 1)
        rate = made.param_groups[0]["lr"] if factor is None else rates[0] * factor(number)
        tested = time.perf_counter()
        loop.history.append(EpochResult(number + 1, rate, mean, None, tested - start, 0.0))
        if test_batches is not None and (loop.done or (number + 1) % test_every == 0):
            accuracy, seconds = evaluate(model, test_batches, backend), time.perf_counter() - tested
            loop.history[-1] = replace(loop.history[-1], test_accuracy=accuracy, test_seconds=seconds)
        loop.tell("on_epoch_end", loop.history[-1])
    loop.tell("on_fit_end")
    return loop.history


def cosine(done: float, epochs: float, warmup: float = 0.0) -> float:
    """The factor of the learning rate after `done` epochs: a straight line up, then a cosine down to 0."""
    if done < warmup:
        return done / warmup
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / max(1e-9, epochs - warmup)))  # warmup may take all epochs


def epoch_batches(batches: Any, number: int, device: torch.device) -> Iterator[tuple[Any, ...]]:
    """The batches of an epoch, counted from 0, on the device: inputs, target, index or None, weight or None."""
    if hasattr(batches, "set_epoch"):
        batches.set_epoch(number)
    for batch in batches.epoch(number) if hasattr(batches, "epoch") else batches:
        if not isinstance(batch, Sequence) or not 2 <= len(batch) <= 4:
            got = len(batch) if isinstance(batch, Sequence) else type_and_shape(batch)
            raise InvalidValueError(f"fit expects batches of 2 to 4 parts, as (inputs, target), got {got}")
        try:
            given = [x if x is None else torch.as_tensor(x).to(device, non_blocking=True) for x in batch]
        except (TypeError, ValueError):  # of names, say
            raise InvalidTypeError(f"fit expects batches of numbers, got {[*map(type_and_shape, batch)]}") from None
        yield (*given, None, None)[:4]


@torch.no_grad()
def predictions(network: nn.Module, batches: Any, device: torch.device) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """The logits of each batch, and the batch, in eval mode."""
    network.eval()
    yield from ((network(batch[0]), batch) for batch in epoch_batches(batches, 0, device))


def evaluate(network: nn.Module, batches: Any, backend: Backend) -> float:
    """The accuracy in percent over the batches of all processes; leaves the network in eval mode."""
    right, count = torch.zeros((), dtype=torch.int64, device=backend.device), 0
    for logits, (_, target, *_) in predictions(network, batches, backend.device):
        soft = target.is_floating_point()  # probabilities: the most probable class counts
        check_logits(logits, target if soft else target.long(), "fit with test_batches", soft)
        right += (logits.argmax(1) == (target.argmax(1) if soft else target)).sum()
        count += logits[:, 0].numel()  # one per pixel where logits are (N, K, d1, ...)
    return _mean("test_batches", 100 * to_float64(right), count, backend)


def _loss_and_margin(loss: Any, logits: Tensor, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The loss, and the margins where the loss gives them."""
    extra = {} if weight is None else {"sample_weight": weight}
    call = getattr(loss, "loss_and_margin", lambda *given, **more: (loss(*given, **more), None))
    value, margin = call(logits, target, **extra)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise InvalidValueError(f"fit expects a loss that returns one number as a tensor, got {type_and_shape(value)}")
    return value.reshape(()), None if margin is None else margin.detach()


def _mean(batches: str, total: Tensor, count: int, backend: Backend) -> float:
    """A total divided by the number of samples, both of all processes."""
    value, number = backend.all_reduce(torch.stack([total, torch.full_like(total, count)]), reduce_op="sum").tolist()
    if number == 0:
        said = "give a list or a DataLoader, not a generator"
        raise InvalidValueError(f"fit expects {batches} with samples in every epoch, got none: {said}")
    return float(value / number)


def _make_optimizer(network: nn.Module, given: Any, rate: float, momentum: float, weight_decay: float) -> Optimizer:
    if isinstance(given, str):
        check_known("optimizer", given, OPTIMIZERS)
        for name, value in (("learning_rate", rate), ("momentum", momentum), ("weight_decay", weight_decay)):
            check_given("fit", f"a finite {name} >= 0", value, is_finite(value) and value >= 0)
    if given == "sgd":
        return SGD(network.parameters(), rate, momentum=momentum, weight_decay=weight_decay)
    if given == "adamw":
        return AdamW(network.parameters(), rate, weight_decay=weight_decay)
    made = given(network.parameters()) if callable(given) else given
    if not isinstance(made, Optimizer):
        raise InvalidTypeError(f"fit expects an optimizer of torch, its name or a function that makes it, got {made!r}")
    return made


class EarlyStopping(Callback):
    """Stops when the training loss has not improved for `patience` epochs; there may be no clean labels to go by."""

    def __init__(self, patience: int) -> None:
        self.patience = checked_integer("EarlyStopping", "patience", patience, 1)

    def should_stop(self, history: Sequence[EpochResult]) -> bool:
        losses = [each.train_loss for each in history]
        return len(losses) > self.patience and min(losses[-self.patience :]) >= min(losses[: -self.patience])


class MonitorCallback(Callback):
    """Feeds a `Monitor` at every step and keeps its record of each epoch.

    Args:
        monitor: The monitor to feed.
        clean_target: The true label of each sample, if known; needs batches with an index.

    Attributes:
        epochs: What the monitor said, one entry per epoch of this fit.
    """

    def __init__(self, monitor: Monitor, clean_target: Tensor | None = None) -> None:
        self.monitor, self.epochs = monitor, list[Epoch]()
        self.clean_target = None if clean_target is None else clean_target.to(monitor.device)

    def on_fit_begin(self, loop: Loop) -> None:
        self.loop = loop

    def on_step(self, step: Step) -> None:
        clean = None if self.clean_target is None or step.index is None else self.clean_target[step.index]
        self.monitor.update(logits=step.logits, target=step.target, learning_rate=step.learning_rate,
                            margin=step.margin, index=step.index, clean_target=clean)  # fmt: skip

    def on_epoch_end(self, result: EpochResult) -> None:
        self.epochs.append(self.monitor.end_epoch())
        for text in self.epochs[-1].verdicts:
            self.loop.note(f"epoch {result.epoch}: {text}")

    def state_dict(self) -> dict[str, Any]:
        return self.monitor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.monitor.load_state_dict(state)
