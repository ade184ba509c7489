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

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..mechanisms import DensityShape, Mechanism

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
        loss_error: bound on the rounding error of log(P_i/Q_i).
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

    @property
    def chord_weight(self) -> tuple[Array, Array]:
        """(w, slack): weight of the upper end in the chord, and the rounding error of w; both in [0, 1]."""
        width, position = self.loss_high - self.loss_low, self.mean_loss - self.loss_low
        flat, wide = width <= 0, width > 50
        safe = np.where(flat | wide, 1.0, width)
        ratio = np.expm1(np.minimum(position, safe)) / np.expm1(safe)
        with np.errstate(under="ignore"):
            weight = np.where(flat, 1.0, np.where(wide, np.exp(position - width), ratio))
            inverse = np.where(wide, np.exp(-width), 1 / np.expm1(safe))
            slack = np.minimum(1.0, self.loss_error * (weight + inverse))
        return weight, np.where(flat, 0.0, slack)


def largest_loss(mechanism: Mechanism, shift: float) -> float:
    """sup over x of ℓ(x), the Rényi divergence of order ∞ of one coordinate; `inf` if the loss is not bounded."""
    if mechanism.density_shape is DensityShape.LOG_CONVEX_SIDES:
        # log p convex on each side: ℓ rises up to x = 0 and falls after it until t (and is negative beyond t/2).
        return float(mechanism.log_density(0.0) - mechanism.log_density(shift))
    return math.inf


def cut(mechanism: Mechanism, shift: ArrayLike, *, outer: int = 256, inner: int = 64) -> Cells:
    """Cells of `mechanism` against its copy shifted by `shift` > 0 (units of C, any shape).

    `outer` cells cover x < 0, `inner` cells of equal length cover 0 <= x <= shift/2.
    """
    shift = np.asarray(shift, dtype=np.float64)[..., None]
    left = _left_cells(mechanism, shift, np.append(knots(mechanism, outer), np.inf))
    middle = _middle_cells(mechanism, shift, shift * np.linspace(0, 0.5, inner + 1))
    return Cells(*(np.concatenate(pair, axis=-1) for pair in zip(left, middle, strict=True)))


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
    weight = np.cbrt(mass * np.diff(mechanism.score(fine)) ** 2)
    total = float(np.sum(weight))
    monitor = (weight / total if total > 0 else 0.0) + 0.25 / len(mass)
    position = np.concatenate([[0.0], np.cumsum(monitor)])
    wanted = np.linspace(0, position[-1], count)
    chosen = np.unique(np.searchsorted(position, wanted).clip(max=len(fine) - 1))
    return np.unique(fine[chosen])


def _left_cells(mechanism: Mechanism, shift: Array, distance: Array) -> tuple[Array, ...]:
    """Cells −distance[i+1] <= x <= −distance[i]; the loss falls with the distance, towards a limit >= 0."""
    near, far = distance[:-1], distance[1:]
    loss_high = mechanism.log_density(near) - mechanism.log_density(near + shift)
    loss_low = np.concatenate([loss_high[..., 1:], np.zeros_like(shift)], axis=-1)
    log_p, error_p = interval_mass(mechanism, near, far)
    log_q, error_q = interval_mass(mechanism, near + shift, far + shift)
    log_p, error_p = np.broadcast_to(log_p, log_q.shape), np.broadcast_to(error_p, error_q.shape)
    return log_p, log_q, *_with_rounding(mechanism, near, loss_low, loss_high), error_p + error_q


def _middle_cells(mechanism: Mechanism, shift: Array, x: Array) -> tuple[Array, ...]:
    """Cells x[i] <= x <= x[i+1] of [0, shift/2]; the loss falls with x, to 0 at shift/2."""
    loss = mechanism.log_density(x) - mechanism.log_density(shift - x)
    loss[..., -1] = 0.0
    log_p, error_p = interval_mass(mechanism, x[..., :-1], x[..., 1:])
    log_q, error_q = interval_mass(mechanism, shift - x[..., 1:], shift - x[..., :-1])
    return log_p, log_q, *_with_rounding(mechanism, x[..., :-1], loss[..., 1:], loss[..., :-1]), error_p + error_q


def _with_rounding(mechanism: Mechanism, x: Array, loss_low: Array, loss_high: Array) -> tuple[Array, Array]:
    """The loss bounds, pushed apart by the rounding error of a difference of two log densities."""
    error = 4 * _EPS * (1 + np.abs(mechanism.log_density(x)))
    return np.maximum(loss_low - error, 0.0), np.maximum(loss_high, loss_low) + error


def interval_mass(mechanism: Mechanism, near: Array, far: Array) -> tuple[Array, Array]:
    """(log P(near < X <= far), rounding error of that log) for 0 <= near < far <= ∞, relatively exact."""
    log_near = mechanism.log_tail(near)
    with np.errstate(invalid="ignore"):
        log_far = np.where(np.isfinite(far), mechanism.log_tail(np.minimum(far, 1e150)), -np.inf)
    drop = log_far - log_near
    with np.errstate(divide="ignore"):
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
