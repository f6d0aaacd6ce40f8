"""The audit against AUM and cleanlab: which finds the wrong labels, and how long it takes.

    python -m benchmarks.audit --data-dir DATA [--settings mnist-symmetric] [--methods audit,aum]
        [--out results/audit] [--jobs 2] [--dry-run]

All methods see the same samples and labels, and train the same network for as many epochs as the audit chooses:

    audit     one run with AutoLoss, ranked by each score
    aum       one run with CE, ranked by the mean hard margin (Pleiss et al., NeurIPS 2020)
    cleanlab  five runs with CE, each on four fifths of the samples, ranked by cleanlab's label quality on the rest

Runs are kept in the folder `runs` beside the results, and an interrupted benchmark continues. Without --data-dir, only
the small setting with embedded data runs. Writes audit.csv, one row per method and score, and README.md, which is
generated from audit.csv alone. Seconds cover the epochs and everything after the last one, in a process with one
thread.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from benchmarks.timing import machine, row_of, write_csv
from curriculoss import data
from curriculoss.auditing import audit, scores
from curriculoss.auditing.recipe import audit_spec
from curriculoss.data import Batches, Dataset
from curriculoss.fitting import predictions
from curriculoss.runs import Run, RunSpec, train
from curriculoss.runs.executors import LocalExecutor
from curriculoss.runs.task import Task, make_network, make_task

MNIST = {"data": "mnist", "subset": 10_000, "network": "cnn4", "width": 0.5}
CIFAR = {"subset": 10_000, "network": "cnn8", "width": 0.125}
CIFAR10, CIFAR100 = {"data": "cifar10", **CIFAR}, {"data": "cifar100", **CIFAR}
TINY = {"data": "tiny-imagenet-100", "image_size": 32, **CIFAR, "subset": 6_000}  # all that our part of it has
DRAWN = ("symmetric:0.4", "asymmetric:0.4", "instance:0.4")  # asymmetric noise leaves half of the ten classes alone
SETTINGS: dict[str, dict[str, Any]] = {
    "cifar10n-worse": {**CIFAR10, "noise": "human:worse_label"},
    "cifar10n-aggregate": {**CIFAR10, "noise": "human:aggre_label"},
    "cifar100n": {**CIFAR100, "noise": "human"},
    **{f"mnist-{noise.partition(':')[0]}": {**MNIST, "noise": noise} for noise in DRAWN},
    **{f"cifar10-{noise.partition(':')[0]}": {**CIFAR10, "noise": noise} for noise in DRAWN},
    "tiny-imagenet-symmetric": {**TINY, "noise": "symmetric:0.4"},
    "tiny-imagenet-instance": {**TINY, "noise": "instance:0.4"},
    "mnist-few": {**MNIST, "noise": "symmetric:0.003"},
    "cifar10-few": {**CIFAR10, "noise": "symmetric:0.02"},
}
EMBEDDED: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "noise": "symmetric:0.4", "subset": 600, "width": 0.5, "epochs": 6}
}
KNOWN = SETTINGS | EMBEDDED
FOLDS = 5
METHODS = ("audit", "aum", "cleanlab")
USUAL = {"audit": scores.DEFAULT_SCORE, "aum": "aum", "cleanlab": "self_confidence"}  # the default score of each method
QUALITIES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
COLUMNS = ("setting", "method", "score", "samples", "noise_rate", "false_negative_rate", "auroc", "seconds",
           "estimate", "low", "high", *machine())  # fmt: skip
SHOWN = (("false_negative_rate", ".3f"), ("auroc", ".3f"), ("seconds", ".0f"))

Row = dict[str, Any]


def measure(setting: str, method: str, runs: Path, data_dir: Path | None) -> list[Row]:
    """The rows of a method in a setting, one per score."""
    settings, folder = dict(KNOWN[setting]), runs / f"audit-{setting}-{method}"
    dataset = data.load(settings.pop("data"), data_dir=data_dir)
    if method == "cleanlab":
        common, found, wrong = _cleanlab(dataset, folder, settings)
    else:
        common, found, wrong = _audit(dataset, folder, settings if method == "audit" else {**settings, "loss": "ce"})
        found = found if method == "audit" else {"aum": found["aum"]}
    common = {"setting": setting, "method": method, "samples": len(wrong), **common}
    return [{**common, "score": name, **scores.against_truth(each, wrong)} for name, each in found.items()]


Found = tuple[Row, dict[str, NDArray[np.float64]], NDArray[np.bool_]]  # facts, scores by name, which labels are wrong


def _audit(dataset: Dataset, folder: Path, settings: Mapping[str, Any]) -> Found:
    audit(dataset, out=folder, settings=settings)
    spec = Run(folder).spec
    task = make_task(spec, dataset=dataset)
    start = time.perf_counter()  # everything that follows training: a look at all samples, scores and estimate
    _predict(spec, folder, task, task.batches(spec, torch.device("cpu")))
    found = audit(dataset, out=folder, settings=settings)
    seconds = _seconds(folder) + time.perf_counter() - start
    low, high = found.interval
    assert found.wrong is not None
    facts = {"seconds": seconds, "estimate": found.noise_rate, "low": low, "high": high}
    return facts, {name: each(found.trajectories) for name, each in scores.SCORES.items()}, found.wrong


def _cleanlab(dataset: Dataset, folder: Path, settings: Mapping[str, Any]) -> Found:
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
    from sklearn.model_selection import StratifiedKFold

    alone = audit_spec(dataset.name, dataset, {**settings, "loss": "ce"})
    task = make_task(alone, dataset=dataset)
    spec = RunSpec.from_dict({**alone.as_dict(), "noise": "clean", "subset": None})  # folds have noisy labels
    labelled = dataclasses.replace(task.train, target=task.given, clean=None)
    probabilities, seconds = np.empty((len(task.train), dataset.num_classes)), 0.0
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(np.zeros(len(task.given)), task.given)
    for number, (others, rest) in enumerate(folds):
        parts = (labelled.take(torch.from_numpy(part)) for part in (others, rest))
        fold = dataclasses.replace(task.dataset, train=next(parts), test=next(parts))
        train(spec, folder / str(number), dataset=fold)
        start = time.perf_counter()
        fold_task = make_task(spec, dataset=fold)
        tested = fold_task.batches(spec, torch.device("cpu"), test=True)
        probabilities[rest] = _predict(spec, folder / str(number), fold_task, tested)
        seconds += _seconds(folder / str(number)) + time.perf_counter() - start
    given = task.given.numpy()
    assert task.clean is not None
    start = time.perf_counter()
    issues = find_label_issues(given, probabilities, n_jobs=1)
    qualities = {name: get_label_quality_scores(given, probabilities, method=name) for name in QUALITIES}
    facts = {"seconds": seconds + time.perf_counter() - start, "estimate": float(issues.mean())}
    return facts, {name: -quality for name, quality in qualities.items()}, (task.clean != task.given).numpy()


def _predict(spec: RunSpec, folder: Path, task: Task, batches: Batches) -> NDArray[np.float32]:
    """The probabilities that a run's network gives to each sample."""
    network = make_network(spec, task)
    network.load_state_dict(load_file(folder / "model.safetensors"))
    found = np.empty((batches.size, task.dataset.num_classes), np.float32)
    for logits, (_, _, index, _) in predictions(network, batches, torch.device("cpu")):
        found[index] = logits.softmax(1)
    return found


def _seconds(folder: Path) -> float:
    """The seconds of all epochs, without tests and reading, as if each had taken as long as the shortest: during the
    others the machine may have had other work."""
    epochs = [float(row["train_seconds"]) for row in Run(folder).metrics]
    return len(epochs) * min(epochs)


def load(file: Path) -> list[Row]:
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def save(file: Path, rows: Iterable[Row]) -> None:
    """Write the rows in the order of settings and methods."""
    full = [{key: _short(row.get(key, "")) for key in COLUMNS} for row in rows]
    order = list(KNOWN)
    write_csv(file, sorted(full, key=lambda row: (order.index(row["setting"]), METHODS.index(row["method"]))), {})


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


class Table:
    """audit.csv by setting, method and score; `settings` are those with rows of every method."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {(row["setting"], row["method"], row["score"]): row for row in rows}
        done = {key[:2] for key in self.rows}
        self.settings = [each for each in KNOWN if all((each, method) in done for method in METHODS)]
        self.kinds = list(dict.fromkeys(key[1:] for key in self.rows))

    def usual(self, setting: str, method: str, column: str) -> float:
        return float(self.rows[setting, method, USUAL[method]][column])

    def mean(self, kind: tuple[str, str], column: str) -> float:
        return statistics.fmean(float(self.rows[setting, *kind][column]) for setting in self.settings)


def page(rows: Iterable[Row]) -> str:
    """README.md, made from the rows of audit.csv."""
    table = Table(rows)
    count = len(table.settings)
    lines = [
        "# The audit against AUM and cleanlab",
        "",
        "Generated by `python -m benchmarks.audit` from [audit.csv](audit.csv), which also records machine and load.",
        "*Missed* is the false negative rate: the share of the wrong labels that are not among the most suspicious",
        "ones if as many are taken as there are wrong labels. All methods see the same samples, labels, network,",
        "epochs and seed (one). **Bold**: the default score of each method.",
        "",
        "What was chosen on which data:",
        "",
        "- The score and the number of epochs: cifar10n-worse, cifar100n, small tables, synthetic embeddings, digits.",
        "- The epochs that the estimate uses: the same, cifar10n-aggregate, cifar10-symmetric and clean CIFAR-10.",
        "- Fitting one rate to all of these epochs: with all settings in view.",
        "- The bound by the last ranks: CIFAR-10 with 0 to 5 % symmetric noise.",
        "- The share of learned labels that may be wrong: the test set of MNIST, in which people have confirmed 15",
        "  wrong labels.",
        "- Leaving out rare classes that are not learned: a synthetic table of seven classes; that only rare classes",
        "  are left out: another table and embeddings with 20 and 40 % wrong labels.",
        "- The interval by likelihood ratio: tables, embeddings, digits and MNIST with 0 to 5 % wrong labels.",
        "",
        "Rates up to 5 %, with seeds that nothing was chosen on: `python -m benchmarks.low_rates`, with the results in",
        "[low_rates.csv](../../benchmarks/results/low_rates.csv).",
        "",
    ]
    if not count:
        return "\n".join([*lines, "No setting has all methods yet.", ""])
    lines += [f"## On average over {count} of {len(SETTINGS)} settings" if set(table.settings) <= set(SETTINGS)
              else "## On average, a trial", ""]  # fmt: skip
    lines += _header("method", "score", "missed", "AUROC", "seconds", "of cleanlab's time")
    for kind in sorted(table.kinds, key=lambda kind: table.mean(kind, "false_negative_rate")):
        method, score = kind
        name = f"**{score}**" if score == USUAL[method] else score
        numbers = [f"{table.mean(kind, column):.3f}" for column in ("false_negative_rate", "auroc")]
        seconds, theirs = (table.mean((each, USUAL[each]), "seconds") for each in (method, "cleanlab"))
        lines += row_of([method, name, *numbers, f"{seconds:.0f}", f"{seconds / theirs:.2f}"])
    lines += ["", "## Setting by setting", ""]
    columns = (f"{name}: {method}" for name in ("missed", "AUROC", "seconds") for method in METHODS)
    lines += _header("setting", "samples", "wrong", *columns)
    for each in table.settings:
        facts = table.rows[each, "audit", USUAL["audit"]]
        numbers = [f"{table.usual(each, x, column):{form}}" for column, form in SHOWN for x in METHODS]
        lines += row_of([each, facts["samples"], f"{float(facts['noise_rate']):.3f}", *numbers])
    names = [score for method, score in table.kinds if method == "audit"]
    lines += ["", "## Missed by each score of the audit", "", *_header("setting", *names)]
    for each in table.settings:
        missed = (float(table.rows[each, "audit", name]["false_negative_rate"]) for name in names)
        lines += row_of([each, *(f"{share:.3f}" for share in missed)])
    lines += ["", "## How many labels are wrong", "",
              "The audit's estimate with its 95 % interval, and the share reported by cleanlab's `find_label_issues`.",
              "",
              *_header("setting", "truth", "audit", "95 %", "audit − truth", "cleanlab")]  # fmt: skip
    for each in table.settings:
        truth, rate, low, high = (table.usual(each, "audit", x) for x in ("noise_rate", "estimate", "low", "high"))
        lines += row_of([each, f"{truth:.3f}", f"{rate:.3f}", f"{low:.3f} to {high:.3f}", f"{rate - truth:+.3f}",
                               f"{table.usual(each, 'cleanlab', 'estimate'):.3f}"])  # fmt: skip
    return "\n".join(lines) + "\n"


def _header(*words: str) -> list[str]:
    return [*row_of(words), *row_of(["---"] * len(words))]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--settings", default="", metavar="A,B", help=f"some of {', '.join(KNOWN)}")
    parser.add_argument("--methods", default=",".join(METHODS), metavar="A,B", help=f"some of {', '.join(METHODS)}")
    parser.add_argument("--data-dir", type=Path, help="folder of MNIST, CIFAR and Tiny ImageNet")
    parser.add_argument("--out", type=Path, default=Path("results/audit"))
    parser.add_argument("--jobs", type=int, default=2, help="methods at the same time, one thread each (default 2)")
    parser.add_argument("--dry-run", action="store_true", help="list what is to do, and write the page")
    given = parser.parse_args(arguments)
    known = KNOWN if given.data_dir else EMBEDDED
    settings = given.settings.split(",") if given.settings else list(SETTINGS if given.data_dir else EMBEDDED)
    methods = given.methods.split(",")
    for asked, there in ((settings, known), (methods, METHODS)):
        if unknown := set(asked) - set(there):
            parser.error(f"expected some of {', '.join(there)}, got {', '.join(sorted(unknown))}")
    file, where = given.out / "audit.csv", machine()
    rows = load(file)
    done = {(row["setting"], row["method"]) for row in rows}
    missing = [(setting, method) for setting in settings for method in methods if (setting, method) not in done]
    print(f"{len(missing)} of {len(settings) * len(methods)} to do: {', '.join(' '.join(each) for each in missing)}")
    if missing and not given.dry_run:
        with LocalExecutor(given.jobs).pool(given.jobs) as pool:
            waiting = [pool.submit(measure, *each, given.out.parent / "runs", given.data_dir) for each in missing]
            for future in as_completed(waiting):
                new = future.result()
                rows += [{**row, **where, "threads": 1} for row in new]
                save(file, rows)
                print(f"{new[0]['setting']} {new[0]['method']}: {new[0]['seconds']:.0f} seconds", flush=True)
    if rows:
        (given.out / "README.md").write_text(page(load(file)), encoding="utf-8")
        print(f"written to {given.out / 'README.md'}")


if __name__ == "__main__":
    main()
