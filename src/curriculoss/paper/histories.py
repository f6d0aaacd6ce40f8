"""Histograms of margins per epoch, copied from runs into one small file because run folders are not kept."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from curriculoss._files import write_arrays
from curriculoss.errors import DamagedError
from curriculoss.figures import Array
from curriculoss.paper.epochs import damaged
from curriculoss.runs.folder import Run

HISTORIES_FILE = "margin-histograms.npz"
KINDS = ("clean", "noisy")


class Histories:
    """Counts of margins by the hash of the spec: one row per epoch for each of KINDS."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / HISTORIES_FILE
        self._arrays: dict[str, Array] = {}
        if self._file.exists():
            try:
                with self._file.open("rb") as raw, np.load(raw, allow_pickle=False) as found:
                    self._arrays = {name: found[name] for name in found.files}
            except Exception:  # numpy and zipfile raise whatever they stumble on
                raise damaged(self._file, "it is not a complete .npz file") from None

    @property
    def edges(self) -> Array:
        return self._arrays["edges"]

    def of(self, spec_hash: str) -> dict[str, Array] | None:
        if f"{spec_hash}-{KINDS[0]}" not in self._arrays:
            return None
        return {kind: self._arrays[f"{spec_hash}-{kind}"] for kind in KINDS}

    def take_up(self, runs: Iterable[Run]) -> None:
        """Enter finished runs that are not there yet and can be read, and write the file if there are any."""
        before = len(self._arrays)
        for run in runs:
            with suppress(DamagedError):
                if run.finished and self.of(run.spec.hash) is None:
                    found = run.arrays("histograms")
                    self._arrays["edges"] = found["edges"]
                    self._arrays |= {f"{run.spec.hash}-{kind}": found[kind].astype(np.int32) for kind in KINDS}
        if len(self._arrays) > before:
            write_arrays(self._file, dict(sorted(self._arrays.items())))
