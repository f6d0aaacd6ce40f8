"""scikit-learn: a small network with a robust loss, as an estimator like any other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import nn

from curriculoss._checks import check_known, checked_integer
from curriculoss._text import first_line
from curriculoss.errors import InvalidValueError
from curriculoss.fitting import MonitorCallback, fit
from curriculoss.fixing import fix as fixed
from curriculoss.integrations import needed
from curriculoss.losses import Loss, available, get
from curriculoss.losses.auto import AutoLoss
from curriculoss.losses.criterion import Criterion
from curriculoss.losses.robust import RobustLoss
from curriculoss.monitor import Monitor

with needed("sklearn"):
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

PREDICTED_AT_ONCE = 2**14  # rows
AUTO = "auto"


class RobustClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # its bases have no types
    """A multilayer perceptron for labels that may be wrong. Put a `StandardScaler` before it.

    It trains with AdamW and a cosine schedule, in float64 unless X is float32.

    Args:
        loss: "auto" (`AutoLoss`), a name such as "mae", or a loss such as `GCE(0.5)`.
        fix: The fix of `curriculoss.fix`, if any.
        tau: The τ of that fix.
        hidden_layer_sizes: The number of units per hidden layer.
        epochs: The number of epochs.
        batch_size: The largest number of samples per step.
        learning_rate: The initial learning rate.
        weight_decay: The weight decay.
        device: Where to train.
        random_state: The same one gives the same network; torch's own random state is left as it is.

    Attributes:
        classes_: The classes, in the order of the columns of `predict_proba`.
        loss_: The loss that it was trained with.
        network_: The trained network.
        margins_: The soft margin of each training sample's label, averaged over the epochs. The lowest ones are the
            labels to check first. Samples of weight 0 are left out and have NaN.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> from curriculoss.integrations.sklearn import RobustClassifier
        >>> features, target = load_iris(return_X_y=True)
        >>> model = make_pipeline(StandardScaler(), RobustClassifier(random_state=0)).fit(features, target)
        >>> model.score(features, target) > 0.9
        True
    """

    def __init__(
        self, loss: str | Loss = AUTO, *, fix: str | None = None, tau: float | None = None,
        hidden_layer_sizes: Sequence[int] = (100,), epochs: int = 50, batch_size: int = 64,
        learning_rate: float = 0.01, weight_decay: float = 0.1, device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:  # fmt: skip
        self.loss, self.fix, self.tau = loss, fix, tau
        self.hidden_layer_sizes, self.epochs, self.batch_size = hidden_layer_sizes, epochs, batch_size
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.device, self.random_state = device, random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        features, given = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(given)
        weight = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
        self._check()
        self.classes_, target = np.unique(given, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidValueError(f"RobustClassifier expects at least 2 classes, got 1 class: {self.classes_[0]}")
        criterion = self._make_criterion(len(self.classes_))
        self.loss_ = getattr(criterion, "loss", criterion)  # AutoLoss has no other loss inside
        seed = int(check_random_state(self.random_state).randint(2**31))
        with torch.random.fork_rng([]):  # some losses draw
            torch.manual_seed(seed)
            self._train(criterion.to(self.device), features, target, weight, torch.Generator().manual_seed(seed))
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        most_likely = self.predict_proba(X).argmax(1)  # first, as it checks that there are classes yet
        return np.asarray(self.classes_[most_likely])

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        features = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        like = next(self.network_.parameters())
        with torch.no_grad():
            blocks = torch.tensor(features).split(PREDICTED_AT_ONCE)
            return torch.cat([self.network_(block.to(like)).softmax(1).cpu() for block in blocks]).numpy()

    def _train(
        self, criterion: Criterion, features: NDArray[Any], label: NDArray[Any], weight: NDArray[Any],
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        counted = torch.tensor(weight.nonzero()[0])
        inputs, target = (torch.tensor(array, device=self.device) for array in (features, label))
        share = torch.tensor(weight * (len(counted) / weight.sum())).to(inputs)  # its mean over the counted ones is 1
        sizes = (inputs.shape[1], *self.hidden_layer_sizes, len(self.classes_))
        self.network_ = _perceptron(sizes, generator).to(inputs)
        steps = math.ceil(len(counted) / self.batch_size)
        monitor = Monitor(criterion, num_classes=sizes[-1], num_samples=len(inputs), device=self.device)

        def batches(_: int) -> Iterator[tuple[torch.Tensor, ...]]:
            order = counted[torch.randperm(len(counted), generator=generator)].to(self.device)
            return ((inputs[i], target[i], i, share[i]) for i in order.tensor_split(steps))

        fit(
            self.network_, lambda *given, **weight: criterion(*given, **weight).mean(), SimpleNamespace(epoch=batches),
            epochs=self.epochs, optimizer="adamw", learning_rate=self.learning_rate, weight_decay=self.weight_decay,
            schedule="cosine", callbacks=[MonitorCallback(monitor)],
        )  # fmt: skip
        self.margins_ = monitor.samples().mean.numpy()

    def _make_criterion(self, num_classes: int) -> Criterion:
        if str(self.loss).lower() == AUTO:
            return AutoLoss(num_classes, reduction="none")
        loss: Any = get(self.loss) if isinstance(self.loss, str) else self.loss
        if self.fix is not None:
            loss = fixed(loss, self.fix, tau=self.tau, num_classes=num_classes)
        return RobustLoss(loss, reduction="none")

    def _check(self) -> None:
        if isinstance(self.loss, str):
            check_known("loss", self.loss.lower(), (AUTO, *available()))
        sizes: Any = self.hidden_layer_sizes
        if not isinstance(sizes, Sequence):
            raise InvalidValueError(f"RobustClassifier expects hidden_layer_sizes such as (100,), got {sizes!r}")
        for size in sizes:
            checked_integer("RobustClassifier", "hidden_layer_sizes", size, 1)
        try:
            torch.empty(0, device=self.device)
        except (AssertionError, RuntimeError, TypeError) as error:  # torch has several for a device that is not here
            raise InvalidValueError(f"RobustClassifier, device {self.device!r}: {first_line(error)}") from None
        for name in ("epochs", "batch_size"):
            checked_integer("RobustClassifier", name, getattr(self, name), 1)
        if self.tau is not None and self.fix is None:
            raise InvalidValueError(f"RobustClassifier expects a fix with tau, got tau={self.tau!r} and fix=None")
        if self.fix is not None and str(self.loss).lower() == AUTO:
            raise InvalidValueError(f"RobustClassifier expects a loss to fix, got fix={self.fix!r}, loss={self.loss!r}")


def _perceptron(sizes: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLUs between, initialised as torch does, but from a generator."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
