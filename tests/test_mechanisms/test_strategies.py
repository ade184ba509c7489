"""The public strategies, and with them properties that hold for every family."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optnoise.accounting import epsilon
from optnoise.mechanisms import FAMILIES, check_mechanism, from_spec, strategies


def test_every_family_has_a_strategy():
    assert set(strategies.STRATEGIES) == set(FAMILIES)


@pytest.mark.parametrize("family", strategies.STRATEGIES)
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_law_of_whatever_is_drawn_holds(family, data):
    noise = data.draw(strategies.mechanisms(family))
    assert noise.family == family
    check_mechanism(noise, level="law")
    assert from_spec(noise.spec()) == noise


@settings(max_examples=40)
@given(noise=strategies.mechanisms(), depth=st.floats(0.7, 500), width=st.floats(1e-9, 3))
def test_tails_fall_and_drops_are_never_negative(noise, depth, width):
    x = float(noise.tail_quantile(-depth))
    width *= noise.scale_hint
    assert noise.log_tail_drop(x, width) >= 0
    assert noise.log_tail_drop(x, 2 * width) >= noise.log_tail_drop(x, width) * (1 - 1e-12)
    if x + width < noise.support:
        assert noise.log_density_drop(x, width) >= 0
    assert noise.log_tail_drop(x, math.inf) == math.inf


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(noise=strategies.mechanisms(), factor=st.floats(1.05, 3))
def test_more_noise_never_loses_more_privacy(noise, factor):
    less = epsilon(noise, delta=1e-4, steps=3, dimension=1, accountant="pld")
    more = epsilon(noise.scaled(factor), delta=1e-4, steps=3, dimension=1, accountant="pld")
    assert 0 <= more.lower <= more.upper
    assert more.lower <= less.upper


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(noise=strategies.mechanisms(), rate=st.sampled_from([1.0, 0.1]))
def test_every_family_has_a_proven_narrow_interval(noise, rate):
    found = epsilon(noise.scaled(4 / noise.scale_hint), delta=1e-4, steps=8, sampling_rate=rate, dimension=1)
    assert found.lower <= found.upper
    assert math.isinf(found.lower) or found.upper - found.lower <= 2e-3 * found.upper


@settings(max_examples=25)
@given(noise=strategies.mechanisms())
def test_numpy_draws_are_the_laws(noise):
    draws = noise.sample_numpy(2000, rng=np.random.default_rng(1))
    rank = noise.cdf(draws)
    assert abs(np.mean(rank) - 0.5) < 5.5 / math.sqrt(12 * 2000)


def test_unknown_families_are_refused_by_name():
    with pytest.raises(ValueError, match="got 'cauchy'"):
        strategies.mechanisms("cauchy")


def test_without_hypothesis_the_error_names_the_extra():
    script = (
        "import sys\n"
        "sys.modules['hypothesis'] = None\n"
        "try:\n"
        "    import optnoise.mechanisms.strategies\n"
        "except ImportError as error:\n"
        "    assert 'optnoise[strategies]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
