"""The linear program over all mixing laws of Laplace noise under pure DP, and its certificate."""

import math

import numpy as np
import pytest
from optnoise.search import best_laplace_mixture
from references import approx


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0, 3.0])
def test_no_gain_up_to_three(epsilon):
    low, high = best_laplace_mixture(epsilon).ratio
    assert 0.999 <= low <= high <= 1 + 1e-9


def test_gain_at_six():
    low, high = best_laplace_mixture(6.0).ratio
    assert low <= 0.71 <= high + 2e-3
    assert high - low < 1e-3


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 4.0, 6.0, 10.0])
def test_the_certificate_lies_below_and_the_law_keeps_its_promise(epsilon):
    """The density of the returned law, written out on a grid: loss <= ε, E|x| by quadrature = upper."""
    result = best_laplace_mixture(epsilon)
    assert result.lower <= result.upper <= result.laplace * (1 + 1e-9)
    assert result.staircase <= result.upper
    u, w = np.array(result.inverse_scales), np.array(result.weights)
    x = np.linspace(-40 / epsilon, 40 / epsilon, 40_001)

    def log_density(at):
        return np.log(np.sum(w * u / 2 * np.exp(-u * np.abs(at[:, None])), axis=1))

    assert np.max(log_density(x) - log_density(x - 1)) <= epsilon + 1e-9
    assert float(np.max(log_density(np.zeros(1)) - log_density(np.ones(1)))) >= epsilon - 1e-5
    assert w.sum() == approx(1, 1e-12)


def test_a_finer_grid_changes_nothing_and_random_laws_do_not_beat_the_certificate():
    coarse, fine = best_laplace_mixture(6.0, points=1000), best_laplace_mixture(6.0, points=8000)
    assert coarse.upper == approx(fine.upper, 2e-3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        u = np.exp(rng.uniform(-3, 6, 3))
        w = rng.dirichlet(np.ones(3))
        if w @ (u * np.expm1(6.0 - u)) >= 0:
            assert w @ (1 / u) >= coarse.lower


def test_the_staircase_value_is_its_closed_form():
    assert best_laplace_mixture(2 * math.log(2)).staircase == approx(2 / 3, 1e-12)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"epsilon": 0}, "epsilon"), ({"epsilon": 31}, "epsilon"), ({"epsilon": 1, "points": 5}, "points")],
)
def test_bad_arguments_are_refused_by_name(arguments, name):
    with pytest.raises(ValueError, match=name):
        best_laplace_mixture(**arguments)
