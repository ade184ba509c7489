"""The smallest noise of a given shape that meets a budget: a monotone root-find on the scale, on the safe side."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from ..mechanisms import Gaussian, Laplace, Mechanism, Noise, SphericalGamma, _validate
from ._roots import bracketed_root
from .accountant import Accountant
from .accountants import Best
from .api import choose
from .event import Event, to_events
from .release import ADD_OR_REMOVE_ONE, POISSON, Release

NoiseT = TypeVar("NoiseT", bound=Noise)
_SHORTHANDS: dict[str, Callable[[], Mechanism]] = {"gaussian": lambda: Gaussian(1.0), "laplace": lambda: Laplace(1.0)}
_LARGEST_FACTOR = 1e100
_WIDTH = 1e-3  # of ε; as `epsilon` has it by default, so that asking it confirms the target
_SMOOTH = 1e-8  # resolution of accountants whose bounds are cheap and change smoothly with the noise
_SLACK = 2e-5  # how far ε may end below its target; the proven upper end is up to 6e-5 above the truth besides
_SECANTS = 8


def calibrate(
    mechanism: NoiseT | str,
    *,
    epsilon: float,
    delta: float,
    steps: int = 1,
    sampling_rate: float = 1.0,
    dimension: float | None = None,
    adjacency: str = ADD_OR_REMOVE_ONE,
    sampling: str = POISSON,
    accountant: str = "best",
) -> NoiseT:
    """Scale `mechanism` (a shape, or the name of a one-parameter family) to the least noise with proven ε <= `epsilon`.

    Scaling by a factor divides the shift, and the worst shift is the largest, so the guarantee is monotone in the
    factor. The bracket grows by doubling from the shape as given, by approximations where there are any. Privacy loss
    distributions then take a few secants in log ε, the last ones as ε will be asked for; where ε may stay while the
    noise grows, and for other accountants, the root is found in log δ, which is also informative at ε = 0, and checked
    once more as it will be used. The answer never overshoots the target.

    Args:
        epsilon: target >= 0. The other arguments are as for `accounting.epsilon`.

    Returns:
        The scaled mechanism. Its ε is at most the target, and above 0.9999 of it.

    Raises:
        ValueError: an argument is out of range, nothing is released (any noise would do), or nothing is proven.
    """
    shape = _shape(mechanism)
    _validate.non_negative("epsilon", epsilon)
    _validate.open_unit("delta", delta)
    release = Release(shape, steps, sampling_rate, dimension, adjacency, sampling)
    events = to_events([release])
    if not events:
        raise ValueError(
            f"nothing is released with steps={steps}, sampling_rate={sampling_rate}: any noise meets the target"
        )
    (event,) = events
    chosen, target = choose(events, accountant), math.log(delta)

    @functools.cache
    def rough(log_factor: float) -> float:
        """About log δ at the target ε, less the target: falls with the factor."""
        return min(max(chosen.log_delta_rough([event.scaled(math.exp(log_factor))], epsilon), -1e5), 0.0) - target

    def excess(log_factor: float) -> float:
        """The same of the proven upper bound."""
        value = chosen.log_delta_upper([event.scaled(math.exp(log_factor))], epsilon, _WIDTH)
        return min(max(value, -1e5), 0.0) - target

    if isinstance(chosen, Best):
        chosen = chosen.first(events)
    start = _root(rough)
    if chosen.resolution > _SMOOTH and epsilon > 0 and _is_smooth(event):
        found = _approached(_Search(chosen, event, shape, epsilon, delta), start)
        if found is not None:
            return found
    root = _polished(excess, start, chosen.resolution)
    nudge = 0.1 * chosen.resolution
    return _land(shape, math.exp(root), nudge, lambda m: _exceeds(chosen, event, m, epsilon, target))


def _shape(mechanism: Noise | str) -> Any:
    if isinstance(mechanism, Mechanism | SphericalGamma):
        return mechanism
    if mechanism in _SHORTHANDS:
        return _SHORTHANDS[mechanism]()
    raise ValueError(
        f"expected mechanism to be a Mechanism or one of {', '.join(_SHORTHANDS)} (families with one parameter), "
        f"got mechanism={mechanism!r}; give the parameters of any other family: it is scaled as it stands"
    )


def _root(excess: Callable[[float], float]) -> float:
    """The log factor at which `excess` changes sign, rounded up."""
    low = high = 0.0
    step = math.log(2)
    if excess(0.0) > 0:
        while excess(high) > 0:
            low, high, step = high, high + step, 2 * step
            if high > math.log(_LARGEST_FACTOR):
                raise ValueError("no noise of this shape meets the target within a factor of 1e100 of the given one")
    else:
        while excess(low) <= 0:
            high, low, step = low, low - step, 2 * step
            if low < -math.log(_LARGEST_FACTOR):
                raise ValueError("every noise of this shape meets the target, down to 1e-100 of the given one")
    return bracketed_root(excess, low, high, absolute=1e-3)


@dataclasses.dataclass(frozen=True)
class _Search:
    """ε by the log factor, for an accountant whose bounds cost much and follow the noise in small steps only."""

    accountant: Accountant
    event: Event
    shape: Any
    epsilon: float
    delta: float

    def excess(self, log_factor: float, width: float) -> float:
        """log of the proven ε over the target, from a lattice for this relative width."""
        event = self.event.scaled(math.exp(log_factor))
        return _log_ratio(self.accountant.epsilon_upper([event], self.delta, width), self.epsilon)

    def final(self, log_factor: float) -> tuple[Any, float]:
        """The scaled noise, and the same excess as it will be confirmed: by `epsilon` with its default width."""
        scaled = self.shape.scaled(math.exp(log_factor))
        event = dataclasses.replace(self.event, mechanism=scaled)
        return scaled, _log_ratio(self.accountant.epsilon([event], self.delta, _WIDTH).upper, self.epsilon)

    def slope(self, log_factor: float) -> float:
        """d log ε/d log factor at a given δ, about, from the two derivatives of the rough log δ."""
        step = 0.01

        def rough(log_factor: float, epsilon: float) -> float:
            return self.accountant.log_delta_rough([self.event.scaled(math.exp(log_factor))], epsilon)

        by_factor = rough(log_factor + step, self.epsilon) - rough(log_factor - step, self.epsilon)
        by_epsilon = rough(log_factor, self.epsilon * (1 + step)) - rough(log_factor, self.epsilon * (1 - step))
        slope = -by_factor / by_epsilon if by_epsilon < 0 and math.isfinite(by_factor) else -1.0
        return min(max(slope, -1e3), -0.1)


def _is_smooth(event: Event) -> bool:
    """Whether ε falls strictly with the noise: where a density has flat parts or jumps, ε may stay for a while."""
    return event.is_spherical or not (event.mechanism.has_jumps or len(event.mechanism.breaks(_LARGEST_FACTOR)))


def _log_ratio(epsilon: float, target: float) -> float:
    """log(ε/target), kept within ±20."""
    return math.log(min(max(epsilon / target, 1e-9), 1e9))


def _approached(search: _Search, start: float) -> Any:
    """The scaled noise with a proven ε in [(1 − _SLACK)·target, target], by secants; None if that does not work out."""
    slope = search.slope(start)
    at, excess = start, search.excess(start, 3 * _WIDTH)
    for _ in range(_SECANTS):
        following = at - (excess + 0.3 * _SLACK) / slope
        if not abs(following - at) < 0.5:
            return None
        scaled, change = search.final(following)
        if -_SLACK <= change <= 0:
            return scaled
        if abs(following - at) > 1e-4:  # nearer ones differ by their lattices
            slope = min(max((change - excess) / (following - at), 2 * slope), 0.5 * slope)
        at, excess = following, change
    return None


def _polished(excess: Callable[[float], float], rough: float, resolution: float) -> float:
    """The root near `rough`, rounded up by the resolution."""
    low, high, reach = rough - 0.01, rough + 0.002, 0.01
    while excess(high) > 0:
        if high - rough > math.log(_LARGEST_FACTOR):
            raise ValueError(
                "no noise of this shape is proven to meet the target within a factor of 1e100 of the estimate: "
                "delta is below what the accountant resolves; take a larger delta"
            )
        low, high, reach = high, high + reach, 2 * reach
    while excess(low) <= 0:
        low, high, reach = low - reach, low, 2 * reach
    return bracketed_root(excess, low, high, absolute=0.1 * resolution) + resolution


def _exceeds(chosen, event: Event, mechanism: Noise, epsilon: float, target: float) -> bool:
    scaled = dataclasses.replace(event, mechanism=mechanism)
    if chosen.log_delta_upper([scaled], epsilon, _WIDTH) > target:
        return True
    return chosen.epsilon([scaled], math.exp(target), _WIDTH).upper > epsilon


def _land(shape: NoiseT, factor: float, nudge: float, exceeds: Callable[[NoiseT], bool]) -> NoiseT:
    """The scaled mechanism, enlarged by small, growing steps until the proven bound meets the target."""
    while exceeds(scaled := shape.scaled(factor)):
        factor *= 1 + nudge
        nudge *= 4
        if nudge > 1e-2:
            raise ArithmeticError(f"no factor near {factor} meets the target: the bound is not monotone there")
    return scaled
