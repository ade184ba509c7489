"""The LMO noise (arXiv 2405.18776): Laplace noise whose inverse scale is a weighted sum of three random terms.

Everything follows from K(t) = log E[exp(t·u)], u the inverse scale: for x >= 0

    P(X > x) = E[exp(−u·x)]/2 = exp(K(−x))/2,      density f(x) = exp(K(−x))·K′(−x)/2,

so the density of the *marginal* (u hidden) is closed, and its score is |f′/f| = (K′² + K″)/K′ at −x.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validate
from .base import DensityShape, Mechanism

if TYPE_CHECKING:
    import torch

_TERMS = {
    "gamma_weight": ("gamma_shape", "gamma_scale"),
    "exponential_weight": ("exponential_rate",),
    "uniform_weight": ("uniform_low", "uniform_high"),
}


@final
@dataclasses.dataclass(frozen=True)
class ScaleMixture(Mechanism):
    """u = gamma_weight·Gamma(shape, scale) + exponential_weight·Exp(rate) + uniform_weight·Uniform(low, high);
    X ~ Laplace(1/u), u drawn anew for every coordinate.

    A term with weight 0 is absent and takes no parameters; at least one is present. u is in units of 1/C: the weights
    carry that unit, the terms' parameters have none. `exponential_rate` is a rate (mean 1/rate).
    """

    gamma_weight: float = 0.0
    gamma_shape: float | None = None
    gamma_scale: float | None = None
    exponential_weight: float = 0.0
    exponential_rate: float | None = None
    uniform_weight: float = 0.0
    uniform_low: float | None = None
    uniform_high: float | None = None

    family: ClassVar[str] = "lmo"
    short_keys: ClassVar[Mapping[str, str]] = {
        "a1": "gamma_weight",
        "k": "gamma_shape",
        "theta": "gamma_scale",
        "a3": "exponential_weight",
        "rate": "exponential_rate",
        "a4": "uniform_weight",
        "low": "uniform_low",
        "high": "uniform_high",
    }
    density_shape = DensityShape.LOG_CONVEX_SIDES

    def __post_init__(self) -> None:
        for weight, parameters in _TERMS.items():
            self._check_term(weight, parameters)
        if self.uniform_weight:
            low = _validate.non_negative("uniform_low", self.uniform_low)
            high = _validate.positive("uniform_high", self.uniform_high)
            if low > high:
                raise ValueError(f"expected uniform_low <= uniform_high, got uniform_low={low}, uniform_high={high}")
        if not any(getattr(self, weight) for weight in _TERMS):
            raise ValueError("expected at least one weight > 0, got gamma_weight=exponential_weight=uniform_weight=0")
        with np.errstate(over="ignore", invalid="ignore"):
            _validate.length("E[u]", self.mean_inverse_scale)

    def _check_term(self, weight: str, parameters: tuple[str, ...]) -> None:
        present = _validate.non_negative(weight, getattr(self, weight)) > 0
        for name in parameters:
            value = getattr(self, name)
            if present and value is None:
                raise ValueError(f"expected {name}, since {weight}={getattr(self, weight)}; got {name}=None")
            if not present and value is not None:
                raise ValueError(f"expected no {name}, since {weight}=0; got {name}={value}")
            if present and weight != "uniform_weight":
                _validate.positive(name, value)

    # ---- K and its derivatives at −s, s >= 0 ---------------------------------------------------------------

    def power_terms(self) -> list[tuple[float, float]]:
        """(exponent k, length g in 1/C) of each factor (1+g·s)^−k of E[exp(−u·s)]: the Gamma and exponential terms."""
        terms = []
        if self.gamma_shape is not None and self.gamma_scale is not None:
            terms.append((float(self.gamma_shape), self.gamma_weight * self.gamma_scale))
        if self.exponential_rate is not None:
            terms.append((1.0, self.exponential_weight / self.exponential_rate))
        return terms

    def uniform_term(self) -> tuple[float, float]:
        """(lowest value, width) of the uniform term in 1/C, weight included; zeros if it is absent."""
        if self.uniform_low is None or self.uniform_high is None:
            return 0.0, 0.0
        return self.uniform_weight * self.uniform_low, self.uniform_weight * (self.uniform_high - self.uniform_low)

    def log_mgf(self, s: ArrayLike) -> NDArray[np.float64]:
        """K(−s) = log E[exp(−u·s)] for s >= 0, same shape."""
        beyond = np.isinf(s)
        s = np.where(beyond, 0.0, np.asarray(s, dtype=np.float64))
        low, width = self.uniform_term()
        total = -low * s + _log_uniform_mgf(width * s)
        for exponent, length in self.power_terms():
            total = total - exponent * np.log1p(length * s)
        return np.where(beyond, -np.inf, total)

    def _mean(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        """K′(−s): the mean of u under the law tilted by exp(−u·s)."""
        low, width = self.uniform_term()
        total = low + width * _uniform_mean(width * s)
        for exponent, length in self.power_terms():
            total = total + exponent * length / (1 + length * s)
        return total

    def _spread(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        """K″(−s): the variance of u under the law tilted by exp(−u·s)."""
        _, width = self.uniform_term()
        total = width**2 * _uniform_variance(width * s)
        for exponent, length in self.power_terms():
            total = total + exponent * (length / (1 + length * s)) ** 2
        return total

    # ---- the interface -------------------------------------------------------------------------------------

    def log_density(self, x: ArrayLike) -> NDArray[np.float64]:
        s = np.abs(np.asarray(x, dtype=np.float64))
        return self.log_mgf(s) + np.log(self._mean(s)) - math.log(2)

    def log_tail(self, x: ArrayLike) -> NDArray[np.float64]:
        return self.log_mgf(x) - math.log(2)

    def score(self, x: ArrayLike) -> NDArray[np.float64]:
        s = np.abs(np.asarray(x, dtype=np.float64))
        mean = self._mean(s)
        return mean + self._spread(s) / mean

    def loss_at_zero(self, shift: float) -> float:
        """−K(−s) + log K′(0)/K′(−s), the second from the fall of K′, term by term, so that small shifts keep digits."""
        s = np.asarray(shift, dtype=np.float64)
        _, width = self.uniform_term()
        fall = width * _uniform_mean_fall(width * s)
        for exponent, length in self.power_terms():
            fall = fall + exponent * length * (length * s / (1 + length * s))
        return float(-self.log_mgf(s) + np.log1p(fall / self._mean(s)))

    @property
    def max_score(self) -> float:
        """The score falls with |x| (log f is convex on each side), so its supremum is E[u²]/E[u], at 0."""
        return float(self.score(0.0))

    @property
    def mean_inverse_scale(self) -> float:
        """E[u], in units of 1/C; the density at 0 is E[u]/2."""
        return float(self._mean(np.zeros(())))

    def scaled(self, factor: float) -> Self:
        factor = _validate.positive("factor", factor)
        return dataclasses.replace(self, **{weight: getattr(self, weight) / factor for weight in _TERMS})

    @property
    def scale_hint(self) -> float:
        return 1 / self.mean_inverse_scale

    @property
    def tail_index(self) -> float:
        low, width = self.uniform_term()
        if low > 0:
            return math.inf
        return sum(exponent for exponent, _ in self.power_terms()) + (1.0 if width > 0 else 0.0)

    def _draw(self, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
        """|X| as the first of three independent clocks.

        Given its terms, P(|X| > x | u) = exp(−u·x) is the product of one factor a term, so |X| is the least of
        independent variables with tails (1+g·x)^−k (each power term, inverted at an exponential draw) and, for the
        uniform term, an exponential with rate drawn uniformly.
        """
        import torch

        from . import _sampling

        clocks = []
        for exponent, length in self.power_terms():
            exponential = _sampling.standard_exponential(shape, generator=generator)
            clocks.append(torch.expm1(exponential / exponent) / length)
        if self.uniform_weight:
            low, width = self.uniform_term()
            rate = low + width * (1 - _sampling.uniform(shape, generator=generator))  # in (low, low+width]
            clocks.append(_sampling.standard_exponential(shape, generator=generator) / rate)
        magnitude = clocks[0]
        for clock in clocks[1:]:
            magnitude = torch.minimum(magnitude, clock)
        return _sampling.with_random_sign(magnitude, generator=generator)


_SERIES_BELOW = 0.1  # the closed forms cancel there; the series' first dropped term is below 1e-14 relative


def _split(z: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """(where the series holds, z clipped into its range, z clipped into the closed form's range)."""
    z = np.asarray(z, dtype=np.float64)
    return z < _SERIES_BELOW, np.minimum(z, _SERIES_BELOW), np.maximum(z, _SERIES_BELOW)


def _log_uniform_mgf(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """log((1 − e^−z)/z) for z >= 0: the uniform law on [0, 1] at −z."""
    is_small, t, safe = _split(z)
    series = -t / 2 + t**2 / 24 - t**4 / 2880 + t**6 / 181440 - t**8 / 9676800
    return np.where(is_small, series, np.log(-np.expm1(-safe)) - np.log(safe))


def _uniform_mean(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the uniform law on [0, 1] tilted by e^−zv: 1/z − 1/(e^z − 1)."""
    is_small, t, safe = _split(z)
    series = 0.5 - t / 12 + t**3 / 720 - t**5 / 30240 + t**7 / 1209600
    return np.where(is_small, series, 1 / safe + np.exp(-safe) / np.expm1(-safe))


def _uniform_mean_fall(z: ArrayLike) -> NDArray[np.float64]:
    """1/2 less that mean, without cancellation for small z."""
    is_small, t, safe = _split(z)
    series = t / 12 - t**3 / 720 + t**5 / 30240 - t**7 / 1209600
    return np.where(is_small, series, 0.5 - 1 / safe - np.exp(-safe) / np.expm1(-safe))


def _uniform_variance(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variance of the same tilted law: 1/z² − e^z/(e^z − 1)²."""
    is_small, t, safe = _split(z)
    series = 1 / 12 - t**2 / 240 + t**4 / 6048 - t**6 / 172800 + t**8 / 5322240
    return np.where(is_small, series, safe**-2 - np.exp(-safe) / np.expm1(-safe) ** 2)
