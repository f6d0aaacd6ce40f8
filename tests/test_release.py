"""The release: a complete wheel in a clean environment, and a newcomer's first ten minutes with it."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

import curriculoss

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"What you must change", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known"}


def run(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory, worker_id):
    """The wheel, built by way of the sdist, once for all workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "dist"
    with FileLock(f"{folder}.lock"):
        if not list(folder.glob("*.whl")):
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture
def installed(wheel, tmp_path):
    """The environment of a process in which the wheel is installed; other packages come from here, for speed."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    here = sysconfig.get_path("purelib")  # a .pth in it, such as that of an editable installation, is not followed
    (next(folder.glob("lib/python*")) / "site-packages/others.pth").write_text(f"{here}\n")
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "COLUMNS")}
    return {**env, "PATH": f"{folder / 'bin'}{os.pathsep}{env['PATH']}", "VIRTUAL_ENV": str(folder)}


def test_wheel_and_sdist_have_all_files_that_the_package_needs(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/curriculoss").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert source <= held
    assert {name.partition("/")[0] for name in held} == {
        "curriculoss",
        f"curriculoss-{curriculoss.__version__}.dist-info",
    }
    sdist = next(wheel.parent.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "docs/conf.py", "tests/reference.py"} <= names
    assert not [name for name in names if name.startswith(("docs/_build", "docs/generated", ".venv", ".data"))]


def test_a_newcomer_gets_from_the_wheel_to_predictions_and_an_audit(installed, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    where = run("python", "-c", "import curriculoss; print(curriculoss.__file__)", env=installed, cwd=work)
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
    said = run("bash", str(ROOT / "tests/newcomer.sh"), str(ROOT), env=installed, cwd=work)
    assert said.startswith(f"== is it installed?\ncurriculoss {curriculoss.__version__} (torch ")
    assert "with 100 classes" in said and "most suspicious labels are listed" in said
    assert len((work / "predictions.csv").read_text().splitlines()) == 61
    made = "report.html audit/audit.html audit/suspects.csv model.pt2 cleaned/cleaned.json explorer.html"
    assert [name for name in made.split() if not (work / name).is_file()] == []


def test_version_changelog_and_citation_agree():
    latest, date = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE).groups()
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], str(cited["date-released"])) == (latest, date)
    assert curriculoss.__version__ == latest


def test_the_changelog_has_the_usual_form():
    versions = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in versions[1:])
    for section in CHANGELOG.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert len(kinds) == len(set(kinds))
        assert set(kinds) <= KINDS
