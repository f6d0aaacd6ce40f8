"""The paper's fifteen claims as hypothesis tests on the records: a statistic, an interval, and a verdict by rule.

Accuracies are in percent, after the last epoch. Compared runs have the same seed, and so the same data, noise and order
of samples. For claims about one setting, means and intervals are over seeds; for claims about many settings they are
over settings, each with its mean over seeds, because seeds of one setting say little about the others. For learning
curves on MNIST intervals are over the epochs of a block, widened by an allowance for other runs, and every seed must
meet the criterion by itself. The rule is in `inference`.

The docstring of a test is its criterion, and goes into claims.md.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from curriculoss.figures import Array
from curriculoss.fixing import SEVERE
from curriculoss.initial import expected_initial_margin, simulate_initial_margins
from curriculoss.noise import parse
from curriculoss.paper import experiments, inference
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.claim_results import ClaimResult, Inquiry
from curriculoss.paper.epochs import SEPARATION, RunRecords
from curriculoss.paper.experiments import CE, CLEAN, FEW, MAE, MAE_SCALE, MANY, NCE, PLACES, SYMMETRIC, TAUS, Cell, Row
from curriculoss.paper.inference import Estimate, Part, mean, rank_correlation, signed
from curriculoss.paper.plans import all_runs
from curriculoss.paper.published import find
from curriculoss.paper.rewriting import relative_errors
from curriculoss.paper.starting_margins import AS_TRAINED, Start, initial_margins, num_classes

GRADIENT_ERROR = 1e-8  # relative, in double precision
RARE = 1e-3  # share of samples
LACK = 10.0  # % of CE's accuracy; the paper's losses lack at most 8.4 on CIFAR-10 and at least 11.8 on CIFAR-100
CHANGE = 0.05  # of α_t: less is neither a rise nor a fall
MARGIN_ERROR = 0.2  # in units of Δ; the paper's closed form and measurements differ by 0.011 and 0.115
NOT_INFERIOR = 1.0  # point of test accuracy
SUBSTANTIAL = 2.0  # points, for single runs
NEAR_BEST = (0.0, 0.5, 1.0, 1.5, 2.0)  # points by which accuracies of single runs may differ by chance
ALLOWANCE = 1.0  # point that another seed may change; twice the usual std of the paper's tables
EPOCHS_PER_BLOCK = 10

UNDERFIT, ROBUST, FIXED = (
    {row.name: row for row in rows} for rows in (experiments.UNDERFIT, experiments.ROBUST, experiments.FIXED)
)
Test = Callable[[Inquiry], Iterator[Part | str]]


CLAIMS: dict[tuple[int, str], Test] = {}  # by number and name; a test yields parts, and further evidence in words


def _claim(number: int, name: str) -> Callable[[Test], Test]:
    return lambda test: CLAIMS.setdefault((number, name), test)


def check_all(
    records: RunRecords, *, folder: Path, data_dir: Path | str | None = None, seeds: int | None = None
) -> list[ClaimResult]:
    """Test every claim on the first `seeds` of every run, or on as many as are planned."""
    planned = {spec.hash for spec in all_runs(records.scale, folder, seeds).values()}
    results = []
    for (number, name), test in CLAIMS.items():
        ask = Inquiry(records, planned, folder, data_dir)
        found = [*test(ask)]
        if number in records.scale.caveats:
            found.append(f"by construction: {records.scale.caveats[number]}")
        criterion = " ".join((test.__doc__ or "").format_map(globals()).split())  # with its thresholds filled in
        results.append(ClaimResult.of(number, name, criterion, found, ask.missing))
    return results


def _average(values: Array | float) -> float:
    """The mean of what is known."""
    known = np.ravel(values)[~np.isnan(np.ravel(values))]
    return float(known.mean()) if len(known) else math.nan


def _listed(numbers: Mapping[str, Array | float]) -> str:
    """`CE 71.2, MAE missing`, with averages over seeds."""
    averages = {name: _average(values) for name, values in numbers.items()}
    return ", ".join(f"{name} {'missing' if math.isnan(x) else signed(x, '.3g')}" for name, x in averages.items())


def _noises(*names: str) -> list[str]:
    """The noises of these artefacts, without clean labels."""
    found = dict.fromkeys(cell.noise for name in names for cell in ARTEFACTS[name].cells)
    return [noise for noise in found if noise != CLEAN]


@_claim(
    1, "Losses rewritten as weight times margin, and NCE as cross entropy with a regulariser, have the same gradients"
)
def _gradients(ask: Inquiry) -> Iterator[Part | str]:
    """On random logits, gradients of the formula in p and of the rewritten form differ by more than
    {GRADIENT_ERROR:g} (relative, in norm 1) in less than {RARE:g} of the samples.
    """
    errors = torch.stack(list(relative_errors().values()))
    beyond = int((errors > GRADIENT_ERROR).sum())
    yield Part("share of samples with another gradient", inference.share(beyond, errors.numel()), below=RARE)
    digits = math.floor(-math.log10(max(float(errors.max()), 1e-16)))
    yield f"{len(errors)} losses; the largest relative error is below 1e-{digits}"


@_claim(2, "Robust losses underfit with many classes but not with few")
def _many_classes(ask: Inquiry) -> Iterator[Part | str]:
    """Each of six losses lacks more of CE's training accuracy (in % of it, same seed) with many classes than
    with few, and less than {LACK:g} % with few.
    """
    losses = ("AUL", "AGCE", "NCE", "MAE", "AUL†", "AGCE†")
    few, many = (
        {name: ask.last(Cell(UNDERFIT[name], data, experiment=where), "train_accuracy") for name in ("CE", *losses)}
        for data, where in ((FEW, "underfit"), (MANY, ""))
    )
    for name in losses:
        with_few, with_many = (100 * (1 - of[name] / of["CE"]) for of in (few, many))
        lack = f"{name}: % of CE's training accuracy that it lacks"
        yield Part(f"{lack}, many − few classes", mean(with_many - with_few), above=0)
        yield Part(f"{lack} with few classes", mean(with_few), below=LACK)
    for words, of in (("few", few), ("many", many)):
        yield f"training accuracy with {words} classes: {_listed(of)}"


@_claim(3, "Losses with a small final α_t underfit")
def _final_rate(ask: Inquiry) -> Iterator[Part | str]:
    """Over the losses for which the paper gives α_t, training accuracy with many classes has a positive rank
    correlation with the effective learning rate (means over seeds).
    """
    rows = [row for name, row in UNDERFIT.items() if find("table:ulearn", row=name, data=MANY, measure="alpha_t")]
    rate, accuracy = (
        {row.name: _average(ask.last(Cell(row, MANY), measure)) for row in rows}
        for measure in ("effective_learning_rate", "train_accuracy")
    )
    yield Part("rank correlation over losses", rank_correlation(rate.values(), accuracy.values()), above=0)
    yield f"effective learning rate × 10⁴: {_listed({name: 1e4 * value for name, value in rate.items()})}"
    yield f"training accuracy: {_listed(accuracy)}"


def _rise(curve: Array) -> float:
    return float(curve.max() / curve[0] - 1)


def _left(curve: Array) -> float:
    return float(curve[-1] / curve[0])


@_claim(4, "NCE's α_t starts at its peak and falls faster than CE's")
def _falling_rate(ask: Inquiry) -> Iterator[Part | str]:
    """With many classes, NCE's effective learning rate never rises more than {CHANGE:.0%} above that of its
    first epoch, and less of it is left at the end than of CE's (same seed).
    """
    rise = ask.each(Cell(NCE, MANY), "effective_learning_rate", _rise)
    yield Part("NCE: rise of α_t above its first epoch, as a share of it", mean(rise), below=CHANGE)
    nce, ce = (ask.each(Cell(row, MANY), "effective_learning_rate", _left) for row in (NCE, CE))
    yield Part("share of the first α_t left at the end, NCE − CE", mean(nce - ce), below=0)
    yield f"share of the first α_t left at the end: {_listed({'NCE': nce, 'CE': ce})}"
    nce, ce = (ask.each(Cell(row, MANY), "mean_weight", _left) for row in (NCE, CE))
    yield f"the same for the mean weight, without the schedule: {_listed({'NCE': nce, 'CE': ce})}"


@_claim(5, "With bad hyperparameters AUL's α_t stays marginal, with good ones it rises and then falls")
def _hyperparameters(ask: Inquiry) -> Iterator[Part | str]:
    """With many classes, AUL†'s effective learning rate stays below {SEVERE:.0%} of CE's first (the limit of
    severe underfitting). AUL's rises more than {CHANGE:.0%} above its first epoch and ends more than
    {CHANGE:.0%} below its peak, and so does its mean weight per epoch, because α_t alone falls with any
    schedule.
    """
    good, bad, ce = (Cell(row, MANY) for row in (experiments.GOOD_AUL, experiments.BAD_AUL, CE))
    measure = "effective_learning_rate"
    marginal = ask.each(bad, measure, np.max) / ask.each(ce, measure, lambda curve: float(curve[0]))
    yield Part("AUL†: peak of α_t as a share of CE's first", mean(marginal), below=SEVERE)
    yield Part("AUL: rise of α_t, as a share of its first epoch", mean(ask.each(good, measure, _rise)), above=CHANGE)
    for name, fallen in (("α_t", measure), ("an epoch's mean weight", "mean_weight_this_epoch")):
        fall = ask.each(good, fallen, lambda curve: float(1 - curve[-1] / curve.max()))
        yield Part(f"AUL: fall of {name}, as a share of its peak", mean(fall), above=CHANGE)


@_claim(6, "NCE+MAE underfits less than NCE and than MAE")
def _combination(ask: Inquiry) -> Iterator[Part | str]:
    """With many classes its training accuracy is higher than that of each (points, same seed), both with plain
    MAE and with four times that, as when MAE is trained alone; the paper does not say which it has.
    """
    for both in (experiments.NCE_MAE, experiments.NCE_MAE_UNIT):
        for alone in (NCE, MAE):
            gain = ask.last(Cell(both, MANY), "train_accuracy") - ask.last(Cell(alone, MANY), "train_accuracy")
            yield Part(f"training accuracy, {both.name} − {alone.name}", mean(gain), above=0)


@_claim(7, "Closed form, simulation and real networks agree about initial margins")
def _initial_margins(ask: Inquiry) -> Iterator[Part | str]:
    """On each data set, mean margins of real samples and of simulated scores are within {MARGIN_ERROR:g} of the
    closed form (the paper's are within 0.115). Real networks are as in training: in train mode, with the
    paper's initialisation. Their interval is over networks, because all samples of a network share its
    initialisation.
    """
    compatible: list[set[Start]] = []
    for data, role in {ask.scale.data(role): role for role in PLACES}.items():
        classes = num_classes(role, ask.scale)
        expected = expected_initial_margin(classes)
        real = initial_margins(role, ask.scale, ask.folder, ask.data_dir)
        if real is None:
            ask.missing.add(data)
        networks = {start: margins.double().mean(-1).tolist() for start, margins in (real or {}).items()}
        simulated = simulate_initial_margins(classes).double().tolist()
        for kind, values in (("real", networks.get(AS_TRAINED, [])), ("simulated", simulated)):
            name = f"{data}: mean {kind} margin − closed form ({signed(expected)})"
            yield Part(name, mean(x - expected for x in values), above=-MARGIN_ERROR, below=MARGIN_ERROR)
        ranges = {start: inference.one_more(values) for start, values in networks.items()}
        for start, ends in ranges.items():
            told = f"mean {signed(float(np.mean(networks[start])))}, single networks {' to '.join(map(signed, ends))}"
            yield f"{data}, {start}: {told}"
        printed = find("table:correct_param", row="", data=data, measure="expected_margin") if data == role else None
        if printed is not None and networks:
            compatible.append({start for start, (low, high) in ranges.items() if low <= -printed.mean <= high})
            yield f"the paper's {signed(-printed.mean)} on {PLACES[role]} fits {_starts(compatible[-1])}"
    if len(compatible) > 1:
        yield f"all of the paper's numbers fit {_starts(set.intersection(*compatible))}"


def _starts(found: set[Start]) -> str:
    """`a single network in train mode, paper's initialisation`."""
    return "a single network in " + (" or in ".join(sorted(map(str, found))) or "none of these states")


@_claim(8, "Shift and scale repair MAE and AGCE")
def _repair(ask: Inquiry) -> Iterator[Part | str]:
    """With many classes and clean labels, test accuracy with the fix is higher than without, and nearer to CE's
    than to that without (points, same seed).
    """
    names = ("CE", *(f"{loss}{fix}" for loss in ("MAE", "AGCE") for fix in ("", " shift", " scale")))
    accuracy = {name: ask.last(Cell(FIXED[name], MANY)) for name in names}
    for loss in ("MAE", "AGCE"):
        plain = accuracy[loss]
        for name in (f"{loss} {fix}" for fix in experiments.TUNED_FIXES):
            yield Part(f"{name}: test accuracy − {loss}'s", mean(accuracy[name] - plain), above=0)
            nearer = mean(accuracy[name] - (plain + accuracy["CE"]) / 2)
            yield Part(f"{name}: test accuracy − half-way from {loss}'s to CE's", nearer, above=0)
    yield f"test accuracy: {_listed(accuracy)}"


def _gains(ask: Inquiry, one: Row, other: Row, noises: Iterable[str]) -> dict[str, float]:
    """By noise, how much higher one's test accuracy is, on average over seeds."""
    return {x: _average(ask.last(Cell(one, MANY, x)) - ask.last(Cell(other, MANY, x))) for x in noises}


@_claim(9, "Under label noise, scaling is better than shifting")
def _scale_or_shift(ask: Inquiry) -> Iterator[Part | str]:
    """With many classes, for MAE and for AGCE, test accuracy is higher scaled than shifted (same seeds), on
    average over noise settings.
    """
    noises = _noises("table:fix", "table:fix-symmetric", "table:fix-asymmetric")
    for name in ("MAE", "AGCE"):
        gains = _gains(ask, FIXED[f"{name} scale"], FIXED[f"{name} shift"], noises)
        yield Part(f"{name}: test accuracy, scale − shift, over noise settings", mean(gains.values()), above=0)
        yield f"{name}: {_listed(gains)}"


@_claim(10, "Scaled MAE is at least as good as NCE+AUL")
def _state_of_the_art(ask: Inquiry) -> Iterator[Part | str]:
    """On average over the settings of the main table, its test accuracy is less than {NOT_INFERIOR:g} point
    below.
    """
    gains = _gains(ask, MAE_SCALE, experiments.NCE_AUL, (CLEAN, *_noises("table:fix")))
    yield Part("test accuracy, MAE scale − NCE+AUL, over settings", mean(gains.values()), above=-NOT_INFERIOR)
    yield _listed(gains)
    fitted = {row.name: ask.last(Cell(row, MANY), "train_accuracy") for row in (MAE_SCALE, experiments.NCE_AUL)}
    yield f"training accuracy with clean labels, which shows what is due to underfitting: {_listed(fitted)}"


@_claim(11, "Losses with a higher snr lose less accuracy under label noise")
def _snr(ask: Inquiry) -> Iterator[Part | str]:
    """Over six losses, snr has a positive rank correlation with test accuracy with noise − without (means over
    seeds), on average over noise settings.
    """
    found = {}
    for noise in _noises("table:snr"):
        cells = [(Cell(row, FEW, noise), Cell(row, FEW)) for row in experiments.ROBUST]
        snr = [_average(ask.last(noisy, "snr")) for noisy, _ in cells]
        kept = [_average(ask.last(noisy) - ask.last(clean)) for noisy, clean in cells]
        found[noise] = math.nan if (rho := rank_correlation(snr, kept).value) is None else rho
    average = mean(found.values()).within(-1, 1)
    yield Part("rank correlation of snr and accuracy kept, over noise settings", average, above=0)
    yield _listed(found)


def _slope(curve: Array) -> float:
    return float(stats.linregress(range(len(curve)), curve).slope)


@_claim(12, "Robust losses separate the margins of clean and noisy samples and unlearn the noisy ones; CE does not")
def _dynamics(ask: Inquiry) -> Iterator[Part | str]:
    """On average over noise settings with few classes, for SCE and for MAE: P(margin of a clean sample > that
    of a noisy one) after the last epoch is higher than with CE, and mean margins of noisy samples fall over the
    epochs (slope of the least squares line); with CE they rise.
    """
    noises = _noises("table:snr", "figure:dynamics-noise")
    separation = {
        name: {x: _average(ask.last(Cell(ROBUST[name], FEW, x), SEPARATION)) for x in noises}
        for name in ("CE", "SCE", "MAE")
    }
    for name, parted in separation.items():
        slopes = {x: _average(ask.each(Cell(ROBUST[name], FEW, x), "mean_margin_noisy", _slope)) for x in noises}
        claimed = {"above": 0.0} if name == "CE" else {"below": 0.0}
        yield Part(f"{name}: slope of noisy samples' mean margin per epoch", mean(slopes.values()), **claimed)
        yield f"{name}: {_listed(slopes)}"
        if name != "CE":
            more = mean(parted[noise] - separation["CE"][noise] for noise in noises)
            yield Part(f"{name}: separation of clean and noisy margins − CE's", more, above=0)
        yield f"{name}: separation {_listed(parted)}"


def _long(row: Row, noise: str, learning_rate: float) -> Cell:
    return Cell(row, "mnist", noise, "schedules", learning_rate)


def _blocks(ask: Inquiry, cell: Cell, measure: str, seed: int) -> Array:
    """The epochs of one run in blocks, of which the last one is whole."""
    curve = ask.curve(cell, measure, seed)
    count = len(curve) // EPOCHS_PER_BLOCK
    return curve[len(curve) - count * EPOCHS_PER_BLOCK :].reshape(count, EPOCHS_PER_BLOCK)


def _within_a_run(first: Array, second: Array) -> Estimate:
    return inference.difference(first.tolist(), second.tolist()).widened(ALLOWANCE)


@_claim(13, "With long training at a constant learning rate MAE memorises noise, too")
def _memorising(ask: Inquiry) -> Iterator[Part | str]:
    """On MNIST, from the block of {EPOCHS_PER_BLOCK} epochs with the best test accuracy to the last, test
    accuracy falls and the share of fitted wrong labels rises, each by more than {SUBSTANTIAL:g} points, at each
    noise rate and in every seed. Each interval is over the epochs of one run and {ALLOWANCE:g} point wider on
    both sides.
    """
    for noise in _noises("figure:schedules"):
        cell = _long(MAE, noise, 0.01)
        for seed in range(ask.seeds(cell)):
            run = f"{noise}, seed {seed}"
            test, fitted = (_blocks(ask, cell, measure, seed) for measure in ("test_accuracy", "accuracy_noisy"))
            if len(test) > 1 and len(fitted) == len(test):
                best = int(test.mean(1).argmax())
                fall, rise = _within_a_run(test[best], test[-1]), _within_a_run(100 * fitted[-1], 100 * fitted[best])
                yield Part(f"{run}: fall of test accuracy, over epochs", fall, above=SUBSTANTIAL)
                yield Part(f"{run}: rise of the % of wrong labels fitted, over epochs", rise, above=SUBSTANTIAL)
                yield f"{run}: best block {best + 1} of {len(test)}, test accuracy {test[best].mean():.4g}"
            else:
                yield f"{run}: not run, or less than two blocks of epochs"


@_claim(14, "CE becomes robust with a larger learning rate, and with a smaller one")
def _learning_rates(ask: Inquiry) -> Iterator[Part | str]:
    """On MNIST, over the last {EPOCHS_PER_BLOCK} epochs, test accuracy at 0.1 and at 0.0001 is more than
    {SUBSTANTIAL:g} points above that at 0.01, at each noise rate and in every seed. Each interval is over the
    epochs of one run and {ALLOWANCE:g} point wider on both sides.
    """
    usual = 0.01
    for noise in _noises("figure:schedules"):
        for seed in range(ask.seeds(_long(CE, noise, usual))):
            rates = (usual, 0.0001, 0.1)
            last = [_blocks(ask, _long(CE, noise, x), "test_accuracy", seed)[-1:].ravel() for x in rates]
            for rate, block in zip(rates[1:], last[1:], strict=True):
                name = f"{noise}, seed {seed}: CE's test accuracy at {rate:g} − at {usual:g}, over epochs"
                yield Part(name, _within_a_run(block, last[0]), above=SUBSTANTIAL)


@_claim(15, "More noise wants a larger τ")
def _tau(ask: Inquiry) -> Iterator[Part | str]:
    """For scaled MAE with many classes, the τ with the highest test accuracy has a positive rank correlation
    with the rate of symmetric noise. Another seed might have preferred any τ that is nearly as good, so the
    mean of all τ within {NEAR_BEST[0]:g}, {NEAR_BEST[1]:g}, {NEAR_BEST[2]:g}, {NEAR_BEST[3]:g} and
    {NEAR_BEST[4]:g} points of the highest is taken in turn. The value is the median of these correlations and
    the interval covers all of theirs, so that the verdict does not depend on where the line is drawn.
    """
    best: dict[float, list[float]] = {tie: [] for tie in NEAR_BEST}
    for noise in (CLEAN, *SYMMETRIC):
        cells = [Cell(replace(MAE_SCALE, tau=tau), MANY, noise) for tau in TAUS]
        seeds = min(map(ask.seeds, cells))  # some are in a table with more seeds
        accuracy = [_average(ask.last(cell, seeds=seeds)) for cell in cells]
        values = np.array(accuracy)  # if one is missing, there is no best
        for tie, taus in best.items():
            taus.append(_average(np.array(TAUS)[values >= values.max() - tie]))
        told = {f"τ = {tau:g}": value for tau, value in zip(TAUS, accuracy, strict=True)}
        yield f"{noise}, n = {seeds}: {_listed(told)}"
    rates = [parse(noise).rate for noise in (CLEAN, *SYMMETRIC)]
    found = []
    for tie, taus in best.items():
        found.append(rank_correlation(rates, taus))
        rho = math.nan if found[-1].value is None else found[-1].value
        told = dict(zip((CLEAN, *SYMMETRIC), taus, strict=True)) | {"correlation": rho}
        yield f"mean of all τ within {tie:g} points of the best: {_listed(told)}"
    yield Part("rank correlation of noise rate and best τ", inference.spanning(found), above=0)
