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
    from optnoise.finetune.runner import _Run

    class Stub:
        def __init__(self, seeded):
            self.seeded = seeded

        def _seeded(self):
            return self.seeded

        class recipe:
            class runtime:
                initial_seed = 0

    def mask(seeded):
        _Run._seed_dropout(Stub(seeded))
        return functional.dropout(torch.ones(200), 0.5)

    assert not torch.equal(mask(seeded=False), mask(seeded=False))
    assert torch.equal(mask(seeded=True), mask(seeded=True))
