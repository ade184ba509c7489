"""The two densities of a spherical pair and its loss in radius and cosine."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...mechanisms.spherical import SphericalGamma

Array = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
TINY = 1e-300


class Loss(NamedTuple):
    """u = −ℓ of (1) with what bounds need: W, W^{p/2} − 1, u_s, (y·(p/2)·W^{p/2} + m/2)/W, rounding error of u."""

    u: Array
    w: Array
    growth: Array
    slope: Array
    sensitivity: Array
    error: Array


class Pair:
    """(1) for one noise and one shift, lengths in units of b."""

    def __init__(self, noise: SphericalGamma, shift: float) -> None:
        self.dimension = noise.dimension
        self.power = float(noise.power)
        self.half = self.power / 2
        self.excess = float(noise.dimension - noise.shape)  # m
        self.gamma = noise.gamma_shape  # k
        self.shift = shift

    def radius(self, x: Array) -> Array:
        """r at x = log(y/k)."""
        return np.exp((x + math.log(self.gamma)) / self.power)

    def position(self, r: float) -> float:
        """x at r."""
        return self.power * math.log(r) - math.log(self.gamma)

    def loss(self, x: Array, c: Array) -> Loss:
        """u at the rows' x = log(y/k) and the cosines c, broadcast.

        z = W − 1 = τ(τ − 2c) is off by a few roundings, and by the error of τ, times τ² + 2τ|c|; u moves by the
        sensitivity times that. The slope's error times the row's half width stays below five times that of u, because
        the half width is below 0.6 and √W/(4·min(τ, 1)) and |c − τ| <= √W.
        """
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        z = tau * (tau - 2 * c)
        w = np.maximum(1 + z, TINY)
        log_w = np.log1p(np.maximum(z, -1 + EPS / 2))
        growth = np.expm1(self.half * log_w)
        u = -(y * growth + 0.5 * self.excess * log_w)
        factor = y * self.half * (1 + growth) + 0.5 * self.excess
        slope = -y * self.power * growth - factor * (2 * tau * (c - tau) / w)
        relative = 8 * EPS + 2 * EPS * (np.abs(x) + abs(math.log(self.gamma))) / self.power
        error = factor / w * (2 * tau * tau + 2 * tau * np.abs(c)) * relative + 8 * EPS * np.abs(u)
        return Loss(u, w, growth, slope, factor / w, error)

    def curvature(self, x: Array, c: Array, at: Loss) -> Array:
        """K = u_s² + u_ss."""
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        first = 2 * tau * (c - tau) / at.w
        second = (4 * tau * tau - 2 * tau * c) / at.w - first * first
        p, q, power = self.power, self.half, 1 + at.growth
        u_ss = -y * (p * p * at.growth + power * q * (2 * p * first + q * first * first + second))
        return at.slope**2 + u_ss - 0.5 * self.excess * second

    def cosine_curvature(self, x: Array, at: Loss) -> Array:
        """u_c² + u_cc = g_cc/g."""
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        bend = (y * self.half * (1 - self.half) * (1 + at.growth) + 0.5 * self.excess) / at.w**2
        return 4 * tau * tau * (at.sensitivity**2 + bend)

    def phi(self, r: Array) -> Array:
        """φ(r) = r^p + m·log r."""
        with np.errstate(divide="ignore"):
            logarithm = self.excess * np.log(r) if self.excess > 0 else 0.0
        return r**self.power + logarithm

    def analytic(self, x: Array, c: Array, at: Loss, wish: Array) -> tuple[Array, Array, Array]:
        """(ϱ_s, ϱ_c, B) of (4), or of (5) for r < t; ϱ_c is at most `wish`, η at most 1."""
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        far = tau > 1
        size, distance = np.where(far, 1.0, tau), np.where(far, np.abs(1 - tau * c), np.abs(c - tau))
        eta = np.minimum(1.0, np.sqrt(at.w) / (4 * size))
        radius_s, radius_c = np.log1p(eta), np.minimum(at.w / (10 * tau * (1 + eta)), wish)
        change = (size * eta * (2 * distance + size * eta) + 2 * tau * (1 + eta) * radius_c) / at.w
        power, w_power = (1 + eta) ** self.power, 1 + at.growth
        bound = np.where(far, y * (power - 1) + self.excess * radius_s, y * np.abs(at.growth) * (power - 1))
        bound = bound + 2 * change * (y * np.where(far, 1.0, power) * w_power * self.half + 0.5 * self.excess)
        return radius_s, radius_c, bound * (1 + 1e-12)

    @property
    def largest(self) -> float:
        """sup |ℓ|: t^p if φ is subadditive, |φ(r′) − φ(r)| <= |r′ − r|^p, else ∞."""
        return self.shift**self.power * (1 + 4 * EPS) if self.power <= 1 and self.excess == 0 else math.inf


def log_of(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
