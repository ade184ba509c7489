"""Where the loss of one step is cut into pieces: by the lattice, and farther apart where there is little mass.

Any cuts give proven bounds; these decide width, time and memory.
"""

from __future__ import annotations

import functools

import numpy as np

from ...mechanisms import SphericalGamma
from ..event import Event
from ..spherical import default_step, spherical_pieces
from .pieces import LossPieces, without_tails
from .sampling import sampled_pair
from .scalar import Cuts, scalar_pieces
from .spread import product_pieces

_BANDS = 6  # of ever wider cuts
_BAND_COST = 0.1  # a quarter of it is what each may add to the error of the lattice


def step_pieces(event: Event, direction: str, cuts: Cuts) -> LossPieces:
    if event.is_spherical:
        pair = _spherical(event.mechanism, event.shift, cuts.fineness)
        pieces = sampled_pair(pair, event.sampling_rate, direction)
        return without_tails(pieces, -cuts.depth)
    if event.copies == 1:
        return scalar_pieces(event, direction, cuts)
    pair = product_pieces(event.mechanism, event.shift, event.copies)
    return sampled_pair(pair, event.sampling_rate, direction)


def wide_bands(
    coarse: LossPieces, tilt: float, step: float, highest: float = np.inf
) -> tuple[tuple[float, float], ...]:
    """Where the cuts of a scalar pair may be 4, 16, … steps apart: a band adds a fortieth to the lattice's error.

    Losses above `highest` do not count under the tilted law, as they are not composed.

    The chord over a piece of width w adds w²/6 to the variance of the loss on its mass; so does the lattice with w = h.
    The cuts of a piece x <= t/2, at loss v, cut its mirror image too, whose loss changes less.
    """
    half = len(coarse.low) // 2  # pieces, then their mirror images in the same order
    with np.errstate(all="ignore"):
        is_bulk = coarse.mean_high <= highest
        log_weight = np.where(is_bulk, coarse.log_mass_high + tilt * np.minimum(coarse.mean_high, highest), -np.inf)
        weight = np.nan_to_num(np.exp(log_weight - np.max(log_weight)))
        weight = np.maximum(weight / max(np.sum(weight), 1e-300), np.exp(coarse.log_mass_high))
        width = coarse.high - coarse.low
        share = np.nan_to_num(width[half : 2 * half] / width[:half], nan=1.0, posinf=1.0)
        share = np.minimum(np.where(np.isfinite(width[:half]), share, 1.0), 1.0)
    value = np.abs(coarse.mean_high[:half])
    order = np.argsort(-value)
    beyond = np.cumsum((weight[:half] + weight[half : 2 * half] * share**2)[order])
    found = []
    for level in range(1, _BANDS + 1):
        light = int(np.searchsorted(beyond, _BAND_COST / 16**level))
        start = float(value[order[min(light, half - 1)]])
        if found and start <= found[-1][0]:
            found.pop()
        found.append((start, 4.0**level * step))
    return tuple(found)


@functools.lru_cache(maxsize=16)
def _spherical(noise: SphericalGamma, shift: float, fineness: int) -> LossPieces:
    """Pieces of the unsampled pair; they cost seconds in some dimensions, so one cut serves every lattice."""
    return spherical_pieces(noise, shift, step=default_step(noise, shift) / 2**fineness)


def merged_ends(pieces: LossPieces) -> tuple[float, float]:
    """The largest and the smallest loss of merged pieces."""
    return float(np.max(pieces.mean_low)), float(np.min(pieces.mean_low))
