"""The loss and the monitor in the real Trainer, with small random models."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from curriculoss import CE, GCE, MAE, AutoLoss, RobustLoss, Shifted, soft_margin
from curriculoss.integrations.huggingface import TrainerLoss, TrainerMonitor
from curriculoss.monitor import Monitor

pytestmark = pytest.mark.slow

VOCABULARY, LENGTH, CLASSES, COUNT = 19, 6, 5, 16


def make_model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "causal":
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        )  # fmt: skip
        return GPT2LMHeadModel(config)
    bert = BertConfig(
        vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=LENGTH, num_labels=CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
    )  # fmt: skip
    return {"sequence": BertForSequenceClassification, "token": BertForTokenClassification}[kind](bert)


def make_data(kind: str) -> list[dict[str, torch.Tensor]]:
    """Labels of very different numbers of tokens, so that a mean of means is no mean."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (COUNT, LENGTH), generator=generator)
    if kind == "sequence":
        labels = torch.randint(CLASSES, (COUNT,), generator=generator)
    else:
        labels = tokens.clone() if kind == "causal" else torch.randint(CLASSES, (COUNT, LENGTH), generator=generator)
        for row, label in enumerate(labels):
            label[2 + row % (LENGTH - 2) :] = -100
    return [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels, strict=True)]


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    defaults = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.05,
        "report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True,
        "optim": "sgd", "seed": 0, "dataloader_pin_memory": False, "max_grad_norm": 0.0,
    }  # fmt: skip
    return TrainingArguments(**(defaults | settings))


def trained(kind: str, folder: Path, loss: Any, callbacks: Any = None, data: Any = None, **settings: Any) -> Trainer:
    trainer = Trainer(
        make_model(kind), arguments(folder, **settings), train_dataset=data or make_data(kind),
        compute_loss_func=loss, callbacks=callbacks,
    )  # fmt: skip
    trainer.train()
    return trainer


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("kind", ["sequence", "token", "causal"])
def test_accumulated_batches_train_as_one_large_batch(kind: str, tmp_path: Path) -> None:
    loss = TrainerLoss(GCE(0.7), causal_lm=kind == "causal")
    large = trained(kind, tmp_path, loss, per_device_train_batch_size=8)
    small = trained(kind, tmp_path, loss, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert large.state.global_step == small.state.global_step == 4
    assert (weights(large) - torch.cat([p.flatten() for p in make_model(kind).parameters()])).abs().max() > 1e-3
    torch.testing.assert_close(weights(small), weights(large), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["sequence", "token", "causal"])
def test_ce_is_the_trainers_own_loss(kind: str, tmp_path: Path) -> None:
    batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2} if kind == "causal" else {}
    own = trained(kind, tmp_path, None, **batches)
    ours = trained(kind, tmp_path, TrainerLoss(CE(), causal_lm=kind == "causal"), **batches)
    torch.testing.assert_close(weights(ours), weights(own), rtol=1e-5, atol=1e-6)
    assert math.isclose(
        ours.evaluate(make_data(kind))["eval_loss"], own.evaluate(make_data(kind))["eval_loss"], rel_tol=1e-5
    )


def random_outputs(dtype: torch.dtype = torch.float32) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, LENGTH, VOCABULARY, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(VOCABULARY, (3, LENGTH), generator=generator)
    labels[1, 2:] = -100
    return {"logits": logits}, labels


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_mean_over_what_is_not_ignored(causal: bool) -> None:
    outputs, labels = random_outputs()
    logits, target = (outputs["logits"][:, :-1], labels[:, 1:]) if causal else (outputs["logits"], labels)
    expected = RobustLoss(MAE())(logits.reshape(-1, VOCABULARY), target.reshape(-1))
    loss = TrainerLoss(MAE(), causal_lm=causal)
    torch.testing.assert_close(loss(outputs, labels), expected)
    count = (target != -100).sum()
    torch.testing.assert_close(loss(outputs, labels, num_items_in_batch=3 * count), expected / 3)
    torch.testing.assert_close(loss((outputs["logits"],), labels, num_items_in_batch=int(count)), expected)


def test_a_batch_without_labels_adds_nothing() -> None:
    outputs, labels = random_outputs()
    value = TrainerLoss(MAE())(outputs, torch.full_like(labels, -100), num_items_in_batch=10)
    value.backward()
    assert value == 0 and not outputs["logits"].grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_totals_of_half_precision_are_float32(dtype: torch.dtype) -> None:
    outputs, labels = random_outputs(dtype)
    value = TrainerLoss(CE())(outputs, labels, num_items_in_batch=100_000)
    exact = F.cross_entropy(outputs["logits"].double().flatten(0, 1), labels.flatten(), reduction="sum") / 100_000
    assert value.dtype == torch.float32
    assert math.isclose(value.item(), exact.item(), rel_tol=1e-5)
    value.backward()
    assert outputs["logits"].grad.dtype == dtype


def test_no_logits_are_copied() -> None:
    outputs, labels = random_outputs()
    seen: list[torch.Tensor] = []
    loss = TrainerLoss(MAE(), causal_lm=True)
    loss.criterion.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    loss(outputs, labels)
    assert seen[0].data_ptr() == outputs["logits"].data_ptr()


def test_class_weights_multiply() -> None:
    outputs, labels = random_outputs()
    loss = TrainerLoss(RobustLoss(MAE(), class_weight=torch.full((VOCABULARY,), 3.0)))
    torch.testing.assert_close(loss(outputs, labels), 3 * TrainerLoss(MAE())(outputs, labels))


def test_the_loss_given_stays_as_it_is() -> None:
    given = RobustLoss(MAE())
    TrainerLoss(given)
    assert given.reduction == "mean"


def test_what_cannot_be_meant_is_refused() -> None:
    outputs, labels = random_outputs()
    with pytest.raises(ValueError, match="expects labels in every batch, got none"):
        TrainerLoss(MAE())(outputs, None)
    with pytest.raises(ValueError, match="expects ignore_index=-100, got 0"):
        TrainerLoss(RobustLoss(MAE(), ignore_index=0))
    with pytest.raises(ValueError, match="expects causal_lm=True"):
        TrainerLoss(MAE())(make_model("causal")(labels.clamp(min=0)), labels)


ROW = {"mean_weight", "effective_learning_rate"}


def logged(trainer: Trainer) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if "mean_weight" in row]


@pytest.mark.parametrize("kind", ["sequence", "token", "causal"])
def test_the_monitor_hears_what_it_would_be_fed(kind: str, tmp_path: Path) -> None:
    """By hand, at a learning rate so small that the model stays as it is."""
    loss = TrainerLoss(GCE(0.7), causal_lm=kind == "causal")
    callback = TrainerMonitor(loss)
    batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    trainer = trained(kind, tmp_path, loss, [callback], learning_rate=1e-12, **batches)
    data, model = make_data(kind), make_model(kind)
    with torch.no_grad():
        logits = model(torch.stack([row["input_ids"] for row in data])).logits
    target = torch.stack([row["labels"] for row in data])
    if kind == "causal":
        logits, target = logits[:, :-1], target[:, 1:]
    logits, target = logits.reshape(-1, logits.shape[-1]), target.reshape(-1)
    expected = Monitor(GCE(0.7), num_classes=logits.shape[1])
    for _ in range(2):
        expected.update(logits=logits, target=target, learning_rate=1.0)
        epoch = expected.end_epoch()
    assert callback.epoch is not None
    assert callback.epoch.epoch == 2 and callback.epoch.samples == epoch.samples
    assert math.isclose(callback.epoch.mean_margin, epoch.mean_margin, rel_tol=1e-5)
    assert math.isclose(callback.epoch.mean_weight_this_epoch, epoch.mean_weight_this_epoch, rel_tol=0.05)
    assert [row.keys() - {"epoch", "step"} for row in logged(trainer)] == [ROW, ROW]


def test_the_learning_rate_is_that_of_the_step(tmp_path: Path) -> None:
    """Four steps that fall from 0.04 to 0.01, in each of which four samples count the same."""
    loss = TrainerLoss(MAE())
    callback = TrainerMonitor(loss)
    trained("sequence", tmp_path, loss, [callback], learning_rate=0.04, num_train_epochs=1)
    epoch = callback.epoch
    assert epoch is not None
    assert math.isclose(epoch.effective_learning_rate / epoch.mean_weight, 0.025, rel_tol=1e-6)


def test_evaluation_is_not_heard(tmp_path: Path) -> None:
    loss = TrainerLoss(MAE())
    callback = TrainerMonitor(loss)
    trainer = Trainer(
        make_model("sequence"), arguments(tmp_path, eval_strategy="steps", eval_steps=1), compute_loss_func=loss,
        train_dataset=make_data("sequence"), eval_dataset=make_data("sequence"), callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    assert callback.epoch is not None and callback.epoch.samples == COUNT
    trainer.evaluate()
    with pytest.raises(ValueError, match="at least one update"):
        callback.monitor.end_epoch()


def with_columns(kind: str, wrong: int = 4) -> list[dict[str, torch.Tensor]]:
    """The clean labels of the last samples are others, unless ignored."""
    data = make_data(kind)
    for index, row in enumerate(data):
        clean = (row["labels"] + (index >= COUNT - wrong)) % CLASSES
        row |= {"row": torch.tensor(index), "clean": clean.where(row["labels"] != -100, -100)}
    return data


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_columns_tell_samples_and_wrong_labels_apart(kind: str, tmp_path: Path) -> None:
    loss, data = TrainerLoss(MAE()), with_columns(kind)
    callback = TrainerMonitor(loss, index="row", clean_target="clean", num_samples=COUNT)
    settings = {"learning_rate": 1e-12, "remove_unused_columns": False, "num_train_epochs": 1}
    trainer = trained(kind, tmp_path, loss, [callback], data, **settings)
    with torch.no_grad():
        logits = trainer.model(torch.stack([row["input_ids"] for row in data])).logits
    labels = torch.stack([row["labels"] for row in data])
    margins = soft_margin(logits.movedim(-1, 1), labels, ignore_index=-100)
    counted = (labels != -100).float()
    if kind == "token":
        margins, counted = (margins * counted).sum(1) / counted.sum(1), counted.sum(1)
    torch.testing.assert_close(callback.monitor.samples().mean, margins, rtol=1e-4, atol=1e-5)
    assert callback.epoch.samples_noisy == counted[-4:].sum() and callback.epoch.samples_clean == counted[:-4].sum()
    assert logged(trainer)[0].keys() - {"epoch", "step"} == {*ROW, "snr"}


def test_clean_targets_of_a_language_model_are_shifted_with_its_labels(tmp_path: Path) -> None:
    loss, data = TrainerLoss(MAE(), causal_lm=True), make_data("causal")
    for row in data:
        row["clean"] = row["labels"].clone()
        row["clean"][1] += 1
    callback = TrainerMonitor(loss, clean_target="clean")
    trained("causal", tmp_path, loss, [callback], data, remove_unused_columns=False, num_train_epochs=1)
    assert callback.epoch.samples_noisy == COUNT  # the second token of each
    assert callback.epoch.samples_clean == callback.epoch.samples - COUNT > 0


def test_a_column_that_was_removed_is_missed(tmp_path: Path) -> None:
    loss = TrainerLoss(MAE())
    callback = TrainerMonitor(loss, clean_target="clean")
    with pytest.raises(ValueError, match="column 'clean': is remove_unused_columns=False"):
        trained("sequence", tmp_path, loss, [callback], with_columns("sequence"))


def test_a_loss_that_is_not_called_is_missed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="heard no call of its loss"):
        trained("sequence", tmp_path, TrainerLoss(MAE()), [TrainerMonitor(TrainerLoss(MAE()))])


def test_rows_go_to_the_trainers_reporters(tmp_path: Path) -> None:
    loss = TrainerLoss(MAE())
    trainer = Trainer(
        make_model("sequence"), arguments(tmp_path), train_dataset=make_data("sequence"), compute_loss_func=loss
    )
    heard: list[dict[str, float]] = []

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            heard.append(dict(kwargs["logs"]))

    trainer.add_callback(Reporter())
    trainer.add_callback(TrainerMonitor(loss, log=trainer.log))
    trainer.train()
    assert [row["epoch"] for row in heard if row.keys() >= ROW] == [1.0, 2.0]
    assert len(logged(trainer)) == 2


@pytest.mark.parametrize("criterion", [GCE(0.7), AutoLoss(CLASSES)], ids=["gce", "auto"])
@pytest.mark.parametrize("step", [3, 4], ids=["amid an epoch", "at its last step"])
def test_a_resumed_run_ends_with_the_same_numbers(step: int, criterion: Any, tmp_path: Path) -> None:
    def run(**resume: Any) -> TrainerMonitor:
        loss = TrainerLoss(criterion)
        callback = TrainerMonitor(loss, index="row", clean_target="clean", num_samples=COUNT)
        trainer = Trainer(
            make_model("sequence"),
            arguments(tmp_path, save_strategy="steps", save_steps=1, remove_unused_columns=False),
            train_dataset=with_columns("sequence"), compute_loss_func=loss, callbacks=[callback],
        )  # fmt: skip
        trainer.train(**resume)
        return callback

    whole = run()
    resumed = run(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert whole.epoch.epoch == 2 and whole.epoch.snr is not None
    assert resumed.epoch.as_dict() == whole.epoch.as_dict()
    ours, theirs = vars(resumed.monitor.samples()), vars(whole.monitor.samples())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ours, theirs = resumed.loss.criterion.state_dict(), whole.loss.criterion.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_checkpoint_without_a_monitor_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"save_strategy": "steps", "save_steps": 4}
    trained("sequence", tmp_path, TrainerLoss(MAE()), **settings)
    loss = TrainerLoss(MAE())
    callback = TrainerMonitor(loss)
    trainer = Trainer(
        make_model("sequence"), arguments(tmp_path, **settings), train_dataset=make_data("sequence"),
        compute_loss_func=loss, callbacks=[callback],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "the monitor starts anew" in caplog.text
    assert callback.epoch.epoch == 1


def test_verdicts_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loss = TrainerLoss(Shifted(MAE(), -9.0))
    trained("sequence", tmp_path, loss, [TrainerMonitor(loss)])
    assert "this will underfit" in caplog.text
