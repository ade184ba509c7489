"""Laplace noise cut off at a bound (the truncated Laplacian mechanism, Geng, Ding, Guo and Kumar, arXiv 1810.00877).

With b the scale and A the bound, p(x) = e^{−|x|/b}/(2b·(1 − e^{−A/b})) on |x| <= A and 0 beyond. Under a shift t the
loss is infinite with probability P(X > A − t): no ε is finite for a smaller δ, and no Rényi divergence is finite.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from . import _validate
from .base import DensityShape, Mechanism

Array = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True)
class TruncatedLaplace(Mechanism):
    """Laplace noise of `scale` b given that |X| <= `bound` A, both in units of C; 1e-6 <= A/b <= 600."""

    scale: float
    bound: float

    family: ClassVar[str] = "truncated_laplace"
    short_keys: ClassVar[Mapping[str, str]] = {"b": "scale", "A": "bound"}
    density_shape = DensityShape.LOG_CONCAVE
    has_jumps = True
    drop_rounding = 1e-14

    def __post_init__(self) -> None:
        scale, bound = _validate.length("scale", self.scale), _validate.length("bound", self.bound)
        if not 1e-6 <= bound / scale <= 600:
            raise ValueError(f"expected 1e-6 <= bound/scale <= 600, got bound={bound} and scale={scale}")

    @classmethod
    def for_budget(cls, epsilon: float, delta: float) -> Self:
        """The noise that is (ε, δ)-DP for one scalar release with shift 1: b = 1/ε, A = b·log(1 + (e^ε − 1)/2δ)."""
        epsilon, delta = _validate.positive("epsilon", epsilon), _validate.open_unit("delta", delta)
        if delta >= 0.5:
            raise ValueError(f"expected delta < 0.5, got delta={delta}: bounded noise reaches it without noise")
        return cls(1 / epsilon, math.log1p(math.expm1(epsilon) / (2 * delta)) / epsilon)

    @property
    def support(self) -> float:
        return float(self.bound)

    @property
    def _kept(self) -> float:
        """1 − e^{−A/b}, the probability of |X| <= A under Laplace noise."""
        return -math.expm1(-self.bound / self.scale)

    # ---- the interface --------------------------------------------------------------------------------------

    def log_density(self, x: ArrayLike) -> Array:
        x = np.abs(np.asarray(x, dtype=np.float64))
        inside = -x / self.scale - math.log(2 * self.scale) - math.log(self._kept)
        return np.where(x <= self.bound, inside, -np.inf)

    def log_tail(self, x: ArrayLike) -> Array:
        x = np.asarray(x, dtype=np.float64)
        rest = np.maximum(self.bound - x, 0.0) / self.scale
        with np.errstate(divide="ignore"):
            value = -np.minimum(x, self.bound) / self.scale + np.log(-np.expm1(-rest)) - math.log(2 * self._kept)
        return np.where(x == 0, -math.log(2), value)

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        return np.where((x <= self.bound) & (x + width > self.bound), np.inf, width / self.scale)

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        """−log(1 − (1 − e^−w)/(1 − e^−r)), r the rest of the support; if large, w + log((1 − e^−r)/(1 − e^{w−r}))."""
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        rest = np.maximum(self.bound - x, 0.0) / self.scale
        w = np.minimum(width / self.scale, rest)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(w > 0, np.expm1(-w) / np.expm1(-rest), 0.0)
            near = -np.log1p(-np.minimum(share, 0.5))
            far = w + np.log(np.expm1(-rest) / np.expm1(w - rest))
        return np.where(w >= rest, np.inf, np.where(share < 0.5, near, far))

    def tail_quantile(self, log_probability: ArrayLike) -> Array:
        """x = −b·log(e^{−A/b} + 2·(1 − e^{−A/b})·P(X > x)), or A less what that lacks."""
        probability = np.exp(np.minimum(np.asarray(log_probability, dtype=np.float64), -math.log(2)))
        share = 2 * self._kept * probability  # e^{−x/b} − e^{−A/b}
        end = math.exp(-self.bound / self.scale)
        with np.errstate(divide="ignore"):
            from_end = self.bound - self.scale * np.log1p(share / end)
            from_zero = -self.scale * np.log1p(-self._kept * (1 - 2 * probability))
            between = -self.scale * np.log(share + end)
        inside = np.where(share + end < 0.5, between, from_zero)
        return np.clip(np.where(share < end, from_end, inside), 0.0, self.bound)

    def breaks(self, reach: float) -> Array:
        return np.array([self.bound]) if self.bound <= reach else np.empty(0)

    def loss_at_zero(self, shift: float) -> float:
        return float(self.log_density_drop(0.0, shift))

    def scaled(self, factor: float) -> Self:
        factor = _validate.positive("factor", factor)
        return dataclasses.replace(self, scale=self.scale * factor, bound=self.bound * factor)

    @property
    def scale_hint(self) -> float:
        return min(self.scale, self.bound)

    def _moment(self, power: int) -> float:
        """b^n·γ(n+1, A/b)/(1 − e^{−A/b})."""
        inside = float(special.gammainc(power + 1, self.bound / self.scale)) * math.factorial(power)
        return self.scale**power * inside / self._kept

    @property
    def mean_abs(self) -> float:
        return self._moment(1)

    @property
    def variance(self) -> float:
        return self._moment(2)

    @property
    def fisher_information(self) -> float:
        """Infinite: the density jumps at the bound."""
        return math.inf

    def score(self, x: ArrayLike) -> Array:
        return np.full_like(np.asarray(x, dtype=np.float64), 1 / self.scale)
