"""The `published` objective: the kernel, its domain, and what Jensen says about it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting import published
from optnoise.mechanisms import ScaleMixture
from optnoise.search import grid, laplace_below, least_conversion, published_sweep
from optnoise.search.published import published_epsilon_numpy

DELTA = 1e-10
WORKED_EXAMPLE = int(np.ravel_multi_index((0, 0, 0, 6, 3, 1), grid.AXES))
positive = st.floats(0.01, 10)


@pytest.fixture(scope="module")
def sweep():
    return published_sweep(delta=DELTA, progress=False)


def test_the_kernel_equals_its_numpy_twin(sweep):
    reached = np.flatnonzero(np.isfinite(sweep.epsilon))
    rng = np.random.default_rng(0)
    for index in (*rng.choice(reached, 200), *rng.integers(0, grid.SIZE, 200)):
        epsilon, order = published_epsilon_numpy(int(index), delta=DELTA)
        assert order == sweep.order[index]
        assert epsilon == pytest.approx(sweep.epsilon[index], rel=1e-12)


def test_the_kernel_agrees_with_the_accounting_package(sweep):
    for index in np.random.default_rng(1).choice(np.flatnonzero(np.isfinite(sweep.epsilon)), 30):
        order = int(sweep.order[index])
        curve = float(published.published_curve(grid.candidate(int(index)), np.array([float(order)]))[0])
        assert curve + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1) == pytest.approx(
            sweep.epsilon[index], rel=1e-12
        )


def test_an_order_on_the_pole_is_outside_the_domain(sweep):
    # θ·a1·(α−1) = 0.05·20 = 1 exactly at α = 21
    assert sweep.order[WORKED_EXAMPLE] == 20


def test_the_worked_example_over_integer_orders(sweep):
    mixture = grid.candidate(WORKED_EXAMPLE)
    over_real_orders = published.published_epsilon(mixture, delta=DELTA)
    assert over_real_orders == pytest.approx(1.3077, abs=5e-5)
    assert sweep.epsilon[WORKED_EXAMPLE] == pytest.approx(1.308297, abs=1e-6)
    assert over_real_orders < sweep.epsilon[WORKED_EXAMPLE]


def test_no_candidate_reaches_0_3_inside_the_domain(sweep):
    assert len(sweep.reaching(0.3)) == 0
    assert sweep.smallest_epsilon > least_conversion(DELTA, pole=0.05) > 0.95
    assert grid.cells()[:, 1].min() >= 0.05  # a1·θ of every candidate
    # the published procedure prints less than 0.3 for this candidate by leaving the domain
    outside = published.reproduce_published_epsilon(grid.candidate(WORKED_EXAMPLE), delta=DELTA)
    assert outside.epsilon < 0.3
    assert not outside.in_domain


def test_reaching_lists_the_candidates_at_or_below(sweep):
    found = sweep.reaching(1.5)
    assert WORKED_EXAMPLE in found
    assert np.array_equal(found, np.flatnonzero(sweep.epsilon <= 1.5))


def test_a_larger_delta_never_raises_epsilon(sweep):
    larger = published_sweep(delta=1e-5, progress=False)
    finite = np.isfinite(sweep.epsilon)
    assert np.array_equal(finite, np.isfinite(larger.epsilon))
    assert np.all(larger.epsilon[finite] < sweep.epsilon[finite])


def test_the_progress_bar_goes_to_standard_error(capsys):
    published_sweep(delta=DELTA, progress=True)
    assert capsys.readouterr().out == ""


@given(
    k=positive,
    theta=positive,
    a1=positive,
    a3=positive,
    rate=positive,
    a4=positive,
    low=positive,
    share=st.floats(0.01, 0.99),
)
def test_jensen_plain_laplace_has_no_larger_published_bound(k, theta, a1, a3, rate, a4, low, share):
    mixture = ScaleMixture(a1, k, theta, a3, rate, a4, low, low + 1)
    laplace = laplace_below(mixture)
    for order in (1 + share / (a1 * theta), 1 + share * rate / a3, 2.0):
        bound = float(published.published_curve(mixture, np.array([order]))[0])
        assert laplace.renyi_divergence(order, 1.0) <= bound * (1 + 1e-9) + 1e-12
    assert laplace.mean_abs <= mixture.mean_abs * (1 + 1e-9)
    assert laplace.variance <= mixture.variance * (1 + 1e-9)


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan, math.inf, "1e-5"])
def test_a_bad_delta_is_refused_by_name(delta):
    with pytest.raises(ValueError, match="delta"):
        published_sweep(delta=delta, progress=False)


def test_the_floor_of_the_conversion_refuses_what_it_does_not_cover():
    with pytest.raises(ValueError, match=r"delta <= 0\.5"):
        least_conversion(0.6, pole=0.05)
    with pytest.raises(ValueError, match="pole"):
        least_conversion(DELTA, pole=0)
