"""The networks: their sizes, their inputs and where training starts from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from curriculoss.initial import expected_initial_margin, measure_initial_margins
from curriculoss.models import NETWORKS, make_network

IMAGES = ("cnn4", "cnn8", "resnet34", "resnet50")


def parameters(network: nn.Module) -> int:
    return sum(x.numel() for x in network.parameters())


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "count"),
    [
        ("cnn4", (1, 28, 28), 10, 422_090),
        ("cnn8", (3, 32, 32), 10, 1_639_794),
        ("resnet34", (3, 32, 32), 100, 21_328_292),
        ("resnet50", (3, 224, 224), 1000, 25_557_032),
        ("mlp", (64,), 10, 64 * 256 + 256 * 256 + 2 * (256 + 512) + 2570),
        ("linear", (3, 2, 2), 10, 130),
    ],
)
def test_parameter_counts_are_the_papers(name: str, shape: tuple[int, ...], num_classes: int, count: int) -> None:
    with torch.device("meta"):
        assert parameters(make_network(name, shape, num_classes)) == count


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 8, 16), (1, 8, 24), (3, 32, 32), (2, 7, 5), (1, 1, 1), (1, 1, 9)])
@pytest.mark.parametrize("name", NETWORKS)
def test_images_of_any_size_are_taken(name: str, shape: tuple[int, ...]) -> None:
    network = make_network(name, shape, 7, width=0.05)
    logits = network(images(4, *shape))
    assert logits.shape == (4, 7)
    logits.square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in network.parameters())


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_features_are_taken_by_networks_without_convolutions(name: str) -> None:
    assert make_network(name, (13,), 3)(images(5, 13)).shape == (5, 3)


def test_larger_images_are_pooled_down_to_the_same_features() -> None:
    """cnn4 quarters each side, cnn8 divides it by eight, and a pool that would leave nothing is left out."""
    for name, shape, features in [
        ("cnn4", (1, 28, 28), 64 * 7 * 7),
        ("cnn4", (1, 8, 16), 64 * 2 * 4),
        ("cnn4", (1, 3, 3), 64),
        ("cnn8", (3, 64, 64), 196 * 8 * 8),
        ("cnn8", (1, 8, 24), 196 * 3),
        ("cnn8", (1, 4, 4), 196),
    ]:
        hidden = next(x for x in make_network(name, shape, 10).modules() if isinstance(x, nn.Linear))
        assert hidden.in_features == features


@pytest.mark.parametrize("name", [*IMAGES, "mlp"])
def test_width_multiplies_channels(name: str) -> None:
    """and so, twice as wide, the weights between them grow fourfold; the hidden layer after convolutions stays."""

    def shapes(width: float) -> list[torch.Size]:
        network = make_network(name, (3, 16, 16), 10, width=width)
        kinds = nn.Linear if name == "mlp" else nn.Conv2d
        return [x.weight.shape for x in network.modules() if isinstance(x, kinds)]

    classes = slice(None, -1 if name == "mlp" else None)  # of the last layer of an mlp there are as many as classes
    assert all(a[0] == 2 * b[0] for a, b in zip(shapes(0.5)[classes], shapes(0.25)[classes], strict=True))
    assert all(a[1] == 2 * b[1] for a, b in zip(shapes(0.5)[1:], shapes(0.25)[1:], strict=True))
    assert min(x[0] for x in shapes(1e-6)) == 1


def test_hidden_layer_after_convolutions_keeps_its_size() -> None:
    for name, units in (("cnn4", 128), ("cnn8", 256)):
        for width in (0.1, 1.0, 2.0):
            hidden, classes = (
                x for x in make_network(name, (3, 16, 16), 7, width=width).modules() if isinstance(x, nn.Linear)
            )
            assert (hidden.out_features, classes.out_features) == (units, 7)


def test_a_linear_classifier_has_no_width() -> None:
    assert parameters(make_network("linear", (5,), 3, width=0.1)) == parameters(make_network("linear", (5,), 3)) == 18


@pytest.mark.parametrize(("name", "side"), [("resnet34", 32), ("resnet50", 224)])
def test_residual_networks_see_the_image_at_the_papers_resolutions(name: str, side: int) -> None:
    network = make_network(name, (3, side, side), 10, width=1 / 64).eval()
    assert isinstance(network, nn.Sequential)
    sides, x = [], images(1, 3, side, side)
    with torch.no_grad():
        for layer in network:
            x = layer(x)
            if type(layer).__name__ == "Residual":
                sides.append(x.shape[-1])
    first = 32 if name == "resnet34" else 56
    assert sides == [first] * 3 + [first // 2] * 4 + [first // 4] * 6 + [first // 8] * 3


def test_a_block_adds_its_input() -> None:
    """With the last normalisation of the body at zero, a block whose shape does not change is a ReLU."""
    blocks = [x for x in make_network("resnet34", (3, 8, 8), 10, width=0.1).modules() if hasattr(x, "shortcut")]
    assert isinstance(blocks[0].body, nn.Sequential)
    nn.init.zeros_(blocks[0].body[-1].weight)  # type: ignore[arg-type]
    x = images(2, 6, 8, 8)
    assert torch.equal(blocks[0](x), x.relu())


@pytest.mark.parametrize("name", NETWORKS)
def test_normalisation_and_relu_follow_every_layer_but_the_last(name: str) -> None:
    modules = [
        type(x).__name__ for x in make_network(name, (1, 8, 8), 10, width=0.1).modules() if not list(x.children())
    ]
    learned = [i for i, x in enumerate(modules) if x in ("Conv2d", "Linear")]
    assert learned[-1] == len(modules) - 1
    assert all(modules[i + 1].startswith("BatchNorm") for i in learned[:-1])
    if not name.startswith("resnet"):
        assert all(modules[i + 2] == "ReLU" for i in learned[:-1])
    else:  # after the stem, and in every block after all layers but the last, which the addition follows
        assert modules.count("ReLU") == 1 + 16 * (1 if name == "resnet34" else 2)


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_uniform_with_the_papers_bounds(name: str) -> None:
    torch.manual_seed(0)
    for module in make_network(name, (3, 16, 16), 50, width=0.5).modules():
        if isinstance(module, nn.Conv2d):
            bound = math.sqrt(6 / (module.in_channels * module.kernel_size[0] ** 2))
            assert (module.bias is None) == name.startswith("resnet")
        elif isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
        else:
            continue
        weight = module.weight.detach()
        assert 0.98 * bound < weight.abs().max() <= bound
        assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.08)
        assert module.bias is None or not module.bias.any()


def test_the_random_state_decides_the_weights() -> None:
    def first(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return next(make_network("cnn4", (1, 8, 8), 10).parameters()).detach()

    assert torch.equal(first(0), first(0)) and not torch.equal(first(0), first(1))


@pytest.mark.parametrize(("name", "hidden"), [("cnn4", 128), ("cnn8", 256), ("mlp", 256)])
@pytest.mark.parametrize("num_classes", [10, 100])
def test_margins_start_where_the_closed_form_says(name: str, hidden: int, num_classes: int) -> None:
    """Normalised and rectified, a hidden unit has mean square 1/2, so logits have variance hidden/(hidden + K)."""
    torch.manual_seed(1)
    sigma = math.sqrt(hidden / (hidden + num_classes))
    means = []
    for _ in range(5):
        network = make_network(name, (1, 8, 16), num_classes)
        target = torch.randint(0, num_classes, (256,))
        means.append(float(measure_initial_margins(network, [(torch.randn(256, 1, 8, 16), target)]).mean()))
    assert sum(means) / len(means) == pytest.approx(expected_initial_margin(num_classes, sigma), abs=0.15)


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "width", "message"),
    [
        ("cnn5", (1, 8, 8), 10, 1.0, "unknown network 'cnn5', did you mean 'cnn.'\\? Available: cnn4, cnn8, resnet34"),
        ("", (1, 8, 8), 10, 1.0, "unknown network ''"),
        ("cnn4", (64,), 10, 1.0, "cnn4 expects inputs of shape \\(channels, height, width\\), got shape \\(64,\\)"),
        ("resnet50", (8, 8), 10, 1.0, "resnet50 expects .* got shape \\(8, 8\\)"),
        ("mlp", (8, 8), 10, 1.0, "\\(channels, height, width\\) or \\(features,\\), got shape \\(8, 8\\)"),
        ("linear", (), 10, 1.0, "got shape \\(\\)"),
        ("mlp", (0,), 10, 1.0, "got shape \\(0,\\)"),
        ("cnn8", (3, 0, 8), 10, 1.0, "got shape \\(3, 0, 8\\)"),
        ("cnn8", (3, 8, 8), 0, 1.0, "cnn8 expects num_classes >= 1, got num_classes=0"),
        ("cnn8", (3, 8, 8), 10, 0.0, "cnn8 expects a finite width > 0, got width=0.0"),
        ("cnn8", (3, 8, 8), 10, math.nan, "got width=nan"),
        ("cnn8", (3, 8, 8), 10, math.inf, "got width=inf"),
    ],
)
def test_what_cannot_be_built_is_refused(
    name: str, shape: tuple[int, ...], num_classes: int, width: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_network(name, shape, num_classes, width=width)
