"""The paper's figures say what records, histograms and formulae say; how they look, eyes have judged."""

from __future__ import annotations

import csv
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.text import Text

from curriculoss import MAE
from curriculoss.errors import RunError
from curriculoss.fixing import underfitting
from curriculoss.initial import expected_initial_margin
from curriculoss.losses import Curriculum, registry
from curriculoss.paper import experiments, run_figures, starting_margins, weight_figures
from curriculoss.paper.artefacts import ARTEFACTS, Artefact
from curriculoss.paper.canvas import LOSS_COLOURS, NOT_RUN_YET, FigureInputs, label
from curriculoss.paper.epochs import MEASURES, RunName, RunRecord, RunRecords
from curriculoss.paper.experiments import Cell
from curriculoss.paper.plans import RUNS, Plan
from curriculoss.paper.run_figures import FIGURES, save
from curriculoss.paper.scales import CPU, SMOKE, Scale
from curriculoss.paper.starting_margins import AS_TRAINED, STARTS, initial_margins, initial_spec
from curriculoss.runs.folder import Run
from curriculoss.runs.training import train

pytestmark = pytest.mark.slow

TINY = replace(
    SMOKE,
    settings={name: {**each, "subset": 200, "epochs": 2} for name, each in SMOKE.settings.items() if "/" not in name},
)
PANELS = {
    "figure:weights": 3,
    "figure:elr": 2,
    "figure:dynamics": 3,
    "figure:dynamics-noise": 9,
    "figure:dynamics-losses": 9,
    "figure:schedules": 3,
    "figure:hyperparameters": 9,
    "figure:simulated-margins": 6,
    "figure:shift-scale": 1,
    "figure:snr-weights": 1,
    "figure:summary-underfitting": 1,
    "figure:summary-memorising": 2,
    "figure:summary-fix": 1,
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the initial margins of the smoke scale, and nothing else."""
    folder = tmp_path_factory.mktemp("measured")
    for data in ("cifar10", "cifar100", "webvision-50"):
        initial_margins(data, SMOKE, folder)
    return folder


@pytest.fixture(scope="module")
def trained(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and the runs of one figure: two losses of its three."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copy(measured / starting_margins.INITIAL_FILE, folder)
    plan = Plan(ARTEFACTS["figure:dynamics"], TINY, folder)
    for path, spec in plan.runs().items():
        if spec.loss != "sce":
            train(spec, path)
    plan.take_up()
    return folder


def drawn(name: str, folder: Path, records: RunRecords | None = None, scale: Scale = SMOKE, seeds: int = 1) -> Figure:
    plan = Plan(ARTEFACTS[name], scale, folder, seeds)
    return FIGURES[name](FigureInputs(plan, RunRecords.read(scale, folder) if records is None else records, folder))


def fabricated(
    artefact: Artefact, measure: str, seeds: int = 1
) -> tuple[RunRecords, dict[tuple[Cell, int], np.ndarray]]:
    """Runs of three epochs with random numbers."""
    random, curves, found = np.random.default_rng(0), {}, []
    for cell in SMOKE.shown(artefact.cells):
        for seed in range(seeds):
            curves[cell, seed] = random.uniform(0.1, 1, 3)
            curve = {**dict.fromkeys(MEASURES, (None,) * 3), measure: tuple(curves[cell, seed].tolist())}
            found.append(RunRecord(RunName.of(SMOKE.spec(cell, seed)), (1, 2, 3), curve))
    return RunRecords(SMOKE, found), curves


def lines(axes: Axes) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Curves by their name in the legend."""
    return {
        str(line.get_label()): (np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float))
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_")
    }


def words(figure: Any) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def unit(loss: Curriculum, margin: np.ndarray) -> np.ndarray:
    return (loss.weight(torch.from_numpy(margin)) / loss.peak.weight).numpy()


def test_every_figure_can_be_drawn_and_no_other() -> None:
    assert set(FIGURES) == set(PANELS) == {name for name in ARTEFACTS if ARTEFACTS[name].kind == "figure"}


@pytest.mark.parametrize("name", PANELS)
def test_a_figure_has_its_panels_with_nothing_run_and_those_of_runs_say_so(name: str, measured: Path) -> None:
    figure = drawn(name, measured)
    assert len(figure.axes) == PANELS[name]
    said = [axes for axes in figure.axes if NOT_RUN_YET in words(axes)]
    assert len(said) == (len(figure.axes) if ARTEFACTS[name].cells else 0)


def test_effective_learning_rates_are_those_of_the_records(measured: Path) -> None:
    artefact = ARTEFACTS["figure:elr"]
    records, curves = fabricated(artefact, "effective_learning_rate")
    relative, absolute = drawn("figure:elr", measured, records).axes
    expected = {cell.row.name: curve for (cell, _), curve in curves.items()}
    for name, row in (("CE", "CE"), ("NCE, upper bound", "NCE")):
        np.testing.assert_allclose(lines(relative)[name][1], expected[row] / expected[row].max())
    for row in (experiments.GOOD_AUL, experiments.BAD_AUL):
        epochs, drawn_curve = lines(absolute)[label(row)]
        np.testing.assert_allclose(drawn_curve, 1e4 * expected[row.name])
        np.testing.assert_array_equal(epochs, [1, 2, 3])


def test_schedules_are_the_mean_over_seeds_with_their_range(measured: Path) -> None:
    artefact = ARTEFACTS["figure:schedules"]
    records, curves = fabricated(artefact, "test_accuracy", seeds=2)
    figure = drawn("figure:schedules", measured, records, seeds=2)
    left, *by_noise = figure.axes
    assert len(lines(left)) == 4 and [len(lines(axes)) for axes in by_noise] == [3, 3] and "n = 2" in words(figure)
    for cell in SMOKE.shown(artefact.cells):
        both = np.stack([curves[cell, seed] for seed in range(2)])
        rate = cell.noise.partition(":")[2]
        if cell.learning_rate == 0.01:
            np.testing.assert_allclose(lines(left)[f"{cell.row.name}, noise {rate}"][1], both.mean(0))
        if cell.row.name == "CE":
            right = by_noise[["0.2", "0.6"].index(rate)]
            np.testing.assert_allclose(lines(right)[f"{cell.learning_rate:g}"][1], both.mean(0))
    shaded = [each for each in left.collections if isinstance(each, PolyCollection)]
    cell = next(cell for cell in artefact.cells if cell.learning_rate == 0.01 and cell.row.name == "CE")
    both = np.stack([curves[cell, seed] for seed in range(2)])
    heights = shaded[0].get_paths()[0].vertices[:, 1]
    assert len(shaded) == 4 and math.isclose(heights.max(), both.max()) and math.isclose(heights.min(), both.min())


def test_a_curve_that_was_not_run_says_so_beside_those_that_were(measured: Path) -> None:
    artefact = ARTEFACTS["figure:schedules"]
    records, _ = fabricated(artefact, "test_accuracy")
    cells = SMOKE.shown(artefact.cells)
    some = [records[SMOKE.spec(cell).hash] for cell in cells if cell.row.name == "CE"]
    left, *others = drawn("figure:schedules", measured, RunRecords(SMOKE, some)).axes
    assert {name for name in lines(left) if NOT_RUN_YET in name} == {
        f"MAE, noise {rate}: {NOT_RUN_YET}" for rate in (0.2, 0.6)
    }
    assert not any(NOT_RUN_YET in words(axes) for axes in others)


def test_dynamics_shows_the_runs_that_there_are(trained: Path) -> None:
    figure = drawn("figure:dynamics", trained, scale=TINY)
    assert "scale smoke" in words(figure) and "seed 0" in words(figure)
    records = RunRecords.read(TINY, trained)
    for axes, cell, paper in zip(
        figure.axes, ARTEFACTS["figure:dynamics"].cells, ("57.74", "79.56", "83.88"), strict=True
    ):
        said, record = words(axes), records.of(cell)
        assert axes.get_title("left").startswith(label(cell.row)) and f"paper {paper} %" in said
        assert (record is None) == (cell.row.loss == "sce") == (NOT_RUN_YET in said)
        if record is not None:
            assert f"test accuracy {record.last('test_accuracy'):.2f} %" in said
            ridges = axes.patches
            assert len(ridges) == 2 * 2  # clean and noisy, two epochs
            margin, weight = max(axes.get_lines(), key=lambda line: len(line.get_xdata())).get_data()
            shape = unit(registry.get(cell.row.loss), np.asarray(margin))
            np.testing.assert_allclose(np.asarray(weight) / shape, np.asarray(weight)[0] / shape[0])


def test_dynamics_can_be_drawn_again_without_the_runs(trained: Path, tmp_path: Path) -> None:
    first = save(drawn("figure:dynamics", trained, scale=TINY), tmp_path / "first", "figure")
    kept = run_figures.take_up_histories(trained, ())
    for path, spec in Plan(ARTEFACTS["figure:dynamics"], TINY, trained).runs().items():
        if Run(path).finished:
            for kind in ("clean", "noisy"):
                assert kept[f"{spec.hash}-{kind}"].tolist() == Run(path).arrays("histograms")[kind].tolist()
    alone = tmp_path / "alone"
    shutil.copytree(trained, alone, ignore=shutil.ignore_patterns(RUNS))
    again = save(drawn("figure:dynamics", alone, scale=TINY), tmp_path / "again", "figure")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    (alone / run_figures.HISTORIES_FILE).unlink()
    with pytest.warns(UserWarning, match=r"of 2 runs .* margins were not kept: restore margin-histograms\.npz"):
        assert words(drawn("figure:dynamics", alone, scale=TINY)).count(run_figures.NOT_KEPT) == 2


def test_margins_that_were_cut_are_an_error_that_says_what_to_do(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    drawn("figure:dynamics", tmp_path, scale=TINY)
    kept = tmp_path / run_figures.HISTORIES_FILE
    whole = kept.read_bytes()
    kept.write_bytes(whole[:300])
    with pytest.raises(RunError, match=r"cannot read .*margin-histograms\.npz: it is not a complete .*; restore it"):
        drawn("figure:dynamics", tmp_path, scale=TINY)
    kept.unlink()
    drawn("figure:dynamics", tmp_path, scale=TINY)
    assert kept.read_bytes() == whole
    (tmp_path / starting_margins.INITIAL_FILE).write_bytes((tmp_path / starting_margins.INITIAL_FILE).read_bytes()[:-3])
    with pytest.raises(RunError, match=r"cannot read .*initial-margins\.csv: line 12289 is not whole"):
        drawn("figure:weights", tmp_path)


def test_a_run_whose_margins_cannot_be_read_does_not_stop_the_others(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (tmp_path / run_figures.HISTORIES_FILE).unlink(missing_ok=True)
    next((tmp_path / RUNS).glob("mae*/histograms.npz")).write_bytes(b"PK")
    with pytest.warns(UserWarning, match=r"of 1 runs .* margins were not kept"):
        assert words(drawn("figure:dynamics", tmp_path, scale=TINY)).count(run_figures.NOT_KEPT) == 1


def test_a_run_that_diverged_says_so(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    plan = Plan(ARTEFACTS["figure:dynamics"], TINY, tmp_path)
    (path,) = (path for path, spec in plan.runs().items() if spec.loss == "sce")
    path.mkdir()
    (path / "failed.json").write_text('{"epoch": 1, "reason": "the loss is nan"}')
    assert "diverged" in words(drawn("figure:dynamics", tmp_path, scale=TINY).axes[1])


def test_noise_that_stands_for_other_noise_is_named(measured: Path) -> None:
    said = words(drawn("figure:dynamics-noise", measured))
    assert "instance 0.4 stands for human noise" in said
    assert "stands for" not in words(drawn("figure:dynamics", measured))


def test_losses_are_in_the_panel_of_their_verdict(measured: Path) -> None:
    figure = drawn("figure:weights", measured)
    margins = initial_margins("cifar100", SMOKE, measured)[AS_TRAINED].flatten()
    standard = [
        loss for row in experiments.UNDERFIT if isinstance(loss := registry.get(row.loss, **row.params), Curriculum)
    ]
    for axes, level in zip(figure.axes, weight_figures.LEVELS, strict=True):
        expected = [loss for loss in standard if underfitting(loss, initial_margins=margins).level == level]
        found = lines(axes)
        assert [name.replace("†", "").split("  ")[0] for name in found] == [loss.label for loss in expected]
        for (margin, height), loss in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(height, unit(loss, margin))
        assert len([patch for patch in axes.patches if isinstance(patch, StepPatch)]) == 2


def test_the_degrees_of_underfitting_are_the_papers(measured: Path) -> None:
    """Rows of its table between the rules: 76 to 77 %, 51 to 60 %, below 10 %."""
    severe = drawn("figure:weights", measured).axes[2]
    assert [name.partition("(")[0].split("  ")[0] for name in lines(severe)] == ["MAE", "AUL", "AGCE"]


def test_a_loss_has_one_colour(measured: Path) -> None:
    for name in ("figure:weights", "figure:snr-weights"):
        for axes in drawn(name, measured).axes:
            for line in axes.get_lines():
                if not str(line.get_label()).startswith("_"):
                    loss = str(line.get_label()).partition("(")[0].split("  ")[0].lower()
                    assert line.get_color() == LOSS_COLOURS[loss]


def test_each_hyperparameter_has_a_panel_of_unit_weights(measured: Path) -> None:
    figure = drawn("figure:hyperparameters", measured)
    assert [axes.get_title("left") for axes in figure.axes] == [
        "FL", "AUL, a = 2", "AUL, q = 0.1", "AGCE, a = 1", "AGCE, q = 0.5", "AEL", "GCE", "SCE", "TCE",
    ]  # fmt: skip
    for axes, (name, fixed, key, values) in zip(figure.axes, weight_figures.HYPERPARAMETERS, strict=True):
        for (said, (margin, height)), value in zip(lines(axes).items(), values, strict=True):
            assert said == f"{key} = {value:g}"
            np.testing.assert_allclose(height, unit(registry.get(name, **fixed, **{key: value}), margin))
            assert 0.99 < height.max() <= 1 + 1e-9


def test_simulated_margins_have_their_mean_at_the_closed_form(measured: Path) -> None:
    for axes, classes in zip(drawn("figure:simulated-margins", measured).axes, (10, 10, 100, *[1000] * 3), strict=True):
        curve, closed = axes.get_lines()
        margin, density = (np.asarray(x, float) for x in curve.get_data())
        expected = expected_initial_margin(classes)
        assert closed.get_xdata()[0] == expected  # type: ignore[index]
        assert abs(np.average(margin, weights=density) - expected) < 0.06
        assert math.isclose(np.trapezoid(density, margin), 1, abs_tol=0.01)
        assert len(axes.patches) == 4


def test_data_that_are_not_here_have_a_simulated_curve_alone(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"lacks [\w-]+: its margins before training cannot be measured; give"):
        figure = drawn("figure:simulated-margins", tmp_path, scale=CPU)
    for axes, classes in zip(figure.axes, (10, 10, 100, 50, 100, 200), strict=True):
        assert f"K = {classes}" in words(axes) and "no such data here" in words(axes)
        assert len(axes.get_lines()) == 2 and not axes.patches
    with pytest.warns(UserWarning, match=r"lacks cifar\d+: its margins"):
        said = words(drawn("figure:weights", tmp_path, scale=CPU))
    assert "CIFAR-100 (simulated)" in said and "training samples" not in said


def test_both_fixes_give_many_classes_the_weight_of_few(measured: Path) -> None:
    (axes,) = drawn("figure:shift-scale", measured).axes
    few, many = expected_initial_margin(10), expected_initial_margin(100)
    wanted = unit(MAE(), np.array([few]))[0]
    found = {name.split("  ")[0]: float(np.interp(many, *curve)) for name, curve in lines(axes).items()}
    assert math.isclose(found["shifted"], wanted, abs_tol=1e-3) and math.isclose(found["scaled"], wanted, abs_tol=1e-3)
    assert found["MAE"] < wanted / 5
    peaks = {name.split("  ")[0]: margin[height.argmax()] for name, (margin, height) in lines(axes).items()}
    assert peaks == pytest.approx({"MAE": 0, "shifted": many - few, "scaled": 0}, abs=0.03)


def test_robust_weights_have_the_hyperparameters_of_the_robustness_table(measured: Path) -> None:
    (axes,) = drawn("figure:snr-weights", measured).axes
    losses = "CE", "SCE(q=0.95)", "GCE(q=0.4)", "AUL(a=2, q=2)", "MAE", "AGCE(a=3, q=4)"
    assert tuple(name.split("  ")[0] for name in lines(axes)) == losses


def test_the_same_figure_has_the_same_bytes(measured: Path, tmp_path: Path) -> None:
    name = "figure:weights"
    figure = drawn(name, measured)
    first = save(figure, tmp_path / "a", "figure")
    assert [path.name for path in first] == ["figure.pdf", "figure.svg", "figure.png"]
    again, anew = save(figure, tmp_path / "b", "figure"), save(drawn(name, measured), tmp_path / "c", "figure")
    for one, two, three in zip(first, again, anew, strict=True):
        assert one.read_bytes() == two.read_bytes() == three.read_bytes() and one.stat().st_size > 5_000
    assert b"CreationDate" not in first[0].read_bytes() and b"<dc:date>" not in first[1].read_bytes()


def test_titles_stay_inside_the_figure_and_off_each_other(measured: Path) -> None:
    for name in ("figure:dynamics-losses", "figure:simulated-margins", "figure:weights"):
        figure = drawn(name, measured)
        figure.draw_without_rendering()
        inside = figure.bbox.padded(1)
        titles = [axes._left_title.get_window_extent() for axes in figure.axes]  # type: ignore[attr-defined]
        assert all(inside.contains(*box.p0) and inside.contains(*box.p1) for box in titles), name
        assert not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i]), name


def test_initial_margins_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = initial_margins("cifar10", SMOKE, tmp_path)
    assert first is not None and set(first) == set(STARTS) and {x.shape for x in first.values()} == {(8, 128)}
    assert abs(first[AS_TRAINED].mean() - expected_initial_margin(10)) < 0.5
    with (tmp_path / starting_margins.INITIAL_FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["data", "network", "num_classes", "mode", "initialisation", "seed", "margin"]
    assert {(row["data"], row["network"], row["num_classes"]) for row in rows} == {("digits", "cnn4 width 0.25", "10")}
    assert all(len(row["margin"].partition(".")[2]) == 4 for row in rows)
    text = (tmp_path / starting_margins.INITIAL_FILE).read_bytes()
    monkeypatch.setattr(starting_margins, "make_task", None)  # cannot be called
    again, shared = (initial_margins(data, SMOKE, tmp_path) for data in ("cifar10", "mnist"))
    assert all(torch.equal(x, again[start]) and torch.equal(x, shared[start]) for start, x in first.items())
    assert (tmp_path / starting_margins.INITIAL_FILE).read_bytes() == text
    with pytest.raises(TypeError, match="not callable"):
        initial_margins("cifar100", SMOKE, tmp_path)


def test_other_data_are_kept_beside_those_that_are_there(measured: Path) -> None:
    with (measured / starting_margins.INITIAL_FILE).open(encoding="utf-8", newline="") as file:
        counts = [row["num_classes"] for row in csv.DictReader(file)]
    assert {classes: counts.count(classes) for classes in counts} == {"10": 4096, "100": 4096, "1000": 4096}


def test_initial_margins_of_data_that_are_not_here_are_none(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="lacks cifar100"):
        assert initial_margins("cifar100", CPU, tmp_path, tmp_path) is None
    assert not (tmp_path / starting_margins.INITIAL_FILE).exists()


def test_kept_margins_need_no_data(tmp_path: Path) -> None:
    rows = [f"cifar100,resnet34,100,{start.mode},{start.initialisation},{seed},{-seed - at}.1234\n"
            for at, start in enumerate(STARTS) for seed in range(8) for _ in range(128)]  # fmt: skip
    head = "data,network,num_classes,mode,initialisation,seed,margin\n"
    (tmp_path / starting_margins.INITIAL_FILE).write_text(head + "".join(rows))
    kept = initial_margins("cifar100", CPU, tmp_path, tmp_path)
    assert kept is not None and [x[5, 7].item() for x in kept.values()] == pytest.approx(
        [-5.1234, -6.1234, -7.1234, -8.1234]
    )


def test_real_data_are_measured_with_the_papers_own_network() -> None:
    named = {data: initial_spec(data, CPU) for data in ("mnist", "cifar10", "cifar100", "webvision-50")}
    assert {data: (spec.network, spec.width, spec.subset) for data, spec in named.items()} == {
        "mnist": ("cnn4", 1.0, None),
        "cifar10": ("cnn8", 1.0, None),
        "cifar100": ("resnet34", 1.0, None),
        "webvision-50": ("cnn8", 0.25, None),  # Tiny ImageNet stands for it, a narrow network for its own
    }
    small = initial_spec("cifar100", SMOKE)
    assert (small.data, small.network, small.width) == ("digits-100", "cnn4", 0.25)
