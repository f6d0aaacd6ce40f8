"""Fixtures that several files of tests share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from PIL import Image


@pytest.fixture
def web(tmp_path):
    """WebVision's layout with three small images a class for 60 classes."""
    lists = {"train_filelist_google": [], "train_filelist_flickr": [], "val_filelist": []}
    for label in range(60):
        for name, path in (
            ("train_filelist_google", f"google/q{label:04}/a.jpg"),
            ("train_filelist_flickr", f"flickr/q{label:04}/b.jpg"),
            ("val_filelist", f"val{label:04}.jpg"),
        ):
            place = tmp_path / "webvision" / ("val_images_256" if name == "val_filelist" else "") / path
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 30), (label * 4, 100, 200)).save(place)
            lists[name].append(f"{path} {label}\n")
    (tmp_path / "webvision/info").mkdir()
    for name, lines in lists.items():
        (tmp_path / f"webvision/info/{name}.txt").write_text("".join(lines))
    (tmp_path / "webvision/info/synsets.txt").write_text("".join(f"n{i:08} fish {i}, a fish\n" for i in range(60)))
    return tmp_path


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The site, built as `make docs` builds it, once for all workers."""
    docs = Path(__file__).parent.parent / "docs"
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    with FileLock(f"{folder}.lock"):
        if not (folder / "index.html").exists():
            shutil.rmtree(docs / "generated", ignore_errors=True)
            offline = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
            build = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-d", f"{folder}-doctrees"]
            done = subprocess.run(
                [*build, "-b", "html", docs, folder], env=offline, capture_output=True, text=True, timeout=900
            )
            assert (done.returncode, done.stderr) == (0, "")
    return folder
