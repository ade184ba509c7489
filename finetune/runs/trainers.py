"""The Trainers of a run: private, and without privacy as the yardstick. Both evaluate by the workload."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from ..trainer import PrivateTrainer
from .recipe import TrainingSection
from .workload import Workload


class _OnWorkload:
    """Mixed into a Trainer: optimizer and evaluation of a workload."""

    workload: Workload
    model: Any
    args: Any
    state: Any
    control: Any
    callback_handler: Any
    optimizer: Any

    def create_optimizer(self, *arguments: Any, **more: Any) -> torch.optim.Optimizer:
        """The recipe's, with a new head in a group of its own."""
        if self.optimizer is None:
            self.optimizer = optimizer_for(self.workload, self.model)
        return self.optimizer

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The task's metrics on the dev rows; nothing is generated."""
        found = self.workload.evaluate(self.model, "dev", final=False)
        logs = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(logs)  # type: ignore[attr-defined]
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logs)
        return logs


class WorkloadTrainer(_OnWorkload, PrivateTrainer):
    """`PrivateTrainer` on a workload."""

    def __init__(self, workload: Workload, *arguments: Any, **more: Any) -> None:
        self.workload = workload
        super().__init__(
            workload.model,
            *arguments,
            train_dataset=workload.rows,
            eval_dataset=list(workload.examples("dev")),
            data_collator=workload.collate,
            per_example_loss=workload.losses,
            **more,
        )


class YardstickTrainer(_OnWorkload, Trainer):
    """The same training with neither clipping nor noise, on shuffled batches of fixed size. It promises nothing."""

    def __init__(self, workload: Workload, *arguments: Any, **more: Any) -> None:
        self.workload = workload
        super().__init__(
            workload.model,  # type: ignore[arg-type]
            *arguments,
            train_dataset=workload.rows,
            eval_dataset=list(workload.examples("dev")),  # type: ignore[arg-type]
            data_collator=workload.collate,
            **more,
        )
        self.model_accepts_loss_kwargs = False  # the loss is a mean over the microbatch, as compute_loss says

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **more: Any
    ) -> Any:
        """The mean of the losses of a microbatch."""
        return self.workload.losses(model, inputs).mean()


def optimizer_for(workload: Workload, model: nn.Module) -> torch.optim.Optimizer:
    """Over the trained parameters; a new head is in a group of its own, for its own learning rate."""
    settings = workload.recipe.training
    head = workload.head_parameters()
    in_head = {id(parameter) for parameter in head}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in in_head]
    groups: list[dict[str, Any]] = [{"params": rest}] if rest else []
    if head:
        groups.append({"params": head, "lr": settings.head_learning_rate or settings.learning_rate})
    return _make(settings, groups)


def _make(settings: TrainingSection, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        weight_decay=settings.weight_decay,
    )
