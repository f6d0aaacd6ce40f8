"""The networks: the paper's four, a small perceptron and a linear classifier, for inputs of any size.

Every convolution and hidden layer is followed by batch normalisation and ReLU. Initially convolutions are
Kaiming-uniform (fan-in, ReLU), linear layers Xavier-uniform and biases 0, from torch's global random state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from curriculoss.curricula.registry import suggestion

HIDDEN = 256  # units in each of the two hidden layers of mlp
Width = Callable[[int], int]


def make_network(name: str, shape: tuple[int, ...], num_classes: int, *, width: float = 1.0) -> nn.Module:
    """A network for inputs of `shape`, (channels, height, width) or (features,), with `num_classes` logits.

    `width` multiplies the number of channels, and of an mlp's hidden units.
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}{suggestion(str(name), NETWORKS)}")
    flat = name in ("mlp", "linear")
    if not (len(shape) == 3 or (flat and len(shape) == 1)) or min(shape) < 1:
        expected = "(channels, height, width)" + (" or (features,)" if flat else "")
        raise ValueError(f"{name} expects inputs of shape {expected}, got shape {tuple(shape)}")
    if num_classes < 1:
        raise ValueError(f"{name} expects num_classes >= 1, got num_classes={num_classes}")
    if not 0 < width < math.inf:
        raise ValueError(f"{name} expects a finite width > 0, got width={width}")
    network = NETWORKS[name](shape, num_classes, lambda units: max(1, round(units * width)))
    network.apply(_initialise)
    return network


def available() -> tuple[str, ...]:
    """The names that `make_network` knows."""
    return tuple(NETWORKS)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_uniform_(module.weight, mode="fan_in", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
    if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
        nn.init.zeros_(module.bias)


# Plain networks


def _cnn(
    shape: tuple[int, ...], num_classes: int, width: Width, stages: Sequence[Sequence[int]], hidden: int
) -> nn.Module:
    """Stages of 3×3 convolutions, each ending in a pool where there is something left to pool; one hidden layer, which
    keeps its size: a narrow one could not tell many classes apart."""
    channels, height, breadth = shape
    layers: list[nn.Module] = []
    for stage in stages:
        for units in map(width, stage):
            layers += [nn.Conv2d(channels, units, 3, padding=1), nn.BatchNorm2d(units), nn.ReLU(inplace=True)]
            channels = units
        if min(height, breadth) > 1:
            layers.append(nn.MaxPool2d(2))
            height, breadth = height // 2, breadth // 2
    return nn.Sequential(*layers, *_perceptron(channels * height * breadth, num_classes, [hidden]))


def _cnn4(shape: tuple[int, ...], num_classes: int, width: Width) -> nn.Module:
    return _cnn(shape, num_classes, width, [[32], [64]], 128)


def _cnn8(shape: tuple[int, ...], num_classes: int, width: Width) -> nn.Module:
    return _cnn(shape, num_classes, width, [[64, 64], [128, 128], [196, 196]], 256)


def _mlp(shape: tuple[int, ...], num_classes: int, width: Width) -> nn.Module:
    return nn.Sequential(*_perceptron(math.prod(shape), num_classes, [width(HIDDEN), width(HIDDEN)]))


def _linear(shape: tuple[int, ...], num_classes: int, width: Width) -> nn.Module:
    return nn.Sequential(*_perceptron(math.prod(shape), num_classes, []))


def _perceptron(features: int, num_classes: int, hidden: Sequence[int]) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(features, units), nn.BatchNorm1d(units), nn.ReLU(inplace=True)]
        features = units
    return [*layers, nn.Linear(features, num_classes)]


# Residual networks (He et al., CVPR 2016)


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)), the shortcut a 1×1 convolution where the shape changes."""

    def __init__(self, body: list[nn.Module], inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(*_conv(inputs, outputs, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)]


def _basic(inputs: int, units: int, stride: int) -> tuple[list[nn.Module], int]:
    return [*_conv(inputs, units, 3, stride), nn.ReLU(inplace=True), *_conv(units, units, 3)], units


def _bottleneck(inputs: int, units: int, stride: int) -> tuple[list[nn.Module], int]:
    first = [*_conv(inputs, units, 1), nn.ReLU(inplace=True)]
    middle = [*_conv(units, units, 3, stride), nn.ReLU(inplace=True)]
    return [*first, *middle, *_conv(units, 4 * units, 1)], 4 * units


def _resnet(
    stem: list[nn.Module],
    channels: int,
    num_classes: int,
    width: Width,
    block: Callable[[int, int, int], tuple[list[nn.Module], int]],
) -> nn.Module:
    """A stem of `channels`, [3, 4, 6, 3] blocks, a mean over what is left of the image, one linear layer."""
    layers = [*stem]
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            body, outputs = block(channels, width(64 * 2**stage), stride)
            layers.append(Residual(body, channels, outputs, stride))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def _resnet34(shape: tuple[int, ...], num_classes: int, width: Width) -> nn.Module:
    """For small images: a 3×3 stem and no pooling."""
    stem = [*_conv(shape[0], width(64), 3), nn.ReLU(inplace=True)]
    return _resnet(stem, width(64), num_classes, width, _basic)


def _resnet50(shape: tuple[int, ...], num_classes: int, width: Width) -> nn.Module:
    """For images of 224 pixels: a 7×7 stem and a pool, which leave a quarter of each side."""
    stem = [*_conv(shape[0], width(64), 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    return _resnet(stem, width(64), num_classes, width, _bottleneck)


NETWORKS: dict[str, Callable[[tuple[int, ...], int, Width], nn.Module]] = {
    "cnn4": _cnn4,
    "cnn8": _cnn8,
    "resnet34": _resnet34,
    "resnet50": _resnet50,
    "mlp": _mlp,
    "linear": _linear,
}
