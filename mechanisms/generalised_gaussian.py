"""Generalised Gaussian noise (arXiv 2506.12553): density ∝ exp(−(|x|/s)^β); Laplace at β = 1, Gaussian at β = 2.

With a = 1/β and y = (x/s)^β, P(X > x) = Γ(a, y)/(2Γ(a)), and tail over density is R(x) = (s/β)·e^y·Γ(a, y).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from . import _validate
from .base import DensityShape, Mechanism

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_FRACTION_FROM = 40.0  # y from which Legendre's continued fraction replaces scipy's incomplete gamma function
_FRACTION_TERMS = 60


@final
@dataclasses.dataclass(frozen=True)
class GeneralisedGaussian(Mechanism):
    """Density β/(2s·Γ(1/β))·exp(−(|x|/s)^β). `scale` is s in units of C, `shape` is β in [0.1, 100], without a unit.

    Log-concave for β >= 1, log-convex on each side for β <= 1. The Fisher information is infinite for β <= 1/2.
    """

    scale: float
    shape: float

    family: ClassVar[str] = "generalised_gaussian"
    short_keys: ClassVar[Mapping[str, str]] = {"s": "scale", "beta": "shape"}
    drop_rounding = 4e-13

    def __post_init__(self) -> None:
        shape = _validate.positive("shape", self.shape)
        if not 0.1 <= shape <= 100:
            raise ValueError(f"expected 0.1 <= shape <= 100, got shape={shape}")
        _validate.length("scale", self.scale)
        _validate.length("E|X|", self.mean_abs)

    @property
    def density_shape(self) -> DensityShape:
        return DensityShape.LOG_CONVEX_SIDES if self.shape <= 1 else DensityShape.LOG_CONCAVE

    # ---- density and tail ------------------------------------------------------------------------------------

    def _power(self, x: Array) -> Array:
        with np.errstate(over="ignore"):
            return (x / self.scale) ** self.shape

    def log_density(self, x: ArrayLike) -> Array:
        power = self._power(np.abs(np.asarray(x, dtype=np.float64)))
        return math.log(self.shape / (2 * self.scale)) - math.lgamma(1 / self.shape) - power

    def _mills(self, x: Array) -> Array:
        """R(x)."""
        a, y = 1 / self.shape, self._power(x)
        threshold = max(_FRACTION_FROM, 4 * a)
        near, far = np.minimum(y, threshold), np.clip(y, threshold, 1e280)
        ratio = special.gammaincc(a, near) * math.gamma(a) * np.exp(near)
        deep = y > threshold
        if np.any(deep):
            with np.errstate(under="ignore"):
                fraction = np.exp((a - 1) * np.log(far[deep])) * (far[deep] * _tail_over_density(a, far[deep]))
            ratio = np.array(ratio)
            ratio[deep] = fraction
        return self.scale / self.shape * ratio

    def log_tail(self, x: ArrayLike) -> Array:
        x = np.asarray(x, dtype=np.float64)
        y = self._power(x)
        beyond = np.isinf(y)
        near = np.minimum(y, max(_FRACTION_FROM, 4 / self.shape))
        value = np.array(np.log(special.gammaincc(1 / self.shape, near)) - math.log(2))
        deep = (y > near) & ~beyond
        value[deep] = self.log_density(x[deep]) + np.log(self._mills(x[deep]))
        return np.where(beyond, -np.inf, value)

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        """y·(e^{β·log(1+w/x)} − 1), relatively exact; from 0 or nearly so, a difference of powers far apart."""
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            growth = np.where(width > 0, width / np.where(x > 0, x, 1.0), 0.0)
            near_zero = (x <= 0) | (growth > 1e20)
            relative = self._power(x) * np.expm1(self.shape * np.log1p(np.where(near_zero, 0.0, growth)))
            return np.where(near_zero, self._power(x + width) - self._power(x), relative)

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        """−log(1 − mass/tail) over a narrow interval, else the fall of log p and of log R.

        mass/p(x) is, far from 0, ∫ e^{−(fall of log p)} by Gauss–Legendre with 12 points (w <= x/4, fall <= 1: analytic
        in the Bernstein ellipse of parameter 10 at least, so the error is of order 10^−24 times e^{few}); beside 0 the
        difference of two lower incomplete gamma functions, one at least 5/4 times as far out as the other.
        """
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        result = np.full(x.shape, np.inf)
        bounded = np.isfinite(width) & np.isfinite(x)
        fall = np.full(x.shape, np.inf)
        fall[bounded] = self.log_density_drop(x[bounded], width[bounded])
        smooth = bounded & (width <= 0.25 * x) & (fall <= 1)
        central = bounded & ~smooth & (self._power(x + np.where(bounded, width, 0.0)) <= max(1.0, 1 / self.shape))
        wide = bounded & ~smooth & ~central
        result[smooth] = self._smooth_drop(x[smooth], width[smooth])
        result[central] = self._central_drop(x[central], width[central])
        ends = self._mills(x[wide]), self._mills(x[wide] + width[wide])
        result[wide] = np.maximum(fall[wide] + np.log(ends[0] / ends[1]), 0.0)
        return result

    def _smooth_drop(self, x: Array, width: Array) -> Array:
        total = np.zeros(x.shape)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            total += 0.5 * weight * np.exp(-self.log_density_drop(x, 0.5 * (1 + node) * width))
        return -np.log1p(-width * total / self._mills(x))

    def _central_drop(self, x: Array, width: Array) -> Array:
        a = 1 / self.shape
        near, far = self._power(x), self._power(x + width)
        mass = special.gammainc(a, far) - special.gammainc(a, near)
        share = np.where(far < 1e-18, width / self._mills(x), mass / special.gammaincc(a, near))  # p is flat there
        return -np.log1p(-share)

    def tail_quantile(self, log_probability: ArrayLike) -> Array:
        """Newton's method on log P(X > x), in y, from the inverse incomplete gamma function where it has digits."""
        target = np.minimum(np.asarray(log_probability, dtype=np.float64), -math.log(2))
        a, finite = 1 / self.shape, np.isfinite(target)
        wanted = np.where(finite, target, -math.log(2)) + math.log(2)
        central = wanted > -0.5
        with np.errstate(divide="ignore"):
            y = np.where(
                central,
                special.gammaincinv(a, -np.expm1(np.where(central, wanted, 0.0))),
                special.gammainccinv(a, np.exp(np.maximum(wanted, -600.0))),
            )
        far = ~central & (y > 0)
        y = np.array(np.where(far & (wanted < -600), np.maximum(-wanted, 2 * a), y))
        for part, rounds in ((far & (wanted >= -600), 2), (far & (wanted < -600), 12)):
            for _ in range(rounds if np.any(part) else 0):
                x = self.scale * y[part] ** a
                per_log = self.shape * y[part] ** (1 - a) / self.scale * self._mills(x)  # −dy/d(log tail)
                y[part] = np.maximum(y[part] + (self.log_tail(x) - target[part]) * per_log, 0.5 * y[part])
        return np.where(finite, self.scale * y**a, np.inf)

    # ---- moments, information --------------------------------------------------------------------------------

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, scale=self.scale * _validate.positive("factor", factor))

    @property
    def scale_hint(self) -> float:
        return self.mean_abs

    def _moment(self, power: int) -> float:
        a = 1 / self.shape
        return self.scale**power * math.exp(math.lgamma((power + 1) * a) - math.lgamma(a))

    @property
    def mean_abs(self) -> float:
        return self._moment(1)

    @property
    def variance(self) -> float:
        return self._moment(2)

    @property
    def fisher_information(self) -> float:
        """β²·Γ(2 − 1/β)/(s²·Γ(1/β)); infinite for β <= 1/2, where the score is too large near 0."""
        if self.shape <= 0.5:
            return math.inf
        return (self.shape / self.scale) ** 2 * math.gamma(2 - 1 / self.shape) / math.gamma(1 / self.shape)

    def score(self, x: ArrayLike) -> Array:
        with np.errstate(divide="ignore"):
            return self.shape / self.scale * (np.asarray(x, dtype=np.float64) / self.scale) ** (self.shape - 1)

    def loss_at_zero(self, shift: float) -> float:
        return float(self._power(np.asarray(shift, dtype=np.float64)))

    @property
    def max_score(self) -> float:
        return 1 / self.scale if self.shape == 1 else math.inf

    def _draw(self, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
        """|X| = s·G^{1/β} with G ~ Gamma(1/β)."""
        from . import _sampling

        log_gamma = _sampling.log_gamma(1 / self.shape, math.prod(shape), generator=generator)
        magnitude = self.scale * (log_gamma / self.shape).exp()
        return _sampling.with_random_sign(magnitude.reshape(shape), generator=generator)


def _tail_over_density(a: float, y: Array) -> Array:
    """Γ(a, y)/(y^a·e^{−y}) for y >= 40 and y >= 4a: Legendre's continued fraction 1/(y+1−a − 1·(1−a)/(y+3−a − …))."""
    value = np.zeros_like(y)
    for n in range(_FRACTION_TERMS, 0, -1):
        value = n * (n - a) / (y + 2 * n + 1 - a - value)
    return 1 / (y + 1 - a - value)
