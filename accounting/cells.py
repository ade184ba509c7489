"""A scalar noise and its shifted copy, cut into cells on which the privacy loss is monotone and bracketed.

Write p for the density, P for its law and Q for the law shifted by t > 0, ℓ(x) = log p(x)/p(x−t), r = e^ℓ. Reflection
x ↦ t−x swaps P and Q, so the cells cover x <= t/2 only, where r >= 1; the mirrored half has the masses exchanged and
the ratio inverted. On a cell with masses (P_i, Q_i) and r between r_0 and r_1, any convex φ satisfies

    Q_i·φ(P_i/Q_i)  <=  ∫_cell φ(r) dQ  <=  Q_i·[(1−w)·φ(r_0) + w·φ(r_1)],   w = (P_i/Q_i − r_0)/(r_1 − r_0)

(Jensen; the chord), because ∫ r dQ = P_i. Both ends are exact to second order in the width of ℓ, both are proven, and
they need only the tail function and the density at the cell's ends. Nothing is truncated: the outermost cell reaches
to infinity, where r stays between 1 (p is unimodal) and its value at the cell's inner end.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..mechanisms import DensityShape, Mechanism, Noise, SphericalGamma
from ..mechanisms.base import LOSS_ROUNDING

Array = NDArray[np.float64]

_FARTHEST = 1e100  # units of C
_EPS = float(np.finfo(np.float64).eps)


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cells of the half line x <= t/2. All arrays have shape (..., cells), the leading axes those of the shift.

    Attributes:
        log_p: log P-mass (noise around the value with the record's full shift at 0).
        log_q: log Q-mass.
        loss_low: lower bound of ℓ on the cell, >= 0.
        loss_high: upper bound of ℓ on the cell.
        loss_error: bound on the rounding error of log P_i, of log Q_i (as far as they may be larger) and of their
            difference.
    """

    log_p: Array
    log_q: Array
    loss_low: Array
    loss_high: Array
    loss_error: Array

    @property
    def mean_loss(self) -> Array:
        """log(P_i/Q_i), the log of the mean ratio, kept between the bounds (rounding may push it out)."""
        with np.errstate(invalid="ignore"):
            mean = np.nan_to_num(self.log_p - self.log_q, nan=0.0, posinf=np.inf, neginf=-np.inf)
        return np.clip(mean, self.loss_low, self.loss_high)

    def chord_weights(self, *, mirrored: bool) -> ChordWeights:
        """The chord's weights on this half of the line, or on its mirror image (ratio 1/r, reference mass P), in logs.

        With p = log r̄ − log r_0 and d = log r_1 − log r_0 the weight of the end at r_1 is (e^p − 1)/(e^d − 1), in the
        mirrored half (1 − e^−p)/(1 − e^−d); e^d may exceed every float and the weight its smallest.
        """
        d, p = self.loss_high - self.loss_low, self.mean_loss - self.loss_low
        with np.errstate(divide="ignore", invalid="ignore"):
            whole, above, below = _log1mexp(d), _log1mexp(p), _log1mexp(d - p)
            error = np.log(self.loss_error)
            if mirrored:
                high, low, slack = above - whole, below - p - whole, error - p - whole
            else:
                high, low, slack = above + p - d - whole, below - whole, error + p - d - whole
        flat = d <= 0
        zero = np.zeros(())
        return ChordWeights(
            high=np.where(flat, 0.0, np.minimum(high, zero)),
            low=np.where(flat, -np.inf, np.minimum(low, zero)),
            slack=np.where(flat, -np.inf, np.minimum(slack, zero)),
        )


class ChordWeights(NamedTuple):
    """Logs of the chord's weights at r_1 (`high`) and r_0 (`low`), and of the rounding error of either (`slack`)."""

    high: Array
    low: Array
    slack: Array


def _log1mexp(x: Array) -> Array:
    """log(1 − e^−x) for x >= 0."""
    return np.log(-np.expm1(-x))


def largest_loss(mechanism: Noise, shift: float) -> float:
    """sup over x of ℓ(x), the Rényi divergence of order ∞ of one coordinate; `inf` if the loss is not bounded."""
    if isinstance(mechanism, SphericalGamma):  # | |x − t·e₁| − |x| | <= t for the ℓ2 mechanism
        is_l2 = mechanism.power == 1 and mechanism.shape == mechanism.dimension
        return shift / mechanism.scale * (1 + LOSS_ROUNDING) if is_l2 else math.inf
    return mechanism.largest_loss(shift)


def cut(mechanism: Mechanism, shift: ArrayLike, *, outer: int = 256, inner: int = 64) -> Cells:
    """Cells of `mechanism` against its copy shifted by `shift` > 0 (units of C, any shape).

    `outer` cells cover x < 0, `inner` cells of equal length cover 0 <= x <= shift/2.
    """
    shift = np.asarray(shift, dtype=np.float64)[..., None]
    distance, x = knots(mechanism, outer), shift * np.linspace(0, 0.5, inner + 1)
    if mechanism.density_shape is not DensityShape.LOG_CONVEX_SIDES:
        if shift.size > 1:
            raise ValueError(
                f"several shifts at once need log-convex sides; {mechanism.family} is not known to have them"
            )
        distance, x = cut_at_breaks(mechanism, float(shift[0]), distance, x)
    left = _left_cells(mechanism, shift, np.append(distance, np.inf))
    middle = _middle_cells(mechanism, shift, x)
    return Cells(*(np.concatenate(pair, axis=-1) for pair in zip(left, middle, strict=True)))


def cut_at_breaks(mechanism: Mechanism, shift: float, left: Array, middle: Array) -> tuple[Array, Array]:
    """Distances from 0 to the left and positions in [0, shift/2], with cuts where ℓ has a kink or a jump.

    At a jump there is one on each side of what rounding makes of it.
    """
    breaks = mechanism.breaks(float(left[-1]) + shift)
    if not len(breaks):
        return left, middle
    rim = 4 * _EPS * (breaks + shift) if mechanism.has_jumps else np.zeros(len(breaks))
    rim = np.tile(rim, 2)
    parts = []
    for points, extra in ((left, [breaks, breaks - shift]), (middle, [breaks, shift - breaks])):
        both = np.concatenate([np.concatenate(extra) - rim, np.concatenate(extra) + rim])
        parts.append(np.union1d(points, both[(both > points[0]) & (both < points[-1])]))
    return parts[0], parts[1]


def require_log_convex_sides(mechanism: Mechanism, bound: str) -> None:
    """Refuse a density whose privacy loss is not known to rise to 0, fall to the shift and rise again."""
    if mechanism.density_shape is not DensityShape.LOG_CONVEX_SIDES:
        raise ValueError(
            f"the {bound} needs a density with log-convex sides; {mechanism.family} is not known to have one"
        )


@functools.lru_cache(maxsize=64)
def knots(mechanism: Mechanism, count: int) -> Array:
    """`count` increasing distances from 0 on, dense where mass meets a changing score ψ = |d log p/dx|.

    A chord's error on a cell is of order mass·(Δψ)², so (mass·Δψ²)^(1/3) is shared out equally. Any knots give proven
    bounds; these give narrow ones.
    """
    depth = 45.0 * np.linspace(0, 1, 12 * count) ** 3  # −log P(|X| > x); e^−45 is below rounding
    fine = np.atleast_1d(mechanism.tail_quantile(-depth - math.log(2)))
    depth, fine = depth[fine < _FARTHEST], fine[fine < _FARTHEST]  # a power tail with a small index goes on for ever
    mass = -np.diff(np.exp(-depth))
    score = np.nan_to_num(mechanism.score(fine), posinf=1e150)  # it may be infinite at 0
    weight = np.minimum(np.cbrt(mass) * np.cbrt(np.diff(score)) ** 2, 1e3 * np.cbrt(mass / mechanism.scale_hint**2))
    total = float(np.sum(weight))
    monitor = (weight / total if total > 0 else 0.0) + 0.25 / len(mass)
    position = np.concatenate([[0.0], np.cumsum(monitor)])
    wanted = np.linspace(0, position[-1], count)
    chosen = np.unique(np.searchsorted(position, wanted).clip(max=len(fine) - 1))
    return np.unique(fine[chosen])


def _left_cells(mechanism: Mechanism, shift: Array, distance: Array) -> tuple[Array, ...]:
    """Cells −distance[i+1] <= x <= −distance[i]; with log-convex sides the loss falls to a limit >= 0."""
    near, far = distance[:-1], distance[1:]
    if mechanism.density_shape is DensityShape.LOG_CONVEX_SIDES:
        loss_high = mechanism.log_density(near) - mechanism.log_density(near + shift)
        loss_low = np.concatenate([loss_high[..., 1:], np.zeros_like(shift)], axis=-1)
    else:
        loss_low, loss_high = mechanism.loss_range(near, far - near, float(shift[0]))
    log_p, error_p = _mass_above(mechanism, near, far)
    log_q, error_q = _mass_above(mechanism, near + shift, far + shift)
    log_p, error_p = np.broadcast_to(log_p, log_q.shape), np.broadcast_to(error_p, error_q.shape)
    return log_p, log_q, *_with_rounding(mechanism, near, loss_low, loss_high), error_p + error_q


def _middle_cells(mechanism: Mechanism, shift: Array, x: Array) -> tuple[Array, ...]:
    """Cells x[i] <= x <= x[i+1] of [0, shift/2]; the loss falls with x, to 0 at shift/2."""
    loss = mechanism.log_density(x) - mechanism.log_density(shift - x)
    loss[..., -1] = 0.0
    log_p, error_p = _mass_above(mechanism, x[..., :-1], x[..., 1:])
    log_q, error_q = _mass_above(mechanism, shift - x[..., 1:], shift - x[..., :-1])
    return log_p, log_q, *_with_rounding(mechanism, x[..., :-1], loss[..., 1:], loss[..., :-1]), error_p + error_q


def _with_rounding(mechanism: Mechanism, x: Array, loss_low: Array, loss_high: Array) -> tuple[Array, Array]:
    """The loss bounds, pushed apart by the rounding error of a difference of two log densities."""
    error = 4 * _EPS * (1 + np.abs(mechanism.log_density(x)))
    return np.maximum(loss_low - error, 0.0), np.maximum(loss_high, loss_low) + error


def _mass_above(mechanism: Mechanism, near: Array, far: Array) -> tuple[Array, Array]:
    """`interval_mass`, its error cut to what an upper bound needs: no mass exceeds P(X > near)."""
    mass, error = interval_mass(mechanism, near, far)
    with np.errstate(invalid="ignore"):
        room = np.where(np.isfinite(mass), mechanism.log_tail(near) - mass, 0.0)
    return mass, np.minimum(error, np.maximum(room, _EPS))


def interval_mass(mechanism: Mechanism, near: Array, far: Array) -> tuple[Array, Array]:
    """(log P(near < X <= far), rounding error of that log) for 0 <= near < far <= ∞, relatively exact."""
    log_near = mechanism.log_tail(near)
    with np.errstate(invalid="ignore"):
        log_far = np.where(np.isfinite(far), mechanism.log_tail(np.minimum(far, 1e150)), -np.inf)
    drop = np.minimum(log_far - log_near, 0.0)  # tails may round upwards over the rim of a jump
    with np.errstate(divide="ignore", over="ignore"):
        mass = log_near + np.log(-np.expm1(drop))
        error = 4 * _EPS * (1 + np.abs(log_near)) / np.maximum(-np.expm1(drop), 1e-300)
    return mass, np.where(np.isfinite(mass), error, 0.0)


@functools.lru_cache(maxsize=256)
def fisher_information_bounds(mechanism: Mechanism, cells: int = 1000) -> tuple[float, float]:
    """(lower, upper) bounds on ∫ p′²/p, proven by the same chord, for densities with log-convex sides.

    On [a, b], a >= 0, the score ψ = −p′/p falls and ∫ ψ·p = p(a) − p(b), so ∫ ψ²·p lies between mass·ψ̄² and the
    chord mass·[ψ̄·(ψ(a)+ψ(b)) − ψ(a)ψ(b)], with ψ̄ = (p(a)−p(b))/mass.
    """
    x = knots(mechanism, cells)
    score = mechanism.score(x)
    high, low = score, np.append(score[1:], 0.0)
    log_mass, _ = interval_mass(mechanism, x, np.append(x[1:], np.inf))
    log_density = mechanism.log_density(x)
    mass = np.exp(log_mass)
    fall = np.exp(log_density) * -np.expm1(np.append(log_density[1:], -np.inf) - log_density)
    mean = np.clip(np.divide(fall, mass, out=high.copy(), where=mass > 0), low, high)
    margin = 1e-9  # rounding of masses and density differences over at most a few thousand cells
    lower = 2 * float(np.sum(mass * mean**2)) * (1 - margin)
    upper = 2 * float(np.sum(mass * (mean * (low + high) - low * high))) * (1 + margin)
    return lower, upper
