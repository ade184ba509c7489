"""Where to cut: rows in log radius and intervals of the cosine, so that the loss varies little on each cell."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .lines import Line, bulge, polar_line, radial_line
from .pair import TINY, Array, Pair

_DEPTH = 100.0  # −log of the mass, under P and under Q, at which the grid ends and the outer pieces begin
_DEEPEST = 340.0  # largest −log of a mass on the grid that products of two masses can carry
_SHARE = 0.35  # of `step`, the variation of ℓ planned across a cell in c and in s each
_MOST_CELLS = 10**9
_MOST_FOR_MEAN = 30.0  # rows made of one for the sake of the mean


def _coarse_rows(pair: Pair) -> Array:
    """Edges in x for the masses alone, from where P's (and Q's) mass inside is negligible to where that outside is."""
    k, cap = pair.gamma, 0.1 * pair.power
    sides = []
    for sign in (-1.0, 1.0):
        x, edges, end = 0.0, [], None
        while end is None or (x < end if sign > 0 else x > end):
            x += sign * min(cap, 0.25 / (math.sqrt(k * math.exp(x)) + 0.5 * k * abs(math.expm1(x))))
            edges.append(x)
            drop = k * float(bulge(np.array(x)))
            if drop > _DEEPEST:
                raise ValueError("expected a shift within about ten standard deviations of the noise, got a larger one")
            if end is None and drop > _DEPTH:
                end = _row_end(pair, x, sign)
        sides.append(edges)
    return np.array([*reversed(sides[0]), 0.0, *sides[1]])


def _row_end(pair: Pair, x: float, sign: float) -> float:
    """x moved by t, so that |x − t·e_1| too has left the bulk; inwards only where that leaves a radius above t."""
    r = float(pair.radius(np.array(x)))
    if sign > 0:
        return pair.position(r + pair.shift)
    return pair.position(r - pair.shift) if r > 2 * pair.shift else x


class _Plan(NamedTuple):
    """Rows and cosine cells, and per row the number of cosine cells to join (a power of two)."""

    rows: Line
    cosines: Line
    stride: NDArray[np.int64]


def plan_grid(pair: Pair, step: float) -> _Plan:
    coarse_edges = _coarse_rows(pair)
    coarse = radial_line(pair, coarse_edges)
    mass = coarse.mass / coarse.mass.sum()
    typical = coarse.mean[np.searchsorted(np.cumsum(mass), [0.02, 0.5, 0.98])]
    sample, slopes, edges = _polar_edges(pair, typical, step)
    points, log_density, weights = _probe(pair, sample, typical[1])
    wanted = np.maximum(
        _variation(pair, coarse_edges, points, weights) / (_SHARE * step), _bend(pair, coarse, points, weights, step)
    )
    tail = 2.0 ** np.clip((_row_depth(pair, coarse, points, log_density) - 18) / 6, 0.0, 60.0)
    pieces = np.ceil(np.clip(wanted / tail, 1, 1e5)).astype(int)
    _require_fewer(float(pieces.sum()), _MOST_CELLS / 1000, step)
    fine = [
        np.linspace(a, b, n, endpoint=False) for a, b, n in zip(coarse_edges, coarse_edges[1:], pieces, strict=False)
    ]
    cosines = polar_line(pair, edges)
    rows = radial_line(pair, np.append(np.concatenate(fine), coarse_edges[-1]))
    here = np.abs(pair.loss(rows.mean[:, None], points).sensitivity) * pair.shift / pair.radius(rows.mean)[:, None] * 2
    ratio = np.max(here / np.maximum(np.interp(points, *slopes), TINY), axis=1)
    tail = np.maximum(tail.repeat(pieces), 1.0)
    stride = 2 ** np.clip(np.floor(np.log2(tail / np.maximum(ratio, TINY))), 0, 12).astype(np.int64)
    _require_fewer(float(np.sum(len(cosines.mass) / stride)), _MOST_CELLS, step)
    return _Plan(rows, cosines, stride)


def _require_fewer(cells: float, most: float, step: float) -> None:
    if cells > most:
        raise ValueError(
            f"expected a step that needs at most {most:.0e} cells, got step={step}, which needs {cells:.0e}"
        )


def _row_depth(pair: Pair, rows: Line, points: Array, log_density: Array) -> Array:
    """−log of the density of x in the rows relative to its maximum, under P or under Q, whichever is less."""
    log_p = -pair.gamma * bulge(rows.mean)
    log_mean: Any = special.logsumexp(log_density + pair.loss(rows.mean[:, None], points).u, axis=1)
    log_q = log_p + log_mean
    return np.minimum(log_p.max() - log_p, log_q.max() - log_q)


def _polar_edges(pair: Pair, typical: Array, step: float) -> tuple[Array, tuple[Array, Array], Array]:
    """(a dense sample of α, (its c, the slope of u in c the cells are made for), the cells' edges in α)."""
    if pair.dimension == 1:
        c = np.array([-1.0, 1.0])
        return np.array([-1.0, 1.0]) * math.pi / 2, (c, np.ones(2)), c
    n = pair.dimension - 2
    side = np.append(np.geomspace(1e-3 / math.sqrt(n + 1), math.pi / 2, 3000)[:-1], math.pi / 2)
    alpha = np.concatenate([-side[::-1], [0.0], side])
    c, cosine = np.sin(alpha), np.maximum(np.cos(alpha), 1e-17)
    log_p = n * np.log(cosine)
    losses = pair.loss(typical[:, None], c)
    log_q = log_p + losses.u[1]
    depth = np.minimum(-log_p, log_q.max() - log_q)
    inside = np.flatnonzero(depth <= _DEPTH)
    first, last = max(inside[0] - 1, 0), min(inside[-1] + 1, len(alpha) - 1)
    if -log_p[last - 1] > _DEEPEST:
        raise ValueError("expected a shift within about ten standard deviations of the noise, got a larger one")
    tau = pair.shift / pair.radius(typical)
    bounded = losses.sensitivity * losses.w / np.maximum(losses.w, 1e-3)
    slope = np.max(2 * tau[:, None] * bounded, axis=0)
    tail = 2.0 ** np.clip((depth - 20) / 8, 0.0, 60.0)
    density = np.maximum(slope * cosine / (_SHARE * step * tail), 4 * math.sqrt(n + 1)) + 4
    density = density[first : last + 1]
    kept = alpha[first : last + 1]
    count = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(kept))])
    _require_fewer(count[-1], _MOST_CELLS / 1000, step)
    edges = np.interp(np.linspace(0, count[-1], math.ceil(count[-1]) + 1), count, kept)
    edges = np.unique(np.concatenate([[-math.pi / 2], edges, [math.pi / 2]]))
    return alpha, (c, slope), edges


def _probe(pair: Pair, alpha: Array, x: float) -> tuple[Array, Array, Array]:
    """(cosines, log of P's mass at each, weights of shape (2, points)) on which rows are tuned.

    The weights are cube roots of the densities under P and under Q at a typical row: an error of order mass·width² is
    least for widths that grow no faster than the mass's cube root falls.
    """
    if pair.dimension == 1:
        c, log_p = np.array([-1.0, 1.0]), np.zeros(2)
    else:
        c = np.sin(alpha[::60])
        log_p = (pair.dimension - 2) * np.log(np.maximum(np.cos(alpha[::60]), 1e-17))
        log_p = log_p + np.log(np.gradient(alpha[::60]))
    log_q = log_p + pair.loss(np.array(x), c).u
    weights = np.exp(np.stack([log_p - log_p.max(), log_q - log_q.max()]) / 3)
    weights /= weights.sum(axis=1, keepdims=True)
    keep = weights.max(axis=0) > 1e-8
    return c[keep], (log_p - log_p.max())[keep], weights[:, keep]


def _variation(pair: Pair, edges: Array, points: Array, weights: Array) -> Array:
    """Twice the root mean square change of u across each row, the larger of P's and Q's mean."""
    u = pair.loss(edges[:, None], points).u
    change = np.minimum(np.abs(np.diff(u, axis=0)), 1e3)
    return 2 * np.sqrt(np.max(change**2 @ weights.T, axis=1))


def _bend(pair: Pair, rows: Line, points: Array, weights: Array, step: float) -> Array:
    """How many times too long each row is for its second-order terms in s: B·(h/ϱ)² <= step/10 in the bounds of ℓ and
    B·(h/ϱ)³ <= step²/8 in the mean, the latter up to `_MOST_FOR_MEAN` (losses far below 1 would ask for any number)."""
    x = 0.5 * (rows.low + rows.high)[:, None]
    half = 0.5 * (rows.high - rows.low)[:, None] / pair.power
    wish = np.abs(points) + pair.dimension**-0.5
    radius, _, bound = pair.analytic(x, points, pair.loss(x, points), wish)
    for_range = half / radius * np.sqrt(10 * bound / step)
    for_mean = half / radius * np.cbrt(8 * bound / step**2)
    return np.max(np.maximum(for_range, np.minimum(for_mean, _MOST_FOR_MEAN)) @ weights.T, axis=1)
