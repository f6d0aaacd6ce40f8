"""`curriculoss weight`: the weight of samples before training, and whether a loss will underfit."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from curriculoss import initial
from curriculoss._files import write
from curriculoss._text import percent
from curriculoss.cli.console import app, new_console, new_table, numbers, print_json
from curriculoss.cli.options import AsJson, Fix, Param, Tau, expect_writable
from curriculoss.cli.progress import progress_bar
from curriculoss.decomposition import Decomposition, decompose
from curriculoss.errors import InvalidValueError
from curriculoss.fixing import Underfitting, plan_fix, underfitting
from curriculoss.losses import registry
from curriculoss.losses.base import Curriculum
from curriculoss.losses.families import CE

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
MOST_CLASSES = 10_000_000
SHOWN_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@app.command()
def weight(
    name: Annotated[str, typer.Argument(help="A loss by name; `curriculoss losses` lists them.")],
    *,
    param: Param = None,
    num_classes: Annotated[int, typer.Option("--num-classes", "-k", help="Number of classes.")] = 100,
    fix: Fix = None,
    tau: Tau = None,
    out: Annotated[Path | None, typer.Option(help=f"Draw it to a file: {', '.join(FIGURE_SUFFIXES)}.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the weight that a loss gives to samples before training, and whether it will underfit.

    \b
    curriculoss weight mae
    curriculoss weight gce -p q=0.3 --num-classes 1000
    curriculoss weight agce -p a=1.6 -p q=2 --fix scale --tau 2 --out agce.svg

    Margins are simulated from i.i.d. standard normal logits, which is where training starts with the usual
    initialisations. Weights are relative to the largest one (1), as `RobustLoss` trains by default.
    """
    if out is not None and out.suffix.lower() not in FIGURE_SUFFIXES:
        raise InvalidValueError(f"expected --out to end in {', '.join(FIGURE_SUFFIXES)}, got {str(out)!r}")
    out = None if out is None else expect_writable(out)
    if not 2 <= num_classes <= MOST_CLASSES:
        raise InvalidValueError(f"expected 2 <= --num-classes <= {MOST_CLASSES:,}, got {num_classes}")
    if fix is None and tau is not None:
        raise InvalidValueError("--tau belongs to a fix: add --fix scale or --fix shift")
    if name.lower() == "auto":
        raise InvalidValueError("auto sets its weight while it trains; give a loss that `curriculoss losses` lists")
    given = numbers(param or [])
    original = registry.get(name, **given)
    plan = None if fix is None else plan_fix(original, fix, tau=tau, num_classes=num_classes)
    loss, note = (original, "") if plan is None else (plan.curriculum, plan.reason)
    with progress_bar("simulating", quiet=as_json):
        answer = _standard(loss, num_classes) if loss.curriculum else _second_term(loss, num_classes, out is not None)
        if out is not None:
            _draw(out, original, loss, num_classes, answer)
    if as_json:
        asked = {"loss": name, "hyperparameters": given, "fix": fix, "tau": tau, "as": loss.label}
        print_json({**asked, **answer.facts(num_classes), "note": note, "out": out and str(out)})
        return
    if note:
        print(f"Note: {note}", file=sys.stderr)
    _print(loss.label, num_classes, answer)
    if out is not None:
        print(f"figure: {out}")


@dataclass(frozen=True)
class _Answer:
    underfitting: Underfitting
    margins: Tensor
    weights: Tensor  # one per margin
    spread: Decomposition | None = None  # for a loss with a second term, over margins beyond the initial ones

    def facts(self, num_classes: int) -> dict[str, Any]:
        return {
            "num_classes": num_classes,
            "samples": len(self.margins),
            "initial_margin": {"mean": float(self.margins.mean()), "std": float(self.margins.std())},
            "mean_initial_weight": self.underfitting.mean_weight,
            "share_of_ce": self.underfitting.share_of_ce,
            "underfitting": self.underfitting.level,
            "sentence": self.underfitting.sentence,
        }


def _standard(curriculum: Curriculum, num_classes: int) -> _Answer:
    margins = initial.affordable_margins(num_classes)
    weights = curriculum.weight(margins.double()) / curriculum.peak.weight
    return _Answer(underfitting(curriculum, initial_margins=margins), margins, weights)


def _second_term(loss: Any, num_classes: int, drawn: bool) -> _Answer:
    """Measure the weight, here not a function of the margin, at initial logits and at some that favour the label."""
    generator = torch.Generator().manual_seed(0)
    count = max(4, min(1000, initial.SCORES_AT_ONCE // num_classes))
    logits = torch.randn(count, num_classes, generator=generator)
    target = torch.randint(num_classes, (count,), generator=generator)
    company = target[:32]

    def in_company(logits: Tensor, target: Tensor) -> Tensor:
        """Peer loss draws labels from other samples, so it needs some."""
        others = logits.new_zeros(len(company), num_classes)
        losses: Tensor = loss(torch.cat([logits, others]), torch.cat([target, company]), reduction="none")
        return losses[: len(target)]

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        first = decompose(in_company, logits, target)
        logits[range(count), target] += torch.linspace(-3, 5 + math.log(num_classes), count)
        spread = decompose(in_company, logits, target) if drawn else None
    mean, cross_entropy = float(first.weight.mean()), float(CE().weight(first.margin).mean())
    share = mean / cross_entropy
    sentence = (
        f"Samples start with {percent(share)} of the weight that CE gives them. That does not tell whether it "
        "underfits: the rule is for losses of the standard form, and a second term acts during training."
    )
    if not loss.bounded_below:
        sentence += " It is unbounded below: needs weight decay or early stopping."
    return _Answer(Underfitting("unknown", mean, share, sentence), first.margin, first.weight, spread)


def _print(label: str, num_classes: int, answer: _Answer) -> None:
    at = answer.margins.double().quantile(torch.tensor(SHOWN_QUANTILES, dtype=torch.float64))
    order = answer.margins.argsort()
    nearest = order[(torch.tensor(SHOWN_QUANTILES) * (len(order) - 1)).round().long()]
    mean, of_ce = answer.underfitting.mean_weight, float(CE().weight(answer.margins.double()).mean())
    rows = (
        ("initial margin", *(f"{x:.2f}" for x in (*at.tolist(), float(answer.margins.mean())))),
        ("weight", *(f"{x:#.2g}" for x in (*answer.weights[nearest].tolist(), mean))),
        ("CE's weight", *(f"{x:#.2g}" for x in (*CE().weight(at).tolist(), of_ce))),
    )
    table = new_table(("", *(f"{share:.0%}" for share in SHOWN_QUANTILES), "mean"), rows, justify="right")
    title = f"{label} with {num_classes:,} classes"
    new_console().print(title, table, answer.underfitting.sentence, sep="\n\n", markup=False, highlight=False)


def _draw(out: Path, original: Any, loss: Any, num_classes: int, answer: _Answer) -> None:
    from curriculoss import figures

    if answer.spread is not None:
        figure = figures.empirical_weight(answer.spread, initial_margins=answer.margins, title=loss.label)
    else:
        curves = {x.label: x for x in (loss, original, CE())}
        figure = figures.weight_over_initial_margins(curves, num_classes, initial_margins=answer.margins)
    write(out, lambda file: figure.savefig(file, format=out.suffix[1:].lower()))
