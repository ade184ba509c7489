"""Poisson sampling of a pair in pieces: (P, Q) becomes (M, Q) or (Q, M), M = (1−q)Q + qP, on the same pieces.

The loss becomes ±log(1 − q + q·e^ℓ), monotone in ℓ, and M(piece) = (1−q)Q(piece) + qP(piece); so bounds of ℓ and of
log P(piece)/Q(piece) become bounds of the sampled loss, with their errors multiplied by q·e^ℓ/(1 − q + q·e^ℓ) <= 1.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from ..event import Event
from .pieces import LossPieces

Array = NDArray[np.float64]

REMOVE, ADD, REPLACE = "remove", "add", "replace"
_EPS = float(np.finfo(np.float64).eps)
_LARGE = 300.0


@dataclasses.dataclass(frozen=True)
class Half:
    """Pieces of the half line x <= t/2, where ℓ >= 0. Arrays of shape (pieces,).

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


def sampled(loss: Array, rate: float) -> Array:
    """log(1 − q + q·e^ℓ), relatively exact for small ℓ; −inf and inf are allowed."""
    if rate == 1:
        return loss
    with np.errstate(over="ignore", divide="ignore"):
        change = rate * np.expm1(np.minimum(loss, _LARGE))
        apart = np.logaddexp(np.log1p(-rate), loss + np.log(rate))  # where 1 + change overflows or cancels
        return np.where((loss > _LARGE) | (change < -0.5), apart, np.log1p(change))


def unsampled(value: Array, rate: float) -> Array:
    """The ℓ at which log(1 − q + q·e^ℓ) is `value`, about; for values above log(1 − q)."""
    if rate == 1:
        return value
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        near = np.log1p(np.expm1(np.minimum(value, _LARGE)) / rate)
    return np.where(value > _LARGE, value - np.log(rate), near)


def _slope(loss: Array, value: Array, rate: float) -> Array:
    """d log(1 − q + q·e^ℓ)/dℓ = q·e^{ℓ − value} <= 1."""
    return np.ones_like(loss) if rate == 1 else np.minimum(np.exp(np.log(rate) + loss - value), 1.0)


def directions(event: Event) -> tuple[str, ...]:
    """The pairs to be composed, each alone; the worst decides."""
    if event.symmetric:
        return (REPLACE,)
    return (REMOVE,) if event.sampling_rate == 1 else (REMOVE, ADD)


def direction_of(event: Event, direction: str) -> str:
    """`direction`, or the only one of an event that does not have it (an unsampled pair is the same both ways)."""
    known = directions(event)
    return direction if direction in known else known[0]


def sampled_pair(pair: LossPieces, rate: float, direction: str) -> LossPieces:
    """Pieces of the sampled pair from those of the whole unsampled one, A = P against B = Q; *remove* or *add*.

    With m = log P(piece)/Q(piece): Q(piece) = P(piece)·e^{−m} and M(piece) = P(piece)·(q + (1−q)·e^{−m}), both of which
    fall with m, so that the ends of its bracket bound them.
    """
    low, high = _bounds(pair.low, pair.high, rate)
    mean_low, mean_high = _bounds(pair.mean_low, pair.mean_high, rate)
    least, most = pair.log_mass_low - pair.mean_high, pair.log_mass_high - pair.mean_low  # of log Q(piece)
    with np.errstate(invalid="ignore"):
        margin = 8 * _EPS * (np.abs(pair.mean_low) + np.abs(pair.mean_high) + np.abs(pair.log_mass_high) + 1)
    if direction == ADD:
        return LossPieces(least - margin, most + margin, -high, -low, -mean_high, -mean_low)
    return LossPieces(least + mean_high - margin, most + mean_low + margin, low, high, mean_low, mean_high)


def _bounds(low: Array, high: Array, rate: float) -> tuple[Array, Array]:
    """The sampled loss at `low` and `high`, rounded outwards; −inf stays −inf."""
    below, above = sampled(low, rate), sampled(high, rate)
    below, above = below - _around(below, low, rate), above + _around(above, high, rate)
    return np.where(np.isneginf(low), -np.inf, below), above


def _around(value: Array, loss: Array, rate: float) -> Array:
    """Rounding of the sampled loss `value` of `loss`; 0 where it is infinite."""
    with np.errstate(invalid="ignore"):
        rounding = 4 * _EPS * (np.abs(value) + _slope(loss, value, rate) * np.abs(loss))
    return np.where(np.isfinite(value) & np.isfinite(loss), rounding, 0.0)


def sampled_line(half: Half, rate: float, direction: str, log_infinite: float = -np.inf) -> LossPieces:
    """Pieces of the sampled pair from the half line x <= t/2 and its mirror image; those of infinite loss left out.

    e^`log_infinite` bounds the mass of P where Q has none, which is that of Q where P has none, at loss log(1−q) or
    −log(1−q) once sampled.
    """
    with np.errstate(invalid="ignore"):
        keep = np.isfinite(half.log_p) & np.isfinite(half.log_q)
    half = Half(*(getattr(half, field.name)[keep] for field in dataclasses.fields(half)))
    ratio = np.clip(half.log_p - half.log_q, half.low, half.high)
    error = half.error_p + half.error_q
    first = _one_side(half.log_q, half.error_q, half.low, half.high, ratio, error, rate)
    if direction == REPLACE:
        return _symmetric(half, first, ratio, error, rate)
    second = _one_side(half.log_p, half.error_p, -half.high, -half.low, -ratio, error, rate)
    parts = [_swapped(part) for part in (first, second)] if direction == ADD else [first[0], second[0]]
    if np.isfinite(log_infinite) and rate < 1:
        parts.append(_only_b(log_infinite, rate, direction))
    return _joined(parts)


def _only_b(log_mass: float, rate: float, direction: str) -> LossPieces:
    """The outcomes that only Q has: *remove* sees them with mass 1−q times that, at loss log(1−q)."""
    loss = np.log1p(np.full(1, -rate))
    mass, slack = np.full(1, log_mass), 4e-13
    if direction == ADD:
        loss, log_a = -loss, mass
    else:
        log_a = mass + loss
    pad = 1e-15 * (1 + np.abs(loss))
    return LossPieces(log_a - slack, log_a + slack, loss - pad, loss + pad, loss - pad, loss + pad)


Side = tuple[LossPieces, Array, Array]  # the remove pieces, and (log mass, error) under B = the unshifted law


def _one_side(log_b: Array, error_b: Array, low: Array, high: Array, ratio: Array, error: Array, rate: float) -> Side:
    """*Remove* pieces from their B-masses, the bounds of ℓ and log(P/Q) with its error."""
    mean = sampled(ratio, rate)
    with np.errstate(over="ignore"):
        slack = np.minimum(error, _slope(ratio, mean, rate) * np.expm1(error)) + _around(mean, ratio, rate)
    # Where ℓ is unbounded the loss is too, for all that is said: far out its bound log(1−q) would be a coarse end.
    low, high = _bounds(low, high, rate)
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


def _symmetric(half: Half, first: Side, ratio: Array, error: Array, rate: float) -> LossPieces:
    """The positive part of *remove*, its mirror image, and the rest of the mass, (1−q)·(P − Q)(x <= t/2), at 0."""
    parts = [first[0], _swapped(first)]
    if rate < 1:
        with np.errstate(over="ignore", invalid="ignore"):
            small = np.exp(half.log_q) * np.expm1(np.minimum(ratio, 1.0))
        excess = np.where(ratio > 1, np.exp(half.log_p) - np.exp(half.log_q), small)
        total = (1 - rate) * float(np.sum(excess))
        slack = (1 - rate) * float(np.sum(np.exp(half.log_p) * error + excess * half.error_q))
        slack += 1e-13 * total
        with np.errstate(divide="ignore"):
            bounds = np.log(np.array([[max(total - slack, 0.0)], [total + slack]]))
        zero = np.zeros(1)
        parts.append(LossPieces(bounds[0], bounds[1], zero, zero, zero, zero))
    return _joined(parts)


def _joined(parts: list[LossPieces]) -> LossPieces:
    fields = [field.name for field in dataclasses.fields(LossPieces)]
    return LossPieces(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
