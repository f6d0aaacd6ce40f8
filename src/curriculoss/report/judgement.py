"""Verdicts on losses in words. Every word follows from the rules below; none is written for a particular run."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from curriculoss._text import percent
from curriculoss.report.groups import Group, Mean, number, rows
from curriculoss.runs.folder import Run

MEMORISED = 0.2  # share of the wrong labels, beyond those hit by chance, that a memorising network has learned
FALLEN = 5.0  # points of test accuracy lost since the best epoch, typical of a network that begins to memorise
ABOVE = 10.0  # points of test accuracy above guessing from which a network has learned something
LEARNED = 0.8  # share of the right labels below which a network underfits
HIGH = 95.0  # percent of test accuracy from which nothing underfits
AHEAD = 10.0  # points by which test accuracy, at an epoch's end, exceeds the right labels predicted during that epoch
CLOSE = 5.0  # points of test accuracy: a loss this close to the best of several is slow rather than underfitting
LUCK = 0.1  # share of the wrong labels hit by chance that is worth mentioning
OVERFIT_GAP = 10.0  # points between training and test accuracy that mean overfitting, if true labels are unknown


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
    f"A loss memorises if, during the last epoch, the network predicted at least {percent(MEMORISED)} of the wrong "
    f"labels beyond those hit by chance, or if test accuracy has fallen by {FALLEN:g} points or more from its best "
    f"(the best median of three epochs, at least {ABOVE:g} points above guessing). By chance, a network that knows the "
    f"true label of a share a of the samples and guesses among the K − 1 others predicts (1 − a)/(K − 1) of the wrong "
    f"labels; a is test accuracy or the share of right labels predicted, whichever is smaller. Otherwise, a loss "
    f"underfits if the network predicted fewer than {percent(LEARNED)} of the right labels, unless test accuracy is "
    f"{HIGH:g} % or higher. Predictions are counted before each step, test accuracy after the last one: a loss is "
    f"still learning rather than underfitting if test accuracy is at least {ABOVE:g} points above guessing and either "
    f"more than {AHEAD:g} points above the share of right labels predicted or within {CLOSE:g} of the best loss. "
    f"Where the true labels are unknown, all labels count as right, and a loss overfits if test accuracy has fallen as "
    f"above or is more than {OVERFIT_GAP:g} points below training accuracy."
)


@dataclass(frozen=True)
class Evidence:
    """Metrics of a group's last epoch."""

    test: float | None  # percent
    train: float | None  # percent
    right: float | None  # share of the right labels that the network predicts
    wrong: float | None  # share of the wrong labels that the network predicts
    chance: float  # the same for a network that has learned none of them
    snr: float | None
    fallen: float  # points of test accuracy since the best epochs
    best: float | None  # percent
    guessing: float  # test accuracy, in percent, of a network that has learned nothing

    @property
    def memorised(self) -> bool:
        return self.wrong is not None and self.wrong >= self.chance + MEMORISED * (1 - self.chance)

    @property
    def fell(self) -> bool:
        """Whether test accuracy fell from a level above guessing, where it goes up and down by itself."""
        return self.fallen >= FALLEN and self.best is not None and self.best >= self.guessing + ABOVE

    @classmethod
    def of(cls, group: Group) -> "Evidence":
        train, test = group.mean("train_accuracy"), group.mean("test_accuracy")
        right, wrong = group.mean("accuracy_clean"), group.mean("accuracy_noisy")
        if right is None and wrong is None and train is not None:  # the true labels are unknown
            right = train / 100
        best = Mean.of(_best_test_accuracy(run) for run in group.counted).mean
        fallen = 0.0 if best is None or test is None else max(0.0, best - test)
        classes = max(2, group.num_classes)
        known = min((x for x in (right, None if test is None else test / 100) if x is not None), default=0.0)
        chance = (1 - known) / (classes - 1)
        return cls(test, train, right, wrong, chance, group.mean("snr"), fallen, best, 100 / classes)


def _best_test_accuracy(run: Run) -> float | None:
    """The best median of three epochs: a single one may be luck."""
    known = [x for row in rows(run) if (x := number(row, "test_accuracy")) is not None]
    return max(median(known[i : i + 3]) for i in range(max(1, len(known) - 2))) if known else None


class Comparison:
    """Losses trained in the same setting, and the verdict on each; those on slow losses depend on the others."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.evidence = {group: Evidence.of(group) for group in groups}
        self.judgements = {group: self._judge(group) for group in groups}

    def _judge(self, group: Group) -> Judgement:
        found = self.evidence[group]
        if group.diverged:
            return Judgement.DIVERGED
        if found.test is None or found.right is None or found.train is None:
            return Judgement.UNKNOWN
        if found.wrong is not None:
            if found.memorised or found.fell:
                return Judgement.MEMORISES
        elif found.train - found.test > OVERFIT_GAP or found.fell:
            return Judgement.OVERFITS
        if found.right >= LEARNED or found.test >= HIGH:
            return Judgement.NEITHER
        others = [rival.test for other, rival in self.evidence.items() if other is not group and rival.test is not None]
        promising = found.test > 100 * found.right + AHEAD or (others and found.test > max(others) - CLOSE)
        return Judgement.LEARNING if promising and found.test >= found.guessing + ABOVE else Judgement.UNDERFITS

    def headline(self) -> str:
        """`CE memorises, MAE underfits, scaled MAE does neither`; `After 5 of 60 epochs: …` if they go on."""
        hedges = {group: self._hedge(group) for group in self.groups}
        shared = hedges[self.groups[0]] if len({*hedges.values()}) == 1 else ""
        said = []
        for judgement in Judgement:
            if some := [group for group in self.groups if self.judgements[group] is judgement]:
                named = [g.name + (f" ({hedges[g]})" if hedges[g] and not shared else "") for g in some]
                said.append(f"{listed(named)} {self.verb(*some)}")
        text = (f"{shared}: " if shared else "") + ", ".join(said)
        return text[0].upper() + text[1:]

    def _hedge(self, group: Group) -> str:
        """How far a group has got, if it goes on from there."""
        if group.finished or self.judgements[group] in (Judgement.DIVERGED, Judgement.UNKNOWN):
            return ""
        return f"after {max(len(rows(run)) for run in group.counted)} of {plural(group.spec.epochs, 'epoch')}"

    def verb(self, *some: Group) -> str:
        """What groups of the same judgement do; `does neither` only where the two things are said of other losses."""
        judgement, several = self.judgements[some[0]], len(some) > 1
        plain: str = judgement.value[several]
        if judgement is Judgement.DIVERGED:
            said = {str(failed) for group in some for failed in group.failures.values()}
            return said.pop() if len(said) == 1 else plain
        if judgement is not Judgement.NEITHER or {*self.judgements.values()} - {Judgement.NEITHER} in BOTH:
            return plain
        unknown = all(found.wrong is None for found in self.evidence.values())
        bad = Judgement.OVERFITS if unknown else Judgement.MEMORISES
        return f"neither {bad.value[several]} nor {Judgement.UNDERFITS.value[several]}"

    def sentence(self, group: Group) -> str:
        """The evidence for a group's verdict."""
        found = self.evidence[group]
        if group.diverged:
            reasons = dict.fromkeys(failed.reason.rstrip(". ") for failed in group.failures.values())
            said = [f"{text[0].upper()}{text[1:]}." for text in reasons if text]
            said += [] if found.test is None else [f"Until then, test accuracy was {found.test:.1f} %."]
            return " ".join(said)
        if found.test is None:
            return ""
        fall = f", down from {found.best:.1f} %" if found.fallen >= 1 else ""
        text = f"Test accuracy is {found.test:.1f} %{fall}"
        if found.wrong is not None and found.right is not None:
            learned = f"{_share(found.right)} of the right labels and {_share(found.wrong)} of the wrong ones"
            luck = f" (chance alone would hit {_share(found.chance)} of these)" if found.chance >= LUCK else ""
            text += f"; during the last epoch, the network predicted {learned}{luck}"
        elif found.train is not None:
            text += f"; during the last epoch, accuracy on the given labels was {found.train:.1f} %"
        return text + "." + ("" if found.snr is None else f" {snr_sentence(found.snr)}")


def _share(share: float) -> str:
    return f"{100 * share:.0f} %" if 0.095 <= share <= 0.995 or share in (0, 1) else f"{100 * share:.1f} %"


def snr_sentence(snr: float) -> str:
    """The ratio as a comparison that needs no definition."""
    if 0.95 < snr < 1.05:
        return f"Clean and noisy samples had about the same weight (snr {snr:.2f})."
    if snr <= 0:
        return f"Only noisy samples had any weight (snr {snr:.2f})."
    more, less = ("clean", "noisy") if snr > 1 else ("noisy", "clean")
    return f"A {more} sample had {max(snr, 1 / snr):.1f} times the weight of a {less} one (snr {snr:.2f})."


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])


def plural(count: int, word: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
