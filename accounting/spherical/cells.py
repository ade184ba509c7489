"""Brackets of the loss and of the mean of e^{−loss} on each cell (equations (2) to (5) of the package docstring)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .lines import CRUDE, Line
from .pair import EPS, TINY, Array, Loss, Pair, log_of


class Cells(NamedTuple):
    """Cells of a block of rows, shape (rows, cosines): bounds of ℓ and of the mean loss."""

    low: Array
    high: Array
    mean_low: Array
    mean_high: Array


def cells_of(pair: Pair, rows: Line, cosines: Line) -> Cells:
    """Bounds of ℓ and of −log E[e^{−ℓ}] on every cell of the rows times the cosines."""
    x, p = rows.mean[:, None], pair.power
    half_s = np.maximum(rows.high - rows.mean, rows.mean - rows.low)[:, None] / p * (1 + 1e-12)
    c = cosines.mean
    half_c = np.maximum(cosines.high - c, c - cosines.low) * (1 + 1e-12)
    centre = pair.loss(x, c)
    radius_s, radius_c, bound = pair.analytic(x, c, centre, np.maximum(np.abs(c) + pair.dimension**-0.5, 8 * half_c))
    good = (half_s <= 0.8 * radius_s) & (half_c <= 0.8 * radius_c)
    radius_s, radius_c = np.maximum(radius_s - half_s, TINY**0.1), np.maximum(radius_c - half_c, TINY**0.1)
    left, right = _at_edges(pair, x, cosines)
    bend = bound / radius_s**2 * half_s**2  # ½·|u_ss|·half²
    u_low = left.u - np.abs(left.slope) * half_s - bend - 6 * left.error
    u_high = right.u + np.abs(right.slope) * half_s + bend + 6 * right.error
    large = np.nonzero(~good | (half_s > 0.3 * radius_s))
    crude_low, crude_high = _crude_range(pair, rows, cosines, large)
    u_low[large] = np.where(good[large], np.maximum(u_low[large], crude_low), crude_low)
    u_high[large] = np.where(good[large], np.minimum(u_high[large], crude_high), crude_high)
    most = pair.largest
    u_low, u_high = np.clip(u_low, -most, most), np.clip(u_high, -most, most)

    curvature = pair.curvature(x, c, centre)
    sway = half_s * (4 * bound**2 / radius_s**3 + 6 * bound / radius_s**3)
    sway = sway + half_c * (2 * bound**2 + 2 * bound) / (radius_s**2 * radius_c)
    variance_s, variance_c = rows.variance[:, None] / (p * p), cosines.variance
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        g_low, g_high = np.exp(u_low - centre.u), np.exp(u_high - centre.u)
        k_low, k_high = curvature - sway, curvature + sway
        in_s_low = np.minimum(k_low * g_low, k_low * g_high)
        in_s_high = np.maximum(k_high * g_low, k_high * g_high)
        in_c_low = np.exp(left.u - centre.u) * pair.cosine_curvature(x, left)
        in_c_high = np.exp(right.u - centre.u) * pair.cosine_curvature(x, right)
        slack = 64 * np.maximum(rows.error[:, None], cosines.error) + 1e-12
        sum_low = 0.5 * (variance_c * in_c_low + variance_s * in_s_low)
        sum_high = 0.5 * (variance_c * in_c_high + variance_s * in_s_high)
        wobble = slack * 0.5 * (variance_c * in_c_high + variance_s * np.maximum(np.abs(in_s_low), np.abs(in_s_high)))
        tau = pair.shift / pair.radius(x)
        place = 2 * rows.error[:, None] * half_s + 4 * EPS * np.abs(x) / p
        error = 16 * centre.error + (np.abs(centre.slope) + bound / radius_s) * place
        error = error + 2 * tau * centre.sensitivity * 4 * cosines.error * half_c
        mean_high = -centre.u - np.log1p(sum_low - wobble) + error
        mean_low = -centre.u - np.log1p(sum_high + wobble) - error
    trusted = good & (rows.error[:, None] <= CRUDE) & (cosines.error <= CRUDE)
    low, high = -u_high, -u_low
    mean_low = np.where(trusted & np.isfinite(mean_low), np.clip(mean_low, low, high), low)
    mean_high = np.where(trusted & np.isfinite(mean_high), np.clip(mean_high, mean_low, high), high)
    return Cells(low, high, mean_low, mean_high)


def _at_edges(pair: Pair, x: Array, cosines: Line) -> tuple[Loss, Loss]:
    """u at the lower and at the upper end of the cosine cells; shared ends once."""
    if len(cosines.low) > 1 and np.array_equal(cosines.low[1:], cosines.high[:-1]):
        edges = pair.loss(x, np.append(cosines.low, cosines.high[-1]))
        return Loss(*(part[:, :-1] for part in edges)), Loss(*(part[:, 1:] for part in edges))
    return pair.loss(x, cosines.low), pair.loss(x, cosines.high)


def _crude_range(pair: Pair, rows: Line, cosines: Line, where: tuple) -> tuple[Array, Array]:
    """Bounds of u on the cells `where`, φ rising: φ(r_0) − φ(r′_max) <= u <= φ(r_1) − φ(r′_min).

    r′² = r² − 2rtc + t² falls with c, is convex in r and least at r = t·c.
    """
    i, j = where
    r0, r1 = pair.radius(rows.low[i]), pair.radius(rows.high[i])
    c0, c1, t = cosines.low[j], cosines.high[j], pair.shift
    squared = lambda r, c: np.maximum((r - t * c) ** 2 + t * t * (1 - c) * (1 + c), 0.0)  # noqa: E731
    least = squared(np.clip(t * c1, r0, r1), c1) - 8 * EPS * t * t * (c1 < 1)  # c = sin α is rounded
    nearest = np.maximum(np.sqrt(np.maximum(least, 0.0)) * (1 - 1e-12) - 4 * EPS * (r1 + t), 0.0)
    farthest = np.sqrt(np.maximum(squared(r0, c0), squared(r1, c0)) + 8 * EPS * t * t) * (1 + 1e-12)
    r0, r1 = r0 * (1 - 1e-12), r1 * (1 + 1e-12)
    low, high = pair.phi(r0) - pair.phi(farthest), pair.phi(r1) - pair.phi(nearest)
    margin = 1e-14 * (np.abs(pair.phi(farthest)) + np.abs(pair.phi(r1)) + np.abs(pair.phi(r0)))
    return low - margin, high + margin


def sharpen_last_mean(pair: Pair, rows: Line, cosines: Line, cells: Cells) -> None:
    """Raise, in place, the lower bound of the mean in the last cell [c_0, 1] of each row if it is a crude one.

    There log of density·e^u has slope <= u_c(1) − 2κc_0 in c, κ = (d−3)/2, so if that is −λ < 0 the integral is at most
    the value at c_0 divided by λ. u_c rises with c and is at most 2τ·(y·(p/2)·W^{p/2−1} + m/(2W)), W >= (1−τ)².
    """
    if cosines.error[-1] <= CRUDE or pair.dimension < 4 or len(cosines.mass) < 2:
        return
    c0 = float(cosines.low[-1])
    tau = pair.shift / pair.radius(rows.low)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        w = np.where(tau < 0.9, (1 - tau) ** 2, np.nan)
        y = pair.gamma * np.exp(rows.high)
        slope = 2 * tau * (y * pair.half * w ** (pair.half - 1) + 0.5 * pair.excess / w)
        fall = (pair.dimension - 3) * c0 - slope * (1 + 1e-9)
        log_density = 0.5 * (pair.dimension - 3) * math.log1p(-min(c0 * c0, 1 - EPS))
        log_mass = log_of(float(cosines.mass[-1] * (1 - cosines.error[-1])))
        mean = cells.low[:, -2] - log_density + np.log(fall) + log_mass - 1e-9 * (1 + abs(log_density))  # nan: no bound
    better = np.isfinite(mean) & (mean > cells.mean_low[:, -1])
    cells.mean_low[better, -1] = np.minimum(mean[better], cells.mean_high[better, -1])
