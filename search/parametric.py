"""Search over any family of noise with a few continuous shape parameters, declared in a few lines.

A *shape* is a noise up to its scale: `ParametricFamily.build` makes one from the shape parameters, at any scale, and
the search scales it to the budget. First a wide sweep over the declared ranges, ranked under the cheap budget of
`budget` (Rényi divergences in numba where several steps are composed); then Brent's method (one parameter) or
Nelder–Mead (Gao, Han 2012, adaptive) from the best points, each candidate scaled to the exact ε interval of
`accounting` where that takes milliseconds (one coordinate), and under the cheap budget otherwise. What comes out is
calibrated and verified by the caller.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from ..accounting import AccountantsDisagree
from ..mechanisms import Mechanism, _validate
from ._progress import track
from .budget import Budget, budget_for
from .exact import RANK, SWEEP, Effort, exact_factor, is_supported
from .problem import Problem

Point = NDArray[np.float64]

_SWEEP = {1: 48, 2: 100}  # points of the wide sweep by number of parameters
_SWEEP_MORE = 512
_STARTS = 2  # sweep points that a refinement starts from
_EVALUATIONS = {1: 25, 2: 40}
_EVALUATIONS_MORE = 120
_ENOUGH = 1e-4  # relative difference of costs at which Nelder–Mead ends
_REFUSED = 1e300  # stands for an infinite cost: Nelder–Mead subtracts values


class NoFiniteCost(ValueError):
    """No noise of a family has a finite cost, so the family is left out by name."""


@final
@dataclasses.dataclass(frozen=True)
class ShapeParameter:
    """One continuous parameter of a shape: its name, its range, and whether it is searched on a logarithmic axis."""

    name: str
    low: float
    high: float
    logarithmic: bool = False

    def __post_init__(self) -> None:
        low = _validate.finite(f"low of {self.name}", self.low)
        if not low < _validate.finite(f"high of {self.name}", self.high):
            raise ValueError(f"expected low < high for {self.name}, got low={self.low}, high={self.high}")
        if self.logarithmic and low <= 0:
            raise ValueError(f"expected low > 0 for the logarithmic parameter {self.name}, got low={self.low}")

    def at(self, share: float) -> float:
        """The value at a share in [0, 1] of the range."""
        share = min(max(float(share), 0.0), 1.0)
        if self.logarithmic:
            return math.exp((1 - share) * math.log(self.low) + share * math.log(self.high))
        return (1 - share) * self.low + share * self.high

    def share(self, value: float) -> float:
        """The share in [0, 1] of a value; values outside the range are moved to its ends."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@final
@dataclasses.dataclass(frozen=True)
class ParametricFamily:
    """A family of noise as the search sees it.

    Attributes:
        family: its name, that of the mechanisms that `build` returns.
        parameters: the shape parameters, without the scale; at most six.
        build: makes a noise from the values of the parameters, in their order, at any scale. It may raise ValueError
            for a combination that is no noise: such points are passed over.
        starts: further points of the sweep that are known to be good for a problem, as tuples of values.

    Example: a family of one's own, searched with the others after `register_family`:

        ParametricFamily("gamma_laplace", (ShapeParameter("shape", 0.05, 1e4, logarithmic=True),),
                         lambda shape: GammaLaplace(shape, 1 / shape))
    """

    family: str
    parameters: tuple[ShapeParameter, ...]
    build: Callable[..., Mechanism]
    starts: Callable[[Problem], Sequence[tuple[float, ...]]] = lambda problem: ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.parameters) <= 6:
            raise ValueError(f"expected 1 to 6 parameters for the family {self.family}, got {len(self.parameters)}")

    def shape(self, point: Point) -> Mechanism:
        """The noise at shares of the parameters' ranges; shape (parameters,)."""
        return self.build(*(p.at(share) for p, share in zip(self.parameters, point, strict=True)))

    def __call__(self, problem: Problem, *, top: int, progress: bool, seed: int) -> list[Mechanism]:
        """The best shape for `problem`, near its budget (one noise, whatever `top`)."""
        return [_Search(self, problem, budget_for(problem)).run(seed=seed, progress=progress)]


@dataclasses.dataclass
class _Search:
    family: ParametricFamily
    problem: Problem
    budget: Budget
    reason: str = ""
    """Why the last point was passed over."""
    last_factor: float = 1.0
    """Of the last shape with bounded support: where the search for the next one's starts."""
    exact_over_cheap: float = 1.0
    """Ratio of the two factors of the last shape: the next one's is near."""
    least_swept: float = math.inf
    """The least cost of the sweep so far."""

    def run(self, *, seed: int, progress: bool) -> Mechanism:
        points = self._sweep_points(seed)
        costs = np.array([self.swept(p) for p in track(points, f"sweep: {self.family.family}", show=progress)])
        if not np.any(costs < _REFUSED):
            label = self.problem.cost_label
            raise NoFiniteCost(
                f"no {self.family.family} noise tried has both a proven bound and a finite {label}: {self.reason}"
            )
        order = np.argsort(costs, kind="stable")
        starts = [points[i] for i in order[: _STARTS if points.shape[1] > 1 else 1]]
        found = [self._refined(start) for start in track(starts, f"refine: {self.family.family}", show=progress)]
        best = min((*found, *starts), key=self.objective)
        return self._at_budget(best)

    def _sweep_points(self, seed: int) -> Point:
        """Shares in [0, 1], shape (points, parameters): a grid for one or two parameters, else spread points."""
        count = len(self.family.parameters)
        if count <= 2:
            side = round(_SWEEP[count] ** (1 / count))
            grid = np.array(list(itertools.product(np.linspace(0, 1, side), repeat=count)))
        else:
            grid = _spread(_SWEEP_MORE, count, seed)
        known = [
            [p.share(value) for p, value in zip(self.family.parameters, start, strict=True)]
            for start in self.family.starts(self.problem)
        ]
        return np.concatenate([np.array(known).reshape(-1, count), grid])

    @property
    def is_scalar(self) -> bool:
        """Whether the exact interval of a shape takes milliseconds."""
        return all(asked.dimension == 1 for asked in self.problem.constraints)

    @property
    def is_composed(self) -> bool:
        """Whether the cheap budget is looser than the exact interval: one release is exact in both."""
        return any(asked.steps > 1 for asked in self.problem.constraints)

    def swept(self, point: Point) -> float:
        """The cost at the cheap budget, or near the exact one for noise of bounded support, which has no other."""
        cost = self._cost(point, lambda shape: self._cheap_factor(shape, SWEEP))
        self.least_swept = min(self.least_swept, cost)
        return cost

    def objective(self, point: Point) -> float:
        """The cost at the exact budget for one coordinate, at the cheap one otherwise."""
        return self._cost(point, self._exact_factor if self.is_scalar and self.is_composed else self._cheap_factor)

    def _cheap_factor(self, shape: Mechanism, effort: Effort = RANK) -> float:
        if not self._has_no_cheap_budget(shape):
            return self.budget.factor_of(shape)
        self.last_factor = exact_factor(
            self.problem.constraints,
            shape,
            start=self.last_factor,
            effort=effort,
            is_hopeless=lambda factor: (
                effort is SWEEP and self.problem.cost_of(shape.scaled(factor)) > self.least_swept
            ),
        )
        return self.last_factor

    def _exact_factor(self, shape: Mechanism) -> float:
        if self._has_no_cheap_budget(shape):
            return self._cheap_factor(shape)
        cheap = self._cheap_factor(shape)
        exact = exact_factor(self.problem.constraints, shape, start=cheap * self.exact_over_cheap)
        self.exact_over_cheap = exact / cheap
        return exact

    def _has_no_cheap_budget(self, shape: Mechanism) -> bool:
        """Bounded noise has no finite Rényi divergence."""
        return self.is_scalar and self.is_composed and shape.support < math.inf

    def _at_budget(self, point: Point) -> Mechanism:
        shape = self.family.shape(point)
        return shape.scaled(self._cheap_factor(shape))

    def _cost(self, point: Point, factor: Callable[[Mechanism], float]) -> float:
        try:
            shape = self.family.shape(point)
        except ValueError as error:
            self.reason = self.reason or str(error)  # of the others one says more
            return _REFUSED
        try:
            for asked in self.problem.constraints:
                if reason := is_supported(asked, shape):
                    raise ValueError(reason)
            value = self.problem.cost_of(shape.scaled(factor(shape)))
        except (ValueError, ArithmeticError, AccountantsDisagree) as error:
            self.reason = str(error)
            return _REFUSED
        if not math.isfinite(value):
            self.reason = f"the {self.problem.cost_label} of {shape!r} is {value}"
            return _REFUSED
        return value

    def _refined(self, start: Point) -> Point:
        if len(start) == 1:
            return self._brent(float(start[0]))
        evaluations = _EVALUATIONS.get(len(start), _EVALUATIONS_MORE)
        step = 1.0 / round(_SWEEP[2] ** 0.5)
        simplex = np.vstack([start, *(start + self._inwards(start, i, step) for i in range(len(start)))])
        options = {"initial_simplex": simplex, "maxfev": evaluations, "adaptive": True}
        options |= {"xatol": np.inf, "fatol": _ENOUGH * abs(self.objective(start))}
        bounds = [(0.0, 1.0)] * len(start)
        return optimize.minimize(self.objective, start, method="Nelder-Mead", bounds=bounds, options=options).x

    @staticmethod
    def _inwards(start: Point, axis: int, step: float) -> Point:
        return np.eye(len(start))[axis] * (step if start[axis] <= 0.5 else -step)

    def _brent(self, start: float) -> Point:
        step = 1.0 / (_SWEEP[1] - 1)
        found: Any = optimize.minimize_scalar(
            lambda share: self.objective(np.array([share])),
            bounds=(max(start - step, 0.0), min(start + step, 1.0)),
            method="bounded",
            options={"xatol": 1e-4, "maxiter": _EVALUATIONS[1]},
        )
        return np.array([found.x])


def _spread(points: int, parameters: int, seed: int) -> Point:
    """A Kronecker sequence with a random start (Roberts' choice of steps), shape (points, parameters), in [0, 1)."""
    root = 2.0
    for _ in range(50):  # the real root of x^(p+1) = x + 1
        root = (1 + root) ** (1 / (parameters + 1))
    steps = root ** -np.arange(1, parameters + 1)
    return (np.random.default_rng(seed).random(parameters) + np.outer(np.arange(points), steps)) % 1.0
