"""The budget of a run: whether a noise keeps to it, how much of it is spent, whether another step fits into it."""

from __future__ import annotations

import dataclasses
from typing import final

from ..accounting import EpsilonInterval, Ledger, Release, epsilon, rounded_up
from ..mechanisms import Mechanism
from .settings import PrivacySettings


def check_noise(settings: PrivacySettings, mechanism: Mechanism, dimension: int) -> EpsilonInterval:
    """ε of all `settings.steps` with this noise on `dimension` coordinates.

    Raises ValueError if its proven end exceeds `settings.epsilon`.
    """
    interval = epsilon(mechanism, **settings.question(dimension))
    if not interval.upper <= settings.epsilon:
        raise ValueError(
            f"expected a noise with proven epsilon <= {settings.epsilon:g} (privacy.epsilon) over {settings.steps} "
            f"steps in dimension {dimension}, got {rounded_up(interval.upper)} from {mechanism}; "
            "calibrate it for this run"
        )
    return interval


def check_continues(ledger: Ledger, charged: int) -> None:
    """Raise ValueError if `ledger` has fewer releases than were `charged` when the checkpoint was taken."""
    if ledger.steps < charged:
        raise ValueError(
            f"the ledger {ledger.path or ''} is not that of this run: it has {ledger.steps} releases, the "
            f"checkpoint was taken after {charged}; without its ledger a run cannot be continued"
        )


def check_same_kind(ledger: Ledger, release: Release) -> None:
    """Raise ValueError if `ledger` holds releases of another kind than `release`."""
    if any(dataclasses.replace(each, steps=1) != release for each in ledger.releases):
        raise ValueError(f"the ledger {ledger.path} holds releases of another kind than this run's")


@final
class Budget:
    """What the ledger of one run has spent of `settings.epsilon`. All its releases are of the kind that was planned.

    `planned` is the interval of all `settings.steps`: its upper end also bounds any smaller number of them, since
    fewer releases of a kind never have a larger ε.
    """

    def __init__(self, settings: PrivacySettings, planned: EpsilonInterval, ledger: Ledger) -> None:
        self._settings, self._planned, self._ledger = settings, planned, ledger
        self._known: tuple[int, float] = (0, 0.0)

    def spent(self) -> float | None:
        """Proven upper end of ε so far; None before the first release. Reading it changes nothing (B78)."""
        taken = self._ledger.steps
        if not taken:
            return None
        if self._known[0] != taken:
            upper = self._ledger.epsilon(delta=self._settings.delta).upper
            self._known = taken, min(upper, self._planned.upper) if taken <= self._settings.steps else upper
        return self._known[1]

    def allows_another_step(self) -> bool:
        """Whether the proven ε stays within the budget after one more release."""
        if self._ledger.steps < self._settings.steps:
            return True  # within the plan, which `check_noise` has found to be within the budget
        return self._ledger.epsilon(delta=self._settings.delta, further_steps=1).upper <= self._settings.epsilon
