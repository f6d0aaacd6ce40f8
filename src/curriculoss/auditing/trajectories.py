"""What the network made of every sample in every epoch, recorded while an audit trains."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from curriculoss._files import write, write_arrays
from curriculoss.data import Batches
from curriculoss.errors import RunError
from curriculoss.fitting import Callback, EpochResult, Loop, Step, predictions
from curriculoss.margin import soft_margin
from curriculoss.runs import Run

AFTER = "after"  # name of the .npz file of what is recorded after training


def hard_margin(logits: Tensor, target: Tensor) -> Tensor:
    """The label's logit minus the largest other logit; AUM (Pleiss et al., NeurIPS 2020) is its mean."""
    label = target.unsqueeze(1)
    return logits.gather(1, label).squeeze(1) - logits.scatter(1, label, -math.inf).amax(1)


def signed_gap(logits: Tensor, target: Tensor) -> Tensor:
    """The largest logit minus the second largest, negative where the largest is not the label's."""
    best = logits.topk(2, 1)
    gap = best.values[:, 0] - best.values[:, 1]
    return gap.where(best.indices[:, 0] == target, -gap)


def rank_of_label(logits: Tensor, target: Tensor) -> Tensor:
    """The number of classes with a larger logit."""
    return (logits > logits.gather(1, target.unsqueeze(1))).sum(1)


RECORDED: Mapping[str, tuple[str, Callable[[Tensor, Tensor], Tensor], torch.dtype]] = {  # file name, function, type
    "soft": ("margins.npy", soft_margin, torch.float16),
    "hard": ("hard_margins.npy", hard_margin, torch.float16),
    "gap": ("gaps.npy", signed_gap, torch.float16),
    "rank": ("ranks.npy", rank_of_label, torch.int32),
}


@dataclass(frozen=True, eq=False)
class Trajectories:
    """What the network made of the given labels in E epochs, as trained, and after training.

    Attributes:
        soft: (E, N) soft margins.
        hard: (E, N) hard margins.
        gap: (E, N) gaps between the two best logits, negative where the best is not the given label.
        rank: (E, N) ranks of the given labels; 0 is the best.
        after: (N,) soft margins after training.
        suggested: (N,) the best class apart from the given one after training.
    """

    soft: NDArray[Any]
    hard: NDArray[Any]
    gap: NDArray[Any]
    rank: NDArray[Any]
    after: NDArray[Any]
    suggested: NDArray[np.int64]

    def save(self, folder: Path) -> None:
        """Write the files to a run's folder."""
        for name, (file, *_) in RECORDED.items():
            write(folder / file, partial(np.save, arr=getattr(self, name)))
        write_arrays(folder / f"{AFTER}.npz", {"margin": self.after, "suggested": self.suggested})

    @classmethod
    def read(cls, run: Run) -> Self:
        """Read the files from a run's folder.

        Raises:
            RunError: The run is not that of an audit.
        """
        try:
            rows = {name: np.load(run.path / file, allow_pickle=False) for name, (file, *_) in RECORDED.items()}
        except (OSError, ValueError):
            raise RunError(f"{run.path} has no margins of every epoch: it is no run of an audit") from None
        rows = {name: each[: run.result.epochs] for name, each in rows.items()}
        after = run.arrays(AFTER)
        return cls(**rows, after=after["margin"], suggested=after["suggested"])


class Recorder(Callback):
    """Records the trajectories of all samples: on the device at every step, copied to memory once per epoch.

    Args:
        num_samples: N.
        plain_batches: Makes batches of all samples without augmentation, to look at after training.
        folder: The folder of the run, to save the trajectories to after training, if any.
    """

    trajectories: Trajectories | None = None  # there after training

    def __init__(self, num_samples: int, plain_batches: Callable[[], Batches], folder: Path | None = None) -> None:
        self.num_samples, self.plain_batches, self.folder = num_samples, plain_batches, folder
        self.rows: dict[str, list[Tensor]] = {name: [] for name in RECORDED}
        self.seen: dict[str, Tensor] = {}

    def on_fit_begin(self, loop: Loop) -> None:
        self.loop = loop

    def on_step(self, step: Step) -> None:
        assert step.index is not None
        for name, (_, function, _) in RECORDED.items():
            known = step.margin if name == "soft" else None
            values = function(step.logits, step.target) if known is None else known
            if name not in self.seen:
                self.seen[name] = torch.zeros(self.num_samples, device=values.device)
            self.seen[name][step.index] = values.float()

    def on_epoch_end(self, result: EpochResult) -> None:
        for name, (_, _, kind) in RECORDED.items():
            limit = torch.finfo(kind).max if kind.is_floating_point else math.inf  # diverging margins would be inf
            self.rows[name].append(self.seen[name].cpu().clamp(-limit, limit).to(kind))

    def on_fit_end(self) -> None:
        margin, other = torch.empty(self.num_samples), torch.empty(self.num_samples, dtype=torch.int64)
        device = next(self.loop.network.parameters()).device
        for logits, (_, target, index, _) in predictions(self.loop.network, self.plain_batches(), device):
            assert index is not None
            place = index.cpu()
            margin[place] = soft_margin(logits, target).float().cpu()
            other[place] = logits.scatter(1, target.unsqueeze(1), -math.inf).argmax(1).cpu()
        rows = {name: torch.stack(each).numpy() for name, each in self.rows.items()}
        self.trajectories = Trajectories(**rows, after=margin.numpy(), suggested=other.numpy())
        if self.folder is not None:
            self.trajectories.save(self.folder)

    def state_dict(self) -> dict[str, Any]:
        return {name: list(rows) for name, rows in self.rows.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = {name: list(rows) for name, rows in state.items()}
