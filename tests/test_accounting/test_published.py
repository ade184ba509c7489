"""The published LMO bound in its domain, the published procedure outside it, and what both are worth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting import epsilon
from optnoise.accounting.published import (
    in_domain,
    published_curve,
    published_epsilon,
    reproduce_published_epsilon,
)
from optnoise.mechanisms import Laplace, ScaleMixture, parse
from references import approx

FILE_03 = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
FILE_015 = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=7.5,k=1,rate=0.5,low=0,high=1")

mixtures = st.builds(
    ScaleMixture,
    gamma_weight=st.floats(0.1, 1.8),
    gamma_shape=st.floats(0.3, 9.0),
    gamma_scale=st.floats(0.5, 2.0),
    exponential_weight=st.floats(0.1, 1.8),
    exponential_rate=st.floats(0.1, 5.0),
    uniform_weight=st.floats(0.1, 1.8),
    uniform_low=st.floats(0.0, 1.0),
    uniform_high=st.floats(1.01, 2.0),
)


def test_worked_example_published_inside_and_outside_its_domain():
    """File labelled ε=0.3, δ=1e-10: the procedure prints 0.2932 at order 128; in the domain (orders < 21) 1.3077."""
    printed = reproduce_published_epsilon(FILE_03, delta=1e-10)
    assert printed.epsilon == approx(0.2932, 2e-4)
    assert printed.order == 128
    assert not printed.in_domain
    assert published_epsilon(FILE_03, delta=1e-10) == approx(1.3077, 5e-5)


def test_second_worked_example_is_false_for_one_scalar_release():
    """File labelled 0.15: printed 0.1489, exact 1.2309."""
    printed = reproduce_published_epsilon(FILE_015, delta=1e-10)
    assert printed.epsilon == approx(0.1489, 5e-4)
    assert epsilon(FILE_015, delta=1e-10, dimension=1).lower > 8 * printed.epsilon


def test_domain_is_where_the_average_is_finite():
    orders = np.array([2.0, 20.9, 21.0, 21.1, 128.0])
    assert in_domain(FILE_03, orders).tolist() == [True, True, False, False, False]
    assert np.isinf(published_curve(FILE_03, orders)).tolist() == [False, False, True, True, True]


def test_curve_equals_monte_carlo_over_the_inverse_scale():
    """R(α) averages the Laplace divergence over u: 2·10^6 draws of u, no closed form."""
    rng = np.random.default_rng(1)
    u = (
        0.1 * rng.gamma(1.0, 0.5, 2_000_000)
        + 0.1 * rng.exponential(0.2, 2_000_000)
        + 0.1 * rng.uniform(1, 2, 2_000_000)
    )
    for a in (1.5, 3.0, 6.0):
        mean = np.mean((a * np.exp((a - 1) * u) + (a - 1) * np.exp(-a * u)) / (2 * a - 1))
        assert published_curve(FILE_03, np.array([a]))[0] == approx(math.log(mean) / (a - 1), 2e-3)


@given(mixtures, st.lists(st.floats(1.05, 200), min_size=1, max_size=8))
def test_jensen_plain_laplace_is_never_worse_under_the_published_bound(mixture, orders):
    """u0 = E[u]: no larger divergence at every order, no larger E|x| (= 1/u0 <= E[1/u])."""
    laplace = Laplace(1 / mixture.mean_inverse_scale)
    bound = published_curve(mixture, np.array(orders))
    for order, value in zip(orders, bound, strict=True):
        assert laplace.renyi_divergence(order, 1.0) <= value * (1 + 1e-9)
    assert laplace.mean_abs <= mixture.mean_abs * (1 + 1e-9)
    assert laplace.variance <= mixture.variance * (1 + 1e-9)


@given(mixtures)
def test_the_exact_scalar_value_lies_below_the_bound_in_its_domain(mixture):
    assert epsilon(mixture, delta=1e-6, dimension=1).upper <= published_epsilon(mixture, delta=1e-6) * (1 + 1e-9)


def test_bad_delta_is_refused():
    with pytest.raises(ValueError, match="delta"):
        published_epsilon(FILE_03, delta=0)
    with pytest.raises(ValueError, match="delta"):
        reproduce_published_epsilon(FILE_03, delta=2)
