"""A privacy loss in pieces: what every discretisation starts from.

For a pair (A, B) the loss is L = log dA/dB; a composition of T independent releases has

    δ(ε) = E_A[(1 − e^{ε − L_1 − … − L_T})_+],                                                            (1)

which depends on the law of L under A alone. (1) rises with every L_i, so moving mass to a larger loss gives an upper
bound and moving it to a smaller one a lower bound. It is convex in every e^{−L_i}: spreading e^{−L} (keeping its mean)
gives an upper bound, merging (averaging) a lower one (Jensen; merging is post-processing).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class LossPieces:
    """A partition of the outcomes into pieces on each of which the loss is bracketed. All arrays have shape (pieces,).

    Every bound includes its rounding error, so nothing has to be added by the user. Pieces of mass zero are left out.

    Attributes:
        log_mass_low: lower bound on log A(piece).
        log_mass_high: upper bound on log A(piece).
        low: lower bound of L on the piece, −inf allowed.
        high: upper bound of L on the piece, inf allowed.
        mean_low: lower bound on log(A(piece)/B(piece)) = −log E_A[e^{−L} | piece], the merged piece's loss; finite.
        mean_high: upper bound on it; low <= mean_low <= mean_high <= high.
    """

    log_mass_low: Array
    log_mass_high: Array
    low: Array
    high: Array
    mean_low: Array
    mean_high: Array


def without_tails(pieces: LossPieces, log_mass: float) -> LossPieces:
    """The same, with the lightest pieces, of at most exp(`log_mass`) together, counted as infinite loss or not at all.

    Raising a loss is allowed above, leaving an outcome out is below; and a wide bound of a loss that hardly ever occurs
    would rule a tilted law.
    """
    order = np.argsort(pieces.log_mass_high)
    light = np.zeros(len(order), dtype=bool)
    light[order] = np.logaddexp.accumulate(pieces.log_mass_high[order]) < log_mass
    infinite = np.full(len(order), np.inf)
    return LossPieces(
        log_mass_low=np.where(light, -np.inf, pieces.log_mass_low),
        log_mass_high=pieces.log_mass_high,
        low=np.where(light, -infinite, pieces.low),
        high=np.where(light, infinite, pieces.high),
        mean_low=np.where(light, 0.0, pieces.mean_low),
        mean_high=np.where(light, 0.0, pieces.mean_high),
    )
