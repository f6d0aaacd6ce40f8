"""From an artefact and a scale to files: which runs it needs, how long they take, training them, writing the files."""

import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from curriculoss.data import DATA_SETS, DataError, data_folder
from curriculoss.errors import BusyError, DamagedError, InvalidValueError, RunError
from curriculoss.fitting import fit
from curriculoss.losses import CE
from curriculoss.paper import readme
from curriculoss.paper.artefacts import ARTEFACTS, Artefact
from curriculoss.paper.epochs import RunRecords
from curriculoss.paper.scales import SCALES, Scale
from curriculoss.runs.folder import Run
from curriculoss.runs.many import folder_name, train_many
from curriculoss.runs.spec import RunSpec
from curriculoss.runs.task import make_network, make_task

RUNS = "runs"
TIMED_BATCHES = 2  # for an estimate
Made = tuple[str, list[Path]]  # a text for the terminal, and the files that were written


@dataclass(frozen=True)
class Plan:
    """The runs of an artefact at a scale, each in a folder that artefacts share.

    Attributes:
        artefact: What is made.
        scale: At which scale.
        folder: Where its files, epochs.csv and the run folders are.
        wanted_seeds: How many seeds; None for as many as the scale plans.
    """

    artefact: Artefact
    scale: Scale
    folder: Path
    wanted_seeds: int | None = None

    @property
    def seeds(self) -> int:
        return self.artefact.seeds(self.scale, self.wanted_seeds)

    def runs(self) -> dict[Path, RunSpec]:
        """All runs, each once; seed after seed, so that the first runs to finish make a whole table."""
        found: dict[Path, RunSpec] = {}
        for other in self.artefact.needs:
            found |= Plan(other, self.scale, self.folder, self.wanted_seeds).runs()
        for seed in range(self.seeds):
            specs = [self.scale.spec(cell, seed) for cell in self.scale.shown(self.artefact.cells)]
            found |= {self.folder / RUNS / folder_name(spec): spec for spec in specs}
        return found

    def done(self) -> set[Path]:
        """Runs that have finished here, or are recorded in epochs.csv."""
        records = self._records()
        return {path for path, spec in self.runs().items() if spec.hash in records or Run(path).finished}

    def missing(self) -> dict[Path, RunSpec]:
        """Runs that are not done."""
        done = self.done()
        return {path: spec for path, spec in self.runs().items() if path not in done}

    def run(self, *, watch: Callable[[int], None] | None = None, **options: Any) -> dict[Path, RunError]:
        """Train missing runs and record all finished ones. Options are those of `train_many`, such as `executor`.

        Returns:
            Errors of runs that did not finish or cannot be read, by folder.
        """
        missing = self.missing()
        expect_data(missing.values(), **options)
        try:
            _, failed = train_many(missing, watch=watch, **options)
            busy = {path: missing[path] for path, error in failed.items() if isinstance(error, BusyError)}
            _, again = train_many(busy, watch=watch, wait=True, **options)
            failed = {path: error for path, error in failed.items() if path not in busy} | again
        finally:
            _, damaged = self.take_up()
        advice = "delete its folder and it is trained again"
        return {
            path: RunError(f"{error}; {advice}") if isinstance(error, DamagedError) else error
            for path, error in (failed | damaged).items()
        }

    def take_up(self) -> tuple[RunRecords, dict[Path, RunError]]:
        """Enter finished runs into epochs.csv; returns all records, and errors of runs that cannot be read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        records = self._records()
        new = [Run(path) for path, spec in self.runs().items() if spec.hash not in records and Run(path).finished]
        return records, records.add(new, self.folder) if new else {}

    def _records(self) -> RunRecords:
        """Records of whole runs. A folder has one scale, because its page and tables do not name it per run."""
        records = RunRecords.read(self.scale, self.folder)
        for name, scale in SCALES.items():
            if name != self.scale.name and any(spec.hash in records for spec in all_runs(scale).values()):
                advice = f"give another folder for {self.scale.name}"
                raise InvalidValueError(f"{self.folder} has runs of scale {name}; {advice}")
        return records.whole(self.runs().values())

    def make(self, *, data_dir: Path | str | None = None) -> Made:
        """Write the artefact's files and the page from the recorded runs, which may not be all."""
        records, _ = self.take_up()
        text, files = MAKERS[self.artefact.kind](self, records, data_dir)
        planned = all_runs(self.scale, self.folder).values()
        page = readme.write_readme(self.folder, records.whole(planned), [spec.hash for spec in planned])
        return text, [*files, page]


def all_runs(scale: Scale, folder: Path = Path(), seeds: int | None = None) -> dict[Path, RunSpec]:
    """The runs of all artefacts; the claims need all of them."""
    return Plan(ARTEFACTS["claims"], scale, folder, seeds).runs()


def _make_table(plan: Plan, records: RunRecords, data_dir: Path | str | None) -> Made:
    from curriculoss.paper import formulae, render, result_tables

    formula = formulae.TABLES.get(plan.artefact.name)
    table = formula() if formula is not None else result_tables.table(plan.artefact, records, plan.seeds)
    return render.table_text(table), render.write_forms(table, plan.folder)


def _make_figure(plan: Plan, records: RunRecords, data_dir: Path | str | None) -> Made:
    from curriculoss.paper import canvas, run_figures

    figure = run_figures.FIGURES[plan.artefact.name](canvas.FigureInputs(plan, records, data_dir))
    files = run_figures.save(figure, plan.folder, plan.artefact.stem)
    return f"{plan.artefact.name}: {plan.artefact.title}", files


def _make_claims(plan: Plan, records: RunRecords, data_dir: Path | str | None) -> Made:
    from curriculoss.paper import claim_results, claims

    results = claims.check_all(records, folder=plan.folder, data_dir=data_dir, seeds=plan.wanted_seeds)
    return claim_results.claims_text(results), claim_results.write_claims(results, plan.folder)


MAKERS = {"table": _make_table, "figure": _make_figure, "claims": _make_claims}


def expect_data(
    specs: Iterable[RunSpec], *, data_dir: Path | str | None = None, download: bool = False, **_: Any
) -> None:
    """Raise a DataError that names all missing data sets, before anything is trained."""
    here = {name for name, each in DATA_SETS.items() if each.is_here(data_dir)}
    if not download and (absent := sorted({spec.data for spec in specs} - here)):
        folder = data_folder(data_dir)
        what = "lacks" if folder.is_dir() else "is not a folder, and runs need"
        raise DataError(f"{folder} {what} {', '.join(absent)}; give --data-dir, or add --download")


def estimate(specs: Iterable[RunSpec], *, jobs: int | None = None, **options: Any) -> float:
    """Seconds that runs take on this machine, from a few steps of each kind of run, divided by `jobs`."""
    seconds: dict[str, float] = {}
    total = 0.0
    for spec in specs:
        kind = replace(spec, loss="ce", params={}, fix=None, tau=None, noise="clean", noise_seed=None, seed=0,
                       learning_rate=0.1, schedule="constant", warmup_epochs=RunSpec.warmup_epochs,
                       epochs=1)  # fmt: skip
        if kind.hash not in seconds:
            seconds[kind.hash] = _seconds_per_epoch(kind, **options)
        total += spec.epochs * seconds[kind.hash]
    return total / (jobs or os.cpu_count() or 1)


def _seconds_per_epoch(spec: RunSpec, **options: Any) -> float:
    """From a few batches, trained on and tested; the first of two rounds warms up."""
    threads, device = torch.get_num_threads(), torch.device("cpu")
    torch.set_num_threads(1)  # as runs are trained
    try:
        task = make_task(spec, **options)
        epochs = [task.batches(spec, device, test=test).epoch(0) for test in (False, True)]
        train, test = ([*itertools.islice(batches, TIMED_BATCHES)] for batches in epochs)
        found = fit(make_network(spec, task), CE(), train, epochs=2, learning_rate=1e-3, test_batches=test)[-1]
    finally:
        torch.set_num_threads(threads)
    seconds = len(task.train) / sum(len(batch[0]) for batch in train) * found.train_seconds
    return seconds + len(task.test) / sum(len(batch[0]) for batch in test) * found.test_seconds / spec.test_every
