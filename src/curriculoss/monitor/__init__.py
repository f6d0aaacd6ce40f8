"""Streaming records of margins and weights during training, for clean and noisy samples separately."""

from curriculoss.monitor.record import Epoch, Histogram, Samples
from curriculoss.monitor.stream import Monitor
from curriculoss.monitor.verdict import initial_verdict

__all__ = ["Epoch", "Histogram", "Monitor", "Samples", "initial_verdict"]
