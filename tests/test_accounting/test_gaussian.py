"""The exact Gaussian against 60-digit arithmetic, and the rows of reported faults that it meets."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting import calibrate, delta, epsilon, gaussian
from optnoise.mechanisms import Gaussian
from references import approx, gaussian_delta


@given(mu=st.floats(1e-6, 60), z=st.floats(-3, 30))
def test_log_delta_matches_mpmath_down_to_the_smallest_floats(mu, z):
    epsilon_value = max(0.0, mu * mu / 2 + z * mu)
    exact = gaussian_delta(epsilon_value, mu, digits=400)
    if exact > 1e-300:
        for bound in gaussian.log_delta_bounds(epsilon_value, mu):
            assert math.exp(bound) == approx(float(exact), 1e-9)


@given(mu=st.floats(1e-3, 50), exponent=st.floats(-30, -0.5))
def test_epsilon_interval_holds_the_root(mu, exponent):
    target = 10**exponent
    lower, estimate, upper = gaussian.epsilon_interval(target, mu)
    assert lower <= estimate <= upper <= estimate * (1 + 1e-6) + 1e-9
    if upper > 0:
        assert gaussian_delta(upper, mu, 400) <= target
    if lower > 0:
        assert gaussian_delta(lower, mu, 400) >= target


def test_unit_noise_at_1e5_needs_no_dimension():
    assert epsilon(Gaussian(1.0), delta=1e-5).upper == approx(4.37717809568, 1e-10)
    assert epsilon(Gaussian(1.0), delta=1e-5, dimension=10**6) == epsilon(Gaussian(1.0), delta=1e-5)


def test_b15_replace_one_doubles_the_shift():
    """B15: noise/clip ratio 1 under replace-one: exact 9.99726, Rényi order 2 is 4.0."""
    assert epsilon(Gaussian(1.0), delta=1e-5, adjacency="replace_one").upper == approx(9.99726, 1e-6)
    rdp = epsilon(Gaussian(1.0), delta=1e-5, adjacency="replace_one", accountant="rdp").upper
    assert 9.99726 < rdp <= 10.73
    assert Gaussian(1.0).renyi_divergence(2, 2) == 4.0


def test_b17_epsilon_zero_ends_at_once():
    assert calibrate("gaussian", epsilon=0, delta=1e-6).noise_multiplier == approx(398942.2804, 1e-9)


def test_b08_b09_b19_calibrates_from_a_hundredth_to_a_thousand():
    """B08: ε=1000; B09: ε=0.01; B19: ε=10 and 100, where the textbook formula is false."""
    for target, sigma in ((0.01, 243.7854), (10, 0.499889), (100, 0.0946699), (1000, 0.0245818)):
        found = calibrate("gaussian", epsilon=target, delta=1e-5)
        assert found.noise_multiplier == approx(sigma, 1e-5)
        assert epsilon(found, delta=1e-5).upper <= target


def test_b19_textbook_formula_understates_delta():
    assert delta(Gaussian(0.484481), epsilon=10).upper == approx(2.265e-5, 1e-3)
    assert epsilon(Gaussian(0.484481), delta=1e-5).upper == approx(10.394, 1e-4)
    assert delta(Gaussian(math.sqrt(2 * math.log(1.25e5)) / 100), epsilon=100).upper == approx(0.99999997, 1e-7)


def test_b23_no_sampling_is_plain_composition():
    """B23: q=1, σ=2, T=10, δ=1e-5: exact 7.511276, Rényi 8.079 (no log 0 at q=1)."""
    assert epsilon(Gaussian(2.0), delta=1e-5, steps=10).upper == approx(7.511276, 1e-6)
    assert epsilon(Gaussian(2.0), delta=1e-5, steps=10, accountant="rdp").upper == approx(8.079, 1e-3)


def test_b33_fixed_partition_has_no_amplification():
    """B33: shuffled fixed batches are accounted with q = 1 (one epoch = one use of a record): 4.3772, not 0.7180."""
    assert epsilon(Gaussian(1.0), delta=1e-5, steps=1).upper == approx(4.3772, 1e-4)
    poisson = epsilon(Gaussian(1.0), delta=1e-5, steps=100, sampling_rate=0.01)
    assert 0.7180 <= poisson.upper <= 1.2145


def test_deltas_interval_brackets_the_exact_value():
    lower, _, upper = delta(Gaussian(1.0), epsilon=4.0)
    exact = float(gaussian_delta(4.0, 1.0))
    assert lower <= exact <= upper <= exact * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 2000.0])
@pytest.mark.parametrize("steps", [1, 10**6])
def test_extremes_are_finite(sigma, steps):
    value = epsilon(Gaussian(sigma), delta=1e-14, steps=steps)
    assert 0 <= value.lower <= value.upper < math.inf
