"""The exact (ε, δ) of one scalar release of a cell's marginal, and the largest shift inside a budget, in numba.

The loss ℓ(x) = log f(x)/f(x−t) rises up to its maximum log f(0)/f(t) at x = 0 and falls on both sides of it, so
{ℓ > ε} is an interval (−a, b) with 0 < b < t/2, and with T(s) = P(|X| > s)

    δ = P(−a < X < b) − e^ε·P(−a < X − t < b) = 1 − (T(a) + T(b))/2 − e^ε·(T(t−b) − T(t+a))/2.

Poisson-sampled at rate q the (ε, δ) of the remove direction, the larger one, is that of the unsampled pair at
ε' = log(1 + (e^ε − 1)/q) and δ' = δ/q.

Doubles without a proven error: this ranks shapes and never states a guarantee.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from ..accounting._numba import FEW_CELLS, njit
from .cells import log_density, log_tail_and_score

_SMALLEST_DELTA = 1e-12  # below it δ drowns in the rounding of the probabilities; the answer for δ = 0 is used


def unsampled(epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(ε', δ') of the unsampled pair that meet (ε, δ) after Poisson sampling."""
    inner = epsilon - math.log(sampling_rate) + math.log1p((sampling_rate - 1) * math.exp(-epsilon))
    return inner, delta / sampling_rate


@njit()
def _loss(x, t, cell):
    k, g1, g3, low, width = cell
    return log_density(abs(x), k, g1, g3, low, width) - log_density(abs(x - t), k, g1, g3, low, width)


@njit()
def _largest_pure_shift(epsilon, cell):
    """The t with log f(0)/f(t) = ε. −log f is concave in t, so Newton's steps from the left stay on the left."""
    k, g1, g3, low, width = cell
    at_zero = log_density(0.0, k, g1, g3, low, width)
    t = 0.0
    for _ in range(500):
        missing = epsilon - at_zero + log_density(t, k, g1, g3, low, width)
        step = missing / log_tail_and_score(t, k, g1, g3, low, width)[2]
        t += step
        if not step > 1e-13 * t:
            break
    return t


@njit()
def _level_end(inside, outside, epsilon, t, cell):
    """The point between `inside` (loss above ε) and `outside` (below) where the loss is ε; Illinois false position.

    δ integrates p − e^ε·q, which vanishes at the ends, so an end with a loss off by a millionth of the largest excess
    moves δ by less than 1e-11 of itself.
    """
    above, below = _loss(inside, t, cell) - epsilon, _loss(outside, t, cell) - epsilon
    close_enough = 1e-6 * above
    last_side = 0
    middle = inside
    for _ in range(200):
        middle = (inside * below - outside * above) / (below - above)
        value = _loss(middle, t, cell) - epsilon
        if abs(value) <= close_enough:
            break
        if value > 0:
            inside, above = middle, value
            below = below * 0.5 if last_side == 1 else below
            last_side = 1
        else:
            outside, below = middle, value
            above = above * 0.5 if last_side == -1 else above
            last_side = -1
    return middle


@njit()
def _end_towards(limit, epsilon, t, cell):
    """The end of {ℓ > ε} between 0 and `limit`, where the loss is below ε; infinite beyond 1e15 mean scales."""
    side = 1.0 if limit > 0 else -1.0
    inside, reach = 0.0, 0.5 * min(t, 1.0)
    while reach < abs(limit) and _loss(side * reach, t, cell) > epsilon:
        inside = side * reach
        reach *= 2
        if reach > 1e15 * max(t, 1.0):
            return side * np.inf
    return _level_end(inside, side * min(reach, abs(limit)), epsilon, t, cell)


@njit()
def hockey_stick(t, epsilon, cell):
    """δ at ε for the shift t; 0 where the loss never exceeds ε."""
    if _loss(0.0, t, cell) <= epsilon:
        return 0.0
    k, g1, g3, low, width = cell
    right = _end_towards(0.5 * t, epsilon, t, cell)
    left = _end_towards(-np.inf, epsilon, t, cell)
    mass = 1 - 0.5 * math.exp(log_tail_and_score(right, k, g1, g3, low, width)[0])
    if left > -np.inf:
        mass -= 0.5 * math.exp(log_tail_and_score(-left, k, g1, g3, low, width)[0])
    return mass - _scaled_mass(t - right, t - left, right - left, epsilon, cell)


@njit()
def _scaled_mass(near, far, length, log_scale, cell):
    """e^log_scale · P(near < X < far), far possibly infinite; `length` is far − near before rounding.

    Where the two tails agree to most digits (a short interval far out) by Simpson's rule, whose relative error is of
    order ((far − near)/near)^4/2880.
    """
    k, g1, g3, low, width = cell
    if length < 1e-3 * near:
        middle = 0.5 * (near + far)
        total = math.exp(log_scale + log_density(near, k, g1, g3, low, width))
        total += 4 * math.exp(log_scale + log_density(middle, k, g1, g3, low, width))
        total += math.exp(log_scale + log_density(far, k, g1, g3, low, width))
        return length / 6 * total
    total = 0.5 * math.exp(log_scale + log_tail_and_score(near, k, g1, g3, low, width)[0])
    if far < np.inf:
        total -= 0.5 * math.exp(log_scale + log_tail_and_score(far, k, g1, g3, low, width)[0])
    return total


@njit()
def _largest_shift(epsilon, delta, cell, tolerance):
    """The t at which δ(ε) reaches `delta`: bracket upwards from the answer for δ = 0, then bisect in log t."""
    low = pure = math.log(_largest_pure_shift(epsilon, cell))
    if delta < _SMALLEST_DELTA:
        return math.exp(low)
    step = min(max(delta, 4 * tolerance), 0.1)
    while hockey_stick(math.exp(low + step), epsilon, cell) <= delta:
        low += step
        step *= 4
        if low > pure + 80:
            return np.inf
    high = low + step
    while high - low > tolerance:
        middle = 0.5 * (low + high)
        if hockey_stick(math.exp(middle), epsilon, cell) <= delta:
            low = middle
        else:
            high = middle
    return math.exp(low)


@njit(parallel=True)
def _many_shifts(cells, epsilon, delta, tolerance):
    result = np.empty(cells.shape[0])
    for i in numba.prange(cells.shape[0]):
        cell = (cells[i, 0], cells[i, 1], cells[i, 2], cells[i, 3], cells[i, 4])
        result[i] = _largest_shift(epsilon, delta, cell, tolerance)
    return result


@njit()
def _few_shifts(cells, epsilon, delta, tolerance):
    result = np.empty(cells.shape[0])
    for i in range(cells.shape[0]):
        cell = (cells[i, 0], cells[i, 1], cells[i, 2], cells[i, 3], cells[i, 4])
        result[i] = _largest_shift(epsilon, delta, cell, tolerance)
    return result


def largest_one_release_shifts(
    cells: NDArray[np.float64], *, epsilon: float, delta: float, sampling_rate: float = 1.0, tolerance: float = 1e-6
) -> NDArray[np.float64]:
    """Per cell, the largest shift whose one release is (ε, δ)-DP; `tolerance` relative; shape (n,)."""
    inner_epsilon, inner_delta = unsampled(epsilon, delta, sampling_rate)
    solve = _few_shifts if len(cells) <= FEW_CELLS else _many_shifts
    return solve(np.ascontiguousarray(cells), inner_epsilon, inner_delta, tolerance)
