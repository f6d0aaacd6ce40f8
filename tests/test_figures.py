"""Figures say what the numbers say; how they look, eyes have judged."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.patches import StepPatch
from torch import Tensor
from torch.nn import functional as F

from curriculoss.decomposition import decompose
from curriculoss.figures import (
    COLOURS,
    MARGIN_COLOURS,
    PAPER_SETTINGS,
    all_curricula,
    empirical_weight,
    weight_over_initial_margins,
)
from curriculoss.fixing import mean_initial_weight
from curriculoss.initial import simulate_initial_margins
from curriculoss.losses import CE, GCE, MAE, Curriculum, Scaled, registry
from curriculoss.report.ridges import MarginHistory, chosen_epochs, draw_dynamics, margin_ridges


def curves(axes: Axes) -> list[tuple[Tensor, Tensor]]:
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) > 1]
    return [tuple(torch.tensor(x, dtype=torch.float64) for x in line.get_data()) for line in lines]  # type: ignore[misc]


def points(axes: Axes) -> list[tuple[float, float]]:
    return [tuple(float(x[0]) for x in line.get_data()) for line in axes.get_lines() if len(line.get_xdata()) == 1]  # type: ignore[misc]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def legend(axes: Axes) -> Legend:
    found = axes.get_legend()
    assert found is not None
    return found


def listed(axes: Axes) -> list[str]:
    return [text.get_text() for text in legend(axes).get_texts()]


def rendered(figure: Figure, kind: str = "png") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind)
    return file.getvalue()


def test_curves_are_weights_with_unit_peak() -> None:
    (axes,) = weight_over_initial_margins({"MAE": MAE(), "GCE": GCE()}, 100).axes
    drawn = curves(axes)
    for (margin, height), curriculum in zip(drawn, (MAE(), GCE()), strict=True):
        torch.testing.assert_close(height, curriculum.weight(margin) / curriculum.peak.weight)
        assert float(height.max()) == pytest.approx(1, abs=1e-3)


def test_points_are_mean_initial_weights() -> None:
    margins = simulate_initial_margins(100)
    (axes,) = weight_over_initial_margins({"CE": CE(), "MAE": MAE()}, 100).axes
    expected = [(float(margins.mean()), mean_initial_weight(c, 100)) for c in (CE(), MAE())]
    assert points(axes) == [pytest.approx(point, rel=1e-5) for point in expected]


def test_curves_are_listed_with_their_means_in_their_colours() -> None:
    curricula = {"mae": MAE(), "ce": CE(), "gce": GCE(0.3)}
    (axes,) = weight_over_initial_margins(curricula, (10, 100)).axes
    means = {name: [mean_initial_weight(c, k) for k in (10, 100)] for name, c in curricula.items()}
    assert listed(axes) == [f"{name}  {few:#.2g} → {many:#.2g}" for name, (few, many) in means.items()]
    colours = [line.get_color() for line in axes.get_lines() if len(line.get_xdata()) > 1]
    assert [line.get_color() for line in legend(axes).get_lines()] == colours and len(set(colours)) == 3


def test_a_single_curve_has_its_own_name() -> None:
    (axes,) = weight_over_initial_margins(Scaled(GCE(0.3), 0.5), 100).axes
    mean = mean_initial_weight(Scaled(GCE(0.3), 0.5), 100)
    assert listed(axes) == [f"Scaled(GCE(q=0.3), alpha=0.5)  {mean:#.2g}"]


def test_each_number_of_classes_has_its_histogram() -> None:
    figure = weight_over_initial_margins({"CE": CE(), "MAE": MAE()}, (10, 100))
    (axes,) = figure.axes
    histograms = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    assert len(histograms) == 2
    for histogram, num_classes in zip(histograms, (10, 100), strict=True):
        values, edges, _ = (torch.as_tensor(x) if x is not None else None for x in histogram.get_data())
        middle = (edges[1:] + edges[:-1]) / 2  # type: ignore[index]
        assert float((values * middle).sum() / values.sum()) == pytest.approx(  # type: ignore[union-attr, operator]
            float(simulate_initial_margins(num_classes).mean()), abs=0.02
        )
    assert "grey: initial margins" in figure.get_suptitle() and "with 10 → 100 classes" in figure.get_suptitle()


def test_measured_margins_take_the_place_of_simulated_ones() -> None:
    margins = torch.linspace(-3, -1, 100)
    (axes,) = weight_over_initial_margins(MAE(), 100, initial_margins=margins).axes
    assert points(axes)[0] == pytest.approx((-2.0, mean_initial_weight(MAE(), initial_margins=margins)), rel=1e-5)
    with pytest.raises(ValueError, match=r"belong to one number of classes, got num_classes=\[10, 100\]"):
        weight_over_initial_margins(MAE(), (10, 100), initial_margins=margins)


@pytest.mark.parametrize("wrong", [registry.get("nce"), {"NCE": registry.get("nce")}, [MAE()], "mae"], ids=str)
def test_what_has_no_weight_function_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"expects curricula, one such as MAE\(\) or several by label, got"):
        weight_over_initial_margins(wrong)


def test_axes_are_named() -> None:
    (axes,) = weight_over_initial_margins(MAE(), 10, title="ten classes").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("margin Δ", "weight w(Δ), peak = 1")
    assert axes.get_title(loc="left") == "ten classes"


@dataclass(frozen=True)
class Novel(MAE):
    """Somebody's own curriculum."""


class SecondTerm:
    """No curriculum."""


def test_every_registered_curriculum_has_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._factories, "novel", Novel)
    monkeypatch.setitem(registry._factories, "second", SecondTerm)
    figure = all_curricula()
    shown = {axes.get_title(loc="left"): axes for axes in figure.axes}
    factories = dict.fromkeys(registry.factory(name) for name in registry.available())
    assert len(shown) == sum(isinstance(make(), Curriculum) for make in factories)
    assert {"MAE", "NOVEL"} <= set(shown)
    assert not {"RCE", "SECOND"} & set(shown)
    for name, settings in PAPER_SETTINGS.items():
        assert len(curves(shown[name.upper()])) == len(settings)


def test_a_panel_says_what_its_curves_start_with() -> None:
    axes = next(axes for axes in all_curricula((10, 1000)).axes if axes.get_title(loc="left") == "SCE")
    means = [f"{mean_initial_weight(registry.get('sce', q=0.7), k):#.2g}" for k in (10, 1000)]
    assert listed(axes)[0] == f"SCE(q=0.7)  {means[0]} → {means[1]}"


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(80, 5, generator=generator), torch.randint(5, (80,), generator=generator)


def test_measured_weights_are_drawn_over_margins() -> None:
    found = decompose(F.cross_entropy, *samples())
    axes = empirical_weight(found, initial_margins=simulate_initial_margins(5)).axes[0]
    offsets = torch.as_tensor(axes.collections[0].get_offsets())
    torch.testing.assert_close(offsets, torch.stack(found.curve(), 1))
    assert axes.get_title(loc="left") == "standard form: the weight is a function of the margin"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("margin Δ", "weight ‖∇L‖₁/2")
    assert listed(axes) == ["initial margins"]


def test_colours_show_gradients_off_the_margin() -> None:
    logits, target = samples()
    found = decompose(lambda s, y: F.cross_entropy(s, y, label_smoothing=0.3, reduction="none"), logits, target)
    axes, bar = empirical_weight(found).axes
    assert axes.get_title(loc="left") == "not of the standard form"
    assert bar.get_ylabel() == "share of the gradient off ∇Δ"
    red = torch.as_tensor(axes.collections[0].get_facecolor())[:, 0]  # from blue to vermillion
    off = found.off_share[found.margin.argsort()]
    assert float(torch.corrcoef(torch.stack([red, off]))[0, 1]) > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figures_are_rendered_without_a_warning(kind: str) -> None:
    found = decompose(F.cross_entropy, *samples())
    far = simulate_initial_margins(100) - 20
    for figure in (all_curricula(), empirical_weight(found), weight_over_initial_margins(MAE(), initial_margins=far)):
        assert len(rendered(figure, kind)) > 5000


@pytest.mark.slow
def test_figures_are_the_same_every_time() -> None:
    assert rendered(all_curricula()) == rendered(all_curricula())


def test_drawing_prints_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    all_curricula()
    weight_over_initial_margins(MAE())
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_figures_do_without_pyplot() -> None:
    """Pyplot keeps every figure alive and may look for a display."""
    code = "import sys, curriculoss.figures as f; f.all_curricula(); sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_descriptions_are_short() -> None:
    curricula = MAE(), GCE(0.123456), Scaled(MAE(), 1 / 3)
    assert [c.label for c in curricula] == ["MAE", "GCE(q=0.123)", "Scaled(MAE, alpha=0.333)"]


def history(epochs: int = 4, *, curriculum: Curriculum | None = MAE()) -> MarginHistory:  # noqa: B008
    """Clean samples move right, noisy ones left; there are a hundred times more of the former."""
    edges = np.linspace(-30, 30, 241)
    middle = (edges[1:] + edges[:-1]) / 2
    counts = {
        name: np.stack([size * np.exp(-0.5 * (middle - way * epoch) ** 2) for epoch in range(epochs)]).astype(int)
        for name, size, way in (("clean", 100_000, 1), ("noisy", 1_000, -1))
    }
    counts = {name: np.pad(each, ((0, 0), (1, 1))) for name, each in counts.items()}
    return MarginHistory(edges, counts, curriculum, 12.34)


def test_densities_have_peak_one_where_the_margins_are() -> None:
    made = history()
    middle = (made.edges[1:] + made.edges[:-1]) / 2
    for name, way in (("clean", 1), ("noisy", -1)):
        density = made.densities(3)[name]
        assert density.max() == 1 and len(density) == len(middle)
        assert float((density * middle).sum() / density.sum()) == pytest.approx(3 * way, abs=0.01)


def test_samples_in_open_bins_are_counted_with_their_neighbours() -> None:
    edges, counts = np.arange(-20.0, 21.0), np.zeros((1, 42), int)
    counts[0, [0, -1]] = 5
    density = MarginHistory(edges, {"all": counts}).densities(0)["all"]
    assert np.flatnonzero(density > 0.5).tolist() == [0, 39]


def test_the_span_holds_nearly_all_margins() -> None:
    low, high = history(4).span([0, 3])
    assert low == pytest.approx(-3 - 2.5, abs=0.5) and high == pytest.approx(3 + 2.5, abs=0.5)


def test_what_has_no_samples_has_no_density_and_no_ridge() -> None:
    made = MarginHistory(np.linspace(-30, 30, 241), {"all": np.zeros((2, 242), int)})
    assert made.densities(1) == {}
    assert not margin_ridges(made).axes[0].patches
    assert margin_ridges(MarginHistory(np.linspace(-30, 30, 241), {})).axes


@pytest.mark.parametrize("count", [1, 2, 5, 9, 10, 20, 200])
def test_chosen_epochs_have_both_ends_and_no_epoch_twice(count: int) -> None:
    chosen = chosen_epochs(count)
    assert (chosen[0], chosen[-1]) == (0, count - 1)
    assert len(set(chosen)) == len(chosen) == min(count, 9) and chosen == sorted(chosen)


def test_ridges_show_epochs_downwards_with_the_weight_over_them() -> None:
    (axes,) = margin_ridges(history(4)).axes
    assert texts(axes) == ["1", "2", "3", "4", "epoch"]
    places = [text.xy[1] for text in axes.texts[:4]]  # type: ignore[attr-defined]
    assert places == [3, 2, 1, 0]
    assert len(axes.patches) == 8
    margin, height = curves(axes)[-1]
    torch.testing.assert_close(height / height.max(), MAE().weight(margin) / MAE().weight(margin).max())
    assert float(height.max()) < axes.get_ylim()[1]


def test_a_loss_without_a_weight_function_has_ridges_alone() -> None:
    with_weight, without = (len(margin_ridges(history(curriculum=c)).axes[0].get_lines()) for c in (MAE(), None))
    assert with_weight == without + 1


def test_dynamics_share_their_scale_and_say_how_it_ended() -> None:
    figure = draw_dynamics({"CE": history(3, curriculum=CE()), "$\\frac$ & <MAE>": history(9)})
    left, right = figure.axes
    assert left.get_xlim() == right.get_xlim()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["CE", "$\\frac$ & <MAE>"]
    assert all("test accuracy 12.3 %" in texts(axes) for axes in figure.axes)
    (key,) = figure.legends
    assert [text.get_text() for text in key.get_texts()] == ["clean samples", "noisy samples", "weight w(Δ)"]
    assert len(rendered(figure)) > 5000 and len(rendered(figure, "svg")) > 5000


def test_dynamics_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one history of margins, got none"):
        draw_dynamics({})


def test_margins_have_other_colours_than_the_first_losses() -> None:
    assert not set(MARGIN_COLOURS.values()) & set(COLOURS[:4])
