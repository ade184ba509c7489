"""The noise of a run: calibrated, or given and checked, for the dimension that it is used in."""

from __future__ import annotations

from typing import NamedTuple

from ...accounting import EpsilonInterval, calibrate, epsilon
from ...accounting.api import ACCOUNTANTS
from ...mechanisms import Gaussian, Mechanism
from .. import budget
from ..settings import PrivacySettings
from .recipe import Recipe


class Opinion(NamedTuple):
    """What one accountant says of the entire run: an interval, or why it gives none."""

    accountant: str
    interval: EpsilonInterval | None
    refusal: str | None


def released_dimension(recipe: Recipe, trained: int) -> int:
    """How many numbers one step releases: one for each trained parameter, or for each direction (zeroth order)."""
    return recipe.training.directions if recipe.training.method == "zeroth_order" else trained


def noise_for(recipe: Recipe, mechanism: Mechanism | None, dimension: int) -> tuple[Mechanism, EpsilonInterval]:
    """`mechanism`, or the Gaussian calibrated for the recipe, in units of C; and ε of the whole run with it.

    Raises ValueError if the proven ε of the run exceeds the recipe's target, or no bound is known in this dimension.
    """
    settings = recipe.settings()
    chosen = mechanism or calibrate(Gaussian(1.0), epsilon=settings.epsilon, **settings.question(dimension))
    return chosen, budget.check_noise(settings, chosen, dimension)


def opinions(settings: PrivacySettings, mechanism: Mechanism, dimension: int, steps: int) -> list[Opinion]:
    """ε after `steps` releases by every accountant. `best` is the guarantee; `cf` estimates its error, unproven."""
    found, question = [], {**settings.question(dimension), "steps": steps}
    for accountant in ACCOUNTANTS:
        try:
            interval = epsilon(mechanism, **question, accountant=accountant)
            found.append(Opinion(accountant, interval, None))
        except ValueError as error:
            found.append(Opinion(accountant, None, str(error)))
    return found
