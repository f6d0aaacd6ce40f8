"""Plain PyTorch: the loss in place of nn.CrossEntropyLoss, and a monitor that is fed at every step."""

import torch

from curriculoss import MAE, RobustLoss, fix
from curriculoss.monitor import Monitor

torch.manual_seed(0)
centres = 3 * torch.randn(20, 16)
clean = torch.randint(20, (2000,))
inputs = centres[clean] + torch.randn(2000, 16)
given = torch.where(torch.rand(2000) < 0.4, torch.randint(20, (2000,)), clean)

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 20))
criterion = RobustLoss(fix(MAE(), "scale", tau=2.6, num_classes=20))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
monitor = Monitor(criterion, num_classes=20)
for _ in range(10):
    for index in torch.randperm(2000).split(50):
        logits, target = model(inputs[index]), given[index]
        optimizer.zero_grad()
        criterion(logits, target).backward()
        optimizer.step()
        monitor.update(logits=logits.detach(), target=target, clean_target=clean[index], learning_rate=0.1)
    epoch = monitor.end_epoch()
    print(f"epoch {epoch.epoch}: mean weight {epoch.mean_weight:.3f}, snr {epoch.snr:.1f}", *epoch.verdicts)
print(f"accuracy on clean labels {(model(inputs).argmax(1) == clean).float().mean():.3f}")
