"""Clipped gradients: the run by `PrivateTrainer`, and the same training without privacy."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from ...mechanisms import Mechanism
from ..features import faster_dtype
from ..models.loading import quiet
from ..trainer_run import last_checkpoint
from .folder import RunFolder
from .outcome import Training
from .progress import RunProgress
from .trainers import WorkloadTrainer, YardstickTrainer
from .workload import Workload

_SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


def train_privately(
    workload: Workload, mechanism: Mechanism, folder: RunFolder, *, resume: bool, progress: bool
) -> Training:
    """Train for the recipe's steps, or until one more would exceed its ε; see `PrivateTrainer.train`."""
    recipe = workload.recipe
    from_checkpoint = resume and last_checkpoint(folder.checkpoints) is not None
    trainer = WorkloadTrainer(
        workload,
        _arguments(workload, folder),
        mechanism=mechanism,
        privacy=recipe.settings(),
        ledger=folder.ledger,
        noise_seed=recipe.runtime.noise_seed,
        secure=recipe.runtime.secure,
        continue_ledger=resume and not from_checkpoint,
        log_training_loss=recipe.runtime.log_training_loss,
    )
    with _shown(trainer, RunProgress("private steps", recipe.privacy.delta, shown=progress)):
        trainer.train(resume_from_checkpoint=from_checkpoint)
    run = trainer.private_run
    return Training(_history(trainer.state.log_history), run.ledger.steps, run.stopped_at_budget)


def train_without_privacy(workload: Workload, folder: RunFolder, *, progress: bool) -> Training:
    """The recipe's training with neither clipping nor noise."""
    training, micro = workload.recipe.training, workload.recipe.runtime.microbatch_size
    batch = max(1, round(training.batch_size))
    more = {
        "per_device_train_batch_size": min(micro, batch),
        "gradient_accumulation_steps": max(1, round(batch / micro)),
        "max_steps": training.releases,
        "max_grad_norm": 0.0,
    }
    trainer = YardstickTrainer(workload, _arguments(workload, folder, **more))
    with _shown(trainer, RunProgress("steps without privacy", None, shown=progress)):
        trainer.train()
    return Training(_history(trainer.state.log_history), 0)


@contextlib.contextmanager
def _shown(trainer: Trainer, bar: RunProgress) -> Iterator[None]:
    """With our own bar and log lines instead of the Trainer's printed ones."""
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(bar)
    try:
        with quiet():
            yield
    finally:
        bar.close()


def _arguments(workload: Workload, folder: RunFolder, **more: Any) -> TrainingArguments:
    recipe = workload.recipe
    runtime, training = recipe.runtime, recipe.training
    settings: dict[str, Any] = {
        "output_dir": str(folder.checkpoints),
        "per_device_train_batch_size": runtime.microbatch_size,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": _SCHEDULES[training.schedule],
        "warmup_steps": training.warmup_steps,
        "eval_strategy": "steps",
        "eval_steps": recipe.evaluation.every,
        "eval_on_start": True,
        "save_strategy": "steps",
        "save_steps": runtime.save_every,
        "save_total_limit": 2,
        "logging_steps": runtime.log_every,
        "report_to": "tensorboard" if runtime.tensorboard else "none",
        "use_cpu": runtime.device == "cpu" or not torch.cuda.is_available(),
        "bf16": _bf16(workload),
        **_recomputation(runtime.gradient_checkpointing),
        "disable_tqdm": True,
        "seed": runtime.seed,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**settings, **more})


def _recomputation(wanted: bool) -> dict[str, Any]:
    """Gradient checkpointing, under its name in this version of transformers."""
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    name = next(n for n in ("activation_checkpointing", "gradient_checkpointing") if n in names)
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}} if wanted else {}


def _bf16(workload: Workload) -> bool:
    """As the recipe says; "auto" tries which is faster on a few rows."""
    chosen = workload.recipe.runtime.bf16
    if chosen != "auto":
        return chosen
    if torch.cuda.is_available() and workload.recipe.runtime.device != "cpu":
        return torch.cuda.is_bf16_supported()
    batch = workload.collate([workload.rows[index] for index in range(min(64, len(workload.rows)))])
    return faster_dtype(lambda: workload.losses(workload.model, batch)) == torch.bfloat16


def _history(lines: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The Trainer's log lines with an evaluation, one for each step."""
    found = {}
    for line in lines:
        metrics = {name.removeprefix("eval_"): value for name, value in line.items() if name.startswith("eval_")}
        if metrics:
            found[line["step"]] = {"step": line["step"], "epsilon": line.get("epsilon"), **metrics}
    return tuple(found[step] for step in sorted(found))
