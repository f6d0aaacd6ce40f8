"""Robust losses for noisy labels, seen as curricula: one margin, and for each loss a weight function over it."""

from curriculoss.auto import AutoLoss
from curriculoss.curricula import (
    AEL,
    AGCE,
    AUL,
    CE,
    FL,
    GCE,
    MAE,
    RCE,
    SCE,
    TCE,
    Curriculum,
    Designed,
    Peak,
    Scaled,
    Shifted,
    available,
    get,
)
from curriculoss.decompose import Decomposition, decompose
from curriculoss.initial import (
    Verdict,
    expected_initial_margin,
    fix,
    mean_initial_weight,
    measure_initial_margins,
    simulate_initial_margins,
    underfitting,
)
from curriculoss.linear import linear_soft_margin
from curriculoss.loss import RobustLoss
from curriculoss.margin import soft_margin
from curriculoss.regularized import CR, GLS, MSE, NCE, ActivePassive, Parts, PeerLoss

__version__ = "0.1.0"

__all__ = [
    "AEL",
    "AGCE",
    "AUL",
    "CE",
    "CR",
    "FL",
    "GCE",
    "GLS",
    "MAE",
    "MSE",
    "NCE",
    "RCE",
    "SCE",
    "TCE",
    "ActivePassive",
    "AutoLoss",
    "Curriculum",
    "Decomposition",
    "Designed",
    "Parts",
    "Peak",
    "PeerLoss",
    "RobustLoss",
    "Scaled",
    "Shifted",
    "Verdict",
    "available",
    "decompose",
    "expected_initial_margin",
    "fix",
    "get",
    "linear_soft_margin",
    "mean_initial_weight",
    "measure_initial_margins",
    "simulate_initial_margins",
    "soft_margin",
    "underfitting",
]
