"""Plain quadrature of a noise's integrals for `check_mechanism`: Gauss–Legendre panels, no code of the noise's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .base import Mechanism

Array = NDArray[np.float64]

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_PANELS = np.geomspace(2.0**-60, 2.0**180, 721)  # three an octave, in units of the noise's scale
_DEPTH = 60.0  # −log of the tail mass beyond which no break is looked for


def edges(mechanism: Mechanism) -> Array:
    """Panels of the half line: three an octave of the noise's scale, cut at its breaks."""
    reach = float(mechanism.tail_quantile(-_DEPTH))
    return np.union1d(np.append(0.0, mechanism.scale_hint * _PANELS), mechanism.breaks(reach))


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
