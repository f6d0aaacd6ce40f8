"""The command line: the commands, one file per topic; console, exits, options and progress are shared."""

import sys

try:
    import rich
    import typer
except ModuleNotFoundError as missing:
    sys.exit(f"Error: the command line needs {missing.name}: pip install 'curriculoss[cli]'")

from curriculoss.cli import (  # noqa: F401  importing a module registers its commands
    audit,
    compare,
    data,
    doctor,
    explore,
    losses,
    predict,
    report,
    reproduce,
    sweep,
    train,
    tune,
    weight,
)
from curriculoss.cli.console import app, main

__all__ = ["app", "main", "rich", "typer"]
