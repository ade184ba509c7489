"""Spherical noise: vectors whose law is invariant under rotation, given by the law of their norm.

The spherical generalised gamma family (Wei, Bienstock, Polychroniadou 2026, arXiv 2606.08681) contains the Gaussian and
the ℓ2 mechanism, density ∝ e^{−|x|/b} (Joseph, Kulesza, Yu 2025, arXiv 2502.15929). Its guarantee depends on the
dimension; `accounting.spherical` computes it. Lengths are in units of the clipping norm C.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from . import _validate
from .base import SPEC_FORMAT

if TYPE_CHECKING:  # torch is imported where noise is drawn, so that accounting starts without it
    import torch

_STIRLING_FROM = 12.0  # from here on three terms of Stirling's series reach the last bit


@final
@dataclasses.dataclass(frozen=True)
class SphericalGamma:
    """X = R·U in R^d: U uniform on the unit sphere, independent of the norm R with density

        f(r) = p/(b·Γ(a/p)) · (r/b)^{a−1} · e^{−(r/b)^p},       R = b·G^{1/p},  G ~ Gamma(a/p),

    so −log of the density of X is (r/b)^p + (d − a)·log r + const at |x| = r.

    Attributes:
        dimension: d, the number of coordinates; an integer, 1 <= d <= 2^53.
        shape: a in [1e-100, 1e100]. For a = d the density of X is finite and positive at 0, for a < d infinite there.
        scale: b in [1e-100, 1e100], in units of C.
        power: p in [1e-3, 1e3]; 1 is the ℓ2 mechanism's, 2 the Gaussian's.

    Raises:
        ValueError: a parameter is outside its range, or typical norms, b·max(a/p, 1)^{1/p}, outside [1e-100, 1e100].

    A guarantee needs more, and `accounting` refuses the rest by name: 0.1 <= p <= 2, 0.1 <= a <= d, d <= 10^10, a shift
    within about ten standard deviations of the noise, and neither sampled replace-one nor Rényi bounds.
    """

    dimension: int
    shape: float
    scale: float
    power: float

    family: ClassVar[str] = "spherical_gamma"
    """Name in JSON documents."""
    short_keys: ClassVar[Mapping[str, str]] = {"d": "dimension", "a": "shape", "b": "scale", "p": "power"}
    """Short parameter names, mapped to field names."""
    isotropic: ClassVar[bool] = False
    """Rotation-invariant, but the guarantee depends on the dimension, which is one of its parameters."""

    def __post_init__(self) -> None:
        dimension = _validate.integer("dimension", self.dimension, minimum=1)
        if dimension > 2**53:
            raise ValueError(f"expected dimension <= 2**53, got dimension={dimension}")
        object.__setattr__(self, "dimension", dimension)
        _validate.length("shape", self.shape)
        _validate.length("scale", self.scale)
        power = _validate.positive("power", self.power)
        log_norm = math.log(self.scale) + math.log(max(self.shape / power, 1.0)) / power
        if power < 1e-3 or power > 1e3 or abs(log_norm) > 230:
            raise ValueError(
                f"expected 1e-3 <= power <= 1e3 and norms between 1e-100 and 1e100, got power={self.power} "
                f"with shape={self.shape} and scale={self.scale}"
            )

    @classmethod
    def l2_mechanism(cls, dimension: int, scale: float) -> Self:
        """Density ∝ e^{−|x|/scale}; in dimension 1 Laplace noise."""
        return cls(dimension, float(dimension), scale, 1.0)

    @classmethod
    def gaussian(cls, dimension: int, noise_multiplier: float) -> Self:
        """Independent normal coordinates of standard deviation `noise_multiplier` (units of C)."""
        return cls(dimension, float(dimension), noise_multiplier * math.sqrt(2), 2.0)

    @property
    def gamma_shape(self) -> float:
        """k = a/p, the shape of G = (R/b)^p ~ Gamma(k)."""
        return self.shape / self.power

    # ---- densities and tails -------------------------------------------------------------------------------

    def log_norm_density(self, norm: ArrayLike) -> NDArray[np.float64]:
        """log of the density of R at `norm` > 0 (any shape, units of C); same shape."""
        norm = np.asarray(norm, dtype=np.float64)
        return math.log(self.power) - np.log(norm) + self._log_gamma_density((norm / self.scale) ** self.power)

    def log_density(self, norm: ArrayLike) -> NDArray[np.float64]:
        """log of the density of X at a vector of length `norm` > 0 (any shape, units of C); same shape."""
        norm = np.asarray(norm, dtype=np.float64)
        half = self.dimension / 2
        log_area = math.log(2) + half * math.log(math.pi) - float(special.gammaln(half))
        return self.log_norm_density(norm) - (self.dimension - 1) * np.log(norm) - log_area

    def log_norm_tail(self, norm: ArrayLike) -> NDArray[np.float64]:
        """log P(R > `norm`), `norm` >= 0 (any shape, units of C); same shape."""
        norm, k = np.asarray(norm, dtype=np.float64), self.gamma_shape
        y = (norm / self.scale) ** self.power
        tail = special.gammaincc(k, y)
        with np.errstate(divide="ignore"):
            value = np.where(tail > 0.5, np.log1p(-special.gammainc(k, y)), np.log(tail))
        deep = (tail < 1e-280) & (y > k)
        if deep.any():
            far = np.where(deep, y, 2 * k + 2)
            value = np.where(deep, self._log_gamma_density(far) + np.log(_tail_over_density(k, far)), value)
        return value

    def _log_gamma_density(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """log of y^k·e^{−y}/Γ(k), the density of log G at log y: −k·(z − log(1+z)) + log(k^k·e^{−k}/Γ(k)), z = y/k − 1.

        The maximum is taken out, so that nothing of order k cancels.
        """
        k = self.gamma_shape
        with np.errstate(divide="ignore"):
            z = (y - k) / k
            near = np.abs(z) < 0.1
            far = np.where(near, 1.0, y / k)
            bulge = np.where(near, _z_minus_log1p(np.where(near, z, 0.0)), z - np.log(far))
        return -k * bulge + _log_peak(k)

    # ---- moments -------------------------------------------------------------------------------------------

    @property
    def mean_norm(self) -> float:
        """E R, in units of C."""
        return self._norm_moment(1)

    @property
    def variance(self) -> float:
        """E X_i² = E R²/d per coordinate, in units of C²."""
        return self._norm_moment(2) / self.dimension

    def _norm_moment(self, order: int) -> float:
        """E R^order = b^order·Γ(k + order/p)/Γ(k)."""
        return self.scale**order * math.exp(_log_gamma_ratio(self.gamma_shape, order / self.power))

    # ---- other laws, JSON ----------------------------------------------------------------------------------

    def scaled(self, factor: float) -> Self:
        """The law of `factor`·X, `factor` > 0."""
        return dataclasses.replace(self, scale=self.scale * _validate.positive("factor", factor))

    def spec(self) -> dict[str, Any]:
        """A JSON-ready document: format version, family, parameters. `from_spec` reads it back to an equal object."""
        return {"format": SPEC_FORMAT, "family": self.family, "parameters": dataclasses.asdict(self)}

    # ---- sampling ------------------------------------------------------------------------------------------

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Independent noise vectors along the last axis of `shape`, whose length is `dimension`, in units of C.

        `generator` is required and is the only source of randomness; `device` is its device if not given. Draws are
        made in float64 and cast to `dtype` (default float32) at the end. A Gaussian vector gives the direction.
        """
        import torch

        shape = tuple(shape)
        self._check_shape(shape)
        if not isinstance(generator, torch.Generator):
            raise ValueError(f"expected generator to be a torch.Generator, got generator={generator!r}")
        norm = self.sample_norm(math.prod(shape[:-1]), generator=generator).reshape(*shape[:-1], 1)
        direction = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
        noise = direction * (norm / torch.linalg.vector_norm(direction, dim=-1, keepdim=True))
        return noise.to(device=device or generator.device, dtype=dtype or torch.float32)

    def sample_numpy(self, shape: int | Sequence[int], *, rng: np.random.Generator) -> NDArray[np.float64]:
        """As `sample`, with numpy: float64 vectors along the last axis of `shape`, in units of C."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._check_shape(shape)
        if not isinstance(rng, np.random.Generator):
            raise ValueError(f"expected rng to be a numpy.random.Generator, got rng={rng!r}")
        k, norms = self.gamma_shape, shape[:-1]
        log_gamma = np.log(rng.standard_gamma(k if k >= 1 else k + 1, norms))
        if k < 1:
            log_gamma = log_gamma - rng.standard_exponential(norms) / k
        direction = rng.standard_normal(shape)
        length = self.scale * np.exp(log_gamma / self.power) / np.linalg.norm(direction, axis=-1)
        return direction * np.asarray(length)[..., None]

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if not shape or shape[-1] != self.dimension:
            raise ValueError(f"expected a shape that ends in dimension={self.dimension}, got shape={shape}")

    def sample_norm(self, count: int, *, generator: torch.Generator) -> torch.Tensor:
        """`count` independent norms R, float64, in units of C."""
        from ._sampling import log_gamma

        return self.scale * (log_gamma(self.gamma_shape, count, generator=generator) / self.power).exp()


def _stirling(k: float) -> float:
    """log Γ(k) − [(k − ½)·log k − k + ½·log 2π] for k >= 12, to the last bits."""
    return 1 / (12 * k) - 1 / (360 * k**3) + 1 / (1260 * k**5)


def _log_peak(k: float) -> float:
    """log of k^k·e^{−k}/Γ(k)."""
    if k >= _STIRLING_FROM:
        return 0.5 * math.log(k / (2 * math.pi)) - _stirling(k)
    return k * math.log(k) - k - math.lgamma(k)


def _log_gamma_ratio(k: float, h: float) -> float:
    """log Γ(k+h)/Γ(k), h >= 0, without cancellation at large k."""
    if k < _STIRLING_FROM:
        return math.lgamma(k + h) - math.lgamma(k)
    return h * math.log(k) + (k + h - 0.5) * math.log1p(h / k) - h + _stirling(k + h) - _stirling(k)


def _z_minus_log1p(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """z − log(1+z) for |z| <= 0.1: z²/2 − z³/3 + …"""
    value = np.zeros_like(z)
    for n in range(18, 1, -1):
        value = 1 / n - z * value
    return z * z * value


def _tail_over_density(k: float, y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Γ(k, y)/(y^k·e^{−y}) for y well above k: Legendre's continued fraction 1/(y+1−k − 1·(1−k)/(y+3−k − …))."""
    value = np.zeros_like(y)
    for n in range(400, 0, -1):
        value = n * (n - k) / (y + 2 * n + 1 - k - value)
    return 1 / (y + 1 - k - value)
