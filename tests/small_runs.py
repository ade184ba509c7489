"""The smallest private runs, for tests of reported faults: one linear layer, or the Trainer on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from model_zoo import build, data
from optnoise.finetune import PrivacySettings, PrivateTrainer, make_private, make_zeroth_order
from optnoise.mechanisms import Gaussian
from torch import Tensor, nn
from transformers import TrainingArguments

SILENT = Gaussian(1e-9)  # far below every tolerance: the data's part alone
ROWS = 40


def linear(inputs: int = 1, *, seed: int = 0) -> nn.Linear:
    """One row of weights, no bias."""
    torch.manual_seed(seed)
    return nn.Linear(inputs, 1, bias=False)


def first_order(model: nn.Module, optimizer: Any = None, *, lr: float = 1.0, **changes: Any) -> Any:
    """`make_private` on ten records that are all drawn, by plain gradient descent."""
    settings = {"mechanism": SILENT, "clipping_norm": 1.0, "dataset_size": 10, "sampling_rate": 1.0, "divisor": 10.0}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr) if optimizer is None else optimizer
    return make_private(model, optimizer, **{**settings, "seed": 0, **changes})


def zeroth_order(model: nn.Module, **changes: Any) -> Any:
    """`make_zeroth_order` on ten records that are all drawn."""
    settings = {"mechanism": SILENT, "clipping_norm": 1e3, "dataset_size": 10, "sampling_rate": 1.0, "divisor": 10.0}
    settings |= {"smoothing": 1e-3, "learning_rate": 0.1, "seed": 0}
    return make_zeroth_order(model, **{**settings, **changes})


def step(training: Any, features: Tensor, *, size: int = 1000, between: Callable[[], object] = lambda: None) -> None:
    """One logical batch; the loss is the output, so a record's gradient is its features. `between` microbatches, and
    before the step, something is called."""
    for indices in training.next_batch().microbatches(size):
        with training.record(len(indices)) as recording:
            recording.backward(training.model(features[indices])[:, 0])
        between()
    training.step()


def rows_of(family: str = "roberta", count: int = ROWS) -> list[dict[str, Any]]:
    """Rows of equal length, without padding."""
    made = data(family, count)
    labels = made["classes"] if family in ("roberta", "bert") else made["labels"]
    return [{"input_ids": ids, "labels": label} for ids, label in zip(made["ids"], labels, strict=True)]


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Columns stacked."""
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}


def trainer(folder: Path, model: nn.Module | None = None, *, family: str = "roberta", **changes: Any) -> Any:
    """A `PrivateTrainer` of four steps by plain gradient descent; `args`, `privacy` and `noise` change its settings."""
    args = {
        "output_dir": str(folder),
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "dataloader_pin_memory": False,
    }
    privacy = {"epsilon": 1e15, "delta": 1e-5, "steps": 4, "sampling_rate": 0.25, "clipping_norm": 0.5, "divisor": 10.0}
    noise = changes.pop("noise", 1.0)
    settings = PrivacySettings(**{**privacy, **changes.pop("privacy", {})})
    return PrivateTrainer(
        build(family) if model is None else model,
        TrainingArguments(**{**args, **changes.pop("args", {})}),
        mechanism=Gaussian(noise),
        privacy=settings,
        **{"noise_seed": 3, "train_dataset": rows_of(family), "data_collator": collate, **changes},
    )


def vectors(count: int, width: int = 1, value: float = 1.0) -> dict[str, Any]:
    """What a Trainer needs to fit a linear layer: equal rows x, and the output as the loss."""
    return {
        "train_dataset": [{"x": torch.full((width,), value)} for _ in range(count)],
        "data_collator": collate,
        "per_example_loss": lambda model, batch: model(batch["x"])[:, 0],
        "args": {"remove_unused_columns": False, "learning_rate": 1.0},
    }


def for_trainer(model: nn.Module) -> nn.Module:
    """A model that is none of `transformers`, as its Trainer wants it."""
    model.config = None  # type: ignore[assignment]
    return model


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()
