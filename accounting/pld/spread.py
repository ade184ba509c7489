"""A lower bound on ε for independent noise in many coordinates: the neighbour that spreads its shift.

A record that shifts each of m <= d coordinates by t/√m has L2 norm t, so ε of independent noise in d dimensions is at
least that of the m-fold product of the one-coordinate pair at shift t/√m: composed over coordinates *first*, then
Poisson-sampled, then composed over the steps. Every m gives a lower bound; a few are tried. For every dimension at once
the m-fold product tends to the pair of Gaussians with μ = t·√I, I the Fisher information (local asymptotic normality),
and hockey-stick divergences are lower semicontinuous, so the Gaussian's ε, sampled and composed, is a lower bound too.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from ...mechanisms import Gaussian, Mechanism
from ..cells import fisher_information_bounds, largest_loss
from ..event import Event
from . import lattice
from .composition import compose
from .pieces import LossPieces
from .scalar import Cuts, scalar_pieces

COPIES = (1, 4, 16, 64, 256, 1024)
_POINTS = 2**14  # of the lattice on which coordinates are composed
_DEPTH = 60.0


def spread_events(events: Sequence[Event]) -> list[list[Event]]:
    """Compositions of scalar pairs, each of which some neighbours attain; (several coordinates' pairs as `copies`)."""
    attained = [event.attained_pair for event in events]
    most = max(1.0 if e.is_scalar else float(e.dimension or 1) for e in attained)
    choices = sorted({min(copies, most) for copies in (*COPIES, most) if copies <= COPIES[-1]})
    compositions = [[_spread(e, int(copies)) for e in attained] for copies in choices]
    if math.isinf(most):
        compositions.append([_limit(e) for e in attained])
    return compositions


def _spread(event: Event, copies: int) -> Event:
    """The event with its shift spread over `copies` coordinates, or as many as it has."""
    if event.is_scalar:
        return event
    copies = int(min(copies, event.dimension or 1))
    shift = event.shift / math.sqrt(copies)
    if event.sampling_rate == 1:  # coordinates and steps compose alike
        return dataclasses.replace(event, shift=shift, dimension=1, steps=event.steps * copies)
    return dataclasses.replace(event, shift=shift, dimension=1, copies=copies)


def _limit(event: Event) -> Event:
    """Spread over ever more coordinates."""
    if event.is_scalar or event.dimension != math.inf:
        return _spread(event, COPIES[-1])
    information = fisher_information_bounds(event.mechanism)[0]
    return dataclasses.replace(event, mechanism=Gaussian(1 / math.sqrt(information)), dimension=None)


@functools.lru_cache(maxsize=64)
def product_pieces(mechanism: Mechanism, shift: float, copies: int) -> LossPieces:
    """The loss of the unsampled `copies`-fold product pair under P, from below.

    Atoms of a lattice law that the product's dominates; what the composition may have misplaced is left out, which is
    allowed: an outcome may be dropped under both laws. Where the law lowers losses it raises Q'; A' − γB' = qP' −
    (γ−1+q)Q' then falls for γ >= 1−q, and for smaller γ, H_γ(A'‖B') = q·P' + (1−q−γ)·Q' <= 1−γ as long as both totals
    are at most 1, to which they are scaled. So it is a lower bound for *remove*, and only that direction is asked.
    """
    event = Event(mechanism, shift, 1, 1.0, 1)
    coarse = scalar_pieces(event, "remove", Cuts(_DEPTH))
    mass, loss = np.exp(coarse.log_mass_low), coarse.mean_low
    mean = float(np.sum(mass * loss))
    deviation = math.sqrt(copies * float(np.sum(mass * (loss - mean) ** 2)))
    step = 20 * deviation / _POINTS
    offset = 0.0
    if math.isfinite(largest_loss(mechanism, shift)):  # there may be atoms at both ends
        step = lattice.dividing(float(np.max(loss) - np.min(loss)), step)
        offset = lattice.below(float(np.max(loss)), step)
    law = lattice.lower(scalar_pieces(event, "remove", Cuts(_DEPTH, step, offset)), step, offset)
    composed = compose([(law, copies)], tilt=0.0, log_outside=-45.0, most_points=16 * _POINTS)
    kept = np.maximum(composed.mass - composed.error - composed.outside, 0.0) * math.exp(-composed.log_error)
    atoms = composed.first_loss + composed.step * np.arange(len(kept)) - composed.loss_rounding
    kept /= max(1.0, float(np.sum(kept)), float(np.sum(kept * np.exp(composed.log_scale - atoms)))) * (1 + 1e-12)
    log_mass = np.asarray(np.log(kept[kept > 0]) + composed.log_scale, dtype=np.float64)
    atoms = np.asarray(atoms[kept > 0], dtype=np.float64)
    return LossPieces(log_mass, log_mass, atoms, atoms, atoms, atoms)
