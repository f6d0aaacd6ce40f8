"""Integrals of a weight function over the margin: the loss of a designed curriculum, and facts about any curriculum."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weight = Callable[[Tensor], Tensor]


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
    """∫ w over the margin, to rounding; around kinks and jumps the panels close in until they do no harm."""

    def __init__(self, weight: Weight) -> None:
        self.weight = weight
        self.nodes, self.node_weights = _gauss_legendre()
        knots = _knots()
        for _ in range(50):
            middle = (knots[1:] + knots[:-1]) / 2
            panels = self._between(knots[:-1], knots[1:])
            halves = self._between(knots[:-1], middle) + self._between(middle, knots[1:])
            # Below 1e-280, the difference of two integrals is the rounding of subnormal numbers.
            rough = ((halves - panels).abs() > 1e-13 * panels) & (panels > 1e-280)
            if not rough.any():
                break
            knots = torch.cat([knots, middle[rough]]).sort().values
        self.knots = knots
        self.panels = panels = self._between(knots[:-1], knots[1:])
        near = panels[(knots[:-1] >= -1e9) & (knots[1:] <= 1e9)].sum()
        self.finite_below = bool(panels[knots[:-1] < -1e9].sum() <= 1e-6 * near)
        self.finite_above = bool(panels[knots[1:] > 1e9].sum() <= 1e-6 * near)
        start, zero = panels.new_zeros(1), len(panels) if self.finite_above else int((knots == 0).nonzero())
        self.prefix = torch.cat([start, panels.cumsum(0)])
        self.suffix = torch.cat([panels[:zero].flip(0).cumsum(0).flip(0), start, -panels[zero:].cumsum(0)])

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
        k = torch.searchsorted(knots, inside)
        value = self.suffix.to(margin.device)[k] + self._between(inside, knots[k])
        return value if self.finite_below else value.masked_fill(margin == -math.inf, math.inf)

    def peak(self) -> tuple[float, float]:
        """Where the weight is largest: the best of all nodes, then the root of its derivative beside it."""
        nodes = self.knots[:-1, None] + self.knots.diff()[:, None] * self.nodes
        margin = torch.cat([self.knots, nodes.flatten()]).sort().values
        weight = self.weight(margin)
        best = int(weight.argmax())
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
