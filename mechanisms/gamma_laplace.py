"""Gamma–Laplace noise (PLRV, arXiv 2509.06264): Laplace noise whose inverse scale is a Gamma variable."""

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


@final
@dataclasses.dataclass(frozen=True)
class GammaLaplace(Mechanism):
    """1/b ~ Gamma(`shape` k, `scale` θ), X ~ Laplace(b): density (kθ/2)·(1+θ|x|)^−(k+1), x in units of C.

    `shape` has no unit; `scale` is in 1/C. The variance is infinite for k <= 2, E|X| for k <= 1.
    """

    shape: float
    scale: float

    family: ClassVar[str] = "gamma_laplace"
    short_keys: ClassVar[Mapping[str, str]] = {"k": "shape", "theta": "scale"}
    density_shape = DensityShape.LOG_CONVEX_SIDES
    drop_rounding = 2e-15

    def __post_init__(self) -> None:
        _validate.positive("shape", self.shape)
        _validate.length("scale", self.scale)
        _validate.length("1/(shape*scale)", 1 / (self.shape * self.scale) if self.shape * self.scale else math.inf)

    def log_density(self, x: ArrayLike) -> NDArray[np.float64]:
        distance = np.abs(np.asarray(x, dtype=np.float64))
        return math.log(self.shape * self.scale / 2) - (self.shape + 1) * np.log1p(self.scale * distance)

    def log_tail(self, x: ArrayLike) -> NDArray[np.float64]:
        return -self.shape * np.log1p(self.scale * np.asarray(x, dtype=np.float64)) - math.log(2)

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        return self.shape * self._log_growth(x, width)

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        return (self.shape + 1) * self._log_growth(x, width)

    def _log_growth(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        """log((1 + θ(x+width))/(1 + θx))."""
        x = np.asarray(x, dtype=np.float64)
        return np.log1p(self.scale * np.asarray(width, dtype=np.float64) / (1 + self.scale * x))

    def tail_quantile(self, log_probability: ArrayLike) -> NDArray[np.float64]:
        exponent = np.maximum(-np.asarray(log_probability, dtype=np.float64) - math.log(2), 0.0) / self.shape
        with np.errstate(over="ignore"):
            return np.expm1(exponent) / self.scale

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, scale=self.scale / _validate.positive("factor", factor))

    @property
    def scale_hint(self) -> float:
        return 1 / (self.shape * self.scale)

    @property
    def tail_index(self) -> float:
        return self.shape

    @property
    def mean_abs(self) -> float:
        return math.inf if self.shape <= 1 else 1 / (self.scale * (self.shape - 1))

    @property
    def variance(self) -> float:
        return math.inf if self.shape <= 2 else 2 / (self.scale**2 * (self.shape - 1) * (self.shape - 2))

    @property
    def fisher_information(self) -> float:
        return self.shape * (self.shape + 1) ** 2 * self.scale**2 / (self.shape + 2)

    def score(self, x: ArrayLike) -> NDArray[np.float64]:
        return (self.shape + 1) * self.scale / (1 + self.scale * np.asarray(x, dtype=np.float64))

    def loss_at_zero(self, shift: float) -> float:
        return (self.shape + 1) * math.log1p(self.scale * shift)

    @property
    def max_score(self) -> float:
        return (self.shape + 1) * self.scale

    def _draw(self, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
        """|X| inverts its own tail (1+θx)^−k at an exponential draw: no Gamma sampler, exact far out."""
        import torch

        from . import _sampling

        exponential = _sampling.standard_exponential(shape, generator=generator)
        return _sampling.with_random_sign(torch.expm1(exponential / self.shape) / self.scale, generator=generator)
