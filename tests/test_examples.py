"""The examples, as a user runs them, and what is said to one who lacks their library."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"
SAYS = {
    "plain_pytorch": r"accuracy on clean labels (0\.9|1\.0)",
    "lightning_callback": r"'snr': tensor\(1\.",
    "huggingface_trainer": r"'mean_weight': 0\..*'epoch': 3\.0",
    "sklearn_pipeline": r"accuracy 0\.9.*suspects 0\.9",
}
LIBRARIES = {"lightning": "lightning", "huggingface": "transformers", "sklearn": "sklearn"}


def run(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=300)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_is_short(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 30
    done = run(str(path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout)
    assert not list(tmp_path.iterdir())


WITHOUT = f"""
import sys, importlib, curriculoss, curriculoss.integrations
assert not sys.modules.keys() & {set(LIBRARIES.values())}
for name, library in {LIBRARIES}.items():
    sys.modules[library] = None
    try:
        importlib.import_module(f"curriculoss.integrations.{{name}}")
    except ImportError as error:
        print(error)
"""


def test_libraries_are_imported_where_they_are_used_and_a_missing_one_is_one_line(tmp_path: Path) -> None:
    done = run("-c", WITHOUT, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"curriculoss.integrations.{name} needs {library}: pip install 'curriculoss[{name}]'"
        for name, library in LIBRARIES.items()
    ]
