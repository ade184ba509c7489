"""The cost of scaled cells, for a whole grid at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .cells import mechanism_of, statistics, tail_probability, upper_quantile
from .problem import Problem


def costs(problem: Problem, cells: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The problem's cost of each normalised cell times its factor, `inf` where the moment does not exist; shape (n,).

    A caller's cost function sees one mechanism at a time.
    """
    if callable(problem.cost):
        pairs = zip(cells, factors, strict=True)
        return np.array([problem.cost_of(mechanism_of(cell).scaled(factor)) for cell, factor in pairs])
    if problem.cost_kind == "usefulness":
        return tail_probability(cells, problem.usefulness_radius / factors)
    if problem.cost_kind == "quantile":
        return factors * upper_quantile(cells, problem.quantile_level)
    moment, scale = (0, factors) if problem.cost_kind == "mean_abs" else (1, factors**2)
    values = statistics(cells)[:, moment]
    return np.multiply(scale, values, where=np.isfinite(values), out=np.full_like(values, np.inf))


def sweep_costs(problem: Problem, cells: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """A cost that is cheap for a whole grid: the problem's own, or E|X| in place of a caller's function; shape (n,)."""
    return factors * statistics(cells)[:, 0] if callable(problem.cost) else costs(problem, cells, factors)


def shortlist(
    problem: Problem, cells: NDArray[np.float64], factors: NDArray[np.float64], count: int
) -> NDArray[np.intp]:
    """Indices of about `count` promising cells, best first; shape (at most count,).

    For a caller's cost function these are a third each by E|X|, by variance and by P(|X| > γ) at a γ that the best
    noise exceeds half the time, then ordered by the function itself.
    """
    if not callable(problem.cost):
        return np.argsort(costs(problem, cells, factors), kind="stable")[:count]
    moments = statistics(cells)
    mean_abs = factors * moments[:, 0]
    radius = 0.7 * mean_abs.min()
    views = (mean_abs, factors**2 * moments[:, 1], tail_probability(cells, radius / factors))
    chosen = np.unique(np.concatenate([np.argsort(view, kind="stable")[: count // 3] for view in views]))
    return chosen[np.argsort(costs(problem, cells[chosen], factors[chosen]), kind="stable")]
