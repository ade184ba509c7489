"""Convex functionals of a noise's density that measure privacy, and their supporting lines.

Let p be the density, Q its law, P the law shifted by 1 (one record, in units of the largest shift) and M = (1−q)Q + qP
what Poisson sampling at rate q releases if the record is there. With m = dM/dQ = 1 − q + q·p(x−1)/p(x) and a convex φ,

    G(p) = ∫ p(x)·φ(m(x)) dx

is jointly convex in (p(x), p(x−1)) (a perspective), homogeneous of degree 1, and bounds of it bound privacy:

- φ = m^α − 1 − α(m−1):  G = e^{(α−1)R} − 1, R the Rényi divergence of order α (`RenyiMoment`);
- φ = m·log m − m + 1:   G = the Kullback–Leibler divergence, as in the cactus mechanism (arXiv 2207.00420);
- φ = (m − e^ε)_+:       G = δ(ε) of one release (`HockeyStick`), which makes the program a linear one;
- φ = the influence of one step on δ(ε) of many (`Influence`): see `exact`.

Affine terms in m change G by a constant, as ∫ m dQ = 1; they are chosen so that φ >= 0 and φ(1) = 0 where φ is smooth.
Only *remove* is bounded: for symmetric densities *add* never loses more (`accounting.poisson` proves it), and with a
density that falls with |x| the largest shift is the worst.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LARGEST = 690.0  # log of m^α
_LOG_RATIOS = np.concatenate([np.linspace(-60, -3, 400), np.linspace(-3, 20, 8000)[1:]])


class Functional(abc.ABC):
    """φ as a function of the sampled loss L = log m.

    Attributes:
        rate: Poisson sampling rate q in (0, 1].
        limit: the largest G allowed.
    """

    rate: float
    limit: float

    @abc.abstractmethod
    def at(self, loss: Array) -> tuple[Array, Array]:
        """(φ, dφ/dL) at the sampled losses; same shape."""

    def sampled(self, loss: Array) -> Array:
        """L = log(1 − q + q·e^ℓ) at the losses ℓ = log p(x−1)/p(x); same shape."""
        if self.rate == 1:
            return loss
        return np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + loss)

    def supporting(self, loss: Array) -> tuple[Array, Array]:
        """(u, v) with p·φ(m) >= u·p(x) + v·p(x−1) for all densities, equal where p(x−1)/p(x) = e^`loss`; same shape."""
        sampled = self.sampled(loss)
        value, slope = self.at(sampled)
        by_m = slope * np.exp(-sampled)  # dφ/dm
        return value - by_m * self.rate * np.exp(loss), by_m * self.rate

    def line_with(self, v: Array) -> tuple[Array, Array]:
        """A supporting line (u, v) whose v is about the one asked for, or the nearest there is; same shape."""
        rising = self.supporting(_LOG_RATIOS)[1]
        return self.supporting(np.interp(v, rising, _LOG_RATIOS))

    def curvature(self, loss: Array) -> Array:
        """φ''(m) at the sampled losses, by a central difference of the slope; same shape."""
        step = 1e-5
        ends = [self.at(loss + sign * step)[1] * np.exp(-loss - sign * step) for sign in (-1, 1)]
        return np.maximum((ends[1] - ends[0]) / (2 * step) * np.exp(-loss), 0.0)


@final
@dataclasses.dataclass(frozen=True)
class RenyiMoment(Functional):
    """e^{(α−1)R} − 1 at the order α > 1; `limit` is e^B − 1 for a log moment of B."""

    order: float
    rate: float
    limit: float

    def at(self, loss: Array) -> tuple[Array, Array]:
        a = self.order
        loss = np.minimum(loss, _LARGEST / a)  # far above any limit
        power, linear = np.expm1(a * loss), np.expm1(loss)
        small = np.abs(a * loss) < 1e-4
        series = 0.5 * a * (a - 1) * loss**2 * (1 + (a + 1) * loss / 3)
        return np.where(small, series, power - a * linear), a * (power - linear)


@final
@dataclasses.dataclass(frozen=True)
class KullbackLeibler(Functional):
    """D(M‖Q) in nats."""

    rate: float
    limit: float

    def at(self, loss: Array) -> tuple[Array, Array]:
        m = np.exp(loss)
        value = np.where(np.abs(loss) < 1e-4, 0.5 * loss**2 * (1 + 2 * loss / 3), m * loss - np.expm1(loss))
        return value, m * loss


@final
@dataclasses.dataclass(frozen=True)
class HockeyStick(Functional):
    """δ(ε) of one release; `limit` is the target δ."""

    epsilon: float
    rate: float
    limit: float

    def at(self, loss: Array) -> tuple[Array, Array]:
        m = np.exp(loss)
        return np.maximum(m - np.exp(self.epsilon), 0.0), np.where(loss > self.epsilon, m, 0.0)

    def line(self, theta: Array) -> tuple[Array, Array]:
        """The supporting line θ·(m − e^ε), 0 <= θ <= 1; same shape each."""
        return theta * (1 - self.rate - np.exp(self.epsilon)), theta * self.rate

    def line_with(self, v: Array) -> tuple[Array, Array]:
        return self.line(np.clip(v / self.rate, 0.0, 1.0))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Influence(Functional):
    """A tabulated φ: `loss` (increasing), `value` and `slope` = dφ/dL there, each of shape (n,)."""

    loss: Array
    value: Array
    slope: Array
    rate: float
    limit: float

    def at(self, loss: Array) -> tuple[Array, Array]:
        return np.interp(loss, self.loss, self.value), np.interp(loss, self.loss, self.slope)
