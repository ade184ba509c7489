"""Proven brackets over cells, against dense quadrature and closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting.cells import cut, fisher_information_bounds, largest_loss
from optnoise.accounting.f_divergence import renyi_bounds
from optnoise.accounting.sampled_gaussian import sampled_gaussian_renyi
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse
from references import approx, renyi

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
NOISES = [Laplace(1.3), GammaLaplace(2.5, 0.25), GammaLaplace(6.0, 0.5), LMO]


@given(
    scale=st.floats(0.05, 50),
    shift=st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 2.0]),
    order=st.sampled_from([1.001, 1.5, 2.0, 8.0, 100.0, 3000.0]),
)
def test_bracket_holds_the_closed_laplace_value(scale, shift, order):
    lower, upper = renyi_bounds(cut(Laplace(scale), shift), np.array([order]), sampling_rate=1.0, remove=True)
    exact = Laplace(scale).renyi_divergence(order, shift)
    assert lower[0] <= exact * (1 + 1e-9)
    assert upper[0] >= exact * (1 - 1e-9)
    assert upper[0] <= exact * 1.05 + 1e-14


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("rate", [1.0, 0.3, 0.001])
def test_bracket_holds_dense_quadrature(noise, rate, remove):
    for order in (1.3, 2.0, 9.0):
        exact = renyi(noise, order, 1.0, rate=rate, remove=remove)
        lower, upper = renyi_bounds(cut(noise, 1.0), np.array([order]), sampling_rate=rate, remove=remove)
        assert lower[0] * (1 - 2e-6) <= exact <= upper[0] * (1 + 2e-6)
        assert upper[0] <= lower[0] * 1.001


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_remove_is_never_below_add(noise):
    """The theorem in `accounting.poisson`: symmetric pairs, every order, every rate."""
    orders = np.array([1.01, 1.5, 2.0, 5.0, 40.0])
    for rate in (1e-4, 0.05, 0.5, 0.95):
        cells = cut(noise, 1.0)
        lower_remove, _ = renyi_bounds(cells, orders, sampling_rate=rate, remove=True)
        _, upper_add = renyi_bounds(cells, orders, sampling_rate=rate, remove=False)
        assert np.all(upper_add <= lower_remove * (1 + 1e-3))


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_masses_add_up_to_the_half_lines(noise):
    cells = cut(noise, 0.8)
    assert np.exp(cells.log_p).sum() == approx(noise.cdf(0.4), 1e-10)
    assert np.exp(cells.log_q).sum() == approx(noise.cdf(-0.4), 1e-10)


def test_vectorised_shifts_equal_single_ones():
    many = renyi_bounds(cut(LMO, [0.1, 0.7]), np.array([2.0, 5.0]), sampling_rate=1.0, remove=True)[1]
    for column, shift in enumerate((0.1, 0.7)):
        single = renyi_bounds(cut(LMO, shift), np.array([2.0, 5.0]), sampling_rate=1.0, remove=True)[1]
        assert many[:, column] == approx(single, 1e-13)


@pytest.mark.parametrize("noise", [*NOISES, GammaLaplace(0.3, 1.0)], ids=repr)
def test_fisher_information_bracket(noise):
    lower, upper = fisher_information_bounds(noise)
    assert lower <= noise.fisher_information <= upper <= lower * (1 + 1e-4)


def test_largest_loss_is_at_zero():
    x = np.linspace(-30, 30, 6001)
    for noise in NOISES:
        assert largest_loss(noise, 1.0) >= np.max(noise.log_density(x) - noise.log_density(x - 1.0)) - 1e-12
    assert largest_loss(Gaussian(1.0), 1.0) == math.inf


@pytest.mark.parametrize(
    ("sigma", "rate", "order"),
    [(1.0, 0.2, 1.3), (0.1, 0.01, 1.3), (2.0, 0.01, 5.5), (0.4, 0.005, 3.4), (1.1, 0.004, 10.5)],
)
def test_sampled_gaussian_at_real_orders_is_a_tight_upper_bound(sigma, rate, order):
    """dp-accounting drops orders 1.1 to 1.7 at q=0.2, σ=1; here they are integrated."""
    exact = renyi(Gaussian(sigma), order, 1.0, rate=rate)
    upper = float(sampled_gaussian_renyi(1 / sigma, rate, np.array([order]))[0])
    assert exact * (1 - 1e-6) <= upper <= exact * (1 + 1e-6)


def test_sampled_gaussian_orders_at_once_are_the_orders_one_by_one():
    """Whatever the order of the orders, from near 1 to so many terms that the unsampled bound answers."""
    orders = np.array([64.0, 1.001, 5e5, 2.0, 300.0, 1e8, 1.5])
    together = sampled_gaussian_renyi(3.0, 0.01, orders)
    alone = [float(sampled_gaussian_renyi(3.0, 0.01, np.array([order]))[0]) for order in orders]
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    assert together[5] == 1e8 * 9 / 2
