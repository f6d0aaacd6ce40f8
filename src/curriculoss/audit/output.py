"""The files of an audit: suspects.csv, noise.json and the gallery; and tables that spreadsheets may open."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from curriculoss.audit.finding import Audit
from curriculoss.audit.gallery import build
from curriculoss.audit.reading import Source
from curriculoss.audit.score import against_truth
from curriculoss.training.store import write_json, write_text

FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")  # what a cell may begin with that a spreadsheet would act on
COLUMNS = ("index", "path", "given", "suggested", "score", "p_wrong")
MATRIX = 100  # classes up to which noise.json has the whole matrix
PAIRS = 1000


def safe(text: str) -> str:
    """Text for a cell of a .csv file: names that a spreadsheet would take for a formula get an apostrophe."""
    return f"'{text}" if text.startswith(FORMULA) else text


def unsafe(text: str) -> str:
    """The name again: `unsafe(safe(text)) == text`, and text without that apostrophe stays."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: safe(value) if isinstance(value, str) else value for key, value in row.items()})
    return text.getvalue()


def write(found: Audit, source: Source, folder: Path) -> dict[str, Any]:
    """Write the files beside the run; what --json prints."""
    places = {"suspects": "suspects.csv", "noise": "noise.json", "gallery": "audit.html", "run": "run"}
    files = {name: str(folder / place) for name, place in places.items()}
    suspects, paths = found.suspects, source.paths
    rows = (
        {
            "index": int(found.index[i]), "path": paths.get(int(found.index[i]), ""), "given": str(found.given[i]),
            "suggested": str(found.suggested[i]), "score": float(f"{found.scores[i]:.6g}"),
            "p_wrong": float(f"{found.p_wrong[i]:.6g}"),
        }
        for i in suspects
    )  # fmt: skip
    write_text(folder / "suspects.csv", table(COLUMNS, rows))
    if source.unreadable:
        bad = [{"index": i, "reason": reason} for i, reason in source.unreadable.items()]
        write_text(folder / "unreadable.csv", table(("index", "reason"), bad))
        files["unreadable"] = str(folder / "unreadable.csv")
    names = [str(name) for name in found.classes]
    result = {
        "samples": len(found),
        "noise_rate": found.noise_rate,
        "interval": list(found.interval),
        "predicted": found.predicted,
        "learned_little": found.learned_little,
        "suspects": len(suspects),
        "unreadable": len(source.unreadable),
        "classes": names,
        "confusion": np.round(found.confusion, 6).tolist() if len(names) <= MATRIX else None,
        "pairs": [
            {"given": names[given], "suggested": names[suggested], "count": round(count, 2)}
            for given, suggested, count in found.noise.pairs(PAIRS)
        ],
        "files": files,
    }
    if found.wrong is not None:
        result["against_truth"] = against_truth(found.scores, found.wrong)
    write_json(folder / "noise.json", result)
    build(found, source, folder / "audit.html")
    return result
