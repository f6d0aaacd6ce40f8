"""`tune`: trials side by side, each recorded when it ends; then the choice, and a run of it.

study.log     Optuna's journal: every trial, its epochs and predictions     trials.csv    the trials as a table
best.toml     the choice, for `train --spec`                                LOSS…-HASH/   the run of the choice
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from numpy.typing import NDArray
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from curriculoss import _files
from curriculoss._facts import Facts
from curriculoss._text import first_line
from curriculoss.data import Dataset
from curriculoss.errors import DivergedError, InvalidValueError, RunError
from curriculoss.fitting import Callback, EpochResult, predictions
from curriculoss.runs import RunSpec, executors, many, train
from curriculoss.runs.task import Task, Training, make_fabric, make_task
from curriculoss.tuning.samples import TrialData
from curriculoss.tuning.select import choose
from curriculoss.tuning.space import FACTORS, LOSSES, Candidate, Space

STUDY = "study.log"
STATE_WORDS = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "given up", TrialState.FAIL: "diverged"}


@dataclass(frozen=True, kw_only=True)
class TrialResult(Candidate):
    """One trial of a search: its settings, and how it did."""

    trial: int
    name: str  # of the loss with its hyperparameters and fix
    state: str  # "finished", "given up" or "diverged"
    epochs: int | None
    validation_accuracy: float | None  # in percent
    near_the_best: bool  # within two standard errors
    agreement: float | None  # with the majority of the trials near the best, in percent
    chosen: bool


@dataclass(frozen=True)
class Tuned(Facts):
    """The outcome of a search: the chosen settings, the run of them, and all trials; accuracies are in percent."""

    spec: RunSpec
    trial: int
    trials: tuple[TrialResult, ...]
    validation_accuracy: float | None
    test_accuracy: float | None
    run: Path


def tune(
    spec: RunSpec, out: Path | str, *, losses: Sequence[str] = LOSSES, trials: int = 20, jobs: int | None = None,
    validation: Path | str | None = None, validation_share: float = 0.2, keep: Collection[str] = (),
    data_dir: Path | str | None = None, download: bool = False, workers: int = 0,
    watch: Callable[[int], None] | None = None, callbacks: Sequence[Callback] = (),
) -> Tuned:  # fmt: skip
    """Search for a loss, its hyperparameters and fix, a learning rate and a weight decay.

    Trials are measured by their accuracy on the validation samples after the last epoch; `choose` says how one is
    chosen, and why noisy validation labels will do. The test set is used once, when the choice is trained on all
    training samples at the end. The same call goes on where an interrupted one was; with one job the outcome does not
    depend on interruptions.

    Args:
        spec: All settings that are not searched.
        out: The folder of the search.
        losses: The losses to try, each with its defaults first.
        trials: The number of trials in all, including those in the folder.
        jobs: Trials at the same time, one thread each; by default as many as there are cores.
        validation: A path of the same kind as the data with the validation samples.
        validation_share: Without it, the share of the training samples to hold out.
        keep: Rates not to search, "learning_rate" or "weight_decay".
        data_dir: Where published data sets are.
        download: Fetch a published data set that is not there.
        workers: Number of processes per trial that decode image files.
        watch: Receives the number of trials done.
        callbacks: What watches the run at the end.

    Example:
        >>> import tempfile
        >>> from curriculoss.runs import RunSpec
        >>> from curriculoss.tuning import tune
        >>> spec = RunSpec(data="digits", noise="symmetric:0.4", network="linear", epochs=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tuned = tune(spec, folder, losses=("ce",), trials=1, jobs=1)
        >>> tuned.spec.loss_name, tuned.test_accuracy > 50
        ('ce', True)
    """
    names = tuple(dict.fromkeys(name.lower() for name in losses)) or LOSSES
    _check(trials, jobs, keep, names)
    base, folder = replace(spec, loss="ce", params={}, fix=None, tau=None), Path(out)
    samples = TrialData(base, validation, data_dir, validation_share)
    _files.holds(folder, STUDY, "search", ignoring=[".lock"])
    dataset = samples.read(download)
    assert dataset.test is not None  # the validation samples
    asked = {
        **base.as_dict(), "losses": list(names), "keep": sorted(keep),
        "validation": f"{validation_share:g}" if validation is None else str(validation),
        "fingerprint": _task(base, dataset).facts().fingerprint,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with _files.locked(folder):
        study = _begin(folder, asked, base.epochs)
        todo = deque(sorted(set(range(trials)) - _done(study).keys()))
        space = Space(base, names, dataset.num_classes, frozenset(keep))
        jobs = min(jobs or os.cpu_count() or 1, max(1, len(todo)))
        running: set[Future[None]] = set()
        with executors.LocalExecutor(jobs).pool(jobs) as pool:
            while todo or running:
                while todo and len(running) < jobs:
                    trial, candidate = _ask(study, space, todo.popleft())
                    running.add(pool.submit(_attempt, samples, candidate, trial._trial_id, folder, workers))
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
                if watch is not None:
                    watch(trials - len(todo) - len(running))
        results = _judged(study, dataset.test.target.numpy())
        best = next(each for each in results if each.chosen)
        chosen = best.spec(base)
        _files.write_table(folder / "trials.csv", [each.as_dict() for each in results])
        _files.write_text(folder / "best.toml", chosen.to_toml())
    run = folder / many.folder_name(chosen)
    result = train(chosen, run, data_dir=data_dir, download=download, workers=workers, callbacks=callbacks)
    return Tuned(chosen, best.trial, results, best.validation_accuracy, result.test_accuracy, run)


def _check(trials: int, jobs: int | None, keep: Collection[str], losses: Collection[str]) -> None:
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InvalidValueError("a search starts its own processes: start it without torchrun")
    if trials < 1 or (jobs is not None and jobs < 1):
        raise InvalidValueError(f"expected trials and jobs >= 1, got {trials if trials < 1 else jobs}")
    if unknown := set(keep) - set(FACTORS):
        raise InvalidValueError(f"keep expects some of {', '.join(FACTORS)}, got {min(unknown)!r}")
    for name in losses:
        RunSpec(loss=name)  # an error lists the losses


def _task(spec: RunSpec, dataset: Dataset) -> Task:
    """A task on trial data, which are noisy and cut to the subset already."""
    return make_task(replace(spec, noise="clean", subset=None), dataset=dataset)


def _open(folder: Path, epochs: int) -> optuna.Study:
    """The study in a journal, which several processes may write; robust losses start slowly, so no trial is pruned in
    the first third of its epochs."""
    file = str(folder / STUDY)
    storage = JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file)))
    if not storage.get_all_studies():
        storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "tune")
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=epochs // 3)
    return optuna.load_study(study_name="tune", storage=storage, pruner=pruner)


def _begin(folder: Path, asked: dict[str, Any], epochs: int) -> optuna.Study:
    """The study of this search, without what a killed one has left; RunError if the folder holds another search."""
    log = folder / STUDY
    (folder / f"{STUDY}.lock").unlink(missing_ok=True)
    if log.exists() and not (text := log.read_bytes()).endswith(b"\n"):
        _files.write(log, lambda file: file.write(text[: text.rfind(b"\n") + 1]))
    try:
        study = _open(folder, epochs)
        before = study.user_attrs.get("asked")
    except Exception as error:  # Optuna raises errors of many kinds for a file that is no journal
        raise RunError(f"cannot read {log} ({first_line(error)[:80]}); give another folder") from None
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
    """Trials by their place: finished, pruned or diverged, but not interrupted."""
    found = {
        trial.user_attrs["place"]: trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state == TrialState.PRUNED or {"predictions", "reason"} & trial.user_attrs.keys()
    }
    return dict(sorted(found.items()))


def _ask(study: optuna.Study, space: Space, place: int) -> tuple[Trial, Candidate]:
    """A new trial: the defaults of each loss first. Seeded by its place, so that an interrupted one comes again."""
    study.sampler = optuna.samplers.TPESampler(seed=(space.base.seed * 1_000_003 + place) % 2**32)
    if place < len(space.losses):
        study.enqueue_trial(space.default(space.losses[place]))
    trial = study.ask()
    candidate = space.suggest(trial)
    trial.set_user_attr("place", place)
    trial.set_user_attr("settings", candidate.as_dict())
    return trial, candidate


class _Pruning(Callback):
    """Reports the validation accuracy of each epoch to Optuna, which may give up on a trial before its last epoch."""

    def __init__(self, trial: Trial, epochs: int) -> None:
        self.trial, self.epochs = trial, epochs

    def on_epoch_end(self, result: EpochResult) -> None:
        if result.test_accuracy is not None:
            self.trial.report(result.test_accuracy, result.epoch)
            if result.epoch < self.epochs and self.trial.should_prune():
                raise optuna.TrialPruned


def _attempt(samples: TrialData, candidate: Candidate, trial_id: int, folder: Path, workers: int) -> None:
    """Train one trial in memory, in a process of its own, and record how it ended."""
    spec, study = candidate.spec(samples.spec), _open(folder, samples.spec.epochs)
    trial = Trial(study, trial_id)
    training = Training.prepare(spec, _task(spec, _read(samples)), make_fabric(spec))
    try:
        history = training.fit([_Pruning(trial, spec.epochs)], workers=workers)
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except DivergedError as error:
        trial.set_user_attr("reason", str(error))
        study.tell(trial, state=TrialState.FAIL)
    else:
        trial.set_user_attr("predictions", predicted(training).tolist())
        study.tell(trial, history[-1].test_accuracy)


_read = lru_cache(1)(TrialData.read)  # once per process


def predicted(training: Training) -> NDArray[Any]:
    """The class that a trained network predicts for each test sample, in their order."""
    device = training.fabric.device
    batches = training.task.batches(training.spec, device, test=True)
    return torch.cat(
        [logits.argmax(1).int().cpu() for logits, _ in predictions(training.network, batches, device)]
    ).numpy()


def _judged(study: optuna.Study, labels: NDArray[Any]) -> tuple[TrialResult, ...]:
    """The result of each trial that is done; one of them is chosen."""
    done = _done(study)
    whole = [place for place, trial in done.items() if trial.state == TrialState.COMPLETE]
    if not whole:
        reason = next(iter(done.values())).user_attrs["reason"]  # without finished trials, Optuna prunes none
        raise RunError(f"no trial came to its end; the first: {reason}")
    choice = choose(np.array([done[place].user_attrs["predictions"] for place in whole]), labels)
    results = []
    for place, trial in done.items():
        candidate = Candidate.from_dict(trial.user_attrs["settings"])
        at = whole.index(place) if place in whole else None
        results.append(TrialResult(
            **vars(candidate), trial=place, name=candidate.spec(RunSpec()).loss_name, state=STATE_WORDS[trial.state],
            epochs=trial.last_step, validation_accuracy=trial.value, chosen=at == choice.chosen,
            near_the_best=at is not None and bool(choice.near[at]),
            agreement=None if at is None else float(choice.agreement[at]),
        ))  # fmt: skip
    return tuple(results)
