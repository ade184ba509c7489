"""The `marginal` objective: every shape of the published grid, scaled to the budget by its exact marginal density.

The adversary sees the noisy value, not u, so the density that counts is f(x) = M'(−|x|)/2. Each cell of the grid is a
*shape*: it is rescaled until it meets the budget exactly (`budget`), then ranked by its cost.
"""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

from . import grid
from ._progress import track
from .budget import Budget, budget_for
from .cell_costs import costs, shortlist, sweep_costs
from .problem import Problem

_CHUNK = 4096  # cells between two updates of the progress bar, which is also where Ctrl-C is heard
_PROBES = 120  # cells that choose the order of a sweep
_SHORTLIST = 300  # cells looked at with the full budget


@final
@dataclasses.dataclass(frozen=True)
class MarginalSweep:
    """The best cells of the grid, best first.

    `index` (n,): candidate numbers of `grid.candidate`; `cells` (n, 5), normalised; `factors` (n,) that bring them to
    the budget; `costs` (n,) of the scaled noise. `cells_swept` counts the distinct shapes looked at.
    """

    index: NDArray[np.intp]
    cells: NDArray[np.float64]
    factors: NDArray[np.float64]
    costs: NDArray[np.float64]
    cells_swept: int


def marginal_sweep(problem: Problem, *, progress: bool = True) -> MarginalSweep:
    """Scale every distinct shape of the grid to the budget and return the best, costs by the exact marginal.

    Rényi budgets sweep the grid at one order, the one that suits the best of a few probe cells, and look at the best
    cells with all orders; should the winner prefer another order by then, the cheaper quarter of the grid is swept once
    more at that one.
    """
    index, cells = grid.distinct_shapes()
    budget = budget_for(problem)
    probes = cells[:: max(1, len(cells) // _PROBES)]
    seen: list[Budget] = []
    factors, open_cells = np.full(len(cells), np.inf), np.arange(len(cells))
    for _ in range(2):
        quick = budget.sweep_budget(probes, problem)
        if quick in seen:
            break
        seen.append(quick)
        new = _factors_in_chunks(quick, cells[open_cells], progress)
        factors[open_cells] = np.minimum(factors[open_cells], new)
        probes = cells[shortlist(problem, cells, factors, _PROBES)]
        open_cells = np.argsort(sweep_costs(problem, cells, factors), kind="stable")[: len(cells) // 4]
    best = shortlist(problem, cells, factors, _SHORTLIST)
    exact = budget.factors(cells[best], tolerance=1e-9)
    cost = costs(problem, cells[best], exact)
    order = np.argsort(cost, kind="stable")
    order = order[np.isfinite(cost[order])]
    chosen = best[order]
    return MarginalSweep(index[chosen], cells[chosen], exact[order], cost[order], len(cells))


def _factors_in_chunks(budget: Budget, cells: NDArray[np.float64], progress: bool) -> NDArray[np.float64]:
    chunks = [cells[start : start + _CHUNK] for start in range(0, len(cells), _CHUNK)]
    return np.concatenate(
        [budget.factors(chunk, tolerance=1e-4) for chunk in track(chunks, "exact marginals", show=progress)]
    )
