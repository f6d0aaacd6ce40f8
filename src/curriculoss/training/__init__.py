"""Training: a spec says what to run, the loop runs it, the store keeps what came out."""

from curriculoss.training.loop import train
from curriculoss.training.spec import RunSpec, preset, presets
from curriculoss.training.store import Run, RunError

__all__ = ["Run", "RunError", "RunSpec", "preset", "presets", "train"]
