"""Losses: values that can be called on logits and targets, and the modules around them."""

from curriculoss.losses.base import Curriculum, Loss, Peak
from curriculoss.losses.derived import Designed, Scaled, Shifted
from curriculoss.losses.families import AEL, AGCE, AUL, CE, FL, GCE, MAE, RCE, SCE, TCE
from curriculoss.losses.registry import available, get

__all__ = [
    "AEL", "AGCE", "AUL", "CE", "FL", "GCE", "MAE", "RCE", "SCE", "TCE", "Curriculum", "Designed", "Loss", "Peak",
    "Scaled", "Shifted", "available", "get",
]  # fmt: skip
