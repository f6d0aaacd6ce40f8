"""`train`: a spec and a folder in, a finished run out."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from curriculoss import _files, data, noise
from curriculoss.data import Dataset
from curriculoss.errors import DivergedError, InvalidValueError, RunError
from curriculoss.fitting import Callback
from curriculoss.models import Network, own_name
from curriculoss.runs.facts import Divergence, Result, TrainResult
from curriculoss.runs.folder import Run
from curriculoss.runs.spec import RunSpec
from curriculoss.runs.task import Task, Training, make_fabric, make_task
from curriculoss.runs.writing import RunWriter, TensorBoard, expect_same, expect_version

BEFORE = (".lock", "labels.npz", "task.json", "environment.json")  # files that a run may leave that never began


def train(
    spec: RunSpec, out: Path | str, *, data_dir: Path | str | None = None, download: bool = False,
    accelerator: str = "auto", workers: int = 0, tensorboard: bool = False, callbacks: Sequence[Callback] = (),
    dataset: Dataset | None = None, network: Network | None = None, wait: bool = False,
) -> TrainResult:  # fmt: skip
    """Train what a spec says, keep it in a folder, and return the result.

    A finished run is only read; `already_finished` tells. A run that was interrupted goes on after its last whole
    epoch, with metrics that are bit for bit those of a run that never stopped. Both are refused if the data have
    changed since; data sets known by name are not read again for a finished run.

    Args:
        spec: What to train.
        out: The folder of the run.
        data_dir: Where published data sets are; by default CURRICULOSS_DATA, or the cache folder.
        download: Fetch a published data set that is not there.
        accelerator: "auto", "cpu", "cuda" or "mps".
        workers: Number of processes that decode image files.
        tensorboard: Also write TensorBoard files to the folder.
        callbacks: What else watches training. They are called before the run's folder is written, so the checkpoint
            of an epoch holds their state after it.
        dataset: The data that the spec means, if they have been read already.
        network: A network of your own, which is trained in place, or a function that makes one from the input shape
            and the number of classes; the spec's network is "auto" or its name. Resuming takes it again.
        wait: Wait for another process that writes the same run; otherwise that is an error.

    Raises:
        RunError: The folder holds something else, or training diverged (`DivergedError`).

    Example:
        >>> import tempfile
        >>> from curriculoss.runs import RunSpec, train
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train(RunSpec(data="digits", network="linear", epochs=2), folder)
        >>> result.epochs, result.test_accuracy > 80
        (2, True)
    """
    spec = spec if network is None else _with_own_network(spec, network)
    folder, fabric = Path(out), make_fabric(spec, accelerator)
    task = partial(make_task, spec, data_dir=data_dir, download=download, dataset=dataset)
    known = partial(_finished, folder, spec, task, dataset is not None or _may_have_changed(spec))
    if (result := known()) is not None:
        return result

    def run() -> TrainResult:
        training = Training.prepare(spec, task(), fabric, network)
        writer = RunWriter(folder, training)
        boards = [TensorBoard(writer)] if tensorboard and writer.writes else []
        try:
            training.fit((*callbacks, writer, *boards), workers=workers)
        except DivergedError as error:
            if writer.writes:
                _files.write_json(folder / "failed.json", Divergence(error.epoch, str(error)).as_dict())
            raise
        return _returned(writer.result(), folder, writer.resumed_from, False)

    if not fabric.is_global_zero:
        return run()
    folder.mkdir(parents=True, exist_ok=True)
    with _files.locked(folder, wait=wait):
        return (known() if wait else None) or run()


def _finished(folder: Path, spec: RunSpec, task: Callable[[], Task], may_have_changed: bool) -> TrainResult | None:
    """The result of the run in the folder, if it is finished; RunError if the folder holds something else."""
    if not _files.holds(folder, "spec.json", "run", ignoring=BEFORE):
        return None
    run = Run(folder)
    if ":" in (own := run.spec.network) and spec == replace(run.spec, network="auto"):
        raise RunError(f"{folder} was begun with a network of your own, {own}: give it as network= or --network")
    if run.spec != spec:
        raise RunError(f"{folder} holds another run ({_difference(run.spec, spec)}); give another folder")
    if not run.finished:
        return None
    result = run.result
    if result.spec != spec.hash:
        raise RunError(f"{folder / 'result.json'} is not that of this run; delete it to train again")
    expect_version(folder, spec, result.loss_version)
    if may_have_changed and run.task is not None:
        expect_same(folder, task().facts())
    return _returned(result, folder, result.epochs, True)


def _returned(result: Result, folder: Path, resumed_from: int | None, finished: bool) -> TrainResult:
    return TrainResult(**vars(result), run=folder, resumed_from_epoch=resumed_from, already_finished=finished)


def _with_own_network(spec: RunSpec, network: Network) -> RunSpec:
    if spec.network != "auto" and ":" not in spec.network:
        raise InvalidValueError(f"expected a network of one's own or network {spec.network!r} in the spec, got both")
    return replace(spec, network=own_name(network)) if spec.network == "auto" else spec


def _may_have_changed(spec: RunSpec) -> bool:
    """Whether data or noise come from a file of the user's that is still there."""
    from_file = spec.data not in data.available() and os.path.exists(os.path.expanduser(spec.data))
    return from_file or noise.parse(spec.noise).kind == "matrix"


def _difference(there: RunSpec, wanted: RunSpec) -> str:
    before, after = there.as_dict(), wanted.as_dict()
    changed = [key for key in after if before[key] != after[key]]
    return ", ".join(f"{key} {before[key]!r}, not {after[key]!r}" for key in changed[:3])
