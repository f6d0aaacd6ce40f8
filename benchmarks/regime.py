"""How the settings of the scale for small networks were chosen: by what they fit of their training labels.

    python -m benchmarks.regime --data-dir DATA [--candidates "A;B"] [--out results/settings] [--jobs 2]

Trains every candidate on seeds from 100 on, which no table uses, and looks at training labels only, never at test
accuracy or at a claim. Writes fits.csv (one row per run) and README.md, which is made from it alone; both list every
candidate that was tried. Without --data-dir, only the page is written.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.timing import progress_bar, row_of, write_csv
from curriculoss.paper.experiments import CE, CLEAN, MAE, PLACES, UNDERFIT, Cell, Row
from curriculoss.paper.published import find
from curriculoss.paper.scales import CPU, Scale
from curriculoss.runs.folder import Run
from curriculoss.runs.many import folder_name, train_many

NOISY = "symmetric:0.4"
FIRST_SEED = 100
MAE_SEEDS = 8  # of plain MAE, to see how often it loses whole classes
LOST = 0.05  # a class is lost if a smaller share of its samples is fitted
CIFAR = {"network": "cnn8", "width": 0.25, "subset": 10_000, "image_size": 16, "batch_size": 32, "augment": "none",
         "test_every": 100}  # fmt: skip
MNIST = {"network": "cnn4", "width": 0.5, "subset": 10_000, "learning_rate": 0.01, "weight_decay": 1e-3,
         "schedule": "constant", "test_every": 1000}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """Settings to try for each data set; a data set without settings is not run."""

    cifar10: Mapping[str, Any] = field(default_factory=dict)
    cifar100: Mapping[str, Any] = field(default_factory=dict)
    mnist: Mapping[str, Any] = field(default_factory=dict)  # MAE at a constant learning rate
    seeds: int = 1
    rows: tuple[Row, ...] = UNDERFIT  # losses tried on CIFAR-10
    more_mae: bool = False  # plain MAE on more seeds

    @property
    def scale(self) -> Scale:
        settings = {"cifar10": {"weight_decay": 1e-4, **CIFAR, **self.cifar10},
                    "cifar100": {"weight_decay": 1e-5, **CIFAR, **self.cifar100},
                    "mnist": {**MNIST, **self.mnist}}  # fmt: skip
        return Scale("candidate", "", {name: {"data": name, **each} for name, each in settings.items()})

    def cells(self) -> Iterator[tuple[Cell, int]]:
        """The runs of this candidate, as cells and seeds."""
        for number in range(self.seeds):
            seed = FIRST_SEED + number
            if self.cifar10:
                yield from ((Cell(row, "cifar10"), seed) for row in self.rows)
                yield Cell(CE, "cifar10", NOISY), seed
            if self.mnist:
                yield from ((Cell(MAE, "mnist", noise), seed) for noise in ("symmetric:0.2", "symmetric:0.6"))
            if self.cifar100:
                yield from ((Cell(CE, "cifar100", noise), seed) for noise in (CLEAN, NOISY))
        if self.more_mae:
            yield from ((Cell(MAE, "cifar10"), FIRST_SEED + number) for number in range(self.seeds, MAE_SEEDS))


HARD = tuple(row for row in UNDERFIT if row.name in ("NCE", "MAE", "AGCE†"))  # these fit least with ten classes


def _hard(**cifar10: Any) -> Candidate:
    return Candidate(cifar10, rows=HARD)


CANDIDATES = {
    "lr 0.03, 60 epochs": Candidate({"learning_rate": 0.03, "epochs": 60}, {"learning_rate": 0.03, "epochs": 60}),
    "lr 0.01, 60 epochs": Candidate({"learning_rate": 0.01, "epochs": 60}, {"learning_rate": 0.1, "epochs": 60}),
    "MNIST, 400 epochs, batch 128": Candidate(mnist={"epochs": 400, "batch_size": 128}),
    "lr 0.003, 60 epochs": _hard(learning_rate=0.003, epochs=60),
    "lr 0.03, 60 epochs, 5 of them warm-up": _hard(learning_rate=0.03, epochs=60, schedule="warmup", warmup_epochs=5),
    "lr 0.03, 60 epochs, 15 of them warm-up": Candidate(
        {"learning_rate": 0.03, "epochs": 60, "schedule": "warmup", "warmup_epochs": 15}, more_mae=True
    ),
    "batch 128, lr 0.1, 60 epochs, 5 of them warm-up": _hard(
        learning_rate=0.1, epochs=60, batch_size=128, schedule="warmup", warmup_epochs=5
    ),
    "batch 128, lr 0.03, 60 epochs, 5 of them warm-up": _hard(
        learning_rate=0.03, epochs=60, batch_size=128, schedule="warmup", warmup_epochs=5
    ),
    "20,000 images, lr 0.03, 30 epochs": _hard(learning_rate=0.03, epochs=30, subset=20_000),
    "50,000 images, lr 0.03, 12 epochs": _hard(learning_rate=0.03, epochs=12, subset=50_000),
}


CHOSEN = {
    "cifar10": "lr 0.03, 60 epochs, 15 of them warm-up",
    "cifar100": "lr 0.03, 60 epochs",
    "mnist": "MNIST, 400 epochs, batch 128",
}


@dataclass(frozen=True)
class Fit:
    """How much of its training labels one run has fitted in the last epoch, in percent."""

    candidate: str
    data: str
    noise: str
    row: str
    seed: int
    train_accuracy: float
    right_labels: float
    wrong_labels: float | None
    lost_classes: int
    seconds: float


def measure(candidate: str, cell: Cell, seed: int, run: Run) -> Fit:
    """What a finished run has fitted."""
    last, labels, samples = run.metrics[-1], run.arrays("labels"), run.arrays("samples")
    fitted = samples["last"] > 0  # a positive margin: the label has more than half of the probability
    given = labels["given"]
    lost = sum(fitted[given == label].mean() < LOST for label in set(given.tolist()))
    right, wrong = last["accuracy_clean"], last["accuracy_noisy"]
    train = last["train_accuracy"]
    return Fit(candidate, cell.data, cell.noise, cell.row.name, seed, round(train, 2),
               round(train if right is None else 100 * right, 2), None if wrong is None else round(100 * wrong, 2),
               int(lost), round(run.result.seconds, 1))  # fmt: skip


def read(file: Path) -> list[Fit]:
    """The rows of fits.csv, none if it does not exist."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    numbers = {"seed": int, "lost_classes": int, "train_accuracy": float, "right_labels": float, "seconds": float}
    return [
        Fit(**{each.name: numbers.get(each.name, str)(row[each.name]) for each in fields(Fit)
               if each.name != "wrong_labels"},
            wrong_labels=float(row["wrong_labels"]) if row["wrong_labels"] else None)
        for row in rows
    ]  # fmt: skip


@dataclass(frozen=True)
class Criterion:
    """A number that the chosen settings should reach, and how it is found."""

    name: str
    data: tuple[str, ...]
    asked: str
    met: Callable[[float], bool] | None  # None where as much as possible is asked
    value: Callable[[list[Fit]], list[float]]


def _fitted(row: Row, noise: str, measure: str) -> Callable[[list[Fit]], list[float]]:
    return lambda fits: [getattr(fit, measure) for fit in fits if (fit.row, fit.noise) == (row.name, noise)]


def _seconds(fits: list[Fit]) -> list[float]:
    return [fit.seconds for fit in fits]


def _distances(fits: list[Fit]) -> list[float]:
    """Distance from the training accuracy that the paper prints, one per loss."""
    found = []
    for row in UNDERFIT:
        printed = find("table:ulearn", row=row.name, data="cifar10", measure="train_accuracy")
        ours = _fitted(row, CLEAN, "train_accuracy")(fits)
        if printed is not None and ours:
            found.append(abs(statistics.fmean(ours) - printed.mean))
    return found


CRITERIA = (
    Criterion("(a) CE with clean labels fits, %", ("cifar10",), "≥ 99", lambda x: x >= 99,
              _fitted(CE, CLEAN, "train_accuracy")),
    Criterion("(a) CE with clean labels fits, %", ("cifar100",), "≥ 97", lambda x: x >= 97,
              _fitted(CE, CLEAN, "train_accuracy")),
    Criterion("(b) CE with symmetric noise 0.4 fits of the wrong labels, %", ("cifar10",), "≥ 95", lambda x: x >= 95,
              _fitted(CE, NOISY, "wrong_labels")),
    Criterion("(b) CE with symmetric noise 0.4 fits of the wrong labels, %", ("cifar100",), "≥ 90", lambda x: x >= 90,
              _fitted(CE, NOISY, "wrong_labels")),
    Criterion("(c) losses are from the paper's training accuracy, points", ("cifar10",), "as near as affordable", None,
              _distances),
    Criterion("(d) longest run, seconds", ("cifar10", "cifar100"), "≤ 150", lambda x: x <= 150, _seconds),
    Criterion("(d) longest run, seconds", ("mnist",), "≤ 900", lambda x: x <= 900, _seconds),
)  # fmt: skip


def page(found: list[Fit]) -> str:
    """The page, from the rows of fits.csv."""
    return "\n".join([
        f"# How the settings of scale `{CPU.name}` were chosen",
        "",
        "Made by `python -m benchmarks.regime` from [fits.csv](fits.csv). Settings were chosen by the share of",
        f"training labels that is fitted in the last epoch, on seeds from {FIRST_SEED} on, which no table uses; test",
        "accuracy and claims played no part. Seconds are measured on one core while another one is busy; a run",
        "on CIFAR that took more than 150 had to share its core and must be measured again.",
        "",
        "## Criteria",
        "",
        *_criteria(found),
        "",
        _lost(found),
        "",
        "## Tried on CIFAR-10: training labels fitted, %",
        "",
        *_tried(found, "cifar10", {**{row.name: _fitted(row, CLEAN, "train_accuracy") for row in UNDERFIT},
                                   "MAE: classes lost": _fitted(MAE, CLEAN, "lost_classes"),
                                   "CE, symmetric 0.4: wrong labels": _fitted(CE, NOISY, "wrong_labels")}),
        "",
        "## Tried on CIFAR-100: training labels fitted, %",
        "",
        *_tried(found, "cifar100", {"CE": _fitted(CE, CLEAN, "train_accuracy"),
                                    "CE, symmetric 0.4: wrong labels": _fitted(CE, NOISY, "wrong_labels")}),
        "",
        "## Tried on MNIST: wrong labels fitted by MAE at a constant learning rate, %",
        "",
        *_tried(found, "mnist", {f"MAE, {noise}": _fitted(MAE, noise, "wrong_labels")
                                 for noise in ("symmetric:0.2", "symmetric:0.6")}),
        "",
    ])  # fmt: skip


def _known(found: Sequence[Fit], data: str) -> list[str]:
    """Candidates with runs on a data set."""
    return [name for name in CANDIDATES if any((fit.candidate, fit.data) == (name, data) for fit in found)]


def _of(found: Sequence[Fit], candidate: str, data: str) -> list[Fit]:
    return [fit for fit in found if (fit.candidate, fit.data) == (candidate, data)]


def _criteria(found: Sequence[Fit]) -> Iterator[str]:
    """What the chosen settings reach, criterion by criterion."""
    yield from row_of(["criterion", "data", "asked", "reached", "met"])
    yield from row_of(["---"] * 5)
    for each in CRITERIA:
        values = each.value([fit for data in each.data for fit in _of(found, CHOSEN[data], data)])
        places = " and ".join(PLACES[data] for data in each.data)
        if not values:
            yield from row_of([each.name, places, each.asked, "", "not run"])
            continue
        reached = max(values) if each.value is _seconds else statistics.fmean(values)
        what = f"mean over {len(values)} losses" if each.value is _distances else f"n = {len(values)}"
        told = f"{reached:.0f}" if each.value is _seconds else f"{reached:.2f}"
        met = "" if each.met is None else "yes" if each.met(reached) else "no"
        yield from row_of([each.name, places, each.asked, f"{told} ({what})", met])


def _tried(found: Sequence[Fit], data: str, rows: Mapping[str, Callable[[list[Fit]], list[float]]]) -> Iterator[str]:
    """One column per candidate, the chosen one first."""
    names = sorted(_known(found, data), key=lambda name: name != CHOSEN[data])
    if not names:
        yield "Not run yet."
        return
    heads = [_settings(name, data) + (" (chosen)" if name == CHOSEN[data] else "") for name in names]
    yield from row_of(["", "paper", *heads])
    yield from row_of(["---"] * (2 + len(names)))
    for label, value in rows.items():
        printed = find("table:ulearn", row=label, data=data, measure="train_accuracy")
        shown = [_mean(value(_of(found, name, data))) for name in names]
        yield from row_of([label, "/" if printed is None else f"{printed.mean:.2f}", *shown])
    seconds = [_seconds(_of(found, name, data)) for name in names]
    yield from row_of(["seconds per run", "/", *(f"{min(some):.0f} to {max(some):.0f}" for some in seconds)])


def _settings(name: str, data: str) -> str:
    """What a candidate means for a data set: its name, and the learning rate where that differs from the name's."""
    rate = getattr(CANDIDATES[name], data).get("learning_rate")
    return name if rate is None or f"lr {rate:g}" in name else f"lr {rate:g}, {name.partition(', ')[2]}"


def _lost(found: Sequence[Fit]) -> str:
    """How often plain MAE has lost whole classes with the chosen settings."""
    lost = [int(x) for x in _fitted(MAE, CLEAN, "lost_classes")(_of(found, CHOSEN["cifar10"], "cifar10"))]
    return (
        "With the chosen settings plain MAE lost whole classes of CIFAR-10, fitting less than "
        f"{100 * LOST:g} % of them, in {sum(map(bool, lost))} of {len(lost)} runs (classes lost per run: "
        f"{', '.join(map(str, lost)) or 'not run'})."
    )


def _mean(values: list[float]) -> str:
    if not values:
        return "not run"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} (n = {len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regime", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--candidates", default="", metavar="A;B", help=f"which of: {'; '.join(CANDIDATES)} (default: all)"
    )
    parser.add_argument("--data-dir", type=Path, help="folder of MNIST and CIFAR; without it, only the page is written")
    parser.add_argument("--out", type=Path, default=Path("results/settings"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    parser.add_argument("--jobs", type=int, help="runs in parallel (default: number of cores)")
    given = parser.parse_args()
    file, found = given.out / "fits.csv", read(given.out / "fits.csv")
    known = {(fit.candidate, fit.data, fit.noise, fit.row, fit.seed) for fit in found}
    wanted = {}
    for name in given.candidates.split(";") if given.candidates else CANDIDATES:
        for cell, seed in CANDIDATES[name].cells():
            spec = CANDIDATES[name].scale.spec(cell, seed)
            if (name, cell.data, cell.noise, cell.row.name, seed) not in known:
                wanted[name, cell, seed] = given.runs / folder_name(spec), spec
    if given.data_dir and wanted:
        with progress_bar() as bar:
            specs = dict(wanted.values())
            task = bar.add_task(f"epochs of {len(specs)} runs", total=sum(spec.epochs for spec in specs.values()))
            _, failed = train_many(specs, jobs=given.jobs, data_dir=given.data_dir,
                                   watch=lambda epochs: bar.update(task, completed=epochs))  # fmt: skip
        for folder, error in failed.items():
            print(f"{folder}: {error}")
    found += [measure(name, cell, seed, Run(run)) for (name, cell, seed), (run, _) in wanted.items()
              if Run(run).finished]  # fmt: skip
    if not found:
        parser.error("nothing is known yet: give --data-dir")
    given.out.mkdir(parents=True, exist_ok=True)
    write_csv(file, [asdict(fit) for fit in found], {})
    (given.out / "README.md").write_text(page(found), encoding="utf-8")
    print(f"written to {given.out / 'README.md'}")


if __name__ == "__main__":
    main()
