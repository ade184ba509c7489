"""The exact (ε, δ) of one scalar release of any mechanism, and the largest shift inside a budget, from tail functions.

With P the law of X and Q that of X + t, δ = Σ (P_i − e^ε·Q_i)_+ over panels of the line on which the sign does not
change. The panels are fine and cut at the density's breaks, so only the one or two in which it does change are off, by
the square of their width. Poisson sampling as in `one_release`. No proven error: this ranks shapes and states no
guarantee.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import Mechanism
from .one_release import unsampled

Array = NDArray[np.float64]

_DEPTHS = np.log(2) + 0.002 * np.geomspace(1, 690 / 0.002, 250)  # −log P(X > x) at the panels' ends
_INNER = 120  # panels between the centres of P and Q
_BREAKS_FROM = 45.0
_MOST_BREAKS = 500
_ROUNDING = 1e-14  # relative, of a panel's mass
_OCTAVES = 300


def largest_one_release_shift(
    mechanism: Mechanism, *, epsilon: float, delta: float, sampling_rate: float = 1.0, tolerance: float = 1e-5
) -> float:
    """The largest shift (units of C) whose one release is (ε, δ)-DP; `tolerance` relative."""
    inner_epsilon, inner_delta = unsampled(epsilon, delta, sampling_rate)
    ends = np.unique(np.concatenate([[0.0], mechanism.tail_quantile(-_DEPTHS)]))
    reach = min(float(mechanism.tail_quantile(-_BREAKS_FROM)), mechanism.support)
    breaks = mechanism.breaks(reach)[:_MOST_BREAKS]

    def is_private(log_shift: float) -> bool:
        return hockey_stick(mechanism, math.exp(log_shift), inner_epsilon, ends, breaks) <= inner_delta

    low = high = math.log(mechanism.scale_hint)
    for _ in range(_OCTAVES):
        if not is_private(low):
            low -= 1.0
        elif is_private(high):
            high += 1.0
        else:
            break
    while high - low > tolerance:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if is_private(middle) else (low, middle)
    return math.exp(low)


def hockey_stick(mechanism: Mechanism, shift: float, epsilon: float, ends: Array, breaks: Array) -> float:
    """δ at ε for a shift, over the half line x < shift/2, where P may exceed Q."""
    outer = _cuts(np.concatenate([ends, breaks, breaks - shift, [mechanism.support]]), 0.0, math.inf)
    inner = _cuts(np.concatenate([ends, breaks, shift - breaks]), 0.0, shift / 2)
    inner = np.unique(np.concatenate([inner, np.linspace(0.0, shift / 2, _INNER)]))
    p = np.concatenate([_masses(mechanism, outer), _masses(mechanism, inner)])
    q = np.concatenate([_masses(mechanism, outer + shift), _masses(mechanism, (shift - inner)[::-1])[::-1]])
    return float(np.sum(np.maximum(p * (1 - _ROUNDING) - math.exp(epsilon) * q, 0.0)))


def _cuts(ends: Array, low: float, high: float) -> Array:
    return np.unique(np.concatenate([[low], ends[(ends > low) & (ends < high)], [high] if high < math.inf else []]))


def _masses(mechanism: Mechanism, ends: Array) -> Array:
    """P(ends[i] < X <= ends[i+1]), relatively exact."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        drop = mechanism.log_tail_drop(ends[:-1], np.diff(ends))
        mass = np.exp(mechanism.log_tail(ends[:-1])) * -np.expm1(-drop)
    return np.nan_to_num(mass, nan=0.0)  # beyond a bounded support
