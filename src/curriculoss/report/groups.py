"""Runs that differ in the seed alone as one group, with means over the seeds; groups that differ in the loss alone."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from curriculoss.fixing import plan_fix
from curriculoss.losses import Curriculum, Scaled, Shifted
from curriculoss.runs.facts import Divergence, FixFacts
from curriculoss.runs.folder import Run
from curriculoss.runs.spec import RunSpec

TABLE_MEASURES = ("test_accuracy", "train_accuracy", "snr", "mean_weight", "effective_learning_rate")
LOSS_FIELDS = ("loss", "params", "normalize", "fix", "tau", "initial_margin")
NOISE_FIELDS = ("noise", "noise_seed", "exact_noise")
FIX_PREFIXES = {"scale": "scaled ", "shift": "shifted ", "logit-bias": "logit-biased "}


def rows(run: Run) -> list[dict[str, Any]]:
    """The metrics of a run, one row per epoch; none if its first epoch did not end."""
    return run.metrics if (run.path / "metrics.jsonl").exists() else []


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A finite number from a file, or None if there is something else in its place."""
    match row.get(key):
        case (int() | float()) as value if not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def failure(run: Run) -> Divergence | None:
    """Why a run diverged; None if it is finished, or has got past the epoch in which it once failed."""
    failed = None if run.finished else run.failed
    past = failed is not None and failed.epoch is not None and failed.epoch <= len(rows(run))
    return None if past else failed


def fix_facts(run: Run) -> FixFacts | None:
    """What the fix of a run did to its loss, as recorded; for unfinished and older runs it is planned again.

    None without a fix, and where a fix that depended on measured margins would have to be planned again.
    """
    spec = run.spec
    if run.finished and run.result.fix_plan is not None:
        return run.result.fix_plan
    measured = spec.initial_margin == "measured" and spec.fix != "logit-bias"
    if spec.fix is None or spec.curriculum is None or measured or (classes := num_classes(run)) < 2:
        return None
    return FixFacts.of(plan_fix(spec.curriculum, spec.fix, tau=spec.tau, num_classes=classes))


@dataclass(frozen=True)
class Mean:
    """Mean over n values, None without any; the standard deviation (of n − 1) needs two."""

    mean: float | None
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Mean":
        known = [x for x in values if x is not None]
        spread = statistics.stdev(known) if len(known) > 1 else None
        return cls(statistics.fmean(known) if known else None, spread, len(known))


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, one per seed, and what their loss is called."""

    runs: tuple[Run, ...]
    name: str = ""  # "scaled MAE"

    @property
    def spec(self) -> RunSpec:
        return self.runs[0].spec

    @cached_property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The runs behind all numbers: finished runs; otherwise runs with an epoch, without diverged ones unless all
        diverged."""
        some = tuple(run for run in self.runs if run.finished) or tuple(run for run in self.runs if rows(run))
        return tuple(run for run in some if run not in self.failures) or some

    @cached_property
    def failures(self) -> dict[Run, Divergence]:
        return {run: failed for run in self.runs if (failed := failure(run)) is not None}

    @cached_property
    def diverged(self) -> bool:
        """Whether all runs diverged."""
        return len(self.failures) == len(self.runs)

    @cached_property
    def failed(self) -> str | None:
        """`diverged in epoch 3`, with the seeds if that does not hold for all."""
        said = {run.spec.seed: str(failed) for run, failed in self.failures.items()}
        if self.diverged and len({*said.values()}) == 1:
            return next(iter(said.values()))
        return ", ".join(f"seed {seed} {text}" for seed, text in said.items()) or None

    @cached_property
    def open(self) -> tuple[Run, ...]:
        """Runs that can be resumed."""
        return tuple(run for run in self.runs if not run.finished and run not in self.failures)

    @cached_property
    def state(self) -> str | None:
        """What a reader must know about runs that diverged or are not finished; None if all are."""
        said = [self.failed] if self.failed else []
        if self.open:
            alone = f"not finished: epoch {self.epochs} of {self.spec.epochs}"
            said.append(alone if len(self.runs) == 1 else f"{len(self.open)} of {len(self.runs)} seeds not finished")
        return ", ".join(said) or None

    @cached_property
    def fixes(self) -> list[FixFacts]:
        """What the fix did to the loss, by seed, as far as the runs tell."""
        return [found for run in self.counted or self.runs if (found := fix_facts(run)) is not None]

    @cached_property
    def refused(self) -> bool:
        """Whether the fix that was asked for would have done harm, so that the loss was trained as it is."""
        return bool(self.fixes) and not any(found.applied for found in self.fixes)

    @cached_property
    def curriculum(self) -> Curriculum | None:
        """The curriculum that the first seed was trained with, or None if the weight is not a fixed function of the
        margin or the runs do not tell which."""
        base = self.spec.curriculum
        if base is None or self.spec.fix is None:
            return base
        if not self.fixes:
            return None
        fixed = self.fixes[0]
        if not fixed.applied or not (fixed.alpha or fixed.beta):
            return base
        return Scaled(base, fixed.alpha) if fixed.alpha else Shifted(base, fixed.beta or 0.0)

    @cached_property
    def note(self) -> str | None:
        """Remarks from before training; unfinished runs have recorded none, but their fix is known."""
        notes = [run.result.note for run in self.runs if run.finished] or [found.reason for found in self.fixes]
        return "; ".join(dict.fromkeys(filter(None, notes))) or None

    @cached_property
    def epochs(self) -> int:
        return max(len(rows(run)) for run in self.runs)

    def over_seeds(self, key: str) -> Mean:
        """Mean over the seeds of the value in the last epoch."""
        return Mean.of(number(rows(run)[-1], key) for run in self.counted if rows(run))

    def mean(self, key: str) -> float | None:
        return self.over_seeds(key).mean

    @cached_property
    def noise_rate(self) -> float | None:
        """The share of given labels that are wrong, None if the true ones are unknown."""
        known = (run.arrays("labels") for run in self.counted or self.runs)
        return Mean.of(float((x["given"] != x["clean"]).mean()) for x in known if "clean" in x).mean

    @cached_property
    def num_classes(self) -> int:
        return num_classes(self.runs[0])

    def verdicts(self) -> Iterator[tuple[str, str]]:
        """When the monitors said something, as `epoch 3` or `epochs 2–4, seed 1`, and what."""
        said: dict[str, list[tuple[int, int]]] = {}
        for run in self.runs:
            for epoch, row in enumerate(rows(run), 1):
                for text in row.get("verdicts") or ():
                    said.setdefault(str(text), []).append((epoch, run.spec.seed))
        for text, places in sorted(said.items(), key=lambda item: item[1]):
            epochs, seeds = (sorted({*column}) for column in zip(*places, strict=True))
            when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]}–{epochs[-1]}"
            if len(self.runs) > 1:
                when += ", all seeds" if len(seeds) == len(self.runs) else f", seed {', '.join(map(str, seeds))}"
            yield when, text


def num_classes(run: Run) -> int:
    """From the record of the data or, in older runs, from the labels."""
    return int(run.arrays("labels")["given"].max()) + 1 if run.task is None else run.task.num_classes


def groups(runs: Iterable[Run]) -> list[Group]:
    """Groups in the order of their first runs; of runs with the same spec, the one that got furthest counts."""
    by_settings: dict[str, dict[int, Run]] = {}
    for run in runs:
        seeds = by_settings.setdefault(_key(run.spec, without=("seed",)), {})
        other = seeds.get(run.spec.seed)
        if other is None or (run.finished, len(rows(run))) > (other.finished, len(rows(other))):
            seeds[run.spec.seed] = run
    found = [Group(tuple(seeds[seed] for seed in sorted(seeds))) for seeds in by_settings.values()]
    by_loss = {_loss_key(group): _name(group) for group in found}
    ambiguous = [name for name, count in Counter(by_loss.values()).items() if count > 1]
    return [replace(group, name=_name(group, in_detail=_name(group) in ambiguous)) for group in found]


def _loss_key(group: Group) -> str:
    """Equal for equal losses; one whose fix was refused is another than one with the fix."""
    return json.dumps([group.refused, *(group.spec.as_dict()[key] for key in LOSS_FIELDS)], sort_keys=True)


def _name(group: Group, in_detail: bool = False) -> str:
    """`scaled MAE`, `MAE (scale refused)` if that is what was trained, `scaled MAE τ=2` in detail."""
    spec = group.spec
    given = [f"{key}={value:g}" for key, value in spec.params.items()]
    given += [f"{spec.fix} refused"] if group.refused else []
    fixed = "" if group.refused else FIX_PREFIXES.get(spec.fix or "", "")
    name = fixed + spec.loss.upper() + (f" ({', '.join(given)})" if given else "")
    if in_detail:
        name += f" τ={spec.tau:g}" if spec.tau is not None else ""
        name += " measured start" if spec.fix and spec.initial_margin == "measured" else ""
        name += "" if spec.normalize else " not normalised"
    return name


def by_setting(groups: Iterable[Group]) -> list[list[Group]]:
    """Groups that differ in the loss alone together, so that losses can be compared; the noisiest setting first."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(_key(group.spec, without=("seed", *LOSS_FIELDS)), []).append(group)
    return sorted(found.values(), key=lambda some: -(some[0].noise_rate or 0))


def _key(spec: RunSpec, without: Sequence[str]) -> str:
    return json.dumps({k: v for k, v in spec.as_dict().items() if k not in without}, sort_keys=True)


def differing(specs: Iterable[RunSpec]) -> dict[str, list[Any]]:
    """The fields in which specs differ, with their values in order of appearance."""
    found = distinct_values(spec.as_dict() for spec in specs)
    return {key: values for key, values in found.items() if len(values) > 1}


def distinct_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of each field, in order of appearance."""
    found: dict[str, list[Any]] = {}
    for key, value in (item for row in rows for item in row.items()):
        if value not in found.setdefault(key, []):
            found[key].append(value)
    return found


@dataclass(frozen=True)
class ResultRow:
    """A line of the table of results: one group."""

    group: Group
    settings: Mapping[str, Any]  # those that differ between groups, apart from loss, data and noise
    diff: float | None  # mean test accuracy minus that of the runs on clean labels, None without such runs

    def as_dict(self) -> dict[str, Any]:
        """For JSON and CSV: what was run, and of each measure the mean and `_std` (None for one run)."""
        group, spec = self.group, self.group.spec
        row: dict[str, Any] = {
            "loss": spec.loss_name, "data": spec.data, "noise": spec.noise, "settings": dict(self.settings),
            "n": len(group.counted), "seeds": [run.spec.seed for run in group.counted], "finished": group.finished,
            "unfinished": sum(not run.finished for run in group.runs), "epochs": group.epochs, "failed": group.failed,
            "note": group.note,
        }  # fmt: skip
        for key in TABLE_MEASURES:
            found = group.over_seeds(key)
            row |= {key: found.mean, f"{key}_std": found.std}
        return row | {"diff": self.diff}


def table(runs: Iterable[Run]) -> list[ResultRow]:
    """The results of runs, one row per group."""
    found = groups(runs)
    shown = set(differing(group.spec for group in found)) - {"seed", "loss", "params", "noise", "data", "fix", "tau"}
    settings = [{k: v for k, v in group.spec.as_dict().items() if k in shown} for group in found]
    return [ResultRow(group, some, _diff(group, found)) for group, some in zip(found, settings, strict=True)]


def _diff(group: Group, all_groups: Iterable[Group]) -> float | None:
    """In points of test accuracy. Settings of the noise mean nothing without noise, so they may differ."""
    without = ("seed", *NOISE_FIELDS)
    accuracy, key = group.mean("test_accuracy"), _key(group.spec, without)
    for other in all_groups:
        if other is not group and other.spec.noise == "clean" and key == _key(other.spec, without):
            reference = other.mean("test_accuracy")
            return None if accuracy is None or reference is None else accuracy - reference
    return None
