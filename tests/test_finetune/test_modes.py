"""Flat, automatic, per-layer and group-wise clipping: factors, sensitivity, noise; diagnostics off by default."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_zoo import build, data, losses_of
from optnoise.accounting import epsilon
from optnoise.finetune import Automatic, Flat, GhostClipping, GroupWise, PerLayer, make_private
from optnoise.finetune.modes import sensitivity
from optnoise.mechanisms import Gaussian
from torch import nn

SIZES = {"a.weight": 12, "a.bias": 3, "b.weight": 6, "head.weight": 2000}
NOISES = ["global", "equal_budget", "least_energy"]


def clipped(model, mode, losses, count):
    clipping = GhostClipping(model, mode)
    with clipping.record(count) as recording:
        recording.backward(losses(torch.arange(count)))
    return clipping, {name: total for name, (_, total) in clipping.take().spend().items()}


def reference(gradients, groups, factor):
    """Σ_i factor(norm within the group)·gradient, from one-example gradients."""
    sums = {}
    for group in groups:
        for name in group.names:
            sums[name] = 0
        for each in gradients:
            norm = math.sqrt(sum(float(each[name].square().sum()) for name in group.names))
            for name in group.names:
                sums[name] = sums[name] + factor(norm, group.clipping_norm) * each[name]
    return sums


def assert_sums(found, wanted):
    for name, total in wanted.items():
        torch.testing.assert_close(found[name], total, rtol=1e-9, atol=1e-11)


def clip(norm, bound):
    return min(1.0, bound / norm) if norm else 1.0


@pytest.mark.parametrize("family", ["roberta", "gpt2", "llama-tied"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_every_mode_is_exact_on_the_fly(per_example, family, checkpointed):
    model, batch = build(family), data(family, 5)
    losses = losses_of(model, family, batch)
    gradients = per_example(model, losses, 5)
    if checkpointed:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    stem = {"roberta": "roberta.encoder", "gpt2": "transformer.h", "llama-tied": "model.layers"}[family]
    modes = [Flat(0.5), PerLayer(0.8, "dimension"), PerLayer(0.8), GroupWise({f"{stem}": 0.3, "": 0.4})]
    for mode in modes:
        clipping, found = clipped(model, mode, losses, 5)
        assert_sums(found, reference(gradients, clipping.groups, clip))
    clipping, found = clipped(model, Automatic(0.5, stability=0.02), losses, 5)
    assert_sums(found, reference(gradients, clipping.groups, lambda norm, bound: bound / (norm + 0.02)))


def test_groups_are_released_during_the_backward_pass():
    model, x = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]), torch.randn(6, 2, 4)
    clipping = GhostClipping(model, PerLayer(1.0))
    clipping.probed = {(layer.label, square) for layer in clipping.layers for square in (False, True)}
    waiting = []
    with clipping.record(6) as recording:
        hidden = model[0](x)
        hidden.register_hook(lambda gradient: waiting.append(len(recording._accounts)))
        recording.backward(model[2](model[1](hidden)).sum(dim=(1, 2)))
    assert waiting[0] <= 2  # of the last layer at most, never of all three


@pytest.mark.parametrize("noise", NOISES)
@given(norms=st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3))
def test_noise_scales_spend_exactly_one_unit_of_sensitivity(noise, norms):
    mode = GroupWise(dict(zip(["a", "b", "head"], norms, strict=True)), noise=noise)
    groups = mode.groups(SIZES)
    spent = math.fsum((group.clipping_norm / group.noise_scale) ** 2 for group in groups)
    assert 1 - 1e-12 < spent <= 1
    assert sensitivity(groups) == pytest.approx(math.hypot(*norms))


def test_least_energy_is_the_least():
    def energy(noise):
        groups = GroupWise({"a": 1.0, "b": 0.5, "head": 2.0}, noise=noise).groups(SIZES)
        return sum(group.noise_scale**2 * sum(SIZES[name] for name in group.names) for group in groups)

    assert energy("least_energy") < min(energy("global"), energy("equal_budget"))


def test_the_longest_prefix_decides_and_every_parameter_is_held_once():
    groups = GroupWise({"": 1.0, "a": 2.0, "a.bias": 3.0}).groups(SIZES)
    assert {group.names: group.clipping_norm for group in groups} == {
        ("b.weight", "head.weight"): 1.0,
        ("a.weight",): 2.0,
        ("a.bias",): 3.0,
    }


@pytest.mark.parametrize("mode", [Flat(0.05), Automatic(0.05), PerLayer(0.05), GroupWise({"transformer": 0.05})])
def test_no_contribution_exceeds_the_joint_bound(mode):
    model, batch = build("gpt2").float(), data("gpt2", 4)
    for index in range(4):
        clipping, found = clipped(model, mode, lambda _, i=index: losses_of(model, "gpt2", batch)(torch.tensor([i])), 1)
        total = math.sqrt(sum(float(part.double().square().sum()) for part in found.values()))
        assert 0.9 * 0.05 < total <= clipping.clipping_norm <= 0.05 * (1 + 1e-12)


@pytest.mark.parametrize("stability", [0.0, 0.01])
def test_a_zero_gradient_under_automatic_clipping_stays_zero(stability):
    model, x = nn.Linear(3, 1), torch.ones(2, 3)
    _, found = clipped(model, Automatic(1.0, stability), lambda index: 0 * model(x[index])[:, 0], 2)
    assert all(float(total.abs().max()) == 0 for total in found.values())


@pytest.mark.parametrize("noise", NOISES)
def test_noise_of_a_step_follows_the_allocation_and_the_ledger_holds_the_joint_bound(noise):
    model = nn.ModuleDict({"a": nn.Linear(20_000, 1, bias=False), "b": nn.Linear(5_000, 1, bias=False)})
    mode = GroupWise({"a": 3.0, "b": 4.0}, noise=noise)
    training = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        mechanism=Gaussian(0.7),
        clipping_norm=mode,
        dataset_size=10,
        sampling_rate=1e-12,
        divisor=2.0,
        seed=1,
    )
    training.next_batch()
    training.step()
    scales = dict(zip("ab", [g.noise_scale for g in mode.groups({"a.weight": 20_000, "b.weight": 5_000})], strict=True))
    for name, scale in scales.items():
        deviation = float(model[name].weight.grad.std())
        assert deviation == pytest.approx(0.7 * scale / 2, rel=0.05)
    assert training.clipping_norm == pytest.approx(5.0)
    wanted = epsilon(Gaussian(0.7), delta=1e-5, steps=1, sampling_rate=1e-12)
    assert training.epsilon(delta=1e-5).upper == pytest.approx(wanted.upper, abs=1e-9)


@pytest.mark.parametrize(
    ("build_mode", "match"),
    [
        (lambda: Flat(0.0), "clipping_norm"),
        (lambda: Automatic(1.0, -1.0), "stability"),
        (lambda: Automatic(1.0, math.nan), "stability"),
        (lambda: PerLayer(math.inf), "clipping_norm"),
        (lambda: PerLayer(1.0, "some"), "allocation"),
        (lambda: GroupWise({}), "at least one group"),
        (lambda: GroupWise({"a": -1.0}), r"clipping_norms\['a'\]"),
        (lambda: GroupWise({"a": 1.0}, noise="none"), "noise"),
        (lambda: GroupWise({"a": 1.0}).groups(SIZES), r"no group holds .* b\.weight"),
        (lambda: GroupWise({"": 1.0, "zzz": 1.0}).groups(SIZES), "hold no trainable parameter"),
    ],
)
def test_bad_modes_are_named(build_mode, match):
    with pytest.raises(ValueError, match=match):
        build_mode()


def test_diagnostics_are_off_by_default_and_labelled():
    model, batch = build("roberta"), data("roberta", 6)
    losses = losses_of(model, "roberta", batch)
    with pytest.raises(RuntimeError, match="not private"):
        GhostClipping(model, 1.0).non_private_diagnostics()
    clipping = GhostClipping(model, 1e-3, diagnostics=True)
    with clipping.record(6) as recording:
        recording.backward(losses(torch.arange(6)))
    norms = recording.per_example_norms
    figures = clipping.non_private_diagnostics((0.0, 0.5, 1.0))
    assert figures.examples == 6
    assert figures.clipped_fraction == 1.0
    wanted = torch.quantile(norms, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)).tolist()
    assert list(figures.quantiles.values()) == pytest.approx(wanted)
    assert str(figures).startswith("NOT PRIVATE")
    assert clipping.non_private_diagnostics().examples == 0
