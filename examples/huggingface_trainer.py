"""Hugging Face: loss and monitor in a Trainer; for causal language models say TrainerLoss(..., causal_lm=True)."""

from tempfile import TemporaryDirectory

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from curriculoss import GCE
from curriculoss.integrations.huggingface import TrainerLoss, TrainerMonitor

torch.manual_seed(0)
tokens = torch.randint(1, 50, (256, 8))
labels = tokens[:, 0] % 4
given = torch.where(torch.rand(256) < 0.3, torch.randint(4, (256,)), labels)
data = [{"input_ids": x, "labels": y} for x, y in zip(tokens, given, strict=True)]
config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)  # fmt: skip
config.num_labels = 4
loss = TrainerLoss(GCE(0.7))
with TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=3, learning_rate=0.01, gradient_accumulation_steps=2, report_to="none", use_cpu=True
    )  # fmt: skip
    model = BertForSequenceClassification(config)  # type: ignore[no-untyped-call]
    trainer = Trainer(model, arguments, train_dataset=data, compute_loss_func=loss, callbacks=[TrainerMonitor(loss)])
    trainer.train()
print(*(row for row in trainer.state.log_history if "mean_weight" in row), sep="\n")
