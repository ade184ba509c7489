"""The exact privacy profile of the Gaussian (Balle and Wang 2018, arXiv 1805.06530, Theorem 8), in log space.

With μ = shift/σ (μ² adds over compositions), x = ε/μ − μ/2 and Mills' ratio M(x) = Φ(−x)/φ(x),

    δ(ε) = Φ(−x) − e^ε·Φ(−x−μ) = φ(x)·[M(x) − M(x+μ)]        because e^ε·φ(x+μ) = φ(x),

which keeps its relative precision down to the smallest float.
"""

from __future__ import annotations

import math

from scipy import special

from ._roots import falling_root
from .interval import EpsilonInterval

_EPS = 2.0**-52
_SERIES_BELOW = 1e-3  # μ up to which M(x) − M(x+μ) is expanded about its midpoint


def _mills(x: float) -> float:
    return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))


def _mills_drop(x: float, mu: float) -> tuple[float, float]:
    """(M(x) − M(x+μ), its relative rounding error).

    For small μ: −μ·M′ − μ³/24·M‴ at the midpoint, with M′ = xM − 1, M″ = M + xM′, M‴ = 2M′ + xM″; the next term is
    below μ⁴/50 relative. −M′ loses x² bits to the cancellation of xM against 1.
    """
    if mu >= _SERIES_BELOW:
        first = _mills(x)
        drop = first - _mills(x + mu)
        return drop, _EPS * first / max(drop, 1e-300)
    middle = x + mu / 2
    value = _mills(middle)
    slope = middle * value - 1
    third = 2 * slope + middle * (value + middle * slope)
    drop = -mu * slope - mu**3 / 24 * third
    return drop, _EPS * (2 + middle * middle) + mu**4 / 50


def log_delta_bounds(epsilon: float, mu: float) -> tuple[float, float]:
    """(lower, upper) of log δ(ε) for a signal-to-noise ratio `mu` = √steps·shift/σ >= 0 and ε >= 0.

    The margin covers the rounding of x = ε/μ − μ/2 (|d log δ/dx| is below |x| + μ + 2), of M and of the result.
    """
    if mu == 0:
        return -math.inf, -math.inf
    x = epsilon / mu - mu / 2
    position = _EPS * (epsilon / mu + mu) * (abs(x) + min(mu, 1e8) + 2)
    if x < -5:  # M(x) would overflow; here δ is near 1 and nothing cancels
        first, second = float(special.log_ndtr(-x)), float(epsilon + special.log_ndtr(-x - mu))
        ratio = math.exp(min(second - first, 0.0))
        value = first + (math.log1p(-ratio) if ratio < 1 else -math.inf)
        margin = 8 * (position + _EPS * (1 + abs(epsilon) * ratio))
        return value - margin, min(value + margin, 0.0)
    drop, error = _mills_drop(x, mu)
    if drop <= 0:  # below the last bit of M: nothing can be said but that δ is at most φ(x)·M(x)·ε_machine
        return -math.inf, -0.5 * x * x + math.log(max(_mills(x), 1e-300) * 1e-15)
    value = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(drop)
    margin = 8 * (position + error + _EPS * (1 + 0.5 * x * x + abs(math.log(drop))))
    return value - margin, value + margin


def epsilon_interval(delta: float, mu: float) -> EpsilonInterval:
    """The exact ε at `delta`, as an interval a rounding margin wide."""
    target = math.log(delta)
    if log_delta_bounds(0.0, mu)[1] <= target:
        return EpsilonInterval(0.0, 0.0, 0.0)
    high = mu * mu / 2 + mu * math.sqrt(-2 * target) + mu
    lower = _root(mu, target, high, bound=0)
    upper = _root(mu, target, high, bound=1)
    return EpsilonInterval(lower * (1 - 1e-14), 0.5 * (lower + upper), upper * (1 + 1e-14))


def _root(mu: float, target: float, high: float, *, bound: int) -> float:
    """ε in [0, high] at which the lower (0) or upper (1) bound of log δ meets `target`."""

    def excess(epsilon: float) -> float:
        return max(log_delta_bounds(epsilon, mu)[bound], -1e300) - target

    while excess(high) > 0:  # only where rounding outweighs everything
        high *= 1 + 1e-6
    return falling_root(excess, high)
