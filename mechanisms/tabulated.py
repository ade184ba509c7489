"""Noise with a tabulated density: log p piecewise linear in |x|, exponential tails; everything about it is closed.

Write 0 = k_0 < k_1 < … < k_n for the knots, s_i >= 0 for the slope −d log p/d|x| on [k_i, k_{i+1}] (k_{n+1} = ∞,
s_n > 0), w_i for the lengths, φ(z) = (1 − e^−z)/z. The ratio of tail and density, R(x) = P(X > x)/p(x), obeys

    R(k_i) = w_i·φ(s_i·w_i) + e^{−s_i·w_i}·R(k_{i+1}),      R(k_n) = 1/s_n,

and p(0) = 1/(2·R(0)) normalises. Drops of log p and of log P(X > x) add up over the segments and are all >= 0, so no
digit is lost to a difference.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from . import _validate
from .base import DensityShape, Mechanism

Array = NDArray[np.float64]

_MOST_KNOTS = 100_000
_MOST_FALL = 1e6  # of log p up to the last knot
_EPS = float(np.finfo(np.float64).eps)


@final
@dataclasses.dataclass(frozen=True)
class Tabulated(Mechanism):
    """log p(x) = log p(0) − ∫_0^|x| slope, normalised. What a search over all densities returns.

    Attributes:
        knots: distances 0 < k_1 < … < k_n from 0 at which the slope changes, in units of C; none makes Laplace noise.
        slopes: n+1 slopes −d log p/d|x| >= 0, in units of 1/C: on [0, k_1], …, on [k_n, ∞), the last one > 0.

    Raises ValueError for anything else: a negative slope would be a density that rises with |x|.
    """

    knots: tuple[float, ...]
    slopes: tuple[float, ...]

    family: ClassVar[str] = "tabulated"
    short_keys: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        knots, slopes = _validate.numbers_of("knots", self.knots), _validate.numbers_of("slopes", self.slopes)
        object.__setattr__(self, "knots", knots)
        object.__setattr__(self, "slopes", slopes)
        if len(knots) > _MOST_KNOTS:
            raise ValueError(f"expected at most {_MOST_KNOTS} knots, got {len(knots)}")
        if len(slopes) != len(knots) + 1:
            raise ValueError(f"expected one slope more than knots, got {len(slopes)} slopes and {len(knots)} knots")
        for before, knot in zip((0.0, *knots), knots, strict=False):
            if knot <= before:
                raise ValueError(f"expected knots above 0 in increasing order, got {knot} after {before}")
        if min(slopes) < 0:
            raise ValueError(f"expected slopes >= 0 (the density falls with |x|), got {min(slopes)}")
        _validate.length("1/(the last slope)", 1 / slopes[-1] if slopes[-1] else math.inf)
        if knots:
            _validate.length("the first knot", knots[0])
            _validate.length("the last knot", knots[-1])
            fall = math.fsum(s * w for s, w in zip(slopes, np.diff((0.0, *knots)), strict=False))
            if not fall <= _MOST_FALL:
                raise ValueError(f"expected a density that falls by at most e^{_MOST_FALL:.0e} up to the last knot")

    @classmethod
    def from_log_density(cls, knots: Sequence[float], log_density: Sequence[float], tail_slope: float) -> Self:
        """The noise with this log density (up to a constant) at 0 and at `knots`, and `tail_slope` beyond the last.

        `log_density` has one value more than `knots` (the first at 0); it must not rise.
        """
        positions, values = np.array([0.0, *knots]), np.asarray(log_density, dtype=np.float64)
        if values.shape != positions.shape:
            raise ValueError(f"expected {len(positions)} values of log_density (at 0 and the knots), got {len(values)}")
        slopes = -np.diff(values) / np.diff(positions)
        return cls(tuple(float(k) for k in knots), (*(float(s) for s in slopes), tail_slope))

    # ---- the table ------------------------------------------------------------------------------------------

    @functools.cached_property
    def _table(self) -> _Table:
        return _Table(np.array([0.0, *self.knots]), np.array(self.slopes))

    @property
    def density_shape(self) -> DensityShape:
        slopes = np.array(self.slopes)
        if np.all(np.diff(slopes) <= 0):
            return DensityShape.LOG_CONVEX_SIDES
        return DensityShape.LOG_CONCAVE if np.all(np.diff(slopes) >= 0) else DensityShape.UNIMODAL

    @property
    def drop_rounding(self) -> float:
        return self._table.rounding

    def breaks(self, reach: float) -> Array:
        knots = self._table.knots[1:]
        return knots[knots <= reach]

    # ---- the interface --------------------------------------------------------------------------------------

    def log_density(self, x: ArrayLike) -> Array:
        x = np.abs(np.asarray(x, dtype=np.float64))
        t, i = self._table, self._table.segment(x)
        with np.errstate(over="ignore"):
            return t.log_density[i] - t.slopes[i] * (x - t.knots[i])

    def log_tail(self, x: ArrayLike) -> Array:
        x = np.asarray(x, dtype=np.float64)
        finite = np.where(np.isinf(x), 0.0, x)
        return np.where(np.isinf(x), -np.inf, self.log_density(finite) + np.log(self._table.mills(finite)))

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        finite = np.isfinite(width)
        drop = self._table.drops(x, np.where(finite, width, 0.0), self._table.tail_part, self._table.tail_drops)
        return np.where(finite, drop, np.inf)

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        return self._table.drops(x, width, self._table.density_part, self._table.density_drops)

    def loss_range(self, near: ArrayLike, width: ArrayLike, shift: float) -> tuple[Array, Array]:
        """Linear between breaks, constant from the last knot on; across a break, what the fall of p implies."""
        near, width = np.broadcast_arrays(np.asarray(near, dtype=np.float64), np.asarray(width, dtype=np.float64))
        bounded = np.where(np.isfinite(width), width, 0.0)
        ends = self.log_density_drop(near, shift), self.log_density_drop(near + bounded, shift)
        low, high = np.minimum(*ends), np.maximum(*ends)
        pad = 2 * _EPS * (near + bounded + shift)
        crosses = [
            self._table.segment(start + pad) < self._table.segment(start + bounded - pad)
            for start in (near, near + shift)
        ]
        broken = (crosses[0] | crosses[1]) & (bounded > 2 * pad)
        if broken.any():
            wide = super().loss_range(near, bounded, shift)
            low, high = np.where(broken, wide[0], low), np.where(broken, wide[1], high)
        slack = pad * (self.slopes[-1] + self.max_score)
        beyond = np.isinf(width)
        if not np.all(near[beyond] >= self._table.knots[-1] * (1 - 4 * _EPS)):
            largest = self.largest_loss(shift)
            return np.where(beyond, 0.0, np.maximum(low - slack, 0.0)), np.where(beyond, largest, high + slack)
        return np.maximum(low - slack, 0.0), high + slack

    def largest_loss(self, shift: float) -> float:
        """ℓ is piecewise linear, so the largest is at 0, at a knot k or at the distance k − shift."""
        places = np.concatenate([self._table.knots, self._table.knots - shift])
        places = places[places >= 0]
        return float(np.max(self.log_density_drop(places, shift), initial=0.0))

    def tail_quantile(self, log_probability: ArrayLike) -> Array:
        target = np.minimum(np.asarray(log_probability, dtype=np.float64), -math.log(2))
        return self._table.quantile(target)

    def scaled(self, factor: float) -> Self:
        factor = _validate.positive("factor", factor)
        return dataclasses.replace(
            self, knots=tuple(k * factor for k in self.knots), slopes=tuple(s / factor for s in self.slopes)
        )

    def spec(self) -> dict[str, Any]:
        document = super().spec()
        document["parameters"] = {"knots": list(self.knots), "slopes": list(self.slopes)}
        return document

    @property
    def scale_hint(self) -> float:
        return self.mean_abs

    @functools.cached_property
    def _moments(self) -> tuple[float, float, float]:
        return self._table.moment(1), self._table.moment(2), self._table.fisher_information()

    @property
    def mean_abs(self) -> float:
        return self._moments[0]

    @property
    def variance(self) -> float:
        return self._moments[1]

    @property
    def fisher_information(self) -> float:
        return self._moments[2]

    def score(self, x: ArrayLike) -> Array:
        """The slope at |x|; at a knot, of the segment that begins there."""
        return self._table.slopes[self._table.segment(np.abs(np.asarray(x, dtype=np.float64)))]

    def loss_at_zero(self, shift: float) -> float:
        return float(self.log_density_drop(0.0, shift))

    @property
    def max_score(self) -> float:
        return max(self.slopes)


def _phi(z: Array) -> Array:
    """(1 − e^−z)/z, z >= 0."""
    positive = np.where(z > 0, z, 1.0)
    return np.where(z > 0, -np.expm1(-positive) / positive, 1.0)


class _Table:
    """Arrays of shape (segments,): knots k_i, slopes, log p(k_i), R(k_i), and what falls between k_i and k_{i+1}."""

    def __init__(self, knots: Array, slopes: Array) -> None:
        self.knots, self.slopes = knots, slopes
        self.widths = np.diff(knots)
        self.density_drops = slopes[:-1] * self.widths
        self.ratio, self.rounding = self._ratios()
        log_peak = -math.log(2) - math.log(self.ratio[0])
        self.log_density = log_peak - np.concatenate([[0.0], np.cumsum(self.density_drops)])
        self.tail_drops = self.tail_part(np.arange(len(self.widths)), knots[:-1], self.widths)
        self.log_tail = -math.log(2) - np.concatenate([[0.0], np.cumsum(self.tail_drops)])

    def _ratios(self) -> tuple[Array, float]:
        """R at the knots, from the last to the first, and a bound on the relative rounding error of all drops."""
        ratio = np.empty(len(self.knots))
        ratio[-1] = 1 / self.slopes[-1]
        inside = self.widths * _phi(self.density_drops)
        worst = error = _EPS
        for i in range(len(self.widths) - 1, -1, -1):
            fall = float(self.density_drops[i])
            beyond = math.exp(-fall) * ratio[i + 1]
            ratio[i] = inside[i] + beyond
            share = beyond / ratio[i]
            error = share * (error + _EPS * (fall + 2)) + (1 - share) * 4 * _EPS + _EPS
            worst = max(worst, error)
        return ratio, 4 * (worst + 8 * _EPS) + len(self.knots) * _EPS

    def segment(self, x: Array) -> NDArray[np.intp]:
        """The index i with k_i <= x < k_{i+1}."""
        return np.maximum(np.searchsorted(self.knots, x, side="right") - 1, 0)

    def _rest(self, i: NDArray[np.intp], x: Array) -> tuple[Array, Array]:
        """(length up to the next knot, or 0 in the last segment; R there)."""
        last = i >= len(self.widths)
        following = np.minimum(i + 1, len(self.knots) - 1)
        return np.where(last, 0.0, np.maximum(self.knots[following] - x, 0.0)), self.ratio[following]

    def mills(self, x: Array, i: NDArray[np.intp] | None = None) -> Array:
        """R(x)."""
        i = self.segment(x) if i is None else i
        rest, beyond = self._rest(i, x)
        fall = self.slopes[i] * rest
        return rest * _phi(fall) + np.exp(-fall) * beyond

    def density_part(self, i: NDArray[np.intp], x: Array, width: Array) -> Array:
        """The fall of log p over [x, x+width] inside segment i."""
        return self.slopes[i] * width

    def tail_part(self, i: NDArray[np.intp], x: Array, width: Array) -> Array:
        """The fall of log P(X > ·) over [x, x+width] inside segment i: −log(1 − mass/tail), or from the far end."""
        rest, _ = self._rest(i, x)
        fall = self.slopes[i] * width
        ratio = self.mills(x, i)
        share = width * _phi(fall) / ratio
        far_rest = np.maximum(rest - width, 0.0)
        _, beyond = self._rest(i, x)
        far_fall = self.slopes[i] * far_rest
        far = far_rest * _phi(far_fall) + np.exp(-far_fall) * beyond
        small = share < 0.5
        drop = np.where(small, -np.log1p(-np.where(small, share, 0.0)), fall + np.log(ratio / far))
        return np.where(i >= len(self.widths), fall, drop)

    def drops(self, x: Array, width: Array, part: Any, whole: Array) -> Array:
        """Σ of the falls over [x, x+width]: the rest of its segment, whole segments, the beginning of the last one."""
        shape, x, width = x.shape, np.ravel(x), np.ravel(width)
        first = self.segment(x)
        rest = np.where(first < len(self.widths), self._rest(first, x)[0], np.inf)
        inside = width <= rest
        result = part(first, x, np.where(inside, width, rest))
        crossing = np.flatnonzero(~inside)
        if len(crossing):
            start = first[crossing] + 1
            end = np.maximum(self.segment(x[crossing] + width[crossing]), start)
            beyond = np.maximum(width[crossing] - (self.knots[end] - x[crossing]), 0.0)
            between = np.zeros(len(crossing))
            several = end > start
            if several.any():
                edges = np.stack([start[several], end[several]], axis=1).ravel()
                between[several] = np.add.reduceat(np.append(whole, 0.0), edges)[::2]
            result[crossing] += between + part(end, self.knots[end], beyond)
        return result.reshape(shape)

    def quantile(self, target: Array) -> Array:
        """x >= 0 with log P(X > x) = `target` <= −log 2; inside a segment from its nearer end."""
        i = np.clip(np.searchsorted(-self.log_tail, -target, side="right") - 1, 0, None)
        slope, last = self.slopes[i], i >= len(self.widths)
        following = np.minimum(i + 1, len(self.knots) - 1)
        fallen = np.maximum(self.log_tail[i] - target, 0.0)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            near = -self.ratio[i] * np.expm1(-fallen)
            share = slope * near
            safe = np.where(share > 0, np.minimum(share, 0.5), 1.0)
            from_left = np.where(share > 0, near * (-np.log1p(-np.where(share > 0, safe, 0.0)) / safe), near)
            rising = np.maximum(target - self.log_tail[following], 0.0)
            log_b = (
                np.log(self.ratio[following] * np.where(slope > 0, slope, 1.0)) + rising + np.log(-np.expm1(-rising))
            )
            from_right = np.logaddexp(0.0, log_b) / np.where(slope > 0, slope, 1.0)
            inner = np.where(share < 0.5, self.knots[i] + from_left, self.knots[following] - from_right)
            return np.where(last, self.knots[i] + fallen / slope, np.minimum(inner, self.knots[following]))

    def moment(self, power: int) -> float:
        """E|X|^power = 2·Σ p(k)·∫ (k+u)^power·e^{−su} du: a binomial sum of incomplete gamma functions, all >= 0."""
        density = np.exp(self.log_density)
        total = 0.0
        for m in range(power + 1):
            inner = self.widths ** (m + 1) * _power_integral(m, self.density_drops)
            integrals = np.append(inner, math.factorial(m) / self.slopes[-1] ** (m + 1))
            total += math.comb(power, m) * float(np.sum(density * self.knots ** (power - m) * integrals))
        return 2 * total

    def fisher_information(self) -> float:
        """2·Σ s²·mass."""
        mass = np.exp(self.log_tail) * np.append(-np.expm1(-self.tail_drops), 1.0)
        return 2 * float(np.sum(self.slopes**2 * mass))


def _power_integral(m: int, z: Array) -> Array:
    """∫_0^1 v^m·e^{−zv} dv = γ(m+1, z)/z^{m+1}."""
    large = z > 1e-4
    safe = np.where(large, z, 1.0)
    series = 1 / (m + 1) - z / (m + 2) + z**2 / (2 * (m + 3)) - z**3 / (6 * (m + 4))
    return np.where(large, special.gammainc(m + 1, safe) * math.factorial(m) / safe ** (m + 1), series)
