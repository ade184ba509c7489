"""Rényi log moments of a cell's marginal under shifts, and the largest shift inside a budget, in numba.

One release of a scalar shifted by t, Poisson-sampled at rate q, "remove" direction. With p = f(x), r = f(x−t),
L = r/p and z = q(L−1), the moment of order α is E_p[(1+z)^α], and since E_p[z] = 0,

    E_p[(1+z)^α] − 1 = ∫ p·((1+z)^α − 1 − αz) dx,

an integral of a non-negative function that is of second order in small shifts: no digits cancel. Reflection
x → t−x exchanges p and r, so the line is folded onto [t/2, ∞), cut at the kink x = t.

Released into d coordinates, t is the shift per coordinate: d of these moments multiply. With sampling that needs the
moments of L themselves, at integer orders only: E[(1−q+qL)^α] = Σ_k C(α,k)(1−q)^{α−k} q^k E[L^k].

Fixed nodes, no proven error: this ranks shapes and never states a guarantee.
"""

from __future__ import annotations

import functools
import math

import numba
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..accounting._numba import FEW_CELLS, njit
from .cells import half_line_rule, log_density

TAIL_NODES, TAIL_WEIGHTS = half_line_rule(0.14, -3.3, 3.3)  # to s = 2e9
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
INNER_NODES, INNER_WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # Gauss–Legendre on [0, 1], for [t/2, t]
_QUADRATURE = (TAIL_NODES, TAIL_WEIGHTS, INNER_NODES, INNER_WEIGHTS)


@njit()
def convex_part(log_mass, loss, alpha, q):
    """mass·((1+z)^α − 1 − αz) with z = q(e^loss − 1) and mass = e^log_mass; never negative."""
    z = q * math.expm1(loss)
    az = alpha * z
    mass = math.exp(log_mass)
    if abs(az) < 1e-3:
        return mass * 0.5 * az * (alpha - 1) * z * (1 + (alpha - 2) * z / 3 * (1 + (alpha - 3) * z / 4))
    exponent = alpha * math.log1p(z)
    if exponent > 1:  # the mass may underflow where the power is large: multiply in logs
        return math.exp(log_mass + exponent) - mass * (1 + az)
    return mass * (math.expm1(exponent) - az)


@njit()
def excess_moment(t, alpha, q, cell, log_f, quadrature):
    """E_p[(1+z)^α] − 1 for one cell; `log_f` holds log f at the tail nodes."""
    tail_nodes, tail_weights, inner_nodes, inner_weights = quadrature
    k, g1, g3, low, width = cell
    total = 0.0
    for j in range(tail_nodes.size):
        far = log_density(t + tail_nodes[j], k, g1, g3, low, width)
        loss = log_f[j] - far
        total += tail_weights[j] * (convex_part(far, loss, alpha, q) + convex_part(log_f[j], -loss, alpha, q))
    inner = 0.0
    for j in range(inner_nodes.size):
        far = log_density(0.5 * t * (1 + inner_nodes[j]), k, g1, g3, low, width)
        near = log_density(0.5 * t * (1 - inner_nodes[j]), k, g1, g3, low, width)
        loss = near - far
        inner += inner_weights[j] * (convex_part(far, loss, alpha, q) + convex_part(near, -loss, alpha, q))
    return total + 0.5 * t * inner


@njit()
def add_powers(mass, loss, powers):
    """Add mass·(L^k − 1 − k(L−1)) to powers[k] for k >= 2, by a recursion of non-negative terms."""
    if mass < 1e-290:
        return
    step = math.expm1(loss)
    ratio = 1 + step
    part = step * step
    powers[2] += mass * part
    for k in range(3, powers.size):
        part = part * ratio + (k - 1) * step * step
        powers[k] += mass * part


@njit()
def excess_sampled_product(t, q_weights, dimension, cell, log_f, quadrature):
    """E[(1−q+qL)^α] − 1 for L the product over d coordinates shifted by t; q_weights[k] = C(α,k)(1−q)^{α−k}q^k."""
    tail_nodes, tail_weights, inner_nodes, inner_weights = quadrature
    k, g1, g3, low, width = cell
    powers = np.zeros(q_weights.size)
    for j in range(tail_nodes.size):
        far = log_density(t + tail_nodes[j], k, g1, g3, low, width)
        loss = log_f[j] - far
        add_powers(tail_weights[j] * math.exp(far), loss, powers)
        add_powers(tail_weights[j] * math.exp(log_f[j]), -loss, powers)
    for j in range(inner_nodes.size):
        far = log_density(0.5 * t * (1 + inner_nodes[j]), k, g1, g3, low, width)
        near = log_density(0.5 * t * (1 - inner_nodes[j]), k, g1, g3, low, width)
        weight = 0.5 * t * inner_weights[j]
        add_powers(weight * math.exp(far), near - far, powers)
        add_powers(weight * math.exp(near), far - near, powers)
    total = 0.0
    for order in range(2, q_weights.size):
        total += q_weights[order] * math.expm1(dimension * math.log1p(powers[order]))
    return total


@njit()
def _log_ratio(y, alpha, q, dimension, log_budget, q_weights, cell, log_f, quadrature):
    """log(log moment of one release at per-coordinate shift e^y) − log budget: nearly linear in y, slope 1 to 2."""
    t = math.exp(y)
    if q_weights.size > 2:
        moment = math.log1p(excess_sampled_product(t, q_weights, dimension, cell, log_f, quadrature))
    else:
        moment = dimension * math.log1p(excess_moment(t, alpha, q, cell, log_f, quadrature))
    if not moment < np.inf:
        return np.inf
    return math.log(moment) - log_budget if moment > 0 else -np.inf


@njit()
def _solve(start, tolerance, alpha, q, dimension, log_budget, q_weights, cell, log_f, quadrature):
    """The y with log ratio 0: secant steps, kept inside the bracket by bisection."""
    below, above = -np.inf, np.inf
    y, previous_y, previous = start, np.nan, np.nan
    for _ in range(100):
        value = _log_ratio(y, alpha, q, dimension, log_budget, q_weights, cell, log_f, quadrature)
        if value <= 0:
            below = y
        else:
            above = y
        slope = (value - previous) / (y - previous_y)
        if not 0.1 < slope < 50:  # first step, or an infinite value
            slope = 1.6
        step = -min(max(value / slope, -2.0), 2.0)
        previous_y, previous = y, value
        y += step
        if abs(step) < tolerance or above - below < tolerance:
            break
        if not below < y < above:
            y = 0.5 * (below + above)
    return y


@njit()
def _largest_shift(row, start, tolerance, alpha, q, dimension, log_budget, q_weights, quadrature):
    nodes = quadrature[0]
    cell = (row[0], row[1], row[2], row[3], row[4])
    log_f = np.empty(nodes.size)
    for j in range(nodes.size):
        log_f[j] = log_density(nodes[j], cell[0], cell[1], cell[2], cell[3], cell[4])
    return math.exp(_solve(start, tolerance, alpha, q, dimension, log_budget, q_weights, cell, log_f, quadrature))


@njit(parallel=True)
def _many_shifts(cells, start, tolerance, alpha, q, dimension, log_budget, q_weights, quadrature):
    result = np.empty(cells.shape[0])
    for i in numba.prange(cells.shape[0]):
        result[i] = _largest_shift(
            cells[i], start[i], tolerance, alpha, q, dimension, log_budget, q_weights, quadrature
        )
    return result


@njit()
def _few_shifts(cells, start, tolerance, alpha, q, dimension, log_budget, q_weights, quadrature):
    result = np.empty(cells.shape[0])
    for i in range(cells.shape[0]):
        result[i] = _largest_shift(
            cells[i], start[i], tolerance, alpha, q, dimension, log_budget, q_weights, quadrature
        )
    return result


def largest_shifts(
    cells: NDArray[np.float64],
    *,
    order: float,
    budget: float,
    sampling_rate: float,
    dimension: int,
    start: float | NDArray[np.float64] = 1.0,
    tolerance: float = 1e-6,
) -> NDArray[np.float64]:
    """Per cell, the shift per coordinate at which one release's log moment at `order` is `budget`; shape (n,).

    The log moment is (α−1)·R(α); `dimension` coordinates are shifted alike. A sampled product (dimension > 1 and
    sampling_rate < 1) takes integer orders only. `start` is a first guess, `tolerance` relative.
    """
    cells = np.ascontiguousarray(cells)
    weights = np.zeros(2)
    if dimension > 1 and sampling_rate < 1:
        weights = binomial_weights(int(order), sampling_rate)
    first = np.log(np.broadcast_to(np.asarray(start, dtype=np.float64), cells.shape[:1])).copy()
    solve = _few_shifts if len(cells) <= FEW_CELLS else _many_shifts
    return solve(
        cells,
        first,
        tolerance,
        float(order),
        float(sampling_rate),
        float(dimension),
        math.log(budget),
        weights,
        _QUADRATURE,
    )


@functools.lru_cache(maxsize=256)
def binomial_weights(order: int, sampling_rate: float) -> NDArray[np.float64]:
    """C(α,k)(1−q)^{α−k}q^k for k = 0 … α; shape (α+1,)."""
    return stats.binom.pmf(np.arange(order + 1), order, sampling_rate)
