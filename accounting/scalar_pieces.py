"""The pieces of one scalar release and its shifted copy, Poisson-sampled or not: fine where a lattice asks for it.

With p the density, P its law, Q the law shifted by t > 0 and ℓ = log p(x)/p(x−t), reflection x ↦ t−x swaps P and Q and
negates ℓ, so only x <= t/2 is cut, where ℓ >= 0; the mirrored pieces have masses exchanged and losses negated. ℓ is
monotone on x <= 0 and on 0 <= x <= t/2: with log-concave densities it falls everywhere; with log-convex sides it rises
up to x = 0 and falls to 0 at t/2. So its values at the ends of a piece bracket it, and nothing assumes that it is
monotone on the line. Sampling at rate q changes (P, Q) into (M, Q) or (Q, M), M = (1−q)Q + qP, with loss ±log(1 − q + q·e^ℓ),
monotone in ℓ; on the same pieces, as M(piece) = (1−q)Q(piece) + qP(piece).
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import DensityShape, Mechanism
from . import cells
from .event import Event
from .loss_pieces import LossPieces

Array = NDArray[np.float64]

REMOVE, ADD, REPLACE = "remove", "add", "replace"
_EPS = float(np.finfo(np.float64).eps)
_LARGE = 300.0
_KNOTS, _MIDDLE_KNOTS = 300, 60


@dataclasses.dataclass(frozen=True)
class HalfLine:
    """Pieces of x <= t/2. Arrays of shape (pieces,).

    Attributes:
        log_p, log_q: log masses under P and Q.
        error_p, error_q: bounds on their rounding errors.
        low, high: bounds of ℓ, 0 <= low <= high <= inf.
    """

    log_p: Array
    log_q: Array
    error_p: Array
    error_q: Array
    low: Array
    high: Array


def directions(event: Event) -> tuple[str, ...]:
    """The pairs to be composed, each alone; the worst decides."""
    if event.symmetric:
        return (REPLACE,)
    return (REMOVE,) if event.sampling_rate == 1 else (REMOVE, ADD)


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Where to cut: the sampled loss at offset + k·step/2 up to `calm`, and every wide_step/2 from there on.

    `depth` is −log of the probability of the outermost piece, where the loss is unbounded.
    """

    depth: float
    step: float = np.inf
    offset: float = 0.0
    calm: float = np.inf
    wide_step: float = np.inf


def scalar_pieces(event: Event, direction: str, cuts: Cuts) -> LossPieces:
    """Pieces of one step of `event` in `direction`."""
    left, middle = _knots(event.mechanism, event.shift, cuts.depth)
    if np.isfinite(cuts.step):
        left = _refine(left, _loss_left(event.mechanism, event.shift, left), event.sampling_rate, cuts)
        middle = _refine(middle, _loss_middle(event.mechanism, event.shift, middle), event.sampling_rate, cuts)
    half = _half_line(event.mechanism, event.shift, left, middle)
    return _sampled(half, event.sampling_rate, direction)


# ---- cutting ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _knots(mechanism: Mechanism, shift: float, depth: float) -> tuple[Array, Array]:
    """Distances from 0 to the left, and positions in [0, t/2]: coarse cuts that see where the mass lies."""
    if mechanism.density_shape is DensityShape.LOG_CONVEX_SIDES:
        left = cells.knots(mechanism, _KNOTS)
    else:
        tail = depth * np.linspace(0, 1, _KNOTS) ** 2
        left = np.unique(np.maximum(mechanism.tail_quantile(-np.log(2) - tail), 0.0))
    return left, shift * np.linspace(0, 0.5, _MIDDLE_KNOTS)


def _loss_left(mechanism: Mechanism, shift: float, distance: Array) -> Array:
    return mechanism.log_density_drop(distance, shift)


def _loss_middle(mechanism: Mechanism, shift: float, x: Array) -> Array:
    """ℓ at x in [0, t/2], exactly 0 at the right end."""
    return mechanism.log_density_drop(x, np.maximum(shift - 2 * x, 0.0))


def _refine(knots: Array, loss: Array, rate: float, cuts: Cuts) -> Array:
    """`knots` and, between them, about the points where `cuts` asks for one."""
    value, position = sampled(loss, rate), knots
    if value[-1] < value[0]:
        value, position = value[::-1], knots[::-1]
    low, high = float(value[0]), float(value[-1])
    wanted = _multiples(low, min(high, cuts.calm), 0.5 * cuts.step, cuts.offset)
    if high > cuts.calm:
        wanted = np.append(wanted, _multiples(max(low, cuts.calm), high, 0.5 * cuts.wide_step, cuts.calm))
    return np.union1d(knots, np.clip(np.interp(wanted, value, position), knots[0], knots[-1]))


def _multiples(low: float, high: float, step: float, offset: float) -> Array:
    """offset + k·step strictly between low and high."""
    first, last = np.floor((low - offset) / step) + 1, np.ceil((high - offset) / step)
    return offset + step * np.arange(first, last) if last > first else np.empty(0)


# ---- masses ----------------------------------------------------------------------------------------------------------


def _half_line(mechanism: Mechanism, shift: float, left: Array, middle: Array) -> HalfLine:
    near, width = left, np.append(np.diff(left), np.inf)
    loss = _loss_left(mechanism, shift, left)
    rising = mechanism.density_shape is DensityShape.LOG_CONCAVE
    beyond = np.append(loss[1:], np.inf if rising else 0.0)  # p is unimodal: ℓ >= 0 far out
    error = _drop_error(mechanism, loss, mechanism.log_density(left))
    outside = _interval(mechanism, near, width), _interval(mechanism, near + shift, width)

    x, step = middle[:-1], np.diff(middle)
    inner = _loss_middle(mechanism, shift, middle)
    inner_error = _drop_error(mechanism, inner, mechanism.log_density(middle))
    inside = _interval(mechanism, x, step), _interval(mechanism, shift - middle[1:], step)

    low, high = np.minimum(loss, beyond), np.maximum(loss, beyond)
    margin = np.maximum(error, np.append(error[1:], error[-1]))
    inner_margin = np.maximum(inner_error[1:], inner_error[:-1])
    return HalfLine(
        log_p=np.concatenate([outside[0][0], inside[0][0]]),
        log_q=np.concatenate([outside[1][0], inside[1][0]]),
        error_p=np.concatenate([outside[0][1], inside[0][1]]),
        error_q=np.concatenate([outside[1][1], inside[1][1]]),
        low=np.maximum(np.concatenate([low - margin, np.minimum(inner[1:], inner[:-1]) - inner_margin]), 0.0),
        high=np.concatenate([high + margin, np.maximum(inner[1:], inner[:-1]) + inner_margin]),
    )


def _interval(mechanism: Mechanism, near: Array, width: Array) -> tuple[Array, Array]:
    """(log P(near < X <= near+width), its rounding error): tail·(1 − e^−drop)."""
    tail = mechanism.log_tail(near)
    drop = np.maximum(mechanism.log_tail_drop(near, width), 0.0)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        mass = tail + np.log(-np.expm1(-drop))
        slack = np.where(np.isfinite(drop), _drop_error(mechanism, drop, tail) / np.expm1(np.minimum(drop, 700.0)), 0.0)
    return mass, 4 * _EPS * (2 + np.abs(tail)) + slack


def _drop_error(mechanism: Mechanism, drop: Array, log_value: Array) -> Array:
    """Rounding error of a drop of log tail or log density from `log_value`."""
    if mechanism.drop_rounding is not None:
        return mechanism.drop_rounding * np.where(np.isfinite(drop), drop, 0.0)
    return 4 * _EPS * (2 + 2 * np.abs(log_value) + np.where(np.isfinite(drop), drop, 0.0))


# ---- sampling --------------------------------------------------------------------------------------------------------


def sampled(loss: Array, rate: float) -> Array:
    """log(1 − q + q·e^ℓ), relatively exact for small ℓ; −inf and inf are allowed."""
    if rate == 1:
        return loss
    with np.errstate(over="ignore", divide="ignore"):
        near = np.log1p(rate * np.expm1(np.minimum(loss, _LARGE)))
        return np.where(loss > _LARGE, np.logaddexp(np.log1p(-rate), loss + np.log(rate)), near)


def _slope(loss: Array, value: Array, rate: float) -> Array:
    """d log(1 − q + q·e^ℓ)/dℓ = q·e^{ℓ − value} <= 1."""
    return np.ones_like(loss) if rate == 1 else np.minimum(np.exp(np.log(rate) + loss - value), 1.0)


def _sampled(half: HalfLine, rate: float, direction: str) -> LossPieces:
    with np.errstate(invalid="ignore"):
        keep = np.isfinite(half.log_p) & np.isfinite(half.log_q)
    half = HalfLine(*(getattr(half, field.name)[keep] for field in dataclasses.fields(half)))
    ratio = np.clip(half.log_p - half.log_q, half.low, half.high)
    error = half.error_p + half.error_q
    first = _one_side(half.log_q, half.error_q, half.low, half.high, ratio, error, rate)
    if direction == REPLACE:
        return _symmetric(half, first, ratio, error, rate)
    second = _one_side(half.log_p, half.error_p, -half.high, -half.low, -ratio, error, rate)
    parts = [_swapped(part) for part in (first, second)] if direction == ADD else [first[0], second[0]]
    return _joined(parts)


Side = tuple[LossPieces, Array, Array]  # the remove pieces, and (log mass, error) under B = the unshifted law


def _one_side(log_b: Array, error_b: Array, low: Array, high: Array, ratio: Array, error: Array, rate: float) -> Side:
    """*Remove* pieces from their B-masses, the bounds of ℓ and log(P/Q) with its error."""
    mean = sampled(ratio, rate)
    slack = _slope(ratio, mean, rate) * error * (1 + error) + 4 * _EPS * np.abs(mean)
    low, high = sampled(low, rate), sampled(high, rate)
    with np.errstate(invalid="ignore"):
        low, high = low - np.where(np.isfinite(low), 4 * _EPS * np.abs(low), 0.0), high + 4 * _EPS * np.abs(high)
    log_a = log_b + mean
    error_a = error_b + slack + _EPS * np.abs(log_a)
    pieces = LossPieces(
        log_a - error_a, log_a + error_a, low, high, np.maximum(mean - slack, low), np.minimum(mean + slack, high)
    )
    return pieces, log_b, error_b


def _swapped(side: Side) -> LossPieces:
    """(B, A) for (A, B): the loss negated, the mass that under B."""
    pieces, log_b, error = side
    return LossPieces(log_b - error, log_b + error, -pieces.high, -pieces.low, -pieces.mean_high, -pieces.mean_low)


def _symmetric(half: HalfLine, first: Side, ratio: Array, error: Array, rate: float) -> LossPieces:
    """The positive part of *remove*, its mirror image, and the rest of the mass, (1−q)·(P − Q)(x <= t/2), at 0."""
    parts = [first[0], _swapped(first)]
    if rate < 1:
        excess = np.exp(half.log_q) * np.expm1(ratio)
        total = (1 - rate) * float(np.sum(excess))
        slack = (1 - rate) * float(
            np.sum(np.exp(half.log_q) * (np.exp(ratio) * error + np.expm1(ratio) * half.error_q))
        )
        slack += 1e-13 * total
        with np.errstate(divide="ignore"):
            bounds = np.log(np.array([[max(total - slack, 0.0)], [total + slack]]))
        zero = np.zeros(1)
        parts.append(LossPieces(bounds[0], bounds[1], zero, zero, zero, zero))
    return _joined(parts)


def _joined(parts: list[LossPieces]) -> LossPieces:
    fields = [field.name for field in dataclasses.fields(LossPieces)]
    return LossPieces(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
