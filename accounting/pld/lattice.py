"""A privacy loss moved onto a lattice offset + k·step, once upwards and once downwards, both proven and second order.

Both are moves that `pieces` allows. Write u = e^{−L}.

*Upper* ("connect the dots", Doroshenko et al. 2022, arXiv 2207.04380). Within a piece u is spread to the piece's ends,
keeping mass and mean (the chord); then every point between two lattice points is spread to those two, again keeping
mass and mean of u. A piece inside one lattice interval is spread to its ends at once. Where the loss is unbounded the
upper end is u = 0: that mass is lost for good (`infinity`).

*Lower.* Each piece is merged into one atom at its mean (Jensen). From the largest loss downwards, atoms are gathered
until the mean of u over the group equals that of a lattice point near its middle; the last atom is split in two (a
random choice between two labels is post-processing), its rest starts the next group. Merged groups are post-processing
of the pair, so they lie below it, and they are on the lattice without any rounding of the loss. The last group, that of
the smallest losses, may end before its mean has come down to a lattice point: it is merged with as much of the groups
above as lifts its mean to the lattice point above it, or moved down to the one below, whichever costs less of the mean
loss. If it is moved down, the lattice is shifted so that it has a point where this group's mean is, and all is done
again: any offset will do.

Rounding: bounds of masses and means come with the pieces; the kernels add 16 roundings of |L| plus 1e-12·step to the
mean, on the safe side, for their own differences L − lattice point; sums have relative error (terms)·2^-53, charged by
`mass_rounding`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from .._numba import njit
from .pieces import LossPieces

Array = NDArray[np.float64]

_ROUNDINGS = 16 * 2.0**-53
_MOST = 2**25  # lattice points of one step
_LEAST = -700.0  # log of the least mass: smaller ones are raised to it above, left out below
_WIDEST = 20.0  # step beyond which e^step would cost the last group its digits
_ATTEMPTS = 4  # at a lattice that holds the mean of the lowest group
_ON_LATTICE = 1e-6  # of a step: an atom this close above a lattice point is moved down to it


@dataclasses.dataclass(frozen=True)
class LatticeLoss:
    """Law of a loss on offset + (first + i)·step under A (not normalised: upper bounds may sum to more than 1).

    Attributes:
        mass: shape (points,), >= 0.
        first: lattice index of mass[0].
        step, offset: the lattice, no unit.
        infinity: mass at L = ∞.
        mass_rounding: bound on the relative rounding error of sums of rising functions of the loss over the masses.
    """

    mass: Array
    first: int
    step: float
    offset: float
    infinity: float
    mass_rounding: float

    @property
    def loss(self) -> Array:
        """The lattice points, shape (points,)."""
        return self.offset + self.step * (self.first + np.arange(len(self.mass), dtype=np.float64))


def below(atom: float, step: float) -> float:
    """The offset of a lattice with a point just below `atom`: between points, it could only be merged with others."""
    return atom - step * round(atom / step) - (1e-12 * abs(atom) + 1e-8 * step)


def dividing(span: float, step: float) -> float:
    """A step, at most `step`, of which `span` is a whole multiple (but for rounding)."""
    return span / math.ceil(span / step) * (1 + 4e-16)


def upper(pieces: LossPieces, step: float, offset: float) -> LatticeLoss:
    """A law that dominates the pieces' (module docstring)."""
    ends = sum(np.where(np.isfinite(end), np.abs(end), 0.0) for end in (pieces.low, pieces.high))
    pad = _ROUNDINGS * (np.abs(pieces.mean_high) + ends) + 1e-12 * step
    mean = np.minimum(pieces.mean_high + pad, pieces.high)
    low, high = (pieces.low - offset) / step, (pieces.high - offset) / step
    used = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)], (mean - offset) / step])
    first, mass = _points(float(np.min(used)), float(np.max(used)))
    infinity, terms = _spread(
        np.exp(np.maximum(pieces.log_mass_high, _LEAST)), pieces.low, pieces.high, mean, step, offset, first, mass
    )
    return _trimmed(mass, first, step, offset, infinity, terms)


def lower(pieces: LossPieces, step: float, offset: float) -> LatticeLoss:
    """A law that the pieces' law dominates (module docstring)."""
    terms = len(pieces.mean_low) + (np.max(pieces.mean_low) - np.min(pieces.mean_low)) / step
    mean = pieces.mean_low - _ROUNDINGS * np.abs(pieces.mean_low) - (1e-12 + terms * 2.0**-52) * step
    order = np.argsort(-mean)
    order = order[pieces.log_mass_low[order] > _LEAST]
    mean, mass_in = mean[order], np.exp(pieces.log_mass_low[order])
    best, least = None, math.inf
    for _ in range(_ATTEMPTS):
        first, mass = _points((mean[-1] - offset) / step, (mean[0] - offset) / step)
        terms, cost, shift = _merge(mass_in, mean, step, offset, first, mass)
        if cost >= least:
            break
        best, least = (mass, first, step, offset, 0.0, terms), cost
        if shift < _ON_LATTICE * step:
            break
        offset += shift * (1 - 1e-3)  # where the mean of the lowest group is
    assert best is not None, "the loop runs at least once"
    return _trimmed(*best)


def _points(low: float, high: float) -> tuple[int, Array]:
    """(first lattice index, zeros) for a law between the indices `low` and `high`."""
    if not (abs(low) < 2**52 and abs(high) < 2**52 and high - low < _MOST):
        raise OverflowError(f"a law from lattice index {low:.3g} to {high:.3g}")
    first = math.floor(low) - 2
    return first, np.zeros(math.ceil(high) + 2 - first)


def _trimmed(mass: Array, first: int, step: float, offset: float, infinity: float, terms: int) -> LatticeLoss:
    used = np.flatnonzero(mass)
    start, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 1)
    rounding = 2.0**-53 * (32 + terms)
    return LatticeLoss(mass[start:end], first + start, step, offset, infinity, rounding)


@njit()
def _spread(mass_in, low, high, mean, step, offset, first, mass):  # pyright: ignore
    """Scatter into `mass`; returns the mass at infinity and a bound on the number of terms per lattice point."""
    infinity = 0.0
    terms = np.zeros(len(mass), dtype=np.int32)
    for i in range(len(mass_in)):
        m = max(mean[i], low[i])
        if low[i] == -np.inf:
            if high[i] == np.inf:
                infinity += mass_in[i]
            else:  # the chord to u = ∞ has weight 0 there
                _split(mass_in[i], high[i], step, offset, first, mass, terms)
            continue
        if high[i] == np.inf:
            stays = math.exp(low[i] - m)
            infinity += mass_in[i] * -math.expm1(low[i] - m)
            _split(mass_in[i] * stays, low[i], step, offset, first, mass, terms)
            continue
        if math.floor((low[i] - offset) / step) == math.floor((high[i] - offset) / step):
            _split(mass_in[i], m, step, offset, first, mass, terms)
            continue
        width = high[i] - low[i]
        weight = math.expm1(low[i] - m) / math.expm1(-width) if width > 0 else 1.0
        weight = min(weight, 1.0)
        _split(mass_in[i] * weight, high[i], step, offset, first, mass, terms)
        _split(mass_in[i] * (1 - weight), low[i], step, offset, first, mass, terms)
    return infinity, np.max(terms)


@njit()
def _split(amount, loss, step, offset, first, mass, terms):  # pyright: ignore
    """Add `amount` at `loss`, spread to the two lattice points around it."""
    index = math.floor((loss - offset) / step)
    above = loss - (offset + step * index)
    weight = min(max(math.expm1(-above) / math.expm1(-step), 0.0), 1.0)
    mass[index + 1 - first] += amount * weight
    mass[index - first] += amount * (1 - weight)
    terms[index + 1 - first] += 1
    terms[index - first] += 1


@njit()
def _merge(mass_in, mean, step, offset, first, mass):  # pyright: ignore
    """Gather atoms, sorted by falling loss, into groups with mean on the lattice; add each to `mass`.

    Returns a bound on the terms per lattice point, and `_settle`'s cost and shift for the last, incomplete group.
    """
    i, rest, n, terms, cost, shift = 0, mass_in[0], len(mass_in), 0, 0.0, 0.0
    while i < n:
        start = i
        position = (mean[i] - offset) / step
        index = math.floor(position)
        if position - index < _ON_LATTICE:  # moved down to the lattice point
            mass[index - first] += rest
            i += 1
            rest = mass_in[i] if i < n else 0.0
            continue
        target = offset + step * index
        gathered, excess = 0.0, 0.0  # Σ a and Σ a·(1 − e^{target − m}); the group is complete when the latter is 0
        is_last = mean[n - 1] >= target  # nothing can bring its mean down to the target
        while i < n and not (is_last and mean[i] - target < _ON_LATTICE * step):
            gain = -math.expm1(target - mean[i])
            if excess + rest * gain >= 0:
                gathered += rest
                excess += rest * gain
                i += 1
                rest = mass_in[i] if i < n else 0.0
            else:
                part = excess / -gain
                gathered, rest, excess = gathered + part, rest - part, 0.0
                break
        terms = max(terms, i - start + 1)
        # The mean of an incomplete group, less an allowance for rounding. Where that is more than the mean lies above
        # the target (tiny and wide steps), it is the target that the group has come down to, as a complete one has.
        centre = target
        if excess > 0 and step <= _WIDEST:
            centre -= math.log1p(-excess / gathered) + (i - start + 4) * 2.0**-51 * math.exp(2 * step)
        if centre <= target:
            mass[index - first] += gathered
        else:
            cost, shift, merged = _settle(gathered, centre, step, offset, first, mass)
            terms = max(terms, merged)
    return 4 * terms + 8, cost, shift


@njit()
def _settle(amount, mean, step, offset, first, mass):  # pyright: ignore
    """Add an atom that is off the lattice to the point above it or below it, whichever costs less of the mean loss.

    It is lifted by merging it with mass from further above. Returns the cost; if it was moved down, how far the mean
    of all that is at that point now is above it; and the number of points merged.
    """
    below = math.floor((mean - offset) / step)
    if (mean - offset) / step - below < _ON_LATTICE:
        mass[below - first] += amount
        return 0.0, 0.0, 1
    target, reach = offset + step * (below + 1), below + 1 - first
    missing = amount * math.expm1(target - mean)
    cost, rest = amount * (mean - target), missing
    for k in range(reach + 1, len(mass)):
        share, gain = _share(mass[k], step * (k - reach), rest)
        cost += share * step * (k - reach)
        rest -= gain
        if rest <= 0:
            break
    drop = mean - (target - step)
    if rest > 0 or cost >= amount * drop:
        mass[below - first] += amount
        return amount * drop, amount / mass[below - first] * drop, 1
    mass[reach] += amount
    for k in range(reach + 1, len(mass)):
        share, gain = _share(mass[k], step * (k - reach), missing)
        mass[reach] += share
        mass[k] -= share
        missing -= gain
        if missing <= 0:
            break
    return cost, 0.0, k - reach + 1


@njit()
def _share(amount, distance, missing):  # pyright: ignore
    """(how much of `amount`, `distance` above the target, supplies at most `missing`; what it supplies)."""
    gain = amount * -math.expm1(-distance)
    if gain <= missing:
        return amount, gain
    return missing / gain * amount, missing
