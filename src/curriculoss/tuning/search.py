"""`tune`: trials side by side, each kept as it ends; then the choice, and one run of it.

DIR/study.log      Optuna's journal: every trial, every epoch    DIR/best.toml   the choice, for `train --spec`
DIR/predictions/   of finished trials, for validation samples    DIR/trials.csv  the trials as a table
DIR/LOSS…-HASH/    the run of the choice
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from numpy.typing import NDArray
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState
from safetensors.torch import load_file

from curriculoss.data import Dataset
from curriculoss.training import Run, RunError, RunSpec, many, store, train
from curriculoss.training.loop import Progress, Silent
from curriculoss.training.task import make_network, make_task
from curriculoss.tuning.samples import Source
from curriculoss.tuning.select import choose
from curriculoss.tuning.space import AROUND, LOSSES, SEARCHED, Space

STUDY, PREDICTIONS, WORK = "study.log", "predictions", ".trials"
PATIENT = 3  # robust losses begin slowly: no trial is given up in the first third of its epochs


@dataclass(frozen=True)
class Tuned:
    """What came out: `spec` is the choice, the run of it is in `run`, and `trials` has one row each."""

    spec: RunSpec
    trial: int
    trials: tuple[dict[str, Any], ...]
    validation_accuracy: float  # of the choice, in percent, as are all
    test_accuracy: float
    run: Path


def tune(
    spec: RunSpec,
    out: Path | str,
    *,
    losses: Sequence[str] = LOSSES,
    trials: int = 20,
    jobs: int | None = None,
    validation: Path | str | None = None,
    validation_share: float = 0.2,
    keep: Collection[str] = (),
    data_dir: Path | str | None = None,
    download: bool = False,
    workers: int = 0,
    watch: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Search for a loss, its hyperparameters and fix, a learning rate and weight decay; all else is as in `spec`.

    Trials are judged by their accuracy on the validation samples after the last epoch: those in the path `validation`,
    of the same kind as the data, or a share of the training samples. `choose` says how, and why noisy labels will do.
    The test set is looked at once, when the choice is trained on all training samples at the end.

    What is in the folder `out` is not done again: the same call goes on to the number of trials asked for, `jobs` at a
    time (as many as cores), one thread each. With one job the outcome does not depend on interruptions. `keep` names
    rates not to search; `watch` is told how many trials are done, and `progress` about the run at the end.

        spec = RunSpec(data="digits-100", noise="symmetric:0.4", network="mlp", epochs=8)
        tuned = tune(spec, "tuned", losses=("ce", "mae"), trials=10)
        print(tuned.spec.loss_name, tuned.validation_accuracy, tuned.test_accuracy)
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("a search starts its own processes: start it without torchrun")
    if trials < 1 or (jobs is not None and jobs < 1):
        raise ValueError(f"expected trials and jobs >= 1, got {trials if trials < 1 else jobs}")
    if not 0 < validation_share < 1:
        raise ValueError(f"expected 0 < validation_share < 1, got {validation_share:g}")
    if unknown := set(keep) - set(AROUND):
        raise ValueError(f"keep expects some of {', '.join(AROUND)}, got {min(unknown)!r}")
    names = tuple(dict.fromkeys(name.lower() for name in losses)) or LOSSES
    for name in names:
        RunSpec(loss=name)  # or an error that lists them
    base, folder = replace(spec, loss="ce", params={}, fix=None, tau=None), Path(out)
    source = Source(base, validation, data_dir, validation_share)
    _expect_ours(folder)
    dataset = source.read(download)
    assert dataset.test is not None  # the validation samples
    space = Space(base, names, dataset.num_classes, frozenset(keep))
    asked = {
        **base.as_dict(), "losses": list(names), "keep": sorted(keep),
        "validation": f"{validation_share:g}" if validation is None else str(validation),
        "fingerprint": make_task(_alone(base), dataset=dataset).facts()["fingerprint"],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with store.locked(folder):
        study = _begin(folder, asked, base.epochs)
        done = _done(study)
        todo = deque(place for place in range(trials) if place not in done)
        jobs = min(jobs or os.cpu_count() or 1, max(1, len(todo)))
        waiting: dict[Future[Outcome], Trial] = {}
        with many.processes(jobs) as pool:
            while todo or waiting:
                if watch is not None:
                    watch(trials - len(todo) - len(waiting))
                while todo and len(waiting) < jobs:
                    trial, settings = _ask(study, space, todo.popleft())
                    waiting[pool.submit(_attempt, source, settings, trial._trial_id, folder, workers)] = trial
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    _tell(study, waiting.pop(future), future.result(), folder)
        if watch is not None:
            watch(trials)
        rows = _judged(study, folder, dataset.test.target.numpy())
        best = next(row for row in rows if row["chosen"])
        chosen = replace(base, **_done(study)[best["trial"]].user_attrs["settings"])
        store.write_table(folder / "trials.csv", rows)
        store.write_text(folder / "best.toml", chosen.to_toml())
    run = folder / many.folder_name(chosen)
    result = train(chosen, run, data_dir=data_dir, download=download, workers=workers, progress=progress)
    return Tuned(chosen, best["trial"], rows, best["validation_accuracy"], result["test_accuracy"], run)


def _alone(spec: RunSpec) -> RunSpec:
    """As for a Dataset that brings its noise and is whole."""
    return replace(spec, noise="clean", subset=None)


def _expect_ours(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give a folder for the search")
    if folder.exists() and not (folder / STUDY).exists() and any(x.name != ".lock" for x in folder.iterdir()):
        raise RunError(f"{folder} is not empty and holds no search; give another folder")


def _open(folder: Path, epochs: int) -> optuna.Study:
    """A journal bears several processes; its lock is a file that every system has."""
    file = str(folder / STUDY)
    storage = JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file)))
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=epochs // PATIENT)
    if storage.get_all_studies():
        return optuna.load_study(study_name="tune", storage=storage, pruner=pruner)
    said = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(study_name="tune", storage=storage, pruner=pruner, direction="maximize")
    finally:
        optuna.logging.set_verbosity(said)


def _begin(folder: Path, asked: dict[str, Any], epochs: int) -> optuna.Study:
    """The study, which must be this one; what a search that was killed has left is put away."""
    log = folder / STUDY
    (folder / f"{STUDY}.lock").unlink(missing_ok=True)
    shutil.rmtree(folder / WORK, ignore_errors=True)
    if log.exists() and not (text := log.read_bytes()).endswith(b"\n"):
        store.write(log, lambda file: file.write(text[: text.rfind(b"\n") + 1]))
    try:
        study = _open(folder, epochs)
        before = study.user_attrs.get("asked")
    except Exception as error:  # Optuna has none of its own for a journal that is none
        raise RunError(f"cannot read {log} ({str(error)[:80] or type(error).__name__}); give another folder") from None
    if before is None:
        study.set_user_attr("asked", asked)
    elif other := [key for key in asked if before.get(key, asked[key]) != asked[key]]:
        if other == ["fingerprint"]:
            raise RunError(f"{folder} was made from other data; give another folder")
        change = f"{other[0]} {before[other[0]]!r}, not {asked[other[0]]!r}"
        raise RunError(f"{folder} holds another search ({change}); give another folder")
    for _ in study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.ask()
    for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(left.number, state=TrialState.FAIL)
    return study


def _done(study: optuna.Study) -> dict[int, FrozenTrial]:
    """By their places: finished, given up or diverged, but not broken off."""
    found = {
        trial.user_attrs["place"]: trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or "reason" in trial.user_attrs
    }
    return dict(sorted(found.items()))


def _ask(study: optuna.Study, space: Space, place: int) -> tuple[Trial, dict[str, Any]]:
    """Every loss as usual first. Seeded by its place, so that one that was broken off comes again."""
    study.sampler = optuna.samplers.TPESampler(seed=(space.base.seed * 1_000_003 + place) % 2**32)
    if place < len(space.losses):
        study.enqueue_trial(space.usual(space.losses[place]))
    trial = study.ask()
    settings = space.suggest(trial)
    trial.set_user_attr("place", place)
    trial.set_user_attr("settings", settings)
    return trial, settings


class Outcome(NamedTuple):
    """Of a trial: what it predicts, or why it does not; neither where it was given up."""

    accuracy: float | None = None
    predictions: NDArray[Any] | None = None
    reason: str | None = None


def _tell(study: optuna.Study, trial: Trial, outcome: Outcome, folder: Path) -> None:
    if (predictions := outcome.predictions) is not None:
        (folder / PREDICTIONS).mkdir(exist_ok=True)
        store.write(_predictions(folder, trial.number), lambda file: np.save(file, predictions))
        study.tell(trial, outcome.accuracy)
    elif outcome.reason is not None:
        trial.set_user_attr("reason", outcome.reason)
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, state=TrialState.PRUNED)


def _predictions(folder: Path, number: int) -> Path:
    return folder / PREDICTIONS / f"{number:04}.npy"


class _Reporter(Silent):
    """Tells Optuna about every epoch, and ends a run that it gives up."""

    def __init__(self, trial: Trial, epochs: int) -> None:
        self.trial, self.epochs = trial, epochs

    def row(self, row: dict[str, Any]) -> None:
        if row["test_accuracy"] is not None:  # on the validation samples
            self.trial.report(row["test_accuracy"], row["epoch"])
            if row["epoch"] < self.epochs and self.trial.should_prune():
                raise optuna.TrialPruned


def _attempt(source: Source, settings: dict[str, Any], trial_id: int, folder: Path, workers: int) -> Outcome:
    """One trial, in a process for itself."""
    spec = replace(_alone(source.spec), **settings)
    dataset = _read(source.spec.to_json(), source.validation, source.data_dir, source.share)
    trial = Trial(_open(folder, spec.epochs), trial_id)
    run = folder / WORK / str(trial.number)
    try:
        result = train(spec, run, dataset=dataset, workers=workers, progress=_Reporter(trial, spec.epochs))
        return Outcome(result["test_accuracy"], _predict(spec, dataset, run))
    except optuna.TrialPruned:
        return Outcome()
    except RunError as error:
        if Run(run).failed is None:
            raise
        return Outcome(reason=str(error))
    finally:
        shutil.rmtree(run, ignore_errors=True)


@lru_cache(1)
def _read(spec: str, *rest: Any) -> Dataset:
    """Once in a process."""
    return Source(RunSpec.from_dict(json.loads(spec)), *rest).read()


@torch.no_grad()
def _predict(spec: RunSpec, dataset: Dataset, run: Path) -> NDArray[Any]:
    task = make_task(spec, dataset=dataset)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = make_network(spec, task)
    network.load_state_dict(load_file(run / "model.safetensors"))
    network.to(device).eval()
    found = torch.empty(len(task.test), dtype=torch.int32)
    for inputs, _, index in task.test_batches(spec, device).epoch(0):
        found[index.cpu()] = network(inputs).argmax(1).int().cpu()
    return found.numpy()


def _judged(study: optuna.Study, folder: Path, labels: NDArray[Any]) -> tuple[dict[str, Any], ...]:
    """A row for each trial that is done, one of them chosen."""
    done = _done(study)
    whole = [place for place, trial in done.items() if trial.state == TrialState.COMPLETE]
    if not whole:
        reason = next(iter(done.values())).user_attrs["reason"]  # only finished trials make Optuna give one up
        raise RunError(f"no trial came to its end; the first: {reason}")
    try:
        choice = choose(np.stack([np.load(_predictions(folder, done[place].number)) for place in whole]), labels)
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {folder / PREDICTIONS} ({error}); give another folder") from None
    words = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "given up", TrialState.FAIL: "diverged"}
    rows = []
    for place, trial in done.items():
        settings, at = trial.user_attrs["settings"], whole.index(place) if place in whole else None
        rows.append({
            "trial": place, "name": RunSpec(**settings).loss_name, "state": words[trial.state],
            "epochs": trial.last_step, "validation_accuracy": trial.value,
            "near_the_best": at is not None and bool(choice.near[at]),
            "agreement": None if at is None else float(choice.agreement[at]), "chosen": at == choice.chosen,
            **dict.fromkeys(SEARCHED), **settings,
        })  # fmt: skip
    return tuple(rows)
