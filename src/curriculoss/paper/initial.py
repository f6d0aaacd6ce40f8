"""Margins of real samples before training, measured once and kept in a file that figures and claims are made from."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from curriculoss.data import ABOUT, data_folder, listing
from curriculoss.initial import measure_initial_margins
from curriculoss.paper.records import damaged, read_rows
from curriculoss.paper.settings import SCALES, Scale
from curriculoss.training.spec import RunSpec
from curriculoss.training.store import write_table
from curriculoss.training.task import make_network, make_task

FILE = "initial-margins.csv"
NETWORKS = 8  # one says little: means differ by 0.2 from one initialisation to the next
SAMPLES = 128  # of each
DIGITS = 4  # after the point


def initial_spec(data: str, scale: Scale) -> RunSpec | None:
    """What is measured for one of the paper's data sets: on the real one the paper's own network at full width, on what
    stands for it the network of the scale; None where a scale has neither."""
    if data not in scale.base:
        return None
    real = scale.base[data]["data"] == data
    return RunSpec.from_dict({**(SCALES["paper"] if real else scale).base[data], "subset": None})


def num_classes(data: str, scale: Scale) -> int:
    """Of what stands for the paper's data set, or of itself."""
    spec = initial_spec(data, scale)
    return ABOUT[data if spec is None else spec.data][0]


def initial_margins(data: str, scale: Scale, folder: Path, data_dir: Path | str | None = None) -> Tensor | None:
    """Margins of training samples under the network as it is initialised, in train mode and with clean labels; one row
    for each of several initialisations.

    They are read from `folder` if it has them. None where the scale has no such data, or the machine.
    """
    spec = initial_spec(data, scale)
    if spec is None:
        return None
    kept = _read(folder)
    if not (known := _of(spec, kept)):
        if not any(found["name"] == spec.data and found["here"] for found in listing(data_dir)):
            missing = f"{data_folder(data_dir)} lacks {spec.data}: its margins before training cannot be measured"
            warnings.warn(f"{missing}; give --data-dir", stacklevel=2)
            return None
        kept += _measure(spec, data_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_table(folder / FILE, sorted(kept, key=lambda row: (row["data"], row["network"], int(row["seed"]))))
        known = _of(spec, _read(folder))
    if [len(margins) for margins in known] != [SAMPLES] * NETWORKS:
        raise damaged(folder / FILE, f"of {spec.data} it has not {SAMPLES} margins of each of {NETWORKS} networks")
    return torch.tensor(known)


def _network(spec: RunSpec) -> str:
    return spec.network if spec.width == 1 else f"{spec.network} width {spec.width:g}"


def _of(spec: RunSpec, rows: list[dict[str, Any]]) -> list[list[float]]:
    """A list for each network."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row["data"], row["network"]) == (spec.data, _network(spec)):
            found.setdefault(row["seed"], []).append(float(row["margin"]))
    return list(found.values())


def _read(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / FILE, dict.fromkeys(("data", "network", "num_classes", "seed", "margin"), str))


def _measure(spec: RunSpec, data_dir: Path | str | None) -> list[dict[str, Any]]:
    """Each network sees samples of its own."""
    task = make_task(spec, data_dir=data_dir)
    batches = task.batches(replace(spec, batch_size=SAMPLES), torch.device("cpu")).epoch(0)
    named = {"data": spec.data, "network": _network(spec), "num_classes": task.dataset.num_classes}
    found = []
    for seed, (inputs, target, _) in enumerate(islice(batches, NETWORKS)):
        margins = measure_initial_margins(make_network(replace(spec, seed=seed), task), [(inputs, target)])
        found += [{**named, "seed": seed, "margin": f"{margin:.{DIGITS}f}"} for margin in margins.tolist()]
    return found
