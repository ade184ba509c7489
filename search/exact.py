"""Shapes at the budget by `accounting`: roughly, to rank them in a refinement, and proven, for what is returned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..accounting import EpsilonInterval, calibrate, epsilon
from ..accounting.api import choose
from ..accounting.event import to_events
from ..accounting.release import Release
from ..mechanisms import Mechanism
from .constraint import Constraint

_TRIES = 25
_USUAL_SLOPE = -1.3  # of log ε over the log of the scale
_FLATTEST = -0.05  # ε of noise with jumps has plateaus: bounds the steps across one
_PASSES = 3  # over all constraints: rounding may undo one of them once


class SearchError(RuntimeError):
    """A calibrated noise did not pass its own check, or no family has a noise for the problem."""


class Effort(NamedTuple):
    """How near a factor has to come to the budget."""

    width: float
    """Relative width of the ε interval asked for; its upper end is used, which is off by much less."""
    close: float
    """Relative error of ε from which the last secant step is taken without a further look."""
    bracket: float
    """Relative width of the bracket of factors at which a search around a jump of ε ends."""


RANK = Effort(5e-3, 3e-3, 1e-5)
"""Factors to about 1e-4: they rank the shapes of a refinement."""
SWEEP = Effort(5e-2, 3e-2, 1e-2)
"""Factors to about 1 %: they choose where a refinement starts."""


def exact_factor(
    constraints: Sequence[Constraint],
    shape: Mechanism,
    *,
    start: float = 1.0,
    effort: Effort = RANK,
    is_hopeless: Callable[[float], bool] = lambda factor: False,
) -> float:
    """The factor that brings the upper end of the exact interval of `shape` to ε under the hardest constraint.

    As near as `effort` asks; what is returned to a user is `calibrated`. `start` is a first guess. A factor that is
    still too small and already hopeless (because its noise costs too much) is returned as it is.
    """
    at = math.log(start)
    for i, asked in enumerate(constraints):
        if i and _log_excess(asked, shape, at, effort) <= 0:
            continue
        at = _solve(asked, shape, at, effort, is_hopeless)
    return math.exp(at)


def calibrated(constraints: Sequence[Constraint], shape: Mechanism) -> tuple[Mechanism, int]:
    """(the shape at the least scale whose proven ε meets every constraint, which of them binds)."""
    noise, binding = _calibrate(constraints[0], shape), 0
    for _ in range(_PASSES):
        broken = [i for i, asked in enumerate(constraints) if proven(asked, noise).upper > asked.epsilon]
        if not broken:
            return noise, binding
        for i in broken:
            if proven(constraints[i], noise).upper > constraints[i].epsilon:
                noise, binding = _calibrate(constraints[i], shape), i
    raise SearchError(f"no scale of {shape!r} was proven to meet all of {[asked.text() for asked in constraints]}")


def proven(asked: Constraint, noise: Mechanism, *, verify: bool = False) -> EpsilonInterval:
    """The ε interval of a noise as a constraint uses it; with `verify` the other accountants are asked too."""
    return epsilon(noise, **asked.budget(), verify=verify)


def is_supported(asked: Constraint, shape: Mechanism) -> str | None:
    """None, or the reason why nothing is proven for this shape under the constraint."""
    release = Release(shape, asked.steps, asked.sampling_rate, asked.dimension, asked.adjacency)
    try:
        choose(to_events([release]), "best")
    except ValueError as error:
        return str(error)
    return None


def _calibrate(asked: Constraint, shape: Mechanism) -> Mechanism:
    return calibrate(shape, epsilon=asked.epsilon, **asked.budget())


def _log_excess(asked: Constraint, shape: Mechanism, log_factor: float, effort: Effort) -> float:
    """log(ε/target) of the scaled shape, ε the upper end of a rough interval; −inf where ε is 0."""
    upper = epsilon(shape.scaled(math.exp(log_factor)), **asked.budget(), relative_width=effort.width).upper
    return math.log(upper / asked.epsilon) if upper > 0 else -math.inf


def _solve(
    asked: Constraint, shape: Mechanism, at: float, effort: Effort, is_hopeless: Callable[[float], bool]
) -> float:
    """The log factor at which ε is the target: secant steps inside a bracket; at a jump of ε its private side."""
    below, above = -math.inf, math.inf  # log factors with ε above and below the target
    slope, last = _USUAL_SLOPE, (math.nan, math.nan)
    for _ in range(_TRIES):
        value = _log_excess(asked, shape, at, effort)
        below, above = (at, above) if value > 0 else (below, at)
        if value > 0 and is_hopeless(math.exp(at)):
            return at
        if above - below < effort.bracket:
            break
        measured = (value - last[1]) / (at - last[0])
        is_measured = -20 < measured < -0.2
        slope = min(max(measured, -20.0), _FLATTEST) if math.isfinite(measured) else _USUAL_SLOPE
        step = min(max(-value / slope, -3.0), 3.0)
        if abs(step) < effort.bracket or (is_measured and abs(value) <= effort.close):
            return at + step
        last = at, value
        at += step
        if not below < at < above:
            at = 0.5 * (below + above)
    return above if math.isfinite(above) else at
