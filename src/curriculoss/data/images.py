"""Image files, decoded when they are needed: crops, flips and colour jitter by Pillow, a sample at a time."""

import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from curriculoss.data.files import DataError, first_line

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # no format whose reader starts another program


@dataclass(frozen=True, eq=False)
class Images:
    """Image files as (3, size, size) inputs. Nothing is decoded before `decode`."""

    files: tuple[str, ...]
    size: int = 224

    @property
    def shape(self) -> tuple[int, int, int]:
        return (3, self.size, self.size)

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor) -> "Images":
        return Images(tuple(self.files[i] for i in index.tolist()), self.size)

    def decode(self, position: int, seed: int | None = None) -> Tensor:
        """uint8 (size, size, 3): a random crop, flip and jitter made from the seed, or without one the centre."""
        image = open_image(self.files[position], "RGB")
        image = centre_crop(image, self.size) if seed is None else augmented(image, self.size, random.Random(seed))
        return as_tensor(image)


def as_tensor(image: "Image") -> Tensor:
    """uint8 (height, width, channels)."""
    width, height = image.size
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, -1)


def open_image(path: str | Path, mode: str | None = None, *, decode: bool = True) -> "Image":
    """A decoded image in the wanted mode, "L" or "RGB" (None: whichever loses nothing)."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as file:
                image: Image.Image = file
                if not decode:
                    return image
                if image.mode.startswith("I;16"):
                    image = image.point(lambda value: value / 256).convert("L")
                elif image.mode in ("I", "F"):
                    raise DataError(f"{path}: expected 8 or 16 bits a channel, got an image of mode {image.mode}")
                return image.convert(mode or ("L" if image.mode in ("1", "L") else "RGB"))
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such image") from error
    except Exception as error:  # decoders of broken files raise whatever they stumble on
        raise DataError(f"{path}: not a readable image: {first_line(error)}") from error


def readable(files: Sequence[str], unreadable: dict[int, str]) -> list[int]:
    """The positions of files that can be decoded; of the others, `unreadable` is told what is wrong."""
    found = []
    for position, file in enumerate(files):
        try:
            open_image(file, "RGB")
            found.append(position)
        except DataError as error:
            unreadable[position] = str(error)
    return found


def centre_crop(image: "Image", size: int) -> "Image":
    """The middle of the image after its shorter side was made size·8/7 (256 for 224)."""
    from PIL.Image import Resampling

    side = min(image.size) * size / round(size * 8 / 7)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), Resampling.BILINEAR, box=(left, top, left + side, top + side))


def augmented(image: "Image", size: int, chance: random.Random) -> "Image":
    """A random resized crop, a flip half of the time, and colour jitter."""
    from PIL.Image import Resampling, Transpose

    image = image.resize((size, size), Resampling.BILINEAR, box=_random_box(image.size, chance))
    if chance.random() < 0.5:
        image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
    return _jittered(image, chance)


def _random_box(size: tuple[int, int], chance: random.Random) -> tuple[int, int, int, int]:
    """8 to 100 % of the area, sides in a ratio of 3:4 to 4:3; the whole image if ten tries do not fit."""
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
