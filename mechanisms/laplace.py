"""Laplace noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validate
from .base import DensityShape, Mechanism, check_order

if TYPE_CHECKING:
    import torch


@final
@dataclasses.dataclass(frozen=True)
class Laplace(Mechanism):
    """Density exp(−|x|/b)/2b. `scale` is b, per coordinate, in units of C (an L2 bound on the contribution)."""

    scale: float

    family: ClassVar[str] = "laplace"
    short_keys: ClassVar[Mapping[str, str]] = {"b": "scale"}
    density_shape = DensityShape.LOG_CONVEX_SIDES  # linear sides are both convex and concave
    closed_renyi = True
    drop_rounding = 4e-16

    def __post_init__(self) -> None:
        _validate.length("scale", self.scale)

    def log_density(self, x: ArrayLike) -> NDArray[np.float64]:
        return -np.abs(np.asarray(x, dtype=np.float64)) / self.scale - math.log(2 * self.scale)

    def log_tail(self, x: ArrayLike) -> NDArray[np.float64]:
        return -np.asarray(x, dtype=np.float64) / self.scale - math.log(2)

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(width, dtype=np.float64) / self.scale + 0.0 * np.asarray(x, dtype=np.float64)

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        return self.log_tail_drop(x, width)

    def tail_quantile(self, log_probability: ArrayLike) -> NDArray[np.float64]:
        return self.scale * np.maximum(-np.asarray(log_probability, dtype=np.float64) - math.log(2), 0.0)

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, scale=self.scale * _validate.positive("factor", factor))

    @property
    def scale_hint(self) -> float:
        return self.scale

    @property
    def mean_abs(self) -> float:
        return self.scale

    @property
    def variance(self) -> float:
        return 2 * self.scale**2

    @property
    def fisher_information(self) -> float:
        return self.scale**-2

    def score(self, x: ArrayLike) -> NDArray[np.float64]:
        return np.full_like(np.asarray(x, dtype=np.float64), 1 / self.scale)

    def loss_at_zero(self, shift: float) -> float:
        return shift / self.scale

    @property
    def max_score(self) -> float:
        return 1 / self.scale

    def renyi_divergence(self, order: float, shift: float) -> float:
        """Mironov 2017 (arXiv 1702.07476), Table II, for a shift in units of C; orders 1 and ∞ are its limits.

        Written as log(1 + x)/(α−1) with x from expm1 alone, so that small shifts keep their relative precision:
        α·(e^{(α−1)u} − 1) + (α−1)·(e^{−αu} − 1) = (2α−1)·x.
        """
        order, u = check_order(order), abs(_validate.finite("shift", shift)) / self.scale
        if order == 1:
            return u + math.expm1(-u)
        if math.isinf(order):
            return u
        if (order - 1) * u > 30:  # the second exponential is below rounding beside the first
            return u + math.log(order / (2 * order - 1)) / (order - 1)
        if order * u < 1e-3:
            excess = _second_order_exponential((order - 1) * u) * order + _second_order_exponential(-order * u) * (
                order - 1
            )
        else:
            excess = order * math.expm1((order - 1) * u) + (order - 1) * math.expm1(-order * u)
        return math.log1p(excess / (2 * order - 1)) / (order - 1)

    def _draw(self, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
        from . import _sampling

        magnitude = self.scale * _sampling.standard_exponential(shape, generator=generator)
        return _sampling.with_random_sign(magnitude, generator=generator)


def _second_order_exponential(z: float) -> float:
    """e^z − 1 − z for |z| < 1e-3, where the difference would lose its digits (the linear terms cancel in the sum)."""
    return z * z * (0.5 + z * (1 / 6 + z * (1 / 24 + z * (1 / 120 + z / 720))))
