"""Tiny ImageNet in its official layout, as a folder and as a zip file, and images brought to another size."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from curriculoss import data
from curriculoss.data import DataError
from curriculoss.data.dataset import Dataset, Split
from curriculoss.data.imagenet_like import read_tiny_imagenet
from curriculoss.runs import RunSpec
from curriculoss.runs.task import make_task

WNIDS = ("n03", "n01", "n02")  # the official list is in no order


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "tiny-imagenet-200"
    (root / "val/images").mkdir(parents=True)
    root.joinpath("wnids.txt").write_text("\n".join(WNIDS) + "\n")
    root.joinpath("words.txt").write_text("n01\tgoldfish, Carassius\nn02\tbullfrog\nn03\ttench\n")
    for number, wnid in enumerate(WNIDS):
        images = root / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text("")
        for image in range(2):
            Image.new("L" if image else "RGB", (64, 64), 40 * number).save(images / f"{wnid}_{image}.JPEG")
        Image.new("RGB", (64, 64), (40 * number,) * 3).save(root / f"val/images/val_{number}.JPEG")
    lines = [f"val_{number}.JPEG\t{wnid}\t0\t0\t1\t1" for number, wnid in enumerate(WNIDS)]
    (root / "val/val_annotations.txt").write_text("\n".join(lines))
    return tmp_path


def test_the_first_classes_by_identifier_are_read_with_their_names_and_labels(folder: Path) -> None:
    found = read_tiny_imagenet("tiny-imagenet-2", 2, folder, False)
    assert found.class_names == ("goldfish, Carassius", "bullfrog")
    assert found.train.target.tolist() == [0, 0, 1, 1] and found.test is not None
    assert found.test.target.tolist() == [0, 1]
    assert isinstance(found.test.inputs, torch.Tensor) and found.test.inputs.shape == (2, 3, 64, 64)
    assert found.test.inputs[:, 0, 0, 0].tolist() == [40, 80]  # n01 is the second of the list, n02 the third


def test_the_zip_file_gives_what_the_folder_gives(folder: Path) -> None:
    plain = read_tiny_imagenet("tiny-imagenet-2", 2, folder, False)
    shutil.make_archive(str(folder / "tiny-imagenet-200"), "zip", folder, "tiny-imagenet-200")
    shutil.rmtree(folder / "tiny-imagenet-200")
    packed = read_tiny_imagenet("tiny-imagenet-2", 2, folder, False)
    assert isinstance(plain.train.inputs, torch.Tensor) and isinstance(packed.train.inputs, torch.Tensor)
    assert packed.train.inputs.equal(plain.train.inputs) and packed.class_names == plain.class_names


def test_what_is_missing_or_broken_is_said_in_one_line(folder: Path) -> None:
    with pytest.raises(DataError, match=r"expected at least 200 classes, got 3"):
        data.load("tiny-imagenet", data_dir=folder)
    with pytest.raises(DataError, match=r"has neither tiny-imagenet-200/ nor tiny-imagenet-200.zip; get it from http"):
        data.load("tiny-imagenet", data_dir=folder / "nowhere")
    (folder / "tiny-imagenet-200/train/n01/images/n01_0.JPEG").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"n01_0.JPEG: cannot be read as an image"):
        read_tiny_imagenet("tiny-imagenet-2", 2, folder, False)
    Image.new("RGB", (32, 64)).save(folder / "tiny-imagenet-200/train/n01/images/n01_0.JPEG")
    with pytest.raises(DataError, match=r"n01_0.JPEG: expected 64×64 pixels, got 32×64"):
        read_tiny_imagenet("tiny-imagenet-2", 2, folder, False)
    shutil.rmtree(folder / "tiny-imagenet-200/train/n02")
    with pytest.raises(DataError, match=r"no training images of n02"):
        read_tiny_imagenet("tiny-imagenet-2", 2, folder, False)


def images(size: int, dtype: torch.dtype = torch.uint8) -> Dataset:
    pixels = torch.randint(256, (4, 3, size, size), generator=torch.Generator().manual_seed(0)).to(dtype)
    split = Split(pixels, torch.tensor([0, 1, 0, 1]))
    return Dataset("made", split, split, ("a", "b"))


def test_images_are_averaged_over_squares_where_the_size_divides_the_side() -> None:
    before, after = images(8), images(8).resized(4)
    assert isinstance(before.train.inputs, torch.Tensor) and isinstance(after.train.inputs, torch.Tensor)
    expected = before.train.inputs.double().reshape(4, 3, 4, 2, 4, 2).mean((3, 5)).round()
    assert after.train.inputs.dtype == torch.uint8 and after.train.inputs.double().equal(expected)
    assert after.test is not None and after.shape == (3, 4, 4)


def test_other_sizes_are_interpolated_and_keep_the_mean() -> None:
    after = images(8, torch.float32).resized(5)
    assert isinstance(after.train.inputs, torch.Tensor) and after.train.inputs.shape == (4, 3, 5, 5)
    flat = Dataset("flat", Split(torch.full((2, 1, 8, 8), 7.0), torch.tensor([0, 1])), None, ("a", "b")).resized(12)
    assert isinstance(flat.train.inputs, torch.Tensor)
    torch.testing.assert_close(flat.train.inputs, torch.full((2, 1, 12, 12), 7.0))


def test_features_have_no_size() -> None:
    features = Dataset("table", Split(torch.zeros(2, 5), torch.tensor([0, 1])), None, ("a", "b"))
    with pytest.raises(DataError, match="image_size belongs to images, got 5 features per sample"):
        features.resized(4)


def test_image_size_is_a_setting_that_leaves_old_hashes_alone() -> None:
    assert RunSpec().hash == "78de8abd3044"
    assert RunSpec(image_size=16).hash != RunSpec().hash
    assert make_task(RunSpec(image_size=4)).dataset.shape == (1, 4, 4)
    with pytest.raises(ValueError, match="image_size expects a whole number >= 1, got 0"):
        RunSpec(image_size=0)
