"""Sweeps: many runs from one file, kept in one folder.

DIR/sweep.json     the specs, in order              DIR/runs/NAME/    a run folder for each
DIR/failures.json  why runs failed, by their hash   DIR/results.csv   a row per finished run, written at the end
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curriculoss import _files
from curriculoss._checks import check_known
from curriculoss._facts import Facts
from curriculoss._text import first_line
from curriculoss.errors import InvalidValueError, RunError
from curriculoss.runs.executors import Executor
from curriculoss.runs.facts import TrainResult
from curriculoss.runs.folder import Run
from curriculoss.runs.many import epochs_done, folder_name, train_many
from curriculoss.runs.spec import RunSpec, read_settings

SPECS, FAILURES, RESULTS, RUNS = "sweep.json", "failures.json", "results.csv", "runs"
KEYS = ("base", "grid", "runs")
MOST_RUNS = 100_000
STATES = ("running", "stopped", "failed", "queued", "done")  # in the order in which they are shown


@dataclass(frozen=True)
class RunState(Facts):
    """How far a run of a sweep has come."""

    run: Path
    hash: str
    loss: str
    noise: str
    seed: int
    state: str  # one of STATES; "stopped": begun, but not being trained now
    epochs: int  # done
    of: int
    seconds_left: float | None = None  # of a running one, once an epoch is done
    reason: str = ""  # why it failed


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep and their folder.

    Args:
        folder: Where everything is kept.
        specs: What to run, each spec once.
    """

    folder: Path
    specs: tuple[RunSpec, ...]

    @classmethod
    def read(cls, folder: Path) -> "Sweep":
        """The sweep in a folder; RunError if there is none."""
        try:
            plain = json.loads((folder / SPECS).read_text("utf-8"))
            return cls(folder, tuple(map(RunSpec.from_dict, plain)))
        except OSError as error:
            raise RunError(f"{folder} is no sweep: cannot read {folder / SPECS}: {error.strerror}") from None
        except (TypeError, ValueError) as error:  # no JSON, or none of specs
            raise RunError(f"cannot read {folder / SPECS}: {first_line(error)}") from None

    def runs(self) -> dict[Path, RunSpec]:
        """The spec of each run folder."""
        return {self.folder / RUNS / folder_name(spec): spec for spec in self.specs}

    def train(
        self, executor: Executor | None = None, *, watch: Callable[[int], None] | None = None, **options: Any
    ) -> tuple[dict[Path, TrainResult], dict[Path, RunError]]:
        """Train all unfinished runs, including those that failed before. A failing run does not stop the others.

        Args:
            executor: Where to train; by default in processes on this machine.
            watch: Receives the number of epochs done, about twice per second; `states` says how far each run is.
            options: Arguments of `train`.

        Returns:
            Results and errors by run folder.

        Raises:
            RunError: The folder holds something else, or another process trains the sweep.
        """
        _files.holds(self.folder, SPECS, "sweep", ignoring=(".lock",))
        self.folder.mkdir(parents=True, exist_ok=True)
        with _files.locked(self.folder):
            failures: dict[str, str] = {}
            runs = self.runs()

            def ended(folder: Path, error: Exception | None) -> None:
                if error is not None:
                    failures[runs[folder].hash] = str(error)
                    _files.write_json(self.folder / FAILURES, failures)

            _files.write_json(self.folder / SPECS, [spec.as_dict() for spec in self.specs])
            _files.write_json(self.folder / FAILURES, failures)
            results, failed = train_many(runs, executor=executor, watch=watch, ended=ended, **options)
            _files.write_table(self.folder / RESULTS, [_row(runs[x], result) for x, result in results.items()])
        return results, failed

    def states(self, *, alive: bool | None = None) -> list[RunState]:
        """How far each run is. `alive` says whether the sweep is being trained, if the caller knows."""
        alive = _files.is_locked(self.folder) if alive is None else alive
        failures = self._failures()
        return [_state(folder, spec, alive, failures.get(spec.hash)) for folder, spec in self.runs().items()]

    def _failures(self) -> dict[str, str]:
        try:
            return {str(key): str(value) for key, value in json.loads((self.folder / FAILURES).read_text()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"cannot read {self.folder / FAILURES}: {first_line(error)}") from None


def _row(spec: RunSpec, result: TrainResult) -> dict[str, Any]:
    return {**spec.as_dict(), **result.as_dict(), "spec": spec.hash, "loss": spec.loss}


def _state(folder: Path, spec: RunSpec, alive: bool, failure: str | None) -> RunState:
    done, left = epochs_done(folder), None
    if Run(folder).finished:
        state = "done"
    elif failure is not None:
        state = "failed"
    elif not folder.exists():
        state = "queued"
    else:
        state = "running" if alive else "stopped"
    if state == "running" and done:
        with suppress(RunError):  # its folder may just have been removed; the other runs go on
            rows = Run(folder).metrics
            left = (spec.epochs - done) * sum(row["train_seconds"] + row["test_seconds"] for row in rows) / len(rows)
    return RunState(folder, spec.hash, spec.loss_name, spec.noise, spec.seed, state, done, spec.epochs, left,
                    failure if state == "failed" and failure else "")  # fmt: skip


def read_sweep(path: Path | str) -> tuple[RunSpec, ...]:
    """The specs that a sweep file means.

    `[base]` has the settings of all runs. `[grid]`, or several `[[grid]]`, has lists of settings, of which every
    combination is run; `[[runs]]` are single runs. Nothing that the file names is imported.

    Args:
        path: A .toml or .json file.

    Raises:
        InvalidValueError: An unknown key or value, or two runs with the same hash.

    Example:
        >>> import tempfile, pathlib
        >>> from curriculoss.runs.sweep import read_sweep
        >>> text = 'base = {data = "digits"}\\n[grid]\\nloss = ["gce"]\\nparams.q = [0.3, 0.7]\\nseed = [0, 1]'
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "sweep.toml"
        ...     _ = file.write_text(text)
        ...     [(spec.loss_name, spec.seed) for spec in read_sweep(file)]
        [('gce q=0.3', 0), ('gce q=0.3', 1), ('gce q=0.7', 0), ('gce q=0.7', 1)]
    """
    return read_settings(Path(path), "sweep", lambda plain: tuple(_specs(plain)))


def _specs(plain: Any) -> Iterator[RunSpec]:
    for key in _table(plain, "the file"):
        check_known("key", key, KEYS, " in the sweep")
    base = _table(plain.get("base", {}), "base")
    grids = plain.get("grid", [])
    seen: dict[str, str] = {}
    for where, settings in itertools.chain(
        _combinations([grids] if isinstance(grids, Mapping) else _tables(grids, "grid")),
        ((f"runs {i}", each) for i, each in enumerate(_tables(plain.get("runs", []), "runs"), 1)),
    ):
        try:
            spec = RunSpec.from_dict({**base, **settings})
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"{where}: {error}") from None
        if ":" in spec.network:
            raise InvalidValueError(f"{where}: no sweep imports a network of your own, got network {spec.network!r}")
        if spec.hash in seen:
            raise InvalidValueError(f"{seen[spec.hash]} and {where} are the same run, with hash {spec.hash}")
        seen[spec.hash] = where
        yield spec
    if not seen:
        raise InvalidValueError("expected runs, as a table [grid] or as tables [[runs]], got none")


def _combinations(grids: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every combination of a grid's values, and where it is from; each hyperparameter has a list of its own."""
    for number, grid in enumerate(grids, 1):
        params = _table(grid.get("params", {}), f"params of grid {number}")
        choices: dict[tuple[str, ...], Any] = {}
        for key, value in grid.items():
            choices |= {("params", name): params[name] for name in params} if key == "params" else {(key,): value}
        for names, values in choices.items():
            if not isinstance(values, list) or not values:
                raise InvalidValueError(f"grid {number}: {'.'.join(names)} expects a list of values, got {values!r}")
        if (count := math.prod(map(len, choices.values()))) > MOST_RUNS:
            raise InvalidValueError(f"grid {number} expects at most {MOST_RUNS:,} combinations, got {count:,}")
        for place, combination in enumerate(itertools.product(*choices.values()), 1):
            found: dict[str, Any] = {"params": {}} if params else {}
            for names, value in zip(choices, combination, strict=True):
                (found["params"] if len(names) > 1 else found)[names[-1]] = value
            if choices:
                yield f"grid {number}, combination {place}", found


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"{where} expects a table of names and values, got {value!r}")
    return value


def _tables(value: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise InvalidValueError(f"{where} expects tables, as in [[{where}]], got {value!r}")
    return [_table(each, where) for each in value]
