"""Spherical noise: the law of its norm, its special cases, its sampler and its document."""

import json
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from optnoise.mechanisms import Gaussian, Laplace, from_spec
from optnoise.mechanisms.spherical import SphericalGamma
from references import approx
from scipy import stats

LAWS = [
    SphericalGamma(3, 2.5, 1.3, 1.2),
    SphericalGamma(2, 0.3, 1.0, 0.5),
    SphericalGamma(50, 40.0, 0.2, 1.0),
    SphericalGamma.l2_mechanism(1, 2.0),
    SphericalGamma.gaussian(12, 0.7),
    SphericalGamma.l2_mechanism(10**6, 1e-3),
    SphericalGamma(10**9, 5e8, 1.0, 1.5),
]


def near_the_mean(law: SphericalGamma) -> list[float]:
    spread = 1 / (law.power * math.sqrt(max(law.gamma_shape, 1.0)))
    return [law.mean_norm * math.exp(z * spread) for z in (-1.0, 0.0, 1.0, 3.0)]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_norm_has_the_generalised_gamma_density(law):
    """mpmath in 60 digits; at d = 10^9 terms of size 10^10 cancel to one of size 1."""
    with mp.workdps(60):
        k = mp.mpf(law.gamma_shape)
        for r in near_the_mean(law):
            y = (mp.mpf(r) / mp.mpf(law.scale)) ** mp.mpf(law.power)
            exact = mp.log(mp.mpf(law.power)) - mp.log(r) + k * mp.log(y) - y - mp.loggamma(k)
            # y is off by a rounding, times its distance k·z from the mode
            assert float(law.log_norm_density(r)) == pytest.approx(float(exact), rel=1e-13, abs=1e-11)
        for order, value in ((1, law.mean_norm), (2, law.variance * law.dimension)):
            moment = mp.mpf(law.scale) ** order * mp.gammaprod([k + mp.mpf(order) / mp.mpf(law.power)], [k])
            assert value == approx(float(moment), 1e-13)


@pytest.mark.parametrize("law", LAWS[:5], ids=repr)
def test_norm_tail_is_exact_into_its_depth(law):
    with mp.workdps(40):
        for r in (*near_the_mean(law), 30 * law.mean_norm, 1e4 * law.mean_norm):
            y = (mp.mpf(r) / mp.mpf(law.scale)) ** mp.mpf(law.power)
            exact = mp.log(mp.gammainc(mp.mpf(law.gamma_shape), y, regularized=True))
            assert float(law.log_norm_tail(r)) == approx(float(exact), 1e-12)


def test_vector_density_is_the_gaussians_and_the_laplaces():
    x = np.array([0.3, -1.2, 2.0])
    vector = SphericalGamma.gaussian(3, 0.7).log_density(np.linalg.norm(x))
    assert float(vector) == approx(float(Gaussian(0.7).log_density(x).sum()), 1e-13)
    assert SphericalGamma.l2_mechanism(1, 2.0).log_density(np.abs(x)) == approx(Laplace(2.0).log_density(x), 1e-13)
    assert SphericalGamma.gaussian(10**9, 3.0).variance == approx(9.0, 1e-13)
    assert SphericalGamma.l2_mechanism(7, 2.0).variance == approx(4 * 8, 1e-13)  # b²(d+1)


def test_scaling_moves_lengths_only():
    law = SphericalGamma(5, 3.0, 1.5, 1.2)
    assert law.scaled(2.0) == SphericalGamma(5, 3.0, 3.0, 1.2)
    assert law.scaled(2.0).log_norm_tail(4.0) == approx(law.log_norm_tail(2.0), 1e-14)
    assert law.scaled(2.0).mean_norm == approx(2 * law.mean_norm, 1e-14)


def test_document_reads_back_to_an_equal_law():
    for law in LAWS:
        assert from_spec(json.loads(json.dumps(law.spec()))) == law
    assert SphericalGamma(10.0, 3.0, 1.0, 1.0).dimension == 10  # type: ignore[arg-type]
    document = LAWS[0].spec()
    with pytest.raises(ValueError, match="unknown parameter 'dimension' of gaussian"):
        from_spec({**document, "family": "gaussian"})
    with pytest.raises(ValueError, match="missing parameter 'shape'"):
        from_spec({**document, "parameters": {"dimension": 3}})


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_drawn_norms_have_the_law(law):
    draws = law.sample_norm(20_000, generator=torch.Generator().manual_seed(1)).numpy()
    probability = np.exp(law.log_norm_tail(draws))
    assert stats.kstest(probability, "uniform").pvalue > 1e-3


def test_drawn_vectors_are_isotropic_and_independent_of_their_norm():
    law = SphericalGamma.l2_mechanism(4, 0.5)
    draws = law.sample((50_000, 4), generator=torch.Generator().manual_seed(2), dtype=torch.float64).numpy()
    norm = np.linalg.norm(draws, axis=1)
    assert norm.mean() == pytest.approx(law.mean_norm, rel=0.01)
    assert np.cov(draws.T) == pytest.approx(law.variance * np.eye(4), abs=0.03)
    along = draws[:, 0] / norm  # (1 + c)/2 ~ Beta(3/2, 3/2)
    assert stats.kstest((1 + along) / 2, stats.beta(1.5, 1.5).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(along**2, norm)[0, 1]) < 0.02


def test_sampling_is_repeatable_and_checks_its_arguments():
    law = SphericalGamma(3, 0.4, 1.0, 1.0)
    first, second = (law.sample((2, 5, 3), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.dtype == torch.float32
    assert law.sample((3,), generator=torch.Generator()).shape == (3,)
    with pytest.raises(ValueError, match="ends in dimension=3"):
        law.sample((3, 4), generator=torch.Generator())
    with pytest.raises(ValueError, match="generator"):
        law.sample((3, 3), generator=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0, 1.0, 1.0, 1.0), "dimension"),
        ((2.5, 1.0, 1.0, 1.0), "dimension"),
        ((2**54, 1.0, 1.0, 1.0), "dimension"),
        ((2, 0.0, 1.0, 1.0), "shape"),
        ((2, 1.0, -1.0, 1.0), "scale"),
        ((2, 1.0, 1.0, 0.0), "power"),
        ((10**9, 1e9, 1.0, 0.01), "power"),
    ],
)
def test_refusals_name_the_argument(arguments, name):
    with pytest.raises(ValueError, match=name):
        SphericalGamma(*arguments)
