"""All accountants, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .accountant import Accountant, LogDelta
from .characteristic import CharacteristicFunction
from .event import Event
from .exact import ExactGaussian, ExactScalar
from .interval import EpsilonInterval
from .pld import PrivacyLoss
from .renyi_accountant import Renyi

_EXACT: tuple[Accountant, ...] = (ExactGaussian(), ExactScalar())
PROVEN: tuple[Accountant, ...] = (*_EXACT, PrivacyLoss(), Renyi())
ALL: tuple[Accountant, ...] = (*PROVEN, CharacteristicFunction())


class Best(Accountant):
    """The cheapest proven accountant that reaches the width asked for; if none does, the one that proves most.

    Exact answers first, then the privacy loss distribution, then Rényi divergences (which alone bound independent noise
    in several dimensions). The interval is always that of one accountant: intersecting the intervals of two would turn
    a fault in either into a false bound. Characteristic functions are not asked: their error is not proven.
    """

    name = "best"

    def refusal(self, events: Sequence[Event]) -> str | None:
        reasons = [(accountant.name, accountant.refusal(events)) for accountant in PROVEN]
        if any(reason is None for _, reason in reasons):
            return None
        if any(not event.is_scalar and not event.is_spherical for event in events):  # only the last has a chance
            return f"{reasons[-1][1]}; in several coordinates gaussian, laplace, gamma_laplace and lmo are bounded"
        return f"nothing is proven: {'; '.join(f'{name}: {reason}' for name, reason in reasons)}"

    @staticmethod
    def first(events: Sequence[Event]) -> Accountant:
        """The accountant that is asked first."""
        return next(accountant for accountant in PROVEN if accountant.refusal(events) is None)

    def epsilon(self, events: Sequence[Event], delta: float, relative_width: float) -> EpsilonInterval:
        return self._answer(
            events,
            lambda accountant: accountant.epsilon(events, delta, relative_width),
            lambda answer: answer.upper - answer.lower <= relative_width * answer.upper,
        )

    def log_delta(self, events: Sequence[Event], epsilon: float, relative_width: float) -> LogDelta:
        width = max(1.0, epsilon) * 10 * relative_width
        return self._answer(
            events,
            lambda accountant: accountant.log_delta(events, epsilon, relative_width),
            lambda answer: answer[2] - answer[0] <= width or answer[2] == answer[0],
        )

    @staticmethod
    def _answer(events: Sequence[Event], ask: Callable, is_narrow: Callable):
        best = None
        for accountant in PROVEN:
            if accountant.refusal(events) is None:
                answer = ask(accountant)
                if best is None or answer[2] < best[2]:
                    best = answer
                if accountant in _EXACT or is_narrow(answer):
                    break
        assert best is not None, "choose() has checked that some accountant answers"
        return best


BEST = Best()
