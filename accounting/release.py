"""What was released, as data: accountants read it and refuse what they cannot bound."""

from __future__ import annotations

import dataclasses
import math

from ..mechanisms import Mechanism, Noise, SphericalGamma, _validate

ADD_OR_REMOVE_ONE = "add_or_remove_one"
"""Neighbours: one record is there or not; a shift of C."""
REPLACE_ONE = "replace_one"
"""Neighbours: one record becomes another; a shift of 2C."""
REPLACE_SPECIAL = "replace_special"
"""Neighbours: one record becomes a zero contribution; a shift of C."""
_MOST_STEPS = 10**18
ADJACENCIES = (ADD_OR_REMOVE_ONE, REPLACE_ONE, REPLACE_SPECIAL)
"""The relations of neighbours that `Release` knows."""

POISSON = "poisson"
"""Every record is tossed alone, anew for each release."""
FIXED_SIZE = "fixed_size"
"""A uniform subset of fixed size, drawn anew for each release."""
SAMPLINGS = (POISSON, FIXED_SIZE)
"""The ways of drawing batches that `Release` knows."""
_UNAMPLIFIED = ("shuffled", "shuffle", "balls_in_bins", "partition", "epochs")


@dataclasses.dataclass(frozen=True)
class Release:
    """`steps` noisy releases of one kind, each of a sum of contributions with L2 norm at most C (the noise's unit).

    Attributes:
        mechanism: the noise, in units of C.
        steps: number of releases composed (T >= 0). Each optimizer update is one release, however many microbatches
            it was cut into.
        sampling_rate: q, the probability that a record takes part in a release; 1 means no sampling. For fixed-size
            batches, batch size / number of records.
        dimension: number of coordinates released at once, or `math.inf` for a bound that holds in every dimension.
            None is allowed where the answer does not depend on it (the Gaussian) or the noise has one (spherical).
        adjacency: `add_or_remove_one` (shift 1), `replace_special` (one record becomes a zero contribution: shift 1)
            or `replace_one` (shift 2).
        sampling: `poisson` (every record tossed alone) or `fixed_size` (a uniform subset of fixed size, drawn anew for
            each release; for `replace_one` only, since adding a record changes the rate). Epochs of shuffled batches,
            or balls in bins, have no proven amplification here: state each epoch as one release with sampling_rate=1.
    """

    mechanism: Noise
    steps: int = 1
    sampling_rate: float = 1.0
    dimension: float | None = None
    adjacency: str = ADD_OR_REMOVE_ONE
    sampling: str = POISSON

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism | SphericalGamma):
            raise ValueError(f"expected mechanism to be a noise (`mechanisms.Noise`), got mechanism={self.mechanism!r}")
        if _validate.integer("steps", self.steps, minimum=0) > _MOST_STEPS:
            raise ValueError(f"expected steps <= {_MOST_STEPS:.0e}, got steps={self.steps}")
        _validate.unit_interval("sampling_rate", self.sampling_rate)
        _validate.one_of("adjacency", self.adjacency, ADJACENCIES)
        _check_dimension(self.dimension, self.mechanism)
        _check_sampling(self.sampling, self.adjacency)

    @property
    def shift(self) -> float:
        """Largest L2 change of the released sum, in units of C."""
        return 2.0 if self.adjacency == REPLACE_ONE else 1.0


def _check_dimension(dimension: float | None, mechanism: Noise) -> None:
    if isinstance(mechanism, SphericalGamma):
        if dimension is not None and dimension != mechanism.dimension:
            raise ValueError(f"expected dimension={mechanism.dimension}, that of the noise, got dimension={dimension}")
        return
    if dimension is None:
        if not mechanism.isotropic:
            raise ValueError(
                f"expected a dimension for {mechanism.family} noise, got dimension=None: its guarantee depends on it; "
                "give the number of coordinates, or inf for a bound that holds in every dimension"
            )
        return
    if _validate.real("dimension", dimension) == math.inf:
        return
    _validate.integer("dimension", dimension, minimum=1)


def _check_sampling(sampling: str, adjacency: str) -> None:
    if sampling in _UNAMPLIFIED:
        raise ValueError(
            f"sampling={sampling} has no proven amplification here: state each epoch, in which every record is used "
            "once, as one release with sampling_rate=1, or sample by poisson"
        )
    _validate.one_of("sampling", sampling, SAMPLINGS)
    if sampling == FIXED_SIZE and adjacency != REPLACE_ONE:
        raise ValueError(
            f"expected adjacency={REPLACE_ONE} with sampling={FIXED_SIZE}, got adjacency={adjacency}: its rate depends "
            "on the number of records, which adding or removing one changes"
        )
