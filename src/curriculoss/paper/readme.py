"""README.md of a folder of results: what was found in half a screen, then all tables, figures and claims."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from curriculoss._files import write_text
from curriculoss.data import DATA_SETS
from curriculoss.paper.artefacts import ARTEFACTS, Artefact
from curriculoss.paper.epochs import RunRecord, RunRecords, damaged
from curriculoss.paper.experiments import CE, CLEAN, FEW, MAE, MAE_SCALE, MANY, Cell, Row
from curriculoss.paper.inference import FAILS, HOLDS, UNDECIDED
from curriculoss.paper.scales import CPU, DEFAULT, Scale
from curriculoss.paper.starting_margins import num_classes
from curriculoss.paper.templates import fill
from curriculoss.report.groups import Mean

README = "README.md"
REMARKS = "differences.md"  # written by hand, unlike everything else
OPEN = "open, because runs are missing"
NOT_DONE = "Not all of its runs are done yet."
CLAIM_GROUPS = (HOLDS, FAILS, UNDECIDED, OPEN)
OTHER_PAGES = {
    "settings": f"how the settings of scale {CPU.name} were chosen",
    "auto": "AutoLoss beside losses with hyperparameters",
    "audit": "finding wrong labels",
    "language-model": "fine-tuning a language model with wrong tokens",
}
SUMMARIES = ("figure:summary-underfitting", "figure:summary-memorising", "figure:summary-fix")
PERCENT_OF: Mapping[str, Callable[[RunRecord], float | None]] = {
    "train": lambda run: run.last("train_accuracy"),
    "test": lambda run: run.last("test_accuracy"),
    "best": lambda run: max(value for value in run.curves["test_accuracy"] if value is not None),
    "wrong": lambda run: None if (share := run.last("accuracy_noisy")) is None else 100 * share,
}


def write_readme(folder: Path, records: RunRecords, planned: Collection[str]) -> Path:
    """Write the page from the files in `folder`; `planned` are the hashes of all runs of the scale."""
    found = _verdicts(folder / "claims.json")
    shown = {each: _shown(each, folder, records) for name, each in ARTEFACTS.items() if name not in SUMMARIES}
    page = fill(
        "readme.md",
        scale=records.scale,
        done=sum(name in records for name in planned),
        planned=len(planned),
        summaries=[ARTEFACTS[name] for name in SUMMARIES if (folder / f"{ARTEFACTS[name].stem}.png").exists()],
        sentences={name: sentence(name, records) for name in SUMMARIES},
        verdicts={verdict: [claim for each, claim in found if each == verdict] for verdict in CLAIM_GROUPS},
        count=len(found),
        pages={name: title for name, title in OTHER_PAGES.items() if (folder / name / README).exists()},
        sections={
            (title, endings): {each: text for each, text in shown.items() if text and each.kind == kind}
            for kind, title, endings in (
                ("table", "Tables", ("csv", "txt", "tex")),
                ("figure", "Figures", ("pdf", "svg")),
            )
        },
        claims=_without_title(folder / "claims.md"),
        commands={name: _command(each, records.scale) for name, each in ARTEFACTS.items()},
        remarks=_without_title(folder / REMARKS),
    )
    write_text(folder / README, page)
    return folder / README


def sentence(name: str, records: RunRecords) -> str:
    """What the runs of a summary figure show."""
    seeds, counts = ARTEFACTS[name].seeds(records.scale), set[int]()

    def mean(of: str, row: Row, data: str, noise: str = CLEAN, experiment: str = "") -> str:
        found = Mean.of(map(PERCENT_OF[of], records.seeds(Cell(row, data, noise, experiment), seeds)))
        counts.add(found.n)
        return "" if found.mean is None else f"{found.mean:.1f} %"

    classes = {data: num_classes(data, records.scale) for data in (FEW, MANY)}
    said = fill(
        "summaries", name=name, mean=mean, counts=counts, classes=classes, few=FEW, many=MANY, ce=CE, mae=MAE,
        scaled=MAE_SCALE,
    )  # fmt: skip
    return NOT_DONE if 0 in counts else said.strip()


def _verdicts(file: Path) -> list[tuple[str, str]]:
    """Verdict, or OPEN, and name of each claim; none if they have not been tested."""
    if not file.exists():
        return []
    try:
        results = json.loads(file.read_text("utf-8", errors="replace"))
        verdicts = [OPEN if each["missing"] else each["verdict"] for each in results]
        names = [f"({each['number']}) {each['claim']}" for each in results]
    except (ValueError, KeyError, TypeError):
        raise damaged(file, "it is not whole") from None
    return [*zip(verdicts, names, strict=True)]


def _command(artefact: Artefact, scale: Scale) -> str:
    """The command that makes an artefact, with the options it needs; figures without runs show initial margins."""
    read = {scale.spec(cell).data for cell in scale.shown(artefact.cells)}
    if artefact.kind == "figure" and not artefact.cells:
        read = {scale.data(role) for role in scale.settings if "/" not in role}
    options = "" if scale.name == DEFAULT.name else f" --scale {scale.name}"
    in_files = any(DATA_SETS[data].patterns for data in read)  # embedded data have none
    options += " --data-dir DATA" if in_files else ""
    return f"curriculoss reproduce {artefact.name}{options}"


def _shown(artefact: Artefact, folder: Path, records: RunRecords) -> str:
    """A table, or a link to a figure; empty if it has not been made."""
    if artefact.kind == "table":
        return _without_title(folder / f"{artefact.stem}.md")
    if artefact.kind != "figure" or not (folder / f"{artefact.stem}.png").exists():
        return ""
    run = not artefact.cells or any(map(records.of, records.scale.shown(artefact.cells)))
    return f"![{artefact.title}]({artefact.stem}.png)" if run else "None of its runs is done yet."


def _without_title(file: Path) -> str:
    """A file's text without its title and with headings one level down; empty if there is no such file."""
    if not file.exists():
        return ""
    lines = file.read_text("utf-8").strip().splitlines()
    if lines and lines[0].startswith("#"):
        lines = lines[1:]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines).strip()
