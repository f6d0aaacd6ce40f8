"""What is run is what the paper ran: its specs against its tables and the notes, and each trains for real steps."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from curriculoss import data as data_sets
from curriculoss import models
from curriculoss.paper import experiments, plans
from curriculoss.paper.artefacts import ARTEFACTS
from curriculoss.paper.experiments import Cell
from curriculoss.paper.plans import Plan, estimate
from curriculoss.paper.published import find, published
from curriculoss.paper.scales import CPU, PAPER, QUICK, SCALES, SMOKE
from curriculoss.runs.task import make_criterion, make_network, make_task

REAL = os.environ.get("CURRICULOSS_DATA", "")
NETWORKS = {"mnist": ("cnn4", (1, 28, 28), 10, 422_090), "cifar10": ("cnn8", (3, 32, 32), 10, 1_639_794),
            "cifar100": ("resnet34", (3, 32, 32), 100, 21_328_292)}  # fmt: skip


def _printed(measure: str, data: str) -> float:
    found = find("app:setting", row="", data=data, measure=measure)
    assert found is not None
    return found.mean


@pytest.mark.parametrize("data", [*NETWORKS, *experiments.WEBVISION])
@pytest.mark.parametrize("measure", ["learning_rate", "weight_decay", "epochs", "batch_size", "momentum"])
def test_paper_scale_has_the_settings_of_the_papers_appendix(data, measure):
    assert getattr(PAPER.spec(Cell(experiments.CE, data)), measure) == _printed(measure, data)


@pytest.mark.parametrize("data", NETWORKS)
def test_paper_scale_has_the_networks_of_the_notes_at_full_size(data):
    name, shape, num_classes, count = NETWORKS[data]
    spec = PAPER.spec(Cell(experiments.CE, data))
    network = models.make_network(name, shape, num_classes)
    assert (spec.network, spec.width, spec.subset, spec.schedule, spec.augment) == (name, 1.0, None, "cosine", "auto")
    assert sum(each.numel() for each in network.parameters()) == count


def test_webvision_is_a_full_resnet50():
    specs = [PAPER.spec(Cell(experiments.CE, data)) for data in experiments.WEBVISION]
    assert {(spec.network, spec.width, spec.subset) for spec in specs} == {("resnet50", 1.0, None)}
    assert [spec.data for spec in specs] == list(experiments.WEBVISION)


def test_underfitting_is_shown_at_the_learning_rate_of_its_caption():
    rates = {PAPER.spec(cell).learning_rate for cell in ARTEFACTS["table:underfit"].cells}
    assert (
        rates
        == {0.1}
        == {each.mean for each in published() if each.source == "table:ulearn" and each.measure == "learning_rate"}
    )


@pytest.mark.parametrize(
    ("source", "rows"), [("table:underfit_param", experiments.UNDERFIT), ("table:robust_param", experiments.ROBUST)]
)
def test_hyperparameters_are_those_that_the_paper_prints(source, rows):
    printed = {(each.row, each.measure): each.mean for each in published() if each.source == source}
    ours = {(row.name, key): value for row in rows for key, value in row.params.items() if not row.ours}
    assert ours == printed


def test_nce_aul_has_the_coefficients_of_the_notes():
    assert experiments.NCE_AUL.params == {"alpha": 10.0, "beta": 0.015, "a": 6.0, "q": 3.0}


@pytest.mark.parametrize("name", ["table:fix", "table:fix-symmetric", "table:fix-asymmetric"])
def test_every_fix_has_the_tau_that_the_paper_tuned_for_its_noise(name):
    checked = 0
    for cell in ARTEFACTS[name].cells:
        spec = PAPER.spec(cell)
        if cell.row.fix in ("shift", "scale"):
            printed = find("table:correct_param", row=cell.row.name, noise=cell.noise, measure="tau")
            assert printed is not None and (spec.fix, spec.tau) == (cell.row.fix, printed.mean)
            checked += 1
        else:
            assert spec.tau is None
    assert checked == 20


def test_webvisions_taus_are_those_of_its_table():
    for cell in ARTEFACTS["table:webvision"].cells:
        if cell.row.fix is not None:
            printed = find("table:correct_real", row=cell.row.name, data=cell.data, measure="tau")
            assert printed is not None and PAPER.spec(cell).tau == printed.mean


@pytest.mark.parametrize("name", [name for name, each in ARTEFACTS.items() if each.kind == "table" and each.cells])
def test_a_table_has_the_rows_and_columns_of_the_papers(name):
    printed = {(each.row, each.data, each.noise or "clean") for each in published()
               if each.source == ARTEFACTS[name].source and each.measure == "test_accuracy"}  # fmt: skip
    noisy = {(each.row, each.data, each.noise) for each in published()
             if each.source == ARTEFACTS[name].source and each.measure == "snr"}  # fmt: skip
    ours = {
        (cell.row.name, cell.data, cell.noise) for cell in ARTEFACTS[name].cells if not (cell.row.ours or cell.ours)
    }
    human = {(row, "cifar100", "human") for row in ("CE", "GCE", "NCE", "NCE+AUL")}  # "/" in the paper
    assert ours == printed | noisy | (human if name == "table:fix" else set())


@pytest.mark.parametrize("name", ["figure:dynamics", "figure:dynamics-noise", "figure:dynamics-losses"])
def test_a_figure_of_dynamics_has_the_panels_of_the_papers(name):
    printed = [(each.row, each.noise) for each in published() if each.source == ARTEFACTS[name].source]
    assert [(cell.row.name, cell.noise) for cell in ARTEFACTS[name].cells] == printed


@pytest.mark.parametrize(
    ("scale", "rates", "epochs"),
    [(QUICK, experiments.RATES, 100), (PAPER, experiments.RATES, 100), (CPU, experiments.MORE_RATES, 400)],
)
def test_schedules_are_mae_at_one_constant_learning_rate_and_ce_at_several(scale, rates, epochs, tmp_path):
    specs = Plan(ARTEFACTS["figure:schedules"], scale, tmp_path, 1).runs().values()
    assert {(s.data, s.epochs, s.schedule) for s in specs} == {("mnist", epochs, "constant")}
    assert sorted((s.loss, s.learning_rate, s.noise) for s in specs) == sorted(
        (loss, rate, noise) for loss, rate in (("mae", 0.01), *(("ce", rate) for rate in rates))
        for noise in ("symmetric:0.2", "symmetric:0.6")
    )  # fmt: skip


@pytest.mark.parametrize(("scale", "count"), [(QUICK, 12), (SMOKE, 0), (PAPER, 0), (CPU, 12)])
def test_stand_ins_for_webvision_with_noise_of_our_own_are_where_a_scale_has_them(scale, count):
    shown = scale.shown(ARTEFACTS["table:webvision"].cells)
    assert len(shown) == 12 + count
    assert {scale.spec(cell).noise for cell in shown if cell.ours} <= {"symmetric:0.2"}


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_cells_that_mean_the_same_share_a_run(scale, tmp_path):
    everything = Plan(ARTEFACTS["claims"], scale, tmp_path).runs()
    single = sum(len(Plan(each, scale, tmp_path).runs()) for name, each in ARTEFACTS.items() if name != "claims")
    assert len(everything) < single
    assert len({spec.hash for spec in everything.values()}) == len(everything)


def test_more_seeds_are_asked_for_the_main_tables_only(tmp_path):
    main = {"table:underfit", "table:fix", "table:snr"}
    scale = replace(CPU, seeds=dict.fromkeys(main, 3))
    plans = {name: Plan(each, scale, tmp_path) for name, each in ARTEFACTS.items()}
    summaries = {name for name in ARTEFACTS if name.startswith("figure:summary-")}
    assert {name for name, plan in plans.items() if plan.seeds == 3} == main | summaries
    more = [Plan(ARTEFACTS[name], scale, tmp_path).runs() for name in summaries]
    assert {path for some in more for path in some} <= {path for name in main for path in plans[name].runs()}
    assert replace(plans["table:fix"], wanted_seeds=2).seeds == 2


def test_the_scale_of_the_paper_has_its_number_of_runs(tmp_path):
    for name, artefact in ARTEFACTS.items():
        if artefact.kind == "table" and artefact.cells:
            own = {each.runs for each in published() if each.source == artefact.source and not each.from_other_paper}
            assert {Plan(artefact, PAPER, tmp_path).seeds} == own - {None}, name


def test_estimates_measure_each_kind_of_run_once_and_grow_with_the_epochs(monkeypatch):
    measured, measure = [], plans._seconds_per_epoch
    monkeypatch.setattr(plans, "_seconds_per_epoch", lambda *given: measured.append(measure(*given)) or measured[-1])
    spec = replace(SMOKE.spec(Cell(experiments.CE, "cifar10")), subset=256)
    robust = replace(spec, loss="mae", fix="scale", tau=2.6, noise="symmetric:0.4", seed=1)
    assert estimate([replace(spec, epochs=3), replace(robust, epochs=8)], jobs=2) == pytest.approx(11 * measured[0] / 2)
    assert len(measured) == 1
    assert measured[0] > 0


def _steps(cell, folder, steps):
    """Real steps of SGD: how far the parameters got from where they were."""
    spec = replace(PAPER.spec(cell), batch_size=4)
    task = make_task(spec, data_dir=folder)
    network = make_network(spec, task)
    criterion = make_criterion(spec, task, network)
    optimizer = torch.optim.SGD(network.parameters(), lr=spec.learning_rate, momentum=spec.momentum)
    before = [each.detach().clone() for each in network.parameters()]
    for place, (inputs, target, _) in enumerate(task.batches(spec, torch.device("cpu")).epoch(0)):
        loss = criterion(network(inputs), target)
        assert torch.isfinite(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if place + 1 == steps:
            break
    return max(float((now.detach() - then).abs().max()) for now, then in zip(network.parameters(), before, strict=True))


@pytest.mark.skipif(not REAL, reason="the published files are not here: set CURRICULOSS_DATA to their folder")
@pytest.mark.parametrize("data", NETWORKS)
def test_paper_specs_train_on_the_real_data(data):
    assert _steps(Cell(experiments.CE, data), REAL, 3) > 0


@pytest.mark.slow
def test_the_webvision_spec_trains_on_its_layout(web):
    assert _steps(Cell(replace(experiments.MAE_SCALE, tau=2.0), "webvision-50"), web, 2) > 0


@pytest.mark.skipif(not REAL, reason="the published files are not here: set CURRICULOSS_DATA to their folder")
@pytest.mark.parametrize("noise", [experiments.SYMMETRIC[1], experiments.ASYMMETRIC[3], experiments.HUMAN])
def test_every_row_of_the_main_tables_gives_gradients_on_its_noise(noise):
    task = make_task(PAPER.spec(Cell(experiments.CE, "cifar100", noise)), data_dir=REAL)
    assert task.noise_rate == pytest.approx(0.4, abs=0.0021)
    logits = torch.randn(64, 100, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for row in experiments.FIXED:
        criterion = make_criterion(PAPER.spec(Cell(row, "cifar100", noise)), task, torch.nn.Identity())
        (gradient,) = torch.autograd.grad(criterion(logits, task.given[:64]), logits)
        assert torch.isfinite(gradient).all() and gradient.abs().max() > 0


def test_names_of_data_at_every_scale_are_known():
    for scale in SCALES.values():
        assert {scale.data(role) for role in scale.settings if "/" not in role} <= set(data_sets.available())
