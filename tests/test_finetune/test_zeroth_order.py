"""`make_zeroth_order`: what one record can move, what is released, what the estimate is, that training learns."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from model_zoo import FAMILIES, PARTS, build, data, losses_of, train_part
from optnoise.accounting import Ledger, epsilon
from optnoise.finetune import make_zeroth_order
from optnoise.finetune.checkpoint import Checkpoint
from optnoise.finetune.zeroth_order import make
from optnoise.finetune.zeroth_order.contributions import GRID
from optnoise.finetune.zeroth_order.directions import Directions
from optnoise.mechanisms import Gaussian, Laplace, SphericalGamma, Tabulated
from scipy import stats
from torch import nn

SILENT = Gaussian(1e-12)  # far below the grid, so that the noise is rounded to zero: the release is the sum itself


def linear(*, inputs=3, outputs=1, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).double()


def zeroth_order(model=None, **changes):
    arguments = {
        "mechanism": SILENT,
        "clipping_norm": 1.0,
        "dataset_size": 10,
        "sampling_rate": 1.0,
        "divisor": 1.0,
        "smoothing": 1e-3,
        "learning_rate": 0.0,
        "seed": 0,
        **changes,
    }
    return make_zeroth_order(linear() if model is None else model, **arguments)


def squares(model, features, targets):
    """Indices to squared errors, one per record."""
    return lambda index: (model(features[index])[:, 0] - targets[index]).square()


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def direction(training, number=0):
    """z as one vector, in the order of `weights`, made again from the public seed."""
    layout = [(p.numel(), p.device) for p in training.model.parameters() if p.requires_grad]
    return torch.cat(list(Directions(layout, seed=training.direction_seed, kind="gaussian").blocks(number)))


def run_step(training, losses, *, size=1000):
    batch = training.next_batch()
    return training.step(losses, batch.microbatches(size))


def test_the_docstring_example_runs():
    result = doctest.testmod(make)
    assert result.attempted > 0
    assert result.failed == 0


# ---- sensitivity ------------------------------------------------------------------------------------------------


def noiseless_sum(features, targets, chosen, **changes):
    """The released numbers of one step on the records `chosen`, without noise: exact multiples of the grid."""
    model = linear()
    losses = squares(model, features[chosen], targets[chosen])
    training = zeroth_order(model, dataset_size=len(chosen), direction_seed=5, **changes)
    return run_step(training, losses, size=1).derivatives


records = st.lists(
    st.tuples(*[st.floats(-100, 100) | st.sampled_from([0.0, 1e-30, 1e200, math.inf, math.nan])] * 4),
    min_size=3,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(records, st.sampled_from([1e-3, 0.7, 50.0]), st.sampled_from([1e-4, 1e-2, 1.0]), st.sampled_from([1, 3]))
def test_one_record_never_moves_the_sum_by_more_than_c(rows, clipping_norm, smoothing, directions):
    """Real neighbours: a record removed, added, replaced; values up to 1e200, infinite and NaN among them."""
    table = torch.tensor(rows, dtype=torch.float64)
    features, targets = table[:, :3], table[:, 3]
    common = {"clipping_norm": clipping_norm, "smoothing": smoothing, "directions": directions}
    everything = list(range(len(rows)))
    whole = noiseless_sum(features, targets, everything[:-1], **common)
    removed = noiseless_sum(features, targets, everything[:-2], **common)
    replaced = noiseless_sum(features, targets, [*everything[:-2], everything[-1]], **common)
    exactly = lambda a, b: math.sqrt(sum(float(x) ** 2 for x in (a - b) / clipping_norm))  # noqa: E731
    assert torch.isfinite(whole).all()
    assert exactly(whole, removed) <= 1
    assert exactly(whole, replaced) <= 2


def test_the_bound_is_reached_so_the_test_above_could_fail():
    features, targets = torch.full((2, 3), 50.0, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    moved = noiseless_sum(features, targets, [0, 1]) - noiseless_sum(features, targets, [0])
    assert float(moved.abs()) == 1.0
    three = noiseless_sum(features, targets, [0, 1], directions=3) - noiseless_sum(features, targets, [0], directions=3)
    assert 1 - 1e-8 < float(three.norm()) <= 1.0


def test_a_transformers_record_moves_the_sum_by_at_most_c_alone_and_in_company():
    """Alone, to the bit. In company other records' losses move by the rounding of padded attention: 1e-15/φ here."""
    model, batch = build("roberta"), data("roberta", 7)
    losses = losses_of(model, "roberta", batch)
    for size, allowed in ((1, 0.0), (8, 1e-9)):
        sums = []
        for count in (7, 6):
            training = zeroth_order(model, dataset_size=count, clipping_norm=0.2, direction_seed=3)
            sums.append(run_step(training, losses, size=size).derivatives)
        assert 0 < float((sums[0] - sums[1]).abs()) <= 0.2 + allowed


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_loss_that_is_not_finite_counts_as_zero(bad):
    model = linear()
    losses = lambda index: torch.where(index == 2, bad, model(torch.ones(len(index), 3).double())[:, 0])  # noqa: E731
    training = zeroth_order(model, clipping_norm=100.0)
    others = 9 * float((direction(training) * torch.ones(4)).sum())
    assert float(run_step(training, losses).derivatives) == pytest.approx(others, abs=1e-4)


def test_b97_b56_the_divisor_is_a_constant_and_one_record_moves_the_release_by_c_over_it():
    model = linear()
    losses = lambda index: 1e6 * model(torch.ones(len(index), 3).double())[:, 0]  # noqa: E731
    moves = [
        float(run_step(zeroth_order(model, dataset_size=n, divisor=1.5), losses).derivatives.abs()) for n in (2, 3)
    ]
    assert moves == [2 / 1.5, 3 / 1.5]


# ---- the estimate -----------------------------------------------------------------------------------------------


def slopes(model, losses, count, z):
    """⟨∇ℓ_i, z⟩ of every record by autograd, (count,)."""
    found = []
    for index in range(count):
        gradients = torch.autograd.grad(
            losses(torch.tensor([index])).sum(), [p for p in model.parameters() if p.requires_grad], allow_unused=True
        )
        shapes = [p for p in model.parameters() if p.requires_grad]
        flat = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, shapes, strict=True)]
        found.append(torch.cat([g.flatten() for g in flat]) @ z)
    return torch.stack(found)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_slopes_are_autograds_on_every_family_and_part(family, part):
    """One direction, clipped at the median slope; the parameters come back to the bit.

    Llama's norms compute in float32: their rounding stands in the losses, and is divided by 2φ.
    """
    smoothing, tolerance = (1e-4, 1e-3) if family.startswith("llama") else (1e-5, 1e-6)
    model = train_part(build(family), part)
    batch = data(family, 5)
    losses = losses_of(model, family, batch)
    training = zeroth_order(model, dataset_size=5, smoothing=smoothing)
    wanted = slopes(model, losses, 5, direction(training))
    before, clipping_norm = weights(model), float(wanted.abs().median()) * 1.01
    training = zeroth_order(model, dataset_size=5, smoothing=smoothing, clipping_norm=clipping_norm)
    assert training.dimension == sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = run_step(training, losses, size=2).derivatives
    clipped = wanted.clamp(-clipping_norm, clipping_norm).sum()
    assert abs(float(found - clipped)) < tolerance * clipping_norm * 5
    assert torch.equal(weights(model).view(torch.int64), before.view(torch.int64))


def test_the_error_of_the_slope_falls_with_the_square_of_the_smoothing():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double(), torch.randn(6, 3).double()
    losses = lambda index: model(x[index])[:, 0].square()  # noqa: E731
    errors = []
    for smoothing in (1e-2, 1e-3):
        training = zeroth_order(model, dataset_size=6, smoothing=smoothing, clipping_norm=1e3, direction_seed=1)
        exact = slopes(model, losses, 6, direction(training)).sum()
        errors.append(abs(float(run_step(training, losses).derivatives - exact)))
    assert 50 < errors[0] / errors[1] < 200


@pytest.mark.parametrize("kind", ["gaussian", "sphere"])
def test_averaged_over_directions_the_estimate_is_the_gradient(kind):
    """Slope times z, 2000 directions in R^4: within five standard errors, which 2/3 or 3/2 of it is not."""
    model, x = linear(), torch.randn(10, 3, generator=torch.Generator().manual_seed(2)).double()
    losses = lambda index: functional.softplus(model(x[index])[:, 0])  # noqa: E731
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(losses(torch.arange(10)).sum(), model.parameters())])
    training = zeroth_order(model, direction=kind, clipping_norm=100.0, direction_seed=9, directions=1)
    twin = Directions([(3, torch.device("cpu")), (1, torch.device("cpu"))], seed=9, kind=kind)
    terms = torch.stack(
        [float(run_step(training, losses).derivatives) * torch.cat(list(twin.blocks(number))) for number in range(2000)]
    )
    error = 5 * terms.std(dim=0) / math.sqrt(len(terms))
    far = lambda wanted: bool(((terms.mean(dim=0) - wanted).abs() > error).any())  # noqa: E731
    assert not far(gradient)
    assert far(gradient * 2 / 3)
    assert far(gradient * 3 / 2)


def test_the_update_goes_along_z_and_can_be_made_from_the_public_record():
    """θ after three steps = θ − Σ rate·slope·z with decay, from the seed and the released numbers alone."""
    model = linear()
    before = weights(model)
    training = zeroth_order(
        model, mechanism=Laplace(1.0), learning_rate=lambda update: 0.1 / (update + 1), weight_decay=0.5, seed=None
    )
    losses = squares(model, torch.ones(10, 3).double(), torch.zeros(10).double())
    expected = before
    for update in range(3):
        estimate = run_step(training, losses)
        rate = 0.1 / (update + 1)
        expected = expected * (1 - 0.5 * rate) - rate * float(estimate.derivatives) * direction(training, update)
    torch.testing.assert_close(weights(model), expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("joint", [True, False])
def test_k_directions_are_averaged_at_one_point(joint):
    """Three slopes of the same θ; the update comes with the third."""
    model, x = linear(), torch.randn(10, 3, generator=torch.Generator().manual_seed(2)).double()
    losses = squares(model, x, torch.zeros(10).double())
    training = zeroth_order(model, directions=3, joint=joint, learning_rate=0.1, clipping_norm=1e3)
    before = weights(model)
    wanted = torch.stack([slopes(model, losses, 10, direction(training, number)).sum() for number in range(3)])
    moved = sum(0.1 / 3 * slope * direction(training, number) for number, slope in enumerate(wanted))
    for _ in range(1 if joint else 3):
        assert torch.equal(weights(model), before)
        run_step(training, losses)
    torch.testing.assert_close(weights(model), before - moved, rtol=1e-5, atol=1e-5)


# ---- noise and accounting ---------------------------------------------------------------------------------------


def empty_release(**changes):
    """Numbers released for an empty batch, whose noise alone they are, times the divisor: (200·k,)."""
    training = zeroth_order(sampling_rate=1e-12, seed=None, **changes)
    rounds = [run_step(training, lambda index: 1 / 0).derivatives * training.settings.divisor for _ in range(2000)]
    assert training.ledger.steps == 2000
    return torch.cat(rounds)


@pytest.mark.parametrize(
    ("mechanism", "directions"),
    [(Gaussian(0.7), 1), (Laplace(0.7 / math.sqrt(2)), 1), (SphericalGamma.gaussian(2, 0.7), 2), (Gaussian(0.7), 3)],
    ids=["gaussian", "laplace", "spherical", "joint"],
)
def test_b54_b61_b90_noise_is_of_the_law_asked_for_times_c_also_in_empty_batches(mechanism, directions):
    noise = empty_release(mechanism=mechanism, directions=directions, clipping_norm=0.3, divisor=7.0).numpy() / 0.3
    deviation = noise.std() / 0.7
    kurtosis = 6 if isinstance(mechanism, Laplace) else 3
    error = 5 * math.sqrt((kurtosis - 1) / 4 / len(noise))
    assert abs(deviation - 1) < error < 1 / 3
    assert abs(noise.mean()) < 5 * 0.7 / math.sqrt(len(noise))
    assert abs(stats.pearsonr(noise[1:], noise[:-1])[0]) < 5 / math.sqrt(len(noise))
    if isinstance(mechanism, Laplace):
        assert stats.kstest(noise, stats.laplace(scale=mechanism.scale).cdf).pvalue > 1e-4
        assert stats.kstest(noise, stats.norm(scale=0.7).cdf).pvalue < 1e-4


def test_b89_whatever_the_data_the_release_lies_on_one_grid():
    model = linear()
    for value in (0.0, 1.0, math.pi):
        losses = lambda index, v=value: v * model(torch.ones(len(index), 3).double())[:, 0]  # noqa: E731
        training = zeroth_order(model, mechanism=Laplace(1e-3), seed=None)
        for _ in range(20):
            on_grid = float(run_step(training, losses).derivatives) * GRID
            assert on_grid == round(on_grid)


def test_b31_b71_microbatches_change_neither_release_nor_ledger():
    model, x = linear(), torch.randn(10, 3, generator=torch.Generator().manual_seed(2)).double()
    found = []
    for size in (1, 3, 10):
        training = zeroth_order(model, mechanism=Laplace(1.0))
        found.append(float(run_step(training, squares(model, x, x[:, 0]), size=size).derivatives))
        assert training.ledger.steps == 1
    assert max(found) - min(found) < 1e-9


def test_directions_are_public_and_noise_is_not_made_from_their_seed():
    """Runs with one direction seed share z but no noise; the seed does not give the noise; data does not change z."""
    runs = [zeroth_order(mechanism=Laplace(1.0), seed=None, direction_seed=3, sampling_rate=1e-12) for _ in range(2)]
    assert torch.equal(direction(runs[0]), direction(runs[1]))
    noises = [torch.stack([run_step(run, None).derivatives for _ in range(20)]).flatten() for run in runs]
    assert not (noises[0] == noises[1]).any()
    for seed in (3, 6, 7):
        guess = Laplace(1.0).sample((1,), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert not (noises[0] - guess).abs().lt(1e-6).any()
    assert zeroth_order(seed=None).direction_seed != zeroth_order(seed=None).direction_seed
    assert not torch.equal(direction(runs[0], 0), direction(runs[0], 1))


@pytest.mark.parametrize(("joint", "steps", "dimension"), [(True, 5, 3), (False, 15, 1)])
def test_k_directions_are_charged_as_one_vector_or_as_k_scalars(joint, steps, dimension):
    """Joint: T entries of dimension k. Scalars: T·k entries of dimension 1, each on a Poisson batch of its own."""
    model = linear()
    training = zeroth_order(
        model, mechanism=Gaussian(1.5), directions=3, joint=joint, sampling_rate=0.3, learning_rate=1e-3, seed=4
    )
    losses = squares(model, torch.ones(10, 3).double(), torch.zeros(10).double())
    drawn = []
    for batch in training.logical_batches(steps):
        drawn.append(tuple(batch.indices.tolist()))
        training.step(losses)
    assert len(set(drawn)) > steps // 2
    wanted = epsilon(Gaussian(1.5), delta=1e-5, steps=steps, sampling_rate=0.3, dimension=dimension)
    assert training.ledger.releases[0].dimension == dimension
    assert training.epsilon(delta=1e-5) == training.epsilon(delta=1e-5) == wanted
    assert zeroth_order(mechanism=Gaussian(1.5)).epsilon(delta=1e-5).upper == 0
    assert zeroth_order(mechanism=Gaussian(1.5)).epsilon(delta=1e-5, further_steps=2) == epsilon(
        Gaussian(1.5), delta=1e-5, steps=2
    )


def test_replacing_a_record_is_charged_as_a_shift_of_two():
    training = zeroth_order(mechanism=Laplace(2.0), adjacency="replace_one")
    run_step(training, lambda index: torch.zeros(len(index)))
    assert training.epsilon(delta=1e-6).upper == pytest.approx(
        epsilon(Laplace(2.0), delta=1e-6, adjacency="replace_one", dimension=1).upper
    )
    assert training.epsilon(delta=1e-9).upper == pytest.approx(1.0, rel=1e-3)  # 2C over 2C


# ---- a distinguishing game --------------------------------------------------------------------------------------

DELTA, CONFIDENCE = 1e-2, 1e-6
GAME_NOISE = Laplace(0.5)


def released_numbers(present, rounds):
    """Sorted scalars of steps that stay at one θ: four records, and a large one if `present`."""
    model = linear()
    features = torch.ones(4 + present, 3).double()
    features[4:] *= 1e4
    training = zeroth_order(
        model, mechanism=GAME_NOISE, dataset_size=len(features), clipping_norm=0.5, direction_seed=1, seed=int(present)
    )
    training._directions = OneDirection(training._directions)
    losses = squares(model, features, torch.zeros(5).double())
    return torch.cat([run_step(training, losses).derivatives for _ in range(rounds)])


class OneDirection:
    """The same direction in every step, so that the released numbers are draws from one law."""

    def __init__(self, directions):
        self.dimension, self.seed, self._blocks = directions.dimension, directions.seed, directions.blocks

    def blocks(self, number):
        return self._blocks(0)


def shown_epsilon(rounds=3600):
    """A lower bound of ε at DELTA, confidence 1 − 2e-6: guess from the released number whether the record was there.

    The threshold is chosen on one half of the draws and judged on the other.
    """
    inside, outside = released_numbers(True, rounds), released_numbers(False, rounds)
    best = -math.inf
    for sign in (1, -1):
        a, b = sign * inside, sign * outside
        thresholds = torch.quantile(torch.cat([a[::2], b[::2]]), torch.linspace(0.05, 0.95, 37).double())
        choice = max(thresholds, key=lambda t: lower_bound(a[::2] > t, b[::2] > t))
        best = max(best, lower_bound(a[1::2] > choice, b[1::2] > choice))
    return best


def lower_bound(hits, alarms):
    n, hit, alarm = len(hits), int(hits.sum()), int(alarms.sum())
    true_rate = stats.beta.ppf(CONFIDENCE, hit, n - hit + 1) if hit else 0.0
    false_rate = stats.beta.ppf(1 - CONFIDENCE, alarm + 1, n - alarm) if alarm < n else 1.0
    return math.log((true_rate - DELTA) / false_rate) if true_rate > DELTA else -math.inf


def test_the_game_stays_below_the_proven_epsilon_and_shows_noise_planted_too_small(monkeypatch):
    from optnoise.finetune.zeroth_order import training as module

    proven = epsilon(GAME_NOISE, delta=DELTA, dimension=1).upper
    assert 0.3 * proven < shown_epsilon() <= proven
    honest = module.noisy_sum
    monkeypatch.setattr(
        module, "noisy_sum", lambda total, *, mechanism, **rest: honest(total, mechanism=Laplace(0.2), **rest)
    )
    assert shown_epsilon() > 1.1 * proven


def test_the_game_shows_a_clipping_norm_that_is_not_kept(monkeypatch):
    from optnoise.finetune.zeroth_order import training as module

    honest = module.contributions
    monkeypatch.setattr(module, "contributions", lambda found, clipping_norm: 3 * honest(found, clipping_norm))
    assert shown_epsilon(2600) > 1.2 * epsilon(GAME_NOISE, delta=DELTA, dimension=1).upper


# ---- saving, learning -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [True, False])
def test_b72_a_seeded_run_that_was_cut_off_ends_in_the_very_same_bits(tmp_path, joint):
    """Cut in the middle of an update of three scalar releases; through a checkpoint file."""

    def begin(model):
        return zeroth_order(
            model, mechanism=Laplace(1.0), directions=3, joint=joint, sampling_rate=0.5, learning_rate=0.1
        )

    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(2)).double()
    model = linear()
    training, saved = begin(model), Checkpoint(tmp_path / "run")
    for step in range(8):
        if step == 4:
            saved.save({"training": training.state_dict(), "model": model.state_dict()})
        run_step(training, squares(model, x, x[:, 0]))
    resumed_model = linear(seed=7)
    resumed, state = begin(resumed_model), saved.load()
    resumed_model.load_state_dict(state["model"])
    resumed.load_state_dict(state["training"])
    for _ in range(4):
        run_step(resumed, squares(resumed_model, x, x[:, 0]))
    assert torch.equal(weights(resumed_model), weights(model))
    assert not torch.equal(weights(model), weights(linear()))


def test_a_private_run_taken_up_again_draws_fresh_noise_along_the_next_directions():
    training = zeroth_order(mechanism=Laplace(1.0), seed=None, sampling_rate=1e-12)
    run_step(training, None)
    state = training.state_dict()
    assert "noise" not in state["randomness"]
    first = run_step(training, None)
    training.load_state_dict(state)
    again = run_step(training, None)
    assert first.numbers == again.numbers == (1,)
    assert float(first.derivatives) != float(again.derivatives)
    assert training.ledger.steps == 3
    with pytest.raises(ValueError, match="seeded"):
        zeroth_order(seed=1).load_state_dict(state)


def test_the_ledger_has_the_step_before_the_noise_is_drawn(tmp_path, monkeypatch):
    from optnoise.finetune.zeroth_order import training as module

    path, seen = tmp_path / "ledger.jsonl", []

    def cut_off(total, **rest):
        seen.append(Ledger(path).steps)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "noisy_sum", cut_off)
    model = linear()
    before, training = weights(model), zeroth_order(model, ledger=path)
    with pytest.raises(KeyboardInterrupt):
        run_step(training, squares(model, torch.ones(10, 3).double(), torch.zeros(10).double()))
    assert seen == [1]
    assert torch.equal(weights(model), before)
    with pytest.raises(RuntimeError, match="each is stepped once"):
        training.step(lambda index: torch.zeros(len(index)))


@pytest.mark.parametrize("kind", ["gaussian", "sphere"])
def test_it_learns_a_logistic_problem_with_a_little_noise(kind):
    torch.manual_seed(0)
    x = torch.randn(400, 3).double()
    y = (x @ torch.tensor([2.0, -1.0, 0.5]).double() > 0).double()
    model = linear()

    def losses(index):
        return functional.binary_cross_entropy_with_logits(model(x[index])[:, 0], y[index], reduction="none")

    training = zeroth_order(
        model,
        mechanism=Laplace(1.0),
        direction=kind,
        dataset_size=400,
        sampling_rate=0.25,
        divisor=100.0,
        learning_rate=0.3,
        seed=3,
    )
    with torch.no_grad():
        first = float(losses(torch.arange(400)).mean())
    for batch in training.logical_batches(200):
        training.step(losses, batch.microbatches(50))
    with torch.no_grad():
        last = float(losses(torch.arange(400)).mean())
    assert first > 0.6
    assert last < 0.35


def test_a_searched_table_of_noise_is_released_and_charged():
    """The kind of noise that the search returns for one scalar: a density given by its slopes."""
    noise = Tabulated((1.0, 2.0, 5.0), (0.0, 1.0, 3.0, 0.5))
    model = linear()
    training = zeroth_order(model, mechanism=noise, sampling_rate=0.1)
    for _ in training.logical_batches(3):
        training.step(squares(model, torch.ones(10, 3).double(), torch.zeros(10).double()))
    assert training.epsilon(delta=1e-5).upper == pytest.approx(
        epsilon(noise, delta=1e-5, steps=3, sampling_rate=0.1, dimension=1).upper
    )
