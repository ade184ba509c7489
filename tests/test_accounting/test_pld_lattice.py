"""Moves onto a lattice: `upper` dominates the pieces, `lower` is dominated, both to second order."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import scalar
from optnoise.accounting.event import Event
from optnoise.accounting.pld import lattice
from optnoise.accounting.pld.pieces import LossPieces
from optnoise.accounting.pld.sampling import ADD, REMOVE, REPLACE
from optnoise.accounting.pld.scalar import Cuts, scalar_pieces
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
NOISES = [Gaussian(1.2), Laplace(0.8), GammaLaplace(2.5, 0.25), LMO]
ROUNDING = 1e-11


def made(rows) -> LossPieces:
    """Pieces from rows (mass, low, mean, high), without rounding errors."""
    mass, low, mean, high = np.array(rows, dtype=np.float64).T
    return LossPieces(np.log(mass), np.log(mass), low, high, mean, mean)


def sticks(mass, loss, epsilons):
    """Σ mass·(1 − e^{ε − loss})_+ at every ε."""
    gap = np.minimum(np.asarray(epsilons)[:, None] - np.asarray(loss)[None, :], 0.0)
    return -np.expm1(gap) @ np.asarray(mass)


def merged_curve(pieces: LossPieces, epsilons):
    """Every piece one atom at its mean: the lowest law that the pieces allow."""
    return sticks(np.exp(pieces.log_mass_low), pieces.mean_low, epsilons)


def spread_curve(pieces: LossPieces, epsilons):
    """Every piece spread to its ends, keeping the mean of e^−L: the highest law that the pieces allow."""
    u_high, u_low, u = np.exp(-pieces.low), np.exp(-pieces.high), np.exp(-pieces.mean_high)
    with np.errstate(invalid="ignore"):
        weight = np.where(u_high > u_low, (u_high - u) / (u_high - u_low), 1.0)
    weight = np.where(np.isinf(pieces.low), 1.0, np.clip(weight, 0, 1))
    mass = np.exp(pieces.log_mass_high)
    return sticks(mass * weight, pieces.high, epsilons) + sticks(mass * (1 - weight), pieces.low, epsilons)


def curve(law: lattice.LatticeLoss, epsilons):
    return sticks(law.mass, law.loss, epsilons) + law.infinity


def probes(pieces: LossPieces, step: float) -> np.ndarray:
    ends = pieces.mean_low[np.exp(pieces.log_mass_low) > 1e-12]
    low, high = float(np.min(ends)), float(np.max(ends))
    return np.concatenate([np.linspace(low - 2 * step, high + 2 * step, 80), ends[:: max(len(ends) // 20, 1)]])


def check(pieces: LossPieces, step: float, offset: float):
    """Both laws against the pieces, on many ε; returns them."""
    above, below = lattice.upper(pieces, step, offset), lattice.lower(pieces, step, offset)
    epsilons = probes(pieces, step)
    high, low = curve(above, epsilons), curve(below, epsilons)
    assert np.all(high * (1 + above.mass_rounding) + 1e-15 >= spread_curve(pieces, epsilons) - 1e-15)
    assert np.all(low * (1 - below.mass_rounding) <= merged_curve(pieces, epsilons) + 1e-15)
    for law in (above, below):
        assert np.all(law.mass >= 0)
        assert law.step == step
        assert law.loss[-1] - law.loss[0] == pytest.approx(step * (len(law.mass) - 1), abs=1e-9 * step)
    assert above.offset == offset  # `lower` may shift its own
    return above, below


def check_kept(pieces: LossPieces, above, below, step):
    """Mass and the mean of u = e^−L: `upper` keeps both, `lower` the mass, and its mean of u unless moved down."""
    mass_high, mass_low = np.exp(pieces.log_mass_high), np.exp(pieces.log_mass_low)
    assert math.fsum(above.mass) + above.infinity == pytest.approx(math.fsum(mass_high), rel=ROUNDING)
    assert math.fsum(below.mass) == pytest.approx(math.fsum(mass_low), rel=ROUNDING)
    unbounded = np.isneginf(pieces.low)
    u = math.fsum(np.where(unbounded, np.exp(-pieces.high), np.exp(-pieces.mean_high)) * mass_high)
    assert math.fsum(above.mass * np.exp(-above.loss)) == pytest.approx(u, rel=ROUNDING + 1e-11 * step)
    u = math.fsum(np.exp(-pieces.mean_low) * mass_low)
    moved = math.fsum(below.mass * np.exp(-below.loss))
    assert u * (1 - ROUNDING) <= moved <= u * (math.exp(step) + ROUNDING)
    return moved / u - 1


@given(
    noise=st.sampled_from(NOISES),
    rate=st.sampled_from([1.0, 0.3, 1e-3]),
    direction=st.sampled_from([REMOVE, ADD, REPLACE]),
    log_step=st.floats(-4, 0.3),
    place=st.floats(0, 1),
    fine=st.booleans(),
)
@settings(max_examples=25)
def test_lattice_laws_enclose_the_pieces(noise, rate, direction, log_step, place, fine):
    step = 10**log_step * (1.0 if rate > 0.1 else 0.05)
    cuts = Cuts(40.0, step, place * step) if fine else Cuts(40.0)
    pieces = scalar_pieces(Event(noise, 1.0, 1, rate, 1), direction, cuts)
    above, below = check(pieces, step, place * step)
    check_kept(pieces, above, below, step)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_lattice_laws_enclose_the_exact_curve(noise, rate):
    """Against the level-set computation of one release, at ε on and off the lattice."""
    event, step = Event(noise, 1.0, 1, rate, 1), 0.01 * rate
    pieces = scalar_pieces(event, REMOVE, Cuts(40.0, step, 0.0))
    above, below = check(pieces, step, 0.0)
    for epsilon in (0.0, 0.3 * step, 5 * step, 7.7 * step, 12 * step):
        low, high = np.exp(scalar.log_delta_bounds(event, epsilon))
        assert curve(below, [epsilon])[0] <= high * (1 + 1e-12)
        assert curve(above, [epsilon])[0] >= low * (1 - 1e-12)
        assert curve(above, [epsilon])[0] - curve(below, [epsilon])[0] <= 0.05 * math.exp(
            scalar.log_delta_bounds(event, 0.0)[1]
        )


masses = st.floats(1e-9, 1.0)
losses = st.one_of(st.floats(-3, 3), st.integers(-6, 6).map(lambda k: 0.5 * k))


@st.composite
def handmade(draw):
    """Atoms on and off the lattice, wide pieces, and pieces with infinite ends, in any order."""
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        mean = draw(losses)
        low = draw(st.sampled_from([mean, mean - 1e-9, mean - 0.3, mean - 4.0, -math.inf]))
        high = draw(st.sampled_from([mean, mean + 1e-9, mean + 0.3, mean + 4.0, math.inf]))
        if math.isfinite(low) and mean > low and high == mean:
            mean = high = low  # a mean at one end puts all mass there
        if math.isinf(low) and high == mean:
            low = mean
        if low == mean < high:
            high = mean
        rows.append((draw(masses), low, mean, high))
    return rows


@given(rows=handmade(), step=st.sampled_from([0.5, 0.1, 0.037, 2.0]), offset=st.sampled_from([0.0, 0.02, -0.31]))
@settings(max_examples=60)
def test_handmade_pieces(rows, step, offset):
    pieces = made(rows)
    above, below = check(pieces, step, offset)
    assert math.fsum(above.mass) + above.infinity == pytest.approx(math.fsum(r[0] for r in rows), rel=ROUNDING)
    assert math.fsum(below.mass) == pytest.approx(math.fsum(r[0] for r in rows), rel=ROUNDING)
    assert below.infinity == 0


@pytest.mark.parametrize("offset", [0.0, 0.03, -5.01])
def test_single_atom_on_and_off_the_lattice(offset):
    """On a lattice point: left there, but for the margin. Off it: split above; below, the lattice is shifted to it."""
    step = 0.1
    above, below = check(made([(0.7, 0.4 + offset, 0.4 + offset, 0.4 + offset)]), step, offset)
    for law in (above, below):
        assert math.fsum(law.mass) == pytest.approx(0.7, rel=1e-14)
    assert above.loss[np.argmax(above.mass)] == pytest.approx(0.4 + offset)
    assert np.max(above.mass) == pytest.approx(0.7, rel=1e-9)
    middle = 0.44 + offset
    above, below = check(made([(0.7, middle, middle, middle)]), step, offset)
    assert above.loss == pytest.approx([0.4 + offset, 0.5 + offset])
    share = -math.expm1(-0.04) / -math.expm1(-0.1)
    assert above.mass == pytest.approx([0.7 * (1 - share), 0.7 * share], rel=1e-9)
    assert below.mass == pytest.approx([0.7])
    assert middle - 1e-6 * step <= below.loss[0] <= middle


def test_infinite_ends():
    """Mass that may be at ∞ stays there; a loss without a lower end is spread to nothing below its upper end."""
    above = lattice.upper(made([(0.5, 0.0, 0.2, math.inf)]), 0.1, 0.0)
    assert above.infinity == pytest.approx(-0.5 * math.expm1(-0.2), rel=1e-9)
    assert above.loss[np.argmax(above.mass)] == 0
    above = lattice.upper(made([(0.5, -math.inf, -4.0, -3.0)]), 0.1, 0.0)
    assert above.infinity == 0
    assert above.loss[np.argmax(above.mass)] == pytest.approx(-3.0)
    assert lattice.upper(made([(0.25, -math.inf, 0.0, math.inf), (0.5, 0, 0, 0)]), 0.1, 0.0).infinity == 0.25


def test_lower_keeps_the_mean_where_mass_above_suffices():
    """Atoms 0.23 and −0.07 on step 0.1: the group at 0.2 takes of the lower one, whose rest shifts the lattice."""
    rows = [(0.6, 0.23, 0.23, 0.23), (0.4, -0.07, -0.07, -0.07)]
    above, below = check(made(rows), 0.1, 0.0)
    assert abs(check_kept(made(rows), above, below, 0.1)) < 1e-10


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_lower_keeps_the_mean_of_real_pieces(noise):
    """Only the last group may be moved down, and of these families it hardly is."""
    for offset in (0.0, 0.4e-2):
        pieces = scalar_pieces(Event(noise, 1.0, 1, 1.0, 1), REMOVE, Cuts(40.0, 1e-2, offset))
        above, below = check(pieces, 1e-2, offset)
        assert abs(check_kept(pieces, above, below, 1e-2)) < 1e-9 + 1e-5 * (noise == Laplace(0.8))


@pytest.mark.parametrize("noise", [Gaussian(1.2), Gaussian(0.6)], ids=repr)
@pytest.mark.parametrize("move", [lattice.upper, lattice.lower])
def test_halving_the_step_quarters_the_error(noise, move):
    """Second order: the mean distance of the moved curve from a very fine one, over ε and places of the lattice."""
    event, errors, grid = Event(noise, 1.0, 1, 1.0, 1), [], np.linspace(-0.5, 0.8, 200)
    fine = merged_curve(scalar_pieces(event, REMOVE, Cuts(30.0, 2e-3)), grid)
    for step in (0.16, 0.08, 0.04):
        laws = []
        for place in np.arange(6) / 6:
            pieces = scalar_pieces(event, REMOVE, Cuts(30.0, step, place * step))
            laws.append(move(pieces, step, place * step))
        errors.append(float(np.mean([np.abs(curve(law, grid) - fine) for law in laws])))
    ratios = errors[0] / errors[1], errors[1] / errors[2]
    assert all(3.0 < ratio < 5.0 for ratio in ratios), ratios


def merged_in_pairs(pieces: LossPieces) -> LossPieces:
    """Coarser binning: neighbouring outcomes become one."""
    order = np.argsort(pieces.mean_low)
    order = order[: len(order) // 2 * 2]
    get = lambda name: getattr(pieces, name)[order].reshape(-1, 2)  # noqa: E731
    low, high, mean = get("log_mass_low"), get("log_mass_high"), get("mean_low")
    with np.errstate(under="ignore"):
        mean_low = -(np.logaddexp.reduce(low - mean, axis=1) - np.logaddexp.reduce(low, axis=1))
        mean_high = -(np.logaddexp.reduce(high - get("mean_high"), axis=1) - np.logaddexp.reduce(high, axis=1))
    ends = np.min(get("low"), axis=1), np.max(get("high"), axis=1)
    return LossPieces(
        np.logaddexp.reduce(low, axis=1), np.logaddexp.reduce(high, axis=1), *ends,
        np.clip(mean_low, *ends), np.clip(np.maximum(mean_high, mean_low), *ends),
    )  # fmt: skip


@pytest.mark.parametrize("noise", [Gaussian(1.2), GammaLaplace(2.5, 0.25), LMO], ids=repr)
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_coarser_binning_never_raises_what_is_attained(noise, rate):
    """Post-processing: bins twice as wide lose privacy loss, and a bound from above gains."""
    fine = scalar_pieces(Event(noise, 1.0, 1, rate, 1), REMOVE, Cuts(40.0, 5e-3 * rate))
    if len(fine.low) % 2:
        fine = LossPieces(*(np.delete(v, np.argmin(fine.log_mass_low)) for v in vars(fine).values()))
    coarse, grid = merged_in_pairs(fine), np.linspace(-1, 1, 120) * rate
    assert np.all(merged_curve(coarse, grid) <= merged_curve(fine, grid) + 1e-13)
    for step in (0.01 * rate, 0.05 * rate):
        assert np.all(curve(lattice.lower(coarse, step, 0.0), grid) <= merged_curve(fine, grid) + 1e-13)
        assert np.all(
            curve(lattice.upper(coarse, step, 0.0), grid) >= curve(lattice.upper(fine, step, 0.0), grid) - 1e-10
        )
        nested = curve(lattice.upper(fine, 2 * step, 0.0), grid)
        assert np.all(nested >= curve(lattice.upper(fine, step, 0.0), grid) - 1e-10)


@pytest.mark.parametrize("step", [3e-15, 1e-14, 1e-9, 1.0, 12.0, 18.0, 19.9])
def test_lower_stays_on_its_lattice_at_steps_near_the_rounding(step):
    """The allowance for rounding is absolute: at tiny and at wide steps it exceeds a step, and led off the lattice."""
    means = np.linspace(-6, 6, 740) * step
    law = lattice.lower(made([(1 / 740, mean, mean, mean) for mean in means]), step, 0.0)
    assert law.mass.sum() == pytest.approx(1, rel=1e-12)
    assert means[0] - 3 * step <= law.loss[0] <= law.loss[-1] <= means[-1]
    grid = np.linspace(-6, 6, 50) * step  # tails of the law below those of the pieces, relative to a step
    exact = sticks(np.full(740, 1 / 740), means, grid)
    assert np.all(sticks(law.mass, law.loss, grid) <= exact + 1e-9 * min(step, 1.0))


def test_out_of_range_is_an_error():
    with pytest.raises(OverflowError, match="lattice index"):
        lattice.upper(made([(0.5, -1e9, 0.0, 1e9)]), 1e-3, 0.0)
    with pytest.raises(OverflowError, match="lattice index"):
        lattice.lower(made([(0.5, -1e9, -1e9, 0), (0.5, 0.0, 1e9, 1e9)]), 1e-3, 0.0)
