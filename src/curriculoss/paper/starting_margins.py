"""Margins of real samples before training, measured once and kept in initial-margins.csv for figures and claims."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn

from curriculoss._files import write_table
from curriculoss.data import DATA_SETS, data_folder
from curriculoss.initial import measure_initial_margins
from curriculoss.paper.epochs import damaged, read_rows
from curriculoss.paper.scales import PAPER, Scale
from curriculoss.runs.spec import RunSpec
from curriculoss.runs.task import make_network, make_task

INITIAL_FILE = "initial-margins.csv"
NETWORKS = 8  # means differ by 0.2 from one initialisation to the next
SAMPLES = 128  # per network
MARGIN_DIGITS = 4  # after the point


@dataclass(frozen=True)
class Start:
    """How a network is before training: its mode ("train": batch statistics, or "eval") and its initialisation.

    "paper" is the initialisation that `models` has from the paper's predecessors, "torch" that of torch's layers.
    """

    mode: str
    initialisation: str

    def __str__(self) -> str:
        return f"{self.mode} mode, {self.initialisation}'s initialisation"


STARTS = tuple(Start(mode, by) for mode, by in product(("train", "eval"), ("paper", "torch")))
AS_TRAINED = STARTS[0]
ORDER = ("mode", "initialisation", "seed")  # of the rows of a network


def initial_spec(role: str, scale: Scale) -> RunSpec:
    """The spec whose network is measured for one of the paper's data sets.

    Real data sets get the paper's own network at full width, stand-ins the network of the scale.
    """
    settings = (PAPER if scale.data(role) == role else scale).settings[role]
    return RunSpec.from_dict({**settings, "subset": None})


def num_classes(role: str, scale: Scale) -> int:
    """Classes of the data set that stands for one of the paper's."""
    return DATA_SETS[scale.data(role)].num_classes


def initial_margins(
    role: str, scale: Scale, folder: Path, data_dir: Path | str | None = None
) -> dict[Start, Tensor] | None:
    """Margins of training samples with clean labels before training, (networks, samples) for each kind of start.

    They are read from `folder` if it has them. None where the machine lacks the data.
    """
    spec = initial_spec(role, scale)
    network = spec.network if spec.width == 1 else f"{spec.network} width {spec.width:g}"
    named = {"data": spec.data, "network": network, "num_classes": str(num_classes(role, scale))}
    rows = read_rows(folder / INITIAL_FILE, dict.fromkeys((*named, *ORDER, "margin"), str))
    if not any(named.items() <= row.items() for row in rows):
        if not DATA_SETS[spec.data].is_here(data_dir):
            missing = f"{data_folder(data_dir)} lacks {spec.data}: its margins before training cannot be measured"
            warnings.warn(f"{missing}; give --data-dir", stacklevel=2)
            return None
        rows = sorted(rows + _measure(spec, named, data_dir), key=itemgetter("data", "network", *ORDER))
        folder.mkdir(parents=True, exist_ok=True)
        write_table(folder / INITIAL_FILE, rows)
    found: dict[Start, dict[str, list[float]]] = {start: {} for start in STARTS}
    for row in rows:
        start = Start(row["mode"], row["initialisation"])
        if named.items() <= row.items() and start in found:
            found[start].setdefault(row["seed"], []).append(float(row["margin"]))
    if any([len(some) for some in of.values()] != [SAMPLES] * NETWORKS for of in found.values()):
        lack = f"it does not have {SAMPLES} margins of each of {NETWORKS} networks for {spec.data}"
        raise damaged(folder / INITIAL_FILE, lack)
    return {start: torch.tensor([*of.values()]) for start, of in found.items()}


def _measure(spec: RunSpec, named: Mapping[str, str], data_dir: Path | str | None) -> list[dict[str, str]]:
    """Rows of the file; each network sees samples of its own, the same for every kind of start."""
    task = make_task(spec, data_dir=data_dir)
    batches = task.batches(replace(spec, batch_size=SAMPLES), torch.device("cpu")).epoch(0)
    found = []
    for seed, (inputs, target, _) in enumerate(islice(batches, NETWORKS)):
        for start in STARTS:
            network = make_network(replace(spec, seed=seed), task).train(start.mode == "train")
            if start.initialisation == "torch":
                network.apply(_reset)
            margins = measure_initial_margins(network, [(inputs, target)]).tolist()
            of = {**named, **asdict(start), "seed": str(seed)}
            found += [{**of, "margin": f"{margin:.{MARGIN_DIGITS}f}"} for margin in margins]
    return found


def _reset(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        module.reset_parameters()
