"""A release in the form that accountants compute with: the noise, the shift, and how often."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..mechanisms import SphericalGamma
from .release import POISSON, REPLACE_ONE, Release


@dataclasses.dataclass(frozen=True)
class Event:
    """`steps` >= 1 sampled (rate q > 0) releases of `mechanism` under an L2 shift of `shift` (units of C).

    `dimension` is the number of coordinates or `inf`; None means that it does not matter. `symmetric` says which pair
    sampling at rate q < 1 makes of the unsampled one (P, Q): False, the two of adding and of removing a record,
    (Q, (1−q)Q + qP) and ((1−q)Q + qP, Q); True, the symmetric pair of replacing one, whose bound some neighbours attain
    only at the fraction `attained` of the shift (see `replace_one`). `copies` > 1 stands for that many coordinates,
    each shifted by `shift` and composed before sampling: only bounds from below use it (see `spread`). Scaling the
    noise by a factor and dividing the shift by it are the same, so calibration moves the shift and keeps what is cached
    for the noise.
    """

    mechanism: Any  # a Mechanism, or SphericalGamma
    shift: float
    steps: int
    sampling_rate: float
    dimension: float | None
    symmetric: bool = False
    attained: float = 1.0
    copies: int = 1

    @property
    def is_scalar(self) -> bool:
        """True if one coordinate at the full shift is the worst case."""
        return self.mechanism.isotropic or (self.dimension == 1 and not self.is_spherical)

    @property
    def is_spherical(self) -> bool:
        """True if the noise is one vector with a given law of its norm."""
        return isinstance(self.mechanism, SphericalGamma)

    @property
    def attained_pair(self) -> Event:
        """The event of a pair of neighbours that exists: what it reveals bounds the truth from below."""
        return dataclasses.replace(self, shift=self.shift * self.attained, symmetric=False, attained=1.0)

    def scaled(self, factor: float) -> Event:
        """The event with noise scaled by `factor`."""
        return dataclasses.replace(self, shift=self.shift / factor)


def to_events(releases: Sequence[Release]) -> list[Event]:
    """The events of a composition: void releases dropped, equal ones merged. Refuses mixed adjacencies."""
    adjacencies = {release.adjacency for release in releases}
    if len(adjacencies) > 1:
        raise ValueError(f"expected one adjacency in a composition, got {', '.join(sorted(adjacencies))}")
    steps: dict[Event, int] = {}
    for release in releases:
        if release.steps == 0 or release.sampling_rate == 0:
            continue
        kind = _one_step(release)
        steps[kind] = steps.get(kind, 0) + int(release.steps)
    return [dataclasses.replace(kind, steps=count) for kind, count in steps.items()]


def _one_step(release: Release) -> Event:
    dimension, rate = release.dimension, float(release.sampling_rate)
    if isinstance(release.mechanism, SphericalGamma):
        dimension = release.mechanism.dimension
    elif release.mechanism.isotropic or dimension is None:
        dimension = None
    elif not math.isinf(dimension):
        dimension = int(dimension)
    symmetric = release.adjacency == REPLACE_ONE and rate < 1
    attained = 0.5 if symmetric and release.sampling == POISSON else 1.0
    return Event(release.mechanism, release.shift, 1, rate, dimension, symmetric, attained)
