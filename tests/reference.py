"""The papers' equations, transcribed naively with mpmath. Nothing here is shared with the package.

`LOSS` and `WEIGHT` follow the paper's table of standard-form losses (with errata 1 and 2 of the notes: AUL and AGCE
change places, AGCE vanishes at p = 1). Nothing is rewritten for accuracy: the digits carry it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

F64 = torch.float64

LOSS: dict[str, Callable[..., Any]] = {
    "CE": lambda p: -mp.log(p),
    "FL": lambda p, q: -((1 - p) ** q) * mp.log(p),
    "MAE": lambda p: 1 - p,
    "AUL": lambda p, a, q: ((a - p) ** q - (a - 1) ** q) / q,
    "AGCE": lambda p, a, q: ((a + 1) ** q - (a + p) ** q) / q,
    "AEL": lambda p, q: mp.exp(-p / q),
    "GCE": lambda p, q: (1 - p**q) / q,
    "SCE": lambda p, q: -(1 - q) * mp.log(p) + q * (1 - p),
    "TCE": lambda p, q: sum((1 - p) ** i / i for i in range(1, q + 1)),
}
WEIGHT: dict[str, Callable[..., Any]] = {
    "CE": lambda p: 1 - p,
    "FL": lambda p, q: (1 - p) ** q * (1 - p - q * p * mp.log(p)),
    "MAE": lambda p: p * (1 - p),
    "AUL": lambda p, a, q: p * (1 - p) * (a - p) ** (q - 1),
    "AGCE": lambda p, a, q: p * (a + p) ** (q - 1) * (1 - p),
    "AEL": lambda p, q: p * (1 - p) * mp.exp(-p / q) / q,
    "GCE": lambda p, q: p**q * (1 - p),
    "SCE": lambda p, q: (1 - q + q * p) * (1 - p),
    "TCE": lambda p, q: p * sum((1 - p) ** i for i in range(1, q + 1)),
}


# The paper's settings come first, then the edges: limits, steep and flat, near the bounds of the constraints.
def _pairs(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"a": a, "q": q} for a, q in pairs]


AUL_PAPER = _pairs((1.1, 5.0), (3.0, 0.7), (2.0, 2.0), (3.0, 0.1), (6.3, 1.5), (6.0, 3.0))
AGCE_PAPER = _pairs((0.1, 0.1), (1.6, 2.0), (3.0, 4.0))
SETTINGS: dict[str, list[dict[str, float]]] = {
    "CE": [{}],
    "FL": [{"q": q} for q in (2.0, 0.5, 1.0, 5.0, 1e-3, 0.1, 50.0)],
    "MAE": [{}],
    "AUL": AUL_PAPER + _pairs((2.0, 1.0), (1.0001, 0.01), (1.000001, 1e-8), (1.5, 50.0), (100.0, 3.0)),
    "AGCE": AGCE_PAPER + _pairs((1.0, 0.5), (2.0, 1.0), (1e-4, 0.01), (1e-3, 1e-8), (0.5, 30.0), (1e3, 2.0)),
    "AEL": [{"q": q} for q in (1.0, 0.5, 2.5, 0.01, 100.0, 1e6)],
    "GCE": [{"q": q} for q in (0.3, 0.4, 0.7, 1.0, 0.01, 1e-8, 0.9)],
    "SCE": [{"q": q} for q in (0.7, 0.95, 0.5, 0.3, 1e-6, 1 - 1e-9)],
    "TCE": [{"q": q} for q in (2, 1, 3, 6, 50)],
}


DIGITS = 700  # hold 1 − p down to 1e-700, where every loss and weight that is proportional to it has long underflowed


@cache
def probability(margin: Any) -> Any:
    """p = 1/(1 + exp(−Δ))."""
    with mp.workdps(DIGITS):
        return 1 / (1 + mp.exp(-mpf(margin)))


def exact(params: dict[str, float]) -> dict[str, Any]:
    """Hyperparameters that arithmetic does not round; TCE's q stays an integer."""
    return {name: value if isinstance(value, int) else mpf(value) for name, value in params.items()}


@cache
def loss(name: str, margin: Any, **params: float) -> Any:
    with mp.workdps(DIGITS):
        return LOSS[name](probability(margin), **exact(params))


@cache
def weight(name: str, margin: Any, **params: float) -> Any:
    with mp.workdps(DIGITS):
        return WEIGHT[name](probability(margin), **exact(params))


def evaluate(formula: str, margin: Any, **params: float) -> Any:
    """A formula in Python's notation, in p and the hyperparameters."""
    with mp.workdps(DIGITS):
        return eval(formula, {"p": probability(margin), "log": mp.log, "exp": mp.exp, **exact(params)})


def maximum(function: Callable[[Any], Any], points: Iterable[float]) -> tuple[float, Any]:
    """Where a function with one peak is largest, and how large: the best point, then golden sections around it."""
    points = sorted(points)
    values = [function(point) for point in points]
    best = max(range(len(points)), key=values.__getitem__)
    if best == 0:
        return -math.inf, values[0]
    with mp.workdps(700):
        low, high, golden = mpf(points[best - 1]), mpf(points[best + 1]), (mp.sqrt(5) - 1) / 2
        while high - low > mpf(10) ** -17:
            left, right = high - golden * (high - low), low + golden * (high - low)
            low, high = (left, high) if function(left) < function(right) else (low, right)
    return float(low), function(low)


def infimum_ratio(loss_of_p: Callable[[Any], Any]) -> Any:
    """The smallest [l(p_i) − l(p_i + p_j)] / [l(0) − l(p_j)] on a grid that closes in on 0 and on 1."""
    with mp.workdps(150):
        steps = [mpf(10) ** -k for k in (40, 20, 10, 6, 4, 3, 2)] + [mpf(k) / 20 for k in range(1, 20)]
        best, at_zero = mpf(1), loss_of_p(mpf(0))
        for step in steps:
            starts = [start for start in steps if start + step < 1] + [1 - step - start for start in [0, *steps[:7]]]
            gain = at_zero - loss_of_p(step)
            for start in starts:
                if start >= 0:
                    best = min(best, (loss_of_p(start) - loss_of_p(start + step)) / gain)
        return best


def margin(logits: Iterable[float], label: int) -> float:
    """Δ_y = s_y − log Σ_{i≠y} exp s_i."""
    with mp.workdps(60):
        scores = [mpf(value) for value in logits]
        return float(scores[label] - mp.log(sum(mp.exp(s) for i, s in enumerate(scores) if i != label)))


def margins(logits: Tensor, target: Tensor) -> Tensor:
    """The margin of each row, rounded once."""
    return torch.tensor([margin(*row) for row in zip(logits.tolist(), target.tolist(), strict=True)], dtype=F64)


def naive_margins(logits: Tensor, target: Tensor) -> Tensor:
    """Δ by its definition, in the dtype that comes; K is the second axis."""
    is_label = torch.zeros_like(logits, dtype=torch.bool).scatter(1, target.unsqueeze(1), True)
    others = logits.masked_fill(is_label, -math.inf).logsumexp(1)
    return logits.gather(1, target.unsqueeze(1)).squeeze(1) - others


def draw(*shape: int, scale: float = 3.0, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)).to(dtype)


def labels(*shape: int, num_classes: int, seed: int = 1) -> Tensor:
    return torch.randint(num_classes, shape, generator=torch.Generator().manual_seed(seed))


def gradient(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of the sum of all that the function returns."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    return torch.autograd.grad(function(*inputs).sum(), inputs)


class Largest(TorchDispatchMode):
    """The largest number of elements that any operation under it returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numel = max(self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor)), 0)
        return out
