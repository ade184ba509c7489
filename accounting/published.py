"""The Rényi bound that the LMO-DP paper (arXiv 2405.18776) publishes, in its domain; and its procedure, outside it too.

The paper bounds the divergence of order α of one scalar release with inverse scale u (moment generating function M) by

    R(α) = log( (α·M(α−1) + (α−1)·M(−α)) / (2α−1) ) / (α−1),

the Laplace divergence averaged over u. M(α−1) = E[e^{(α−1)u}] is finite only for a1·θ·(α−1) < 1 and a3·(α−1) < λ.
Only `published_epsilon` states a guarantee: for one scalar release, u even shown to the adversary. Jensen: under this
bound plain Laplace noise with scale 1/E[u] loses no more at every order (e^{cu} is convex) and has no larger E|x|.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import ScaleMixture, _validate
from .conversion import best_epsilon, epsilon_at

Array = NDArray[np.float64]
PUBLISHED_ORDERS = np.arange(2.0, 129.0)


class PublishedEpsilon(NamedTuple):
    """What the published procedure prints for a noise; a guarantee only where `in_domain` is true."""

    epsilon: float
    order: float
    in_domain: bool


def in_domain(mixture: ScaleMixture, orders: Array) -> NDArray[np.bool_]:
    """Where M(α−1) is finite, shape as `orders`."""
    t = np.asarray(orders, dtype=np.float64) - 1
    return np.all([length * t < 1 for _, length in mixture.power_terms()] + [t < np.inf], axis=0)


def published_curve(mixture: ScaleMixture, orders: Array) -> Array:
    """R(α) at real orders > 1 (natural log), shape as `orders`; `inf` outside the domain."""
    orders = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    result = np.full_like(orders, np.inf)
    inside = in_domain(mixture, orders)
    a = orders[inside]
    result[inside] = (
        np.logaddexp(
            np.log(a) + _log_mgf_above(mixture, a - 1),
            np.log(a - 1) + mixture.log_mgf(a),
        )
        - np.log(2 * a - 1)
    ) / (a - 1)
    return result


def published_epsilon(mixture: ScaleMixture, *, delta: float) -> float:
    """ε of one scalar release by the published bound inside its domain, at the best real order (proven)."""
    _validate.open_unit("delta", delta)
    return best_epsilon(functools.partial(published_curve, mixture), math.log(delta))[0]


def reproduce_published_epsilon(mixture: ScaleMixture, *, delta: float) -> PublishedEpsilon:
    """What the authors' code prints: NOT a guarantee outside the domain.

    It evaluates the closed form of M at every integer order 2 … 128, past its poles too, skips NaN, and takes the
    least ε = R + log((α−1)/α) − (log δ + log α)/(α−1). Only for reproducing published tables.
    """
    _validate.open_unit("delta", delta)
    a = PUBLISHED_ORDERS
    with np.errstate(all="ignore"):
        mean = (a * _closed_mgf(mixture, a - 1) + (a - 1) * _closed_mgf(mixture, -a)) / (2 * a - 1)
        value = epsilon_at(a, np.log(mean) / (a - 1), math.log(delta))
    if np.isnan(value).all():
        return PublishedEpsilon(math.nan, math.nan, False)
    best = int(np.nanargmin(value))
    return PublishedEpsilon(float(value[best]), float(a[best]), bool(in_domain(mixture, a)[best]))


def _log_mgf_above(mixture: ScaleMixture, t: Array) -> Array:
    """log M(t) for t > 0 inside the domain."""
    low, width = mixture.uniform_term()
    span = np.maximum(width * t, 1e-300)  # log((e^z − 1)/z), 0 in the limit z → 0
    total = (low + width) * t + np.log(-np.expm1(-span)) - np.log(span)
    for exponent, length in mixture.power_terms():
        total = total - exponent * np.log1p(-length * t)
    return total


def _closed_mgf(mixture: ScaleMixture, t: Array) -> Array:
    """The closed form of M(t) as the authors evaluate it, beyond its poles too, where it is not E[e^{tu}]."""
    low, width = mixture.uniform_term()
    total = (np.exp((low + width) * t) - np.exp(low * t)) / (width * t) if width else np.exp(low * t)
    for exponent, length in mixture.power_terms():
        total = total * (1 - length * t) ** -exponent
    return total
