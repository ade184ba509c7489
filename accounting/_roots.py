"""Root-finding on a bracket, to the last bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scipy import optimize


def falling_root(function: Callable[[float], float], high: float) -> float:
    """Where a falling `function` meets 0 in [0, high]: 0 if it starts at or below, `high` if it does not get there."""
    if function(0.0) <= 0:
        return 0.0
    if function(high) >= 0:
        return high
    return bracketed_root(function, 0.0, high)


def bracketed_root(
    function: Callable[[float], float], low: float, high: float, *, absolute: float = 1e-300, relative: float = 1e-14
) -> float:
    """A zero of `function` in [low, high], whose values at the ends differ in sign (Brent's method)."""
    held = [function]  # SciPy's wrapper refers to itself: what it holds would stay in memory until the next collection
    try:
        root: Any = optimize.brentq(lambda x: held[0](x), low, high, xtol=absolute, rtol=relative, maxiter=2000)  # type: ignore[arg-type]
    finally:
        held.clear()
    return float(root)
