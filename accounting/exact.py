"""Closed answers: unsampled Gaussian noise, and one release of one coordinate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..mechanisms import DensityShape
from . import gaussian, scalar
from ._roots import falling_root
from .accountant import Accountant, LogDelta
from .event import Event
from .interval import EpsilonInterval


class ExactGaussian(Accountant):
    """Unsampled Gaussian noise in any dimension: the composition is one Gaussian with μ² = Σ steps·shift²/σ²."""

    name = "exact"

    def refusal(self, events: Sequence[Event]) -> str | None:
        if all(event.mechanism.isotropic and event.sampling_rate == 1 for event in events):
            return None
        return "it needs Gaussian noise without sampling"

    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        return gaussian.epsilon_interval(delta, self._mu(events))

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        lower, upper = gaussian.log_delta_bounds(epsilon, self._mu(events))
        return lower, upper, upper

    def _mu(self, events: Sequence[Event]) -> float:
        return math.sqrt(math.fsum(e.steps * e.shift**2 * e.mechanism.fisher_information for e in events))


class ExactScalar(Accountant):
    """One release of one coordinate (or of Gaussian noise), Poisson-sampled or not, by its level set."""

    name = "exact"

    def refusal(self, events: Sequence[Event]) -> str | None:
        if len(events) == 1 and events[0].steps == 1 and events[0].is_scalar and events[0].attained == 1:
            mechanism = events[0].mechanism
            if mechanism.isotropic or mechanism.density_shape is DensityShape.LOG_CONVEX_SIDES:
                return None
            return "its level sets are known for Gaussian noise and densities with log-convex sides only"
        return "it needs one release of one coordinate, and not a Poisson-sampled replace-one"

    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        (event,) = events
        target, high = math.log(delta), scalar.largest_epsilon(event)
        if math.isinf(high):
            high = 1.0
            while scalar.log_delta_bounds(event, high)[1] > target:
                high *= 2
        lower = self._root(event, target, high, bound=0)
        upper = self._root(event, target, high, bound=1)
        return EpsilonInterval(
            max(0.0, lower - 1e-12 * (1 + lower)), upper, upper + (1e-12 * (1 + upper) if upper else 0)
        )

    @staticmethod
    def _root(event: Event, target: float, high: float, *, bound: int) -> float:
        """ε at which the lower (0) or upper (1) bound of log δ meets the target, in [0, high]."""

        def excess(epsilon: float) -> float:
            return max(scalar.log_delta_bounds(event, epsilon)[bound], -1e6) - target

        return falling_root(excess, high)

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        lower, upper = scalar.log_delta_bounds(events[0], epsilon)
        return lower, upper, upper
