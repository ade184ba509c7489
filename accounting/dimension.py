"""Independent noise in d coordinates under an L2 bound on the shift: the Rényi curve, proven for the dimension.

Write r(t) for the Rényi divergence of order α of one coordinate under shift t, and g(s) = r(√s). A shift Δ with
‖Δ‖₂ <= D has divergence Σ r(|Δ_i|) = Σ g(Δ_i²) <= d·ĝ(D²/d), ĝ the concave envelope of g on [0, D²] (Jensen); for
every d at once it is at most D²·sup_s g(s)/s. (arXiv 2103.08721 has the Fisher-information limit; the supremum may lie
at s > 0, so it is computed over all s.)

Between grid points, and near s = 0, g is bounded as follows, with B = sup |p′/p| and
F(t) = e^{(α−1)r(t)} = ∫ p(x)^α p(x−t)^{1−α} dx.

1. F″(t) = α(α−1)·∫ p(x)^α p(x−t)^{1−α} ℓ′(x)ℓ′(x−t) dx with ℓ = log p (differentiate once under the integral, shift the
   variable, differentiate again; p is locally Lipschitz and |ℓ′| <= B).
2. Near 0: by Cauchy–Schwarz, and |ℓ(x) − ℓ(x−t)| <= Bt, F″(t) <= α(α−1)·I·e^{αBt} with I the Fisher information, so
   r(t) <= (α·I/2)·e^{αBt}·t².
3. Between grid points: the integrand of F″ is negative only for 0 < x < t, so
   F″(t) >= −α(α−1)·B²·t·p(0)·e^{(α−1)ℓ_max(t)}, ℓ_max(t) = log p(0)/p(t).
   With that lower bound −L on [t_0, t_1], h = t_1/t_0 − 1, F lies below its chord plus
   S = L·(t_1−t_0)²/8. Hoeffding's lemma turns the chord of F into one of log F (+ D²/8, D = Δ log F), and
   the chord in t into one in s = t² (+ (h/8)·D): on [t_0, t_1],
       (α−1)·g(s) <= linear interpolation of log F in s + D²/8 + (h/8)·D + S/F(t_0).
   Since r rises with t (the density is symmetric and unimodal), the excess is also at most D.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import Mechanism
from .cells import cut, fisher_information_bounds, largest_loss, require_log_convex_sides
from .f_divergence import renyi_bounds

Array = NDArray[np.float64]

_RATIO = 1.03  # of neighbouring grid shifts; the excess between them is about a thousandth
_NEAR = 1e-3  # α·B·t below which the Fisher bound of step 2 stands for g
_CHUNK = 16  # shifts evaluated at once
_OUTER, _INNER = 96, 24  # cells: brackets about 1e-4 wide, below the excess between grid shifts
KNOTS_PER_OCTAVE = 12


def octave_orders(octave: int) -> Array:
    """The orders α of one octave: α − 1 from 2^octave up to, not including, 2^(octave+1); integers are among them."""
    orders = 1 + 2.0**octave * 2.0 ** (np.arange(KNOTS_PER_OCTAVE) / KNOTS_PER_OCTAVE)
    if 0 <= octave <= 4:
        orders = np.union1d(orders, np.arange(2.0**octave, 2.0 ** (octave + 1)) + 1)
    return orders


def largest_loss_in_dimension(mechanism: Mechanism, shift: float, dimension: float) -> float:
    """Rényi divergence of order ∞ in `dimension` coordinates under an L2 shift of `shift`.

    log p(0)/p(t) is concave in t (log p is convex on each side), so it is concave in t² too: equal shifts are worst.
    """
    if math.isinf(dimension):
        return math.inf
    return dimension * largest_loss(mechanism, shift / math.sqrt(dimension))


def require_dimension_bound(mechanism: Mechanism) -> None:
    """Refuse a noise for which the bounds of this module are not proven."""
    require_log_convex_sides(mechanism, "dimension bound")
    if not math.isfinite(mechanism.max_score):
        raise ValueError(f"the dimension bound needs a bounded score; that of {mechanism.family} is infinite")


def renyi_in_dimension(mechanism: Mechanism, shift: float, dimension: float, octave: int) -> Array:
    """Proven upper bounds on the Rényi divergence at `octave_orders(octave)`, shape (orders,).

    `shift` is the L2 bound (units of C), `dimension` the number of coordinates, or `inf` for every dimension at once.
    """
    squares, values = _majorant(mechanism, shift, octave)
    with np.errstate(divide="ignore", invalid="ignore"):
        if math.isinf(dimension):
            return shift**2 * np.max(values[:, 1:] / squares[1:], axis=1)
        return dimension * _envelope(squares, values, shift**2 / dimension)


def _envelope(squares: Array, values: Array, at: float) -> Array:
    """The concave envelope of the points (`squares` (points,), `values` (orders, points)) evaluated at `at`."""
    left, right = squares <= at, squares >= at
    exact = squares == at
    if exact.any():
        left = left & ~exact
    span = squares[None, right] - squares[left, None]
    weight = (at - squares[left, None]) / span
    chords = values[:, left, None] * (1 - weight) + values[:, None, right] * weight
    best = np.max(chords, axis=(1, 2))
    return np.maximum(best, values[:, exact].max(axis=1)) if exact.any() else best


def _majorant(mechanism: Mechanism, shift: float, octave: int) -> tuple[Array, Array]:
    """Points (s, value) whose concave envelope lies above g on [0, shift²]: shapes (points,), (orders, points)."""
    orders, score = octave_orders(octave), mechanism.max_score
    first = math.floor(math.log(_NEAR / orders[-1]) / math.log(_RATIO))
    last = max(first + 1, math.ceil(math.log(score * shift) / math.log(_RATIO)))
    times = _RATIO ** np.arange(first, last + 1, dtype=np.float64) / score
    log_f = _rows(mechanism, octave).table(first, last)
    excess = _excess(mechanism, orders[:, None], times, log_f)
    value = log_f / (orders[:, None] - 1)
    value[:, :-1] += excess
    value[:, 1:] = np.maximum(value[:, 1:], log_f[:, 1:] / (orders[:, None] - 1) + excess)
    near = orders * fisher_information_bounds(mechanism)[1] / 2 * np.exp(orders * score * times[0]) * times[0] ** 2
    value[:, 0] = np.maximum(value[:, 0], near)
    squares = np.concatenate([[0.0], times**2])
    return squares, np.concatenate([np.zeros((len(orders), 1)), value], axis=1)


def _excess(mechanism: Mechanism, orders: Array, times: Array, log_f: Array) -> Array:
    """How far g may exceed the linear interpolation in s between neighbouring grid shifts, shape (orders, points−1)."""
    rise = np.diff(log_f, axis=1)
    worst = mechanism.log_density(0.0) - mechanism.log_density(times[1:])
    with np.errstate(over="ignore", invalid="ignore"):
        curvature = (
            orders * (orders - 1) * mechanism.max_score**2 * times[1:]
            * np.exp(mechanism.log_density(0.0) + (orders - 1) * worst - log_f[:, :-1])
        )  # fmt: skip
        chord = rise**2 / 8 + (_RATIO - 1) / 8 * rise + curvature * np.diff(times) ** 2 / 8
    return np.fmin(chord, rise) / (orders - 1)


class _Rows:
    """log F (upper bounds) of one mechanism at one octave of orders, by index of the grid shift; filled on demand."""

    def __init__(self, mechanism: Mechanism, octave: int) -> None:
        self.mechanism = mechanism
        self.orders = octave_orders(octave)
        self.columns: dict[int, Array] = {}

    def table(self, first: int, last: int) -> Array:
        """Columns first … last (inclusive), shape (orders, last − first + 1)."""
        missing = [index for index in range(first, last + 1) if index not in self.columns]
        for start in range(0, len(missing), _CHUNK):
            indices = missing[start : start + _CHUNK]
            shifts = _RATIO ** np.array(indices, dtype=np.float64) / self.mechanism.max_score
            cells = cut(self.mechanism, shifts, outer=_OUTER, inner=_INNER)
            _, upper = renyi_bounds(cells, self.orders, sampling_rate=1.0, remove=True)
            self.columns.update(zip(indices, (upper * (self.orders[:, None] - 1)).T, strict=True))
        return np.stack([self.columns[index] for index in range(first, last + 1)], axis=1)


@functools.lru_cache(maxsize=512)
def _rows(mechanism: Mechanism, octave: int) -> _Rows:
    return _Rows(mechanism, octave)
