"""Privacy: proven intervals for (ε, δ), calibration, and the ledger. Units: the noise's clipping norm C."""

from .api import compose_delta, compose_epsilon, delta, epsilon
from .calibration import calibrate
from .empirical import EmpiricalEpsilon, epsilon_from_scores
from .game import CONSISTENT, CONTRADICTION, GameResult, distinguishing_game
from .interop import from_dp_event, from_opacus_history, to_dp_event, to_opacus_history
from .interval import AccountantsDisagree, DeltaInterval, EpsilonInterval, rounded_down, rounded_up
from .ledger import Ledger
from .plots import plot_attack_advantage, plot_posterior, plot_privacy_profile, plot_tradeoff
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
from .tradeoff import (
    PosteriorBand,
    ProbabilityInterval,
    TradeoffCurve,
    attack_advantage,
    bayes_accuracy,
    posterior,
    posterior_bound,
    tradeoff_curve,
    tradeoff_from_profile,
)

__all__ = [
    "ADD_OR_REMOVE_ONE",
    "ADJACENCIES",
    "CONSISTENT",
    "CONTRADICTION",
    "FIXED_SIZE",
    "POISSON",
    "REPLACE_ONE",
    "REPLACE_SPECIAL",
    "SAMPLINGS",
    "AccountantsDisagree",
    "DeltaInterval",
    "EmpiricalEpsilon",
    "EpsilonInterval",
    "GameResult",
    "Ledger",
    "PosteriorBand",
    "ProbabilityInterval",
    "Release",
    "TradeoffCurve",
    "attack_advantage",
    "bayes_accuracy",
    "calibrate",
    "compose_delta",
    "compose_epsilon",
    "delta",
    "distinguishing_game",
    "epsilon",
    "epsilon_from_scores",
    "from_dp_event",
    "from_opacus_history",
    "plot_attack_advantage",
    "plot_posterior",
    "plot_privacy_profile",
    "plot_tradeoff",
    "posterior",
    "posterior_bound",
    "rounded_down",
    "rounded_up",
    "to_dp_event",
    "to_opacus_history",
    "tradeoff_curve",
    "tradeoff_from_profile",
]
