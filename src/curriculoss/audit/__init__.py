"""Suspicious labels in a user's own data: one training run with a robust loss, and what its margins say."""

from curriculoss.audit.estimate import NoiseEstimate, estimate_noise
from curriculoss.audit.finding import Audit, audit

__all__ = ["Audit", "NoiseEstimate", "audit", "estimate_noise"]
