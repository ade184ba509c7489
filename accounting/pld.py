"""The privacy loss distribution accountant: proven intervals for composed, sampled, mixed scalar releases.

One step's loss is cut into pieces (`scalar_pieces`), moved onto a lattice once upwards and once downwards (`lattice`),
composed by a tilted FFT (`composition`) and read off with every error on the safe side (`lattice_delta`). The step h is chosen
from the width asked for: moving onto the lattice changes Λ(s) = Σ T·log E_A[e^{sL}] by about ΣT·s(s+1)·h²/12, hence ε by
ΣT·(s+1)·h²/12, each way; while the interval comes out too wide, h is made smaller. Directions of a sampled pair are
composed each alone, and the larger ε counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from ..mechanisms import DensityShape
from . import lattice
from .accountant import Accountant, LogDelta
from .cells import largest_loss
from .composition import Composed, TooManyPoints, compose
from .event import Event
from .interval import EpsilonInterval
from .lattice_delta import epsilon_bound, log_delta_bound
from .loss_pieces import LossPieces
from .poisson import sampled_loss
from .saddle import Cumulant, Saddle
from .scalar_pieces import ADD, REMOVE, REPLACE, directions, scalar_pieces

_MOST_POINTS = 2**21  # lattice points: about 100 MiB of arrays
_MOST_PIECES = 2.0**20  # lattice points of a single step
_ROUNDS = 7


class PrivacyLoss(Accountant):
    """Compositions of scalar releases (and Gaussian noise in any dimension), sampled or not, of any kinds mixed."""

    name = "pld"

    def refusal(self, events: Sequence[Event]) -> str | None:
        for event in events:
            if not event.is_scalar:
                return "a privacy loss distribution needs one coordinate, or Gaussian noise"
            if event.mechanism.density_shape not in (DensityShape.LOG_CONCAVE, DensityShape.LOG_CONVEX_SIDES):
                return f"nothing is known of the shape of the density of {event.mechanism.family}"
        return None

    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        target = math.log(delta)
        lower, upper = _worst_direction(events, _EpsilonQuestion(target, relative_width))
        upper = min(upper, _largest_epsilon(events))
        return EpsilonInterval(min(lower, upper), 0.5 * (lower + upper) if math.isfinite(upper) else lower, upper)

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        if epsilon >= _largest_epsilon(events):
            return -math.inf, -math.inf, -math.inf
        lower, upper = _worst_direction(events, _DeltaQuestion(epsilon, relative_width))
        return lower, 0.5 * (lower + upper) if math.isfinite(lower) else upper, upper


def _largest_epsilon(events: Sequence[Event]) -> float:
    """Σ steps·(largest loss): δ is 0 from there on (`inf` if a loss is unbounded)."""
    return math.fsum(e.steps * sampled_loss(largest_loss(e.mechanism, e.shift), e.sampling_rate) for e in events) * (
        1 + 1e-15 * len(events)
    )


# ---- what is asked: ε at δ, or δ at ε --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _EpsilonQuestion:
    log_delta: float
    relative_width: float

    def saddle(self, cumulant: Cumulant) -> Saddle:
        guess = cumulant.at_delta(self.log_delta, 1e12)
        most = 50 / (self.relative_width * max(guess.epsilon, 1e-300))
        return cumulant.at_delta(self.log_delta, most) if guess.tilt > most else guess

    def log_smallest_mass(self) -> float:
        return self.log_delta

    def bound(self, composed: Composed, *, upper: bool) -> float:
        return epsilon_bound(composed, self.log_delta, upper=upper)

    def width(self, lower: float, upper: float, saddle: Saddle) -> float:
        """The interval's width as a multiple of the one asked for."""
        return 0.0 if upper == 0 else (upper - lower) / (upper * self.relative_width)

    def nothing(self, *, upper: bool) -> float:
        return math.inf if upper else 0.0


@dataclasses.dataclass(frozen=True)
class _DeltaQuestion:
    epsilon: float
    relative_width: float

    def saddle(self, cumulant: Cumulant) -> Saddle:
        return cumulant.at_epsilon(self.epsilon, 50 / (self.relative_width * max(self.epsilon, 1e-12)))

    def log_smallest_mass(self) -> float:
        return -math.inf

    def bound(self, composed: Composed, *, upper: bool) -> float:
        return log_delta_bound(composed, self.epsilon, upper=upper)

    def width(self, lower: float, upper: float, saddle: Saddle) -> float:
        """A width of ε is worth s times as much in log δ; at ε = 0, and for tiny ones, 1e-6 counts as narrow."""
        if not math.isfinite(lower):
            return 0.0 if upper < -1e4 else math.inf
        return (upper - lower) / max(self.relative_width * self.epsilon * saddle.tilt, 1e-6)

    def nothing(self, *, upper: bool) -> float:
        return 0.0 if upper else -math.inf


Question = _EpsilonQuestion | _DeltaQuestion


# ---- the answer ------------------------------------------------------------------------------------------------------


def _worst_direction(events: Sequence[Event], question: Question) -> tuple[float, float]:
    """(lower, upper) over the directions."""
    symmetric = any(event.symmetric for event in events)
    if not symmetric:
        return _pairs(events, question, lambda lower, upper: (lower, upper))
    upper = _Solver(events, REPLACE, question).solve(both=False)[1]
    lower = _pairs([event.attained_pair for event in events], question, lambda lower, _: (lower, upper))[0]
    return lower, upper


def _pairs(events, question: Question, _unused: Callable) -> tuple[float, float]:
    lower, upper = _Solver(events, REMOVE, question).solve(both=True)
    if any(len(directions(event)) > 1 for event in events):
        less, more = _Solver(events, ADD, question).solve(both=True, enough=upper)
        lower, upper = max(lower, less), max(upper, more)
    return lower, upper


class _Solver:
    """One direction of a composition."""

    def __init__(self, events: Sequence[Event], direction: str, question: Question) -> None:
        self.events, self.direction, self.question = list(events), direction, question
        steps = math.fsum(event.steps for event in events)
        self.steps = steps
        self.depth = 60.0 + math.log(steps)
        self.coarse = [self._pieces(event, math.inf, 0.0) for event in self.events]
        self.cumulant = Cumulant([(p, e.steps) for p, e in zip(self.coarse, events, strict=True)])
        self.saddle = question.saddle(self.cumulant)
        self.overshoot = 0.0
        smallest = max(question.log_smallest_mass(), self.saddle.log_delta - 5)
        self.depth = math.log(steps) - smallest + 7 - math.log(question.relative_width)

    def _pieces(self, event: Event, step: float, offset: float) -> LossPieces:
        direction = self.direction if self.direction in directions(event) else directions(event)[0]
        return scalar_pieces(event, direction, self.depth, step, offset)

    def solve(self, *, both: bool, enough: float = -math.inf) -> tuple[float, float]:
        """(lower, upper) as narrow as asked; or as soon as the upper end is at most `enough`."""
        best = self.question.nothing(upper=False), self.question.nothing(upper=True)
        step, widest = self._first_step() * (3.0 if enough > -math.inf else 1.0), math.inf
        for _ in range(_ROUNDS):
            lower, upper, step = self._bounds(step, both=both or enough > -math.inf, enough=enough)
            best = max(best[0], lower), min(best[1], upper)
            width = self.question.width(*best, self.saddle)
            if best[1] <= enough or width <= 1:
                break
            if self._misplaced(*best):
                if not self._relocate(best[1]):
                    break
                step, widest = self._first_step(), math.inf
                continue
            if width > 0.7 * widest:
                break
            widest = width
            step *= min(max(0.85 / math.sqrt(width), 0.1), 0.7)
        return best

    def _bounds(self, step: float, *, both: bool, enough: float) -> tuple[float, float, float]:
        composed, step = self._compose(step, lattice.upper)
        upper = self.question.bound(composed, upper=True)
        if upper <= enough or not both:
            return self.question.nothing(upper=False), upper, step
        composed, step = self._compose(step, lattice.lower)
        return self.question.bound(composed, upper=False), upper, step

    def _misplaced(self, lower: float, upper: float) -> bool:
        """The saddle-point approximation was far off: the law is not near a Gaussian where δ is decided."""
        return isinstance(self.question, _EpsilonQuestion) and self.overshoot == 0 and not upper < 1.5 * lower

    def _relocate(self, upper: float) -> bool:
        """Find ε roughly by bounds of δ on wide lattices, then tilt no more than precision needs. False if ε is 0."""
        question = self.question
        assert isinstance(question, _EpsilonQuestion)
        target, most = question.log_delta, 50 / question.relative_width

        def excess(epsilon: float) -> float:
            self._place(epsilon, target, most)
            rough = _DeltaQuestion(epsilon, 0.1)
            composed, _ = self._compose(self._step_for(0.1 * epsilon), lattice.upper)
            return rough.bound(composed, upper=True) - target

        high = min(upper, self.saddle.epsilon) if math.isfinite(upper) else self.saddle.epsilon
        low = high
        while excess(low) <= 0:
            low, high = 0.5 * low, low
            if low < 1e-13 * self.saddle.deviation:
                return False
        for _ in range(4):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        self._place(high, target, most / high)
        return True

    def _place(self, epsilon: float, log_delta: float, most: float) -> None:
        """The smallest tilt whose FFT error at ε is small against δ."""
        allowance = max(math.log(1e-2 * self.question.relative_width / 1e-14), 1.0)
        highest = self.cumulant.last_calm_tilt(self.cumulant.at_epsilon(epsilon, most).tilt)
        chosen = self.cumulant.least_tilt(epsilon, log_delta + allowance, highest)
        self.overshoot = max(chosen.value - chosen.tilt * epsilon - log_delta, 1.0)
        self.saddle = dataclasses.replace(chosen, epsilon=epsilon)

    def _first_step(self) -> float:
        epsilon = max(self.saddle.epsilon, 0.0)
        if isinstance(self.question, _DeltaQuestion):
            epsilon = self.question.epsilon
        return self._step_for(self.question.relative_width * max(epsilon, 1e-3 * self.saddle.deviation))

    def _step_for(self, width: float) -> float:
        """The lattice step at which each end of the interval is off by about a quarter of `width` (of ε)."""
        step = math.sqrt(3.0 * width / (self.steps * (self.saddle.tilt + 1)))
        return min(step, self.saddle.deviation)

    def _compose(self, step: float, move) -> tuple[Composed, float]:
        """The composition on a lattice of about `step`, wider if there would be too many points."""
        s, deviation = self.saddle.tilt, self.saddle.deviation
        precise = self.question.relative_width * min(1.0, s * max(self.saddle.epsilon, 1e-3 / s)) / (1 + s * deviation)
        log_outside = math.log(1e-4 * min(precise, 1e-3)) - self.overshoot
        while True:
            step = self._on_ends(step)
            try:
                kinds = [self._lattice(event, coarse, step, move) for event, coarse in self._with_coarse()]
                return compose(kinds, tilt=s, log_outside=log_outside, most_points=_MOST_POINTS), step
            except TooManyPoints as error:
                step *= 1.1 * max(error.points / _MOST_POINTS, 1.1)

    def _with_coarse(self):
        return zip(self.events, self.coarse, strict=True)

    def _lattice(self, event: Event, coarse: LossPieces, step: float, move) -> tuple[lattice.LatticeLoss, int]:
        top, bottom = _ends(coarse)
        if top - bottom > _MOST_PIECES * step:
            raise TooManyPoints((top - bottom) / step * (_MOST_POINTS / _MOST_PIECES))
        offset = 0.0
        if math.isfinite(largest_loss(event.mechanism, event.shift)):  # its top may be an atom: a lattice point just below
            offset = top - step * round(top / step) - (1e-14 * max(abs(top), abs(bottom)) + 5e-12 * step)
        return move(self._pieces(event, step, offset), step, offset), event.steps

    def _on_ends(self, step: float) -> float:
        """A step near `step` that puts both ends of a bounded loss on the lattice: there may be atoms."""
        (event, *others), (coarse, *_) = self.events, self.coarse
        if others or math.isinf(largest_loss(event.mechanism, event.shift)):
            return step
        top, bottom = _ends(coarse)
        if top <= bottom or (top - bottom) / step > 1e7:
            return step
        return (top - bottom) / math.ceil((top - bottom) / step) * (1 + 4e-16)


def _ends(pieces: LossPieces) -> tuple[float, float]:
    """The largest and the smallest loss of merged pieces."""
    return float(np.max(pieces.mean_low)), float(np.min(pieces.mean_low))
