"""The monitor against naive recomputation from the whole history of a training."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from curriculoss import (
    CE,
    GCE,
    MAE,
    MSE,
    NCE,
    AutoLoss,
    Curriculum,
    Designed,
    Loss,
    PeerLoss,
    RobustLoss,
    Scaled,
    decompose,
    get,
    soft_margin,
)
from curriculoss.losses.criterion import Criterion
from curriculoss.monitor import Epoch, Histogram, Monitor, stream

SAMPLES, CLASSES = 50, 7


class Step(NamedTuple):
    logits: Tensor
    target: Tensor
    learning_rate: float
    index: Tensor  # type: ignore[assignment]  # a tuple's method, not used here
    clean_target: Tensor


def training(seed: int, epochs: int = 3, batch: int = 8) -> list[list[Step]]:
    """Every epoch sees a random part of the data; some targets are ignored, with padding for logits."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    given = torch.where(torch.rand(SAMPLES, generator=generator) < 0.4, (clean + 2) % CLASSES, clean)
    out = []
    for epoch in range(epochs):
        steps = []
        for index in torch.randperm(SAMPLES - 2, generator=generator)[: 40 + epoch].split(batch):
            logits = torch.randn(len(index), CLASSES, generator=generator) * (2 + 3 * epoch)
            target = given[index].masked_fill(torch.rand(len(index), generator=generator) < 0.1, -100)
            logits = logits.masked_fill((target == -100).unsqueeze(1), math.nan)
            steps.append(Step(logits, target, float(torch.rand((), generator=generator)), index, clean[index]))
        out.append(steps)
    return out


def follow(monitor: Monitor, run: list[list[Step]]) -> list[Epoch]:
    out = []
    for steps in run:
        for step in steps:
            monitor.update(**step._asdict())
        out.append(monitor.end_epoch())
    return out


def history(run: list[list[Step]]) -> dict[str, np.ndarray[Any, Any]]:
    """A row for each sample that counts at each step."""
    rows = []
    for epoch, steps in enumerate(run, 1):
        for logits, target, learning_rate, index, clean in steps:
            for s, y, i, c in zip(
                logits.double().numpy(), target.tolist(), index.tolist(), clean.tolist(), strict=True
            ):
                if y != -100:
                    others = np.delete(s, y)
                    margin = s[y] - others.max() - np.log(np.exp(others - others.max()).sum())
                    rows.append((epoch, margin, learning_rate, y != c, s.argmax() == y, i))
    columns = np.array(rows, dtype=np.float64).T
    return dict(zip(("epoch", "margin", "rate", "noisy", "correct", "index"), columns, strict=True))


def mean(values: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> float:
    return float((values * weights).sum() / weights.sum())


WEIGHTS: list[tuple[Curriculum, Callable[[Any], Any]]] = [
    (CE(), lambda p: 1 - p),
    (MAE(), lambda p: 4 * p * (1 - p)),
    (GCE(0.7), lambda p: p**0.7 * (1 - p) / ((0.7 / 1.7) ** 0.7 / 1.7)),
]


@pytest.mark.parametrize("chunk", [1, 5, 64, 2**15])
@pytest.mark.parametrize(("loss", "weight_of"), WEIGHTS, ids=lambda x: type(x).__name__)
def test_numbers_are_those_of_the_whole_history(
    loss: Curriculum, weight_of: Callable[[Any], Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BUFFERED_SAMPLES", chunk)
    run = training(seed=chunk)
    past = history(run)
    weight = weight_of(1 / (1 + np.exp(-past["margin"])))
    monitor = Monitor(loss, num_classes=CLASSES, num_samples=SAMPLES)
    for number, epoch in enumerate(follow(monitor, run), 1):
        now, so_far = past["epoch"] == number, past["epoch"] <= number
        clean, noisy = past["noisy"] == 0, past["noisy"] == 1
        rate, one = past["rate"], np.ones(len(weight))
        expected = {
            "epoch": number,
            "samples": now.sum(),
            "samples_clean": (now & clean).sum(),
            "samples_noisy": (now & noisy).sum(),
            "mean_margin": past["margin"][now].mean(),
            "mean_margin_clean": past["margin"][now & clean].mean(),
            "mean_margin_noisy": past["margin"][now & noisy].mean(),
            "accuracy": past["correct"][now].mean(),
            "accuracy_clean": past["correct"][now & clean].mean(),
            "accuracy_noisy": past["correct"][now & noisy].mean(),
            "mean_weight_this_epoch": mean(weight, rate * now),
            "mean_weight": mean(weight, rate * so_far),
            "effective_learning_rate_this_epoch": mean(weight * rate, one * now),
            "effective_learning_rate": mean(weight * rate, one * so_far),
            "weight_clean": mean(weight, rate * (so_far & clean)),
            "weight_noisy": mean(weight, rate * (so_far & noisy)),
            "snr": mean(weight, rate * (so_far & clean)) / mean(weight, rate * (so_far & noisy)),
            "snr_this_epoch": mean(weight, rate * (now & clean)) / mean(weight, rate * (now & noisy)),
            "noisy_share": mean(1.0 * noisy, rate * weight * now),
        }
        found = epoch.as_dict()
        found.pop("verdicts")
        assert found == pytest.approx(expected, rel=1e-5)
        assert json.loads(json.dumps(found)) == found
        for name, group in (("all", now), ("clean", now & clean), ("noisy", now & noisy)):
            edges = [-np.inf, *Histogram.edges().tolist(), np.inf]
            counts = np.histogram(past["margin"][group], edges)[0]
            assert getattr(epoch.histogram, name).tolist() == counts.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_samples_are_those_of_the_whole_history(seed: int) -> None:
    run = training(seed, epochs=6)
    past = history(run)
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=SAMPLES)
    follow(monitor, run)
    samples = monitor.samples()
    for i in range(SAMPLES):
        x, y = past["epoch"][past["index"] == i], past["margin"][past["index"] == i]
        assert samples.epochs[i] == len(x)
        slope = np.polyfit(x, y, 1)[0] if len(x) > 1 else math.nan
        expected = [y[0], y.mean(), y[-1], slope] if len(x) else [math.nan] * 4
        found = [float(v[i]) for v in (samples.first, samples.mean, samples.last, samples.slope)]
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4, nan_ok=True)
    assert samples.first.dtype == samples.slope.dtype == torch.float32
    assert samples.first.isnan().sum() >= 2  # never seen


def test_a_sample_that_an_epoch_sees_twice_counts_with_its_mean() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=3)
    target = torch.zeros(3, dtype=torch.int64)
    for margins in ([1.0, 3.0, 7.0], [4.0, 8.0, 9.0]):
        index = torch.tensor([0, 0, 2])
        monitor.update(margin=torch.tensor(margins), target=target, index=index, learning_rate=1.0)
        monitor.end_epoch()
    samples = monitor.samples()
    assert samples.first.nan_to_num(-1).tolist() == [2, -1, 7]
    assert samples.last.nan_to_num(-1).tolist() == [6, -1, 9]
    assert samples.slope.nan_to_num(-1).tolist() == [4, -1, 2]


def test_the_slope_is_sound_far_from_zero_and_after_many_epochs() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=1)
    for epoch in range(500):
        margin = torch.tensor([300 + 0.01 * epoch])
        monitor.update(margin=margin, target=torch.tensor([0]), index=torch.tensor([0]), learning_rate=1.0)
        monitor.end_epoch()
    assert float(monitor.samples().slope) == pytest.approx(0.01, rel=1e-3)


def test_margins_in_place_of_logits_tell_everything_but_accuracy() -> None:
    run = training(0)
    by_logits, by_margin = (Monitor(MAE(), num_classes=CLASSES) for _ in range(2))
    for step in run[0]:
        margin = soft_margin(step.logits, step.target)
        by_logits.update(**step._asdict())
        by_margin.update(**step._replace(logits=None)._asdict(), margin=margin)  # type: ignore[arg-type]
    expected, found = by_logits.end_epoch().as_dict(), by_margin.end_epoch().as_dict()
    accuracies = [name for name in expected if name.startswith("accuracy")]
    assert len(accuracies) == 3
    assert found == expected | dict.fromkeys(accuracies)


def test_without_clean_targets_nothing_is_said_of_clean_and_noisy() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES)
    for step in training(0)[0]:
        monitor.update(logits=step.logits, target=step.target, learning_rate=step.learning_rate)
    epoch = monitor.end_epoch()
    assert epoch.samples > 30 and epoch.samples_clean == epoch.samples_noisy == 0
    assert (
        epoch.snr is epoch.noisy_share is epoch.weight_clean is epoch.mean_margin_noisy is epoch.accuracy_noisy is None
    )
    assert int(epoch.histogram.all.sum()) == epoch.samples and not epoch.histogram.clean.any()


def test_a_negative_clean_target_is_unknown() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES)
    target, clean = torch.tensor([1, 1, 1, -100]), torch.tensor([-1, 1, 2, 3])
    monitor.update(margin=torch.tensor([5.0, 6.0, 8.0, 9.0]), target=target, clean_target=clean, learning_rate=1.0)
    epoch = monitor.end_epoch()
    assert (epoch.samples, epoch.samples_clean, epoch.samples_noisy) == (3, 1, 1)
    assert (epoch.mean_margin_clean, epoch.mean_margin_noisy) == (6.0, 8.0)


def test_an_epoch_of_nothing_is_undefined_and_not_an_error() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=2)
    ignored = torch.tensor([-100])
    monitor.update(logits=torch.zeros(1, CLASSES), target=ignored, index=torch.tensor([-7]), learning_rate=1.0)
    monitor.update(
        logits=torch.zeros(0, CLASSES),
        target=ignored[:0],
        index=ignored[:0],
        clean_target=ignored[:0],
        learning_rate=1.0,
    )
    numbers = monitor.end_epoch().as_dict()
    assert {x for x in numbers.values() if not isinstance(x, list)} == {1, 0, None}
    assert monitor.samples().first.isnan().all()


def test_an_epoch_without_an_update_is_refused_and_not_counted() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES)
    for number in (1, 2):
        with pytest.raises(ValueError, match="at least one update before end_epoch, got none"):
            monitor.end_epoch()
        monitor.update(margin=torch.zeros(3), target=torch.zeros(3, dtype=torch.int64), learning_rate=0.1)
        assert monitor.end_epoch().epoch == number


def test_what_is_undefined_for_ever_is_said_once() -> None:
    target, word = torch.zeros(3, dtype=torch.int64), "no longer finite"
    monitor = Monitor(CE(), num_classes=CLASSES)
    said = []
    for margin in (0.0, math.nan, 0.0):
        monitor.update(margin=torch.tensor([0.0, margin, 0.0]), target=target, learning_rate=0.1)
        epoch = monitor.end_epoch()
        said.append(any(word in text for text in epoch.verdicts))
    assert said == [False, True, False] and epoch.mean_weight is None and epoch.mean_weight_this_epoch is not None
    monitor = Monitor(CE(), num_classes=CLASSES)
    monitor.update(margin=torch.zeros(3), target=target, learning_rate=torch.tensor(math.nan))
    assert "weights are no longer finite: their means are undefined from now on" in monitor.end_epoch().verdicts


def test_an_epoch_is_printed_without_its_histograms() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES)
    monitor.update(margin=torch.zeros(3), target=torch.zeros(3, dtype=torch.int64), learning_rate=0.1)
    shown = repr(monitor.end_epoch())
    assert "samples=3" in shown and "tensor" not in shown


def test_a_learning_rate_of_zero_has_no_mean_weight() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES)
    monitor.update(margin=torch.zeros(3), target=torch.zeros(3, dtype=torch.int64), learning_rate=0.0)
    epoch = monitor.end_epoch()
    assert epoch.mean_weight_this_epoch is None and epoch.effective_learning_rate_this_epoch == 0


def test_the_learning_rate_may_be_a_tensor() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES)
    for rate in (torch.tensor(0.5), torch.tensor([0.25])):
        monitor.update(margin=torch.zeros(3), target=torch.zeros(3, dtype=torch.int64), learning_rate=rate)
    assert monitor.end_epoch().effective_learning_rate_this_epoch == pytest.approx(0.375 / 2)


def test_images_of_labels_count_every_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, CLASSES, 3, 4, generator=generator)
    target, clean = torch.randint(CLASSES, (2, 2, 3, 4), generator=generator)
    clean[0] = target[0]
    for loss in (MAE(), NCE(), get("gls"), MSE()):
        pixels, rows = Monitor(loss, num_classes=CLASSES), Monitor(loss, num_classes=CLASSES)
        flat = logits.movedim(1, -1).reshape(-1, CLASSES)
        pixels.update(logits=logits, target=target, clean_target=clean, learning_rate=0.1)
        rows.update(logits=flat, target=target.flatten(), clean_target=clean.flatten(), learning_rate=0.1)
        found, expected = pixels.end_epoch().as_dict(), rows.end_epoch().as_dict()
        assert found.pop("verdicts") == expected.pop("verdicts")
        assert found["samples"] == 24 and found == pytest.approx(expected, rel=1e-6)


def test_half_precision_is_measured_in_float32() -> None:
    step = training(0)[0][0]
    found, expected = Monitor(NCE(), num_classes=CLASSES), Monitor(NCE(), num_classes=CLASSES)
    found.update(logits=step.logits.bfloat16(), target=step.target, learning_rate=0.1)
    expected.update(logits=step.logits.bfloat16().float(), target=step.target, learning_rate=0.1)
    assert found.end_epoch().as_dict() == expected.end_epoch().as_dict()


# Weights


def mean_weight(loss: Loss | RobustLoss, logits: Tensor, target: Tensor, **options: Any) -> float:
    monitor = Monitor(loss, num_classes=logits.shape[1], **options)
    monitor.update(logits=logits, target=target, learning_rate=0.3)
    value = monitor.end_epoch().mean_weight
    assert value is not None
    return value


def nce_bound(logits: Tensor, target: Tensor) -> Tensor:
    """γ(w_CE + ε(1 − 1/K)), from the parts of the loss."""
    parts, weight = NCE().parts(logits, target), CE().weight(soft_margin(logits, target))
    return parts.primary_scale * weight + parts.regularizer_scale * (1 - 1 / logits.shape[1])


def weight_of_each(loss: Loss | RobustLoss, logits: Tensor, target: Tensor) -> Tensor:
    return torch.tensor([mean_weight(loss, logits[[i]], target[[i]]) for i in range(len(logits))])


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(60, 10, generator=generator) * 3, torch.randint(10, (60,), generator=generator)


PRIOR = (0.3, *[0.1] * 6, 0.05, 0.05, 0.0)


@pytest.mark.parametrize(
    "loss",
    [
        get("mse"),
        get("mse", alpha=-2.0),
        get("gls"),
        get("gls", alpha=-0.8),
        get("cr"),
        get("cr", beta=0.3, prior=PRIOR),
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_the_weight_of_a_second_term_is_half_the_norm_of_the_gradient(
    loss: Loss, masked: bool, batch: tuple[Tensor, Tensor]
) -> None:
    logits, target = batch
    if masked:  # classes that do not exist for half of the samples
        logits = logits.clone()
        logits[::2, 8:], target = -math.inf, target % 8
    variable = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(RobustLoss(loss, reduction="sum")(variable, target), variable)
    torch.testing.assert_close(weight_of_each(loss, logits, target), gradient.abs().sum(1) / 2, rtol=1e-4, atol=1e-6)


def test_a_loss_of_ones_own_is_differentiated(batch: tuple[Tensor, Tensor]) -> None:
    class Own(Loss):
        formula = "2*mse"
        primary = MAE()

        def of(self, batch: Any) -> Tensor:
            return 2 * MSE().of(batch)

    own = weight_of_each(Own(), *batch)
    torch.testing.assert_close(own, 2 * weight_of_each(MSE(), *batch), rtol=1e-4, atol=1e-6)


def test_nce_is_bounded_sample_by_sample_and_tightly(batch: tuple[Tensor, Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.cat([torch.randn(60, 10, generator=generator) * scale for scale in (0.1, 1, 3, 10)])
    target = torch.randint(10, (len(logits),), generator=generator)
    true = decompose(RobustLoss(NCE()), logits, target).weight
    weight = weight_of_each(NCE(), logits, target).double()
    assert (weight >= true * (1 - 1e-5)).all()
    assert (true / weight).max() > 0.999
    torch.testing.assert_close(weight.float(), nce_bound(logits, target), rtol=1e-4, atol=1e-9)


def test_nce_knows_masked_classes_and_labels() -> None:
    logits = torch.tensor([[1.0, -math.inf, 0.5], [1.0, -math.inf, 0.5], [2.0, -math.inf, -math.inf]])
    target = torch.tensor([0, 1, 0])
    found = torch.stack(
        [torch.tensor(mean_weight(NCE(), s[None], y[None])) for s, y in zip(logits, target, strict=True)]
    )
    # A bound with a masked label is that of nothing to learn; the library's own has 0 there, too.
    torch.testing.assert_close(found[[0, 2]], nce_bound(logits, target)[[0, 2]])
    assert found[1:].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["nce+mae", "nce+aul"])
def test_sums_are_bounded_sample_by_sample(name: str, batch: tuple[Tensor, Tensor]) -> None:
    loss = get(name)
    true = decompose(RobustLoss(loss), *batch).weight
    assert (weight_of_each(loss, *batch) >= true * (1 - 1e-5)).all()


def test_peer_loss_is_weighed_by_its_curriculum_without_drawing_peers(batch: tuple[Tensor, Tensor]) -> None:
    state = torch.get_rng_state()
    assert mean_weight(PeerLoss(MAE()), *batch) == pytest.approx(mean_weight(MAE(), *batch), rel=1e-6)
    assert torch.equal(state, torch.get_rng_state())


def test_normalisation_is_that_of_the_loss(batch: tuple[Tensor, Tensor]) -> None:
    plain = mean_weight(MAE(), *batch, normalize=False)
    assert mean_weight(MAE(), *batch) == pytest.approx(4 * plain)
    assert mean_weight(RobustLoss(MAE()), *batch, normalize=False) == pytest.approx(4 * plain)
    assert mean_weight(RobustLoss(MAE(), normalize=False), *batch) == pytest.approx(plain)


def test_class_weights_and_the_ignored_index_are_those_of_the_loss(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    factors = torch.rand(10, generator=torch.Generator().manual_seed(0))
    loss_fn = RobustLoss(CE(), class_weight=factors, ignore_index=3)
    counted = target != 3
    expected = (CE().weight(soft_margin(logits, target)) * factors[target])[counted].mean()
    assert not counted.all()
    assert mean_weight(loss_fn, logits, target) == pytest.approx(float(expected), rel=1e-5)


def test_a_loss_that_changes_is_followed_from_the_next_step_on() -> None:
    loss_fn = RobustLoss(CE())
    monitor = Monitor(loss_fn, num_classes=CLASSES)
    margin, target = torch.tensor([-1.0]), torch.tensor([0])
    monitor.update(margin=margin, target=target, learning_rate=1.0)
    loss_fn.loss = MAE()
    monitor.update(margin=margin, target=target, learning_rate=1.0)
    expected = (CE().weight(margin) + 4 * MAE().weight(margin)) / 2
    assert monitor.end_epoch().mean_weight_this_epoch == pytest.approx(float(expected), rel=1e-6)


# Histograms


def test_bins_hold_their_lower_edge_and_the_outer_ones_everything_beyond() -> None:
    edges = Histogram.edges()
    assert len(edges) == Histogram.BINS - 1 and torch.equal(edges[1:] - edges[:-1], torch.full((len(edges) - 1,), 0.25))
    assert Histogram.bin_of(edges).tolist() == list(range(1, Histogram.BINS))
    assert Histogram.bin_of(torch.nextafter(edges, edges - 1)).tolist() == list(range(Histogram.BINS - 1))
    ends = torch.tensor([-math.inf, -1e30, 1e30, math.inf, math.nan])
    assert Histogram.bin_of(ends).tolist() == [0, 0, Histogram.BINS - 1, Histogram.BINS - 1, Histogram.BINS]


def test_an_infinite_margin_stays_with_its_group() -> None:
    monitor = Monitor(MAE(), num_classes=CLASSES, num_samples=3)
    target, clean = torch.tensor([0, 0, 0]), torch.tensor([0, 1, 0])
    margin = torch.tensor([math.inf, -2.0, -math.inf])
    for _ in range(2):
        monitor.update(margin=margin, target=target, clean_target=clean, index=torch.arange(3), learning_rate=1.0)
        epoch = monitor.end_epoch()
    assert epoch.mean_margin is None and epoch.mean_margin_clean is None
    assert epoch.mean_margin_noisy == -2 and epoch.weight_clean == 0 and epoch.weight_noisy
    assert epoch.histogram.clean[0] == epoch.histogram.clean[-1] == 1 and int(epoch.histogram.all.sum()) == 3
    assert monitor.samples().slope[1] == 0


# Resuming


@pytest.mark.parametrize("loss", [GCE(0.7), NCE()], ids=str)
@pytest.mark.parametrize("chunk", [13, 2**15])
def test_a_resumed_monitor_goes_on_to_the_last_bit(loss: Loss, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BUFFERED_SAMPLES", chunk)
    run = training(2, epochs=4)
    whole = Monitor(loss, num_classes=CLASSES, num_samples=SAMPLES)
    expected = follow(whole, run)

    broken = Monitor(loss, num_classes=CLASSES, num_samples=SAMPLES)
    found = follow(broken, run[:1])
    for step in run[1][:3]:
        broken.update(**step._asdict())
    file = io.BytesIO()
    torch.save(broken.state_dict(), file)
    follow(broken, run[2:])  # what it does later is lost
    file.seek(0)
    resumed = Monitor(loss, num_classes=CLASSES, num_samples=SAMPLES)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    found += follow(resumed, [run[1][3:], *run[2:]])

    for a, b in zip(expected, found, strict=True):
        assert a.as_dict() == b.as_dict()
        assert all(map(torch.equal, vars(a.histogram).values(), vars(b.histogram).values()))
    for field in dataclasses.fields(whole.samples()):
        a, b = (getattr(m.samples(), field.name) for m in (whole, resumed))
        assert torch.equal(a.nan_to_num(-99), b.nan_to_num(-99))


def test_a_state_of_another_monitor_is_refused() -> None:
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=SAMPLES)
    with pytest.raises(
        ValueError, match=r"table of shape \(9, 50\), got \(9, 4\): was it made with another num_samples"
    ):
        monitor.load_state_dict(Monitor(CE(), num_classes=CLASSES, num_samples=4).state_dict())
    with pytest.raises(ValueError, match="expects a state with"):
        monitor.load_state_dict({})


# Costs


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """A switch: while it is on, whatever brings a number from the device to Python raises."""
    on = [False]

    def forbid(name: str) -> None:
        original = getattr(Tensor, name)

        def guarded(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            assert not on[0], f"Tensor.{name} waits for the device"
            return original(self, *args, **kwargs)

        monkeypatch.setattr(Tensor, name, guarded)

    for name in (
        *("item", "tolist", "numpy", "cpu", "nonzero", "masked_select", "unique"),
        *("__bool__", "__int__", "__float__", "__index__", "__array__"),
    ):
        forbid(name)
    return lambda switch: on.__setitem__(0, switch)


@pytest.mark.parametrize("loss", [CE(), GCE(0.7), NCE(), get("gls"), get("nce+mae"), PeerLoss()], ids=str)
def test_update_never_waits(loss: Loss, no_waiting: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BUFFERED_SAMPLES", 11)
    monitor = Monitor(loss, num_classes=CLASSES, num_samples=SAMPLES)
    run = training(0)
    no_waiting(True)
    with pytest.raises(AssertionError, match="waits"):
        bool(torch.ones(1))
    for steps in run:
        for step in steps:
            monitor.update(**step._asdict())
    no_waiting(False)
    assert monitor.end_epoch().samples > 100


def test_update_leaves_no_graph_and_no_gradient() -> None:
    logits = torch.zeros(2, CLASSES, requires_grad=True)
    for loss in (CE(), NCE(), get("mse")):
        monitor = Monitor(loss, num_classes=CLASSES)
        monitor.update(logits=logits, target=torch.tensor([0, 1]), learning_rate=0.1)
        assert not any(x.requires_grad for x in monitor._columns.values())
    assert logits.grad is None


def test_a_million_samples_and_a_thousand_classes_take_less_than_100_mb() -> None:
    monitor = Monitor(MAE(), num_classes=1000, num_samples=10**6)
    step = {"target": torch.zeros(256, dtype=torch.int64), "index": torch.arange(256), "learning_rate": 0.1}
    for _ in range(2):
        monitor.update(logits=torch.zeros(256, 1000), clean_target=step["target"], **step)  # type: ignore[arg-type]
        monitor.end_epoch()
    tensors = [*monitor._tensors().values(), *monitor._columns.values()]
    assert {id(x) for x in tensors} >= {id(x) for x in vars(monitor).values() if isinstance(x, Tensor)}
    assert sum(x.untyped_storage().nbytes() for x in tensors) < 50e6


# Mistakes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": torch.zeros(2)}, "expects int64 class indices as target, got torch.float32"),
        ({"logits": None}, "expects logits .* got neither"),
        ({"logits": torch.zeros(2, 3)}, r"expects floating-point logits \(2, 7\), got torch.float32 \(2, 3\)"),
        ({"logits": torch.zeros(2, 7).long()}, "expects floating-point logits"),
        ({"index": None}, "expects the index of each sample"),
        ({"index": torch.zeros(3).long()}, r"in the shape of the target, \(2,\), got torch.int64 \(3,\)"),
        ({"clean_target": [0, 1]}, r"in the shape of the target, \(2,\), got list"),
        ({"logits": torch.zeros(2, 7, device="meta")}, "expects tensors on its device cpu, got one on meta"),
    ],
)
def test_a_wrong_batch_is_refused(given: dict[str, Any], message: str) -> None:
    right = {"target": torch.tensor([0, 1]), "logits": torch.zeros(2, 7), "index": torch.tensor([0, 1])}
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=5)
    monitor.update(**right, learning_rate=0.1)
    with pytest.raises((TypeError, ValueError), match=message):
        monitor.update(**{**right, **given}, learning_rate=0.1)


@pytest.mark.parametrize("loss", [MAE(), NCE(), get("gls"), AutoLoss(CLASSES)], ids=lambda x: type(x).__name__)
def test_margins_that_the_loss_has_computed_give_the_same_numbers(
    loss: Loss | Criterion, monkeypatch: pytest.MonkeyPatch
) -> None:
    criterion = loss if isinstance(loss, Criterion) else RobustLoss(loss)
    without, with_margins = (Monitor(criterion, num_classes=CLASSES, num_samples=SAMPLES) for _ in range(2))
    for steps in training(3):
        for step in steps:
            margin = criterion.loss_and_margin(step.logits, step.target)[1]
            without.update(**step._asdict())
            with monkeypatch.context() as patch:
                patch.delattr(stream, "soft_margin")
                with_margins.update(**step._asdict(), margin=margin)
        assert without.end_epoch().as_dict() == with_margins.end_epoch().as_dict()


def test_a_second_term_needs_logits() -> None:
    with pytest.raises(ValueError, match="has a second term: its weight expects logits"):
        Monitor(NCE(), num_classes=CLASSES).update(
            margin=torch.zeros(2), target=torch.zeros(2).long(), learning_rate=0.1
        )


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_a_learning_rate_that_is_none_is_refused(rate: float) -> None:
    monitor = Monitor(CE(), num_classes=CLASSES)
    with pytest.raises(ValueError, match=f"a finite learning_rate >= 0, got learning_rate={rate}"):
        monitor.update(margin=torch.zeros(1), target=torch.tensor([0]), learning_rate=rate)


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_beyond_the_data_is_refused(index: int) -> None:
    monitor = Monitor(CE(), num_classes=CLASSES, num_samples=5)
    monitor.update(margin=torch.zeros(1), target=torch.tensor([0]), index=torch.tensor([index]), learning_rate=0.1)
    with pytest.raises(ValueError, match="sample indices from 0 to 4, as num_samples=5, got"):
        monitor.end_epoch()


def test_a_wrong_monitor_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 classes, got K=1"):
        Monitor(CE(), num_classes=1)
    with pytest.raises(ValueError, match="num_samples >= 1, got num_samples=0"):
        Monitor(CE(), num_classes=2, num_samples=0)
    with pytest.raises(TypeError, match="expects a loss such as MAE"):
        Monitor("mae", num_classes=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only if it is given num_samples"):
        Monitor(CE(), num_classes=2).samples()
    with pytest.raises(ValueError, match="grows without bound"):
        Monitor(Designed(lambda margin: (-margin).clamp(min=0)), num_classes=2)
    assert Monitor(Scaled(MAE(), 0.5), num_classes=2).criterion.normalize
