r"""Margins at initialisation: expected, simulated or measured.

With i.i.d. scores N(0, σ²) over K classes, margins start around E[Δ] ≈ −log(K − 1) − σ²/2: the more classes, the lower,
and the less weight they get from a curriculum that prefers margins around 0. That is why robust losses underfit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from curriculoss._checks import checked_integer, is_finite
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.margin import soft_margin

SCORES_AT_ONCE = 2**22  # simulated scores in memory: 16 MB
AFFORDABLE_SCORES = 2**26  # simulated scores in all, by default: about a second


def expected_initial_margin(num_classes: int, sigma: float = 1.0) -> float:
    """The expected margin E[Δ] of i.i.d. scores N(0, σ²).

    This is the paper's closed form, a Taylor expansion, where its last term is small. With few classes or a large σ the
    expectation is integrated numerically instead. With two classes it is exactly 0.

    Args:
        num_classes: The number of classes K.
        sigma: The standard deviation σ of the scores.

    Example:
        >>> from curriculoss import expected_initial_margin
        >>> round(expected_initial_margin(100), 2)
        -5.09
    """
    num_classes = checked_integer("expected_initial_margin", "num_classes", num_classes, 2)
    if not is_finite(sigma) or not 0 <= sigma <= 100:
        raise InvalidValueError(f"expected_initial_margin expects 0 <= sigma <= 100, got sigma={sigma!r}")
    if num_classes == 2:
        return 0.0
    correction = math.expm1(min(sigma**2, 700.0)) / (2 * (num_classes - 1))  # beyond e^700 it is large all the same
    if num_classes < 10 or correction > 0.1:
        return -_expected_log_sum(num_classes - 1, float(sigma))
    return -math.log(num_classes - 1) - sigma**2 / 2 + correction


@lru_cache
def _expected_log_sum(count: int, sigma: float) -> float:
    r"""E[log S] of S = Σ exp(σ z_i) over `count` standard normals z_i.

    log S = ∫ (exp(−e^u) − exp(−S e^u)) du, so E[log S] = ∫ (exp(−e^u) − φ(e^u)^count) du with φ(t) = E[exp(−t e^{σz})].
    From a point `low` where both terms are still 1, the first integrates to −γ − low. The second and φ are analytic
    around the real line and end flat, where trapezoid rules converge geometrically.
    """
    z = torch.arange(-10.0, 10.0, 0.25 / max(1.0, sigma), dtype=torch.float64)
    density = torch.softmax(-z * z / 2, 0)
    low, high, step = -(9 * sigma + math.log(count) + 36), 9 * sigma + 5, max(0.25, 0.1 * sigma)
    u = torch.arange(low, high, step, dtype=torch.float64)
    kept = torch.exp(-torch.exp(u[:, None] + sigma * z)) @ density  # φ
    lost = -torch.expm1(-torch.exp(u[:, None] + sigma * z)) @ density  # 1 − φ, exact where φ is almost 1
    power = torch.exp(count * torch.where(lost < 0.5, torch.log1p(-lost), kept.log()))
    euler = -float(torch.digamma(torch.ones((), dtype=torch.float64)))
    return -euler - low - step * float(power.sum() - power[0] / 2)


def simulate_initial_margins(
    num_classes: int, num_samples: int = 10_000, *, sigma: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    """Margins of i.i.d. scores N(0, σ²).

    Args:
        num_classes: The number of classes K.
        num_samples: The number of margins to draw.
        sigma: The standard deviation σ of the scores.
        generator: Where random numbers come from; without one, the result is the same every time.

    Returns:
        One margin per sample.

    Example:
        >>> from curriculoss import simulate_initial_margins
        >>> simulate_initial_margins(100, 5000).shape
        torch.Size([5000])
    """
    num_classes = checked_integer("simulate_initial_margins", "num_classes", num_classes, 2)
    num_samples = checked_integer("simulate_initial_margins", "num_samples", num_samples, 1)
    if not is_finite(sigma) or sigma < 0:
        raise InvalidValueError(f"simulate_initial_margins expects a finite sigma >= 0, got sigma={sigma!r}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InvalidTypeError(
            f"simulate_initial_margins expects a torch.Generator or None, got generator={generator!r}"
        )
    generator = generator or torch.Generator().manual_seed(0)
    rows = max(1, SCORES_AT_ONCE // num_classes)
    parts = []
    for start in range(0, num_samples, rows):
        size = (min(rows, num_samples - start), num_classes)
        scores = torch.randn(size, generator=generator, device=generator.device).mul_(sigma)
        parts.append(soft_margin(scores, torch.zeros(size[0], dtype=torch.int64, device=scores.device)))
    return torch.cat(parts)


def affordable_margins(num_classes: int) -> Tensor:
    """Simulated margins of at most 10,000 samples, fewer with many classes: a million still take seconds."""
    return simulate_initial_margins(num_classes, max(100, min(10_000, AFFORDABLE_SCORES // num_classes)))


def measure_initial_margins(
    model: Callable[[Any], Tensor], batches: Iterable[Any], *, ignore_index: int = -100
) -> Tensor:
    """The margins of a model's outputs, without changing the model.

    There are no gradients; buffers such as batch-norm statistics and torch's random state are as before. The model's
    mode is left as it is: to see what training starts from, measure in train mode.

    Args:
        model: A module, or any function from inputs to logits.
        batches: Pairs of (input, target).
        ignore_index: Targets with this index are left out.

    Returns:
        One margin per target, float32 on the CPU.

    Example:
        >>> import torch
        >>> from curriculoss import measure_initial_margins
        >>> batches = [(torch.randn(16, 8), torch.arange(16) % 4)]
        >>> measure_initial_margins(torch.nn.Linear(8, 4), batches).shape
        torch.Size([16])
    """
    parts = []
    device = next((x.device for x in model.parameters()), None) if isinstance(model, nn.Module) else None
    forked = [device] if device is not None and device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(forked), state_kept(model):
        for batch in batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[1], Tensor):
                size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
                got = type(batch).__name__ + size
                raise InvalidTypeError(f"measure_initial_margins expects batches of (input, target), got {got}")
            inputs, target = (x.to(device) if isinstance(x, Tensor) else x for x in batch)
            margin = soft_margin(model(inputs), target, ignore_index=ignore_index)
            parts.append(margin[target != ignore_index].float().cpu())
    if not parts:
        raise InvalidValueError("measure_initial_margins expects at least one batch, got none")
    margins = torch.cat(parts)
    if not margins.numel():
        raise InvalidValueError(
            f"measure_initial_margins expects targets other than ignore_index={ignore_index}, got none"
        )
    return margins


@contextmanager
def state_kept(model: object) -> Iterator[None]:
    """Restore the mode of every module, the content of every buffer and, where a module replaces it, the buffer."""
    modules = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    kept = [(m, name, b, None if b is None else b.clone()) for m, _ in modules for name, b in m._buffers.items()]
    try:
        yield
    finally:
        for module, name, buffer, content in kept:
            if buffer is not None and content is not None:
                buffer.copy_(content)
            module._buffers[name] = buffer
        for module, training in modules:
            module.training = training
