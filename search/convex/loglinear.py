"""The program over densities whose log is piecewise linear in |x|: smooth, small, and without a cone.

Write s_i for the slopes −d log p/d|x| between the knots, s_n for that of the exponential tail, and z_i = log s_i. On
nodes fixed by the knots log p = −A·s up to the normaliser, A_ij the length of segment j inside [0, |x_i|], so the cost
C, the functional G and their gradients are matrix products. Between the knots, their mirror images and their images
under the shift, all integrands are analytic: a Gauss rule per interval. Beyond the last knot they are in closed form.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray
from scipy import optimize

from .cost import LinearCost
from .functional import Functional

Array = NDArray[np.float64]

_NODES, _WEIGHTS = leggauss(8)
_LOWEST = -25.0  # log slope
_LARGEST_FALL = 12.0  # of log p over one segment: what eight nodes integrate
_STEEPEST_TAIL = 40.0  # slope beyond the last knot
_LEAST = 1e-300


class Value(NamedTuple):
    """log C and log G at the log slopes z, with gradients of z's shape."""

    log_cost: float
    cost_gradient: Array
    log_loss: float
    loss_gradient: Array


@dataclasses.dataclass(frozen=True)
class Shape:
    """A density: `knots` > 0 increasing, shape (n,); `log_slopes`, shape (n+1,). In units of the shift."""

    knots: Array
    log_slopes: Array

    def scaled(self, factor: float) -> Shape:
        return Shape(self.knots * factor, self.log_slopes - math.log(factor))

    @property
    def slopes(self) -> Array:
        return np.exp(self.log_slopes)

    def fall(self, x: Array) -> Array:
        """log p(0) − log p(x), same shape."""
        return _lengths(self.knots, np.abs(x)) @ self.slopes


class LogLinear:
    """Cost and functional over the densities with the given knots."""

    def __init__(self, knots: Array, functional: Functional, cost: LinearCost) -> None:
        self.knots, self.functional, self.cost = knots, functional, cost
        last = float(knots[-1])
        mirrored = np.concatenate([[0.0, 1.0], knots, -knots, 1 + knots, 1 - knots])
        x, self._weight = _gauss(np.unique(mirrored[(mirrored >= -last) & (mirrored <= last + 1)]))
        self._here, self._there = _lengths(knots, np.abs(x)), _lengths(knots, np.abs(x - 1))
        breaks = [b for b in cost.breaks if b < last]
        self._half, self._half_weight = _gauss(np.unique(np.concatenate([[0.0], knots, breaks])))
        self._inside = _lengths(knots, self._half)
        self._end = _lengths(knots, np.array([last]))[0]

    def value(self, log_slopes: Array) -> Value:
        """Infinite or NaN where a density is so steep that its loss leaves the floats."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self._value(np.exp(log_slopes))

    def _value(self, s: Array) -> Value:
        at_end = math.exp(-float(self._end @ s))
        mass, mass_by = self._half_line(s, at_end, np.ones_like(self._half), (1 / s[-1], -1 / s[-1] ** 2))
        cost, cost_by = self._half_line(
            s, at_end, self.cost.at(self._half), self.cost.tail(float(self.knots[-1]), float(s[-1]))
        )
        loss, loss_by = self._line(s, at_end)
        norm = mass_by / mass
        return Value(
            math.log(max(cost, _LEAST) / mass),
            (cost_by / max(cost, _LEAST) - norm) * s,
            math.log(max(loss, _LEAST) / (2 * mass)),
            (loss_by / max(loss, _LEAST) - norm) * s,
        )

    def _half_line(self, s: Array, at_end: float, c: Array, tail: tuple[float, float]) -> tuple[float, Array]:
        """∫_0^∞ c·p and its gradient by the slopes, for p(0) = 1."""
        weighted = np.exp(-self._inside @ s) * self._half_weight * c
        gradient = -(weighted @ self._inside) - at_end * tail[0] * self._end
        gradient[-1] += at_end * tail[1]
        return float(weighted.sum()) + at_end * tail[0], gradient

    def _line(self, s: Array, at_end: float) -> tuple[float, Array]:
        """∫ p·φ over the line and its gradient by the slopes, for p(0) = 1."""
        rate = self.functional.rate
        fall, fall_there = self._here @ s, self._there @ s
        loss = fall - fall_there
        sampled = self.functional.sampled(loss)
        value, slope = self.functional.at(sampled)
        density = np.exp(-fall) * self._weight
        pull = slope * rate * np.exp(loss - sampled)  # dφ/dℓ
        total = float(density @ value)
        gradient = -(density * (value - pull)) @ self._here - (density * pull) @ self._there
        for sign in (-1.0, 1.0):  # x < −K, where ℓ = −s_n, and x > K+1, where ℓ = s_n
            loss_far = np.array([sign * s[-1]])
            sampled_far = self.functional.sampled(loss_far)
            value_far, slope_far = (float(part[0]) for part in self.functional.at(sampled_far))
            pull_far = slope_far * rate * math.exp(float(loss_far[0] - sampled_far[0]))
            extra = float(s[-1]) if sign > 0 else 0.0
            size = at_end * math.exp(-extra) / s[-1]
            total += size * value_far
            gradient -= self._end * size * value_far
            gradient[-1] += size * (pull_far * sign - value_far * ((sign > 0) + 1 / s[-1]))
        return total, gradient

    def minimise(self, start: Array, *, limit: float, iterations: int, trust: float | None = None) -> Array:
        """Log slopes near the cheapest with log G <= `limit`, by SLSQP from `start`; steps of at most `trust`."""
        highest = np.log(np.append(_LARGEST_FALL / np.diff(np.append(0.0, self.knots)), _STEEPEST_TAIL))
        start = np.clip(start, _LOWEST, highest)
        low, high = np.full(len(start), _LOWEST), highest
        if trust is not None:
            low, high = np.maximum(low, start - trust), np.minimum(high, start + trust)
        cached = _Last(self.value)
        constraint = {
            "type": "ineq",
            "fun": lambda z: limit - cached(z).log_loss,
            "jac": lambda z: -cached(z).loss_gradient,
        }
        with np.errstate(over="ignore", invalid="ignore"):  # SLSQP may step far outside and comes back
            found = optimize.minimize(
                lambda z: cached(z).log_cost,
                start,
                jac=lambda z: cached(z).cost_gradient,
                constraints=[constraint],
                bounds=list(zip(low, high, strict=True)),
                method="SLSQP",
                options={"maxiter": iterations, "ftol": 1e-9},
            )
        return found.x if np.isfinite(found.x).all() and math.isfinite(found.fun) else start


class _Last:
    """A function that remembers its last value: SLSQP asks for values and gradients apart."""

    def __init__(self, function) -> None:
        self._function, self._at, self._value = function, None, None

    def __call__(self, z: Array) -> Value:
        if self._at is None or not np.array_equal(z, self._at):
            self._at, self._value = z.copy(), self._function(z)
        assert self._value is not None
        return self._value


def _gauss(edges: Array) -> tuple[Array, Array]:
    """Nodes and weights of an 8-point Gauss rule on every interval."""
    half, middle = 0.5 * np.diff(edges)[:, None], 0.5 * (edges[1:] + edges[:-1])[:, None]
    return (middle + half * _NODES).ravel(), (half * _WEIGHTS).ravel()


def _lengths(knots: Array, x: Array) -> Array:
    """Length of each segment inside [0, x_i]; shape (len(x), n+1)."""
    starts = np.append(0.0, knots)
    return np.clip(x[:, None], starts, np.append(knots, np.inf)) - starts
