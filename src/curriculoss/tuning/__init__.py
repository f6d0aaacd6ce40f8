"""A search with Optuna for the loss, its hyperparameters and the rates; validation labels may be noisy, too."""

from curriculoss.tuning.search import TrialResult, Tuned, tune
from curriculoss.tuning.select import Choice, choose
from curriculoss.tuning.space import LOSSES

__all__ = ["LOSSES", "Choice", "TrialResult", "Tuned", "choose", "tune"]
