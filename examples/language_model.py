"""Fine-tuning a small causal language model with 30 % of the target tokens replaced, by five losses.

    python examples/language_model.py [--out results/language-model] [--jobs 2] [--page] [--quick]

The model is pre-trained on the sources of Python's standard library, then fine-tuned on the text of `help()` (module
pydoc_data.topics), so every machine has the data. Records are kept as runs finish; an interrupted command continues
where it stopped. Writes records.csv, curves.png and README.md; --page makes the last two from records.csv without
training. Needs `curriculoss[huggingface,train]`.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import statistics
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from curriculoss import CE, GCE, MAE, AutoLoss, RobustLoss, fix
from curriculoss._files import write_table, write_text
from curriculoss.figures import COLOURS, LEGEND
from curriculoss.losses.criterion import Criterion

LOSSES = ("CE", "DFT (= MAE)", "GCE(0.5)", "scaled MAE", "AutoLoss")
LEFT_OUT = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings", "distutils",
    "turtledemo", "tkinter", "ensurepip", "__pycache__",
}  # fmt: skip
DEFAULT_OUT = Path(__file__).parent.parent / "results" / "language-model"
BEST = {"accuracy": max, "perplexity": min}  # what is measured, and which of two values is the better
PAGE = """\
# Language model

{title}

Made by `python examples/language_model.py` from [records.csv](records.csv). {status}

A causal transformer (width {width}, {layers} layers, {vocabulary:,} BPE tokens, tied embeddings) is pre-trained with CE
for {pretraining_steps:,} steps on the sources of Python's standard library, then fine-tuned for {steps} steps (three
epochs, AdamW) on the paragraphs of `help()`. In fine-tuning, {noise_rate:.0%} of the target tokens are replaced by
random other ones, the same in every epoch; inputs, validation text and test text are clean. All losses start from the
same pre-trained model; seeds differ in noise and order. DFT, the loss −sg(p)·log p, has exactly the gradient of MAE,
unnormalised; scaled MAE is `fix(MAE(), "scale", num_classes={vocabulary})`.

Tables show the end of training: mean ± standard deviation over n seeds. *Before*: the pre-trained model. The learning
rate is one of {rates} for every loss, chosen on clean validation text.

![accuracy and perplexity over steps](curves.png)

Lines are means over seeds, bands reach from the lowest to the highest seed.
"""


@dataclass(frozen=True)
class Settings:
    """All that a record depends on, apart from the loss, the learning rate and the seed."""

    vocabulary: int = 8192
    width: int = 128
    layers: int = 2
    length: int = 64  # tokens of a sequence
    batch: int = 16  # sequences of a step
    pretraining_steps: int = 1200
    pretraining_rate: float = 3e-3
    steps: int = 240  # of fine-tuning, three epochs
    every: int = 60  # steps between two evaluations
    noise_rate: float = 0.3
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3)
    seeds: int = 3


QUICK = Settings(width=16, layers=1, length=32, batch=4, pretraining_steps=10, steps=4, every=2, rates=(1e-3,), seeds=1)


Rows = list[dict[str, Any]]


class Run(NamedTuple):
    """One fine-tuning."""

    loss: str
    rate: float
    seed: int


class Texts(NamedTuple):
    """Token ids of all texts, one after another."""

    pretraining: Tensor
    training: Tensor
    validation: Tensor
    test: Tensor


class LanguageModel(nn.Module):
    """A causal transformer whose last layer is its embedding."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        self.embedding = nn.Embedding(settings.vocabulary, width)
        self.position = nn.Parameter(torch.randn(settings.length, width) * 0.02)
        nn.init.normal_(self.embedding.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 32), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, settings.layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(settings.length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (tokens, vocabulary) of sequences (N, length)."""
        hidden = self.layers(self.embedding(tokens) + self.position, mask=self.mask, is_causal=True)
        return F.linear(hidden.flatten(0, 1), self.embedding.weight)


def source_files() -> list[str]:
    """The sources of the standard library, without tests and what some distributions leave out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts)
    return [str(x) for x in files if not LEFT_OUT & {*x.relative_to(root).parts} and x.parts[-2][:7] != "config-"]


def paragraphs() -> list[str]:
    """The paragraphs of `help()`, each once: topics quote one another."""
    each = (paragraph.rstrip() for name in sorted(topics) for paragraph in topics[name].split("\n\n"))
    return list(dict.fromkeys(filter(None, each)))


def make_texts(settings: Settings) -> Texts:
    """Train a tokenizer on the sources and encode all; of ten groups of paragraphs one validates and one tests."""
    tokenizer = ByteLevelBPETokenizer()
    files = source_files()
    tokenizer.train(files, vocab_size=settings.vocabulary, show_progress=False)
    if tokenizer.get_vocab_size() != settings.vocabulary:
        raise SystemExit(f"expected {settings.vocabulary} tokens, got {tokenizer.get_vocab_size()}")
    sources = (Path(file).read_text(encoding="utf-8", errors="replace") for file in files)
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    for index, paragraph in enumerate(paragraphs()):
        parts[max(0, index // 10 % 10 - 7)].append(paragraph)
    encoded = [torch.tensor(tokenizer.encode("\n\n".join(part)).ids) for part in parts]
    return Texts(torch.cat([torch.tensor(x.ids) for x in tokenizer.encode_batch(list(sources))]).long(), *encoded)


def sequences(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both (N, length)."""
    count = (len(tokens) - 1) // length
    inputs, target = tokens[: count * length], tokens[1 : count * length + 1]
    return inputs.reshape(count, length), target.reshape(count, length)


def batches(inputs: Tensor, target: Tensor, size: int, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of so many steps, each epoch in a new order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(len(inputs), generator=generator)
        chosen, order = order[:size], order[size:]
        yield inputs[chosen], target[chosen]


def train(
    model: LanguageModel, criterion: Criterion, data: Iterator[tuple[Tensor, Tensor]], steps: int, rate: float
) -> Iterator[int]:
    """AdamW with a short warm-up and a linear decay; the number of steps done, after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / (steps - warm))
    )
    for step, (inputs, target) in enumerate(data, 1):
        optimizer.zero_grad()
        criterion(model(inputs), target.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield step


def make_criterion(loss: str, num_classes: int) -> Criterion:
    """The loss of that name. DFT is −sg(p)·log p, whose gradient is that of MAE on its textbook scale."""
    if loss == "AutoLoss":
        return AutoLoss(num_classes)
    if loss == "DFT (= MAE)":
        return RobustLoss(MAE(), normalize=False)
    scaled = fix(MAE(), "scale", num_classes=num_classes)
    return RobustLoss({"CE": CE(), "GCE(0.5)": GCE(0.5), "scaled MAE": scaled}[loss])


@torch.inference_mode()
def evaluate(model: LanguageModel, tokens: Tensor, settings: Settings) -> tuple[float, float]:
    """Perplexity, and accuracy in percent."""
    loss, right, count = 0.0, 0, 0
    for inputs, target in zip(*(x.split(settings.batch) for x in sequences(tokens, settings.length)), strict=True):
        logits, labels = model(inputs), target.flatten()
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        right += int((logits.argmax(1) == labels).sum())
        count += len(labels)
    return math.exp(min(loss / count, 700.0)), 100 * right / count  # exp of more overflows


def replaced(target: Tensor, settings: Settings, seed: int) -> Tensor:
    """The target with a share of its tokens replaced by other ones, the same in every epoch."""
    generator = torch.Generator().manual_seed(1000 + seed)
    wrong = torch.rand(target.shape, generator=generator) < settings.noise_rate
    ahead = torch.randint(1, settings.vocabulary, target.shape, generator=generator)
    return torch.where(wrong, (target + ahead) % settings.vocabulary, target)


def fine_tune(run: Run, folder: Path, settings: Settings) -> Rows:
    """The records of a run: one per evaluation."""
    torch.set_num_threads(1)
    texts, weights = torch.load(folder / "pretrained.pt", weights_only=True)
    model, texts = LanguageModel(settings), Texts(*texts)
    model.load_state_dict(weights)
    inputs, target = sequences(texts.training, settings.length)
    data = batches(inputs, replaced(target, settings, run.seed), settings.batch, settings.steps, run.seed)
    criterion = make_criterion(run.loss, settings.vocabulary)

    def record(step: int) -> dict[str, Any]:
        found = run._asdict() | {"step": step}
        for part in ("validation", "test"):
            perplexity, accuracy = evaluate(model, getattr(texts, part), settings)
            found |= {f"{part}_perplexity": f"{perplexity:.6g}", f"{part}_accuracy": f"{accuracy:.4f}"}
        return found

    steps = train(model, criterion, data, settings.steps, run.rate)
    return [record(0), *(record(step) for step in steps if step % settings.every == 0 or step == settings.steps)]


def pretrain(folder: Path, settings: Settings, bar: Progress) -> None:
    """Keep texts and the pre-trained model in a file, unless it is there."""
    file = folder / "pretrained.pt"
    if file.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the same numbers on every machine, and two threads wait for each other on a busy one
    torch.manual_seed(0)
    task = bar.add_task("pre-training", total=settings.pretraining_steps)
    texts, model = make_texts(settings), LanguageModel(settings)
    data = batches(*sequences(texts.pretraining, settings.length), settings.batch, settings.pretraining_steps, 0)
    for step in train(model, RobustLoss(CE()), data, settings.pretraining_steps, settings.pretraining_rate):
        bar.update(task, completed=step)
    torch.save((tuple(texts), model.state_dict()), file.with_suffix(".part"))
    file.with_suffix(".part").replace(file)


def train_all(out: Path, settings: Settings, jobs: int) -> None:
    """Do every run whose last record is missing, seed after seed, and keep the records of each as it ends."""
    records, file = read(out / "records.csv"), out / "records.csv"
    done = {run_of(row) for row in records if int(row["step"]) == settings.steps}
    records = [row for row in records if run_of(row) in done]
    wanted = [Run(loss, rate, seed) for seed in range(settings.seeds) for rate in settings.rates for loss in LOSSES]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns) as bar, ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        if missing := [run for run in wanted if run not in done]:
            pretrain(out / "work", settings, bar)
        task = bar.add_task("fine-tuning", total=len(wanted), completed=len(wanted) - len(missing))
        for future in as_completed([pool.submit(fine_tune, run, out / "work", settings) for run in missing]):
            records += future.result()
            records.sort(key=lambda row: (LOSSES.index(row["loss"]), float(row["rate"]), int(row["seed"])))
            write_table(file, records)
            bar.advance(task)


def run_of(row: dict[str, Any]) -> Run:
    """The run that a record is of."""
    return Run(row["loss"], float(row["rate"]), int(row["seed"]))


def read(file: Path) -> Rows:
    """The records, none if there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def values(rows: Rows, run: tuple[str, float], name: str, step: int) -> list[float]:
    """A column of the records of a loss and a learning rate after so many steps, one value per seed."""
    return [float(row[name]) for row in rows if run_of(row)[:2] == run and int(row["step"]) == step]


def chosen(rows: Rows, loss: str, metric: str) -> float | None:
    """The learning rate with the best mean over seeds on clean validation text after the last step."""
    last = max(int(row["step"]) for row in rows)
    means = {
        rate: statistics.fmean(values(rows, (loss, rate), f"validation_{metric}", last))
        for rate in sorted({float(row["rate"]) for row in rows if row["loss"] == loss})
    }
    return BEST[metric](means, key=lambda rate: means[rate]) if means else None


def with_spread(found: list[float]) -> str:
    """Mean ± standard deviation."""
    digits = 2 if statistics.fmean(found) < 1000 else 0
    spread = f" ± {statistics.stdev(found):.{digits}f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.{digits}f}{spread}"


def table(rows: Rows, metric: str) -> Iterator[str]:
    """One row per loss, at the learning rate that is best by a metric."""
    last = max(int(row["step"]) for row in rows)
    yield "| loss | learning rate | test accuracy in % | test perplexity | n |"
    yield "| --- | --- | --- | --- | --- |"
    yield f"| before | / | {' | '.join(with_spread([float(rows[0][f'test_{name}'])]) for name in BEST)} | 1 |"
    for loss in LOSSES:
        if (rate := chosen(rows, loss, metric)) is not None:
            found = [values(rows, (loss, rate), f"test_{name}", last) for name in BEST]
            yield f"| {loss} | {rate:g} | {' | '.join(map(with_spread, found))} | {len(found[0])} |"


def grid(rows: Rows, metric: str) -> Iterator[str]:
    """One row per loss, one column per learning rate."""
    last, rates = max(int(row["step"]) for row in rows), sorted({float(row["rate"]) for row in rows})
    yield f"| loss | {' | '.join(f'{rate:g}' for rate in rates)} |"
    yield "| --- |" + " --- |" * len(rates)
    for loss in LOSSES:
        cells = (values(rows, (loss, rate), f"test_{metric}", last) for rate in rates)
        yield f"| {loss} | {' | '.join(with_spread(cell) if cell else 'not run' for cell in cells)} |"


def page(rows: Rows) -> str:
    """The page, from the records alone."""
    settings, done = Settings(), len({run_of(row) for row in rows})
    planned = len(LOSSES) * len(settings.rates) * settings.seeds
    status = f"All {planned} runs are done." if done == planned else f"**{done} of {planned} runs are done.**"
    rates = ", ".join(f"{rate:g}" for rate in settings.rates)
    title = (__doc__ or "").partition("\n")[0]
    lines = [PAGE.format(**(vars(settings) | {"title": title, "status": status, "rates": rates}))]
    for metric in BEST:
        lines += [f"## Learning rate with the best validation {metric}", "", *table(rows, metric), ""]
    for metric in BEST:
        lines += [f"## Test {metric} at every learning rate", "", *grid(rows, metric), ""]
    return "\n".join(lines)


def curves(rows: Rows) -> Figure:
    """Accuracy and perplexity over steps, each at the learning rate that validates best by it."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), BEST, strict=True):
        for loss, colour in zip(LOSSES, COLOURS, strict=False):
            if (rate := chosen(rows, loss, metric)) is None:
                continue
            steps = sorted({int(row["step"]) for row in rows})
            found = [values(rows, (loss, rate), f"test_{metric}", step) for step in steps]
            axes.plot(steps, [statistics.fmean(x) for x in found], color=colour, label=f"{loss}, {rate:g}")
            axes.fill_between(steps, [min(x) for x in found], [max(x) for x in found], color=colour, alpha=0.2, lw=0)
        axes.set(xlabel="steps of fine-tuning", title=f"clean test {metric}" + " in %" * (metric == "accuracy"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(title="loss, learning rate", **LEGEND)
        if metric == "perplexity":
            axes.set_yscale("log")
    return figure


def write_page(out: Path) -> None:
    """README.md and curves.png from records.csv."""
    if not (rows := read(out / "records.csv")):
        raise SystemExit(f"expected records in {out / 'records.csv'}, got none")
    write_text(out / "README.md", page(rows))
    curves(rows).savefig(out / "curves.png", dpi=150, metadata={"Software": None})
    print(f"written to {out / 'README.md'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the results (default: results/language-model)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="single-threaded processes (default: cores)")
    parser.add_argument("--page", action="store_true", help="train nothing: make page and figure from the records")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps, to see whether it runs")
    given = parser.parse_args()
    settings = QUICK if given.quick else Settings()
    out = given.out or (Path("language-model-quick") if given.quick else DEFAULT_OUT)
    if not given.page:
        train_all(out, settings, given.jobs)
    write_page(out)


if __name__ == "__main__":
    main()
