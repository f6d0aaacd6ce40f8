"""Integrals of a weight function over the margin: the loss of a designed curriculum, and facts about any curriculum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Weight = Callable[[Tensor], Tensor]

MOST_KNOTS = 2**16  # enough for any number of kinks, but not for weights rough everywhere, such as float32 ones


def _gauss_legendre(count: int = 20) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1], from the eigenvectors of the Jacobi matrix (Golub & Welsch)."""
    i = torch.arange(1, count, dtype=torch.float64)
    side = torch.diag(i / torch.sqrt(4 * i * i - 1), 1)
    nodes, vectors = torch.linalg.eigh(side + side.T)
    return (nodes + 1) / 2, vectors[0] ** 2


def _knots() -> Tensor:
    """Half a margin apart near 0, two apart while exponential tails are alive, then ever wider up to 1e12."""
    knots = torch.tensor([0.0] + [0.5] * 80 + [2.0] * 380, dtype=torch.float64).cumsum(0).tolist()
    while knots[-1] < 1e12:
        knots.append(knots[-1] * 1.25)
    right = torch.tensor(knots, dtype=torch.float64)
    return torch.cat([-right.flip(0), right[1:]])


class Integral:
    """∫ w over the margin, to rounding; around kinks and jumps the panels close in until they do no harm.

    Panels begin and end at given kinks, where nothing needs to close in.
    """

    def __init__(self, weight: Weight, kinks: Sequence[float] = ()) -> None:
        self.weight = weight
        self.nodes, self.node_weights = _gauss_legendre()
        knots: Tensor = torch.cat([_knots(), torch.tensor(kinks, dtype=torch.float64)]).unique()
        self.knots = knots
        peak = self.weight(self.inner()).max()
        while len(knots) < MOST_KNOTS:
            middle = (knots[1:] + knots[:-1]) / 2
            panels, width = self._between(knots[:-1], knots[1:]), knots.diff()
            halves = self._between(knots[:-1], middle) + self._between(middle, knots[1:])
            # What is left below either bound is the rounding of the weights.
            rough = (halves - panels).abs() > 1e-13 * panels + 1e-15 * peak * width
            if not rough.any() or width[rough].max() < 1e-13:
                break
            knots = torch.cat([knots, middle[rough]]).sort().values
        self.knots = knots
        self.panels = panels = self._between(knots[:-1], knots[1:])
        self.finite_below, self.finite_above = self._converges(-1), self._converges(1)
        start, zero = panels.new_zeros(1), len(panels) if self.finite_above else int((knots == 0).nonzero())
        self.prefix = torch.cat([start, panels.cumsum(0)])
        self.suffix = torch.cat([panels[:zero].flip(0).cumsum(0).flip(0), start, -panels[zero:].cumsum(0)])

    def _converges(self, sign: int) -> bool:
        """Whether the last three decades add less than half of what the three before them do."""
        distance = sign * (self.knots[1:] + self.knots[:-1]) / 2
        last, before = self.panels[distance > 1e9].sum(), self.panels[(distance > 1e6) & (distance <= 1e9)].sum()
        return bool(2 * last <= before)

    def inner(self) -> Tensor:
        """The nodes inside all panels."""
        return (self.knots[:-1, None] + self.knots.diff()[:, None] * self.nodes).flatten()

    def _between(self, low: Tensor, high: Tensor) -> Tensor:
        nodes, weights = self.nodes.to(low.device), self.node_weights.to(low.device)
        width = (high - low).unsqueeze(-1)
        return (self.weight(low.unsqueeze(-1) + width * nodes) * weights * width).sum(-1)

    def below(self, margin: Tensor) -> Tensor:
        """∫ from −∞ to `margin`."""
        knots = self.knots.to(margin.device)
        margin = margin.clamp(knots[0], knots[-1])  # where ±inf ends
        k = torch.searchsorted(knots, margin, right=True) - 1
        return self.prefix.to(margin.device)[k] + self._between(knots[k], margin)

    def above(self, margin: Tensor) -> Tensor:
        """∫ from `margin` to +∞, or to 0 if that diverges."""
        knots = self.knots.to(margin.device)
        inside = margin.clamp(knots[0], knots[-1])  # where ±inf ends
        k = torch.searchsorted(knots, inside).clamp(max=len(knots) - 1)  # a NaN is sorted last, and stays NaN
        at = k.unsqueeze(-1)  # torch 2.6 cannot vmap over an index without dimensions
        value = self.suffix.to(margin.device)[at].squeeze(-1) + self._between(inside, knots[at].squeeze(-1))
        if not self.finite_below:
            value = value.masked_fill(margin == -math.inf, math.inf)
        return value if self.finite_above else value.masked_fill(margin == math.inf, -math.inf)

    def worst(self) -> float | None:
        """A margin where the weight is negative, infinite or NaN, if there is one among the nodes."""
        margin = torch.cat([self.knots, self.inner()])
        weight = self.weight(margin)
        wrong = margin[~((weight >= 0) & (weight < math.inf))]
        return float(wrong[wrong.abs().argmin()]) if len(wrong) else None

    def peak(self) -> tuple[float, float]:
        """Where the weight is largest: the best of all nodes, then the root of its derivative beside it.

        A weight that still grows by a twentieth over the last three decades, as log(log Δ) does, has no bound.
        """
        margin = torch.cat([self.knots, self.inner()]).sort().values
        weight = self.weight(margin)
        best = int(weight.argmax())
        for end, side in ((0, -1), (-1, 1)):
            if weight[end] == weight[best] > 1.05 * self.weight(margin.new_tensor([side * 1e9]))[0]:
                return side * math.inf, math.inf
        if weight[0] >= weight[best] * (1 - 1e-12):
            return -math.inf, float(weight[best])
        low, high = float(margin[best - 1]), float(margin[min(best + 1, len(margin) - 1)])
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self._slope(middle) > 0 else (low, middle)
        found = (low + high) / 2
        value = float(self.weight(torch.tensor([found], dtype=torch.float64)))
        if value >= weight[best]:
            return found, value
        return float(margin[best]), float(weight[best])  # a jump or a kink, where no derivative vanishes

    def _slope(self, margin: float) -> float:
        with torch.enable_grad():
            at = torch.tensor([margin], dtype=torch.float64, requires_grad=True)
            value = self.weight(at).sum()
            if not value.requires_grad:  # piecewise constant
                return 0.0
            return float(torch.autograd.grad(value, at)[0])
