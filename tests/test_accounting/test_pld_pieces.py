"""Pieces of one release: masses, bracketed losses and their stated rounding errors, against many digits."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import scalar
from optnoise.accounting.event import Event
from optnoise.accounting.pld.pieces import LossPieces
from optnoise.accounting.pld.sampling import ADD, REMOVE, REPLACE, directions, sampled, sampled_pair
from optnoise.accounting.pld.scalar import Cuts, _half_line, sampled_line, scalar_pieces
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, Mechanism, ScaleMixture, parse

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
POWERS = parse("lmo:a1=0.1,a3=0.1,theta=0.5,k=1,rate=5")
NOISES = [Gaussian(1.2), Laplace(0.8), GammaLaplace(2.5, 0.25), LMO]
PRECISE = [Gaussian(1.0), Gaussian(37.0), Laplace(1.3), Laplace(1e-3), GammaLaplace(2.5, 0.25), GammaLaplace(0.3, 40.0)]
RATES = [1.0, 0.3, 1e-5, 0.999999]
DIGITS = 50


# ---- the noises in many digits ---------------------------------------------------------------------------------------


def lmo_terms(m: ScaleMixture, x: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """(log E e^{−ux}, mean of u under the law tilted by e^{−ux}) at x >= 0."""
    low, width = (mp.mpf(v) for v in m.uniform_term())
    log_mgf, mean = -low * x, low
    z = width * x
    log_mgf += mp.log(-mp.expm1(-z) / z) if z else 0
    mean += width * (1 / z - 1 / mp.expm1(z)) if z else width / 2
    for exponent, length in m.power_terms():
        k, g = mp.mpf(exponent), mp.mpf(length)
        log_mgf -= k * mp.log1p(g * x)
        mean += k * g / (1 + g * x)
    return log_mgf, mean


def log_density(m: Mechanism, x: mp.mpf) -> mp.mpf:
    x = abs(x)
    if isinstance(m, Gaussian):
        return -((x / m.noise_multiplier) ** 2) / 2 - mp.log(m.noise_multiplier * mp.sqrt(2 * mp.pi))
    if isinstance(m, Laplace):
        return -x / m.scale - mp.log(2 * mp.mpf(m.scale))
    if isinstance(m, GammaLaplace):
        k, theta = mp.mpf(m.shape), mp.mpf(m.scale)
        return mp.log(k * theta / 2) - (k + 1) * mp.log1p(theta * x)
    log_mgf, mean = lmo_terms(m, x)
    return log_mgf + mp.log(mean / 2)


def tail(m: Mechanism, x: mp.mpf) -> mp.mpf:
    """P(X > x), x >= 0."""
    if isinstance(m, Gaussian):
        return mp.erfc(x / m.noise_multiplier / mp.sqrt(2)) / 2
    if isinstance(m, Laplace):
        return mp.exp(-x / m.scale) / 2
    if isinstance(m, GammaLaplace):
        return (1 + mp.mpf(m.scale) * x) ** -mp.mpf(m.shape) / 2
    return mp.exp(lmo_terms(m, x)[0]) / 2


def loss(m: Mechanism, x: mp.mpf, shift: float) -> mp.mpf:
    return log_density(m, x) - log_density(m, x - shift)


def sampled_exactly(value: mp.mpf, rate: float) -> mp.mpf:
    return mp.log1p(mp.mpf(rate) * mp.expm1(value))


# ---- drops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", PRECISE, ids=repr)
def test_drops_keep_their_stated_relative_rounding(noise):
    """Small widths, widths on both sides of the Gaussian's switch at σ/4, and far tails for the small ones."""
    assert noise.drop_rounding is not None
    unit = noise.noise_multiplier if isinstance(noise, Gaussian) else noise.scale_hint
    widths = [1e-200, 1e-30, 1e-12, 1e-6, 1e-3, 0.03, 0.1, 0.2, 0.2499999, 0.25, 0.2500001, 0.3, 1.0, 5.0]
    for width in np.array(widths) * unit:
        z = np.array([0.0, 1e-3, 0.3, 1.0, 4.0, 12.0, 38.0 if width <= 0.25 * unit else 15.0])
        got = noise.log_tail_drop(z * unit, width), noise.log_density_drop(z * unit, width)
        with mp.workdps(60 if width > 1e-20 * unit else 300):
            for i, x in enumerate(map(mp.mpf, z * unit)):
                far = x + mp.mpf(width)
                exact = mp.log(tail(noise, x) / tail(noise, far)), log_density(noise, x) - log_density(noise, far)
                for value, truth in zip(got, exact, strict=True):
                    assert abs(value[i] - truth) <= noise.drop_rounding * truth


def test_drops_over_infinite_and_empty_widths():
    for noise in (*PRECISE[:1], *PRECISE[2:3], *PRECISE[4:5], LMO):
        assert noise.log_tail_drop(3.0, math.inf) == math.inf
        assert noise.log_tail_drop(3.0, 0.0) == 0
        assert noise.log_density_drop(3.0, 0.0) == 0


@given(loss_=st.floats(-50, 700), rate=st.sampled_from(RATES[1:]))
def test_sampled_loss_in_many_digits(loss_, rate):
    with mp.workdps(400):
        exact = sampled_exactly(mp.mpf(loss_), rate)
        assert abs(mp.mpf(float(sampled(np.array(loss_), rate))) - exact) <= 8e-16 * abs(exact) + 1e-300 + 2e-16 * (
            loss_ < 0
        )


def test_sampled_loss_at_both_infinities():
    assert sampled(np.array([math.inf]), 0.3)[0] == math.inf
    assert sampled(np.array([-math.inf]), 0.3)[0] == pytest.approx(math.log(0.7), rel=1e-15)
    assert sampled(np.array([-math.inf, 2.0]), 1.0).tolist() == [-math.inf, 2.0]


# ---- pieces ----------------------------------------------------------------------------------------------------------


def cut_line(noise: Mechanism, shift: float, count: int = 14):
    """(the half line cut at `count` knots each, and in many digits: masses under P, under Q, losses inside)."""
    reach = float(noise.tail_quantile(-60.0 if noise.tail_index == math.inf else -20.0))
    left = np.append(0.0, np.geomspace(1e-7 * reach, reach, count))
    left = np.sort(np.append(left, left[5] * (1 + 1e-4)))  # one narrow piece
    middle = shift * np.append(np.linspace(0, 0.45, count // 2), [0.5 - 1e-3, 0.5])
    half = _half_line(noise, shift, left, middle)
    t, exact_p, exact_q, inside = mp.mpf(shift), [], [], []
    ends = [*map(mp.mpf, left), mp.inf]
    for near, far in itertools.pairwise(ends):
        beyond = [tail(noise, far + s) if mp.isfinite(far) else mp.mpf(0) for s in (0, t)]
        exact_p.append(tail(noise, near) - beyond[0])
        exact_q.append(tail(noise, near + t) - beyond[1])
        width = far - near if mp.isfinite(far) else 3 * near
        inside.append([loss(noise, -(near + width * k / 4), shift) for k in range(5)])
    ends = [mp.mpf(v) for v in middle]
    for near, far in itertools.pairwise(ends):
        exact_p.append(tail(noise, near) - tail(noise, far))
        exact_q.append(tail(noise, t - far) - tail(noise, t - near))
        inside.append([loss(noise, near + (far - near) * k / 4, shift) for k in range(5)])
    return half, exact_p, exact_q, inside


@pytest.mark.parametrize("shift", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("noise", [*NOISES, POWERS], ids=repr)
def test_bounds_hold_inside_every_piece(noise, shift):
    """Masses, mean losses and losses at points inside, in every direction and at every rate, with stated rounding."""
    with mp.workdps(DIGITS):
        half, exact_p, exact_q, inside = cut_line(noise, shift)
        for p, q, log_p, log_q, error_p, error_q in zip(
            exact_p, exact_q, half.log_p, half.log_q, half.error_p, half.error_q, strict=True
        ):
            assert abs(mp.log(p) - log_p) <= error_p
            assert abs(mp.log(q) - log_q) <= error_q
        for values, low, high in zip(inside, half.low, half.high, strict=True):
            assert low <= min(values)
            assert max(values) <= high
        for rate in RATES:
            m_p = [rate * p + (1 - mp.mpf(rate)) * q for p, q in zip(exact_p, exact_q, strict=True)]
            m_q = [rate * q + (1 - mp.mpf(rate)) * p for p, q in zip(exact_p, exact_q, strict=True)]
            mirror = [[-v for v in values] for values in inside]
            remove = [(m, q, v) for m, q, v in zip(m_p, exact_q, inside, strict=True)]
            remove += [(m, p, v) for m, p, v in zip(m_q, exact_p, mirror, strict=True)]
            check_pieces(sampled_line(half, rate, REMOVE), remove, rate, 1)
            check_pieces(sampled_line(half, rate, ADD), [(b, a, v) for a, b, v in remove], rate, -1)
            positive = sampled_line(half, rate, REPLACE)
            count = len(exact_p)
            check_pieces(part(positive, slice(0, count)), remove[:count], rate, 1)
            check_pieces(part(positive, slice(count, 2 * count)), [(b, a, v) for a, b, v in remove[:count]], rate, -1)
            if rate == 1:
                assert len(positive.low) == 2 * count
            else:
                rest = (1 - mp.mpf(rate)) * (mp.fsum(exact_p) - mp.fsum(exact_q))
                check_pieces(part(positive, slice(2 * count, None)), [(rest, rest, [mp.mpf(0)])], rate, 1)


def part(pieces: LossPieces, chosen: slice) -> LossPieces:
    names = ("log_mass_low", "log_mass_high", "low", "high", "mean_low", "mean_high")
    return LossPieces(*(getattr(pieces, name)[chosen] for name in names))


def check_pieces(pieces: LossPieces, exact: list, rate: float, sign: int) -> None:
    """`exact` holds (mass under A, mass under B, unsampled losses inside) of every piece."""
    assert len(pieces.low) == len(exact)
    for i, (a, b, losses) in enumerate(exact):
        assert pieces.log_mass_low[i] <= mp.log(a) <= pieces.log_mass_high[i]
        assert pieces.mean_low[i] <= mp.log(a / b) <= pieces.mean_high[i]
        assert pieces.low[i] <= pieces.mean_low[i] <= pieces.mean_high[i] <= pieces.high[i]
        values = [sign * (v if rate == 1 else sampled_exactly(v, rate)) for v in losses]
        assert pieces.low[i] <= min(values)
        assert max(values) <= pieces.high[i]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("direction", [REMOVE, ADD, REPLACE])
@pytest.mark.parametrize("cuts", [Cuts(60.0), Cuts(80.0, 1e-3, 0.3e-3)], ids=["coarse", "fine"])
def test_masses_add_up_under_both_laws(noise, rate, direction, cuts):
    """Under A from the masses, under B from the masses and the mean losses: both are probabilities."""
    pieces = scalar_pieces(Event(noise, 1.0, 1, rate, 1), direction, cuts)
    for low, high in (
        (pieces.log_mass_low, pieces.log_mass_high),
        (pieces.log_mass_low - pieces.mean_high, pieces.log_mass_high - pieces.mean_low),
    ):
        assert math.fsum(np.exp(low)) <= 1 + 1e-15
        assert math.fsum(np.exp(high)) >= 1 - 1e-15
        assert math.fsum(np.exp(high)) - math.fsum(np.exp(low)) <= (1e-11 if noise.drop_rounding else 1e-6)
    assert np.all(pieces.low <= pieces.mean_low)
    assert np.all(pieces.mean_low <= pieces.mean_high)
    assert np.all(pieces.mean_high <= pieces.high)
    assert np.all(np.isfinite(pieces.mean_low) & np.isfinite(pieces.mean_high))


@pytest.mark.parametrize("noise", [n for n in NOISES if not isinstance(n, Laplace)], ids=repr)
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_fine_pieces_are_as_narrow_as_the_lattice_asks(noise, rate):
    """No piece with mass is wider than a lattice step, save beyond the start of a band, where steps are wide."""
    event, step = Event(noise, 1.0, 1, rate, 1), 1e-3
    for direction in directions(event):
        fine = scalar_pieces(event, direction, Cuts(60.0, step))
        matters = fine.log_mass_low > -25
        assert np.max((fine.high - fine.low)[matters]) <= step
        calm = scalar_pieces(event, direction, Cuts(60.0, step, 0.0, ((0.05, 0.1),)))
        near = (fine.high - fine.low)[matters & (np.maximum(fine.high, -fine.low) < 0.05)]
        assert np.max(near) <= step
        assert len(calm.low) < len(fine.low)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", RATES)
def test_curves_bracket_the_level_set_computation(noise, rate):
    """δ(ε) of one release: merged pieces below, pieces at their upper ends above, for remove, add and replace."""
    event = Event(noise, 1.0, 1, rate, 1)
    top = max(scalar.log_delta_bounds(event, 0.0)[1], -600)
    for direction in (REMOVE, ADD, REPLACE):
        pieces = scalar_pieces(event, direction, Cuts(60.0, 1e-3 * rate, 0.0, ((rate, 0.05),)))
        for epsilon in (0.0, 0.01 * rate, 0.1 * rate, 0.3 * rate):
            bounds = scalar.log_delta_bounds_add if direction == ADD else scalar.log_delta_bounds
            low, high = np.exp(bounds(event, epsilon))
            below = hockey_stick(np.exp(pieces.log_mass_low), pieces.mean_low, epsilon)
            above = hockey_stick(np.exp(pieces.log_mass_high), pieces.high, epsilon)
            assert below <= high * (1 + 1e-12)
            assert above >= low * (1 - 1e-12)
            if direction != ADD:
                assert above - below <= 3e-2 * math.exp(top)
            if direction == REPLACE and epsilon > 0:  # γ < 1: 1 − γ + γ·h(1/γ)
                symmetric = -math.expm1(-epsilon) + math.exp(-epsilon) * np.array([low, high])
                assert hockey_stick(np.exp(pieces.log_mass_low), pieces.mean_low, -epsilon) <= symmetric[1] + 1e-14
                assert hockey_stick(np.exp(pieces.log_mass_high), pieces.high, -epsilon) >= symmetric[0] - 1e-14


def hockey_stick(mass, loss_, epsilon):
    return math.fsum(np.where(loss_ > epsilon, mass * -np.expm1(np.minimum(epsilon - loss_, 0.0)), 0.0))


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", RATES)
def test_sampling_a_whole_pair_equals_sampling_its_halves(noise, rate):
    """`sampled_pair` on the unsampled pieces and `sampled_line`: the same intervals, up to stated rounding."""
    whole = scalar_pieces(Event(noise, 1.0, 1, 1.0, 1), REMOVE, Cuts(40.0))
    for direction in (REMOVE, ADD):
        one = sampled_pair(whole, rate, direction)
        two = scalar_pieces(Event(noise, 1.0, 1, rate, 1), direction, Cuts(40.0))
        assert np.all(one.log_mass_low <= two.log_mass_high)
        assert np.all(two.log_mass_low <= one.log_mass_high)
        assert np.all(one.mean_low <= two.mean_high)
        assert np.all(two.mean_low <= one.mean_high)
        bounded = np.isfinite(two.low) & np.isfinite(two.high)
        assert one.low[bounded] == pytest.approx(two.low[bounded], rel=1e-9, abs=1e-12)
        assert one.high[bounded] == pytest.approx(two.high[bounded], rel=1e-9, abs=1e-12)


@given(
    noise=st.sampled_from(NOISES),
    log_scale=st.floats(-3, 4),
    rate=st.floats(1e-8, 1.0),
    step=st.sampled_from([math.inf, 0.01, 0.3]),
    direction=st.sampled_from([REMOVE, ADD, REPLACE]),
)
@settings(max_examples=60)
def test_pieces_of_any_scale_are_ordered_and_complete(noise, log_scale, rate, step, direction):
    cuts = Cuts(50.0, step * 10**-log_scale, 0.1 * step * 10**-log_scale if math.isfinite(step) else 0.0)
    pieces = scalar_pieces(Event(noise, 10**-log_scale, 1, rate, 1), direction, cuts)
    assert math.fsum(np.exp(pieces.log_mass_low)) <= 1 + 1e-15
    assert math.fsum(np.exp(pieces.log_mass_high)) >= 1 - 1e-15
    assert np.all(pieces.low <= pieces.mean_low)
    assert np.all(pieces.mean_low <= pieces.mean_high)
    assert np.all(pieces.mean_high <= pieces.high)
