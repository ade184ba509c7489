"""RoBERTa, BERT, GPT-2 and Llama: exact against one example at a time, whatever part of them is trained, and whatever
stands around them: checkpointing, autocast, compilation, generation, copies."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_zoo import FAMILIES, PARTS, build, data, losses_of, train_part, with_adapters
from optnoise.finetune import GhostClipping, causal_lm_losses, make_private
from optnoise.mechanisms import Gaussian
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def clipped(model, losses, count, clipping_norm=1e9):
    """Norms and clipped sums of one microbatch."""
    clipping = GhostClipping(model, clipping_norm)
    with clipping.record(count) as recording:
        recording.backward(losses(torch.arange(count)))
    return recording.per_example_norms, {name: total for name, (_, total) in clipping.take().spend().items()}


def assert_same(found, wanted, tolerance=1e-10):
    torch.testing.assert_close(found[0], wanted[0], rtol=tolerance, atol=0)
    scale = float(torch.stack([total.norm() for total in wanted[1].values()]).norm())
    for name, total in wanted[1].items():
        assert float((found[1][name] - total).norm()) <= tolerance * scale, name


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_norms_and_clipped_sums_are_exact(exact, family, part):
    model = train_part(build(family), part)
    exact(model, losses_of(model, family, data(family, 7)), 7, splits=(1, 2, 7))


@settings(max_examples=12)
@given(
    family=st.sampled_from(FAMILIES),
    part=st.sampled_from(PARTS),
    examples=st.integers(1, 6),
    length=st.integers(2, 18),
    seed=st.integers(0, 2**16),
)
def test_any_batch_is_exact(exact, family, part, examples, length, seed):
    model = train_part(build(family), part)
    exact(model, losses_of(model, family, data(family, examples, seed=seed, length=length)), examples)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_models_own_forward_stays_causal(family, attention):
    """A peer replaces GPT-2's forward, which then looks ahead under SDPA with a mask. Ours is never replaced."""
    model, batch = build(family, attention=attention), data(family, 3)
    clipping = GhostClipping(model, 1.0)
    logits = {}
    for change in (0, 1):
        ids = batch["ids"].clone()
        ids[:, -1] = 3 + change
        with clipping.record(3) as recording:
            output = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            recording.backward(causal_lm_losses(output, ids))
        logits[change] = output.detach()
    assert torch.equal(logits[0][:, :-1], logits[1][:, :-1])
    assert not torch.equal(logits[0][:, -1], logits[1][:, -1])


def test_autograd_computes_no_weight_gradient():
    """Flops until the clip factors are known: forward F; backward F for input gradients alone (2F with weight
    gradients; half of it here, since the model's input needs none); the norms' Gram matrices, small for T = 4."""
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    clipping, x = GhostClipping(model, 1.0), torch.randn(8, 4, 64)
    clipping.probed = {(layer.label, square) for layer in clipping.layers for square in (False, True)}
    forward = 2 * 8 * 4 * 2 * 64 * 256
    with FlopCounterMode(display=False) as counter, clipping.record(8) as recording:
        losses = model(x).square().sum(dim=(1, 2))
        assert counter.get_total_flops() == forward
        recording.backward(losses)
        gram = 2 * 8 * 4 * 4 * 2 * (64 + 256)
        assert counter.get_total_flops() == forward + forward // 2 + gram


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("family", ["roberta", "gpt2", "llama-tied"])
def test_gradient_checkpointing_changes_nothing(family, reentrant):
    model, batch = build(family), data(family, 5)
    wanted = clipped(model, losses_of(model, family, batch), 5)
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    assert_same(clipped(model, losses_of(model, family, batch), 5), wanted)


def test_checkpointed_adapters_without_input_gradients_are_refused_or_exact():
    """Reentrant checkpointing of a frozen base gives its adapters no gradient at all: refused, never dropped."""
    base = build("llama")
    model, batch = with_adapters(base), data("llama", 4)
    wanted = clipped(model, losses_of(model, "llama", batch), 4)
    base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    assert_same(clipped(model, losses_of(model, "llama", batch), 4), wanted)
    base.activation_checkpointing_disable()
    base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    assert_same(clipped(model, losses_of(model, "llama", batch), 4), wanted)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_layers_that_ran_without_gradients_only_are_refused():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.high(torch.utils.checkpoint.checkpoint(self.low, x, use_reentrant=True))

    model, x = Block(), torch.randn(4, 3)
    with pytest.raises(ValueError, match="low ran without gradients only"):
        clipped(model, lambda index: model(x[index])[:, 0], 4)


def test_recorded_inputs_are_saved_as_autograd_saves_tensors(exact):
    """So checkpointing and offloading see them: nothing else keeps them between forward and backward."""
    model, x = nn.Sequential(*[nn.Linear(5, 5) for _ in range(3)]).double(), torch.randn(4, 2, 5, dtype=torch.float64)
    wanted = clipped(model, lambda index: model(x[index]).sin().sum(dim=(1, 2)), 4)
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.numpy().copy()

    def losses(index):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: packed.append(t.shape) or t.numpy().copy(), torch.tensor
        ):
            return model(x[index]).sin().sum(dim=(1, 2))

    assert_same(clipped(model, losses, 4), wanted)
    assert packed.count(torch.Size([4, 2, 5])) >= 3


@pytest.mark.parametrize("family", ["roberta", "gpt2", "llama"])
def test_b65_bfloat16_autocast_keeps_the_bound_and_is_near_float32(family):
    model, batch = build(family).float(), data(family, 4)
    plain = losses_of(model, family, batch)

    def losses(index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return plain(index).float()

    wanted, _ = clipped(model, plain, 4)
    found, sums = clipped(model, losses, 4)
    assert all(total.dtype == torch.float32 for total in sums.values())
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0)
    assert realised(model, losses, 4, 0.01) <= 0.01


def realised(model, losses, count, clipping_norm):
    """The largest norm, in float64, that one example's clipped gradient has alone in a sum."""
    clipping, largest = GhostClipping(model, clipping_norm), 0.0
    for index in range(count):
        with clipping.record(1) as recording:
            recording.backward(losses(torch.tensor([index])))
        total = torch.cat([t.flatten().double() for _, t in clipping.take().spend().values()])
        largest = max(largest, float(total.norm()))
    return largest


@pytest.mark.parametrize("family", FAMILIES)
def test_no_realised_contribution_exceeds_the_bound_in_float32(family):
    model, batch = build(family).float(), data(family, 6)
    worst = realised(model, losses_of(model, family, batch), 6, 0.03)
    assert 0.97 * 0.03 < worst <= 0.03


def test_bfloat16_parameters_are_summed_in_float32():
    model, batch = build("llama").bfloat16(), data("llama", 4)
    losses = losses_of(model, "llama", batch)
    norms, sums = clipped(model, losses, 4)
    assert norms.dtype == torch.float32
    assert all(total.dtype == torch.float32 for total in sums.values())
    assert realised(model, losses, 4, 0.01) <= 0.01


def test_products_in_lower_precision_are_not_used_for_norms():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        from optnoise.finetune.arithmetic import plain_arithmetic

        with plain_arithmetic():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "medium"
        model, batch = build("gpt2").float(), data("gpt2", 4)
        assert realised(model, losses_of(model, "gpt2", batch), 4, 0.03) <= 0.03
    finally:
        torch.set_float32_matmul_precision(before)


def test_the_clipping_step_works_on_a_compiled_model():
    """Compiled before or after: `record` runs it eagerly, evaluation uses the compiled code, names stay plain."""
    model, batch = build("roberta"), data("roberta", 4)
    wanted = clipped(model, losses_of(model, "roberta", batch), 4)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        before = compiled(input_ids=batch["ids"], attention_mask=batch["mask"]).logits
    found = clipped(compiled, losses_of(compiled, "roberta", batch), 4)
    assert_same(found, wanted)
    assert not any(name.startswith("_orig_mod") for name in found[1])
    with torch.no_grad():
        torch.testing.assert_close(compiled(input_ids=batch["ids"], attention_mask=batch["mask"]).logits, before)
    assert_same(clipped(model, losses_of(compiled, "roberta", batch), 4), wanted)


def test_b83_generation_between_microbatches_keeps_nothing():
    model, batch = build("llama"), data("llama", 3)
    losses = losses_of(model, "llama", batch)
    wanted = clipped(model, losses, 3)
    with torch.no_grad():
        model.eval()
        model.generate(batch["ids"][:1], max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    model.train()
    assert_same(clipped(model, losses, 3), wanted)


@pytest.mark.parametrize("family", ["gpt2", "llama-tied"])
def test_b73_copies_pickles_and_state_dicts_after_a_step(family):
    model, batch = build(family), data(family, 3)
    names = list(model.state_dict())
    wanted = clipped(model, losses_of(model, family, batch), 3)
    assert list(model.state_dict()) == names
    copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for twin in (copied, pickled):
        assert_same(clipped(twin, losses_of(twin, family, batch), 3), wanted)
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    build(family).load_state_dict(torch.load(saved), strict=True)


def test_parameters_require_gradients_as_the_user_set_it_outside_the_layers():
    model, batch = build("gpt2"), data("gpt2", 3)
    model.transformer.h[0].requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    clipping = GhostClipping(model, 1.0)
    with clipping.record(3) as recording:
        assert {name: p.requires_grad for name, p in model.named_parameters()} == before
        losses = losses_of(model, "gpt2", batch)(torch.arange(3))
        assert {name: p.requires_grad for name, p in model.named_parameters()} == before
        recording.backward(losses)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before


def test_several_adapters_of_which_one_is_trained(exact):
    import peft

    model = with_adapters(build("llama"))
    model.add_adapter("second", peft.LoraConfig(r=3, target_modules=["q_proj"]))
    model.double()
    for name, parameter in model.named_parameters():
        if "second" in name:
            nn.init.normal_(parameter, std=0.4)
    exact(model, losses_of(model, "llama", data("llama", 4)), 4)
    model.set_adapter("second")
    assert all("second" in name for name in GhostClipping(model, 1.0).parameters)
    exact(model, losses_of(model, "llama", data("llama", 4)), 4)


def test_adapter_dropout_is_the_gradient_of_the_masks_that_were_drawn():
    """The same seed, so the same masks: clipping at infinity gives autograd's own gradient."""
    model, batch = with_adapters(build("roberta"), dropout=0.5), data("roberta", 4)
    losses, index = losses_of(model, "roberta", batch), torch.arange(4)
    torch.manual_seed(7)
    losses(index).sum().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    clipping = GhostClipping(model, 1e9)
    torch.manual_seed(7)
    with clipping.record(4) as recording:
        recording.backward(losses(index))
    for name, gradient in wanted.items():
        torch.testing.assert_close(clipping.clipped_sum.of(name), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["wrap-and-cast", "cast-wrap-move-and-cast"])
def test_b60_adapters_move_by_the_learning_rate_in_every_order(order):
    model = build("gpt2").float()
    model = (
        with_adapters(model).float() if order == "wrap-and-cast" else with_adapters(model.double()).to("cpu").float()
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.zeros_(parameter)
    trained = [p for p in model.parameters() if p.requires_grad]
    before = {n: p.detach().clone() for n, p in model.named_parameters() if "lora_B" in n}
    training = make_private(
        model,
        torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0),
        mechanism=Gaussian(0.1),
        clipping_norm=1.0,
        dataset_size=4,
        sampling_rate=1.0,
        divisor=4.0,
        seed=0,
    )
    training.next_batch()
    with training.record(4) as recording:
        recording.backward(losses_of(model, "gpt2", data("gpt2", 4))(torch.arange(4)))
    training.step()
    after = dict(model.named_parameters())
    moves = [float((after[name].detach() - value).abs().max()) for name, value in before.items()]
    assert all(move == pytest.approx(1e-4, rel=0.05) for move in moves)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_gives_the_same_sums(family):
    model, batch = build(family), data(family, 5)
    wanted = clipped(model, losses_of(model, family, batch), 5)
    model.cuda()
    moved = {name: tensor.cuda() for name, tensor in batch.items()}
    found = clipped(model, losses_of(model, family, moved), 5)
    assert_same((found[0].cpu(), {name: total.cpu() for name, total in found[1].items()}), wanted, 1e-9)
