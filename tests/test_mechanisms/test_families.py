"""Facts of single families: worked numbers, identities between families, refusals."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, ScaleMixture, parse

LMO = "lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2"


def test_published_example_has_the_worked_moments():
    """Independent derivation: variance 50.7494, E|x| 4.8741, 1/I 20.5750, log f(0)/f(1) 0.23470."""
    mixture = parse(LMO)
    assert mixture.variance == pytest.approx(50.7494, abs=5e-5)
    assert mixture.mean_abs == pytest.approx(4.8741, abs=5e-5)
    assert 1 / mixture.fisher_information == pytest.approx(20.5750, abs=5e-5)
    assert mixture.log_density(0) - mixture.log_density(1) == pytest.approx(0.23470, abs=5e-6)


def test_mixture_density_equals_a_direct_average_over_the_inverse_scale():
    """mpmath: integrate u·e^{−u|x|}/2 over the three laws, not by the moment generating function."""
    mixture = parse(LMO)

    def expectation(s, power):
        gamma = mp.quad(lambda g: mp.exp(-g / 0.5) / 0.5 * mp.exp(-0.1 * g * s), [0, 1, 5, 40])
        gamma1 = mp.quad(lambda g: 0.1 * g * mp.exp(-g / 0.5) / 0.5 * mp.exp(-0.1 * g * s), [0, 1, 5, 40])
        expo = mp.quad(lambda e: 5 * mp.exp(-5 * e) * mp.exp(-0.1 * e * s), [0, 0.5, 2, 12])
        expo1 = mp.quad(lambda e: 0.1 * e * 5 * mp.exp(-5 * e) * mp.exp(-0.1 * e * s), [0, 0.5, 2, 12])
        unif = mp.quad(lambda v: mp.exp(-0.1 * v * s), [1, 2])
        unif1 = mp.quad(lambda v: 0.1 * v * mp.exp(-0.1 * v * s), [1, 2])
        return (
            (gamma1 * expo * unif + gamma * expo1 * unif + gamma * expo * unif1) / 2
            if power
            else gamma * expo * unif / 2
        )

    for x in (0.0, 0.4, 3.0, 25.0):
        assert math.exp(mixture.log_density(x)) == pytest.approx(float(expectation(x, 1)), rel=1e-12)
        assert math.exp(mixture.log_tail(x)) == pytest.approx(float(expectation(x, 0)), rel=1e-12)


def test_sampler_uses_the_rate_and_not_the_published_scale():
    """The published sampler draws the exponential with *scale* 5 where its bound has *rate* 5; ours has mean 1/5."""
    mixture = ScaleMixture(
        exponential_weight=1.0, exponential_rate=5.0, uniform_weight=1.0, uniform_low=1.0, uniform_high=1.0
    )
    draws = mixture.sample((200_000,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(draws.abs().mean()) == pytest.approx(mixture.mean_abs, rel=0.01)
    wrong = ScaleMixture(
        exponential_weight=1.0, exponential_rate=0.2, uniform_weight=1.0, uniform_low=1.0, uniform_high=1.0
    )
    assert mixture.mean_abs > 2 * wrong.mean_abs


@given(shape=st.floats(0.3, 9.0), scale=st.floats(0.05, 5.0), weight=st.floats(0.1, 2.0), x=st.floats(0, 50))
def test_gamma_laplace_is_the_mixture_without_its_other_terms(shape, scale, weight, x):
    mixture = ScaleMixture(gamma_weight=weight, gamma_shape=shape, gamma_scale=scale)
    family = GammaLaplace(shape, weight * scale)
    assert mixture.log_density(x) == pytest.approx(family.log_density(x), rel=1e-12, abs=1e-12)
    assert mixture.fisher_information == pytest.approx(family.fisher_information, rel=1e-8)


def test_point_mass_is_laplace():
    mixture = ScaleMixture(uniform_weight=0.5, uniform_low=1.0, uniform_high=1.0)
    x = np.linspace(-9, 9, 37)
    assert mixture.log_density(x) == pytest.approx(Laplace(2.0).log_density(x), rel=1e-13)


def test_gamma_laplace_moments_end_where_they_should():
    assert GammaLaplace(2.0, 0.2).variance == math.inf
    assert GammaLaplace(2.0, 0.2).mean_abs == pytest.approx(5.0)
    assert GammaLaplace(1.0, 0.2).mean_abs == math.inf


@given(st.floats(0.05, 20), st.floats(1.0001, 5000), st.floats(1e-7, 30))
def test_laplace_renyi_matches_mpmath(scale, order, shift):
    with mp.workdps(60):
        a, u = mp.mpf(order), mp.mpf(shift) / mp.mpf(scale)
        exact = mp.log((a * mp.exp((a - 1) * u) + (a - 1) * mp.exp(-a * u)) / (2 * a - 1)) / (a - 1)
    assert Laplace(scale).renyi_divergence(order, shift) == pytest.approx(float(exact), rel=1e-9)


def test_variance_times_information_is_two_or_more_for_laplace_mixtures():
    """√I >= E[u] for every scale mixture, so I·variance >= 2 and E|x|·√I >= 1, attained by Laplace."""
    assert Laplace(3.0).variance * Laplace(3.0).fisher_information == pytest.approx(2)
    for mixture in (parse(LMO), GammaLaplace(2.5, 1.0), GammaLaplace(30.0, 1.0)):
        assert mixture.variance * mixture.fisher_information > 2
        assert mixture.mean_abs * math.sqrt(mixture.fisher_information) > 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gaussian(float("nan")), "noise_multiplier"),
        (lambda: Gaussian(0.0), "noise_multiplier > 0"),
        (lambda: Gaussian(math.inf), "finite"),
        (lambda: Laplace(-1), "scale > 0"),
        (lambda: Laplace("2"), "real number"),
        (lambda: GammaLaplace(0.0, 1.0), "shape > 0"),
        (lambda: ScaleMixture(), "at least one weight"),
        (lambda: ScaleMixture(gamma_weight=1.0, gamma_shape=1.0), "gamma_scale"),
        (lambda: ScaleMixture(gamma_weight=1.0, gamma_shape=1.0, gamma_scale=1.0, uniform_low=1.0), "no uniform_low"),
        (lambda: ScaleMixture(uniform_weight=1.0, uniform_low=2.0, uniform_high=1.0), "uniform_low <= uniform_high"),
        (lambda: ScaleMixture(uniform_weight=-1.0), "uniform_weight >= 0"),
        (lambda: Gaussian(1.0).scaled(0.0), "factor > 0"),
        (lambda: Gaussian(1.0).quantile(1.5), "<= p <= 1"),
        (lambda: Laplace(1.0).renyi_divergence(0.5, 1.0), "order >= 1"),
        (lambda: Laplace(1.0).sample((3,), generator=None), "generator"),
        (lambda: Laplace(1.0).sample((3,), generator=torch.Generator(), dtype=torch.int32), "dtype"),
    ],
)
def test_bad_values_name_argument_value_and_rule(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_b91_noise_is_centred_with_both_signs():
    """B91: a uniform on [0, 1) is not Gaussian noise: mean 0 ± 0.01, variance 1 ± 0.02, both signs."""
    draws = Gaussian(1.0).sample((100_000,), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    assert abs(float(draws.mean())) < 0.01
    assert float(draws.var()) == pytest.approx(1, abs=0.02)
    assert (draws > 0).any()
    assert (draws < 0).any()


def test_large_gaussian_draws_are_float32_and_still_normal():
    def sample(count):
        return Gaussian(2.0).sample((count,), generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    draws = sample(2**18)
    assert torch.equal(draws, draws.float().double())
    assert float(draws.std()) == pytest.approx(2, rel=0.01)
    assert not torch.equal(sample(2**18 - 1), sample(2**18 - 1).float().double())
