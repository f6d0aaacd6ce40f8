"""The paper's two tables of formulae, made from the code: every registered loss, standard-form or not."""

from collections.abc import Callable, Mapping, Sequence

from curriculoss.losses import registry
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.inference import signed
from curriculoss.paper.render import Column, Line, TableContent

NOTATION = "Formulae are the code's, on the scale of the loss's own paper. p[i] is the probability of class i, "
CODE = ("loss", "weight", "original", "primary", "regularizer", "constraints", "defaults")
FACTS = "Facts hold for the default hyperparameters"


def _named() -> dict[str, str]:
    """The registered name of each loss, by what the table calls it: all of its names (`MAE/RCE`)."""
    return {"/".join(names).upper(): names[0] for names in registry.synonyms().values()}


def losses() -> TableContent:
    """Standard-form losses: formula, weight, constraints, facts."""
    rows = [
        {
            "name": name,
            "loss": loss.formula,
            "weight": loss.weight_formula,
            "constraints": loss.constraints,
            "defaults": _defaults(key),
            "bounded": _yes(loss.bounded),
            "symmetric": _yes(loss.symmetric),
            "noise ratio": f"{loss.max_noise_ratio:.3g}",
            "peak": f"{loss.peak.weight:.3g}",
            "at margin": signed(loss.peak.margin, ".3g").replace("inf", "∞"),
        }
        for name, key in _named().items()
        if (loss := registry.get(key).curriculum) is not None
    ]
    notes = (
        f"{NOTATION}p that of the label, which is σ(Δ).",
        f"{FACTS}. A loss is robust if no wrong label is more than (noise ratio) times as frequent as the right one. "
        "The peak is the largest weight, reached at that margin.",
        "The paper swaps the formulae of AUL and AGCE, and AGCE's constant lacks a power; its weights are right.",
    )
    return _table("table:losses", rows, notes)


def regularizers() -> TableContent:
    """Losses with a second term: as published, and split into primary loss and regulariser."""
    rows = [
        {
            "name": name,
            "original": loss.formula,
            "primary": loss.primary.formula,
            "regularizer": loss.regularizer,
            "constraints": loss.constraints,
            "defaults": _defaults(key),
            "bounded below": _yes(loss.bounded_below),
        }
        for name, key in _named().items()
        if (loss := registry.get(key)).curriculum is None
    ]
    notes = (
        f"{NOTATION}y the label, K the number of classes, prior the labels' frequencies, peer another sample's label.",
        f"{FACTS}. A sum has the primary of its last term and the regularisers of all.",
        "The paper's MSE is twice ours at alpha = 0.5, up to a constant.",
        "NCE's gradient is that of γ (primary + ε regularizer) with γ = −1/sum(log p[i]) and ε = −γ K log p[y] held "
        "fixed.",
    )
    return _table("table:regularizers", rows, notes)


def _defaults(name: str) -> str:
    return ", ".join(f"{key}={value}" for key, value in registry.defaults(name).items() if value is not None)


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _table(name: str, rows: Sequence[Mapping[str, str]], notes: tuple[str, ...]) -> TableContent:
    shown = [key for key in rows[0] if key != "name"]
    columns = tuple(Column((key,), code=key in CODE) for key in shown)
    lines = tuple(Line(row["name"], tuple((row[key],) for key in shown)) for row in rows)
    return TableContent(ARTEFACTS[name], columns, lines, notes, tuple(rows), stub="name")


TABLES: dict[str, Callable[[], TableContent]] = {"table:losses": losses, "table:regularizers": regularizers}
