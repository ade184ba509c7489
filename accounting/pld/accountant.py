"""The privacy loss distribution accountant: proven intervals for composed, sampled, mixed scalar releases.

One step's loss is cut into pieces (`pieces`, `scalar`, `sampling`), moved onto a lattice once upwards and once
downwards (`lattice`), composed by a tilted FFT (`composition`) and read off with every error on the safe side
(`reading`), or, where rare losses decide, by `rare_losses`. `refinement` chooses lattices until the interval is narrow.
The two directions of a sampled pair are composed each alone, and the larger ε counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..accountant import Accountant, LogDelta
from ..cells import largest_loss
from ..event import Event
from ..interval import AccountantsDisagree, EpsilonInterval
from ..poisson import sampled_loss
from .infinite import refined, refined_upper
from .questions import DeltaQuestion, EpsilonQuestion, Question
from .refinement import rough_answer
from .sampling import ADD, REMOVE, REPLACE, directions

_LEAST_LOG_DELTA = math.log(1e-300)  # below it single masses leave the normal floats, and their rounding is unbounded


class PrivacyLoss(Accountant):
    """Compositions of scalar releases (and Gaussian noise in any dimension), sampled or not, of any kinds mixed."""

    name = "pld"
    resolution = 1e-5

    def refusal(self, events: Sequence[Event]) -> str | None:
        for event in events:
            if event.is_spherical:
                if event.symmetric:
                    return "sampled replace-one is not bounded for spherical noise"
                continue
            if event.symmetric and event.mechanism.support < math.inf:
                return "sampled replace-one is not bounded for noise of bounded support"
            if not event.is_scalar:
                return "a privacy loss distribution needs one coordinate, Gaussian noise or spherical noise"
        return None

    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        lower, upper = _bounds(events, EpsilonQuestion(max(math.log(delta), _LEAST_LOG_DELTA), relative_width))
        upper = min(upper if math.log(delta) >= _LEAST_LOG_DELTA else math.inf, _largest_epsilon(events))
        if lower > upper * (1 + 1e-9):
            raise AccountantsDisagree(f"the lower end {lower} lies above the upper end {upper}")
        lower = min(lower, upper)
        return EpsilonInterval(lower, 0.5 * (lower + upper) if math.isfinite(upper) else lower, upper)

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        if epsilon >= _largest_epsilon(events):
            return -math.inf, -math.inf, -math.inf
        lower, upper = _bounds(events, DeltaQuestion(epsilon, relative_width))
        lower, upper = (lower if lower >= _LEAST_LOG_DELTA else -math.inf), max(upper, _LEAST_LOG_DELTA)
        return lower, 0.5 * (lower + upper) if math.isfinite(lower) else upper, upper

    def epsilon_upper(self, events: Sequence[Event], delta: float, relative_width: float) -> float:
        if math.log(delta) < _LEAST_LOG_DELTA:
            return _largest_epsilon(events)
        return min(_upper(events, EpsilonQuestion(math.log(delta), relative_width)), _largest_epsilon(events))

    def log_delta_upper(self, events: Sequence[Event], epsilon: float, relative_width: float) -> float:
        if epsilon >= _largest_epsilon(events):
            return -math.inf
        return max(_upper(events, DeltaQuestion(epsilon, relative_width)), _LEAST_LOG_DELTA)

    def log_delta_rough(self, events: Sequence[Event], epsilon: float) -> float:
        if epsilon >= _largest_epsilon(events):
            return -math.inf
        rough = rough_answer(events, DeltaQuestion(epsilon, 0.05))
        return rough if math.isfinite(rough) else self.log_delta_upper(events, epsilon, 0.05)


def _upper(events: Sequence[Event], question: Question) -> float:
    if any(event.symmetric for event in events):
        return refined_upper(events, REPLACE, question)
    upper = refined_upper(events, REMOVE, question)
    if _has_add(events) and not question.is_beyond(_largest_add(events), upper):
        upper = max(upper, refined_upper(events, ADD, question, enough=upper))
    return upper


def lower_bound(events: Sequence[Event], question: Question) -> float:
    """A bound from below alone, of compositions that may have `copies`."""
    if any(event.copies > 1 for event in events):
        return refined(events, REMOVE, question)[0]
    return _pairs(events, question)[0]


def _largest_epsilon(events: Sequence[Event]) -> float:
    """Σ steps·(largest loss): δ is 0 from there on (`inf` if a loss is unbounded)."""
    total = math.fsum(e.steps * sampled_loss(largest_loss(e.mechanism, e.shift), e.sampling_rate) for e in events)
    return total * (1 + 1e-15)


def _bounds(events: Sequence[Event], question: Question) -> tuple[float, float]:
    """(lower, upper) over the directions."""
    if not any(event.symmetric for event in events):
        return _pairs(events, question)
    _, upper = refined(events, REPLACE, question)
    lower, _ = _pairs([event.attained_pair for event in events], question)
    return lower, upper


def _pairs(events: Sequence[Event], question: Question) -> tuple[float, float]:
    lower, upper = refined(events, REMOVE, question)
    if _has_add(events) and not question.is_beyond(_largest_add(events), upper):
        less, more = refined(events, ADD, question, enough=upper)
        lower, upper = max(lower, less), max(upper, more)
    return lower, upper


def _has_add(events: Sequence[Event]) -> bool:
    """Whether the directions differ."""
    return any(len(directions(event)) > 1 for event in events)


def _largest_add(events: Sequence[Event]) -> float:
    """Bound on the composed loss of *add*: per step −log(1 − q + q·e^−ℓ_max) <= −log(1−q)."""
    total = 0.0
    for event in events:
        loss, rate = largest_loss(event.mechanism, event.shift), event.sampling_rate
        total += event.steps * (loss if rate == 1 else -math.log1p(rate * math.expm1(-loss)))
    return total * (1 + 1e-13)
