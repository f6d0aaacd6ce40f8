"""README.md of a folder of results: its tables, figures and claims as far as they are made, then what differs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from curriculoss.data import ABOUT
from curriculoss.paper.artefacts import ARTEFACTS, Artefact
from curriculoss.paper.records import Records, damaged
from curriculoss.paper.settings import Scale
from curriculoss.training.store import write_text

NAME = "README.md"
REMARKS = "differences.md"  # written by people, the only part that is


def write(folder: Path, records: Records, planned: Collection[str]) -> Path:
    """From the files that are there; each artefact says the command that made it. `planned` are hashes of runs."""
    scale = records.scale
    parts = [
        f"# The paper again, at scale `{scale.name}`",
        _so_far(folder, sum(name in records for name in planned), len(planned)),
        "Made by `curriculoss reproduce`, which writes this page anew with each artefact. Every number of ours in the "
        "tables is from the last epoch and has its n; the paper's stand beside them. What runs have shown is in "
        "[epochs.csv](epochs.csv), one row an epoch; margins before training, once measured, in initial-margins.csv; "
        "formulae, and the gradients of claim 1, are the code's.",
    ]
    for kind, title in (("table", "Tables"), ("figure", "Figures")):
        made = [_part(each, folder, records) for each in ARTEFACTS.values() if each.kind == kind]
        if any(made):
            parts += [f"## {title}", *(part for part in made if part)]
    for file, title in (("claims.md", "Claims"), (REMARKS, "What differs from the paper, and why")):
        if (folder / file).exists():
            command = [_command(ARTEFACTS["claims"], scale)] if file == "claims.md" else []
            parts += [f"## {title}", *command, _without_title((folder / file).read_text("utf-8"))]
    path = folder / NAME
    write_text(path, "\n\n".join(part.strip() for part in parts) + "\n")
    return path


def _so_far(folder: Path, done: int, planned: int) -> str:
    said = f"**So far:** {done} of {planned} runs." if done < planned else f"All {planned} runs are done."
    if (file := folder / "claims.json").exists():
        try:
            verdicts = Counter(each["verdict"] for each in json.loads(file.read_text("utf-8", errors="replace")))
        except (ValueError, KeyError, TypeError):
            raise damaged(file, "it is not whole") from None
        said += f" Claims by verdict: {', '.join(f'{verdict} {count}' for verdict, count in verdicts.items())}."
    return said


def _command(artefact: Artefact, scale: Scale) -> str:
    """With the options that it does not go without. Figures without runs show margins before training."""
    read = {scale.spec(cell).data for cell in artefact.cells if scale.has(cell)}
    if artefact.kind == "figure" and not artefact.cells:
        read = {str(base["data"]) for base in scale.base.values() if "data" in base}
    options = "" if scale.name == "cpu" else f" --scale {scale.name}"
    options += " --data-dir DATA" if any(ABOUT[data][1] for data in read) else ""  # embedded ones have no files
    return f"`curriculoss reproduce {artefact.name}{options}`"


def _part(artefact: Artefact, folder: Path, records: Records) -> str:
    """A table as it is, a figure as a picture, with its command; empty if it is not made yet."""
    stem = artefact.stem
    if (folder / f"{stem}.md").exists():
        shown = _without_title((folder / f"{stem}.md").read_text("utf-8"))
        others = ["csv", "txt", "tex"]
    elif (folder / f"{stem}.png").exists():
        run = not artefact.cells or any(records.scale.has(cell) and records.of(cell) for cell in artefact.cells)
        shown = f"![{artefact.title}]({stem}.png)" if run else "None of its runs is done yet."
        others = ["pdf", "svg"]
    else:
        return ""
    links = ", ".join(f"[{ending}]({stem}.{ending})" for ending in others)
    head = f"### {artefact.title[0].upper()}{artefact.title[1:]}"
    return f"{head}\n\n{_command(artefact, records.scale)} ({artefact.source}; {links})\n\n{shown}"


def _without_title(text: str) -> str:
    """Titles are this page's; those below go one level down."""
    lines = text.strip().splitlines()
    if lines and lines[0].startswith("#"):
        lines = lines[1:]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines).strip()
