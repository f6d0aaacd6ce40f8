"""Claims on made-up records: each holds where it plainly does, fails where it plainly fails, and is open otherwise."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch

from curriculoss.initial import simulate_initial_margins
from curriculoss.losses import MAE
from curriculoss.paper import claim_results, claims, inference, rewriting
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.epochs import MEASURES, SEPARATION, RunName, RunRecord, RunRecords
from curriculoss.paper.experiments import STAND_IN, TAUS, Cell
from curriculoss.paper.inference import FAILS, HOLDS, UNDECIDED, Estimate, Part
from curriculoss.paper.published import find
from curriculoss.paper.scales import SCALES, SMOKE, Scale
from curriculoss.paper.starting_margins import STARTS, Start
from curriculoss.runs.spec import RunSpec

pytestmark = pytest.mark.slow

# With three seeds, however many results/ has by now.
CPU = replace(SCALES["cpu"], seeds=dict.fromkeys(("table:underfit", "table:fix", "table:snr"), 3))
Curves = dict[str, list[float]]
Change = Callable[[Cell, Curves], None]

MANY = {"CE": 70, "SCE": 69, "GCE": 68, "NCE+MAE": 60, "NCE+MAE (MAE × 4)": 61, "AUL": 55, "AGCE": 40, "NCE": 25,
        "MAE": 10, "AUL†": 8, "AGCE†": 4, "NCE+AUL": 58, "AGCE shift": 62, "AGCE scale": 66, "MAE shift": 61,
        "MAE scale": 65, "MAE logit bias": 60}  # fmt: skip
RATES = {"CE": 0.09, "GCE": 0.04, "SCE": 0.05, "AUL": 0.02, "AGCE": 0.009, "MAE": 3e-4, "AUL†": 2e-4, "AGCE†": 1e-4}
ROBUSTNESS = ["CE", "GCE", "SCE", "AGCE", "AUL", "MAE"]
WANTED = {"clean": 0, "symmetric:0.2": 0, "symmetric:0.4": 1, "symmetric:0.6": 2, "symmetric:0.8": 3}  # best τ's place
SHAPES = {"NCE": [1, 0.5, 0.3, 0.2], "AUL": [0.5, 1, 0.8, 0.7], "CE": [1, 0.9, 0.8, 0.7]}
EPOCHS = 40  # on MNIST, four blocks


def rate_of(noise: str) -> float:
    return {"clean": 0.0, "human": 0.4}[noise] if ":" not in noise else float(noise.partition(":")[2])


def run(cell: Cell, seed: int) -> Curves:
    """One run of a world in which every claim holds."""
    luck = Random(f"{cell.row.name} {cell.data} {cell.noise} {seed}")
    curves = {measure: [luck.gauss(0.5, 0.01) for _ in range(4)] for measure in MEASURES}
    name, rate = cell.row.name, rate_of(cell.noise)
    if cell.data == "mnist":
        memorised = [luck.gauss(0, 0.1) + epoch for epoch in range(EPOCHS)]
        robust = name == "CE" and cell.learning_rate != 0.01
        curves["test_accuracy"] = [97 + luck.gauss(0, 0.1) - (0 if robust else 0.5 * x) for x in memorised]
        curves["accuracy_noisy"] = [0.01 * x for x in memorised]
        return curves
    if cell.data == "cifar100":
        accuracy = MANY[name] - 30 * rate
        if name == "MAE scale" and cell.noise in WANTED and cell.row.tau in TAUS:
            accuracy -= 1.3 * abs(TAUS.index(cell.row.tau) - WANTED[cell.noise])
        shape = SHAPES.get(name, SHAPES["CE"])
        curves["mean_weight_this_epoch"] = shape
        curves["effective_learning_rate"] = [RATES.get(name, 0.005) * share * luck.gauss(1, 1e-3) for share in shape]
    elif cell.noise == "clean" or cell.experiment == STAND_IN:
        accuracy = 90
    else:
        place = ROBUSTNESS.index(name)
        accuracy = 90 - rate * (60 - 10 * place)
        curves["snr"] = [0.3 + 0.5 * place] * 4
        curves[SEPARATION] = [0.6 + 0.05 * place + luck.gauss(0, 0.01)] * 4
        slope = luck.gauss(0.2 if name == "CE" else -0.2, 0.02)
        curves["mean_margin_noisy"] = [-2 + slope * epoch for epoch in range(4)]
    for measure in ("train_accuracy", "test_accuracy"):
        curves[measure] = [accuracy + luck.gauss(0, 0.1)] * 4
    return curves


def planned(scale: Scale) -> list[tuple[Cell, int]]:
    found = {}
    for artefact in ARTEFACTS.values():
        for cell in artefact.cells:
            if scale.shown([cell]):
                fixed = replace(cell, row=replace(cell.row, tau=cell.row.tau_for(cell.noise)))  # one τ, one name
                found |= {(scale.spec(cell, seed).hash): (fixed, seed) for seed in range(artefact.seeds(scale))}
    return list(found.values())


def records(change: Change | None = None, scale: Scale = CPU, drop: Callable[[Cell], bool] | None = None) -> RunRecords:
    found = []
    for cell, seed in planned(scale):
        if drop is not None and drop(cell):
            continue
        curves = run(cell, seed)
        if change is not None:
            change(cell, curves)
        epochs = range(1, (EPOCHS if cell.data == "mnist" else 4) + 1)
        known = {name: tuple(curve) for name, curve in curves.items()}
        found.append(RunRecord(RunName.of(scale.spec(cell, seed)), tuple(epochs), known))
    return RunRecords(scale, found)


@pytest.fixture(autouse=True)
def specs_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For speed: tests here ask for the same thousand again and again."""
    monkeypatch.setattr(Scale, "spec", lambda scale, cell, seed=0: _spec(scale.name, cell, seed))


SPEC = Scale.spec


@cache
def _spec(scale: str, cell: Cell, seed: int) -> RunSpec:
    return SPEC(SCALES[scale], cell, seed)


@pytest.fixture(autouse=True)
def real_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight networks per data set, which start as simulated in train mode, and one higher in eval mode."""

    def margins(role: str, scale: Scale, folder: Path, data_dir: object) -> dict[Start, torch.Tensor]:
        simulated = simulate_initial_margins(claims.num_classes(role, scale), 1_024).view(8, 128)
        return {start: simulated + (start.mode == "eval") for start in STARTS}

    monkeypatch.setattr(claims, "initial_margins", margins)


def verdicts(known: RunRecords, folder: Path) -> dict[int, claim_results.ClaimResult]:
    return {each.number: each for each in claims.check_all(known, folder=folder)}


def on(measure: str, value: Callable[[Cell, list[float]], list[float]], **where: object) -> Change:
    """Give a measure another curve in the cells whose data, noise and row's name are these."""

    def change(cell: Cell, curves: Curves) -> None:
        facts = {"data": cell.data, "noise": cell.noise, "row": cell.row.name}
        if all(facts[key] == wanted for key, wanted in where.items()):
            curves[measure] = value(cell, curves[measure])

    return change


def moved(by: float) -> Callable[[Cell, list[float]], list[float]]:
    return lambda cell, curve: [value + by for value in curve]


def fewer_for_more_noise(cell: Cell, curve: list[float]) -> list[float]:
    if cell.noise not in WANTED or cell.row.tau not in TAUS:
        return curve
    return [50.0 - 1.3 * abs(TAUS.index(cell.row.tau) - (3 - WANTED[cell.noise]))] * 4


FAILING: dict[int, Change] = {
    2: on("train_accuracy", moved(-50), data="cifar10", noise="clean", row="MAE"),
    3: on("effective_learning_rate", lambda cell, curve: [1 / x for x in curve], data="cifar100", noise="clean"),
    4: on("effective_learning_rate", lambda cell, curve: curve[::-1], data="cifar100", row="NCE"),
    5: on("effective_learning_rate", lambda cell, curve: [400 * x for x in curve], data="cifar100", row="AUL†"),
    6: on("train_accuracy", moved(-40), data="cifar100", row="NCE+MAE"),
    8: on("test_accuracy", moved(-50), data="cifar100", row="AGCE shift"),
    9: on("test_accuracy", moved(-10), data="cifar100", row="MAE scale"),
    10: on("test_accuracy", moved(15), data="cifar100", row="NCE+AUL"),
    11: on("snr", lambda cell, curve: [9 - x for x in curve]),
    12: on(SEPARATION, moved(-0.4), row="MAE"),
    13: on("test_accuracy", lambda cell, curve: [97.0] * EPOCHS, data="mnist", row="MAE"),
    14: on("test_accuracy", lambda cell, curve: [97 - 0.1 * x for x in range(EPOCHS)], data="mnist", row="CE"),
    15: on("test_accuracy", fewer_for_more_noise, data="cifar100", row="MAE scale"),
}


def test_every_claim_holds_where_it_plainly_does(tmp_path: Path) -> None:
    found = verdicts(records(), tmp_path)
    assert list(found) == list(range(1, 16))
    assert {number: each.verdict for number, each in found.items()} == dict.fromkeys(found, HOLDS)
    assert all(each.missing == 0 and each.evidence and each.interval is not None for each in found.values())


def test_epochs_without_a_test_are_not_missing(tmp_path: Path) -> None:
    def change(cell: Cell, curves: Curves) -> None:
        if cell.data != "mnist":
            curves["test_accuracy"][:-1] = [None] * 3  # type: ignore[list-item]

    assert {each.verdict for each in verdicts(records(change), tmp_path).values()} == {HOLDS}


@pytest.mark.parametrize("number", FAILING)
def test_a_claim_does_not_hold_where_it_plainly_fails(number: int, tmp_path: Path) -> None:
    found = verdicts(records(FAILING[number]), tmp_path)
    assert found[number].verdict == FAILS
    assert FAILS in found[number].evidence[0] + " ".join(found[number].evidence)


def test_a_weight_that_never_falls_refutes_claim_5_whatever_the_schedule_does(tmp_path: Path) -> None:
    rising = on("mean_weight_this_epoch", lambda cell, curve: sorted(curve), data="cifar100", row="AUL")
    assert verdicts(records(rising), tmp_path)[5].verdict == FAILS


def test_taus_that_are_nearly_as_good_as_the_best_do_not_decide_claim_15(tmp_path: Path) -> None:
    flat = on("test_accuracy", lambda cell, curve: [50 - 0.1 * (50 - fewer_for_more_noise(cell, curve)[0])] * 4,
              data="cifar100", row="MAE scale")  # fmt: skip
    assert verdicts(records(flat), tmp_path)[15].verdict == UNDECIDED


def test_ways_of_estimating_that_disagree_decide_nothing() -> None:
    low, high = Estimate(-0.5, 5, (-0.9, -0.1)), Estimate(0.9, 4, (0.2, 1.0))
    assert Part("", inference.spanning([high, high]), above=0).verdict == HOLDS
    assert Part("", inference.spanning([low, low]), above=0).verdict == FAILS
    assert inference.spanning([low, high]) == Estimate(pytest.approx(0.2), 4, (-0.9, 1.0))
    assert inference.spanning([high, Estimate(0.9, 2)]).interval is None


def test_noisy_samples_that_ce_unlearns_refute_claim_12(tmp_path: Path) -> None:
    falling = on("mean_margin_noisy", lambda cell, curve: [-2 - 0.1 * x for x in range(4)], row="CE")
    assert verdicts(records(falling), tmp_path)[12].verdict == FAILS


def test_another_gradient_refutes_claim_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "IN_P", {MAE(): lambda p: 1.0001 * (1 - p)})
    assert verdicts(records(), tmp_path)[1].verdict == FAILS


@pytest.mark.parametrize("by", [-0.5, 0.5])
def test_real_margins_elsewhere_refute_claim_7(by: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    margins = claims.initial_margins
    monkeypatch.setattr(claims, "initial_margins", lambda *given: {k: x + by for k, x in margins(*given).items()})
    assert verdicts(records(), tmp_path)[7].verdict == FAILS


def test_claim_7_says_which_networks_the_papers_margins_fit(tmp_path: Path) -> None:
    said = " ".join(verdicts(records(), tmp_path)[7].evidence)
    told = "a single network in train mode, paper's initialisation or in train mode, torch's initialisation"
    assert f"all of the paper's numbers fit {told}" in said
    assert "the paper's −5.097 on CIFAR-100 fits a single network in train" in said
    assert "cifar100, eval mode, torch's initialisation: mean −4.1" in said


def test_without_runs_and_data_all_but_the_gradients_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "initial_margins", lambda *given: None)
    found = verdicts(RunRecords(CPU, ()), tmp_path)
    assert {number for number, each in found.items() if each.verdict != UNDECIDED} == {1}
    assert all(each.missing > 0 for number, each in found.items() if number != 1)
    assert "nan" not in json.dumps([each.evidence for each in found.values()])


@pytest.mark.parametrize(
    ("data", "row", "touched"),
    [
        ("cifar100", "AGCE†", {2, 3}),
        ("cifar100", "NCE", {2, 4, 6}),
        ("cifar100", "AUL", {2, 3, 5}),
        ("cifar100", "AGCE shift", {8, 9}),
        ("cifar100", "NCE+AUL", {10}),
        ("cifar10", "SCE", {11, 12}),
        ("mnist", "MAE", {13}),
        ("mnist", "CE", {14}),
    ],
)
def test_a_claim_whose_runs_are_missing_is_undecided_and_others_are_not(
    data: str, row: str, touched: set[int], tmp_path: Path
) -> None:
    found = verdicts(records(drop=lambda cell: cell.data == data and cell.row.name == row), tmp_path)
    assert {number for number, each in found.items() if each.verdict == UNDECIDED} == touched
    assert {number for number, each in found.items() if each.missing} == touched


def test_one_seed_does_not_decide_what_rests_on_seeds(tmp_path: Path) -> None:
    found = verdicts(records(scale=SMOKE), tmp_path)
    undecided = {number for number, each in found.items() if each.verdict == UNDECIDED}
    assert undecided == {2, 4, 5, 6, 8}
    assert all(found[number].n == 1 and found[number].missing == 0 for number in undecided)


def test_seeds_that_disagree_leave_a_claim_undecided(tmp_path: Path) -> None:
    luck = iter((-45.0, 45.0, 0.0))
    apart = on("train_accuracy", lambda cell, curve: moved(next(luck))(cell, curve), data="cifar100", row="NCE+MAE")
    found = verdicts(records(apart), tmp_path)[6]
    assert found.verdict == UNDECIDED and found.missing == 0 and found.n == 3


def test_few_epochs_leave_memorising_undecided(tmp_path: Path) -> None:
    short = records()
    short = RunRecords(CPU, (replace(record, curves={name: curve[:15] for name, curve in record.curves.items()})
                               for record in short.values()))  # fmt: skip
    found = verdicts(short, tmp_path)
    assert found[13].verdict == UNDECIDED and found[13].missing == 0


def test_small_effects_of_single_runs_are_not_believed(tmp_path: Path) -> None:
    slight = on("test_accuracy", lambda cell, curve: [97 - 0.08 * x for x in range(EPOCHS)], data="mnist", row="MAE")
    assert verdicts(records(slight), tmp_path)[13].verdict == UNDECIDED


@pytest.mark.parametrize("number", [13, 14])
def test_one_seed_that_fails_refutes_what_every_seed_must_show(number: int, tmp_path: Path) -> None:
    two = replace(CPU, seeds={**CPU.seeds, "figure:schedules": 2})
    good, bad = records(scale=two), records(FAILING[number], scale=two)
    mixed = [(bad if seed else good)[two.spec(cell, seed).hash] for cell, seed in planned(two)]
    assert claims.check_all(good, folder=tmp_path)[number - 1].verdict == HOLDS
    found = claims.check_all(RunRecords(two, mixed), folder=tmp_path)[number - 1]
    assert found.verdict == FAILS and "seed 1" in found.statistic


@pytest.mark.parametrize(
    ("pair", "changed"),
    [(("MAE", "CE"), {2, 8, 12, 13}), (("MAE scale", "MAE shift"), {8, 9, 10}), (("NCE", "NCE+MAE"), {2, 4, 6})],
)
def test_swapping_two_losses_changes_the_files(pair: tuple[str, str], changed: set[int], tmp_path: Path) -> None:
    known = records()
    found = dict(known)
    cells = {(cell.row.name, cell.data, cell.noise, cell.experiment, cell.learning_rate, seed): cell
             for cell, seed in planned(CPU)}  # fmt: skip
    for (name, *rest, seed), cell in cells.items():
        other = cells.get((pair[1], *rest, seed))
        if name == pair[0] and other is not None:
            one, two = CPU.spec(cell, seed).hash, CPU.spec(other, seed).hash
            found[one], found[two] = (replace(known[x], name=known[y].name) for x, y in ((two, one), (one, two)))
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, some in ((before, known), (after, RunRecords(CPU, found.values()))):
        folder.mkdir()
        claim_results.write_claims(claims.check_all(some, folder=folder), folder)
    old, new = (json.loads((folder / "claims.json").read_text("utf-8")) for folder in (before, after))
    assert changed <= {a["number"] for a, b in zip(old, new, strict=True) if a["value"] != b["value"]}
    assert FAILS in {each["verdict"] for each in new}


def test_the_same_records_make_the_same_files(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        files = claim_results.write_claims(claims.check_all(records(), folder=folder), folder)
        assert [file.name for file in files] == ["claims.json", "claims.md"]
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1]
    rows = json.loads(contents[0][0])
    named = {"number", "claim", "counts", "statistic", "value", "n", "interval", "verdict", "evidence", "missing"}
    assert len(rows) == 15 and all(set(row) == named for row in rows)
    page = contents[0][1].decode()
    assert all(row["claim"] in page and all(line in page for line in row["evidence"]) for row in rows)
    assert claim_results.claims_text(claims.check_all(records(), folder=tmp_path)).count("\n") == 14


def test_more_seeds_of_the_tau_runs_are_asked_for(tmp_path: Path) -> None:
    one, three = (claims.check_all(records(), folder=tmp_path, seeds=seeds)[14] for seeds in (1, 3))
    assert one.missing == 0 and one.verdict == HOLDS
    assert three.missing > 0 and three.verdict == UNDECIDED


def test_the_seeds_asked_for_are_those_of_every_run(tmp_path: Path) -> None:
    found = claims.check_all(records(), folder=tmp_path, seeds=2)[5]
    assert found.n == 2 and found.missing == 0
    found = claims.check_all(records(), folder=tmp_path, seeds=4)[7]
    assert found.n == 3 and found.missing > 0


def printed(*sources: str) -> Change:
    """The paper's own numbers in place of the made-up ones, for three seeds that have its mean and its deviation."""
    seen: Counter[tuple[str, ...]] = Counter()
    names = {"train_accuracy": "train_accuracy", "test_accuracy": "test_accuracy", "effective_learning_rate": "alpha_t"}

    def change(cell: Cell, curves: Curves) -> None:
        where = {"row": cell.row.name, "data": cell.data, "noise": cell.noise}
        for measure, name in names.items():
            found = [number for x in sources if (number := find(x, **where, measure=name)) is not None]
            if found:
                away = (-1, 0, 1)[seen[measure, *where.values()] % 3]
                seen[measure, *where.values()] += 1
                curves[measure] = [found[0].mean + away * (0.3 if found[0].std is None else found[0].std)] * 4

    return change


@pytest.mark.parametrize(
    ("sources", "numbers"),
    [
        (("table:ulearn",), (2, 3, 6)),
        (("table:correct", "table:correct_symmetric", "table:correct_asymmetric"), (8, 9, 10)),
    ],
)
def test_the_papers_own_numbers_give_its_own_verdicts(
    sources: tuple[str, ...], numbers: tuple[int, ...], tmp_path: Path
) -> None:
    found = verdicts(records(printed(*sources)), tmp_path)
    assert {number: found[number].verdict for number in numbers} == dict.fromkeys(numbers, HOLDS)


def test_the_papers_own_snr_gives_its_own_verdict(tmp_path: Path) -> None:
    def change(cell: Cell, curves: Curves) -> None:
        where = {"row": cell.row.name, "data": cell.data}
        clean = find("table:snr", **where, noise="clean")
        diff, snr = (find("table:snr", **where, noise=cell.noise, measure=x) for x in ("diff", "snr"))
        if clean is not None:
            curves["test_accuracy"] = [clean.mean + (diff.mean if diff else 0)] * 4
            curves["snr"] = [snr.mean] * 4 if snr else curves["snr"]

    found = verdicts(records(change), tmp_path)[11]
    assert found.verdict == HOLDS and found.value == pytest.approx(0.782857)  # 0.371, 0.829, 0.943, 0.943, 0.829
    assert found.interval is not None and found.interval[1] == 1


def test_the_mean_has_students_interval() -> None:
    found = inference.mean([1.0, 2.0, math.nan, 3.0])
    assert found.value == 2 and found.n == 3
    assert found.interval == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), rel=1e-6)
    assert inference.mean([1.0, 2.0]) == Estimate(1.5, 2)
    assert inference.mean([]) == Estimate(None, 0)


def test_a_difference_of_blocks_has_welchs_interval() -> None:
    found = inference.difference([1.0, 2.0, 3.0], [10.0, 12.0, 14.0])
    error = math.sqrt(1 / 3 + 4 / 3)
    assert found.interval == pytest.approx((-10 - 4.302653 * error, -10 + 4.302653 * error), rel=1e-6)
    assert found.widened(1).interval == pytest.approx((-11 - 4.302653 * error, -9 + 4.302653 * error), rel=1e-6)
    assert inference.difference([1.0], [2.0]).widened(1).interval is None


def test_a_share_has_the_exact_interval() -> None:
    found = inference.share(0, 100)
    assert found.value == 0 and found.interval == pytest.approx((0, 1 - 0.025 ** (1 / 100)))


def test_a_rank_correlation_has_bonett_and_wrights_interval() -> None:
    first, second = range(8), (0, 1, 3, 5, 6, 7, 4, 2)  # Σd² = 42: ρ = 1 − 6·42/504
    found = inference.rank_correlation(first, second)
    assert found.value == pytest.approx(0.5) and found.n == 8
    width = 1.959964 * math.sqrt(1.125 / 5)
    ends = math.tanh(math.atanh(0.5) - width), math.tanh(math.atanh(0.5) + width)
    assert found.interval == pytest.approx(ends, rel=1e-6)


def test_a_perfect_order_of_few_is_not_certain() -> None:
    found = inference.rank_correlation(range(5), range(5))
    assert found.value == pytest.approx(1) and found.interval is not None
    assert 0 < found.interval[0] < 0.5 and found.interval[1] == pytest.approx(1)
    mirrored = inference.rank_correlation(range(5), range(5, 0, -1)).interval
    assert mirrored == pytest.approx((-found.interval[1], -found.interval[0]))


def test_rank_correlations_need_pairs_that_vary() -> None:
    assert inference.rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]) == Estimate(pytest.approx(1), 4)  # type: ignore[arg-type]
    assert inference.rank_correlation([1, 2, 3, 4, math.nan], [1, 2, 3, 4, 5]).n == 4
    assert inference.rank_correlation(range(6), [3] * 6).value == 0
    assert inference.rank_correlation([], []) == Estimate(None, 0)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [((0.1, 0.9), HOLDS), ((-0.1, 0.9), UNDECIDED), ((-2, -1), FAILS), ((0.5, 1.5), UNDECIDED), ((1.2, 3), FAILS),
     ((0, 0), FAILS), ((-1, 2), UNDECIDED), (None, UNDECIDED)],
)  # fmt: skip
def test_a_part_holds_if_all_of_its_interval_is_in_range(interval: tuple[float, float] | None, verdict: str) -> None:
    assert Part("", Estimate(0.5, 3, interval), above=0, below=1).verdict == verdict


def test_without_intervals_the_weakest_part_is_the_one_furthest_out_of_its_range() -> None:
    inside, out, further = (Part(f"{x}", Estimate(x, 1), below=10) for x in (7.0, 43.0, 60.0))
    rest = Part("none", Estimate(None, 0), above=0)
    for parts in ((inside, rest, further, out), (out, further, inside, rest)):
        assert claim_results.ClaimResult.of(2, "", "", parts, set()).statistic == "60.0"
    assert claim_results.ClaimResult.of(2, "", "", (rest, inside), set()).value == 7
    sure = Part("sure", Estimate(0.5, 3, (0.2, 0.8)), above=0)
    assert claim_results.ClaimResult.of(2, "", "", (sure, rest), set()).value is None


def test_a_claim_is_as_good_as_its_worst_part() -> None:
    holds, fails, is_open = (Part("", Estimate(x, 3, (x, x + 1)), above=0) for x in (1.0, -3.0, -0.5))
    assert inference.combined([holds, holds]) == HOLDS
    assert inference.combined([holds, is_open]) == UNDECIDED
    assert inference.combined([holds, is_open, fails]) == FAILS
    assert inference.combined([holds], missing=1) == UNDECIDED
    assert inference.combined([]) == UNDECIDED
