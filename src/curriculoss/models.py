"""The paper's four networks, a small perceptron and a linear classifier, for inputs of any size.

Every convolution and hidden layer is followed by batch normalisation and ReLU. Initially convolutions are
Kaiming-uniform (fan-in, ReLU), linear layers Xavier-uniform and biases 0, from torch's global random state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curriculoss._checks import check_known
from curriculoss._text import first_line
from curriculoss.errors import CurriculossError, InvalidTypeError, InvalidValueError

Width = Callable[[int], int]
Network = nn.Module | Callable[[tuple[int, ...], int], nn.Module]  # a network, or a function of input shape and classes


def make_network(name: str | Network, shape: tuple[int, ...], num_classes: int, *, width: float = 1.0) -> nn.Module:
    """Make a network, initialised from torch's global random state.

    Args:
        name: "cnn4", "cnn8", "resnet34", "resnet50", "mlp" or "linear"; or a network of your own, which is returned,
            or a function that makes one from `shape` and `num_classes`.
        shape: Of one input: (channels, height, width), or (features,) for "mlp" and "linear".
        num_classes: The number of logits.
        width: Multiplies the number of channels, and of the hidden units of "mlp".

    Example:
        >>> from curriculoss.models import make_network
        >>> sum(each.numel() for each in make_network("linear", (1, 8, 8), 10).parameters())
        650
    """
    if not isinstance(name, str):
        return _own_network(name, shape, num_classes)
    check_known("network", name, NETWORKS)
    flat = name in ("mlp", "linear")
    if not (len(shape) == 3 or (flat and len(shape) == 1)) or min(shape) < 1:
        expected = "(channels, height, width)" + (" or (features,)" if flat else "")
        raise InvalidValueError(f"{name} expects inputs of shape {expected}, got shape {tuple(shape)}")
    if num_classes < 1:
        raise InvalidValueError(f"{name} expects num_classes >= 1, got num_classes={num_classes}")
    if not 0 < width < math.inf:
        raise InvalidValueError(f"{name} expects a finite width > 0, got width={width}")
    network = NETWORKS[name](shape, num_classes, lambda units: max(1, round(units * width)))
    network.apply(_initialise)
    return network


def _own_network(given: Network, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network of the user's, tried on two inputs, so that one that does not fit is not taken for a bug of ours."""
    name, expected = own_name(given), (2, num_classes)
    try:
        made = given if isinstance(given, nn.Module) else given(shape, num_classes)
        some = next(made.parameters(), None) if isinstance(made, nn.Module) else None
        if some is None:
            raise InvalidTypeError(f"expected a torch.nn.Module with parameters from {name}, got {made!r:.80}")
        with torch.no_grad(), torch.random.fork_rng([]):
            found = tuple(deepcopy(made).eval()(torch.zeros(2, *shape).to(some)).shape)
    except CurriculossError:
        raise
    except Exception as error:  # the code is the user's, and may raise anything
        said = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidValueError(f"{name} fails for inputs of shape {(2, *shape)}: {said}") from error
    if found != expected:
        raise InvalidValueError(f"expected logits of shape {expected} from {name}, got {found}")
    return made


def own_name(network: Network) -> str:
    """`package.module:factory`, or `package.module:Class` for a network itself: what a spec calls it."""
    named = network if hasattr(network, "__qualname__") else type(network)
    return f"{named.__module__}:{named.__qualname__}"


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_uniform_(module.weight, mode="fan_in", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
    if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
        nn.init.zeros_(module.bias)


def _plain(
    shape: tuple[int, ...], num_classes: int, width: Width, *, stages: Sequence[Sequence[int]] = (),
    hidden: Sequence[int] = (), scaled: Sequence[int] = (),
) -> nn.Module:  # fmt: skip
    """Stages of 3×3 convolutions, each with a pool at its end if there is something left to pool, then hidden layers.

    `width` multiplies the units of `scaled` layers, but not of `hidden` ones: a narrow layer after convolutions could
    not tell many classes apart.
    """
    layers: list[nn.Module] = []
    for stage in stages:
        channels, height, breadth = shape
        for units in map(width, stage):
            layers += [nn.Conv2d(channels, units, 3, padding=1), nn.BatchNorm2d(units), nn.ReLU(inplace=True)]
            channels = units
        if min(height, breadth) > 1:
            layers.append(nn.MaxPool2d(2))
            height, breadth = height // 2, breadth // 2
        shape = channels, height, breadth
    layers.append(nn.Flatten())
    features = math.prod(shape)
    for units in (*map(width, scaled), *hidden):
        layers += [nn.Linear(features, units), nn.BatchNorm1d(units), nn.ReLU(inplace=True)]
        features = units
    return nn.Sequential(*layers, nn.Linear(features, num_classes))


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut is a 1×1 convolution where the shape changes."""

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
    shape: tuple[int, ...], num_classes: int, width: Width, *, large: bool,
    block: Callable[[int, int, int], tuple[list[nn.Module], int]],
) -> nn.Module:  # fmt: skip
    """A residual network with [3, 4, 6, 3] blocks (He et al., CVPR 2016).

    For large images, of 224 pixels, the stem leaves a quarter of each side; for small ones it keeps all.
    """
    channels = width(64)
    layers = [*_conv(shape[0], channels, 7 if large else 3, 2 if large else 1), nn.ReLU(inplace=True)]
    layers += [nn.MaxPool2d(3, 2, 1)] if large else []
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            body, outputs = block(channels, width(64 * 2**stage), stride)
            layers.append(Residual(body, channels, outputs, stride))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


NETWORKS: dict[str, Callable[[tuple[int, ...], int, Width], nn.Module]] = {
    "cnn4": partial(_plain, stages=[[32], [64]], hidden=[128]),
    "cnn8": partial(_plain, stages=[[64, 64], [128, 128], [196, 196]], hidden=[256]),
    "resnet34": partial(_resnet, block=_basic, large=False),
    "resnet50": partial(_resnet, block=_bottleneck, large=True),
    "mlp": partial(_plain, scaled=[256, 256]),
    "linear": _plain,
}
