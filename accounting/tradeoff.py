"""What (ε, δ) means for an attacker: errors of membership tests, their advantage, accuracy and posterior belief.

The attacker sees every release and knows every record but one. The test: is the record absent (null hypothesis, output
law Q) or present (output law P)? Type I error a: an absent record is called present. Type II error: a present one is
missed. Power: 1 − type II error. All bounds hold for every pair of neighbours in both orders, hence for every test.

**The curve.** With γ = e^ε, let h(γ) = sup H_γ(P‖Q) over all ordered pairs of neighbours; h(e^ε) = δ(ε) for ε >= 0. The
optimal power of a pair at type I error a is 1 − T(a), T its trade-off function, and H_γ(P‖Q) = sup_a (1 − T(a) − γa)
(Neyman and Pearson). So h(γ) = sup_a (1 − inf T(a) − γa), infimum over pairs, and Fenchel–Moreau gives

    f(a) = sup_{γ >= 0} (1 − h(γ) − γa) = the largest convex function below T for every pair of neighbours,

the f of f-differential privacy (Wasserman and Zhou 2010; Dong, Roth and Su 2019, arXiv 1905.02383, Proposition 2.12).
Because both orders of a pair are neighbours, h(1/γ) = 1 − 1/γ + h(γ)/γ (H_{1/γ}(P‖Q) = 1 − 1/γ + H_γ(Q‖P)/γ), and
the same supremum runs over ε >= 0 of max(1 − δ(ε) − e^ε·a, e^(−ε)·(1 − δ(ε) − a)).

**Lower bound of f** (the safe statement: no test has a smaller type II error). One term with an upper bound of δ is a
bound; every grid of ε gives one.

**Upper bound of f** (so much a test can nearly attain). It needs a lower bound of h at *every* γ, from bounds
l_i <= h(γ_i) <= u_i on the grid. h is convex (a supremum of functions convex in γ) and non-increasing. So between γ_i
and γ_{i+1}, writing any point as one beyond a chord,

    h(γ) >= A(γ) = l_i + min(0, (l_i − u_{i−1})/(γ_i − γ_{i−1}))·(γ − γ_i)                   (chord from the left),
    h(γ) >= B(γ) = l_{i+1} + min(0, (u_{i+2} − l_{i+1})/(γ_{i+2} − γ_{i+1}))·(γ − γ_{i+1})   (chord from the right),

the first because convexity gives h(γ_i) <= (1−s)·h(γ_{i−1}) + s·h(γ) with s = (γ_i − γ_{i−1})/(γ − γ_{i−1}), solved for
h(γ) and bounded by l_i, u_{i−1}; the minimum with 0 only lowers it. At i = 0 (γ = 1) the point on the left is the
reflection of γ_1. On the last segment B has slope 0, and past the last point it is a lower bound of h(∞). Now
1 − max(A, B)(γ) − γa is concave in γ with one kink, so its largest value on a segment lies at an end or at the kink:
f(a) is at most the largest of finitely many terms. The reflected terms follow alike, as e^(−ε)·(1 − A − a) is linear in
e^(−ε). Rounding may place the kink beside itself. With the *smaller* of A and B there the term is still a bound: where
the kink is the maximum, 1 − A − γa rises towards it from the left and 1 − B − γa falls from it to the right; the
smaller of A and B continues these lines beyond the kink, upwards.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ..mechanisms import _validate
from .api import compose_delta, compose_epsilon
from .release import Release

Array = NDArray[np.float64]

_EPS = 2.0**-52
_LEAST = 1e-290  # positive ε below it are left out: chords over such a gap would overflow
_LARGEST = 700.0  # ε from which e^ε would leave the floats
_NEGLIGIBLE = 1e-12  # δ below which a smaller range of ε is tried
_TIGHTEST, _LOOSEST = 1e-9, 2.0**20  # ranges of ε that are tried
_TINY = 1e-300  # covers the rounding of numbers that the floats hold with fewer digits
_FINE = 1e-9  # relative width of the power at which refining stops
_SHARES = (0.001, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class ProbabilityInterval(NamedTuple):
    """lower <= the true probability <= upper. Quote `upper` as the guarantee."""

    lower: float
    upper: float


@dataclasses.dataclass(frozen=True, eq=False)
class TradeoffCurve:
    """The least type II error f of any membership test with a given type I error: lower <= f <= upper (probabilities).

    `lower` is the guarantee: no test misses present records less often. `upper` shows how tight it is; f is convex
    and symmetric, the largest such curve below every pair of neighbours (see the module).
    """

    type_i_error: Array
    lower: Array
    upper: Array


@dataclasses.dataclass(frozen=True, eq=False)
class PosteriorBand:
    """The largest belief that the record is present after a test says so: lower <= belief <= upper (probabilities)."""

    prior: Array
    type_i_error: Array
    lower: Array
    upper: Array


def tradeoff_curve(
    releases: Sequence[Release],
    *,
    type_i_error: ArrayLike,
    accountant: str = "best",
    relative_width: float = 1e-3,
    points: int = 65,
) -> TradeoffCurve:
    """The trade-off curve f of a composition at each `type_i_error`, as an interval (proof in the module).

    Args:
        releases: the composition, as for `compose_delta`.
        type_i_error: probabilities in [0, 1].
        accountant: as for `compose_delta`.
        relative_width: as for `compose_delta`.
        points: about how many values of ε δ is computed at (at least 2). More make the band narrower; none can make it
            wrong.
    """
    errors = _probabilities("type_i_error", type_i_error)
    profile = _profile_of(releases, errors, points, accountant, relative_width)
    return _curve(profile, errors)


def tradeoff_from_profile(
    *, type_i_error: ArrayLike, epsilon: ArrayLike, delta_upper: ArrayLike, delta_lower: ArrayLike | None = None
) -> TradeoffCurve:
    """The trade-off curve of any mechanism from bounds of its privacy profile δ(ε) on a grid.

    Args:
        type_i_error: probabilities in [0, 1].
        epsilon: increasing values >= 0; the last may be `inf`, where δ is the mass of outputs that only one neighbour
            can produce.
        delta_upper: bounds of δ from above at each ε, for both orders of every pair of neighbours.
        delta_lower: the same from below. Without it (0), `upper` says little.
    """
    errors = _probabilities("type_i_error", type_i_error)
    grid = _grid(epsilon)
    upper = _on_grid("delta_upper", delta_upper, grid)
    lower = np.zeros_like(grid) if delta_lower is None else _on_grid("delta_lower", delta_lower, grid)
    wrong = np.flatnonzero(lower > upper)
    if wrong.size:
        i = wrong[0]
        raise ValueError(
            f"expected delta_lower <= delta_upper, got delta_lower={lower[i]} and delta_upper={upper[i]} at "
            f"epsilon={grid[i]}"
        )
    return _curve(_profile(grid, lower, upper), errors)


def attack_advantage(
    releases: Sequence[Release], *, accountant: str = "best", relative_width: float = 1e-3
) -> ProbabilityInterval:
    """The largest true-positive rate minus false-positive rate of a membership test: the total variation, δ(0).

    sup_S P(S) − Q(S) = H_1(P‖Q), and its supremum over neighbours is δ(0) (Yeom et al. 2018 name it the advantage).
    """
    value = compose_delta(releases, epsilon=0.0, accountant=accountant, relative_width=relative_width)
    return ProbabilityInterval(value.lower, value.upper)


def bayes_accuracy(
    releases: Sequence[Release], *, prior: float, accountant: str = "best", relative_width: float = 1e-3
) -> ProbabilityInterval:
    """The largest probability of guessing membership right when the record is present with probability `prior` = π.

    Over tests S: π·P(S) + (1−π)·(1 − Q(S)) = (1−π) + π·[P(S) − γ·Q(S)] with γ = (1−π)/π, so the supremum is
    (1−π) + π·H_γ(P‖Q). For π <= 1/2, γ >= 1 and H_γ is δ(log γ) at the worst neighbours; for π > 1/2 exchange the two
    hypotheses. Together

        accuracy = max(π, 1−π) + min(π, 1−π)·δ(|log((1−π)/π)|).

    −1 <= dδ/dε <= 0 (it is −e^ε·Q(loss > ε) >= −P(loss > ε)) turns the rounding of ε into one of δ.
    """
    prior = _validate.open_unit("prior", prior)
    epsilon = abs(math.log1p(-prior) - math.log(prior))
    value = compose_delta(releases, epsilon=epsilon, accountant=accountant, relative_width=relative_width)
    rounding = 8 * _EPS * (1 + epsilon)
    large, small = max(prior, 1 - prior), min(prior, 1 - prior)
    lower = large + small * (value.lower - rounding)
    upper = large + small * (value.upper + rounding)
    return ProbabilityInterval(max(lower, large) - _EPS, min(upper + _EPS, 1.0))


def posterior(
    releases: Sequence[Release],
    *,
    prior: ArrayLike,
    type_i_error: ArrayLike,
    accountant: str = "best",
    relative_width: float = 1e-3,
    points: int = 65,
) -> PosteriorBand:
    """The largest probability that a record is present when a test with this type I error a says that it is.

    Bayes' rule: π·power/(π·power + (1−π)·a) with `prior` π and power 1 − f(a) (its positive predictive value). `upper`
    also bounds every test with a *larger* type I error: 1 − f is concave and not negative at 0, so power/a falls in a.
    `prior` and `type_i_error` are broadcast against each other; both lie in (0, 1), a = 1 is allowed.
    """
    priors = _probabilities("prior", prior)
    errors = _probabilities("type_i_error", type_i_error)
    _require(np.all((priors > 0) & (priors < 1)), "0 < prior < 1", f"prior={prior}")
    _require(np.all(errors > 0), "type_i_error > 0", f"type_i_error={type_i_error}")
    priors, errors = (np.array(array) for array in np.broadcast_arrays(priors, errors))
    power = _powers(_profile_of(releases, errors, points, accountant, relative_width), errors)
    lower, upper = (priors / (priors + (1 - priors) * (errors / bound)) for bound in power)  # power >= error > 0
    return PosteriorBand(priors, errors, lower * (1 - 8 * _EPS), np.minimum(upper * (1 + 8 * _EPS), 1.0))


def posterior_bound(
    releases: Sequence[Release],
    *,
    prior: float,
    failure_probability: float,
    accountant: str = "best",
    relative_width: float = 1e-3,
) -> float:
    """A bound of the posterior probability that the record is present, whatever the attacker computes.

    It fails for a set of outputs with probability at most `failure_probability` = β, both when the record is present
    and when it is not. The posterior odds are e^ℓ times the prior odds, ℓ = log(dP/dQ) the privacy loss, and for every
    ε >= 0 and ε' > ε

        δ(ε) >= E_P[max(0, 1 − e^(ε−ℓ))] >= (1 − e^(ε−ε'))·P(ℓ > ε'),

    so P(ℓ > ε') <= β for ε' = ε − log(1 − c) wherever δ(ε) <= cβ, 0 < c < 1; and Q(ℓ > ε') <= P(ℓ > ε'). The least ε'
    over a few c is taken. (ε, δ) alone does not give P(ℓ > ε) <= δ: that probability is larger than δ(ε). Compare
    Kasiviswanathan and Smith 2014 (arXiv 0803.3946), whose constants (6ε) are cruder but hold for all beliefs at once.
    """
    prior = _validate.open_unit("prior", prior)
    failure_probability = _validate.open_unit("failure_probability", failure_probability)
    loss = math.inf
    for share in _SHARES:
        allowed = share * failure_probability * (1 - _EPS)
        if allowed > 0:
            value = compose_epsilon(releases, delta=allowed, accountant=accountant, relative_width=relative_width)
            loss = min(loss, value.upper - math.log1p(-share))
    if math.isinf(loss):
        return 1.0
    logit = math.log(prior) - math.log1p(-prior)
    rounding = 8 * _EPS * (1 + abs(logit) + loss)
    return min(float(special.expit(logit + loss + rounding)) * (1 + 4 * _EPS), 1.0)


# ---- the profile on a grid -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Profile:
    """Bounds of h at γ = 1 + excess >= 1: `upper` at grid points, `lower` at grid points and kinks (see the module)."""

    excess: Array
    upper: Array
    at_infinity: float  # upper bound of h(∞)
    kink_excess: Array
    lower: Array


def _profile_of(
    releases: Sequence[Release], errors: Array, points: int, accountant: str, relative_width: float
) -> _Profile:
    """Bounds of a composition on a grid of ε that is refined where the asked type I errors look."""
    points = _validate.integer("points", points, minimum=2)
    known: dict[float, tuple[float, float]] = {}

    def upper_at(epsilon: float) -> float:
        if epsilon not in known:
            value = compose_delta(releases, epsilon=epsilon, accountant=accountant, relative_width=relative_width)
            known[epsilon] = (value.lower, value.upper)
        return known[epsilon][1]

    def table() -> tuple[Array, Array, Array]:
        grid = np.array(sorted(known))
        return grid, np.array([known[e][0] for e in grid]), np.array([known[e][1] for e in grid])

    top = 1.0
    while top > _TIGHTEST and upper_at(top / 2) <= _NEGLIGIBLE:
        top /= 2
    while upper_at(top) > _EPS / 4 and top < _LOOSEST:
        top *= 2
    for epsilon in np.linspace(0.0, min(top, 40.0), min(points, 9)):
        upper_at(float(epsilon))
    while len(known) < points:
        grid, _, upper = table()
        wanted = _bends(grid, upper, errors)[: points - len(known)]
        if not wanted.size:
            break
        for epsilon in wanted:
            upper_at(float(epsilon))
    return _profile(*table())


def _bends(grid: Array, upper: Array, errors: Array) -> Array:
    """Midpoints of the segments whose kink decides the power at some of `errors`, the widest relative gap first.

    Only a choice of grid, so the upper bounds stand for h itself. Half of the candidates are returned, at least one.
    """
    profile = _profile(grid, upper, upper)
    a = errors.reshape(-1, 1)
    terms = [
        profile.lower + (1 + profile.kink_excess) * a,
        (profile.kink_excess + profile.lower + a) / (1 + profile.kink_excess),
    ]
    each = np.minimum(*terms)
    segment = np.argmin(each, axis=1) - len(profile.excess)  # negative: a grid point decides, nothing to gain
    lower, high = _powers(profile, errors.ravel())
    gap = np.where(high > lower, 1 - lower / np.where(high > 0, high, 1.0), 0.0)
    widest: dict[float, float] = {}  # of each midpoint, the relative gap it can narrow
    for i in np.flatnonzero((segment >= 0) & (segment < len(grid) - 1) & (gap > _FINE)):
        left, right = float(grid[segment[i]]), float(grid[segment[i] + 1])
        if (right - left) * (high[i] - lower[i]) > 64 * _EPS * upper[segment[i]]:  # else rounding outweighs the gain
            middle = 0.5 * (left + right)
            widest[middle] = max(widest.get(middle, 0.0), float(gap[i]))
    ranked = sorted(widest, key=lambda middle: -widest[middle])
    return np.array(ranked[: (len(ranked) + 1) // 2])


def _profile(grid: Array, lower: Array, upper: Array) -> _Profile:
    """Tidy bounds (δ does not increase; ε = 0 present; e^ε a float) with the kinks that bound h from below."""
    lower = np.maximum.accumulate(lower[::-1])[::-1]
    upper = np.minimum.accumulate(upper)
    floor = float(lower[-1]) if grid[-1] == math.inf else 0.0
    at_infinity = float(upper[-1])
    if grid[0] > 0:
        grid, lower, upper = np.append(0.0, grid), np.append(lower[0], lower), np.append(1.0, upper)
    usable = (grid < _LARGEST) & ((grid == 0) | (grid > _LEAST))
    excess, lower, upper = np.expm1(grid[usable]), lower[usable], upper[usable]
    kinks, values = _kinks(excess, lower, upper, floor)
    return _Profile(excess, upper, at_infinity, np.append(excess, kinks), np.append(lower, values))


def _kinks(excess: Array, lower: Array, upper: Array, floor: float) -> tuple[Array, Array]:
    """(γ − 1, a lower bound of h there) of the kink of max(A, B) on every segment and beyond the last point."""
    if len(excess) > 1:  # the reflection of γ_1
        left, left_upper = -excess[1] / (1 + excess[1]), (excess[1] + upper[1]) / (1 + excess[1])
    else:
        left, left_upper = -1.0, 1.0  # h(0) = 1
    gaps = np.diff(np.append(left, excess))
    slope_a = np.minimum(0.0, (lower - np.append(left_upper, upper[:-1])) / gaps)
    slope_b = np.append(np.minimum(0.0, (upper[1:] - lower[:-1]) / gaps[1:])[1:], [0.0, 0.0])[: len(excess)]
    right = np.append(lower[1:], floor)  # B at the right end of the segment
    width = np.append(gaps[1:], np.inf)
    start_b = right - np.append(slope_b[:-1] * gaps[1:], 0.0)  # B at the left end
    turn = slope_a - slope_b
    step = np.divide(start_b - lower, turn, out=np.zeros_like(turn), where=turn != 0)
    step = np.clip(step, 0.0, np.minimum(width, math.exp(_LARGEST)))
    values = np.minimum(lower + slope_a * step, start_b + slope_b * step)
    ratio = (1 + excess) / gaps  # by which a chord magnifies roundings
    fineness = 1 + ratio + np.append(ratio, [0.0, 0.0])[2:] + step / gaps
    size = fineness * (lower - slope_a * step) - (slope_a + slope_b) * (1 + excess + step)
    values = values - 8 * _EPS * size
    return excess + step, np.maximum(values, floor)  # h does not fall below h(∞)


def _powers(profile: _Profile, errors: Array) -> tuple[Array, Array]:
    """(lower, upper) of the largest power 1 − f(a): sums of non-negative terms, so small powers keep their digits."""
    a = errors[..., None]
    lower, upper = (
        np.minimum(
            np.min(bound + (1 + excess) * a, axis=-1), np.min((excess + bound + a) / (1 + excess), axis=-1)
        )  # 1 − (1 − h − γa), and its reflection 1 − (1 − h − a)/γ
        for bound, excess in ((profile.lower, profile.kink_excess), (profile.upper, profile.excess))
    )
    upper = np.where(errors == 0, np.minimum(upper, profile.at_infinity), upper)
    lower = np.clip(lower * (1 - 16 * _EPS) - _TINY, errors, 1.0)  # guessing at random has power a
    return lower, np.clip(upper * (1 + 16 * _EPS) + _TINY, errors, 1.0)


def _curve(profile: _Profile, errors: Array) -> TradeoffCurve:
    lower_power, upper_power = _powers(profile, errors)
    lower, upper = (1 - power for power in (upper_power, lower_power))  # exact from 1/2 on
    return TradeoffCurve(
        errors,
        np.maximum(lower - np.where(upper_power < 0.5, _EPS, 0.0), 0.0),
        np.minimum(upper + np.where(lower_power < 0.5, _EPS, 0.0), 1.0),
    )


# ---- arguments -----------------------------------------------------------------------------------------------------


def _require(holds: object, rule: str, got: str) -> None:
    if not holds:
        raise ValueError(f"expected {rule}, got {got}")


def _numbers(name: str, values: ArrayLike) -> Array:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"expected {name} to be real numbers, got {name}={values!r}") from None
    _require(array.size > 0, f"{name} to hold at least one number", f"{name}={values!r}")
    return array


def _probabilities(name: str, values: ArrayLike) -> Array:
    array = _numbers(name, values)
    wrong = array[~((array >= 0) & (array <= 1))]
    _require(not wrong.size, f"0 <= {name} <= 1", f"{name}={wrong.flat[0] if wrong.size else None}")
    return array


def _grid(epsilon: ArrayLike) -> Array:
    grid = _numbers("epsilon", epsilon)
    _require(grid.ndim == 1, "epsilon to be a list of numbers", f"an array of shape {grid.shape}")
    _require(grid[0] >= 0, "epsilon >= 0", f"epsilon={grid[0]}")
    _require(np.all(grid[1:] > grid[:-1]), "epsilon to increase", f"epsilon={epsilon!r}")
    return grid


def _on_grid(name: str, values: ArrayLike, grid: Array) -> Array:
    array = _probabilities(name, values)
    _require(array.shape == grid.shape, f"{name} to hold one number for each epsilon", f"shape {array.shape}")
    return array
