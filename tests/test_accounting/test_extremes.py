"""Found by attack: inputs at the edges of the floats, where a bound must stay a bound."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import Ledger, Release, calibrate, delta, epsilon, gaussian
from optnoise.accounting.cells import cut, largest_loss
from optnoise.accounting.dimension import octave_orders, renyi_in_dimension
from optnoise.accounting.event import Event
from optnoise.accounting.f_divergence import renyi_bounds
from optnoise.accounting.renyi import renyi_curve
from optnoise.mechanisms import (
    GammaLaplace,
    Gaussian,
    GaussianMixture,
    GeneralisedGaussian,
    Laplace,
    ScaleMixture,
    TruncatedLaplace,
)
from references import approx, gaussian_delta


@given(
    exponent=st.floats(-7, 3),
    order=st.sampled_from([1 + 1e-9, 1 + 1e-5, 1.01, 2.0, 50.0]),
    inner=st.sampled_from([24, 64]),
)
@settings(max_examples=60)
def test_cells_hold_the_laplace_value_at_every_scale(exponent, order, inner):
    """A chord weight below the smallest float (scale 1e-6, shift 1) must not drop the end that carries the cell."""
    noise = Laplace(10**exponent)
    lower, upper = renyi_bounds(cut(noise, 1.0, inner=inner), np.array([order]), sampling_rate=1.0, remove=True)
    exact = noise.renyi_divergence(order, 1.0)
    assert lower[0] * (1 - 1e-6) <= exact <= upper[0] * (1 + 1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-3])
def test_two_coordinates_with_tiny_noise(scale):
    """Equal shifts 1/√2: the loss concentrates at 2T(t/b − 1); the bound must not lie below it."""
    truth = 2 * 100 * (2**-0.5 / scale - 1) * 0.99
    assert epsilon(Laplace(scale), delta=1e-5, dimension=2, steps=100).upper >= truth
    for order, bound in zip(octave_orders(-4), renyi_in_dimension(Laplace(scale), 1.0, 2, -4), strict=True):
        assert bound >= 2 * Laplace(scale).renyi_divergence(float(order), 2**-0.5)


def test_huge_shapes_compose_to_no_less_than_one_release():
    noise = GammaLaplace(1e6, 1.0)
    one = epsilon(noise, delta=0.99, dimension=1)
    assert epsilon(noise, delta=0.99, dimension=1, steps=2).upper > one.lower


@pytest.mark.parametrize(
    "noise",
    [
        Laplace(1e17),
        GammaLaplace(2.0, 1e-30),
        ScaleMixture(1e-20, 1.0, 0.5, 1e-20, 5.0, 1e-20, 1.0, 2.0),
    ],
    ids=repr,
)
def test_small_losses_keep_their_digits(noise):
    """log p(0) − log p(t) as a difference would round to 0, and ε = 0 would be claimed."""
    slope = noise.max_score
    assert largest_loss(noise, 1.0) == approx(slope, 1e-6)
    assert delta(noise, epsilon=0.0, dimension=1).upper > 0


def test_pure_dp_in_absurdly_many_dimensions_is_not_free():
    assert epsilon(Laplace(1.0), delta=1e-5, dimension=10**34).upper >= 4.377
    assert epsilon(Laplace(1e6), delta=1e-300, steps=100, dimension=1).upper >= 1e-4
    assert calibrate("laplace", epsilon=1e-10, delta=1e-300, steps=100, dimension=1).scale >= 1e12


@pytest.mark.parametrize("rate", [1e-8, 1e-140, 1e-200])
@pytest.mark.parametrize("dimension", [1, 2])
def test_tiny_sampling_rates_never_go_below_zero(rate, dimension):
    value = epsilon(Laplace(1 / 301), delta=1e-5, sampling_rate=rate, steps=2, dimension=dimension)
    assert 0 <= value.lower <= value.upper
    assert renyi_curve(Event(Laplace(1 / 301), 1.0, 2, rate, dimension)).largest_loss >= 0


@given(log_mu=st.floats(-6, 6), z=st.floats(-6, 9))
@settings(max_examples=150)
def test_gaussian_delta_interval_holds_400_digits(log_mu, z):
    mu = 10**log_mu
    epsilon_value = max(0.0, mu * mu / 2 + z * mu)
    lower, upper = gaussian.log_delta_bounds(epsilon_value, mu)
    exact = gaussian_delta(epsilon_value, mu, digits=400)
    assert math.exp(lower) <= exact <= math.exp(upper)
    assert upper - lower < 1e-3 * max(1.0, mu / 1e3)


def test_two_reported_gaussian_points():
    for sigma, target, exact in ((1 / 1.3e-5, 1e-4, 1.18296135278408e-20), (1e-6, 5e11, 0.49999960110577)):
        lower, _, upper = delta(Gaussian(sigma), epsilon=target)
        assert lower <= exact * (1 + 1e-13)
        assert upper >= exact * (1 - 1e-13)


def test_a_whole_last_line_without_newline_is_charged_as_itself(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).record(Release(Gaussian(1.0), 1000), clipping_norm=1, divisor=1)
    path.write_bytes(path.read_bytes()[:-1])
    assert Ledger(path).steps == 1000
    assert Ledger(path).steps == 1000


def test_a_torn_header_is_a_new_ledger_and_repeated_keys_are_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path)
    path.write_bytes(path.read_bytes()[:20])
    Ledger(path).record(Release(Gaussian(1.0)), clipping_norm=1, divisor=1)
    path.write_bytes(path.read_bytes().replace(b'"steps": 1', b'"steps": 1000000, "steps": 1'))
    with pytest.raises(ValueError, match=r"line 2: not JSON \(the key 'steps' stands twice\)"):
        Ledger(path)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gaussian(1e-200), "1e-100 <= noise_multiplier <= 1e100"),
        (lambda: Laplace(1e160), "1e-100 <= scale <= 1e100"),
        (lambda: GammaLaplace(1e-300, 1.0), "1/(shape*scale)"),
        (lambda: ScaleMixture(uniform_weight=1e300, uniform_low=0.0, uniform_high=1e300), "E[u]"),
        (lambda: Laplace(10**400), "range of a float"),
        (lambda: Release(Gaussian(1.0), 10**300), "steps <= 1e+18"),
    ],
)
def test_values_beyond_the_floats_are_refused_by_name(build, message):
    import re

    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_no_warning_and_no_error_at_the_corners():
    for noise in (Laplace(1e-100), Laplace(1e100), GammaLaplace(2.0, 1e90), Gaussian(1e-100), Gaussian(1e100)):
        for steps, rate, dimension in ((1, 1.0, 1), (3, 0.5, 1)):
            value = epsilon(noise, delta=0.99, steps=steps, sampling_rate=rate, dimension=dimension)
            assert 0 <= value.lower <= value.upper


@pytest.mark.parametrize(
    "noise", [Laplace(1.0), GeneralisedGaussian(1.0, 1.5), GaussianMixture(1.0, (0, 1), (0.5, 0.5))]
)
@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (1000, 0.01)])
def test_deltas_below_the_normal_floats_claim_nothing_new(noise, steps, rate):
    """At δ = 5e-324 the ends once crossed (28.6123 above 28.6116): below 1e-300 only the largest loss bounds ε."""
    settings_ = {"steps": steps, "sampling_rate": rate, "dimension": 1, "accountant": "pld"}
    deep, least = (epsilon(noise, delta=small, **settings_) for small in (5e-324, 1e-300))
    assert least.lower <= deep.lower <= deep.upper
    assert least.upper < math.inf
    if not isinstance(noise, Laplace):
        assert deep.upper == math.inf
    shallow = delta(noise, epsilon=1.5 * least.upper, **settings_)
    assert shallow.lower == 0.0
    assert shallow.upper in (0.0, pytest.approx(1e-300))


@pytest.mark.parametrize("ratio", [80, 240, 600])
@pytest.mark.parametrize(("steps", "rate"), [(10, 1.0), (100, 0.1)])
def test_a_bound_far_out_changes_nothing(ratio, steps, rate):
    """A density that falls by e^40 within the last piece was taken for a jump there: the upper end became infinite."""
    settings_ = {"delta": 1e-5, "steps": steps, "sampling_rate": rate, "dimension": 1}
    cut, whole = epsilon(TruncatedLaplace(3.0, 3.0 * ratio), **settings_), epsilon(Laplace(3.0), **settings_)
    assert cut.lower <= whole.upper
    assert whole.lower <= cut.upper == pytest.approx(whole.upper, rel=1e-4)
