"""Runs: a spec says what to train, `train` trains it, and a folder keeps the results."""

from curriculoss.errors import RunError
from curriculoss.runs.folder import Run
from curriculoss.runs.model import TrainedModel, export_model, load_model
from curriculoss.runs.spec import RunSpec, preset, presets
from curriculoss.runs.training import train

__all__ = ["Run", "RunError", "RunSpec", "TrainedModel", "export_model", "load_model", "preset", "presets", "train"]
