"""Mixtures of Gaussians of one variance and different means (Liu, Selvi, Wiesemann 2026, arXiv 2605.28078), unimodal.

With M the signed mean, P(M = ±μ_i) = w_i/2, the density is that of a Gaussian times a factor:

    log p(x) = −x²/(2σ²) + A(x) + const,   A(x) = log Σ w_i·e^{−μ_i²/2σ²}·cosh(μ_i·x/σ²),

A convex, A'(x) = m(x)/σ² with m(x) = E[M | x]. So p falls with |x| exactly where m(x) <= x, and log p is concave if
every μ_i <= σ (then Var[M | x] <= σ²).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from . import _validate
from .base import DensityShape, Mechanism

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_MOST_MEAN = 25.0  # standard deviations
_SLOPES = (0.5, 0.9, 0.99, 0.999)  # bounds of m(x)/x that are tried in turn
_MOST_STEPS = 20_000


@final
@dataclasses.dataclass(frozen=True)
class GaussianMixture(Mechanism):
    """Component i is N(±μ_i, σ²) with a fair sign, drawn with probability w_i.

    Attributes:
        deviation: σ > 0, of every component, in units of C.
        means: the μ_i >= 0, in units of C, at most 25σ; 0 for the central Gaussian.
        weights: the w_i > 0, which must sum to 1 (to 1e-12); same length.

    Means so far out that the density rises anywhere to the right of 0 are refused (ValueError): the largest shift would
    no longer be the worst one, which every bound here rests on. The low-privacy mixtures of the paper are of that kind.
    """

    deviation: float
    means: tuple[float, ...]
    weights: tuple[float, ...]

    family: ClassVar[str] = "gaussian_mixture"
    short_keys: ClassVar[Mapping[str, str]] = {"sigma": "deviation"}

    def __post_init__(self) -> None:
        deviation = _validate.length("deviation", self.deviation)
        means = _validate.numbers_of("means", self.means)
        weights = _validate.numbers_of("weights", self.weights)
        object.__setattr__(self, "means", means)
        object.__setattr__(self, "weights", weights)
        if not means or len(means) != len(weights):
            raise ValueError(f"expected as many weights as means, at least one; got {len(weights)} and {len(means)}")
        if min(weights) <= 0 or abs(math.fsum(weights) - 1) > 1e-12:
            raise ValueError(f"expected weights > 0 that sum to 1, got weights={weights}")
        if min(means) < 0 or max(means) > _MOST_MEAN * deviation:
            raise ValueError(f"expected 0 <= means <= {_MOST_MEAN:g} deviations, got means={means}")
        if not math.isfinite(self._steepness):
            raise ValueError(
                f"expected means that leave a density which falls with |x|, got means={means} with "
                f"deviation={deviation} and weights={weights}; take a larger deviation, or means nearer to 0"
            )

    # ---- the mean's law given x, and proof that the density falls ---------------------------------------------

    @functools.cached_property
    def _log_weights(self) -> Array:
        """log(w_i·e^{−μ_i²/2σ²}/2), shape (means,)."""
        means = np.array(self.means) / self.deviation
        return np.log(self.weights) - 0.5 * means**2 - math.log(2)

    def _posterior(self, x: Array) -> tuple[Array, Array, Array]:
        """(posterior weights of the μ_i given x >= 0, shape (means, …); a = μ_i·x/σ²; log of their total)."""
        means = np.array(self.means).reshape(-1, *([1] * x.ndim)) / self.deviation
        a = means * (x / self.deviation)
        logs = self._log_weights.reshape(means.shape) + a + np.log1p(np.exp(-2 * a))
        peak = np.max(logs, axis=0)
        parts = np.exp(logs - peak)
        total = np.sum(parts, axis=0)
        return parts / total, a, peak + np.log(total)

    def _mean(self, x: Array) -> Array:
        """m(x), x >= 0."""
        posterior, a, _ = self._posterior(x)
        means = np.array(self.means).reshape(-1, *([1] * x.ndim))
        return np.sum(posterior * means * np.tanh(a), axis=0)

    @functools.cached_property
    def _steepness(self) -> float:
        """A proven bound below 1 of m(x)/x over x > 0, or inf."""
        return next((slope for slope in _SLOPES if self._mean_is_below(slope)), math.inf)

    def _mean_is_below(self, slope: float) -> bool:
        """Whether m(x) <= slope·x for all x > 0.

        On [0, b] m(x) <= x·E[M²|b]/σ², as Var[M | ·] <= E[M² | ·], which rises with x (the posterior weights of larger
        μ_i rise). On [a, b] m(x) <= m(b), as m rises. From max μ_i/slope on m <= max μ_i suffices.
        """
        means, end = np.array(self.means), max(self.means) / slope
        b = end
        for _ in range(200):
            posterior, _, _ = self._posterior(np.array(b))
            if float(posterior @ means**2) <= slope * self.deviation**2:
                break
            b *= 0.7
        else:
            return end == 0
        step = b
        for _ in range(_MOST_STEPS):
            if b >= end:
                return True
            while float(self._mean(np.array(b + step))) > slope * b:
                step *= 0.5
                if step < 1e-9 * b:
                    return False
            b, step = b + step, 2 * step
        return False

    # ---- the interface --------------------------------------------------------------------------------------

    @property
    def density_shape(self) -> DensityShape:
        return DensityShape.LOG_CONCAVE if max(self.means) <= self.deviation else DensityShape.UNIMODAL

    @property
    def drop_rounding(self) -> float:
        return 2e-13 * (1 + self._steepness) / (1 - self._steepness)

    def log_density(self, x: ArrayLike) -> Array:
        x = np.abs(np.asarray(x, dtype=np.float64))
        _, _, log_total = self._posterior(x)
        return log_total - 0.5 * (x / self.deviation) ** 2 - math.log(self.deviation) - 0.5 * math.log(2 * math.pi)

    def _mills(self, x: Array) -> Array:
        """Tail over density: Σ over the signed means of their posterior weight times the Gaussian's own ratio."""
        posterior, a, _ = self._posterior(x)
        means = np.array(self.means).reshape(-1, *([1] * x.ndim)) / self.deviation
        z = x / self.deviation
        up = 1 / (1 + np.exp(-2 * a))
        ratios = [np.minimum(special.erfcx((z - sign * means) / math.sqrt(2)), 1e300) for sign in (1, -1)]
        ratio = np.sum(posterior * (up * ratios[0] + (1 - up) * ratios[1]), axis=0)
        return self.deviation * math.sqrt(math.pi / 2) * ratio

    def log_tail(self, x: ArrayLike) -> Array:
        x = np.asarray(x, dtype=np.float64)
        finite = np.where(np.isinf(x), 0.0, x)
        value = self.log_density(finite) + np.log(self._mills(finite))
        return np.where(np.isinf(x), -np.inf, np.where(x == 0, -math.log(2), value))

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        """w(2x+w)/2σ² − log(1 + S), S = Σ posterior·(cosh(a+h)/cosh a − 1), h = μ_i·w/σ²: no difference of logs.

        cosh(a+h)/cosh a − 1 = (e^h − 1)(1 − e^{−2a−h})/(1 + e^{−2a}) >= 0.
        """
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        posterior, a, _ = self._posterior(x)
        h = np.array(self.means).reshape(-1, *([1] * x.ndim)) / self.deviation * (width / self.deviation)
        near = np.minimum(h, 200.0)
        growth = np.sum(posterior * np.expm1(near) * -np.expm1(-2 * a - near) / (1 + np.exp(-2 * a)), axis=0)
        drop = width / self.deviation * ((x + 0.5 * width) / self.deviation) - np.log1p(growth)
        far = np.max(h, axis=0) > 200
        if np.any(far):
            drop = np.where(far, self.log_density(x) - self.log_density(x + width), drop)
        return np.maximum(drop, 0.0)

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        """−log(1 − mass/tail), mass/p(x) by Gauss–Legendre with 12 points where log p falls by at most 1 over at most
        σ/2 and no mean contributes by more than e; else the fall of log p and of the ratio R."""
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        result = np.full(x.shape, np.inf)
        bounded = np.isfinite(width)
        reach = (x + np.where(bounded, width, np.inf) + max(self.means)) / self.deviation
        smooth = bounded & (width * reach <= self.deviation) & (width <= 0.5 * self.deviation)
        wide = bounded & ~smooth
        total = np.zeros(int(np.sum(smooth)))
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            total += 0.5 * weight * np.exp(-self.log_density_drop(x[smooth], 0.5 * (1 + node) * width[smooth]))
        result[smooth] = -np.log1p(-width[smooth] * total / self._mills(x[smooth]))
        fall = self.log_density_drop(x[wide], width[wide])
        ratios = self._mills(x[wide]), self._mills(x[wide] + width[wide])
        result[wide] = np.maximum(fall + np.log(ratios[0] / ratios[1]), 0.0)
        return result

    def loss_range(self, near: ArrayLike, width: ArrayLike, shift: float) -> tuple[Array, Array]:
        """ℓ(x) = shift·(2x + shift)/2σ² − G(x) with G(x) = A(x+shift) − A(x), which rises to shift·max μ/σ²."""
        near, width = np.broadcast_arrays(np.asarray(near, dtype=np.float64), np.asarray(width, dtype=np.float64))
        bounded = np.isfinite(width)
        step = np.where(bounded, width, 0.0)
        slope = shift / self.deviation**2
        start, end = self.log_density_drop(near, shift), self.log_density_drop(near + step, shift)
        last = slope * (near + shift / 2 - max(self.means))
        slack = (self.drop_rounding + 1e-14) * (start + end + slope * (near + step + shift))
        low = np.where(bounded, end - slope * step, last) - slack
        return np.maximum(low, 0.0), np.where(bounded, start + slope * step + slack, np.inf)

    def loss_at_zero(self, shift: float) -> float:
        return float(self.log_density_drop(0.0, shift))

    def scaled(self, factor: float) -> Self:
        factor = _validate.positive("factor", factor)
        return dataclasses.replace(
            self, deviation=self.deviation * factor, means=tuple(mean * factor for mean in self.means)
        )

    def spec(self) -> dict[str, Any]:
        document = super().spec()
        document["parameters"].update(means=list(self.means), weights=list(self.weights))
        return document

    @property
    def scale_hint(self) -> float:
        return math.sqrt(self.variance)

    @property
    def variance(self) -> float:
        return self.deviation**2 + math.fsum(w * m**2 for w, m in zip(self.weights, self.means, strict=True))

    @property
    def mean_abs(self) -> float:
        """Σ w·E|N(μ, σ²)|, the folded normal mean."""
        parts = []
        for weight, mean in zip(self.weights, self.means, strict=True):
            z = mean / self.deviation
            folded = math.sqrt(2 / math.pi) * math.exp(-z * z / 2) + z * math.erf(z / math.sqrt(2))
            parts.append(weight * self.deviation * folded)
        return math.fsum(parts)

    def score(self, x: ArrayLike) -> Array:
        x = np.abs(np.asarray(x, dtype=np.float64))
        return (x - self._mean(x)) / self.deviation**2

    def _draw(self, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
        import torch

        from . import _sampling

        device = generator.device
        edges = torch.cumsum(torch.tensor(self.weights, dtype=torch.float64, device=device), 0)
        uniform = _sampling.uniform(shape, generator=generator)
        index = torch.searchsorted(edges, uniform, right=True).clamp(max=len(self.weights) - 1)
        mean = torch.tensor(self.means, dtype=torch.float64, device=device)[index]
        normal = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        return _sampling.with_random_sign(mean, generator=generator) + self.deviation * normal
