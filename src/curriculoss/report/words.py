"""What the numbers say, in words. Every word is chosen by a rule below; none is written for a particular run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from curriculoss.initial import percent
from curriculoss.report.records import Group, Mean, loss_key, rows, value
from curriculoss.training.store import Run

MEMORISED = 0.2  # share of the wrong labels that a network which memorises has learned
FALLEN = 5.0  # points of test accuracy lost since the best epoch, as happens to a network that begins to memorise
LEARNED = 0.8  # share of the right labels that a network which does not underfit has learned
CLOSE = (
    5.0  # points of test accuracy: who comes this close to the best of several learns slowly, rather than too little
)
GAP = 10.0  # points between training and test accuracy, where nobody knows which labels are wrong


class Judgement(Enum):
    """The verb in the singular and in the plural."""

    MEMORISES = ("memorises", "memorise")
    OVERFITS = ("overfits", "overfit")
    UNDERFITS = ("underfits", "underfit")
    LEARNING = ("is still learning", "are still learning")
    NEITHER = ("does neither", "do neither")
    UNKNOWN = ("has not finished an epoch", "have not finished an epoch")


BOTH = ({Judgement.MEMORISES, Judgement.UNDERFITS}, {Judgement.OVERFITS, Judgement.UNDERFITS})
RULES = (
    f"A loss memorises if in the last epoch the network predicts at least {percent(MEMORISED)} of the wrong labels, or "
    f"if test accuracy has fallen by {FALLEN:g} points or more since its best (as a median of three epochs). "
    f"Otherwise it underfits if it predicts fewer than {percent(LEARNED)} of the right ones, and is said to be still "
    f"learning if its test accuracy is all the same within {CLOSE:g} points of the best of several losses. Where "
    f"nobody knows which labels are wrong, all count as right, and a loss overfits if test accuracy has fallen "
    f"like that or training accuracy exceeds it by more than {GAP:g} points."
)


@dataclass(frozen=True)
class Facts:
    """Of a group, in its last epoch."""

    test: float | None  # percent
    train: float | None  # percent
    right: float | None  # share of the right labels that are predicted
    wrong: float | None  # share of the wrong labels that are predicted
    snr: float | None
    fallen: float  # points of test accuracy since the best epochs
    best: float | None  # percent


def facts(group: Group) -> Facts:
    rate, train = group.noise_rate, group.mean("train_accuracy")
    right, wrong = _share(group, "accuracy_clean"), _share(group, "accuracy_noisy")
    if right is None and train is not None:
        right = min(1.0, train / 100 / (1 - (rate or 0))) if (rate or 0) < 1 else None
    test = group.mean("test_accuracy")
    best = Mean.of(_best(run) for run in group.counted).mean
    fallen = 0.0 if best is None or test is None else max(0.0, best - test)
    return Facts(test, train, right, wrong, group.mean("snr"), fallen, best)


def _best(run: Run) -> float | None:
    """Test accuracy at its best: of medians of three epochs, as a single one may be luck."""
    known = [x for row in rows(run) if (x := value(row, "test_accuracy")) is not None]
    return max((median(known[i : i + 3]) for i in range(max(1, len(known) - 2))), default=None) if known else None


def _share(group: Group, key: str) -> float | None:
    """Of the last epoch: results do not repeat it."""
    return Mean.of(value(rows(run)[-1], key) for run in group.counted if rows(run)).mean


def judge(group: Group, rivals: Sequence[Group]) -> Judgement:
    """`rivals` differ in the loss alone; the group may be among them."""
    found = facts(group)
    if found.test is None or found.right is None or found.train is None:
        return Judgement.UNKNOWN
    if found.wrong is not None:
        if found.wrong >= MEMORISED or found.fallen >= FALLEN:
            return Judgement.MEMORISES
    elif found.train - found.test > GAP or found.fallen >= FALLEN:
        return Judgement.OVERFITS
    if found.right < LEARNED:
        others = [facts(rival).test for rival in rivals if rival is not group]
        best = max((x for x in others if x is not None), default=None)
        return Judgement.LEARNING if best is not None and found.test > best - CLOSE else Judgement.UNDERFITS
    return Judgement.NEITHER


def headline(rivals: Sequence[Group], names: Mapping[str, str]) -> str:
    """`CE memorises, MAE underfits, scaled MAE does neither`."""
    by: dict[Judgement, list[str]] = {judgement: [] for judgement in Judgement}
    for group in rivals:
        by[judge(group, rivals)].append(names[loss_key(group.spec)])
    said = [(judgement, losses) for judgement, losses in by.items() if losses]
    text = ", ".join(f"{listed(losses)} {_verb(judgement, len(losses) > 1, rivals)}" for judgement, losses in said)
    return text[0].upper() + text[1:]


def verb(group: Group, rivals: Sequence[Group]) -> str:
    return _verb(judge(group, rivals), False, rivals)


def _verb(judgement: Judgement, several: bool, rivals: Sequence[Group]) -> str:
    """`does neither` only where two things are said of others."""
    others = {judge(group, rivals) for group in rivals} - {Judgement.NEITHER}
    if judgement is not Judgement.NEITHER or others in BOTH:
        return judgement.value[several]
    bad = Judgement.OVERFITS if all(facts(group).wrong is None for group in rivals) else Judgement.MEMORISES
    return f"neither {bad.value[several]} nor {Judgement.UNDERFITS.value[several]}"


def sentence(group: Group) -> str:
    """What a group's judgement rests on."""
    found = facts(group)
    if found.test is None:
        return ""
    fall = f", down from {found.best:.1f} %" if found.fallen >= 1 else ""
    parts = [f"Test accuracy is {found.test:.1f} %{fall}"]
    if found.wrong is not None and found.right is not None:
        learned = f"{_percent(found.right)} of the right labels and {_percent(found.wrong)} of the wrong ones"
        parts.append(f"the network predicts {learned}")
    elif found.train is not None:
        parts.append(f"accuracy on the labels it was given {found.train:.1f} %")
    text = "; ".join(parts) + "."
    if found.snr is not None:
        text += f" {weighing(found.snr)}"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if 0.095 <= share <= 0.995 or share in (0, 1) else f"{100 * share:.1f} %"


def weighing(snr: float) -> str:
    """The ratio as a comparison that reads without knowing its name."""
    if 0.95 < snr < 1.05:
        return f"Clean and noisy samples weighed about the same (snr {snr:.2f})."
    if snr <= 0:
        return f"Only noisy samples had any weight (snr {snr:.2f})."
    more, less = ("clean", "noisy") if snr > 1 else ("noisy", "clean")
    return f"A {more} sample weighed {max(snr, 1 / snr):.1f} times as much as a {less} one (snr {snr:.2f})."


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
