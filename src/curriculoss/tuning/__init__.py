"""Which loss, tau and rates? A search by Optuna, for those who have labels to validate on, be they noisy too."""

from curriculoss.tuning.search import Tuned, tune
from curriculoss.tuning.select import Choice, choose
from curriculoss.tuning.space import LOSSES

__all__ = ["LOSSES", "Choice", "Tuned", "choose", "tune"]
