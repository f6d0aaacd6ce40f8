"""`fit`: a plain loop to the bit, with callbacks that see everything and can be resumed."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from curriculoss import CE, MAE, AutoLoss, Callback, Monitor, RobustLoss, fit, get, soft_margin
from curriculoss.errors import CurriculossError, DivergedError
from curriculoss.fitting import EarlyStopping, MonitorCallback


def data(samples=96, classes=3):
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(classes, (samples,), generator=generator)
    inputs = torch.randn(samples, 4, generator=generator) + 2 * torch.eye(classes, 4)[target]
    return inputs, target, torch.arange(samples)


def batches(size=32):
    return list(zip(*(part.split(size) for part in data()), strict=True))


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))


def weights(module):
    return torch.cat([each.detach().flatten() for each in module.parameters()])


class Recorder(Callback):
    """Keeps every call."""

    def __init__(self):
        self.calls, self.steps, self.notes = [], [], []

    def on_fit_begin(self, loop):
        self.calls.append("begin")
        self.loop = loop

    def on_epoch_begin(self, epoch):
        self.calls.append(f"epoch {epoch}")

    def on_step(self, step):
        self.steps.append(step)

    def on_epoch_end(self, result):
        self.calls.append(f"end of epoch {result.epoch}")

    def on_fit_end(self):
        self.calls.append("end")

    def on_note(self, text):
        self.notes.append(text)


def test_fit_is_the_plain_loop_to_the_bit():
    ours, plain, loss = network(), network(), RobustLoss(CE())
    history = fit(
        ours, loss, batches(), epochs=3, learning_rate=0.2, momentum=0.5, weight_decay=0.01, schedule="cosine",
        clip_norm=0.5, seed=7,
    )  # fmt: skip
    optimizer = torch.optim.SGD(plain.parameters(), 0.2, momentum=0.5, weight_decay=0.01)
    means = []
    for epoch in range(3):
        torch.manual_seed(7 * 1_000_003 + epoch)
        losses = []
        for step, (inputs, target, _) in enumerate(batches()):
            optimizer.param_groups[0]["lr"] = 0.2 * (0.5 * (1 + math.cos(math.pi * (epoch + step / 3) / 3)))
            optimizer.zero_grad()
            value = loss(plain(inputs), target)
            value.backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            optimizer.step()
            losses.append(value.item())
        means.append(sum(losses) / 3)
    assert torch.equal(weights(ours), weights(plain))
    assert [each.train_loss for each in history] == pytest.approx(means, rel=1e-12)
    assert [each.epoch for each in history] == [1, 2, 3] and history[0].learning_rate == 0.2


def test_batches_may_be_a_list_or_a_loader_or_depend_on_the_epoch():
    asked = []

    class Turning:
        def epoch(self, number):
            asked.append(number)
            return batches()

    loader = DataLoader(TensorDataset(*data()[:2]), batch_size=32, generator=torch.Generator())
    found = []
    for given in (batches(), loader, Turning()):
        found.append(network())
        fit(found[-1], RobustLoss(MAE()), given, epochs=2, seed=0)
    assert asked == [0, 1]
    assert torch.equal(weights(found[0]), weights(found[1])) and torch.equal(weights(found[0]), weights(found[2]))


def test_batches_that_are_used_up_are_refused():
    with pytest.raises(ValueError, match=r"expects batches with samples in every epoch, got none: give a list or"):
        fit(network(), F.cross_entropy, (each for each in batches()), epochs=2)
    with pytest.raises(ValueError, match=r"expects test_batches with .*, got none: give a list .*, not a generator$"):
        fit(network(), F.cross_entropy, batches(), epochs=2, test_batches=(each for each in batches()))
    with pytest.raises(ValueError, match=r"expects batches with samples in every epoch, got none"):
        fit(network(), F.cross_entropy, [(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))], epochs=1)
    with pytest.raises(ValueError, match=r"expects batches of 2 to 4 parts, as \(inputs, target\), got 1$"):
        fit(network(), F.cross_entropy, [(torch.zeros(2, 4),)], epochs=1)
    with pytest.raises(ValueError, match=r"expects batches of 2 to 4 parts, as \(inputs, target\), got dict$"):
        fit(network(), F.cross_entropy, [{"inputs": 1, "target": 2}], epochs=1)
    with pytest.raises(
        ValueError, match=r"as \(inputs, target\), got torch.float32 \(96, 4\)$"
    ):  # one batch, not in a list
        fit(network(), F.cross_entropy, data()[:2], epochs=1)


def test_arrays_are_taken_for_tensors():
    given = [tuple(part.numpy() for part in batch) for batch in batches()]
    torch.manual_seed(0)
    network = nn.Linear(4, 3)
    losses = [[row.train_loss for row in fit(deepcopy(network), CE(), x, epochs=2)] for x in (given, batches())]
    assert losses[0] == losses[1]


def test_a_loss_of_one_number_may_have_an_axis():
    def loss(logits, target):
        return F.cross_entropy(logits, target)[None]

    assert len(fit(network(), loss, batches(), epochs=1)) == 1


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"epochs": -1}, "fit expects epochs >= 0, got epochs=-1"),
        ({"epochs": "2"}, "fit expects an integer epochs >= 0, got epochs='2'"),
        ({"epochs": 2, "learning_rate": math.nan}, "fit expects a finite learning_rate >= 0, got nan"),
        ({"epochs": 2, "optimizer": "adamw", "weight_decay": -1}, "fit expects a finite weight_decay >= 0, got -1"),
        ({"epochs": 2, "test_every": 0}, "fit expects test_every >= 1, got test_every=0"),
        ({"epochs": 2, "clip_norm": -1}, "fit expects finite clip_norm > 0, got -1"),
        ({"epochs": 2, "optimizer": None}, "fit expects an optimizer of torch, its name or .*, got None"),
        ({"epochs": 2, "schedule": 0.1}, "fit expects schedule 'cosine' or a function, got 0.1"),
        (
            {"epochs": 2, "loss": RobustLoss(CE(), reduction="none")},
            r"returns one number .*, got torch.float32 \(32,\)",
        ),
        ({"epochs": 2, "clip_norm": 0}, "fit expects finite clip_norm > 0, got 0"),
        ({"epochs": 2, "callbacks": Callback()}, "fit expects a list of Callback objects as callbacks, got <"),
        (
            {"epochs": 2, "callbacks": [print]},
            r"list of Callback objects as callbacks, got \[<built-in function print>\]",
        ),
        (
            {"epochs": 2, "batches": [(torch.ones(3, 4), ("ant", "bee", "cat"))]},
            r"fit expects batches of numbers, got \['torch.float32 \(3, 4\)', 'tuple'\]",
        ),
        ({"epochs": 2, "seed": "0"}, "fit expects an integer seed >= 0, got seed='0'"),
        (
            {"epochs": 2, "test_batches": [(torch.ones(3, 4), torch.zeros(3, 1, dtype=torch.int64))]},
            r"fit with test_batches expects logits .*, got logits \(3, 3\) and target \(3, 1\)",
        ),
        ({"epochs": 2, "loss": lambda logits, target: 1.0}, "a loss that returns one number as a tensor, got float"),
        ({"epochs": 2, "loss": "ce"}, r"^fit expects a loss such as MAE\(\) or get\('mae'\), got 'ce'$"),
        ({"epochs": 2, "loss": CE}, r"such as MAE\(\) or get\('mae'\), got <class .*CE'>$"),
        ({"epochs": 2, "network": nn.Flatten()}, "^fit expects a module with parameters as network, got Flatten"),
        ({"epochs": 2, "network": "linear"}, "^fit expects a module with parameters as network, got 'linear'$"),
    ],
)
def test_arguments_are_checked(wrong, match):
    given = {"network": nn.Linear(4, 3), "loss": CE(), "batches": batches(), "test_batches": batches()}
    with pytest.raises(CurriculossError, match=match):
        fit(**given | wrong)


def test_gradients_from_before_the_fit_do_not_count():
    fresh, used = network(), network()
    F.cross_entropy(used(data()[0]), data()[1]).backward()
    for each in (fresh, used):
        fit(each, RobustLoss(CE()), batches(), epochs=1, seed=0)
    assert torch.equal(weights(fresh), weights(used))


def test_sample_weights_need_no_index():
    trained = [network(), network()]
    for each, index in zip(trained, (torch.arange(32), None), strict=True):
        weighted = [(x, y, index, torch.linspace(0, 1, 32)) for x, y, _ in batches()]
        fit(each, RobustLoss(CE()), weighted, epochs=1, seed=0)
    assert torch.equal(weights(trained[0]), weights(trained[1]))


def test_of_probabilities_as_test_targets_the_most_probable_class_counts():
    inputs, target, _ = data()
    (plain,), (soft,) = (
        fit(network(), RobustLoss(CE()), batches(), epochs=1, seed=0, test_batches=[(inputs, each)])
        for each in (target, 0.8 * F.one_hot(target, 3) + 0.2 / 3)
    )
    assert plain.test_accuracy == soft.test_accuracy and 0 < plain.test_accuracy < 100


def test_accuracy_counts_every_pixel():
    images, target = torch.randn(4, 1, 5, 6), torch.ones(4, 5, 6, dtype=torch.int64)
    history = fit(nn.Conv2d(1, 2, 1), CE(), [(images, target)], epochs=1, test_batches=[(images, target)])
    assert 0 <= history[-1].test_accuracy <= 100


def test_callbacks_are_called_in_order_and_see_every_step():
    recorder = Recorder()
    fit(
        network(),
        F.cross_entropy,
        batches(),
        epochs=2,
        callbacks=[recorder],
        learning_rate=0.3,
        schedule=lambda x: 1 / (1 + x),
    )
    assert recorder.calls == ["begin", "epoch 1", "end of epoch 1", "epoch 2", "end of epoch 2", "end"]
    assert [each.learning_rate for each in recorder.steps] == pytest.approx([0.3 / (1 + i / 3) for i in range(6)])
    step = recorder.steps[4]
    assert torch.equal(step.index, torch.arange(32, 64)) and torch.equal(step.target, data()[1][32:64])
    assert step.margin is None and not step.logits.requires_grad and not step.loss.requires_grad
    torch.testing.assert_close(step.loss, F.cross_entropy(step.logits, step.target))


def test_every_epoch_is_tested_that_is_asked_for_and_the_last_one():
    class Third(Callback):
        def should_stop(self, history):
            return len(history) == 3

    def tested(epochs, *callbacks):
        history = fit(
            network(),
            F.cross_entropy,
            batches(),
            epochs=epochs,
            test_batches=batches(),
            test_every=2,
            callbacks=callbacks,
        )
        return [each.test_accuracy is not None for each in history]

    assert tested(5) == [False, True, False, True, True]
    assert tested(5, Third()) == [False, True, True]


def test_accuracy_is_that_of_the_network_in_eval_mode():
    trained = network()
    history = fit(trained, F.cross_entropy, batches(), epochs=2, test_batches=batches())
    inputs, target, _ = data()
    right = (trained.eval()(inputs).argmax(1) == target).double().mean()
    assert history[-1].test_accuracy == pytest.approx(100 * float(right))


def test_early_stopping_waits_as_long_as_it_is_told():
    losses = iter([3.0, 2.0, 2.5, 2.0, 9.0])

    def falling(logits, target):
        return logits.sum() * 0 + next(losses)

    history = fit(network(), falling, [batches()[0]], epochs=5, callbacks=[EarlyStopping(2)])
    assert [each.train_loss for each in history] == [3.0, 2.0, 2.5, 2.0]
    with pytest.raises(ValueError, match="EarlyStopping expects patience >= 1, got patience=0"):
        EarlyStopping(0)


@pytest.mark.parametrize("loss", [MAE(), get("nce"), RobustLoss(MAE())], ids=str)
def test_margins_of_every_loss_go_to_the_callbacks(loss):
    recorder = Recorder()
    fit(network(), loss, batches(), epochs=1, callbacks=[recorder])
    for step in recorder.steps:
        assert torch.equal(step.margin, soft_margin(step.logits, step.target))
        assert torch.equal(step.loss, loss(step.logits, step.target))


def test_margins_of_a_loss_of_ones_own_go_to_the_callbacks():
    class Counting(nn.Module):
        def loss_and_margin(self, logits, target, sample_weight=None):
            margin = soft_margin(logits, target)
            return -(margin if sample_weight is None else margin * sample_weight).mean(), margin

    recorder = Recorder()
    fit(network(), Counting(), batches(), epochs=1, callbacks=[recorder])
    for step in recorder.steps:
        assert torch.equal(step.margin, soft_margin(step.logits, step.target)) and not step.margin.requires_grad
        torch.testing.assert_close(step.loss, -step.margin.mean())
    weighted = [(*batch, torch.full((32,), 3.0)) for batch in batches()]
    fit(network(), Counting(), weighted, epochs=1, callbacks=[recorder])
    for step in recorder.steps[3:]:
        torch.testing.assert_close(step.loss, -3 * step.margin.mean())


def test_monitor_sees_what_it_would_see_in_a_plain_loop():
    clean = (data()[1] + (torch.arange(96) % 4 == 0)) % 3
    recorder, loss = Recorder(), RobustLoss(MAE())
    watching = MonitorCallback(Monitor(loss, num_classes=3, num_samples=96), clean)
    fit(network(), loss, batches(), epochs=2, callbacks=[watching, recorder])
    by_hand = Monitor(loss, num_classes=3, num_samples=96)
    for number in range(2):
        for step in recorder.steps[3 * number : 3 * number + 3]:
            by_hand.update(
                logits=step.logits, target=step.target, learning_rate=step.learning_rate, index=step.index,
                clean_target=clean[step.index],
            )  # fmt: skip
        assert by_hand.end_epoch().as_dict() == watching.epochs[number].as_dict()
    assert torch.equal(by_hand.samples().last, watching.monitor.samples().last)
    assert all(f"epoch {each.epoch}: {text}" in recorder.notes for each in watching.epochs for text in each.verdicts)


class Keeping(Callback):
    """Keeps the state after an epoch, or goes on from one."""

    def __init__(self, epoch=None, state=None):
        self.epoch, self.state = epoch, state

    def on_fit_begin(self, loop):
        self.loop = loop
        if self.state is not None:
            loop.load_state_dict(self.state)

    def on_epoch_end(self, result):
        if result.epoch == self.epoch:
            self.state = deepcopy(self.loop.state_dict())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_fit_goes_on_to_the_bit_from_the_state_that_a_callback_kept(optimizer):
    def parts():
        loss = AutoLoss(3)
        return network(), loss, MonitorCallback(Monitor(loss, num_classes=3, num_samples=96))

    def run(parts, *callbacks):
        trained, loss, watching = parts
        return fit(
            trained, loss, batches(), epochs=4, optimizer=optimizer, learning_rate=0.05, schedule="cosine", seed=3,
            callbacks=[watching, *callbacks],
        )  # fmt: skip

    whole, second, keeping = parts(), parts(), Keeping(epoch=2)
    history = run(whole, keeping)
    again = run(second, Keeping(state=keeping.state))
    assert torch.equal(weights(whole[0]), weights(second[0]))
    assert [each.train_loss for each in again] == [each.train_loss for each in history]
    assert [x.as_dict() for x in second[2].epochs] == [x.as_dict() for x in whole[2].epochs[2:]]
    assert torch.equal(second[2].monitor.samples().mean, whole[2].monitor.samples().mean)


def test_a_callback_that_was_not_there_before_starts_anew():
    keeping, loss = Keeping(epoch=2), RobustLoss(MAE())
    fit(network(), loss, batches(), epochs=2, callbacks=[keeping])
    watching = MonitorCallback(Monitor(loss, num_classes=3, num_samples=96))
    fit(network(), loss, batches(), epochs=3, callbacks=[watching, Keeping(state=keeping.state)])
    assert [(each.epoch, each.samples) for each in watching.epochs] == [(1, 96)]


def test_divergence_names_the_epoch_and_can_be_pickled():
    losses = iter([1.0, float("nan")])
    with pytest.raises(
        DivergedError, match=r"^training diverged in epoch 2 \(loss nan\); try a smaller .* than 0\.1$"
    ) as caught:
        fit(network(), lambda logits, target: logits.sum() * next(losses), [batches()[0]], epochs=3)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.epoch, str(again)) == (2, str(caught.value))


def test_the_optimizer_is_a_name_an_optimizer_or_a_function():
    made, one, other = network(), network(), network()
    fit(
        made,
        F.cross_entropy,
        batches(),
        epochs=1,
        seed=0,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, 0.01),
    )
    fit(one, F.cross_entropy, batches(), epochs=1, seed=0, optimizer=torch.optim.AdamW(one.parameters(), 0.01))
    fit(other, F.cross_entropy, batches(), epochs=1, seed=0, optimizer="adamw", learning_rate=0.01, weight_decay=0.01)
    assert torch.equal(weights(made), weights(one)) and torch.equal(weights(made), weights(other))
    with pytest.raises(ValueError, match=r"unknown optimizer 'adam', did you mean 'adamw'\? Available: sgd, adamw"):
        fit(made, F.cross_entropy, batches(), epochs=1, optimizer="adam")
    with pytest.raises(ValueError, match="fit expects schedule 'cosine' or a function, got 'cosin'"):
        fit(made, F.cross_entropy, batches(), epochs=1, schedule="cosin")


def test_without_a_schedule_the_learning_rate_is_the_callers():
    class Halving(Callback):
        def on_epoch_end(self, result):
            optimizer.param_groups[0]["lr"] /= 2

    module = network()
    optimizer = torch.optim.SGD(module.parameters(), 0.2)
    history = fit(module, F.cross_entropy, batches(), epochs=3, optimizer=optimizer, callbacks=[Halving()])
    assert [each.learning_rate for each in history] == [0.2, 0.1, 0.05]
