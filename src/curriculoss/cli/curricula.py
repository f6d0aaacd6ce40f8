"""`curriculoss losses` and `curriculoss weight`: what there is, and whether it will learn."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor

from curriculoss import initial
from curriculoss.cli.console import UsageError, add, app, new_console, new_table, numbers, print_json
from curriculoss.curricula import registry
from curriculoss.curricula.base import Curriculum
from curriculoss.curricula.families import CE
from curriculoss.decompose import Decomposition, decompose

SUFFIXES = (".png", ".svg", ".pdf")
MOST_CLASSES = 10_000_000
UNBOUNDED_BELOW = "unbounded below: needs weight decay or early stopping"


@app.command()
def losses(as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False) -> None:
    """List every loss: formula, weight, constraints, and what is known about its robustness.

    \b
    curriculoss losses
    curriculoss losses --json | jq '.[] | select(.symmetric) | .name'

    p is the probability of the labelled class. A loss is robust while no wrong label is more than "noise ratio" times
    as frequent as the right one. A loss that is unbounded below drives logits to infinity unless weight decay or early
    stopping holds them. All facts are for the default hyperparameters.
    """
    rows = [_facts(names) for names in registry.synonyms().values()]
    if as_json:
        print_json(rows)
        return
    standard = new_table("name", "loss l(p) and weight w(p)", "defaults", "facts")
    second = new_table("name", "loss L and second term R", "defaults", "facts")
    for row in rows:
        name, defaults = "\n".join(row["names"]), ", ".join(f"{k}={v}" for k, v in row["hyperparameters"].items())
        if "weight" in row:
            known = "bounded" if row["bounded"] else "unbounded", "symmetric" if row["symmetric"] else "not symmetric"
            ratio, peak = row["max_noise_ratio"], {k: float(v) for k, v in row["peak"].items()}
            facts = ", ".join(known), f"noise ratio {ratio:.3g}", "peak {weight:.3g} at {margin:.3g}".format(**peak)
            both = f"l = {row['loss']}\nw = {row['weight']}"
            add(standard, name, both, f"{defaults}\n{row['constraints']}", "\n".join(facts))
        else:
            both = f"L = {row['loss']}\nR = {row['regularizer']}"
            below = "" if row["bounded_below"] else UNBOUNDED_BELOW
            add(second, name, both, f"{defaults}\n{row['constraints']}", f"first term {row['primary']}\n{below}")
    for title, table in (("Standard form", standard), ("With a second term", second)):
        if table.row_count:
            new_console().print(f"\n[bold]{title}[/bold]", table, sep="\n", highlight=False)


@app.command()
def weight(
    name: Annotated[str, typer.Argument(help="A loss by name; `curriculoss losses` lists them.")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="NAME=NUMBER", help="A hyperparameter; repeatable.")
    ] = None,
    num_classes: Annotated[int, typer.Option("--num-classes", "-k", help="Classes of the task.")] = 100,
    fix: Annotated[str | None, typer.Option(help=f"Adapt it to the classes: {', '.join(initial.METHODS)}.")] = None,
    tau: Annotated[
        float | None,
        typer.Option(help=f"For scale and shift: samples start like margin -tau; {initial.TAU} unless given."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help=f"Draw it: {', '.join(SUFFIXES)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what weight a loss gives to samples before training, and whether it will underfit.

    \b
    curriculoss weight mae
    curriculoss weight gce -p q=0.3 --num-classes 1000
    curriculoss weight agce -p a=1.6 -p q=2 --fix scale --tau 2 --out agce.svg

    Margins are simulated from i.i.d. standard normal logits, which is where training starts with the usual
    initialisations. Weights are relative to the largest one (1), as `RobustLoss` trains by default.
    """
    if out is not None:
        out = out.expanduser()
        _check_out(out)
    if not 2 <= num_classes <= MOST_CLASSES:
        raise UsageError(f"expected 2 <= --num-classes <= {MOST_CLASSES:,}, got {num_classes}")
    given = numbers(param or [])
    try:
        original = registry.get(name, **given)
        loss, note = (original, "") if fix is None else _fixed(original, fix, tau, num_classes)
        if fix is None and tau is not None:
            raise ValueError("--tau belongs to a fix: add --fix scale or --fix shift")
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    standard = isinstance(loss, Curriculum)
    answer = _standard(loss, num_classes) if standard else _second_term(loss, num_classes, out is not None)
    if out is not None:
        _draw(out, original, loss, num_classes, answer)
    if as_json:
        asked = {"loss": name, "hyperparameters": given, "fix": fix, "tau": tau, "as": _label(loss)}
        print_json({**asked, **answer.facts(num_classes), "note": note, "out": out and str(out)})
        return
    if note:
        print(f"Note: {note}", file=sys.stderr)
    _print(_label(loss), num_classes, answer)
    if out is not None:
        print(f"Drawn: {out}")


@dataclass(frozen=True)
class _Answer:
    verdict: initial.Verdict
    margins: Tensor
    weights: Tensor  # of those margins
    spread: Decomposition | None = None  # of a loss with a second term, over margins beyond the initial ones

    def facts(self, num_classes: int) -> dict[str, Any]:
        return {
            "num_classes": num_classes,
            "samples": len(self.margins),
            "initial_margin": {"mean": float(self.margins.mean()), "std": float(self.margins.std())},
            "mean_initial_weight": self.verdict.mean_weight,
            "share_of_ce": self.verdict.share_of_ce,
            "underfitting": self.verdict.level,
            "sentence": self.verdict.sentence,
        }


def _standard(curriculum: Curriculum, num_classes: int) -> _Answer:
    margins = _simulate(num_classes)
    weights = curriculum.weight(margins.double()) / curriculum.peak.weight
    return _Answer(initial.underfitting(curriculum, initial_margins=margins), margins, weights)


def _second_term(loss: Any, num_classes: int, drawn: bool) -> _Answer:
    """Measured, since it is no function of the margin: over initial logits, and over others that favour the label."""
    generator = torch.Generator().manual_seed(0)
    count = max(4, min(1000, initial.CHUNK // num_classes))
    logits = torch.randn(count, num_classes, generator=generator)
    target = torch.randint(num_classes, (count,), generator=generator)
    company, unit = target[:32], float(loss.unit_weight)

    def in_company(logits: Tensor, target: Tensor) -> Tensor:
        """Peer loss needs other samples to draw labels from."""
        others = logits.new_zeros(len(company), num_classes)
        losses: Tensor = loss.per_sample(torch.cat([logits, others]), torch.cat([target, company]))
        return losses[: len(target)] / unit

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        first = decompose(in_company, logits, target)
        logits[range(count), target] += torch.linspace(-3, 5 + math.log(num_classes), count)
        spread = decompose(in_company, logits, target) if drawn else None
    mean, cross_entropy = float(first.weight.mean()), float(CE().weight(first.margin).mean())
    share = mean / cross_entropy
    sentence = (
        f"Samples start with {initial.percent(share)} of the weight that CE gives them. Whether it underfits, that "
        "does not tell: the rule is for losses of the standard form, and a second term acts during training."
    )
    if not loss.bounded_below:
        sentence += f" It is {UNBOUNDED_BELOW}."
    return _Answer(initial.Verdict("unknown", mean, share, sentence), first.margin, first.weight, spread)


def _simulate(num_classes: int) -> Tensor:
    """What `simulate_initial_margins` gives at once, in pieces that a progress bar can count."""
    count, piece = initial.affordable_samples(num_classes), max(1, initial.CHUNK // num_classes)
    generator = torch.Generator().manual_seed(0)
    sizes = [min(piece, count - done) for done in range(0, count, piece)]
    console = Console(stderr=True)
    quick = len(sizes) < 8 or not console.is_terminal
    shown = track(sizes, "simulating", console=console, transient=True, disable=quick)
    return torch.cat([initial.simulate_initial_margins(num_classes, size, generator=generator) for size in shown])


def _print(label: str, num_classes: int, answer: _Answer) -> None:
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    at = answer.margins.double().quantile(torch.tensor(shares, dtype=torch.float64))
    order = answer.margins.argsort()
    nearest = order[(torch.tensor(shares) * (len(order) - 1)).round().long()]
    mean, of_ce = answer.verdict.mean_weight, float(CE().weight(answer.margins.double()).mean())
    table = new_table("", *(f"{share:.0%}" for share in shares), "mean", justify="right")
    table.add_row("initial margin", *(f"{x:.2f}" for x in at.tolist()), f"{float(answer.margins.mean()):.2f}")
    table.add_row("weight", *(f"{x:#.2g}" for x in answer.weights[nearest].tolist()), f"{mean:#.2g}")
    table.add_row("CE's weight", *(f"{x:#.2g}" for x in CE().weight(at).tolist()), f"{of_ce:#.2g}")
    title = f"{label} with {num_classes:,} classes"
    new_console().print(title, table, answer.verdict.sentence, sep="\n\n", markup=False, highlight=False)


def _draw(out: Path, original: Any, loss: Any, num_classes: int, answer: _Answer) -> None:
    try:
        from curriculoss import figures
    except ModuleNotFoundError as missing:
        sys.exit(f"Error: figures need {str(missing.name).partition('.')[0]}: pip install 'curriculoss[cli]'")
    if answer.spread is not None:
        figure = figures.empirical_weight(answer.spread, initial_margins=answer.margins, title=_label(loss))
    else:
        curves = {_label(x): x for x in (loss, original, CE())}
        figure = figures.weight_over_initial_margins(curves, num_classes, initial_margins=answer.margins)
    try:
        figure.savefig(out)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None


def _check_out(out: Path) -> None:
    """Before any work, so that nobody waits for a figure that cannot be written."""
    if out.suffix.lower() not in SUFFIXES:
        raise UsageError(f"expected --out to end in {', '.join(SUFFIXES)}, got {str(out)!r}")
    if not out.parent.is_dir():
        raise UsageError(f"cannot write {out}: there is no folder {str(out.parent)!r}")


def _fixed(loss: Any, method: str, tau: float | None, num_classes: int) -> tuple[Curriculum, str]:
    """The loss, fixed, and what `fix` warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fixed = initial.fix(loss, method, tau=tau, num_classes=num_classes)
    return fixed, "; ".join(str(warning.message) for warning in caught)


def _facts(names: list[str]) -> dict[str, Any]:
    loss = registry.get(names[0])
    parameters = inspect.signature(registry.factory(names[0])).parameters.values()
    plain = (int, float, type(None))
    shown = {x.name: x.default if isinstance(x.default, plain) else str(x.default) for x in parameters}
    facts = {"name": names[0], "names": names, "hyperparameters": shown, "constraints": loss.constraints}
    facts["loss"] = loss.formula
    if not isinstance(loss, Curriculum):
        second = {"regularizer": loss.regularizer, "bounded_below": loss.bounded_below}
        return {**facts, "primary": repr(loss.primary), **second}
    peak = loss.peak
    return {
        **facts,
        "weight": loss.weight_formula,
        "bounded": loss.bounded,
        "symmetric": loss.symmetric,
        "max_noise_ratio": loss.max_noise_ratio,
        # JSON has no infinity.
        "peak": {"margin": peak.margin if math.isfinite(peak.margin) else str(peak.margin), "weight": peak.weight},
    }


def _label(loss: Any) -> str:
    return initial.describe(loss) if isinstance(loss, Curriculum) else repr(loss)
