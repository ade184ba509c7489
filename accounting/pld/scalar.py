"""The pieces of one scalar release and its shifted copy, Poisson-sampled or not: fine where a lattice asks for it.

With p the density, P its law, Q the law shifted by t > 0 and ℓ = log p(x)/p(x−t), reflection x ↦ t−x swaps P and Q and
negates ℓ, so only x <= t/2 is cut, where ℓ >= 0; the mirrored pieces have masses exchanged and losses negated. On
0 <= x <= t/2, ℓ falls to 0, since p is unimodal. On x <= 0 it is monotone for log-concave densities (falling) and for
log-convex sides (rising): then its values at the ends of a piece bracket it. For any other unimodal density the noise
brackets it itself (`Mechanism.loss_range`), and the line is cut at its `breaks` and at their mirror images.

Sampling at rate q changes (P, Q) into (M, Q) or (Q, M), M = (1−q)Q + qP, with loss ±log(1 − q + q·e^ℓ), monotone in ℓ;
on the same pieces, as M(piece) = (1−q)Q(piece) + qP(piece).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ...mechanisms import DensityShape, Mechanism
from .. import cells
from ..event import Event
from .pieces import LossPieces
from .sampling import Half, sampled, sampled_line, unsampled

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_RIM = 8 * _EPS  # relative, around the end of a bounded support
_MOST_CUTS = 3 * 2**17  # of one step's loss: about 100 MiB of arrays while they are made into pieces
_KNOTS, _MIDDLE_KNOTS = 300, 60
_LEAST_FALL = 4.0  # of log p over one piece towards the end of a bounded support
_MOST_FALLS = 1000


class TooManyCuts(Exception):
    """A step's loss would be cut into more pieces than memory is meant for; `.ratio` says how many times as many."""

    def __init__(self, cuts: float) -> None:
        super().__init__(f"{cuts:.3g} cuts of one step's loss")
        self.ratio = cuts / _MOST_CUTS


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Where to cut: the sampled loss at offset + k·step/2, and every wider step/2 beyond the start of each band.

    `bands` are (start, step), starts rising: where there is little mass, cuts may be far apart. `depth` is −log of the
    probability of the outermost piece, where the loss is unbounded; `fineness` counts the halvings of cells that do not
    follow the lattice (spherical noise).
    """

    depth: float
    step: float = np.inf
    offset: float = 0.0
    bands: tuple[tuple[float, float], ...] = ()
    fineness: int = 0

    @property
    def ranges(self) -> Iterator[tuple[float, float, float, float]]:
        """(from, to, step, offset) of the sampled loss."""
        starts = [-np.inf, *(start for start, _ in self.bands), np.inf]
        yield starts[0], starts[1], self.step, self.offset
        for (start, step), end in zip(self.bands, starts[2:], strict=True):
            yield start, end, step, start


def scalar_pieces(event: Event, direction: str, cuts: Cuts) -> LossPieces:
    """Pieces of one step of `event` in `direction`. Raises TooManyCuts."""
    left, middle = _knots(event.mechanism, event.shift, cuts.depth)
    _, log_infinite = infinite_mass(event.mechanism, event.shift)
    if np.isfinite(cuts.step):
        refine = _refine_each if event.mechanism.density_shape is DensityShape.UNIMODAL else _refine
        left = refine(left, _loss_left(event.mechanism, event.shift, left), event.sampling_rate, cuts)
        middle = _refine(middle, _loss_middle(event.mechanism, event.shift, middle), event.sampling_rate, cuts)
    if len(left) + len(middle) > _MOST_CUTS:
        raise TooManyCuts(len(left) + len(middle))
    half = _half_line(event.mechanism, event.shift, left, middle)
    return sampled_line(half, event.sampling_rate, direction, log_infinite)


def infinite_mass(mechanism: Mechanism, shift: float) -> tuple[float, float]:
    """(lower, upper) bounds of log P(ℓ = ∞) = log P(X > A − t), A the support; a rim of rounding goes to the upper."""
    reach = mechanism.support - shift
    if reach == math.inf:
        return -math.inf, -math.inf
    if mechanism.support <= shift / 2:
        return 0.0, 0.0
    ends = np.array([1.0, -1.0]) * _RIM * mechanism.support + reach
    log_tail = mechanism.log_tail(np.abs(ends))
    logs = np.where(ends >= 0, log_tail, np.log1p(-np.exp(log_tail)))
    return float(logs[0]) - 1e-13, min(float(logs[1]) + 1e-13, 0.0)


# ---- cutting ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _knots(mechanism: Mechanism, shift: float, depth: float) -> tuple[Array, Array]:
    """Distances from 0 to the left, and positions in [0, t/2]: coarse cuts that see where the mass lies."""
    if mechanism.density_shape is DensityShape.LOG_CONVEX_SIDES:
        left = cells.knots(mechanism, _KNOTS)
    else:
        tail = depth * np.linspace(0, 1, _KNOTS) ** 2
        left = np.unique(np.maximum(mechanism.tail_quantile(-np.log(2) - tail), 0.0))
    middle = shift * np.linspace(0, 0.5, _MIDDLE_KNOTS)
    if mechanism.support < math.inf:  # only where the loss is finite
        reach = mechanism.support * (1 - _RIM) - shift
        left = _up_to(mechanism, left[left < reach], reach) if reach > 0 else np.empty(0)
        middle = np.union1d(middle[middle > -reach], -reach) if reach < 0 else middle
        return left, middle[middle <= 0.5 * shift]
    return cells.cut_at_breaks(mechanism, shift, left, middle)


def _up_to(mechanism: Mechanism, left: Array, reach: float) -> Array:
    """`left` (not empty: it starts at 0) and on to `reach` in steps over which the density falls little.

    A density that falls by many powers of e within one piece cannot be told from a jump (`_misplaced`).
    """
    fall = float(mechanism.log_density_drop(left[-1:], np.array([reach - left[-1]]))[0])
    count = int(min(max(fall / _LEAST_FALL, 1.0), _MOST_FALLS)) + 1
    return np.concatenate([left, np.linspace(left[-1], reach, count + 1)[1:]])


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
    wanted = [
        _multiples(max(low, start), min(high, end), 0.5 * step, offset)
        for start, end, step, offset in cuts.ranges
        if max(low, start) < min(high, end)
    ]
    points = np.interp(np.concatenate(wanted), value, position) if wanted else knots[:0]
    return np.union1d(knots, np.clip(points, knots[0], knots[-1]))


def _refine_each(knots: Array, loss: Array, rate: float, cuts: Cuts) -> Array:
    """As `_refine`, for a loss that rises and falls: each interval by itself, as if ℓ were linear on it."""
    value = sampled(loss, rate)
    points = [knots]
    for low, high, step, offset in cuts.ranges:
        if not (low < high and np.isfinite(step)):
            continue
        bottom = np.clip(np.minimum(value[:-1], value[1:]), low, high)
        top = np.clip(np.maximum(value[:-1], value[1:]), low, high)
        top = np.where(np.diff(knots) > 64 * _EPS * knots[1:], top, bottom)  # not on the rim of a jump
        first = np.floor((bottom - offset) / (0.5 * step)) + 1
        count = np.maximum(np.ceil((top - offset) / (0.5 * step)) - first, 0)
        if not np.sum(count) <= _MOST_CUTS:
            raise TooManyCuts(float(np.sum(count)))
        index = np.repeat(np.arange(len(count)), count.astype(np.int64))
        number = first[index] + np.arange(len(index)) - (np.cumsum(count) - count)[index]
        wanted = unsampled(np.asarray(offset + 0.5 * step * number, dtype=np.float64), rate)
        part = np.clip((wanted - loss[index]) / (loss[index + 1] - loss[index]), 0.0, 1.0)
        points.append(knots[index] + part * (knots[index + 1] - knots[index]))
    return np.unique(np.concatenate(points))


def _multiples(low: float, high: float, step: float, offset: float) -> Array:
    """offset + k·step strictly between low and high."""
    first, last = np.floor((low - offset) / step) + 1, np.ceil((high - offset) / step)
    if last - first > _MOST_CUTS:
        raise TooManyCuts(float(last - first))
    return offset + step * np.arange(first, last) if last > first else np.empty(0)


# ---- masses ----------------------------------------------------------------------------------------------------------


def _half_line(mechanism: Mechanism, shift: float, left: Array, middle: Array) -> Half:
    near, width = left, np.append(np.diff(left), np.inf)
    if mechanism.support < math.inf:
        near, width = left[:-1], np.diff(left)
    loss = _loss_left(mechanism, shift, left)
    rising = mechanism.density_shape is DensityShape.LOG_CONCAVE
    beyond = np.append(loss[1:], mechanism.largest_loss(shift) if rising else 0.0)  # p is unimodal: ℓ >= 0 far out
    beyond = beyond[: len(near)]
    error = _drop_error(mechanism, loss, mechanism.log_density(left))
    outside = _interval(mechanism, near, width), _interval(mechanism, near + shift, width)

    x, step = middle[:-1], np.diff(middle)
    inner = _loss_middle(mechanism, shift, middle)
    inner_error = _drop_error(mechanism, inner, mechanism.log_density(middle))
    inside = _interval(mechanism, x, step), _interval(mechanism, shift - middle[1:], step)

    low, high = np.minimum(loss[: len(near)], beyond), np.maximum(loss[: len(near)], beyond)
    margin = np.maximum(error, np.append(error[1:], error[-1:]))[: len(near)]
    if mechanism.density_shape is DensityShape.UNIMODAL:
        (low, high), margin = mechanism.loss_range(near, width, shift), 0.0
    inner_margin = np.maximum(inner_error[1:], inner_error[:-1])
    return Half(
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
    error = 4 * _EPS * (2 + np.abs(tail) + np.where(np.isfinite(mass), np.abs(mass), 0.0)) + slack
    if mechanism.has_jumps:
        error = error + _misplaced(mechanism, near, width)
    elif mechanism.drop_rounding is not None:
        return mass, error
    return _by_density(mechanism, near, width, mass, error)


def _misplaced(mechanism: Mechanism, near: Array, width: Array) -> Array:
    """Relative error of a mass whose interval holds a jump, as rounding may misplace the jump by a few ulps.

    A jump misplaced by η changes the mass by η·(p(near) − p(far)) at most, and the mass is at least width·p(far).
    """
    bounded = np.where(np.isfinite(width), width, 0.0)
    jump = np.where(bounded > 0, mechanism.log_density_drop(near, bounded), 0.0)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        share = 4 * _EPS * (near + bounded) / bounded * np.expm1(jump)
    return np.where(jump > 0, np.where(share < 0.5, 2 * share, np.inf), 0.0)


def _by_density(mechanism: Mechanism, near: Array, width: Array, mass: Array, error: Array) -> tuple[Array, Array]:
    """The mass from width·density (which falls with the distance) where tails that are nearly equal tell less."""
    bounded = np.where(np.isfinite(width), width, 0.0)
    density = mechanism.log_density(near)
    half = 0.5 * np.maximum(mechanism.log_density_drop(near, bounded), 0.0)
    half_error = half + 8 * _EPS * (2 + np.abs(density))
    with np.errstate(divide="ignore"):
        other = density + np.log(bounded) - half
    better = np.isfinite(width) & (~(error <= half_error) | ~np.isfinite(mass))
    return np.where(better, other, mass), np.where(better, half_error, error)


def _drop_error(mechanism: Mechanism, drop: Array, log_value: Array) -> Array:
    """Rounding error of a drop of log tail or log density from `log_value`."""
    if mechanism.drop_rounding is not None:
        return mechanism.drop_rounding * np.where(np.isfinite(drop), drop, 0.0)
    return 4 * _EPS * (2 + 2 * np.abs(log_value) + np.where(np.isfinite(drop), drop, 0.0))
