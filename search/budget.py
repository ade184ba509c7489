"""How far a shape must be scaled to meet a problem's privacy budget: one class for each kind of constraint.

A shape is a cell (LMO noise, many at once) or any `Mechanism`; the factor by which its noise is multiplied divides the
shift, and ε never rises with it, so a budget is a largest shift. Which budget holds:

- one release of one coordinate: the exact (ε, δ);
- every dimension (d = ∞): Fisher information equal to that of the calibrated Gaussian. It is the small-shift limit of
  the bound, not the supremum over shifts, which calibration of the finalists takes in full;
- otherwise: Rényi divergence at a few orders α. With steps T the conversion at δ leaves each release a log moment
  (α−1)·R(α) of ((α−1)(ε − log(1−1/α)) + log δ + log α)/T. In d coordinates the shift is taken as spread evenly, 1/√d
  in each: the bound where the envelope of g(s) = r_α(√s) is g itself at 1/d;
- several constraints: the largest of their factors.

All of these rank shapes. What a search returns is calibrated afterwards by `accounting`, whose bounds are proven.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..accounting import calibrate
from ..mechanisms import Mechanism
from .cell_costs import sweep_costs
from .cells import LAPLACE_CELL, statistics
from .constraint import Constraint
from .mechanism_one_release import largest_one_release_shift
from .mechanism_renyi import largest_renyi_shift
from .one_release import largest_one_release_shifts
from .problem import Problem
from .renyi_kernel import largest_shifts

_FISHER_FROM = 10**6  # coordinates from which a shift of 1/√d is in the small-shift limit, to about 1e-3
_LARGEST_INTEGER_ORDER = 256  # the sampled product's moments cost one multiplication an order


class Budget(abc.ABC):
    """The factor that brings each normalised cell to a privacy budget."""

    @abc.abstractmethod
    def factors(self, cells: NDArray[np.float64], *, tolerance: float = 1e-6) -> NDArray[np.float64]:
        """Factors for cells of shape (n, 5), to a relative `tolerance`; shape (n,)."""

    @abc.abstractmethod
    def factor_of(self, shape: Mechanism) -> float:
        """The factor for one noise of any family; ValueError where the budget cannot be asked of it."""

    def sweep_budget(self, probes: NDArray[np.float64], problem: Problem) -> Budget:
        """The budget for a whole grid, chosen by looking at a few of its cells."""
        return self

    def near(self, cell: NDArray[np.float64]) -> Budget:
        """A cheaper budget that agrees with this one around a cell."""
        return self


@final
@dataclasses.dataclass(frozen=True)
class OneRelease(Budget):
    """One release of one coordinate, Poisson-sampled or not: exact in (ε, δ)."""

    epsilon: float
    delta: float
    sampling_rate: float
    shift: float

    def factors(self, cells: NDArray[np.float64], *, tolerance: float = 1e-6) -> NDArray[np.float64]:
        shifts = largest_one_release_shifts(
            cells, epsilon=self.epsilon, delta=self.delta, sampling_rate=self.sampling_rate, tolerance=tolerance
        )
        return self.shift / shifts

    def factor_of(self, shape: Mechanism) -> float:
        shift = largest_one_release_shift(
            shape, epsilon=self.epsilon, delta=self.delta, sampling_rate=self.sampling_rate
        )
        return self.shift / shift

    def sweep_budget(self, probes: NDArray[np.float64], problem: Problem) -> OneRelease:
        """δ = 0 where δ moves the shift by less than the grid's own spacing."""
        return self if self.delta > 1e-3 * self.sampling_rate else dataclasses.replace(self, delta=0.0)


@final
@dataclasses.dataclass(frozen=True)
class FisherInformation(Budget):
    """Every dimension: Fisher information at most `information`, in units of 1/C²."""

    information: float

    def factors(self, cells: NDArray[np.float64], *, tolerance: float = 1e-6) -> NDArray[np.float64]:
        return np.sqrt(statistics(cells)[:, 2] / self.information)

    def factor_of(self, shape: Mechanism) -> float:
        if not math.isfinite(shape.fisher_information):
            raise ValueError("its Fisher information is infinite, so no ε holds in every dimension")
        return math.sqrt(shape.fisher_information / self.information)


@final
@dataclasses.dataclass(frozen=True)
class RenyiBudget(Budget):
    """Log moments of one release at several orders; a cell takes the order that lets it be smallest.

    `orders` and `log_moments` are (m,) tuples; `dimension` coordinates share a total shift of `shift` evenly.
    """

    orders: tuple[float, ...]
    log_moments: tuple[float, ...]
    sampling_rate: float
    dimension: int
    shift: float

    def factors(self, cells: NDArray[np.float64], *, tolerance: float = 1e-6) -> NDArray[np.float64]:
        return self.factors_by_order(cells, tolerance=tolerance).min(axis=0)

    def factor_of(self, shape: Mechanism) -> float:
        shift = largest_renyi_shift(
            shape,
            orders=np.array(self.orders),
            log_moments=np.array(self.log_moments),
            sampling_rate=self.sampling_rate,
            dimension=self.dimension,
        )
        return self.shift / math.sqrt(self.dimension) / shift

    def factors_by_order(self, cells: NDArray[np.float64], *, tolerance: float = 1e-6) -> NDArray[np.float64]:
        """The factor that each order alone asks for; shape (m, n). Neighbouring orders start from each other."""
        spread = self.shift / math.sqrt(self.dimension)
        result = np.empty((len(self.orders), len(cells)))
        guess: float | NDArray[np.float64] = self._laplace_guess
        for i, (order, budget) in enumerate(zip(self.orders, self.log_moments, strict=True)):
            guess = self._shifts(cells, order, budget, guess, tolerance)
            result[i] = spread / guess
        return result

    def sweep_budget(self, probes: NDArray[np.float64], problem: Problem) -> RenyiBudget:
        """One order: the one at which the cheapest of the probes is smallest."""
        by_order = self.factors_by_order(probes, tolerance=1e-4)
        cheapest = np.argmin(sweep_costs(problem, probes, by_order.min(axis=0)))
        return self._with_orders([int(np.argmin(by_order[:, cheapest]))])

    def near(self, cell: NDArray[np.float64]) -> RenyiBudget:
        """Five orders around the best one for the cell."""
        best = int(np.argmin(self.factors_by_order(cell[None], tolerance=1e-4)[:, 0]))
        return self._with_orders(list(range(max(best - 2, 0), min(best + 3, len(self.orders)))))

    def _with_orders(self, chosen: list[int]) -> RenyiBudget:
        return dataclasses.replace(
            self,
            orders=tuple(self.orders[i] for i in chosen),
            log_moments=tuple(self.log_moments[i] for i in chosen),
        )

    @functools.cached_property
    def _laplace_guess(self) -> float:
        order, budget = self.orders[0], self.log_moments[0]
        return float(self._shifts(LAPLACE_CELL[None], order, budget, 0.1, 1e-3)[0])

    def _shifts(
        self,
        cells: NDArray[np.float64],
        order: float,
        budget: float,
        start: float | NDArray[np.float64],
        tolerance: float,
    ) -> NDArray[np.float64]:
        return largest_shifts(
            cells,
            order=order,
            budget=budget,
            sampling_rate=self.sampling_rate,
            dimension=self.dimension,
            start=start,
            tolerance=tolerance,
        )


@final
@dataclasses.dataclass(frozen=True)
class AllOf(Budget):
    """Several budgets at once: the largest of their factors."""

    budgets: tuple[Budget, ...]

    def factors(self, cells: NDArray[np.float64], *, tolerance: float = 1e-6) -> NDArray[np.float64]:
        return np.max([budget.factors(cells, tolerance=tolerance) for budget in self.budgets], axis=0)

    def factor_of(self, shape: Mechanism) -> float:
        return max(budget.factor_of(shape) for budget in self.budgets)

    def sweep_budget(self, probes: NDArray[np.float64], problem: Problem) -> AllOf:
        return AllOf(tuple(budget.sweep_budget(probes, problem) for budget in self.budgets))

    def near(self, cell: NDArray[np.float64]) -> AllOf:
        return AllOf(tuple(budget.near(cell) for budget in self.budgets))


def budget_for(problem: Problem) -> Budget:
    """The budget that a problem sets for shapes."""
    budgets = tuple(_budget_of(constraint) for constraint in problem.constraints)
    return budgets[0] if len(budgets) == 1 else AllOf(budgets)


def _budget_of(asked: Constraint) -> Budget:
    if asked.dimension == 1 and asked.steps == 1:
        return OneRelease(asked.epsilon, asked.delta, asked.sampling_rate, asked.shift)
    if asked.dimension >= _FISHER_FROM:
        return _fisher_budget(asked)
    orders, log_moments = renyi_budgets(asked)
    if not len(orders):  # a sampled vector at a budget so small that its integer orders would be too many
        return _fisher_budget(asked)
    return RenyiBudget(tuple(orders), tuple(log_moments), asked.sampling_rate, int(asked.dimension), asked.shift)


def _fisher_budget(asked: Constraint) -> FisherInformation:
    gaussian = calibrate("gaussian", epsilon=asked.epsilon, **asked.budget())
    return FisherInformation(gaussian.fisher_information)


def renyi_budgets(
    problem: Problem | Constraint, orders: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(orders, log moment that the budget leaves one release at each), both (m,), where that is positive.

    The orders are those given, or enough of them for the problem.
    """
    highest = 4 * (1 + math.log(1 / problem.delta) / problem.epsilon)
    if orders is None:
        orders = 1 + np.geomspace(0.02, max(highest, 60.0), 60)
        if problem.dimension > 1 and problem.sampling_rate < 1:
            orders = np.unique(np.rint(np.geomspace(2, min(max(highest, 8.0), _LARGEST_INTEGER_ORDER), 30)))
    total = (orders - 1) * (problem.epsilon - np.log1p(-1 / orders)) + math.log(problem.delta) + np.log(orders)
    return orders[total > 0], total[total > 0] / problem.steps
