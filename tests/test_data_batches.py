"""Batches: every sample once, the same for a seed and an epoch, whatever the number of processes."""

import numpy as np
import pytest
import torch
from PIL import Image

from curriculoss.data import Batches, DataError, Images, Split

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def pictures(count=50, channels=3, dtype=torch.uint8):
    inputs = torch.randint(256, (count, channels, 6, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    return Split(inputs, torch.arange(count) % 4)


def batches(split, **options):
    options = {"batch_size": 16, "mean": MEAN, "std": STD, "seed": 3} | options
    return Batches(split, split.target, **options)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_the_normalised_samples_each_once(dtype, shuffle):
    split = pictures(dtype=dtype)
    seen = []
    for inputs, target, index in batches(split, shuffle=shuffle).epoch(1):
        plain = split.inputs[index].float() / (255 if dtype == torch.uint8 else 1)
        expected = (plain - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        torch.testing.assert_close(inputs, expected, rtol=1e-5, atol=1e-5)
        assert inputs.is_contiguous(memory_format=torch.channels_last) and inputs.dtype == torch.float32
        assert torch.equal(target, split.target[index])
        seen += index.tolist()
    assert sorted(seen) == list(range(50)) and (seen == list(range(50))) != shuffle


def test_features_are_normalised_by_column():
    split = Split(torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(9, dtype=torch.int64))
    (inputs, _, _), *_ = batches(split).epoch(0)
    torch.testing.assert_close(inputs, (split.inputs - torch.tensor(MEAN)) / torch.tensor(STD))


@pytest.mark.parametrize("channels", [1, 3])
def test_shift_and_flip_cut_windows_out_of_the_padded_image(channels):
    split = pictures(200, channels)
    found = batches(split, augment="shift-flip", padding=2, mean=(0.0,) * channels, std=(1.0,) * channels, shuffle=True)
    kinds = set()
    for inputs, _, index in found.epoch(0):
        for image, i in zip((inputs * 255).round().to(torch.uint8), index, strict=True):
            padded = torch.nn.functional.pad(split.inputs[i], (2, 2, 2, 2))
            windows = {
                (top, left, flip): (padded.flip(2) if flip else padded)[:, top : top + 6, left : left + 5]
                for top in range(5) for left in range(5) for flip in (False, True)
            }  # fmt: skip
            fits = [kind for kind, window in windows.items() if torch.equal(window, image)]
            assert fits
            kinds.add(fits[0])
    assert len(kinds) > 45  # of the 50 there are


@pytest.mark.parametrize("augment", ["none", "shift-flip"])
def test_an_epoch_depends_on_seed_and_number_alone(augment):
    split = pictures()
    first = batches(split, augment=augment, shuffle=True)
    wanted = [list(first.epoch(number)) for number in range(3)]
    torch.manual_seed(99)
    again = list(batches(split, augment=augment, shuffle=True).epoch(2))
    assert all(torch.equal(a, b) for x, y in zip(wanted[2], again, strict=True) for a, b in zip(x, y, strict=True))
    other = next(batches(split, augment=augment, shuffle=True, seed=4).epoch(2))
    assert not torch.equal(wanted[1][0][2], wanted[2][0][2]) and not torch.equal(other[2], wanted[2][0][2])


def test_batch_size_does_not_change_order_or_augmentation():
    split = pictures()
    joined = [
        torch.cat([inputs for inputs, *_ in batches(split, augment="shift-flip", shuffle=True, batch_size=n).epoch(1)])
        for n in (7, 50)
    ]
    assert torch.equal(*joined)


@pytest.mark.parametrize("count", [50, 48, 49, 51, 3])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_each_batch_of_the_single_process(count, world):
    split = pictures(count)
    options = {"augment": "shift-flip", "shuffle": True, "batch_size": 12}
    single = batches(split, **options)
    ranks = [batches(split, rank=rank, world_size=world, **options) for rank in range(world)]
    assert len({len(found) for found in ranks}) == 1
    whole = torch.cat([index for *_, index in single.epoch(0)])
    position = 0
    for parts in zip(*(found.epoch(0) for found in ranks), strict=True):
        size = sum(len(index) for *_, index in parts)
        expected = whole[position : position + size]
        position += size
        for rank, (inputs, target, index) in enumerate(parts):
            assert torch.equal(index, expected[rank::world]) and torch.equal(target, split.target[index])
            assert len(index) >= (2 if count > 2 * world else 1) and len(inputs) == len(index)
    assert position == count


@pytest.mark.parametrize(("count", "sizes"), [(48, [16] * 3), (49, [16, 16, 17]), (50, [16, 16, 16, 2]), (1, [1])])
def test_a_last_sample_alone_joins_the_batch_before(count, sizes):
    found = batches(pictures(count))
    assert [len(index) for *_, index in found.epoch(0)] == sizes and len(found) == len(sizes)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size >= world_size > rank >= 0"),
        ({"rank": 2, "world_size": 2}, "batch_size >= world_size > rank >= 0"),
        ({"augment": "mirror"}, r"expects augment in \('none', 'shift-flip'\), got 'mirror'"),
        ({"augment": "crop-flip-jitter"}, "expects augment in"),
    ],
)
def test_options_are_checked(options, match):
    with pytest.raises(ValueError, match=match):
        batches(pictures(), **options)


def test_targets_must_fit():
    with pytest.raises(ValueError, match="one target per sample, 50, got 3"):
        Batches(pictures(), torch.zeros(3), batch_size=4, mean=MEAN, std=STD)
    with pytest.raises(ValueError, match="shift-flip expects images"):
        batches(Split(torch.zeros(9, 3), torch.zeros(9)), augment="shift-flip")


@pytest.fixture
def photos(tmp_path):
    """Eight photographs of different sizes and modes, each a gradient."""
    files = []
    for number in range(8):
        wide = np.linspace(0, 255, 50 + 10 * number).astype(np.uint8)
        image = Image.fromarray(np.stack([np.tile(wide, (40, 1))] * 3, axis=2))
        files.append(str(tmp_path / f"{number}.{'png' if number % 2 else 'jpg'}"))
        image.convert(["RGB", "L", "CMYK", "P"][number % 4]).save(files[-1])
    return Split(Images(tuple(files), size=32), torch.arange(8) % 2, paths=tuple(files))


@pytest.mark.parametrize("augment", ["none", "crop-flip-jitter"])
def test_decoded_images_are_the_same_whatever_the_number_of_workers(photos, augment):
    alone, helped = (
        list(batches(photos, batch_size=3, augment=augment, shuffle=True, workers=workers).epoch(1))
        for workers in (0, 2)
    )
    assert [len(index) for *_, index in alone] == [3, 3, 2]
    for (inputs, target, index), others in zip(alone, helped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip((inputs, target, index), others, strict=True))
        assert inputs.shape[1:] == (3, 32, 32) and inputs.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(target, photos.target[index])
    again, other = (
        torch.cat([inputs[index.argsort()] for inputs, _, index in batches(photos, augment=augment).epoch(number)])
        for number in (1, 2)
    )
    assert torch.equal(again, other) == (augment == "none")


def test_the_centre_crop_is_the_middle_seven_eighths(photos):
    # A gradient from 0 to 255 over 110 columns, of which the middle 35 of the 40 high square remain.
    pixels = photos.inputs.decode(6).float()[:, :, 0]
    expected = torch.linspace(37.5, 72.5, 33)[:-1].add(35 / 64) / 110 * 255
    assert (pixels.mean(0) - expected).abs().max() < 4


def test_jitter_changes_colours_and_crops_stay_inside(photos):
    seen = torch.stack([photos.inputs.decode(1, seed).float() for seed in range(40)])
    means = seen.mean((1, 2, 3))
    assert means.min() < 80 and means.max() > 150 and len({round(float(mean), 3) for mean in means}) == 40
    left_to_right = (seen[:, :, -4:].mean((1, 2, 3)) > seen[:, :, :4].mean((1, 2, 3))).float().mean()
    assert 0.2 < left_to_right < 0.8  # half are flipped


def test_batches_leave_the_global_generator_alone(photos):
    before = torch.get_rng_state()
    for split, augment in ((photos, "crop-flip-jitter"), (pictures(), "shift-flip")):
        list(batches(split, augment=augment, shuffle=True).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_one_line_from_any_process(photos, workers):
    broken = photos.paths[5]
    with open(broken, "wb") as file:
        file.write(b"\x89PNG nothing")
    with pytest.raises(DataError, match=r"5\.png: cannot be read as an image: [^\n]+$") as raised:
        list(batches(photos, workers=workers).epoch(0))
    assert "Traceback" not in str(raised.value)


def test_taking_samples_takes_all_that_belongs_to_them(photos):
    some = Split(photos.inputs, photos.target, clean=1 - photos.target, paths=photos.paths).take(torch.tensor([5, 2]))
    assert some.paths == some.inputs.files == (photos.paths[5], photos.paths[2])
    assert some.target.tolist() == [1, 0] and some.clean.tolist() == [0, 1] and len(some) == 2
    assert torch.equal(pictures().take(torch.tensor([3])).inputs, pictures().inputs[3:4])


def test_features_far_from_zero_keep_their_digits():
    rows = torch.arange(8.0).reshape(8, 1) + 2.0**23
    mean, std = rows.double().mean(0), rows.double().std(0)
    split = Split(rows, torch.zeros(8, dtype=torch.int64))
    batches = Batches(split, split.target, mean=mean.tolist(), std=std.tolist(), batch_size=8, device="cpu")
    ((inputs, _, index),) = batches.epoch(0)
    expected = (rows.double() - mean)[index] / std
    torch.testing.assert_close(inputs.double() - inputs.double().mean(), expected, rtol=1e-6, atol=1e-6)
