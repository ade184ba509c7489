"""One `PrivateTrainer` run, by itself or by `torchrun --nproc-per-node 2 trainer_job.py FOLDER`; reports by process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from model_zoo import build, data
from optnoise.finetune import PrivacySettings, PrivateTrainer
from optnoise.mechanisms import Gaussian
from transformers import TrainingArguments

ROWS = 40
RANK = int(os.environ.get("RANK", "0"))


def rows():
    made = data("roberta", ROWS)
    return [
        {"input_ids": made["ids"][i], "attention_mask": made["mask"][i], "labels": int(made["classes"][i])}
        for i in range(ROWS)
    ]


def arguments_in(folder, *, save_steps, eval_steps, batch_size):
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        logging_steps=1,
        save_strategy="steps",
        save_steps=save_steps,
        eval_strategy="steps",
        eval_steps=eval_steps,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        learning_rate=0.2,
        optim="sgd",
        dataloader_pin_memory=False,
        seed=1,
    )


def trainer_in(folder, **changes):
    privacy = PrivacySettings(epsilon=9.0, delta=1e-5, steps=4, sampling_rate=0.25, clipping_norm=0.5, divisor=10.0)
    settings = {"noise_seed": 3, "log_training_loss": True, "train_dataset": rows(), "eval_dataset": rows()[:11]}
    return PrivateTrainer(
        build("roberta"),
        arguments_in(folder, save_steps=2, eval_steps=3, batch_size=4),
        mechanism=Gaussian(1.0),
        privacy=privacy,
        compute_metrics=lambda found: {"count": len(found.label_ids), "mean": float(np.mean(found.predictions))},
        **{**settings, **changes},
    )


def report(trainer):
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()]).double()
    return {
        "weights": weights.tolist(),
        "log": trainer.state.log_history,
        "wrapped": type(trainer.model_wrapped).__name__,
        "recorded": trainer.private_run.ledger.steps,
    }


def whole(folder, **changes):
    """A run, and the same run taken up after step 2."""
    trainer = trainer_in(folder / "run", **changes)
    trainer.train()
    found = {"first": report(trainer), "evaluation": trainer.evaluate()}
    trainer.save_model(str(folder / "model"))
    trainer = trainer_in(folder / "run", **changes)
    trainer.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-2"))
    return {**found, "resumed": report(trainer)}


def unlike_data(folder):
    """The second process has the rows in another order: the message that refuses it."""
    try:
        trainer_in(folder / "unlike", train_dataset=rows()[::-1] if RANK else rows()).train()
    except ValueError as error:
        return str(error)
    return ""


def main(folder):
    found = whole(folder)
    found["secret"] = whole(folder / "secret", noise_seed=None)["first"]
    found["unlike"] = unlike_data(folder)
    (folder / f"report-{RANK}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
