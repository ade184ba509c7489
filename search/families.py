"""What each family proposes for a problem: shapes near the budget, best first, for `accounting` to calibrate.

A new family is one function and one line in `PROPOSERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from ..mechanisms import GammaLaplace, Gaussian, Laplace, Mechanism
from . import grid
from ._progress import track
from .budget import Budget, budget_for
from .cell_costs import costs
from .cells import mechanism_of
from .marginal import marginal_sweep
from .problem import Problem
from .refine import refine, starts

_STARTS = 3  # grid cells that a refinement starts from, besides the Laplace


class NoFiniteCost(ValueError):
    """No noise of a family has a finite cost, so the family is left out by name."""


def propose_gaussian(problem: Problem, *, top: int, progress: bool) -> list[Mechanism]:
    """The one Gaussian shape."""
    return [Gaussian(1.0)]


def propose_laplace(problem: Problem, *, top: int, progress: bool) -> list[Mechanism]:
    """The one Laplace shape."""
    return [Laplace(1.0)]


def propose_lmo(problem: Problem, *, top: int, progress: bool) -> list[Mechanism]:
    """Up to `top` LMO noises: refinements of the best grid cells, and grid cells whose costs differ by 1 %."""
    sweep = marginal_sweep(problem, progress=progress)
    if not len(sweep.cells):
        raise NoFiniteCost(f"no candidate of the LMO grid has a finite {problem.cost_label}")
    budget = budget_for(problem)
    refined = [
        refine(problem, budget, cell)
        for cell in track(starts(sweep.cells, _STARTS), "continuous refinement", show=progress)
    ]
    factors = budget.factors(np.stack(refined), tolerance=1e-9)
    cost = np.concatenate([costs(problem, np.stack(refined), factors), sweep.costs])
    return [
        mechanism_of(refined[i]).scaled(float(factors[i]))
        if i < len(refined)
        else _published(int(sweep.index[i - len(refined)]), float(sweep.factors[i - len(refined)]))
        for i in _distinct(cost)[:top]
    ]


def propose_gamma_laplace(problem: Problem, *, top: int, progress: bool) -> list[Mechanism]:
    """The best Gamma–Laplace shape k: a scan of k, then a bounded search between the neighbours of the best."""
    budget = budget_for(problem)
    shapes = np.geomspace(0.05, 1e4, 120)
    cells = _gamma_cells(shapes)
    cost = costs(problem, cells, budget.factors(cells, tolerance=1e-4), "gamma_laplace")
    if not np.isfinite(cost).any():
        raise NoFiniteCost(f"no Gamma–Laplace noise has a finite {problem.cost_label}")
    best = int(np.argmin(np.where(np.isnan(cost), np.inf, cost)))
    local = budget.near(cells[best])
    around = np.log(shapes[[max(best - 1, 0), min(best + 1, len(shapes) - 1)]])
    found = optimize.minimize_scalar(
        lambda log_shape: _gamma_cost(problem, local, math.exp(log_shape)),
        bounds=tuple(around),
        method="bounded",
        options={"xatol": 1e-4},
    )
    cell = _gamma_cells(np.array([math.exp(found.x)]))
    return [mechanism_of(cell[0], "gamma_laplace").scaled(float(budget.factors(cell, tolerance=1e-9)[0]))]


PROPOSERS: dict[str, Callable[..., list[Mechanism]]] = {
    "lmo": propose_lmo,
    Gaussian.family: propose_gaussian,
    Laplace.family: propose_laplace,
    GammaLaplace.family: propose_gamma_laplace,
}
"""Family name -> function(problem, *, top, progress) -> shapes near the budget, best first."""


def _published(index: int, factor: float) -> Mechanism:
    """The candidate of the grid, its published weights rescaled; `factor` belongs to its normalised cell."""
    mixture = grid.candidate(index)
    return mixture.scaled(factor * mixture.mean_inverse_scale)


def _distinct(cost: NDArray[np.float64]) -> list[int]:
    """Indices in increasing cost, leaving out costs within 1 % of one taken before."""
    chosen: list[int] = []
    for i in np.argsort(cost, kind="stable"):
        if math.isfinite(cost[i]) and (not chosen or cost[i] > cost[chosen[-1]] * 1.01):
            chosen.append(int(i))
    return chosen


def _gamma_cells(shapes: NDArray[np.float64]) -> NDArray[np.float64]:
    zero = np.zeros_like(shapes)
    return np.stack([shapes, 1 / shapes, zero, zero, zero], axis=1)


def _gamma_cost(problem: Problem, budget: Budget, shape: float) -> float:
    cell = _gamma_cells(np.array([shape]))
    value = float(costs(problem, cell, budget.factors(cell, tolerance=1e-8), "gamma_laplace")[0])
    return value if math.isfinite(value) else 1e300
