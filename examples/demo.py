"""Draw every curriculum over the margins that training starts from, and what the fixes do to MAE.

Run as `python examples/demo.py FOLDER`; `make demo` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from curriculoss import CE, MAE, fix
from curriculoss.figures import all_curricula, weight_over_initial_margins


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fixes = {
        "CE": CE(),
        "MAE": MAE(),
        "MAE, scaled": fix(MAE(), "scale", tau=2.6, num_classes=100),
        "MAE, shifted": fix(MAE(), "shift", tau=2.6, num_classes=100),
    }
    figures = {"weights.png": all_curricula(), "fixes.png": weight_over_initial_margins(fixes, num_classes=100)}
    for name, figure in figures.items():
        figure.savefig(folder / name)
        print(f"drawn: {folder / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
