"""`curriculoss doctor`: what is installed, what is missing, and what to type."""

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch

import curriculoss
from curriculoss.cli.console import app, new_table, print_json, show
from curriculoss.cli.options import AsJson, DataDir

PACKAGE = "curriculoss"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    part: str  # installation, extra, device, kernels, data
    name: str
    here: bool
    found: str
    type_this: str = ""  # the command that adds what is missing


@app.command()
def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say what is installed, which extras, devices, kernels and data are here, and what to type for the rest.

    \b
    curriculoss doctor
    curriculoss doctor --json

    Nothing is downloaded or changed. A missing part is an error only if you need it.
    """
    found = [*_installation(), *_extras(), *_devices(), *_kernels(), *_data(data_dir)]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [(x.part, x.name, "yes" if x.here else "no", x.found) for x in found]
    show(new_table(("", "", "here", "found"), rows))
    advice = dict.fromkeys(x.type_this for x in found if not x.here and x.type_this)
    print("\n".join(["to add what is missing, type what you need:", *advice]) if advice else "nothing is missing")


def _installation() -> Iterator[Finding]:
    folder = Path(curriculoss.__file__).parent
    yield Finding("installation", PACKAGE, True, f"{curriculoss.__version__} in {folder}")
    yield Finding("installation", "python", True, f"{platform.python_version()}, {sys.executable}")
    yield Finding("installation", "torch", True, str(torch.__version__))


def _extras() -> Iterator[Finding]:
    try:
        names = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        yield Finding("extra", "all", False, "unknown: the package is used without being installed", "pip install -e .")
        return
    for name in names:
        missing = sorted(set(_missing(name)))
        text = f"missing or too old: {', '.join(missing)}" if missing else "complete"
        yield Finding("extra", name, not missing, text, f"pip install '{PACKAGE}[{name}]'")


def _missing(extra: str) -> Iterator[str]:
    """What an extra asks for, itself or by another extra, that is not here in a version that it allows."""
    from packaging.requirements import Requirement  # comes with matplotlib, as the extra cli does

    for each in map(Requirement, metadata.requires(PACKAGE) or []):
        if each.marker is None or "extra" not in str(each.marker) or not each.marker.evaluate({"extra": extra}):
            continue
        if re.sub("[-_.]+", "-", each.name).lower() == PACKAGE:
            for other in sorted(each.extras):
                yield from _missing(other)
            continue
        try:
            if not each.specifier.contains(metadata.version(each.name), prereleases=True):
                yield str(each).partition(";")[0].strip()
        except metadata.PackageNotFoundError:
            yield each.name


def _devices() -> Iterator[Finding]:
    yield Finding("device", "cpu", True, f"{os.cpu_count()} cores; threads of torch: {torch.get_num_threads()}")
    cuda = torch.cuda.is_available()
    built = "no GPU that torch can use" if torch.version.cuda else "this torch is built without CUDA"
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) if cuda else built
    yield Finding("device", "cuda", cuda, names)
    mps = torch.backends.mps.is_available()
    yield Finding("device", "mps", mps, "Apple's GPU" if mps else "only on Apple's machines")


def _kernels() -> Iterator[Finding]:
    """Triton is what GPU kernels, torch.compile's included, are made with."""
    here = importlib.util.find_spec("triton") is not None
    text = f"triton {metadata.version('triton')}" if here else "triton is not installed; losses use torch's operations"
    yield Finding("kernels", "triton", here, text, "pip install triton")


def _data(data_dir: Path | None) -> Iterator[Finding]:
    try:
        from curriculoss import data

        folder = data.data_folder(data_dir)
    except ModuleNotFoundError as missing:
        yield Finding("data", "data sets", False, f"not looked for: {missing.name} is missing")
        return
    elsewhere = "export CURRICULOSS_DATA=FOLDER  # if your data sets are elsewhere"
    yield Finding("data", "folder", folder.is_dir(), str(folder), elsewhere)
    for name, each in data.DATA_SETS.items():
        published = any(x.address for x in (*each.files, *filter(None, [each.archive])))
        fetch = f"{PACKAGE} data check {name} --download" if published else ""
        yield Finding("data", name, each.is_here(data_dir), each.description, fetch)
