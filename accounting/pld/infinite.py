"""Losses that are infinite with positive probability (noise of bounded support), apart from all others.

With m_e the mass under A of one step of event e at which the loss is infinite (only *remove* has any: q·P(X > A − t)),

    δ(ε) = E_A[(1 − e^{ε − L_1 − … − L_T})_+] = D + E_A[(1 − e^{ε − ΣL})_+; all L finite],   D = 1 − Π (1 − m_e)^{T_e},

and the last term is that of the finite pieces, composed as they are (laws of mass below 1). So ε at δ is what they have
at δ − D, and infinite if δ < D.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ..event import Event
from . import refinement
from .questions import DeltaQuestion, EpsilonQuestion, Question
from .sampling import REMOVE, direction_of
from .scalar import infinite_mass


def refined(
    events: Sequence[Event], direction: str, question: Question, *, enough: float = -math.inf
) -> tuple[float, float]:
    """(lower, upper) of the answer in one direction, as `refinement.refined`."""
    least, most = _log_infinite(events, direction)
    if most == -math.inf:
        return refinement.refined(events, direction, question, enough=enough)
    if isinstance(question, DeltaQuestion):
        if most == 0:
            return least, most
        lower, upper = refinement.refined(events, direction, question)
        return float(np.logaddexp(lower, least)), min(float(np.logaddexp(upper, most)), 0.0)
    assert isinstance(question, EpsilonQuestion)
    easier, harder = _without(question, least), _without(question, most)
    upper = refinement.refined(events, direction, harder, enough=enough)[1] if harder else math.inf
    lower = refinement.refined(events, direction, easier)[0] if easier else math.inf
    return lower, upper


def refined_upper(events: Sequence[Event], direction: str, question: Question, *, enough: float = -math.inf) -> float:
    """The upper end alone, as `refinement.refined_upper`."""
    _, most = _log_infinite(events, direction)
    if most == -math.inf:
        return refinement.refined_upper(events, direction, question, enough=enough)
    if isinstance(question, DeltaQuestion):
        if most == 0:
            return most
        return min(float(np.logaddexp(refinement.refined_upper(events, direction, question), most)), 0.0)
    assert isinstance(question, EpsilonQuestion)
    harder = _without(question, most)
    return refinement.refined_upper(events, direction, harder, enough=enough) if harder else math.inf


def _without(question: EpsilonQuestion, log_infinite: float) -> EpsilonQuestion | None:
    """The question at δ − D, or None if D is δ or more."""
    if log_infinite >= question.log_delta:
        return None
    rest = question.log_delta + math.log(-math.expm1(log_infinite - question.log_delta))
    return dataclasses.replace(question, log_delta=rest)


def _log_infinite(events: Sequence[Event], direction: str) -> tuple[float, float]:
    """(lower, upper) bounds of log D."""
    logs = [
        (event.steps, event.sampling_rate, infinite_mass(event.mechanism, event.shift))
        for event in events
        if not event.is_spherical and direction_of(event, direction) == REMOVE
    ]
    ends = []
    for index in (0, 1):
        kept = 0.0  # log of the probability that every loss is finite
        for steps, rate, masses in logs:
            mass = rate * math.exp(masses[index])
            kept += steps * math.log1p(-mass) if mass < 1 else -math.inf
        ends.append(math.log(-math.expm1(kept)) if kept < 0 else -math.inf)
    return ends[0] - 1e-14, min(ends[1] + 1e-14, 0.0)
