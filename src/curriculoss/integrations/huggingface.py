"""Hugging Face: the loss and the monitor for `transformers.Trainer`, and causal language models without logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curriculoss.errors import InvalidTypeError, InvalidValueError
from curriculoss.integrations import needed
from curriculoss.integrations.watch import Watch, logger
from curriculoss.losses import Loss
from curriculoss.losses.criterion import Criterion
from curriculoss.losses.robust import RobustLoss

with needed("huggingface"):
    from transformers import PreTrainedModel, TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

IGNORED = -100  # what the Trainer does not count
STATE = "monitor.pt"  # in a checkpoint's folder
# What configurations call a factor or a cap that a model applies to the output of its last layer.
LOGIT_CHANGES = (
    "final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap",
    "logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier",
)  # fmt: skip
# Names in a forward that shifts labels by a token. Those of XLNet, and of decoders of encoder-decoders, do not.
SHIFTING = {"loss_function", "shift_labels"}


class TrainerLoss:
    """`Trainer(compute_loss_func=TrainerLoss(MAE()))`, for logits (N, K) or (N, T, K).

    The losses of all items other than −100 are added up and divided by their number in all accumulated batches, as the
    Trainer expects. So the `reduction` of a criterion has no effect, and a sum of class weights is not divided by.

    Args:
        loss: A loss such as `MAE()`, or a criterion such as `RobustLoss(MAE(), class_weight=w)`, which is copied.
        causal_lm: Whether position t predicts token t + 1, as in causal language models.
    """

    def __init__(self, loss: Loss | Criterion, *, causal_lm: bool = False) -> None:
        self.criterion = deepcopy(loss) if isinstance(loss, Criterion) else RobustLoss(loss)
        if self.criterion.ignore_index != IGNORED:
            raise InvalidValueError(f"TrainerLoss expects ignore_index={IGNORED}, got {self.criterion.ignore_index}")
        self.criterion.reduction = "sum"
        self.causal_lm = causal_lm

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise InvalidValueError("TrainerLoss expects labels in every batch, got none")
        if "CausalLM" in type(outputs).__name__ and not self.causal_lm:
            raise InvalidValueError("TrainerLoss expects causal_lm=True for outputs of a causal language model")
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        target = self.aligned(labels).to(logits.device).flatten()
        with _sum_in_float32(logits):
            total: Tensor = self.criterion.to(logits.device)(logits.flatten(0, -2), target)
        return self._per_item(total, target, num_items_in_batch)

    def of_hidden(
        self, hidden: Tensor, head: nn.Linear, target: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The same for the logits `head(hidden)`, which are never stored.

        Args:
            hidden: (N, T, H), the inputs of the last layer.
            head: The last layer.
            target: (N, T), the label that each position predicts; see `aligned`.
            num_items_in_batch: As for calling it.

        Returns:
            The loss, one number.
        """
        device = head.weight.device
        hidden, target = hidden.to(device).flatten(0, -2), target.to(device).flatten()
        with _sum_in_float32(hidden):
            total = self.criterion.to(device).linear(hidden, head.weight, head.bias, target)
        return self._per_item(total, target, num_items_in_batch)

    def _per_item(self, total: Tensor, target: Tensor, count: Tensor | int | None) -> Tensor:
        if count is None:
            count = (target != IGNORED).sum()
        return total / (count.to(total.device) if isinstance(count, Tensor) else count)

    def aligned(self, labels: Tensor) -> Tensor:
        """The label that each position predicts. Shifting logits instead would copy them."""
        return F.pad(labels, (0, 1), value=IGNORED)[..., 1:] if self.causal_lm else labels


def _sum_in_float32(given: Tensor) -> AbstractContextManager[object]:
    """Autocast for half precisions: with it totals are float32; in half they would have three digits, or overflow."""
    half = given.dtype in (torch.float16, torch.bfloat16)
    return torch.autocast(given.device.type, given.dtype) if half else nullcontext()


def fuse_lm_head(model: PreTrainedModel, loss: Loss | Criterion) -> FusedLMHead:
    """Make a causal language model compute its loss by ours, from its hidden states, without ever storing logits.

    Called with labels in training mode, the model returns the loss without logits. `Trainer` needs no other setting:
    gradient accumulation, `num_items_in_batch`, gradient checkpointing and tied embeddings work as before. Without
    labels it returns logits as before, so generation does not change; in evaluation mode with labels, it returns both.

    "Dynamic fine-tuning" (DFT, loss −sg(p)·log p) has exactly the gradient of `RobustLoss(MAE(), normalize=False)`, and
    with √p in place of p that of `GCE(0.5)`. With a large vocabulary MAE underfits;
    `fix(MAE(), "scale", num_classes=vocabulary)` is the cure.

    Args:
        model: A causal language model of `transformers` whose last layer is linear.
        loss: A loss such as `GCE(0.5)`, or a criterion such as `AutoLoss(vocabulary)`, which is copied.

    Returns:
        What undoes it: `.restore()`. Its `.loss.criterion` is the criterion that is trained with.

    Raises:
        InvalidTypeError: If the model is not a causal language model, its last layer is not linear, or its own loss
            expects labels that are shifted already.
        InvalidValueError: If the model scales or caps its logits, or is fused already. While it is fused, also in
            training that goes past the model's `forward`, as TRL's SFTTrainer does by default.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from curriculoss import GCE
        >>> size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **size)).train()
        >>> fused = fuse_lm_head(model, GCE(0.5))
        >>> tokens = torch.randint(32, (2, 6))
        >>> output = model(tokens, labels=tokens)
        >>> output.loss.backward()
        >>> print(output.logits)
        None
        >>> fused.restore()
    """
    return FusedLMHead(model, TrainerLoss(loss, causal_lm=True))


class FusedLMHead:
    """What `fuse_lm_head` returns. It stands in for the model's `forward` until `restore` is called.

    Attributes:
        model: The model.
        loss: The loss; `loss.criterion` is the criterion that is trained with.
    """

    def __init__(self, model: PreTrainedModel, loss: TrainerLoss) -> None:
        self.model, self.loss, self.head = model, loss, _checked_head(model)
        self._before = {module: module.__dict__.get("forward") for module in (model, self.head)}
        self._forward, self._head_forward = model.forward, self.head.forward
        self.__signature__ = inspect.signature(model.forward)  # the Trainer and `generate` look at it
        self._fused, self._inside, self._keep_logits = True, False, True
        self._hidden: Tensor | None = None
        self._handle = model.base_model.register_forward_pre_hook(self._refuse_detour)
        model.forward = self
        self.head.forward = self._hidden_or_logits  # type: ignore[method-assign, assignment]  # of this object alone

    def restore(self) -> None:
        """Give the model its own loss back."""
        self._fused = False  # what has wrapped the model's forward since then keeps calling us
        self._handle.remove()
        for module, ours in ((self.model, self), (self.head, self._hidden_or_logits)):
            if module.__dict__.get("forward") == ours:
                del module.forward
                if (before := self._before[module]) is not None:
                    module.forward = before  # type: ignore[method-assign]  # as it was

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward."""
        kwargs |= dict(zip(self.__signature__.parameters, args, strict=False))
        labelled = any(kwargs.get(name) is not None for name in ("labels", "shift_labels"))
        if not self._fused or kwargs.get("fused_lm_head"):  # the latter is TRL's, see _refuse_detour
            return self._forward(**kwargs)
        return self._with_loss(**kwargs) if labelled else self._run(kwargs, keep_logits=True)[0]

    def _with_loss(
        self, *, labels: Tensor | None = None, shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None, return_dict: bool | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        training, config = self.model.training, self.model.config
        outputs, hidden = self._run(kwargs | {"return_dict": True}, keep_logits=not training)
        if hidden is None or (training and outputs["logits"] is not hidden):
            name = type(self.model).__name__
            raise InvalidValueError(f"fuse_lm_head expects logits as the last layer gives them; {name} changes them")
        self.loss.criterion.train(training)  # AutoLoss follows in training alone
        target = self.loss.aligned(labels) if labels is not None and shift_labels is None else shift_labels
        assert target is not None
        loss = self.loss.of_hidden(hidden, self.head, target, num_items_in_batch)
        if outputs.get("aux_loss") is not None:  # of a mixture of experts, which adds it if there are labels
            loss = loss + config.router_aux_loss_coef * outputs["aux_loss"].to(loss.device)
        found = type(outputs)(loss=loss, **{k: v for k, v in outputs.items() if k != "logits" or not training})
        return found if (config.return_dict if return_dict is None else return_dict) else found.to_tuple()

    def _run(self, kwargs: dict[str, Any], *, keep_logits: bool) -> tuple[Any, Tensor | None]:
        """The outputs of the model's own forward without labels, and the inputs of its last layer."""
        self._inside, self._keep_logits = True, keep_logits
        try:
            return self._forward(**kwargs), self._hidden
        finally:
            self._inside, self._keep_logits, self._hidden = False, True, None

    def _hidden_or_logits(self, hidden: Tensor) -> Tensor:
        """The last layer's forward; what it returns becomes `outputs.logits`."""
        if self._inside:
            self._hidden = hidden
        return self._head_forward(hidden) if self._keep_logits else hidden

    def _refuse_detour(self, *_: object) -> None:
        """Before the layers below the last one run: in training, refuse a caller that is not our forward."""
        if self.model.training and torch.is_grad_enabled() and not self._inside:
            raise InvalidValueError(
                "fuse_lm_head expects training through the model's forward, got a call that goes past it and would "
                "train with another loss; for TRL's SFTTrainer see docs/language-models.md, otherwise call restore()"
            )


def _checked_head(model: PreTrainedModel) -> nn.Linear:
    """The last layer of a model whose logits are its output."""
    name, expected = type(model).__name__, "fuse_lm_head expects a causal language model of transformers"
    if not isinstance(model, PreTrainedModel) or not name.endswith(("ForCausalLM", "LMHeadModel")):
        raise InvalidTypeError(f"{expected}, got {name}")
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # of transformers
    owner = getattr(getattr(head, "forward", None), "__self__", None)  # not the model's forward, which others may wrap
    if isinstance(owner, FusedLMHead):
        raise InvalidValueError(f"{expected} that is not fused yet, got a fused {name}: call restore() first")
    if not isinstance(head, nn.Linear) or not head.weight.is_floating_point() or model.base_model is model:
        raise InvalidTypeError(f"{expected} whose last layer is an nn.Linear, got {name} with {head}")
    codes = [inspect.unwrap(vars(each)["forward"]).__code__ for each in type(model).__mro__ if "forward" in vars(each)]
    if not any(SHIFTING & {*code.co_names, *code.co_varnames} for code in codes):
        raise InvalidTypeError(f"{expected} that shifts its labels by a token, got {name}, which does not")
    config = model.config.get_text_config()
    for key in LOGIT_CHANGES:
        if getattr(config, key, None) is not None:
            raise InvalidValueError(f"{expected} with plain logits, got {name} with {key}={getattr(config, key)}")
    return head


class TrainerMonitor(Watch, TrainerCallback):
    """`Trainer(compute_loss_func=loss, callbacks=[TrainerMonitor(loss)])` follows the training with a monitor.

    Mean weight and effective learning rate (and the snr, if clean targets are known) go to `trainer.state.log_history`
    once per epoch. Its state and the loss's (AutoLoss has one) are saved in the folders of checkpoints, and loaded from
    those in `output_dir`.

    Args:
        loss: The loss that the Trainer computes.
        log: Where the numbers go instead; `trainer.log` passes them to whatever the trainer reports to.
        index: The column of the training data with the position of each sample. It is kept from the model, and so is
            the next one; both need `remove_unused_columns=False`.
        clean_target: The column with the clean targets.
        num_samples: The size of the training set. With it and `index`, `callback.monitor.samples()` has the margins of
            each sample.

    Attributes:
        monitor: The monitor; None before the first step.
        epoch: The last epoch that has ended.
    """

    def __init__(
        self, loss: TrainerLoss, *, log: Callable[[dict[str, float]], None] | None = None, index: str | None = None,
        clean_target: str | None = None, num_samples: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_samples, index=index, clean_target=clean_target)
        self.loss, self.log = loss, log

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:
        self.attach(self.loss.criterion)
        self._handles.append(kwargs["model"].register_forward_pre_hook(self._take, with_kwargs=True))
        if state.global_step:
            path = _folder(args, state) / STATE
            if path.exists():
                kept = torch.load(path, weights_only=True)
                self.load_state_dict(kept["monitor"])
                self.loss.criterion.load_state_dict(kept["loss"])  # AutoLoss has a state
            else:
                logger.warning("no %s: the monitor starts anew", path)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:
        self.listen(int(state.epoch or 0), kwargs["optimizer"])

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.pause()

    def _take(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before the model is called: keep our columns from it and, in a training step, pass them to the monitor."""
        if self._optimizer is not None:
            if absent := [column for column in self._places.values() if column not in kwargs]:
                raise InvalidValueError(
                    f"TrainerMonitor expects a column {absent[0]!r}: is remove_unused_columns=False?"
                )
            self._sample = {name: kwargs[column] for name, column in self._places.items()}
            if "clean_target" in self._sample:
                self._sample["clean_target"] = self.loss.aligned(self._sample["clean_target"])
        return args, {name: value for name, value in kwargs.items() if name not in self._places.values()}

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:
        numbers = self.end_epoch(warn=state.is_world_process_zero)
        if numbers is not None and self.log is not None:
            self.log(numbers)
        elif numbers is not None:
            state.log_history.append(numbers | {"epoch": state.epoch, "step": state.global_step})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: Any) -> None:
        folder, saved = _folder(args, state), self.state_dict()
        if state.is_world_process_zero and saved and folder.is_dir():
            torch.save({"monitor": saved, "loss": self.loss.criterion.state_dict()}, folder / STATE)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.detach()


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
