"""The ball inside the first row and the space outside the last: nothing is truncated."""

from __future__ import annotations

import math

import numpy as np

from .lines import bulge
from .pair import Pair


def _density(pair: Pair, x: float) -> float:
    """exp(−k(e^x − 1 − x))."""
    return math.exp(-pair.gamma * float(bulge(np.array(x))))


def inner_mass(pair: Pair, x: float) -> tuple[float, float]:
    """Bounds of ∫_{−∞}^x exp(−k(e^v − 1 − v)) dv, x < 0.

    The exponent is concave with slope k(1 − e^x) at x, and k·v − k·e^v >= k·v − k·e^x.
    """
    value = _density(pair, x)
    return value / pair.gamma * (1 - 1e-9), value / (pair.gamma * -math.expm1(x)) * (1 + 1e-9)


def outer_mass(pair: Pair, x: float) -> tuple[float, float]:
    """Bounds of ∫_x^∞ exp(−k(e^v − 1 − v)) dv, x > 0, with y = k·e^x.

    Above: the exponent is concave with slope −k(e^x − 1). Below: Γ(k, y) >= y^k·e^{−y}/(y + max(0, 1−k)); the
    difference vanishes at ∞ and for k <= 1 has the derivative −(1−k)·y^{k−1}·e^{−y}/(y+1−k)² <= 0, while for k >= 1
    Γ(k, y) >= y^{k−1}·∫_y^∞ e^{−v} dv.
    """
    value, k = _density(pair, x), pair.gamma
    y = k * math.exp(x)
    return value / (y + max(0.0, 1 - k)) * (1 - 1e-9), value / (k * math.expm1(x)) * (1 + 1e-9)


def ball_piece(pair: Pair, x: float, total: tuple[float, float]) -> tuple[float, ...]:
    """The piece |x| < r_0. Q(ball) >= volume·Q's least density there, that at distance r_0 + t.

    P's density at r_0 times the ball's volume is r_0·f_R(r_0)/d = p·(density of x)/d. Above: P(ball)·e^{−inf ℓ}, and
    P(|X| < r_0 + t).
    """
    r, t = float(pair.radius(np.array(x))), pair.shift
    low, high = inner_mass(pair, x)
    mass_low, mass_high = low / total[1], high / total[0]
    phi = lambda radius: float(pair.phi(np.array(radius)))  # noqa: E731
    margin = 1e-13 * (1 + abs(phi(r + t)))
    loss_low = phi(max(t - r, 0.0)) - phi(r) - margin
    loss_high = math.inf if pair.excess > 0 else (r + t) ** pair.power + margin
    loss_low, loss_high = max(loss_low, -pair.largest), min(loss_high, pair.largest)
    least = pair.power * _density(pair, x) / total[1] / pair.dimension * (1 - 1e-9)
    mean_high = math.log(mass_high) - math.log(max(least, 5e-324)) + phi(r + t) - phi(r) + margin
    most = 0.0
    beyond = pair.position(r + t)
    if beyond < -1e-6:
        most = min(most, math.log(inner_mass(pair, beyond)[1] / total[0]))
    mean_low = max(math.log(max(mass_low, 5e-324)) - most, loss_low)
    mean_high = min(max(mean_high, mean_low), loss_high)
    return mass_low, mass_high, loss_low, loss_high, min(mean_low, mean_high), mean_high


def outer_piece(pair: Pair, x: float, total: tuple[float, float]) -> tuple[float, ...]:
    """The piece |x| > r_1: Q of it lies between P(|X| > r_1 + t) and P(|X| > r_1 − t)."""
    r, t = float(pair.radius(np.array(x))), pair.shift
    low, high = outer_mass(pair, x)
    mass_low, mass_high = low / total[1], high / total[0]
    q_low = outer_mass(pair, pair.position(r + t))[0] / total[1]
    inner = pair.position(r - t) if r > t else -math.inf
    q_high = min(outer_mass(pair, inner)[1] / total[0], 1.0) if inner > 1e-6 else 1.0
    loss_low, loss_high = -math.inf, math.inf
    if pair.power <= 1 and r > t:  # |r′^p − r^p| <= t^p and |log(r′/r)| <= −log(1 − t/r)
        loss_high = min((t**pair.power - pair.excess * math.log1p(-t / r)) * (1 + 1e-12), pair.largest)
        loss_low = -loss_high
    mean_low = max(math.log(max(mass_low, 5e-324)) - math.log(q_high), loss_low)
    mean_high = min(math.log(mass_high) - math.log(max(q_low, 5e-324)), loss_high)
    return mass_low, mass_high, loss_low, loss_high, min(mean_low, mean_high), mean_high
