"""Secure mode: a cryptographic generator, the right noise, released sums on a grid that no data move."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting import Ledger
from optnoise.finetune import (
    ClippedSum,
    PoissonSampler,
    PrivacySettings,
    Randomness,
    make_private,
    make_zeroth_order,
    release,
)
from optnoise.finetune.modes import PerLayer
from optnoise.finetune.runs import recipe_from
from optnoise.finetune.secure import cryptographic_generator, draw_noise, grid_of, rounded_sum
from optnoise.finetune.zeroth_order.contributions import GRID, noisy_sum
from optnoise.mechanisms import Gaussian, GaussianMixture, Laplace, SphericalGamma, Tabulated, base
from scipy import stats
from tiny_runs import document
from torch import nn

NOISES = [
    Gaussian(0.7),
    Laplace(1.3),
    Tabulated((0.5, 2.0), (0.2, 1.0, 3.0)),
    GaussianMixture(0.7, (0.0, 0.9), (0.7, 0.3)),
]


def secure_linear(width, *, dtype=torch.float64, mechanism=NOISES[0], sampling_rate=1e-12, **changes):
    """A linear model in private training; at this rate batches are empty, so `.grad` is noise alone."""
    model = nn.Linear(width, 1, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"clipping_norm": 1.0, "dataset_size": 10, "divisor": 1.0, "secure": True, **changes}
    return make_private(model, optimizer, mechanism=mechanism, sampling_rate=sampling_rate, **settings)


def step(training, features):
    """One logical batch; the gradient of each example is its row of `features`."""
    batch = training.next_batch()
    if len(batch):
        with training.record(len(batch)) as recording:
            recording.backward(training.model(features[batch.indices]).sum(1))
    training.step()
    return training.model.weight.grad.flatten().clone()


# ---- the generator ----------------------------------------------------------------------------------------------


def test_the_generator_is_chacha20_with_a_key_of_its_own():
    """The published key stream of the zero key (RFC 7539, appendix A.1), and no two generators alike."""
    first, second = cryptographic_generator(), cryptographic_generator()
    assert first.bit_generator.state["state"]["rounds"] == 20
    assert not np.array_equal(first.integers(0, 2**32, 8), second.integers(0, 2**32, 8))
    zero = type(first.bit_generator)(key=0, rounds=20)
    stream = b"".join(int(word).to_bytes(8, "little") for word in zero.random_raw(8))
    assert stream.hex().startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")


def test_a_missing_package_is_an_error_with_the_way_out_and_never_another_generator(monkeypatch):
    monkeypatch.setitem(sys.modules, "randomgen", None)
    with pytest.raises(ImportError, match=r"pip install 'optnoise\[secure\]'"):
        secure_linear(1)
    with pytest.raises(ImportError, match="randomgen"):
        Randomness.chosen(secure=True)


def test_far_exponential_draws_are_drawn_again_from_where_they_are():
    left = [np.array([1.0, 9.0, 30.0]), np.array([0.5, 8.5]), np.array([0.25])]
    stub = SimpleNamespace(standard_exponential=lambda shape: left.pop(0))
    assert base._exponential(3, stub).tolist() == [1.0, 8.5, 16.25]
    far = base._exponential(2_000_000, np.random.default_rng(0))
    assert stats.kstest(far[far > 8] - 8, stats.expon.cdf).pvalue > 1e-6


# ---- the grid ---------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6)), min_size=1, max_size=20),
    st.integers(-30, 4),
)
def test_sums_are_rounded_as_real_numbers(pairs, exponent):
    grid = Fraction(2) ** exponent
    total = torch.tensor([pair[0] for pair in pairs], dtype=torch.float32)
    noise = torch.tensor([pair[1] for pair in pairs], dtype=torch.float64)
    wanted = [
        float(round((Fraction(float(a)) + Fraction(float(b))) / grid) * grid) for a, b in zip(total, noise, strict=True)
    ]
    assert rounded_sum(total, noise, float(grid)).tolist() == wanted


@pytest.mark.parametrize(
    ("total", "noise", "wanted"),
    [(2.0**-60, 0.5, 1.0), (-(2.0**-60), 0.5, 0.0), (0.0, 0.5, 0.0), (-(2.0**-60), 1.5, 1)],
)
def test_a_sum_that_floating_point_puts_on_the_half_way_point_is_rounded_by_what_it_lost(total, noise, wanted):
    tensors = torch.tensor([total], dtype=torch.float64), torch.tensor([noise], dtype=torch.float64)
    assert float(rounded_sum(*tensors, 1.0)) == wanted


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_the_grid_is_a_power_of_two_far_below_the_noise(noise):
    for scale in (0.3, 1.0, 7.0, 1e-9):
        grid = grid_of(noise, scale)
        assert math.frexp(grid)[0] == 0.5
        median = scale * float(noise.quantile(0.75))
        assert 2**-17 * median < grid <= 2**-16 * median
        assert grid**2 / 12 < 1e-9 * noise.variance * scale**2


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_released_values_follow_the_noise_and_lie_on_the_grid(noise):
    """C = 0.7: the grid is that of C·noise. The law's test rejects 2/3 and 3/2 of the scale."""
    parameter = nn.Parameter(torch.zeros(20_000, dtype=torch.float64))
    release(
        ClippedSum({"weight": parameter}),
        mechanism=noise,
        noise_scales=0.7,
        divisor=0.5,
        generator=cryptographic_generator(),
    )
    released = parameter.grad.numpy() * 0.5
    grid = grid_of(noise, 0.7)
    assert np.array_equal(released, np.round(released / grid) * grid)
    assert len(np.unique(released)) > 15_000
    assert stats.kstest(released, noise.scaled(0.7).cdf).pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(released, noise.scaled(0.7 * wrong).cdf).pvalue < 1e-9


def test_b89_released_values_are_on_one_grid_whatever_the_data():
    """float32, the sum 0 or a number with all its digits: one grid. Without secure mode the low bits tell."""

    def released(value, **changes):
        features = torch.zeros(10, 2000)
        features[:, 0::2] = value / math.sqrt(1000)
        training = secure_linear(2000, dtype=torch.float32, sampling_rate=1.0, **changes)
        return step(training, features).double()

    grid = grid_of(NOISES[0], 1.0)
    for value in (0.0, 1.0, 0.7182818):
        found = released(value)
        assert torch.equal(found, (found / grid).round() * grid)
    plain = released(0.7182818, secure=False)
    assert not torch.equal(plain, (plain / grid).round() * grid)


def test_the_sum_is_in_the_release():
    training = secure_linear(1, mechanism=Gaussian(1e-3), sampling_rate=1.0, divisor=10.0)
    assert step(training, torch.full((10, 1), 0.25, dtype=torch.float64)).item() == pytest.approx(0.25, abs=1e-3)


def test_groups_have_grids_of_their_own_scale():
    model = nn.Sequential(nn.Linear(300, 1, dtype=torch.float64), nn.Linear(1, 1, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    mode = PerLayer(2.0, "dimension", noise="least_energy")
    training = make_private(
        model,
        optimizer,
        mechanism=NOISES[0],
        clipping_norm=mode,
        dataset_size=10,
        sampling_rate=1e-12,
        divisor=1.0,
        secure=True,
    )
    training.next_batch()
    training.step()
    for name, parameter in model.named_parameters():
        grid = grid_of(NOISES[0], training._clipping.noise_scales[name])
        assert torch.equal(parameter.grad, (parameter.grad / grid).round() * grid)
        assert not torch.equal(parameter.grad, (parameter.grad / (1024 * grid)).round() * (1024 * grid))


# ---- the sampler ------------------------------------------------------------------------------------------------


def test_the_sampler_keeps_to_the_rate():
    sampler = PoissonSampler(200, 0.1, cryptographic_generator())
    drawn = torch.zeros(4000, 200)
    for row in drawn:
        row[sampler.draw().indices] = 1
    assert abs(float(drawn.mean()) - 0.1) < 5 * math.sqrt(0.09 / drawn.numel())
    assert float((drawn.mean(0) - 0.1).abs().max()) < 5.5 * math.sqrt(0.09 / 4000)
    assert abs(float(drawn.sum(1).var()) / (200 * 0.09) - 1) < 5 * math.sqrt(2 / 4000)


def test_the_rate_is_never_above_what_was_asked_for(monkeypatch):
    """Of the draws k·2^−53, those with (k+1)·2^−53 <= q are taken: floor(q·2^53) of them."""
    near = torch.tensor([0.1]).double().item()
    q = 0.1 + 2.0**-55  # not a multiple of 2^-53
    last = math.floor(Fraction(q) * 2**53)
    draws = torch.tensor([(last + k) / 2**53 for k in (-2, -1, 0, 1)], dtype=torch.float64)
    monkeypatch.setattr("optnoise.finetune.sampling.uniform", lambda count, generator: draws)
    assert PoissonSampler(4, q, torch.Generator()).draw().indices.tolist() == [0, 1]
    assert near != q


# ---- zeroth order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_zeroth_order_noise_follows_its_law_on_its_grid(noise):
    found = noisy_sum(
        torch.zeros(20_000, dtype=torch.int64), mechanism=noise, clipping_norm=0.5, generator=cryptographic_generator()
    ).numpy()
    assert np.array_equal(found, np.round(found * GRID * 2) / GRID / 2)
    assert stats.kstest(found, noise.scaled(0.5).cdf).pvalue > 1e-6


@pytest.mark.parametrize("shape", [0.7, 3.0, 40.0])
def test_spherical_noise_has_its_norms_and_no_direction(shape):
    noise = SphericalGamma(3, shape, 0.8, 1.5)
    draws = draw_noise(noise, (20_000, 3), generator=cryptographic_generator(), dtype=torch.float64).numpy()
    norms = np.linalg.norm(draws, axis=1)
    assert stats.kstest(norms, lambda r: -np.expm1(noise.log_norm_tail(r))).pvalue > 1e-6
    assert stats.kstest(1.5 * norms, lambda r: -np.expm1(noise.log_norm_tail(r))).pvalue < 1e-9
    for axis in range(3):  # on the sphere in R^3 each coordinate is uniform (Archimedes)
        assert stats.kstest(draws[:, axis] / norms, stats.uniform(-1, 2).cdf).pvalue > 1e-6
    with pytest.raises(ValueError, match="dimension=3"):
        noise.sample_numpy(4, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="rng"):
        noise.sample_numpy(3, rng=None)


def zeroth(**changes):
    model = nn.Linear(3, 1)
    settings = {
        "mechanism": Gaussian(1.0),
        "clipping_norm": 1.0,
        "dataset_size": 20,
        "sampling_rate": 0.5,
        "divisor": 10,
        "smoothing": 1e-3,
        "learning_rate": 0.1,
        "directions": 2,
        "secure": True,
        **changes,
    }
    return make_zeroth_order(model.eval(), **settings), model


def test_zeroth_order_trains_in_secure_mode(tmp_path):
    training, model = zeroth(ledger=tmp_path / "ledger.jsonl")
    features = torch.randn(20, 3)
    before = model.weight.detach().clone()
    for _ in training.logical_batches(3):
        training.step(lambda indices: model(features[indices]).square().sum(1))
    assert training.secure
    assert not training.seeded
    assert not torch.equal(before, model.weight)
    assert Ledger(tmp_path / "ledger.jsonl").steps == 3


# ---- what it goes with ------------------------------------------------------------------------------------------


def test_a_seed_is_refused_everywhere(tmp_path):
    with pytest.raises(ValueError, match="no seed with secure=True, got seed=0"):
        secure_linear(1, seed=0)
    with pytest.raises(ValueError, match="no seed with secure=True"):
        zeroth(seed=1)
    with pytest.raises(ValueError, match="True or False"):
        secure_linear(1, secure="yes")
    runtime = {"secure": True, "noise_seed": 7}
    with pytest.raises(ValueError, match="runtime: leave noise_seed out with secure"):
        recipe_from(document("model", "path", "encoder_head", runtime=runtime))
    from optnoise.finetune import PrivateTrainer

    privacy = PrivacySettings(epsilon=9.0, delta=1e-5, steps=1, sampling_rate=0.1, clipping_norm=1.0, divisor=1.0)
    with pytest.raises(ValueError, match="no noise_seed with secure=True"):
        PrivateTrainer(nn.Linear(1, 1), mechanism=NOISES[0], privacy=privacy, noise_seed=3, secure=True)


def test_a_restored_run_draws_afresh():
    training = secure_linear(50)
    state = training.state_dict()
    assert state == {"seeded": False}
    first = step(training, None)
    training.load_state_dict(state)
    assert not torch.equal(first, step(training, None))
    assert training.secure
    assert not secure_linear(1, secure=False).secure
