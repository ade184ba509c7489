"""Gaussian noise: the one family whose guarantee does not depend on the dimension."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from . import _validate
from .base import DensityShape, Mechanism, check_order

if TYPE_CHECKING:
    import torch

_FLOAT32_FROM = 2**18  # coordinates from which draws may be made in float32
_SMALL_WIDTH = 0.25  # standard deviations
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


@final
@dataclasses.dataclass(frozen=True)
class Gaussian(Mechanism):
    """Normal noise. `noise_multiplier` is its standard deviation per coordinate in units of C."""

    noise_multiplier: float

    family: ClassVar[str] = "gaussian"
    short_keys: ClassVar[Mapping[str, str]] = {"sigma": "noise_multiplier"}
    density_shape = DensityShape.LOG_CONCAVE
    isotropic = True
    closed_renyi = True
    drop_rounding = 2e-14

    def __post_init__(self) -> None:
        _validate.length("noise_multiplier", self.noise_multiplier)

    def log_density(self, x: ArrayLike) -> NDArray[np.float64]:
        z = np.asarray(x, dtype=np.float64) / self.noise_multiplier
        return -0.5 * z * z - math.log(self.noise_multiplier) - 0.5 * math.log(2 * math.pi)

    def log_tail(self, x: ArrayLike) -> NDArray[np.float64]:
        return special.log_ndtr(-np.asarray(x, dtype=np.float64) / self.noise_multiplier)

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        """The integral of the hazard λ(z) = φ(z)/Φ(−z) over a small width; a difference of logarithms over a large one.

        Gauss–Legendre with six points: λ is analytic within distance 2.8 of the positive axis (the zeros of erfc), so
        for width <= 1/4 the error is of order (1/4/4/2.8)¹², below rounding.
        """
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        z, w = x / self.noise_multiplier, width / self.noise_multiplier
        small = w <= _SMALL_WIDTH
        result = np.full(z.shape, np.inf)
        result[small] = _hazard_integral(z[small], w[small])
        large = ~small & np.isfinite(w)
        result[large] = special.log_ndtr(-z[large]) - special.log_ndtr(-z[large] - w[large])
        return result

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        width = np.asarray(width, dtype=np.float64) / self.noise_multiplier
        return width * (np.asarray(x, dtype=np.float64) / self.noise_multiplier + 0.5 * width)

    def tail_quantile(self, log_probability: ArrayLike) -> NDArray[np.float64]:
        return -self.noise_multiplier * special.ndtri_exp(np.asarray(log_probability, dtype=np.float64))

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, noise_multiplier=self.noise_multiplier * _validate.positive("factor", factor))

    @property
    def scale_hint(self) -> float:
        return self.noise_multiplier

    @property
    def mean_abs(self) -> float:
        return self.noise_multiplier * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> float:
        return self.noise_multiplier**2

    @property
    def fisher_information(self) -> float:
        return self.noise_multiplier**-2

    def score(self, x: ArrayLike) -> NDArray[np.float64]:
        return np.abs(np.asarray(x, dtype=np.float64)) / self.noise_multiplier**2

    def renyi_divergence(self, order: float, shift: float) -> float:
        """α·shift²/(2σ²) (Gil, Alajaji, Linder 2013); infinite at order ∞."""
        return (
            check_order(order) * _validate.finite("shift", shift) ** 2 / (2 * self.noise_multiplier**2)
            if shift
            else 0.0
        )

    def _draw(self, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
        """float64; from 2^18 coordinates on float32: by `_normal.fill` on a CPU, elsewhere by torch."""
        import torch

        if math.prod(shape) >= _FLOAT32_FROM and generator.device.type == "cpu":
            from . import _normal

            noise = torch.empty(shape, dtype=torch.float32)
            _normal.fill(noise, self.noise_multiplier, generator)
            return noise
        dtype = torch.float64 if math.prod(shape) < _FLOAT32_FROM else torch.float32
        noise = torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
        return noise.mul_(self.noise_multiplier)  # in place: a model has many coordinates


def _hazard_integral(z: NDArray[np.float64], width: NDArray[np.float64]) -> NDArray[np.float64]:
    """∫ φ/Φ(−·) over [z, z+width], both of shape (n,)."""
    total = np.zeros(z.shape)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        total += weight / special.erfcx((z + 0.5 * width * (1 + node)) / math.sqrt(2))
    return math.sqrt(2 / math.pi) * 0.5 * width * total
