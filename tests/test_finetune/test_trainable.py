"""Which parameters are trained, by name, in every architecture; what a model has not is refused."""

from __future__ import annotations

import re

import pydantic
import pytest
import torch
import torch.nn.functional as F
from optnoise.finetune.models import (
    ARCHITECTURES,
    TRAINED,
    LoraSettings,
    architecture_of,
    choose_trainable,
    count_trainable,
    freeze_unused,
)
from optnoise.finetune.models.architectures import unwrapped
from tiny_language import CELLS, build
from torch import nn

HEADS = {
    ("roberta", "encoder_head"): {"classifier.dense", "classifier.out_proj"},
    ("bert", "encoder_head"): {"bert.pooler.dense", "classifier"},
    ("gpt2", "causal_head"): {"score.weight"},
    ("llama", "causal_head"): {"score.weight"},
    # the tied decoder weight is the embedding table's; its bias is the head's, under its first name
    ("roberta", "masked_word"): {"lm_head.bias", "lm_head.dense", "lm_head.layer_norm"},
    ("bert", "masked_word"): {"cls.predictions.bias", "cls.predictions.transform"},
    ("llama", "causal_lm"): {"lm_head.weight"},
    ("gpt2", "causal_lm"): set(),
}
LAYERS = {
    "roberta": "roberta.encoder.layer",
    "bert": "bert.encoder.layer",
    "gpt2": "transformer.h",
    "llama": "model.layers",
}
NORMS = {"gpt2": {"transformer.ln_f.weight", "transformer.ln_f.bias"}, "llama": {"model.norm.weight"}}
ADAPTED = {
    "roberta": ("attention.self.query", "attention.self.value"),
    "bert": ("attention.self.query", "attention.self.value"),
    "gpt2": ("attn.c_attn",),
    "llama": ("self_attn.q_proj", "self_attn.v_proj"),
}


def trained_names(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def under(model, starts):
    """Names of parameters that stand at or below these paths."""
    return {name for name, _ in model.named_parameters() if any(f"{name}.".startswith(f"{start}.") for start in starts)}


def is_new(kind):
    return kind.endswith("head")


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_full_trains_every_parameter(family, kind):
    model = build(family, kind)[0]
    model.requires_grad_(False)
    assert choose_trainable(model, "full") is model
    assert trained_names(model) == {name for name, _ in model.named_parameters()}
    assert count_trainable(model) == sum({id(p): p.numel() for p in model.parameters()}.values())


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_head_trains_the_heads_own_parameters(family, kind):
    model = build(family, kind)[0]
    if not HEADS[family, kind]:
        with pytest.raises(ValueError, match="GPT2LMHeadModel has no head of its own: it is tied"):
            choose_trainable(model, "head")
        assert all(parameter.requires_grad for parameter in model.parameters())  # refused before any change
        return
    assert trained_names(choose_trainable(model, "head")) == under(model, HEADS[family, kind])


@pytest.mark.parametrize("layers", [None, 1, 2])
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_bitfit_trains_the_biases_and_a_new_head(family, kind, layers):
    model = build(family, kind)[0]
    if family == "llama":
        with pytest.raises(ValueError, match=r"Llama\w+ has no biases, which bitfit trains"):
            choose_trainable(model, "bitfit", layers=layers)
        return
    every = {name for name, _ in model.named_parameters() if name.endswith(".bias")}
    if layers is not None:
        every &= under(model, [f"{LAYERS[family]}.{place}" for place in range(2 - layers, 2)])
    head = under(model, HEADS[family, kind]) if is_new(kind) else set()
    assert trained_names(choose_trainable(model, "bitfit", layers=layers)) == every | head


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_last_layers_are_trained_with_all_that_is_above_them(family, kind, layers):
    model = build(family, kind)[0]
    wanted = under(model, [f"{LAYERS[family]}.{place}" for place in range(2 - layers, 2)])
    wanted |= NORMS.get(family, set()) | under(model, HEADS[family, kind])
    assert trained_names(choose_trainable(model, "last_layers", layers=layers)) == wanted


@pytest.mark.parametrize(("family", "kind"), CELLS)
def test_lora_trains_adapters_and_a_new_head(family, kind):
    model = build(family, kind)[0]
    width = {name: module for name, module in model.named_modules() if name.endswith(ADAPTED[family])}
    sizes = [sum(module.weight.shape) * 3 for module in width.values()]
    head = sum(model.get_parameter(name).numel() for name in under(model, HEADS[family, kind])) if is_new(kind) else 0
    wrapped = choose_trainable(model, "lora", lora=LoraSettings(rank=3, alpha=6.0))
    found = trained_names(wrapped)
    adapters = {name for name in found if "lora_" in name}
    layers = {f"{LAYERS[family]}.{place}.{end}" for place in range(2) for end in ADAPTED[family]}
    assert {
        re.sub(r"\.lora_[AB]\.default\.weight$", "", name).split("base_model.model.")[1] for name in adapters
    } == layers
    assert len(adapters) == 2 * len(layers)
    assert all("modules_to_save" in name for name in found - adapters)
    assert count_trainable(wrapped) == sum(sizes) + head
    assert architecture_of(wrapped) is architecture_of(unwrapped(wrapped)) is ARCHITECTURES[type(model).__name__]
    with pytest.raises(ValueError, match="has adapters already"):
        choose_trainable(wrapped, "full")


def test_adapters_start_at_the_pretrained_model():
    model, _ = build("gpt2", "causal_lm")
    ids = torch.arange(8)[None]
    before = model(input_ids=ids).logits
    wrapped = choose_trainable(model, "lora").double()
    assert torch.equal(wrapped(input_ids=ids).logits, before)


def test_a_classifier_head_in_a_lora_model_starts_as_it_was_and_is_used():
    model, _ = build("roberta", "encoder_head")
    ids = torch.arange(2, 10)[None]
    before = model(input_ids=ids).logits
    wrapped = choose_trainable(model, "lora").double()
    logits = wrapped(input_ids=ids).logits
    torch.testing.assert_close(logits, before)
    gradients = torch.autograd.grad(logits.sum(), [p for n, p in wrapped.named_parameters() if "modules_to_save" in n])
    assert all(bool(gradient.any()) for gradient in gradients)


@pytest.mark.parametrize("what", TRAINED)
def test_another_architecture_is_refused_and_those_known_are_named(what):
    with pytest.raises(
        ValueError, match=r"Linear is not supported; supported: RobertaForSequenceClassification, .*Llama"
    ):
        choose_trainable(nn.Linear(3, 2), what)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"what": "top"}, "one of full, head, bitfit, lora, last_layers, got what='top'"),
        ({"what": "last_layers"}, "give layers with"),
        ({"what": "last_layers", "layers": 3}, "expected 1 <= layers <= 2"),
        ({"what": "last_layers", "layers": 0}, "expected 1 <= layers <= 2"),
        ({"what": "full", "layers": 1}, "leave layers out"),
        ({"what": "full", "lora": LoraSettings()}, "leave lora out"),
        ({"what": "lora", "lora": LoraSettings(targets=("nothing",))}, "has no module named 'nothing'"),
    ],
)
def test_bad_settings_are_refused_before_anything_changes(arguments, reason):
    model = build("roberta", "encoder_head")[0]
    with pytest.raises(ValueError, match=reason):
        choose_trainable(model, **arguments)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("bad", [{"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"targets": ()}, {"ranks": 4}])
def test_bad_adapter_settings_are_refused(bad):
    with pytest.raises(pydantic.ValidationError):
        LoraSettings(**bad)


def test_b49_trainable_parameters_that_no_loss_reaches_are_frozen():
    """They would receive noise alone, and count in the dimension."""
    model, _ = build("roberta", "encoder_head")
    model.spare = nn.Linear(3, 2).double()
    before = count_trainable(model)
    ids = torch.arange(2, 10).view(2, 4)
    losses = lambda: F.cross_entropy(model(input_ids=ids).logits, torch.tensor([0, 1]), reduction="none")  # noqa: E731
    assert freeze_unused(model, losses) == ["spare.weight", "spare.bias"]
    assert count_trainable(model) == before - 8
    assert freeze_unused(model, losses) == []
