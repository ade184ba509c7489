"""The published LMO grid: 18³ weights × 7 gamma pairs × 4 exponential rates × 2 uniform intervals = 326,592 candidates.

Source: the parameter ranges of the code published with arXiv 2405.18776. A candidate's index counts in C order over
(a1, a3, a4, gamma pair, rate, interval), the last fastest.

As *shapes* many candidates coincide: a common factor of (a1, a3, a4) only rescales the noise, the gamma term enters by
(k, a1·θ) alone and the exponential term by a3/rate alone, and at k = 1 both terms are exponential and may be swapped.
`distinct_shapes` keeps one candidate of each class.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import ScaleMixture, _validate
from .cells import normalised

WEIGHT_TENTHS = np.arange(1, 19)
"""Weights 0.1, 0.2, …, 1.8, times ten."""
GAMMA_PAIRS = ((1.0, 2.0), (2.0, 2.0), (3.0, 2.0), (5.0, 1.0), (9.0, 0.5), (7.5, 1.0), (0.5, 1.0))
"""(scale θ, shape k) of the gamma term."""
EXPONENTIAL_RATES = (0.1, 0.5, 1.0, 5.0)
UNIFORM_INTERVALS = ((0.0, 1.0), (1.0, 2.0))
"""(low, high) of the uniform term."""
ORDERS = np.arange(2, 129)
"""The Rényi orders at which each candidate is evaluated."""

AXES = (len(WEIGHT_TENTHS),) * 3 + (len(GAMMA_PAIRS), len(EXPONENTIAL_RATES), len(UNIFORM_INTERVALS))
SIZE = int(np.prod(AXES))


def candidate(index: int) -> ScaleMixture:
    """The noise at `index` in 0 … SIZE − 1, with its published parameters."""
    index = _validate.integer("index", index, minimum=0)
    if index >= SIZE:
        raise ValueError(f"expected index < {SIZE}, got index={index}")
    a1, a3, a4, pair, rate, interval = (int(i) for i in np.unravel_index(index, AXES))
    scale, shape = GAMMA_PAIRS[pair]
    low, high = UNIFORM_INTERVALS[interval]
    return ScaleMixture(
        gamma_weight=float(WEIGHT_TENTHS[a1] / 10),
        gamma_shape=shape,
        gamma_scale=scale,
        exponential_weight=float(WEIGHT_TENTHS[a3] / 10),
        exponential_rate=EXPONENTIAL_RATES[rate],
        uniform_weight=float(WEIGHT_TENTHS[a4] / 10),
        uniform_low=low,
        uniform_high=high,
    )


def cells() -> NDArray[np.float64]:
    """All candidates as rows (k, g1, g3, low, width) of `cells`, in index order, not normalised; shape (SIZE, 5)."""
    a1, a3, a4, pair, rate, interval = np.unravel_index(np.arange(SIZE), AXES)
    scales, shapes = np.array(GAMMA_PAIRS).T
    low, high = np.array(UNIFORM_INTERVALS).T
    weight = WEIGHT_TENTHS / 10
    return np.stack(
        [
            shapes[pair],
            weight[a1] * scales[pair],
            weight[a3] / np.array(EXPONENTIAL_RATES)[rate],
            weight[a4] * low[interval],
            weight[a4] * (high - low)[interval],
        ],
        axis=1,
    )


@functools.cache
def distinct_shapes() -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """(index of the first candidate of each class, its cell with mean inverse scale 1); shapes (n,), (n, 5)."""
    _, first = np.unique(_shape_keys(), return_index=True)
    index = np.sort(first)
    return index, normalised(cells()[index])


def _shape_keys() -> NDArray[np.int64]:
    """One integer per candidate, equal exactly for equal shapes; shape (SIZE,).

    a1·θ, a3/rate and a4 are whole multiples of 0.01, so ratios are compared without rounding.
    """
    _, _, a4, pair, _, interval = np.unravel_index(np.arange(SIZE), AXES)
    hundredths = cells()
    gamma = np.rint(100 * hundredths[:, 1]).astype(np.int64)
    exponential = np.rint(100 * hundredths[:, 2]).astype(np.int64)
    uniform = 10 * WEIGHT_TENTHS[a4]
    both_exponential = np.array([shape == 1 for _, shape in GAMMA_PAIRS])[pair]
    swap = both_exponential & (gamma > exponential)
    gamma, exponential = np.where(swap, exponential, gamma), np.where(swap, gamma, exponential)
    common = np.gcd(np.gcd(gamma, exponential), uniform)
    shape = np.rint(2 * hundredths[:, 0]).astype(np.int64)
    digits = (2 * shape + interval, gamma // common, exponential // common, uniform // common)
    return np.ravel_multi_index(digits, (10, 2000, 2000, 200))
