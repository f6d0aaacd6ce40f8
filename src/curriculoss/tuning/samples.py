"""What trials train on and are measured by; the test set is in neither."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from curriculoss import data
from curriculoss.data import DataError, Dataset, Images, Split
from curriculoss.training import RunSpec
from curriculoss.training.task import make_task


@dataclass(frozen=True)
class Source:
    """Where samples are: those of a spec, with a path beside them to validate on, or a share of them held out."""

    spec: RunSpec
    validation: Path | str | None = None
    data_dir: Path | str | None = None
    share: float = 0.2

    def read(self, download: bool = False) -> Dataset:
        """The training samples with the labels to learn, and the validation samples where a test set would be.

        Labels to validate on are as noisy as they come: true ones, where data have them, are left out.
        """
        spec = self.spec
        task = make_task(spec, data_dir=self.data_dir, download=download)
        train = replace(task.train, target=task.given, clean=task.clean)
        if self.validation is None:
            count = round(self.share * len(train))
            if not 0 < count < len(train) - 1:
                raise ValueError(f"a share of {self.share:g} of {len(train)} training samples leaves too few of them "
                                 "to train or to validate on")  # fmt: skip
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))  # the same for every seed
            held, train = (train.take(part.sort().values) for part in order.split([count, len(train) - count]))
        else:
            held = self._beside(self.validation, task.dataset)
        return replace(task.dataset, train=train, test=replace(held, clean=None))

    def _beside(self, path: Path | str, dataset: Dataset) -> Split:
        if self.spec.data in data.available():
            raise ValueError(f"validation samples in a path go with data in a path; of {self.spec.data!r}, hold out a "
                             "share")  # fmt: skip
        if not Path(path).expanduser().exists():
            raise ValueError(f"no validation samples at {path}: no such file or folder")
        held = data.load(self.spec.data, label=self.spec.label, test=path).test
        assert held is not None  # they were asked for
        if _kind(held) != _kind(dataset.train):
            like = f"samples like those of {self.spec.data}, {_kind(dataset.train)}"
            raise DataError(f"{path}: expected {like}, got {_kind(held)}")
        return held


def _kind(split: Split) -> str:
    if isinstance(split.inputs, Images):
        return "image files"
    return f"{str(split.inputs.dtype).removeprefix('torch.')} of shape {tuple(split.inputs.shape[1:])}"
