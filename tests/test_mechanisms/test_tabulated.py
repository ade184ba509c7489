"""Tabulated noise against mpmath, and its privacy against densities of other families that it can copy."""

import json
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optnoise.accounting import epsilon
from optnoise.mechanisms import DensityShape, Gaussian, Laplace, Tabulated, from_spec, load, parse
from references import hockey_stick

BUMPY = Tabulated((1.0, 2.0, 5.0), (0.0, 1.0, 3.0, 0.5))

tables = st.integers(0, 6).flatmap(
    lambda n: st.builds(
        lambda widths, slopes, last: Tabulated(tuple(float(k) for k in np.cumsum(widths)), (*slopes, last)),
        st.lists(st.floats(1e-3, 30), min_size=n, max_size=n),
        st.lists(st.floats(0, 20), min_size=n, max_size=n),
        st.floats(1e-3, 20),
    )
)


def exact(noise: Tabulated, low: float, high: float) -> mp.mpf:
    """∫ of exp(−∫slope) over [low, high] in 400 digits, not normalised."""
    knots = [mp.mpf(0), *map(mp.mpf, noise.knots), mp.inf]
    total, fallen = mp.mpf(0), mp.mpf(0)
    for left, right, slope in zip(knots[:-1], knots[1:], map(mp.mpf, noise.slopes), strict=True):
        a, b = max(left, mp.mpf(low)), min(right, mp.mpf(high))
        if a < b:
            scale = mp.exp(-fallen - slope * (a - left))
            total += scale * ((b - a) if slope == 0 else (1 - mp.exp(-slope * (b - a))) / slope)
        if right != mp.inf:
            fallen += slope * (right - left)
    return total


@given(tables, st.floats(0, 60), st.floats(1e-9, 60))
def test_tail_drops_keep_their_relative_precision(noise, x, width):
    with mp.workdps(400):
        far = mp.mpf(x) + mp.mpf(width)
        tail = exact(noise, x, mp.inf)
        drop = mp.log(tail / exact(noise, far, mp.inf))
        log_tail = mp.log(tail / exact(noise, 0, mp.inf) / 2)
    assert noise.log_tail(x) == pytest.approx(float(log_tail), rel=1e-13, abs=1e-13)
    error = abs(float(noise.log_tail_drop(x, width)) / drop - 1)
    assert error <= noise.drop_rounding + 4e-16 * (1 + (x + width) / width)  # where x+width itself is rounded


@given(tables, st.floats(0, 1))
def test_quantile_inverts_the_tail(noise, depth):
    target = -math.log(2) - 700 * depth**4
    assert noise.log_tail(noise.tail_quantile(target)) == pytest.approx(target, rel=1e-12, abs=1e-12)


@given(tables)
def test_documents_round_trip_exactly(noise):
    again = from_spec(json.loads(json.dumps(noise.spec())))
    assert again == noise
    assert hash(again) == hash(noise)
    assert again.log_density(1.7) == noise.log_density(1.7)


def test_command_line_form_and_file(tmp_path):
    assert parse("tabulated:knots=1;2;5,slopes=0;1;3;0.5") == BUMPY
    assert parse("tabulated:knots=,slopes=2") == Tabulated((), (2.0,))
    path = tmp_path / "noise.json"
    path.write_text(json.dumps(BUMPY.spec()))
    assert load(path) == BUMPY


def test_shape_is_read_off_the_slopes():
    assert BUMPY.density_shape is DensityShape.UNIMODAL
    assert Tabulated((1.0,), (2.0, 1.0)).density_shape is DensityShape.LOG_CONVEX_SIDES
    assert Tabulated((1.0,), (1.0, 2.0)).density_shape is DensityShape.LOG_CONCAVE


def test_without_knots_it_is_laplace_noise():
    assert Tabulated((), (0.5,)).variance == pytest.approx(Laplace(2.0).variance)
    ours, theirs = (
        epsilon(m, delta=1e-5, steps=30, sampling_rate=0.1, dimension=1, accountant="pld")
        for m in (Tabulated((), (0.5,)), Laplace(2.0))
    )
    assert ours.upper == pytest.approx(theirs.upper, rel=1e-9)


def test_from_log_density_approaches_the_gaussian():
    x = np.linspace(0, 8, 801)
    table = Tabulated.from_log_density(x[1:], -(x**2) / 2, 8.0)
    for steps, rate in ((1, 1.0), (50, 0.1)):
        ours, theirs = (
            epsilon(m, delta=1e-5, steps=steps, sampling_rate=rate, dimension=1, accountant="pld")
            for m in (table, Gaussian(1.0))
        )
        assert ours.upper == pytest.approx(theirs.upper, rel=2e-3)


@pytest.mark.parametrize("noise", [BUMPY, Tabulated((0.3, 0.7, 2.0, 5.0), (0.1, 1.0, 0.2, 2.0, 0.8))])
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_privacy_of_one_release_equals_integration(noise, rate):
    bound = epsilon(noise, delta=1e-3, sampling_rate=rate, dimension=1, accountant="pld", relative_width=1e-5)
    assert bound.upper - bound.lower <= 1e-5 * bound.upper
    assert hockey_stick(noise, bound.upper, 1.0, rate=rate) <= 1e-3 * (1 + 1e-6)
    assert hockey_stick(noise, bound.lower, 1.0, rate=rate) >= 1e-3 * (1 - 1e-6)


@given(tables, st.floats(0, 30), st.floats(0, 30), st.floats(1e-3, 5))
def test_loss_range_holds_everywhere(noise, near, width, shift):
    low, high = noise.loss_range(near, width, shift)
    x = np.linspace(near, near + width, 301)
    loss = noise.log_density(x) - noise.log_density(x + shift)
    rounding = 1e-14 * (1 + np.abs(noise.log_density(x + shift)))
    assert np.all((low - rounding <= loss) & (loss <= high + rounding))
    assert np.all(loss <= noise.largest_loss(shift) + rounding)


@pytest.mark.parametrize(
    ("knots", "slopes", "message"),
    [
        ((1.0,), (1.0,), "one slope more"),
        ((1.0, 1.0), (1.0, 1.0, 1.0), "increasing order"),
        ((-1.0,), (1.0, 1.0), "increasing order"),
        ((1.0,), (-0.5, 1.0), "slopes >= 0"),
        ((1.0,), (1.0, 0.0), "last slope"),
        ((1.0,), (math.nan, 1.0), r"slopes\[0\]"),
        ((1.0,), (1e9, 1.0), "falls by at most"),
        (1.0, (1.0,), "sequence of numbers"),
        ("12", (1.0,), "sequence of numbers"),
    ],
)
def test_bad_tables_are_refused_by_name(knots, slopes, message):
    with pytest.raises(ValueError, match=message):
        Tabulated(knots, slopes)


def test_documents_with_bad_lists_are_refused():
    document = BUMPY.spec()
    document["parameters"]["knots"] = 3.0
    with pytest.raises(ValueError, match="knots of tabulated to be a list"):
        from_spec(document)
