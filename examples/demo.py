"""Pictures: every curriculum over the margins that training starts from, what the fixes do to MAE, and, given a folder
of runs, how their margins moved.

Run as `python examples/demo.py FOLDER [RUNS]`; `make demo` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from curriculoss import CE, MAE, fix
from curriculoss.figures import all_curricula, weight_over_initial_margins
from curriculoss.report import dynamics
from curriculoss.runs import Run


def main(folder: Path, runs: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fixes = {
        "CE": CE(),
        "MAE": MAE(),
        "MAE, scaled": fix(MAE(), "scale", tau=2.6, num_classes=100),
        "MAE, shifted": fix(MAE(), "shift", tau=2.6, num_classes=100),
    }
    figures = {"weights.png": all_curricula(), "fixes.png": weight_over_initial_margins(fixes, num_classes=100)}
    if runs is not None:
        figures["dynamics.png"] = dynamics(Run(each.parent) for each in sorted(runs.glob("*/spec.json")))
    for name, figure in figures.items():
        figure.savefig(folder / name)
    print("pictures:", ", ".join(str(folder / name) for name in figures))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
