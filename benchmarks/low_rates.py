"""Audits of data with few wrong labels: is the estimated rate right, and are labels as often wrong as `p_wrong` says?

    python -m benchmarks.low_rates [--quick] [--out FILE.csv]

Tables, embeddings and digits whose labels are known to be right; 0 to 5 % of them are made wrong: at random, to the
next class, or where the features say so. Some have rare classes, which a network learns late. One row per data set.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, make_classification

from benchmarks.timing import machine, write_csv
from curriculoss import audit
from curriculoss.data import Dataset, Split

NOISE = ("clean", *(f"{kind}:{rate}" for rate in (0.005, 0.02, 0.05) for kind in ("symmetric", "pairflip", "instance")))
EDGES = (0.0, 0.1, 0.5, 0.9, 1.0)  # of the groups of labels by p_wrong
Arrays = tuple[NDArray[Any], NDArray[Any]]


def table(shares: Sequence[float], separation: float, seed: int) -> Arrays:
    """Samples of a synthetic table: its classes have these shares."""
    x, y = make_classification(
        4000, 16, n_informative=8, n_redundant=4, n_classes=len(shares), weights=shares, class_sep=separation,
        flip_y=0, random_state=seed,
    )  # fmt: skip
    return x, y


def embeddings(classes: int, seed: int) -> Arrays:
    """10,000 embeddings around one centre per class; every other centre is near the one before."""
    chance = np.random.default_rng(seed)
    centres = chance.standard_normal((classes, 256))
    centres[1::2] = centres[::2] + 0.45 * chance.standard_normal(centres[::2].shape)
    y = chance.integers(0, classes, 10_000)
    return centres[y] + 1.5 * chance.standard_normal((len(y), 256)), y


def digits(seed: int, rare: bool = False) -> Arrays:
    """scikit-learn's digits as features; if `rare`, each with three quarters of the samples of the one before."""
    x, y = load_digits(return_X_y=True)
    kept = np.random.default_rng(seed).random(len(y)) < (0.75**y if rare else 1)
    return x[kept], y[kept]


DATA: dict[str, Callable[[int], Arrays]] = {
    "breast cancer": lambda seed: load_breast_cancer(return_X_y=True),
    "digits": digits,
    "table, 2 classes": lambda seed: table([0.5, 0.5], 1.5, seed),
    "table, 5 classes": lambda seed: table([0.2] * 5, 1.5, seed),
    "embeddings, 100 classes": lambda seed: embeddings(100, seed),
    "digits, rare classes": lambda seed: digits(seed, rare=True),
    "table, rare classes": lambda seed: table([0.6, 0.25, 0.1, 0.04, 0.01], 1.0, seed),
}


def measure(name: str, noise: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """The row of a data set."""
    found = []
    for seed in seeds:
        x, y = DATA[name](seed)
        split = Split(torch.from_numpy(x).float(), torch.from_numpy(y).long())
        dataset = Dataset(name, split, None, tuple(map(str, range(int(y.max()) + 1))))
        for each in noise:
            result = audit(dataset, settings={"noise": each, "seed": seed}, accelerator="cpu")
            wrong = np.zeros(len(y), bool) if result.wrong is None else result.wrong
            found.append((result, wrong))
    rates = [wrong.mean() for _, wrong in found]
    inside = [result.interval[0] <= rate <= result.interval[1] for (result, _), rate in zip(found, rates, strict=True)]
    row: dict[str, Any] = {
        "data": name,
        "audits": len(found),
        "wrong": f"{np.mean(rates):.4f}",
        "estimate": f"{np.mean([result.noise_rate for result, _ in found]):.4f}",
        "mean_error": f"{np.mean([abs(x.noise_rate - rate) for (x, _), rate in zip(found, rates, strict=True)]):.4f}",
        "inside_interval": f"{np.mean(inside):.2f}",
    }
    p = np.concatenate([result.p_wrong for result, _ in found])
    all_wrong = np.concatenate([bad for _, bad in found])
    for low, high in pairwise(EDGES):
        group = (p >= low) & (p < high)
        text = f"{group.sum()}: {p[group].mean():.3f} {all_wrong[group].mean():.3f}" if group.any() else "0"
        row[f"p_wrong {low:g} to {high:g}"] = text  # labels: mean p_wrong, share that is wrong
    return row


def main(arguments: list[str] | None = None) -> None:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.low_rates", description=about)
    parser.add_argument("--quick", action="store_true", help="one small data set, to try it")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "low_rates.csv")
    given = parser.parse_args(arguments)
    rows = []
    for name in ["breast cancer"] if given.quick else DATA:
        rows.append(measure(name, NOISE[:2] if given.quick else NOISE, [101] if given.quick else [101, 102]))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    write_csv(given.out, rows, machine())
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
