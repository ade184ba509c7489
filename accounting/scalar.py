"""The exact privacy profile of one scalar release, Poisson-sampled or not, from the ends of its level set.

P has density p, Q the density p(·−t). For γ = e^ε >= 1, H_γ(P‖Q) = P(A) − γ·Q(A) with A = {ℓ >= ε}. The loss of a
density with log-convex sides rises up to x = 0 and falls to 0 at t/2, so A is an interval (−a, b), a possibly infinite,
0 <= b < t/2: both ends are found, none is assumed. The largest shift is the worst one for every density that is
symmetric and unimodal: {p(x) > γ·p(x−t)} lies left of t/2, where p(x−1) <= p(x−t) for t <= 1.

Sampling at rate q (M = (1−q)Q + qP):
    remove:  H_γ(M‖Q) = q·H_γ'(P‖Q),  γ' = 1 + (γ−1)/q.
    add:     H_γ(Q‖M) = (1−γ(1−q))·H_γ''(Q‖P),  γ'' = γq/(1−γ(1−q)), for γ < 1/(1−q), else 0;
             H(Q‖P) = H(P‖Q) by symmetry.
Remove is never the smaller at γ >= 1 (proof in `poisson`), so it alone decides ε >= 0.
"""

from __future__ import annotations

import math

import numpy as np

from ..mechanisms import Mechanism
from . import gaussian
from ._roots import bracketed_root
from .cells import interval_mass, largest_loss, require_log_convex_sides
from .event import Event
from .poisson import sampled_loss


def log_delta_bounds(event: Event, epsilon: float) -> tuple[float, float]:
    """(lower, upper) of log δ(ε) for a scalar event with one step, ε >= 0; −inf where δ is 0."""
    rate = event.sampling_rate
    inner = epsilon if rate == 1 else _amplified(epsilon, rate)
    lower, upper = _hockey_stick(event, inner)
    return lower + math.log(rate), upper + math.log(rate)


def log_delta_bounds_add(event: Event, epsilon: float) -> tuple[float, float]:
    """The same for the *add* direction alone, which is never above *remove*, given by `log_delta_bounds`."""
    rate = event.sampling_rate
    remaining = 1.0 if rate == 1 else -math.expm1(epsilon + math.log1p(-rate))
    if remaining <= 0:
        return -math.inf, -math.inf
    lower, upper = _hockey_stick(event, epsilon + math.log(rate) - math.log(remaining))
    return lower + math.log(remaining), upper + math.log(remaining)


def largest_epsilon(event: Event) -> float:
    """The loss that is never exceeded: ε at δ = 0 (`inf` if unbounded)."""
    return sampled_loss(largest_loss(event.mechanism, event.shift), event.sampling_rate)


def _amplified(epsilon: float, rate: float) -> float:
    """log(1 + (e^ε − 1)/q) without overflow."""
    if epsilon > 30:
        return epsilon - math.log(rate) + math.log1p(-(1 - rate) * math.exp(-epsilon))
    return math.log1p(math.expm1(epsilon) / rate)


def _hockey_stick(event: Event, epsilon: float) -> tuple[float, float]:
    """Bounds of log H_{e^ε}(P‖Q), unsampled, ε >= 0."""
    mechanism, shift = event.mechanism, event.shift
    if mechanism.isotropic:
        return gaussian.log_delta_bounds(epsilon, shift * math.sqrt(mechanism.fisher_information))
    if epsilon == 0:  # {p > q} is x < t/2 for every unimodal density: P(X <= t/2) − P(X <= −t/2)
        mass, error = _mass(mechanism, 0.0, shift / 2, shift / 2)
        return mass + math.log(2) - error, min(mass + math.log(2) + error, 0.0)
    require_log_convex_sides(mechanism, "scalar hockey stick")
    room = largest_loss(mechanism, shift) - epsilon
    if room <= 0:
        return -math.inf, -math.inf
    ceiling = math.log(min(room, 1.0))  # H <= P(A)·(1 − e^{ε − ℓ_max}) <= ℓ_max − ε
    rounding = _loss_rounding(event)
    outer = _level_set(event, epsilon - 2 * rounding)
    if outer is None:  # the set is narrower than rounding
        return -math.inf, ceiling
    lower, upper = _excess_mass(event, epsilon, *outer)
    upper = float(np.logaddexp(upper, math.log(4 * rounding) + _log_rim(event, epsilon + 2 * rounding, outer)))
    return min(lower, ceiling), min(upper, ceiling)


def _loss(event: Event, x: float) -> float:
    return float(event.mechanism.log_density(x) - event.mechanism.log_density(x - event.shift))


def _loss_rounding(event: Event) -> float:
    """Bound on the rounding error of a computed loss."""
    ends = np.abs(event.mechanism.log_density(np.array([0.0, event.shift])))
    return 4e-16 * (2 + 2 * float(np.sum(ends)))


def _level_set(event: Event, epsilon: float) -> tuple[float, float] | None:
    """(a, b) with {computed ℓ >= ε} = (−a, b), a possibly infinite; None if empty."""
    if _loss(event, 0.0) <= epsilon:
        return None
    if _loss(event, event.shift / 2) >= epsilon:
        right = event.shift / 2
    else:
        right = bracketed_root(lambda x: _loss(event, x) - epsilon, 0.0, event.shift / 2)
    reach = event.mechanism.scale_hint
    while _loss(event, -reach) > epsilon:
        reach *= 2
        if float(event.mechanism.log_tail(reach)) < -1e4 or reach > 1e150:
            return math.inf, right
    return bracketed_root(lambda a: _loss(event, -a) - epsilon, 0.0, reach), right


def _log_rim(event: Event, epsilon: float, outer: tuple[float, float]) -> float:
    """log P of the outer set without the inner one; the true level set lies between them.

    |ℓ − ε| is a rounding there, so using the outer set for the true one misplaces at most (4·rounding)·(this mass).
    """
    inner = _level_set(event, epsilon) or (0.0, 0.0)
    rims = [(near, far) for near, far in zip(inner, outer, strict=True) if far > near]
    masses = [float(interval_mass(event.mechanism, np.asarray(near), np.asarray(far))[0]) for near, far in rims]
    return float(np.logaddexp.reduce(masses)) if masses else -math.inf


def _excess_mass(event: Event, epsilon: float, a: float, b: float) -> tuple[float, float]:
    """Bounds of log(P(−a, b) − e^ε·Q(−a, b)), from P·(1 − e^{ε − log(P/Q)}) and the rounding of log(P/Q)."""
    mechanism, shift = event.mechanism, event.shift
    parts_p = [_mass(mechanism, 0.0, width, width) for width in (a, b) if width > 0]
    parts_q = [_mass(mechanism, near, near + width, width) for near, width in ((shift - b, b), (shift, a)) if width > 0]
    if not parts_p:
        return -math.inf, math.inf
    log_p, error_p = _total(parts_p)
    log_q, error_q = _total(parts_q)
    if math.isinf(log_p) or math.isinf(log_q):  # a level set narrower than rounding
        return -math.inf, math.inf
    error = error_p + error_q + 1e-15
    gain = log_p - log_q - epsilon
    return _log_drop(log_p - error_p, gain - error), _log_drop(log_p + error_p, max(gain + error, error))


def _mass(mechanism: Mechanism, near: float, far: float, width: float) -> tuple[float, float]:
    """(log P(near < X <= far), its error): from the tails, or, where they cancel, from width·density (which falls)."""
    mass, error = (float(value) for value in interval_mass(mechanism, np.asarray(near), np.asarray(far)))
    if math.isfinite(width):
        high, low = (float(mechanism.log_density(x)) + math.log(width) for x in (near, far))
        half = 0.5 * (high - low) + 1e-15 * (2 + abs(high))
        if math.isinf(mass) or half < error:
            return 0.5 * (high + low), half
    return mass, error


def _total(parts: list) -> tuple[float, float]:
    """log of a sum of masses, and its rounding error."""
    logs = np.array([float(mass) for mass, _ in parts])
    errors = np.array([float(error) for _, error in parts])
    total = float(np.logaddexp.reduce(logs))
    if math.isinf(total):
        return total, 0.0
    return total, float(np.sum(np.exp(logs - total) * errors)) + 4e-16


def _log_drop(log_p: float, gain: float) -> float:
    """log(P·(1 − e^−gain)), −inf for gain <= 0."""
    return log_p + math.log(-math.expm1(-gain)) if gain > 0 else -math.inf
