"""Independent noise in many coordinates: the bound holds for every shift that one can try, and is not loose."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import epsilon
from optnoise.accounting.dimension import octave_orders, renyi_in_dimension
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, Mechanism, parse
from references import approx

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")


@given(
    scale=st.floats(0.1, 20),
    octave=st.integers(-2, 5),
    squares=st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=12),
)
@settings(max_examples=40)
def test_no_laplace_shift_of_norm_one_beats_the_bound(scale, octave, squares):
    """Σ r(Δ_i) in closed form for a random direction, one spike, and the even spread."""
    dimension = len(squares)
    shift = np.sqrt(np.array(squares) / np.sum(squares))
    even = np.full(dimension, dimension**-0.5)
    spike = np.eye(1, dimension)[0]
    bounds = renyi_in_dimension(Laplace(scale), 1.0, dimension, octave)
    unbounded = renyi_in_dimension(Laplace(scale), 1.0, math.inf, octave)
    for order, bound, every in zip(octave_orders(octave), bounds, unbounded, strict=True):
        worst = max(
            sum(Laplace(scale).renyi_divergence(order, float(t)) for t in direction)
            for direction in (shift, even, spike)
        )
        assert worst <= bound * (1 + 1e-12)
        assert bound <= every * (1 + 1e-9)


@pytest.mark.parametrize("noise", [LMO, GammaLaplace(4.0, 0.3)], ids=repr)
def test_bound_is_close_to_the_best_of_even_spreads(noise):
    """For 25 coordinates it lies between the even spread's value and 2 % above the best spread over m <= 25 of them."""
    orders = octave_orders(2)
    bound = renyi_in_dimension(noise, 1.0, 25, 2)
    for order, value in zip(orders[::6], bound[::6], strict=True):
        spreads = [m * Mechanism.renyi_divergence(noise, float(order), m**-0.5) for m in range(1, 26)]
        assert max(spreads) <= value <= max(spreads) * 1.02


def test_dimension_one_equals_the_scalar_curve():
    noise = GammaLaplace(4.0, 0.3)
    orders = octave_orders(1)
    bound = renyi_in_dimension(noise, 1.0, 1, 1)
    for order, value in zip(orders[::5], bound[::5], strict=True):
        exact = Mechanism.renyi_divergence(noise, float(order), 1.0)
        assert exact <= value <= exact * 1.02


def test_the_supremum_may_lie_at_a_positive_shift():
    """Gamma–Laplace k=0.3, θ=1, α=128: sup g(s)/s is about 7 % above α·I/2, so α·I/2 would not be a bound."""
    noise = GammaLaplace(0.3, 1.0)
    index = int(np.flatnonzero(octave_orders(6) == 129.0)[0]) if 129.0 in octave_orders(6) else 0
    order = octave_orders(6)[index]
    ratio = renyi_in_dimension(noise, 1.0, math.inf, 6)[index] / (order * noise.fisher_information / 2)
    assert 1.05 < ratio < 1.10


def test_small_shifts_give_the_fisher_limit():
    noise = Laplace(5.0)
    bound = renyi_in_dimension(noise, 1.0, math.inf, 2)
    assert bound == approx(octave_orders(2) * noise.fisher_information / 2, 0.01)


def test_replace_one_is_a_shift_of_two():
    wide = renyi_in_dimension(LMO, 2.0, 100, 2)
    assert wide == approx(4 * renyi_in_dimension(LMO, 1.0, 25, 2), 1e-9)  # 100·ĝ(4/100) = 4·25·ĝ(1/25)
    assert np.all(wide > renyi_in_dimension(LMO, 1.0, 100, 2))


def test_published_example_spread_over_many_coordinates():
    """Worked: ε tends to 1.3081, the ε of a Gaussian with variance 1/I; d = 100 about 1.263; scalar 0.23470."""
    every = epsilon(LMO, delta=1e-10, dimension=math.inf)
    assert every.lower == approx(1.3081, 1e-4)
    assert every.lower == approx(epsilon(Gaussian(math.sqrt(20.5750)), delta=1e-10).lower, 1e-5)
    assert every.upper < 1.3081 * 1.06
    hundred = epsilon(LMO, delta=1e-10, dimension=100)
    assert hundred.lower <= 1.263 <= hundred.upper < every.upper
    assert epsilon(LMO, delta=1e-10, dimension=1).upper == approx(0.23470, 1e-4)


@pytest.mark.parametrize("noise", [LMO, Laplace(3.0)], ids=repr)
def test_epsilon_rises_with_the_dimension(noise):
    values = [epsilon(noise, delta=1e-6, steps=3, dimension=d).upper for d in (2, 10, 10**3, 10**6, 10**9, math.inf)]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(values))


def test_other_densities_are_refused_by_name():
    from optnoise.accounting.dimension import require_dimension_bound

    with pytest.raises(ValueError, match="dimension bound needs a density with log-convex sides; gaussian"):
        require_dimension_bound(Gaussian(1.0))
