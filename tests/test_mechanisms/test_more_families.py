"""Facts of the generalised Gaussian, staircase, Gaussian mixture and truncated Laplace families; registration."""

import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting import delta, epsilon
from optnoise.mechanisms import (
    Gaussian,
    GaussianMixture,
    GeneralisedGaussian,
    Laplace,
    Mechanism,
    ScaleMixture,
    SphericalGamma,
    Staircase,
    Tabulated,
    TruncatedLaplace,
    inline,
    parse,
    register,
)
from references import hockey_stick

ONE = {"dimension": 1, "accountant": "pld", "relative_width": 1e-5}


@given(st.floats(0.1, 20), st.floats(0, 1), st.floats(1e-9, 2))
def test_generalised_gaussian_drops_match_mpmath(shape, depth, part):
    noise = GeneralisedGaussian(1.0, shape)
    x = float(noise.tail_quantile(-math.log(2) - 200 * depth**3))
    width = part * max(x, 0.1 * noise.mean_abs)
    with mp.workdps(60):
        a, near, far = 1 / mp.mpf(shape), mp.mpf(x) ** mp.mpf(shape), (mp.mpf(x) + mp.mpf(width)) ** mp.mpf(shape)
        if far > 3000:
            return
        tail = mp.log(mp.gammainc(a, near) / mp.gammainc(a, far))
        allowed = mp.mpf(noise.drop_rounding) * min(tail, mp.expm1(tail) if tail < 700 else tail * 10**300)
        allowed = max(
            allowed, noise.drop_rounding * tail if tail < 1 else noise.drop_rounding * mp.expm1(min(tail, 700))
        )
        assert abs(mp.mpf(float(noise.log_tail_drop(x, width))) - tail) <= allowed
        assert (
            abs(mp.mpf(float(noise.log_density_drop(x, width))) - (far - near))
            <= noise.drop_rounding * (far - near) + mp.mpf(10) ** -300
        )


def test_generalised_gaussian_has_its_two_neighbours():
    for shape, other in ((1.0, Laplace(2.0)), (2.0, Gaussian(math.sqrt(2)))):
        noise = GeneralisedGaussian(2.0, shape)
        assert noise.variance == pytest.approx(other.variance)
        assert noise.fisher_information == pytest.approx(other.fisher_information)
        ours, theirs = (epsilon(m, delta=1e-5, steps=20, sampling_rate=0.1, **ONE) for m in (noise, other))
        assert ours.upper == pytest.approx(theirs.upper, rel=2e-5)


def test_staircase_is_pure_dp_and_beats_laplace():
    noise = Staircase.least_variance(3.0)
    assert noise.largest_loss(1.0) == pytest.approx(3.0)
    assert epsilon(noise, delta=1e-12, **ONE).upper <= 3.0 * (1 + 1e-12)
    assert noise.variance < 0.8 * Laplace(1 / 3.0).variance
    assert Staircase.least_mean_abs(3.0).mean_abs < Laplace(1 / 3.0).mean_abs
    for fraction in np.linspace(0.02, 0.98, 25):
        assert noise.variance <= Staircase(1.0, 3.0, float(fraction)).variance * (1 + 1e-12)


@pytest.mark.parametrize("noise", [Staircase(0.37, 0.5, 0.3), Staircase(2.0, 3.0, 1.0)])
def test_staircase_widths(noise):
    found = epsilon(noise, delta=1e-3, **ONE)
    assert found.upper - found.lower <= 1e-5 * found.upper
    assert (
        hockey_stick(noise, found.upper * (1 + 1e-3), 1.0) <= 1e-3 * 1.03
    )  # the reference has jumps between its nodes


def test_truncated_laplace_meets_its_budget_and_no_less():
    noise = TruncatedLaplace.for_budget(1.0, 1e-6)
    assert delta(noise, epsilon=1.0, dimension=1).lower == pytest.approx(1e-6, rel=1e-9)
    assert epsilon(noise, delta=1.0001e-6, **ONE).upper == pytest.approx(1.0, rel=1e-4)
    assert epsilon(noise, delta=0.9999e-6, **ONE).lower == math.inf
    assert delta(noise, epsilon=0.5, dimension=1).upper == pytest.approx(hockey_stick(noise, 0.5, 1.0), rel=2e-3)
    ten = 1 - (1 - 1e-6) ** 10
    assert epsilon(noise, delta=0.999 * ten, steps=10, **ONE).lower == math.inf
    assert epsilon(noise, delta=1.001 * ten, steps=10, **ONE).upper <= 10.001


def test_truncated_laplace_sampled():
    """Where the truncation is too far out to matter, Laplace; near, only its infinite losses count."""
    far, laplace = (
        epsilon(m, delta=1e-5, steps=100, sampling_rate=0.1, **ONE)
        for m in (TruncatedLaplace(2.0, 120.0), Laplace(2.0))
    )
    assert far.upper == pytest.approx(laplace.upper, rel=3e-5)
    near = TruncatedLaplace(1.0, 8.0)
    infinite = 0.01 * math.exp(float(near.log_tail(7.0)))
    assert epsilon(near, delta=infinite * 0.999, sampling_rate=0.01, **ONE).lower == math.inf
    assert epsilon(near, delta=infinite * 1.001, sampling_rate=0.01, **ONE).upper < math.inf


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_truncated_laplace_equals_integration(rate):
    noise = TruncatedLaplace(1.0, 6.0)
    found = delta(noise, epsilon=0.1, sampling_rate=rate, dimension=1)
    assert hockey_stick(noise, 0.1, 1.0, rate=rate) == pytest.approx(found.upper, rel=2e-3)


def test_a_mixture_that_rises_again_is_refused():
    with pytest.raises(ValueError, match=r"falls with \|x\|"):
        GaussianMixture(0.3, (0.0, 1.0), (0.8, 0.2))
    with pytest.raises(ValueError, match=r"falls with \|x\|"):
        GaussianMixture(1.0, (1.2,), (1.0,))


@given(st.floats(0, 30), st.floats(1e-9, 5))
def test_mixture_drops_match_mpmath(x, width):
    noise = GaussianMixture(1.0, (0.0, 3.0), (0.99, 0.01))
    with mp.workdps(60):
        at = lambda z: sum(  # noqa: E731
            w / 2 * (mp.ncdf(m - z) + mp.ncdf(-m - z))
            for w, m in zip((mp.mpf(0.99), mp.mpf(0.01)), (0, 3), strict=True)
        )
        drop = mp.log(at(mp.mpf(x)) / at(mp.mpf(x) + mp.mpf(width)))
    found = float(noise.log_tail_drop(x, width))
    assert abs(found - drop) <= noise.drop_rounding * max(drop, mp.expm1(min(drop, 600)))


@pytest.mark.parametrize(
    ("text", "noise"),
    [
        ("generalised_gaussian:scale=2,shape=1.5", GeneralisedGaussian(2.0, 1.5)),
        ("generalised_gaussian:s=2,beta=1.5", GeneralisedGaussian(2.0, 1.5)),
        ("staircase:period=1,fall=2,gamma=0.4", Staircase(1.0, 2.0, 0.4)),
        ("gaussian_mixture:sigma=1.3,means=0;1,weights=0.3;0.7", GaussianMixture(1.3, (0.0, 1.0), (0.3, 0.7))),
        ("truncated_laplace:b=1,A=14", TruncatedLaplace(1.0, 14.0)),
    ],
)
def test_text_forms(text, noise):
    assert parse(text) == noise
    assert parse(inline(noise)) == noise


@pytest.mark.parametrize(
    "noise",
    [
        Gaussian(1 / 3),
        Tabulated((1.0, 2.0, 5.0), (0.0, 1.0, 3.0, 0.5)),
        Tabulated((), (2.0,)),
        ScaleMixture(uniform_weight=2.0, uniform_low=1.0, uniform_high=1.0),
        SphericalGamma.gaussian(10**6, 2.0),
    ],
    ids=lambda noise: noise.family,
)
def test_inline_text_is_read_back(noise):
    assert parse(inline(noise)) == noise


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GeneralisedGaussian(1.0, 0.05), "0.1 <= shape <= 100"),
        (lambda: GeneralisedGaussian(-1.0, 1.0), "scale > 0"),
        (lambda: Staircase(1.0, 0.0, 0.5), "fall > 0"),
        (lambda: Staircase(1.0, 1.0, 1.5), "fraction <= 1"),
        (lambda: GaussianMixture(1.0, (0.0, 1.0), (0.5, 0.6)), "sum to 1"),
        (lambda: GaussianMixture(1.0, (0.0,), (0.5, 0.5)), "as many weights as means"),
        (lambda: GaussianMixture(1.0, (-1.0,), (1.0,)), "0 <= means"),
        (lambda: TruncatedLaplace(1.0, 1e-9), "bound/scale"),
        (lambda: TruncatedLaplace.for_budget(1.0, 0.5), "delta < 0.5"),
        (lambda: Laplace(1.0).sample_numpy(3, rng=None), "rng"),
        (lambda: epsilon(Staircase(1.0, 1.0, 0.5), delta=1e-5, dimension=math.inf), "staircase"),
        (lambda: epsilon(TruncatedLaplace(1.0, 9.0), delta=1e-5, dimension=1, accountant="rdp"), "support is bounded"),
    ],
)
def test_refusals_name_the_reason(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_register_refuses_what_cannot_be_read_back():
    with pytest.raises(ValueError, match="a dataclass that extends Mechanism"):
        register(type("Plain", (Mechanism,), {"family": "plain"}))
    with pytest.raises(ValueError, match="already registered"):
        register(dataclasses.dataclass(frozen=True)(type("Other", (Mechanism,), {"family": "laplace"})))
    with pytest.raises(ValueError, match="without"):
        register(dataclasses.dataclass(frozen=True)(type("Other", (Mechanism,), {"family": "a:b"})))
