"""Lightning: the loss in a module, and a callback that watches it."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from curriculoss import GCE, RobustLoss
from curriculoss.integrations.lightning import LightningMonitor


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network, self.loss = torch.nn.Linear(16, 5), RobustLoss(GCE(0.7))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.loss(self.network(batch[0]), batch[1])  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0)
clean, others = torch.randint(5, (2, 500))
inputs, given = torch.eye(5, 16)[clean] + 0.3 * torch.randn(500, 16), clean.where(torch.rand(500) < 0.7, others)
watch = LightningMonitor(clean_target=2)  # batch[2] has the clean labels
trainer = lightning.Trainer(max_epochs=5, callbacks=[watch], logger=False, enable_checkpointing=False)
trainer.fit(Classifier(), DataLoader(TensorDataset(inputs, given, clean), batch_size=50, shuffle=True))
print(trainer.callback_metrics)
