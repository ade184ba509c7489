"""What a problem accepts, what it costs, and its JSON document."""

import json
import math

import numpy as np
import pytest
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace
from optnoise.search import Problem
from optnoise.search.cell_costs import costs, shortlist, sweep_costs
from optnoise.search.cells import LAPLACE_CELL


def interquartile_range(mechanism):
    return float(2 * mechanism.quantile(0.75))


BAD = [
    ({"epsilon": 0}, "epsilon > 0, got epsilon=0"),
    ({"epsilon": math.inf}, "epsilon to be finite"),
    ({"epsilon": math.nan}, "epsilon=nan"),
    ({"epsilon": "1"}, "epsilon"),
    ({"delta": 0}, "0 < delta < 1, got delta=0"),
    ({"delta": 1.5}, "0 < delta < 1, got delta=1.5"),
    ({"steps": 0}, "steps >= 1, got steps=0"),
    ({"steps": 2.5}, "steps to be an integer, got steps=2.5"),
    ({"sampling_rate": 0}, "0 < sampling_rate <= 1, got sampling_rate=0"),
    ({"sampling_rate": 1.1}, "0 <= sampling_rate <= 1, got sampling_rate=1.1"),
    ({"dimension": 0}, "dimension >= 1, got dimension=0"),
    ({"dimension": -math.inf}, "dimension to be finite"),
    ({"dimension": None}, "dimension"),
    ({"adjacency": "neighbours"}, "adjacency to be one of add_or_remove_one, replace_one"),
    ({"cost": "entropy"}, "cost to be mean_abs, variance, usefulness:GAMMA"),
    ({"cost": "usefulness"}, "usefulness:GAMMA"),
    ({"cost": "usefulness:-1"}, "usefulness:GAMMA"),
    ({"cost": "usefulness:x"}, "usefulness:GAMMA"),
    ({"cost": 3}, "got cost=3"),
    ({"delta": 0.2, "sampling_rate": 0.1}, "expected delta < 0.1, the probability that a record is ever sampled"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[str(fields) for fields, _ in BAD])
def test_a_bad_argument_is_refused_with_name_value_and_rule(fields, message):
    with pytest.raises(ValueError, match=r".") as caught:
        Problem(**({"epsilon": 1.0, "delta": 1e-5} | fields))
    assert message in str(caught.value)


def test_costs_are_those_of_the_mechanism():
    noise = Laplace(2.0)
    assert Problem(1, 1e-5).cost_of(noise) == 2.0
    assert Problem(1, 1e-5, cost="variance").cost_of(noise) == 8.0
    assert Problem(1, 1e-5, cost="usefulness:3").cost_of(noise) == pytest.approx(math.exp(-1.5))
    assert Problem(1, 1e-5, cost=interquartile_range).cost_of(noise) == pytest.approx(4 * math.log(2))


def test_an_infinite_moment_costs_infinity_and_nan_is_refused():
    assert Problem(1, 1e-5, cost="variance").cost_of(GammaLaplace(2.0, 1.0)) == math.inf
    assert Problem(1, 1e-5).cost_of(GammaLaplace(1.0, 1.0)) == math.inf
    with pytest.raises(ValueError, match="cost=nan"):
        Problem(1, 1e-5, cost=lambda mechanism: math.nan).cost_of(Gaussian(1.0))


@pytest.mark.parametrize("cost", ["mean_abs", "variance", "usefulness:0.4", interquartile_range])
def test_costs_of_cells_are_those_of_their_mechanisms(cost):
    problem = Problem(1, 1e-5, cost=cost)
    cells, factors = np.stack([LAPLACE_CELL, LAPLACE_CELL]), np.array([0.5, 3.0])
    expected = [problem.cost_of(Laplace(factor)) for factor in factors]
    np.testing.assert_allclose(costs(problem, cells, factors), expected, rtol=1e-7)
    assert list(shortlist(problem, cells, factors, 6)) == [0, 1]
    assert sweep_costs(problem, cells, factors).shape == (2,)


@pytest.mark.parametrize("dimension", [1, 7, math.inf])
@pytest.mark.parametrize("cost", ["variance", "usefulness:0.5"])
def test_the_document_reads_back_equal(dimension, cost):
    problem = Problem(0.5, 1e-6, steps=9, sampling_rate=0.25, dimension=dimension, cost=cost)
    text = json.dumps(problem.document(), allow_nan=False)
    assert Problem.from_document(json.loads(text)) == problem


def test_a_cost_function_is_kept_by_name_only():
    document = Problem(1, 1e-5, cost=interquartile_range).document()
    assert document["cost"] == "callable:interquartile_range"
    read = Problem.from_document(document)
    assert read.document() == document
    with pytest.raises(ValueError, match="'interquartile_range' in code"):
        read.cost_of(Gaussian(1.0))


@pytest.mark.parametrize(("change", "name"), [({"sigma": 1}, "sigma"), ({"steps": None}, "steps")])
def test_a_document_with_a_wrong_field_is_refused_by_name(change, name):
    with pytest.raises(ValueError, match=name):
        Problem.from_document(Problem(1, 1e-5).document() | change)
    with pytest.raises(ValueError, match="delta"):
        Problem.from_document({key: value for key, value in Problem(1, 1e-5).document().items() if key != "delta"})


def test_an_infinite_moment_stays_infinite_at_every_factor():
    heavy = np.array([[1.0, 1.0, 0.0, 0.0, 0.0]])  # no mean
    assert costs(Problem(1, 1e-5), heavy, np.array([0.0]))[0] == math.inf
