"""Which lattice, which tilt: chooses them from approximations, then refines until the interval is as narrow as asked.

Nothing here can make a bound false; it decides how narrow it is and how long it takes. Moving a step's loss onto a
lattice of step h changes Λ(s) = Σ T·log E_A[e^{sL}] by about ΣT·s(s+1)·h²/12, hence ε by ΣT·(s+1)·h²/12, each way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..event import Event
from .composition import Composed, TooManyPoints, Unresolved
from .cutting import step_pieces
from .questions import EpsilonQuestion, Question
from .rare_losses import RareLosses
from .sampling import REMOVE, direction_of
from .scalar import Cuts, TooManyCuts
from .ways import PlainWay, RareWay, Way

_FEW_POINTS = 2**16
_LEAST_ORDER = 0.5  # of the width in the lattice step: below it something else decides
_ROUNDS = 6
_WIDENINGS = 12
_OUT_OF_RANGE = (Unresolved, TooManyCuts, OverflowError, ValueError)  # ValueError: of math, at NaN and logs of 0
_UPPER = 1 / 5  # the upper end is the guarantee: its lattice is finer, its error a twentieth of the lower end's
_FEW_STEPS = 8  # with fewer, a composition is no sum of many small losses and the plain way works


def refined(
    events: Sequence[Event], direction: str, question: Question, *, enough: float = -math.inf
) -> tuple[float, float]:
    """(lower, upper) of the answer in one direction; stops early once the upper end is at most `enough`."""
    if _is_nothing(events, direction, question):
        return 0.0, 0.0
    best = question.nothing(upper=False), question.nothing(upper=True)
    for way in _ways(events, direction, question):
        best = _refine(way, question, best, enough)
        if best[1] <= enough or question.width(*best, way.slope) <= 1.0:
            break
    return best


def _is_nothing(events: Sequence[Event], direction: str, question: Question) -> bool:
    """Whether ε is 0 because δ(0) <= Σ steps·(δ(0) of one) is at most δ: each piece by its mean, or its upper end."""
    if not isinstance(question, EpsilonQuestion):
        return False
    total = 0.0
    for event in events:
        with np.errstate(all="ignore"):  # NaN makes the comparison below false
            pieces = step_pieces(event, direction_of(event, direction), Cuts(700.0))
            loss = np.where(pieces.low >= 0, pieces.mean_high, pieces.high)
            gain = np.maximum(-np.expm1(-loss), 0.0)
            total += event.steps * float(np.sum(np.exp(pieces.log_mass_high) * gain)) * (1 + 1e-12)
    return total <= math.exp(question.log_delta)


def _ways(events: Sequence[Event], direction: str, question: Question) -> Iterator[Way]:
    """Ways to the law that can be set up, the likelier first."""
    kinds: list[type[Way]] = [PlainWay]
    if math.fsum(event.steps for event in events) >= _FEW_STEPS:
        kinds.append(RareWay)
    late = None
    for kind in kinds:
        try:
            with np.errstate(all="ignore"):  # out-of-range numbers are noticed where they would matter
                way = kind(events, direction, question)
        except _OUT_OF_RANGE:
            continue
        if isinstance(way, PlainWay) and way.is_blown_up and len(kinds) > 1:
            late = way
        else:
            yield way
    if late is not None:
        yield late


def refined_upper(events: Sequence[Event], direction: str, question: Question, *, enough: float = -math.inf) -> float:
    """The upper end alone, on the lattices that `refined` tries first."""
    if _is_nothing(events, direction, question):
        return 0.0
    best = nothing = question.nothing(upper=True)
    for way in _ways(events, direction, question):
        found, is_settled = _upper_by(way, question, enough)
        best = min(best, found)
        if best <= enough or (is_settled and best < nothing):
            break
    return best


def _upper_by(way: Way, question: Question, enough: float) -> tuple[float, bool]:
    """The upper end, and whether the lattice is as fine as the width asks (or finer than it takes to be `enough`)."""
    finest = _UPPER * way.first_step()
    step, best = finest if enough == -math.inf else 9 * finest, question.nothing(upper=True)
    while True:
        try:
            bound, used = _bound(way, question, step, upper=True)
        except _OUT_OF_RANGE:
            return best, False
        best = min(best, bound)
        if best <= enough or used > 1.01 * step or step <= finest * (1 + 1e-9):
            return best, used <= 1.01 * step
        step = max(step / 3, finest)


def rough_answer(events: Sequence[Event], question: Question) -> float:
    """An approximation of the answer for *remove*, without any lattice; NaN where there is none."""
    for way in _ways(events, REMOVE, question):
        return way.guess if isinstance(question, EpsilonQuestion) else way.rough_log_delta()
    return math.nan


def lattice_law(events: Sequence[Event], direction: str, question: Question) -> Composed:
    """The composed law on the lattice that `refined` tries first, from above; tilted to the question's saddle point."""
    with np.errstate(all="ignore"):
        way = PlainWay(events, direction, question)
    law, _ = _with_room(way, way.first_step(), upper=True)
    assert isinstance(law, Composed)
    return law


def _refine(way: Way, question: Question, best: tuple[float, float], enough: float) -> tuple[float, float]:
    step, before, is_finest = way.first_step() * (3.0 if enough > -math.inf else 1.0), (math.inf, math.inf), False
    for _ in range(_ROUNDS):
        try:
            if not is_finest:
                upper, used = _bound(way, question, _UPPER * step, upper=True)
                best = best[0], min(best[1], upper)
                is_finest = used > 1.01 * _UPPER * step
            if best[1] <= enough:
                break
            lower, used = _bound(way, question, step, upper=False)
            best = max(best[0], lower), best[1]
        except _OUT_OF_RANGE:
            break
        width = question.width(*best, way.slope)
        if width <= 1 or used > 1.01 * step:
            break
        order = _order(width, step, *before)
        if order < _LEAST_ORDER and way.cut_finer():
            is_finest = False
        elif order < _LEAST_ORDER and way.span > _FEW_POINTS * step:
            break
        else:  # how atoms lie between lattice points is a matter of luck: a stall may end on a much finer lattice
            before = width, step
            step *= min(max((0.72 / width) ** (1 / order), 0.1), 0.7) if order >= _LEAST_ORDER else 0.2
    return best


def _bound(way: Way, question: Question, step: float, *, upper: bool) -> tuple[float, float]:
    """The bound from one lattice, and its step."""
    law, used = _with_room(way, step, upper=upper)
    return question.bound(law, upper=upper, guess=way.guess), used


def _order(width: float, step: float, wider: float, longer: float) -> float:
    """The power of the lattice step that the width follows: 2, or 1 where most losses are small beside the step."""
    if math.isinf(wider):
        return 2.0
    return min(max(math.log(wider / width) / math.log(longer / step), 0.0), 2.0)


def _with_room(way: Way, step: float, *, upper: bool) -> tuple[Composed | RareLosses, float]:
    """The law on a lattice of `step`, or of a wider one if that needs too many points; and the step."""
    step = max(step, 1.05 * way.span / way.most_points)
    for _ in range(_WIDENINGS):
        if not 1e-290 < step < 1e290:
            raise Unresolved(f"a lattice step of {step}")
        try:
            with np.errstate(all="ignore"):
                law = way.law(step, upper=upper)
            way.span = step * (law.bulk if isinstance(law, RareLosses) else law).mass.size
            return law, step
        except TooManyPoints as error:
            step *= 1.1 * max(error.points / way.most_points, 1.1)
        except TooManyCuts as error:
            step *= 1.1 * max(error.ratio, 1.1)
    raise Unresolved("no lattice has room")
