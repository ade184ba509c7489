"""A lower bound on the cost of every noise that meets G <= limit, by weak duality; true whatever the solver did.

Let c be the cost's density, p any symmetric density that does not rise with |x|, and u, v, given on the line,
supporting lines of the functional: p·φ(m) >= u(x)·p(x) + v(x)·p(x−1) (`Functional.supporting`, at any ratio of the two,
here a positive number for each cell of a grid). For λ >= 0, shifting the second term,

    E c  >=  ∫ c·p + λ(G(p) − limit)  >=  ∫ p(x)·w(x) dx − λ·limit,    w(x) = c(x) + λ·(u(x) + v(x+1)).

A symmetric p that does not rise with |x| is a mixture of uniform laws on [−k, k], so the integral is at least the least
mean of w over an interval [−k, k]: μ = inf_k ∫_{−k}^k w / 2k. Hence every such noise, not only those on a grid, costs
at least μ − λ·limit. The grid's cells of length h divide the shift, u and v are constant on each, c is integrated
exactly; inside a cell c rises by at most c(k+h) − c(k), so ∫_0^k (w − μ) lies at most h·(c(k+h) − c(k))/4 below the
smaller of its values at the cell's ends. Beyond the grid u and v are constant and w rises with c.

The better the ratios, the better the bound: they are those of the optimum of the program over densities that are
constant on the cells, by a barrier method (Newton steps, `_Barrier`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse
from threadpoolctl import threadpool_limits

from .cost import LinearCost
from .functional import Functional
from .loglinear import Shape

Array = NDArray[np.float64]

_MOST_CELLS = 350  # of the half line
_WIDEST = 1500.0  # shifts: cells of the half line where one takes a whole shift
_ACROSS = 60.0  # cells over the length on which the density falls by e²
_GAP = 1e-4  # relative duality gap of the barrier method
_ROOM = 0.03  # by which the start is wider than the constraint needs
_STEEPEST = 40.0  # slope of the tail beyond the cells
_DEEPEST = 400.0  # −log p/p(0) of a cell
_NEWTON = 40
_BULK = 0.03  # mass beyond the first cell from which ratios may be continued
_ENDS = 14  # cells from which they are
_LESS = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
_PERIODS = 60  # shifts by which they are continued at most
_ROUNDING = 1e-9  # relative, of the bound's own sums


@final
@dataclasses.dataclass(frozen=True)
class Cells:
    """Half line cut into `count` cells of length 1/per_shift; beyond them densities fall by `decay` a cell."""

    per_shift: int
    count: int
    decay: float

    @property
    def length(self) -> float:
        return 1 / self.per_shift

    @property
    def edges(self) -> Array:
        return np.arange(self.count + 1) / self.per_shift

    @classmethod
    def around(cls, shape: Shape, most: int = _MOST_CELLS, across: float = _ACROSS) -> Cells:
        """At most about `most` cells, `across` to the length on which p falls by e², that end where the shape does."""
        reach = float(shape.knots[-1]) * 1.3 + 1
        if reach > _WIDEST:
            raise ValueError(
                f"expected noise at most {_WIDEST:g} shifts wide for a certificate on cells that divide the shift, got "
                f"{reach:.4g}; leave it out with certify=False"
            )
        typical = 1 / float(np.sqrt(np.mean(shape.slopes**2)))
        per_shift = max(1, min(math.ceil(across / (2 * typical)), math.floor(most / reach)))
        return cls(
            per_shift, math.ceil(reach * per_shift), math.exp(-min(float(shape.slopes[-1]), _STEEPEST) / per_shift)
        )


class CellProgram:
    """The program over densities that are constant on cells: values, gradients, Hessians, and the dual bound."""

    def __init__(self, cells: Cells, functional: Functional, cost: LinearCost) -> None:
        self.cells, self.functional, self.cost_of = cells, functional, cost
        n, j, decay = cells.per_shift, cells.count, cells.decay
        line = np.arange(-j, j + n)
        self._here, self._there = (self._values(index) for index in (line, line - n))
        beyond = decay / (1 - decay)  # Σ_{i>=1} decay^i
        self.weights = np.full(j, 2 * cells.length)  # ∫ p
        self.weights[-1] *= 1 + beyond
        ends = np.append(cells.edges, cells.edges[-1] + cells.length * np.arange(1, 40_000 / n + 400))
        each = 2 * cost.integral(ends[:-1], ends[1:])
        self.costs = each[:j].copy()
        self.costs[-1] += float(np.sum(each[j:] * decay ** np.arange(1, len(each) - j + 1)))
        self._far = np.array([n * math.log(decay), -n * math.log(decay)])  # ℓ beyond the cells, left and right
        self._far_mass = cells.length * beyond * np.array([1.0, decay**n])

    def _values(self, index: NDArray[np.int64]) -> sparse.csr_array:
        """The matrix from half-line values to the values at cells `index` of the line."""
        mirrored = np.where(index >= 0, index, -1 - index)
        last = self.cells.count - 1
        column = np.minimum(mirrored, last)
        factor = self.cells.decay ** np.maximum(mirrored - last, 0)
        return sparse.csr_array((factor, (np.arange(len(index)), column)), shape=(len(index), last + 1))

    def pair(self) -> tuple[sparse.csr_array, sparse.csr_array]:
        """Matrices from p to p(x) and to p(x−1) on the cells of the line, shape (2·count + per_shift, count)."""
        return self._here, self._there

    def far_losses(self) -> float:
        """G beyond the cells, per unit of the last p."""
        return float(self._far_mass @ self.functional.at(self.functional.sampled(self._far))[0])

    def ratios(self, p: Array) -> Array:
        """log p(x−1)/p(x) on the cells of the line."""
        return np.log(self._there @ p) - np.log(self._here @ p)

    def loss(self, p: Array) -> tuple[float, Array]:
        """G and its gradient."""
        u, v = self.functional.supporting(self.ratios(p))
        gradient = self.cells.length * (self._here.T @ u + self._there.T @ v)
        gradient[-1] += self.far_losses()
        return float(gradient @ p), gradient  # homogeneous of degree 1

    def hessian(self, p: Array) -> Array:
        """Of G; dense."""
        a, loss = self._here @ p, self.ratios(p)
        bend = self.functional.curvature(self.functional.sampled(loss)) * self.functional.rate**2 / a
        change = self._there - sparse.diags_array(np.exp(loss)) @ self._here
        return (change.T @ sparse.diags_array(self.cells.length * bend) @ change).toarray()

    def multipliers(self, p: Array) -> tuple[float, float]:
        """(λ, μ) that come nearest to c + λ·∂G = μ·∂(total mass) at p, cells weighted by their mass."""
        _, slope = self.loss(p)
        columns = np.stack([slope, -self.weights], axis=1) * p[:, None]
        multiplier, mean = np.linalg.lstsq(columns, -self.costs * p)[0]
        return float(multiplier), float(mean)

    def bound(self, p: Array) -> float:
        """The best dual bound from the ratios of p."""
        multiplier, mean = self.multipliers(p)
        return self.bound_of_lines(*self.functional.supporting(self.ratios(p)), p, multiplier, mean)

    def bound_of_lines(self, u: Array, v: Array, p: Array, multiplier: float, mean: float) -> float:
        """The best dual bound from lines on the cells of the line, ended in several ways; p tells where its tail is."""
        if not multiplier > 0:
            return -math.inf
        mass = np.cumsum((self.weights * p)[::-1])[::-1]
        first, last = int(np.searchsorted(-mass, -_BULK)), self.cells.count
        best = -math.inf
        for end in np.unique(np.linspace(max(first, self.cells.per_shift + 1), last, _ENDS).astype(int)):
            until = self.cells.count + end
            best = max(best, self.line_bound(u[:until], v[:until], multiplier))
            for less in _LESS:
                lines = self._continued(u, v, end, multiplier, mean * (1 - less))
                best = max(best, self.line_bound(*lines, multiplier))
        return best

    def _continued(self, u: Array, v: Array, end: int, multiplier: float, mean: float) -> tuple[Array, Array]:
        """Lines up to the cell `end`, continued so that w = `mean` until v is as small as it can be.

        v(x+1) has to make up for u(x), so the lines follow one shift after the other. An error grows from shift to
        shift: with a `mean` a little below μ they soon end, where the cost alone is enough.
        """
        n, j = self.cells.per_shift, self.cells.count
        left_u, left_v = u[:j][::-1], v[:j][::-1]  # at the cells −1, −2, …
        least = float(self.functional.line_with(np.array([-np.inf]))[1][0])
        line_u, line_v = [u[: j + end - n], u[j + end - n : j + end]], [v[: j + end]]
        for k in range(end - n, end + _PERIODS * n, n):
            cells = np.arange(k, k + n)
            cost = self.cost_of.integral(cells / n, (cells + 1) / n) * n
            mirrored = left_u[np.minimum(cells, j - 1)]
            mirrored += np.where(cells >= n, left_v[np.clip(cells - n, 0, j - 1)], 0.0)
            following = self.functional.line_with(2 * (mean - cost) / multiplier - line_u[-1] - mirrored)
            line_u.append(following[0])
            line_v.append(following[1])
            if np.all(following[1] <= least):
                break
        return np.concatenate(line_u), np.concatenate(line_v)

    def line_bound(self, u: Array, v: Array, multiplier: float) -> float:
        """The dual bound from the lines u, v on the cells from −count on, their ends going on; λ near `multiplier`."""
        n, j = self.cells.per_shift, self.cells.count
        count = len(u)
        u, v = (np.concatenate([np.full(count, part[0]), part, np.full(2 * n, part[-1])]) for part in (u, v))
        pull = u[:-n] + v[n:]
        centre = count + j
        half = 0.5 * (pull[centre:] + pull[centre - 1 :: -1][: len(pull) - centre])
        edges = np.arange(len(half) + 1) / n
        cost = np.cumsum(self.cost_of.integral(edges[:-1], edges[1:]))
        rise = self.cost_of.at(edges[1:]) - self.cost_of.at(edges[:-1])
        slack = np.maximum(rise, np.append(rise[1:], rise[-1])) / (4 * n)
        mass = np.cumsum(half) / n
        least = float(self.cost_of.at(edges[:1])[0])

        def value(log_multiplier: float) -> float:
            m = math.exp(log_multiplier)
            means = (cost + m * mass - slack) / edges[1:]
            return min(float(np.min(means)), least + m * half[0]) - m * self.functional.limit

        around = math.log(multiplier)
        found: Any = optimize.minimize_scalar(
            lambda x: -value(x), bounds=(around - 1, around + 1), method="bounded", options={"xatol": 1e-9}
        )
        factor, bound = math.exp(float(found.x)), float(-found.fun)
        charge = factor * self.functional.limit
        if not float(self.cost_of.at(edges[-1:])[0]) + factor * half[-1] >= bound + charge:
            return -math.inf  # beyond the last cell w might be below μ
        return bound - _ROUNDING * (abs(bound) + abs(charge))


@final
@dataclasses.dataclass(frozen=True)
class Certified:
    """The optimum over densities that are constant on cells, and a bound for all densities; lengths in shifts.

    Attributes:
        cells: the grid.
        density: p on the cells of the half line, shape (count,).
        cost: of `density`, whose G is at most the limit.
        bound: no symmetric density that falls with |x| and meets the constraint costs less.
    """

    cells: Cells
    density: Array
    cost: float
    bound: float


@threadpool_limits.wrap(limits=1)  # matrices of a few hundred rows: more threads only wait for each other
def certified(shape: Shape, functional: Functional, cost: LinearCost, cells: Cells | None = None) -> Certified:
    """The optimum near a good `shape` that meets the constraint, with its dual bound; on cells that suit the shape."""
    program = CellProgram(cells or Cells.around(shape), functional, cost)
    path = list(_Barrier(program, start := _start(program, shape)).path(start))
    bound = max(program.bound(p) for p in path[-2:])
    return Certified(program.cells, path[-1], float(program.costs @ path[-1]), bound)


def _start(program: CellProgram, shape: Shape) -> Array:
    """Strictly feasible cell values near a shape that meets the constraint."""
    cells = program.cells
    middle = (np.arange(cells.count) + 0.5) * cells.length
    deepest = _DEEPEST + 0.01 * np.arange(cells.count)
    falling = 1 + 1e-4 * np.arange(cells.count)[::-1] / cells.count
    for widening in range(12):
        fall = shape.scaled(1 + _ROOM * 1.5**widening).fall(np.asarray(middle, dtype=np.float64))
        p = np.exp(-np.minimum(fall, deepest)) * falling
        p /= float(program.weights @ p)
        if program.loss(p)[0] < program.functional.limit:
            return p
    raise ValueError("no density on the cells meets the constraint near the one given")


class _Barrier:
    """The cost with walls: t·cost − log(limit − G) − Σ weight_j·log(p_j − p_{j+1}).

    The weights are the shares of mass that the start gives to the uniform laws which end at cell j, so that a wall is
    as far from a tail cell, relative to its mass, as from any other.
    """

    def __init__(self, program: CellProgram, p: Array) -> None:
        self.program = program
        share = -np.diff(np.append(p, 0.0)) * np.cumsum(program.weights)
        self.weights = len(p) * np.maximum(share / share.sum(), 1e-12)

    def path(self, p: Array):
        """Points of the central path from p on, the weight of the cost rising."""
        sharpness = len(p) / float(self.program.costs @ p)
        while True:
            p = self._centred(p, sharpness)
            yield p
            if len(p) / sharpness < _GAP * float(self.program.costs @ p):
                return
            sharpness *= 6

    def _centred(self, p: Array, sharpness: float) -> Array:
        value = self._value(p, sharpness)
        for _ in range(_NEWTON):
            step, decrement = self._newton_step(p, sharpness)
            if not decrement > 1e-4:
                break
            size = 1.0
            while (
                size > 1e-8
                and not (found := self._value(p * (1 + size * step), sharpness)) < value - size * decrement / 20
            ):
                size /= 2
            if size <= 1e-8:
                break
            p, value = p * (1 + size * step), found
        return p

    def _value(self, p: Array, sharpness: float) -> float:
        drops = -np.diff(np.append(p, 0.0))
        if not np.all(drops > 0):
            return math.inf
        room = self.program.functional.limit - self.program.loss(p)[0]
        if not room > 0:
            return math.inf
        cost = sharpness * float(self.program.costs @ p)
        return cost - math.log(room) - float(self.weights @ np.log(drops))

    def _newton_step(self, p: Array, sharpness: float) -> tuple[Array, float]:
        """(relative step, decrement squared) in the variables p_j/(current p_j), the total mass kept."""
        program = self.program
        value, slope = program.loss(p)
        room = program.functional.limit - value
        drops = -np.diff(np.append(p, 0.0))
        first, second = self.weights / drops, self.weights / drops**2
        gradient = sharpness * program.costs + slope / room - (first - np.append(0.0, first[:-1]))
        hessian = program.hessian(p) / room + np.outer(slope / room, slope / room)
        hessian += np.diag(second + np.append(0.0, second[:-1])) - np.diag(second[:-1], 1) - np.diag(second[:-1], -1)
        scaled, g, weights = hessian * np.outer(p, p), gradient * p, program.weights * p
        size = np.sqrt(np.diag(scaled))
        factor = linalg.cho_factor(scaled / np.outer(size, size) + 1e-13 * np.eye(len(p)))
        free, tied = (linalg.cho_solve(factor, vector / size) / size for vector in (g, weights))
        step = -(free - tied * float(weights @ free) / float(weights @ tied))
        return step, -float(g @ step)
