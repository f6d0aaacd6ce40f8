"""`curriculoss losses`: every loss with its formula and what is known about it."""

import math
from typing import Any

from curriculoss.cli.console import app, new_table, print_json, show
from curriculoss.cli.options import AsJson
from curriculoss.losses import registry


@app.command()
def losses(as_json: AsJson = False) -> None:
    """List every loss: formula, weight, constraints, and what is known about its robustness.

    \b
    curriculoss losses
    curriculoss losses --json | jq '.[] | select(.symmetric) | .name'

    p is the probability of the labelled class. A loss is robust while no wrong label is more than "noise ratio" times
    as frequent as the right one. A loss that is unbounded below drives logits to infinity unless weight decay or early
    stopping prevents it. All facts are for the default hyperparameters.
    """
    rows = [_facts(names) for names in registry.synonyms().values()]
    if as_json:
        print_json(rows)
        return
    standard: list[tuple[str, ...]] = []
    second: list[tuple[str, ...]] = []
    for row in rows:
        defaults = ", ".join(f"{key}={value}" for key, value in row["hyperparameters"].items())
        if "weight" in row:
            kind, formulas = standard, f"l = {row['loss']}\nw = {row['weight']}"
            bounds = "bounded" if row["bounded"] else "unbounded", "symmetric" if row["symmetric"] else "not symmetric"
            peak = "peak {weight:.3g} at {margin:.3g}".format(**{k: float(v) for k, v in row["peak"].items()})
            facts = f"{', '.join(bounds)}\nnoise ratio {row['max_noise_ratio']:.3g}\n{peak}"
        else:
            kind, formulas = second, f"L = {row['loss']}\nR = {row['regularizer']}"
            unbounded = "unbounded below: needs weight decay or early stopping"
            facts = f"first term {row['primary']}\n{'' if row['bounded_below'] else unbounded}"
        kind.append(("\n".join(row["names"]), formulas, f"{defaults}\n{row['constraints']}", facts))
    for title, formulas, kind in (
        ("Standard form", "loss l(p) and weight w(p)", standard),
        ("With a second term", "loss L and second term R", second),
    ):
        show("", title, new_table(("name", formulas, "defaults", "facts"), kind, apart=True))


def _facts(names: list[str]) -> dict[str, Any]:
    loss, defaults = registry.get(names[0]), registry.defaults(names[0])
    plain = {key: x if isinstance(x, (int, float, type(None))) else str(x) for key, x in defaults.items()}
    facts = {"name": names[0], "names": names, "hyperparameters": plain, "constraints": loss.constraints,
             "loss": loss.formula}  # fmt: skip
    if (curriculum := loss.curriculum) is None:
        second = {"regularizer": loss.regularizer, "bounded_below": loss.bounded_below}
        return {**facts, "primary": repr(loss.primary), **second}
    margin, weight = curriculum.peak
    return {
        **facts,
        "weight": curriculum.weight_formula,
        "bounded": curriculum.bounded,
        "symmetric": curriculum.symmetric,
        "max_noise_ratio": curriculum.max_noise_ratio,
        "peak": {"margin": margin if math.isfinite(margin) else str(margin), "weight": weight},  # JSON has no infinity
    }
