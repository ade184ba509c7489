"""Ghost clipping against a one-example-at-a-time autograd loop, and everything it must refuse."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.finetune import (
    LAYER_RULES,
    GhostClipping,
    LayerRule,
    UnsupportedModelError,
    UnsupportedUseError,
    clip_factors,
    mean_over_own_tokens,
    rounding_margin,
)
from optnoise.finetune.account import Account
from optnoise.finetune.factored import DenseGradient, OuterGradient, RowGradient
from optnoise.finetune.inner_products import inner_product
from torch import nn
from torch.utils.checkpoint import checkpoint


class TokenNet(nn.Module):
    """Embedding (padding row 0), shared positions, LayerNorm, one linear layer used twice, output head."""

    def __init__(self, *, vocabulary=7, width=5, tied=False, inplace=False, positions=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        self.body = nn.Linear(width, width)
        self.activation = nn.ReLU(inplace=inplace)
        self.head = nn.Linear(width, vocabulary)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])
        hidden = self.activation(self.body(self.norm(hidden)))
        return self.head(self.activation(self.body(hidden)))


def token_losses(model, ids):
    targets = ids.flip(1)
    return lambda index: F.cross_entropy(model(ids[index]).transpose(1, 2), targets[index], reduction="none").mean(1)


def record(clipping, losses, count):
    with clipping.record(count) as recording:
        recording.backward(losses(torch.arange(count)))
    return recording.per_example_norms


# ---- exactness --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [False, True], ids=["out-of-place", "in-place"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_token_net_is_exact_for_every_microbatch_split(exact, tied, inplace):
    model = TokenNet(tied=tied, inplace=inplace).double()
    ids = torch.randint(0, 7, (7, 6))
    exact(model, token_losses(model, ids), 7, splits=(1, 2, 7))


@settings(max_examples=25, deadline=None)
@given(
    examples=st.integers(1, 5),
    length=st.integers(1, 9),
    width=st.integers(1, 6),
    vocabulary=st.integers(2, 9),
    tied=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_shape_is_exact(exact, examples, length, width, vocabulary, tied, seed):
    torch.manual_seed(seed)
    model = TokenNet(vocabulary=vocabulary, width=width, tied=tied).double()
    ids = torch.randint(0, vocabulary, (examples, length))
    gate = torch.randn(examples, length, vocabulary, dtype=torch.float64)
    # a linear readout: no loss is so flat that its relative error means nothing
    exact(model, lambda index: (model(ids[index]) * gate[index]).sum(dim=(1, 2)), examples)


@pytest.mark.parametrize("shape", [(6, 3), (6, 4, 3), (6, 2, 2, 3)], ids=["2-d", "3-d", "4-d"])
@pytest.mark.parametrize("frozen", ["none", "weight", "bias"])
def test_linear_and_layer_norm_with_any_number_of_axes(exact, shape, frozen):
    """B46 among them: a frozen weight beside a trainable bias, and the other way."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.endswith(frozen))
    x = torch.randn(shape, dtype=torch.float64)
    exact(model, lambda index: model(x[index]).sin().flatten(1).sum(1), 6, splits=(1, 2, 4))


def test_layer_norm_over_several_axes_is_exact(exact):
    model = nn.Sequential(nn.LayerNorm((3, 4)), nn.Flatten(2), nn.Linear(12, 2)).double()
    nn.init.normal_(model[0].weight)
    x = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    exact(model, lambda index: model(x[index]).sin().sum(dim=(1, 2)), 5)


def test_frozen_layers_below_and_between_are_passed_through(exact):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
    model.double()
    model[0].requires_grad_(False)
    model[4].requires_grad_(False)
    x = torch.randn(5, 3, dtype=torch.float64)
    exact(model, lambda index: model(x[index])[:, 0].square(), 5)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("part", ["head", "last_layers", "biases", "everything"])
def test_encoder_classifier_with_ragged_padding_is_exact(exact, tiny_encoder, family, part):
    from optnoise.finetune import encoder as encoders

    classifier = encoders.EncoderClassifier(tiny_encoder(family), 3).double().eval()
    {
        "head": encoders.train_head,
        "last_layers": lambda model: encoders.train_last_layers(model, 1),
        "biases": encoders.train_biases,
        "everything": encoders.train_everything,
    }[part](classifier)
    padding, lengths = classifier.encoder.config.pad_token_id, torch.tensor([9, 3, 1, 6, 9])
    mask = torch.arange(9) < lengths[:, None]
    ids = torch.randint(2, 29, (5, 9)).masked_fill(~mask, padding)
    labels = torch.tensor([0, 1, 2, 0, 1])

    def losses(index):
        return F.cross_entropy(classifier(ids[index], mask[index].long()), labels[index], reduction="none")

    exact(classifier, losses, 5, splits=(1, 3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_is_exact(exact, reentrant):
    class Checkpointed(TokenNet):
        def forward(self, ids):
            hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])
            block = lambda x: self.body(self.activation(self.body(self.norm(x))))  # noqa: E731
            return self.head(checkpoint(block, hidden, use_reentrant=reentrant))

    model = Checkpointed(tied=True).double()
    ids = torch.randint(0, 7, (4, 6))
    gate = torch.randn(4, 6, 7, dtype=torch.float64)
    exact(model, lambda index: (model(ids[index]) * gate[index]).sum(dim=(1, 2)), 4, splits=(1, 2))


@pytest.mark.parametrize(("length", "width"), [(40, 3), (2, 30)], ids=["instantiated", "ghost"])
def test_both_norm_formulas_agree_and_the_cheaper_is_taken(length, width):
    x = OuterGradient(
        torch.randn(3, length, width, dtype=torch.float64), torch.randn(3, length, width + 1, dtype=torch.float64)
    )
    torch.testing.assert_close(x.squared_norm(), x.instantiated().squared_norm(), rtol=1e-12, atol=0)
    assert x.ghost_is_cheaper() == (length == 2)
    assert isinstance(x.compact(), OuterGradient if length == 2 else DenseGradient)


def test_inner_products_of_all_kinds_match_the_instantiated_ones():
    ids, grads = torch.randint(0, 6, (3, 4)), torch.randn(3, 4, 5, dtype=torch.float64)
    row = RowGradient(ids, grads, 6)
    outer = OuterGradient(torch.randn(3, 7, 5, dtype=torch.float64), torch.randn(3, 7, 6, dtype=torch.float64))
    dense = DenseGradient.from_positions(torch.randn(3, 2, 30, dtype=torch.float64))
    kinds = [row, outer, dense]
    for x in kinds:
        for y in kinds:
            wanted = (x.instantiate(0, 3) * y.instantiate(0, 3)).sum(dim=1)
            torch.testing.assert_close(inner_product(x, y), wanted, rtol=1e-11, atol=1e-11)
    whole = sum(x.instantiate(0, 3) for x in kinds).square().sum(dim=1)
    account = Account(torch.Size([6, 5]), 3)
    for kind in kinds:
        account.add(kind)
    torch.testing.assert_close(account.squared_norm(), whole, rtol=1e-11, atol=0)


# ---- rows of the list of faults ---------------------------------------------------------------------------------


def test_b37_tied_embedding_and_head_are_added_before_the_norm():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(2, 1)
            self.head = nn.Linear(1, 2, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids))

    model = Tied().double()
    with torch.no_grad():
        model.embedding.weight.copy_(torch.tensor([[2.0], [0.0]]))
    ids = torch.zeros(3, 1, dtype=torch.long)
    targets = torch.ones(3, dtype=torch.long)
    norms = record(
        GhostClipping(model, 1.0),
        lambda index: F.cross_entropy(model(ids[index])[:, 0], targets[index], reduction="none"),
        3,
    )
    torch.testing.assert_close(norms, torch.full((3,), 4.3917, dtype=torch.float64), rtol=1e-4, atol=0)


def test_b38_position_ids_shared_by_the_batch_give_one_gradient_per_example():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.wpe = nn.Embedding(3, 2)

        def forward(self, x):
            return x + self.wpe(torch.arange(3)[None])

    model, x = Positions(), torch.zeros(4, 3, 2)
    norms = record(GhostClipping(model, 1.0), lambda index: model(x[index]).sum(dim=(1, 2)), 4)
    torch.testing.assert_close(norms, torch.full((4,), math.sqrt(6)))


def test_b40_bias_gradient_of_a_sequence_is_summed_before_the_norm():
    model, x = nn.Linear(1, 1), torch.zeros(1, 2, 1)
    model.weight.requires_grad_(False)
    upstream = torch.tensor([[[0.1], [0.2]]])
    norms = record(GhostClipping(model, 1.0), lambda index: (model(x[index]) * upstream).sum(dim=(1, 2)), 1)
    torch.testing.assert_close(norms, torch.tensor([0.3]))


def test_b42_the_clipping_norm_given_is_the_one_used():
    model, x = nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    sums = {}
    for clipping_norm in (0.1, 10.0):
        clipping = GhostClipping(model, clipping_norm)
        record(clipping, lambda index: model(x[index])[:, 0], 2)
        sums[clipping_norm] = clipping.clipped_sum.of("weight")
    torch.testing.assert_close(sums[10.0], torch.ones(1, 2))
    torch.testing.assert_close(sums[0.1], torch.full((1, 2), 0.1), rtol=1e-5, atol=0)
    assert float(sums[0.1].abs().max()) <= 0.1


def test_b43_token_losses_are_averaged_over_the_examples_own_valid_tokens():
    losses, valid = torch.tensor([[1.0, 9.0, 3.0, 9.0]]), torch.tensor([[True, False, True, False]])
    torch.testing.assert_close(mean_over_own_tokens(losses, valid), torch.tensor([2.0]))
    assert mean_over_own_tokens(torch.full((1, 2), math.nan), torch.zeros(1, 2, dtype=torch.bool)).item() == 0


def test_b44_a_sequence_is_one_example_and_flattened_tokens_are_refused():
    model, x = nn.Linear(2, 2, bias=False), torch.eye(2)[None]
    weight = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    clipping = GhostClipping(model, 1.0)
    norms = record(clipping, lambda index: (model(x[index]) * weight).sum(dim=(1, 2)), 1)
    torch.testing.assert_close(norms, torch.tensor([5.0]))
    torch.testing.assert_close(clipping.take().of("weight"), torch.diag(torch.tensor([0.6, 0.8])), rtol=1e-5, atol=0)
    with pytest.raises(ValueError, match=r"\(the model itself\): .* first axis"), clipping.record(1) as recording:
        recording.backward(model(x.flatten(0, 1)).sum(1))
    with pytest.raises(ValueError, match=r"shape \(1,\), got shape \(2,\)"), clipping.record(1) as recording:
        recording.backward(model(x).flatten(0, 1).sum(1))


def test_b46_bias_alone_stores_no_weight_gradient():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    model.weight.requires_grad_(False)
    before = model.weight.clone()
    clipping = GhostClipping(model, 100.0)
    norms = record(clipping, lambda index: model(x[index]).sum(1), 4)
    torch.testing.assert_close(norms, torch.full((4,), math.sqrt(2)))
    assert clipping.parameters.keys() == {"bias"}
    assert model.weight.grad is None
    assert torch.equal(model.weight, before)
    assert not model.weight.requires_grad


def test_b49_an_unused_layer_contributes_zero(exact):
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "unused": nn.Linear(3, 1)}).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    exact(model, lambda index: model["used"](x[index])[:, 0].square(), 4)


def test_b65_bfloat16_autocast_is_accumulated_in_float32():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(2, 5, 4)
    exact_norms = record(GhostClipping(model, 1.0), lambda index: model(x[index]).sin().sum(dim=(1, 2)), 2)
    clipping = GhostClipping(model, 1.0)

    def losses(index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(x[index])
        assert output.dtype == torch.bfloat16
        return output.float().sin().sum(dim=(1, 2))

    norms = record(clipping, losses, 2)
    assert norms.dtype == torch.float32
    assert clipping.clipped_sum.of("0.weight").dtype == torch.float32
    torch.testing.assert_close(norms, exact_norms, rtol=1e-2, atol=0)


def test_b73_names_in_the_state_dict_stay_plain_even_inside_record():
    model = TokenNet()
    names = list(model.state_dict())
    clipping, ids = GhostClipping(model, 1.0), torch.randint(1, 7, (2, 4))
    with clipping.record(2) as recording:
        recording.backward(token_losses(model, ids)(torch.arange(2)))
        assert list(model.state_dict()) == names
    TokenNet().load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(TokenNet().state_dict(), strict=True)


def hook_count(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())


def test_b76_no_hook_and_no_attribute_stays_behind():
    model = TokenNet()
    attributes = {name: set(vars(p)) for name, p in model.named_parameters()}
    module_attributes = [set(vars(m)) for m in model.modules()]
    ids = torch.randint(1, 7, (2, 4))
    record(GhostClipping(model, 1.0), token_losses(model, ids), 2)
    assert hook_count(model) == 0
    assert {name: set(vars(p)) for name, p in model.named_parameters()} == attributes
    assert [set(vars(m)) for m in model.modules()] == module_attributes
    assert all(p.requires_grad and not p._backward_hooks and p.grad is None for p in model.parameters())


def test_b76_an_exception_in_the_forward_pass_leaves_the_model_as_it_was():
    model = TokenNet()
    clipping = GhostClipping(model, 1.0)

    def forward_then_fail():
        model(torch.randint(1, 7, (2, 4)))
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"), clipping.record(2):
        forward_then_fail()
    with pytest.raises(IndexError), clipping.record(2):
        model(torch.full((2, 4), 99))
    assert hook_count(model) == 0
    assert all(p.requires_grad for p in model.parameters())
    assert clipping.clipped_sum.examples == 0
    record(clipping, token_losses(model, torch.randint(1, 7, (2, 4))), 2)


def test_b83_nothing_is_recorded_between_steps_or_without_gradients():
    model, ids = TokenNet(), torch.randint(1, 7, (3, 4))
    clipping = GhostClipping(model, 1.0)
    wanted = record(clipping, token_losses(model, ids), 3)
    model.eval()
    model(ids[:1])
    with torch.no_grad():
        model(ids)
    model.train()
    with clipping.record(3) as recording:
        with torch.no_grad():
            model(ids[:2])  # evaluation in between: another batch size, no gradient
        assert recording.holds_nothing
        recording.backward(token_losses(model, ids)(torch.arange(3)))
    torch.testing.assert_close(recording.per_example_norms, wanted)
    assert recording.holds_nothing


def test_b85_zero_grad_of_both_kinds_works():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    clipping = GhostClipping(model, 1.0)
    for set_to_none in (True, False):
        record(clipping, lambda index: model(torch.ones(2, 2)[index])[:, 0], 2)
        optimizer.zero_grad(set_to_none=set_to_none)
        model.zero_grad(set_to_none=set_to_none)


# ---- the bound holds under rounding -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_realised_contribution_exceeds_the_clipping_norm(dtype):
    """One example at a time, clipped alone: its norm in exact-enough arithmetic is at most C."""
    worst = 0.0
    for seed in range(20):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)
        clipping, x = GhostClipping(model, 0.1), torch.randn(1, 6, 8, dtype=dtype)
        record(clipping, lambda index, model=model, x=x: 100 * model(x[index]).sin().sum(dim=(1, 2)), 1)
        total = torch.cat([t.flatten() for _, t in clipping.take().spend().values()])
        worst = max(worst, float(total.double().norm()))
    assert 0.0999 < worst <= 0.1


def test_cancellation_in_float32_cannot_break_the_bound():
    """The ghost norm is a difference of large numbers here: without the error bound the contribution exceeds C."""
    model = nn.Linear(512, 600, bias=False)
    torch.manual_seed(1)
    a, g = torch.randn(1, 1, 512) * 1e3, torch.randn(1, 1, 600) * 1e3
    inputs = torch.cat([a, a + 1e-4 * torch.randn_like(a)], dim=1)
    upstream = torch.cat([g, -g], dim=1)
    part = OuterGradient(inputs, upstream)
    true_norm = float((upstream.double().mT @ inputs.double()).norm())
    assert abs(float(part.squared_norm().clamp(min=0).sqrt()) / true_norm - 1) > 0.1  # the trap is real
    clipping = GhostClipping(model, 1.0)
    record(clipping, lambda index: (model(inputs[index]) * upstream).sum(dim=(1, 2)), 1)
    assert float(clipping.clipped_sum.of("weight").double().norm()) <= 1.0


def test_clip_factors_at_the_edges():
    norms = torch.tensor([0.0, 0.5, 1.0, 4.0, math.inf, math.nan], dtype=torch.float64)
    margin = 1 + rounding_margin(torch.float64)
    wanted = torch.tensor([1.0, 1.0, 1 / margin, 0.25 / margin, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(clip_factors(norms, 1.0), wanted, rtol=1e-15, atol=0)
    assert float(clip_factors(norms, 1.0)[2]) < 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_example_with_a_non_finite_gradient_contributes_zero(bad):
    model, x = nn.Linear(2, 1), torch.tensor([[1.0, 2.0], [bad, 1.0], [3.0, 4.0]])
    with_it, without = GhostClipping(model, 1.0), GhostClipping(model, 1.0)
    record(with_it, lambda index: model(x[index])[:, 0], 3)
    record(without, lambda index: model(x[[0, 2]])[:, 0], 2)
    for name in ("weight", "bias"):
        torch.testing.assert_close(with_it.clipped_sum.of(name), without.clipped_sum.of(name))
        assert torch.isfinite(with_it.clipped_sum.of(name)).all()


# ---- refusals ---------------------------------------------------------------------------------------------------


def test_every_module_at_fault_is_listed_in_one_error():
    model = nn.ModuleDict(
        {
            "conv": nn.Conv1d(2, 2, 1),
            "batch_norm": nn.BatchNorm1d(2),
            "fine": nn.Linear(2, 2),
            "table": nn.Embedding(3, 2, max_norm=1.0),
            "frequency": nn.Embedding(3, 2, scale_grad_by_freq=True),
            "sparse": nn.Embedding(3, 2, sparse=True),
            "attention": nn.MultiheadAttention(2, 1),
        }
    )
    with pytest.raises(UnsupportedModelError) as caught:
        GhostClipping(model, 1.0, fallback=False)
    text = str(caught.value)
    for name in ("conv (Conv1d)", "batch_norm (BatchNorm1d)", "table", "frequency", "sparse", "attention (Multi"):
        assert name in text
    assert "fine" not in text
    assert len(caught.value.faults) == 6


def test_frozen_batch_norm_is_refused_too_and_frozen_unknown_layers_are_not():
    frozen = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).requires_grad_(False))
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d"):
        GhostClipping(frozen, 1.0)
    GhostClipping(nn.Sequential(nn.Conv1d(2, 2, 1).requires_grad_(False), nn.Linear(2, 2)), 1.0)
    with pytest.raises(ValueError, match="trainable parameters, got none"):
        GhostClipping(nn.Linear(2, 2).requires_grad_(False), 1.0)


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_base():
    class Scaled(nn.Linear):
        def forward(self, input):
            return 3 * super().forward(input)

    class Renamed(nn.Linear):
        pass

    with pytest.raises(UnsupportedModelError, match="Scaled"):
        GhostClipping(Scaled(2, 2), 1.0, fallback=False)
    GhostClipping(Renamed(2, 2), 1.0)
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x
    with pytest.raises(UnsupportedModelError, match="Linear"):
        GhostClipping(patched, 1.0, fallback=False)


def test_a_rule_of_ones_own_can_be_registered(exact):
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.offset = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return x + self.offset

    class ShiftRule(LayerRule):
        names = ("offset",)

        def needs_input(self, trainable):
            return False

        def gradients(self, module, inputs, output_grads, trainable):
            return {"offset": DenseGradient(output_grads.tensor)}

    model, x = Shift(), torch.randn(2, 3)
    clipping = GhostClipping(model, 1.0, rules={**LAYER_RULES, Shift: ShiftRule()})
    norms = record(clipping, lambda index: model(x[index]).sum(1), 2)
    torch.testing.assert_close(norms, torch.full((2,), math.sqrt(3)))


def test_a_parameter_used_outside_its_layer_is_refused_by_name():
    model, ids = TokenNet(), torch.randint(1, 7, (2, 4))
    clipping = GhostClipping(model, 1.0)
    hidden = lambda: model.norm(model.tokens(ids))  # noqa: E731
    with pytest.raises(UnsupportedUseError, match=r"tokens\.weight"), clipping.record(2) as recording:
        recording.backward(F.linear(hidden(), model.tokens.weight).sum(dim=(1, 2)))
    assert clipping.clipped_sum.examples == 0
    assert all(p.grad is None for p in model.parameters())


def test_an_input_changed_in_place_after_use_is_refused_by_name():
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.ones(3, 2)

    def losses(index):
        hidden = model[0](x[index]).detach()
        result = model[1](hidden).sum(1)
        hidden.add_(1)
        return result

    with pytest.raises(ValueError, match=r"^1: its input was changed in place"):
        record(GhostClipping(model, 1.0), losses, 3)


def test_a_buffer_written_in_the_forward_pass_is_refused_by_name():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("seen", torch.zeros(2))

    model, x = Counting(), torch.ones(3, 2)

    def losses(index):
        model.seen += x[index].mean(0)
        return model(x[index]).sum(1)

    with pytest.raises(ValueError, match="buffers seen"):
        record(GhostClipping(model, 1.0), losses, 3)


@pytest.mark.parametrize("reduction", [torch.mean, torch.sum])
def test_a_scalar_loss_is_refused_even_for_one_example(reduction):
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    for count in (1, 3):
        with (
            pytest.raises(ValueError, match=r"expected one loss per example"),
            GhostClipping(model, 1.0).record(count) as recording,
        ):
            recording.backward(reduction(model(x[:count])))


def test_record_without_backward_or_with_two_or_nested_is_refused():
    model, x = nn.Linear(2, 1), torch.ones(3, 2)
    clipping = GhostClipping(model, 1.0)
    with pytest.raises(RuntimeError, match="without backward"), clipping.record(3):
        model(x)
    with clipping.record(3) as recording:
        recording.backward(model(x)[:, 0])
        with pytest.raises(RuntimeError, match="once into each record"):
            recording.backward(model(x)[:, 0])
    with pytest.raises(RuntimeError, match="already open"), clipping.record(3), clipping.record(3):
        pass
    with pytest.raises(ValueError, match="empty logical batch"), clipping.record(0):
        pass


def test_ids_without_a_batch_axis_are_refused():
    """With as many positions as examples the two cannot be told apart, so one axis is never taken."""
    model, x = nn.ModuleDict({"wpe": nn.Embedding(4, 2)}), torch.zeros(4, 4, 2)
    with (
        pytest.raises(ValueError, match="the loss of one example depends on other examples at wpe"),
        GhostClipping(model, 1.0).record(4) as recording,
    ):
        recording.backward((x + model["wpe"](torch.arange(4))).sum(dim=(1, 2)))


def test_a_changed_set_of_trainable_parameters_is_refused():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    clipping = GhostClipping(model, 1.0)
    model[0].weight.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"0\.weight"), clipping.record(1):
        pass
    model[0].weight.requires_grad_(True)
    model[1] = nn.Linear(2, 1)
    with pytest.raises(RuntimeError, match=r"1\.weight"), clipping.record(1):
        pass


def test_a_deep_copy_of_a_recorded_model_trains_on_its_own():
    model, ids = TokenNet(), torch.randint(1, 7, (2, 4))
    wanted = record(GhostClipping(model, 1.0), token_losses(model, ids), 2)
    twin = copy.deepcopy(model)
    torch.testing.assert_close(record(GhostClipping(twin, 1.0), token_losses(twin, ids), 2), wanted)
