"""Composition by tilted FFT and its reading, against convolutions in whole numbers and sums in many digits."""

import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting.pld.composition import Composed, TooManyPoints, Unresolved, compose
from optnoise.accounting.pld.lattice import LatticeLoss
from optnoise.accounting.pld.reading import epsilon_bound, log_delta_bound
from scipy import optimize

STEP = 0.125
MANY = 2**20
UNIT = 2**16  # masses are multiples of 1/UNIT: exact as floats and as whole numbers


def law(counts, first=-1, offset=0.0, step=STEP, infinity=0.0) -> LatticeLoss:
    """A lattice law with masses counts/UNIT."""
    return LatticeLoss(np.array(counts, dtype=np.float64) / UNIT, first, step, offset, infinity, 0.0)


COIN = law([UNIT // 4, 0, 3 * UNIT // 4 - 5])
SKEW = law([482, 3, 38580, 0, 9163, 11], first=-3)
RARE = law([UNIT - 16, 13, 0, 0, 0, 3], first=0)


def convolution(kinds) -> tuple[int, list[int], int]:
    """(lattice index of the first entry, whole numbers, their common denominator): packed into one long integer."""
    total = sum(steps for _, steps in kinds)
    size, product, first = (20 * total + 40) // 8, 1, 0  # bytes of an entry
    for one, steps in kinds:
        product *= sum(int(count) << (8 * size * i) for i, count in enumerate(np.round(one.mass * UNIT))) ** steps
        first += steps * one.first
    entries = -(-product.bit_length() // (8 * size))
    packed = product.to_bytes(entries * size, "little")
    return first, [int.from_bytes(packed[i * size : (i + 1) * size], "little") for i in range(entries)], UNIT**total


def tilted_exactly(kinds, composed: Composed) -> dict[int, mp.mpf]:
    """Exact tilted masses by index in `composed.mass` (outside it: negative, or past its end)."""
    first, values, denominator = convolution(kinds)
    offset = math.fsum(steps * one.offset for one, steps in kinds)
    start = round((composed.first_loss - offset) / composed.step)
    exact = {}
    for i, value in enumerate(values):
        if value:
            loss = mp.mpf(offset) + mp.mpf(composed.step) * (first + i)
            exponent = composed.tilt * loss - mp.mpf(composed.log_scale)
            exact[first + i - start] = mp.mpf(value) / denominator * mp.exp(exponent)
    return exact


def check(kinds, composed: Composed) -> None:
    with mp.workdps(40):
        exact = tilted_exactly(kinds, composed)
        inside = [exact.get(i, mp.mpf(0)) for i in range(len(composed.mass))]
        beyond = mp.fsum(v for i, v in exact.items() if not 0 <= i < len(composed.mass))
        assert beyond <= composed.outside / 2  # the other half is what wraps onto the window
        wrapped = mp.mpf(0)
        for value, truth in zip(composed.mass, inside, strict=True):
            allowed = composed.error + truth * (mp.expm1(composed.log_error) + mp.mpf(2) ** -50)
            assert value >= truth - allowed - composed.outside
            wrapped += max(mp.mpf(float(value)) - truth - allowed, 0)
        assert wrapped <= composed.outside
        assert mp.fsum(exact.values()) == pytest.approx(1.0, abs=composed.log_error + 1e-12)


KINDS = [
    [(COIN, 1)],
    [(COIN, 200)],
    [(SKEW, 31)],
    [(SKEW, 32)],
    [(SKEW, 200)],
    [(RARE, 100)],
    [(COIN, 3), (SKEW, 90)],
    [(COIN, 40), (RARE, 50), (dataclasses.replace(SKEW, offset=0.03), 60)],
    [(COIN, 250), (RARE, 50)],  # frequencies that the first alone makes negligible
    [(RARE, 50), (COIN, 250)],
]


@pytest.mark.parametrize("tilt", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "+".join(str(steps) for _, steps in kinds))
def test_composition_equals_the_exact_convolution(kinds, tilt):
    composed = compose(kinds, tilt=tilt, log_outside=-60.0, most_points=MANY)
    check(kinds, composed)
    assert composed.error < 1e-10
    assert composed.outside < 1e-10
    offset = math.fsum(steps * one.offset for one, steps in kinds)
    index = (composed.first_loss - offset) / composed.step
    assert index == pytest.approx(round(index), abs=1e-9)
    points = composed.first_loss + composed.step * np.arange(len(composed.mass))
    assert float(np.sum(composed.mass * points)) == pytest.approx(composed.mean, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("tilt", [0.0, 1.0])
def test_log_scale_is_the_cumulant(tilt):
    """Σ steps·log E e^{sL}, offsets included."""
    shifted = dataclasses.replace(SKEW, offset=0.03)
    composed = compose([(COIN, 7), (shifted, 50)], tilt=tilt, log_outside=-40.0, most_points=MANY)
    one, two = (math.log(np.sum(k.mass * np.exp(tilt * k.loss))) for k in (COIN, shifted))
    assert composed.log_scale == pytest.approx(7 * one + 50 * two, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("log_outside", [-1.0, -4.0, -12.0])
@pytest.mark.parametrize("tilt", [0.0, 0.7])
def test_a_short_window_is_covered_by_what_is_outside(log_outside, tilt):
    """Rare large losses wrap onto the window; `outside` bounds them."""
    for kinds in ([(RARE, 100)], [(law([UNIT - 10, *[0] * 98, 10], first=0), 60)]):
        composed = compose(kinds, tilt=tilt, log_outside=log_outside, most_points=MANY)
        check(kinds, composed)
        assert composed.outside < 10 * math.exp(log_outside)


@given(
    counts=st.lists(st.integers(0, UNIT), min_size=2, max_size=7).filter(any),
    first=st.integers(-4, 3),
    steps=st.integers(1, 40),
    tilt=st.floats(0, 20),
    log_outside=st.floats(-60, -2),
)
@settings(max_examples=25)
def test_any_small_law(counts, first, steps, tilt, log_outside):
    """Masses need not add up to 1: upper bounds may exceed it."""
    kinds = [(law(counts, first), steps)]
    composed = compose(kinds, tilt=tilt, log_outside=log_outside, most_points=MANY)
    check(kinds, composed)


@pytest.mark.parametrize("steps", [1000, 10**6, 10**9])
def test_the_error_does_not_grow_with_the_steps(steps):
    """Binomial probabilities, from logarithms of the gamma function in many digits; 1 − p is a power of two."""
    chance = 0.25 if steps <= 10**6 else 2.0**-16
    coin = LatticeLoss(np.array([1 - chance, chance]), 0, 1e-3, 0.0, 0.0, 0.0)
    composed = compose([(coin, steps)], tilt=0.0, log_outside=-40.0, most_points=MANY)
    assert composed.error < 1e-11
    start = round(composed.first_loss / composed.step)
    with mp.workdps(40):
        for i in np.linspace(1, len(composed.mass) - 2, 60).astype(int):
            k = int(start + i)
            if not 0 <= k <= steps:
                continue
            log_choose = mp.loggamma(steps + 1) - mp.loggamma(k + 1) - mp.loggamma(steps - k + 1)
            truth = mp.exp(log_choose + k * mp.log(chance) + (steps - k) * mp.log(1 - chance))
            assert abs(composed.mass[i] - truth) <= composed.error + composed.outside + truth * composed.log_error


def test_too_many_points_says_how_many():
    with pytest.raises(TooManyPoints) as caught:
        compose([(SKEW, 200)], tilt=0.0, log_outside=-40.0, most_points=100)
    needed = math.ceil(caught.value.points)
    assert 100 < needed < 1100
    compose([(SKEW, 200)], tilt=0.0, log_outside=-40.0, most_points=needed)
    with pytest.raises(TooManyPoints):
        compose([(SKEW, 200)], tilt=0.0, log_outside=-40.0, most_points=needed - 1)
    with pytest.raises(Unresolved, match="finite masses"):
        compose([(law([0, 0]), 2)], tilt=0.0, log_outside=-40.0, most_points=MANY)


# ---- reading ---------------------------------------------------------------------------------------------------------


def delta_exactly(kinds, epsilon) -> mp.mpf:
    first, values, denominator = convolution(kinds)
    step, start = mp.mpf(kinds[0][0].step), mp.mpf(math.fsum(steps * one.offset for one, steps in kinds))
    start += step * first
    skipped = max(int(mp.floor((mp.mpf(epsilon) - start) / step)) + 1, 0)
    ratio, decay, total = mp.exp(mp.mpf(epsilon) - start - step * skipped), mp.exp(-step), mp.mpf(0)
    for value in values[skipped:]:
        if value:
            total += mp.mpf(value) * (1 - ratio)
        ratio *= decay
    return total / denominator + mp.fsum(steps * one.infinity for one, steps in kinds)


def saddle(kinds, epsilon) -> float:
    """The tilt s >= 0 at which the tilted mean is ε, or 0."""

    def mean(tilt):
        weights = [(one.mass * np.exp(tilt * one.loss), one.loss, steps) for one, steps in kinds]
        return sum(steps * float(w @ loss / np.sum(w)) for w, loss, steps in weights)

    return 0.0 if mean(0.0) >= epsilon else optimize.brentq(lambda tilt: mean(tilt) - epsilon, 0.0, 500.0)


@pytest.mark.parametrize("infinity", [0.0, 1e-9])
@pytest.mark.parametrize(
    ("kinds", "epsilons"),
    [
        ([(COIN, 100)], [0.0, 0.06, 0.125, 6.0, 8.03, 11.5]),
        ([(SKEW, 60)], [0.0, 0.06, 0.125, 3.0]),
        ([(COIN, 40), (dataclasses.replace(SKEW, offset=0.03), 60)], [2.0, 6.1, 9.0]),
        ([(RARE, 60)], [0.06, 0.3, 1.0, 3.1]),
    ],
)
def test_bounds_are_on_the_safe_side_and_inverse_to_each_other(kinds, epsilons, infinity):
    without = kinds
    kinds = [(dataclasses.replace(one, infinity=infinity), steps) for one, steps in kinds]
    with mp.workdps(40):
        for epsilon in epsilons:
            composed = compose(kinds, tilt=saddle(kinds, epsilon), log_outside=-45.0, most_points=MANY)
            exact = float(mp.log(delta_exactly(kinds, epsilon)))
            at_least = float(mp.log(delta_exactly(without, epsilon)))
            low, high = (log_delta_bound(composed, epsilon, upper=upper) for upper in (False, True))
            assert low <= at_least <= exact <= high
            assert high - exact < 1e-8
            assert at_least - low < 1e-8
            for target in (exact - 1e-4, exact + 1e-4):
                above = epsilon_bound(composed, target, upper=True)
                assert above == math.inf or mp.log(delta_exactly(kinds, above)) <= target + 1e-14
            for target in (at_least - 1e-4, at_least + 1e-4):
                below = epsilon_bound(composed, target, upper=False)
                assert below == 0 or mp.log(delta_exactly(without, below)) >= target
                assert below <= epsilon_bound(composed, target, upper=True)
            if exact - at_least < 1:
                assert epsilon_bound(composed, high, upper=True) == pytest.approx(epsilon, rel=1e-8, abs=1e-8)
            assert epsilon_bound(composed, low, upper=False) == pytest.approx(epsilon, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("epsilon", [12.0, 20.03, 23.5])
def test_tiny_deltas_keep_their_relative_precision(epsilon):
    """δ between 1e-20 and 1e-200: the tilt brings it near 1."""
    fair = law([UNIT - 2**5, 2**5], first=0)
    kinds, ratio = [(fair, 200)], epsilon / (200 * STEP)
    odds = 2**5 / (UNIT - 2**5)
    tilt = math.log(ratio / (1 - ratio) / odds) / STEP
    composed = compose(kinds, tilt=tilt, log_outside=-45.0, most_points=MANY)
    with mp.workdps(40):
        exact = float(mp.log(delta_exactly(kinds, epsilon)))
        assert exact < math.log(1e-20) * (10 if epsilon > 20 else 1)
        low, high = (log_delta_bound(composed, epsilon, upper=upper) for upper in (False, True))
        assert low <= exact <= high
        assert high - low < 1e-8
        assert mp.log(delta_exactly(kinds, epsilon_bound(composed, exact, upper=True))) <= exact
        assert mp.log(delta_exactly(kinds, epsilon_bound(composed, exact, upper=False))) >= exact


@pytest.mark.parametrize("tilt", [0.0, 0.5, 3.0])
def test_mass_outside_is_charged_where_it_does_most_harm(tilt):
    """Tilted mass m at loss x adds m·e^{ΣK − s·x}·(1 − e^{ε−x}): the bound is at least that for all x, no more."""
    plain = compose([(COIN, 20)], tilt=tilt, log_outside=-45.0, most_points=MANY)
    outside, epsilon = 1e-3, 1.3
    composed = dataclasses.replace(plain, outside=outside)
    base = math.exp(log_delta_bound(dataclasses.replace(plain, outside=0.0), epsilon, upper=True))
    x = epsilon + np.geomspace(1e-4, 60.0, 4000)
    harm = float(np.max(outside * np.exp(plain.log_scale - tilt * x) * -np.expm1(epsilon - x)))
    added = math.exp(log_delta_bound(composed, epsilon, upper=True)) - base
    assert added == pytest.approx(harm, rel=1e-4)
    assert added >= harm * (1 - 1e-9)
    base = math.exp(log_delta_bound(dataclasses.replace(plain, outside=0.0), epsilon, upper=False))
    lost = base - math.exp(log_delta_bound(composed, epsilon, upper=False))
    assert lost == pytest.approx(harm, rel=1e-4)


@pytest.mark.parametrize("field", ["error", "outside", "infinity", "log_error", "loss_rounding"])
def test_every_stated_error_widens_both_readings(field):
    composed = compose([(COIN, 20)], tilt=0.5, log_outside=-45.0, most_points=MANY)
    worse = dataclasses.replace(composed, **{field: getattr(composed, field) + 1e-4})
    target = log_delta_bound(composed, 1.3, upper=True)
    assert log_delta_bound(worse, 1.3, upper=True) > target
    assert epsilon_bound(worse, target, upper=True) > epsilon_bound(composed, target, upper=True)
    change = log_delta_bound(worse, 1.3, upper=False) - log_delta_bound(composed, 1.3, upper=False)
    assert change == 0 if field == "infinity" else change < 0
    change = epsilon_bound(worse, target, upper=False) - epsilon_bound(composed, target, upper=False)
    assert change == 0 if field == "infinity" else change < 0
