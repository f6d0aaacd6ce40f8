"""Runs by what they share: those that differ in the seed alone, and those that differ in the loss alone."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from curriculoss.curricula import Curriculum
from curriculoss.initial import fix
from curriculoss.training.spec import RunSpec
from curriculoss.training.store import Run

MEASURES = ("test_accuracy", "train_accuracy", "snr", "mean_weight", "effective_learning_rate")
LOSS_FIELDS = ("loss", "params", "normalize", "fix", "tau", "initial_margin")
NOISE_FIELDS = ("noise", "noise_seed", "exact_noise")
REFUSED = "fix '{}' would do harm"  # in the note of a run that was trained without
FIXED = {"scale": "scaled ", "shift": "shifted ", "logit-bias": "logit-biased "}


def number(value: Any) -> float | None:
    """What a file may hold in a number's place is no number."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if real else None


def rows(run: Run) -> list[dict[str, Any]]:
    """One an epoch; none of a run that broke off before its first was over."""
    return run.metrics if (run.path / "metrics.jsonl").exists() else []


def value(row: Mapping[str, Any], key: str) -> float | None:
    """A number of an epoch, None if it has none of that name."""
    return number(row.get(key))


def last(run: Run, key: str) -> float | None:
    """The result of a finished run, the last epoch of another."""
    found = value(run.result, key) if run.finished else None
    return found if found is not None or not rows(run) else value(rows(run)[-1], key)


@dataclass(frozen=True)
class Failure:
    """Where training diverged, and what was said of it."""

    epoch: float | None
    reason: str

    def __str__(self) -> str:
        return "diverged" if self.epoch is None else f"diverged in epoch {self.epoch:g}"


def failure(run: Run) -> Failure | None:
    """None of a run that is finished, or has got past where it once failed."""
    if run.finished or run.failed is None:
        return None
    epoch = value(run.failed, "epoch")
    past = epoch is not None and epoch <= len(rows(run))
    return None if past else Failure(epoch, str(run.failed.get("reason") or ""))


def _note(run: Run, num_classes: int | None) -> str:
    """What was said before it began. A run that is not finished has not written it down, so its fix is asked again."""
    if run.finished:
        return str(run.result.get("note") or "")
    spec, loss = run.spec, run.spec.make_loss()
    measured = spec.initial_margin == "measured" and spec.fix != "logit-bias"
    if spec.fix is None or not isinstance(loss, Curriculum) or measured or (num_classes or 0) < 2:
        return ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        fix(loss, spec.fix, tau=spec.tau, num_classes=num_classes)
    return "; ".join(str(warning.message) for warning in caught)


@dataclass(frozen=True)
class Mean:
    """Over n seeds, None if there are none; the standard deviation (of n − 1) needs two."""

    mean: float | None
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Mean:
        known = [x for x in values if x is not None]
        spread = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known) if known else None, spread, len(known))


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, one a seed."""

    runs: tuple[Run, ...]

    @property
    def spec(self) -> RunSpec:
        return self.runs[0].spec

    @cached_property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """Those that numbers are made from: the finished ones or, if there are none, those that got somewhere, and of
        these those that diverged only if all did."""
        some = tuple(run for run in self.runs if run.finished) or tuple(run for run in self.runs if rows(run))
        return tuple(run for run in some if run not in self.failures) or some

    @cached_property
    def failures(self) -> dict[Run, Failure]:
        return {run: failed for run in self.runs if (failed := failure(run)) is not None}

    @cached_property
    def diverged(self) -> bool:
        """All of them."""
        return len(self.failures) == len(self.runs)

    @cached_property
    def failed(self) -> str | None:
        """`diverged in epoch 3`, with the seeds if that does not hold for all."""
        said = {run.spec.seed: str(failed) for run, failed in self.failures.items()}
        if self.diverged and len({*said.values()}) == 1:
            return next(iter(said.values()))
        return ", ".join(f"seed {seed} {text}" for seed, text in said.items()) or None

    @cached_property
    def notes(self) -> list[str]:
        """What was said before training, of the fix above all; one text a run, finished ones if there are, or empty."""
        some = [run for run in self.runs if run.finished] or self.runs
        return [_note(run, self.num_classes) for run in some]

    @cached_property
    def note(self) -> str | None:
        return "; ".join(dict.fromkeys(text for text in self.notes if text)) or None

    @property
    def refused(self) -> bool:
        """Whether a fix was asked for that would have done harm: trained was the loss as it is."""
        return all(REFUSED.format(self.spec.fix) in text for text in self.notes)

    @cached_property
    def epochs(self) -> int:
        return max(len(rows(run)) for run in self.runs)

    def over_seeds(self, key: str) -> Mean:
        return Mean.of(last(run, key) for run in self.counted)

    def mean(self, key: str) -> float | None:
        return self.over_seeds(key).mean

    @cached_property
    def noise_rate(self) -> float | None:
        """The share of given labels that are wrong, None if nobody knows."""
        rates = []
        for run in self.counted or self.runs:
            labels = run.arrays("labels") if (run.path / "labels.npz").exists() else {}
            if "clean" in labels:
                rates.append(float((labels["given"] != labels["clean"]).mean()))
        return Mean.of(rates).mean

    @cached_property
    def num_classes(self) -> int | None:
        """As the record of the data tells or, in older runs, the labels."""
        if (told := number(self.runs[0].task.get("num_classes"))) is not None:
            return int(told)
        file = self.runs[0].path / "labels.npz"
        labels = self.runs[0].arrays("labels") if file.exists() else {}
        tops = [int(labels[key].max()) for key in ("given", "clean") if key in labels and labels[key].size]
        return max(tops) + 1 if tops else None


def groups(runs: Iterable[Run]) -> list[Group]:
    """In the order given; of runs with one and the same spec, the one that got furthest."""
    by_settings: dict[str, dict[int, Run]] = {}
    for run in runs:
        seeds = by_settings.setdefault(_key(run.spec, without=("seed",)), {})
        other = seeds.get(run.spec.seed)
        if other is None or (run.finished, len(rows(run))) > (other.finished, len(rows(other))):
            seeds[run.spec.seed] = run
    return [Group(tuple(seeds[seed] for seed in sorted(seeds))) for seeds in by_settings.values()]


def settings(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups that differ in the loss alone, so that their losses can be compared; the noisiest first."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(_key(group.spec, without=("seed", *LOSS_FIELDS)), []).append(group)
    return sorted(found.values(), key=lambda some: -(some[0].noise_rate or 0))


def _key(spec: RunSpec, without: Sequence[str]) -> str:
    return json.dumps({k: v for k, v in spec.as_dict().items() if k not in without}, sort_keys=True)


def differing(specs: Iterable[RunSpec]) -> dict[str, list[Any]]:
    """The fields in which specs differ, with their values in order of appearance."""
    found: dict[str, list[Any]] = {}
    for spec in specs:
        for key, given in spec.as_dict().items():
            values = found.setdefault(key, [])
            if given not in values:
                values.append(given)
    return {key: values for key, values in found.items() if len(values) > 1}


def names(groups: Iterable[Group]) -> dict[str, str]:
    """By `loss_key`: `scaled MAE`, and with more detail where that would name two."""
    found = {loss_key(group): group for group in groups}
    short = {key: _name(group) for key, group in found.items()}
    taken = list(short.values())
    return {key: name if taken.count(name) == 1 else _long_name(found[key]) for key, name in short.items()}


def loss_key(group: Group) -> str:
    """Equal for equal losses; one whose fix was refused is another than one with the fix."""
    return json.dumps([group.refused, *(group.spec.as_dict()[key] for key in LOSS_FIELDS)], sort_keys=True)


def _name(group: Group) -> str:
    """`scaled MAE`, or `MAE (scale refused)` if that is what was trained."""
    spec = group.spec
    given = [f"{key}={value:g}" for key, value in spec.params.items()]
    given += [f"{spec.fix} refused"] if group.refused else []
    fixed = "" if group.refused else FIXED.get(spec.fix or "", "")
    return fixed + spec.loss.upper() + (f" ({', '.join(given)})" if given else "")


def _long_name(group: Group) -> str:
    spec = group.spec
    more = [f"τ={spec.tau:g}"] if spec.tau is not None else []
    more += ["measured start"] if spec.fix and spec.initial_margin == "measured" else []
    more += [] if spec.normalize else ["not normalised"]
    return " ".join([_name(group), *more])


def table(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """One row for runs that differ in the seed alone: what they are, and each measure's mean, `_std` (None if n = 1).

    `diff` is the mean test accuracy minus that of the clean-label runs with the same settings, None without such. Runs
    that are not finished count only where none of their row is; `finished` and `unfinished` tell. `failed` says which
    diverged and when, `note` why a fix was refused; None if there is nothing to say.
    """
    found = groups(runs)
    changed = [
        key for key in differing(group.spec for group in found) if key not in ("seed", "loss", "params", "noise")
    ]
    return [_row(group, found, changed) for group in found]


def _row(group: Group, all_groups: Sequence[Group], changed: Sequence[str]) -> dict[str, Any]:
    spec = group.spec
    row: dict[str, Any] = {
        "loss": spec.loss_name,
        "data": spec.data,
        "noise": spec.noise,
        "settings": {key: spec.as_dict()[key] for key in changed if key not in ("data", "fix", "tau")},
        "n": len(group.counted),
        "seeds": [run.spec.seed for run in group.counted],
        "finished": group.finished,
        "unfinished": sum(not run.finished for run in group.runs),
        "epochs": group.epochs,
        "failed": group.failed,
        "note": group.note,
    }
    for key in MEASURES:
        found = group.over_seeds(key)
        row |= {key: found.mean, f"{key}_std": found.std}
    return row | {"diff": _diff(group, all_groups)}


def _diff(group: Group, all_groups: Iterable[Group]) -> float | None:
    """In points of test accuracy. Noise has settings of its own, which mean nothing without it."""
    accuracy, key = group.mean("test_accuracy"), _key(group.spec, without=("seed", *NOISE_FIELDS))
    for other in all_groups:
        if other is not group and other.spec.noise == "clean" and key == _key(other.spec, ("seed", *NOISE_FIELDS)):
            reference = other.mean("test_accuracy")
            return None if accuracy is None or reference is None else accuracy - reference
    return None


def verdicts(group: Group) -> Iterator[tuple[str, str]]:
    """What the monitors said, and when: `epoch 3`, or `seed 1, epoch 3` where there are several."""
    said: dict[str, list[tuple[int, int]]] = {}
    for run in group.runs:
        for place, row in enumerate(rows(run), 1):
            for text in row.get("verdicts") or ():
                said.setdefault(str(text), []).append((place, run.spec.seed))
    for text, places in sorted(said.items(), key=lambda item: item[1]):
        epochs = sorted({epoch for epoch, _ in places})
        when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]}–{epochs[-1]}"
        if len(group.runs) > 1:
            seeds = sorted({seed for _, seed in places})
            when += ", all seeds" if len(seeds) == len(group.runs) else f", seed {', '.join(map(str, seeds))}"
        yield when, text
