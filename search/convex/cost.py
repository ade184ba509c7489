"""Costs that are linear in the density: E|X|^n and P(|X| > γ)."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..problem import Problem

Array = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True)
class LinearCost:
    """E c(|X|), c rising: |x|^power, or 1 beyond `radius`. In units of the largest shift, as every length here."""

    power: int = 0
    radius: float = 0.0

    def at(self, x: Array) -> Array:
        """c(|x|), same shape."""
        return np.abs(x) ** self.power if self.power else np.where(np.abs(x) > self.radius, 1.0, 0.0)

    def tail(self, start: float, slope: float) -> tuple[float, float]:
        """∫_start^∞ c(x)·e^{−slope·(x−start)} dx and its derivative by the slope; `start` >= the radius."""
        k, s = start, slope
        if self.power == 2:
            return k * k / s + 2 * k / s**2 + 2 / s**3, -(k * k / s**2 + 4 * k / s**3 + 6 / s**4)
        if self.power == 1:
            return k / s + 1 / s**2, -(k / s**2 + 2 / s**3)
        return 1 / s, -1 / s**2

    def integral(self, low: Array, high: Array) -> Array:
        """∫ c over [low, high], 0 <= low <= high; same shape."""
        if self.power:
            n = self.power + 1
            return (high**n - low**n) / n
        return np.maximum(high - np.maximum(low, self.radius), 0.0)

    @property
    def breaks(self) -> tuple[float, ...]:
        """Where c jumps."""
        return () if self.power else (self.radius,)

    def in_units_of(self, shift: float) -> float:
        """The factor from a cost in units of the shift to one in units of C."""
        return shift**self.power


def linear_cost(problem: Problem) -> LinearCost:
    """The cost of `problem`; ValueError naming it where it is not linear in the density."""
    kind = problem.cost_kind
    if kind == "variance":
        return LinearCost(2)
    if kind == "mean_abs":
        return LinearCost(1)
    if kind == "usefulness" and math.isfinite(problem.usefulness_radius):
        return LinearCost(0, problem.usefulness_radius / problem.shift)
    raise ValueError(
        f"expected a cost that is linear in the density (variance, mean_abs or usefulness:GAMMA) for a convex program, "
        f"got cost={problem.cost_name!r}; search a parametric family instead"
    )
