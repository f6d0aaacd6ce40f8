"""What a user meets first: the import, the version, and the README."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import curriculoss

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")

# Refuse whatever is neither Python's own, nor curriculoss, nor torch with what torch requires.
TORCH_ALONE = """
import re, sys
from importlib.metadata import packages_distributions, requires

wanted, queue = set(), ["torch"]
while queue:
    name = re.sub("[-_.]+", "-", queue.pop()).lower()
    if name not in wanted:
        wanted.add(name)
        try:
            needs = requires(name) or []
        except ModuleNotFoundError:  # of another platform
            continue
        queue += [re.match("[A-Za-z0-9._-]+", need)[0] for need in needs if "extra ==" not in need]
allowed = {"curriculoss", *sys.stdlib_module_names}
for module, owners in packages_distributions().items():
    if any(re.sub("[-_.]+", "-", owner).lower() in wanted for owner in owners):
        allowed.add(module)
assert "torch" in allowed and not allowed & {"numpy", "matplotlib", "rich", "typer"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"refused to import {name}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", TORCH_ALONE + code], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["numpy", "matplotlib", "rich", "typer"])
def test_the_blocker_blocks(module: str) -> None:
    done = run(f"import {module}")
    assert done.returncode == 1
    assert f"refused to import {module}" in done.stderr


@pytest.mark.slow
def test_the_package_needs_torch_alone() -> None:
    done = run(
        """
import torch, curriculoss
for name in curriculoss.__all__:
    getattr(curriculoss, name)
logits, target = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])
for name in curriculoss.available():
    curriculoss.RobustLoss(curriculoss.get(name))(logits, target).backward()
"""
    )
    assert done.returncode == 0, done.stderr


def test_no_import_replaces_a_function_by_a_module() -> None:
    """In a process of its own: every module is imported, then each function of the package is called."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            """
import importlib, inspect, pkgutil, tempfile, warnings
import numpy, torch, curriculoss

for module in pkgutil.walk_packages(curriculoss.__path__, "curriculoss."):
    if module.name != "curriculoss.__main__":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of those who wrote the extras
            importlib.import_module(module.name)
for name in [*curriculoss.__all__, "audit", "load_model"]:
    assert name == "functional" or not inspect.ismodule(getattr(curriculoss, name)), name

logits, target = torch.randn(40, 3, requires_grad=True), torch.arange(40) % 3
assert curriculoss.functional.robust_loss(logits, target, curriculoss.MAE()).requires_grad
assert curriculoss.decompose(curriculoss.MAE(), logits, target).standard_form
network = torch.nn.Linear(5, 3)
curriculoss.fit(network, curriculoss.AutoLoss(3), [(torch.randn(40, 5), target)], epochs=1)
curriculoss.Monitor(curriculoss.MAE(), num_classes=3).update(logits=logits, target=target, learning_rate=0.1)
features = numpy.random.default_rng(0).normal(size=(60, 5))
assert len(curriculoss.audit(features, numpy.arange(60) % 3, settings={"epochs": 1})) == 60
try:
    curriculoss.load_model(tempfile.mkdtemp())
except curriculoss.errors.CurriculossError as error:
    assert str(error)
else:
    raise AssertionError("an empty folder is no run")
print("called")
""",
        ],
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("called\n"), done.stderr


def test_the_version_is_said_once() -> None:
    assert curriculoss.__version__ == version("curriculoss")


def test_readme_python_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert blocks
    names = {"__name__": "__readme__"}  # a later block goes on where an earlier one ended
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)


def test_readme_names_no_missing_file() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    missing = [link for link in links if not (Path(__file__).parent.parent / link).exists()]
    assert not missing
