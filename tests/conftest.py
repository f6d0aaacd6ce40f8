"""Fixtures that several files of tests share."""

import pytest
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
