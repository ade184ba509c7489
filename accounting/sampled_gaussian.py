"""The Poisson-sampled Gaussian at any real order, by the trapezoid rule with a proven error.

In units of σ, with shift t, L(x) = e^{tx − t²/2} and z = q(L − 1), the *remove* divergence of order α has

    e^{(α−1)R} = F = ∫ φ(x)·(1+z)^α dx = 1 + ∫ φ·g dx,    g = (1+z)^α − 1 − αz >= 0.

Both φ·(1+z)^α and φ·(1+αz) are analytic in the strip |Im x| < π/t: there L is never a negative number, so 1−q+qL
is neither. As |φ(x+iy)| = e^{y²/2}·φ(x) and |L(x+iy)| = L(x), the integral of the modulus over any line Im x = y with
|y| <= a < π/t is at most M = e^{a²/2}·(F + 1 + 2αq). The trapezoid sum with step h then differs from ∫ φ·g by at most
2M/(e^{2πa/h} − 1) (Trefethen and Weideman 2014, SIAM Review 56, Theorem 5.1). The step is chosen so that this is below
2·(F + 1 + 2αq)·e^{−75}; the sum ends 12 standard deviations beyond both humps, and what it leaves out is bounded by

    (1+z)^α <= L^α·κ^α for x >= X, κ = q + (1−q)/L(X), whose integral against φ is κ^α·e^{α(α−1)t²/2}·Φ(αt − X).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .f_divergence import log_excess, log_sum_exp

Array = NDArray[np.float64]

_EXPONENT = 75.0  # −log of the trapezoid error, relative to F + 1 + 2αq
_REACH = 12.0  # standard deviations beyond the humps at 0 and at αt
_MOST_POINTS = 2**15
_MOST_TERMS = 2**16  # orders times points at once
_ROUNDING = 1e-10  # relative; the terms are positive and each is good to about 1e-12


def sampled_gaussian_renyi(t: float, rate: float, orders: Array) -> Array:
    """Proven upper bounds on the Rényi divergence (natural log) of the sampled pair at real `orders` > 1, shape (n,).

    `t` is the shift in standard deviations, `rate` the Poisson inclusion probability in (0, 1). Both directions.
    """
    strip = min(0.95 * math.pi / t, 12.5)
    step = 2 * math.pi * strip / (_EXPONENT + strip**2 / 2 + math.log(2))
    count = np.ceil((2 * _REACH + orders * t) / step)
    result = orders * t * t / 2  # for huge divergences, of no use to anybody: sampling never adds to the unsampled one
    chosen = np.flatnonzero(count <= _MOST_POINTS)
    while len(chosen):
        points = np.maximum.accumulate(count[chosen])  # of the sum up to each order, if all have as many
        size = max(int(np.sum(points * np.arange(1, len(chosen) + 1) <= _MOST_TERMS)), 1)
        part, chosen = chosen[:size], chosen[size:]
        result[part] = _by_trapezoids(t, rate, orders[part], step, int(points[size - 1]))
    return result


def _by_trapezoids(t: float, rate: float, orders: Array, step: float, count: int) -> Array:
    x: Array = -_REACH + step * np.arange(count + 1, dtype=np.float64)
    log_terms = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + log_excess(orders[:, None], t * x - t * t / 2, rate)
    log_sum = log_sum_exp(log_terms) + math.log(step) + _ROUNDING
    log_total = np.logaddexp(log_sum, _log_left_out(t, rate, orders, float(x[-1]) - step))
    trapezoid = np.log(8 + 4 * orders * rate) - _EXPONENT + np.maximum(log_total, 0.0)  # F <= 1 + total
    return np.logaddexp(0.0, np.logaddexp(log_total, trapezoid)) / (orders - 1)


def _log_left_out(t: float, rate: float, orders: Array, end: float) -> Array:
    """log of what the sum misses: x > `end` by the bound above; x < −12, where g <= g(z = −q), its value at L = 0."""
    log_kappa = float(np.logaddexp(math.log(rate), math.log1p(-rate) - (t * end - t * t / 2)))
    right = orders * log_kappa + orders * (orders - 1) * t * t / 2 + special.log_ndtr(orders * t - end)
    at_zero = log_excess(orders, np.array(-np.inf), rate)
    return np.logaddexp(right, at_zero + float(special.log_ndtr(-_REACH + 0.6)))
