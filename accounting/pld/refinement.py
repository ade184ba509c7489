"""Which lattice, which tilt: chooses them from approximations, then refines until the interval is as narrow as asked.

Nothing here can make a bound false; it decides how narrow it is and how long it takes. Moving a step's loss onto a
lattice of step h changes Λ(s) = Σ T·log E_A[e^{sL}] by about ΣT·s(s+1)·h²/12, hence ε by ΣT·(s+1)·h²/12, each way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...mechanisms import SphericalGamma
from .._roots import bracketed_root
from ..cells import largest_loss
from ..event import Event
from ..spherical import default_step, spherical_pieces
from . import lattice
from .composition import Composed, TooManyPoints, Unresolved, compose
from .pieces import LossPieces, without_tails
from .questions import DeltaQuestion, EpsilonQuestion, Question
from .rare_losses import Jumps, RareLosses, placed, split
from .saddle import Cumulant, Saddle
from .sampling import ADD, REMOVE, direction_of, sampled_pair
from .scalar import Cuts, TooManyCuts, scalar_pieces
from .spread import product_pieces

_MOST_POINTS = 9 * 2**18  # lattice points: about 130 MiB of arrays
_FEW_POINTS = 2**16
_LEAST_ORDER = 0.5  # of the width in the lattice step: below it something else decides
_MOST_PIECES = 2.0**20  # lattice points of a single step
_MOST_JUMPS = 2.0**15  # pieces of a step's loss beyond the threshold
_BANDS = 6  # of ever wider cuts
_BAND_COST = 0.1  # a quarter of it is what each may add to the error of the lattice
_ROUNDS = 6
_WIDENINGS = 12
_OUT_OF_RANGE = (Unresolved, TooManyCuts, OverflowError, ValueError)  # ValueError: of math, at NaN and logs of 0
_FINEST = 2  # halvings of the cells of spherical noise, whose number grows fourfold with each
_UPPER = 1 / 5  # the upper end is the guarantee: its lattice is finer, its error a twentieth of the lower end's
_FEW_STEPS = 8  # with fewer, a composition is no sum of many small losses and the plain way works
_BLOWN_UP = 4.0  # tilted deviation over the untilted one from which rare losses are suspected


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
            pieces = _pieces(event, direction_of(event, direction), Cuts(700.0))
            loss = np.where(pieces.low >= 0, pieces.mean_high, pieces.high)
            gain = np.maximum(-np.expm1(-loss), 0.0)
            total += event.steps * float(np.sum(np.exp(pieces.log_mass_high) * gain)) * (1 + 1e-12)
    return total <= math.exp(question.log_delta)


def _ways(events: Sequence[Event], direction: str, question: Question) -> Iterator[_Way]:
    """Ways to the law that can be set up, the likelier first."""
    kinds: list[type[_Way]] = [_Plain]
    if math.fsum(event.steps for event in events) >= _FEW_STEPS:
        kinds.append(_Rare)
    late = None
    for kind in kinds:
        try:
            with np.errstate(all="ignore"):  # out-of-range numbers are noticed where they would matter
                way = kind(events, direction, question)
        except _OUT_OF_RANGE:
            continue
        if isinstance(way, _Plain) and way.is_blown_up and len(kinds) > 1:
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


def _upper_by(way: _Way, question: Question, enough: float) -> tuple[float, bool]:
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
        way = _Plain(events, direction, question)
    law, _ = _with_room(way, way.first_step(), upper=True)
    assert isinstance(law, Composed)
    return law


def _refine(way: _Way, question: Question, best: tuple[float, float], enough: float) -> tuple[float, float]:
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


def _bound(way: _Way, question: Question, step: float, *, upper: bool) -> tuple[float, float]:
    """The bound from one lattice, and its step."""
    law, used = _with_room(way, step, upper=upper)
    return question.bound(law, upper=upper, guess=way.guess), used


def _order(width: float, step: float, wider: float, longer: float) -> float:
    """The power of the lattice step that the width follows: 2, or 1 where most losses are small beside the step."""
    if math.isinf(wider):
        return 2.0
    return min(max(math.log(wider / width) / math.log(longer / step), 0.0), 2.0)


def _with_room(way: _Way, step: float, *, upper: bool) -> tuple[Composed | RareLosses, float]:
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


class _Way:
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
        self.most_points = _MOST_POINTS

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
            anchor = _ends(self.coarse[index])[0]
        elif event.sampling_rate < 1 and self.directions[index] == REMOVE:
            anchor = math.log1p(-event.sampling_rate)
        else:
            return 0.0
        return lattice.below(anchor, step)

    def rough_log_delta(self) -> float:
        """log δ at the question's ε, roughly, <= 0."""
        raise NotImplementedError

    def _pieces(self, cuts: Cuts) -> list[LossPieces]:
        return [_pieces(e, d, cuts) for e, d in zip(self.events, self.directions, strict=True)]

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


class _Plain(_Way):
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
        event, (top, bottom) = self.events[index], _ends(self.coarse[index])
        if top - bottom > _MOST_PIECES * step:
            raise TooManyPoints((top - bottom) / step * (self.most_points / _MOST_PIECES))
        offset = self._offset(index, step)
        bands = _bands(self.coarse[index], self.saddle.tilt, step) if event.copies == 1 else ()
        pieces = _pieces(event, self.directions[index], Cuts(self.depth, step, offset, bands, self.fineness))
        return (lattice.upper if upper else lattice.lower)(pieces, step, offset)

    def _on_ends(self, step: float) -> float:
        """A step near `step` that puts both ends of a bounded loss on the lattice: there may be atoms."""
        (event, *others), (coarse, *_) = self.events, self.coarse
        atoms = 0.0 if event.is_spherical else event.mechanism.loss_step(event.shift)
        if atoms > 0 and not others and event.copies == 1 and event.sampling_rate == 1:
            return atoms / math.ceil(atoms / step) if atoms / step < 1e7 else step
        if others or event.copies > 1 or math.isinf(largest_loss(event.mechanism, event.shift)):
            return step
        top, bottom = _ends(coarse)
        if top <= bottom or (top - bottom) / step > 1e7:
            return step
        return lattice.dividing(top - bottom, step)


class _Rare(_Way):
    """The bulk on a lattice, single large losses apart (see `rare_losses`)."""

    def __init__(self, events: Sequence[Event], direction: str, question: Question) -> None:
        super().__init__(events, direction, question)
        self.most_points = 2 * _MOST_POINTS // (1 + len(self.events))  # as many laws are kept at once
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
            top, bottom = _ends(coarse)
            if self.threshold - bottom > 2 * self.most_points * step:
                raise TooManyPoints((self.threshold - bottom) / (2 * step))
            wide = max(step, 0.03 * self.deviation, (top - self.threshold) / _MOST_JUMPS)
            bands = _bands(coarse, self.tilt, step, self.threshold)
            if direction != ADD:  # of *add* large losses are cut where their mirror images are
                bands = (*(band for band in bands if band[0] < self.threshold), (self.threshold, wide))
            pieces = _pieces(event, direction, Cuts(self.depth, step, offset, bands))
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


def _pieces(event: Event, direction: str, cuts: Cuts) -> LossPieces:
    if event.is_spherical:
        pair = _spherical(event.mechanism, event.shift, cuts.fineness)
        pieces = sampled_pair(pair, event.sampling_rate, direction)
        return without_tails(pieces, -cuts.depth)
    if event.copies == 1:
        return scalar_pieces(event, direction, cuts)
    pair = product_pieces(event.mechanism, event.shift, event.copies)
    return sampled_pair(pair, event.sampling_rate, direction)


def _bands(coarse: LossPieces, tilt: float, step: float, highest: float = np.inf) -> tuple[tuple[float, float], ...]:
    """Where the cuts of a scalar pair may be 4, 16, … steps apart: a band adds a fortieth to the lattice's error.

    Losses above `highest` do not count under the tilted law, as they are not composed.

    The chord over a piece of width w adds w²/6 to the variance of the loss on its mass; so does the lattice with w = h.
    The cuts of a piece x <= t/2, at loss v, cut its mirror image too, whose loss changes less.
    """
    half = len(coarse.low) // 2  # pieces, then their mirror images in the same order
    with np.errstate(all="ignore"):
        is_bulk = coarse.mean_high <= highest
        log_weight = np.where(is_bulk, coarse.log_mass_high + tilt * np.minimum(coarse.mean_high, highest), -np.inf)
        weight = np.nan_to_num(np.exp(log_weight - np.max(log_weight)))
        weight = np.maximum(weight / max(np.sum(weight), 1e-300), np.exp(coarse.log_mass_high))
        width = coarse.high - coarse.low
        share = np.nan_to_num(width[half : 2 * half] / width[:half], nan=1.0, posinf=1.0)
        share = np.minimum(np.where(np.isfinite(width[:half]), share, 1.0), 1.0)
    value = np.abs(coarse.mean_high[:half])
    order = np.argsort(-value)
    beyond = np.cumsum((weight[:half] + weight[half : 2 * half] * share**2)[order])
    found = []
    for level in range(1, _BANDS + 1):
        light = int(np.searchsorted(beyond, _BAND_COST / 16**level))
        start = float(value[order[min(light, half - 1)]])
        if found and start <= found[-1][0]:
            found.pop()
        found.append((start, 4.0**level * step))
    return tuple(found)


@functools.lru_cache(maxsize=16)
def _spherical(noise: SphericalGamma, shift: float, fineness: int) -> LossPieces:
    """Pieces of the unsampled pair; they cost seconds in some dimensions, so one cut serves every lattice."""
    return spherical_pieces(noise, shift, step=default_step(noise, shift) / 2**fineness)


def _ends(pieces: LossPieces) -> tuple[float, float]:
    """The largest and the smallest loss of merged pieces."""
    return float(np.max(pieces.mean_low)), float(np.min(pieces.mean_low))
