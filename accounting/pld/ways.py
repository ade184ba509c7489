"""Two ways from the loss of one step to the law of a composition: everything on one lattice, or rare losses apart.

Tilts, offsets, thresholds and windows are chosen from approximations. None can make a bound false.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .._roots import bracketed_root
from ..cells import largest_loss
from ..event import Event
from . import lattice
from .composition import Composed, TooManyPoints, compose
from .cutting import merged_ends, step_pieces, wide_bands
from .pieces import LossPieces
from .questions import DeltaQuestion, EpsilonQuestion, Question
from .rare_losses import Jumps, RareLosses, placed, split
from .saddle import Cumulant, Saddle
from .sampling import ADD, REMOVE, direction_of
from .scalar import Cuts

MOST_POINTS = 9 * 2**18  # lattice points: about 130 MiB of arrays
_MOST_PIECES = 2.0**20  # lattice points of a single step
_MOST_JUMPS = 2.0**15  # pieces of a step's loss beyond the threshold
_FINEST = 2  # halvings of the cells of spherical noise, whose number grows fourfold with each
_BLOWN_UP = 4.0  # tilted deviation over the untilted one from which rare losses are suspected


class Way:
    """How to get a law of the composed loss from a lattice step."""

    guess: float  # ε, roughly
    slope: float  # −d log δ/dε there
    deviation: float  # of the law on the lattice
    coarse: list[LossPieces]  # of each event's step, cut without a lattice
    span: float = 0.0  # length of the last law's window

    def __init__(self, events: Sequence[Event], direction: str, question: Question) -> None:
        self.events, self.question = list(events), question
        self.directions = [direction_of(event, direction) for event in events]
        self.steps = math.fsum(event.steps for event in events)
        self.most_points = MOST_POINTS

    def _offset(self, index: int, step: float) -> float:
        """A lattice with a point just below an atom: the top of a bounded loss, or log(1−q), where sampling leaves most
        of the mass of *remove* if losses are large.
        """
        event = self.events[index]
        if event.is_spherical or event.copies > 1:
            return 0.0
        if event.mechanism.loss_step(event.shift) > 0:
            return -1e-9 * step  # atoms on the multiples of a step lie just above lattice points
        if math.isfinite(largest_loss(event.mechanism, event.shift)):
            anchor = merged_ends(self.coarse[index])[0]
        elif event.sampling_rate < 1 and self.directions[index] == REMOVE:
            anchor = math.log1p(-event.sampling_rate)
        else:
            return 0.0
        return lattice.below(anchor, step)

    def rough_log_delta(self) -> float:
        """log δ at the question's ε, roughly, <= 0."""
        raise NotImplementedError

    def _pieces(self, cuts: Cuts) -> list[LossPieces]:
        return [step_pieces(e, d, cuts) for e, d in zip(self.events, self.directions, strict=True)]

    def _cumulant(self, pieces: Sequence[LossPieces]) -> Cumulant:
        return Cumulant([(p, e.steps) for p, e in zip(pieces, self.events, strict=True)])

    def _depth(self, log_delta: float) -> float:
        """−log of a probability that is nothing beside δ, T times."""
        smallest = self.question.log_delta if isinstance(self.question, EpsilonQuestion) else log_delta - 5
        return math.log(self.steps) - smallest + 7 - math.log(self.question.relative_width)

    def cut_finer(self) -> bool:
        """Whether there is anything but the lattice to refine; if so, it has been."""
        return False

    def first_step(self) -> float:
        """The lattice step at which the lower end is off by about half of the width asked for."""
        width = self.question.relative_width * max(self.guess, 1e-3 * self.deviation)
        return min(math.sqrt(5.0 * width / (self.steps * (self.slope + 1))), self.deviation)

    def law(self, step: float, *, upper: bool) -> Composed | RareLosses:
        """The law from a lattice of `step`; raises TooManyPoints."""
        raise NotImplementedError


class PlainWay(Way):
    """Everything on one lattice, tilted to the saddle point."""

    def __init__(self, events: Sequence[Event], direction: str, question: Question) -> None:
        super().__init__(events, direction, question)
        self.depth = 60.0 + math.log(self.steps)
        for _ in range(4):  # the pieces must reach as far out as the saddle point looks
            self.coarse = self._pieces(Cuts(self.depth))
            cumulant = self._cumulant(self.coarse)
            self.saddle: Saddle = question.saddle(cumulant)
            beyond = max(question.epsilon - self.saddle.epsilon, 0.0) if isinstance(question, DeltaQuestion) else 0.0
            wanted = self._depth(self.saddle.log_delta - self.saddle.tilt * beyond)  # the tilt may have been capped
            if wanted <= self.depth:
                break
            self.depth = wanted
        self.depth = wanted
        self.is_blown_up = self.saddle.deviation > _BLOWN_UP * cumulant.at(0.0).deviation
        self.guess = question.epsilon if isinstance(question, DeltaQuestion) else max(self.saddle.epsilon, 0.0)
        self.slope, self.deviation = self.saddle.tilt, self.saddle.deviation
        self.fineness = 0

    def first_step(self) -> float:
        width = self.question.relative_width * max(self.guess, 1e-3 * self.deviation)
        finest = math.sqrt(5.0 * width / (self.steps * (self.slope + 1)))
        return min(finest, max(self.deviation, 0.03 * width))

    def rough_log_delta(self) -> float:
        return min(self.saddle.log_delta - self.saddle.tilt * max(self.guess - self.saddle.epsilon, 0.0), 0.0)

    def cut_finer(self) -> bool:
        self.fineness += 1
        return self.fineness <= _FINEST and any(event.is_spherical for event in self.events)

    def law(self, step: float, *, upper: bool) -> Composed:
        s = self.saddle.tilt
        precise = self.question.relative_width * min(1.0, s * max(self.saddle.epsilon, 1e-3 / s))
        precise /= 1 + s * self.deviation
        log_outside = math.log(1e-4 * min(precise, 1e-3))
        log_outside += max(min(math.log((s + 1) * self.deviation), 0.0) - s * step, -600.0)  # ε beside the loss's end
        step = self._on_ends(step)
        laws = [self._lattice(index, step, upper=upper) for index in range(len(self.events))]
        kinds = [(law, event.steps) for law, event in zip(laws, self.events, strict=True)]
        return compose(kinds, tilt=s, log_outside=log_outside, most_points=self.most_points)

    def _lattice(self, index: int, step: float, *, upper: bool) -> lattice.LatticeLoss:
        event, (top, bottom) = self.events[index], merged_ends(self.coarse[index])
        if top - bottom > _MOST_PIECES * step:
            raise TooManyPoints((top - bottom) / step * (self.most_points / _MOST_PIECES))
        offset = self._offset(index, step)
        bands = wide_bands(self.coarse[index], self.saddle.tilt, step) if event.copies == 1 else ()
        pieces = step_pieces(event, self.directions[index], Cuts(self.depth, step, offset, bands, self.fineness))
        return (lattice.upper if upper else lattice.lower)(pieces, step, offset)

    def _on_ends(self, step: float) -> float:
        """A step near `step` that puts both ends of a bounded loss on the lattice: there may be atoms."""
        (event, *others), (coarse, *_) = self.events, self.coarse
        atoms = 0.0 if event.is_spherical else event.mechanism.loss_step(event.shift)
        if atoms > 0 and not others and event.copies == 1 and event.sampling_rate == 1:
            return atoms / math.ceil(atoms / step) if atoms / step < 1e7 else step
        if others or event.copies > 1 or math.isinf(largest_loss(event.mechanism, event.shift)):
            return step
        top, bottom = merged_ends(coarse)
        if top <= bottom or (top - bottom) / step > 1e7:
            return step
        return lattice.dividing(top - bottom, step)


class RareWay(Way):
    """The bulk on a lattice, single large losses apart (see `rare_losses`)."""

    def __init__(self, events: Sequence[Event], direction: str, question: Question) -> None:
        super().__init__(events, direction, question)
        self.most_points = 2 * MOST_POINTS // (1 + len(self.events))  # as many laws are kept at once
        log_delta = question.log_delta if isinstance(question, EpsilonQuestion) else -20.0
        self.coarse = self._pieces(Cuts(60.0 + math.log(self.steps) - log_delta))
        self.precision = question.relative_width  # of δ
        for _ in range(3):
            self._divide(log_delta)
            self.guess = question.epsilon if isinstance(question, DeltaQuestion) else self._root(log_delta)
            wanted = question.relative_width * min(max(self.slope * self.guess, 1e-3), 1.0)
            if isinstance(question, DeltaQuestion):
                log_delta = self._log_delta(question.epsilon)
            elif wanted > 0.5 * self.precision:
                break
            self.precision = wanted
        self.log_delta = log_delta
        self.deviation = self.bulk.at(0.0).deviation
        self.tilt = self._tilt()
        self.depth = self._depth(log_delta)

    def _divide(self, log_delta: float) -> None:
        """Sets what depends on the threshold."""
        self.threshold = self._threshold(log_delta)
        bulks, jumps = zip(*(split(pieces, self.threshold) for pieces in self.coarse), strict=True)
        self.bulk = self._cumulant(bulks)
        parts = list(zip(self.events, jumps, strict=True))
        self.jump_mass = np.concatenate([event.steps * np.exp(jump.log_mass_high) for event, jump in parts])
        self.jump_loss = np.concatenate([jump.mean_low for jump in jumps])

    @property
    def slope(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """−d log δ/dε, roughly; at least 1."""
        nearby = 0.05 * self.guess
        fall = self._log_delta(self.guess) - self._log_delta(self.guess + nearby)
        return max(fall / nearby, 1.0) if nearby > 0 else 1.0

    def rough_log_delta(self) -> float:
        return min(self._log_delta(self.guess), 0.0)

    def _threshold(self, log_delta: float) -> float:
        """The loss that some step exceeds with probability √(precision·δ/5): two such steps are little beside δ.

        At most 1e10·precision·δ/5, too: the law of the other steps, which multiplies it, is right to about 1e-14 only.
        """
        log_error = math.log(0.2 * self.precision) + max(log_delta, -600.0)
        most = math.exp(min(0.5 * log_error, log_error + math.log(1e10)))
        losses = np.concatenate([p.mean_high for p in self.coarse])
        masses = np.concatenate(
            [e.steps * np.exp(p.log_mass_high) for e, p in zip(self.events, self.coarse, strict=True)]
        )
        order = np.argsort(-losses)
        beyond = np.cumsum(masses[order])
        index = int(np.searchsorted(beyond, most))
        return float(losses[order][min(index, len(losses) - 1)])

    def _log_delta(self, epsilon: float) -> float:
        """Roughly: the bulk's saddle-point approximation and one jump over ε."""
        point = self.bulk.at_epsilon(epsilon, 1e3 / max(epsilon, 1e-12))
        bulk = point.log_delta - point.tilt * max(epsilon - point.epsilon, 0.0)
        over = self.jump_loss > epsilon
        jump = float(np.sum(self.jump_mass[over] * -np.expm1(epsilon - self.jump_loss[over])))
        return float(np.logaddexp(bulk, math.log(jump) if jump > 0 else -math.inf))

    def _root(self, log_delta: float) -> float:
        low = high = max(self.bulk.at_delta(log_delta, 1e9).epsilon, 1e-12)
        for _ in range(200):
            if self._log_delta(high) <= log_delta:
                break
            low, high = high, 1.5 * high
        if low == high:
            return high
        return bracketed_root(lambda e: self._log_delta(e) - log_delta, low, high, relative=1e-4)

    def _tilt(self) -> float:
        """The bulk's saddle point, or less where precision does not need so much."""
        highest = self.bulk.at_epsilon(self.guess, 50 / (self.question.relative_width * max(self.guess, 1e-12)))
        return self.bulk.least_tilt(self.guess, self.log_delta + self._digits, highest.tilt).tilt

    @property
    def _digits(self) -> float:
        """−log of what δ may be, relative to the tilted law: half of what the transform resolves beyond the width."""
        return 0.5 * max(math.log(1e-2 * self.precision / 1e-14), 1.0)

    def law(self, step: float, *, upper: bool) -> RareLosses:
        offsets = [self._offset(index, step) for index in range(len(self.events))]
        parts = []
        for coarse, offset, event, direction in zip(self.coarse, offsets, self.events, self.directions, strict=True):
            top, bottom = merged_ends(coarse)
            if self.threshold - bottom > 2 * self.most_points * step:
                raise TooManyPoints((self.threshold - bottom) / (2 * step))
            wide = max(step, 0.03 * self.deviation, (top - self.threshold) / _MOST_JUMPS)
            bands = wide_bands(coarse, self.tilt, step, self.threshold)
            if direction != ADD:  # of *add* large losses are cut where their mirror images are
                bands = (*(band for band in bands if band[0] < self.threshold), (self.threshold, wide))
            pieces = step_pieces(event, direction, Cuts(self.depth, step, offset, bands))
            parts.append(split(pieces, self.threshold))
        if any(len(bulk.low) == 0 for bulk, _ in parts):
            raise TooManyPoints(math.inf)
        move = lattice.upper if upper else lattice.lower
        laws = [move(bulk, step, offset) for (bulk, _), offset in zip(parts, offsets, strict=True)]
        counts = [event.steps for event in self.events]
        log_width = math.log(1e-3 * min(self.precision, 1e-2))
        bulk = self._compose(laws, counts, self.tilt, max(log_width - self._digits - 2.0, -50.0))
        beside_jump = max(log_width + 0.5 * max(self.log_delta, -600.0) - 2.0, -50.0)
        jumps, more, total = [], 0.0, 0.0
        for index, (_, pieces) in enumerate(parts):
            mass, loss, infinity = placed(pieces, upper=upper)
            one_less = [count - (other == index) for other, count in enumerate(counts)]
            jumps.append(Jumps(counts[index] * mass, loss, self._compose(laws, one_less, 0.0, beside_jump)))
            more += counts[index] * infinity
            total += counts[index] * float(np.sum(mass))
        return RareLosses(bulk, jumps, more + 0.5 * total**2 if upper else 0.0, upper)

    def _compose(
        self, laws: Sequence[lattice.LatticeLoss], counts: Sequence[int], tilt: float, log_outside: float
    ) -> Composed:
        kinds = [(law, count) for law, count in zip(laws, counts, strict=True) if count > 0]
        if not kinds:
            raise TooManyPoints(math.inf)
        return compose(kinds, tilt=tilt, log_outside=log_outside, most_points=self.most_points)
