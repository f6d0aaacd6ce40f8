"""What a curriculum does while it trains: margins, weights, clean and noisy samples apart, from any training loop."""

from curriculoss.monitor.record import Epoch, Histogram, Samples
from curriculoss.monitor.stream import Monitor
from curriculoss.monitor.verdict import initial_verdict

__all__ = ["Epoch", "Histogram", "Monitor", "Samples", "initial_verdict"]
