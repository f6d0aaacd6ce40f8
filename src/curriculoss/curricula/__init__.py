"""Curricula: losses of the standard form, each a frozen value that maps margins to losses and weights."""

from curriculoss.curricula.base import Curriculum, Peak
from curriculoss.curricula.derived import Designed, Scaled, Shifted
from curriculoss.curricula.families import AEL, AGCE, AUL, CE, FL, GCE, MAE, RCE, SCE, TCE
from curriculoss.curricula.registry import available, get

__all__ = [
    "AEL",
    "AGCE",
    "AUL",
    "CE",
    "FL",
    "GCE",
    "MAE",
    "RCE",
    "SCE",
    "TCE",
    "Curriculum",
    "Designed",
    "Peak",
    "Scaled",
    "Shifted",
    "available",
    "get",
]
