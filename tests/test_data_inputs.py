"""Inputs for a trained network: every kind of data that training reads, without labels, in training's form."""

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from curriculoss.data import DataError, InputFormat, load, load_inputs

X = np.arange(24, dtype=np.float32).reshape(6, 4)
FEATURES = InputFormat((2,), "float32", (0.0, 0.0), (1.0, 1.0), ("no", "yes"))
THREE = InputFormat((3,), "float32", (0.0,) * 3, (1.0,) * 3, ("no", "yes"))
GREY = InputFormat((1, 4, 6), "uint8", (0.0,), (1.0,), ("no", "yes"))
PHOTOS = InputFormat((3, 16, 16), "uint8", (0.5,) * 3, (0.2,) * 3, ("no", "yes"), centre_crop=True)


def named(*names):
    return InputFormat((len(names),), "float32", (0.0,) * len(names), (1.0,) * len(names), ("no", "yes"), names)


def picture(path, size=(6, 4), mode="L", colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


def table(path, text):
    path.write_text(text)
    return path


def values(inputs, size=4):
    return torch.cat(list(inputs.batches(size)))


@pytest.mark.parametrize("labels", [{}, {"y": np.array([3, 1, 3, 1, 1, 7])}, {"y": np.array([None] * 6)}])
def test_arrays_need_no_labels(tmp_path, labels):
    np.savez(tmp_path / "own.npz", x=X, **labels)
    found = load_inputs(tmp_path / "own.npz", named("a", "b", "c", "d"))
    assert torch.equal(values(found), torch.from_numpy(X)) and found.paths is None and len(found) == 6


@pytest.mark.parametrize(
    "text", ["b,a\n2,1\n4,3\n", "id,a,label,b\n7,1,x,2\n8,3,y,4\n", "a,b,y,target\n1,2,0,0\n3,4,1,1\n"]
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_are_matched_by_name_whatever_else_there_is(tmp_path, text, kind):
    path = table(tmp_path / "own.csv", text)
    if kind == "parquet":
        from pyarrow import csv

        parquet.write_table(csv.read_csv(path), path.with_suffix(".parquet"))
    assert values(load_inputs(path.with_suffix(f".{kind}"), named("a", "b"))).tolist() == [[1, 2], [3, 4]]


def test_columns_without_known_names_are_all_but_labels(tmp_path):
    path = table(tmp_path / "own.csv", "Unnamed: 0,u,label,v,kind\n0,1,x,2,k\n1,3,y,4,l\n")
    assert values(load_inputs(path, FEATURES, label="kind")).tolist() == [[1, 2], [3, 4]]


def test_a_column_of_vectors_is_features(tmp_path):
    parquet.write_table(pyarrow.table({"embedding": [[1.0, 2.0], [3.0, 4.0]]}), tmp_path / "own.parquet")
    expected = InputFormat((2,), "float32", (0.0, 0.0), (1.0, 1.0), ("no", "yes"), ("embedding",))
    assert values(load_inputs(tmp_path / "own.parquet", expected)).tolist() == [[1, 2], [3, 4]]


def test_images_are_found_in_any_folder_alone_and_in_a_table(tmp_path):
    first, second = picture(tmp_path / "new/a.png", colour=5), picture(tmp_path / "new/deep/er/b.PNG", colour=6)
    picture(tmp_path / "new/.hidden.png")
    (tmp_path / "new/notes.csv").write_text("not,images\n1,2\n")
    found = load_inputs(tmp_path / "new", GREY)
    assert found.paths == (str(first), str(second)) and values(found)[:, 0, 0, 0].tolist() == [5, 6]
    alone = load_inputs(second, GREY)
    assert alone.paths == (str(second),) and values(alone).shape == (1, 1, 4, 6)
    listed = load_inputs(table(tmp_path / "list.csv", "file,label\nnew/deep/er/b.PNG,x\nnew/a.png,y\n"), GREY)
    assert listed.paths == (str(second), str(first)) and values(listed)[:, 0, 0, 0].tolist() == [6, 5]


def test_colour_images_are_made_grey_for_a_network_that_saw_grey_ones(tmp_path):
    picture(tmp_path / "a.png", mode="RGB", colour=(9, 9, 9))
    assert values(load_inputs(tmp_path, GREY))[0, 0, 0, 0] == 9


def test_photos_of_any_size_are_cropped_as_the_reader_does(tmp_path):
    for name, size in (("a", (40, 30)), ("b", (20, 50)), ("c", (16, 16))):
        pixels = np.random.RandomState(0).randint(0, 256, (*size, 3)).astype(np.uint8)
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "1.png")
    read = load(tmp_path).resized(16).train.inputs
    expected = torch.stack([read.decode(i).permute(2, 0, 1) for i in range(3)])
    assert torch.equal(values(load_inputs(tmp_path, PHOTOS)), expected)


@pytest.mark.parametrize("size", [2, 3])
def test_images_are_resized_as_in_training(tmp_path, size):
    pixels = np.random.RandomState(0).randint(0, 256, (4, 4, 4), dtype=np.uint8)
    for number, each in enumerate(pixels):
        (tmp_path / f"images/{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(each).save(tmp_path / f"images/{number % 2}/{number}.png")
    np.savez(tmp_path / "own.npz", x=pixels[[0, 2, 1, 3]])
    found = load(tmp_path / "images").resized(size)
    for source in (tmp_path / "images", tmp_path / "own.npz"):
        inputs = load_inputs(source, found.input_format, image_size=size)
        assert torch.equal(values(inputs, 3), found.train.inputs)


def test_a_data_set_known_by_name_gives_its_test_samples():
    digits = load("digits")
    assert torch.equal(values(load_inputs("digits", digits.input_format), 100), digits.test.inputs)


def arrays(**content):
    def write(root):
        np.savez(root / "own.npz", **content)
        return root / "own.npz"

    return write


def rows(text):
    return lambda root: table(root / "own.csv", text)


AB = named("a", "b")


@pytest.mark.parametrize(
    ("make", "expected", "match"),
    [
        (arrays(x=X), FEATURES, r"own\.npz: expected 2 features per sample, as in training, got 4 features per sample"),
        (arrays(y=X), FEATURES, r"own\.npz: expected an array x"),
        (
            arrays(x=X.reshape(1, 4, 6)),
            GREY,
            "expected uint8 images of shape 1×4×6, .* got float32 images",
        ),
        (arrays(x=X), GREY, "expected uint8 images of shape 1×4×6, as in training, got 4 features"),
        (rows("a,c\n1,2\n"), AB, r"own\.csv: lacks 'b', which the training data have; the columns are 'a', 'c'"),
        (rows("label\n1\n"), FEATURES, "expected columns beside labels, got 'label'"),
        (rows("a,b\n1,red\n"), AB, "not numeric: 'b'"),
        (rows("a,b\n1,\n"), AB, "expected a value in every row, got none in row 0, column 'b'"),
        (lambda root: picture(root / "a.png"), FEATURES, "2 features per sample, as in training, got image files"),
        (lambda root: picture(root / "a.png"), THREE, "3 features per sample, as in training, got image files"),
        (lambda root: root, PHOTOS, r"expected an image \(\.bmp, .*\), a folder of images, or"),
        (
            lambda root: table(root / "notes.txt", ""),
            PHOTOS,
            r"notes\.txt: expected an image \(\.bmp, .*\), a folder of images, or",
        ),
        (lambda root: root / "nowhere", PHOTOS, "no data set or path"),
    ],
)
def test_data_unlike_the_training_data_are_one_line(tmp_path, make, expected, match):
    with pytest.raises(DataError, match=match) as raised:
        load_inputs(make(tmp_path), expected)
    assert "\n" not in str(raised.value)


def test_an_image_that_is_broken_or_of_another_size_is_named(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"\x89PNG nothing")
    with pytest.raises(DataError, match=r"b\.png: cannot be read as an image"):
        values(load_inputs(tmp_path, GREY))
    picture(tmp_path / "b.png", (7, 5))
    with pytest.raises(DataError, match=r"b\.png: expected 6×4 pixels, as in training, got 7×5"):
        values(load_inputs(tmp_path, GREY))
