"""The Poisson-sampled Gaussian at any real order, by direct integration with a proven bracket.

Integer orders have the exact binomial sum; low orders, which decide when ε is large, need more. The loss
ℓ(x) = (t² − 2xt)/(2σ²) is monotone and unbounded, so x <= −X has its own bound: there r >= r_X, hence
1 + q(r−1) <= r·κ with κ = q + (1−q)/r_X, and

    ∫_{x<−X} (1+q(r−1))^α dQ <= κ^α·∫_{x<−X} p^α p(·−t)^{1−α} = κ^α·e^{α(α−1)t²/2σ²}·Φ(((α−1)t − X)/σ).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ..mechanisms import Mechanism
from .cells import Cells, interval_mass
from .f_divergence import log_excess, renyi_bounds

Array = NDArray[np.float64]

_REACH = 9.0  # standard deviations beyond the tilted mean (α−1)t at which the closed tail bound takes over
_MOST_CELLS = 40_000


def sampled_gaussian_renyi(noise: Mechanism, shift: float, rate: float, order: float) -> float:
    """Proven upper bound on the Rényi divergence of real `order` > 1 of the sampled pair, *remove* (the larger)."""
    sigma = math.sqrt(noise.variance)
    t = shift / sigma
    reach = (order - 1) * t + _REACH
    count = int(min(_MOST_CELLS, 500 + 20 * order * t * (reach + t)))
    x = np.concatenate([np.linspace(0, reach, count + 1)[::-1] * -1, np.linspace(0, t / 2, 101)[1:]])
    _, bulk = renyi_bounds(_cells(noise, sigma, t, x), np.array([order]), sampling_rate=rate, remove=True)
    log_bulk = _log_expm1(float(bulk[0]) * (order - 1))
    return float(np.logaddexp(0.0, np.logaddexp(log_bulk, _log_tails(t, rate, order, reach)))) / (order - 1)


def _cells(noise: Mechanism, sigma: float, t: float, x: Array) -> Cells:
    """Cells between neighbouring points of `x` (units of σ, from −X to t/2)."""
    loss = t * (t / 2 - x)
    loss[-1] = 0.0
    edge = sigma * x
    log_p, error_p = _mass(noise, edge)
    log_q, error_q = _mass(noise, edge - sigma * t)
    error = 1e-15 * (1 + np.abs(loss[:-1]))
    return Cells(log_p, log_q, np.maximum(loss[1:] - error, 0.0), loss[:-1] + error, error_p + error_q)


def _mass(noise: Mechanism, edge: Array) -> tuple[Array, Array]:
    """Log masses between neighbouring edges, each pair on one side of 0."""
    near, far = np.minimum(np.abs(edge[:-1]), np.abs(edge[1:])), np.maximum(np.abs(edge[:-1]), np.abs(edge[1:]))
    return interval_mass(noise, near, far)


def _log_tails(t: float, rate: float, order: float, reach: float) -> float:
    """log of what x < −X adds: the bound above, and the mirrored tail, where g is at most its value at r = 0."""
    log_ratio = t * (t / 2 + reach)
    log_kappa = float(np.logaddexp(math.log(rate), math.log1p(-rate) - log_ratio))
    power = order * (order - 1) * t * t / 2
    main = order * log_kappa + power + float(special.log_ndtr((order - 1) * t - reach))
    at_zero = float(log_excess(np.array([order]), np.array([-700.0]), rate)[0])
    return float(np.logaddexp(main, at_zero + float(special.log_ndtr(-reach))))


def _log_expm1(value: float) -> float:
    return value + math.log1p(-math.exp(-value)) if value > 1 else math.log(math.expm1(value))
