"""What a composition is asked, ε at δ or δ at ε, in the terms that the refinement needs."""

from __future__ import annotations

import abc
import dataclasses
import math

from .composition import Composed
from .rare_losses import RareLosses
from .reading import epsilon_bound, log_delta_bound
from .saddle import Cumulant, Saddle

_MOST_TILT = 5e3  # over the width asked for: larger tilts would see details that do not matter


class Question(abc.ABC):
    """An unknown that falls with the noise; bounds of it get better with the lattice."""

    relative_width: float

    @abc.abstractmethod
    def saddle(self, cumulant: Cumulant) -> Saddle:
        """Where the answer lies by the saddle-point approximation."""

    @abc.abstractmethod
    def bound(self, law: Composed | RareLosses, *, upper: bool, guess: float) -> float:
        """The answer's bound from the law of the composed loss; `guess` is a rough ε."""

    @abc.abstractmethod
    def width(self, lower: float, upper: float, slope: float) -> float:
        """The interval's width as a multiple of what is asked; `slope` is −d log δ/dε."""

    @abc.abstractmethod
    def is_beyond(self, largest_loss: float, upper: float) -> bool:
        """Whether a composition whose loss never exceeds `largest_loss` cannot raise the upper bound `upper`."""

    @abc.abstractmethod
    def nothing(self, *, upper: bool) -> float:
        """The trivial bound."""


@dataclasses.dataclass(frozen=True)
class EpsilonQuestion(Question):
    """ε at log δ."""

    log_delta: float
    relative_width: float

    def saddle(self, cumulant: Cumulant) -> Saddle:
        guess = cumulant.at_delta(self.log_delta, 1e12)
        most = _MOST_TILT / (self.relative_width * max(guess.epsilon, 1e-300))
        return cumulant.at_delta(self.log_delta, most) if guess.tilt > most else guess

    def bound(self, law: Composed | RareLosses, *, upper: bool, guess: float) -> float:
        if isinstance(law, RareLosses):
            return law.epsilon(self.log_delta, guess)
        return epsilon_bound(law, self.log_delta, upper=upper)

    def width(self, lower: float, upper: float, slope: float) -> float:
        if math.isinf(upper):
            return math.inf
        return 0.0 if upper == 0 else (upper - lower) / (upper * self.relative_width)

    def is_beyond(self, largest_loss: float, upper: float) -> bool:
        return largest_loss <= upper

    def nothing(self, *, upper: bool) -> float:
        return math.inf if upper else 0.0


@dataclasses.dataclass(frozen=True)
class DeltaQuestion(Question):
    """log δ at ε."""

    epsilon: float
    relative_width: float

    def saddle(self, cumulant: Cumulant) -> Saddle:
        return cumulant.at_epsilon(self.epsilon, _MOST_TILT / (self.relative_width * max(self.epsilon, 1e-12)))

    def bound(self, law: Composed | RareLosses, *, upper: bool, guess: float) -> float:
        if isinstance(law, RareLosses):
            return law.log_delta(self.epsilon)
        return log_delta_bound(law, self.epsilon, upper=upper)

    def width(self, lower: float, upper: float, slope: float) -> float:
        """A width of ε is worth slope times as much in log δ; a millionth counts as narrow in any case."""
        if not math.isfinite(lower):
            return 0.0 if upper < -1e4 else math.inf
        return (upper - lower) / max(self.relative_width * self.epsilon * slope, 1e-6)

    def is_beyond(self, largest_loss: float, upper: float) -> bool:
        return self.epsilon >= largest_loss

    def nothing(self, *, upper: bool) -> float:
        return 0.0 if upper else -math.inf
