"""The inversion integral of a composition on one vertical line, by the trapezoid rule.

    δ(ε) = e^{Λ(s)−sε}·(1/2π)·∫ g(y)·e^{−iyε} dy,    g(y) = e^{Λ(s+iy)−Λ(s)}/(z(z+1)),  z = s+iy.

Step. By Poisson summation the rule with step τ gives Σ_m δ(ε+mP)·e^{smP}, P = 2π/τ; every term is positive. Since
δ(x) <= e^{Λ(s')−s'x} for all s' >= 0 (δ <= 1 is s' = 0), the terms with m > 0 are bounded with an s' > s, those with
m < 0 with an s' < s, and P is the least at which both sums are below e^−32 of δ(ε). If no loss exceeds ε+P, the first
are 0. This is proven, given Λ.

End. The sum stops at a frequency Y. The rest is at most sup |g·z²|/(πY) over y >= Y. That supremum is taken from the
last part of the line and from samples of three periods of a lattice that spans the loss (atoms at both ends, or what is
nearly an atom, bring |g·z²| back). Where this makes the rest less than e^−32 of the whole, the sum is cut sharply.
Otherwise g is faded out by a smooth window: that averages δ around ε with a kernel which leaves smooth functions as
they are and has died out, to rounding, at a distance of 130/Y; so it is exact unless δ has a kink that near to ε.
A window must let three periods of a lattice pass that matters. All this is a posteriori.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .._roots import bracketed_root
from ..event import Event
from .law import PERIODS, Cumulants, GaussianLaw, Law, loss_law
from .nodes import Resolution, Undecided, Unresolved

Array = NDArray[np.float64]

_NEGLIGIBLE = -32.0  # log of what may be left out, relative to δ
_LEAST_POINTS = 32
_MOST_POINTS = 2**19
_MOST_WORK = 3e8  # nodes × points
_WINDOW_EDGE = 5.9  # erfc(5.9) is below rounding
_EPS = float(np.finfo(np.float64).eps)
_FARTHEST = 300.0  # of log s
_MOVED = 1.0  # slack for lines that are used at an ε beside their own


@dataclasses.dataclass(frozen=True)
class Composed:
    """The total loss in one direction: Λ(s) = Σ steps·log E_A[e^{sL}]."""

    parts: Sequence[tuple[int, Law]]

    @property
    def largest(self) -> float:
        return math.fsum(steps * law.largest for steps, law in self.parts)

    @property
    def size(self) -> int:
        """The number of nodes."""
        return sum(law.size for _, law in self.parts)

    def cumulants(self, s: float) -> Cumulants:
        terms = [(steps, law.cumulants(s)) for steps, law in self.parts]
        return Cumulants(*(math.fsum(n * c[i] for n, c in terms) for i in range(3)))

    def log_moments(self, s: Array) -> Array:
        return np.sum([steps * law.log_moments(s) for steps, law in self.parts], axis=0)

    def laplace(self, s: float) -> tuple[float, float, float]:
        """(ε whose saddle point is s, log δ there by Laplace's method, ψ″(s)); ψ is the `exponent`."""
        value, mean, variance = self.cumulants(s)
        epsilon = mean - 1 / s - 1 / (s + 1)
        second = variance + s**-2 + (s + 1) ** -2
        log_delta = value - s * epsilon - math.log(s) - math.log1p(s) - 0.5 * math.log(2 * math.pi * second)
        return epsilon, log_delta, second

    def exponent(self, s: float, epsilon: float) -> float:
        """ψ(s) = Λ(s) − sε − log s − log(s+1), the log of the integrand on the real line."""
        return self.cumulants(s).value - s * epsilon - math.log(s) - math.log1p(s)

    def saddle_of_epsilon(self, epsilon: float, guess: float) -> float:
        """The s at which ψ′ is 0."""
        return _root_of_log(lambda s: self.laplace(s)[0] - epsilon, guess)

    def saddle_of_delta(self, log_delta: float, guess: float) -> float:
        """The s at which Laplace's method gives this δ."""
        return _root_of_log(lambda s: log_delta - self.laplace(s)[1], guess)


def compose(events: Sequence[Event], remove: bool, resolution: Resolution) -> Composed:
    """The composition of events in one direction."""
    return Composed([(event.steps, loss_law(event, remove, resolution)) for event in events])


def _root_of_log(function: Callable[[float], float], guess: float) -> float:
    """The root of a rising function of s > 0, roughly; e^300 if it is beyond."""
    low = high = math.log(guess)
    step = 1.0
    while function(math.exp(low)) > 0:
        high, low, step = low, low - step, 2 * step
        if low < -_FARTHEST:
            raise Unresolved("no saddle point was found")
    step = 1.0
    while function(math.exp(high)) < 0:
        low, high, step = high, high + step, 2 * step
        if high > _FARTHEST:
            return math.exp(_FARTHEST)
    if low == high:
        return guess
    return math.exp(bracketed_root(lambda u: function(math.exp(u)), low, high, absolute=1e-3))


class Line:
    """δ(ε) for ε near `epsilon`, where log δ is about `log_delta`.

    Attributes:
        settled: False if what returns beyond the end is hidden from the window.
        sharp: True if the sum has died out before its end.
    """

    def __init__(self, composed: Composed, s: float, epsilon: float, log_delta: float, frequency: float):
        """`composed` must resolve the tilt `s` and `frequency`."""
        self._s = s
        self._value, _, variance = composed.cumulants(s)
        width = 1 / math.sqrt(variance + s**-2 + (s + 1) ** -2)
        period = alias_period(composed, s, epsilon, log_delta, width)
        count = max(_LEAST_POINTS, math.ceil(frequency * period / (2 * math.pi)) + 1)
        if count > _MOST_POINTS or count * composed.size > _MOST_WORK:
            raise Unresolved("its characteristic function does not decay: too many points are needed")
        step = frequency / (count - 1)
        self._y = step * np.arange(count)
        self._z = s + 1j * self._y
        ratios = [(steps, law, law.log_ratio(s, step, count)) for steps, law in composed.parts]
        self._exponent = np.sum([steps * ratio for steps, _, ratio in ratios], axis=0)
        self._factor = (step / math.pi) / (self._z * (self._z + 1))
        self._factor[0] *= 0.5
        levels, hidden = [], False
        for steps, law, ratio in ratios:
            level, unseen = _level_beyond(law, s, frequency, ratio.real, step)
            levels.append(steps * level)
            hidden = hidden or (unseen and steps * level > _NEGLIGIBLE)
        whole = log_delta - self._value + s * epsilon
        self.sharp = sum(levels) - math.log(math.pi * frequency) < whole + _NEGLIGIBLE
        self.settled = self.sharp or not hidden
        if not self.sharp:
            self._factor *= 0.5 * special.erfc(_WINDOW_EDGE * (2 * self._y / frequency - 1))

    def rounding(self, epsilon: float) -> float:
        """Estimated rounding error of log δ."""
        return 1e-12 + 1e-15 * (abs(self._value) + abs(self._s * epsilon)) + 10 * self._point(epsilon)[2]

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """(log δ, its derivative in ε)."""
        value, slope, _ = self._point(epsilon)
        if value == -math.inf:
            raise Undecided("the inversion integral is lost in rounding or oscillation")
        return value, slope

    def _point(self, epsilon: float) -> tuple[float, float, float]:
        """(log δ, its derivative in ε, the rounding error of the sum); (−inf, 0, inf) if the sum is not positive."""
        terms = self._factor * np.exp(self._exponent - 1j * self._y * epsilon)
        total = float(np.sum(terms.real))
        if not total > 0:
            return -math.inf, 0.0, math.inf
        slope = -float(np.sum((self._z * terms).real)) / total
        noise = _EPS * float(np.sum(np.abs(terms))) / total
        return self._value - self._s * epsilon + math.log(total), slope, noise

    def root(self, log_delta: float, epsilon: float, largest: float) -> tuple[float, float]:
        """(ε < `largest` at which log δ is `log_delta`, the slope there), by Newton's method in a bracket."""
        low, high, reach = -math.inf, largest, 2 / self._s
        for _ in range(200):
            value, slope, noise = self._point(epsilon)
            change = (log_delta - value) / slope if slope < 0 else math.nan
            if abs(change) <= 2 * _EPS * abs(epsilon) or abs(change * slope) < 1e-14 + noise:
                return epsilon, slope
            low, high = (epsilon, high) if value > log_delta else (low, epsilon)
            if not (low < epsilon + change < high and abs(change) <= reach):
                change, reach = _careful(epsilon, low, high, reach), 2 * reach
            epsilon += change
        raise Undecided("δ does not fall smoothly near the target")


def _careful(epsilon: float, low: float, high: float, reach: float) -> float:
    """A step from an end of the bracket into it: to its middle, or by `reach` while the other end is far."""
    return min(reach, 0.5 * (high - low)) if epsilon == low else -min(reach, 0.5 * (high - low))


def _level_beyond(law: Law, s: float, frequency: float, level: Array, step: float) -> tuple[float, bool]:
    """(log sup |E[e^{zL}]/E[e^{sL}]| beyond the end of the line, as far as seen; whether that is beyond its end)."""
    tail = max(2, len(level) // 10)
    if isinstance(law, GaussianLaw) or law.span == 0:
        return float(np.max(level[-tail:])), False
    if frequency * law.span >= PERIODS * 2 * math.pi:
        tail = max(tail, min(len(level), math.ceil(2 * math.pi / law.span / step)))
        return float(np.max(level[-tail:])), False
    return max(float(np.max(level[-tail:])), law.return_level(s, frequency)), True


def alias_period(composed: Composed, s: float, epsilon: float, log_delta: float, width: float) -> float:
    """The least P at which the bounds of both alias sums are below e^−32 of δ; `width` scales the s' that are tried."""
    near, far = np.array([0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0]), np.array([0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    right = s + np.concatenate([width * near, s * far])
    left = s * np.array([0.0, 0.1, 0.25, 0.5, 0.7, 0.85])
    slopes = np.concatenate([right, left])
    bounds = composed.log_moments(slopes) - slopes * epsilon
    bounds[len(right)] = 0.0  # δ <= 1, without the rounding of Λ(0)
    room = bounds - log_delta - _NEGLIGIBLE + _MOVED + math.log(4)  # 4: two geometric sums
    above = float(np.min(room[: len(right)] / (right - s)))
    below = float(np.min(room[len(right) :] / (s - left)))
    return max(min(above, max(composed.largest - epsilon, 0.0)), below)
