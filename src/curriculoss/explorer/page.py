"""The page as one file that works offline: facts as JSON, one script, no address anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from curriculoss._files import write_text
from curriculoss._templates import fill_with_script
from curriculoss.explorer.losses import loss_facts
from curriculoss.explorer.runs import run_facts
from curriculoss.runs.folder import Run


def build(out: Path | str, runs: Iterable[Run] = ()) -> Path:
    """Write the explorer, with runs or without.

    Args:
        out: The file to write.
        runs: Runs to scrub through and compare; each adds at most 0.4 MB.

    Returns:
        The file.

    Raises:
        RunError: If a run has not finished an epoch or cannot be read.

    Example:
        >>> import tempfile
        >>> page = build(Path(tempfile.mkdtemp()) / "explorer.html")
        >>> page.read_text(encoding="utf-8").startswith("<!doctype html>")
        True
    """
    shown = [run_facts(run) for run in runs]
    content = {**loss_facts({run["classes"] for run in shown if run["classes"]}), "runs": shown}
    kinds = {kind for run in shown for kind in run["densities"]}
    write_text(Path(out), fill_with_script("curriculoss.explorer", "explorer", content, {"kinds": kinds}))
    return Path(out)
