"""From the best cells of a grid on to the best noise near them: a continuous, deterministic search.

Under the budget of `budget` first, then, for one coordinate and several releases, at the exact ε interval.

A shape has four degrees of freedom once its mean inverse scale is 1: log k, and the shares of E[u] that the gamma
term, the exponential term, the lowest value of the uniform term and its width contribute, as three log ratios. All
published parameters are reached: θ, rate, low, high and the weights are real and free.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from ..mechanisms import ScaleMixture
from .budget import Budget
from .cell_costs import costs
from .cells import LAPLACE_CELL, mechanism_of, normalised
from .exact import exact_factor
from .problem import Problem

_LARGEST = 14.0  # |log ratio| of shares: a share below e^−14 makes no difference to any cost
_SHAPES = (np.log(0.05), np.log(1e4))  # range of log k
_EVALUATIONS = 600
_EXACT_EVALUATIONS = 100
_EXACT_ENOUGH = 1e-4  # relative difference of costs: the exact interval's upper end is no more exact than that
_NO_LOSS = 1e-6  # a simpler noise is preferred at this relative difference in cost


def to_point(cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """(log k, log ratios of the gamma, exponential and width shares to the lowest value's) of a cell; shape (4,)."""
    k, g1, g3, low, width = cell
    shares = np.maximum(np.array([k * g1, g3, width / 2, low]), 1e-5)
    return np.concatenate([[np.log(k)], np.log(shares[:3] / shares[3])])


def to_cell(point: NDArray[np.float64]) -> NDArray[np.float64]:
    """The normalised cell of a point; shape (5,)."""
    k = np.exp(np.clip(point[0], *_SHAPES))
    ratios = np.append(np.exp(np.clip(point[1:], -_LARGEST, _LARGEST)), 1.0)
    gamma, exponential, uniform, low = ratios / ratios.sum()
    return np.array([k, gamma / k, exponential, low, 2 * uniform])


def refine(problem: Problem, budget: Budget, cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cheapest cell that Nelder–Mead (Gao, Han 2012, adaptive) finds from `cell`; never a dearer one; shape (5,).

    Terms that make no difference to the cost are dropped.
    """
    local = budget.near(cell)
    found = _minimise(lambda point: _cost(problem, local, to_cell(point)), to_point(cell))
    candidates = normalised(np.stack([*_simpler(to_cell(found)), to_cell(found), cell]))
    cost = costs(problem, candidates, budget.factors(candidates, tolerance=1e-9))
    return candidates[int(np.flatnonzero(cost <= np.nanmin(cost) * (1 + _NO_LOSS))[0])]


def _simpler(cell: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The cell without its terms below three thresholds of their share in E[u], simplest first."""
    shares = cell[1:] * np.array([cell[0], 1.0, 1.0, 0.5])
    simpler = []
    for threshold in (1e-2, 1e-3, 1e-4):
        values = np.where(shares < threshold, 0.0, cell[1:])
        simpler.append(np.append(cell[0] if values[0] else 1.0, values))
    return simpler


def refine_exactly(problem: Problem, budget: Budget, cells: list[NDArray[np.float64]]) -> ScaleMixture | None:
    """The cheapest LMO noise near `cells` at the exact ε interval, at that scale; never a dearer one than they are.

    None where the budget is exact already (one release), or where the exact interval of a shape takes seconds (more
    than one coordinate).
    """
    asked = problem.constraints
    if any(one.dimension > 1 for one in asked) or all(one.steps == 1 for one in asked):
        return None

    def at_budget(cell: NDArray[np.float64]) -> ScaleMixture:
        shape = mechanism_of(cell)
        return shape.scaled(exact_factor(asked, shape, start=float(budget.factors(cell[None])[0])))

    def cost(point: NDArray[np.float64]) -> float:
        value = problem.cost_of(at_budget(to_cell(point)))
        return value if np.isfinite(value) else 1e300

    start = min(cells, key=lambda cell: problem.cost_of(at_budget(cell)))
    best = problem.cost_of(at_budget(start))
    point = _minimise(cost, to_point(start), evaluations=_EXACT_EVALUATIONS, step=0.3, enough=_EXACT_ENOUGH * abs(best))
    candidates = [at_budget(cell) for cell in (*_simpler(to_cell(point)), to_cell(point), start)]
    prices = np.array([problem.cost_of(noise) for noise in candidates])
    return candidates[int(np.flatnonzero(prices <= np.nanmin(prices) + 2 * _EXACT_ENOUGH * abs(best))[0])]


def starts(cells: NDArray[np.float64], count: int) -> list[NDArray[np.float64]]:
    """The best cell, the best ones that differ from those before by a factor 2 in some coordinate, and a Laplace."""
    chosen: list[NDArray[np.float64]] = []
    for cell in cells:
        point = to_point(cell)
        if all(np.max(np.abs(point - to_point(other))) > np.log(2) for other in chosen):
            chosen.append(cell)
        if len(chosen) == count:
            break
    return [*chosen, LAPLACE_CELL]


def _cost(problem: Problem, budget: Budget, cell: NDArray[np.float64]) -> float:
    row = cell[None]
    value = float(costs(problem, row, budget.factors(row, tolerance=1e-8))[0])
    return value if np.isfinite(value) else 1e300  # Nelder–Mead subtracts values: infinity minus infinity is NaN


def _minimise(
    function: Callable[[NDArray[np.float64]], float],
    start: NDArray[np.float64],
    *,
    evaluations: int = _EVALUATIONS,
    step: float = 0.7,
    enough: float = 0.0,
) -> NDArray[np.float64]:
    simplex = start + np.vstack([np.zeros(4), step * np.eye(4)])
    options = {
        "initial_simplex": simplex,
        "maxfev": evaluations,
        "maxiter": evaluations,
        "xatol": 1e-3 if enough == 0 else np.inf,
        "fatol": enough,
        "adaptive": True,
    }
    return optimize.minimize(function, start, method="Nelder-Mead", options=options).x
