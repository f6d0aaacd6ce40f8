"""The paper's tables of results: what our runs show, over seeds, beside what it prints."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from curriculoss.curricula import Curriculum
from curriculoss.paper.artefacts import Artefact
from curriculoss.paper.published import Published, find, published
from curriculoss.paper.records import Record, Records, Sample
from curriculoss.paper.render import Column, Line, Table
from curriculoss.paper.settings import CE, CLEAN, NCE_MAE, NCE_MAE_UNIT, WEBVISION, Cell, Row, Scale
from curriculoss.training.spec import RunSpec

NOT_HERE, NOT_RUN = "not here", "not run"
DIGITS = 6  # after the point, in CSV files
ALPHA_UNIT = 1e4  # α_t is printed as so many times the effective learning rate
ACCURACIES = ("train_accuracy", "test_accuracy")
DIFF = "diff"

VALUES: Mapping[str, Callable[[Record], float | None]] = {
    "train_accuracy": lambda run: run.last("train_accuracy"),
    "test_accuracy": lambda run: run.last("test_accuracy"),
    "alpha_t": lambda run: None if (rate := run.last("effective_learning_rate")) is None else ALPHA_UNIT * rate,
    "snr": lambda run: run.last("snr"),
}
WORDS = {
    "train_accuracy": "train accuracy",
    "test_accuracy": "test accuracy",
    "alpha_t": "α_t × 10⁴",
    DIFF: "diff",
    "snr": "snr",
}  # in the order of the paper's columns
UNITS = {
    "train_accuracy": "train accuracy, in percent",
    "test_accuracy": "test accuracy, in percent",
    "alpha_t": "α_t, the effective learning rate from the first step on, times 10⁴ (erratum 5)",
    DIFF: "diff, test accuracy with noise minus that with clean labels, in points",
    "snr": "snr, mean weight of clean samples over that of noisy ones",
}
PLACES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    **{name: name.replace("webvision-", "WebVision ") for name in WEBVISION},
}
COLUMNS = (
    *("row", "data", "noise", "measure", "tau", "n", "mean", "std", "best"),
    *("paper", "paper_std", "difference", "remark"),
)


@dataclass(frozen=True)
class Entry:
    """One number of a table: ours over seeds, and the paper's."""

    cell: Cell
    measure: str
    ours: Sample
    best: float | None  # of the run with the best test accuracy; for `diff`, the best with noise minus the best without
    printed: Published | None
    bound: bool = False  # ours is a bound from above
    missing: str = ""  # why there is nothing of ours

    @property
    def row(self) -> str:
        return self.cell.row.name

    @property
    def data(self) -> str:
        return self.cell.data

    @property
    def noise(self) -> str:
        return _noise(self.cell)

    @property
    def tau(self) -> float | None:
        return self.cell.row.tau_for(self.cell.noise)

    @property
    def n(self) -> int:
        return self.ours.n

    @property
    def mean(self) -> float | None:
        return self.ours.mean

    @property
    def std(self) -> float | None:
        return self.ours.std

    @property
    def paper(self) -> float | None:
        return None if self.printed is None else self.printed.mean

    @property
    def paper_std(self) -> float | None:
        return None if self.printed is None else self.printed.std

    @property
    def of_best(self) -> bool:
        """Whether the paper prints the best of its runs, so that our best is what may be compared."""
        return self.printed is not None and self.printed.statistic == "best"

    @property
    def difference(self) -> float | None:
        ours = self.best if self.of_best else self.mean
        return None if ours is None or self.paper is None else ours - self.paper

    @property
    def from_other_paper(self) -> bool:
        return self.printed is not None and self.printed.from_other_paper

    @property
    def remark(self) -> str:
        said = {
            self.missing: bool(self.missing),
            "not in the paper": self.cell.row.ours,
            "paper's from Zhou et al.": self.from_other_paper,
            "bound from above": self.bound,
        }
        return "; ".join(words for words, holds in said.items() if holds)

    def as_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in COLUMNS}
        return {name: round(value, DIGITS) if isinstance(value, float) else value for name, value in plain.items()}


def entries(artefact: Artefact, records: Records, seeds: int) -> list[Entry]:
    """One for each number that the paper's table has, and for its measures of rows that are ours."""
    return [
        _entry(artefact, cell, measure, records, seeds)
        for cell in artefact.cells
        for measure in _measures(artefact.source, cell)
    ]


def _noise(cell: Cell) -> str:
    """As published.csv has it: WebVision brings its own."""
    return "" if cell.data in WEBVISION else cell.noise


def _measures(source: str, cell: Cell) -> list[str]:
    """What the paper reports of any loss there."""
    where = (source, cell.data, _noise(cell))
    shown = {each.measure for each in published() if (each.source, each.data, each.noise) == where}
    return [measure for measure in WORDS if measure in shown]


def _entry(artefact: Artefact, cell: Cell, measure: str, records: Records, seeds: int) -> Entry:
    row, scale = cell.row, records.scale
    printed = find(artefact.source, row=row.name, noise=_noise(cell), data=cell.data, measure=measure)
    if not scale.has(cell):
        return Entry(cell, measure, Sample(()), None, printed, missing=NOT_HERE)
    sample, best = _drop(cell, records, seeds) if measure == DIFF else _measured(cell, measure, records, seeds)
    bound = measure == "alpha_t" and not isinstance(scale.spec(cell).make_loss(), Curriculum)
    return Entry(cell, measure, sample, best, printed, bound, "" if sample.n else NOT_RUN)


def _measured(cell: Cell, measure: str, records: Records, seeds: int) -> tuple[Sample, float | None]:
    runs = records.seeds(cell, seeds)
    known = [(_test_accuracy(run), value) for run in runs if (value := VALUES[measure](run)) is not None]
    best = max(known, default=(0.0, None))[1]
    return Sample(tuple(value for _, value in known)), best


def _drop(cell: Cell, records: Records, seeds: int) -> tuple[Sample, float | None]:
    """Test accuracy with noise minus that without, seed by seed."""
    clean = replace(cell, noise=CLEAN)
    pairs = [
        (_test_accuracy(noisy), _test_accuracy(other))
        for seed in range(seeds)
        if (noisy := records.of(cell, seed)) and (other := records.of(clean, seed))
    ]
    if not pairs:
        return Sample(()), None
    with_noise, without = zip(*pairs, strict=True)
    return Sample(tuple(a - b for a, b in pairs)), max(with_noise) - max(without)


def _test_accuracy(run: Record) -> float:
    value = run.last("test_accuracy")
    assert value is not None, f"run {run.hash} has no test accuracy"  # every data set here has test samples
    return value


def table(artefact: Artefact, records: Records, seeds: int) -> Table:
    """Losses as rows, conditions as columns."""
    found = entries(artefact, records, seeds)
    n = max(entry.n for entry in found)
    by_place = {(entry.row, entry.data, entry.noise, entry.measure): entry for entry in found}
    places = list(dict.fromkeys((entry.data, entry.noise, entry.measure) for entry in found))
    lines = [
        Line(_label(row, found), tuple(_shown(by_place[row, *place], n) for place in places))
        for row in dict.fromkeys(entry.row for entry in found)
    ]
    notes = [*_notes(artefact, records.scale, found, n)]
    if any("erratum" in note for note in notes):
        notes.append("Errata are numbered as in docs/deviations.md.")
    return Table(
        artefact.name,
        artefact.title,
        artefact.source,
        tuple(_columns(places, records.scale)),
        tuple(lines),
        tuple(notes),
        tuple(entry.as_dict() for entry in found),
        records.scale.name,
        n,
        seeds if any(map(records.scale.has, artefact.cells)) else 0,
    )


def _columns(places: Sequence[tuple[str, str, str]], scale: Scale) -> Iterator[Column]:
    """`symmetric` over 0.4 and 0.8; where there are several measures, `symmetric 0.4` over those."""
    several_data, several_measures = (len({place[at] for place in places}) > 1 for at in (0, 2))
    for data, noise, measure in places:
        where = _called(data, scale) if several_data else noise.replace(":", " ")
        if several_measures:
            yield Column(WORDS[measure], where)
        else:
            group, _, name = where.rpartition(" ")
            yield Column(name, group)


def _called(data: str, scale: Scale) -> str:
    """`CIFAR-10`, or `digits for CIFAR-10`."""
    used = scale.base.get(data, {}).get("data", data)
    return PLACES[data] if used == data else f"{used} for {PLACES[data]}"


def _label(row: str, found: Sequence[Entry]) -> str:
    some = [entry for entry in found if entry.row == row]
    return row + "‡" * any(entry.from_other_paper for entry in some) + "*" * some[0].cell.row.ours


def _shown(entry: Entry, n: int) -> tuple[str, ...]:
    """`38.83 ± 0.41`, then `(70.97, −32.14)`: the paper's and the difference from it."""
    if entry.mean is None:
        ours = entry.missing
    else:
        spread = "" if entry.std is None else f" ± {entry.std:.2f}"
        count = "" if entry.n == n else f", n={entry.n}"
        ours = f"{'≤ ' * entry.bound}{_number(entry.mean)}{spread}{count}"
    lines = [ours]
    if entry.of_best and entry.best is not None:
        lines.append(f"best {_number(entry.best)}")
    paper = "/" if entry.paper is None else _number(entry.paper)
    difference = "" if entry.difference is None else f", {_number(entry.difference, '+')}"
    lines.append(f"({paper}{difference})")
    if entry.tau is not None:
        lines.append(f"τ = {entry.tau:g}")
    return tuple(lines)


def _number(value: float, sign: str = "-") -> str:
    return f"{value:{sign}.2f}".replace("-", "−")


def _notes(artefact: Artefact, scale: Scale, found: Sequence[Entry], n: int) -> Iterator[str]:
    yield from _stand_ins(artefact, scale)
    measures = {entry.measure for entry in found}
    yield f"Shown: {'; '.join(words for measure, words in UNITS.items() if measure in measures)}."
    if n:
        spread = "mean ± standard deviation over seeds" if n > 1 else "of one seed, so without a standard deviation"
        yield f"Ours: after the last epoch, never the best one; {spread}; n = {n} unless a cell says otherwise."
    compared = ", and ours minus it" if any(entry.difference is not None for entry in found) else ""
    yield f"In brackets: the paper's number, {_statistic(found)}{compared}; / where it has none."
    if any(entry.of_best for entry in found):
        yield (
            "As the paper's are, the difference is of the best of n: of the run with the best test accuracy; for diff, "
            "of the best with noise minus the best without."
        )
    params = {entry.row: _params(entry.cell.row) for entry in found if entry.cell.row.params}
    if params:
        yield f"Hyperparameters: {'; '.join(f'{row} {told}' for row, told in params.items())}."
    marks = {
        "The paper has several numbers for shifted MAE, and for MAE and AGCE with clean labels: beside ours are those "
        "of this table (erratum 9).": any(entry.data == "cifar100" for entry in found),
        "† has inferior hyperparameters, as in the paper.": any("†" in entry.row for entry in found),
        "‡: the paper took its numbers from Zhou et al. (ICML 2021).": any(entry.from_other_paper for entry in found),
        "* is not in the paper.": any(entry.cell.row.ours for entry in found),
        "≤: a loss with a second term has no weight function. Ours goes through a bound on its gradient, for NCE the "
        "corrected one (erratum 4); the paper prints /.": any(entry.bound for entry in found),
        "τ of shift and scale: as the paper tuned it.": any(entry.tau is not None for entry in found),
        f"{NOT_HERE}: this scale has nothing that stands for it.": any(entry.missing == NOT_HERE for entry in found),
        f"{NOT_RUN}: its runs are still to come.": any(entry.missing == NOT_RUN for entry in found),
    }
    yield from (note for note, holds in marks.items() if holds)
    yield from _closer(found)


def _params(row: Row) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in row.params.items())


def _statistic(found: Sequence[Entry]) -> str:
    printed = next(entry.printed for entry in found if entry.printed is not None)
    if printed.runs == 1:
        return "of a single run"
    return f"the {printed.statistic} of {printed.runs} runs"


def _stand_ins(artefact: Artefact, scale: Scale) -> Iterator[str]:
    """What is trained in place of the paper's data sets and noises, and how."""
    places: dict[str, list[str]] = {}
    for cell in artefact.cells:
        if scale.has(cell):
            names = places.setdefault(_described(scale.spec(cell)), [])
            names += [PLACES[cell.data]] if PLACES[cell.data] not in names else []
    yield from (f"Scale {scale.name}, {', '.join(names)}: {text}." for text, names in places.items())
    noises = {cell.noise for cell in artefact.cells}
    yield from (f"{mine} stands for {theirs} noise." for theirs, mine in scale.noise.items() if theirs in noises)


def _described(spec: RunSpec) -> str:
    images = f"{spec.subset:,} images of {spec.data}" if spec.subset else spec.data
    images += ", not augmented" if spec.augment == "none" else ""
    network = spec.network + (f" of width {spec.width:g}" if spec.width != 1 else "")
    schedule = f"learning rate {spec.learning_rate:g} ({spec.schedule}), weight decay {spec.weight_decay:g}"
    return f"{images}, {network}, {spec.epochs} epochs in batches of {spec.batch_size}, {schedule}"


def _closer(found: Sequence[Entry]) -> Iterator[str]:
    """Whether NCE+MAE with MAE plain or with MAE × 4 comes closer to the paper's, which does not say what it has."""
    known = {(entry.row, entry.data, entry.measure): entry for entry in found}
    for data in dict.fromkeys(data for row, data, _ in known if row == NCE_MAE_UNIT.name):

        def gaps(ours: Row, paper: Row, data: str = data) -> list[float]:
            pairs = [(known[ours.name, data, each].mean, known[paper.name, data, each].paper) for each in ACCURACIES]
            return [mean - printed for mean, printed in pairs if mean is not None and printed is not None]

        plain, unit, cross = gaps(NCE_MAE, NCE_MAE), gaps(NCE_MAE_UNIT, NCE_MAE), gaps(CE, CE)
        opening = f"NCE+MAE on {PLACES[data]}: "
        if not plain or not unit or not cross:
            yield f"{opening}whether MAE plain or MAE × 4 comes closer to the paper is open until both and CE have run."
            continue
        apart = [[gap - other for gap, other in zip(some, cross, strict=True)] for some in (plain, unit)]
        yield (
            f"{opening}on average over train and test accuracy, {_nearer(plain, unit)}; "
            f"as distances from CE's accuracy, {_nearer(*apart)}."
        )


def _nearer(plain: Sequence[float], unit: Sequence[float]) -> str:
    first, second = (statistics.fmean(abs(gap) for gap in some) for some in (plain, unit))
    verdict = "both are as close" if first == second else f"MAE {'plain' if first < second else '× 4'} comes closer"
    return f"MAE plain is {first:.2f} points off the paper and MAE × 4 {second:.2f}, so {verdict}"
