"""The command line: thin, and the only room that prints."""

import sys

try:
    import rich
    import typer
except ModuleNotFoundError as missing:
    sys.exit(f"Error: the command line needs {missing.name}: pip install 'curriculoss[cli]'")

from curriculoss.cli import audit, curricula, data, paper, settings, training, tuning
from curriculoss.cli.console import app, main

__all__ = ["app", "audit", "curricula", "data", "main", "paper", "rich", "settings", "training", "tuning", "typer"]
