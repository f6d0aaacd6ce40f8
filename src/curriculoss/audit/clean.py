"""`clean`: a person's decisions applied to a copy of the data. The original is only read."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curriculoss import data as engine
from curriculoss.audit.output import table, unsafe
from curriculoss.audit.reading import Source, read, read_labels
from curriculoss.data import DataError
from curriculoss.data.files import reading
from curriculoss.data.tables import LABELS
from curriculoss.training.store import write, write_json, write_text

DECISIONS = ("keep", "fix", "drop")
COLUMNS = ("index", "path", "decision", "given", "label", "written")


@dataclass(frozen=True)
class Decision:
    index: int  # the sample's place in the input
    decision: str
    label: int  # the class that it has from now on


@dataclass(frozen=True, eq=False)
class Work:
    """What a writer needs: the data, what is dropped and what each remaining sample is now."""

    source: Source
    path: Path
    out: Path
    labels: dict[int, int]  # place in the input → class, of samples that stay
    place: Callable[[str, str], None]  # copies a file, or links it
    options: dict[str, Any]


def clean(
    data: Path | str, decisions: Path | str, out: Path | str, *, label: str | None = None,
    labels: Path | str | None = None, link: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write the data with decisions applied to the new or empty folder `out`, and say what was done."""
    path, folder = Path(os.path.expanduser(data)), Path(os.path.expanduser(out))
    if not path.exists():
        hint = f"; {data} is a data set known by name, not a path" if str(data) in engine.available() else ""
        raise DataError(f"{path}: no such file or folder{hint}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not an empty folder; give another")
    if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
        raise DataError(f"{folder} is inside {path}; give a folder outside")
    source = read(path, labels, label=label)
    wanted = read_decisions(Path(os.path.expanduser(decisions)), source)
    now = dict(zip(source.index.tolist(), source.dataset.train.target.tolist(), strict=True))
    given = dict(now)
    for each in wanted:
        if each.decision == "drop":
            del now[each.index]
        else:
            now[each.index] = each.label
    empty = sorted(set(given.values()) - set(now.values()))
    if len(set(now.values())) < 2:
        raise DataError(f"{decisions}: fewer than two classes would be left")
    if empty and source.dataset.train.paths is None and source.dataset.class_names == _numbered(source):
        raise DataError(f"{decisions}: class {empty[0]} would be left without samples; training needs some of each")
    folder.mkdir(parents=True, exist_ok=True)
    kind = "folder" if path.is_dir() else path.suffix.lower()
    work = Work(source, path, folder, now, os.link if link else _copy, {"label": label, "labels": labels})
    written, where = WRITERS[kind](work)
    names = [str(name) for name in source.dataset.class_names]
    rows = [
        {
            "index": each.index, "path": source.paths.get(each.index, ""), "decision": each.decision,
            "given": names[given[each.index]], "label": "" if each.decision == "drop" else names[each.label],
            "written": where.get(each.index, ""),
        }
        for each in wanted
    ]  # fmt: skip
    write_text(folder / "changes.csv", table(COLUMNS, rows))
    report = {
        "data": str(written), "samples_before": len(given) + len(source.unreadable), "samples": len(now),
        **{name: sum(each.decision == name for each in wanted) for name in DECISIONS},
        "unreadable_left_out": len(source.unreadable), "classes_left_empty": [names[i] for i in empty],
        "changes": str(folder / "changes.csv"),
    }  # fmt: skip
    write_json(folder / "cleaned.json", report)
    return report


def _numbered(source: Source) -> tuple[str, ...]:
    return tuple(map(str, range(source.dataset.num_classes)))


def _copy(old: str, new: str) -> None:
    shutil.copyfile(old, new)


def read_decisions(path: Path, source: Source) -> list[Decision]:
    """The rows of a .csv file with index, decision and perhaps path and label; each is checked against the data."""
    with reading(path, "CSV file"), path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, restkey=""))
        columns = set(rows[0]) if rows else {"index", "decision"}
    if not {"index", "decision"} <= columns:
        raise DataError(f"{path}: expected the columns index,path,decision,label, got {', '.join(map(str, columns))}")
    classes = {str(name): number for number, name in enumerate(source.dataset.class_names)}
    places = {int(index): position for position, index in enumerate(source.index)}
    found: dict[int, Decision] = {}
    for line, row in enumerate(rows, 2):
        each = _decision(f"{path}: line {line}", row, source, classes, places)
        if each.index in found and found[each.index] != each:
            raise DataError(f"{path}: line {line}: sample {each.index} has contradictory decisions")
        found[each.index] = each
    return list(found.values())


def _decision(
    where: str, row: dict[str, Any], source: Source, classes: dict[str, int], places: dict[int, int]
) -> Decision:
    text, choice = (row["index"] or "").strip(), (row["decision"] or "").strip().lower()
    if not text.isascii() or not text.isdigit() or int(text) not in places:
        why = "could not be read" if text.isdigit() and int(text) in source.unreadable else "is not in the data"
        raise DataError(f"{where}: sample {text[:40]!r} {why}")
    index = int(text)
    if choice not in DECISIONS:
        raise DataError(f"{where}: expected keep, fix or drop, got {choice[:40]!r}")
    path, label = unsafe(row.get("path") or ""), unsafe(row.get("label") or "")
    there = source.paths.get(index, path)
    if path and Path(path).parts[-2:] != Path(there).parts[-2:]:  # the folder may have moved, its files may not
        raise DataError(f"{where}: sample {index} is {there}, not {path}: are these decisions on other data?")
    given = int(source.dataset.train.target[places[index]])
    name = str(source.dataset.class_names[given])
    if choice == "drop":
        return Decision(index, choice, given)
    if choice == "keep":
        if label not in ("", name):
            raise DataError(f"{where}: keep contradicts the label {label!r}: sample {index} is given {name!r}")
        return Decision(index, choice, given)
    if not label or label not in classes:
        raise DataError(f"{where}: fix expects a label that is one of the classes, got {label!r}")
    if label == name:
        raise DataError(f"{where}: fix contradicts the label {label!r}, which sample {index} is given already")
    return Decision(index, choice, classes[label])


Written = tuple[Path, dict[int, str]]  # what to train on, and where each sample went


def _tree(work: Work) -> Written:
    """Class folders; what is beside train, such as test, comes along."""
    paths, names = work.source.paths, work.source.dataset.class_names
    target = work.source.dataset.train.target
    first = Path(next(iter(paths.values()))).relative_to(work.path).parts
    below = work.path / "train" if first[0] == "train" and len(first) > 2 else work.path  # as the reader has it
    old = {int(i): names[int(c)] for i, c in zip(work.source.index, target, strict=True)}
    where: dict[int, str] = {}
    taken: set[Path] = set()
    # Those that stay where they are keep their names.
    for i in sorted(work.labels, key=lambda i: (names[work.labels[i]] != old[i], i)):
        inside = Path(paths[i]).relative_to(below / old[i])
        new = work.out / below.relative_to(work.path) / names[work.labels[i]] / inside
        plain, number = new, 2
        while new in taken:
            new, number = plain.with_name(f"{plain.stem}-{number}{plain.suffix}"), number + 1
        taken.add(new)
        new.parent.mkdir(parents=True, exist_ok=True)
        work.place(paths[i], str(new))
        where[i] = str(new)
    if below != work.path:
        for name in ("test", "val"):
            if (work.path / name).is_dir():
                shutil.copytree(work.path / name, work.out / name)
    return work.out, where


def _npz(work: Work) -> Written:
    """All arrays; of x, y and y_clean the rows that stay."""
    stay = np.array(sorted(work.labels))
    with reading(work.path, ".npz file"), np.load(work.path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    text = arrays["y"].dtype.kind in "SU"
    named = [work.source.dataset.class_names[work.labels[i]] if text else work.labels[i] for i in stay]
    for name in {"x", "y", "y_clean"} & set(arrays):
        arrays[name] = arrays[name][stay]
    arrays["y"] = np.array(named) if text else np.array(named).astype(arrays["y"].dtype)
    out = work.out / work.path.name
    write(out, lambda file: np.savez(file, **arrays))
    return out, {}


def _npy(work: Work) -> Written:
    """An .npz file of both, which training reads."""
    stay = np.array(sorted(work.labels))
    given = work.options["labels"]
    assert given is not None  # they were read
    classes = np.unique(read_labels(Path(os.path.expanduser(given))))
    if not np.array_equal(classes, np.arange(len(classes))):
        classes = classes.astype(str)  # names, as numbers of classes begin at 0 and leave out none
    out = work.out / f"{work.path.stem}.npz"
    now = np.array([work.labels[i] for i in stay])
    values = np.load(work.path, mmap_mode="r", allow_pickle=False)
    write(out, lambda file: np.savez(file, x=values[stay], y=classes[now]))
    return out, {}


def _label_column(work: Work, columns: Sequence[str]) -> str:
    return str(work.options["label"] or next(name for name in LABELS if name in columns))


def _csv(work: Work) -> Written:
    """Line by line, so that all else stays as it is written."""
    with work.path.open(encoding="utf-8-sig", newline="") as file:
        head, *rows = (row for row in csv.reader(file) if row)
    column = head.index(_label_column(work, head))
    given = dict(zip(work.source.index.tolist(), work.source.dataset.train.target.tolist(), strict=True))
    written = {number: rows[i][column] for i, number in given.items()}  # a class may be 1, 01, 1.0 or true there
    for i, number in work.labels.items():
        if number != given[i]:
            rows[i][column] = written[number]
    out = work.out / work.path.name
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *(rows[i] for i in sorted(work.labels))])
    return out, _pictures(work)


def _parquet(work: Work) -> Written:
    import pyarrow
    from pyarrow import parquet

    before = parquet.read_table(work.path)
    stay = sorted(work.labels)
    name = _label_column(work, before.column_names)
    kept = before.take(stay)
    kind = before.schema.field(name).type
    plain = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    text = pyarrow.types.is_string(plain) or pyarrow.types.is_large_string(plain)
    names = work.source.dataset.class_names
    values = pyarrow.array([names[work.labels[i]] if text else work.labels[i] for i in stay])
    out = work.out / work.path.name
    parquet.write_table(kept.set_column(kept.column_names.index(name), name, values.cast(plain)), out)
    return out, _pictures(work)


def _pictures(work: Work) -> dict[int, str]:
    """The image files of a table, which names them from its own folder."""
    base = work.path.resolve().parent
    where = {}
    for i in sorted(work.labels.keys() & work.source.paths.keys()):
        new = work.out / Path(work.source.paths[i]).relative_to(base)
        where[i] = str(new)
        if not new.exists():  # two rows may name one file
            new.parent.mkdir(parents=True, exist_ok=True)
            work.place(work.source.paths[i], str(new))
    return where


WRITERS: dict[str, Callable[[Work], Written]] = {
    "folder": _tree,
    ".npz": _npz,
    ".npy": _npy,
    ".csv": _csv,
    ".parquet": _parquet,
}
