"""Suspicious labels in a user's own data, from the margins of one training run with a robust loss."""

from curriculoss.auditing.audits import Audit, audit, estimate_noise
from curriculoss.auditing.cleaning import clean
from curriculoss.auditing.estimate import NoiseEstimate

__all__ = ["Audit", "NoiseEstimate", "audit", "clean", "estimate_noise"]
