"""The `published` objective: the published bound of one scalar release over the whole grid. Only to reproduce.

Source: arXiv 2405.18776 (LMO-DP). With M(t) = E[exp(t·u)] the bound at order α is

    R(α) = log((α·M(α−1) + (α−1)·M(−α)) / (2α−1)) / (α−1),

finite only while a1·θ·(α−1) < 1 and a3·(α−1) < rate; past these poles the closed form of M is a meaningless number,
so here such an order counts as infinite. It becomes epsilon at δ by

    ε = R(α) + log((α−1)/α) − (log δ + log α)/(α−1),  least over the integer orders 2 … 128 in the domain.

R is the Laplace bound averaged over u, that is, for an adversary who sees u. It is convex in u, so by Jensen's
inequality plain Laplace noise of inverse scale E[u] has no larger R at any order (`laplace_below`), and E|X| = E[1/u]
>= 1/E[u] besides. No mixture can win under this bound, and nothing here ranks noises for use: see `marginal`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numba
import numpy as np
from numpy.typing import NDArray

from ..accounting._numba import njit
from ..mechanisms import Laplace, ScaleMixture, _validate
from . import grid
from ._progress import track

_CHUNK = 16_384  # candidates between two updates of the progress bar, which is also where Ctrl-C is heard


@final
@dataclasses.dataclass(frozen=True)
class PublishedSweep:
    """Epsilon of each candidate of the grid and the order that attains it (0: no order is in the domain).

    Shapes (grid.SIZE,); one release, one coordinate, adversary who sees u. `delta` is the target.
    """

    delta: float
    epsilon: NDArray[np.float64]
    order: NDArray[np.int64]

    @property
    def smallest_epsilon(self) -> float:
        """The least epsilon that any candidate of the grid reaches inside the domain of the bound."""
        return float(self.epsilon.min())

    def reaching(self, epsilon: float) -> NDArray[np.intp]:
        """Indices of the candidates whose in-domain epsilon is at most `epsilon`; empty if none."""
        return np.flatnonzero(self.epsilon <= _validate.positive("epsilon", epsilon))


def published_sweep(*, delta: float, progress: bool = True) -> PublishedSweep:
    """The published bound of all 326,592 candidates at the orders 2 … 128, in-domain only.

    Each term's log-MGF is a table over its own parameters and the orders, so a candidate costs three additions and
    one log-sum per order in its domain.
    """
    offset = conversion(_validate.open_unit("delta", delta))
    tables = _tables()
    epsilon, order = np.empty(grid.SIZE), np.empty(grid.SIZE, dtype=np.int64)
    for start in track(range(0, grid.SIZE, _CHUNK), "published bound", show=progress):
        chunk = slice(start, min(start + _CHUNK, grid.SIZE))
        _sweep(start, *tables, offset, epsilon[chunk], order[chunk])
    return PublishedSweep(delta=float(delta), epsilon=epsilon, order=order)


def conversion(delta: float) -> NDArray[np.float64]:
    """What the conversion adds to R at each order of the grid; shape (127,)."""
    alpha = grid.ORDERS.astype(np.float64)
    return np.log((alpha - 1) / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)


def least_conversion(delta: float, *, pole: float) -> float:
    """A floor on the in-domain epsilon of every candidate with a1·θ >= `pole`, whatever else it is.

    The domain ends at α = 1 + 1/pole and R >= 0, so epsilon is at least the conversion term, which falls with the
    order for δ <= 1/2; at the pole's order it is this value.
    """
    alpha = 1 + 1 / _validate.positive("pole", pole)
    if _validate.open_unit("delta", delta) > 0.5:
        raise ValueError(f"expected delta <= 0.5 (the conversion term falls with the order there), got delta={delta}")
    return math.log((alpha - 1) / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)


def laplace_below(mixture: ScaleMixture) -> Laplace:
    """Plain Laplace noise with inverse scale E[u]: by Jensen, no larger published bound, E|X| or variance."""
    return Laplace(scale=1 / mixture.mean_inverse_scale)


def published_epsilon_numpy(index: int, *, delta: float) -> tuple[float, int]:
    """(epsilon, order) of one candidate, (inf, 0) without an order in the domain: the readable twin of the kernel."""
    mixture = grid.candidate(index)
    gamma = mixture.gamma_weight * mixture.gamma_scale  # type: ignore[operator]
    exponential = mixture.exponential_weight / mixture.exponential_rate  # type: ignore[operator]
    alpha = grid.ORDERS[(gamma * (grid.ORDERS - 1) < 1) & (exponential * (grid.ORDERS - 1) < 1)].astype(np.float64)
    if alpha.size == 0:
        return math.inf, 0

    def log_mgf(t: NDArray[np.float64]) -> NDArray[np.float64]:
        low, high = (mixture.uniform_weight * end for end in (mixture.uniform_low, mixture.uniform_high))  # type: ignore[operator]
        uniform = np.log((np.exp(t * high) - np.exp(t * low)) / (t * (high - low)))
        return -mixture.gamma_shape * np.log1p(-gamma * t) - np.log1p(-exponential * t) + uniform  # type: ignore[operator]

    renyi = np.logaddexp(np.log(alpha) + log_mgf(alpha - 1), np.log(alpha - 1) + log_mgf(-alpha))
    epsilon = (renyi - np.log(2 * alpha - 1)) / (alpha - 1) + conversion(delta)[: alpha.size]
    best = int(np.argmin(epsilon))
    return float(epsilon[best]), int(alpha[best])


# ---- tables and kernel ----------------------------------------------------------------------------------------------


def _tables() -> tuple[Any, ...]:
    """Log-MGFs of each term at α−1 (infinite past its pole) and at −α, over the term's parameters and the orders.

    Gamma: (18, 7, 127); exponential: (18, 4, 127); uniform: (18, 2, 127); the first of each pair is at α−1.
    """
    above, below = grid.ORDERS - 1.0, -grid.ORDERS.astype(np.float64)
    weight = grid.WEIGHT_TENTHS / 10
    scale, shape = np.array(grid.GAMMA_PAIRS).T
    gamma = np.multiply.outer(weight, scale)[:, :, None]
    exponential = np.divide.outer(weight, np.array(grid.EXPONENTIAL_RATES))[:, :, None]
    low, high = (np.multiply.outer(weight, end)[:, :, None] for end in np.array(grid.UNIFORM_INTERVALS).T)
    tables: list[Any] = []
    for t in (above, below):
        tables += [shape[:, None] * _log_power_mgf(gamma * t), _log_power_mgf(exponential * t)]
        tables += [
            np.where(t > 0, high, low) * t + np.log(-np.expm1(-(high - low) * np.abs(t)) / ((high - low) * np.abs(t)))
        ]
    return tuple(tables)


def _log_power_mgf(z: NDArray[np.floating]) -> NDArray[np.float64]:
    """−log(1 − z), infinite from the pole at z = 1 on."""
    return np.where(z < 1, -np.log1p(-np.minimum(z, 1 - 1e-12)), np.inf)


@njit(parallel=True)
def _sweep(
    start, gamma_up, exponential_up, uniform_up, gamma_down, exponential_down, uniform_down, offset, epsilon, order
):
    """Fill `epsilon` and `order` for the candidates from `start` on."""
    _, pairs, count = gamma_up.shape
    rates, intervals = exponential_up.shape[1], uniform_up.shape[1]
    for i in numba.prange(epsilon.size):
        rest = start + i
        rest, interval = divmod(rest, intervals)
        rest, rate = divmod(rest, rates)
        rest, pair = divmod(rest, pairs)
        rest, a4 = divmod(rest, 18)
        a1, a3 = divmod(rest, 18)
        best, best_order = np.inf, 0
        for j in range(count):
            up = gamma_up[a1, pair, j] + exponential_up[a3, rate, j] + uniform_up[a4, interval, j]
            if up == np.inf:  # orders past a pole stay past it
                break
            down = gamma_down[a1, pair, j] + exponential_down[a3, rate, j] + uniform_down[a4, interval, j]
            alpha = j + 2.0
            ratio = (alpha - 1) / alpha * math.exp(down - up)  # down <= 0 <= up
            value = (up + math.log((1 + ratio) * alpha / (2 * alpha - 1))) / (alpha - 1) + offset[j]
            if value < best:
                best, best_order = value, j + 2
        epsilon[i], order[i] = best, best_order
