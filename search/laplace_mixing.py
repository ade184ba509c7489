"""Where mixing can help: the best scale mixture of Laplace noise for one scalar release under pure ε-DP.

X ~ Laplace(1/u), u ~ w hidden, has density f(x) = ∫ (u/2)·e^{−u|x|} dw(u). log f is convex on each side, so f(x)/f(x−1)
is largest at x = 0 (for x <= 0 it is f(s)/f(s+1), s = |x|, which falls with s; on [0, 1] it is f(x)/f(1−x), which
falls with x). So unit sensitivity costs at most ε if and only if f(0) <= e^ε·f(1), linear in w:

    least E|x| = ∫ 1/u dw   subject to   ∫ u·(e^{−u} − e^{−ε}) dw >= 0,   ∫ dw = 1,   w >= 0.

Dual certificate: for any λ >= 0 every feasible w has E|x| >= ∫ h dw >= inf_{u>0} h(u) with
h(u) = 1/u − λ·u·(e^{−u} − e^{−ε}). The infimum is bounded cell by cell over all u > 0, so the lower end holds for every
mixing law, not only for those on the grid.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import _validate
from .runner import SearchError

Array = NDArray[np.float64]
_CELLS = 400_000  # of the certificate: cells about 5e-5 wide in log u


class MixingOptimum(NamedTuple):
    """lower <= least E|x| over all mixing laws <= upper; `upper` is attained by `weights` on `inverse_scales`.

    Units of the sensitivity. `laplace` is plain Laplace's 1/ε; `staircase` the least E|x| of any noise whatever.
    """

    lower: float
    upper: float
    laplace: float
    staircase: float
    inverse_scales: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def ratio(self) -> tuple[float, float]:
        """(lower, upper) of the least E|x| over that of plain Laplace noise; 1: mixing does not help."""
        return self.lower / self.laplace, self.upper / self.laplace


def best_laplace_mixture(epsilon: float, *, points: int = 4000) -> MixingOptimum:
    """The least E|x| of one scalar release under pure ε-DP over all laws of the inverse scale (linear program, HiGHS).

    Args:
        epsilon: target in (0, 30], no unit.
        points: inverse scales on the primal's grid, at least 100; the certificate does not depend on it.

    The staircase's least E|x| is e^{ε/2}/(e^ε − 1) (Geng and Viswanath, arXiv 1212.1186).

    Raises:
        ValueError: an argument is out of range.
        SearchError: the solver did not end at an optimum, or its answer breaks a constraint.
    """
    if _validate.positive("epsilon", epsilon) > 30:
        raise ValueError(f"expected epsilon <= 30 (beyond it e^-epsilon is lost in rounding), got epsilon={epsilon}")
    points = _validate.integer("points", points, minimum=100)
    grid = np.union1d(epsilon * np.geomspace(1e-3, 1e4, points), [epsilon])
    weights, multiplier = _solve(grid, epsilon)
    keep = weights > 0
    weights, grid = _feasible(weights[keep] / weights[keep].sum(), grid[keep], epsilon)
    return MixingOptimum(
        lower=_certificate(epsilon, multiplier),
        upper=float(weights @ (1 / grid)),
        laplace=1 / epsilon,
        staircase=math.exp(epsilon / 2) / math.expm1(epsilon),
        inverse_scales=tuple(grid.tolist()),
        weights=tuple(weights.tolist()),
    )


def _slack(u: Array, epsilon: float) -> Array:
    """u·(e^{−u} − e^{−ε})·e^ε, shape as u: the constraint, scaled so that its terms are near 1."""
    return u * np.expm1(np.minimum(epsilon - u, 700.0))


def _solve(grid: Array, epsilon: float) -> tuple[Array, float]:
    """Weights on `grid` and the multiplier λ·e^{−ε} of the scaled constraint."""
    from scipy.optimize import linprog

    answer = linprog(
        1 / grid * epsilon,
        A_ub=-_slack(grid, epsilon)[None, :] / epsilon,
        b_ub=[0.0],
        A_eq=np.ones((1, len(grid))),
        b_eq=[1.0],
        method="highs",
    )
    if answer.status != 0:
        raise SearchError(f"the linear program over mixing laws ended without an optimum: {answer.message}")
    return np.maximum(answer.x, 0.0), max(float(-answer.ineqlin.marginals[0]), 0.0) / epsilon**2


def _feasible(weights: Array, grid: Array, epsilon: float) -> tuple[Array, Array]:
    """The same law with every u shrunk until f(0) <= e^ε·f(1) holds in floats; at most by 1e-6."""
    for shrink in (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-8, 1e-7, 1e-6):
        u = grid * (1 - shrink)
        if float(weights @ _slack(u, epsilon)) >= 0:
            return weights, u
    raise SearchError("the linear program over mixing laws returned a law that breaks its constraint")


def _certificate(epsilon: float, multiplier: float) -> float:
    """A bound below inf h over all u > 0; cells [a, b] by 1/b − λ·max u·e^{−u} + λ·e^{−ε}·a, and the two ends."""
    edges = epsilon * np.geomspace(1e-4, 1e5, _CELLS + 1)
    a, b = edges[:-1], edges[1:]
    peak = np.clip(1.0, a, b)  # where u·e^{−u} is largest in the cell
    inside = 1 / b - multiplier * peak * np.exp(epsilon - peak) + multiplier * a
    first = min(edges[0], 1.0)
    below = 1 / edges[0] - multiplier * first * math.exp(epsilon - first)
    above = multiplier * edges[-1] * -math.expm1(epsilon - edges[-1])
    return float(min(inside.min(), below, above)) * (1 - 1e-12)
