"""Calibration never overshoots, lands near the target, and ends."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import calibrate, epsilon
from optnoise.mechanisms import Gaussian, Laplace, parse
from references import approx

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")


@given(
    shape=st.sampled_from([Gaussian(1.0), Gaussian(1e5), Laplace(1e-4), LMO]),
    target=st.sampled_from([0.01, 0.3, 3.0, 50.0, 1000.0]),
    steps=st.sampled_from([1, 30]),
    rate=st.sampled_from([1.0, 0.05]),
)
@settings(max_examples=30)
def test_lands_just_below_the_target(shape, target, steps, rate):
    settings_ = {"delta": 1e-6, "steps": steps, "sampling_rate": rate, "dimension": 1}
    value = epsilon(calibrate(shape, epsilon=target, **settings_), **settings_).upper
    assert target * (1 - 1e-3) <= value <= target


@pytest.mark.parametrize("dimension", [30, 10**6, math.inf])
def test_lands_below_the_target_in_many_dimensions(dimension):
    settings_ = {"delta": 1e-6, "steps": 20, "sampling_rate": 0.1, "dimension": dimension}
    value = epsilon(calibrate(LMO, epsilon=1.0, **settings_), **settings_).upper
    assert 0.999 <= value <= 1.0


def test_equal_guarantee_costs_laplace_twice_the_variance_in_high_dimension():
    settings_ = {"epsilon": 1.0, "delta": 1e-6, "steps": 500, "dimension": math.inf}
    laplace = calibrate("laplace", **settings_, accountant="rdp")
    gaussian = calibrate("gaussian", **settings_, accountant="rdp")
    assert laplace.variance / gaussian.variance == approx(2, 0.02)


def test_one_scalar_release_at_the_worked_ratio():
    """ε=0.3, δ=1e-10, one release: Laplace has 0.063 of the exactly calibrated Gaussian's variance."""
    settings_ = {"epsilon": 0.3, "delta": 1e-10, "dimension": 1}
    ratio = calibrate("laplace", **settings_).variance / calibrate("gaussian", **settings_).variance
    assert ratio == pytest.approx(0.063, abs=0.0006)


def test_b03_target_below_the_old_floor_gives_a_usable_sigma():
    """B03: ε=0.1: σ = 6.81 is tight; a grid that ends at order 63 returned about 2e4."""
    sigma = calibrate("gaussian", epsilon=0.1, delta=7.424e-6, steps=203, sampling_rate=0.014848).noise_multiplier
    assert 6.805 <= sigma <= 6.815


def test_b08_large_targets_end_with_sampling():
    """B08: ε=1000, q=0.01, T=100: at σ=0.1 Rényi proves 1041 on integer orders; real orders do better."""
    found = calibrate("gaussian", epsilon=1000, delta=1e-5, steps=100, sampling_rate=0.01)
    assert found.noise_multiplier < 0.11
    assert epsilon(found, delta=1e-5, steps=100, sampling_rate=0.01).upper <= 1000


def test_b13_never_above_the_target():
    """B13: q=0.01, T=1000, δ=1e-5: ε(returned σ) <= target, and not far below."""
    settings_ = {"delta": 1e-5, "steps": 1000, "sampling_rate": 0.01}
    found = calibrate("gaussian", epsilon=14.0, **settings_)
    assert 14.0 * (1 - 1e-4) <= epsilon(found, **settings_).upper <= 14.0


def test_b31_steps_are_updates_not_microbatches():
    """B31: n=14732, batch 1024, 3 epochs, ε=4, δ=2e-5: T=42 gives 0.9012 (to 5e-4); 11049 micro-steps gave 7.69."""
    rate = 1024 / 14732
    sigma = calibrate("gaussian", epsilon=4, delta=2e-5, steps=42, sampling_rate=rate).noise_multiplier
    assert sigma == approx(0.9012, 5e-4)


@pytest.mark.parametrize("target", [0.01, 1000.0])
def test_extreme_targets_end_within_seconds(target):
    start = time.perf_counter()
    for shape in ("gaussian", "laplace"):
        calibrate(shape, epsilon=target, delta=1e-5, steps=1000, sampling_rate=0.01, dimension=1)
    assert time.perf_counter() - start < 60  # a hang, not a benchmark


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": -1}, "epsilon >= 0"),
        ({"epsilon": math.inf}, "epsilon to be finite"),
        ({"delta": 0}, "delta"),
        ({"steps": 0}, "any noise meets the target"),
        ({"mechanism": "lmo"}, "one of gaussian, laplace"),
        ({"mechanism": Laplace(1.0)}, "expected a dimension"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5, **change}
    with pytest.raises(ValueError, match=message):
        calibrate(arguments.pop("mechanism"), **arguments)


@pytest.mark.parametrize("delta", [1e-307, 1e-320, 5e-324])
def test_a_delta_that_no_bound_resolves_is_refused_by_name(delta):
    """Rounding alone is then more than δ, whatever the noise: an error, neither a noise nor a search without end."""
    with pytest.raises(ValueError, match=r"delta is below what the accountant resolves|no noise of this shape"):
        calibrate("gaussian", epsilon=3.0, delta=delta, steps=4, sampling_rate=0.3)


def test_a_tiny_delta_is_met():
    noise = calibrate("gaussian", epsilon=3.0, delta=1e-300, steps=4, sampling_rate=0.3)
    assert epsilon(noise, delta=1e-300, steps=4, sampling_rate=0.3).upper <= 3.0
