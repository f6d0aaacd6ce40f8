"""The scales at which the paper's experiments are run: which data, networks and schedules stand for the paper's.

They are defined in scales.toml. Commands, pages and tests take a scale's name from there.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from curriculoss.paper.experiments import PLACES, RATES, STAND_IN, Cell
from curriculoss.runs.spec import RunSpec, preset

Settings = Mapping[str, Any]  # fields of a RunSpec


@dataclass(frozen=True)
class Scale:
    """What stands for the paper's data sets, networks and schedules, and how many seeds are run.

    Attributes:
        name: What `--scale` and the pages call it.
        about: One line for `--help`.
        settings: Fields of the spec, by data set of the paper, or "data/experiment" for what an experiment changes.
        seeds: Seeds per artefact; 1 for artefacts not listed.
        noise: Noise that stands for noise of the paper.
        rates: Constant learning rates of the MNIST schedules.
        caveats: By number of a claim: what part of it is true by construction, because the scale was chosen that way.
    """

    name: str
    about: str
    settings: Mapping[str, Settings]
    seeds: Mapping[str, int] = field(default_factory=dict)
    noise: Mapping[str, str] = field(default_factory=dict)
    rates: tuple[float, ...] = RATES
    caveats: Mapping[int, str] = field(default_factory=dict)
    _specs: dict[tuple[Cell, int], RunSpec] = field(default_factory=dict, init=False, repr=False, compare=False)

    def shown(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that an artefact shows at this scale: all of the paper's, and those of ours that the scale has."""
        stand_ins = {place.removesuffix(f"/{STAND_IN}") for place in self.settings if place.endswith(f"/{STAND_IN}")}
        return [
            cell
            for cell in cells
            if cell.learning_rate in (None, *self.rates) and (cell.experiment != STAND_IN or cell.data in stand_ins)
        ]

    def data(self, role: str) -> str:
        """The data set that stands for one of the paper's."""
        return str(self.settings[role]["data"])

    def called(self, role: str) -> str:
        """`CIFAR-10`, or `digits for CIFAR-10`."""
        data = self.data(role)
        return PLACES[role] if data == role else f"{data} for {PLACES[role]}"

    def spec(self, cell: Cell, seed: int = 0) -> RunSpec:
        """The run behind a cell."""
        if (cell, seed) not in self._specs:
            row, given = cell.row, {**self.settings[cell.data]}
            given |= self.settings.get(f"{cell.data}/{cell.experiment}", {})
            given |= {"noise": self.noise.get(cell.noise, cell.noise), "seed": seed, "loss": row.loss}
            given |= {"params": row.params, "fix": row.fix, "tau": row.tau_for(cell.noise)}
            if cell.learning_rate is not None:
                given["learning_rate"] = cell.learning_rate
            self._specs[cell, seed] = RunSpec.from_dict(given)
        return self._specs[cell, seed]


def _expanded(given: Mapping[str, dict[str, Any]]) -> dict[str, Settings]:
    """Settings with those of their `preset`, or of the data set that they are `like`."""

    def expand(place: str) -> dict[str, Any]:
        own = dict(given[place])
        like, start = own.pop("like", None), own.pop("preset", None)
        return {**(expand(like) if like else {}), **(preset(start, data=place).as_dict() if start else {}), **own}

    return {place: expand(place) for place in given}


def _read() -> Iterator[Scale]:
    for name, given in tomllib.loads(files(__package__).joinpath("scales.toml").read_text("utf-8")).items():
        caveats = {int(number): text for number, text in given.pop("caveats", {}).items()}
        settings, rates = _expanded(given.pop("settings")), tuple(given.pop("rates", RATES))
        yield Scale(name, settings=settings, rates=rates, caveats=caveats, **given)


SCALES = {scale.name: scale for scale in _read()}
SMOKE, QUICK, CPU, PAPER = SCALES.values()
DEFAULT = CPU  # the scale of `results/`
