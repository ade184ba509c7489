"""The cheapest noise for one coordinate among symmetric densities that fall with |x|, and how near to it others are."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ...accounting import EpsilonInterval, epsilon
from ...mechanisms import Gaussian, Laplace, Mechanism, Staircase
from .._progress import track
from ..budget import renyi_budgets
from ..mechanism_renyi import largest_renyi_shift
from ..problem import Problem
from .certificate import Certified, certified
from .cost import LinearCost, linear_cost
from .exact import calibrated, polished
from .functional import HockeyStick, RenyiMoment
from .knots import first_shape, fitted, refined
from .linear import certified_linear
from .loglinear import LogLinear, Shape

Array = NDArray[np.float64]

_ORDERS = 7  # of the certificate's grid
_NEAREST = 1.12  # ratio of α − 1 between neighbouring orders of the second scan
_ITERATIONS = 120
_SPLITS = 12
_LARGEST_MOMENT = 500.0  # log moment beyond which e^moment is left out of the scan


@final
@dataclasses.dataclass(frozen=True)
class OrderOptimum:
    """The convex program at one Rényi order: costs in the problem's units.

    Attributes:
        order: α.
        cost: of the best density found under the Rényi constraint at this order.
        bound: no symmetric density that falls with |x| and meets the constraint at this order costs less.
    """

    order: float
    cost: float
    bound: float


@final
@dataclasses.dataclass(frozen=True)
class ConvexOptimum:
    """What `convex_optimum` found. Costs in units of C (mean_abs), C² (variance) or as probabilities (usefulness).

    Attributes:
        problem: what was asked.
        mechanism: the cheapest noise found, scaled to the exact ε.
        cost: its cost.
        gaussian_cost: of the Gaussian at the same exact ε.
        epsilon: its proven interval, the upper end at most the target.
        orders: the grid of Rényi orders and the optimum at each; empty for one release.
        exact_bound: no symmetric density that falls with |x| and has this (ε, δ) costs less: proven for one release,
            where the exact problem is a linear program; None for several.
    """

    problem: Problem
    mechanism: Mechanism
    cost: float
    gaussian_cost: float
    epsilon: EpsilonInterval
    orders: tuple[OrderOptimum, ...]
    exact_bound: float | None

    @property
    def ratio(self) -> float:
        """Cost over that of the Gaussian at equal exact ε."""
        return self.cost / self.gaussian_cost

    @property
    def renyi_bound(self) -> float | None:
        """The least dual bound over the grid of orders: for noises that meet the Rényi constraint at one of them."""
        return min(order.bound for order in self.orders) if self.orders else None

    def exact_ratio(self, noise: Mechanism) -> float:
        """Cost of `noise`, scaled to the same exact ε, over that of `mechanism`: a comparison, not a certificate."""
        return self.problem.cost_of(calibrated(self.problem, noise)) / self.cost

    def renyi_gap(self, noise: Mechanism) -> float:
        """Cost of `noise`, scaled to the Rényi constraint at its best order of the grid, over `renyi_bound`, less 1.

        Both sides under the same constraint, so it is >= 0 (to the 1e-5 of the scaling) and certifies how far the
        noise is from the optimum. ValueError for one release, and for noise of bounded support.
        """
        bound, problem = self.renyi_bound, self.problem
        if bound is None:
            raise ValueError("one release has no Rényi constraint: compare its cost with exact_bound")
        orders, moments = renyi_budgets(problem, np.array([optimum.order for optimum in self.orders]))
        largest = largest_renyi_shift(
            noise, orders=orders, log_moments=moments, sampling_rate=problem.sampling_rate, dimension=1
        )
        return problem.cost_of(noise.scaled(problem.shift / largest)) / bound - 1


def convex_optimum(
    problem: Problem, *, starts: Sequence[Mechanism] = (), certify: bool = True, progress: bool = False
) -> ConvexOptimum:
    """The cheapest noise for `problem` among all symmetric densities that fall with |x|, one coordinate.

    For several releases: the Rényi-constrained program (convex) at the best order, then changes that lower the cost at
    equal exact ε until no small one does (`exact`). For one release: the Gaussian, the Laplace, the staircase or one of
    `starts`, and the bound of the linear program of (ε, δ) itself, which tells how little is left. The result is
    scaled by `accounting.calibrate`, whose bound is proven, whatever the solvers did; it never costs more than the
    Gaussian, the Laplace or one of `starts`.

    Args:
        problem: dimension 1; cost variance, mean_abs or usefulness:GAMMA.
        starts: more noises to start from, any family.
        certify: also compute the dual bounds (about a second per Rényi order).
        progress: show a bar on standard error.

    Raises:
        ValueError: more than one coordinate or budget, or a cost that is not linear in the density.
    """
    if problem.dimension != 1:
        raise ValueError(
            f"expected dimension=1 (the convex programs are for one coordinate), got dimension={problem.dimension:g}"
        )
    if problem.also:
        raise ValueError(f"the convex optimum is for one budget, got {len(problem.constraints)}: also={problem.also!r}")
    cost = linear_cost(problem)
    with threadpool_limits(1):
        shapes = [Gaussian(1.0), Laplace(1.0), *_staircases(problem), *starts]
        references = [calibrated(problem, noise) for noise in shapes]
        start = min(references, key=problem.cost_of)
        if problem.steps == 1:
            orders, noises = (), []
            bound = _one_release_bound(problem, references[1], cost) if certify else None
        else:
            orders, shape = _over_orders(problem, start, cost, certify=certify, progress=progress)
            bound = None
            shapes = [shape, first_shape(start, problem.shift)]
            noises = [polished(problem, shape, cost) for shape in track(shapes, "exact optimum", show=progress)]
    best = min([*references, *noises], key=problem.cost_of)
    interval = epsilon(best, **problem.budget(), verify=True)
    if not interval.upper <= problem.epsilon:
        raise ArithmeticError(f"calibrated noise has epsilon {interval.upper} > target {problem.epsilon}")
    return ConvexOptimum(problem, best, problem.cost_of(best), problem.cost_of(references[0]), interval, orders, bound)


def _staircases(problem: Problem) -> list[Mechanism]:
    """For one release: the staircases of least variance and least E|X| that are pure DP at ε, sampling included."""
    if problem.steps > 1:
        return []
    fall = math.log1p(math.expm1(problem.epsilon) / problem.sampling_rate)
    makers = (Staircase.least_variance, Staircase.least_mean_abs)
    return [make(fall, problem.shift) for make in makers] if 1e-4 <= fall <= 500 else []


def _one_release_bound(problem: Problem, laplace: Mechanism, cost: LinearCost) -> float:
    functional = HockeyStick(problem.epsilon, problem.sampling_rate, problem.delta)
    found = certified_linear(first_shape(laplace, problem.shift), functional, cost)
    return found.bound * cost.in_units_of(problem.shift)


def _functional(problem: Problem, order: float, moment: float) -> RenyiMoment:
    return RenyiMoment(order, problem.sampling_rate, math.expm1(moment))


def _over_orders(
    problem: Problem, start: Mechanism, cost: LinearCost, *, certify: bool, progress: bool
) -> tuple[tuple[OrderOptimum, ...], Shape]:
    """The optimum at a grid of orders around the best one, and the shape at the best."""
    first = first_shape(start, problem.shift)
    found: dict[float, tuple[float, Shape]] = {}

    def solve(order: float, moment: float) -> None:
        near = min(found, key=lambda other: abs(math.log((other - 1) / (order - 1))), default=None)
        shape = first if near is None else found[near][1]
        found[order] = _renyi_optimum(_functional(problem, order, moment), shape, cost)

    for order, moment in track(_scan(problem), "Rényi orders", show=progress):
        solve(order, moment)
    best = min(found, key=lambda order: found[order][0])
    grid: Array = 1 + (best - 1) * _NEAREST ** np.arange(-(_ORDERS // 2), _ORDERS // 2 + 1, dtype=np.float64)
    grid, moments = _within_floats(*renyi_budgets(problem, grid))
    for order, moment in track(list(zip(grid, moments, strict=True)), "Rényi optima", show=progress):
        if order not in found:
            solve(float(order), float(moment))
    orders = []
    if certify:
        for order, moment in track(list(zip(grid, moments, strict=True)), "certificates", show=progress):
            orders.append(_certified_order(problem, float(order), float(moment), found[float(order)], cost))
    best = min(found, key=lambda order: found[order][0])
    functional = _functional(problem, best, float(renyi_budgets(problem, np.array([best]))[1][0]))
    shape = _renyi_optimum(functional, fitted(refined(found[best][1], _SPLITS), functional, cost), cost)[1]
    return tuple(orders), shape


def _within_floats(orders: Array, moments: Array) -> tuple[Array, Array]:
    usable = moments < _LARGEST_MOMENT
    return orders[usable], moments[usable]


def _scan(problem: Problem) -> list[tuple[float, float]]:
    """About eight orders over the range where the constraint can hold, each with its log moment."""
    orders, moments = _within_floats(*renyi_budgets(problem))
    if not len(orders):
        raise ValueError("no Rényi order leaves a budget that floats can hold: use a larger delta or epsilon")
    chosen = np.unique(np.linspace(0, len(orders) - 1, 9)[1:].astype(int))
    return [(float(orders[i]), float(moments[i])) for i in chosen]


def _renyi_optimum(functional: RenyiMoment, shape: Shape, cost: LinearCost) -> tuple[float, Shape]:
    """(log cost, shape) of a log-linear optimum from `shape`, at the constraint."""
    start = fitted(shape, functional, cost)
    program = LogLinear(start.knots, functional, cost)
    slopes = program.minimise(start.log_slopes, limit=math.log(functional.limit), iterations=_ITERATIONS)
    candidates = [start]
    with contextlib.suppress(ValueError):  # the solver's answer may be no density that scales to the constraint
        candidates.append(fitted(Shape(start.knots, slopes), functional, cost))
    costs = [LogLinear(s.knots, functional, cost).value(s.log_slopes).log_cost for s in candidates]
    best = int(np.argmin(costs))
    return costs[best], candidates[best]


def _certified_order(
    problem: Problem, order: float, moment: float, found: tuple[float, Shape], cost: LinearCost
) -> OrderOptimum:
    unit = cost.in_units_of(problem.shift)
    result: Certified = certified(found[1], _functional(problem, order, moment), cost)
    return OrderOptimum(order, min(result.cost, math.exp(found[0])) * unit, result.bound * unit)
