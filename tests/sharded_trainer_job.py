"""`PrivateTrainer` with a Llama of sharded frozen weights, by torchrun with a folder; one process shards nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import sharded_jobs as jobs
import torch
from optnoise.finetune import PrivacySettings, PrivateTrainer, shard_frozen
from optnoise.mechanisms import Gaussian
from trainer_job import arguments_in

RANK = int(os.environ.get("RANK", "0"))


def trainer_in(folder):
    columns = {"input_ids": "ids", "attention_mask": "mask", "labels": "labels"}
    rows = [{column: jobs.BATCH[name][i] for column, name in columns.items()} for i in range(jobs.RECORDS)]
    return PrivateTrainer(
        shard_frozen(jobs.llama()),
        arguments_in(folder, save_steps=3, eval_steps=2, batch_size=2),
        mechanism=Gaussian(1.0),
        privacy=PrivacySettings(epsilon=15.0, delta=1e-5, steps=6, sampling_rate=0.2, clipping_norm=0.5, divisor=3.0),
        noise_seed=3,
        log_training_loss=True,
        train_dataset=rows,
        eval_dataset=rows[:7],
    )


def whole(folder):
    """A run, the same taken up after step 3, and what is saved in the end."""
    found = {"before": jobs.flat(jobs.adapters(jobs.llama())).tolist()}
    for name, resume in (("first", None), ("resumed", str(folder / "run" / "checkpoint-3"))):
        trainer = trainer_in(folder / "run")
        trainer.train(resume_from_checkpoint=resume)
        found[name] = {
            "adapters": jobs.flat(jobs.adapters(trainer.model)).tolist(),
            "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
            "recorded": trainer.private_run.ledger.steps,
            "bytes": jobs.bytes_here(trainer.model),
        }
        trainer.save_model(str(folder / "model"))
    return found


def main(folder):
    torch.distributed.init_process_group("gloo")
    (folder / f"report-{RANK}.json").write_text(json.dumps(whole(folder)))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
