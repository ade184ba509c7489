"""Rényi curves to (ε, δ) and back: Canonne, Kamath and Steinke 2020 (arXiv 2004.00010), Proposition 12.

For every order α > 1, a divergence R(α) gives  ε = R(α) + log((α−1)/α) − (log δ + log α)/(α−1), equivalently
log δ = (α−1)·(R(α) − ε + log((α−1)/α)) − log α. Every order gives a valid bound, so the search over orders affects
tightness only: it grows its range until the best order lies inside, with no cap that could make an answer useless.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

_LOWEST_OCTAVE, _HIGHEST_OCTAVE = -30, 24  # of α − 1: from ε of 1e9 and more down to ε of about 1e-6
_PER_OCTAVE = 4
_ZOOMS = 5  # each narrows the bracket of the best order about fourfold


def epsilon_at(order: Array, divergence: Array, log_delta: float) -> Array:
    """ε for each order and divergence (same shape) at log δ; may be negative (then ε = 0 holds)."""
    return divergence + np.log1p(-1 / order) - (log_delta + np.log(order)) / (order - 1)


def log_delta_at(order: Array, divergence: Array, epsilon: float) -> Array:
    """log δ for each order and divergence (same shape) at ε; may be positive (then δ = 1 holds)."""
    return (order - 1) * (divergence - epsilon + np.log1p(-1 / order)) - np.log(order)


def best_epsilon(curve: Curve, log_delta: float) -> tuple[float, float]:
    """(least ε over the orders, its order) at log δ for the curve of the whole composition; ε >= 0."""
    value, order = _minimise(lambda orders: epsilon_at(orders, curve(orders), log_delta))
    return max(value, 0.0), order


def best_log_delta(curve: Curve, epsilon: float) -> tuple[float, float]:
    """(least log δ over the orders, its order) at ε for the curve of the whole composition; log δ <= 0."""
    value, order = _minimise(lambda orders: log_delta_at(orders, curve(orders), epsilon))
    return min(value, 0.0), order


def _minimise(objective: Curve) -> tuple[float, float]:
    """Least value of `objective` over orders > 1: octaves of α − 1 until the minimum is inside, then zooms."""
    low, high = -2, 6
    orders, values = _sample(objective, low, high)
    while True:
        best = int(np.argmin(values))
        if best >= len(orders) - 1 and high < _HIGHEST_OCTAVE:
            more = _sample(objective, high, high + 2)
            orders, values, high = np.append(orders, more[0]), np.append(values, more[1]), high + 2
        elif best == 0 and low > _LOWEST_OCTAVE:
            more = _sample(objective, low - 2, low)
            orders, values, low = np.append(more[0], orders), np.append(more[1], values), low - 2
        else:
            break
    return _zoom(objective, orders, values)


def _sample(objective: Curve, low: int, high: int) -> tuple[Array, Array]:
    orders = 1 + 2.0 ** (low + np.arange(1, (high - low) * _PER_OCTAVE + 1) / _PER_OCTAVE)
    return orders, np.where(np.isnan(values := objective(orders)), np.inf, values)


def _zoom(objective: Curve, orders: Array, values: Array) -> tuple[float, float]:
    """Refine around the best order, where the objective need not be finite everywhere; the best value and its order."""
    for _ in range(_ZOOMS):
        best = int(np.argmin(values))
        low, high = orders[max(best - 1, 0)], orders[min(best + 1, len(orders) - 1)]
        finer = np.setdiff1d(1 + np.geomspace(low - 1, high - 1, 10), orders)
        fine_values = objective(finer)
        orders = np.append(orders, finer)
        ranking = np.argsort(orders)
        orders, values = orders[ranking], np.append(values, fine_values)[ranking]
        values = np.where(np.isnan(values), np.inf, values)
    best = int(np.argmin(values))
    return float(values[best]), float(orders[best])
