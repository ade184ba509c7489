"""Privacy: proven intervals for (ε, δ), calibration, and the ledger. Units: the noise's clipping norm C."""

from .api import compose_delta, compose_epsilon, delta, epsilon
from .calibration import calibrate
from .interval import AccountantsDisagree, DeltaInterval, EpsilonInterval, rounded_down, rounded_up
from .ledger import Ledger
from .release import (
    ADD_OR_REMOVE_ONE,
    ADJACENCIES,
    FIXED_SIZE,
    POISSON,
    REPLACE_ONE,
    REPLACE_SPECIAL,
    SAMPLINGS,
    Release,
)

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "ADJACENCIES",
    "FIXED_SIZE",
    "POISSON",
    "REPLACE_ONE",
    "REPLACE_SPECIAL",
    "SAMPLINGS",
    "AccountantsDisagree",
    "DeltaInterval",
    "EpsilonInterval",
    "Ledger",
    "Release",
    "calibrate",
    "compose_delta",
    "compose_epsilon",
    "delta",
    "epsilon",
    "rounded_down",
    "rounded_up",
]
