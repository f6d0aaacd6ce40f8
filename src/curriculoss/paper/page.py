"""README.md of a folder of results: its tables, figures and claims as far as they are made, then what differs."""

from __future__ import annotations

from pathlib import Path

from curriculoss.paper.artefacts import ARTEFACTS, Artefact
from curriculoss.paper.settings import Scale
from curriculoss.training.store import write_text

NAME = "README.md"
REMARKS = "differences.md"  # written by people, the only part that is


def write(folder: Path, scale: Scale) -> Path:
    """From the files that are there; each artefact says the command that made it."""
    parts = [
        f"# The paper again, at scale `{scale.name}`",
        "Made by `curriculoss reproduce`, which writes this page anew with each artefact. Every number of ours is from "
        "the last epoch and has its n; the paper's stand beside them. All come from [epochs.csv](epochs.csv), which "
        "has one row an epoch of every run.",
    ]
    for kind, title in (("table", "Tables"), ("figure", "Figures")):
        made = [_part(each, folder) for each in ARTEFACTS.values() if each.kind == kind]
        if any(made):
            parts += [f"## {title}", *(part for part in made if part)]
    for file, title in (("claims.md", "Claims"), (REMARKS, "What differs from the paper, and why")):
        if (folder / file).exists():
            parts += [f"## {title}", _without_title((folder / file).read_text("utf-8"))]
    path = folder / NAME
    write_text(path, "\n\n".join(part.strip() for part in parts) + "\n")
    return path


def _part(artefact: Artefact, folder: Path) -> str:
    """A table as it is, a figure as a picture, with its command; empty if it is not made yet."""
    stem = artefact.stem
    if (folder / f"{stem}.md").exists():
        shown = _without_title((folder / f"{stem}.md").read_text("utf-8"))
        others = ["csv", "txt", "tex"]
    elif (folder / f"{stem}.png").exists():
        shown = f"![{artefact.title}]({stem}.png)"
        others = ["pdf", "svg"]
    else:
        return ""
    links = ", ".join(f"[{ending}]({stem}.{ending})" for ending in others)
    head = f"### {artefact.title[0].upper()}{artefact.title[1:]}"
    return f"{head}\n\n`curriculoss reproduce {artefact.name}` ({artefact.source}; {links})\n\n{shown}"


def _without_title(text: str) -> str:
    """Titles are this page's; those below go one level down."""
    lines = text.strip().splitlines()
    if lines and lines[0].startswith("# "):
        lines = lines[1:]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines).strip()
