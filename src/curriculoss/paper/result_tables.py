"""The paper's tables of results: our numbers over seeds beside the paper's, and both relative to cross entropy."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from curriculoss.paper.artefacts import Artefact
from curriculoss.paper.epochs import RunRecords
from curriculoss.paper.experiments import CE, CLEAN, MANY, NCE_MAE, NCE_MAE_UNIT, PLACES, WEBVISION, Cell
from curriculoss.paper.inference import signed
from curriculoss.paper.published import Published, find, published
from curriculoss.paper.render import Column, Line, TableContent
from curriculoss.paper.scales import Scale
from curriculoss.paper.templates import fill
from curriculoss.report.groups import Mean
from curriculoss.runs.spec import RunSpec

NOT_RUN = "not run"
CSV_DIGITS = 6  # after the point
DIFF = "diff"
RATIOS = ("alpha_t", "snr")  # compared with CE's as a ratio, all others as a difference
ALPHA_UNIT = 1e4  # the paper prints α_t as 10⁴ times the effective learning rate
HEADED_MEASURES = {  # head of a column, and meaning, in the order of the paper's columns
    "train_accuracy": ("train accuracy", "train accuracy in percent"),
    "test_accuracy": ("test accuracy", "test accuracy in percent"),
    "alpha_t": ("α_t × 10⁴", "α_t, the effective learning rate since the first step, times 10⁴ (erratum 5)"),
    DIFF: ("diff", "diff, test accuracy with noise minus that with clean labels, in points"),
    "snr": ("snr", "snr, mean weight of clean samples divided by that of noisy samples"),
}


@dataclass(frozen=True)
class Entry:
    """One number of a table: ours over seeds, the paper's, and both relative to CE's in the same column."""

    cell: Cell
    measure: str
    ours: Mean
    best: float | None  # of the run with the best test accuracy; for `diff`, the best with noise minus the best without
    printed: Published | None
    bound: bool = False  # ours is an upper bound
    vs_ce: float | None = None
    paper_vs_ce: float | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """The column: data set, noise and measure."""
        return self.cell.data, _noise(self.cell), self.measure

    @property
    def tau(self) -> float | None:
        return self.cell.row.tau_for(self.cell.noise)

    @property
    def paper(self) -> float | None:
        return None if self.printed is None else self.printed.mean

    @property
    def of_best(self) -> bool:
        """Whether the paper prints the best of its runs, so that our best is compared with it."""
        return self.printed is not None and self.printed.statistic == "best"

    @property
    def compared(self) -> float | None:
        """The number of ours that may be compared with the paper's."""
        return self.best if self.of_best else self.ours.mean

    @property
    def from_other_paper(self) -> bool:
        return self.printed is not None and self.printed.from_other_paper

    def against(self, ce: "Entry") -> "Entry":
        """The entry with its numbers relative to CE's."""

        def relative(value: float | None, of_ce: float | None) -> float | None:
            if value is None or of_ce is None:
                return None
            return value - of_ce if self.measure not in RATIOS else value / of_ce if of_ce else None

        return replace(self, vs_ce=relative(self.compared, ce.compared), paper_vs_ce=relative(self.paper, ce.paper))

    def csv_row(self) -> dict[str, str | float | None]:
        remarks = {
            NOT_RUN: not self.ours.n,
            "not in the paper": self.cell.row.ours or self.cell.ours,
            "paper's from Zhou et al.": self.from_other_paper,
            "upper bound": self.bound,
        }
        difference = None if self.compared is None or self.paper is None else self.compared - self.paper
        numbers: dict[str, float | None] = {
            "tau": self.tau, "n": self.ours.n, "mean": self.ours.mean, "std": self.ours.std, "best": self.best,
            "paper": self.paper, "paper_std": None if self.printed is None else self.printed.std,
            "difference": difference, "vs_ce": self.vs_ce, "paper_vs_ce": self.paper_vs_ce,
        }  # fmt: skip
        return {
            "row": self.cell.row.name,
            **dict(zip(("data", "noise", "measure"), self.place, strict=True)),
            **{name: None if value is None else round(value, CSV_DIGITS) for name, value in numbers.items()},
            "vs_ce_is": "ratio" if self.measure in RATIOS else "difference",
            "remark": "; ".join(words for words, holds in remarks.items() if holds),
        }


def entries(artefact: Artefact, records: RunRecords, seeds: int) -> list[Entry]:
    """One entry for each number in the paper's table, and for the same measures of our own rows."""
    found = [
        _entry(artefact, cell, measure, records, seeds)
        for cell in records.scale.shown(artefact.cells)
        for measure in _measures(artefact.source, cell)
    ]
    of_ce = {each.place: each for each in found if each.cell.row == CE}
    return [each if each.cell.row == CE else each.against(of_ce[each.place]) for each in found]


def _noise(cell: Cell) -> str:
    """The noise as published.csv has it: empty for WebVision, which has its own."""
    return "" if cell.data in WEBVISION and not cell.ours else cell.noise


def _measures(source: str, cell: Cell) -> list[str]:
    """What the paper reports for any loss in that column."""
    if cell.ours:
        return ["test_accuracy"]
    where = (source, cell.data, _noise(cell))
    shown = {each.measure for each in published() if (each.source, each.data, each.noise) == where}
    return [measure for measure in HEADED_MEASURES if measure in shown]


def _entry(artefact: Artefact, cell: Cell, measure: str, records: RunRecords, seeds: int) -> Entry:
    printed = find(artefact.source, row=cell.row.name, noise=_noise(cell), data=cell.data, measure=measure)
    sample, best = _drop(cell, records, seeds) if measure == DIFF else _measured(cell, measure, records, seeds)
    bound = measure == "alpha_t" and cell.row.make_loss().curriculum is None
    return Entry(cell, measure, sample, best, printed, bound)


def _measured(cell: Cell, measure: str, records: RunRecords, seeds: int) -> tuple[Mean, float | None]:
    """The measure after the last epoch, and that of the run with the best test accuracy."""
    key, unit = ("effective_learning_rate", ALPHA_UNIT) if measure == "alpha_t" else (measure, 1)
    runs = records.seeds(cell, seeds)
    known = [(run.test_accuracy, unit * value) for run in runs if (value := run.last(key)) is not None]
    return Mean.of(value for _, value in known), max(known, default=(0.0, None))[1]


def _drop(cell: Cell, records: RunRecords, seeds: int) -> tuple[Mean, float | None]:
    """Test accuracy with noise minus that without, seed by seed."""
    clean = replace(cell, noise=CLEAN)
    pairs = [
        (noisy.test_accuracy, other.test_accuracy)
        for seed in range(seeds)
        if (noisy := records.of(cell, seed)) and (other := records.of(clean, seed))
    ]
    best = max(a for a, _ in pairs) - max(b for _, b in pairs) if pairs else None
    return Mean.of(a - b for a, b in pairs), best


def table(artefact: Artefact, records: RunRecords, seeds: int) -> TableContent:
    """The table with losses as rows and conditions as columns."""
    found, scale = entries(artefact, records, seeds), records.scale
    n = max(entry.ours.n for entry in found)
    rows: dict[str, dict[tuple[str, str, str], Entry]] = {}
    for entry in found:
        rows.setdefault(entry.cell.row.name, {})[entry.place] = entry
    places = list(dict.fromkeys(entry.place for entry in found))
    columns = tuple(_columns(places, scale))
    lines = tuple(Line(_label([*of.values()]), tuple(_shown(of[x], n) for x in places)) for of in rows.values())
    notes, data = tuple(_notes(artefact, scale, found, n)), tuple(entry.csv_row() for entry in found)
    planned = f" of {seeds} planned" if seeds > n else ""
    return TableContent(artefact, columns, lines, notes, data, f"scale {scale.name}, n = {n}{planned}")


def _columns(places: Sequence[tuple[str, str, str]], scale: Scale) -> Iterator[Column]:
    """Heads name what differs between the columns: data set, noise, measure."""
    several = [len({place[at] for place in places}) > 1 for at in range(3)]
    for data, noise, measure in places:
        labels = noise.replace(":", " ") or ("" if scale.data(data) == data else CLEAN)
        parts = (several[0], scale.called(data)), (several[1], labels), (several[2], HEADED_MEASURES[measure][0])
        yield Column(tuple(words for differs, words in parts if differs and words))


def _label(of: Sequence[Entry]) -> str:
    row = of[0].cell.row
    return row.name + "‡" * any(entry.from_other_paper for entry in of) + "*" * row.ours


def _shown(entry: Entry, n: int) -> tuple[str, ...]:
    """The lines of a cell: `16.70 ± 0.30`, `paper 60.57`, `vs CE +7.20 (+20.65)`, `τ = 2.6`."""
    ours = entry.ours
    if ours.mean is None:
        lines = [NOT_RUN]
    else:
        spread = "" if ours.std is None else f" ± {ours.std:.2f}"
        count = "" if ours.n == n else f", n={ours.n}"
        lines = [f"{'≤ ' * entry.bound}{signed(ours.mean, '.2f')}{spread}{count}"]
    if entry.of_best and entry.best is not None and ours.n > 1:
        lines.append(f"best {signed(entry.best, '.2f')}")
    if entry.paper is not None:
        lines.append(f"paper {signed(entry.paper, '.2f')}")
    if entry.vs_ce is not None or entry.paper_vs_ce is not None:
        relative, paper = (
            "/" if value is None else f"× {value:#.2g}" if entry.measure in RATIOS else signed(value, "+.2f")
            for value in (entry.vs_ce, entry.paper_vs_ce)
        )
        lines.append(f"vs CE {'≤ ' * entry.bound}{relative} ({paper})")
    if entry.tau is not None:
        lines.append(f"τ = {entry.tau:g}")
    return tuple(lines)


def _notes(artefact: Artefact, scale: Scale, found: Sequence[Entry], n: int) -> list[str]:
    """What a reader needs to know, one note per line of the template."""
    here = scale.shown(artefact.cells)
    settings: dict[str, dict[str, None]] = {}
    for cell in here:
        settings.setdefault(_described(scale.spec(cell)), {})[PLACES[cell.data]] = None
    rows = {entry.cell.row.name: entry.cell.row for entry in found}
    params = {name: ", ".join(f"{key} = {x:g}" for key, x in row.params.items()) for name, row in rows.items()}
    shown = {entry.measure for entry in found}
    return fill(
        "notes",
        scale=scale,
        settings=settings,
        stand_ins=any(cell.ours for cell in here),
        replaced={theirs: mine for theirs, mine in scale.noise.items() if any(x.noise == theirs for x in here)},
        meanings=[meaning for measure, (_, meaning) in HEADED_MEASURES.items() if measure in shown],
        ratios=[HEADED_MEASURES[measure][0] for measure in RATIOS if measure in shown],
        n=n,
        printed=next(entry.printed for entry in found if entry.printed is not None),
        params=[f"{name} {said}" for name, said in params.items() if said],
        many=any(cell.data == MANY for cell in artefact.cells),
        entries=found,
        closer=_closer(found),
    ).splitlines()


def _described(spec: RunSpec) -> str:
    images = f"{spec.subset:,} images of {spec.data}" if spec.subset else spec.data
    images += f", {spec.image_size}×{spec.image_size} pixels" if spec.image_size else ""
    images += ", not augmented" if spec.augment == "none" else ""
    network = spec.network + (f" of width {spec.width:g}" if spec.width != 1 else "")
    schedule = f"learning rate {spec.learning_rate:g} ({spec.schedule}), weight decay {spec.weight_decay:g}"
    return f"{images}, {network}, {spec.epochs} epochs in batches of {spec.batch_size}, {schedule}"


def _closer(found: Sequence[Entry]) -> dict[str, list[float]]:
    """By data set, how far NCE+MAE with plain MAE and with MAE × 4 are from the paper's, which does not say its own.

    Distances are those of accuracies relative to CE's, on average over train and test; none while runs are missing.
    """
    known = {(entry.cell.row, entry.cell.data, entry.measure): entry for entry in found}
    distances = {}
    for data in dict.fromkeys(data for row, data, _ in known if row == NCE_MAE_UNIT):
        gaps = [
            [
                abs(ours - paper)
                for measure in ("train_accuracy", "test_accuracy")
                if (ours := known[row, data, measure].vs_ce) is not None
                and (paper := known[NCE_MAE, data, measure].paper_vs_ce) is not None
            ]
            for row in (NCE_MAE, NCE_MAE_UNIT)
        ]
        distances[PLACES[data]] = [statistics.fmean(some) for some in gaps] if all(gaps) else []
    return distances
