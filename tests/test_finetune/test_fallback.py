"""Parameters without a rule: exact through `torch.func.vmap`, named in a notice, refused where that is not possible."""

from __future__ import annotations

import logging

import pytest
import torch
from model_zoo import build, data, losses_of
from optnoise.finetune import GhostClipping, UnsupportedModelError, UnsupportedUseError
from torch import nn


class Scale(nn.Module):
    """A direct parameter around a layer that has a rule of its own."""

    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.randn(width))
        self.extra = nn.ParameterDict({"shift": nn.Parameter(torch.randn(width))})

    def forward(self, x):
        return self.inner(x * self.scale).tanh() + self.extra["shift"]


class Positions(nn.Module):
    """A direct parameter and no data: one row for all examples."""

    def __init__(self, length, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, length, width))

    def forward(self):
        return self.table


def losses_through(model, x):
    return lambda index: model(x[index]).sin().flatten(1).sum(1)


def test_a_direct_parameter_around_a_ruled_layer_is_exact_and_named(exact, caplog):
    model = nn.Sequential(nn.Linear(4, 4), Scale(), nn.Linear(4, 2)).double()
    with caplog.at_level(logging.WARNING):
        GhostClipping(model, 1.0)
    assert "1 (Scale)" in caplog.text
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    exact(model, losses_through(model, x), 5, splits=(1, 2, 5))


def test_a_parameter_without_data_is_shared_by_all_examples(exact):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions, self.head = Positions(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(x + self.positions())

    model, x = Model().double(), torch.randn(4, 3, 4, dtype=torch.float64)
    exact(model, losses_through(model, x), 4, splits=(1, 2))


@pytest.mark.parametrize(
    "layer",
    [nn.Conv1d(3, 4, 2), nn.GroupNorm(1, 3), nn.PReLU(), nn.ConvTranspose1d(3, 2, 2)],
    ids=["conv", "group-norm", "prelu", "transposed-conv"],
)
def test_other_layers_of_torch_are_exact(exact, layer):
    layer = layer.double()
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    exact(layer, losses_through(layer, x), 4, splits=(1, 2))


def test_a_module_with_several_outputs_and_a_frozen_below_is_exact(exact):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

        def forward(self, x, *, mask):
            return {"first": x * self.a * mask, "second": [x * self.b, mask]}

    model = nn.ModuleDict({"low": nn.Linear(4, 4).requires_grad_(False), "two": Two()}).double()
    x, mask = torch.randn(5, 3, 4, dtype=torch.float64), torch.rand(5, 1, 4, dtype=torch.float64)

    def losses(index):
        output = model["two"](model["low"](x[index]), mask=mask[index])
        return (output["first"].sin() + output["second"][0].cos()).sum(dim=(1, 2))

    exact(model, losses, 5, splits=(1, 2))


def test_other_norms_of_transformers_go_through_the_fallback(exact):
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    norm = GemmaRMSNorm(6).double()
    x = torch.randn(4, 3, 6, dtype=torch.float64)
    exact(norm, losses_through(norm, x), 4)


def test_adapters_of_embeddings_are_exact(exact):
    """peft keeps them as bare parameters in a dictionary, beside a frozen embedding."""
    import peft

    model = build("llama")
    config = peft.LoraConfig(r=2, target_modules=["embed_tokens"])
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(model, config).double()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.4)
    exact(model, losses_of(model, "llama", data("llama", 3)), 3)


def refused(model, x, match):
    clipping = GhostClipping(model, 1.0)
    with pytest.raises(ValueError, match=match), clipping.record(len(x)) as recording:
        recording.backward(model(x).flatten(1).sum(1))
    assert clipping.clipped_sum.examples == 0
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_random_numbers_in_a_fallback_are_refused():
    class Noisy(Scale):
        def forward(self, x):
            return nn.functional.dropout(x * self.scale, 0.5)

    refused(Noisy(), torch.randn(4, 4), "vmap cannot run Noisy")


def test_examples_that_mix_inside_a_fallback_are_refused():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x * self.scale - x.mean(dim=0)

    refused(Mixing(), torch.randn(4, 4), "mixes examples")


def test_an_output_without_the_batch_in_front_is_refused():
    class Transposed(Scale):
        def forward(self, x):
            return (x * self.scale).sum(dim=0, keepdim=True)

    refused(Transposed(), torch.randn(4, 4), "first axis")


def test_a_shared_parameter_cannot_go_through_the_fallback():
    model = nn.ModuleList([Scale(), nn.Linear(4, 4)])
    model[1].bias = model[0].scale
    with pytest.raises(UnsupportedModelError, match=r"0 \(Scale\).*scale \(also 1\)"):
        GhostClipping(model, 1.0)


def test_a_child_that_is_used_without_being_called_is_refused():
    class Sneaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.child, self.scale = nn.Linear(4, 4), nn.Parameter(torch.randn(4))

        def forward(self, x):
            return nn.functional.linear(x * self.scale, self.child.weight)

    model = Sneaky()
    clipping = GhostClipping(model, 1.0)
    with pytest.raises(UnsupportedUseError, match=r"child\.weight"), clipping.record(3) as recording:
        recording.backward(model(torch.randn(3, 4)).sum(1))


def test_a_rule_that_does_not_know_a_parameter_is_no_rule_for_it():
    """Old-style weight normalisation leaves a Linear with weight_g and weight_v, which no product would reach."""
    layer = nn.Linear(3, 3)
    layer.register_parameter("extra", nn.Parameter(torch.zeros(3)))
    with pytest.raises(UnsupportedModelError, match="does not know its trainable extra"):
        GhostClipping(layer, 1.0)
