"""The Rényi accountant: curves added over the composition, then converted at the best order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import gaussian
from .accountant import Accountant, LogDelta
from .cells import fisher_information_bounds
from .conversion import best_epsilon, best_log_delta
from .event import Event
from .exact import ExactScalar
from .interval import EpsilonInterval
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
        at, largest = self._composed(events)
        value, _ = best_epsilon(at, math.log(delta))
        upper = min(value, largest)
        return EpsilonInterval(min(self._lower_epsilon(events, delta), upper), upper, upper)

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        at, largest = self._composed(events)
        upper = -math.inf if epsilon >= largest else best_log_delta(at, epsilon)[0]
        return -math.inf, upper, upper

    @staticmethod
    def _composed(events: Sequence[Event]):
        curves: list[tuple[int, RenyiCurve]] = [(event.steps, renyi_curve(event)) for event in events]

        def at(orders: Array) -> Array:
            return np.sum([steps * curve.at(orders) for steps, curve in curves], axis=0)

        return at, math.fsum(steps * curve.largest_loss for steps, curve in curves)

    @staticmethod
    def _lower_epsilon(events: Sequence[Event], delta: float) -> float:
        """A neighbour that the composition cannot hide: one release seen alone, or (d = ∞) the spread-out shift.

        Without sampling, a shift spread over m coordinates makes the loss of m-fold independent noise converge, as m
        grows, to that of a Gaussian with μ² = steps·shift²·I (local asymptotic normality), and hockey-stick
        divergences are lower semicontinuous: no bound for every dimension can lie below it.
        """
        singles = [dataclasses.replace(e.attained_pair, steps=1, dimension=1) for e in events]
        best = max((ExactScalar().epsilon([single], delta, 1.0).lower for single in singles), default=0.0)
        if events and all(e.dimension == math.inf and e.sampling_rate == 1 for e in events):
            information = math.fsum(e.steps * e.shift**2 * fisher_information_bounds(e.mechanism)[0] for e in events)
            best = max(best, gaussian.epsilon_interval(delta, math.sqrt(information)).lower)
        return best
