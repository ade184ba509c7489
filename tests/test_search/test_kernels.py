"""The kernels that rank shapes, against their NumPy twins and against other packages' answers."""

import math

import numpy as np
import pytest
from optnoise.accounting import delta
from optnoise.mechanisms import Laplace
from optnoise.search import Problem, grid, reference
from optnoise.search.budget import FisherInformation, OneRelease, RenyiBudget, budget_for
from optnoise.search.cells import LAPLACE_CELL, log_density, mechanism_of
from optnoise.search.one_release import hockey_stick, largest_one_release_shifts, unsampled
from optnoise.search.renyi_kernel import binomial_weights, largest_shifts

HEAVY = np.array([0.47, 0.6 / 0.47, 0.3, 0.0, 0.2])
EXTREME = np.array([1e4, 0.5e-4, 1e-4, 0.4999, 0.0])


def shapes() -> np.ndarray:
    _, cells = grid.distinct_shapes()
    chosen = cells[np.random.default_rng(3).integers(0, len(cells), 6)]
    return np.vstack([chosen, HEAVY, EXTREME, LAPLACE_CELL])


@pytest.mark.parametrize("cell", shapes(), ids=str)
def test_the_density_is_the_mechanism_s(cell):
    x = np.concatenate([[0.0], np.geomspace(1e-8, 1e4, 60)])
    ours = [log_density(s, *cell) for s in x]
    np.testing.assert_allclose(ours, mechanism_of(cell).log_density(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("cell", shapes(), ids=str)
@pytest.mark.parametrize(("order", "budget", "rate"), [(1.3, 0.5, 1.0), (7, 1e-5, 0.01), (30.5, 0.2, 1.0)])
def test_the_largest_shift_spends_the_log_moment_of_the_twin(cell, order, budget, rate):
    shift = largest_shifts(cell[None], order=order, budget=budget, sampling_rate=rate, dimension=1, tolerance=1e-9)[0]
    assert math.log1p(reference.excess_moment(mechanism_of(cell), shift, order, rate)) == pytest.approx(
        budget, rel=1e-6
    )


@pytest.mark.parametrize("cell", shapes(), ids=str)
@pytest.mark.parametrize(("order", "rate", "dimension"), [(2, 0.3, 2), (12, 0.01, 10), (5, 0.5, 1000)])
def test_the_largest_shift_of_a_sampled_product_spends_that_of_the_twin(cell, order, rate, dimension):
    shift = largest_shifts(
        cell[None], order=order, budget=1e-3, sampling_rate=rate, dimension=dimension, tolerance=1e-9
    )[0]
    twin = reference.excess_sampled_product(mechanism_of(cell), shift, order, rate, dimension)
    assert math.log1p(twin) == pytest.approx(1e-3, rel=1e-6)


def test_many_cells_give_what_each_gives_alone():
    _, cells = grid.distinct_shapes()
    chosen = cells[:: len(cells) // 50]
    options = {"order": 6.0, "budget": 0.01, "sampling_rate": 0.1, "dimension": 1, "tolerance": 1e-10}
    alone = [largest_shifts(cell[None], **options)[0] for cell in chosen]
    np.testing.assert_allclose(largest_shifts(chosen, **options), alone, rtol=1e-12)
    options = {"epsilon": 1.0, "delta": 1e-3}
    alone = [largest_one_release_shifts(cell[None], **options)[0] for cell in chosen]
    np.testing.assert_allclose(largest_one_release_shifts(chosen, **options), alone, rtol=1e-12)


@pytest.mark.parametrize("shift", [1e-3, 0.1, 1.0, 4.0])
@pytest.mark.parametrize("order", [1.1, 2.0, 7.5, 60.0])
def test_the_twin_agrees_with_the_closed_formula_of_the_laplace(order, shift):
    divergence = math.log1p(reference.excess_moment(Laplace(1.0), shift, order, 1.0)) / (order - 1)
    assert divergence == pytest.approx(Laplace(1.0).renyi_divergence(order, shift), rel=1e-7)


def test_binomial_weights_sum_to_one():
    weights = binomial_weights(40, 0.1)
    assert weights.shape == (41,)
    assert weights.sum() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("cell", shapes(), ids=str)
@pytest.mark.parametrize(("shift", "epsilon"), [(0.5, 0.1), (2.0, 1.0), (3.0, 0.01)])
def test_delta_of_one_release_is_the_twin_s(cell, shift, epsilon):
    ours = hockey_stick(shift, epsilon, tuple(cell))
    assert ours == pytest.approx(reference.hockey_stick(mechanism_of(cell), shift, epsilon), abs=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "target", "rate"), [(1.0, 1e-5, 1.0), (0.3, 1e-10, 1.0), (2.0, 0.05, 1.0), (1.0, 1e-4, 0.01)]
)
def test_one_release_is_scaled_to_its_exact_delta(epsilon, target, rate):
    cells = shapes()
    shifts = largest_one_release_shifts(cells, epsilon=epsilon, delta=target, sampling_rate=rate, tolerance=1e-10)
    for cell, shift in zip(cells, shifts, strict=True):
        noise = mechanism_of(cell).scaled(1 / shift)
        quieter = delta(noise.scaled(1 + 1e-7), epsilon=epsilon, sampling_rate=rate, dimension=1)
        assert quieter.upper <= target
        louder = delta(noise.scaled(1 - 1e-7), epsilon=epsilon, sampling_rate=rate, dimension=1)
        assert louder.upper >= target


def test_a_pure_budget_is_met_at_the_ratio_of_densities():
    cells = shapes()
    shifts = largest_one_release_shifts(cells, epsilon=1.7, delta=0.0)
    for cell, shift in zip(cells, shifts, strict=True):
        density = mechanism_of(cell).log_density(np.array([0.0, shift]))
        assert density[0] - density[1] == pytest.approx(1.7, rel=1e-9)


def test_sampling_is_undone_for_one_release():
    inner, inner_delta = unsampled(1.0, 1e-6, 0.01)
    assert inner == pytest.approx(math.log1p(math.expm1(1.0) / 0.01), rel=1e-12)
    assert inner_delta == pytest.approx(1e-4)
    assert unsampled(1.0, 1e-6, 1.0) == pytest.approx((1.0, 1e-6))


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (Problem(1, 1e-5), OneRelease),
        (Problem(1, 1e-5, sampling_rate=0.1), OneRelease),
        (Problem(1, 1e-5, dimension=math.inf), FisherInformation),
        (Problem(1, 1e-5, dimension=10**7), FisherInformation),
        (Problem(1, 1e-5, steps=3), RenyiBudget),
        (Problem(0.01, 1e-5, steps=3, dimension=3, sampling_rate=0.1), FisherInformation),
        (Problem(1, 1e-5, dimension=3, sampling_rate=0.1, steps=9), RenyiBudget),
    ],
    ids=str,
)
def test_each_problem_has_its_budget_and_noise_on_it_grows_as_the_budget_shrinks(problem, kind):
    budget = budget_for(problem)
    assert isinstance(budget, kind)
    smaller = budget_for(Problem(problem.epsilon / 2, **problem.budget()))
    cells = shapes()
    assert np.all(smaller.factors(cells) > 1.2 * budget.factors(cells))


def test_replace_one_needs_twice_the_noise():
    cells = shapes()
    for options in ({}, {"steps": 5}, {"dimension": math.inf}):
        one = budget_for(Problem(1, 1e-5, **options)).factors(cells, tolerance=1e-9)
        two = budget_for(Problem(1, 1e-5, adjacency="replace_one", **options)).factors(cells, tolerance=1e-9)
        np.testing.assert_allclose(two, 2 * one, rtol=1e-6)


def test_one_release_at_a_huge_epsilon_keeps_its_digits():
    # heavy tails: the shift is e^58 mean scales, where both ends of the shifted interval have one tail probability
    shift = largest_one_release_shifts(HEAVY[None], epsilon=150.0, delta=1e-3, tolerance=1e-9)[0]
    assert hockey_stick(shift, 150.0, tuple(HEAVY)) == pytest.approx(1e-3, rel=1e-6)
    noise = mechanism_of(HEAVY).scaled(1 / shift)
    assert delta(noise, epsilon=150.0, dimension=1).upper == pytest.approx(1e-3, rel=1e-4)
