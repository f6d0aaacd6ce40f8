"""The samples that trials train on and are validated with; the test set is in neither."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from curriculoss import data
from curriculoss.data import DataError, Dataset, Split
from curriculoss.errors import InvalidValueError
from curriculoss.runs import RunSpec
from curriculoss.runs.task import make_task


@dataclass(frozen=True)
class TrialData:
    """The training samples of a spec, with validation samples from a path or a share of them held out."""

    spec: RunSpec
    validation: Path | str | None = None
    data_dir: Path | str | None = None
    share: float = 0.2

    def read(self, download: bool = False) -> Dataset:
        """The training samples with the labels to learn, and the validation samples as their test set.

        Validation labels are as noisy as they come; true labels, where the data have them, are left out.
        """
        task = make_task(self.spec, data_dir=self.data_dir, download=download)
        train = replace(task.train, target=task.given, clean=task.clean)
        if self.validation is not None:
            held = self._from_path(self.validation, task.dataset)
        else:
            count = round(self.share * len(train)) if 0 < self.share < 1 else 0
            if not 0 < count < len(train) - 1:
                samples = f"a share of {self.share:g} of {len(train)} training samples"
                raise InvalidValueError(f"{samples} leaves too few of them to train or to validate on")
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))  # the same for every seed
            held, train = (train.take(part.sort().values) for part in order.split([count, len(train) - count]))
        return replace(task.dataset, train=train, test=replace(held, clean=None))

    def _from_path(self, path: Path | str, dataset: Dataset) -> Split:
        if self.spec.data in data.available():
            rule = "validation samples in a path go with data in a path"
            raise InvalidValueError(f"{rule}; of {self.spec.data!r}, hold out a share")
        if not Path(path).expanduser().exists():
            raise InvalidValueError(f"no validation samples at {path}: no such file or folder")
        found = data.load(self.spec.data, label=self.spec.label, test=path)
        held = (found if self.spec.image_size is None else found.resized(self.spec.image_size)).test
        assert held is not None  # it was asked for
        if held.described != dataset.train.described:
            like = f"samples like those of {self.spec.data}, {dataset.train.described}"
            raise DataError(f"{path}: expected {like}, got {held.described}")
        return held
