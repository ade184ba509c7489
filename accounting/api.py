"""One function to ask for ε, and one for δ."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..mechanisms import Noise, _validate
from .accountant import Accountant, NoAnswer
from .accountants import ALL, BEST
from .event import Event, to_events
from .interval import AccountantsDisagree, DeltaInterval, EpsilonInterval
from .release import ADD_OR_REMOVE_ONE, POISSON, Release

ACCOUNTANTS = ("best", "exact", "pld", "rdp", "cf")
Interval = TypeVar("Interval", EpsilonInterval, DeltaInterval)


def epsilon(
    mechanism: Noise,
    *,
    delta: float,
    steps: int = 1,
    sampling_rate: float = 1.0,
    dimension: float | None = None,
    adjacency: str = ADD_OR_REMOVE_ONE,
    sampling: str = POISSON,
    accountant: str = "best",
    relative_width: float = 1e-3,
    verify: bool = False,
) -> EpsilonInterval:
    """The privacy parameter ε (no unit) of `steps` releases at `delta`, as an interval; `upper` is the guarantee.

    Args:
        mechanism: noise in units of the clipping norm C.
        delta: a probability in (0, 1).
        steps: number of releases T >= 0; each optimizer update is one, however many microbatches it was cut into.
        sampling_rate: Poisson inclusion probability q in [0, 1] of every record per release. Shuffled batches of fixed
            size are not Poisson: for those claim no amplification (q = 1).
        dimension: number of coordinates, or `math.inf` for every dimension; may be None for the Gaussian only.
        adjacency: `add_or_remove_one`, `replace_special` or `replace_one` (see `Release`).
        sampling: `poisson`, or `fixed_size` for `replace_one` (see `Release`).
        accountant: "exact" (Gaussian without sampling; one scalar release), "pld" (privacy loss distributions: scalar
            releases and Gaussian noise), "rdp" (Rényi divergences: any dimension), or "best", which asks them in this
            order until one reaches the width. "cf" (characteristic functions) is an independent second opinion, whose
            error is estimated, not proven: not a guarantee.
        relative_width: width of the interval, as a fraction of ε, that is aimed at. Exact intervals are far below it,
            "pld" refines its lattice until it is reached or its arrays would exceed 150 MiB (at 1e-5 in the heaviest
            cases, 1e-6 in most); the Rényi interval does not get narrower on demand. The ends show what was reached.
        verify: also ask every other accountant that supports the question, as far as it can resolve it.

    Raises:
        ValueError: an argument is out of range, or nothing is proven for this noise and dimension.
        AccountantsDisagree: two proven intervals do not overlap (with `verify`).
    """
    release = Release(mechanism, steps, sampling_rate, dimension, adjacency, sampling)
    return compose_epsilon([release], delta=delta, accountant=accountant, relative_width=relative_width, verify=verify)


def delta(
    mechanism: Noise,
    *,
    epsilon: float,
    steps: int = 1,
    sampling_rate: float = 1.0,
    dimension: float | None = None,
    adjacency: str = ADD_OR_REMOVE_ONE,
    sampling: str = POISSON,
    accountant: str = "best",
    relative_width: float = 1e-3,
    verify: bool = False,
) -> DeltaInterval:
    """The δ (a probability) of `steps` releases at `epsilon` >= 0; arguments and errors as for `epsilon`."""
    release = Release(mechanism, steps, sampling_rate, dimension, adjacency, sampling)
    return compose_delta(
        [release], epsilon=epsilon, accountant=accountant, relative_width=relative_width, verify=verify
    )


def compose_epsilon(
    releases: Sequence[Release],
    *,
    delta: float,
    accountant: str = "best",
    relative_width: float = 1e-3,
    verify: bool = False,
) -> EpsilonInterval:
    """ε of several kinds of releases composed (noises, rates and dimensions may differ); as `epsilon`."""
    _validate.open_unit("delta", delta)
    _validate.positive("relative_width", relative_width)
    events = to_events(releases)
    if not events:
        _validate.one_of("accountant", accountant, ACCOUNTANTS)
        return EpsilonInterval(0.0, 0.0, 0.0)
    return _ask(events, lambda chosen: chosen.epsilon(events, delta, relative_width), accountant, verify)


def compose_delta(
    releases: Sequence[Release],
    *,
    epsilon: float,
    accountant: str = "best",
    relative_width: float = 1e-3,
    verify: bool = False,
) -> DeltaInterval:
    """δ of several kinds of releases composed, at `epsilon` >= 0; `relative_width` is still that of ε."""
    _validate.non_negative("epsilon", epsilon)
    _validate.positive("relative_width", relative_width)
    events = to_events(releases)
    if not events:
        _validate.one_of("accountant", accountant, ACCOUNTANTS)
        return DeltaInterval(0.0, 0.0, 0.0)

    def ask(chosen: Accountant) -> DeltaInterval:
        return _delta_interval(*chosen.log_delta(events, epsilon, relative_width))

    return _ask(events, ask, accountant, verify)


def _delta_interval(lower: float, estimate: float, upper: float) -> DeltaInterval:
    """From logarithms, rounded outwards; an upper end above 0 stays above 0 even where floats end."""
    most = 0.0 if upper == -math.inf else min(math.nextafter(math.exp(min(upper, 0.0)), 1.0), 1.0)
    return DeltaInterval(math.nextafter(math.exp(min(lower, 0.0)), 0.0), math.exp(min(estimate, 0.0)), most)


def choose(events: Sequence[Event], accountant: str) -> Accountant:
    """The accountant that answers; raises ValueError with the reason if the named one refuses."""
    _validate.one_of("accountant", accountant, ACCOUNTANTS)
    reasons = []
    for candidate in (BEST, *ALL):
        if candidate.name == accountant:
            reason = candidate.refusal(events)
            if reason is None:
                return candidate
            reasons.append(reason)
    raise ValueError(f"accountant={accountant} refuses {_named(events)}: {'; '.join(reasons)}")


def _named(events: Sequence[Event]) -> str:
    """The noises and their dimensions, for a message."""
    names = [f"{e.mechanism.family}" + (f" in dimension {e.dimension:g}" if e.dimension else "") for e in events]
    return ", ".join(dict.fromkeys(names))


def _ask(events: Sequence[Event], ask: Callable[[Accountant], Interval], accountant: str, verify: bool) -> Interval:
    chosen = choose(events, accountant)
    answer = ask(chosen)
    if verify:
        for other in ALL:
            if other is not chosen and other.refusal(events) is None:
                with contextlib.suppress(NoAnswer):
                    _check_overlap(chosen.name, answer, other.name, ask(other))
    return answer


def _check_overlap(first: str, a: Interval, second: str, b: Interval) -> None:
    if a.lower > b.upper or b.lower > a.upper:
        raise AccountantsDisagree(f"{first} says {a}, {second} says {b}: the intervals do not overlap")
