"""Pieces of negative loss from those of positive loss by reflection."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .pair import EPS, Array

_EXCEPTIONS = 1e-18  # mass of the exceptions that `mirrored` sets aside


class _Split(NamedTuple):
    """One λ of `mirrored`: which pieces are U and N, and what is known of N∖U*."""

    cut: float
    upper: NDArray[np.bool_]
    lower: NDArray[np.bool_]
    width: float
    stray: NDArray[np.int64]
    stray_mass: tuple[float, float]
    mass: tuple[float, float]
    mass_q: tuple[float, float]
    cost: float


def mirrored(table: Array) -> Array:
    """The pieces with those far below 0 replaced by the reflections of those far above, where that is much narrower.

    Cells resolve x = 0 but not x = t·e_1, where ℓ → −∞ if φ is singular at 0. For λ > 0 let U be the pieces with
    ℓ >= λ everywhere and N those that reach below −λ. The reflection U* of U lies in {ℓ <= −λ}, hence in N, so U*, N∖U*
    and the pieces outside N are a partition, with

        P(U*) = Q(U),   Q(U*) = P(U),   P(N∖U*) = P(N) − Q(U),   Q(N∖U*) = Q(N) − P(U),   Q(N) = 1 − Q(outside N).

    A point of N∖U* has −λ−w <= ℓ <= −λ+w unless it lies in a piece of N that reaches above −λ+w or its reflection in a
    piece outside U that reaches above λ+w; w is the least for which these exceptions have masses below `_EXCEPTIONS`.

    Of a few λ the one is taken that leaves the least uncertainty of the masses (and the least of w² times the mass of
    N∖U*), if that is less than a quarter of what it is without reflection and the masses of N∖U* are known within 2.
    """
    with np.errstate(over="ignore"):
        q_low, q_high = table[:, 0] * np.exp(-table[:, 5]), table[:, 1] * np.exp(-table[:, 4])
    q_high = np.minimum(q_high, 1.0)
    positive = np.isfinite(table[:, 2]) & (table[:, 2] > 0)
    if not positive.any():
        return table
    cuts = np.unique(np.quantile(table[positive, 2], np.linspace(0.02, 0.98, 33)))
    best = min((_split(table, q_low, q_high, float(cut)) for cut in cuts), key=lambda split: split.cost)
    if best.cost >= 0.25 * math.fsum(q_high - q_low):
        return table
    return _reflect(table, q_low, q_high, best)


def _split(table: Array, q_low: Array, q_high: Array, cut: float) -> _Split:
    upper, lower = table[:, 2] >= cut, table[:, 2] < -cut
    reach = np.where(lower, table[:, 3] + cut, np.where(upper, -np.inf, table[:, 3] - cut))
    across = np.flatnonzero(reach > 0)
    across = across[np.argsort(-reach[across])]
    count = int(np.searchsorted(np.cumsum(table[across, 1] + q_high[across]), _EXCEPTIONS))
    stray = across[:count]
    width = float(reach[across[count]]) if count < len(across) else 0.0
    stray_p = math.fsum(np.where(lower[stray], table[stray, 1], q_high[stray])) * (1 + 1e-12)
    stray_q = math.fsum(np.where(lower[stray], q_high[stray], table[stray, 1])) * (1 + 1e-12)
    p_low = math.fsum(table[lower, 0]) - math.fsum(q_high[upper]) - 4 * EPS - stray_p
    p_high = math.fsum(table[lower, 1]) - math.fsum(q_low[upper]) + 4 * EPS
    between_low = 1 - math.fsum(q_high[~lower]) - math.fsum(table[upper, 1]) - 4 * EPS - stray_q
    between_high = 1 - math.fsum(q_low[~lower]) - math.fsum(table[upper, 0]) + 4 * EPS
    cost = math.fsum((q_high - q_low) * ((~lower).astype(float) + upper)) + between_high * width**2 / 8
    if p_low < 0.5 * p_high or between_low < 0.5 * between_high:
        cost = math.inf
    masses = (stray_p, stray_q), (p_low, p_high), (between_low, between_high)
    return _Split(cut, upper, lower, width, stray, *masses, cost)


def _reflect(table: Array, q_low: Array, q_high: Array, split: _Split) -> Array:
    """`mirrored` at one λ.

    The exceptions become a piece of their own, joined to a random part (an independent coin reveals nothing) of the
    heaviest piece, as heavy as they may be, which brackets its masses.
    """
    upper, lower = split.upper, split.lower
    u, (stray_p, stray_q), (p_low, p_high) = table[upper], split.stray_mass, split.mass
    reflected = np.column_stack([q_low[upper], q_high[upper], -u[:, 3], -u[:, 2], -u[:, 5], -u[:, 4]])
    ends = [-split.cut - split.width, -split.cut + split.width]
    means = [math.log(p_low / split.mass_q[1]), math.log(p_high / split.mass_q[0])]
    added = [[p_low, p_high, *ends, *np.clip(means, ends[0], ends[1])]]
    kept = table.copy()
    if len(split.stray):
        heaviest = int(np.argmax(np.where(lower, 0.0, np.minimum(table[:, 0], q_low))))
        part = min((stray_p + stray_q) / table[heaviest, 0], 0.5)
        low, high = -float(table[~upper, 3].max()), float(table[lower, 3].max())
        masses = part * table[heaviest, :2] + [0.0, stray_p]
        masses_q = part * q_low[heaviest], part * q_high[heaviest] + stray_q
        means = [math.log(masses[0] / masses_q[1]) - 1e-12, math.log(masses[1] / masses_q[0]) + 1e-12]
        ends = [min(low, table[heaviest, 2]), max(high, table[heaviest, 3])]
        added.append([masses[0] * (1 - 4 * EPS), masses[1] * (1 + 4 * EPS), *ends, *means])
        kept[heaviest, :2] *= (1 - part) * (1 + np.array([-4, 4]) * EPS)
    return np.concatenate([kept[~lower], reflected, added])
