"""Where the slopes may change: a first guess, then fewer knots where they do not and more where they do."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...accounting._roots import bracketed_root
from ...mechanisms import Mechanism
from .cost import LinearCost
from .functional import Functional
from .loglinear import LogLinear, Shape

Array = NDArray[np.float64]

_COUNT = 36
_SHIFTS = 3  # periods of the shift that are resolved if the noise is narrower than the shift
_NARROW = 0.6  # standard deviation below which it is
_LOG_TAIL = -8.0  # log P(X > last knot) of the noise started from
_SAME, _DIFFERENT = 0.003, 0.02  # change of slope times width: merged below, split above
_FLAT = -11.0  # log slope that stands for none


def first_shape(noise: Mechanism, shift: float) -> Shape:
    """The log-linear interpolation of `noise` (in units of C), in units of the shift."""
    reach = float(noise.tail_quantile(_LOG_TAIL)) / shift
    knots = np.linspace(0, reach, _COUNT + 1)[1:]
    deviation = math.sqrt(noise.variance) / shift if math.isfinite(noise.variance) else reach
    if deviation < _NARROW:
        graded = np.linspace(0, 1, _COUNT // 2 + 1) ** 1.5
        knots = np.unique(np.concatenate([knots, *(period + graded[1:] for period in range(_SHIFTS))]))
        knots = knots[np.append(True, np.diff(knots) > 1e-6)]
    edges = np.append(0.0, knots) * shift
    slopes = np.append(noise.log_density_drop(edges[:-1], np.diff(edges)) / np.diff(edges), 0.0) * shift
    slopes[-1] = max(float(noise.log_density_drop(edges[-1], edges[-1] / 4)) / (edges[-1] / 4) * shift, 1e-3)
    return Shape(knots, np.log(np.maximum(slopes, math.exp(_FLAT))))


def fitted(shape: Shape, functional: Functional, cost: LinearCost) -> Shape:
    """The shape scaled so that G is at its limit: it falls with the scale."""

    def excess(log_factor: float) -> float:
        scaled = shape.scaled(math.exp(log_factor))
        value = LogLinear(scaled.knots, functional, cost).value(scaled.log_slopes).log_loss
        return (min(value, 1e6) if not math.isnan(value) else 1e6) - math.log(functional.limit)

    low, high, step = 0.0, 0.0, 0.1
    while excess(high) > 0:
        low, high, step = high, high + step, 2 * step
        if high > 200:
            raise ValueError("no scale of this density meets the constraint")
    while excess(low) <= 0:
        low, high, step = low - step, low, 2 * step
        if low < -200:
            raise ValueError("every scale of this density meets the constraint")
    return shape.scaled(math.exp(bracketed_root(excess, low, high, absolute=1e-7)))


def refined(shape: Shape, splits: int) -> Shape:
    """Neighbours of nearly equal slope merged, the `splits` segments beside the greatest changes halved."""
    widths, slopes = _merged(np.diff(np.append(0.0, shape.knots)), shape.slopes)
    change = np.abs(np.diff(slopes))
    weight = np.maximum(np.append(0.0, change[:-1]), change) * widths
    chosen = {int(i) for i in np.argsort(-weight)[:splits] if weight[i] > _DIFFERENT}
    parts = [np.full(2, w / 2) if i in chosen else np.array([w]) for i, w in enumerate(widths)]
    values = np.repeat(slopes[:-1], [len(part) for part in parts])
    slopes = np.maximum(np.append(values, slopes[-1]), math.exp(_FLAT))
    return Shape(np.cumsum(np.concatenate(parts)), np.log(slopes))


def _merged(widths: Array, slopes: Array) -> tuple[Array, Array]:
    kept_widths, kept_slopes = [float(widths[0])], [float(slopes[0])]
    for width, slope in zip(widths[1:], slopes[1:-1], strict=True):
        before, length = kept_slopes[-1], kept_widths[-1]
        if abs(slope - before) * min(width, length) < _SAME:
            kept_slopes[-1] = float((before * length + slope * width) / (length + width))
            kept_widths[-1] = float(length + width)
        else:
            kept_widths.append(float(width))
            kept_slopes.append(float(slope))
    return np.array(kept_widths), np.append(kept_slopes, slopes[-1])
