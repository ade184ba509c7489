"""The smallest noise of a given shape that meets a budget: a monotone root-find on the scale, on the safe side."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeVar

from ..mechanisms import Gaussian, Laplace, Mechanism, Noise, SphericalGamma, _validate
from ._roots import bracketed_root
from .accountants import Best
from .api import choose
from .event import Event, to_events
from .release import ADD_OR_REMOVE_ONE, POISSON, Release

NoiseT = TypeVar("NoiseT", bound=Noise)
_SHORTHANDS: dict[str, Callable[[], Mechanism]] = {"gaussian": lambda: Gaussian(1.0), "laplace": lambda: Laplace(1.0)}
_LARGEST_FACTOR = 1e100
_WIDTH = 1e-3  # of ε; as `epsilon` has it by default, so that asking it confirms the target


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
    factor. The bracket grows by doubling from the shape as given; the root is found in log δ, which is also
    informative at ε = 0; the answer is checked once more as it will be used, and never overshoots the target.

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

    def rough(log_factor: float) -> float:
        """About log δ at the target ε, less the target: falls with the factor."""
        return min(max(chosen.log_delta_rough([event.scaled(math.exp(log_factor))], epsilon), -1e5), 0.0) - target

    def excess(log_factor: float) -> float:
        """The same of the proven upper bound."""
        value = chosen.log_delta_upper([event.scaled(math.exp(log_factor))], epsilon, _WIDTH)
        return min(max(value, -1e5), 0.0) - target

    if isinstance(chosen, Best):
        chosen = chosen.first(events)
    resolution = chosen.resolution
    root = _polished(excess, _root(rough), resolution)
    nudge = 0.1 * resolution
    return _land(shape, math.exp(root), nudge, lambda m: _exceeds(chosen, event, m, epsilon, target))


def _shape(mechanism: Noise | str) -> Any:
    if isinstance(mechanism, Mechanism | SphericalGamma):
        return mechanism
    if mechanism in _SHORTHANDS:
        return _SHORTHANDS[mechanism]()
    raise ValueError(
        f"expected mechanism to be a Mechanism or one of {', '.join(_SHORTHANDS)} (families with one parameter), "
        f"got mechanism={mechanism!r}"
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


def _polished(excess: Callable[[float], float], rough: float, resolution: float) -> float:
    """The root near `rough`, rounded up by the resolution."""
    low, high, reach = rough - 0.01, rough + 0.002, 0.01
    while excess(high) > 0:
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
