"""The network that a run has trained, ready to be used: `load_model`, `export_model`."""

import io
import json
from contextlib import redirect_stderr
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from curriculoss import models
from curriculoss._files import write
from curriculoss._text import first_line
from curriculoss.data import InputFormat
from curriculoss.data.batches import normalisation
from curriculoss.errors import InvalidTypeError, InvalidValueError, RunError
from curriculoss.models import Network
from curriculoss.runs.folder import Run


class TrainedModel(nn.Module):
    """A trained network with its normalisation in front and softmax behind.

    Calling it with a batch of inputs as the data readers give them, uint8 images (N, C, H, W) or floating-point
    features (N, D), returns probabilities (N, K).

    Attributes:
        class_names: What the K columns stand for.
        input_shape: (C, H, W) of images, (D,) of features.
        input_format: All that the network expects of its inputs.
    """

    mean: Tensor
    scale: Tensor
    offset: Tensor

    def __init__(self, network: nn.Module, expected: InputFormat) -> None:
        super().__init__()
        self.network, self.input_format = network, expected
        self.class_names, self.input_shape = expected.class_names, expected.input_shape
        numbers = normalisation(expected.mean, expected.std, 255.0 if expected.input_dtype == "uint8" else 1.0)
        for name, each in zip(("mean", "scale", "offset"), numbers, strict=True):
            self.register_buffer(name, each.view(self.input_shape[0], *[1] * (len(self.input_shape) - 1)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Probabilities (N, K) of the classes."""
        images = self.input_format.input_dtype == "uint8"
        if inputs.dtype != torch.uint8 if images else not inputs.is_floating_point():
            expected = "uint8" if images else "floating-point"
            raise InvalidTypeError(f"the model expects {expected} inputs, as in training, got {inputs.dtype}")
        if tuple(inputs.shape[1:]) != self.input_shape:
            shape = ", ".join(map(str, self.input_shape))
            raise InvalidValueError(f"the model expects inputs of shape (N, {shape}), got {tuple(inputs.shape)}")
        numbers = inputs.float()
        if len(self.input_shape) == 1:  # as in training, to the bit
            numbers = (numbers - self.mean) * self.scale
        else:
            numbers = torch.addcmul(self.offset, numbers, self.scale)
        return torch.softmax(self.network(numbers), 1)


def load_model(run: Run | Path | str, network: Network | None = None) -> TrainedModel:
    """Load the network that a finished run has trained, as one module that takes raw inputs.

    Args:
        run: The run's folder, as given to `train`.
        network: For a run trained with a network of your own: that network, or the function that makes it from the
            input shape and the number of classes. Nothing in a run's folder makes Python import anything.

    Returns:
        A module in eval mode on the CPU, which takes inputs as the data readers give them (uint8 images or
        floating-point features, batch first) and returns probabilities.

    Raises:
        RunError: The folder holds no finished run, or the network does not fit it.

    Example:
        >>> import tempfile
        >>> from curriculoss.data import load
        >>> from curriculoss.runs import RunSpec, load_model, train
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = train(RunSpec(data="digits", network="linear", epochs=5), folder)
        ...     model = load_model(folder)
        >>> digits = load("digits").test
        >>> probabilities = model(digits.inputs)
        >>> bool((probabilities.argmax(1) == digits.target).double().mean() > 0.9)
        True
        >>> model.class_names[:3]
        ('0', '1', '2')
    """
    run = run if isinstance(run, Run) else Run(Path(run).expanduser())
    _expect_finished(run)
    try:
        if run.task is None or (expected := run.task.input_format) is None:
            older = "is of an older version and does not say what its network expects"
            raise RunError(f"{run.path} {older}; train it again in another folder")
        made = _make_network(run, expected, network)
        made.load_state_dict(load_file(run.path / "model.safetensors"))
        return TrainedModel(made, expected).eval().requires_grad_(False)
    except RunError:
        raise
    except Exception as error:  # facts or weights that are missing or broken, a network that they are not for
        raise RunError(f"cannot load the network of {run.path}: {first_line(error)}") from error


def _expect_finished(run: Run) -> None:
    if not (run.path / "spec.json").is_file():
        raise RunError(f"{run.path} holds no run: expected spec.json in it")
    if run.finished:
        return
    if run.failed:
        raise RunError(f"{run.path} has no trained network: {run.failed.reason or 'training failed'}")
    raise RunError(f"{run.path} is not finished: give the command that began it again, and it goes on")


def _make_network(run: Run, expected: InputFormat, network: Network | None) -> nn.Module:
    if isinstance(network, nn.Module):
        return deepcopy(network)  # the caller's own stays as it is
    name = run.result.network
    if network is None and name not in models.NETWORKS:
        raise RunError(f"{run.path} was trained with a network of your own, {name}: give it as network= or --network")
    return models.make_network(
        name if network is None else network, expected.input_shape, len(expected.class_names), width=run.spec.width
    )


def export_model(model: TrainedModel, path: Path | str) -> None:
    """Write a model as a program for `torch.export.load`, which needs neither this package nor the network's code.

    The program takes batches of any size, and includes normalisation and softmax. The file also has the class names,
    as the extra file class_names.json.

    Args:
        model: From `load_model`.
        path: The file, by custom with the suffix .pt2.

    Raises:
        RunError: torch.export cannot follow the network.
    """
    example = torch.zeros(2, *model.input_shape, dtype=getattr(torch, model.input_format.input_dtype))
    batch = {"inputs": {0: torch.export.Dim("batch")}}
    try:
        with redirect_stderr(io.StringIO()):  # torch prints the program that it could not finish
            program = torch.export.export(model, (example,), dynamic_shapes=batch)
    except Exception as error:  # torch has many classes for what it cannot follow
        raise RunError(f"torch.export cannot follow {type(model.network).__name__}: {first_line(error)}") from error
    names = {"class_names.json": json.dumps(model.class_names)}
    write(Path(path), partial(torch.export.save, program, extra_files=names), buffered=True)
