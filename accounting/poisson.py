"""Poisson subsampling of any symmetric pair, from its Rényi curve alone.

Let P, Q be the laws with and without the record, exchanged by an involution of the outcomes (additive noise with a
density symmetric about 0: the reflection x ↦ Δ−x), R(k) their Rényi divergence of order k, q the sampling rate and
M = (1−q)Q + qP. At integer orders α >= 2

    e^{(α−1)·D_α(M‖Q)} = E_Q[(1−q+q·dP/dQ)^α] = Σ_k C(α,k)·(1−q)^{α−k}·q^k·e^{(k−1)R(k)},                        (*)

which is exact for *remove* for every pair (k = 0, 1 contribute a factor 1 each: ∫ Q = ∫ P = 1). Since the binomial
weights w_k sum to 1, it is 1 + Σ_{k>=2} w_k·(e^{(k−1)R(k)} − 1): no digits are lost when the divergence is small.

*Add*, D_α(Q‖M), is never larger for a symmetric pair. Proof. Pairing each outcome with its mirror image writes (P, Q)
as a mixture, over a common public label, of randomised-response pairs Q = (1−s, s), P = (s, 1−s) with s <= 1/2; so
hockey-stick divergences H_γ are averages of theirs, and for one of them M = (1−m, m) with s <= m <= 1−s. For γ >= 1,
H_γ(M‖Q) = max(0, m−γs) and H_γ(Q‖M) = max(0, (1−s)−γ(1−m)), and (m−γs) − ((1−s)−γ(1−m)) = (γ−1)(1−m−s) >= 0. Hence
H_γ(M‖Q) >= H_γ(Q‖M) for every γ >= 1, and with H_γ(A‖B) = 1−γ+γH_{1/γ}(B‖A) for γ < 1,

    e^{(α−1)D_α(A‖B)} = 1 + α(α−1)·∫_1^∞ [γ^{α−2}·H_γ(A‖B) + γ^{−α−1}·H_γ(B‖A)] dγ,
    e^{(α−1)D_α(M‖Q)} − e^{(α−1)D_α(Q‖M)} = α(α−1)·∫_1^∞ (γ^{α−2} − γ^{−α−1})·(H_γ(M‖Q) − H_γ(Q‖M)) dγ >= 0.   ∎

Real orders: (α−1)·D_α is convex in α and 0 at α = 1, so it lies below its chord between neighbouring integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

_LARGEST_ORDER = 2**16
"""Terms summed at most. Any order gives a valid bound, so ending here is safe; it limits how small an ε can be proven
(2e-4 at δ = 1e-10), for sampled noise in several dimensions only: scalars and the Gaussian are integrated instead."""


def sampled_curve(base: Callable[[Array], Array], sampling_rate: float) -> Callable[[Array], Array]:
    """The curve of the Poisson-sampled pair (both directions), for a curve `base` of upper bounds of a symmetric pair.

    Both map orders > 1, shape (n,), to upper bounds on the Rényi divergence per release, same shape.
    """
    if sampling_rate == 1:
        return base
    cache: dict[int, float] = {}

    def at_integer(order: int) -> float:
        if order not in cache:
            cache[order] = _binomial_sum(base, sampling_rate, order)
        return cache[order]

    def log_moment(order: int) -> float:
        return 0.0 if order == 1 else (order - 1) * at_integer(order)

    def curve(orders: Array) -> Array:
        result = np.empty_like(orders)
        for index, order in enumerate(orders):
            below = int(np.floor(order))
            if below >= _LARGEST_ORDER:
                result[index] = np.inf
                continue
            weight = order - below
            chord = log_moment(below) * (1 - weight) + (log_moment(below + 1) * weight if weight else 0.0)
            result[index] = chord / (order - 1)
        return result

    return curve


def sampled_loss(loss: float, rate: float) -> float:
    """Order ∞ after sampling: remove gives log(1−q+q·e^loss); add, −log(1−q+q·e^−loss), is not larger."""
    if rate == 1 or math.isinf(loss):
        return loss
    if loss < 300:
        return math.log1p(rate * math.expm1(loss)) * (1 + 1e-14)
    return float(np.logaddexp(math.log1p(-rate), loss + math.log(rate))) * (1 + 1e-14)


def _binomial_sum(base: Callable[[Array], Array], sampling_rate: float, order: int) -> float:
    """D_α(M‖Q) of equation (*) at the integer `order`."""
    k = np.arange(2, order + 1, dtype=np.float64)
    log_weight = (
        special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
        + (order - k) * np.log1p(-sampling_rate) + k * np.log(sampling_rate)
    )  # fmt: skip
    exponent = (k - 1) * base(k)
    with np.errstate(divide="ignore", over="ignore"):
        log_excess = np.where(
            exponent > 30, exponent + np.log1p(-np.exp(-exponent)), np.log(np.expm1(np.minimum(exponent, 31)))
        )
    total: Any = special.logsumexp(log_weight + log_excess)
    log_sum = total + 1e-15 * order  # the last term covers gammaln's rounding
    return float(np.logaddexp(0.0, log_sum)) / (order - 1)
