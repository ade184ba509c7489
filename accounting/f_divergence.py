"""Rényi divergences of a scalar noise and its shifted copy, Poisson-sampled or not, as proven brackets over cells.

For sampling rate q, with z = q·(r − 1), r = dP/dQ:

    remove: (1−q)Q + qP against Q:   e^{(α−1)R} = E_Q[(1+z)^α]
    add:    Q against (1−q)Q + qP:   e^{(α−1)R} = E_Q[(1+z)^{1−α}]

Since E_Q[z] = 0, both equal 1 + E_Q[g_β(z)] with g_β(z) = (1+z)^β − 1 − βz >= 0 (β = α or 1−α), which is convex in r
and loses no digits when the divergence is tiny.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .cells import Cells

Array = NDArray[np.float64]
_FAR = 30.0


def log_excess(beta: Array, loss: Array, sampling_rate: float) -> Array:
    """log g_β(q·(e^loss − 1)), shape of the broadcast of `beta` (orders, 1) and `loss` (cells,)."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        z = sampling_rate * np.expm1(np.minimum(loss, 700.0))
        growth = _log_sampled_ratio(loss, z, sampling_rate)
        power = beta * growth
        series = (
            beta
            * (beta - 1)
            * z**2
            / 2
            * (1 + (beta - 2) * z / 3 * (1 + (beta - 3) * z / 4 * (1 + (beta - 4) * z / 5)))
        )
        direct = np.expm1(np.minimum(power, _FAR)) - beta * z
        near = np.log(np.where(np.abs(beta * z) + np.abs(z) < 1e-3, series, np.maximum(direct, 0.0)))
        far = power + np.log1p(-np.minimum((1 + beta * z) * np.exp(-power), 1.0))
    return np.where(power > _FAR, far, near)


def _log_sampled_ratio(loss: Array, z: Array, sampling_rate: float) -> Array:
    """log(1 − q + q·e^loss); past e^700 from the logarithm of its dominant term."""
    if sampling_rate == 1:
        return loss
    return np.where(loss > 700, loss + np.log(sampling_rate) + 1e-15, np.log1p(z))


def renyi_bounds(cells: Cells, orders: Array, *, sampling_rate: float, remove: bool) -> tuple[Array, Array]:
    """(lower, upper) Rényi divergence at each of `orders` > 1, natural log, shape (orders, ...) as the cells' shift.

    The upper bound includes the rounding error of the cell masses and of the sum.
    """
    orders = np.asarray(orders, dtype=np.float64).reshape(-1, *([1] * (cells.log_p.ndim - 1)))
    beta = (orders if remove else 1 - orders)[..., None]
    middle = np.clip(cells.log_p - cells.log_q, cells.loss_low, cells.loss_high)
    weight, slack = cells.chord_weight
    # In the mirrored half the ratio is 1/r and the reference mass P: the chord's weight there is w·r_1/r̄.
    stretch = np.exp(cells.loss_high - middle)
    halves = (
        (1.0, cells.log_q, weight, slack),
        (-1.0, cells.log_p, np.minimum(weight * stretch, 1.0), slack * stretch),
    )
    lower, upper = [], []
    for sign, log_mass, high_weight, weight_error in halves:
        at_low = log_excess(beta, sign * cells.loss_low, sampling_rate) + log_mass
        at_high = log_excess(beta, sign * cells.loss_high, sampling_rate) + log_mass
        with np.errstate(divide="ignore"):
            upper.append(np.logaddexp(at_low + np.log1p(-high_weight), at_high + np.log(high_weight)))
            # Rounding may misplace the weight: charge the difference of the ends for it.
            top, bottom = np.maximum(at_low, at_high), np.minimum(at_low, at_high)
            upper.append(np.log(np.minimum(weight_error, 1.0)) + top + np.log(-np.expm1(bottom - top)))
        lower.append(log_excess(beta, sign * middle, sampling_rate) + log_mass)
    low = _log_sum(np.concatenate(lower, axis=-1))
    high = _log_sum(np.concatenate(upper, axis=-1))
    rounding = 1e-12 + np.max(cells.loss_error, axis=-1)
    return (
        np.logaddexp(0, low - rounding) / (orders - 1) * (1 - 1e-12),
        np.logaddexp(0, high + rounding) / (orders - 1) * (1 + 1e-12),
    )


def _log_sum(logs: Array) -> Array:
    """log Σ exp over the last axis; −inf where every term is."""
    peak = np.max(logs, axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(logs - peak), axis=-1)) + peak[..., 0]
