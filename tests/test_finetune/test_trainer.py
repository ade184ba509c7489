"""`PrivateTrainer`: what `make_private` does, inside the loop of `transformers.Trainer`, with all it offers."""

from __future__ import annotations

import copy
import json
import logging
import math
import stat
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pages
import pytest
import torch
import transformers
from model_zoo import build, data, losses_of, train_part, with_adapters
from optnoise.accounting import Ledger, epsilon
from optnoise.finetune import PrivacySettings, PrivateTrainer, causal_lm_losses, make_private
from optnoise.finetune.trainer_arguments import check_arguments, private_arguments
from optnoise.finetune.trainer_rows import length_of, microbatches
from optnoise.mechanisms import Gaussian, Laplace
from torch import nn
from transformers import TrainerCallback, TrainingArguments

pytestmark = pytest.mark.filterwarnings(
    "ignore:Reading `use_return_dict`:FutureWarning",  # peft reads what transformers has deprecated
    "ignore:`use_return_dict`:FutureWarning",
)
SETTINGS = {
    "epsilon": 9.0,
    "delta": 1e-5,
    "steps": 6,
    "sampling_rate": 0.25,
    "clipping_norm": 0.5,
    "divisor": 10.0,
}
ROWS = 40


def rows_of(family="roberta", count=ROWS):
    """Rows without padding, of different lengths."""
    made = data(family, count)
    rows = []
    for index in range(count):
        length = int(made["mask"][index].sum())
        labels = int(made["classes"][index]) if family in ("roberta", "bert") else made["labels"][index, :length]
        rows.append({"input_ids": made["ids"][index, :length].tolist(), "labels": labels})
    return [
        {**row, "labels": row["labels"] if isinstance(row["labels"], int) else row["labels"].tolist()} for row in rows
    ]


def collate(rows):
    """Pad on the right; masks from the lengths."""
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(values, padding):
        return torch.tensor([[*value, *[padding] * (longest - len(value))] for value in values])

    ids = [row["input_ids"] for row in rows]
    batch = {"input_ids": padded(ids, 1), "attention_mask": padded([[1] * len(i) for i in ids], 0)}
    labels = [row["labels"] for row in rows]
    return {**batch, "labels": torch.tensor(labels) if isinstance(labels[0], int) else padded(labels, -100)}


def arguments(folder, **changes):
    settings = {
        "output_dir": str(folder),
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**settings, **changes})


def private(folder, model=None, *, family="roberta", noise=1.0, args=None, privacy=None, seed=3, **more):
    settings = PrivacySettings(**{**SETTINGS, **(privacy or {})})
    given = {"train_dataset": rows_of(family), "data_collator": collate, **more}
    return PrivateTrainer(
        build(family) if model is None else model,
        args if isinstance(args, TrainingArguments) else arguments(folder, **(args or {})),
        mechanism=Gaussian(noise),
        privacy=settings,
        noise_seed=seed,
        **given,
    )


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def assert_equal(found, wanted, tolerance=0.0):
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=tolerance, atol=tolerance)


def hooks_of(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


class Interrupt(TrainerCallback):
    """Stops, or fails, after a step."""

    def __init__(self, step, error=None):
        self.step, self.error = step, error

    def on_step_end(self, args, state, control, **more):
        if state.global_step == self.step:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


# ---- the result -------------------------------------------------------------------------------------------------


def by_hand(model, family, *, optimizer, size, steps=SETTINGS["steps"], noise=1.0):
    """The loop that a person would write with `make_private`."""
    rows = rows_of(family)
    training = make_private(
        model,
        optimizer,
        mechanism=Gaussian(noise),
        clipping_norm=0.5,
        dataset_size=len(rows),
        sampling_rate=0.25,
        divisor=10.0,
        seed=3,
    )
    for batch in training.logical_batches(steps):
        for part in microbatches([rows[i] for i in batch.indices], size):
            inputs = collate(part)
            labels = inputs.pop("labels")
            with training.record(len(part)) as recording:
                logits = model(**inputs).logits
                if labels.dim() == 1:
                    recording.backward(nn.functional.cross_entropy(logits.float(), labels, reduction="none"))
                else:
                    recording.backward(causal_lm_losses(logits, labels))
        training.step()
    training.detach()
    return training


@pytest.mark.parametrize(
    ("family", "part"),
    [("roberta", "full"), ("gpt2", "full"), ("llama", "bitfit"), ("llama", "lora"), ("roberta", "lora")],
)
def test_it_is_the_loop_written_by_hand(family, part, tmp_path):
    model = train_part(build(family), part)
    twin = copy.deepcopy(model)
    begin = weights(model)
    args = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.1}
    private(tmp_path, model, family=family, args=args).train()
    trained = [p for p in twin.parameters() if p.requires_grad]
    by_hand(twin, family, optimizer=torch.optim.SGD(trained, lr=0.1), size=4)
    assert_equal(weights(model), weights(twin))
    moved = {name for name, value in weights(model).items() if not torch.equal(value, begin[name])}
    assert moved == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_weight_decay_and_schedule_are_the_trainers_b59(tmp_path):
    """With a linear schedule the k-th of T steps uses (T - k + 1)/T of the first rate, by hand and in the Trainer."""
    model = build("roberta")
    twin = copy.deepcopy(model)
    args = {"optim": "adamw_torch", "weight_decay": 0.1, "lr_scheduler_type": "linear"}
    trainer = private(tmp_path, model, args=args)
    trainer.train()
    rates = [line["learning_rate"] for line in trainer.state.log_history if "grad_norm" in line]
    assert rates == pytest.approx([1e-3 * (6 - k) / 6 for k in range(6)])
    decayed = trainer.get_decay_parameter_names(twin)
    groups = [
        {"params": [p for n, p in twin.named_parameters() if (n in decayed) == decay], "weight_decay": 0.1 * decay}
        for decay in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (6 - step) / 6)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    by_hand(twin, "roberta", optimizer=optimizer, size=4)
    assert_equal(weights(model), weights(twin), tolerance=1e-12)


@pytest.mark.parametrize("size", [1, 3, 64])
def test_b31_b71_the_result_does_not_depend_on_the_microbatch(size, tmp_path):
    models = []
    for microbatch in (4, size):
        trainer = private(tmp_path / str(microbatch), args={"per_device_train_batch_size": microbatch, "optim": "sgd"})
        output = trainer.train()
        assert output.global_step == Ledger(tmp_path / str(microbatch) / "ledger.jsonl").steps == 6
        models.append(weights(trainer.model))
    assert_equal(*models, tolerance=1e-9)


def test_b54_empty_batches_are_steps_with_noise(tmp_path):
    """B54: q = 0.01 of 40 rows is empty twice out of three times; every step moves every weight all the same."""
    model = build("roberta").float()
    seen = []

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **more):
            trained = [p for p in model.parameters() if p.requires_grad]
            seen.append(torch.cat([p.grad.flatten() for p in trained]).clone())

    trainer = private(tmp_path, model, noise=2.0, privacy={"sampling_rate": 0.01, "divisor": 0.5}, callbacks=[Watch()])
    sizes = []
    draw = trainer._draw_batch
    trainer._draw_batch = lambda: sizes.append(draw()) or sizes[-1]
    assert trainer.train().global_step == 6
    empty = [gradient for gradient, batch in zip(seen, sizes, strict=False) if len(batch) == 0]
    assert len(empty) >= 2
    for gradient in empty:  # std = noise multiplier · C / divisor
        assert float(gradient.std()) == pytest.approx(2.0 * 0.5 / 0.5, rel=0.05)
    assert trainer.private_run.ledger.steps == 6


def test_b56_b97_the_divisor_is_the_users_constant(tmp_path):
    """B97: n = 3 and n = 2 with divisor 1.5: the sum is divided by 1.5 in both, however many were drawn."""
    for count in (2, 3):
        model = nn_model()
        trainer = private(
            tmp_path / str(count),
            model,
            noise=1e-6,
            args={
                "optim": "sgd",
                "learning_rate": 1.0,
                "lr_scheduler_type": "constant",
                "remove_unused_columns": False,
            },
            privacy={"sampling_rate": 1.0, "divisor": 1.5, "steps": 1, "epsilon": 1e15, "clipping_norm": 1.0},
            train_dataset=[{"x": torch.tensor([5.0])} for _ in range(count)],
            data_collator=lambda rows: {"x": torch.stack([row["x"] for row in rows])},
            per_example_loss=lambda model, batch: model(batch["x"])[:, 0],
        )
        trainer.train()
        assert float(model.weight.detach()) == pytest.approx(-count / 1.5, abs=1e-4)


def nn_model():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model.config = None
    return model


def test_b81_extra_arguments_are_taken_and_counts_over_the_batch_are_not(tmp_path):
    """The step accepts what newer versions pass; `num_items_in_batch` rescales nothing."""
    models = []
    for count in (None, 7):
        trainer = private(tmp_path / str(count), args={"optim": "sgd"}, family="gpt2")
        step = trainer.training_step
        trainer.training_step = lambda model, inputs, n=None, step=step, count=count: step(
            model, inputs, num_items_in_batch=count, something_new=1
        )
        trainer.train(ignore_keys_for_eval=["past_key_values"])
        models.append(weights(trainer.model))
    assert_equal(*models)


def test_b85_zero_grad_takes_its_argument_and_clears(tmp_path):
    class Zero(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, optimizer=None, **more):
            for set_to_none in (True, False):
                optimizer.zero_grad(set_to_none=set_to_none)
                model.zero_grad(set_to_none=set_to_none)

    with_zero, without = private(tmp_path / "a", callbacks=[Zero()]), private(tmp_path / "b")
    with_zero.train()
    without.train()
    assert_equal(weights(with_zero.model), weights(without.model))


def test_gradient_checkpointing_and_its_absence_agree(tmp_path):
    models = []
    for on in (False, True):
        args = {"optim": "sgd", "activation_checkpointing": on}
        if on:
            args["activation_checkpointing_kwargs"] = {"use_reentrant": False}
        trainer = private(tmp_path / str(on), family="llama", args=args)
        trainer.train()
        models.append(weights(trainer.model))
    assert_equal(*models, tolerance=1e-9)


def test_b65_bf16_autocast_stays_near_float32(tmp_path):
    begin = weights(build("roberta").float())
    moves = []
    for bf16 in (False, True):
        args = {"optim": "sgd", "bf16": bf16, "learning_rate": 0.1, "logging_steps": 6}
        trainer = private(
            tmp_path / str(bf16), build("roberta").float(), noise=1e-2, privacy={"epsilon": 1e15}, args=args
        )
        trainer.train()
        found = weights(trainer.model)
        assert all(value.dtype == torch.float32 for value in found.values())
        moves.append(torch.cat([(found[n] - begin[n]).flatten() for n in begin]))
    assert float((moves[0] - moves[1]).norm() / moves[0].norm()) < 0.05
    assert not torch.equal(*moves)


def test_columns_of_text_and_the_like_do_not_reach_the_collator(tmp_path):
    plain = rows_of()
    table = datasets.Dataset.from_list([{**row, "text": "secret", "texts": ["secret"], "number": 7} for row in plain])
    seen = set()

    def watching(rows):
        seen.update(*rows)
        return collate(rows)

    trainer = private(tmp_path / "a", train_dataset=table, data_collator=watching)
    trainer.train()
    assert seen == {"input_ids", "labels"}
    twin = private(tmp_path / "b")
    twin.train()
    assert_equal(weights(trainer.model), weights(twin.model))

    def own_loss(model, batch):
        return nn.functional.cross_entropy(
            model(**{k: batch[k] for k in batch if k != "labels"}).logits, batch["labels"], reduction="none"
        )

    seen.clear()
    private(tmp_path / "c", train_dataset=table, data_collator=watching, per_example_loss=own_loss).train()
    assert seen == {"input_ids", "labels", "number"}


# ---- what the loop offers ---------------------------------------------------------------------------------------


class Count(TrainerCallback):
    def __init__(self):
        self.calls = {}

    def _note(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1

    def on_step_begin(self, args, state, control, **more):
        self._note("begin")

    def on_pre_optimizer_step(self, args, state, control, **more):
        self._note("pre")

    def on_optimizer_step(self, args, state, control, **more):
        self._note("step")

    def on_step_end(self, args, state, control, **more):
        self._note("end")

    def on_substep_end(self, args, state, control, **more):
        self._note("substep")


def test_callbacks_are_called_once_a_logical_batch(tmp_path):
    count = Count()
    trainer = private(tmp_path, callbacks=[count], args={"per_device_train_batch_size": 1})
    trainer.train()
    assert count.calls == {"begin": 6, "pre": 6, "step": 6, "end": 6}
    assert trainer.state.epoch == 6 * 0.25


def test_evaluation_prediction_best_model_and_tensorboard(tmp_path):
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def metrics(prediction):
        assert prediction.predictions.shape == (9, 3)
        return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}

    trainer = private(
        tmp_path / "run",
        build("roberta").float(),
        eval_dataset=rows_of()[:9],
        compute_metrics=metrics,
        args={
            "report_to": "tensorboard",
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_strategy": "steps",
            "save_steps": 2,
            "save_total_limit": 2,
            "load_best_model_at_end": True,
            "metric_for_best_model": "accuracy",
        },
    )
    trainer.train()
    evaluated = [line for line in trainer.state.log_history if "eval_accuracy" in line]
    assert [line["step"] for line in evaluated] == [2, 4, 6]
    assert all("epsilon" in line for line in evaluated)
    best = trainer.state.best_model_checkpoint
    saved = transformers.RobertaForSequenceClassification.from_pretrained(best)
    assert_equal(weights(trainer.model), weights(saved))
    assert trainer.predict(rows_of()[:9]).predictions.shape == (9, 3)
    files = list((tmp_path / "run").rglob("events.out.tfevents.*"))
    if not files:
        files = list(Path.cwd().rglob("events.out.tfevents.*"))
    events = tensorboard.EventAccumulator(str(files[0].parent))
    events.Reload()
    assert [event.step for event in events.Scalars("train/epsilon")][:1] == [1]


def test_the_model_card_names_epsilon_and_what_is_not_private(tmp_path):
    """The card's table takes the first word off each key, which would turn `not_private` into "Private"."""
    trainer = private(tmp_path, eval_dataset=rows_of()[:3], args={"eval_strategy": "steps", "eval_steps": 3})
    trainer.train()
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    header = next(line for line in card.splitlines() if "Training Loss" in line)
    assert [cell.strip() for cell in header.strip("|").split("|")][-2:] == ["Epsilon", "Not Private"]
    assert f"Privacy Epsilon: {trainer.state.log_history[-1]['epsilon']}" in card
    assert "| No log" in card


def test_epoch_strategies_count_expected_passes(tmp_path):
    trainer = private(
        tmp_path,
        eval_dataset=rows_of()[:3],
        args={"eval_strategy": "epoch", "save_strategy": "epoch"},
        privacy={"steps": 8},
    )
    trainer.train()
    assert [(line["step"], line["epoch"]) for line in trainer.state.log_history if "eval_loss" in line] == [
        (4, 1),
        (8, 2),
    ]
    assert {file.name for file in tmp_path.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-8"}


def test_b73_b83_saving_generating_and_no_leftovers(tmp_path):
    """The saved names are the model's own, it generates after training and inside it, and no hook stays."""
    model = build("gpt2").float()
    hooks, names = hooks_of(model), set(model.state_dict())
    made = []

    class Generate(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **more):
            made.append(model.generate(torch.tensor([[2, 3, 4]]), max_new_tokens=4, do_sample=False).shape[1])
            assert hooks_of(model) == hooks

    trainer = private(tmp_path / "run", model, family="gpt2", callbacks=[Generate()])
    trainer.train()
    assert made[0] > 3
    assert hooks_of(model) == hooks
    assert set(model.state_dict()) == names
    assert all(parameter.requires_grad for parameter in model.parameters())
    trainer.save_model(str(tmp_path / "saved"))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    assert_equal(weights(again), weights(model))
    assert not (tmp_path / "saved" / "private").exists()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    model(input_ids=torch.tensor([[2, 3]]), labels=torch.tensor([[2, 3]])).loss.backward()
    plain.step()  # the model is free again
    trainer.optimizer.step()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("boom")])
def test_nothing_is_left_behind_by_a_failure(error, tmp_path):
    model = build("roberta")
    hooks = hooks_of(model)
    trainer = private(tmp_path, model, callbacks=[Interrupt(2, error)], eval_dataset=rows_of()[:3])
    with pytest.raises(type(error)):
        trainer.train()
    assert hooks_of(model) == hooks
    assert Ledger(tmp_path / "ledger.jsonl").steps == 2
    assert trainer.evaluate()["epsilon"] > 0
    trainer.optimizer.step()  # the guard is gone
    with pytest.raises(ValueError, match="has 2 releases already"):
        trainer.train()


class Foreign(TrainerCallback):
    """Steps the optimizer by itself: once too often, or with a closure (which computes gradients without noise)."""

    def __init__(self, closure):
        self.closure = closure

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **more):
        if self.closure is not None:
            optimizer.step(self.closure)

    def on_optimizer_step(self, args, state, control, optimizer=None, **more):
        optimizer.step()


@pytest.mark.parametrize("closure", [None, lambda: None])
def test_b58_only_the_step_after_the_noise_is_allowed(closure, tmp_path):
    model = build("roberta")
    trainer = private(tmp_path, model, callbacks=[Foreign(closure)])
    with pytest.raises(RuntimeError, match="would not be private"):
        trainer.train()
    assert trainer.private_run.ledger.steps == 1


def test_b33_batches_of_another_loader_are_refused(tmp_path):
    """B33: the ε is that of Poisson samples, so a shuffled loader cannot take their place."""
    trainer = private(tmp_path)
    with pytest.raises(RuntimeError, match="no private training"):
        trainer.training_step(trainer.model, {})
    trainer.get_train_dataloader = lambda: [collate(rows_of()[:2])]
    with pytest.raises(RuntimeError, match="its own get_train_dataloader"):
        trainer.train()


def test_b60_adapters_move_by_the_learning_rate_in_the_first_adam_step(tmp_path):
    model = train_part(build("gpt2").float(), "lora").float()
    before = weights(model)
    args = {"optim": "adamw_torch", "learning_rate": 1e-4, "lr_scheduler_type": "constant"}
    trainer = private(tmp_path, model, family="gpt2", args=args, privacy={"steps": 1})
    trainer.train()
    moves = {name: float((value - before[name]).abs().max()) for name, value in weights(model).items()}
    for name, move in moves.items():
        assert move == pytest.approx(1e-4 if "lora_" in name else 0.0, rel=0.02), name


def test_b76_a_trained_model_can_be_trained_again(tmp_path):
    """Two runs on one model are two runs by hand, one after another."""
    model, twin = build("roberta"), build("roberta")
    args = {"optim": "sgd", "lr_scheduler_type": "constant", "learning_rate": 0.1}
    for run in range(2):
        private(tmp_path / str(run), model, args=args).train()
        by_hand(twin, "roberta", optimizer=torch.optim.SGD(twin.parameters(), lr=0.1), size=4)
    assert_equal(weights(model), weights(twin))


# ---- ε in the log, and the budget -------------------------------------------------------------------------------


def test_every_line_has_the_proven_epsilon_and_no_private_number(tmp_path):
    trainer = private(tmp_path, seed=None)
    output = trainer.train()
    lines = trainer.state.log_history
    assert len(lines) == 7
    for line in lines[:6]:
        exact = epsilon(
            Gaussian(1.0), delta=1e-5, steps=line["step"], sampling_rate=0.25, dimension=trainer.private_run.dimension
        )
        assert exact.lower <= line["epsilon"]
        assert exact.upper <= line["epsilon"] <= exact.upper * 1.001
    assert lines[6]["epsilon"] == output.metrics["epsilon"] == lines[5]["epsilon"]
    assert not any({"loss", "train_loss", "not_private"} & line.keys() for line in lines)
    assert trainer.state.total_flos == 0
    assert math.isnan(output.training_loss)


def test_the_training_loss_is_logged_on_request_only(tmp_path):
    trainer = private(tmp_path, log_training_loss=True)
    output = trainer.train()
    assert all(line["loss"] > 0 for line in trainer.state.log_history[:6])
    assert output.training_loss == pytest.approx(np.mean([line["loss"] for line in trainer.state.log_history[:6]]))


def test_seeded_runs_say_that_they_are_not_private(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="optnoise"):
        trainer = private(tmp_path, seed=3)
        trainer.train()
    assert all(line["not_private"] for line in trainer.state.log_history)
    assert "NOT private" in caplog.text


def test_unseeded_runs_differ_and_take_their_masks_from_the_system(tmp_path):
    model = build("roberta")
    models, states = [], []
    for run in range(2):
        torch.manual_seed(0)
        trainer = private(tmp_path / str(run), copy.deepcopy(model), seed=None)
        trainer.train()
        models.append(weights(trainer.model))
        states.append(torch.get_rng_state())
    assert not torch.equal(*states)
    assert all(not torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_b78_evaluation_before_training_logs_no_epsilon_and_reading_changes_nothing(tmp_path):
    trainer = private(tmp_path, eval_dataset=rows_of()[:5], args={"eval_on_start": True})
    assert "epsilon" not in trainer.evaluate()
    with pytest.raises(RuntimeError, match="call train"):
        _ = trainer.private_run
    trainer.train()
    first = next(line for line in trainer.state.log_history if "eval_loss" in line)
    assert first["step"] == 0
    assert "epsilon" not in first
    spent = [trainer.evaluate()["epsilon"] for _ in range(2)]
    assert spent[0] == spent[1] == trainer.state.log_history[-1]["epsilon"]
    assert trainer.private_run.ledger.steps == 6


def test_a_noise_that_exceeds_the_budget_is_refused_before_anything(tmp_path):
    trainer = private(tmp_path, noise=0.3)
    before = weights(trainer.model)
    with pytest.raises(ValueError, match=r"proven epsilon <= 9 \(privacy.epsilon\) over 6 steps in dimension"):
        trainer.train()
    assert_equal(weights(trainer.model), before)
    assert not (tmp_path / "ledger.jsonl").exists()


def tight_epsilon(steps=6):
    return epsilon(Gaussian(1.0), delta=1e-5, steps=steps, sampling_rate=0.25, dimension=10**4).upper * 1.0001


def test_a_resume_that_repeats_steps_stops_at_the_budget(tmp_path, caplog):
    privacy = {"epsilon": tight_epsilon()}
    args = {"save_strategy": "steps", "save_steps": 3}
    first = private(tmp_path, privacy=privacy, args=args, callbacks=[Interrupt(5, KeyboardInterrupt())], seed=None)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = private(tmp_path, privacy=privacy, args=args, seed=None)
    with caplog.at_level(logging.WARNING, logger="optnoise"):
        output = second.train(resume_from_checkpoint=True)
    assert "resumed at step 3; 2 steps taken after it" in caplog.text
    assert "stopped after step 4 of 6" in caplog.text
    assert output.global_step == 4
    assert output.metrics["stopped_at_budget"] is True
    assert output.metrics["epsilon"] <= privacy["epsilon"]
    assert Ledger(tmp_path / "ledger.jsonl").steps == 6
    assert second.state.log_history[3]["epsilon"] > second.state.log_history[2]["epsilon"]  # six releases, not four
    third = private(tmp_path, privacy=privacy, args=args, seed=None)
    before = weights(third.model)
    output = third.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert output.global_step == 4
    assert output.metrics["stopped_at_budget"] is True
    assert Ledger(tmp_path / "ledger.jsonl").steps == 6
    assert before.keys() == weights(third.model).keys()


# ---- checkpoints ------------------------------------------------------------------------------------------------


def with_dropout():
    model = build("roberta").float()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
    return model


def with_dropout_and_adapters():
    return with_adapters(build("gpt2").float(), dropout=0.2).float()


@pytest.mark.parametrize(("stop", "family"), [(3, "roberta"), (4, "roberta"), (3, "gpt2")])
def test_b72_a_resumed_seeded_run_is_bit_equal(stop, family, tmp_path):
    """Model, Adam state, schedule, dropout, noise and samples go on where they were, also at the end of an epoch."""
    model = with_dropout if family == "roberta" else with_dropout_and_adapters
    args = {"save_strategy": "steps", "save_steps": 1, "optim": "adamw_torch"}
    whole = private(tmp_path / "whole", model(), family=family, args=args)
    whole.train()
    half = private(tmp_path / "half", model(), family=family, args=args, callbacks=[Interrupt(stop)])
    half.train()
    rest = private(tmp_path / "half", model(), family=family, args=args)
    output = rest.train(resume_from_checkpoint=str(tmp_path / "half" / f"checkpoint-{stop}"))
    assert_equal(weights(rest.model), weights(whole.model))
    assert output.global_step == Ledger(tmp_path / "half" / "ledger.jsonl").steps == 6
    assert [(line["step"], line["epoch"], line["epsilon"]) for line in rest.state.log_history[:6]] == [
        (line["step"], line["epoch"], line["epsilon"]) for line in whole.state.log_history[:6]
    ]


def test_the_same_trainer_goes_on_after_an_interruption(tmp_path):
    args = {"save_strategy": "steps", "save_steps": 1}
    whole = private(tmp_path / "whole", with_dropout(), args=args)
    whole.train()
    interruption = Interrupt(3, KeyboardInterrupt())
    trainer = private(tmp_path / "half", with_dropout(), args=args, callbacks=[interruption])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    interruption.step = None
    assert trainer.train(resume_from_checkpoint=True).metrics["epsilon"] > whole.state.log_history[-1]["epsilon"]
    assert_equal(weights(trainer.model), weights(whole.model))
    assert trainer.private_run.ledger.steps == 7  # the third step was charged before the interruption, and again


def test_the_private_state_is_for_the_owner_only_and_a_private_run_keeps_no_generator(tmp_path):
    for seed in (3, None):
        folder = tmp_path / str(seed)
        private(folder, args={"save_strategy": "steps", "save_steps": 6}, seed=seed).train()
        state = folder / "checkpoint-6" / "private" / "checkpoint.pt"
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
        assert set(torch.load(state)["generators"]) == ({"noise", "sampling", "seeded"} if seed else {"seeded"})
        random_states = list((folder / "checkpoint-6").glob("rng_state*"))
        assert [stat.S_IMODE(file.stat().st_mode) for file in random_states] == ([0o600] if seed else [])


def test_resuming_without_skipping_draws_one_batch_a_step(tmp_path):
    args = {"save_strategy": "steps", "save_steps": 3}
    private(tmp_path, args=args, callbacks=[Interrupt(3)]).train()
    rest = private(tmp_path, args={**args, "ignore_data_skip": False})
    drawn = []
    draw = rest._draw_batch
    rest._draw_batch = lambda: drawn.append(draw()) or drawn[-1]
    rest.train(resume_from_checkpoint=True)
    assert len([batch for batch in drawn if batch is not None]) == 3


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mechanism", {"noise": 1.1}),
        ("privacy.clipping_norm", {"privacy": {"clipping_norm": 0.6}}),
        ("privacy.sampling_rate", {"privacy": {"sampling_rate": 0.2}}),
        ("privacy.divisor", {"privacy": {"divisor": 11.0}}),
        ("privacy.delta", {"privacy": {"delta": 2e-5}}),
        ("dataset_size", {"train_dataset": rows_of(count=39)}),
        ("noise_seed", {"seed": 4}),
        ("noise_seed", {"seed": None}),
    ],
)
def test_a_run_is_not_continued_as_another(name, change, stopped):
    trainer = private(stopped, **change)
    with pytest.raises(ValueError, match=f"cannot resume: {name}.* has changed"):
        trainer.train(resume_from_checkpoint=True)


def test_a_run_is_not_continued_with_another_mechanism_or_adjacency(stopped):
    state = torch.load(stopped / "checkpoint-3" / "private" / "checkpoint.pt")
    document = json.loads(state["binding"])
    document["privacy"]["adjacency"] = "replace_one"
    torch.save({**state, "binding": json.dumps(document)}, stopped / "checkpoint-3" / "private" / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"privacy\.adjacency has changed"):
        private(stopped).train(resume_from_checkpoint=True)
    torch.save({**state, "generators": None, "binding": "{"}, stopped / "checkpoint-3" / "private" / "checkpoint.pt")
    with pytest.raises(ValueError, match="damaged"):
        private(stopped).train(resume_from_checkpoint=True)


def test_a_run_is_not_continued_without_its_ledger(stopped):
    (stopped / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="no ledger at"):
        private(stopped).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="0 releases, the checkpoint was taken after 3"):
        private(stopped, ledger=Ledger()).train(resume_from_checkpoint=True)


def test_what_cannot_be_resumed_is_said(tmp_path, stopped):
    with pytest.raises(ValueError, match="no run to resume"):
        private(tmp_path / "new").train(resume_from_checkpoint=True)
    (stopped / "checkpoint-3" / "private" / "checkpoint.pt").unlink()
    with pytest.raises(ValueError, match="no run to resume: no checkpoint"):  # cut off while it was saved
        private(stopped).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="no checkpoint of a PrivateTrainer"):
        private(stopped).train(resume_from_checkpoint=str(stopped / "checkpoint-3"))
    with pytest.raises(ValueError, match="3 releases already: continue that run by resume_from_checkpoint"):
        private(stopped).train()


@pytest.fixture
def stopped(tmp_path, _finished):
    """The folder of a run that stopped after three steps."""
    import shutil

    folder = tmp_path / "stopped"
    shutil.copytree(_finished, folder)
    return folder


@pytest.fixture(scope="module")
def _finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    private(folder, args={"save_strategy": "steps", "save_steps": 3}, callbacks=[Interrupt(3)]).train()
    return folder


PLAIN = {"data_collator": transformers.default_data_collator}

# ---- refusals ---------------------------------------------------------------------------------------------------

REFUSED = {
    "gradient_accumulation_steps": (2, "sampling_rate"),
    "max_grad_norm": (0.5, "clipping_norm"),
    "label_smoothing_factor": (0.1, "per_example_loss"),
    "neftune_noise_alpha": (5.0, "other examples"),
    "use_liger_kernel": (True, "per-example"),
    "torch_compile": (True, "layer by layer"),
    "fp16": (True, "bf16"),
    "auto_find_batch_size": (True, "per_device_train_batch_size"),
    "train_sampling_strategy": ("group_by_length", "Poisson"),
    "dataloader_drop_last": (True, "any size"),
    "data_seed": (1, "noise_seed"),
    "include_num_input_tokens_seen": ("all", "private"),
    "optim_target_modules": (["attn"], "LoRA"),
    "deepspeed": ({"zero": 1}, "one process"),
    "fsdp": ("full_shard", "shard_frozen"),
    "parallelism_config": (object(), "one process"),
    "enable_jit_checkpoint": (True, "save_steps"),
    "hub_strategy": ("all_checkpoints", "every_save"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_break_the_guarantee_are_refused_by_name(name, tmp_path):
    value, way_out = REFUSED[name]
    args = arguments(tmp_path)
    setattr(args, name, value)
    with pytest.raises(ValueError, match=f"PrivateTrainer does not take {name}=.*{way_out}"):
        private(tmp_path, args=args)


@pytest.mark.parametrize("optim", ["galore_adamw_layerwise", "apollo_adamw_layerwise", "lomo", "adalomo"])
def test_optimizers_that_step_inside_the_backward_pass_are_refused(optim, tmp_path):
    args = arguments(tmp_path)
    args.optim = transformers.training_args.OptimizerNames(optim)
    with pytest.raises(ValueError, match=f"does not take optim='{optim}': it steps inside the backward pass"):
        private(tmp_path, args=args)


def test_b63_several_devices_in_one_process_are_refused(tmp_path):
    crowd = type("Crowd", (TrainingArguments,), {"n_gpu": property(lambda self: 2)})
    args = crowd(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=r"does not take n_gpu=2: .*torchrun.*CUDA_VISIBLE_DEVICES"):
        check_arguments(args)


def test_arguments_changed_after_the_constructor_are_seen(tmp_path):
    trainer = private(tmp_path)
    trainer.args.gradient_accumulation_steps = 2
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
        trainer.train()


def test_the_length_of_the_run_is_that_of_the_noise(tmp_path):
    settings = PrivacySettings(**SETTINGS)
    args = arguments(tmp_path)
    own = private_arguments(args, settings)
    assert (own.max_steps, own.max_grad_norm, own.ignore_data_skip) == (6, 0.0, True)
    assert (args.max_steps, args.max_grad_norm) == (-1, 1.0)  # the caller's object stays as it was
    assert private_arguments(arguments(tmp_path, num_train_epochs=1.5), settings).max_steps == 6
    assert private_arguments(arguments(tmp_path, max_steps=6), settings).max_steps == 6
    with pytest.raises(ValueError, match="expected max_steps=6"):
        private_arguments(arguments(tmp_path, max_steps=7), settings)
    with pytest.raises(ValueError, match="num_train_epochs=2, which would be 8 steps"):
        private_arguments(arguments(tmp_path, num_train_epochs=2), settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_dataset": None}, "expected a train_dataset, got None"),
        ({"train_dataset": rows_of(count=9)}, r"at least the expected batch \(privacy.divisor=10\), got 9 rows"),
        ({"train_dataset": {"train": rows_of()}}, "choose a split"),
        ({"train_dataset": datasets.Dataset.from_list(rows_of()).to_iterable_dataset()}, "map-style"),
        (
            {"train_dataset": [{"input_ids": [2, 3], "target": 1}] * 20, **PLAIN},
            "needs a column labels.*input_ids, target",
        ),
        ({"train_dataset": [{"input_ids": [2, 3], "labels": 3}] * 20}, "expected labels from 0 to 2"),
        ({"train_dataset": [{"input_ids": [2, 3], "labels": 0.5}] * 20, **PLAIN}, "labels of whole numbers"),
        ({"per_example_loss": lambda model, batch: model(input_ids=batch["tokens"])}, "the loss needs 'tokens'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not implement.*")
def test_data_that_do_not_fit_are_refused_before_a_step(change, message, tmp_path):
    trainer = private(tmp_path, **change)
    before = weights(trainer.model)
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert_equal(weights(trainer.model), before)
    assert not (tmp_path / "ledger.jsonl").exists() or Ledger(tmp_path / "ledger.jsonl").steps == 0


def test_a_loss_that_mixes_examples_is_refused(tmp_path):
    def shared_divisor(model, batch):
        losses = causal_lm_losses(model(input_ids=batch["input_ids"]).logits, batch["labels"], over_tokens="sum")
        return losses / (batch["labels"] != -100).sum()

    trainer = private(tmp_path, family="gpt2", per_example_loss=shared_divisor)
    with pytest.raises(ValueError, match="changes when other examples leave the batch"):
        trainer.train()
    assert trainer.private_run.ledger.steps == 0
    with pytest.raises(ValueError, match="one loss per example"):
        private(tmp_path / "b", per_example_loss=lambda model, batch: model(**batch).loss).train()


def test_constructor_arguments_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected mechanism to be a Mechanism"):
        PrivateTrainer(build("roberta"), arguments(tmp_path), mechanism=1.0, privacy=PrivacySettings(**SETTINGS))
    with pytest.raises(ValueError, match="expected privacy to be PrivacySettings"):
        PrivateTrainer(build("roberta"), arguments(tmp_path), mechanism=Laplace(1.0), privacy=SETTINGS)
    with pytest.raises(ValueError, match=r"compute_loss_func.*per_example_loss"):
        private(tmp_path, compute_loss_func=lambda *_: None)
    with pytest.raises(ValueError, match="expected per_example_loss to be a function"):
        private(tmp_path, per_example_loss=3)
    with pytest.raises(TypeError, match="not_an_argument"):
        private(tmp_path, not_an_argument=1)
    with pytest.raises(ValueError, match="no loss per example is known for Linear"):
        private(tmp_path, nn_model())
    with pytest.raises(ValueError, match="each trial spends"):
        private(tmp_path).hyperparameter_search()


def test_a_multi_label_classifier_needs_its_own_loss(tmp_path):
    model = build("roberta")
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(ValueError, match="pass per_example_loss"):
        private(tmp_path, model)


def test_nothing_of_the_trainer_is_overridden_unawares():
    hooks = {"train", "training_step", "get_train_dataloader", "log", "floating_point_ops", "hyperparameter_search"}
    hooks |= {"create_model_card", "create_optimizer"}
    own = {name for name in vars(PrivateTrainer) if not name.startswith("__")}
    assert own & set(dir(transformers.Trainer)) == hooks | {"get_total_train_batch_size"}


def test_without_accelerate_the_extra_is_named():
    script = (
        "import sys; sys.modules['accelerate'] = None\n"
        "try:\n    from optnoise.finetune import PrivateTrainer\n"
        "except ImportError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "PrivateTrainer needs accelerate: pip install optnoise[trainer]"


def test_importing_finetune_brings_in_no_transformers():
    script = "import sys, optnoise.finetune; sys.exit('transformers' in sys.modules or 'accelerate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_rows_are_sorted_by_length_inside_a_batch():
    rows = [{"input_ids": [0] * n} for n in (3, 1, 2, 5)] + [{"x": torch.zeros(4, 2), "y": torch.tensor(3)}]
    assert [[length_of(row) for row in part] for part in microbatches(rows, 2)] == [[1, 2], [3, 4], [5]]
    assert length_of((1, 2)) == 0


def test_a_collator_that_draws_is_not_compared(tmp_path, caplog):
    def drawing(rows):
        batch = collate(rows)
        return {**batch, "input_ids": torch.randint_like(batch["input_ids"], 2, 20)}

    with caplog.at_level(logging.WARNING, logger="optnoise"):
        private(tmp_path, data_collator=drawing, family="roberta").train()
    assert "another batch each time" in caplog.text


def test_user_optimizers_and_model_init_work(tmp_path):
    model = build("roberta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private(tmp_path / "a", model, optimizers=(optimizer, None)).train()
    trainer = PrivateTrainer(
        args=arguments(tmp_path / "b"),
        model_init=lambda: build("roberta"),
        train_dataset=rows_of(),
        data_collator=collate,
        mechanism=Gaussian(1.0),
        privacy=PrivacySettings(**SETTINGS),
        noise_seed=3,
    )
    assert trainer.train().global_step == 6
    foreign = torch.optim.SGD(build("roberta").parameters(), lr=0.1)
    with pytest.raises(ValueError, match="does not hold the model's trainable parameters"):
        private(tmp_path / "c", optimizers=(foreign, None)).train()


def test_losses_of_the_zoo_are_those_derived():
    """The derived losses are those that the clipping tests use."""
    from optnoise.finetune.trainer_losses import derived_loss

    for family in ("roberta", "bert", "gpt2", "llama"):
        model, made = build(family), data(family, 4)
        labels = made["classes"] if family in ("roberta", "bert") else made["labels"]
        batch = {"input_ids": made["ids"], "attention_mask": made["mask"], "labels": labels}
        found = derived_loss(train_part(model, "lora"))(model, batch)
        torch.testing.assert_close(
            found.double(), losses_of(model, family, made)(torch.arange(4)), rtol=1e-5, atol=1e-6
        )


def test_the_snippet_of_the_documentation_runs(tmp_path):
    snippets = [part for part in pages.snippets("docs/finetuning.md") if "PrivateTrainer(" in part]
    assert snippets
    for snippet in snippets:
        pages.run_python(snippet, tmp_path)


def test_the_documentation_names_what_is_refused():
    text = (Path(__file__).parents[2] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    assert [name for name in REFUSED if f"`{name}`" not in text and name != "parallelism_config"] == []
