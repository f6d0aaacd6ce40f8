"""The paper's fifteen claims as tests of hypotheses on the records: a statistic, an interval, and a verdict by rule.

Accuracies are those after the last epoch, in percent. What is compared has the same seed, and so the same data, noise
and order of samples. Where the claim is about one setting, seeds are the numbers that a mean and its interval are of;
where it is about many, the settings are, each with the mean over its seeds: seeds of one setting say little about the
others. Learning curves on MNIST are run once, so their interval is over the epochs of a block, widened by an allowance
for other seeds. The rule itself is in `inference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from scipy import stats

from curriculoss.initial import SEVERE, expected_initial_margin, percent, simulate_initial_margins
from curriculoss.paper import settings
from curriculoss.paper.artefacts import get
from curriculoss.paper.inference import Estimate, Part, difference, mean, rank_correlation, share, signed, spanning
from curriculoss.paper.initial import initial_margins, num_classes
from curriculoss.paper.published import find
from curriculoss.paper.records import SEPARATION, Records
from curriculoss.paper.rewriting import relative_errors
from curriculoss.paper.settings import CLEAN, SYMMETRIC, Cell, Row
from curriculoss.paper.verdicts import Array, Inquiry, Verdict, planned_seeds, text, write

__all__ = ["CLAIMS", "Verdict", "test_all", "text", "write"]

FEW, MANY = "cifar10", "cifar100"
GRADIENT_ERROR = 1e-8  # relative, in double precision
RARE = 1e-3  # share of samples
LACK = 10.0  # % of CE's accuracy; the paper's losses lack up to 8.4 on CIFAR-10 and from 11.8 on CIFAR-100
CHANGE = 0.05  # of α_t: less is neither rise nor fall
MARGIN_ERROR = 0.2  # in units of Δ; the paper's closed form and measurements differ by 0.011 and 0.115
INFERIOR = -1.0  # points of test accuracy
SUBSTANTIAL = 2.0  # points, where every condition is run once
TIES = (0.0, 0.5, 1.0, 1.5, 2.0)  # points by which accuracies of single runs may differ by chance
ALLOWANCE = 1.0  # points that another seed may change there; twice the usual std of the paper's tables
BLOCK = 10  # epochs

UNDERFIT = MappingProxyType({row.name: row for row in settings.UNDERFIT})
ROBUST = MappingProxyType({row.name: row for row in settings.ROBUST})
FIXED = MappingProxyType({row.name: row for row in settings.FIXED})

Test = Callable[[Inquiry], Iterator[Part | str]]
CLAIMS: list[tuple[int, str, str, Test]] = []


def _claim(number: int, claim: str, counts: str) -> Callable[[Test], Test]:
    """Enter a test, which yields the parts of a claim, and other numbers in words, as one of the claims."""

    def add(test: Test) -> Test:
        CLAIMS.append((number, claim, counts, test))
        return test

    return add


def test_all(
    records: Records,
    *,
    folder: Path,
    data_dir: Path | str | None = None,  # noqa: PT028  no test of pytest's
    seeds: int | None = None,  # noqa: PT028
) -> list[Verdict]:
    """Every claim, on the first `seeds` of every run, or on as many as each is planned with."""
    planned = planned_seeds(records.scale, seeds)
    verdicts = []
    for number, claim, counts, test in CLAIMS:
        ask = Inquiry(records, planned, folder, data_dir)
        verdicts.append(Verdict.of(number, claim, counts, test(ask), ask.missing))
    return verdicts


def _average(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {'missing' if math.isnan(value) else signed(value, 3)}" for name, value in numbers.items()
    )


def _noises(*names: str) -> tuple[str, ...]:
    """Of the cells of these artefacts, without the clean one."""
    found = dict.fromkeys(cell.noise for name in names for cell in get(name).cells)
    return tuple(noise for noise in found if noise != CLEAN)


@_claim(
    1,
    "Losses rewritten as weight times margin, and NCE as cross entropy with a regulariser, have the same gradients",
    f"On random logits, gradients of the formula in p and of the rewritten form differ by more than {GRADIENT_ERROR:g} "
    f"(relative, in norm 1) in less than {RARE:g} of the samples",
)
def _gradients(ask: Inquiry) -> Iterator[Part | str]:
    errors = torch.stack(list(relative_errors().values()))
    beyond = int((errors > GRADIENT_ERROR).sum())
    yield Part("share of samples with another gradient", share(beyond, errors.numel()), below=RARE)
    digits = math.floor(-math.log10(max(float(errors.max()), 1e-16)))
    yield f"{len(errors)} losses; the largest relative error is below 1e-{digits}"


@_claim(
    2,
    "Robust losses underfit with many classes but not with few",
    "Each of six losses lacks more of CE's training accuracy (in % of it, same seed) with many classes than with few, "
    f"and with few less than {LACK:g} %",
)
def _many_classes(ask: Inquiry) -> Iterator[Part | str]:
    def accuracy(name: str, data: str) -> Array:
        cell = Cell(UNDERFIT[name], data, experiment="underfit" if data == FEW else "")
        return ask.last(cell, "train_accuracy")

    losses = ("AUL", "AGCE", "NCE", "MAE", "AUL†", "AGCE†")
    for name in losses:
        few, many = (100 * (1 - accuracy(name, data) / accuracy("CE", data)) for data in (FEW, MANY))
        yield Part(f"{name}: % of CE's training accuracy that it lacks, many − few classes", mean(many - few), above=0)
        yield Part(f"{name}: % of CE's training accuracy that it lacks with few classes", mean(few), below=LACK)
    for words, data in (("few", FEW), ("many", MANY)):
        accuracies = {name: _average(accuracy(name, data)) for name in ("CE", *losses)}
        yield f"training accuracy with {words} classes: {_listed(accuracies)}"


@_claim(
    3,
    "Losses with a small final α_t underfit",
    "Over the losses that the paper gives an α_t for, training accuracy with many classes has a positive rank "
    "correlation with the effective learning rate (means over seeds)",
)
def _final_rate(ask: Inquiry) -> Iterator[Part | str]:
    rate, accuracy = {}, {}
    for name, row in UNDERFIT.items():
        if find("table:ulearn", row=name, data=MANY, measure="alpha_t") is not None:
            rate[name] = _average(ask.last(Cell(row, MANY), "effective_learning_rate"))
            accuracy[name] = _average(ask.last(Cell(row, MANY), "train_accuracy"))
    yield Part("rank correlation over losses", rank_correlation(rate.values(), accuracy.values()), above=0)
    yield f"effective learning rate × 10⁴: {_listed({name: 1e4 * value for name, value in rate.items()})}"
    yield f"training accuracy: {_listed(accuracy)}"


def _rise(curve: Array) -> float:
    return float(curve.max() / curve[0] - 1)


def _left(curve: Array) -> float:
    return float(curve[-1] / curve[0])


@_claim(
    4,
    "NCE's α_t starts at its peak and falls faster than CE's",
    f"With many classes, NCE's effective learning rate never rises more than {percent(CHANGE)} above that of the first "
    "epoch, and at the end less is left of it than of CE's (same seed)",
)
def _falling_rate(ask: Inquiry) -> Iterator[Part | str]:
    rise = ask.each(Cell(settings.NCE, MANY), "effective_learning_rate", _rise)
    yield Part("NCE: rise of α_t above its first epoch, as a share of it", mean(rise), below=CHANGE)
    nce, ce = (ask.each(Cell(row, MANY), "effective_learning_rate", _left) for row in (settings.NCE, settings.CE))
    yield Part("share of the first α_t left at the end, NCE − CE", mean(nce - ce), below=0)
    yield f"share of the first α_t left at the end: {_listed({'NCE': _average(nce), 'CE': _average(ce)})}"
    nce, ce = (ask.each(Cell(row, MANY), "mean_weight", _left) for row in (settings.NCE, settings.CE))
    yield f"the same of the mean weight, without the schedule: {_listed({'NCE': _average(nce), 'CE': _average(ce)})}"


@_claim(
    5,
    "With bad hyperparameters AUL's α_t stays marginal, with good ones it rises and then falls",
    f"With many classes, AUL†'s effective learning rate stays below {percent(SEVERE)} of CE's first (the bound of "
    f"severe underfitting); AUL's rises by more than {percent(CHANGE)} of that of its first epoch, and at the end is "
    f"more than {percent(CHANGE)} below its peak. So is the mean weight of an epoch: α_t alone falls with any schedule",
)
def _hyperparameters(ask: Inquiry) -> Iterator[Part | str]:
    good, bad, ce = (Cell(row, MANY) for row in (settings.GOOD_AUL, settings.BAD_AUL, settings.CE))
    measure = "effective_learning_rate"
    marginal = ask.each(bad, measure, np.max) / ask.each(ce, measure, lambda curve: float(curve[0]))
    yield Part("AUL†: peak of α_t as a share of CE's first", mean(marginal), below=SEVERE)
    yield Part("AUL: rise of α_t, as a share of its first epoch", mean(ask.each(good, measure, _rise)), above=CHANGE)
    for name, fallen in (("α_t", measure), ("an epoch's mean weight", "mean_weight_this_epoch")):
        fall = ask.each(good, fallen, lambda curve: float(1 - curve[-1] / curve.max()))
        yield Part(f"AUL: fall of {name}, as a share of its peak", mean(fall), above=CHANGE)


@_claim(
    6,
    "NCE+MAE underfits less than NCE and than MAE",
    "With many classes its training accuracy is higher than that of each (points, same seed), whether its MAE is plain "
    "or, as when it is trained alone, four times that: the paper does not say",
)
def _combination(ask: Inquiry) -> Iterator[Part | str]:
    for both in (settings.NCE_MAE, settings.NCE_MAE_UNIT):
        for alone in (settings.NCE, settings.MAE):
            gain = ask.last(Cell(both, MANY), "train_accuracy") - ask.last(Cell(alone, MANY), "train_accuracy")
            yield Part(f"training accuracy, {both.name} − {alone.name}", mean(gain), above=0)


@_claim(
    7,
    "Closed form, simulation and real networks agree about initial margins",
    f"On each data set, mean margins of real samples and of simulated scores are within {MARGIN_ERROR:g} of the closed "
    "form (the paper's are within 0.115). The interval of real ones is over networks: samples share their network's "
    "whims",
)
def _initial_margins(ask: Inquiry) -> Iterator[Part | str]:
    roles = {given["data"]: role for role, given in ask.scale.base.items() if "/" not in role}
    for data, role in roles.items():
        classes = num_classes(role, ask.scale)
        expected = expected_initial_margin(classes)
        real = initial_margins(role, ask.scale, ask.folder, ask.data_dir)
        networks = torch.empty(0) if real is None else real.reshape(-1, real.shape[-1]).mean(1)
        if real is None:
            ask.missing.add(data)
        for kind, margins in (("real", networks), ("simulated", simulate_initial_margins(classes))):
            found = mean((margins.double() - expected).tolist())
            name = f"{data}: mean {kind} margin − closed form ({signed(expected)})"
            yield Part(name, found, above=-MARGIN_ERROR, below=MARGIN_ERROR)


@_claim(
    8,
    "Shift and scale repair MAE and AGCE",
    "With many classes and clean labels, test accuracy is higher than without, and nearer to CE's than to that "
    "(points, same seed)",
)
def _repair(ask: Inquiry) -> Iterator[Part | str]:
    names = ("CE", *(f"{loss}{fix}" for loss in ("MAE", "AGCE") for fix in ("", " shift", " scale")))
    accuracy = {name: ask.last(Cell(FIXED[name], MANY)) for name in names}
    for loss in ("MAE", "AGCE"):
        plain = accuracy[loss]
        for name in (f"{loss} {fix}" for fix in settings.FIXES):
            yield Part(f"{name}: test accuracy − {loss}'s", mean(accuracy[name] - plain), above=0)
            nearer = mean(accuracy[name] - (plain + accuracy["CE"]) / 2)
            yield Part(f"{name}: test accuracy − half-way from {loss}'s to CE's", nearer, above=0)
    yield f"test accuracy: {_listed({name: _average(values) for name, values in accuracy.items()})}"


def _gains(ask: Inquiry, one: Row, other: Row, noises: Iterable[str]) -> dict[str, float]:
    """By noise, how much higher one's test accuracy is, on average over seeds."""
    return {x: _average(ask.last(Cell(one, MANY, x)) - ask.last(Cell(other, MANY, x))) for x in noises}


@_claim(
    9,
    "Under label noise, scaling is better than shifting",
    "With many classes, for MAE and for AGCE, test accuracy is higher scaled than shifted (same seeds), on average "
    "over noise settings",
)
def _scale_or_shift(ask: Inquiry) -> Iterator[Part | str]:
    noises = _noises("table:fix", "table:fix-symmetric", "table:fix-asymmetric")
    for name in ("MAE", "AGCE"):
        gains = _gains(ask, FIXED[f"{name} scale"], FIXED[f"{name} shift"], noises)
        yield Part(f"{name}: test accuracy, scale − shift, over noise settings", mean(gains.values()), above=0)
        yield f"{name}: {_listed(gains)}"


@_claim(
    10,
    "Scaled MAE is at least as good as NCE+AUL",
    f"On average over the settings of the main table, its test accuracy is not {-INFERIOR:g} point or more below",
)
def _state_of_the_art(ask: Inquiry) -> Iterator[Part | str]:
    gains = _gains(ask, settings.MAE_SCALE, settings.NCE_AUL, (CLEAN, *_noises("table:fix")))
    yield Part("test accuracy, MAE scale − NCE+AUL, over settings", mean(gains.values()), above=INFERIOR)
    yield _listed(gains)
    rows = {row.name: ask.last(Cell(row, MANY), "train_accuracy") for row in (settings.MAE_SCALE, settings.NCE_AUL)}
    told = _listed({name: _average(accuracy) for name, accuracy in rows.items()})
    yield f"training accuracy with clean labels, for what is due to underfitting: {told}"


@_claim(
    11,
    "Losses with a higher snr lose less accuracy under label noise",
    "Over six losses, snr has a positive rank correlation with test accuracy with noise − without (means over seeds), "
    "on average over noise settings",
)
def _snr(ask: Inquiry) -> Iterator[Part | str]:
    found = {}
    for noise in _noises("table:snr"):
        cells = [(Cell(row, FEW, noise), Cell(row, FEW)) for row in settings.ROBUST]
        snr = [_average(ask.last(noisy, "snr")) for noisy, _ in cells]
        kept = [_average(ask.last(noisy) - ask.last(clean)) for noisy, clean in cells]
        found[noise] = math.nan if (rho := rank_correlation(snr, kept).value) is None else rho
    average = mean(found.values()).within(-1, 1)
    yield Part("rank correlation of snr and accuracy kept, over noise settings", average, above=0)
    yield _listed(found)


def _slope(curve: Array) -> float:
    return float(stats.linregress(range(len(curve)), curve).slope)


@_claim(
    12,
    "Robust losses separate the margins of clean and noisy samples and unlearn the noisy ones; CE does not",
    "On average over noise settings with few classes, for SCE and for MAE: P(margin of a clean sample > that of a "
    "noisy one) after the last epoch is higher than with CE, and mean margins of noisy samples fall over the epochs "
    "(slope of the least squares line); with CE they rise",
)
def _dynamics(ask: Inquiry) -> Iterator[Part | str]:
    noises = _noises("table:snr", "figure:dynamics-noise")

    for name in ("CE", "SCE", "MAE"):
        slopes = {x: _average(ask.each(Cell(ROBUST[name], FEW, x), "mean_margin_noisy", _slope)) for x in noises}
        claimed = {"above": 0.0} if name == "CE" else {"below": 0.0}
        yield Part(f"{name}: slope of noisy samples' mean margin an epoch", mean(slopes.values()), **claimed)
        yield f"{name}: {_listed(slopes)}"
        parted = {x: _average(ask.last(Cell(ROBUST[name], FEW, x), SEPARATION)) for x in noises}
        if name == "CE":
            of_ce = parted
        else:
            more = {noise: parted[noise] - of_ce[noise] for noise in noises}
            yield Part(f"{name}: separation of clean and noisy margins − CE's", mean(more.values()), above=0)
        yield f"{name}: separation {_listed(parted)}"


def _long(row: Row, noise: str, learning_rate: float) -> Cell:
    return Cell(row, "mnist", noise, "schedules", learning_rate)


def _blocks(ask: Inquiry, cell: Cell, measure: str) -> Array:
    """The epochs of one run in blocks, the last one whole."""
    curve = ask.curve(cell, measure)
    count = len(curve) // BLOCK
    return curve[len(curve) - count * BLOCK :].reshape(count, BLOCK)


def _once(first: Array, second: Array) -> Estimate:
    return difference(first.tolist(), second.tolist()).widened(ALLOWANCE)


@_claim(
    13,
    "With long training at a constant learning rate MAE memorises noise, too",
    f"On MNIST, from the block of {BLOCK} epochs with the best test accuracy to the last, test accuracy falls and the "
    f"share of wrong labels that are fitted rises, each by more than {SUBSTANTIAL:g} points. One run for each noise "
    f"rate: the interval is over epochs and {ALLOWANCE:g} point wider on both sides",
)
def _memorising(ask: Inquiry) -> Iterator[Part | str]:
    for noise in _noises("figure:schedules"):
        cell = _long(settings.MAE, noise, 0.01)
        test, fitted = _blocks(ask, cell, "test_accuracy"), 100 * _blocks(ask, cell, "accuracy_noisy")
        if len(test) > 1 and len(fitted) == len(test):
            best = int(test.mean(1).argmax())
            fall, rise = _once(test[best], test[-1]), _once(fitted[-1], fitted[best])
            yield Part(f"{noise}, one run: fall of test accuracy, over epochs", fall, above=SUBSTANTIAL)
            yield Part(f"{noise}, one run: rise of the % of wrong labels fitted, over epochs", rise, above=SUBSTANTIAL)
            yield f"{noise}: best block {best + 1} of {len(test)}, test accuracy {test[best].mean():.4g}"
        else:
            yield f"{noise}: no run, or less than two blocks of epochs"


@_claim(
    14,
    "CE becomes robust with a larger learning rate, and with a smaller one",
    f"On MNIST, over the last {BLOCK} epochs, test accuracy at 0.1 and at 0.0001 is more than {SUBSTANTIAL:g} points "
    f"above that at 0.01. One run for each: the interval is over epochs and {ALLOWANCE:g} point wider on both sides",
)
def _learning_rates(ask: Inquiry) -> Iterator[Part | str]:
    for noise in _noises("figure:schedules"):
        usual, *others = (_blocks(ask, _long(settings.CE, noise, x), "test_accuracy")[-1:] for x in (0.01, 0.0001, 0.1))
        for rate, other in zip((0.0001, 0.1), others, strict=True):
            gain = _once(other.ravel(), usual.ravel())
            name = f"{noise}, one run each: CE's test accuracy at {rate:g} − at 0.01, over epochs"
            yield Part(name, gain, above=SUBSTANTIAL)


@_claim(
    15,
    "More noise wants a larger τ",
    "Of scaled MAE with many classes, the τ with the highest test accuracy has a positive rank correlation with the "
    "rate of symmetric noise. Another seed might have chosen any that is nearly as good, so the mean of those within "
    f"{', '.join(f'{tie:g}' for tie in TIES)} points of the highest is taken, in turn. The value is the median of "
    "these correlations, the interval covers those of all: the verdict must not depend on where that line is drawn",
)
def _tau(ask: Inquiry) -> Iterator[Part | str]:
    best: dict[float, list[float]] = {tie: [] for tie in TIES}
    for noise in (CLEAN, *SYMMETRIC):
        cells = [Cell(replace(settings.MAE_SCALE, tau=tau), MANY, noise) for tau in settings.TAUS]
        seeds = min(map(ask.seeds, cells))  # those of a table are more
        accuracy = {tau: _average(ask.last(x, seeds=seeds)) for tau, x in zip(settings.TAUS, cells, strict=True)}
        values = np.array(list(accuracy.values()))  # one that is missing leaves no best
        for tie, taus in best.items():
            taus.append(_average(np.array(settings.TAUS)[values >= values.max() - tie]))
        yield f"{noise}, n = {seeds}: {_listed({f'τ = {tau:g}': value for tau, value in accuracy.items()})}"
    rates = [float(noise.partition(":")[2] or 0) for noise in (CLEAN, *SYMMETRIC)]
    found = []
    for tie, taus in best.items():
        found.append(rank_correlation(rates, taus))
        rho = math.nan if found[-1].value is None else found[-1].value
        told = dict(zip((CLEAN, *SYMMETRIC), taus, strict=True)) | {"correlation": rho}
        yield f"mean τ of those within {tie:g} points: {_listed(told)}"
    yield Part("rank correlation of noise rate and best τ", spanning(found), above=0)
