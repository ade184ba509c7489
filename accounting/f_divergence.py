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
_FAR = 30.0  # log of (1+z)^β beyond which the other terms are subtracted in logs
_LARGE = 300.0  # losses beyond which e^loss is kept as a logarithm


def log_excess(beta: Array, loss: Array, sampling_rate: float) -> Array:
    """log g_β(q·(e^loss − 1)), shape of the broadcast of `beta` (orders, 1) and `loss` (cells,)."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore", under="ignore"):
        z = sampling_rate * np.expm1(np.minimum(loss, _LARGE))
        power = beta * _log_sampled_ratio(loss, z, sampling_rate)
        linear = beta * z
        series = beta * (beta - 1) * z**2 / 2
        series = series * (1 + (beta - 2) * z / 3 * (1 + (beta - 3) * z / 4 * (1 + (beta - 4) * z / 5)))
        # For β near 1, (1+z)·(e^{(β−1)u} − 1) − (β−1)z, u = log(1+z): no digits are lost as β → 1.
        growth = np.minimum((beta - 1) / beta * power, _FAR)
        direct = np.where(
            beta > 0.5, (1 + z) * np.expm1(growth) - (beta - 1) * z, np.expm1(np.minimum(power, _FAR)) - linear
        )
        near = np.log(np.where(np.abs(linear) + np.abs(z) < 1e-3, series, np.maximum(direct, 0.0)))
        # Far out (β·z > 0 there): (1+z)^β·(1 − e^{log(1+βz) − power}).
        log_linear = np.where(
            loss > _LARGE, np.log(np.abs(beta) * sampling_rate) + loss, np.log1p(np.maximum(linear, 0.0))
        )
        far = power + np.log(-np.expm1(np.minimum(log_linear - power, 0.0)))
    return np.where(power > _FAR, far, near)


def _log_sampled_ratio(loss: Array, z: Array, sampling_rate: float) -> Array:
    """log(1 − q + q·e^loss); for large losses from the logarithms of its terms."""
    if sampling_rate == 1:
        return loss
    return np.where(loss > _LARGE, np.logaddexp(np.log1p(-sampling_rate), loss + np.log(sampling_rate)), np.log1p(z))


def renyi_bounds(cells: Cells, orders: Array, *, sampling_rate: float, remove: bool) -> tuple[Array, Array]:
    """(lower, upper) Rényi divergence at each of `orders` > 1, natural log, shape (orders, ...) as the cells' shift.

    The upper bound includes the rounding error of the cell masses and of the sum.
    """
    orders = np.asarray(orders, dtype=np.float64).reshape(-1, *([1] * (cells.log_p.ndim - 1)))
    beta = (orders if remove else 1 - orders)[..., None]
    mean_at_least = np.maximum(cells.mean_loss - cells.loss_error, cells.loss_low)
    lower, upper = [], []
    for sign, log_mass in ((1.0, cells.log_q), (-1.0, cells.log_p)):
        weights = cells.chord_weights(mirrored=sign < 0)
        most = log_mass + cells.loss_error
        at_low = log_excess(beta, sign * cells.loss_low, sampling_rate) + most
        at_high = log_excess(beta, sign * cells.loss_high, sampling_rate) + most
        upper.append(np.logaddexp(at_low + weights.low, at_high + weights.high))
        with np.errstate(divide="ignore", invalid="ignore"):  # −∞ − −∞ in branches that `where` drops
            # Rounding may misplace the weight: charge the difference of the ends for it.
            top, bottom = np.maximum(at_low, at_high), np.minimum(at_low, at_high)
            spread = np.log(-np.expm1(np.where(top > bottom, bottom - top, -0.0)))
            upper.append(weights.slack + np.where(top > bottom, top, 0.0) + spread)
        lower.append(log_excess(beta, sign * mean_at_least, sampling_rate) + log_mass - cells.loss_error)
    low = log_sum_exp(np.concatenate(lower, axis=-1))
    high = log_sum_exp(np.concatenate(upper, axis=-1))
    high = np.maximum(high, low)  # out of order by rounding at most
    return (
        np.logaddexp(0, low) / (orders - 1) * (1 - 1e-12),
        np.logaddexp(0, high) / (orders - 1) * (1 + 1e-12),
    )


def log_sum_exp(logs: Array) -> Array:
    """log Σ exp over the last axis; −inf where every term is."""
    peak = np.max(logs, axis=-1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.sum(np.exp(logs - peak), axis=-1)) + peak[..., 0]
