"""The trade-off curve and what follows from it, against closed forms, discrete pairs and quadrature."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from optnoise.accounting import Release, compose_epsilon
from optnoise.accounting.tradeoff import (
    attack_advantage,
    bayes_accuracy,
    posterior,
    posterior_bound,
    tradeoff_curve,
    tradeoff_from_profile,
)
from optnoise.mechanisms import Gaussian, Laplace
from references import approx, gaussian_delta, hockey_stick
from scipy.stats import norm

ERRORS = np.array([0.0, 1e-9, 1e-6, 1e-4, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 0.99, 0.999999, 1.0])


def gaussian_tradeoff(a, mu):
    return norm.cdf(norm.isf(a) - mu)


def laplace_tradeoff(a, epsilon):
    """Dong, Roth and Su 2019: of Laplace noise shifted by epsilon scales."""
    a = np.asarray(a)
    with np.errstate(divide="ignore"):
        middle = math.exp(-epsilon) / (4 * a)
    return np.where(
        a < math.exp(-epsilon) / 2,
        1 - math.exp(epsilon) * a,
        np.where(a <= 0.5, middle, math.exp(-epsilon) * (1 - a)),
    )


def lower_hull(x, y, at):
    """The greatest convex function below the points (x, y), evaluated at `at`."""
    hull: list[tuple[float, float]] = []
    for point in sorted(zip(x, y, strict=True)):
        while len(hull) > 1 and (hull[-1][0] - hull[-2][0]) * (point[1] - hull[-2][1]) <= (
            hull[-1][1] - hull[-2][1]
        ) * (point[0] - hull[-2][0]):
            hull.pop()
        hull.append(point)
    return np.interp(at, [p[0] for p in hull], [p[1] for p in hull])


def discrete_errors(p, q):
    """(type I, type II) of every likelihood-ratio test of P against Q, both orders of the pair."""
    points = []
    for present, absent in ((p, q), (q, p)):
        with np.errstate(divide="ignore"):
            order = np.argsort(-np.where(present > 0, present / np.maximum(absent, 1e-300), 0.0))
        type_i = np.append(0.0, np.cumsum(absent[order]))
        points += list(zip(type_i, 1 - np.append(0.0, np.cumsum(present[order])), strict=True))
    return np.array(points).T


def discrete_profile(p, q, epsilon):
    def hockey(first, second):
        return [float(np.sum(np.maximum(0.0, first - g * second))) for g in np.exp(np.minimum(epsilon, 690))]

    return np.minimum(np.maximum(hockey(p, q), hockey(q, p)), 1.0)


def assert_inside(value, band, slack=4e-15):
    assert np.all(band.lower <= value + slack)
    assert np.all(value <= band.upper + slack)


# ---- the curve -----------------------------------------------------------------------------------------------------


def test_b36_randomized_response_has_two_atoms():
    """B36: truth 0.6, lie 0.4: ε = ln 1.5, f(a) = max(0, 1 − 1.5a, (1 − a)/1.5); δ is known at two ε only."""
    a = np.array([0.0, 0.1, 0.4, 0.7, 1.0])
    curve = tradeoff_from_profile(
        type_i_error=a, epsilon=[0.0, math.log(1.5)], delta_upper=[0.2, 0.0], delta_lower=[0.2, 0.0]
    )
    truth = np.array([1.0, 0.85, 0.4, 0.2, 0.0])
    np.testing.assert_allclose(curve.lower, truth, atol=1e-14)
    np.testing.assert_allclose(curve.upper, truth, atol=1e-14)
    assert_inside(truth, curve, slack=0)


def test_pure_privacy_alone_gives_the_lower_curve_of_randomized_response():
    a = np.linspace(0, 1, 21)
    curve = tradeoff_from_profile(type_i_error=a, epsilon=[math.log(1.5)], delta_upper=[0.0])
    np.testing.assert_allclose(curve.lower, np.maximum(1 - 1.5 * a, (1 - a) / 1.5), atol=1e-14)
    np.testing.assert_allclose(curve.upper, 1 - a, atol=1e-14)  # δ may be 0 everywhere


@pytest.mark.parametrize("leak", [0.0, 0.3, 1.0])
def test_atoms_of_infinite_loss(leak):
    """With probability `leak` the record is published: δ(ε) = leak for every ε, ∞ included; f(a) = 1 − leak − a."""
    a = np.linspace(0, 1, 11)
    curve = tradeoff_from_profile(
        type_i_error=a, epsilon=[0.0, math.inf], delta_upper=[leak] * 2, delta_lower=[leak] * 2
    )
    np.testing.assert_allclose(curve.lower, np.maximum(1 - leak - a, 0), atol=1e-14)
    np.testing.assert_allclose(curve.upper, np.maximum(1 - leak - a, 0), atol=1e-14)


@pytest.mark.parametrize("mu", [1e-4, 0.3, 1.0, 6.0])
def test_gaussian_curve_is_the_closed_form(mu):
    curve = tradeoff_curve([Release(Gaussian(1 / mu))], type_i_error=ERRORS)
    assert_inside(gaussian_tradeoff(ERRORS, mu), curve)
    assert np.max(curve.upper - curve.lower) < 1e-3 * min(mu, 1)
    finer = tradeoff_curve([Release(Gaussian(1 / mu))], type_i_error=ERRORS, points=257)
    assert np.max(finer.upper - finer.lower) < np.max(curve.upper - curve.lower) / 4


@pytest.mark.parametrize("scale", [0.5, 2.0, 50.0])
def test_laplace_curve_is_the_closed_form(scale):
    curve = tradeoff_curve([Release(Laplace(scale), dimension=1)], type_i_error=ERRORS)
    assert_inside(laplace_tradeoff(ERRORS, 1 / scale), curve)
    assert np.max(curve.upper - curve.lower) < 5e-3


def test_sampled_gaussian_curve_is_the_convex_hull_of_both_directions():
    """Dong, Roth and Su 2019, Section 4: the hull of min(f_q, its inverse), f_q = q·f + (1 − q)·(1 − a)."""
    mu, rate = 1.5, 0.3
    grid = np.append(0.0, norm.sf(np.linspace(-12, 9, 20_001)[::-1]))
    sampled = rate * gaussian_tradeoff(grid, mu) + (1 - rate) * (1 - grid)
    truth = lower_hull(np.append(grid, sampled), np.append(sampled, grid), ERRORS)
    curve = tradeoff_curve([Release(Gaussian(1 / mu), sampling_rate=rate)], type_i_error=ERRORS)
    assert_inside(truth, curve, slack=1e-7)  # the hull of finitely many points lies above
    assert np.max(curve.upper - curve.lower) < 1e-3


@given(
    atoms=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6),
    grid=st.lists(st.floats(0, 6), min_size=1, max_size=12, unique=True),
    infinite=st.booleans(),
    slack=st.sampled_from([0.0, 1e-3, 0.1]),
    seed=st.integers(0, 99),
)
@example(atoms=[(0, 0), (1, 1)], grid=[5e-324], infinite=False, slack=0.0, seed=0)
@settings(max_examples=150)
def test_any_discrete_pair_lies_inside(atoms, grid, infinite, slack, seed):
    """Random pairs (infinite losses included), random grids and loose bounds of δ: the true curve is inside."""
    p, q = np.array(atoms, dtype=float).T
    if p.sum() == 0 or q.sum() == 0:
        return
    p, q = p / p.sum(), q / q.sum()
    epsilon = np.array(sorted(grid) + [math.inf] * infinite)
    generator = np.random.default_rng(seed)
    delta = discrete_profile(p, q, epsilon)
    lower = np.maximum(delta - slack * generator.random(len(delta)) - 1e-15, 0)
    upper = np.minimum(delta + slack * generator.random(len(delta)) + 1e-15, 1)
    a = np.append(generator.random(20), [0.0, 1.0])
    curve = tradeoff_from_profile(type_i_error=a, epsilon=epsilon, delta_upper=upper, delta_lower=lower)
    assert_inside(lower_hull(*discrete_errors(p, q), a), curve, slack=1e-13)


def test_composed_rényi_bound_is_safe():
    releases = [Release(Gaussian(2.0), 4)]
    a = ERRORS[3:]
    curve = tradeoff_curve(releases, type_i_error=a, accountant="rdp")
    truth = gaussian_tradeoff(a, 1.0)
    assert np.all(curve.lower <= truth)
    assert np.max(truth - curve.lower) < 0.25
    assert np.all(curve.upper >= truth)


@given(st.floats(0.05, 5), st.lists(st.floats(0.001, 0.999), min_size=3, max_size=9))
@settings(max_examples=25)
def test_curve_falls_and_is_its_own_inverse(mu, errors):
    a = np.sort(errors)
    curve = tradeoff_curve([Release(Gaussian(1 / mu))], type_i_error=a)
    for bound in (curve.lower, curve.upper):
        assert np.all(np.diff(bound) <= 1e-15)
    there = tradeoff_curve([Release(Gaussian(1 / mu))], type_i_error=curve.lower).lower
    back = tradeoff_curve([Release(Gaussian(1 / mu))], type_i_error=curve.upper).upper
    assert np.all(back <= there + 2e-2)
    assert np.all(back <= a + 2e-2)
    assert np.all(a <= there + 2e-2)


def test_no_release_leaves_guessing_only():
    curve = tradeoff_curve([], type_i_error=ERRORS)
    np.testing.assert_allclose(curve.lower, 1 - ERRORS, atol=1e-15)
    np.testing.assert_allclose(curve.upper, 1 - ERRORS, atol=1e-15)
    assert attack_advantage([]) == (0, 0)
    assert bayes_accuracy([], prior=0.7).upper == approx(0.7, 1e-14)


def test_shape_follows_the_argument():
    assert tradeoff_curve([Release(Gaussian(1.0))], type_i_error=0.1).lower.shape == ()
    assert tradeoff_curve([Release(Gaussian(1.0))], type_i_error=[[0.1], [0.2]]).lower.shape == (2, 1)


# ---- what follows from it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 9])
def test_advantage_of_the_gaussian(steps):
    """Total variation of N(0, 1) and N(μ, 1): 2Φ(μ/2) − 1."""
    value = attack_advantage([Release(Gaussian(2.0), steps)])
    assert value.lower == approx(2 * norm.cdf(math.sqrt(steps) / 4) - 1, 1e-9)
    assert value.upper == approx(value.lower, 1e-9)


def test_advantage_of_a_sampled_scalar_release_is_the_integral():
    value = attack_advantage([Release(Laplace(1.0), sampling_rate=0.2, dimension=1)])
    assert value.upper == approx(hockey_stick(Laplace(1.0), 0.0, 1.0, rate=0.2), 1e-6)


@pytest.mark.parametrize("prior", [1e-6, 0.1, 0.3, 0.5, 0.8, 0.999])
def test_bayes_accuracy_is_that_of_the_likelihood_ratio_test(prior):
    mu = 1.3
    threshold = mu / 2 + (math.log1p(-prior) - math.log(prior)) / mu  # present iff x > threshold
    truth = prior * norm.sf(threshold - mu) + (1 - prior) * norm.cdf(threshold)
    value = bayes_accuracy([Release(Gaussian(1 / mu))], prior=prior)
    assert value.lower <= truth * (1 + 1e-12)
    assert truth <= value.upper * (1 + 1e-12)
    assert value.upper - value.lower < 1e-10


def test_bayes_accuracy_is_the_best_point_of_the_curve():
    prior, releases = 0.3, [Release(Laplace(0.7), sampling_rate=0.4, dimension=1)]
    a = np.linspace(0, 1, 4001)
    curve = tradeoff_curve(releases, type_i_error=a, points=257)
    best = [np.max(prior * (1 - f) + (1 - prior) * (1 - a)) for f in (curve.upper, curve.lower)]
    value = bayes_accuracy(releases, prior=prior)
    assert best[0] <= value.upper
    assert value.lower <= best[1]
    assert best[1] - best[0] < 1e-3


def test_posterior_is_bayes_rule_at_the_closed_form():
    mu, a = 1.0, np.array([1e-8, 1e-4, 0.05, 0.5, 1.0])
    priors = np.array([[0.01], [0.5]])
    power = norm.cdf(mu - norm.isf(a))
    truth = priors * power / (priors * power + (1 - priors) * a)
    band = posterior([Release(Gaussian(1.0))], prior=priors, type_i_error=a, points=257)
    assert band.lower.shape == (2, 5)
    assert_inside(truth, band, slack=1e-12)
    assert np.max(band.upper - band.lower) < 1e-3
    assert np.all(np.diff(band.upper, axis=1) <= 0)  # a stricter test is believed more
    np.testing.assert_allclose(band.upper[:, -1], priors[:, 0], rtol=1e-12)


def test_posterior_never_exceeds_pure_privacy():
    """Posterior odds are at most e^ε times prior odds under pure ε-DP, however strict the test."""
    band = posterior([Release(Laplace(2.0), dimension=1)], prior=0.2, type_i_error=[5e-324, 1e-200, 1e-12, 0.1])
    odds = 0.25 * math.exp(0.5)
    np.testing.assert_allclose(band.upper[1:], odds / (1 + odds), rtol=1e-4)
    assert np.all(band.lower <= odds / (1 + odds) * (1 + 1e-12))
    assert np.all(band.lower >= 0.2 * (1 - 1e-12))


@pytest.mark.parametrize("failure", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_posterior_bound_holds_outside_its_failure_probability(mu, failure):
    """The loss of the Gaussian is N(μ²/2, μ²) when the record is present: its quantile is the sharp bound."""
    prior = 0.1
    sharp = mu * mu / 2 + mu * norm.isf(failure)
    bound = posterior_bound([Release(Gaussian(1 / mu))], prior=prior, failure_probability=failure)
    loss = math.log(bound / (1 - bound)) - math.log(prior / (1 - prior))
    assert norm.sf((loss - mu * mu / 2) / mu) <= failure
    assert sharp <= loss <= 1.35 * sharp + 0.35


def test_delta_of_epsilon_alone_is_not_the_probability_of_a_larger_loss():
    """Why `posterior_bound` does not use ε(δ) itself: P(loss > ε(δ)) is above δ."""
    delta = 1e-5
    epsilon = compose_epsilon([Release(Gaussian(1.0))], delta=delta).upper
    assert float(gaussian_delta(epsilon, 1.0)) == approx(delta, 1e-9)
    assert norm.sf(epsilon - 0.5) > 4 * delta


def test_posterior_bound_of_pure_privacy_is_near_its_epsilon():
    bound = posterior_bound([Release(Laplace(2.0), dimension=1)], prior=0.5, failure_probability=1e-9)
    assert 1 / (1 + math.exp(-0.5)) <= bound <= 1 / (1 + math.exp(-0.5)) * 1.001
    assert posterior_bound([], prior=0.5, failure_probability=1e-9) <= 0.5003


# ---- refusals ------------------------------------------------------------------------------------------------------

RELEASES = [Release(Gaussian(1.0))]
PROFILE = {"type_i_error": 0.1, "epsilon": [0.0, 1.0], "delta_upper": [0.2, 0.1], "delta_lower": [0.1, 0.1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type_i_error": 1.5}, "0 <= type_i_error <= 1, got type_i_error=1.5"),
        ({"type_i_error": [0.1, math.nan]}, "type_i_error=nan"),
        ({"type_i_error": "low"}, "type_i_error to be real numbers, got type_i_error='low'"),
        ({"type_i_error": []}, "type_i_error to hold at least one number"),
        ({"epsilon": [-1.0, 1.0]}, "epsilon >= 0, got epsilon=-1.0"),
        ({"epsilon": [1.0, 1.0]}, "epsilon to increase"),
        ({"epsilon": [0.0, math.nan]}, "epsilon to increase"),
        ({"epsilon": 1.0}, "epsilon to be a list"),
        ({"delta_upper": [0.2]}, "delta_upper to hold one number for each epsilon"),
        ({"delta_upper": [2.0, 0.1]}, "0 <= delta_upper <= 1, got delta_upper=2.0"),
        ({"delta_lower": [0.1, 0.15]}, "delta_lower <= delta_upper, got delta_lower=0.15"),
    ],
)
def test_bad_profiles_name_argument_value_and_rule(change, message):
    with pytest.raises(ValueError, match=message):
        tradeoff_from_profile(**{**PROFILE, **change})


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: tradeoff_curve(RELEASES, type_i_error=-0.1), "0 <= type_i_error <= 1, got type_i_error=-0.1"),
        (lambda: tradeoff_curve(RELEASES, type_i_error=0.1, points=1), "points >= 2, got points=1"),
        (lambda: tradeoff_curve(RELEASES, type_i_error=0.1, accountant="clt"), "accountant to be one of"),
        (lambda: bayes_accuracy(RELEASES, prior=1.0), "0 < prior < 1, got prior=1.0"),
        (lambda: posterior(RELEASES, prior=0.0, type_i_error=0.1), "0 < prior < 1, got prior=0.0"),
        (lambda: posterior(RELEASES, prior=0.5, type_i_error=0.0), "type_i_error > 0, got type_i_error=0.0"),
        (lambda: posterior_bound(RELEASES, prior=0.5, failure_probability=0), "0 < failure_probability < 1"),
        (lambda: attack_advantage(RELEASES, relative_width=0), "relative_width > 0"),
    ],
)
def test_bad_arguments_name_argument_value_and_rule(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()


def test_results_are_frozen():
    curve = tradeoff_curve(RELEASES, type_i_error=0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        curve.lower = 0.0


def test_more_noise_never_helps_the_attacker():
    for weak, strong in itertools.pairwise([0.5, 1.0, 2.0, 4.0]):
        a, b = (tradeoff_curve([Release(Gaussian(s))], type_i_error=ERRORS) for s in (weak, strong))
        assert np.all(a.lower <= b.upper)
        assert attack_advantage([Release(Gaussian(weak))]).lower > attack_advantage([Release(Gaussian(strong))]).upper
