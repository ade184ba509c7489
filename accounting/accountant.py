"""The interface of an accountant: it proves an interval for the compositions it supports, and refuses the others."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from .event import Event
from .interval import EpsilonInterval

LogDelta = tuple[float, float, float]  # lower, estimate, upper of log δ


class NoAnswer(ValueError):
    """An accountant that supports these events cannot resolve them; another may."""


class Accountant(abc.ABC):
    """Proves (ε, δ) for a list of events, all composed."""

    name: str
    resolution: float = 1e-11
    """Relative change of the noise below which answers need not change smoothly."""

    @abc.abstractmethod
    def refusal(self, events: Sequence[Event]) -> str | None:
        """Why these events are not supported, or None."""

    @abc.abstractmethod
    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        """ε at `delta`, as narrow as `relative_width` asks where the accountant can."""

    @abc.abstractmethod
    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        """(lower, estimate, upper) of log δ at `epsilon` >= 0; `relative_width` is that of ε, as above."""

    def epsilon_upper(self, events: Sequence[Event], delta: float, relative_width: float) -> float:
        """The upper end of `epsilon` alone, where that is cheaper."""
        return self.epsilon(events, delta, relative_width).upper

    def log_delta_upper(self, events: Sequence[Event], epsilon: float, relative_width: float) -> float:
        """The upper end of `log_delta` alone, where that is cheaper."""
        return self.log_delta(events, epsilon, relative_width)[2]

    def log_delta_rough(self, events: Sequence[Event], epsilon: float) -> float:
        """About log δ, where that is much cheaper: for searches, which must end with a bound."""
        return self.log_delta_upper(events, epsilon, 0.05)
