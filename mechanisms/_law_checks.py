"""Checks of `check_mechanism` that need numbers only: density, tails, moments, information, loss, document."""

from __future__ import annotations

import json
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._quadrature import edges, integral, side_integral
from .base import DensityShape, Mechanism
from .check import Effort, NotApplicable, expect
from .registry import from_spec

Array = NDArray[np.float64]

_PROBABILITIES = np.array([1e-12, 1e-6, 1e-3, 0.1, 0.3, 0.45, 0.5, 0.6, 0.9, 0.999, 1 - 1e-6])
_DEPTHS = np.array([1e-3, 0.3, 1.0, 3.0, 10.0, 40.0])  # −log P(|X| > x)


def _density(m: Mechanism):
    return lambda x: np.exp(m.log_density(x))


def _points(m: Mechanism) -> Array:
    """Distances from 0 that see body and tail, none of them at a break."""
    points = m.tail_quantile(-math.log(2) - _DEPTHS)
    return np.unique(points[(points > 0) & np.isfinite(points) & (points < m.support)]) * (1 - 1e-9)


def _close(found: ArrayLike, wanted: ArrayLike, relative: ArrayLike, what: str) -> None:
    found, wanted = np.atleast_1d(np.asarray(found, float)), np.atleast_1d(np.asarray(wanted, float))
    with np.errstate(invalid="ignore"):
        good = (found == wanted) | (np.abs(found - wanted) <= relative * np.abs(wanted))
    if not good.all():
        worst = int(np.argmin(good))
        expect(False, f"expected {what} = {wanted[worst]:.12g}, got {found[worst]:.12g} (entry {worst})")


def check_density_integrates_to_one(m: Mechanism, effort: Effort) -> None:
    _close(2 * side_integral(_density(m), m), 1.0, 1e-7, "the integral of the density")


def check_density_is_symmetric_and_falls(m: Mechanism, effort: Effort) -> None:
    x = np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 400) * m.scale_hint, m.breaks(10 * m.scale_hint)])
    x = np.sort(x)
    x = x[x < m.support]
    density, mirrored = m.log_density(x), m.log_density(-x)
    _close(mirrored, density, 1e-12, "log p(−x) = log p(x)")
    rise = float(np.max(np.diff(density), initial=-np.inf))
    expect(rise <= 1e-12 * (1 + np.max(np.abs(density))), f"the density rises with |x|, by {rise}")


def check_cdf_is_the_integral_of_the_density(m: Mechanism, effort: Effort) -> None:
    panels = edges(m)
    for x in _points(m):
        inside = integral(_density(m), np.append(panels[panels < x], x))
        _close(m.cdf(x) - 0.5, inside, 1e-6 + 1e-15 / max(inside, 1e-30), f"P(0 < X <= {x:.6g})")
        expect(abs(float(m.cdf(-x) + m.cdf(x)) - 1) <= 1e-12, f"P(X <= {-x:.6g}) + P(X <= {x:.6g}) is not 1")
    _close(m.cdf([-math.inf, 0.0, math.inf]), [0.0, 0.5, 1.0], 1e-12, "the cdf at −inf, 0 and inf")


def check_tail_is_the_integral_of_the_density(m: Mechanism, effort: Effort) -> None:
    panels = edges(m)
    for x in _points(m):
        beyond = integral(_density(m), np.append(x, panels[panels > x]))
        _close(m.log_tail(x), math.log(beyond), 1e-6, f"log P(X > {x:.6g})")


def check_quantile_inverts_the_cdf(m: Mechanism, effort: Effort) -> None:
    x, least = m.quantile(_PROBABILITIES), np.minimum(_PROBABILITIES, 1 - _PROBABILITIES)
    rounding = 4e-16 * np.abs(x) * np.exp(m.log_density(x)) / least  # of x itself
    _close(m.cdf(x), _PROBABILITIES, 1e-9 + rounding, "cdf(quantile(p))")
    _close(m.quantile([0.0, 0.5]), [-m.support, 0.0], 1e-12, "the quantiles of 0 and 1/2")
    depth = np.array([1.0, 30.0, 300.0]) + math.log(2)
    x = m.tail_quantile(-depth)
    reached = x < m.support * (1 - 1e-3)  # at the end of a bounded support the tail has no digits
    _close(m.log_tail(x[reached]), -depth[reached], 1e-9, "log_tail(tail_quantile(−depth))")


def check_drops_are_differences(m: Mechanism, effort: Effort) -> None:
    """`log_density_drop` and `log_tail_drop`, narrow ones by quadrature, wide ones by subtraction."""
    panels = edges(m)
    for x in np.append(0.0, _points(m)):
        for width in np.array([1e-9, 1e-3, 0.3, 2.0]) * max(float(x), 0.1 * m.scale_hint):
            if x + width >= m.support:
                continue
            steps = m.log_density(x) - m.log_density(x + width)
            slack = 1e-13 * (2 + abs(float(m.log_density(x))) + abs(float(m.log_density(x + width))))
            found = float(m.log_density_drop(x, width))
            expect(
                abs(found - steps) <= slack + 1e-9 * abs(steps) or _near_break(m, x, width),
                f"expected log_density_drop({x:.6g}, {width:.6g}) = {steps:.12g}, got {found:.12g}",
            )
            pieces = np.concatenate([[x], panels[(panels > x) & (panels < x + width)], [x + width]])
            mass = integral(lambda v: np.exp(m.log_density(v) - m.log_tail(x)), pieces)  # noqa: B023
            tolerance = 1e-6 if m.drop_rounding is not None else 1e-6 + 1e-14 / max(mass, 1e-300)
            tolerance += 4e-15 * float(x + width) / width / max(1 - mass, 1e-2)  # of x+width itself
            if mass < 0.99:
                _close(m.log_tail_drop(x, width), -math.log1p(-mass), tolerance, f"log_tail_drop({x:.6g}, {width:.6g})")


def _near_break(m: Mechanism, x: float, width: float) -> bool:
    """Whether rounding may put x or x+width on the other side of a jump."""
    if not m.has_jumps:
        return False
    breaks = m.breaks(x + 2 * width)
    ends = np.array([x, x + width])
    return bool(len(breaks)) and bool(np.any(np.abs(breaks[:, None] - ends) <= 1e-12 * (x + width)))


def check_moments_equal_quadrature(m: Mechanism, effort: Effort) -> None:
    for name, value, power in (("mean_abs", m.mean_abs, 1), ("variance", m.variance, 2)):
        if math.isfinite(value):
            wanted = 2 * side_integral(lambda x, n=power: x**n * np.exp(m.log_density(x)), m)
            _close(value, wanted, 1e-6, name)
        else:
            expect(m.tail_index <= power, f"{name} is infinite, but tail_index={m.tail_index} says that it exists")


def _slope(m: Mechanism, x: Array) -> Array:
    h = 1e-6 * x
    return m.log_density_drop(x - h, 2 * h) / (2 * h)


def check_fisher_information_equals_quadrature(m: Mechanism, effort: Effort) -> None:
    value = m.fisher_information
    if m.has_jumps:
        expect(value == math.inf, f"the density jumps, so expected an infinite Fisher information, got {value}")
        return
    integrand = lambda x: _slope(m, x) ** 2 * np.exp(m.log_density(x))  # noqa: E731
    panels = edges(m)
    if math.isinf(value):
        parts = [integral(integrand, panels[panels >= m.scale_hint * 2.0**-k]) for k in (250, 500, 750)]
        grows = parts[2] - parts[1] >= 0.5 * (parts[1] - parts[0]) > 1e-6 * parts[0]
        expect(grows, f"expected fisher_information = {2 * parts[2]:.9g}, got inf")
        return
    _close(value, 2 * integral(integrand, panels), 1e-4, "fisher_information")
    if math.isfinite(m.variance):
        expect(value * m.variance >= 1 - 1e-9, f"Cramér–Rao: I·variance = {value * m.variance} < 1")


def check_score_is_the_slope(m: Mechanism, effort: Effort) -> None:
    x = _points(m)
    kinks = m.breaks(float(x[-1]) * 1.1)
    if len(kinks):
        x = x[np.min(np.abs(x[:, None] - kinks), axis=1) > 1e-5 * x]
    score = m.score(x)
    good = np.abs(score - _slope(m, x)) <= 1e-4 * np.abs(score) + 1e-8 / m.scale_hint
    expect(bool(np.all(good)), f"expected score = {_slope(m, x)}, got {score} at {x}")
    expect(
        bool(np.all(score <= m.max_score * (1 + 1e-12))), f"the score {np.max(score)} exceeds max_score={m.max_score}"
    )


def check_declared_shape(m: Mechanism, effort: Effort) -> None:
    """Bounds rest on it: log p concave, or convex on x > 0."""
    if m.density_shape is DensityShape.UNIMODAL:
        return
    x = np.linspace(0.01, min(50.0, 0.999 * m.support / m.scale_hint), 4001) * m.scale_hint
    values = m.log_density(x)
    second = np.diff(values, 2)
    rounding = 1e-13 * (1 + np.abs(values[1:-1]))
    sign = 1 if m.density_shape is DensityShape.LOG_CONCAVE else -1
    expect(bool(np.all(sign * second <= rounding)), f"the log density is not {m.density_shape.value}")
    slopes = m.score(np.array([1e-9, 1e-3]) * m.scale_hint)
    if sign > 0 and np.all(np.isfinite(slopes)):
        expect(slopes[0] <= slopes[1] * (1 + 1e-9) + 1e-12, "the log density is not concave beside 0")


def check_loss_bounds_hold(m: Mechanism, effort: Effort) -> None:
    """`largest_loss`, `loss_at_zero` and `loss_range` against losses on a grid."""
    generator = np.random.default_rng(5)
    reach = float(min(m.tail_quantile(-30.0), m.support))
    for shift in np.array([1e-3, 0.4, 3.0]) * m.scale_hint:
        shift = min(float(shift), 0.4 * m.support)
        end = min(reach, m.support - shift)
        x = np.append(0.0, np.sort(end * generator.random(3000) ** 3))
        loss = m.log_density(x) - m.log_density(x + shift)
        rounding = 1e-12 * (1 + np.abs(m.log_density(x)) + np.abs(m.log_density(x + shift)))
        most = m.largest_loss(shift)
        expect(bool(np.all(loss <= most + rounding)), f"a loss of {np.max(loss)} exceeds largest_loss({shift})={most}")
        at_zero = float(m.log_density(0.0) - m.log_density(shift))
        expect(abs(m.loss_at_zero(shift) - at_zero) <= 1e-9 * (1 + at_zero), f"expected loss_at_zero = {at_zero}")
        for index in (0, 500, 2000, 2900):
            near, far = x[index], x[index + 60]
            low, high = m.loss_range(near, far - near, shift)
            part, slack = loss[index : index + 61], rounding[index : index + 61]
            expect(
                bool(np.all((low - slack <= part) & (part <= high + slack))),
                f"losses in [{part.min()}, {part.max()}] leave loss_range = [{low}, {high}] on [{near}, {far}]",
            )


def check_scaled_is_the_law_of_a_multiple(m: Mechanism, effort: Effort) -> None:
    for factor in (3.7, 1e-30, 1e30):
        scaled, x = m.scaled(factor), np.append(0.0, _points(m)[:-1])  # the last may be an end without digits
        _close(scaled.log_density(factor * x) + math.log(factor), m.log_density(x), 1e-9, f"the density of {factor}·X")
        _close(scaled.log_tail(factor * x), m.log_tail(x), 1e-9, f"the tail of {factor}·X")
        _close(scaled.mean_abs, m.mean_abs * factor, 1e-7, f"E|{factor}·X|")
        _close(scaled.variance, m.variance * factor**2, 1e-7, f"the variance of {factor}·X")
        _close(scaled.fisher_information, m.fisher_information / factor**2, 1e-6, f"the information of {factor}·X")


def check_document_round_trips(m: Mechanism, effort: Effort) -> None:
    try:
        again = from_spec(json.loads(json.dumps(m.spec())))
    except ValueError as error:
        expect(False, f"from_spec refuses the document: {error} (a family of your own needs `register`)")
        return
    expect(again == m, f"from_spec(spec()) is {again!r}")
    expect(hash(again) == hash(m), "equal noise with different hashes")


def check_support(m: Mechanism, effort: Effort) -> None:
    if math.isinf(m.support):
        expect(bool(np.isfinite(m.log_density(_points(m))).all()), "the density is 0 inside an unbounded support")
        return
    outside = m.log_density(m.support * np.array([1 + 1e-9, 2.0]))
    expect(bool(np.all(outside == -np.inf)), f"the density beyond support={m.support} is not 0")
    expect(float(m.log_density(m.support * (1 - 1e-9))) > -np.inf, f"the density is 0 inside support={m.support}")


def check_closed_renyi_equals_quadrature(m: Mechanism, effort: Effort) -> None:
    if not m.closed_renyi:
        raise NotApplicable("no closed Rényi divergence is declared")
    shift = 0.8 * m.scale_hint
    panels = edges(m)
    kinks = np.unique(np.concatenate([-panels, panels, shift - panels, shift + panels]))
    for order in (1.0, 1.3, 2.0, 7.0):

        def excess(x: Array, a: float = order) -> Array:
            loss = m.log_density(x) - m.log_density(x - shift)
            weight = np.exp(m.log_density(x - shift))
            if a == 1:
                return weight * (np.exp(loss) * loss - np.expm1(loss))
            return weight * (np.expm1(a * loss) - a * np.expm1(loss))

        value = integral(excess, kinks)
        wanted = value if order == 1 else math.log1p(value) / (order - 1)
        _close(m.renyi_divergence(order, shift), wanted, 1e-6, f"the Rényi divergence of order {order}")
    _close(m.renyi_divergence(2.0, 0.0), 0.0, 0.0, "the Rényi divergence at shift 0")


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
