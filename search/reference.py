"""Readable NumPy twins of the kernels that rank cells, written from the definitions. Slow; tests trust them.

The density's twin is the mechanism's own `log_density`; everything here takes a mechanism, not a cell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from ..mechanisms import Mechanism
from .cells import half_line_rule

_SIDE = half_line_rule(0.04, -3.7, 3.7)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(300)


def _line(t: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(nodes, weights) over the whole line for a density shifted by t: (−∞, 0), [0, t] in halves, (t, ∞)."""
    side, side_weights = _SIDE
    half, half_weights = t / 4 * (_NODES + 1), t / 4 * _WEIGHTS
    nodes = np.concatenate([-side, half, t / 2 + half, t + side])
    return nodes, np.concatenate([side_weights, half_weights, half_weights, side_weights])


def _ratio(mechanism: Mechanism, t: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(p·weight, L = p(x−t)/p(x)) at the nodes."""
    x, weights = _line(t)
    log_p = mechanism.log_density(x)
    return weights * np.exp(log_p), np.exp(mechanism.log_density(x - t) - log_p)


def excess_moment(mechanism: Mechanism, t: float, order: float, sampling_rate: float) -> float:
    """E_p[(1 − q + qL)^α] − 1 of one scalar release shifted by t."""
    mass, ratio = _ratio(mechanism, t)
    z = sampling_rate * (ratio - 1)
    return float(mass @ ((1 + z) ** order - 1 - order * z))


def excess_sampled_product(mechanism: Mechanism, t: float, order: int, sampling_rate: float, dimension: int) -> float:
    """The same for `dimension` coordinates shifted by t each, integer order: Σ_k C(α,k)(1−q)^{α−k}q^k·E[L^k]^d − 1."""
    mass, ratio = _ratio(mechanism, t)
    total = 0.0
    for k in range(2, order + 1):
        moment = 1 + mass @ (ratio**k - 1 - k * (ratio - 1))
        total += stats.binom.pmf(k, order, sampling_rate) * (moment**dimension - 1)
    return float(total)


def hockey_stick(mechanism: Mechanism, t: float, epsilon: float) -> float:
    """δ of one scalar release shifted by t at ε, from the CDF at the ends of {log p(x)/p(x−t) > ε}."""

    def loss(x: float) -> float:
        return float(mechanism.log_density(x) - mechanism.log_density(x - t)) - epsilon

    if loss(0.0) <= 0:
        return 0.0
    right = optimize.brentq(loss, 0.0, t / 2, xtol=1e-14)
    far = -1e4
    left = optimize.brentq(loss, far, 0.0, xtol=1e-14) if loss(far) < 0 else -1e300
    p, q = (mechanism.cdf(np.array([right, left]) - shift) for shift in (0.0, t))
    return float(p[0] - p[1] - np.exp(epsilon) * (q[0] - q[1]))
