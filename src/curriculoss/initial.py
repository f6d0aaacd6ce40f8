r"""Where margins start: expected, simulated or measured; what weight a curriculum gives them; and the paper's fixes.

With i.i.d. scores N(0, σ²) over K classes, margins start around E[Δ] ≈ −log(K − 1) − σ²/2: the more classes, the
further left, and the less weight they get from a curriculum that weighs margins around 0. So robust losses underfit.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from curriculoss.curricula.base import LARGEST, Curriculum, check_curriculum, is_finite
from curriculoss.curricula.derived import Scaled, Shifted
from curriculoss.curricula.families import CE
from curriculoss.curricula.registry import suggestion
from curriculoss.margin import kind, soft_margin

CHUNK = 2**22  # scores simulated at once: 16 MB
AFFORDABLE = 2**26  # scores that a simulation may take by default: about a second
METHODS = ("scale", "shift", "logit-bias")
# Mean initial weights as shares of CE's. In the paper's experiments MAE underfits severely with 0.04 (K = 100) and 0.08
# (K = 50), AUL(1.1, 5) and AGCE(.1, .1) mildly with 0.13 and 0.14 (K = 100), AGCE(1.6, 2) not with 0.30 (K = 10). The
# bounds are half-way on a logarithmic axis.
SEVERE, MILD = 0.1, 0.2
OPENING = {
    "severe": "It will underfit severely",
    "mild": "It will underfit mildly",
    "none": "It should not underfit",
}
TAU = 2.6  # about |E[Δ]| with ten classes, where no loss of the paper underfits


def expected_initial_margin(num_classes: int, sigma: float = 1.0) -> float:
    """E[Δ] of i.i.d. scores N(0, σ²): the paper's closed form, and the true expectation where that is no good.

    The closed form is a Taylor expansion whose last term must be small. With few classes, or scores that spread
    widely, the expectation is integrated numerically instead. Two classes have 0 exactly.
    """
    num_classes = checked_num_classes("expected_initial_margin", num_classes)
    if not is_finite(sigma) or not 0 <= sigma <= 100:
        raise ValueError(f"expected_initial_margin expects 0 <= sigma <= 100, got sigma={sigma!r}")
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
    """Margins of i.i.d. scores N(0, σ²), one a sample; the same every time unless a generator is given."""
    num_classes = checked_num_classes("simulate_initial_margins", num_classes)
    num_samples = _checked("simulate_initial_margins", "num_samples", num_samples, 1)
    if not is_finite(sigma) or sigma < 0:
        raise ValueError(f"simulate_initial_margins expects a finite sigma >= 0, got sigma={sigma!r}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"simulate_initial_margins expects a torch.Generator or None, got generator={generator!r}")
    generator = generator or torch.Generator().manual_seed(0)
    rows = max(1, CHUNK // num_classes)
    parts = []
    for start in range(0, num_samples, rows):
        size = (min(rows, num_samples - start), num_classes)
        scores = torch.randn(size, generator=generator, device=generator.device).mul_(sigma)
        parts.append(soft_margin(scores, torch.zeros(size[0], dtype=torch.int64, device=scores.device)))
    return torch.cat(parts)


def affordable_samples(num_classes: int) -> int:
    """How many samples to simulate so that a million classes still take seconds."""
    return max(100, min(10_000, AFFORDABLE // num_classes))


def affordable_margins(num_classes: int) -> Tensor:
    return simulate_initial_margins(num_classes, affordable_samples(num_classes))


def measure_initial_margins(
    model: Callable[[Any], Tensor], batches: Iterable[Any], *, ignore_index: int = -100
) -> Tensor:
    """The margins that a model gives to batches of (input, target), as float32 on the CPU, ignored targets left out.

    It leaves no trace: no gradients, buffers such as batch-norm statistics and torch's random state are as before. The
    model's mode is left as it is; to see what training starts from, measure in train mode.
    """
    parts = []
    device = next((x.device for x in model.parameters()), None) if isinstance(model, nn.Module) else None
    with torch.no_grad(), _random_state_kept(device), buffers_kept(model):
        for batch in batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[1], Tensor):
                size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
                got = type(batch).__name__ + size
                raise TypeError(f"measure_initial_margins expects batches of (input, target), got {got}")
            inputs, target = (x.to(device) if isinstance(x, Tensor) else x for x in batch)
            margin = soft_margin(model(inputs), target, ignore_index=ignore_index)
            parts.append(margin[target != ignore_index].float().cpu())
    if not parts:
        raise ValueError("measure_initial_margins expects at least one batch, got none")
    margins = torch.cat(parts)
    if not margins.numel():
        raise ValueError(f"measure_initial_margins expects targets other than ignore_index={ignore_index}, got none")
    return margins


@contextmanager
def _random_state_kept(device: torch.device | None) -> Iterator[None]:
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        yield


@contextmanager
def buffers_kept(model: object) -> Iterator[None]:
    """Put back every buffer's content and, where a module replaces its buffers, the buffer itself."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    kept = [(m._buffers, name, b, None if b is None else b.clone()) for m in modules for name, b in m._buffers.items()]
    try:
        yield
    finally:
        for buffers, name, buffer, content in kept:
            if buffer is not None and content is not None:
                buffer.copy_(content)
            buffers[name] = buffer


def fix(
    curriculum: Curriculum,
    method: str,
    *,
    tau: float | None = None,
    num_classes: int | None = None,
    initial_margin: float | Sequence[float] | Tensor | None = None,
    insist: bool = False,
) -> Curriculum:
    """The curriculum, adapted to where margins start, so that it does not underfit.

    `"scale"` multiplies margins by α = τ/|E[Δ]|, `"shift"` adds β = |E[Δ]| − τ: either way, what starts at E[Δ] gets
    the weight that −τ had; τ is 2.6 unless given, about where ten classes start. E[Δ] is that of
    `expected_initial_margin(num_classes)`, or `initial_margin`: a number, or measured margins to be averaged.
    `"logit-bias"` needs the number of classes alone: it adds E[Δ]₁₀ − E[Δ]_K, to start where margins start with ten
    classes. (Our reading of Staats et al., AAAI 2025, whose own bias we do not know.)

    A fix that would do harm (α > 1 or β < 0, or E[Δ] ≥ 0, as with two classes) returns the curriculum as it is and
    warns, unless you `insist`.
    """
    check_curriculum("fix", curriculum)
    if method not in METHODS:
        raise ValueError(f"unknown fix {method!r}{suggestion(str(method), METHODS)}")
    if method == "logit-bias":
        if num_classes is None or initial_margin is not None or tau is not None:
            raise ValueError("fix 'logit-bias' expects num_classes, and neither tau nor initial_margin")
        start = expected_initial_margin(num_classes)
        amount = expected_initial_margin(10) - start
        if amount == 0:
            return curriculum
    else:
        tau = TAU if tau is None else tau
        if not is_finite(tau) or tau < 0 or (method == "scale" and tau == 0):
            raise ValueError(f"fix {method!r} expects a finite tau > 0 (shift: or 0), got tau={tau!r}")
        start = _start(num_classes, initial_margin)
        scale = tau / abs(start) if start else math.inf
        amount = scale if method == "scale" else -start - tau
    if not insist and (start >= 0 or (amount > 1 if method == "scale" else amount < 0)):
        name, given = "alpha" if method == "scale" else "beta", "" if tau is None else f" and tau={tau:g}"
        warnings.warn(
            f"fix {method!r} would do harm with an expected initial margin of {start:.4g}{given} "
            f"({name}={amount:.4g}): the curriculum is left as it is",
            UserWarning,
            stacklevel=2,
        )
        return curriculum
    if amount == math.inf:
        raise ValueError("fix 'scale' divides tau by the expected initial margin, which is 0 here")
    return Scaled(curriculum, amount) if method == "scale" else Shifted(curriculum, amount)


def _start(num_classes: int | None, initial_margin: float | Sequence[float] | Tensor | None) -> float:
    if (num_classes is None) == (initial_margin is None):
        raise ValueError(
            "fix expects either num_classes or initial_margin, "
            f"got num_classes={num_classes} and initial_margin={initial_margin}"
        )
    if num_classes is not None:
        return expected_initial_margin(num_classes)
    start = float(_as_margins("fix", "initial_margin", initial_margin).mean())
    if not math.isfinite(start):
        raise ValueError(f"fix expects a finite initial_margin, got {start}")
    return start


@dataclass(frozen=True)
class Verdict:
    """Whether a loss will underfit, and why."""

    level: str  # "none", "mild", "severe", or "unknown" where the rule does not hold
    mean_weight: float  # over initial margins; 1 is the peak
    share_of_ce: float
    sentence: str


def mean_initial_weight(
    curriculum: Curriculum, num_classes: int | None = None, *, initial_margins: Sequence[float] | Tensor | None = None
) -> float:
    """The mean weight of samples before training, over simulated or measured margins; 1 is the curriculum's peak."""
    check_curriculum("mean_initial_weight", curriculum)
    margins = _initial_margins("mean_initial_weight", num_classes, initial_margins)
    return float(curriculum.weight(margins).mean()) / curriculum.unit_weight


def underfitting(
    curriculum: Curriculum, num_classes: int | None = None, *, initial_margins: Sequence[float] | Tensor | None = None
) -> Verdict:
    """Whether samples start with too little weight to be learned, by a rule that agrees with the paper's experiments.

    The rule compares the mean initial weight with CE's, both with unit peak, as `RobustLoss` trains by default.
    """
    check_curriculum("underfitting", curriculum)
    margins = _initial_margins("underfitting", num_classes, initial_margins)
    weight, cross_entropy = (mean_initial_weight(x, initial_margins=margins) for x in (curriculum, CE()))
    start = float(margins.mean())
    if cross_entropy == 0:
        raise ValueError(f"underfitting expects margins that CE gives some weight, got a mean margin of {start:.4g}")
    share = weight / cross_entropy
    level = "severe" if share < SEVERE else "mild" if share < MILD else "none"
    opening = OPENING[level]
    sentence = f"{opening}: samples start with {percent(share)} of the weight that CE gives them."
    if level != "none" and -math.inf < start < -TAU:
        scaled = mean_initial_weight(Scaled(curriculum, TAU / -start), initial_margins=margins) / cross_entropy
        if scaled > share:
            sentence += f" Scaling it with tau={TAU} would make that {percent(scaled)}."
    return Verdict(level, weight, share, sentence)


def _initial_margins(caller: str, num_classes: int | None, initial_margins: Sequence[float] | Tensor | None) -> Tensor:
    if (num_classes is None) == (initial_margins is None):
        raise ValueError(f"{caller} expects either num_classes or initial_margins")
    if num_classes is not None:
        num_classes = checked_num_classes(caller, num_classes)
        return affordable_margins(num_classes).double()
    margins = _as_margins(caller, "initial_margins", initial_margins)
    if not margins.numel() or margins.isnan().any():
        got = f"{int(margins.isnan().sum())} NaN among {margins.numel()} numbers"
        raise ValueError(f"{caller} expects at least one number and no NaN as initial_margins, got {got}")
    return margins


def _as_margins(caller: str, name: str, given: object) -> Tensor:
    try:
        return torch.as_tensor(given, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):  # what torch raises for strings, ragged lists and strangers
        raise TypeError(f"{caller} expects numbers as {name}, got {kind(given)}") from None


def describe(curriculum: Curriculum) -> str:
    """`GCE(q=0.7)`, and `MAE` for what has no hyperparameters."""
    given = []
    for field in fields(curriculum):
        value = getattr(curriculum, field.name)
        if isinstance(value, Curriculum):
            given.append(describe(value))
        else:
            given.append(f"{field.name}={value:.3g}" if isinstance(value, (int, float)) else field.name)
    return type(curriculum).__name__ + (f"({', '.join(given)})" if given else "")


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def checked_num_classes(caller: str, num_classes: int) -> int:
    """As a plain integer: numpy's and torch's are ones, too."""
    return _checked(caller, "num_classes", num_classes, 2)


def _checked(caller: str, name: str, value: int, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{caller} expects an integer {name} >= {least}, got {name}={value!r}") from None
    if not least <= number <= LARGEST:
        limit = f"{name} >= {least}" if number < least else f"{name} <= {LARGEST:g}"
        raise ValueError(f"{caller} expects {limit}, got {name}={number!s:.30}")
    return number
