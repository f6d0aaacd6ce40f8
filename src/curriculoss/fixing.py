r"""How much weight a curriculum gives to samples before training, and three fixes for too little of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from curriculoss._checks import check_known, checked_integer, is_finite, type_name
from curriculoss._text import percent
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.initial import affordable_margins, expected_initial_margin
from curriculoss.losses.base import Curriculum, check_curriculum
from curriculoss.losses.derived import Scaled, Shifted
from curriculoss.losses.families import CE

METHODS = ("scale", "shift", "logit-bias")
TAU = 2.6  # about |E[Δ]| with ten classes, where no loss of the paper underfits

Margins = Sequence[float] | Tensor


# Bounds on the mean initial weight as a share of CE's. In the paper's experiments MAE underfits severely with 0.04
# (K = 100) and 0.08 (K = 50), AUL(1.1, 5) and AGCE(.1, .1) mildly with 0.13 and 0.14 (K = 100), and AGCE(1.6, 2) not at
# all with 0.30 (K = 10). The bounds are half-way between these on a logarithmic axis.
SEVERE, MILD = 0.1, 0.2


@dataclass(frozen=True)
class FixPlan:
    """What a fix does to a curriculum.

    Attributes:
        curriculum: The curriculum to train with: the fixed one, or the given one if the fix is not applied.
        method: "scale", "shift" or "logit-bias".
        alpha: The factor by which "scale" multiplies margins, otherwise None.
        beta: What the other methods add to margins, otherwise None.
        margin: The expected initial margin that the plan is made for.
        applied: Whether the fix is applied.
        reason: Why it is not applied; empty if it is.

    Example:
        >>> from curriculoss import MAE, plan_fix
        >>> plan_fix(MAE(), "shift", tau=2.5, initial_margin=-5.0).curriculum
        Shifted(base=MAE(), beta=2.5)
    """

    curriculum: Curriculum
    method: str
    alpha: float | None
    beta: float | None
    margin: float
    applied: bool = True
    reason: str = ""


def plan_fix(
    curriculum: Curriculum, method: str, *, tau: float | None = None, num_classes: int | None = None,
    initial_margin: float | Margins | None = None, insist: bool = False,
) -> FixPlan:  # fmt: skip
    """The plan of adapting a curriculum to where margins start, so that it does not underfit.

    "scale" multiplies margins by α = τ/|E[Δ]|, "shift" adds β = |E[Δ]| − τ: either way, samples that start at E[Δ] get
    the weight that −τ had. "logit-bias" adds E[Δ]₁₀ − E[Δ]_K, so that samples start where they start with ten classes.
    (Our reading of Staats et al., AAAI 2025, whose own bias is not published.)

    Args:
        curriculum: The curriculum to fix.
        method: "scale", "shift" or "logit-bias".
        tau: τ, by default 2.6, which is about where ten classes start. Not for "logit-bias".
        num_classes: The number of classes, from which E[Δ] follows by `expected_initial_margin`.
        initial_margin: E[Δ] in place of that: a number, or measured margins to be averaged. Not for "logit-bias".
        insist: Whether to apply the fix also where it would do harm: with α > 1, β < 0 or E[Δ] ≥ 0 (as with two
            classes).

    Returns:
        The plan; one that would do harm is not applied and says why.

    Raises:
        InvalidValueError: If the method is unknown or its arguments do not belong together.

    Example:
        >>> from curriculoss import MAE, plan_fix
        >>> plan = plan_fix(MAE(), "scale", num_classes=100)
        >>> round(plan.alpha, 3), plan.applied
        (0.511, True)
        >>> plan_fix(MAE(), "scale", num_classes=2).applied
        False
    """
    check_curriculum("fix", curriculum)
    check_known("fix", method, METHODS)
    if method == "logit-bias":
        if num_classes is None or initial_margin is not None or tau is not None:
            raise InvalidValueError("fix 'logit-bias' expects num_classes, and neither tau nor initial_margin")
        start = expected_initial_margin(num_classes)
        amount = expected_initial_margin(10) - start
    else:
        tau = TAU if tau is None else tau
        if not is_finite(tau) or tau < 0 or (method == "scale" and tau == 0):
            raise InvalidValueError(f"fix {method!r} expects a finite tau > 0 (shift: or 0), got tau={tau!r}")
        start = _expected_start(num_classes, initial_margin)
        amount = -start - tau if method == "shift" else tau / abs(start) if start else math.inf
    alpha, beta = (amount, None) if method == "scale" else (None, amount)
    harmful = amount != 0 and (start >= 0 or (amount > 1 if method == "scale" else amount < 0))
    if harmful and not insist:
        name, given = "alpha" if method == "scale" else "beta", "" if tau is None else f" and tau={tau:g}"
        reason = (
            f"fix {method!r} would do harm with an expected initial margin of {start:.4g}{given} "
            f"({name}={amount:.4g}): the curriculum is left as it is"
        )
        return FixPlan(curriculum, method, alpha, beta, start, False, reason)
    if amount == math.inf:
        raise InvalidValueError("fix 'scale' divides tau by the expected initial margin, which is 0 here")
    if amount:  # logit-bias does nothing with ten classes
        curriculum = Scaled(curriculum, amount) if method == "scale" else Shifted(curriculum, amount)
    return FixPlan(curriculum, method, alpha, beta, start)


def fix(
    curriculum: Curriculum, method: str, *, tau: float | None = None, num_classes: int | None = None,
    initial_margin: float | Margins | None = None, insist: bool = False,
) -> Curriculum:  # fmt: skip
    """The curriculum of `plan_fix`, which takes the same arguments, with a warning where the fix is not applied.

    Example:
        >>> from curriculoss import MAE, fix
        >>> fix(MAE(), "shift", tau=2.5, initial_margin=-5.0)
        Shifted(base=MAE(), beta=2.5)
    """
    plan = plan_fix(curriculum, method, tau=tau, num_classes=num_classes, initial_margin=initial_margin, insist=insist)
    if not plan.applied:
        warnings.warn(plan.reason, UserWarning, stacklevel=2)
    return plan.curriculum


def _expected_start(num_classes: int | None, initial_margin: float | Margins | None) -> float:
    _check_either("fix", num_classes, "initial_margin", initial_margin)
    if num_classes is not None:
        return expected_initial_margin(num_classes)
    start = float(_as_margins("fix", "initial_margin", initial_margin).mean())
    if not math.isfinite(start):
        raise InvalidValueError(f"fix expects a finite initial_margin, got {start}")
    return start


@dataclass(frozen=True)
class Underfitting:
    """Whether a loss will underfit, and why.

    Attributes:
        level: "none", "mild", "severe", or "unknown" where the rule does not apply.
        mean_weight: The mean weight of samples before training; 1 is the curriculum's peak.
        share_of_ce: The same as a share of CE's.
        sentence: The result in words.
        scaled_share: The share of CE's weight after `fix(..., "scale")`, if that helps.

    Example:
        >>> from curriculoss import MAE, underfitting
        >>> underfitting(MAE(), 10).sentence
        'It should not underfit: samples start with 35.7 % of the weight that CE gives them.'
    """

    level: str
    mean_weight: float
    share_of_ce: float
    sentence: str
    scaled_share: float | None = None


def mean_initial_weight(
    curriculum: Curriculum, num_classes: int | None = None, *, initial_margins: Margins | None = None
) -> float:
    """The mean weight of samples before training; 1 is the curriculum's peak.

    Args:
        curriculum: The curriculum.
        num_classes: The number of classes, for which initial margins are simulated.
        initial_margins: Measured margins in place of that.

    Example:
        >>> from curriculoss import MAE, mean_initial_weight
        >>> round(mean_initial_weight(MAE(), 100), 2)
        0.04
    """
    check_curriculum("mean_initial_weight", curriculum)
    margins = _initial_margins("mean_initial_weight", num_classes, initial_margins)
    return float(curriculum.weight(margins).mean()) / curriculum.unit_weight


def underfitting(
    curriculum: Curriculum, num_classes: int | None = None, *, initial_margins: Margins | None = None
) -> Underfitting:
    """Whether samples start with too little weight to be learned, by a rule that agrees with the paper's experiments.

    The rule compares the mean initial weight with CE's, both with unit peak, as `RobustLoss` trains by default.

    Args:
        curriculum: The curriculum.
        num_classes: The number of classes, for which initial margins are simulated.
        initial_margins: Measured margins in place of that.

    Example:
        >>> from curriculoss import MAE, underfitting
        >>> underfitting(MAE(), 100).level, underfitting(MAE(), 2).level
        ('severe', 'none')
    """
    check_curriculum("underfitting", curriculum)
    margins = _initial_margins("underfitting", num_classes, initial_margins)
    weight, cross_entropy = (mean_initial_weight(x, initial_margins=margins) for x in (curriculum, CE()))
    start = float(margins.mean())
    if cross_entropy == 0:
        raise InvalidValueError(
            f"underfitting expects margins that CE gives some weight, got a mean margin of {start:.4g}"
        )
    share = weight / cross_entropy
    level = "severe" if share < SEVERE else "mild" if share < MILD else "none"
    outlook = "It should not underfit" if level == "none" else f"It will underfit {level}ly"
    sentence = f"{outlook}: samples start with {percent(share)} of the weight that CE gives them."
    scaled_share = None
    if level != "none" and -math.inf < start < -TAU:
        scaled = mean_initial_weight(Scaled(curriculum, TAU / -start), initial_margins=margins) / cross_entropy
        if scaled > share:
            scaled_share = scaled
            sentence += f" Scaling it with tau={TAU} would make that {percent(scaled)}."
    return Underfitting(level, weight, share, sentence, scaled_share)


def _initial_margins(caller: str, num_classes: int | None, initial_margins: Margins | None) -> Tensor:
    _check_either(caller, num_classes, "initial_margins", initial_margins)
    if num_classes is not None:
        num_classes = checked_integer(caller, "num_classes", num_classes, 2)
        return affordable_margins(num_classes).double()
    margins = _as_margins(caller, "initial_margins", initial_margins)
    if not margins.numel() or margins.isnan().any():
        got = f"{int(margins.isnan().sum())} NaN among {margins.numel()} numbers"
        raise InvalidValueError(f"{caller} expects at least one number and no NaN as initial_margins, got {got}")
    return margins


def _check_either(caller: str, num_classes: int | None, name: str, given: object) -> None:
    if (num_classes is None) == (given is None):
        got = f"num_classes={num_classes} and {name}={given!r:.60}"
        raise InvalidValueError(f"{caller} expects either num_classes or {name}, got {got}")


def _as_margins(caller: str, name: str, given: object) -> Tensor:
    try:
        return torch.as_tensor(given, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):  # what torch raises for strings, ragged lists and other objects
        raise InvalidTypeError(f"{caller} expects numbers as {name}, got {type_name(given)}") from None
