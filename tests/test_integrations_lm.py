"""Causal language models without logits, in the real Trainer and TRL's SFTTrainer, with small random models."""

import doctest
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertForMaskedLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from curriculoss import CE, GCE, MAE, AutoLoss, Loss, RobustLoss, decompose
from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.integrations.huggingface import FusedLMHead, TrainerLoss, fuse_lm_head
from curriculoss.losses.criterion import Criterion

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parent.parent / "docs" / "language-models.md"
VOCABULARY, LENGTH, COUNT = 37, 8, 16
SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
SMALL_GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 0,
    "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
KINDS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZE)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**SMALL_GPT2)),
    "tied qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZE, tie_word_embeddings=True)),
    "mixture of experts": lambda: MixtralForCausalLM(
        MixtralConfig(**SIZE, num_local_experts=3, output_router_logits=True)
    ),
}


def make_model(kind: str = "llama") -> Any:
    torch.manual_seed(0)
    return KINDS[kind]().train()


def make_batch() -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    labels = tokens.clone()
    labels[1, 3:] = labels[2, :2] = -100
    return {"input_ids": tokens, "labels": labels}


def gradients(model: Any, **inputs: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]


class Counted:
    """Counts the calls of the fused op, and says whether autocast was on in the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.autocast, original = 0, False, Criterion.linear

        def linear(*args: Any, **kwargs: Any) -> torch.Tensor:
            self.calls, self.autocast = self.calls + 1, torch.is_autocast_enabled("cpu")
            return original(*args, **kwargs)

        monkeypatch.setattr(Criterion, "linear", linear)


@pytest.fixture
def fused_op(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [None, 50, torch.tensor(50)], ids=["mean", "number of items", "as a tensor"])
def test_ce_has_the_models_own_loss_and_gradients(kind: str, count: Any, fused_op: Counted) -> None:
    model = make_model(kind)
    batch = make_batch() | ({} if count is None else {"num_items_in_batch": count})
    expected = gradients(model, **batch)
    fuse_lm_head(model, CE())
    torch.testing.assert_close(gradients(model, **batch), expected)
    assert fused_op.calls == 1


def test_labels_that_are_shifted_already_are_not_shifted_again() -> None:
    model, batch = make_model(), make_batch()
    shifted = batch | {"shift_labels": batch["input_ids"].flip(1)}
    expected = gradients(model, **shifted)
    fuse_lm_head(model, CE())
    torch.testing.assert_close(gradients(model, **shifted), expected)


@pytest.mark.parametrize("loss", [GCE(0.5), RobustLoss(MAE(), normalize=False), AutoLoss(VOCABULARY)], ids=str)
def test_any_loss_is_that_of_the_logits(loss: Loss | Criterion) -> None:
    model, batch = make_model(), make_batch()
    loss = loss.eval() if isinstance(loss, AutoLoss) else loss  # in training it sees more of logits
    expected = TrainerLoss(loss, causal_lm=True)(model(batch["input_ids"]), batch["labels"])
    fused = fuse_lm_head(model, loss)
    model.eval()  # AutoLoss does not follow
    torch.testing.assert_close(model(**batch).loss, expected)
    fused.restore()


def test_auto_loss_follows_in_training_alone() -> None:
    model, given = make_model(), AutoLoss(VOCABULARY)
    seen = given.seen.clone()
    fused = fuse_lm_head(model, given)
    model.eval()(**make_batch())
    assert torch.equal(fused.loss.criterion.seen, seen)
    model.train()(**make_batch())
    assert not torch.equal(fused.loss.criterion.seen, seen)
    assert torch.equal(given.seen, seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_the_loss_is_float32(dtype: torch.dtype) -> None:
    model, batch = make_model().to(dtype), make_batch()
    expected = gradients(model, **batch)
    fuse_lm_head(model, CE())
    loss, found = gradients(model, **batch)
    assert loss.dtype == torch.float32 and found[0].dtype == dtype
    torch.testing.assert_close(loss, expected[0], rtol=0.01, atol=0.01)
    torch.testing.assert_close(found, expected[1], rtol=0.05, atol=0.01)


def test_logits_come_back_unless_labels_are_trained_on() -> None:
    model, batch = make_model(), make_batch()
    own = model(batch["input_ids"]).logits
    fuse_lm_head(model, GCE(0.5))
    torch.testing.assert_close(model(batch["input_ids"]).logits, own)
    assert model(**batch).logits is None
    as_tuple = model(batch["input_ids"], labels=batch["labels"], return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], model(**batch).loss)
    model.eval()
    torch.testing.assert_close(model(**batch).logits, own)
    assert model(**batch).loss.dim() == 0
    start = batch["input_ids"][:1]
    made = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=1, do_sample=False)
    assert made[0, -1] == own[0, -1].argmax()


def test_training_keeps_no_logits_for_backward() -> None:
    vocabulary, tokens = 3000, torch.randint(3000, (4, 32), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**(SIZE | {"vocab_size": vocabulary}))).train()

    def most_saved() -> int:
        sizes = [0]
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            model(tokens, labels=tokens)
        return max(sizes)

    assert most_saved() >= tokens.numel() * vocabulary
    fuse_lm_head(model, GCE(0.5))
    assert most_saved() <= model.lm_head.weight.numel() < tokens.numel() * vocabulary


def test_restore_gives_the_model_back() -> None:
    model, batch = make_model(), make_batch()
    before, names = gradients(model, **batch), set(vars(model)) | set(vars(model.lm_head))
    fused = fuse_lm_head(model, MAE())
    assert not torch.allclose(gradients(model, **batch)[0], before[0])
    state = model.state_dict()
    fused.restore()
    assert set(vars(model)) | set(vars(model.lm_head)) == names
    assert state.keys() == model.state_dict().keys()
    torch.testing.assert_close(gradients(model, **batch), before)
    assert model(**batch).logits is not None
    fuse_lm_head(model, MAE())


def test_restore_works_under_what_has_wrapped_the_model_since(tmp_path: Path) -> None:
    model, batch = make_model(), make_batch()
    before = gradients(model, **batch)
    fused = fuse_lm_head(model, MAE())
    sft_trainer(SFTTrainer, model, tmp_path, **EXACT)
    fused.restore()
    torch.testing.assert_close(gradients(model, **batch), before)


def test_a_copy_of_a_fused_model_is_a_fused_model_of_its_own() -> None:
    model, batch = make_model(), make_batch()
    fuse_lm_head(model, GCE(0.5))
    copied = deepcopy(model)
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    expected = gradients(make_fused("llama", GCE(0.5))[0], **batch)
    torch.testing.assert_close(gradients(model, **batch), expected)
    assert not torch.allclose(copied(**batch).loss, expected[0])


def make_fused(kind: str, loss: Loss | Criterion) -> tuple[Any, FusedLMHead]:
    model = make_model(kind)
    return model, fuse_lm_head(model, loss)


REFUSED: dict[str, Any] = {
    "final_logit_softcapping=30.0": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZE, head_dim=8)),
    "logit_scale=0.0625": lambda: CohereForCausalLM(CohereConfig(**SIZE)),
    "logits_soft_cap=30.0": lambda: RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**SIZE)),
    "logits_scaling=4.0": lambda: GraniteForCausalLM(GraniteConfig(**SIZE, logits_scaling=4.0)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_models_that_change_their_logits_are_refused_in_one_line(reason: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^fuse_lm_head expects .*ForCausalLM with {reason}$"):
        fuse_lm_head(REFUSED[reason](), MAE())


class WithTemperature(LlamaForCausalLM):
    """A model that scales its logits, and whose configuration does not say so."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits / 2
        return outputs


def test_a_change_that_the_configuration_does_not_tell_is_refused_in_the_first_step() -> None:
    model = WithTemperature(LlamaConfig(**SIZE)).train()
    WithTemperature.__name__ = "WithTemperatureForCausalLM"
    fuse_lm_head(model, MAE())
    with pytest.raises(InvalidValueError, match=r"; WithTemperatureForCausalLM changes them$"):
        model(**make_batch())


def test_what_is_no_causal_language_model_is_refused() -> None:
    bert = BertForMaskedLM(BertConfig(**{k: v for k, v in SIZE.items() if k != "num_key_value_heads"}))
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_attention_heads": 2}
    bart = BartForCausalLM(BartConfig(vocab_size=VOCABULARY, decoder_ffn_dim=16, **sizes))
    with pytest.raises(InvalidTypeError, match=r"shifts its labels by a token, got BartForCausalLM, which does not$"):
        fuse_lm_head(bart, MAE())
    for other in (bert, torch.nn.Linear(2, 2)):
        with pytest.raises(InvalidTypeError, match=f"causal language model .* got {type(other).__name__}$"):
            fuse_lm_head(other, MAE())  # type: ignore[arg-type]
    model, _ = make_fused("llama", MAE())
    with pytest.raises(InvalidValueError, match=r"got a fused LlamaForCausalLM: call restore\(\) first$"):
        fuse_lm_head(model, CE())
    with pytest.raises(InvalidValueError, match="ignore_index=-100, got 0"):
        fuse_lm_head(make_model(), RobustLoss(CE(), ignore_index=0))


# With the Trainer


def make_data() -> list[dict[str, torch.Tensor]]:
    """Labels of very different numbers of tokens, so that a mean of means is no mean."""
    tokens = torch.randint(1, VOCABULARY, (COUNT, LENGTH), generator=torch.Generator().manual_seed(2))
    labels = tokens.clone()
    for row, label in enumerate(labels):
        label[2 + row % (LENGTH - 2) :] = -100
    return [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels, strict=True)]


SETTINGS: dict[str, Any] = {
    "num_train_epochs": 2, "learning_rate": 0.5, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
    "use_cpu": True, "optim": "sgd", "seed": 0, "dataloader_pin_memory": False, "max_grad_norm": 0.0,
    "per_device_train_batch_size": 8, "logging_strategy": "no",
}  # fmt: skip


def weights(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(folder: Path, kind: str, loss: Loss | Criterion | None, **settings: Any) -> tuple[torch.Tensor, float]:
    model = make_model(kind)
    if loss is not None:
        fuse_lm_head(model, loss)
    arguments = TrainingArguments(str(folder), **(SETTINGS | settings))
    trainer = Trainer(model, arguments, train_dataset=make_data(), eval_dataset=make_data())
    trainer.train()
    return weights(model), trainer.evaluate()["eval_loss"]


ACCUMULATED = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "tied qwen2"])
def test_ce_trains_as_the_trainer_does_without_us(kind: str, tmp_path: Path, fused_op: Counted) -> None:
    found = trained(tmp_path, kind, CE(), **ACCUMULATED)
    assert fused_op.calls == 16 + 2  # 16 batches of two, and an evaluation of two batches
    torch.testing.assert_close(found, trained(tmp_path, kind, None, **ACCUMULATED), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "tied qwen2"])
def test_accumulated_batches_train_as_one_large_batch(kind: str, tmp_path: Path) -> None:
    large, small = trained(tmp_path, kind, GCE(0.5)), trained(tmp_path, kind, GCE(0.5), **ACCUMULATED)
    assert (large[0] - weights(make_model(kind))).abs().max() > 1e-3
    torch.testing.assert_close(small, large, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(reentrant: bool, tmp_path: Path) -> None:
    settings = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    found = trained(tmp_path, "llama", GCE(0.5), **settings)
    torch.testing.assert_close(found, trained(tmp_path, "llama", GCE(0.5)), rtol=1e-5, atol=1e-6)


def test_autocast_by_the_trainer_stays_on(tmp_path: Path, fused_op: Counted) -> None:
    found = trained(tmp_path, "llama", CE(), bf16=True)
    assert fused_op.autocast
    torch.testing.assert_close(found, trained(tmp_path, "llama", None, bf16=True), rtol=0.02, atol=0.02)
    trained(tmp_path, "llama", CE())
    assert not fused_op.autocast


# With TRL


class FusedSFTTrainer(SFTTrainer):  # as in docs/language-models.md
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return Trainer.compute_loss(self, *args, **kwargs)


def sft_trainer(kind: type[SFTTrainer], model: Any, folder: Path, **settings: Any) -> SFTTrainer:
    words = {f"w{i}": i for i in range(VOCABULARY - 2)} | {"[PAD]": VOCABULARY - 2, "[EOS]": VOCABULARY - 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), pad_token="[PAD]", eos_token="[EOS]"
    )
    data = Dataset.from_list([{"input_ids": x["input_ids"].tolist()} for x in make_data()])
    return kind(model, SFTConfig(str(folder), **settings), train_dataset=data, processing_class=tokenizer)


DEFAULTS = {"report_to": "none", "use_cpu": True, "num_train_epochs": 1}
EXACT = DEFAULTS | SETTINGS | {"bf16": False}


@pytest.mark.parametrize("first", ["fused", "trainer"])
def test_sft_trainer_at_its_defaults_fails_loudly(first: str, tmp_path: Path, fused_op: Counted) -> None:
    model = make_model()
    if first == "fused":
        fuse_lm_head(model, GCE(0.5))
    trainer = sft_trainer(SFTTrainer, model, tmp_path, **DEFAULTS)
    if first == "trainer":
        fuse_lm_head(model, GCE(0.5))
    with pytest.raises(InvalidValueError, match=r"SFTTrainer see docs/language-models\.md"):
        trainer.train()
    assert fused_op.calls == 0


@pytest.mark.parametrize("first", ["fused", "trainer"])
def test_sft_trainer_with_the_trainers_loss_uses_the_fused_op(first: str, tmp_path: Path, fused_op: Counted) -> None:
    model = make_model()
    if first == "fused":
        fuse_lm_head(model, CE())
    trainer = sft_trainer(FusedSFTTrainer, model, tmp_path, **EXACT)
    if first == "trainer":
        fuse_lm_head(model, CE())
    with pytest.raises(InvalidValueError, match="got a fused LlamaForCausalLM"):
        fuse_lm_head(model, CE())
    trainer.train()
    assert fused_op.calls == 2 * COUNT // 8
    own = make_model()
    sft_trainer(SFTTrainer, own, tmp_path, **EXACT).train()
    torch.testing.assert_close(weights(model), weights(own), rtol=1e-4, atol=1e-5)


# Dynamic fine-tuning


def dft(logits: torch.Tensor, target: torch.Tensor, power: float) -> torch.Tensor:
    """−sg(p^power)·log p of each sample, as TRL and Liger write it."""
    log_p = torch.log_softmax(logits, 1).gather(1, target.unsqueeze(1)).squeeze(1)
    return -(power * log_p).exp().detach() * log_p


@pytest.mark.parametrize(("power", "loss"), [(1.0, MAE()), (0.5, GCE(0.5))], ids=["p: MAE", "root of p: GCE(0.5)"])
def test_dynamic_fine_tuning_is_a_robust_loss(power: float, loss: Loss) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 50, generator=generator, dtype=torch.float64) * 4
    target = torch.randint(50, (200,), generator=generator)
    found = decompose(lambda s, y: dft(s, y, power), logits, target)
    own = decompose(RobustLoss(loss, normalize=False), logits, target)
    assert found.standard_form and own.standard_form
    torch.testing.assert_close(found.weight, own.weight, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.cosine, torch.ones(200, dtype=torch.float64))


def test_the_page_on_language_models_says_what_is_so() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert tried >= 6 and not failed
    source = "class FusedSFTTrainer(SFTTrainer):\n    def compute_loss(self, *args, **kwargs):\n"
    assert source in PAGE.read_text(encoding="utf-8")
