"""A release in the form that accountants compute with: the noise, the shift, and how often."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..mechanisms import Mechanism
from .release import Release


@dataclasses.dataclass(frozen=True)
class Event:
    """`steps` >= 1 Poisson-sampled (rate q > 0) releases of `mechanism` under an L2 shift of `shift` (units of C).

    `dimension` is the number of coordinates or `inf`; None means that it does not matter. Scaling the noise by a factor
    and dividing the shift by it are the same, so calibration moves the shift and keeps what is cached for the noise.
    """

    mechanism: Mechanism
    shift: float
    steps: int
    sampling_rate: float
    dimension: float | None

    @property
    def is_scalar(self) -> bool:
        """True if one coordinate at the full shift is the worst case."""
        return self.mechanism.isotropic or self.dimension == 1

    def scaled(self, factor: float) -> Event:
        """The event with noise scaled by `factor`."""
        return dataclasses.replace(self, shift=self.shift / factor)


def to_events(releases: Sequence[Release]) -> list[Event]:
    """The events of a composition: void releases dropped, equal ones merged. Refuses mixed adjacencies."""
    adjacencies = {release.adjacency for release in releases}
    if len(adjacencies) > 1:
        raise ValueError(f"expected one adjacency in a composition, got {', '.join(sorted(adjacencies))}")
    steps: dict[tuple[Mechanism, float, float, float | None], int] = {}
    for release in releases:
        if release.steps == 0 or release.sampling_rate == 0:
            continue
        dimension = None if release.mechanism.isotropic else release.dimension
        key = (release.mechanism, release.shift, float(release.sampling_rate), dimension)
        steps[key] = steps.get(key, 0) + int(release.steps)
    return [
        Event(mechanism, shift, count, rate, None if dimension is None else _as_number(dimension))
        for (mechanism, shift, rate, dimension), count in steps.items()
    ]


def _as_number(dimension: float) -> float:
    return dimension if math.isinf(dimension) else int(dimension)
