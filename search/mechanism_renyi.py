"""Rényi log moments of any mechanism at many orders at once: its density by NumPy at a few hundred points, the rest in
numba.

The same folded integral as in `renyi_kernel`, over panels that follow the mechanism: they are cut at quantiles down to
probabilities of 1e-300 and at the `breaks` of the density and of its shifted copy, and carry Gauss–Legendre nodes, in
log x where a panel spans more than a factor of two. No proven error: this ranks shapes and states no guarantee.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from ..accounting._numba import njit
from ..mechanisms import Mechanism
from .renyi_kernel import add_powers, binomial_weights, convex_part

Array = NDArray[np.float64]

_DEPTHS = np.log(2) + 0.03 * np.geomspace(1, 690 / 0.03, 34)  # −log P(X > x) at the panels' ends
_BREAKS_FROM = 45.0  # −log P(X > x) up to which panels are cut at breaks
_MOST_BREAKS = 500
_MANY_PANELS = 120  # from which a panel carries fewer nodes
_TRIES = 40


def largest_renyi_shift(
    mechanism: Mechanism,
    *,
    orders: Array,
    log_moments: Array,
    sampling_rate: float,
    dimension: int,
    tolerance: float = 1e-5,
) -> float:
    """The largest shift per coordinate at which one release keeps to the log moment of at least one order.

    `log_moments` (m,) are the budgets (α−1)·R(α) at `orders` (m,); `dimension` coordinates are shifted alike. A sampled
    product (dimension > 1 and sampling_rate < 1) takes integer orders only. ValueError for noise of bounded support,
    whose every Rényi divergence is infinite.
    """
    if mechanism.support < math.inf:
        raise ValueError(f"every Rényi divergence of {mechanism.family} noise is infinite: its support is bounded")
    curve = _Curve(mechanism, orders, sampling_rate, dimension)
    log_budgets = np.log(log_moments)
    at, slope, last = math.log(mechanism.scale_hint), 1.6, (math.nan, math.nan)
    below, above = -math.inf, math.inf
    for _ in range(_TRIES):
        value = float(np.min(curve.log_moments(math.exp(at)) - log_budgets))
        below, above = (at, above) if value <= 0 else (below, at)
        measured = (value - last[1]) / (at - last[0])
        slope = measured if 0.1 < measured < 50 else 1.6  # first step, or an infinite value
        last = at, value
        step = -min(max(value / slope, -2.0), 2.0)
        at += step
        if abs(step) < tolerance or above - below < tolerance:
            break
        if not below < at < above:
            at = 0.5 * (below + above)
    return math.exp(at)


@dataclasses.dataclass(frozen=True)
class _Curve:
    """log of the log moments of one release at all `orders`, as a function of the shift per coordinate."""

    mechanism: Mechanism
    orders: Array
    sampling_rate: float
    dimension: int

    @functools.cached_property
    def _ends(self) -> Array:
        return np.unique(self.mechanism.tail_quantile(-_DEPTHS))

    @functools.cached_property
    def _breaks(self) -> Array:
        return self.mechanism.breaks(float(self.mechanism.tail_quantile(-_BREAKS_FROM)))[:_MOST_BREAKS]

    def log_moments(self, shift: float) -> Array:
        """log((α−1)·R(α)), shape of `orders`; −inf where it is 0, inf past the range of floats."""
        far, near, weights = self._densities(shift)
        with np.errstate(divide="ignore", over="ignore"):
            if self.dimension > 1 and self.sampling_rate < 1:
                return np.log(np.log1p(self._sampled_product(far, near, weights)))
            excess = _excess_moments(far, near, weights, self.orders, self.sampling_rate)
            return np.log(self.dimension * np.log1p(excess))

    def _sampled_product(self, far: Array, near: Array, weights: Array) -> Array:
        powers = _power_moments(far, near, weights, int(self.orders.max()) + 1)
        grown = np.expm1(self.dimension * np.log1p(powers))
        result = np.empty(len(self.orders))
        for i, order in enumerate(self.orders):
            chances = binomial_weights(int(order), self.sampling_rate)
            result[i] = np.sum(chances[2:] * grown[2 : chances.size])
        return result

    def _densities(self, shift: float) -> tuple[Array, Array, Array]:
        """(log f(x), log f(x − t), weights) at the nodes of x >= t/2, t the shift."""
        breaks = self._breaks
        beyond, outer = _rule(np.concatenate([self._ends, breaks, breaks - shift]), 0.0, float(self._ends[-1]))
        within, inner = _rule(np.concatenate([self._ends, breaks, shift - breaks]), 0.0, shift / 2)
        density = self.mechanism.log_density
        far = np.concatenate([density(shift + beyond), density(shift - within)])
        near = np.concatenate([density(beyond), density(within)])
        return far, near, np.concatenate([outer, inner])


def _rule(ends: Array, low: float, high: float) -> tuple[Array, Array]:
    """(nodes, weights) of the panels between `low` and `high` that are cut at `ends`."""
    ends = np.unique(np.concatenate([[low], ends[(ends > low) & (ends < high)], [high]]))
    nodes, weights = np.polynomial.legendre.leggauss(8 if len(ends) <= _MANY_PANELS else 3)
    a, b = ends[:-1, None], ends[1:, None]
    wide = (a > 0) & (b > 2 * a)
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithm = np.where(wide, np.log(b / a), 0.0)
        in_log = a * np.exp(logarithm * (nodes + 1) / 2)
    x = np.where(wide, in_log, a + (b - a) * (nodes + 1) / 2)
    w = np.where(wide, in_log * logarithm, b - a) * weights / 2
    return x.ravel(), w.ravel()


@njit()
def _excess_moments(far, near, weights, orders, q):
    """E_p[(1+z)^α] − 1 at each order; see `renyi_kernel`."""
    result = np.zeros(orders.size)
    for j in range(far.size):
        if not (far[j] > -np.inf and near[j] > -np.inf):
            continue
        loss = near[j] - far[j]
        for i in range(orders.size):
            part = convex_part(far[j], loss, orders[i], q) + convex_part(near[j], -loss, orders[i], q)
            result[i] += weights[j] * part
    return result


@njit()
def _power_moments(far, near, weights, size):
    """E[L^k] − 1 for k = 2 … size − 1; shape (size,)."""
    powers = np.zeros(max(size, 3))
    for j in range(far.size):
        if far[j] > -np.inf and near[j] > -np.inf:
            loss = near[j] - far[j]
            add_powers(weights[j] * math.exp(far[j]), loss, powers)
            add_powers(weights[j] * math.exp(near[j]), -loss, powers)
    return powers
