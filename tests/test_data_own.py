"""A user's own data: folders, .npz, CSV and Parquet, right and wrong."""

import csv
import io
import zipfile
import zlib

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from curriculoss.data import DataError, Images, load

X, Y = np.arange(24, dtype=np.float32).reshape(6, 4), np.array([0, 1, 2, 0, 1, 2])


def npz(path, **arrays):
    np.savez(path / "own.npz", **arrays)
    return path / "own.npz"


def picture(path, size=(8, 6), mode="RGB", colour=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour or 0).save(path)


def table(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("shape", "dtype", "wanted", "kept"),
    [
        ((6, 4), np.float64, (4,), torch.float32),
        ((6, 4), np.uint8, (4,), torch.float32),
        ((6,), np.int32, (1,), torch.float32),
        ((6, 9, 7), np.uint8, (1, 9, 7), torch.uint8),
        ((6, 9, 7, 3), np.uint8, (3, 9, 7), torch.uint8),
        ((6, 3, 9, 7), np.uint8, (3, 9, 7), torch.uint8),
        ((6, 9, 7, 1), np.float32, (1, 9, 7), torch.float32),
    ],
)
def test_arrays_of_any_usual_shape(tmp_path, shape, dtype, wanted, kept):
    x = np.random.RandomState(0).randint(0, 200, shape).astype(dtype)
    found = load(npz(tmp_path, x=x, y=Y))
    assert found.shape == wanted and found.train.inputs.dtype == kept and found.test is None and found.name == "own"
    assert found.train.inputs.double().sum() == x.sum() and found.class_names == ("0", "1", "2")
    if shape[-1] == 3:
        assert found.train.inputs[2, 1, 4, 5] == x[2, 4, 5, 1]


def test_arrays_with_all_there_can_be(tmp_path):
    names = np.array(["cat", "ant", "bee"])
    path = npz(tmp_path, x=X, y=Y, x_test=X[:2], y_test=Y[1:3], y_clean=Y[::-1], class_names=names)
    found = load(path)
    assert found.class_names == ("cat", "ant", "bee") and found.train.clean.tolist() == Y[::-1].tolist()
    assert found.test.target.tolist() == [1, 2] and found.train.target.dtype == torch.int64
    assert load(npz(tmp_path, x=X, y=Y, class_names=names.astype(bytes))).class_names == found.class_names
    words = load(npz(tmp_path, x=X, y=names[Y], y_test=names[Y], x_test=X))
    assert words.class_names == ("ant", "bee", "cat") and words.train.target.tolist() == [2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("y", [Y.astype(float), Y.astype(np.uint8), Y[:, None], np.array([b"a", b"b"] * 3), Y > 0])
def test_labels_of_any_usual_type(tmp_path, y):
    target = load(npz(tmp_path, x=X, y=y)).train.target
    assert target.dtype == torch.int64 and target[1] == 1


@pytest.mark.parametrize(
    ("y", "names"),
    [(Y + 1, "123"), (Y * 10**15 + 7, None), (np.where(Y > 0, 1, -1), None), (10 * Y, None), (Y - 1, None)],
)
def test_integers_other_than_the_first_ones_are_names(tmp_path, y, names):
    found = load(npz(tmp_path, x=X, y=y, x_test=X, y_test=y[::-1]))
    assert found.class_names == tuple(names or map(str, np.unique(y)))
    assert found.train.target.tolist() == np.unique(y, return_inverse=True)[1].tolist()
    assert found.test.target.tolist() == found.train.target.tolist()[::-1]


def test_a_folder_with_one_file_of_data_is_that_file(tmp_path):
    folder = tmp_path / "cleaned"
    folder.mkdir()
    npz(folder, x=X, y=Y)
    (folder / "notes.txt").write_text("of what was done")
    assert load(folder).train.target.tolist() == Y.tolist()
    (folder / "other.csv").write_text("a,label\n1,0\n2,1\n")
    with pytest.raises(DataError, match="expected at least two class folders with images"):
        load(folder)


def test_a_column_that_is_all_the_same_need_not_be_told_apart(tmp_path):
    x = np.stack([np.full(6, 0.1), np.full(6, 1.7e9 + 0.1), np.arange(6.0)], axis=1)
    assert load(npz(tmp_path, x=x, y=Y)).train.inputs.shape == (6, 3)


def test_a_test_file_apart(tmp_path):
    held = npz(tmp_path, x=X[:1], y=Y[:1]).rename(tmp_path / "held.npz")
    assert len(load(npz(tmp_path, x=X, y=Y), test=held).test) == 1
    train, test = table(tmp_path / "a.csv", "f,g,label\n1,5,a\n2,6,b\n"), tmp_path / "b.csv"
    found = load(train, test=table(test, "note,label,g,f\nx,b,8,7\n")).test
    assert found.target.tolist() == [1] and found.inputs.tolist() == [[7, 8]]


NAN = X.copy()
NAN[4, 2] = np.nan


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": X}, "y is missing"),
        ({"y": Y}, "x is missing"),
        ({"x": X, "y": Y, "x_test": X}, "y_test is missing"),
        ({"a": X}, "x is missing"),
        ({"x": X, "y": Y[:5]}, r"as many samples in y as in x, got shapes \(5,\) and \(6, 4\)"),
        ({"x": X, "y": Y, "y_clean": Y[:5]}, "as many samples in y_clean as in x"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:1]}, "as many samples in y_test as in x_test"),
        ({"x": X, "y": Y, "x_test": X[:, :3], "y_test": Y}, "expected x_test to be like x"),
        ({"x": X, "y": np.zeros(6, int)}, "expected at least two classes, got only label '0'"),
        ({"x": X, "y": -np.ones(6, int)}, "at least two classes, got only label '-1'"),
        ({"x": X, "y": np.array(["a", "b", "a "] * 2)}, "labels 'a' and 'a ' differ by spaces only"),
        ({"x": X.astype(np.float64) * 1e-3 + 1.7e9, "y": Y}, "which float32 cannot tell apart; subtract their mean"),
        (
            {"x": X, "y": Y, "y_clean": Y + 1},
            "y_clean: expected one of the 3 classes of the training samples, got 3 in row 2",
        ),
        (
            {"x": X, "y": Y, "x_test": X, "y_test": Y + 1},
            "y_test: expected one of the 3 classes of the training samples, got 3 in row 2",
        ),
        (
            {"x": X, "y": Y, "class_names": np.array(["a", "b"])},
            "expected one of the 2 classes of the training samples, got 2 in row 2",
        ),
        (
            {"x": X, "y": Y, "class_names": np.array(["a", "b", "b"])},
            "labels 'b' and 'b' differ by spaces only, if at all",
        ),
        ({"x": X, "y": Y, "class_names": np.array(list("abcd"))}, "class 'd' has no training samples"),
        ({"x": X, "y": Y + 0.5}, r"expected integers or strings, got 0\.5 in row 0"),
        ({"x": X, "y": np.full(6, np.nan)}, "expected integers or strings, got nan in row 0"),
        (
            {"x": X, "y": np.full(6, 2**64 - 1, np.uint64)},
            r"expected integers or strings, got 18446744073709551615 in row 0",
        ),
        ({"x": X, "y": Y.astype(complex)}, "expected integers or strings, got type complex128"),
        ({"x": X, "y": np.eye(6)}, r"expected one label per sample, got shape \(6, 6\)"),
        ({"x": X[:0], "y": Y[:0]}, "expected at least one sample, got none"),
        (
            {"x": X, "y": np.array(list("abcabc")), "x_test": X, "y_test": np.array(list("abcdbc"))},
            "got 'd' in row 3",
        ),
        ({"x": X, "y": np.array(list("abcabc")), "y_clean": Y}, "strings in all label columns or in none"),
        ({"x": X, "y": np.array([b"\xff", b"a"] * 3)}, "y: cannot be read as text in UTF-8: .* byte 0xff"),
        ({"x": NAN, "y": Y}, "x: expected finite numbers, got nan in row 4, column 2"),
        ({"x": np.where(np.isnan(NAN), 1e300, X.astype(float)), "y": Y}, r"got 1e\+300 in row 4, column 2"),
        ({"x": X.astype(complex), "y": Y}, "expected numbers, got type complex128"),
        ({"x": X.astype(str), "y": Y}, "expected numbers, got type <U"),
        ({"x": np.zeros((6, 2, 2, 2, 2)), "y": Y}, r"got shape \(6, 2, 2, 2, 2\)"),
        ({"x": np.zeros((6, 0)), "y": Y}, r"got shape \(6, 0\)"),
        ({"x": np.zeros((6, 9, 9, 9)), "y": Y}, "expected at most 4 channels, first or last"),
        (
            {"x": np.array([{}] * 6), "y": Y},
            r"x: cannot be read as .* \(try x\.astype\(str\)\): Object arrays",
        ),
    ],
)
def test_arrays_that_cannot_be_meant(tmp_path, arrays, match):
    with pytest.raises(DataError, match=match) as raised:
        load(npz(tmp_path, **arrays))
    assert "own.npz" in str(raised.value) and "\n" not in str(raised.value)


def broken_files(tmp_path):
    whole = npz(tmp_path, x=X, y=Y).read_bytes()
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY" + bytes(40))
        archive.writestr("../../y.npy", b"")
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"tiny")
    sizes = bytearray(bomb.getvalue())
    place = sizes.index(b"PK\x01\x02")
    sizes[place + 24 : place + 28] = (0xFFFFFFF0).to_bytes(4, "little")  # says that it unpacks to 4 GB
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table({"f": [1.0, 2.0], "label": [0, 1]}), stream)
    return {
        "truncated.npz": whole[:-30],
        "headless.npz": whole[40:],
        "empty.npz": b"",
        "text.npz": b"hello",
        "pickle.npz": b"\x80\x04K\x01.",
        "npy.npz": b"\x93NUMPY\x01\x00v\x00",
        "inner.npz": inner.getvalue(),
        "bomb.npz": bytes(sizes),
        "truncated.parquet": stream.getvalue()[:-9],
        "empty.parquet": b"",
        "text.parquet": b"f,label\n1,0\n",
        "empty.csv": b"",
        "ragged.csv": b"f,label\n1,0\n1,2,3\n",
        "binary.csv": bytes(range(256)),
        "head.csv": "f\xe9,label\n1,2\n".encode("latin1"),
        "latin.csv": "f,label\n1,\xe9\n2,b\n".encode("latin1"),
        "data.xlsx": b"PK",
        "none": b"x",
    }


@pytest.mark.parametrize(
    "name",
    ["truncated.npz", "headless.npz", "empty.npz", "text.npz", "pickle.npz", "npy.npz", "inner.npz", "bomb.npz",
     "truncated.parquet", "empty.parquet", "text.parquet", "empty.csv", "ragged.csv", "binary.csv", "head.csv",
     "latin.csv", "data.xlsx", "none"],
)  # fmt: skip
def test_broken_files_are_one_line_that_names_them(tmp_path, name):
    (tmp_path / name).write_bytes(broken_files(tmp_path)[name])
    with pytest.raises(DataError) as raised:
        load(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value) and "\n" not in str(raised.value)
    if name == "bomb.npz":
        assert "zip bomb" in str(raised.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_of_numbers(tmp_path, kind):
    columns = {"Unnamed: 0": [0, 1, 2], "a": [1, 2, 3], "y": ["u", "v", "u"], "b": [0.5, 1.5, 2.5],
               "y_clean": ["u", "v", "v"], "c": [True, False, True]}  # fmt: skip
    path = tmp_path / f"own.{kind}"
    if kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    else:
        parquet.write_table(pyarrow.table(columns), path)
    found = load(path)
    assert found.train.inputs.tolist() == [[1, 0.5, 1], [2, 1.5, 0], [3, 2.5, 1]] and found.class_names == ("u", "v")
    assert found.train.target.tolist() == [0, 1, 0] and found.train.clean.tolist() == [0, 1, 1]


def test_tables_of_decimals(tmp_path):
    columns = {"a": pyarrow.array([1, 25], pyarrow.decimal128(5, 2)), "label": ["u", "v"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "own.parquet")
    assert load(tmp_path / "own.parquet").train.inputs.tolist() == [[1], [25]]


@pytest.mark.parametrize("column", [[[0], [1, 2]], [{"a": 1}, {"a": 2}]])
def test_nested_columns_that_are_no_vectors_are_one_line(tmp_path, column):
    for columns in ({"label": column, "a": [1, 2]}, {"label": [0, 1], "a": column}):
        parquet.write_table(pyarrow.table(columns), tmp_path / "own.parquet")
        with pytest.raises(DataError, match=r"own\.parquet: [^\n]+$"):
            load(tmp_path / "own.parquet")


def test_tables_of_image_paths(tmp_path):
    for name in ("a", "b", "c"):
        picture(tmp_path / f"pictures/{name}.png", mode="L", colour=ord(name))
    rows = "".join(f"pictures/{name}.png,{label}\n" for name, label in zip("cab", "xyx", strict=True))
    found = load(table(tmp_path / "own.csv", "path,label\n" + rows))
    assert found.train.inputs[:, 0, 0, 0].tolist() == [99, 97, 98] and found.shape == (1, 6, 8)
    assert found.train.paths[0] == str(tmp_path / "pictures/c.png")


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("a,b\n1,2\n", {}, "expected a label column named 'label', 'y', 'target'; the columns are 'a', 'b'"),
        ("a,label\n1,2\n", {"label": "class"}, "named 'class'; the columns are 'a', 'label'"),
        ("a,a,label\n1,2,0\n", {}, "expected different column names"),
        ("a,label\n", {}, "expected at least one row, got none"),
        ("label\n1\n0\n", {}, "expected columns beside the label 'label'"),
        ("a,label\n1,0\n,1\n", {}, "expected a value in every row, got none in row 1, column 'a'"),
        ("a,label\nnan,0\n2,1\n", {}, "expected a value in every row, got none in row 0, column 'a'"),
        ("a,label\ninf,0\n2,1\n", {}, "expected finite numbers, got inf in row 0, column 'a'"),
        ("a,label\n1,cat\n2,\n3,dog\n", {}, "expected a label for every sample, got none in row 1"),
        ("a,label\n1,cat\n2, \n3,dog\n", {}, "expected a label for every sample, got none in row 1"),
        ("a,label\n1,0\n2,\n", {}, "expected a value in every row, got none in row 1, column 'label'"),
        ("a,b,label\n1,red,0\n2,blue,1\n", {}, "not numeric: 'b'"),
        ("a,b,label\n1,red,0\n0,blue,1\n", {"label": "a"}, "not numeric: 'b'"),
        ("a,label\n1,0\n2,0\n", {}, "expected at least two classes"),
        ("a,y,target\n1,0,0\n2,1,1\n", {}, "columns 'y' and 'target' have mostly the same values"),
        ("a,y,target\n1,0,0\n2,1,1\n", {"label": "target"}, "columns 'target' and 'y' have mostly the same values"),
        ("a,label\n1,0.5\n2,1\n", {}, r"expected integers or strings, got 0\.5 in row 0"),
        ("path,label\n../x.png,0\ny.png,1\n", {}, "expected numbers, or paths of images below .* row 0, column 'path'"),
        ("path,label\n/etc/passwd,0\ny.png,1\n", {}, "expected numbers, or paths of images below"),
        ("path,label\nx.png,0\ny.png,1\n", {}, r"x\.png: no such file; expected an image"),
        ("a,label\n2020-01-01,0\n2020-01-02,1\n", {}, "expected numbers, or paths of images below"),
    ],
)
def test_tables_that_cannot_be_meant(tmp_path, text, options, match):
    with pytest.raises(DataError, match=match) as raised:
        load(table(tmp_path / "own.csv", text), **options)
    assert "\n" not in str(raised.value) and str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("test", ["b,label\n3,b\n", "f,label\nx,b\n", "f,label\n3,c\n"])
def test_a_test_table_must_be_like_the_training_table(tmp_path, test):
    train = table(tmp_path / "a.csv", "f,label\n1,a\n2,b\n")
    with pytest.raises(DataError, match=r"b\.csv"):
        load(train, test=table(tmp_path / "b.csv", test))
    with pytest.raises(DataError, match=r"own\.npz: expected a \.csv file"):
        load(train, test=npz(tmp_path, x=X, y=Y))


def test_small_images_of_one_size_become_a_tensor(tmp_path):
    for name, mode in (("b", "RGB"), ("a", "L")):
        picture(tmp_path / f"{name}/deep/1.png", mode=mode, colour=200 if mode == "L" else (1, 2, 3))
        picture(tmp_path / f"{name}/2.png", mode=mode)
        (tmp_path / f"{name}/notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    found = load(tmp_path)
    assert found.class_names == ("a", "b") and found.train.target.tolist() == [0, 0, 1, 1] and found.test is None
    assert found.shape == (3, 6, 8) and found.train.inputs[3, :, 0, 0].tolist() == [1, 2, 3]
    assert found.train.paths[3].endswith("b/deep/1.png") and found.augment == "none"


@pytest.mark.parametrize("held", ["test", "val", None])
def test_folders_of_train_and_test(tmp_path, held):
    for split in ("train", held) if held else ("train",):
        for name in ("a", "b"):
            picture(tmp_path / split / name / "1.png", mode="L")
    found = load(tmp_path)
    assert len(found.train) == 2 and found.shape == (1, 6, 8) and (found.test is not None) == (held is not None)


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "validation"), ("test", "val")])
def test_parts_of_other_names_are_not_taken_for_classes(tmp_path, names):
    for place in names:
        picture(tmp_path / place / "a/1.png")
        picture(tmp_path / place / "b/1.png")
    with pytest.raises(DataError, match="expected class folders, or folders named train and test"):
        load(tmp_path)


def test_hidden_folders_are_left_out(tmp_path):
    for place in ("a", "b", "a/.ipynb_checkpoints"):
        picture(tmp_path / place / "1.png")
    assert len(load(tmp_path).train) == 2


@pytest.mark.parametrize("side", [8, 80])
def test_photos_are_turned_as_their_metadata_say(tmp_path, side):
    upright = Image.new("RGB", (side + 4, side))
    upright.paste((255, 0, 0), (0, 0, side + 4, side // 2))  # red above black
    turns = (
        None,
        "FLIP_LEFT_RIGHT",
        "ROTATE_180",
        "FLIP_TOP_BOTTOM",
        "TRANSPOSE",
        "ROTATE_90",
        "TRANSVERSE",
        "ROTATE_270",
    )
    for orientation, turn in enumerate((each and Image.Transpose[each] for each in turns), 1):
        name = f"{orientation}"
        (tmp_path / name).mkdir()
        image, exif = upright if turn is None else upright.transpose(turn), Image.Exif()
        exif[0x112] = orientation
        image.save(tmp_path / name / "1.png", exif=exif)
    found = load(tmp_path).train.inputs
    assert isinstance(found, Images) == (side == 80)
    first, *others = [found.decode(i).permute(2, 0, 1) for i in range(8)] if isinstance(found, Images) else found
    assert first[0, 1, 1] > 200 > 50 > first[0, -2, 1] and all(torch.equal(first, each) for each in others)


def test_photos_with_damaged_metadata_are_read_as_they_are(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 6)).save(tmp_path / name / "1.png", exif=b"Exif\0\0not a TIFF file")
    assert load(tmp_path).train.inputs.shape == (2, 3, 6, 8)


def test_a_folder_called_validation_beside_train_is_not_passed_over(tmp_path):
    for place in ("train/a", "train/b", "validation/a", "validation/b"):
        picture(tmp_path / place / "1.png")
    with pytest.raises(DataError, match="expected test images in a folder named test or val, got 'validation'"):
        load(tmp_path)


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "car"):
        picture(tmp_path / name / "1.png")
    assert load(tmp_path).class_names == ("car", "train")


def test_large_or_differing_images_stay_files(tmp_path):
    for number, size in enumerate([(8, 6), (6, 8)]):
        picture(tmp_path / f"differing/{number}/1.png", size)
        picture(tmp_path / f"large/{number}/1.png", (65, 6))
    for name in ("differing", "large"):
        found = load(tmp_path / name)
        assert isinstance(found.train.inputs, Images) and found.shape == (3, 224, 224)
        assert found.augment == "crop-flip-jitter" and found.mean == (0.485, 0.456, 0.406)


def test_sixteen_bits_become_eight(tmp_path):
    for name, value in (("a", 0x1200), ("b", 0xFF00)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((4, 4), value, np.uint16)).save(tmp_path / name / "1.png")
    assert load(tmp_path).train.inputs[:, 0, 0, 0].tolist() == [0x12, 0xFF]


def _postscript(root):
    picture(root / "a/2.eps")  # whose reader would start Ghostscript
    (root / "a/2.eps").rename(root / "a/2.png")


def _bomb(root):
    raw = bytearray((root / "a/1.png").read_bytes())
    raw[16:24] = (10_000).to_bytes(4) * 2  # a header of 100 megapixels
    raw[29:33] = zlib.crc32(bytes(raw[12:29])).to_bytes(4)
    (root / "a/2.png").write_bytes(raw)


@pytest.mark.parametrize(
    ("harm", "match"),
    [
        (lambda root: (root / "c").mkdir(), "class 'c' has no readable images"),
        (lambda root: (root / "b/1.png").rename(root / "b/1.txt"), "class 'b' has no readable images"),
        (
            lambda root: (root / "b").rename(root / ".b"),
            "expected at least two class folders with images, got only 'a'",
        ),
        (lambda root: [(root / n).rename(root / f".{n}") for n in "ab"], "two class folders with images, got none"),
        (lambda root: (root / "a/2.png").write_bytes(b""), r"2\.png: cannot be read as an image"),
        (lambda root: (root / "a/2.png").write_bytes(b"GIF89a nonsense"), r"2\.png: cannot be read as an image"),
        (
            lambda root: (root / "a/2.png").write_bytes((root / "a/1.png").read_bytes()[:-25]),
            r"2\.png: cannot be read as an image",
        ),
        (lambda root: (root / "a/2.png").symlink_to("nowhere"), r"2\.png: no such file; expected an image"),
        (_postscript, r"2\.png: cannot be read as an image: cannot identify"),
        (_bomb, r"2\.png: cannot be read as an image: .*decompression bomb"),
        (lambda root: picture(root / "a/2.tif", mode="F"), r"2\.tif: expected 8 or 16 bits per channel"),
    ],
)
def test_folders_that_cannot_be_meant(tmp_path, harm, match):
    for name in ("a", "b"):
        picture(tmp_path / name / "1.png")
    harm(tmp_path)
    with pytest.raises(DataError, match=match) as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)


def test_test_folders_must_have_the_training_classes(tmp_path):
    for place in ("train/a", "train/b", "test/c"):
        picture(tmp_path / place / "1.png")
    with pytest.raises(DataError, match=r"c: a class that .*train does not have"):
        load(tmp_path)
    (tmp_path / "test/c").rename(tmp_path / "test/.c")
    with pytest.raises(DataError, match="test: expected test images in class folders, got none"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "no/such/folder", "~nobody_at_all/x"])
def test_a_path_that_is_none(name):
    with pytest.raises(DataError, match=r"^[^\n]+$"):
        load(name)
