"""What the numbers say, in words. Every word is chosen by a rule below; none is written for a particular run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from curriculoss.initial import percent
from curriculoss.report.records import Group, Mean, loss_key, rows, value
from curriculoss.training.store import Run

MEMORISED = 0.2  # share of the wrong labels that a network which memorises has learned, of those chance leaves over
FALLEN = 5.0  # points of test accuracy lost since the best epoch, as happens to a network that begins to memorise
ABOVE = 10.0  # points of test accuracy above guessing that a network has which has learned something
LEARNED = 0.8  # share of the right labels that a network which does not underfit has learned
HIGH = 95.0  # percent of test accuracy at which nothing underfits
AHEAD = 10.0  # points of test accuracy, at an epoch's end, above the right labels predicted during that epoch
CLOSE = (
    5.0  # points of test accuracy: who comes this close to the best of several learns slowly, rather than too little
)
LUCK = 0.1  # share of the wrong labels hit by chance that is worth a word
GAP = 10.0  # points between training and test accuracy, where nobody knows which labels are wrong


class Judgement(Enum):
    """The verb in the singular and in the plural."""

    MEMORISES = ("memorises", "memorise")
    OVERFITS = ("overfits", "overfit")
    UNDERFITS = ("underfits", "underfit")
    LEARNING = ("is still learning", "are still learning")
    NEITHER = ("does neither", "do neither")
    DIVERGED = ("diverged", "diverged")
    UNKNOWN = ("has not finished an epoch", "have not finished an epoch")


BOTH = ({Judgement.MEMORISES, Judgement.UNDERFITS}, {Judgement.OVERFITS, Judgement.UNDERFITS})
RULES = (
    f"A loss memorises if during the last epoch the network predicted at least {percent(MEMORISED)} of those wrong "
    f"labels that it would not have hit by chance, or if test accuracy has fallen by {FALLEN:g} points or more since "
    f"its best (as a median of three epochs, and at least {ABOVE:g} points above guessing). By chance: a network that "
    f"knows the true label of a share a of the samples and guesses among the K − 1 others predicts (1 − a)/(K − 1) of "
    f"the wrong labels; a is test accuracy or the share of right labels predicted, whichever is less. "
    f"Otherwise it underfits if it predicted fewer than {percent(LEARNED)} of the right ones, unless test accuracy is "
    f"{HIGH:g} % or more. Predictions are counted before each step, while test accuracy is that after the last: if it "
    f"is {ABOVE:g} points above guessing, and more than {AHEAD:g} above the share of right labels predicted or within "
    f"{CLOSE:g} of the best of several losses, the loss is said to be still learning rather than to underfit. Where "
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
    chance: float  # the same of a network that has learned none of them
    snr: float | None
    fallen: float  # points of test accuracy since the best epochs
    best: float | None  # percent
    guessing: float  # test accuracy in percent of a network that has learned nothing

    @property
    def memorised(self) -> bool:
        return self.wrong is not None and self.wrong >= self.chance + MEMORISED * (1 - self.chance)

    @property
    def fell(self) -> bool:
        """From somewhere: what only guesses goes up and down."""
        return self.fallen >= FALLEN and self.best is not None and self.best >= self.guessing + ABOVE


def facts(group: Group) -> Facts:
    rate, train = group.noise_rate, group.mean("train_accuracy")
    right, wrong = _share(group, "accuracy_clean"), _share(group, "accuracy_noisy")
    if right is None and train is not None:
        right = min(1.0, train / 100 / (1 - (rate or 0))) if (rate or 0) < 1 else None
    test = group.mean("test_accuracy")
    best = Mean.of(_best(run) for run in group.counted).mean
    fallen = 0.0 if best is None or test is None else max(0.0, best - test)
    classes = max(2, group.num_classes) if group.num_classes else None
    known = min((x for x in (right, None if test is None else test / 100) if x is not None), default=0.0)
    chance, guessing = ((1 - known) / (classes - 1), 100 / classes) if classes else (0.0, 0.0)
    return Facts(test, train, right, wrong, chance, group.mean("snr"), fallen, best, guessing)


def _best(run: Run) -> float | None:
    """Test accuracy at its best: of medians of three epochs, as a single one may be luck."""
    known = [x for row in rows(run) if (x := value(row, "test_accuracy")) is not None]
    return max((median(known[i : i + 3]) for i in range(max(1, len(known) - 2))), default=None) if known else None


def _share(group: Group, key: str) -> float | None:
    """Of the last epoch: results do not repeat it."""
    return Mean.of(value(rows(run)[-1], key) for run in group.counted if rows(run)).mean


def judge(group: Group, rivals: Sequence[Group]) -> Judgement:
    """`rivals` differ in the loss alone; the group may be among them."""
    if group.diverged:
        return Judgement.DIVERGED
    found = facts(group)
    if found.test is None or found.right is None or found.train is None:
        return Judgement.UNKNOWN
    if found.wrong is not None:
        if found.memorised or found.fell:
            return Judgement.MEMORISES
    elif found.train - found.test > GAP or found.fell:
        return Judgement.OVERFITS
    if found.right >= LEARNED or found.test >= HIGH:
        return Judgement.NEITHER
    others = [facts(rival).test for rival in rivals if rival is not group]
    best = max((x for x in others if x is not None), default=None)
    promising = found.test > 100 * found.right + AHEAD or (best is not None and found.test > best - CLOSE)
    return Judgement.LEARNING if promising and found.test >= found.guessing + ABOVE else Judgement.UNDERFITS


def headline(rivals: Sequence[Group], names: Mapping[str, str]) -> str:
    """`CE memorises, MAE underfits, scaled MAE does neither`; `After 5 of 60 epochs: …` if they are not finished."""
    by: dict[Judgement, list[Group]] = {judgement: [] for judgement in Judgement}
    for group in rivals:
        by[judge(group, rivals)].append(group)
    hedges = {loss_key(group): _hedge(group, rivals) for group in rivals}
    shared = hedges[loss_key(rivals[0])] if len({*hedges.values()}) == 1 else ""
    opening = f"{shared}: " if shared else ""

    def called(group: Group) -> str:
        hedge = hedges[loss_key(group)]
        return names[loss_key(group)] + (f" ({hedge})" if hedge and not shared else "")

    text = opening + ", ".join(
        f"{listed([called(group) for group in some])} {_verb(judgement, some, rivals)}"
        for judgement, some in by.items()
        if some
    )
    return text[0].upper() + text[1:]


def _hedge(group: Group, rivals: Sequence[Group]) -> str:
    """Empty if there is nothing to come, or nothing yet."""
    if group.finished or judge(group, rivals) in (Judgement.DIVERGED, Judgement.UNKNOWN):
        return ""
    return f"after {max(len(rows(run)) for run in group.counted)} of {counted(group.spec.epochs, 'epoch')}"


def verb(group: Group, rivals: Sequence[Group]) -> str:
    return _verb(judge(group, rivals), [group], rivals)


def _verb(judgement: Judgement, some: Sequence[Group], rivals: Sequence[Group]) -> str:
    """`does neither` only where two things are said of others."""
    several = len(some) > 1
    plain: str = judgement.value[several]
    if judgement is Judgement.DIVERGED:
        said = {str(failed) for group in some for failed in group.failures.values()}
        return said.pop() if len(said) == 1 else plain
    others = {judge(group, rivals) for group in rivals} - {Judgement.NEITHER}
    if judgement is not Judgement.NEITHER or others in BOTH:
        return plain
    bad = Judgement.OVERFITS if all(facts(group).wrong is None for group in rivals) else Judgement.MEMORISES
    return f"neither {bad.value[several]} nor {Judgement.UNDERFITS.value[several]}"


def sentence(group: Group) -> str:
    """What a group's judgement rests on."""
    found = facts(group)
    if group.diverged:
        reasons = dict.fromkeys(failed.reason.rstrip(". ") for failed in group.failures.values())
        said = [f"{text[0].upper()}{text[1:]}." for text in reasons if text]
        said += [] if found.test is None else [f"Until then, test accuracy was {found.test:.1f} %."]
        return " ".join(said)
    if found.test is None:
        return ""
    fall = f", down from {found.best:.1f} %" if found.fallen >= 1 else ""
    parts = [f"Test accuracy is {found.test:.1f} %{fall}"]
    if found.wrong is not None and found.right is not None:
        learned = f"{_percent(found.right)} of the right labels and {_percent(found.wrong)} of the wrong ones"
        luck = f" (of these, chance would hit {_percent(found.chance)})" if found.chance >= LUCK else ""
        parts.append(f"during the last epoch the network predicted {learned}{luck}")
    elif found.train is not None:
        parts.append(f"during the last epoch, accuracy on the labels it was given was {found.train:.1f} %")
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
