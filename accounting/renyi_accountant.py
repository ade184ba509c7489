"""The Rényi accountant: curves added over the composition, then converted at the best order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .accountant import Accountant, LogDelta
from .conversion import best_epsilon, best_log_delta
from .event import Event
from .exact import ExactGaussian
from .interval import EpsilonInterval
from .pld.accountant import lower_bound
from .pld.questions import DeltaQuestion, EpsilonQuestion, Question
from .pld.refinement import rough_answer
from .pld.spread import spread_events
from .renyi import RenyiCurve, renyi_curve

Array = NDArray[np.float64]


class Renyi(Accountant):
    """Rényi curves added over the composition, then converted at the best order (order ∞ included)."""

    name = "rdp"

    def refusal(self, events: Sequence[Event]) -> str | None:
        try:
            for event in events:
                renyi_curve(event)
        except ValueError as error:
            return str(error)
        return None

    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        upper = self.epsilon_upper(events, delta, relative_width)
        lower = _best_lower(events, EpsilonQuestion(math.log(delta), max(relative_width, 1e-3)))
        return EpsilonInterval(min(lower, upper), upper, upper)

    def epsilon_upper(self, events: Sequence[Event], delta: float, relative_width: float) -> float:
        at, largest = self._composed(events)
        return min(best_epsilon(at, math.log(delta))[0], largest)

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        upper = self.log_delta_upper(events, epsilon, relative_width)
        lower = _best_lower(events, DeltaQuestion(epsilon, max(relative_width, 1e-3)))
        return min(lower, upper), upper, upper

    def log_delta_upper(self, events: Sequence[Event], epsilon: float, relative_width: float) -> float:
        at, largest = self._composed(events)
        return -math.inf if epsilon >= largest else best_log_delta(at, epsilon)[0]

    @staticmethod
    def _composed(events: Sequence[Event]):
        curves: list[tuple[int, RenyiCurve]] = [(event.steps, renyi_curve(event)) for event in events]

        def at(orders: Array) -> Array:
            return np.sum([steps * curve.at(orders) for steps, curve in curves], axis=0)

        return at, math.fsum(steps * curve.largest_loss for steps, curve in curves)


def _best_lower(events: Sequence[Event], question: Question) -> float:
    """The largest lower bound over the ways of spreading the shift over coordinates, chosen by approximations."""
    compositions = spread_events(events)
    best = max(compositions, key=lambda composition: rough_answer(composition, question))
    exact = ExactGaussian()
    if exact.refusal(best) is not None:
        return lower_bound(best, question)
    if isinstance(question, EpsilonQuestion):
        return exact.epsilon(best, math.exp(question.log_delta), question.relative_width).lower
    assert isinstance(question, DeltaQuestion)
    return exact.log_delta(best, question.epsilon, question.relative_width)[0]
