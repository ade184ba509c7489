"""One-dimensional cells of the radius and the angle: masses, means and variances by Gauss rules of proven error."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from .pair import EPS, TINY, Array, Pair

_RADII = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0)  # of the Bernstein ellipses tried
CRUDE = 1e-6  # relative quadrature error from which a cell is bracketed by its density's ends


@dataclasses.dataclass(frozen=True)
class Line:
    """Cells of one variable under its unnormalised density; all arrays have shape (cells,).

    Attributes:
        low, high: ends of the cell (x = log(y/k), or c).
        mean, variance: of the variable within the cell.
        mass: unnormalised.
        error: bound on the relative error of the mass, and of the mean and the variance relative to the cell's half
            width and its square; at most 1 and above `CRUDE` only if mean and variance are placeholders.
    """

    low: Array
    high: Array
    mean: Array
    variance: Array
    mass: Array
    error: Array

    def pooled(self, stride: int) -> Line:
        """Every `stride` cells joined, the first and the last kept apart."""
        count = len(self.mass)
        if stride == 1 or count < 4:
            return self
        starts = np.unique(np.concatenate([[0], np.arange(1, count - 1, stride), [count - 1]]))
        ends = np.append(starts[1:], count) - 1
        mass = np.add.reduceat(self.mass, starts)
        group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, count)))
        safe = np.maximum(mass, TINY)
        offset = self.mean - self.mean[starts][group]
        mean = np.add.reduceat(self.mass * offset, starts) / safe
        spread = self.variance + (offset - mean[group]) ** 2
        variance = np.add.reduceat(self.mass * spread, starts) / safe
        error = np.minimum(np.maximum.reduceat(self.error, starts) + 4 * stride * EPS, 1.0)
        return Line(self.low[starts], self.high[ends], self.mean[starts] + mean, variance, mass, error)


def _gauss(nodes: int) -> tuple[Array, Array]:
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return node, weight


def bulge(x: Array) -> Array:
    """e^x − 1 − x without cancellation."""
    near = np.abs(x) < 0.2
    small = np.where(near, x, 0.0)
    series = np.zeros_like(small)
    for n in range(14, 1, -1):
        series = (series + 1) * small / n
    return np.where(near, series * small, np.expm1(x) - x)


def _ellipse_error(nodes: int, half: Array, log_ratio, moment) -> Array:
    """Least bound on (error of the rule)/(half·density at the middle·moment²) over the ellipses tried.

    `log_ratio(reach)` bounds log |density| on the disc of radius `reach` about the middle, relative to the middle;
    `moment(reach)` bounds the variable's distance from the middle there, relative to that in the cell.
    """
    best = np.full_like(half, np.inf)
    for radius in _RADII:
        reach = 0.5 * half * (radius + 1 / radius)
        with np.errstate(over="ignore", invalid="ignore"):
            bound = np.log(8 / (1 - 1 / radius)) - 2 * nodes * math.log(radius) + log_ratio(reach)
            value = np.exp(np.minimum(bound, 700.0)) * np.maximum(1.0, moment(reach)) ** 2
        best = np.fmin(best, value)
    return best


def radial_line(pair: Pair, edges: Array) -> Line:
    """Cells of x = log(y/k), density exp(−k(e^x − 1 − x))."""
    nodes, k = 16, pair.gamma
    node, weight = _gauss(nodes)
    middle, half = 0.5 * (edges[:-1] + edges[1:]), 0.5 * np.diff(edges)
    offset = half[:, None] * node
    log_middle = -k * bulge(middle)
    # relative to the middle: e^{m+o} − e^m − o = e^m·(e^o − 1 − o) + (e^m − 1)·o
    relative = -k * (np.exp(middle)[:, None] * bulge(offset) + np.expm1(middle)[:, None] * offset)
    density = weight * np.exp(relative)
    total = density.sum(axis=1)
    mean = (density * offset).sum(axis=1) / total
    variance = (density * (offset - mean[:, None]) ** 2).sum(axis=1) / total

    def log_ratio(reach: Array) -> Array:
        return reach * k * (np.abs(np.expm1(middle)) + np.exp(middle) * np.expm1(reach))

    error = _ellipse_error(nodes, half, log_ratio, lambda reach: reach / half) / total
    error = 4 * error + EPS * (40 + 16 * np.abs(log_middle))
    mass = half * total * np.exp(log_middle)
    return Line(edges[:-1], edges[1:], middle + mean, variance, mass, np.minimum(error, 1.0))


def polar_line(pair: Pair, edges: Array) -> Line:
    """Cells of c = sin α between the given α, density of α cos^{d−2} α; for d = 1 the points ±1."""
    if pair.dimension == 1:
        one = np.array([-1.0, 1.0])
        return Line(one, one, one, np.zeros(2), np.ones(2), np.zeros(2))
    nodes, n = 12, pair.dimension - 2
    node, weight = _gauss(nodes)
    middle, half = 0.5 * (edges[:-1] + edges[1:]), 0.5 * np.diff(edges)
    offset = half[:, None] * node
    distance = 2 * np.cos(middle[:, None] + offset / 2) * np.sin(offset / 2)  # of sin α from sin(middle)
    outward = np.abs(middle) > 0.7
    log_middle = n * np.where(
        outward, np.log(np.cos(middle)), 0.5 * np.log1p(-(np.sin(np.where(outward, 0.0, middle)) ** 2))
    )
    tangent = np.tan(middle)
    step = -2 * np.sin(offset / 2) ** 2 - tangent[:, None] * np.sin(offset)  # cos(m+o)/cos m − 1
    density = weight * np.exp(np.minimum(n * np.log1p(np.maximum(step, -1 + EPS)), 300.0))
    total = density.sum(axis=1)
    mean = (density * distance).sum(axis=1) / total
    variance = (density * (distance - mean[:, None]) ** 2).sum(axis=1) / total
    low, high = np.sin(edges[:-1]), np.sin(edges[1:])
    reach_c = np.maximum(
        np.abs(2 * np.cos(middle + half / 2) * np.sin(half / 2)),
        np.abs(2 * np.cos(middle - half / 2) * np.sin(half / 2)),
    )

    def log_ratio(reach: Array) -> Array:
        return n * np.log1p(2 * np.sinh(reach / 2) ** 2 + np.abs(tangent) * np.sinh(reach))

    error = _ellipse_error(nodes, half, log_ratio, lambda reach: np.sinh(reach) / reach_c) / total
    # rounding: α near ±π/2 has an absolute error, cos α a relative one of it/cos α
    rounding = EPS * (40 + 16 * np.abs(log_middle) + 8 * n * np.abs(tangent) * outward)
    error = 4 * error + rounding
    error = np.where(np.isfinite(error), error, np.inf)
    mass = half * total * np.exp(log_middle)
    mean = np.clip(np.sin(middle) + mean, low, high)
    line = Line(low, high, mean, variance, mass, error)
    return _with_crude_cells(line, edges, n)


def _with_crude_cells(line: Line, edges: Array, n: int) -> Line:
    """Masses the rule cannot give, between width times the density's ends, or for a cell [c_0, 1] between

    ∫ c·(1−c²)^κ dc = (1 − c_0²)^{κ+1}/(2(κ+1))   and that divided by c_0,     κ = (d−3)/2.
    """
    crude = line.error > CRUDE
    if not crude.any():
        return line
    near = np.minimum(np.abs(edges[:-1]), np.abs(edges[1:]))
    near = np.where(edges[:-1] * edges[1:] < 0, 0.0, near)
    far = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    with np.errstate(divide="ignore", over="ignore"):
        log_near, log_far = (n * 0.5 * np.log1p(-np.minimum(np.sin(a) ** 2, 1 - 1e-17)) for a in (near, far))
        width = np.diff(edges)
        high, low = width * np.exp(log_near), width * np.exp(log_far)
        outer = np.exp((n + 1) / n * log_near) / (n + 1) if n else high
    last = far >= math.pi / 2
    low = np.maximum(low, np.where(last, outer * (1 - 1e-9), 0.0))
    high = np.where(last & (near > 0), np.minimum(high, outer / np.maximum(np.sin(near), TINY)), high)
    low, high = low * (1 - 1e-9), np.maximum(high * (1 + 1e-9), TINY)
    middle = 0.5 * (line.low + line.high)
    return Line(
        line.low,
        line.high,
        np.where(crude, middle, line.mean),
        np.where(crude, 0.0, line.variance),
        np.where(crude, 0.5 * (low + high), line.mass),
        np.where(crude, np.clip((high - low) / (high + low) + 8 * EPS, 2 * CRUDE, 1.0), line.error),
    )
