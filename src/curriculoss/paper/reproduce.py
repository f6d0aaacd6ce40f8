"""From an artefact and a scale to its files: which runs, how long they will take, running them, and what they show."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from curriculoss.curricula.registry import suggestion
from curriculoss.data import DataError, data_folder, listing
from curriculoss.paper import page
from curriculoss.paper.artefacts import ARTEFACTS, Artefact
from curriculoss.paper.records import Records
from curriculoss.paper.settings import SCALES, Scale
from curriculoss.training.many import folder_name, train_many
from curriculoss.training.spec import RunSpec
from curriculoss.training.store import BusyError, DamagedError, Run, RunError
from curriculoss.training.task import make_network, make_task

RUNS = "runs"
CPU = torch.device("cpu")
STEPS = 4  # measured for an estimate, after one to warm up


@dataclass(frozen=True)
class Plan:
    """The runs of an artefact, each in its folder, which artefacts share."""

    artefact: Artefact
    scale: Scale
    folder: Path
    wanted_seeds: int | None = None  # None: as many as the scale has for it

    @property
    def seeds(self) -> int:
        return self.artefact.seeds(self.scale, self.wanted_seeds)

    def runs(self) -> dict[Path, RunSpec]:
        """Those that share everything are one; seed after seed, so that what is there first is a whole table."""
        found: dict[Path, RunSpec] = {}
        for other in self.artefact.needs:
            found |= Plan(other, self.scale, self.folder, self.wanted_seeds).runs()
        for seed in range(self.seeds):
            specs = [self.scale.spec(cell, seed) for cell in self.artefact.cells if self.scale.has(cell)]
            found |= {self.folder / RUNS / folder_name(spec): spec for spec in specs}
        return found

    def done(self) -> set[Path]:
        """Finished, or known from the records of a machine that did them."""
        records = self._records()
        return {path for path, spec in self.runs().items() if spec.hash in records or Run(path).finished}

    def missing(self) -> dict[Path, RunSpec]:
        done = self.done()
        return {path: spec for path, spec in self.runs().items() if path not in done}

    def run(
        self, *, jobs: int | None = None, watch: Callable[[int], None] | None = None, **options: Any
    ) -> dict[Path, RunError]:
        """Train what is missing and take up the records of all that is there; why some could not be finished."""
        missing = self.missing()
        expect_data(missing.values(), **options)
        failed: dict[Path, RunError] = {}
        try:
            if missing:
                _, failed = train_many(missing, jobs=jobs, watch=watch, **options)
            if busy := {path: missing[path] for path, error in failed.items() if isinstance(error, BusyError)}:
                others = {path: error for path, error in failed.items() if path not in busy}
                _, failed = train_many(busy, jobs=jobs, watch=watch, wait=True, **options)
                failed |= others
        finally:
            _, damaged = self.take_up()
        advice = "delete its folder and it is trained again"
        return {
            path: RunError(f"{error}; {advice}") if isinstance(error, DamagedError) else error
            for path, error in (failed | damaged).items()
        }

    def take_up(self) -> tuple[Records, dict[Path, RunError]]:
        """Write what finished runs have shown into the records; those that cannot be read, and why."""
        self.folder.mkdir(parents=True, exist_ok=True)
        records = self._records()
        new = [Run(path) for path, spec in self.runs().items() if spec.hash not in records and Run(path).finished]
        return records, records.add(new, self.folder) if new else {}

    def _records(self) -> Records:
        """Of whole runs. A folder has one scale: its page and tables would not tell them apart."""
        records = Records.read(self.scale, self.folder)
        for name, scale in SCALES.items():
            if name != self.scale.name and any(spec.hash in records for spec in everything(scale).values()):
                raise ValueError(f"{self.folder} has runs of scale {name}; give another folder for {self.scale.name}")
        return records.whole(self.runs().values())

    def make(self, *, data_dir: Path | str | None = None) -> Made:
        """Write the artefact's files from what is known, which may be less than all."""
        records, _ = self.take_up()
        made = MAKERS[self.artefact.kind](self, records, data_dir)
        planned = everything(self.scale, self.folder).values()
        there = records.whole(planned)
        return Made(made.text, [*made.files, page.write(self.folder, there, [spec.hash for spec in planned])])


def everything(scale: Scale, folder: Path = Path()) -> dict[Path, RunSpec]:
    """The runs of all artefacts: claims are about all."""
    return Plan(ARTEFACTS["claims"], scale, folder).runs()


@dataclass(frozen=True)
class Made:
    """What to show in a terminal, and the files."""

    text: str
    files: list[Path]


def _make_table(plan: Plan, records: Records, data_dir: Path | str | None) -> Made:
    from curriculoss.paper import formulae, render, tables

    artefact = plan.artefact
    table = (
        formulae.TABLES[artefact.name]()
        if artefact.name in formulae.TABLES
        else tables.table(artefact, records, plan.seeds)
    )
    return Made(render.text(table), render.write(table, plan.folder, artefact.stem))


def _make_figure(plan: Plan, records: Records, data_dir: Path | str | None) -> Made:
    from curriculoss.paper import figures

    figure = figures.draw(plan.artefact, plan, records, data_dir=data_dir)
    return Made(f"{plan.artefact.name}: {plan.artefact.title}", figures.save(figure, plan.folder, plan.artefact.stem))


def _make_claims(plan: Plan, records: Records, data_dir: Path | str | None) -> Made:
    from curriculoss.paper import claims

    verdicts = claims.test_all(records, folder=plan.folder, data_dir=data_dir, seeds=plan.wanted_seeds)
    return Made(claims.text(verdicts), claims.write(verdicts, plan.folder))


MAKERS = {"table": _make_table, "figure": _make_figure, "claims": _make_claims}


def scale_named(name: str) -> Scale:
    if name not in SCALES:
        raise ValueError(f"unknown scale {name!r}{suggestion(name, SCALES)}")
    return SCALES[name]


def expect_data(
    specs: Iterable[RunSpec], *, data_dir: Path | str | None = None, download: bool = False, **_: Any
) -> None:
    """An error that names all data sets which are not here, before anything is begun."""
    here = {each["name"] for each in listing(data_dir) if each["here"]}
    if not download and (absent := sorted({spec.data for spec in specs} - here)):
        folder = data_folder(data_dir)
        what = "lacks" if folder.is_dir() else "is no folder, and runs need"
        raise DataError(f"{folder} {what} {', '.join(absent)}; give --data-dir, or add --download")


def estimate(specs: Iterable[RunSpec], *, jobs: int | None = None, **options: Any) -> float:
    """Seconds on this machine, from a few steps of each kind of run; `jobs` side by side take about as long each."""
    seconds: dict[str, float] = {}
    total = 0.0
    for spec in specs:
        kind = replace(spec, loss="ce", params={}, fix=None, tau=None, noise="clean", noise_seed=None, seed=0,
                       learning_rate=0.1, schedule="constant", epochs=1)  # fmt: skip
        if kind.hash not in seconds:
            seconds[kind.hash] = _seconds_an_epoch(kind, **options)
        total += spec.epochs * seconds[kind.hash]
    return total / (jobs or os.cpu_count() or 1)


def _seconds_an_epoch(spec: RunSpec, **options: Any) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as runs are trained
    try:
        task = make_task(spec, **options)
        network = make_network(spec, task)
        train = _seconds(network, itertools.islice(task.batches(spec, CPU).epoch(0), STEPS + 1), backward=True)
        test = _seconds(network, itertools.islice(task.test_batches(spec, CPU).epoch(0), STEPS + 1), backward=False)
    finally:
        torch.set_num_threads(threads)
    return len(task.train) * train + len(task.test) * test


def _seconds(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor, Tensor]], *, backward: bool) -> float:
    """A sample, without the first batch, which warms up."""
    seconds, samples = 0.0, 0
    for place, (inputs, target, _) in enumerate(batches):
        start = time.perf_counter()
        with torch.set_grad_enabled(backward):
            loss = torch.nn.functional.cross_entropy(network(inputs), target)
        if backward:
            loss.backward()
        if place or len(inputs) < 2:
            seconds, samples = seconds + time.perf_counter() - start, samples + len(inputs)
    return seconds / max(1, samples)
