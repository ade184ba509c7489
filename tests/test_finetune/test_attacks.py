"""Found by attack: ways to make one record count for more than C, or the ledger for less than it should."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from optnoise.finetune import GhostClipping, make_private
from optnoise.mechanisms import Gaussian
from torch import nn


def clipped_sum(model, clipping_norm, losses, count):
    """The noiseless clipped sum of one microbatch, all parameters in one vector."""
    clipping = GhostClipping(model, clipping_norm)
    with clipping.record(count) as recording:
        recording.backward(losses())
    return torch.cat([clipping.clipped_sum.of(name).flatten() for name in clipping.parameters])


@pytest.mark.parametrize(
    "forward",
    [
        lambda model, x: model(x.transpose(0, 1)).sum(dim=0)[:, 0],  # sequence first, as many positions as examples
        lambda model, x: (model(x) - model(x).mean(dim=0)).sum(dim=(1, 2)),  # the batch's mean
        lambda model, x: model(x).roll(1, dims=0).mul(model(x)).sum(dim=(1, 2)),  # in-batch contrast
    ],
    ids=["sequence-first", "batch-mean", "contrast"],
)
def test_losses_that_mix_examples_are_refused(forward):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(6, 6, 3)
    clipping = GhostClipping(model, 1.0)
    with pytest.raises(ValueError, match="depends on other examples"), clipping.record(6) as recording:
        recording.backward(forward(model, x))
    assert clipping.clipped_sum.examples == 0


def test_a_square_microbatch_is_probed_even_after_others():
    """Positions first: refused by shape while T differs from B, by the probe once they agree."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    clipping = GhostClipping(model, 1.0)
    with clipping.record(4) as recording:
        recording.backward(model(torch.randn(4, 3)).sum(dim=1))
    x = torch.randn(5, 5, 3)
    with pytest.raises(ValueError, match="depends on other examples"), clipping.record(5) as recording:
        recording.backward(model(x.transpose(0, 1)).sum(dim=(0, 2)))


def test_one_row_of_floats_is_not_shared_by_all():
    """(1, B, d) would be clipped as one example: the sum could move by 2C."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.raises(ValueError, match="on the first axis"), GhostClipping(model, 1.0).record(4) as recording:
        recording.backward(model(x[None])[0].sum(dim=1))


def test_autocast_around_backward_does_not_lower_the_precision_of_norms():
    torch.manual_seed(0)
    common = torch.randn(1, 1, 64)
    x = common + 0.05 * torch.randn(1, 32, 64)
    weight = torch.randn(32, 8)
    weight = weight - weight.mean(dim=0)
    model = nn.Linear(64, 8, bias=False)
    clipping = GhostClipping(model, 1e-3)
    with clipping.record(1) as recording, torch.autocast("cpu", dtype=torch.bfloat16):
        recording.backward((model(x).float() * weight).sum(dim=(1, 2)))
    assert float(clipping.clipped_sum.of("weight").norm()) <= 1e-3


@pytest.mark.parametrize(
    ("size", "scale", "clipping_norm"), [(2e-23, 1.8e19, 0.1), (1e-12, 1e-12, 1e-24), (1.0, 1e-23, 1e-24)]
)
def test_underflow_never_leaves_a_gradient_unclipped(size, scale, clipping_norm):
    model = nn.Linear(100, 64, bias=False)
    x = torch.full((1, 60, 100), size)
    total = clipped_sum(model, clipping_norm, lambda: (model(x) * scale).sum(dim=(1, 2)), 1)
    assert float(total.double().norm()) <= clipping_norm


def test_many_tiny_terms_cannot_add_up_past_the_bound():
    """One position with gradient 1 and many just below its rounding unit: worst-case, not random, rounding."""
    count, unit = 65_537, 0.9 * 2.0**-24
    model = nn.Embedding(1, 1)
    weights = torch.full((1, count), unit)
    weights[0, 0] = 1.0
    total = clipped_sum(
        model, 0.99, lambda: (model(torch.zeros(1, count, dtype=torch.long))[..., 0] * weights).sum(dim=1), 1
    )
    assert 0.95 <= float(total[0]) <= 0.99


def test_a_failed_block_leaves_nothing_in_the_sum():
    model, x = nn.Linear(2, 1, bias=False), torch.ones(4, 2)
    clipping = GhostClipping(model, 1.0)

    def fail_after_backward():
        with clipping.record(4) as recording:
            recording.backward(model(x)[:, 0])
            opened.append(recording)
            raise KeyError

    opened = []
    with pytest.raises(KeyError):
        fail_after_backward()
    (recording,) = opened
    assert clipping.clipped_sum.examples == 0
    assert float(clipping.clipped_sum.of("weight").norm()) == 0
    with pytest.raises(RuntimeError, match="inside it"):
        recording.backward(model(x)[:, 0])


def test_rebound_buffers_are_noticed():
    class Tracking(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0).detach()
            return self.linear(x)

    model = Tracking()
    clipping = GhostClipping(model, 1.0)
    with pytest.raises(ValueError, match="buffers mean"), clipping.record(3) as recording:
        recording.backward(model(torch.ones(3, 2))[:, 0])
    assert clipping.clipped_sum.examples == 0


def test_a_users_forward_hook_does_not_change_the_gradient():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1, bias=False), torch.randn(2, 3)
    model.register_forward_hook(lambda module, args, output: output * 3)
    total = clipped_sum(model, 1e6, lambda: model(x)[:, 0], 2)
    torch.testing.assert_close(total, 3 * x.sum(dim=0))


def test_frozen_parameters_with_a_gradient_are_not_stepped():
    """A stale gradient of a frozen layer that the optimizer holds would be applied without noise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    x, y = torch.randn(8, 3), torch.randint(0, 2, (8,))
    functional.cross_entropy(model(x), y).backward()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    training = make_private(
        model, optimizer, mechanism=Gaussian(1.0), clipping_norm=1.0, dataset_size=8, sampling_rate=1.0, divisor=8.0
    )
    before = model[0].weight.detach().clone()
    batch = training.next_batch()
    with training.record(len(batch)) as recording:
        recording.backward(functional.cross_entropy(model(x[batch.indices]), y[batch.indices], reduction="none"))
    with pytest.raises(ValueError, match="frozen parameters with a gradient"):
        training.step()
    assert training.ledger.steps == 0
    optimizer.zero_grad(set_to_none=True)
    training.step()
    assert torch.equal(model[0].weight, before)


def test_dropout_masks_of_a_private_run_are_not_public():
    """With known masks a record that joins a batch changes the masks of all: two private runs must differ."""
    from optnoise.finetune.trainer_run import _make_masks_secret

    def mask():
        torch.manual_seed(0)  # what a script's own seed would give
        _make_masks_secret()
        return functional.dropout(torch.ones(200), 0.5)

    assert not torch.equal(mask(), mask())


def test_every_pair_of_examples_is_probed():
    """The first example's loss stands alone here; the others read their predecessors."""
    torch.manual_seed(0)
    for forward in (
        lambda model, x: model(x).sum(dim=1).cumsum(dim=0),
        lambda model, x: model(x).sum(dim=1) + torch.cat([torch.zeros(5), model(x)[4:5].sum(dim=1)]),
    ):
        model, x = nn.Linear(3, 2), torch.randn(6, 3)
        clipping = GhostClipping(model, 1.0)
        with pytest.raises(ValueError, match="depends on other examples"), clipping.record(6) as recording:
            recording.backward(forward(model, x))


def test_a_bad_example_does_not_settle_the_probe():
    """NaN in the first microbatch: what should be zero cannot be told, so the next one is probed as well."""
    model = nn.Linear(3, 2)
    clipping, x = GhostClipping(model, 1.0), torch.randn(4, 3)
    with clipping.record(4) as recording:
        recording.backward(torch.stack([torch.tensor(float("nan")) * model(x)[0].sum(), *model(x)[1:].sum(dim=1)]))
    with pytest.raises(ValueError, match="depends on other examples"), clipping.record(4) as recording:
        recording.backward((model(x) - model(x).mean(dim=0)).sum(dim=1).square())


def test_a_backward_pass_of_the_users_own_is_refused():
    model, x = nn.Linear(3, 1), torch.randn(4, 3)
    clipping = GhostClipping(model, 1.0)
    with pytest.raises(RuntimeError, match=r"only recording\.backward"), clipping.record(4):
        model(x).sum().backward()
    assert clipping.clipped_sum.examples == 0


def test_a_second_backward_after_a_failed_one_is_refused():
    """Half of the norms would be counted twice, or not at all."""
    model, x = nn.Linear(3, 1), torch.randn(4, 3)
    clipping = GhostClipping(model, 1.0)

    def twice():
        with clipping.record(4) as recording:
            losses = model(x)[:, 0]
            x.add_(1.0)
            with pytest.raises(ValueError, match="changed in place"):
                recording.backward(losses)
            with pytest.raises(RuntimeError, match="once into each record"):
                recording.backward(model(x)[:, 0])

    with pytest.raises(RuntimeError, match="without backward"):
        twice()
    assert clipping.clipped_sum.examples == 0


def test_a_tensor_changed_between_norm_and_sum_is_refused():
    """The norm would be of the old numbers, the contribution of the new ones."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    clipping, x = GhostClipping(model, 1e-3), torch.randn(4, 3, 64)

    def change_after_backward():
        with clipping.record(4) as recording:
            recording.backward(model(x).sum(dim=(1, 2)))
            x.mul_(1e6)

    with pytest.raises(ValueError, match="changed in place"):
        change_after_backward()
    with pytest.raises(RuntimeError, match="failed half way"):
        clipping.take().spend()


def test_a_wrong_rule_is_caught_by_shape():
    from optnoise.finetune import LAYER_RULES, LayerRule
    from optnoise.finetune.factored import DenseGradient

    class OneForAll(LayerRule):
        def needs_input(self, trainable):
            return False

        def gradients(self, module, inputs, output_grads, trainable):
            return {"weight": DenseGradient(output_grads.tensor.sum(dim=0, keepdim=True))}

    model, x = nn.Linear(1, 2, bias=False), torch.randn(4, 1)
    clipping = GhostClipping(model, 1.0, rules={**LAYER_RULES, nn.Linear: OneForAll()})
    with (
        pytest.raises(ValueError, match="expected 4 gradients of 2 elements, got 1 of 2"),
        clipping.record(4) as recording,
    ):
        recording.backward(model(x).sum(dim=1))


def causal_model():
    from model_zoo import build, data

    model, batch = build("gpt2"), data("gpt2", 4)
    batch["labels"][1:, 3:] = -100  # unequal numbers of valid tokens
    return model, batch


def test_a_causal_loss_over_the_batchs_tokens_is_detected():
    """One more example would change the scale of all: the sum moves by more than C."""
    from model_zoo import losses_of
    from optnoise.finetune import check_losses_are_per_example

    model, batch = causal_model()

    def over_the_batch(index):
        logits = model(input_ids=batch["ids"][index], attention_mask=batch["mask"][index]).logits[:, :-1]
        labels = batch["labels"][index, 1:]
        losses = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
        return losses.sum(dim=1) / (labels != -100).sum()

    with pytest.raises(ValueError, match="changes when other examples leave"):
        check_losses_are_per_example(model, over_the_batch, 4)
    check_losses_are_per_example(model, losses_of(model, "gpt2", batch), 4)
    sums = []
    for count in (3, 4):
        clipping = GhostClipping(model, 1.0)
        with clipping.record(count) as recording:
            recording.backward(over_the_batch(torch.arange(4)[4 - count :]))
        sums.append(torch.cat([clipping.clipped_sum.of(name).flatten() for name in clipping.parameters]))
    assert float((sums[1] - sums[0]).norm()) > 1.05  # the harm is real


def test_the_scalar_loss_of_a_transformers_model_is_refused():
    model, batch = causal_model()
    clipping = GhostClipping(model, 1.0)
    with pytest.raises(ValueError, match=r"got shape \(\)"), clipping.record(4) as recording:
        recording.backward(model(input_ids=batch["ids"], labels=batch["labels"]).loss)


@pytest.mark.parametrize("over_tokens", ["mean", "sum"])
def test_b43_causal_losses_count_the_examples_own_labels_only(over_tokens):
    from optnoise.finetune import causal_lm_losses

    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 7, dtype=torch.float64), torch.randint(0, 7, (3, 5))
    labels[0, 2:], labels[1, :] = -100, -100
    found = causal_lm_losses(logits, labels, over_tokens=over_tokens)
    for row in range(3):
        wanted = functional.cross_entropy(logits[row, :-1], labels[row, 1:], ignore_index=-100, reduction=over_tokens)
        torch.testing.assert_close(found[row], wanted.nan_to_num(0.0))


@pytest.mark.parametrize("size", [1e-30, 1e-19, 1e-12, 1.0, 1e12])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 40, 4, 3), (1, 6, 8, 8)], ids=["ghost", "instantiated", "one"])
def test_contributions_stay_below_any_bound_at_any_scale(size, shape):
    """One example in turn is large, the rest tiny; C far below and far above what float32 squares can hold."""
    torch.manual_seed(0)
    batch, length, width, out = shape
    for clipping_norm in (1e-30, 1e-15, 1e-3, 10.0):
        model = nn.Linear(width, out)
        clipping, x = GhostClipping(model, clipping_norm), torch.randn(batch, length, width) * size
        x[1:] = 0
        upstream = torch.randn(batch, length, out) * size
        with clipping.record(batch) as recording:
            recording.backward((model(x) * upstream).sum(dim=(1, 2)) * (torch.arange(batch) == 0))
        total = torch.cat([clipping.clipped_sum.of(name).flatten() for name in clipping.parameters])
        assert float(total.double().norm()) <= clipping_norm


def test_a_layer_that_runs_later_is_probed_then():
    torch.manual_seed(0)
    model, x = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(2, 2)}), torch.randn(4, 3)
    clipping = GhostClipping(model, 1.0)
    with clipping.record(4) as recording:
        recording.backward(model["a"](x).sum(dim=1))
    centred = lambda hidden: hidden - hidden.mean(dim=0)  # noqa: E731
    with pytest.raises(ValueError, match="depends on other examples at a, b"), clipping.record(4) as recording:
        recording.backward(centred(model["b"](model["a"](x))).square().sum(dim=1))


@pytest.mark.parametrize("count", [1, 4])
def test_autocast_around_the_whole_block_does_not_lower_the_precision_of_sums(count):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    clipping, x = GhostClipping(model, 1e-3), torch.randn(count, 2, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16), clipping.record(count) as recording:
        recording.backward(model(x).float().square().sum(dim=(1, 2)) * (torch.arange(count) == 0))
    total = torch.cat([clipping.clipped_sum.of(name).flatten() for name in clipping.parameters])
    assert 0.95e-3 < float(total.double().norm()) <= 1e-3


class Gated(nn.Module):
    """Mixes the examples through a gate that starts at zero, and in train mode only if asked to."""

    def __init__(self, *, gate, training_only):
        super().__init__()
        self.below, self.gate, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 1)
        nn.init.constant_(self.gate.weight, gate)
        self.training_only = training_only

    def forward(self, x):
        hidden = self.below(x)
        mixed = self.training or not self.training_only
        company = hidden.mean(dim=0, keepdim=True).expand_as(hidden) if mixed else hidden
        hidden = hidden + self.gate(company)  # the layers that run are the same in both modes
        return self.head(hidden).square().sum(dim=1)


def test_a_gate_that_starts_at_zero_is_probed_after_the_first_step():
    torch.manual_seed(0)
    model, x = Gated(gate=0.0, training_only=False), torch.randn(4, 4)
    clipping = GhostClipping(model, 1.0)
    with clipping.record(4) as recording:
        recording.backward(model(x))
    nn.init.normal_(model.gate.weight)  # a step: noise moves every parameter
    with pytest.raises(ValueError, match="depends on other examples"), clipping.record(4) as recording:
        recording.backward(model(x))


def test_train_mode_is_probed_after_eval_mode():
    torch.manual_seed(0)
    model, x = Gated(gate=0.5, training_only=True).eval(), torch.randn(4, 4)
    clipping = GhostClipping(model, 1.0)
    with clipping.record(4) as recording:
        recording.backward(model(x))
    model.train()
    with pytest.raises(ValueError, match="depends on other examples"), clipping.record(4) as recording:
        recording.backward(model(x))
