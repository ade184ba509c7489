"""The published grid: its size, its numbering, and which candidates are one shape."""

import numpy as np
import pytest
from optnoise.mechanisms import GammaLaplace
from optnoise.search import grid
from optnoise.search.cells import cell_of, mean_inverse_scale, mechanism_of, normalised, statistics, tail_probability

WORKED_EXAMPLE = int(np.ravel_multi_index((0, 0, 0, 6, 3, 1), grid.AXES))
"""a1 = a3 = a4 = 0.1, (θ, k) = (0.5, 1), rate 5, uniform on [1, 2]: the parameter file labelled ε = 0.3."""


def some_cells(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, len(grid.distinct_shapes()[0]), count)]


def test_the_grid_has_its_published_size():
    assert grid.SIZE == 18**3 * 7 * 4 * 2 == 326_592


def test_the_worked_example_is_in_the_grid():
    mixture = grid.candidate(WORKED_EXAMPLE)
    assert mixture.spec()["parameters"] == {
        "gamma_weight": 0.1,
        "gamma_shape": 1.0,
        "gamma_scale": 0.5,
        "exponential_weight": 0.1,
        "exponential_rate": 5.0,
        "uniform_weight": 0.1,
        "uniform_low": 1.0,
        "uniform_high": 2.0,
    }


def test_cells_are_the_candidates():
    cells = grid.cells()
    assert cells.shape == (grid.SIZE, 5)
    for index in (0, WORKED_EXAMPLE, 123_456, grid.SIZE - 1):
        np.testing.assert_allclose(cells[index], cell_of(grid.candidate(index)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("index", [-1, grid.SIZE, 1.5, True])
def test_an_index_outside_the_grid_is_refused_by_name(index):
    with pytest.raises(ValueError, match="index"):
        grid.candidate(index)


def test_every_candidate_has_its_shape_among_the_distinct_ones():
    _, distinct = grid.distinct_shapes()
    known = {_signature(cell) for cell in distinct}
    assert len(known) == len(distinct)  # no two of them are the same noise up to scale
    sample = normalised(grid.cells()[np.random.default_rng(1).integers(0, grid.SIZE, 3000)])
    assert {_signature(cell) for cell in sample} <= known


def _signature(cell: np.ndarray) -> tuple:
    """A normalised shape as rounded numbers, the two exponential terms of k = 1 in order."""
    k, g1, g3, low, width = cell
    if k == 1:
        g1, g3 = sorted((g1, g3))
    return tuple(round(float(value), 9) + 0.0 for value in (k, g1, g3, low, width))


def test_statistics_agree_with_the_mechanism():
    _, cells = grid.distinct_shapes()
    chosen = cells[some_cells(25)]
    assert np.allclose(mean_inverse_scale(chosen), 1, rtol=1e-14)
    measured = statistics(chosen)
    for cell, row in zip(chosen, measured, strict=True):
        mechanism = mechanism_of(cell)
        expected = mechanism.mean_abs, mechanism.variance, mechanism.fisher_information
        np.testing.assert_allclose(row, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [1.0001, 1.05, 2.0001, 2.1, 3.0])
def test_moments_are_right_close_to_where_they_cease_to_exist(shape):
    noise = GammaLaplace(shape=shape, scale=1 / shape)
    cell = np.array([[shape, 1 / shape, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(
        statistics(cell)[0], [noise.mean_abs, noise.variance, noise.fisher_information], rtol=2e-3
    )


def test_few_and_many_cells_run_different_loops_to_equal_results():
    _, cells = grid.distinct_shapes()
    chosen = cells[some_cells(40)]
    alone = np.concatenate([statistics(cell[None]) for cell in chosen])
    assert np.array_equal(statistics(chosen), alone)


def test_moments_that_do_not_exist_are_infinite():
    heavy = np.array([[1.5, 1 / 1.5, 0.0, 0.0, 0.0], [0.8, 1.25, 0.0, 0.0, 0.0]])  # tails of order x^−1.5 and x^−0.8
    moments = statistics(heavy)
    assert np.isfinite(moments[0, 0])
    assert np.isinf(moments[0, 1])
    assert np.isinf(moments[1, :2]).all()


def test_tail_probability_agrees_with_the_mechanism():
    _, cells = grid.distinct_shapes()
    chosen = cells[some_cells(10)]
    radius = np.geomspace(1e-3, 1e3, 10)
    expected = [2 * np.exp(mechanism_of(cell).log_tail(r)) for cell, r in zip(chosen, radius, strict=True)]
    np.testing.assert_allclose(tail_probability(chosen, radius), expected, rtol=1e-12)
