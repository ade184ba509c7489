"""Rényi curves, Poisson sampling of a curve, and conversions."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import epsilon
from optnoise.accounting.conversion import best_epsilon, best_log_delta, epsilon_at, log_delta_at
from optnoise.accounting.event import Event
from optnoise.accounting.poisson import sampled_curve
from optnoise.accounting.renyi import renyi_curve
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, Mechanism, parse
from references import approx, renyi

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")


def closed(mechanism):
    return lambda orders: np.array([mechanism.renyi_divergence(float(order), 1.0) for order in orders])


def binomial_sum(mechanism, order, rate):
    """Formula (*) of `accounting.poisson` in 60 digits."""
    with mp.workdps(60):
        q = mp.mpf(rate)
        terms = [
            mp.binomial(order, k)
            * (1 - q) ** (order - k)
            * q**k
            * mp.exp((k - 1) * mp.mpf(mechanism.renyi_divergence(k, 1.0)) if k > 1 else 0)
            for k in range(order + 1)
        ]
        return float(mp.log(sum(terms)) / (order - 1))


@given(
    st.sampled_from([Gaussian(0.7), Gaussian(5.0), Laplace(0.5), Laplace(9.0)]),
    st.integers(2, 60),
    st.floats(1e-6, 0.9),
)
@settings(max_examples=50)
def test_binomial_sum_matches_mpmath(mechanism, order, rate):
    value = sampled_curve(closed(mechanism), rate)(np.array([float(order)]))[0]
    exact = binomial_sum(mechanism, order, rate)
    assert exact * (1 - 1e-9) <= value <= exact * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", [Laplace(0.7), GammaLaplace(4.0, 0.3), LMO, Gaussian(1.5)], ids=repr)
@pytest.mark.parametrize("rate", [0.02, 0.4])
def test_sampled_curve_is_exact_for_remove_and_above_add(mechanism, rate):
    base = lambda orders: np.array([Mechanism.renyi_divergence(mechanism, float(order), 1.0) for order in orders])  # noqa: E731
    for order in (2.0, 3.0, 6.0):
        value = sampled_curve(base, rate)(np.array([order]))[0]
        assert value == approx(renyi(mechanism, order, 1.0, rate=rate, remove=True), 1e-5)
        assert value >= renyi(mechanism, order, 1.0, rate=rate, remove=False)


@given(st.floats(1.01, 40), st.floats(0.001, 0.5))
@settings(max_examples=30)
def test_chords_between_integers_are_above_the_curve(order, rate):
    value = sampled_curve(closed(Laplace(0.8)), rate)(np.array([order]))[0]
    assert value >= renyi(Laplace(0.8), order, 1.0, rate=rate, points=40_001) * (1 - 1e-4)


@pytest.mark.parametrize("dimension", [1, 7, 10**6, math.inf])
@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_curves_rise_with_order_and_end_below_the_largest_loss(dimension, rate):
    curve = renyi_curve(Event(LMO, 1.0, 1, rate, dimension))
    values = curve.at(np.array([1.5, 2.0, 3.0, 5.0, 17.0, 100.0]))
    assert np.all(np.diff(values) >= 0)
    assert values[-1] <= curve.largest_loss * (1 + 1e-9)


def test_largest_loss_of_laplace_in_dimension_is_its_l1_bound():
    curve = renyi_curve(Event(Laplace(4.0), 1.0, 1, 1.0, 25))
    assert curve.largest_loss == approx(5 / 4, 1e-12)
    sampled = renyi_curve(Event(Laplace(4.0), 1.0, 1, 0.1, 25))
    assert sampled.largest_loss == approx(math.log1p(0.1 * math.expm1(5 / 4)), 1e-12)


def test_order_infinity_makes_pure_dp_finite_at_tiny_delta():
    assert epsilon(Laplace(10.0), delta=1e-300, steps=3, dimension=1).upper <= 0.3 * (1 + 1e-9)
    assert epsilon(Laplace(10.0), delta=1e-300, steps=2, dimension=4).upper <= 0.4 * (1 + 1e-9)


@given(st.floats(1.001, 500), st.floats(1e-6, 50), st.floats(1e-30, 0.5))
def test_conversions_are_inverse(order, divergence, target):
    value = epsilon_at(np.array([order]), np.array([divergence]), math.log(target))[0]
    assert log_delta_at(np.array([order]), np.array([divergence]), value)[0] == approx(math.log(target), 1e-9)


@pytest.mark.parametrize("rho", [1e-7, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("target", [1e-30, 1e-5, 0.1])
def test_the_order_grid_grows_to_the_best_order(rho, target):
    """Gaussian curve R = ρα: dense minimisation over α; no cap, neither at 63 nor anywhere."""
    found, _ = best_epsilon(lambda orders: rho * orders, math.log(target))
    orders = 1 + np.geomspace(1e-8, 1e8, 2_000_001)
    assert found == pytest.approx(max(0.0, float(np.min(epsilon_at(orders, rho * orders, math.log(target))))), rel=1e-3)
    log_delta, _ = best_log_delta(lambda orders: rho * orders, found)
    assert log_delta <= math.log(target) * (1 - 1e-9) or found == 0


def test_side_finding_3_no_floor_from_an_order_cap():
    """Orders capped at 63 could not go below 0.1029 at δ=1e-5; more noise must always help."""
    assert epsilon(Gaussian(1e4), delta=1e-5, accountant="rdp").upper < 1e-3


def test_b25_improved_conversion_on_the_full_grid():
    """B25: σ=1.54, q=1024/50000, T=1464, δ=1e-5: 2.6083 (new formula, full grid); exact 2.3863."""
    value = epsilon(Gaussian(1.54), delta=1e-5, steps=1464, sampling_rate=1024 / 50000, accountant="rdp")
    assert 2.3863 <= value.upper <= 2.6083 * 1.0005


def test_b05_b11_long_runs_do_not_raise():
    """B05: exact 4.984 and 38.170, Rényi 5.756 and 43.363 on the old grid; B11: exact 1.96081, Rényi 2.169."""
    for sigma, rate, steps, target, exact, rdp in (
        (1.0, 0.2, 10, 1e-5, 4.984, 5.756),
        (1.0, 0.2, 500, 1e-5, 38.170, 43.363),
        (3.0, 0.2, 50, 1 / 48000, 1.96081, 2.17),
    ):
        value = epsilon(Gaussian(sigma), delta=target, steps=steps, sampling_rate=rate)
        assert value.lower <= exact <= value.upper <= rdp * 1.001


def test_b07_tiny_delta_stays_valid_and_monotone():
    """B07: δ near 1e-18: 0.067214 and 0.067186 exact, Rényi with orders to 256 gives 0.146."""
    ask = lambda d: epsilon(Gaussian(4.0), delta=d, steps=10000, sampling_rate=0.00033)  # noqa: E731
    first, second = ask(1.1e-18), ask(1.13e-18)
    assert first.lower <= 0.067214 <= first.upper <= 0.147
    assert second.upper <= first.upper


def test_agrees_with_dp_accounting_at_integer_orders():
    """An outside opinion on the same orders; its conversion is the same formula."""
    accountant = RdpAccountant(orders=list(range(2, 200)))
    accountant.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.3)), 700)
    theirs = accountant.get_epsilon(1e-6)
    ours = epsilon(Gaussian(1.3), delta=1e-6, steps=700, sampling_rate=0.01, accountant="rdp").upper
    assert theirs * 0.98 <= ours <= theirs * (1 + 1e-9)
