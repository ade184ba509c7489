"""One scalar release: level sets against a dense integral of the hockey stick."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting import delta, epsilon, scalar
from optnoise.accounting.event import Event
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse
from references import approx, hockey_stick

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
NOISES = [Laplace(2.0), GammaLaplace(2.5, 0.25), LMO, Gaussian(0.8)]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", [1.0, 0.2, 0.01])
@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "replace_one"])
def test_delta_equals_the_dense_integral(noise, rate, adjacency):
    if adjacency == "replace_one" and rate < 1:
        pytest.skip("sampled replace-one is not one pair (tested in test_replace_one.py)")
    shift = 2.0 if adjacency == "replace_one" else 1.0
    for target in (0.0, 0.01, 0.1, 0.5):
        exact = hockey_stick(noise, target, shift, rate=rate)
        bounds = delta(noise, epsilon=target, sampling_rate=rate, dimension=1, adjacency=adjacency)
        if exact > 1e-9:
            assert bounds.upper == approx(exact, 1e-4)
        assert bounds.lower <= bounds.upper <= exact + 1e-7


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_add_direction_equals_its_integral_and_never_exceeds_remove(noise):
    for rate in (0.9, 0.3, 0.05):
        event = Event(noise, 1.0, 1, rate, 1)
        for target in (0.0, 0.02, 0.2, 0.6):
            add = math.exp(scalar.log_delta_bounds_add(event, target)[1])
            assert add == pytest.approx(hockey_stick(noise, target, 1.0, rate=rate, remove=False), rel=1e-4, abs=1e-8)
            assert add <= math.exp(scalar.log_delta_bounds(event, target)[1]) * (1 + 1e-9)


@given(scale=st.floats(0.2, 50), exponent=st.floats(-14, -1))
def test_laplace_epsilon_is_the_known_closed_form(scale, exponent):
    """δ(ε) = 1 − e^{(ε − 1/b)/2}, so ε = 1/b + 2·log(1 − δ)."""
    value = epsilon(Laplace(scale), delta=10**exponent, dimension=1)
    exact = max(0.0, 1 / scale + 2 * math.log1p(-(10**exponent)))
    assert value.lower - 1e-12 <= exact <= value.upper + 1e-12
    assert value.upper == pytest.approx(exact, rel=1e-6, abs=1e-9)


def test_pure_dp_ends_at_the_largest_loss():
    assert epsilon(LMO, delta=1e-300, dimension=1).upper == approx(0.23470428927, 1e-9)
    assert delta(LMO, epsilon=0.23470429, dimension=1).upper == 0


def test_second_published_set_is_false_for_one_scalar_release():
    """Worked: labelled ε = 0.15, the exact scalar value is 1.2309."""
    noise = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=7.5,k=1,rate=0.5,low=0,high=1")
    assert epsilon(noise, delta=1e-10, dimension=1).upper == approx(1.2309, 1e-4)


def test_b01_large_delta_gives_exactly_zero():
    """B01: σ=1, q=0.01, one step: δ at least the total variation 0.0038292 gives ε = 0, with no crash."""
    assert epsilon(Gaussian(1.0), delta=0.1, sampling_rate=0.01) == (0.0, 0.0, 0.0)
    assert epsilon(Gaussian(1.0), delta=0.00383, sampling_rate=0.01).upper == 0
    assert epsilon(Gaussian(1.0), delta=0.0038, sampling_rate=0.01).upper > 0
    assert delta(Gaussian(1.0), epsilon=0, sampling_rate=0.01).upper == approx(0.0038292, 1e-4)


@given(
    noise=st.sampled_from(NOISES),
    rate=st.floats(1e-5, 1.0),
    low=st.floats(1e-9, 0.4),
    ratio=st.floats(0.01, 1.0),
)
def test_epsilon_falls_with_delta_and_rises_with_the_rate(noise, rate, low, ratio):
    ask = lambda d, q: epsilon(noise, delta=d, sampling_rate=q, dimension=1).upper  # noqa: E731
    assert ask(low, rate) <= ask(low * ratio, rate) + 1e-9
    assert ask(low, rate * ratio) <= ask(low, rate) + 1e-9
