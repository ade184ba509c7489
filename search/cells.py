"""A cell: an LMO noise as five numbers, and its exact marginal in numba.

A cell is (k, g1, g3, low, width): the inverse scale is u = g1·Gamma(k, 1) + g3·Exp(1) + Uniform[low, low + width], in
units of 1/C. Its marginal (u hidden) is closed: with K(−s) = log E[exp(−u·s)],

    P(|X| > s) = exp(K(−s)),   f(s) = exp(K(−s))·K′(−s)/2,   |f′/f| = K′ + K″/K′

(`mechanisms/scale_mixture.py`, whose formulas are the readable twin of the scalar kernels here). A *normalised* cell
has E[u] = 1. Integrals over (0, ∞) use the double-exponential rule below, the same nodes for every cell.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..accounting._numba import FEW_CELLS, njit
from ..mechanisms import ScaleMixture

LAPLACE_CELL = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
"""u = 1 without spread: plain Laplace noise of scale 1, as a normalised cell."""
_ABSENT = 1e-9  # a term with less than this share of E[u] is dropped when a cell becomes a mechanism


def half_line_rule(step: float, lowest: float, highest: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(nodes s, weights) of ∫_0^∞: the trapezoid rule in τ with s = exp(π/2·sinh τ) (Takahasi, Mori 1974)."""
    tau = np.arange(lowest, highest + step / 2, step)
    nodes = np.exp(np.pi / 2 * np.sinh(tau))
    return nodes, step * np.pi / 2 * np.cosh(tau) * nodes


MOMENT_NODES, MOMENT_WEIGHTS = half_line_rule(0.1, -3.7, 4.5)  # to s = 1e30: a variance has slow power-law tails
MOMENT_WEIGHTS[-1] /= 2  # the tail beyond the last node is added in closed form


def normalised(cells: ArrayLike) -> NDArray[np.float64]:
    """The same shapes with E[u] = 1; shape (n, 5)."""
    cells = np.array(cells, dtype=np.float64, ndmin=2)
    cells[:, 1:] /= mean_inverse_scale(cells)[:, None]
    return cells


def mean_inverse_scale(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """E[u] of each row; shape (n,)."""
    k, g1, g3, low, width = cells.T
    return k * g1 + g3 + low + width / 2


def tail_index(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """κ with P(|X| > s) of order s^−κ: E|X|^n is finite exactly for n < κ; shape (n,)."""
    k, g1, g3, low, width = cells.T
    index = np.where(g1 > 0, k, 0.0) + (g3 > 0) + (width > 0)
    return np.where(low > 0, np.inf, index)


def cell_of(mixture: ScaleMixture) -> NDArray[np.float64]:
    """The cell of an LMO noise, not normalised; shape (5,)."""
    cell = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    if mixture.gamma_weight:
        cell[:2] = mixture.gamma_shape, mixture.gamma_weight * mixture.gamma_scale  # type: ignore[operator]
    if mixture.exponential_weight:
        cell[2] = mixture.exponential_weight / mixture.exponential_rate  # type: ignore[operator]
    if mixture.uniform_weight:
        low, high = float(mixture.uniform_low), float(mixture.uniform_high)  # type: ignore[arg-type]
        cell[3:] = mixture.uniform_weight * low, mixture.uniform_weight * (high - low)
    return cell


def mechanism_of(cell: NDArray[np.float64]) -> ScaleMixture:
    """The LMO noise of a cell; negligible terms are absent.

    Only the products weight × parameter matter, so the weights of a refined noise are g1, g3 and 1 with θ = rate = 1.
    """
    k, g1, g3, low, width = (float(value) for value in cell)
    mean = k * g1 + g3 + low + width / 2
    fields: dict[str, float] = {}
    if k * g1 > _ABSENT * mean:
        fields |= {"gamma_weight": g1, "gamma_shape": k, "gamma_scale": 1.0}
    if g3 > _ABSENT * mean:
        fields |= {"exponential_weight": g3, "exponential_rate": 1.0}
    if low + width > _ABSENT * mean:
        fields |= {"uniform_weight": 1.0, "uniform_low": low, "uniform_high": low + width}
    return ScaleMixture(**fields)


# ---- scalar kernels: one cell, one point s >= 0 ---------------------------------------------------------------------


@njit()
def _uniform(z):
    """(1 − e^−z)/z, and mean and variance of the uniform law on [0, 1] tilted by e^−zv; series where these cancel."""
    if z < 0.1:
        factor = math.exp(-z / 2 + z**2 / 24 - z**4 / 2880 + z**6 / 181440)
        mean = 0.5 - z / 12 + z**3 / 720 - z**5 / 30240
        return factor, mean, 1 / 12 - z**2 / 240 + z**4 / 6048 - z**6 / 172800
    complement = -math.expm1(-z)
    odds = (1 - complement) / complement
    return complement / z, 1 / z - odds, 1 / (z * z) - odds / complement


@njit()
def log_density(s, k, g1, g3, low, width):
    """log f(s)."""
    factor, uniform_mean, _ = _uniform(width * s)
    gamma, exponential = 1 + g1 * s, 1 + g3 * s
    mean = k * g1 / gamma + g3 / exponential + low + width * uniform_mean
    return math.log(0.5 * factor * mean / exponential) - k * math.log1p(g1 * s) - low * s


@njit()
def log_tail_and_score(s, k, g1, g3, low, width):
    """(K(−s), K′(−s), |f′/f|(s))."""
    factor, uniform_mean, uniform_variance = _uniform(width * s)
    gamma, exponential = 1 + g1 * s, 1 + g3 * s
    mean = k * g1 / gamma + g3 / exponential + low + width * uniform_mean
    spread = k * (g1 / gamma) ** 2 + (g3 / exponential) ** 2 + width * width * uniform_variance
    return math.log(factor / exponential) - k * math.log1p(g1 * s) - low * s, mean, mean + spread / mean


# ---- arrays of cells ------------------------------------------------------------------------------------------------


@njit()
def _cell_statistics(row, nodes, weights):
    k, g1, g3, low, width = row
    mean_abs = second = fisher = 0.0
    for j in range(nodes.size):
        log_tail, mean, score = log_tail_and_score(nodes[j], k, g1, g3, low, width)
        tail = weights[j] * math.exp(log_tail)
        mean_abs += tail
        second += nodes[j] * tail
        fisher += score * score * mean * tail
    return mean_abs, 2 * second, fisher


@njit(parallel=True)
def _many_statistics(cells, nodes, weights):
    result = np.empty((cells.shape[0], 3))
    for i in numba.prange(cells.shape[0]):
        result[i] = _cell_statistics(cells[i], nodes, weights)
    return result


@njit()
def _few_statistics(cells, nodes, weights):
    result = np.empty((cells.shape[0], 3))
    for i in range(cells.shape[0]):
        result[i] = _cell_statistics(cells[i], nodes, weights)
    return result


def statistics(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """E|X|, E X² and Fisher information of each normalised cell, `inf` where a moment does not exist; shape (n, 3)."""
    integrate = _few_statistics if len(cells) <= FEW_CELLS else _many_statistics
    result = integrate(np.ascontiguousarray(cells), MOMENT_NODES, MOMENT_WEIGHTS)
    index = tail_index(cells)
    _add_power_tails(result, cells, index)
    result[index <= 1, 0] = np.inf
    result[index <= 2, 1] = np.inf
    return result


def _add_power_tails(result: NDArray[np.float64], cells: NDArray[np.float64], index: NDArray[np.float64]) -> None:
    """Add the part beyond the last node S to the moments of power-law tails: ∫_S^∞ s^(n−1)·T(s) ds = S^n·T(S)/(κ−n)."""
    last = MOMENT_NODES[-1]
    for power, column, factor in ((1, 0, 1.0), (2, 1, 2.0)):
        rows = np.flatnonzero((index > power) & np.isfinite(index))
        tail = tail_probability(cells[rows], np.full(rows.size, last))
        result[rows, column] += factor * last**power * tail / (index[rows] - power)


@njit()
def _tail_probability(cells, radius):
    result = np.empty(cells.shape[0])
    for i in range(cells.shape[0]):  # one logarithm a cell: threads would not pay
        k, g1, g3, low, width = cells[i]
        result[i] = math.exp(log_tail_and_score(radius[i], k, g1, g3, low, width)[0])
    return result


def tail_probability(cells: NDArray[np.float64], radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(|X| > radius) of each cell, radius of shape (n,)."""
    return _tail_probability(np.ascontiguousarray(cells), np.ascontiguousarray(radius))


@njit()
def _upper_quantile(cells, depth):
    result = np.empty(cells.shape[0])
    for i in range(cells.shape[0]):
        k, g1, g3, low, width = cells[i]
        s = 0.0
        for _ in range(10_000):  # −K(−s) is concave: Newton's steps from the left stay on the left
            log_tail, mean, _ = log_tail_and_score(s, k, g1, g3, low, width)
            step = (depth + log_tail) / mean
            s += step
            if not step > 1e-13 * s:
                break
        result[i] = s
    return result


def upper_quantile(cells: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """The s with P(|X| <= s) = `level` of each cell; shape (n,)."""
    return _upper_quantile(np.ascontiguousarray(cells), -math.log1p(-level))
