"""The parts of zeroth-order training (displacement, contributions, directions), and everything that it refuses."""

from __future__ import annotations

import math

import model_zoo
import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import Ledger
from optnoise.finetune import UnsupportedModelError, make_zeroth_order
from optnoise.finetune.zeroth_order.arena import Arena
from optnoise.finetune.zeroth_order.blocks import blocks, layout
from optnoise.finetune.zeroth_order.contributions import GRID, contributions, noisy_sum
from optnoise.finetune.zeroth_order.directions import Directions
from optnoise.finetune.zeroth_order.displacement import DTYPES, displace, restore
from optnoise.finetune.zeroth_order.perturbation import Perturbation
from optnoise.mechanisms import Gaussian, Laplace, SphericalGamma, Staircase, Tabulated
from torch import nn

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor):
    return tensor.detach().contiguous().view(INTEGERS[tensor.element_size()]).clone()


# ---- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("smoothing", [1e-8, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.02, 10.0])
def test_values_come_back_to_the_bit_from_any_distance(dtype, smoothing, spread):
    """All exponents at once (spread 0), signed zeros, subnormals, infinities and NaN among them."""
    generator = torch.Generator().manual_seed(1)
    if spread:
        values = (torch.randn(4096, generator=generator) * spread).to(dtype)
    else:
        whole = torch.randint(-(2**62), 2**62, (4096,), generator=generator)
        values = (whole >> (62 - 8 * dtype.itemsize + 1)).to(INTEGERS[dtype.itemsize]).view(dtype)
    values[:4] = torch.tensor([0.0, -0.0, math.inf, torch.finfo(dtype).smallest_normal / 2]).to(dtype)
    offset = torch.randn(4096, generator=generator).double() * smoothing
    before = bits(values)
    residual = displace(values, offset, Arena())
    restore(values, offset, residual)
    assert torch.equal(bits(values), before)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(width=32), st.floats(-1e30, 1e30)), min_size=1, max_size=20))
def test_any_float_comes_back_from_any_offset(pairs):
    values = torch.tensor([value for value, _ in pairs], dtype=torch.float32)
    offset = torch.tensor([other for _, other in pairs], dtype=torch.float64)
    before = bits(values)
    residual = displace(values, offset, Arena())
    restore(values, offset, residual)
    assert torch.equal(bits(values), before)


def test_adding_and_subtracting_alone_would_not_come_back():
    """What the residual is for: plain float32 arithmetic returns nearly half of the values changed."""
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1)) * 0.02
    offset = torch.randn(10_000, generator=torch.Generator().manual_seed(2)) * 1e-3
    changed = (values + offset - 2 * offset + offset) != values
    assert 0.3 < float(changed.float().mean()) < 0.6


def test_values_move_by_the_offset_and_the_residual_is_a_few_percent_of_them():
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(1)) * 0.02
    offset = torch.randn(50_000, generator=torch.Generator().manual_seed(2)).double() * 1e-3
    before = values.clone()
    residual = displace(values, offset, Arena())
    torch.testing.assert_close(values.double(), before.double() + offset, rtol=1e-7, atol=0)
    assert 0.05 < residual.bytes / 50_000 < 0.15  # of four bytes each


def perturbation(model, *, kind="gaussian", smoothing=1e-3, seed=1):
    parameters = dict(model.named_parameters())
    return Perturbation(parameters, Directions(layout(parameters), seed=seed, kind=kind), smoothing)


@pytest.mark.parametrize("kind", ["gaussian", "sphere"])
def test_the_two_sides_lie_opposite_and_a_thousand_steps_drift_by_nothing(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.LayerNorm(30), nn.Linear(30, 2))
    moved = perturbation(model, kind=kind)
    before = [p.detach().clone() for p in model.parameters()]
    moved.move_to(0, 1)
    higher = [p.detach().clone() for p in model.parameters()]
    moved.move_to(0, -1)
    lower = [p.detach().clone() for p in model.parameters()]
    assert moved.residual_bytes > 0
    moved.restore()
    z = torch.cat(
        [b.flatten() for b in Directions(layout(dict(model.named_parameters())), seed=1, kind=kind).blocks(0)]
    )
    gap = torch.cat([((a.double() - b.double()) / 2e-3).flatten() for a, b in zip(higher, lower, strict=True)])
    torch.testing.assert_close(gap, z, rtol=0, atol=2e-4)
    for number in range(1000):
        moved.move_to(number, 1)
        moved.move_to(number, -1)
        moved.restore()
    assert moved.residual_bytes == 0
    for parameter, original in zip(model.parameters(), before, strict=True):
        assert torch.equal(bits(parameter), bits(original))


def test_an_interruption_half_way_through_a_walk_is_undone():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(9, 9) for _ in range(4)])
    moved, before = perturbation(model), [bits(p) for p in model.parameters()]
    walk = moved._walk

    def broken(number):
        for index, pair in enumerate(walk(number)):
            if index == 5:
                raise KeyboardInterrupt
            yield pair

    moved.move_to(0, 1)
    moved._walk = broken
    with pytest.raises(KeyboardInterrupt):
        moved.move_to(0, -1)
    moved._walk = walk
    with pytest.raises(RuntimeError, match="restore them first"):
        moved.move_to(1, 1)
    moved.restore()
    assert all(torch.equal(bits(p), b) for p, b in zip(model.parameters(), before, strict=True))


def test_blocks_cover_every_element_once_in_any_memory_order():
    torch.manual_seed(0)
    model = nn.ParameterDict(
        {
            "transposed": nn.Parameter(torch.zeros(300, 500).T),
            "channels_last": nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)),
            "scalar": nn.Parameter(torch.zeros(())),
            "empty": nn.Parameter(torch.zeros(0, 3)),
            "single": nn.Parameter(torch.zeros(1, 7, 1)),
        }
    )
    parameters = dict(model.named_parameters())
    for block in blocks(parameters):
        block += 1
    assert all(bool((parameter == 1).all()) for parameter in parameters.values())
    assert sum(size for size, _ in layout(parameters)) == sum(p.numel() for p in parameters.values())


# ---- directions, contributions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "sphere"])
def test_directions_repeat_differ_by_number_and_have_unit_second_moments(kind):
    cpu = torch.device("cpu")
    directions = Directions([(2, cpu), (1, cpu)], seed=5, kind=kind)
    draws = torch.stack([torch.cat(list(directions.blocks(number))) for number in range(3000)])
    assert torch.equal(torch.cat(list(directions.blocks(7))), draws[7])
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(torch.cat(list(Directions([(3, cpu)], seed=6, kind=kind).blocks(0))), draws[0])
    moments = draws.T @ draws / len(draws)
    assert float((moments - torch.eye(3)).abs().max()) < 0.15
    if kind == "sphere":
        torch.testing.assert_close(draws.norm(dim=1), torch.full((3000,), math.sqrt(3)).double())


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda k: st.lists(st.lists(st.floats(), min_size=k, max_size=k), min_size=1, max_size=4)
    ),
    st.floats(1e-100, 1e100),
)
def test_contributions_are_whole_steps_of_norm_at_most_c(rows, clipping_norm):
    """In exact integers; a row does not depend on the others."""
    table = torch.tensor(rows, dtype=torch.float64)
    found = contributions(table, clipping_norm)
    for row, original in zip(found.tolist(), rows, strict=True):
        assert sum(n * n for n in row) <= GRID**2
        if all(map(math.isfinite, original)):
            assert all(n * value >= 0 for n, value in zip(row, original, strict=True))
        else:
            assert not any(row)
    for index in range(len(rows)):
        assert torch.equal(contributions(table[index : index + 1], clipping_norm)[0], found[index])


def test_small_differences_are_not_changed_and_large_ones_keep_their_direction():
    table = torch.tensor([[0.3, -0.4, 0.0], [30.0, -40.0, 0.0], [0.0, 0.0, 0.0]]).double()
    found = contributions(table, 1.0).double() / GRID
    torch.testing.assert_close(found, torch.tensor([[0.3, -0.4, 0.0], [0.6, -0.8, 0.0], [0, 0, 0]]).double())
    assert contributions(torch.tensor([[7.0], [-math.inf]]).double(), 2.0).tolist() == [[GRID], [0]]


def test_noise_as_large_as_can_be_stays_a_number():
    released = noisy_sum(
        torch.tensor([GRID]), mechanism=Laplace(1e90), clipping_norm=1.0, generator=torch.Generator().manual_seed(0)
    )
    assert torch.isfinite(released).all()


# ---- what is refused --------------------------------------------------------------------------------------------


def begin(model=None, **changes):
    arguments = {
        "mechanism": Gaussian(1.0),
        "clipping_norm": 1.0,
        "dataset_size": 8,
        "sampling_rate": 1.0,
        "divisor": 8.0,
        "smoothing": 1e-3,
        "learning_rate": 0.1,
        "seed": 0,
        **changes,
    }
    return make_zeroth_order(nn.Linear(3, 1) if model is None else model, **arguments)


def step(training, losses, *, microbatches=None):
    training.next_batch()
    return training.step(losses, microbatches)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clipping_norm", 0.0),
        ("clipping_norm", math.nan),
        ("divisor", -1.0),
        ("divisor", math.inf),
        ("sampling_rate", 0.0),
        ("sampling_rate", 1.5),
        ("dataset_size", 0),
        ("dataset_size", 2**30),
        ("adjacency", "some"),
        ("mechanism", "gaussian"),
        ("smoothing", 0.0),
        ("smoothing", -1e-3),
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("weight_decay", -0.1),
        ("directions", 0),
        ("directions", 1.5),
        ("joint", "yes"),
        ("direction", "rademacher"),
        ("direction_seed", -1),
    ],
)
def test_bad_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        begin(**{name: value})


@pytest.mark.parametrize(
    ("mechanism", "more", "said"),
    [
        (Staircase(1.0, 1.0, 0.5), {"directions": 3}, "joint=False releases scalars"),
        (Tabulated((1.0, 2.0), (0.0, 1.0, 0.5)), {"directions": 3}, "joint=False releases scalars"),
        (SphericalGamma.l2_mechanism(2, 1.0), {}, "dimension=2"),
        (
            SphericalGamma.l2_mechanism(2, 1.0),
            {"directions": 2, "adjacency": "replace_one", "sampling_rate": 0.1},
            "no proven bound for spherical_gamma noise on 2 released numbers with adjacency=replace_one",
        ),
    ],
)
def test_noise_without_a_bound_in_the_dimension_asked_for_is_refused_before_any_work(mechanism, more, said):
    with pytest.raises(ValueError, match=said):
        begin(mechanism=mechanism, **more)


class Attention(nn.Module):
    """Dropout without a dropout module, as in many attention layers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(functional.dropout(x, 0.5, self.training))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)), r"1 \(Dropout\): drops out with p=0.1"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.2), r"LSTM\): drops out"),
        (nn.MultiheadAttention(4, 2, dropout=0.2), "drops out"),
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), r"1 \(BatchNorm1d\): normalises each example"),
        (nn.Sequential(nn.Linear(3, 3), nn.InstanceNorm1d(3, track_running_stats=True)), "keeps statistics"),
    ],
)
def test_modules_that_mix_examples_or_draw_masks_are_refused_by_name_and_pass_in_eval_mode(model, name):
    with pytest.raises(UnsupportedModelError, match=name):
        begin(model)
    training = begin(model.eval())
    model.train()
    with pytest.raises(UnsupportedModelError, match=name):
        step(training, lambda index: torch.zeros(len(index)))
    assert training.ledger.steps == 0


def test_batch_norm_without_running_statistics_mixes_in_eval_mode_too():
    with pytest.raises(UnsupportedModelError, match="normalises"):
        begin(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval())


def test_dropout_of_adapters_is_named():
    model = model_zoo.with_adapters(model_zoo.build("llama"), dropout=0.1)
    with pytest.raises(UnsupportedModelError, match=r"lora_dropout.*p=0.1"):
        begin(model)
    begin(model.eval())


def test_dropout_inside_a_forward_is_found_by_computing_the_losses_twice():
    model, x = Attention(), torch.randn(8, 3)
    training = begin(model)
    with pytest.raises(ValueError, match=r"computed again.*random"):
        step(training, lambda index: model(x[index])[:, 0])
    assert training.ledger.steps == 0
    model.eval()
    training.step(lambda index: model(x[index])[:, 0])


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (lambda model, x: model(x)[:, 0].mean(), r"got shape \(\)"),
        (lambda model, x: model(x), r"got shape \(8, 1\)"),
        (lambda model, x: model(x)[:, 0] > 0, "bool"),
        (lambda model, x: [1.0] * len(x), "got \\[1.0"),
        (lambda model, x: model(x)[:, 0] / len(x), "changes when other examples leave"),
        (lambda model, x: (model(x) - model(x).mean(dim=0))[:, 0], "changes when other examples leave"),
        (lambda model, x: model(x)[:, 0].cumsum(dim=0), "changes when other examples leave"),
    ],
    ids=["mean", "column", "bool", "list", "shared-divisor", "batch-mean", "cumsum"],
)
def test_losses_that_are_not_per_example_are_refused_before_anything_is_released(losses, said):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(8, 3)
    training, before = begin(model), bits(model.weight)
    with pytest.raises(ValueError, match=said):
        step(training, lambda index: losses(model, x[index]))
    assert training.ledger.steps == 0
    assert torch.equal(bits(model.weight), before)


def test_a_gate_that_opens_with_the_first_update_is_probed_again():
    torch.manual_seed(0)
    model, x = nn.ParameterDict({"w": torch.randn(3), "gate": torch.zeros(())}), torch.randn(8, 3)
    training = begin(model, clipping_norm=10.0)

    def losses(index):
        own = x[index] @ model["w"]
        return own + model["gate"] * own.mean()

    step(training, losses)
    with pytest.raises(ValueError, match="changes when other examples leave"):
        step(training, losses)


def test_rounding_that_follows_the_company_is_refused_in_company_and_allowed_alone():
    """Losses in half precision, rounded otherwise in a batch of another size, as low-precision kernels do."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(8, 3)

    def losses(index):
        return (model(x[index])[:, 0] * len(index)).half().float() / len(index)

    training = begin(model)
    with pytest.raises(ValueError, match=r"rounding moves the loss.*microbatches\(1\)"):
        step(training, losses, microbatches=torch.arange(8).split(7))
    assert training.ledger.steps == 0
    training.step(losses, torch.arange(8).split(1))
    assert training.ledger.steps == 1


def test_buffers_and_parameters_written_by_the_losses_are_refused():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen = self.seen + x.sum(dim=0)
            return self.linear(x)[:, 0]

    model, x = Counting(), torch.randn(8, 3)
    with pytest.raises(ValueError, match="wrote to seen"):
        step(begin(model), lambda index: model(x[index]))
    plain = nn.Linear(3, 1)

    def training_inside(index):
        plain.bias.mul_(1.1)
        return plain(x[index])[:, 0]

    with pytest.raises(ValueError, match="wrote to bias"):
        step(begin(plain, dataset_size=1), training_inside)


def test_parameters_that_cannot_be_moved_are_named():
    with pytest.raises(ValueError, match="expected a model with trainable parameters"):
        begin(nn.Linear(3, 1).requires_grad_(False))
    with pytest.raises(ValueError, match=r"w of torch\.complex64"):
        begin(nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=torch.complex64))}))
    with pytest.raises(ValueError, match="w do not lie side by side"):
        begin(nn.ParameterDict({"w": nn.Parameter(torch.zeros(1).expand(3))}))
    with pytest.raises(ValueError, match="w has elements that are not finite"):
        begin(nn.ParameterDict({"w": nn.Parameter(torch.tensor([1.0, math.nan]))}))
    memory = torch.zeros(10)
    with pytest.raises(ValueError, match="a and b lie in the same memory"):
        begin(nn.ParameterDict({"a": nn.Parameter(memory[:6]), "b": nn.Parameter(memory[5:])}))
    begin(nn.ParameterDict({"a": nn.Parameter(memory[:6]), "b": nn.Parameter(memory[6:])}))


def test_a_parameter_frozen_or_swapped_after_the_start_is_refused_at_the_step():
    for change in (
        lambda model: model.bias.requires_grad_(False),
        lambda model: setattr(model, "bias", nn.Parameter(torch.zeros(1))),
    ):
        model = nn.Linear(3, 1)
        training = begin(model)
        change(model)
        with pytest.raises(RuntimeError, match="changed since make_zeroth_order: bias"):
            step(training, lambda index: torch.zeros(len(index)))


def test_every_batch_is_stepped_once_and_whole():
    model, x = nn.Linear(3, 1), torch.randn(8, 3)
    losses = lambda index: model(x[index])[:, 0]  # noqa: E731
    training = begin(model)
    with pytest.raises(RuntimeError, match="needs a logical batch"):
        training.step(losses)
    batch = training.next_batch()
    with pytest.raises(RuntimeError, match="not stepped"):
        training.next_batch()
    with pytest.raises(RuntimeError, match="between logical batches"):
        training.state_dict()
    for parts in ([batch.indices[:5]], [batch.indices, batch.indices[:1]], []):
        with pytest.raises(ValueError, match="each of the 8 examples of the logical batch once"):
            training.step(losses, parts)
    assert training.ledger.steps == 0
    training.step(losses, batch.microbatches(3, lengths=[3, 1, 2, 3, 1, 2, 3, 1]))
    with pytest.raises(RuntimeError, match="each is stepped once"):
        training.step(losses)
    with pytest.raises(RuntimeError, match="not stepped"):
        list(begin().logical_batches(2))


def test_a_loss_that_fails_leaves_parameters_and_ledger_as_they_were_and_can_be_tried_again():
    """Out of memory on the lower side, say: the same batch again in smaller parts."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(8, 3)
    training, before, calls = begin(model, directions=2), bits(model.weight), []

    def failing(index):
        calls.append(len(index))
        if len(calls) > 20:
            raise MemoryError
        return model(x[index])[:, 0]

    with pytest.raises(MemoryError):
        step(training, failing, microbatches=torch.arange(8).split(1))
    assert torch.equal(bits(model.weight), before)
    assert training.ledger.steps == 0
    training.step(lambda index: model(x[index])[:, 0])
    assert training.ledger.steps == 1


def test_a_ledger_that_cannot_be_written_stops_the_step_before_the_noise(tmp_path, monkeypatch):
    model, x = nn.Linear(3, 1), torch.randn(8, 3)
    training, before = begin(model, ledger=tmp_path / "ledger"), bits(model.weight)

    def full(*args, **rest):
        raise OSError("no space left")

    monkeypatch.setattr(Ledger, "record", full)
    with pytest.raises(OSError, match="no space"):
        step(training, lambda index: model(x[index])[:, 0])
    assert torch.equal(bits(model.weight), before)


def test_a_learning_rate_that_is_no_number_is_refused_before_the_step():
    training = begin(learning_rate=lambda update: math.nan)
    with pytest.raises(ValueError, match="learning_rate"):
        step(training, lambda index: torch.zeros(len(index)))
    assert training.ledger.steps == 0
