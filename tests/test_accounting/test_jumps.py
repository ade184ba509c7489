"""Staircases whose period is nearly a fraction of the shift: slivers of width 1e-11 decide δ, so rounding counts."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import epsilon
from optnoise.mechanisms import Staircase


def number(x: Fraction) -> mp.mpf:
    return mp.mpf(x.numerator) / x.denominator


def exact_epsilon(noise: Staircase, delta: float) -> mp.mpf:
    """ε of one release under a shift of 1: all jumps as fractions, so every interval of the loss is exact."""
    with mp.workdps(40):
        period, fraction, fall = Fraction(noise.period), Fraction(noise.fraction), mp.mpf(noise.fall)
        jumps = [(fraction + n) * period for n in range(int(60 / noise.fall) + 6)]
        edges = sorted({sign * x + shift for x in jumps for sign in (-1, 1) for shift in (0, 1)})

        def level(x: Fraction) -> int:
            return 0 if abs(x) < jumps[0] else math.floor(abs(x) / period - fraction) + 1

        peak = (1 - mp.exp(-fall)) / (2 * number(period) * (number(fraction) + mp.exp(-fall) * (1 - number(fraction))))
        masses: dict[int, mp.mpf] = {}
        for low, high in itertools.pairwise(edges):
            here, there = level((low + high) / 2), level((low + high) / 2 - 1)
            mass = number(high - low) * peak * mp.exp(-fall * here)
            masses[there - here] = masses.get(there - here, mp.mpf(0)) + mass
        low, high = mp.mpf(0), fall * max(masses)
        for _ in range(80):
            middle = (low + high) / 2
            value = sum(mass * (1 - mp.exp(middle - n * fall)) for n, mass in masses.items() if n * fall > middle)
            low, high = (middle, high) if value > delta else (low, middle)
        return high


@pytest.mark.parametrize(
    ("noise", "delta"),
    [
        (Staircase(0.9999999999903181, 3.3915315267683113, 0.03855213134063311), 2.5657010170944617e-11),
        (Staircase(0.9999999999990888, 2.9376400158926983, 0.05697596112093001), 1.9919137143709128e-12),
        (Staircase(0.9999999998361282, 0.6644137792243476, 0.7598617326992392), 6.089353738194491e-12),
        (Staircase(0.33333333333308635, 3.9142205942966073, 0.14451185833761432), 1.9124949851340543e-12),
    ],
    ids=repr,
)
@pytest.mark.parametrize("width", [5e-3, 1e-5])
def test_slivers_beside_jumps_are_bracketed(noise, delta, width):
    """The upper end was up to 6e-6 too low, and a lower end 1e-6 too high, when the rim of a jump had an exact mass."""
    exact = exact_epsilon(noise, delta)
    found = epsilon(noise, delta=delta, dimension=1, accountant="pld", relative_width=width)
    assert found.lower <= exact <= found.upper
    assert found.upper <= exact * (1 + 2e-3)


@given(
    parts=st.integers(1, 3),
    off=st.floats(-14, -5),
    above=st.booleans(),
    fall=st.floats(0.3, 4),
    fraction=st.floats(0.02, 1),
    exponent=st.floats(-12, -5),
)
@settings(max_examples=60)
def test_nearly_resonant_staircases(parts, off, above, fall, fraction, exponent):
    noise = Staircase((1 + (10**off if above else -(10**off))) / parts, fall, fraction)
    exact = exact_epsilon(noise, 10**exponent)
    found = epsilon(noise, delta=10**exponent, dimension=1, accountant="pld")
    assert found.lower <= exact <= found.upper
