"""What the page shows of runs: a picture of the margins and a few numbers for each epoch, in little space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from curriculoss.errors import RunError
from curriculoss.explorer.losses import to_base64
from curriculoss.losses import Curriculum
from curriculoss.report.groups import Group, failure, num_classes, number, rows
from curriculoss.report.ridges import MarginHistory, shown_counts
from curriculoss.runs.folder import Run

MOST_FRAMES = 100  # epochs whose margins are kept: ten runs stay below 5 MB


def run_facts(run: Run) -> dict[str, Any]:
    """A run, ready for JSON. Densities of margins are bytes, 255 at the peak, one row per kept epoch.

    Raises:
        RunError: If the run has not finished an epoch.
    """
    found = rows(run)
    if not found:
        raise RunError(f"{run.path} has nothing to show yet: its first epoch did not end")
    spec, curriculum, failed = run.spec, Group((run,)).curriculum, failure(run)
    history = _history(run, len(found))
    frames = sorted({*np.linspace(0, len(found) - 1, min(len(found), MOST_FRAMES)).round().astype(int).tolist()})
    middle, step = (history.edges[1:] + history.edges[:-1]) / 2, float(history.edges[1] - history.edges[0])
    ends = history.span(frames)
    low, high = np.searchsorted(middle, [min(ends[0], -4.0) - 1, max(ends[1], 4.0) + 1]).tolist()
    noise = "labels as given" if spec.noise == "clean" else f"noise {spec.noise}"
    return {
        "name": run.path.name or str(run.path),
        "loss": spec.loss_name,
        "about": f"{spec.data}, {noise}, seed {spec.seed}" + ("" if failed is None else f", {failed}"),
        "classes": num_classes(run),
        "epochs": [int(frame) + 1 for frame in frames],
        "margins": {"first": float(middle[0]), "low": float(middle[low]), "step": step, "bins": high - low},
        "densities": {kind: to_base64(_frames(history, kind, frames)[:, low:high]) for kind in history.counts},
        "weight": None if curriculum is None else _weight(curriculum, middle),
        "series": {key: [_short(number(row, key)) for row in found] for key in ("test_accuracy", "mean_weight", "snr")},
    }


def _history(run: Run, epochs: int) -> MarginHistory:
    arrays = run.arrays("histograms")
    counts = shown_counts(arrays)
    if any(each.shape != (epochs, len(arrays["edges"]) + 1) for each in counts.values()):
        raise RunError(f"{run.path} has {epochs} epochs in metrics.jsonl, but not as many in histograms.npz")
    return MarginHistory(arrays["edges"], counts)


def _frames(history: MarginHistory, kind: str, frames: Sequence[int]) -> np.ndarray[Any, Any]:
    """Densities as bytes; 0 throughout where an epoch has no such sample."""
    found = [history.densities(frame).get(kind, np.zeros(len(history.edges) - 1)) for frame in frames]
    return np.round(255 * np.stack(found)).astype(np.uint8)


def _weight(curriculum: Curriculum, margins: np.ndarray[Any, Any]) -> list[float]:
    weight = curriculum.weight(torch.from_numpy(margins.astype(float)))
    largest = min(curriculum.peak.weight, np.finfo(float).max)  # a design that grows without bound is drawn as 0
    return [round(each, 4) for each in (weight / largest).tolist()]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
