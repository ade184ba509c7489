"""The characteristic-function accountant: δ(ε) of a composition as an inversion integral. A second opinion, no proof.

For losses L = log dA/dB, Λ(z) = Σ steps·log E_A[e^{zL}] over all releases and S the total loss,

    δ(ε) = E_A[(1 − e^{ε−S})_+] = (1/2πi)·∫_{s−i∞}^{s+i∞} e^{Λ(z)−zε}/(z(z+1)) dz    for every s > 0,

an analytic form of the accountant of Zhu, Dong and Wang (arXiv 2106.08567) at the saddle point of Alghamdi et al.
(arXiv 2208.09595), where nothing cancels however small δ is. No loss is put on a grid. Sampled releases are composed in
each direction alone, A = (1−q)Q+qP against B = Q (*remove*) and A = Q against B = (1−q)Q+qP (*add*); the larger ε is
the answer.

What is proven, given Λ: the discretisation error of the trapezoid rule is below e^−32 of δ (`line`).
What is *a posteriori*: Λ itself (quadrature whose convergence is observed, `nodes`), the place where the
integral ends, and rounding. The stated error is the difference between two lines, with different real parts, steps,
ends and nodes, times a factor (3 where the integrand dies out; 30 where a window fades it), plus an estimate of
rounding. The end is moved out until this error is small; a case where it does not become small is a `ValueError`. Such
are ε beside a kink of δ (few releases, or atoms), and rare large losses that keep every line far above a tiny δ.
Within 1e-7 of the largest loss, ε is placed by Laplace's method and the interval ends at the largest loss. ε = 0 is
proven where the sum of all total variations is at most δ.
So the interval is not a guarantee: it is there to be compared with a proven one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from ...mechanisms import DensityShape, SphericalGamma
from .. import scalar
from ..accountant import Accountant, LogDelta, NoAnswer
from ..event import Event
from ..interval import EpsilonInterval
from .law import refusal
from .line import Composed, Line, alias_period, compose
from .nodes import Resolution, Undecided, Unresolved

Result = TypeVar("Result")

_DEPTH = 45.0  # −log of the tail mass that is cut or lumped, relative to δ/steps
_FIRST_END = 12.5  # standard deviations of the characteristic function of a normal loss
_MOST_DOUBLINGS = 24
_GOAL = 3e-10  # stated error of log δ, or relative error of ε, at which the search for a better end stops
_TOLERATED = 1e-6  # error of log δ above which there is no result, unless the caller asked for less
_FACTOR_SHARP, _FACTOR_WINDOW = 3.0, 30.0  # the stated error in units of the difference between two lines
_LOST = 4.0  # log of the digits given up for a longer step
_NEAR = 0.05  # a line serves for ε within this many units of √ψ″
_AT_THE_END = 3e7  # s·(largest loss) beyond which Laplace's method places ε well enough


class CharacteristicFunction(Accountant):
    """Compositions of scalar releases by numerical inversion; its error is stated, not proven."""

    name = "cf"

    def refusal(self, events: Sequence[Event]) -> str | None:
        return next((reason for reason in map(refusal, events) if reason), None)

    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        """Raises ValueError with the reason where δ cannot be resolved to a small error."""
        if not events:
            return EpsilonInterval(0.0, 0.0, 0.0)
        directions = self._directions(events)
        if sum(e.steps * math.exp(scalar.log_delta_bounds(e, 0.0)[1]) for e in events) <= delta:
            return EpsilonInterval(0.0, 0.0, 0.0)  # δ(0), the total variation, adds up at most
        each = [self._resolved(d.epsilon, math.log(delta), relative_width) for d in directions]
        return EpsilonInterval(*(max(values) for values in zip(*each, strict=True)))

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        """Raises ValueError with the reason where δ cannot be resolved to a small error."""
        if not events:
            return -math.inf, -math.inf, -math.inf
        each = [self._resolved(d.log_delta, epsilon, relative_width) for d in self._directions(events)]
        lower, estimate, upper = (max(values) for values in zip(*each, strict=True))
        return lower, estimate, upper

    @staticmethod
    def _resolved(compute: Callable[[float, float], Result], argument: float, relative_width: float) -> Result:
        try:
            return compute(argument, relative_width)
        except Unresolved as error:
            raise NoAnswer(f"the characteristic-function accountant cannot resolve this case: {error}") from error

    def _directions(self, events: Sequence[Event]) -> list[Direction]:
        reason = self.refusal(events)
        if reason:
            raise NoAnswer(f"the characteristic-function accountant does not support this: {reason}")
        symmetric = all(event.sampling_rate == 1 for event in events)
        return [Direction(events, remove=remove) for remove in ((True,) if symmetric else (True, False))]


class _Found(NamedTuple):
    """A point (ε, log δ) of the privacy profile, the error of log δ, and the slope of log δ in ε."""

    epsilon: float
    log_delta: float
    error: float
    slope: float


class Direction:
    """A composition in one direction, *remove* or *add*."""

    def __init__(self, events: Sequence[Event], *, remove: bool):
        self._events, self._remove = events, remove
        # A density with flats and ramps may have a loss of near-atoms, whose sums make near-kinks of δ that two windows
        # can miss alike (as of a searched noise at q = 0.001, T = 1000): then only a sum that has died out will do.
        self._allows_window = all(
            isinstance(e.mechanism, SphericalGamma) or e.mechanism.density_shape is not DensityShape.UNIMODAL
            for e in events
        )
        self._log_steps = math.log(sum(event.steps for event in events))

    def epsilon(self, target: float, relative_width: float) -> EpsilonInterval:
        """ε at log δ = `target`, with the stated error."""
        composed, s = self._saddle(target, lambda composed, guess: composed.saddle_of_delta(target, guess))
        epsilon, zero = composed.laplace(s)[0], EpsilonInterval(0.0, 0.0, 0.0)
        if self._at_the_end(composed, s):
            gap = max(composed.largest - epsilon, 1e-12 * composed.largest)
            return EpsilonInterval(composed.largest - 3 * gap, composed.largest - gap, composed.largest)
        if epsilon < 1 / s and self._zero_suffices(target):
            return zero
        try:
            found = self._found(composed, s, max(epsilon, 0.01 / s), target, fixed_epsilon=False)
            error, value = found.error / abs(found.slope), found.epsilon
            if error > max(relative_width, 1e-9) * abs(value) and found.error > _TOLERATED:
                raise Unresolved(f"ε is {value:.6g} to an error of {error:.1g} only")
        except Unresolved:
            if self._zero_suffices(target):
                return zero
            raise
        return EpsilonInterval(max(value - error, 0.0), max(value, 0.0), max(min(value + error, composed.largest), 0.0))

    def _zero_suffices(self, target: float) -> bool:
        """Whether δ(0) is below the target for sure."""
        at_zero = self._at_epsilon(0.0)
        return at_zero.log_delta + at_zero.error <= target

    def log_delta(self, epsilon: float, relative_width: float) -> LogDelta:
        """(lower, estimate, upper) of log δ at `epsilon`, with the stated error."""
        found = self._at_epsilon(epsilon)
        if found.error > max(relative_width * epsilon * abs(found.slope), _TOLERATED):
            raise Unresolved(f"log δ is {found.log_delta:.6g} to an error of {found.error:.1g} only")
        return found.log_delta - found.error, found.log_delta, min(found.log_delta + found.error, 0.0)

    def _at_epsilon(self, epsilon: float) -> _Found:
        log_delta = -30.0
        for _ in range(50):  # deeper tails until they are deep enough for δ
            guess = log_delta
            composed, s = self._saddle(guess, lambda composed, near: composed.saddle_of_epsilon(epsilon, near))
            if epsilon >= composed.largest:
                return _Found(epsilon, -math.inf, 0.0, -math.inf)
            log_delta = composed.laplace(s)[1]
            if log_delta >= guess - 5:
                break
        if self._at_the_end(composed, s):
            raise Unresolved("ε is within rounding of the largest loss")
        return self._found(composed, s, epsilon, log_delta, fixed_epsilon=True)

    # ---- two lines, ever longer ----------------------------------------------------------------------------

    def _saddle(self, log_delta: float, solve: Callable[[Composed, float], float]) -> tuple[Composed, float]:
        """(the composition at nodes for saddle points near s, s = `solve` (composition, guess))."""
        depth = self._depth(log_delta)
        variance = compose(self._events, self._remove, Resolution((0.0,), 0.0, depth)).cumulants(0.0).variance
        guess = math.sqrt(2 * max(-log_delta, 1.0) / variance)
        while True:
            composed = compose(self._events, self._remove, Resolution((0.0, guess), 0.0, depth))
            s = solve(composed, guess)
            if s < 1.5 * guess:
                return composed, s
            if self._at_the_end(composed, guess):
                return composed, guess
            guess = min(s, 100 * guess)  # nodes that do not resolve s put it too far

    def _depth(self, log_delta: float) -> float:
        return _DEPTH - log_delta + self._log_steps

    def _found(self, composed: Composed, s: float, epsilon: float, log_delta: float, *, fixed_epsilon: bool) -> _Found:
        """The point of the profile at ε or at log δ, the other being a guess: pairs of lines until they agree."""
        deviation = max(math.sqrt(composed.cumulants(s).variance), 0.3 * math.sqrt(composed.laplace(s)[2]))
        frequency = _FIRST_END / deviation
        best: _Found | None = None
        reason: Unresolved | None = None
        for _ in range(_MOST_DOUBLINGS):
            s = composed.saddle_of_epsilon(epsilon, s)
            try:
                found, useful, sharp = self._pair(composed, s, epsilon, log_delta, frequency, fixed_epsilon)
            except Undecided as error:
                reason = error
                frequency *= 4
                continue
            except Unresolved as error:
                reason = Unresolved(f"{reason}; {error}") if reason else error
                break
            if best is not None and not self._agree(best, found):
                best = None  # an agreement by chance
            if found.error > 1:
                frequency *= 4
                continue
            near = self._is_near(composed, s, epsilon, log_delta, found)
            epsilon, log_delta = found.epsilon, found.log_delta
            if not near and found.error < 0.01:
                continue
            if useful:
                stalled = best is not None and best.error < 1e-8 and found.error > 0.5 * best.error
                best = found if best is None or found.error < best.error else best
                if sharp or stalled or found.error < _GOAL * max(1.0, abs(epsilon * found.slope)):
                    return best
            frequency *= 2 if found.error < 0.1 else 4
        if best is None:
            raise reason or Unresolved("two lines do not agree, however long")
        return best

    def _pair(
        self, composed: Composed, s: float, epsilon: float, log_delta: float, frequency: float, fixed_epsilon: bool
    ) -> tuple[_Found, bool, bool]:
        """(the point on two lines, the second longer, with the stated error; whether to be used; whether sharp)."""
        s = self._cheapest(composed, s, epsilon, log_delta)
        depth, lines, points = self._depth(log_delta), [], []
        for tilt, end in ((s, frequency), (0.9 * s, 1.25 * frequency)):
            resolved = compose(self._events, self._remove, Resolution((tilt,), end, depth))
            line = Line(resolved, tilt, epsilon, log_delta, end)
            if fixed_epsilon:
                point = (epsilon, *line.log_delta(epsilon))
            else:
                root, slope = line.root(log_delta, epsilon, composed.largest)
                point = (root, log_delta, slope)
            lines.append(line)
            points.append(point)
        (epsilon_1, log_delta_1, _), (epsilon_2, log_delta_2, slope) = points
        difference = abs(epsilon_1 - epsilon_2) * abs(slope) + abs(log_delta_1 - log_delta_2)
        sharp = all(line.sharp for line in lines)
        error = difference * (_FACTOR_SHARP if sharp else _FACTOR_WINDOW)
        error += max(line.rounding(epsilon_2) for line in lines)
        found = _Found(epsilon_2, log_delta_2, error, slope)
        return found, sharp or (self._allows_window and all(line.settled for line in lines)), sharp

    @staticmethod
    def _agree(one: _Found, other: _Found) -> bool:
        difference = abs(one.log_delta - other.log_delta) + abs(one.epsilon - other.epsilon) * abs(one.slope)
        return difference <= 2 * (one.error + other.error) and other.error < 1

    @staticmethod
    def _at_the_end(composed: Composed, s: float) -> bool:
        return math.isfinite(composed.largest) and s * composed.largest > _AT_THE_END

    @staticmethod
    def _cheapest(composed: Composed, s: float, epsilon: float, log_delta: float) -> float:
        """The s, not far below the saddle point, at which the longest step will do."""
        exponent, width = composed.exponent(s, epsilon), 1 / math.sqrt(composed.laplace(s)[2])
        choices = [s * part for part in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)]
        allowed = [c for c in choices if composed.exponent(c, epsilon) <= exponent + _LOST]
        return min(allowed, key=lambda c: alias_period(composed, c, epsilon, log_delta, width))

    @staticmethod
    def _is_near(composed: Composed, s: float, epsilon: float, log_delta: float, found: _Found) -> bool:
        """Whether the lines were made for what they found."""
        unit = math.sqrt(composed.laplace(s)[2])
        return abs(found.epsilon - epsilon) <= _NEAR * unit and abs(found.log_delta - log_delta) <= 0.5
