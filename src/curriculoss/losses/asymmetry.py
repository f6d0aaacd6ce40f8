r"""For which noise a loss is robust, read off its weight function alone.

As a function of p, a standard-form loss falls at the rate w/(p(1 − p)). It is symmetric if that rate is constant,
and asymmetric for noise ratios up to

    r̃ = inf over x, h ≥ 0, x + h ≤ 1  of  [l(x) − l(x + h)] / [l(0) − l(h)],

which this module finds numerically; most families have closed forms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from curriculoss.losses.integral import Integral, Weight


def _line(low: float, high: float, count: int) -> Tensor:
    return torch.linspace(low, high, count, dtype=torch.float64)


def _logit(p: Tensor, c: Tensor) -> Tensor:
    return p.log() - c.log()


def is_symmetric(weight: Weight) -> bool:
    margin = _line(-30, 30, 601)
    rate = weight(margin) / (margin.sigmoid() * (-margin).sigmoid())
    return bool(rate.min() > 0 and rate.max() - rate.min() <= 1e-9 * rate.max())


def _tail_exponent(weight: Weight, sign: int) -> float:
    """a in w ~ exp(−a|Δ|) as Δ → sign·∞."""
    distance = _line(0, 690, 2761)
    value = weight(sign * distance)
    alive = distance[value > 1e-290]
    if not len(alive) or alive[-1] < 10:
        return float("inf")
    end = alive[-1]
    inner, outer = weight(sign * torch.stack([end - 5, end])).log()
    return float(inner - outer) / 5


def max_noise_ratio(weight: Weight) -> float:
    """r̃ of the loss with this weight function."""
    at_zero, at_one = _tail_exponent(weight, -1), _tail_exponent(weight, 1)
    # l(0) − l(h) ~ h^at_zero, while l(x) − l(x + h) is of order h inside (0, 1) and h^at_one at its end.
    # An exponent of exactly 1, as MAE has at both ends, is measured to about 1e-12.
    if at_zero < 1 - 1e-7 or at_one > at_zero + 1e-7:
        return 0.0
    integral = Integral(weight)

    def ratio(margin: Tensor, odds: Tensor) -> Tensor:
        """The ratio at the x with this margin, where h is the share σ(odds) of 1 − x.

        Small numbers are never computed as differences.
        """
        p, c = margin.sigmoid(), (-margin).sigmoid()
        h, rest = c * odds.sigmoid(), c * (-odds).sigmoid()
        end, step = _logit(p + h, rest), _logit(h, p + rest)  # the margins of x + h and of h
        below, above = integral.below(end), integral.above(margin)
        inside = torch.where(below < above.abs(), below - integral.below(margin), above - integral.above(end))
        # A difference of nearby integrals is rounding; the rate times the step is not.
        rate = weight(margin) / (p * c) * h
        inside = torch.where(h < 1e-5 * torch.minimum(p, c), rate, inside)
        outside = integral.below(step)
        return torch.where(outside > 1e-290, inside / outside, torch.inf)  # below, both are rounding

    # Where the loss falls slowest there may be a notch too narrow for a grid, but not for the integral's own nodes.
    nodes = integral.inner()
    nodes = nodes[nodes.abs() < 40]
    rate = weight(nodes) / (nodes.sigmoid() * (-nodes).sigmoid())
    least = ((rate[1:-1] <= rate[:-2]) & (rate[1:-1] <= rate[2:])).nonzero().flatten()
    least = least[rate[least + 1].argsort()[:500]]
    notches = nodes[torch.cat([least, least + 1, least + 2]).unique()]  # each between its neighbours

    best = 1.0  # at x = 0
    line = torch.cat([_line(-680, -44, 107), _line(-40, 40, 201), _line(44, 680, 107)])
    for u, v in ((line, line), (notches, line), (notches, _line(-40, -40, 1))):  # at last h → 0
        for _ in range(6 if len(u) else 0):
            value = ratio(u[:, None], v[None, :])
            best = min(best, float(value.min()))
            i, j = divmod(int(value.argmin()), len(v))
            u = _line(float(u[max(i - 1, 0)]), float(u[min(i + 1, len(u) - 1)]), 17)
            v = _line(float(v[max(j - 1, 0)]), float(v[min(j + 1, len(v) - 1)]), 17)
    return 1.0 if best > 1 - 1e-8 else max(0.0, best)  # a difference of integrals may be rounded below 0
