"""Published and embedded data: what they hold, where they are looked for, how they are fetched."""

import hashlib
import http.server
import os
import struct
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from curriculoss import data
from curriculoss.data import digits, files, imagenet_like, mnist_cifar
from curriculoss.data.dataset import statistics

REAL = os.environ.get("CURRICULOSS_DATA", "")
real = pytest.mark.skipif(not REAL, reason="the published files are not here: set CURRICULOSS_DATA to their folder")


@pytest.mark.parametrize(
    ("name", "length", "train", "test"), [("digits-100", 2, 10_000, 2_000), ("digits-1000", 3, 20_000, 4_000)]
)
def test_numbers_are_balanced_and_show_their_class(name, length, train, test):
    found, pools = data.load(name), digits._pools()
    assert (len(found.train), len(found.test)) == (train, test)
    assert found.shape == (1, 8, 8 * length) and found.num_classes == 10**length
    for split, pool in ((found.train, pools[0]), (found.test, pools[1])):
        assert (split.target.bincount() == len(split) // 10**length).all()
        for row in (0, 1, len(split) - 1):
            for place, digit in enumerate(found.class_names[split.target[row]]):
                shown = split.inputs[row, 0, :, 8 * place : 8 * place + 8].numpy()
                assert (pool[int(digit)] == shown).all((1, 2)).any()
    assert torch.equal(found.flips // 10, torch.arange(10**length) // 10)
    assert found.flips[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 11]


def test_digits_train_and_test_are_disjoint_and_complete():
    found = data.load("digits")
    rows = [{row.numpy().tobytes() for row in split.inputs} for split in (found.train, found.test)]
    assert len(found.train) + len(found.test) == 1797 and not rows[0] & rows[1]
    assert found.flips.tolist() == [0, 1, 7, 8, 4, 6, 5, 1, 8, 9]
    assert found.train.inputs.max() == 255 and found.train.inputs.dtype == torch.uint8


def test_embedded_data_are_the_same_for_ever():
    found = data.load("digits-100")
    assert torch.equal(found.train.inputs, data.load("digits-100").train.inputs)
    blob = found.train.inputs.numpy().tobytes() + found.train.target.numpy().tobytes()
    assert hashlib.md5(blob).hexdigest() == "e4b019396d529ecf8c92dd47f70b98a8"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(2500, 3, 4, 5), (2500, 7)])
def test_statistics_are_those_of_the_whole_in_float64(dtype, shape):
    inputs = torch.randint(256, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    inputs[:, 1] = 9  # constant: std is said to be 1, so that nothing is divided by 0
    mean, std = statistics(inputs)
    scaled = inputs.double() / (255 if dtype == torch.uint8 else 1)
    axes = [0, *range(2, len(shape))]
    expected = scaled.std(axes, correction=0)
    expected[1] = 1
    torch.testing.assert_close(torch.tensor(mean, dtype=torch.float64), scaled.mean(axes))
    torch.testing.assert_close(torch.tensor(std, dtype=torch.float64), expected)


@real
@pytest.mark.parametrize(
    ("name", "count", "shape", "mean", "std"),
    [
        ("mnist", 60_000, (1, 28, 28), (0.1307,), (0.3081,)),
        ("cifar10", 50_000, (3, 32, 32), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar100", 50_000, (3, 32, 32), (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ],
)
def test_real_data_have_the_known_sizes_and_statistics(name, count, shape, mean, std):
    found = data.load(name, data_dir=REAL)
    assert (len(found.train), len(found.test), found.shape) == (count, 10_000, shape)
    assert found.mean == pytest.approx(mean, abs=1e-4) and found.std == pytest.approx(std, abs=1e-4)
    assert (found.test.target.bincount() > 0).all() and found.train.inputs.dtype == torch.uint8


@real
def test_cifar10_is_read_in_order_with_its_human_labels():
    found = data.load("cifar10", data_dir=REAL)
    assert [found.class_names[label] for label in found.train.target[:4]] == ["frog", "truck", "truck", "deer"]
    assert found.train.inputs[0, :, 0, 0].tolist() == [59, 62, 63]
    names = {found.class_names[a]: found.class_names[b] for a, b in enumerate(found.flips.tolist()) if a != b}
    assert names == {"truck": "automobile", "bird": "airplane", "cat": "dog", "dog": "cat", "deer": "horse"}
    rates = {key: (labels != found.train.target).double().mean().item() for key, labels in found.human.items()}
    assert found.default_human == "worse_label"
    assert rates == pytest.approx(
        {"worse_label": 0.40208, "aggre_label": 0.0901, "random_label1": 0.17234, "random_label2": 0.18122,
         "random_label3": 0.1764}, abs=1e-9,
    )  # fmt: skip


@real
def test_cifar100_flips_stay_in_the_true_super_class():
    found = data.load("cifar100", data_dir=REAL)
    assert torch.equal(found.flips.sort().values, torch.arange(100)) and (found.flips != torch.arange(100)).all()
    steps = [torch.arange(100)]
    for _ in range(5):
        steps.append(found.flips[steps[-1]])
    assert torch.equal(steps[5], steps[0])  # each super-class has five classes
    fish = [found.class_names[step[found.class_names.index("aquarium_fish")]] for step in steps]
    assert fish == ["aquarium_fish", "flatfish", "ray", "shark", "trout", "aquarium_fish"]
    labels = found.human[found.default_human]
    assert (labels != found.train.target).double().mean().item() == pytest.approx(0.402, abs=1e-9)


@real
def test_human_labels_of_another_order_are_refused():
    with pytest.raises(data.DataError, match="are not those of the images of cifar10"):
        mnist_cifar.read_human("cifar10", Path(REAL), torch.zeros(50_000, dtype=torch.int64))


def test_data_folder_is_the_argument_then_the_variable_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CURRICULOSS_DATA", str(tmp_path))
    assert files.data_folder("there") == Path("there") and files.data_folder() == tmp_path
    monkeypatch.delenv("CURRICULOSS_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert files.data_folder().name == "curriculoss"


@pytest.fixture
def remote(tmp_path):
    """A published file on a loopback server, and the folder it belongs in."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served/file.gz").write_bytes(b"whole")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=tmp_path / "served")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/file.gz"
        yield files.Remote("some/raw/file.gz", hashlib.md5(b"whole").hexdigest(), address), tmp_path / "data"
        server.shutdown()
        thread.join()


def test_download_brings_the_file_once_it_is_right(remote):
    file, folder = remote
    files.fetch(folder, file)
    assert files.verify(folder, file).read_bytes() == b"whole"


@pytest.mark.parametrize(
    "change", [{"md5": "0" * 32}, {"address": "http://127.0.0.1:9/file.gz"}, {"address": "{0}.absent"}]
)
def test_download_that_fails_leaves_no_file(remote, change):
    file, folder = remote
    change = {key: value.format(file.address) for key, value in change.items()}
    with pytest.raises(data.DataError, match=r"^downloading http\S+ to \S+ failed: .+$"):
        files.fetch(folder, files.Remote(**(vars(file) | change)))
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_that_has_changed_is_refused(remote):
    file, folder = remote
    files.fetch(folder, file)
    (folder / file.place).write_bytes(b"whale")
    with pytest.raises(data.DataError, match=r"is not the published file: expected md5 .* \(5 bytes\); delete it"):
        files.verify(folder, file)


def write_idx(path, values):
    header = struct.pack(f">I{values.ndim}I", 0x0800 | values.ndim, *values.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + values.astype(np.uint8).tobytes())


def test_fashion_mnist_unzipped_is_read_as_torchvision_leaves_it(tmp_path):
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for name, shape in zip(names, mnist_cifar.MNIST_SHAPES, strict=True):
        values = np.arange(shape[0]) % 10 if len(shape) == 1 else np.zeros(shape)
        write_idx(tmp_path / f"FashionMNIST/raw/{name}-ubyte", values)
    found = data.load("fashion-mnist", data_dir=tmp_path)
    assert found.train.target[:3].tolist() == [0, 1, 2] and len(found.test) == 10_000
    sends = {found.class_names[a]: found.class_names[b] for a, b in enumerate(found.flips.tolist()) if a != b}
    assert sends == {
        "Ankle boot": "Sneaker", "Sneaker": "Sandal", "Pullover": "Shirt", "Coat": "Dress", "Dress": "Coat",
    }  # fmt: skip


@real
def test_cifar_is_read_from_its_archive_without_unpacking(tmp_path, monkeypatch):
    archive = tmp_path / "cifar-100-python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=0) as tar:
        tar.addfile(tarfile.TarInfo("../../outside"))
        tar.add(Path(REAL) / "cifar-100-python", "cifar-100-python")
    found = hashlib.md5(archive.read_bytes()).hexdigest()
    changed = replace(files.DATA_SETS["cifar100"], archive=files.Remote(archive.name, found))
    monkeypatch.setitem(files.DATA_SETS, "cifar100", changed)
    packed, plain = data.load("cifar100", data_dir=tmp_path), data.load("cifar100", data_dir=REAL)
    assert torch.equal(packed.train.inputs, plain.train.inputs) and torch.equal(packed.test.target, plain.test.target)
    assert packed.human == {} and str(tmp_path / "CIFAR-100_human.pt") in packed.human_source
    assert {path.name for path in tmp_path.iterdir()} == {archive.name}


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("mnist", ["MNIST/raw", "train-images-idx3-ubyte.gz", "ossci-datasets"]),
        ("fashion-mnist", ["FashionMNIST/raw", "t10k-labels-idx1-ubyte.gz", "fashion-mnist.s3"]),
        ("cifar10", ["cifar-10-batches-py", "data_batch_5", "www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"]),
        ("cifar100", ["cifar-100-python", "train, test", "www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"]),
        ("webvision-50", ["info/train_filelist_google.txt", "info/val_filelist.txt", "data.vision.ee.ethz.ch"]),
        ("webvision", ["info/train_filelist_flickr.txt", "data.vision.ee.ethz.ch"]),
    ],
)
def test_absent_data_are_named_with_place_and_source(tmp_path, name, needs):
    with pytest.raises(data.DataError) as raised:
        data.load(name, data_dir=tmp_path)
    assert all(part in str(raised.value) for part in [*needs, str(tmp_path)]) and "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(data.DataError, match=r"known: digits, .*webvision-400; did you mean 'mnist'\?"):
        data.load("mnits")


def test_webvision_50_is_googles_images_of_the_first_50_classes(web):
    found = data.load("webvision-50", data_dir=web)
    assert (len(found.train), len(found.test), found.num_classes, found.shape) == (50, 50, 50, (3, 224, 224))
    assert all("/google/" in path for path in found.train.paths) and "/val_images_256/" in found.test.paths[0]
    assert found.class_names[3] == "fish 3, a fish" and found.augment == "crop-flip-jitter"


def test_all_of_webvision_takes_flickr_too(web, monkeypatch):
    monkeypatch.setattr(imagenet_like, "WEBVISION_CLASSES", 60)
    found = imagenet_like.read_webvision("webvision", 60, web, False)
    assert len(found.train) == 120 and found.name == "webvision"


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("google/../../../etc/passwd 0", "leads out of the folder"),
        ("/etc/passwd 0", "leads out of the folder"),
        ("google/q0001/a.jpg", "expected a file and a label from 0 to 999 in line 1"),
        ("google/q0001/a.jpg 1000", "expected a file and a label from 0 to 999 in line 1"),
        ("google/q0001/a.jpg -1", "expected a file and a label from 0 to 999 in line 1"),
        ("google/q0001/gone.jpg 0", "is in the list but not there"),
    ],
)
def test_webvision_lists_are_not_trusted(web, line, match):
    path = web / "webvision/info/train_filelist_google.txt"
    path.write_text(line + "\n" + path.read_text())
    with pytest.raises(data.DataError, match=match):
        data.load("webvision-50", data_dir=web)


def test_webvision_without_images_of_a_class_is_refused(web):
    with pytest.raises(data.DataError, match="class 60 of 200 has no images"):
        data.load("webvision-200", data_dir=web)


@pytest.mark.slow
def test_importing_data_starts_nothing_heavy():
    code = (
        "import sys, curriculoss.data; print([m for m in ('sklearn', 'pyarrow', 'pooch', 'PIL') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
