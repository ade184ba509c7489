"""One release: δ(ε) is a linear functional of the density's cells, so the exact optimum is a linear program.

Over densities constant on cells that divide the shift, with m_i − e^ε·p_i <= t_i, 0 <= t_i and Σ t_i·h <= δ, HiGHS
finds the optimum (staircase-like, as in arXiv 1212.1186 for δ = 0). Its multipliers of the first constraint, divided by
that of the last, are weights θ in [0, 1]; θ·(m − e^ε) supports (m − e^ε)_+, and so gives a bound for every density, as
in `certificate`.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, sparse

from .certificate import CellProgram, Cells, Certified
from .cost import LinearCost
from .functional import HockeyStick
from .loglinear import Shape

_MOST_CELLS, _ACROSS = 1500, 300.0  # of the half line; over the length on which the density falls by e²


def certified_linear(shape: Shape, functional: HockeyStick, cost: LinearCost) -> Certified:
    """The optimum of one release on cells that resolve `shape`, and the bound for all densities; lengths in shifts."""
    cells = Cells.around(shape, _MOST_CELLS, _ACROSS)
    program = CellProgram(cells, functional, cost)
    here, there = program.pair()
    lines, count = 2 * cells.count + cells.per_shift, cells.count
    q, ratio = functional.rate, np.exp(functional.epsilon)
    scale = functional.limit  # t is of this size
    excess = sparse.hstack([(1 - q - ratio) * here + q * there, -scale * sparse.eye_array(lines)])
    falling = sparse.eye_array(count, k=1) - sparse.eye_array(count)
    falling = sparse.hstack([falling, sparse.csr_array((count, lines))])
    far = program.far_losses()
    budget = sparse.csr_array(
        np.concatenate([np.append(np.zeros(count - 1), far / scale), np.full(lines, cells.length)])[None]
    )
    weights, costs = (np.append(vector, np.zeros(lines)) for vector in (program.weights, program.costs))
    found = optimize.linprog(
        costs,
        A_ub=sparse.vstack([excess, falling, budget]),
        b_ub=np.append(np.zeros(lines + count), 1.0),
        A_eq=weights[None],
        b_eq=[1.0],
        method="highs",
    )
    if found.status != 0:
        raise ArithmeticError(f"HiGHS did not solve the linear program of one release: {found.message}")
    multipliers, density = -found.ineqlin.marginals, found.x[:count]
    # λ per unit of δ; where δ hardly matters its own multiplier is lost to rounding, but θ <= 1 tells enough
    price = max(float(multipliers[-1]) / scale, float(np.max(multipliers[:lines])) / cells.length)
    theta = np.clip(multipliers[:lines] / (price * cells.length), 0.0, 1.0)
    bound = program.bound_of_lines(*functional.line(theta), density, price, float(found.eqlin.marginals[0]))
    return Certified(cells, density, float(found.fun), bound)
