"""The same program over cells through cvxpy and Clarabel: an independent second opinion on the barrier method.

m^α·p^{1−α} is a power cone, m·log(m/p) an exponential cone. Cone solvers end `inaccurate` on some of these programs
(large orders, many scales of mass), and then with densities whose true privacy loss is far above the limit. So nothing
of their status is trusted: the constraint is computed anew from the density, and a violation is an error.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from .certificate import CellProgram, Cells
from .cost import LinearCost
from .functional import Functional, KullbackLeibler, RenyiMoment

Array = NDArray[np.float64]

_VIOLATION = 1e-4  # of the limit, relative


@final
@dataclasses.dataclass(frozen=True)
class ConeOptimum:
    """`density` on the cells of the half line, its cost, its G over the limit (recomputed), the solver's status."""

    density: Array
    cost: float
    usage: float
    status: str


def cone_optimum(cells: Cells, functional: Functional, cost: LinearCost) -> ConeOptimum:
    """The optimum over densities constant on `cells`, by Clarabel; lengths in shifts.

    Raises:
        ImportError: cvxpy is not installed (`pip install optnoise[convex]`).
        TypeError: a functional that is neither RenyiMoment nor KullbackLeibler.
        ArithmeticError: the solver failed, or its density violates the constraint by more than 0.01 %.
    """
    try:
        import cvxpy
    except ImportError as error:
        raise ImportError("the cone program needs cvxpy: pip install 'optnoise[convex]'") from error
    program = CellProgram(cells, functional, cost)
    unit = float(program.costs @ np.ones(cells.count)) / float(program.weights @ np.ones(cells.count))
    p = cvxpy.Variable(cells.count)
    here, there = program.pair()
    q = functional.rate
    a, m = here @ p, (1 - q) * (here @ p) + q * (there @ p)
    losses, constraints = _losses(cvxpy, functional, a, m)
    total = cells.length * cvxpy.sum(losses) + program.far_losses() * p[-1]
    constraints += [p >= 0, p[:-1] >= p[1:], program.weights @ p == 1, total / functional.limit <= 1]
    problem = cvxpy.Problem(cvxpy.Minimize(program.costs @ p / unit), constraints)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the status is read below
            problem.solve(solver=cvxpy.CLARABEL)
    except cvxpy.SolverError as error:
        raise ArithmeticError(f"Clarabel failed on this program: {error}") from error
    if p.value is None:
        raise ArithmeticError(f"Clarabel found no density: {problem.status}")
    density = np.maximum(np.minimum.accumulate(np.asarray(p.value)), 1e-300)
    density /= float(program.weights @ density)
    usage = program.loss(density)[0] / functional.limit
    if not usage <= 1 + _VIOLATION:
        raise ArithmeticError(f"Clarabel ({problem.status}) returned a density with {usage:.6g} times the loss allowed")
    return ConeOptimum(density, float(program.costs @ density), usage, str(problem.status))


def _losses(cvxpy: Any, functional: Functional, a: Any, m: Any) -> tuple[Any, list[Any]]:
    """(p·φ(m/p) on the cells of the line, constraints of its epigraph)."""
    if isinstance(functional, KullbackLeibler):
        return cvxpy.kl_div(m, a), []
    if isinstance(functional, RenyiMoment):
        order = functional.order
        power = cvxpy.Variable(a.shape)
        size = math.log1p(functional.limit) / order  # keeps the epigraph's size near 1
        cone = cvxpy.PowCone3D(power, a, m * math.exp(-size), 1 / order)
        return power * math.exp(size * order) - a - order * (m - a), [cone]
    raise TypeError(
        f"expected a RenyiMoment or a KullbackLeibler for the cone program, got {type(functional).__name__}"
    )
