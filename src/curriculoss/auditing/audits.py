"""`audit`: data in, suspicious labels out."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from curriculoss._checks import check_known
from curriculoss._files import write_json
from curriculoss._text import percent
from curriculoss.auditing import estimate
from curriculoss.auditing.audited_data import AuditedData, read_audited
from curriculoss.auditing.estimate import NoiseEstimate
from curriculoss.auditing.recipe import audit_spec
from curriculoss.auditing.scores import DEFAULT_SCORE, SCORES, against_truth
from curriculoss.auditing.spreadsheets import write_cells
from curriculoss.auditing.trajectories import Recorder, Trajectories
from curriculoss.errors import InvalidValueError
from curriculoss.fitting import Callback
from curriculoss.runs import Run, train
from curriculoss.runs.task import Training, make_fabric, make_task

FEWEST_SUSPECTS = 100
SUSPECT_COLUMNS = ("index", "path", "given", "suggested", "score", "p_wrong")
MATRIX_CLASSES = 100  # classes up to which noise.json has the whole confusion matrix
MOST_PAIRS = 1000  # confusions in noise.json
RUN_FOLDER = "run"  # subfolder with the run of the audit command


@dataclass(frozen=True, eq=False, repr=False)
class Audit(NoiseEstimate):
    """Result of an audit: a `NoiseEstimate`, and the data, scores and trajectories behind it.

    Arrays have one entry per audited sample.

    Attributes:
        data: The audited data.
        position: The position of each audited sample in `data`; all of them, unless a subset was audited.
        scores: How suspicious each label is.
        trajectories: What the network made of each sample in each epoch.
        wrong: Which labels are wrong, in trials where that is known.

    Example:
        >>> import numpy as np
        >>> from curriculoss import audit
        >>> features = np.repeat(np.eye(2), 60, axis=0) + np.random.default_rng(0).normal(0, 0.1, (120, 2))
        >>> labels = ["cat"] * 60 + ["dog"] * 60
        >>> labels[7] = "dog"
        >>> found = audit(features, labels)
        >>> first = found.suspects[0]
        >>> int(first), str(found.given[first]), str(found.suggested[first]), bool(found.p_wrong[first] > 0.5)
        (7, 'dog', 'cat', True)
    """

    data: AuditedData
    position: NDArray[np.int64]
    scores: NDArray[np.float64]
    trajectories: Trajectories
    wrong: NDArray[np.bool_] | None = None

    @property
    def classes(self) -> NDArray[Any]:
        """Every label there is, in the order of `confusion`."""
        return self.data.classes

    @cached_property
    def given(self) -> NDArray[Any]:
        """The labels as the data have them."""
        return self.classes[self.given_number]

    @cached_property
    def suggested(self) -> NDArray[Any]:
        """The best label apart from the given one."""
        return self.classes[self.suggested_number]

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """The position of each sample in the input, which also counts samples that could not be read."""
        return self.data.index[self.position]

    @property
    def headline(self) -> str:
        """The estimate in one sentence."""
        low, high = self.interval
        count, most = round(self.noise_rate * len(self)), round(high * len(self))
        if count <= 1:
            return f"Hardly any of the {len(self)} labels seem to be wrong, but up to {most} may be ({percent(high)})"
        between = f"{percent(self.noise_rate)}, between {percent(low)} and {percent(high)}"
        return f"About {count} of the {len(self)} labels seem to be wrong ({between})"

    @property
    def predicted(self) -> float:
        """The share of the labels that the network predicted in the last epoch."""
        return float((self.trajectories.hard[-1] > 0).mean())

    @property
    def learned_little(self) -> bool:
        """Whether scores and estimate may mean little: the network predicts less than half of the labels, or is nearer
        to always guessing the most frequent class than to predicting all labels that are right by the estimate."""
        guess = float(np.unique(self.given, return_counts=True)[1].max()) / len(self)
        return self.predicted < max(0.5, (guess + 1 - self.noise_rate) / 2)

    @cached_property
    def ranked(self) -> NDArray[np.int64]:
        """All samples, most suspicious first."""
        return np.argsort(-self.scores, kind="stable")

    @property
    def suspects(self) -> NDArray[np.int64]:
        """The samples to look at, most suspicious first: as many as labels are estimated to be wrong, at least 100."""
        likely, expected = int((self.p_wrong > 0.5).sum()), int(np.ceil(self.noise_rate * len(self)))
        return self.ranked[: max(likely, expected, FEWEST_SUSPECTS)]

    def row(self, i: int) -> tuple[Any, ...]:
        """What suspects.csv says about a sample, one entry for each of SUSPECT_COLUMNS."""
        index, score, p = int(self.index[i]), f"{self.scores[i]:.6g}", f"{self.p_wrong[i]:.6g}"
        path = self.data.paths.get(index, "")
        return index, path, str(self.given[i]), str(self.suggested[i]), float(score), float(p)

    def to_frame(self) -> Any:
        """All samples as a pandas DataFrame, most suspicious first, with the columns of suspects.csv."""
        from pandas import DataFrame

        return DataFrame(map(self.row, self.ranked), columns=list(SUSPECT_COLUMNS))

    def summary(self) -> dict[str, Any]:
        """The result as plain numbers and strings, as in noise.json."""
        names, suspects = [str(name) for name in self.classes], self.suspects
        return {
            "samples": len(self), "noise_rate": self.noise_rate, "interval": list(self.interval),
            "predicted": self.predicted, "learned_little": self.learned_little, "suspects": len(suspects),
            "suspects_expected_wrong": float(self.p_wrong[suspects].sum()), "unreadable": len(self.data.unreadable),
            "classes": names,
            "confusion": np.round(self.confusion, 6).tolist() if len(names) <= MATRIX_CLASSES else None,
            "pairs": [
                {"given": names[given], "suggested": names[suggested], "count": round(count, 2)}
                for given, suggested, count in self.pairs(MOST_PAIRS)
            ],
            **({} if self.wrong is None else {"against_truth": against_truth(self.scores, self.wrong)}),
        }  # fmt: skip

    def save(self, folder: Path | str) -> dict[str, str]:
        """Write what the command writes.

        Args:
            folder: Where to write suspects.csv (most suspicious first), noise.json (the summary), audit.html (a gallery
                to decide in) and, if there are samples that could not be read, unreadable.csv.

        Returns:
            The path of each file, by "suspects", "noise", "gallery" and "unreadable".
        """
        from curriculoss.auditing.gallery import write_gallery

        out = Path(os.path.expanduser(folder))
        out.mkdir(parents=True, exist_ok=True)
        files = {"suspects": "suspects.csv", "noise": "noise.json", "gallery": "audit.html"}
        write_cells(out / files["suspects"], SUSPECT_COLUMNS, map(self.row, self.suspects))
        if self.data.unreadable:
            files["unreadable"] = "unreadable.csv"
            write_cells(out / files["unreadable"], ("index", "reason"), self.data.unreadable.items())
        if (out / RUN_FOLDER).is_dir():
            files["run"] = RUN_FOLDER
        paths = {name: str(out / file) for name, file in files.items()}
        write_json(out / files["noise"], {**self.summary(), "files": paths})
        write_gallery(self, out / files["gallery"])
        return paths


def audit(
    data: Any, labels: Any = None, *, out: Path | str | None = None, settings: Mapping[str, Any] | None = None,
    score: str = DEFAULT_SCORE, data_dir: Path | str | None = None, download: bool = False, workers: int = 0,
    accelerator: str = "auto", callbacks: Sequence[Callback] = (),
) -> Audit:  # fmt: skip
    """Find the labels that are probably wrong, by one training run over all samples.

    Args:
        data: Features or images as an array or tensor; or a Dataset; or a name or path as for `curriculoss train`; or
            the path of an .npy file.
        labels: The labels of an array or tensor, of any type that can be sorted; for an .npy file also the path of its
            labels.
        out: A folder to keep the run in. An interrupted run goes on from there, and a finished one is only read.
            Without it, training happens in memory.
        settings: Fields of a RunSpec to change, such as "epochs", "network" or "label" (the label column of a table).
            None needs to be set.
        score: The name of the score that ranks the samples.
        data_dir: Where published data sets are; by default CURRICULOSS_DATA, or the cache folder.
        download: Fetch a published data set that is not there.
        workers: Number of processes that decode image files.
        accelerator: "auto", "cpu", "cuda" or "mps".
        callbacks: What else watches training.

    Raises:
        DataError: The data cannot be used.
        RunError: `out` holds something else, or training diverged.

    Example:
        >>> import torch
        >>> from curriculoss import audit
        >>> features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
        >>> found = audit(features, ["left" if row[0] < 0 else "right" for row in features])
        >>> len(found), len(found.suspects), found.noise_rate < 0.05
        (200, 100, True)
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InvalidValueError("an audit runs in one process: start it without torchrun")
    check_known("score", score, SCORES)
    given = dict(settings or {})
    source = read_audited(data, labels, label=given.get("label"), data_dir=data_dir, download=download)
    spec = audit_spec(source.name, source.dataset, given)
    task = make_task(spec, dataset=source.dataset)
    folder = None if out is None else Path(os.path.expanduser(out))
    plain = replace(spec, augment="none", batch_size=1024)
    recorder = Recorder(len(task.train), lambda: task.batches(plain, torch.device("cpu"), workers=workers), folder)
    watching = (recorder, *callbacks)
    with torch.random.fork_rng():  # the caller's random numbers stay as they would have been
        if folder is None:
            Training.prepare(spec, task, make_fabric(spec, accelerator)).fit(watching, workers=workers)
        else:
            train(spec, folder, dataset=source.dataset, callbacks=watching, workers=workers, accelerator=accelerator)
    if (seen := recorder.trajectories) is None:  # the run was finished already
        assert folder is not None
        seen = Trajectories.read(Run(folder))
    scores = SCORES[score](seen)
    wrong = None if task.clean is None else (task.clean != task.given).numpy()
    noise = _estimate(seen, scores, task.given.numpy(), source.dataset.num_classes)
    return Audit(**vars(noise), data=source, position=task.index.numpy(), scores=scores, trajectories=seen, wrong=wrong)


def estimate_noise(run: Run | Path | str, score: str = DEFAULT_SCORE) -> NoiseEstimate:
    """Estimate label noise from the folder of an audit, or of its run.

    Args:
        run: The folder given to `audit` as `out`, or to the command as `--out`.
        score: The name of the score that `p_wrong` rises with.

    Raises:
        RunError: The folder holds no run of an audit.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from curriculoss.auditing import audit, estimate_noise
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = audit(np.repeat(np.eye(3), 20, axis=0), [0, 1, 2] * 20, out=folder)
        ...     same = estimate_noise(folder).noise_rate == found.noise_rate
        >>> same
        True
    """
    check_known("score", score, SCORES)
    if not isinstance(run, Run):
        inner = Path(run) / RUN_FOLDER
        run = Run(inner if inner.is_dir() else Path(run))
    seen = Trajectories.read(run)
    assert run.task is not None  # no audit is older than task.json
    return _estimate(seen, SCORES[score](seen), run.arrays("labels")["given"], run.task.num_classes)


def _estimate(
    seen: Trajectories, scores: NDArray[np.float64], given: NDArray[np.int64], num_classes: int
) -> NoiseEstimate:
    found = estimate.noise_rate(seen.gap, seen.rank, given, num_classes)
    p_wrong = estimate.probabilities(scores, found.likely, found.rate)
    return NoiseEstimate(found.rate, found.interval, p_wrong, given, seen.suggested, num_classes)
