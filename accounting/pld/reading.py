"""δ at ε, and ε at δ, of a composed lattice loss: upper and lower, each with every error on its own side.

For lattice losses x_1 < x_2 < … with masses w_i (error bounds added or taken off),
δ(ε) = Σ_{x_i > ε} w_i(1 − e^{ε−x_i}). At lattice points it obeys, from above, with h the step and A_i = Σ_{j >= i} w_j,

    G_i = δ(x_i) = e^{−h}·G_{i+1} + (1 − e^{−h})·A_{i+1},

a recursion of positive terms, so nothing cancels; between points δ(ε) = A_{i+1} − e^{ε − x_{i+1}}·(A_{i+1} − G_{i+1}).
Tilted mass m of unknown place changes δ(ε) by at most m·e^{ΣK}·sup_{x>ε} e^{−sx}(1 − e^{ε−x}) = m·e^{ΣK −
sε}·s^s/(s+1)^{s+1}.
"""

from __future__ import annotations

import math

from .._numba import njit
from .composition import Composed

_OVERFLOW = 600.0
_SLACK = 16 * 2.0**-53  # relative rounding of the last step, within one lattice interval


def epsilon_bound(composed: Composed, log_delta: float, *, upper: bool) -> float:
    """A bound of ε at log δ, >= 0; from above `inf` where none can be given, from below 0."""
    sign = 1.0 if upper else -1.0
    about = composed.mean
    log_target = log_delta - (composed.log_scale - composed.tilt * about) - sign * _log_error(composed)
    if abs(log_target) > _OVERFLOW:
        return math.inf if upper else 0.0
    infinity = composed.infinity * math.exp(min(log_target - log_delta, _OVERFLOW)) if upper else 0.0
    value = _crossing(
        composed.mass, sign * composed.error, composed.first_loss, composed.step, composed.tilt, about,
        sign * _worst(composed), infinity, math.exp(log_target), upper,
    )  # fmt: skip
    if value == 0 or math.isinf(value):
        return value
    margin = composed.loss_rounding + 1e-14 * abs(value)
    return value + margin if upper else max(value - margin, 0.0)


def log_delta_bound(composed: Composed, epsilon: float, *, upper: bool) -> float:
    """A bound of log δ at ε >= 0; at most 0."""
    sign = 1.0 if upper else -1.0
    at = max(epsilon - sign * composed.loss_rounding, 0.0)
    value = _value(
        composed.mass, sign * composed.error, composed.first_loss, composed.step, composed.tilt, at,
        sign * _worst(composed),
    )  # fmt: skip
    log_scale = composed.log_scale - composed.tilt * at
    if math.isnan(value):
        return 0.0 if upper else -math.inf
    if upper:
        value = max(value, 1e-300)  # it may have underflowed
    result = log_scale + math.log(value) + sign * _log_error(composed) if value > 0 else -math.inf
    if upper and composed.infinity > 0:
        high, low = max(result, math.log(composed.infinity)), min(result, math.log(composed.infinity))
        result = high + math.log1p(math.exp(low - high))
    return min(result, 0.0)


def _log_error(composed: Composed) -> float:
    return composed.log_error + 2.0**-52 * (8 + 3 * len(composed.mass))


def _worst(composed: Composed) -> float:
    """outside·s^s/(s+1)^{s+1}."""
    s = composed.tilt
    return composed.outside * math.exp(s * math.log(s / (s + 1)) if s > 0 else 0.0) / (s + 1)


@njit()
def _crossing(mass, error, first, step, tilt, about, worst, infinity, target, upper):  # pyright: ignore
    """The ε where the bound (in units of e^{ΣK − s·about}) meets `target`; 0 if it is below it at ε = 0."""
    decay, gain = math.exp(-step), -math.expm1(-step)
    above, value = 0.0, 0.0  # A_{i+1} and G_{i+1}
    for i in range(len(mass) - 1, -2, -1):
        loss = first + step * i
        here = decay * value + gain * above
        constant = infinity
        exponent = tilt * (about - max(loss, 0.0))
        if exponent < 700.0:
            constant += worst * math.exp(exponent)
        else:
            constant = math.inf if upper else -math.inf
        if here + constant > target or loss <= 0:
            if i == len(mass) - 1:
                return math.inf if upper and here + constant > target else 0.0
            inside = above - value
            if not (inside > 0 and inside < math.inf):
                return loss + step if upper else max(loss, 0.0)
            change = (value + constant - target) / inside  # of e^{ε − x_{i+1}} from 1
            if change <= -1:
                return loss + step if upper else max(loss, 0.0)
            back = math.log1p(change)
            slack = _SLACK * (step + (value + abs(constant) + target) / inside / (1 + change))
            found = loss + step + (back + slack if upper else back - slack)
            return min(max(found, loss, 0.0), loss + step)
        value = here
        if i >= 0:
            density = mass[i] + error
            if density > 0:
                above += density * math.exp(tilt * (about - loss))
    return 0.0 if not upper else max(first - step, 0.0)


@njit()
def _value(mass, error, first, step, tilt, epsilon, worst):  # pyright: ignore
    """The bound of δ(ε) in units of e^{ΣK − s·ε}."""
    total = worst
    for i in range(len(mass) - 1, -1, -1):
        loss = first + step * i
        if loss <= epsilon:
            break
        density = mass[i] + error
        if density > 0:
            total += density * math.exp(-tilt * (loss - epsilon)) * -math.expm1(epsilon - loss)
    return total
