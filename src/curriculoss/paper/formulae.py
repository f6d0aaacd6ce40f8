"""The paper's two tables of formulae, made from the code: every registered loss, of the standard form or not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from curriculoss.curricula import Curriculum, registry
from curriculoss.paper import artefacts
from curriculoss.paper.render import Column, Line, Table
from curriculoss.regularized import Regularized

NOTATION = "As the code has it, on the scale of the loss's own paper, with p[i] the probability of class i, "
CODE = ("loss", "weight", "original", "primary", "regularizer", "constraints", "defaults")
FACTS = "Facts are for the default hyperparameters"


def named() -> dict[str, Callable[..., Any]]:
    """What makes every registered loss, by its names: `MAE/RCE` has two."""
    return {"/".join(names).upper(): factory for factory, names in registry.synonyms().items()}


def losses() -> Table:
    """Losses of the standard form: formula, weight, constraints, facts."""
    rows = [
        {
            "name": name,
            "loss": loss.formula,
            "weight": loss.weight_formula,
            "constraints": loss.constraints,
            "defaults": _defaults(factory),
            "bounded": _yes(loss.bounded),
            "symmetric": _yes(loss.symmetric),
            "noise ratio": f"{loss.max_noise_ratio:.3g}",
            "peak": f"{loss.peak.weight:.3g}",
            "at margin": f"{loss.peak.margin:.3g}".replace("-", "−").replace("inf", "∞"),
        }
        for name, factory in named().items()
        if isinstance(loss := factory(), Curriculum)
    ]
    notes = (
        f"{NOTATION}p that of the label, σ(Δ).",
        f"{FACTS}. A loss is robust while no wrong label is more than the noise ratio times as frequent as the right "
        "one. Its weight is largest, the peak, at that margin.",
        "In the paper's table, AUL and AGCE have each other's formula, and AGCE's constant lacks a power. Its weights "
        "are right.",
    )
    return _table(artefacts.get("table:losses"), rows, notes)


def regularizers() -> Table:
    """Losses with a second term: as they were published, their primary loss and their regulariser."""
    rows = [
        {
            "name": name,
            "original": loss.formula,
            "primary": loss.primary.formula,
            "regularizer": loss.regularizer,
            "constraints": loss.constraints,
            "defaults": _defaults(factory),
            "bounded below": _yes(loss.bounded_below),
        }
        for name, factory in named().items()
        if isinstance(loss := factory(), Regularized)
    ]
    notes = (
        f"{NOTATION}y the label, K classes, prior the frequencies of the labels and peer a random sample's label.",
        f"{FACTS}. Sums have the primary of their last term, and the regularisers of all.",
        "The paper's MSE is twice ours at alpha = 0.5, but for a constant.",
        "NCE's gradient is that of γ (primary + ε regularizer), where γ = −1/sum(log p[i]) and ε = −γ K log p[y] are "
        "held fixed.",
    )
    return _table(artefacts.get("table:regularizers"), rows, notes)


def _defaults(factory: Callable[..., Any]) -> str:
    parameters = inspect.signature(factory).parameters.values()
    return ", ".join(f"{each.name}={each.default}" for each in parameters if each.default is not None)


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _table(artefact: artefacts.Artefact, rows: Sequence[Mapping[str, str]], notes: tuple[str, ...]) -> Table:
    shown = [name for name in rows[0] if name != "name"]
    return Table(
        artefact.name,
        artefact.title,
        artefact.source,
        tuple(Column(name, code=name in CODE) for name in shown),
        tuple(Line(row["name"], tuple((row[name],) for name in shown)) for row in rows),
        notes,
        tuple(rows),
        stub="name",
    )


TABLES: dict[str, Callable[[], Table]] = {"table:losses": losses, "table:regularizers": regularizers}
