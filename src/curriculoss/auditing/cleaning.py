"""`clean`: a person's decisions applied to a copy of the data. The original is only read."""

import csv
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curriculoss._files import write, write_json
from curriculoss.auditing.audited_data import AuditedData, read_audited
from curriculoss.auditing.spreadsheets import from_cell, write_cells
from curriculoss.data import DataError, available
from curriculoss.data.files import reading
from curriculoss.data.tables import LABEL_COLUMNS

DECISIONS = ("keep", "fix", "drop")
CHANGE_COLUMNS = ("index", "path", "decision", "given", "label", "written")


@dataclass(frozen=True)
class Decision:
    """A decision about one sample."""

    index: int  # the sample's position in the input
    decision: str
    label: int  # the class that it has from now on


@dataclass(frozen=True)
class CleaningReport:
    """What `clean` did, as in cleaned.json.

    Attributes:
        data: The path to train on.
        samples_before: Number of samples in the input.
        samples: Number of samples that were written.
        keep: Number of labels that were confirmed.
        fix: Number of labels that were changed.
        drop: Number of samples that were left out by decision.
        unreadable_left_out: Number of samples that were left out because they could not be read.
        classes_left_empty: Classes without samples now.
        changes: The path of changes.csv, which has one row per decision.
    """

    data: str
    samples_before: int
    samples: int
    keep: int
    fix: int
    drop: int
    unreadable_left_out: int
    classes_left_empty: tuple[str, ...]
    changes: str


@dataclass(frozen=True, eq=False)
class Copy:
    """The data to write, and where to."""

    source: AuditedData
    path: Path
    out: Path
    labels: dict[int, int]  # the class of each sample that stays, by its position in the input
    place: Callable[[str, str], object]  # copies a file, or links it
    label_column: str | None

    def named(self, as_text: bool) -> list[Any]:
        """The classes of the samples that stay, as names or as numbers."""
        numbers = [self.labels[i] for i in sorted(self.labels)]
        return [self.source.dataset.class_names[number] for number in numbers] if as_text else numbers


def clean(
    data: Path | str,
    decisions: Path | str,
    out: Path | str,
    *,
    label: str | None = None,
    labels: Path | str | None = None,
    link: bool = False,
) -> CleaningReport:
    """Write a copy of the data with decisions applied.

    Args:
        data: The path that was audited.
        decisions: A .csv file with the columns index, decision and, where needed, path and label, as the gallery
            exports it.
        out: A new or empty folder.
        label: The label column of a table.
        labels: The labels of an .npy file.
        link: Make hard links to image files instead of copies.

    Raises:
        DataError: The data, the decisions or the folder cannot be used.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from curriculoss.auditing import clean
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table, decisions = Path(folder, "pets.csv"), Path(folder, "decisions.csv")
        ...     _ = table.write_text("height,label\\n20,cat\\n60,cat\\n55,dog\\n")
        ...     _ = decisions.write_text("index,path,decision,label\\n1,,fix,dog\\n")
        ...     report = clean(table, decisions, Path(folder, "cleaned"))
        ...     Path(report.data).read_text().split()
        ['height,label', '20,cat', '60,dog', '55,dog']
    """
    path, folder = Path(os.path.expanduser(data)), Path(os.path.expanduser(out))
    if not path.exists():
        hint = f"; {data} is a data set known by name, not a path" if str(data) in available() else ""
        raise DataError(f"{path}: no such file or folder{hint}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not an empty folder; give another")
    if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
        raise DataError(f"{folder} is inside {path}; give a folder outside")
    source = read_audited(path, labels, label=label)
    made = read_decisions(Path(os.path.expanduser(decisions)), source)
    dropped = {each.index for each in made if each.decision == "drop"}
    new = source.given | {each.index: each.label for each in made}
    stay = {i: number for i, number in new.items() if i not in dropped}
    empty = sorted(set(source.given.values()) - set(stay.values()))
    names = source.dataset.class_names
    if len(set(stay.values())) < 2:
        raise DataError(f"{decisions}: fewer than two classes would be left")
    if empty and source.dataset.train.paths is None and names == tuple(map(str, range(len(names)))):
        raise DataError(f"{decisions}: class {empty[0]} would be left without samples; training needs some of each")
    folder.mkdir(parents=True, exist_ok=True)
    copy = Copy(source, path, folder, stay, os.link if link else shutil.copyfile, label)
    written, places = WRITERS["folder" if path.is_dir() else path.suffix.lower()](copy)
    rows = [
        (
            each.index, source.paths.get(each.index, ""), each.decision, names[source.given[each.index]],
            "" if each.decision == "drop" else names[each.label], places.get(each.index, ""),
        )
        for each in made
    ]  # fmt: skip
    write_cells(folder / "changes.csv", CHANGE_COLUMNS, rows)
    report = CleaningReport(
        data=str(written), samples_before=len(source.given) + len(source.unreadable), samples=len(stay),
        **{name: sum(each.decision == name for each in made) for name in DECISIONS},
        unreadable_left_out=len(source.unreadable), classes_left_empty=tuple(names[i] for i in empty),
        changes=str(folder / "changes.csv"),
    )  # fmt: skip
    write_json(folder / "cleaned.json", asdict(report))
    return report


def read_decisions(path: Path, source: AuditedData) -> list[Decision]:
    """Read the decisions in a .csv file, and check each against the data."""
    with reading(path, "a CSV file"), path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, restkey=""))
        columns = set(rows[0]) if rows else {"index", "decision"}
    if not {"index", "decision"} <= columns:
        raise DataError(f"{path}: expected the columns index,path,decision,label, got {', '.join(map(str, columns))}")
    classes = {name: number for number, name in enumerate(source.dataset.class_names)}
    found: dict[int, Decision] = {}
    for line, row in enumerate(rows, 2):
        each = _decision(f"{path}: line {line}", row, source, classes)
        if each.index in found and found[each.index] != each:
            raise DataError(f"{path}: line {line}: sample {each.index} has contradictory decisions")
        found[each.index] = each
    return list(found.values())


def _decision(where: str, row: dict[str, Any], source: AuditedData, classes: dict[str, int]) -> Decision:
    text, choice = (row["index"] or "").strip(), (row["decision"] or "").strip().lower()
    if not text.isascii() or not text.isdigit() or int(text) not in source.given:
        why = "could not be read" if text.isdigit() and int(text) in source.unreadable else "is not in the data"
        raise DataError(f"{where}: sample {text[:40]!r} {why}")
    index = int(text)
    if choice not in DECISIONS:
        raise DataError(f"{where}: expected keep, fix or drop, got {choice[:40]!r}")
    path, label = from_cell(row.get("path") or ""), from_cell(row.get("label") or "")
    there = source.paths.get(index, path)
    if path and Path(path).parts[-2:] != Path(there).parts[-2:]:  # the data may have moved since
        raise DataError(f"{where}: sample {index} is {there}, not {path}: are these decisions on other data?")
    given = source.given[index]
    name = source.dataset.class_names[given]
    if choice == "keep" and label not in ("", name):
        raise DataError(f"{where}: keep contradicts the label {label!r}: sample {index} is given {name!r}")
    if choice != "fix":
        return Decision(index, choice, given)
    if not label or label not in classes:
        raise DataError(f"{where}: fix expects a label that is one of the classes, got {label!r}")
    if label == name:
        raise DataError(f"{where}: fix contradicts the label {label!r}, which sample {index} is given already")
    return Decision(index, choice, classes[label])


Written = tuple[Path, dict[int, str]]  # the path to train on, and where each image went


def _write_folders(copy: Copy) -> Written:
    """Write class folders, and copy the folders test and val beside train."""
    paths, names = copy.source.paths, copy.source.dataset.class_names
    first = Path(next(iter(paths.values()))).relative_to(copy.path).parts
    below = copy.path / "train" if first[0] == "train" and len(first) > 2 else copy.path  # as the reader has it
    places: dict[int, str] = {}
    taken: set[Path] = set()
    # Samples that stay in their class come first, so that they keep their file names.
    for i in sorted(copy.labels, key=lambda i: (copy.labels[i] != copy.source.given[i], i)):
        inside = Path(paths[i]).relative_to(below / names[copy.source.given[i]])
        new = copy.out / below.relative_to(copy.path) / names[copy.labels[i]] / inside
        plain, number = new, 2
        while new in taken:
            new, number = plain.with_name(f"{plain.stem}-{number}{plain.suffix}"), number + 1
        taken.add(new)
        new.parent.mkdir(parents=True, exist_ok=True)
        copy.place(paths[i], str(new))
        places[i] = str(new)
    if below != copy.path:
        for name in ("test", "val"):
            if (copy.path / name).is_dir():
                shutil.copytree(copy.path / name, copy.out / name)
    return copy.out, places


def _write_npz(copy: Copy) -> Written:
    """Write all arrays; x, y and y_clean without the dropped rows."""
    stay = np.array(sorted(copy.labels))
    with reading(copy.path, "a .npz file"), np.load(copy.path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    as_text = arrays["y"].dtype.kind in "SU"
    for name in {"x", "y", "y_clean"} & set(arrays):
        arrays[name] = arrays[name][stay]
    named = np.array(copy.named(as_text))
    arrays["y"] = named if as_text else named.astype(arrays["y"].dtype)
    out = copy.out / copy.path.name
    write(out, lambda file: np.savez(file, **arrays))
    return out, {}


def _write_npy(copy: Copy) -> Written:
    """Write samples and labels as one .npz file, which training reads."""
    classes = copy.source.classes
    if not np.array_equal(classes, np.arange(len(classes))):
        classes = classes.astype(str)  # names: class numbers start at 0 and have no holes
    out = copy.out / f"{copy.path.stem}.npz"
    values = np.load(copy.path, mmap_mode="r", allow_pickle=False)
    write(out, lambda file: np.savez(file, x=values[np.array(sorted(copy.labels))], y=classes[copy.named(False)]))
    return out, {}


def _label_column(copy: Copy, columns: Sequence[str]) -> str:
    return str(copy.label_column or next(name for name in LABEL_COLUMNS if name in columns))


def _write_csv(copy: Copy) -> Written:
    """Write rows as they are, but for changed labels."""
    with copy.path.open(encoding="utf-8-sig", newline="") as file:
        head, *rows = (row for row in csv.reader(file) if row)
    column = head.index(_label_column(copy, head))
    spelling = {number: rows[i][column] for i, number in copy.source.given.items()}  # class 1 may be 1, 01, 1.0 or true
    for i, number in copy.labels.items():
        if number != copy.source.given[i]:
            rows[i][column] = spelling[number]
    out = copy.out / copy.path.name
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *(rows[i] for i in sorted(copy.labels))])
    return out, _place_images(copy)


def _write_parquet(copy: Copy) -> Written:
    import pyarrow
    from pyarrow import parquet

    before = parquet.read_table(copy.path)
    name = _label_column(copy, before.column_names)
    kept = before.take(sorted(copy.labels))
    kind = before.schema.field(name).type
    plain = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    as_text = pyarrow.types.is_string(plain) or pyarrow.types.is_large_string(plain)
    values = pyarrow.array(copy.named(as_text)).cast(plain)
    out = copy.out / copy.path.name
    parquet.write_table(kept.set_column(kept.column_names.index(name), name, values), out)
    return out, _place_images(copy)


def _place_images(copy: Copy) -> dict[int, str]:
    """Copy the image files that a table names, which are relative to its folder."""
    base = copy.path.resolve().parent
    places = {}
    for i in sorted(copy.labels.keys() & copy.source.paths.keys()):
        new = copy.out / Path(copy.source.paths[i]).relative_to(base)
        places[i] = str(new)
        if not new.exists():  # two rows may name one file
            new.parent.mkdir(parents=True, exist_ok=True)
            copy.place(copy.source.paths[i], str(new))
    return places


WRITERS: dict[str, Callable[[Copy], Written]] = {
    "folder": _write_folders,
    ".npz": _write_npz,
    ".npy": _write_npy,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
