"""Staircase noise (Geng and Viswanath, arXiv 1212.1186): density constant on intervals, falling by one factor at each.

With the period Δ, the fall λ and the fraction γ, the density is c on |x| < γΔ and c·e^{−λn} on
(n−1+γ)Δ < |x| < (n+γ)Δ, c = (1 − e^−λ)/(2Δ·(γ + e^−λ·(1−γ))). In u = x/Δ + 1 − γ the steps are the integers; tail over
density is Δ·(1 − frac u + 1/(e^λ − 1)).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _validate
from .base import DensityShape, Mechanism

Array = NDArray[np.float64]

_MOST_BREAKS = 200_000


@final
@dataclasses.dataclass(frozen=True)
class Staircase(Mechanism):
    """For a query of sensitivity `period` the loss is −λ, 0 or λ: pure λ-DP, for some γ with least variance or E|X|.

    Attributes:
        period: Δ > 0, the length of a step, in units of C; 1 for adding or removing a record.
        fall: λ > 0, by which log p falls at each jump (natural log): ε of one release under a shift of Δ.
        fraction: γ in (0, 1], half the length of the central step over Δ.

    The density jumps, so its Fisher information is infinite: in many dimensions no ε is finite for all of them.
    """

    period: float
    fall: float
    fraction: float

    family: ClassVar[str] = "staircase"
    short_keys: ClassVar[Mapping[str, str]] = {"delta": "period", "lambda": "fall", "gamma": "fraction"}
    density_shape = DensityShape.UNIMODAL
    has_jumps = True
    drop_rounding = 1e-14

    def __post_init__(self) -> None:
        _validate.length("period", self.period)
        fall = _validate.positive("fall", self.fall)
        if not 1e-4 <= fall <= 500:
            raise ValueError(f"expected 1e-4 <= fall <= 500, got fall={fall}")
        if not 1e-6 <= _validate.finite("fraction", self.fraction) <= 1:
            raise ValueError(f"expected 1e-6 <= fraction <= 1, got fraction={self.fraction}")

    @classmethod
    def least_variance(cls, fall: float, period: float = 1.0) -> Self:
        """The γ that minimises the variance at this fall (1212.1186, theorem 8), found by its derivative's sign."""
        low, high = 1e-6, 1.0
        for _ in range(200):
            third = (high - low) / 3
            if cls(period, fall, low + third).variance < cls(period, fall, high - third).variance:
                high -= third
            else:
                low += third
        return cls(period, fall, 0.5 * (low + high))

    @classmethod
    def least_mean_abs(cls, fall: float, period: float = 1.0) -> Self:
        """γ = 1/(1 + e^{λ/2}), which minimises E|X| (1212.1186, theorem 7)."""
        return cls(period, fall, max(1 / (1 + math.exp(fall / 2)), 1e-6))

    # ---- the interface --------------------------------------------------------------------------------------

    def _steps(self, x: Array) -> tuple[Array, Array]:
        """(the number of jumps up to x >= 0, the position in [0, 1) on the step).

        Counted from the first jump, so that a jump at b is off by about 2 roundings of b, however long the period is.
        """
        u = (x - self.fraction * self.period) / self.period
        steps = np.floor(u)
        return steps + 1, u - steps

    @property
    def _log_peak(self) -> float:
        inside = self.fraction + math.exp(-self.fall) * (1 - self.fraction)
        return math.log(-math.expm1(-self.fall) / inside) - math.log(2 * self.period)

    def _mills(self, position: ArrayLike) -> Array:
        """Tail over density, in periods, at a position on a step."""
        return 1 - np.asarray(position, dtype=np.float64) + 1 / math.expm1(self.fall)

    def log_density(self, x: ArrayLike) -> Array:
        with np.errstate(invalid="ignore"):
            steps, _ = self._steps(np.abs(np.asarray(x, dtype=np.float64)))
        return self._log_peak - self.fall * steps

    def log_tail(self, x: ArrayLike) -> Array:
        x = np.asarray(x, dtype=np.float64)
        finite = np.where(np.isinf(x), 0.0, x)
        steps, position = self._steps(finite)
        value = self._log_peak - self.fall * steps + np.log(self.period * self._mills(position))
        return np.where(np.isinf(x), -np.inf, np.where(x == 0, -math.log(2), value))

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        return self.fall * (self._steps(x + width)[0] - self._steps(x)[0])

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> Array:
        """The rest of a step, whole steps (λ each), the beginning of the last."""
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        bounded = np.isfinite(width)
        step = np.where(bounded, width, 0.0)
        first, position = self._steps(x)
        last, end = self._steps(x + step)
        within = first == last
        rest = np.where(within, step / self.period, 1 - position)
        drop = self._part(position, np.minimum(rest, 1 - position))
        between = np.where(within, 0.0, self.fall * (last - first - 1) + self._part(np.zeros_like(end), end))
        return np.where(bounded, drop + between, np.inf)

    def _part(self, position: Array, length: Array) -> Array:
        """Fall of log P(X > ·) over `length` periods from `position` on one step."""
        return -np.log1p(-length / self._mills(position))

    def tail_quantile(self, log_probability: ArrayLike) -> Array:
        target = np.minimum(np.asarray(log_probability, dtype=np.float64), -math.log(2))
        fallen = np.where(np.isfinite(target), -math.log(2) - target, 0.0)
        start = 1 - self.fraction  # of u at x = 0
        first = -math.log1p(-self.fraction / float(self._mills(start))) if self.fraction < 1 else self.fall
        whole = np.floor(np.maximum(fallen - first, 0.0) / self.fall)
        beyond = np.where(fallen < first, fallen, np.maximum(fallen - first - whole * self.fall, 0.0))
        mills = np.where(fallen < first, self._mills(start), self._mills(0.0))
        inside = np.minimum(-mills * np.expm1(-beyond), np.where(fallen < first, self.fraction, 1.0))
        x = self.period * np.where(fallen < first, inside, self.fraction + whole + inside)
        return np.where(np.isfinite(target), x, np.inf)

    def breaks(self, reach: float) -> Array:
        """The jumps at (n + γ)Δ, at most 200,000 of them."""
        count = max(math.floor(min(reach / self.period - self.fraction, _MOST_BREAKS)) + 1, 0)
        return self.period * (self.fraction + np.arange(count, dtype=np.float64))

    def loss_range(self, near: ArrayLike, width: ArrayLike, shift: float) -> tuple[Array, Array]:
        """Between jumps the loss is constant; everywhere it is λ times floor or ceil of shift/Δ."""
        low, high = super().loss_range(near, width, shift)
        number = Fraction(shift) / Fraction(self.period)
        least, most = self.fall * math.floor(number), self.fall * math.ceil(number)
        return np.maximum(low, least * (1 - 1e-15)), np.minimum(high, most * (1 + 1e-15))

    def largest_loss(self, shift: float) -> float:
        return self.fall * math.ceil(Fraction(shift) / Fraction(self.period)) * (1 + 1e-15)

    def loss_step(self, shift: float) -> float:
        return self.fall

    def loss_at_zero(self, shift: float) -> float:
        return float(self.log_density_drop(0.0, shift))

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, period=self.period * _validate.positive("factor", factor))

    @property
    def scale_hint(self) -> float:
        return self.mean_abs

    def _moments(self) -> tuple[float, float, float, float]:
        """(P(|X| < γΔ); mean and variance of |X|/Δ beyond, a geometric number of steps and a uniform part)."""
        inside = 2 * self.fraction * self.period * math.exp(self._log_peak)
        steps = 1 / math.expm1(self.fall)
        return inside, self.fraction + steps + 0.5, steps * (1 + steps), 1 / 12

    @property
    def mean_abs(self) -> float:
        inside, mean, _, _ = self._moments()
        outside = -math.expm1(math.log(inside)) if inside < 1 else 0.0
        return self.period * (inside * self.fraction / 2 + outside * mean)

    @property
    def variance(self) -> float:
        inside, mean, steps, uniform = self._moments()
        outside = -math.expm1(math.log(inside)) if inside < 1 else 0.0
        return self.period**2 * (inside * self.fraction**2 / 3 + outside * (mean**2 + steps + uniform))

    @property
    def fisher_information(self) -> float:
        return math.inf

    def score(self, x: ArrayLike) -> Array:
        return np.zeros_like(np.asarray(x, dtype=np.float64))
