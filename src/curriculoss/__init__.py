"""Robust losses for noisy labels, read as curricula: weight functions over one number per sample, the soft margin.

Everything in `__all__` needs torch alone; `audit` and `load_model` need more. What a training step does not need is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from curriculoss import functional
from curriculoss.initial import expected_initial_margin, measure_initial_margins, simulate_initial_margins
from curriculoss.linear import linear_soft_margin
from curriculoss.losses.base import Curriculum, Loss, Parts, Peak
from curriculoss.losses.derived import Designed, Scaled, Shifted
from curriculoss.losses.families import AEL, AGCE, AUL, CE, FL, GCE, MAE, RCE, SCE, TCE
from curriculoss.losses.registry import available, get
from curriculoss.losses.regularized import CR, GLS, MSE, NCE, ActivePassive, PeerLoss
from curriculoss.losses.robust import RobustLoss
from curriculoss.margin import soft_margin

if TYPE_CHECKING:
    from curriculoss.auditing import audit as audit
    from curriculoss.decomposition import Decomposition, decompose
    from curriculoss.fitting import Callback, fit
    from curriculoss.fixing import FixPlan, Underfitting, fix, mean_initial_weight, plan_fix, underfitting
    from curriculoss.losses.auto import AutoLoss
    from curriculoss.monitor import Monitor
    from curriculoss.runs import load_model as load_model

__version__ = "0.2.0"

_LAZY = {  # the module that each name is in
    "audit": "auditing", "AutoLoss": "losses.auto", "Callback": "fitting", "Decomposition": "decomposition",
    "decompose": "decomposition", "fit": "fitting", "fix": "fixing", "FixPlan": "fixing", "load_model": "runs",
    "mean_initial_weight": "fixing", "Monitor": "monitor", "plan_fix": "fixing", "Underfitting": "fixing",
    "underfitting": "fixing",
}  # fmt: skip

__all__ = [
    "AEL", "AGCE", "AUL", "CE", "CR", "FL", "GCE", "GLS", "MAE", "MSE", "NCE", "RCE", "SCE", "TCE", "ActivePassive",
    "AutoLoss", "Callback", "Curriculum", "Decomposition", "Designed", "FixPlan", "Loss", "Monitor", "Parts", "Peak",
    "PeerLoss", "RobustLoss", "Scaled", "Shifted", "Underfitting", "available", "decompose", "expected_initial_margin",
    "fit", "fix", "functional", "get", "linear_soft_margin", "mean_initial_weight", "measure_initial_margins",
    "plan_fix", "simulate_initial_margins", "soft_margin", "underfitting",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what is not always needed when it is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'curriculoss' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"curriculoss.{_LAZY[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
