"""Plain quadrature of a noise's integrals for `check_mechanism`: Gauss–Legendre panels, no code of the noise's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .base import Mechanism

Array = NDArray[np.float64]

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_PANELS = np.concatenate(  # three an octave around 1, one an octave far out
    [
        np.geomspace(2.0**-900, 2.0**-61, 840),
        np.geomspace(2.0**-60, 2.0**180, 721),
        np.geomspace(2.0**181, 2.0**600, 420),
    ]
)
_DEPTH = 60.0  # −log of the tail mass beyond which no break is looked for


def edges(mechanism: Mechanism) -> Array:
    """Panels of the half line: three an octave of the noise's scale, ever finer tails, and its breaks."""
    tails = mechanism.tail_quantile(-np.log(2) - _DEPTH * np.linspace(0, 1, 241) ** 2)
    panels = np.union1d(mechanism.scale_hint * _PANELS, tails[np.isfinite(tails)])
    panels = np.union1d(panels[panels > 0], mechanism.breaks(float(np.max(tails))))
    return np.append(0.0, panels)


def side_integral(function: Callable[[Array], Array], mechanism: Mechanism) -> float:
    """∫_0^∞ of a vectorised `function` that is smooth between the noise's breaks."""
    return integral(function, edges(mechanism))


def integral(function: Callable[[Array], Array], panels: Array) -> float:
    """The sum over panels between neighbouring `panels` (increasing); values that are not finite count as 0."""
    half = 0.5 * np.diff(panels)[:, None]
    x = panels[:-1, None] + half * (1 + _POINTS)
    with np.errstate(all="ignore"):
        values = function(x) * (half * _WEIGHTS)
    return float(np.sum(np.where(np.isfinite(values), values, 0.0)))
