"""Rényi curves of single releases: for each order an upper bound on the divergence that is proven, never estimated."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..mechanisms import Mechanism
from .cells import cut, largest_loss
from .dimension import largest_loss_in_dimension, octave_orders, renyi_in_dimension, require_dimension_bound
from .event import Event
from .f_divergence import renyi_bounds
from .poisson import sampled_curve, sampled_loss
from .sampled_gaussian import sampled_gaussian_renyi

Array = NDArray[np.float64]
_CELLS_DOUBLINGS = 4


@dataclasses.dataclass(frozen=True)
class RenyiCurve:
    """The Rényi curve of one release.

    Attributes:
        at: maps orders > 1, shape (n,), to proven upper bounds on the divergence (natural log), same shape.
        largest_loss: the divergence of order ∞ (an upper bound), `inf` if the loss is unbounded.
    """

    at: Callable[[Array], Array]
    largest_loss: float


def renyi_curve(event: Event) -> RenyiCurve:
    """The curve of one step of `event`. Raises ValueError where nothing is proven for the noise or the dimension."""
    mechanism, shift, rate = event.mechanism, event.shift, event.sampling_rate
    dimension = 1 if event.dimension is None else event.dimension
    if event.is_spherical:
        raise ValueError("no Rényi curve is proven for spherical noise; its privacy loss distribution is")
    if event.is_scalar and not mechanism.isotropic and (rate < 1 or not mechanism.closed_renyi):
        _require_bounded_loss(mechanism, shift)
        at = functools.partial(_scalar_by_cells, mechanism, shift, rate)
    elif mechanism.isotropic and rate < 1:
        at = functools.partial(_sampled_gaussian, mechanism, shift, rate)
    elif event.is_scalar and rate == 1:
        at = functools.partial(_closed, mechanism, shift)
    else:
        require_dimension_bound(mechanism)
        at = sampled_curve(functools.partial(_in_dimension, mechanism, shift, dimension), rate)
    if event.symmetric:
        at = functools.partial(_symmetric, at)
    loss = largest_loss(mechanism, shift) if event.is_scalar else largest_loss_in_dimension(mechanism, shift, dimension)
    return RenyiCurve(at, sampled_loss(loss, rate))


def _require_bounded_loss(mechanism: Mechanism, shift: float) -> None:
    if mechanism.support < math.inf:
        raise ValueError(f"every Rényi divergence of {mechanism.family} noise is infinite: its support is bounded")
    if math.isinf(largest_loss(mechanism, shift)):
        raise ValueError(
            f"no Rényi curve is proven for {mechanism.family} noise, whose loss is not known to be bounded"
        )


def _symmetric(remove: Callable[[Array], Array], orders: Array) -> Array:
    """Replacing a record: e^{(α−1)R} − 1 is at most twice that of *remove* at the same shift (see `replace_one`)."""
    exponent = (orders - 1) * remove(orders)
    with np.errstate(over="ignore"):
        doubled = np.where(exponent > 30, exponent + math.log(2), np.log1p(2 * np.expm1(np.minimum(exponent, 31))))
    return doubled / (orders - 1)


def _closed(mechanism: Mechanism, shift: float, orders: Array) -> Array:
    return np.array([mechanism.renyi_divergence(float(order), shift) for order in orders])


def _sampled_gaussian(mechanism: Mechanism, shift: float, rate: float, orders: Array) -> Array:
    t = shift / math.sqrt(mechanism.variance)
    return sampled_gaussian_renyi(t, rate, orders)


def _scalar_by_cells(mechanism: Mechanism, shift: float, rate: float, orders: Array) -> Array:
    """One coordinate, any real order, sampled or not: cells, refined until the bracket is 1e-4 wide. Remove decides."""
    result = np.empty_like(orders)
    wide = np.ones(orders.shape, dtype=bool)
    for doubling in range(_CELLS_DOUBLINGS):
        cells = _cells(mechanism, shift, doubling)
        lower, upper = renyi_bounds(cells, orders[wide], sampling_rate=rate, remove=True)
        result[wide] = upper
        wide[wide] = upper > lower * (1 + 1e-4)
        if not wide.any():
            break
    return result


@functools.lru_cache(maxsize=256)
def _cells(mechanism: Mechanism, shift: float, doubling: int):
    return cut(mechanism, shift, outer=256 * 2**doubling, inner=64 * 4**doubling)


def _in_dimension(mechanism: Mechanism, shift: float, dimension: float, orders: Array) -> Array:
    """(α−1)·R(α) is convex in α for each shift, hence for their supremum: chords between tabulated orders bound it."""
    excess = orders - 1
    result = np.empty_like(orders)
    for octave in np.unique(np.floor(np.log2(excess))):
        chosen = np.floor(np.log2(excess)) == octave
        knots, values = _table(mechanism, shift, dimension, int(octave))
        result[chosen] = np.interp(orders[chosen], knots, values) / excess[chosen]
    return result


@functools.lru_cache(maxsize=512)
def _table(mechanism: Mechanism, shift: float, dimension: float, octave: int) -> tuple[Array, Array]:
    """Orders of one octave and the first of the next, with (α−1)·R(α) at each."""
    own, following = octave_orders(octave), octave_orders(octave + 1)
    value = renyi_in_dimension(mechanism, shift, dimension, octave)
    after = renyi_in_dimension(mechanism, shift, dimension, octave + 1)
    knots = np.append(own, following[0])
    return knots, (knots - 1) * np.append(value, after[0])
