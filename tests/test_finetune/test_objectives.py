"""Objectives on tiny random models: one loss for each example, whatever architecture, objective and trained part."""

from __future__ import annotations

import pytest
import torch
from optnoise.finetune import make_private
from optnoise.finetune.losses import check_losses_are_per_example
from optnoise.finetune.models import TRAINED, LoraSettings, choose_trainable
from optnoise.mechanisms import Gaussian
from tiny_language import CELLS, FAMILIES, build, examples_of, objective_of, randomize

REFUSED = {
    ("gpt2", "causal_lm", "head"): "GPT2LMHeadModel has no head of its own",
    ("llama", "causal_lm", "bitfit"): "LlamaForCausalLM has no biases",
    ("llama", "causal_head", "bitfit"): "LlamaForSequenceClassification has no biases",
}


def trained(model, what):
    """The model with this part trained, adapters away from their start at zero."""
    settings = {"last_layers": {"layers": 1}, "lora": {"lora": LoraSettings(rank=2, alpha=4.0)}}.get(what, {})
    model = choose_trainable(model, what, **settings).double()
    randomize(model, only="lora_")
    return model.train()


def losses_on(objective, model, rows):
    """Indices (b,) to losses (b,), of batches padded to their own longest row."""
    return lambda index: objective.per_example_losses(model, objective.collate([rows[i] for i in index.tolist()]))


@pytest.mark.parametrize("what", TRAINED)
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_clipping_is_exact_in_every_cell_or_the_cell_is_refused_by_name(exact, family, kind, what):
    model, tokenizer = build(family, kind)
    if reason := REFUSED.get((family, kind, what)):
        with pytest.raises(ValueError, match=reason):
            trained(model, what)
        return
    objective, examples = objective_of(kind, tokenizer), examples_of(kind)
    rows = list(objective.encode(examples, 64))
    model = trained(model, what)
    losses = losses_on(objective, model, rows)
    exact(model, losses, len(rows), splits=(1, 2))
    check_losses_are_per_example(model, losses, len(rows))


@pytest.mark.parametrize("what", TRAINED)
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_one_private_step_moves_the_trained_part_and_nothing_else(family, kind, what):
    if (family, kind, what) in REFUSED:
        pytest.skip(f"refused: {REFUSED[family, kind, what]}")
    model, tokenizer = build(family, kind)
    objective = objective_of(kind, tokenizer)
    rows = list(objective.encode(examples_of(kind), 64))
    model = trained(model, what)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = make_private(
        model,
        torch.optim.SGD(chosen, lr=0.1),
        mechanism=Gaussian(1.0),
        clipping_norm=0.5,
        dataset_size=len(rows),
        sampling_rate=1.0,
        divisor=len(rows),
        seed=3,
    )
    batch = training.next_batch()
    for indices in batch.microbatches(2):
        with training.record(len(indices)) as recording:
            recording.backward(losses_on(objective, model, rows)(indices))
    training.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
    assert training.dimension == sum(parameter.numel() for parameter in chosen)


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_padding_does_not_change_losses(family, kind):
    model, tokenizer = build(family, kind)
    objective = objective_of(kind, tokenizer)
    rows = list(objective.encode(examples_of(kind), 64))
    assert len({len(row["input_ids"]) for row in rows}) > 1
    together = losses_on(objective, model, rows)(torch.arange(len(rows)))
    alone = torch.cat([losses_on(objective, model, rows)(torch.tensor([i])) for i in range(len(rows))])
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_another_kind_is_refused_by_name(family):
    kinds = [kind for known, kind in CELLS if known == family]
    for kind, other in (kinds, kinds[::-1]):
        model, tokenizer = build(family, other)
        objective = objective_of(kind, tokenizer)
        batch = objective.collate(list(objective.encode(examples_of(kind), 64)))
        with pytest.raises(ValueError, match=rf"takes .*got {type(model).__name__}"):
            objective.per_example_losses(model, batch)
