"""Image files, decoded when they are needed: crops, flips and colour jitter by Pillow, one sample at a time."""

import math
import random
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import Path as ZipPath

import torch
from torch import Tensor

from curriculoss.data.files import reading
from curriculoss.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
ORIENTATION = 0x0112  # EXIF's tag: cameras store photos on their side, with a note of how to turn them
ImagePlace = str | Path | ZipPath  # of an image: a file, or an entry of a zip file
IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # no format whose reader starts another program


@dataclass(frozen=True, eq=False)
class Images:
    """Image files in the place of a uint8 tensor (N, 3, size, size). Nothing is decoded before `decode`.

    Attributes:
        files: The paths of the images.
        size: The side that they are cropped and resized to, in pixels.
    """

    files: tuple[str, ...]
    size: int = 224
    dtype = torch.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.files), 3, self.size, self.size)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Tensor) -> "Images":
        return Images(tuple(self.files[i] for i in index.tolist()), self.size)

    def decode(self, position: int, seed: int | None = None) -> Tensor:
        """One image as uint8 (size, size, 3): its centre, or with a seed a random crop, flip and jitter."""
        image = open_image(self.files[position])
        image = centre_crop(image, self.size) if seed is None else augmented(image, self.size, random.Random(seed))
        return as_tensor(image)


def as_tensor(image: "Image") -> Tensor:
    """uint8 (height, width, channels)."""
    width, height = image.size
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, -1)


def open_image(place: ImagePlace, mode: str = "RGB", *, decode: bool = True) -> "Image":
    """An image in the wanted mode, "L" or "RGB"; only its header is read if not `decode`."""
    from PIL import Image, ImageOps

    with reading(place, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(place.open("rb") if isinstance(place, ZipPath) else place, formats=IMAGE_FORMATS) as file:
            image: Image.Image = file
            if not decode:
                return image
            image.load()  # turns a TIFF
            with suppress(Exception):  # damaged EXIF raises errors of many kinds; the pixels may be whole
                ImageOps.exif_transpose(image, in_place=True)
            if image.mode.startswith("I;16"):
                image = image.point(lambda value: value / 256).convert("L")
            elif image.mode in ("I", "F"):
                raise DataError(f"{place}: expected 8 or 16 bits per channel, got an image of mode {image.mode}")
            return image.convert(mode)


def upright_size(image: "Image") -> tuple[int, int]:
    """Width and height after turning; from the header alone."""
    width, height = image.size
    with suppress(Exception):  # as above
        if "exif" in image.info and image.getexif().get(ORIENTATION) in range(5, 9):
            return height, width
    return width, height


def stacked(places: Sequence[ImagePlace], size: tuple[int, int], mode: str) -> Tensor:
    """Images of one width and height as uint8 (N, C, H, W), channels_last in memory as batches are."""
    width, height = size
    pixels = torch.empty((len(places), height, width, len(mode)), dtype=torch.uint8)
    for row, place in zip(pixels, places, strict=True):
        image = open_image(place, mode)
        if image.size != size:
            raise DataError(f"{place}: expected {width}×{height} pixels, got {image.width}×{image.height}")
        row.copy_(as_tensor(image))
    return pixels.permute(0, 3, 1, 2)


def centre_crop(image: "Image", size: int) -> "Image":
    """The middle `size` pixels after the shorter side was resized to size·8/7 (256 for 224)."""
    from PIL.Image import Resampling

    side = min(image.size) * size / round(size * 8 / 7)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + side, top + side))


def augmented(image: "Image", size: int, chance: random.Random) -> "Image":
    """A random resized crop, flipped half of the time, with colour jitter."""
    from PIL.Image import Resampling, Transpose

    image = image.resize((size, size), Resampling.BILINEAR, box=_random_box(image.size, chance))
    if chance.random() < 0.5:
        image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
    return _jittered(image, chance)


def _random_box(size: tuple[int, int], chance: random.Random) -> tuple[int, int, int, int]:
    """A box with 8 to 100 % of the area and sides in a ratio of 3:4 to 4:3; the whole image if ten tries do not fit."""
    width, height = size
    for _ in range(10):
        area = width * height * chance.uniform(0.08, 1.0)
        ratio = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if w <= width and h <= height:
            left, top = chance.randint(0, width - w), chance.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def _jittered(image: "Image", chance: random.Random) -> "Image":
    """Brightness, contrast and saturation by up to 40 %, hue by up to a fifth of the circle, in random order."""
    from PIL import Image, ImageEnhance

    steps = ["Brightness", "Contrast", "Color", "hue"]
    chance.shuffle(steps)
    for step in steps:
        if step == "hue":
            hue, saturation, value = image.convert("HSV").split()
            turn = round(256 * chance.uniform(-0.2, 0.2))
            hue = hue.point([(level + turn) % 256 for level in range(256)])
            image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
        else:
            image = getattr(ImageEnhance, step)(image).enhance(chance.uniform(0.6, 1.4))
    return image
