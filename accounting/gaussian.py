"""The exact privacy profile of the Gaussian (Balle and Wang 2018, arXiv 1805.06530, Theorem 8), in log space.

With μ = shift/σ (μ² adds over compositions), x = ε/μ − μ/2 and Mills' ratio M(x) = Φ(−x)/φ(x),

    δ(ε) = Φ(−x) − e^ε·Φ(−x−μ) = φ(x)·[M(x) − M(x+μ)]        because e^ε·φ(x+μ) = φ(x),

which keeps its relative precision down to the smallest float.
"""

from __future__ import annotations

import math

from scipy import special

from ._roots import bracketed_root
from .interval import EpsilonInterval

_ROUNDING = 1e-12
"""Margin on log δ for rounding, per unit of max(1, |log δ|); the formula's own error is below it (tested, mpmath)."""


def _mills(x: float) -> float:
    return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))


def _mills_drop(x: float, mu: float) -> float:
    """M(x) − M(x+μ); for small μ by the midpoint of −M′ = 1 − x·M, whose error is below μ² relative."""
    if mu < 1e-5:
        middle = x + mu / 2
        return mu * (1 - middle * _mills(middle))
    return _mills(x) - _mills(x + mu)


def log_delta(epsilon: float, mu: float) -> float:
    """log δ(ε) of a Gaussian with signal-to-noise ratio `mu` = √steps·shift/σ >= 0, for ε >= 0."""
    if mu == 0:
        return -math.inf
    x = epsilon / mu - mu / 2
    if x < -5:  # M(x) would overflow; here δ is near 1 and nothing cancels
        first, second = float(special.log_ndtr(-x)), epsilon + float(special.log_ndtr(-x - mu))
        return first + math.log1p(-math.exp(second - first))
    drop = _mills_drop(x, mu)
    if drop <= 0:  # below the last bit of M
        return -math.inf
    return -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(drop)


def epsilon_interval(delta: float, mu: float) -> EpsilonInterval:
    """The exact ε at `delta`, as an interval one rounding margin wide."""
    target = math.log(delta)
    if log_delta(0.0, mu) <= target:
        return EpsilonInterval(0.0, 0.0, 0.0)
    high = mu * mu / 2 + mu * math.sqrt(-2 * target) + mu
    root = bracketed_root(lambda epsilon: log_delta(epsilon, mu) - target, 0.0, high)
    slack = _ROUNDING * max(1.0, -target)
    margin = 1e-13 * root + 1e-15 * mu
    while log_delta(root + margin, mu) > target - slack or (
        root > margin and log_delta(root - margin, mu) < target + slack
    ):
        margin *= 2
    return EpsilonInterval(max(0.0, root - margin), root, root + margin)
