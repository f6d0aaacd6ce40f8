"""`clean`: a person's decisions applied to a copy of the data. The original is only read."""

import csv
import io
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curriculoss._files import write, write_json, write_text
from curriculoss.auditing.audited_data import AuditedData, read_audited
from curriculoss.auditing.spreadsheets import from_cell, write_cells
from curriculoss.data import DataError, available
from curriculoss.data.files import reading
from curriculoss.data.loading import CHANGES, FOLDER, only_file
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

    @property
    def rows(self) -> list[int]:
        """The positions of the samples that stay."""
        return sorted(self.labels)

    @property
    def label_rows(self) -> list[int]:
        """For each of `rows`, a row that has the wanted label as the file spells it, such as 1, 01, 1.0 or true."""
        given = self.source.given
        examples = {number: i for i, number in given.items()}
        return [i if self.labels[i] == given[i] else examples[self.labels[i]] for i in self.rows]


def clean(
    data: Path | str, decisions: Path | str, out: Path | str, *, label: str | None = None,
    labels: Path | str | None = None, link: bool = False,
) -> CleaningReport:  # fmt: skip
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
    path, kind = only_file(path)
    source = read_audited(path, labels, label=label)
    made = read_decisions(Path(os.path.expanduser(decisions)), source)
    stay = source.given | {each.index: each.label for each in made}
    for each in made:
        if each.decision == "drop":
            del stay[each.index]
    empty = sorted(set(source.given.values()) - set(stay.values()))
    names = source.dataset.class_names
    if len(set(stay.values())) < 2:
        raise DataError(f"{decisions}: fewer than two classes would be left")
    numbered = source.dataset.train.paths is None and names == tuple(map(str, range(len(names))))
    if empty and (numbered or _has_class_names(path)):
        raise DataError(
            f"{decisions}: class {names[empty[0]]} would be left without samples; training needs some of each"
        )
    folder.mkdir(parents=True, exist_ok=True)
    copy = Copy(source, path, folder, stay, os.link if link else shutil.copyfile, label)
    if kind == FOLDER:
        written, places = folder, _write_folders(copy)
    else:
        written, places = WRITERS[kind](copy), _place_images(copy)
    rows = [
        (
            each.index, source.paths.get(each.index, ""), each.decision, names[source.given[each.index]],
            "" if each.decision == "drop" else names[each.label], places.get(each.index, ""),
        )
        for each in made
    ]  # fmt: skip
    write_cells(folder / CHANGES, CHANGE_COLUMNS, rows)
    report = CleaningReport(
        data=str(written), samples_before=len(source.given) + len(source.unreadable), samples=len(stay),
        **{name: sum(each.decision == name for each in made) for name in DECISIONS},
        unreadable_left_out=len(source.unreadable), classes_left_empty=tuple(names[i] for i in empty),
        changes=str(folder / CHANGES),
    )  # fmt: skip
    write_json(folder / "cleaned.json", asdict(report))
    return report


def _has_class_names(path: Path) -> bool:
    """Whether a file says which classes there are, not only which ones its samples have."""
    if path.suffix.lower() != ".npz":
        return False
    with np.load(path, allow_pickle=False) as archive:
        return "class_names" in archive.files


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


def _write_folders(copy: Copy) -> dict[int, str]:
    """Write class folders, and copy the folders test and val beside train. Returns where each image went."""
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
    return places


def _write_npz(copy: Copy) -> Path:
    with reading(copy.path, "a .npz file"), np.load(copy.path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return _write_arrays(copy, arrays)


def _write_npy(copy: Copy) -> Path:
    """Write samples and labels as one .npz file, which training reads."""
    classes = copy.source.classes
    if not np.array_equal(classes, np.arange(len(classes))):
        classes = classes.astype(str)  # names: class numbers start at 0 and have no holes
    samples = np.load(copy.path, mmap_mode="r", allow_pickle=False)
    return _write_arrays(copy, {"x": samples, "y": classes[list(copy.source.given.values())]})


def _write_arrays(copy: Copy, arrays: dict[str, NDArray[Any]]) -> Path:
    """Write x, y and y_clean without the dropped rows, and other arrays as they are."""
    chosen = {"x": copy.rows, "y": copy.label_rows, "y_clean": copy.rows}
    kept: Any = {name: array[chosen[name]] if name in chosen else array for name, array in arrays.items()}
    out = copy.out / f"{copy.path.stem}.npz"
    write(out, lambda file: np.savez(file, **kept))
    return out


def _label_column(copy: Copy, columns: Sequence[str]) -> str:
    return str(copy.label_column or next(name for name in LABEL_COLUMNS if name in columns))


def _write_csv(copy: Copy) -> Path:
    """Write rows as they are, but for changed labels."""
    with copy.path.open(encoding="utf-8-sig", newline="") as file:
        head, *rows = (row for row in csv.reader(file) if row)
    column = head.index(_label_column(copy, head))
    labels = [rows[i][column] for i in copy.label_rows]
    kept = [[*rows[i][:column], label, *rows[i][column + 1 :]] for i, label in zip(copy.rows, labels, strict=True)]
    out, text = copy.out / copy.path.name, io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *kept])
    write_text(out, text.getvalue())
    return out


def _write_parquet(copy: Copy) -> Path:
    from pyarrow import parquet

    before = parquet.read_table(copy.path)
    name = _label_column(copy, before.column_names)
    column = before.column_names.index(name)
    kept = before.take(copy.rows).set_column(column, before.field(name), before[name].take(copy.label_rows))
    out = copy.out / copy.path.name
    write(out, lambda file: parquet.write_table(kept, file), buffered=True)
    return out


def _place_images(copy: Copy) -> dict[int, str]:
    """Copy the image files that a table names, which are relative to its folder. Returns where each went."""
    base = copy.path.resolve().parent
    places = {}
    for i in sorted(copy.labels.keys() & copy.source.paths.keys()):
        new = copy.out / Path(copy.source.paths[i]).relative_to(base)
        places[i] = str(new)
        if not new.exists():  # two rows may name one file
            new.parent.mkdir(parents=True, exist_ok=True)
            copy.place(copy.source.paths[i], str(new))
    return places


WRITERS = {".npz": _write_npz, ".npy": _write_npy, ".csv": _write_csv, ".parquet": _write_parquet}
