"""Compositions in which single rare, large losses decide δ: heavily subsampled noise at small ε.

There E[e^{sL}] is ruled by losses that hardly ever occur, no tilt fits, and every bound by moments (Rényi) is several
times too large. So one step's law is split at a threshold, a = a_B + a_J (bulk and jump), and the composition sorted
by the number of jumps:

    δ(ε) = δ_0(ε) + T·Σ_i a_J(x_i)·δ_1(ε − x_i) + (two jumps or more),

with δ_0 of the bulk composed T times (its moments are tame: tilted FFT), δ_1 of the bulk composed T−1 times (untilted;
its weight is small already), and the last term between 0 and (T·a_J(ℝ))²/2. δ_1 is needed at negative arguments too,
where Σ_x w(x)·(1 − e^{y−x}) still is the right functional. As functions of e^{−x_i} the middle terms are convex, so
jumps need no lattice: above, each piece is spread to its ends, below, it is merged at its mean. For several kinds of
release each kind's jumps meet the bulk of all others.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .._numba import njit
from .._roots import bracketed_root
from .composition import Composed
from .pieces import LossPieces
from .reading import log_delta_bound

Array = NDArray[np.float64]

_LANDING = 1e-10  # relative precision of ε


@dataclasses.dataclass(frozen=True)
class Jumps:
    """The large losses of one kind of release.

    Attributes:
        mass: steps times mass under A, shape (jumps,).
        loss: their losses, same shape, finite.
        bulk: all bulk losses of the composition but one of this kind, with tilt 0.
    """

    mass: Array
    loss: Array
    bulk: Composed


def split(pieces: LossPieces, threshold: float) -> tuple[LossPieces, LossPieces]:
    """(bulk, jumps): pieces with a mean loss of at most `threshold`, and the others."""
    is_bulk = pieces.mean_high <= threshold
    fields = [field.name for field in dataclasses.fields(LossPieces)]
    bulk, jumps = (LossPieces(*(getattr(pieces, name)[chosen] for name in fields)) for chosen in (is_bulk, ~is_bulk))
    return bulk, jumps


def placed(jumps: LossPieces, *, upper: bool) -> tuple[Array, Array, float]:
    """(mass, loss, mass at infinity): the pieces spread to their ends, or merged."""
    if not upper:
        return np.exp(jumps.log_mass_low), jumps.mean_low, 0.0
    mass, low, high, mean = np.exp(jumps.log_mass_high), jumps.low, jumps.high, jumps.mean_high
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        width = np.minimum(high - low, 700.0)
        weight = np.where(width > 0, np.expm1(np.minimum(low - mean, 0.0)) / np.expm1(-width), 1.0)
    weight = np.clip(weight * (1 + 1e-12) + 1e-15, 0.0, 1.0)
    unbounded = np.isinf(high)
    infinity = float(np.sum(mass[unbounded] * weight[unbounded]))
    at_high = np.where(unbounded, 0.0, mass * weight)
    ends = np.concatenate([low, np.where(unbounded, low, high)])
    return np.concatenate([mass * (1 - weight), at_high]), ends, infinity


@dataclasses.dataclass(frozen=True)
class RareLosses:
    """A bound of δ at every ε, from the bulk, one jump, and `more` (an upper bound on everything else, or 0).

    Attributes:
        bulk: the bulk of all releases, tilted.
        jumps: one entry for each kind of release.
        more: probability of two jumps or more, and of infinite losses (upper bounds only).
        upper: whether this is an upper bound or a lower one.
    """

    bulk: Composed
    jumps: Sequence[Jumps]
    more: float
    upper: bool

    @functools.cached_property
    def _tables(self) -> list[tuple[Array, Array, float, float, float]]:
        return [_table(jump.bulk, upper=self.upper) for jump in self.jumps]

    def log_delta(self, epsilon: float) -> float:
        """The bound of log δ at ε >= 0."""
        total = self.more + math.exp(log_delta_bound(self.bulk, epsilon, upper=self.upper))
        for jump, (above, value, first, constant, factor) in zip(self.jumps, self._tables, strict=True):
            at = epsilon - (jump.bulk.loss_rounding if self.upper else -jump.bulk.loss_rounding)
            sum_ = _jump_sum(jump.mass, jump.loss, at, above, value, first, jump.bulk.step)
            total += max(sum_ + constant * float(np.sum(jump.mass)), 0.0) * factor
        total *= 1 + (1e-11 if self.upper else -1e-11)  # rounding of sums of at most 10^5 positive terms
        if math.isnan(total):
            return 0.0 if self.upper else -math.inf
        return min(math.log(total), 0.0) if total > 0 else -math.inf

    def epsilon(self, log_delta: float, guess: float) -> float:
        """The bound of ε at log δ."""

        def excess(epsilon: float) -> float:
            return max(self.log_delta(epsilon), -1e6) - log_delta

        if excess(0.0) <= 0:
            return 0.0
        low, high, part = 0.0, guess, 0.01
        while excess(high) > 0:
            low, high, part = high, high * (1 + part), min(2 * part, 0.5)
            if high > 1e6 * guess:
                return math.inf if self.upper else 0.0
        while low < (lower := high * (1 - part)) and excess(lower) <= 0:
            high, part = lower, min(2 * part, 1.0)
        root = bracketed_root(excess, max(low, lower), high, absolute=_LANDING * high, relative=_LANDING)
        nudge = _LANDING
        while (excess(root) > 0) == self.upper and excess(root) != 0:  # land on the safe side
            root *= 1 + nudge if self.upper else 1 - nudge
            nudge *= 4
        return root


def _table(bulk: Composed, *, upper: bool) -> tuple[Array, Array, float, float, float]:
    """(A_i, G_i at the lattice points, the first loss, change of δ by misplaced mass, factor on everything)."""
    sign = 1.0 if upper else -1.0
    mass = np.maximum(bulk.mass + sign * bulk.error, 0.0)
    above, value = _suffix(mass, bulk.step)
    factor = math.exp(bulk.log_scale + sign * (bulk.log_error + 2.0**-52 * (8 + 3 * len(mass))))
    return above, value, bulk.first_loss, sign * bulk.outside, factor


@njit()
def _suffix(mass, step):  # pyright: ignore
    """A_i = Σ_{j>=i} w_j and G_i = Σ_{j>i} w_j(1 − e^{x_i − x_j}) (see `reading`)."""
    n = len(mass)
    above, value = np.empty(n), np.empty(n)
    decay, gain = math.exp(-step), -math.expm1(-step)
    a, g = 0.0, 0.0
    for i in range(n - 1, -1, -1):
        g = decay * g + gain * a
        a += mass[i]
        above[i], value[i] = a, g
    return above, value


@njit()
def _jump_sum(mass, loss, epsilon, above, value, first, step):  # pyright: ignore
    """Σ_i mass_i·δ_1(epsilon − loss_i)."""
    total, n = 0.0, len(above)
    for i in range(len(mass)):
        y = epsilon - loss[i]
        k = max(math.floor((y - first) / step) + 1, 0)  # first lattice point above y
        while k < n and first + step * k < y:
            k += 1
        if k < n:
            total += mass[i] * (value[k] - math.expm1(y - (first + step * k)) * (above[k] - value[k]))
    return total
