"""What each family proposes for a problem: shapes near the budget, best first, for `accounting` to calibrate.

A new family with a few shape parameters is one `ParametricFamily` in `shapes`; a user calls `register_family`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import Gaussian, Laplace, Mechanism
from . import grid
from ._progress import track
from .budget import Budget, budget_for
from .cell_costs import costs
from .cells import mechanism_of
from .marginal import MarginalSweep, marginal_sweep
from .parametric import NoFiniteCost, ParametricFamily
from .problem import Problem
from .refine import refine, refine_exactly, starts
from .shapes import SHAPES

Cell = NDArray[np.float64]

_STARTS = 3  # grid cells that a refinement starts from, besides the Laplace


def propose_gaussian(problem: Problem, *, top: int, progress: bool, seed: int) -> list[Mechanism]:
    """The one Gaussian shape."""
    return [Gaussian(1.0)]


def propose_laplace(problem: Problem, *, top: int, progress: bool, seed: int) -> list[Mechanism]:
    """The one Laplace shape."""
    return [Laplace(1.0)]


def propose_lmo(problem: Problem, *, top: int, progress: bool, seed: int) -> list[Mechanism]:
    """Up to `top` LMO noises: refinements of the best grid cells, and grid cells whose costs differ by 1 %."""
    sweep = marginal_sweep(problem, progress=progress)
    if not len(sweep.cells):
        raise NoFiniteCost(f"no candidate of the LMO grid has a finite {problem.cost_label}")
    budget = budget_for(problem)
    refined = [
        refine(problem, budget, cell)
        for cell in track(starts(sweep.cells, _STARTS), "continuous refinement", show=progress)
    ]
    if exact := refine_exactly(problem, budget, refined):
        return [exact, *_listed(problem, budget, refined, sweep)[: top - 1]]
    return _listed(problem, budget, refined, sweep)[:top]


def _listed(problem: Problem, budget: Budget, refined: list[Cell], sweep: MarginalSweep) -> list[Mechanism]:
    """Refinements and grid cells by the cost at the budget, costs within 1 % once."""
    factors = budget.factors(np.stack(refined), tolerance=1e-9)
    cost = np.concatenate([costs(problem, np.stack(refined), factors), sweep.costs])
    return [
        mechanism_of(refined[i]).scaled(float(factors[i]))
        if i < len(refined)
        else _published(int(sweep.index[i - len(refined)]), float(sweep.factors[i - len(refined)]))
        for i in _distinct(cost)
    ]


Proposer = Callable[..., Sequence[Mechanism]]
PROPOSERS: dict[str, Proposer] = {
    "lmo": propose_lmo,
    Gaussian.family: propose_gaussian,
    Laplace.family: propose_laplace,
    **{shape.family: shape for shape in SHAPES},
}
"""Family name -> function(problem, *, top, progress, seed) -> shapes near the budget, best first."""


def register_family(family: ParametricFamily) -> None:
    """Let `search` try a family of one's own; a name that is taken already is refused (ValueError)."""
    if family.family in PROPOSERS:
        raise ValueError(f"expected a family that is not registered yet, got family={family.family!r}")
    PROPOSERS[family.family] = family


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
