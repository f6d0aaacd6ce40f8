"""scikit-learn: a small network with a robust loss, as an estimator like any other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import nn

from curriculoss.auto import AutoLoss
from curriculoss.curricula import Curriculum, available, get
from curriculoss.curricula.base import is_finite
from curriculoss.curricula.registry import suggestion
from curriculoss.initial import fix as fixed
from curriculoss.integrations import needed
from curriculoss.loss import RobustLoss
from curriculoss.monitor import Monitor
from curriculoss.regularized import Regularized

with needed("sklearn"):
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        validate_data,
    )

BLOCK = 2**14  # rows that are predicted at once
AUTO = "auto"


class RobustClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # its bases have no types
    """A multilayer perceptron for labels that may be wrong. Put a `StandardScaler` before it.

    `loss` is "auto" (`AutoLoss`), a name such as "mae", or a loss such as `GCE(0.5)`; `fix` and `tau` are those
    of `curriculoss.fix`. It trains by AdamW for so many epochs, with a learning rate that falls like a cosine, in
    float64 unless X is float32. The same `random_state` gives the same network; torch's own stays as it is.

    Fitted, it has `classes_`, `loss_`, `network_` and `margins_`: of each training sample the soft margin of its label,
    a mean over the epochs. The lowest are the labels to look at first. Samples of weight 0 are left out and have NaN.
    """

    def __init__(
        self,
        loss: str | Curriculum | Regularized = AUTO,
        *,
        fix: str | None = None,
        tau: float | None = None,
        hidden_layer_sizes: Sequence[int] = (100,),
        epochs: int = 50,
        batch_size: int = 64,
        learning_rate: float = 0.01,
        weight_decay: float = 0.1,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.loss = loss
        self.fix = fix
        self.tau = tau
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        features, given = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(given)
        weight = _check_sample_weight(sample_weight, features, dtype=np.float64, ensure_non_negative=True)
        self._check()
        self.classes_, target = np.unique(given, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"RobustClassifier expects at least 2 classes, got 1 class: {self.classes_[0]}")
        criterion = self._make_criterion(len(self.classes_))
        self.loss_ = criterion.loss
        seed = int(check_random_state(self.random_state).randint(2**31))
        with torch.random.fork_rng([]):  # some losses draw
            torch.manual_seed(seed)
            self._train(criterion.to(self.device), features, target, weight, torch.Generator().manual_seed(seed))
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: ArrayLike) -> NDArray[Any]:
        check_is_fitted(self)
        features = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        like = next(self.network_.parameters())
        with torch.no_grad():
            blocks = (torch.tensor(features[start : start + BLOCK]) for start in range(0, len(features), BLOCK))
            return torch.cat([self.network_(block.to(like)).softmax(1).cpu() for block in blocks]).numpy()

    def _train(
        self, criterion: RobustLoss, features: NDArray[Any], label: NDArray[Any], weight: NDArray[Any],
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        counted = torch.tensor(weight.nonzero()[0])
        inputs, target = (torch.tensor(array, device=self.device) for array in (features, label))
        share = torch.tensor(weight * (len(counted) / weight.sum())).to(inputs)  # of mean 1 over those that count
        sizes = (inputs.shape[1], *self.hidden_layer_sizes, len(self.classes_))
        self.network_ = _perceptron(sizes, generator).to(inputs)
        monitor = Monitor(criterion, num_classes=sizes[-1], num_samples=len(inputs), device=self.device)
        optimizer = torch.optim.AdamW(self.network_.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        batches = math.ceil(len(counted) / self.batch_size)
        for _ in range(self.epochs):
            order = counted[torch.randperm(len(counted), generator=generator)].to(self.device)
            for index in order.tensor_split(batches):
                logits = self.network_(inputs[index])
                if isinstance(criterion, AutoLoss):
                    criterion.eval().follow(logits, target[index], share[index])
                loss = (criterion(logits, target[index]) * share[index]).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rate = optimizer.param_groups[0]["lr"]
                monitor.update(logits=logits.detach(), target=target[index], index=index, learning_rate=rate)
            schedule.step()
            monitor.end_epoch()
        self.margins_ = monitor.samples().mean.numpy()

    def _make_criterion(self, num_classes: int) -> RobustLoss:
        if self.loss == AUTO:
            return AutoLoss(num_classes, reduction="none")
        loss: Any = get(self.loss) if isinstance(self.loss, str) else self.loss
        if self.fix is not None:
            loss = fixed(loss, self.fix, tau=self.tau, num_classes=num_classes)
        return RobustLoss(loss, reduction="none")

    def _check(self) -> None:
        if isinstance(self.loss, str) and self.loss.lower() not in (known := (AUTO, *available())):
            raise ValueError(f"unknown loss {self.loss!r}{suggestion(self.loss.lower(), known)}")
        sizes = self.hidden_layer_sizes
        if not isinstance(sizes, Sequence) or not all(map(_is_count, sizes)):
            raise ValueError(f"RobustClassifier expects hidden_layer_sizes such as (100,), got {sizes!r}")
        for name in ("epochs", "batch_size"):
            if not _is_count(value := getattr(self, name)):
                raise ValueError(f"RobustClassifier expects an integer {name} >= 1, got {name}={value!r}")
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if not is_finite(value) or value < 0:
                raise ValueError(f"RobustClassifier expects a finite {name} >= 0, got {name}={value!r}")
        if self.tau is not None and self.fix is None:
            raise ValueError(f"RobustClassifier expects a fix with tau, got tau={self.tau!r} and fix=None")
        if self.fix is not None and self.loss == AUTO:
            raise ValueError(f"RobustClassifier expects a loss to fix, got fix={self.fix!r} and loss={AUTO!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int | np.integer) and int(value) >= 1


def _perceptron(sizes: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLUs between, drawn as torch draws them, but from a generator."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out)
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])
