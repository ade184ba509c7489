"""Where the numbers of a composition lie, approximately: chooses tilts and lattice steps, never a bound.

With Λ(s) = Σ T·log E_A[e^{sL}] and σ² = Λ″(s), the saddle-point approximation is

    δ(ε) ≈ e^{Λ(s) − sε}·[R(sσ) − R((s+1)σ)],   R(λ) = e^{λ²/2}·Φ(−λ),   Λ′(s) = ε,

exact for the Gaussian (Alghamdi et al. 2023, arXiv 2208.09595, have the first order).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .pieces import LossPieces

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Saddle:
    """Approximate ε, log δ, the saddle point s and the tilted standard deviation of the composed loss."""

    tilt: float
    epsilon: float
    log_delta: float
    deviation: float
    value: float
    """Λ(s)."""


class Cumulant:
    """Λ of a composition, from pieces merged into atoms; a list of (pieces, steps)."""

    def __init__(self, kinds: Sequence[tuple[LossPieces, int]]) -> None:
        self._kinds = [
            (np.asarray(0.5 * (p.log_mass_low + p.log_mass_high)), 0.5 * (p.mean_low + p.mean_high), steps)
            for p, steps in kinds
        ]

    def at(self, tilt: float) -> Saddle:
        value, mean, variance = 0.0, 0.0, 0.0
        for log_mass, loss, steps in self._kinds:
            exponent = log_mass + tilt * loss
            peak = float(np.max(exponent))
            weights = np.exp(exponent - peak)
            total = float(np.sum(weights))
            centre = float(np.sum(weights * loss)) / total
            value += steps * self._log_total(log_mass, loss, tilt, peak, total)
            mean += steps * centre
            variance += steps * float(np.sum(weights * (loss - centre) ** 2)) / total
        deviation = math.sqrt(max(variance, 1e-300))
        log_tail = _log_r(tilt * deviation, deviation)
        return Saddle(tilt, mean, value - tilt * mean + log_tail, deviation, value)

    @staticmethod
    def _log_total(log_mass: Array, loss: Array, tilt: float, peak: float, total: float) -> float:
        if abs(peak) < 30 and float(np.max(np.abs(tilt * loss))) < 30:
            return math.log1p(float(np.sum(np.exp(log_mass) * np.expm1(tilt * loss))))
        return peak + math.log(total)

    def at_delta(self, log_delta: float, largest: float) -> Saddle:
        """The saddle point at log δ, with s at most `largest`."""
        return self._search(lambda point: point.log_delta - log_delta, largest)

    def at_epsilon(self, epsilon: float, largest: float) -> Saddle:
        """The saddle point at ε, with s at most `largest`."""
        return self._search(lambda point: epsilon - point.epsilon, largest)

    def least_tilt(self, epsilon: float, log_delta: float, largest: float) -> Saddle:
        """The smallest s at which the tilted law at ε exceeds e^`log_delta`: Λ(s) − sε <= log_delta; s <= `largest`."""
        return self._search(lambda point: point.value - point.tilt * epsilon - log_delta, largest)

    def _search(self, excess, largest: float) -> Saddle:
        """s at which `excess`, falling with s, changes sign; in (smallest, largest]."""
        deviation = self.at(0.0).deviation
        low, high = math.log(min(1e-3 / deviation, 0.1 * largest)), math.log(largest)
        point = self.at(math.exp(low))
        if excess(point) <= 0:
            return point
        step = 1.0
        reach = low
        while reach < high:
            reach = min(reach + step, high)
            point = self.at(math.exp(reach))
            if excess(point) <= 0:
                break
            low, step = reach, 2 * step
        else:
            return point
        for _ in range(12):
            middle = 0.5 * (low + reach)
            point = self.at(math.exp(middle))
            low, reach = (middle, reach) if excess(point) > 0 else (low, middle)
        return point


def _log_r(first: float, deviation: float) -> float:
    """log[R(λ) − R(λ + σ)] with λ = `first`, σ = `deviation`; R falls."""
    high, low = special.erfcx(first / math.sqrt(2)), special.erfcx((first + deviation) / math.sqrt(2))
    drop = 0.5 * float(high - low)
    if drop < 1e-9 * high:  # a small σ: the derivative of R, λR(λ) − 1/√(2π)
        slope = 1 / math.sqrt(2 * math.pi) - 0.5 * first * float(high)
        drop = deviation * max(slope, 1e-300)
    return math.log(drop)
