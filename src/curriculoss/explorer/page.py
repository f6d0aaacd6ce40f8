"""The page as one file that works offline: facts as JSON, one script, no address anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from curriculoss._files import write_text
from curriculoss._templates import fill
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
    script = resources.files("curriculoss.explorer").joinpath("explorer.js").read_text("utf-8")
    values = {
        "content": htmlsafe_json_dumps(content, allow_nan=False, separators=(",", ":")),
        "script": Markup(script),  # our own
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "kinds": {kind for run in shown for kind in run["densities"]},
    }
    out = Path(out)
    write_text(out, fill("curriculoss.explorer", "explorer.html", values, html=True))
    return out
