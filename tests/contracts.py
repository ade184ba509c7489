"""What every noise promises, written once and run on every family. A check takes a mechanism and raises on a fault."""

import math

import numpy as np
import torch
from optnoise.mechanisms import Mechanism, from_spec
from optnoise.mechanisms._quadrature import side_integral
from scipy import stats

QUANTILES = np.array([1e-12, 1e-6, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6])


def check_density_integrates_to_one(m: Mechanism):
    assert 2 * side_integral(lambda x: np.exp(m.log_density(x)), m) == _approx(1, 1e-8)


def check_density_is_symmetric_and_falls(m: Mechanism):
    x = np.geomspace(1e-6, 1e3, 400) * m.scale_hint
    assert np.array_equal(m.log_density(x), m.log_density(-x))
    assert np.all(np.diff(m.log_density(np.append(0.0, x))) <= 1e-15)


def check_density_is_derivative_of_cdf(m: Mechanism):
    x = np.array([-3.0, -0.7, -0.1, 0.2, 1.5, 4.0]) * m.scale_hint
    h = 1e-5 * m.scale_hint
    assert (m.cdf(x + h) - m.cdf(x - h)) / (2 * h) == _approx(np.exp(m.log_density(x)), 1e-6)


def check_declared_shape_of_the_log_density(m: Mechanism):
    """Bounds rest on it: concave everywhere, or convex on x > 0."""
    x = np.linspace(0.01, 50, 4001) * m.scale_hint
    second = np.diff(m.log_density(x), 2)
    rounding = 1e-13 * (1 + np.abs(m.log_density(x[1:-1])))
    if m.density_shape.name == "LOG_CONCAVE":
        assert np.all(second <= rounding)
    elif m.density_shape.name == "LOG_CONVEX_SIDES":
        assert np.all(second >= -rounding)


def check_quantile_inverts_cdf(m: Mechanism):
    assert m.cdf(m.quantile(QUANTILES)) == _approx(QUANTILES, 1e-9)
    assert m.quantile(0.5) == 0
    assert m.quantile(0.0) == -math.inf


def check_cdf_ends_at_zero_and_one(m: Mechanism):
    assert m.cdf([-math.inf, 0.0, math.inf]).tolist() == [0.0, 0.5, 1.0]


def check_tail_keeps_relative_precision(m: Mechanism):
    depth = np.array([1.0, 30.0, 300.0]) + math.log(2)
    assert m.log_tail(m.tail_quantile(-depth)) == _approx(-depth, 1e-9)


def check_moments_equal_quadrature(m: Mechanism):
    for value, power in ((m.mean_abs, 1), (m.variance, 2)):
        if math.isfinite(value):
            numeric = 2 * side_integral(lambda x, n=power: x**n * np.exp(m.log_density(x)), m)
            assert value == _approx(numeric, 1e-6)
        else:
            assert m.tail_index <= power


def check_fisher_information_equals_quadrature(m: Mechanism):
    def integrand(x):
        h = 1e-7 * x if len(m.breaks(np.inf)) else 1e-4 * x
        slope = (m.log_density(x + h) - m.log_density(x - h)) / (2 * h)
        return slope**2 * np.exp(m.log_density(x))

    assert m.fisher_information == _approx(2 * side_integral(integrand, m), 1e-5)
    assert m.fisher_information * m.variance >= 1 - 1e-12  # Cramér–Rao


def check_score_is_bounded_by_its_maximum(m: Mechanism):
    x = np.geomspace(1e-9, 1e4, 300) * m.scale_hint
    h = 1e-5 * x
    slope = np.abs(m.log_density(x + h) - m.log_density(x - h)) / (2 * h)
    near = x > 1e-3 * m.scale_hint  # closer to 0 the difference quotient has no digits
    assert m.score(x)[near] == _approx(slope[near], 1e-5)
    assert np.all(m.score(x) <= m.max_score * (1 + 1e-12))


def check_scaled_is_the_law_of_a_multiple(m: Mechanism):
    x = np.array([0.0, 0.3, 2.0, 9.0]) * m.scale_hint
    scaled = m.scaled(3.7)
    assert scaled.log_density(3.7 * x) == _approx(m.log_density(x) - math.log(3.7), 1e-12)
    assert scaled.fisher_information == _approx(m.fisher_information / 3.7**2, 1e-8)
    if math.isfinite(m.variance):
        assert scaled.variance == _approx(m.variance * 3.7**2, 1e-7)


def check_closed_renyi_equals_quadrature(m: Mechanism):
    for order in (1.0, 1.3, 2.0, 7.0):
        numeric = Mechanism.renyi_divergence(m, order, 0.8 * m.scale_hint)
        assert m.renyi_divergence(order, 0.8 * m.scale_hint) == _approx(numeric, 1e-7)
        assert m.renyi_divergence(order, 0.0) == 0


def check_spec_round_trips(m: Mechanism):
    document = m.spec()
    assert from_spec(document) == m
    assert hash(from_spec(document)) == hash(m)


def check_sampler_follows_its_law(m: Mechanism):
    """Kolmogorov–Smirnov on 20,000 draws; it accepts the law and rejects 2/3 and 3/2 of its scale."""
    draws = sample(m, 20_000, seed=3)
    assert stats.kstest(draws, m.cdf).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(draws, m.scaled(wrong).cdf).pvalue < 1e-12


def check_sampler_has_its_tail(m: Mechanism):
    """Of 400,000 draws, as many pass the 1e-4 quantile of |x| as should (40 ± 25), on both sides."""
    draws = sample(m, 400_000, seed=4)
    far = float(m.tail_quantile(math.log(0.5e-4)))
    assert 15 <= np.sum(np.abs(draws) > far) <= 65
    assert np.any(draws > far)
    assert np.any(draws < -far)


def check_sampler_is_reproducible_and_needs_its_generator(m: Mechanism):
    assert np.array_equal(sample(m, 10, seed=1), sample(m, 10, seed=1))
    assert not np.array_equal(sample(m, 10, seed=1), sample(m, 10, seed=2))
    assert m.sample((2, 3), generator=torch.Generator().manual_seed(0)).dtype == torch.float32


def sample(m: Mechanism, count: int, *, seed: int):
    return m.sample((count,), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()


def _approx(value, relative):
    import pytest

    return pytest.approx(value, rel=relative, abs=1e-300)


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
