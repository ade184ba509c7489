"""The convex programs: gradients, agreement of three solvers, bounds that no noise undercuts, and the known marks."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from optnoise.accounting import calibrate, epsilon
from optnoise.mechanisms import Gaussian, Laplace, Tabulated
from optnoise.search import Constraint, Problem, SearchResult, search, with_optimum
from optnoise.search.budget import renyi_budgets
from optnoise.search.convex import convex_optimum
from optnoise.search.convex.certificate import CellProgram, Cells, certified
from optnoise.search.convex.cones import cone_optimum
from optnoise.search.convex.cost import LinearCost, linear_cost
from optnoise.search.convex.exact import influence, polished, to_noise
from optnoise.search.convex.functional import HockeyStick, KullbackLeibler, RenyiMoment
from optnoise.search.convex.knots import first_shape, fitted
from optnoise.search.convex.linear import certified_linear
from optnoise.search.convex.loglinear import LogLinear, Shape
from optnoise.search.convex.optimum import OrderOptimum
from scipy import integrate

SAMPLED = Problem(3.0, 1e-5, 1000, 0.01, 1, "variance")
FEW = Problem(3.0, 1e-5, 10, 1.0, 1, "variance")
COSTS = [LinearCost(2), LinearCost(1), LinearCost(0, 0.7)]


def renyi(problem: Problem, order: float) -> RenyiMoment:
    _, moment = renyi_budgets(problem, np.array([order]))
    return RenyiMoment(order, problem.sampling_rate, math.expm1(float(moment[0])))


def solved(functional, cost, start=None, scale=1.0) -> Shape:
    shape = fitted(first_shape(start or Laplace(scale), 1.0), functional, cost)
    program = LogLinear(shape.knots, functional, cost)
    slopes = program.minimise(shape.log_slopes, limit=math.log(functional.limit), iterations=200)
    return fitted(Shape(shape.knots, slopes), functional, cost)


@functools.cache
def certified_few(cost):
    functional = renyi(FEW, 8.0)
    return certified(solved(functional, cost, scale=3.0), functional, cost)


def log_value(shape: Shape, functional, cost):
    return LogLinear(shape.knots, functional, cost).value(shape.log_slopes)


# ---- functionals and the log-linear program --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "functional",
    [RenyiMoment(7.0, 0.01, 0.01), RenyiMoment(1.5, 1.0, 0.5), KullbackLeibler(0.3, 0.1), HockeyStick(0.5, 0.4, 0.01)],
    ids=lambda f: type(f).__name__,
)
def test_lines_support_the_functional(functional):
    """p·φ(m) >= u·p + v·p', equality at the ratio asked for."""
    generator = np.random.default_rng(0)
    ratio, others = generator.normal(0, 1.5, (2, 200))
    u, v = functional.supporting(ratio)
    for at in (ratio, others):
        value = functional.at(functional.sampled(at))[0]
        assert np.all(value >= u + v * np.exp(at) - 1e-9 * (np.abs(u) + np.abs(v) * np.exp(at)))
    touching = functional.at(functional.sampled(ratio))[0]
    np.testing.assert_allclose(u + v * np.exp(ratio), touching, rtol=1e-6, atol=1e-9)


def test_a_line_with_a_given_second_slope():
    functional = RenyiMoment(7.0, 0.01, 0.01)
    u, v = functional.supporting(np.array([-1.0, 0.0, 3.0]))
    again = functional.line_with(v)
    np.testing.assert_allclose(again[0], u, rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(again[1], v, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("functional", [RenyiMoment(7.0, 0.01, 0.01), KullbackLeibler(1.0, 0.1)], ids=str)
def test_value_and_gradient_of_the_log_linear_program(functional, cost):
    """Cost and G against adaptive quadrature of the same noise, gradients against differences."""
    knots = np.array([0.3, 0.8, 1.0, 1.9, 2.5, 4.0])
    shape = Shape(knots, np.log([0.1, 3.0, 1.0, 0.5, 2.0, 0.2, 1.1]))
    noise = to_noise(shape, 1.0)
    value = log_value(shape, functional, cost)
    density = lambda x: math.exp(float(noise.log_density(x)))  # noqa: E731

    def integrand(x: float) -> float:
        loss = np.array(float(noise.log_density(x - 1) - noise.log_density(x)))
        return density(x) * float(functional.at(functional.sampled(loss))[0])

    edges = np.unique(np.concatenate([[0, 1], shape.knots, -shape.knots, 1 + shape.knots, 1 - shape.knots, [-25, 25]]))
    pieces = [integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-9)[0] for a, b in itertools.pairwise(edges)]
    assert math.exp(value.log_loss) == pytest.approx(math.fsum(pieces), rel=1e-6)
    if cost.power == 2:
        assert math.exp(value.log_cost) == pytest.approx(noise.variance, rel=1e-6)
    elif cost.power == 1:
        assert math.exp(value.log_cost) == pytest.approx(noise.mean_abs, rel=1e-6)
    else:
        assert math.exp(value.log_cost) == pytest.approx(2 * math.exp(float(noise.log_tail(0.7))), rel=1e-6)
    for index in (0, 3, 6):
        shifted = shape.log_slopes.copy()
        shifted[index] += 1e-6
        other = log_value(Shape(shape.knots, shifted), functional, cost)
        assert (other.log_cost - value.log_cost) / 1e-6 == pytest.approx(value.cost_gradient[index], abs=2e-6)
        assert (other.log_loss - value.log_loss) / 1e-6 == pytest.approx(value.loss_gradient[index], abs=2e-5)


def test_a_cost_that_is_not_linear_is_refused():
    with pytest.raises(ValueError, match=r"linear in the density.*got cost='callable:"):
        linear_cost(Problem(1.0, 1e-5, cost=lambda m: m.variance**2))
    with pytest.raises(ValueError, match="dimension=1"):
        convex_optimum(Problem(1.0, 1e-5, 10, 1.0, 4, "variance"))


# ---- certificates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "order", "gap"), [(FEW, 11.0, 0.003), (SAMPLED, 7.1, 0.01)], ids=["few", "sampled"]
)
def test_three_solvers_agree_and_the_bound_is_near(problem, order, gap):
    """SLSQP over log-linear densities, the barrier method over cells, Clarabel over the same cells, the dual bound."""
    functional, cost = renyi(problem, order), linear_cost(problem)
    shape = solved(functional, cost, calibrate("laplace", epsilon=problem.epsilon, **problem.budget()))
    found = certified(shape, functional, cost)
    smooth = math.exp(log_value(shape, functional, cost).log_cost)
    assert found.bound <= found.cost * (1 + 1e-6)
    assert found.cost <= found.bound * (1 + gap)
    assert smooth == pytest.approx(found.cost, rel=2e-3)
    cells = dataclasses.replace(found.cells, per_shift=5, count=5 * found.cells.count // found.cells.per_shift)
    coarse = certified(
        shape, functional, cost, dataclasses.replace(cells, decay=math.exp(-float(shape.slopes[-1]) / 5))
    )
    cone = cone_optimum(coarse.cells, functional, cost)
    assert cone.usage <= 1 + 1e-4
    assert cone.cost == pytest.approx(coarse.cost, rel=2e-3)


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize(
    "noise", [Gaussian(1.0), Laplace(1.0), to_noise(first_shape(Laplace(0.4), 1.0), 1.0)], ids=repr
)
def test_no_noise_undercuts_the_dual_bound(noise, cost):
    functional, found = renyi(FEW, 8.0), certified_few(cost)
    assert math.isfinite(found.bound)
    scaled = fitted(first_shape(noise, 1.0), functional, cost)
    assert math.exp(log_value(scaled, functional, cost).log_cost) >= found.bound


def test_the_bound_holds_whatever_lines_it_is_given():
    """Weak duality: random supporting lines never give more than the optimum."""
    functional, cost = renyi(FEW, 8.0), LinearCost(2)
    found = certified_few(cost)
    program = CellProgram(found.cells, functional, cost)
    generator = np.random.default_rng(1)
    multiplier, _ = program.multipliers(found.density)
    for noise in (0.01, 0.1, 1.0):
        ratios = program.ratios(found.density)
        ratios = ratios + noise * generator.normal(size=ratios.shape)
        bound = program.line_bound(*functional.supporting(ratios), multiplier)
        assert bound <= found.cost


def test_kullback_leibler_tends_to_the_gaussian():
    """Cactus (arXiv 2207.00420): for a small divergence κ the least variance tends to the Gaussian's, 1/(2κ)."""
    functional, cost = KullbackLeibler(1.0, 0.005), LinearCost(2)
    found = certified(solved(functional, cost, Gaussian(10.0)), functional, cost)
    assert 100 * 0.98 <= found.bound <= found.cost <= 100.0 * (1 + 1e-3)


@pytest.mark.parametrize(("target", "delta", "rate"), [(1.0, 1e-6, 1.0), (3.0, 1e-5, 1.0), (1.0, 1e-5, 0.1)])
def test_one_release_is_a_linear_program(target, delta, rate):
    problem = Problem(target, delta, 1, rate, 1, "variance")
    cost, functional = linear_cost(problem), HockeyStick(target, rate, delta)
    laplace = calibrate("laplace", epsilon=target, **problem.budget())
    found = certified_linear(first_shape(laplace, 1.0), functional, cost)
    assert found.bound <= found.cost <= found.bound * 1.006
    assert found.bound <= laplace.variance
    program = CellProgram(found.cells, functional, cost)
    assert program.loss(np.maximum(found.density, 1e-300))[0] == pytest.approx(delta, rel=1e-3)


def test_pure_dp_bound_is_below_the_staircase_formula():
    """At δ → 0 the optimum is the staircase: E|X| = e^{ε/2}/(e^ε − 1) (arXiv 1212.1186, theorem 7)."""
    problem = Problem(1.0, 1e-12, 1, 1.0, 1, "mean_abs")
    laplace = calibrate("laplace", epsilon=1.0, **problem.budget())
    found = certified_linear(first_shape(laplace, 1.0), HockeyStick(1.0, 1.0, 1e-12), LinearCost(1))
    exact = math.exp(0.5) / math.expm1(1.0)
    assert exact * 0.98 <= found.bound <= exact
    assert found.cost == pytest.approx(exact, rel=2e-3)


def test_a_noise_too_wide_for_the_cells_is_refused_before_memory_is():
    with pytest.raises(ValueError, match=r"shifts wide.*certify=False"):
        Cells.around(first_shape(Gaussian(1e4), 1.0))


@pytest.mark.slow
def test_a_large_epsilon_stays_in_the_floats():
    found = convex_optimum(Problem(60.0, 1e-5, 3, 1.0, 1, "variance"))
    assert found.epsilon.upper <= 60.0
    assert all(order.bound <= order.cost for order in found.orders)


def test_cone_program_refuses_what_it_cannot_do():
    with pytest.raises(TypeError, match="HockeyStick"):
        cone_optimum(Cells(4, 20, 0.9), HockeyStick(1.0, 1.0, 1e-3), LinearCost(2))


# ---- the exact problem -----------------------------------------------------------------------------------------------


def test_influence_reproduces_delta():
    """∫ Q·φ(M/Q), φ the influence of one step on the others, is δ(ε) of them all."""
    noise = calibrate(to_noise(first_shape(Laplace(0.8), 1.0), 1.0), epsilon=3.0, **SAMPLED.budget())
    functional = influence(SAMPLED, noise)
    shape = first_shape(noise, 1.0)
    value = log_value(Shape(np.array(noise.knots), np.log(np.array(noise.slopes))), functional, LinearCost(2))
    assert value.log_loss == pytest.approx(math.log(SAMPLED.delta), abs=0.02)
    assert len(shape.knots) > 10


def test_polishing_lowers_the_cost_at_equal_exact_epsilon():
    """The mark at q = 0.01, T = 1000: at most 0.60 of the Gaussian's variance (Laplace 0.65)."""
    cost, functional = linear_cost(SAMPLED), renyi(SAMPLED, 7.1)
    gaussian = calibrate("gaussian", epsilon=3.0, **SAMPLED.budget())
    shape = solved(functional, cost, calibrate("laplace", epsilon=3.0, **SAMPLED.budget()))
    plain = calibrate(to_noise(shape, 1.0), epsilon=3.0, **SAMPLED.budget())
    noise = polished(SAMPLED, shape, cost, rounds=3)
    assert noise.variance / gaussian.variance <= 0.595
    assert noise.variance < 0.99 * plain.variance
    assert epsilon(noise, **SAMPLED.budget()).upper <= 3.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "mark"),
    [
        (Problem(0.3, 1e-10, 1, 1.0, 1, "variance"), 0.0634),
        (FEW, 0.92),
        (SAMPLED, 0.60),
        (Problem(3.0, 1e-6, 1000, 0.001, 1, "variance"), 0.063),
        (Problem(3.0, 1e-5, 1000, 1.0, 1, "variance"), 1.0),
    ],
    ids=["one", "few", "sampled", "rarely sampled", "many"],
)
def test_marks(problem, mark):
    found = convex_optimum(problem)
    assert found.ratio <= mark
    assert found.epsilon.upper <= problem.epsilon
    assert found.cost == problem.cost_of(found.mechanism)
    for order in found.orders:
        assert isinstance(order, OrderOptimum)
        assert order.bound <= order.cost
    if problem.steps == 1:
        assert found.exact_bound is not None
        assert 0.9 * found.cost <= found.exact_bound <= found.cost
    else:
        gap = found.renyi_gap(Laplace(1.0))
        assert gap > 0
        assert found.exact_ratio(Gaussian(1.0)) == pytest.approx(1 / found.ratio, rel=1e-3)
        assert isinstance(found.mechanism, Tabulated | Gaussian)


def test_the_search_lists_the_optimum_and_its_certificate():
    result = search(Problem(3.0, 1e-5, cost="variance"), families=["laplace"], progress=False)
    more, found = with_optimum(result)
    assert more.best.family == "staircase"
    assert more.best.cost == found.cost < result.best.cost
    assert more.best.epsilon.upper <= 3.0
    assert "exact certificate" in more.notes[-1]
    assert SearchResult.from_document(more.document()).best.mechanism == found.mechanism
    several = search(
        Problem(3.0, 1e-5, cost="variance", also=(Constraint(2.0, 1e-5),)), families=["laplace"], progress=False
    )
    for refused in (lambda: with_optimum(several), lambda: convex_optimum(several.problem)):
        with pytest.raises(ValueError, match="one budget"):
            refused()
