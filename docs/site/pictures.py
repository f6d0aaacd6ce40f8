"""The pictures of the site, made by `curriculoss.figures` at build time: `python docs/site/pictures.py FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from curriculoss import AUL, CE, GCE, MAE, fix, plan_fix
from curriculoss.figures import all_curricula, weight_over_initial_margins


def _fixes() -> Figure:
    shown = {"CE": CE(), "MAE": MAE()}
    shown |= {f"MAE, {word}": fix(MAE(), method, num_classes=100) for word, method in
              (("scaled", "scale"), ("shifted", "shift"))}  # fmt: skip
    return weight_over_initial_margins(shown, 100)


def _taus() -> Figure:
    plans = {f"τ = {tau}": plan_fix(MAE(), "scale", tau=tau, num_classes=100) for tau in (2.0, 2.6, 4.0)}
    return weight_over_initial_margins({name: plan.curriculum for name, plan in plans.items()}, 100)


PICTURES: dict[str, Callable[[], Figure]] = {
    "three": lambda: weight_over_initial_margins({"CE": CE(), "GCE q=0.7": GCE(0.7), "MAE": MAE()}, 10),
    "classes": lambda: weight_over_initial_margins({"CE": CE(), "MAE": MAE()}, (10, 100)),
    "hyperparameters": lambda: weight_over_initial_margins(
        {"AUL a=1.1 q=5": AUL(1.1, 5), "AUL a=3 q=0.7": AUL(3, 0.7)}, (10, 100)
    ),
    "fixes": _fixes,
    "taus": _taus,
    "all": all_curricula,
}


def write_all(folder: Path) -> None:
    """Draw every picture that is not there yet; a clean build draws all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        path = folder / f"{name}.svg"
        if not path.exists():
            draw().savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
