"""Faults reported of other libraries (docs/reported_faults.md): clipping and training, where no other test has them."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from model_zoo import build, data, losses_of, with_adapters
from optnoise.finetune.zeroth_order.directions import Directions
from optnoise.mechanisms import Gaussian
from small_runs import collate, first_order, flat, for_trainer, linear, rows_of, step, trainer, vectors, zeroth_order
from torch import nn

# ---- clipping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clipping_norm", "moved"), [(0.1, 0.1), (10.0, 1.0)])
def test_b42_the_trainer_clips_to_the_norm_it_was_given(clipping_norm, moved, tmp_path):
    """B42: two records with gradient 1 each, divisor 2: the weight moves by 0.1 under C = 0.1, by 1 under 10."""
    model = for_trainer(linear())
    privacy = {"steps": 1, "sampling_rate": 1.0, "divisor": 2.0, "clipping_norm": clipping_norm}
    begin = flat(model)
    trainer(tmp_path, model, privacy=privacy, noise=1e-6, **vectors(2)).train()
    assert float(begin - flat(model)) == pytest.approx(moved, abs=1e-4)


def test_b43_the_trainers_language_loss_divides_by_the_examples_own_labels(tmp_path):
    """B43: a row alone and in company of a row with many more labels has the same loss, the mean over its own."""
    model, rows = build("gpt2"), rows_of("gpt2", 2)
    rows[0]["labels"] = torch.full_like(rows[0]["labels"], -100)
    rows[0]["labels"][1:3] = rows[0]["input_ids"][1:3]
    rows[1]["labels"] = rows[1]["input_ids"]
    run = trainer(tmp_path, model, family="gpt2", train_dataset=rows, privacy={"divisor": 2.0})
    together = run._example_losses(model, collate(rows)).detach()
    alone = run._example_losses(model, collate(rows[:1])).detach()
    logits = model(input_ids=rows[0]["input_ids"][None]).logits[0].detach().float().log_softmax(1)
    wanted = -sum(float(logits[place - 1, rows[0]["input_ids"][place]]) for place in (1, 2)) / 2
    assert float(together[0]) == pytest.approx(wanted, rel=1e-6)
    assert float(alone[0]) == pytest.approx(wanted, rel=1e-6)


def test_b49_an_unused_layer_of_a_trained_model_gets_noise_and_stops_nothing(tmp_path):
    """B49: declared, never called: no data reach it, and σC/divisor of noise does, 2 · 0.5 / 10 in each step."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = linear(), nn.Linear(3000, 1, bias=False)

        def forward(self, x):
            return self.used(x)

    model = for_trainer(Half())
    begin = model.unused.weight.detach().clone()
    trainer(tmp_path, model, noise=2.0, **vectors(40)).train()
    moves = (model.unused.weight.detach() - begin).flatten()
    assert float(moves.std()) == pytest.approx(math.sqrt(4) * 0.1, rel=0.07)  # four steps, five standard errors


def outputs(model, features, index):
    """The output of each record as its loss."""
    return model(features[index])[:, 0]


# ---- the update -------------------------------------------------------------------------------------------------


def test_b56_an_empty_batch_and_a_full_one_have_the_same_divisor_without_gradients():
    """B56: draws of any size are divided by 16: noise alone of an empty batch has std σC/16, as that of a full one."""
    spreads = []
    for rate in (1e-12, 1.0):
        model = linear(2).double()
        training = zeroth_order(model, mechanism=Gaussian(1.0), clipping_norm=1.0, divisor=16.0, sampling_rate=rate)
        losses = functools.partial(outputs, model, torch.zeros(10, 2).double())
        released = []
        for batch in training.logical_batches(500):
            assert len(batch) == (10 if rate == 1.0 else 0)
            released.append(float(training.step(losses).derivatives))
        spreads.append(torch.tensor(released).std())
    assert float(spreads[0]) == pytest.approx(1 / 16, rel=0.16)  # five standard errors
    assert float(spreads[1]) == pytest.approx(1 / 16, rel=0.16)


def test_b58_an_optimizer_that_needs_a_closure_is_refused_before_a_step_is_charged():
    """B58: its closure would compute gradients anew, after the noise."""
    model = linear(3)
    with pytest.raises(ValueError, match=r"step\(\) needs no closure, got LBFGS"):
        first_order(model, torch.optim.LBFGS(model.parameters()))


def test_b58_an_optimizer_of_another_make_is_refused():
    with pytest.raises(ValueError, match=r"expected optimizer to be of torch.optim.*got str"):
        first_order(linear(3), "sgd")


def test_b59_accelerate_schedule_and_private_training_act_on_one_optimizer():
    """B59: linear decay from 1e-3 over 10 updates, gradient 1: the 6th moves by 5e-4, whoever wraps the optimizer."""
    accelerate = pytest.importorskip("accelerate")
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / 10)
    model, wrapped, schedule = accelerate.Accelerator(cpu=True).prepare(model, optimizer, schedule)
    assert wrapped is not optimizer
    training = first_order(model, wrapped)
    moves = []
    for _ in range(10):
        before = float(flat(model))
        step(training, torch.ones(10, 1))
        schedule.step()
        moves.append(before - float(flat(model)))
    assert training.optimizer is wrapped.optimizer is optimizer
    assert moves[0] == pytest.approx(1e-3, rel=1e-3)
    assert moves[5] == pytest.approx(5e-4, rel=1e-3)
    with pytest.raises(RuntimeError, match="would not be private"):
        wrapped.step()


def test_b59_a_schedule_of_the_zeroth_order_update():
    """B59: linear decay from 1e-3 over 10 updates: the 6th is 5e-4 times its estimated slope along its direction."""
    model = linear(4).double()
    rates = []
    training = zeroth_order(model, learning_rate=lambda update: 1e-3 * (1 - update / 10))
    for batch in training.logical_batches(10):
        before = flat(model)
        estimate = training.step(functools.partial(outputs, model, torch.ones(10, 4).double()))
        z = next(
            iter(
                Directions([(4, torch.device("cpu"))], seed=training.direction_seed, kind="gaussian").blocks(
                    estimate.numbers[0]
                )
            )
        )
        rates.append(float((before - flat(model)) @ z / (z @ z) / estimate.derivatives[0]))
        assert len(batch) == 10
    assert rates == pytest.approx([1e-3 * (1 - update / 10) for update in range(10)], rel=1e-6)


def test_b60_adapters_added_after_the_model_was_made_private_are_refused():
    """B60, the third order of wrapping: the optimizer would train none of the adapters."""
    model = build("gpt2")
    training = first_order(model)
    with_adapters(model)
    training.next_batch()
    with pytest.raises(RuntimeError, match=r"trainable parameters changed since make_private: .*lora_A"):
        step_of(training, "gpt2")
    assert training.ledger.steps == 0


def step_of(training, family):
    """The logical batch in work, of a model of the zoo."""
    losses = losses_of(training.model, family, data(family, 10))
    with training.record(10) as recording:
        recording.backward(losses(torch.arange(10)))
    training.step()


@pytest.mark.parametrize("make", [first_order, zeroth_order])
def test_b63_a_group_of_one_is_one_process(make, tmp_path):
    """B63: groups of more are in test_processes.py; started but without a group, each would release for itself."""
    group = {"store": torch.distributed.FileStore(str(tmp_path / "store"), 1), "rank": 0, "world_size": 1}
    torch.distributed.init_process_group("gloo", **group)
    try:
        make(linear(3))
    finally:
        torch.distributed.destroy_process_group()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "4")
        with pytest.raises(ValueError, match="WORLD_SIZE=4 processes were started"):
            make(linear(3))
    make(linear(3))


def test_b65_losses_under_bfloat16_autocast_are_compared_and_released_in_float64():
    """B65: without gradients too: bf16 losses are subtracted, divided and added up in float64."""
    model = linear(4).float()
    features = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))
    training = zeroth_order(model, smoothing=0.1, learning_rate=0.0)
    seen = []

    def losses(index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(features[index])[:, 0]
        assert output.dtype == torch.bfloat16
        seen.append(output.double())
        return output

    estimate = training.step(losses, training.next_batch().microbatches(1))
    higher, lower = (torch.cat(seen[part : part + 10]) for part in (0, 10))
    wanted = float((higher - lower).sum()) / 0.2 / 10
    assert estimate.derivatives.dtype == torch.float64
    assert float(estimate.derivatives) == pytest.approx(wanted, abs=1e-6)  # the grid is C/2^32, 2e-7 here


# ---- sizes that vary --------------------------------------------------------------------------------------------


def test_b67_a_loss_of_a_fixed_batch_size_is_refused_by_the_trainer_before_a_step(tmp_path):
    """B67: user code that counts on 4 rows, and the trainer's documented number of rows now in work."""
    seen = []

    def fixed(model, batch):
        return model(batch["x"])[:, 0].sum() * torch.ones(4)

    with pytest.raises(ValueError, match=r"one loss per example.*Poisson batches vary"):
        trainer(tmp_path / "fixed", for_trainer(linear()), **{**vectors(40), "per_example_loss": fixed}).train()

    def own(model, batch):
        seen.append(run.private_run.active().batch_size)
        return model(batch["x"])[:, 0]

    run = trainer(tmp_path / "own", for_trainer(linear()), **{**vectors(40), "per_example_loss": own})
    run.train()
    assert len(set(seen) - {0}) > 1


def test_b67_losses_padded_to_a_fixed_size_are_refused_in_a_loop():
    """B67: the forward pass is right, a tensor of fixed length is not; the text says why."""
    training = first_order(linear(3), sampling_rate=0.5, seed=1)
    size = len(training.next_batch())
    assert size not in (0, 10)
    with pytest.raises(ValueError, match="Poisson batches vary"), training.record(size) as recording:
        recording.backward(nn.functional.pad(training.model(torch.ones(size, 3))[:, 0], (0, 10 - size)))
    assert training.ledger.steps == 0


def test_b67_a_fixed_batch_size_is_refused_without_gradients():
    model = linear(3).double()
    training = zeroth_order(model, sampling_rate=0.5, seed=1)
    batch = training.next_batch()
    assert training.batch_size == len(batch) != 5
    with pytest.raises(ValueError, match=r"one loss per example.*Poisson batches vary"):
        training.step(lambda index: model(torch.ones(5, 3).double())[:, 0])
    assert training.ledger.steps == 0
    training.step(functools.partial(outputs, model, torch.ones(10, 3).double()))


def test_b33_records_outside_a_poisson_batch_are_refused():
    """B33: a plain loader's batches find no logical batch to belong to, so no amplified ε is claimed for them."""
    model = linear(3)
    training = first_order(model, sampling_rate=0.5, mechanism=Gaussian(1.0))
    loader = torch.utils.data.DataLoader(torch.ones(10, 3), batch_size=5, shuffle=True)
    with pytest.raises(RuntimeError, match="needs a logical batch"), training.record(5) as recording:
        recording.backward(model(next(iter(loader)))[:, 0])
    assert training.ledger.steps == 0
    assert training.release.sampling == "poisson"
