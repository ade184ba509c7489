"""Spherical noise in pieces: the Gaussian in every dimension, quadrature over the norm, Monte Carlo, limits, orders."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from optnoise.accounting import gaussian
from optnoise.accounting.spherical import default_step, log_delta_bounds, pieces_log_delta, spherical_pieces
from optnoise.accounting.spherical.cells import cells_of
from optnoise.accounting.spherical.grid import plan_grid
from optnoise.accounting.spherical.lines import polar_line, radial_line
from optnoise.accounting.spherical.pair import Pair
from optnoise.mechanisms.spherical import SphericalGamma
from references import approx
from scipy import integrate, optimize, special

SINGULAR = [SphericalGamma(1, 0.5, 1.0, 1.0), SphericalGamma(2, 1.0, 1.0, 0.5), SphericalGamma(5, 3.0, 1.0, 1.2)]
LAWS = [
    SphericalGamma.l2_mechanism(2, 1.0),
    SphericalGamma.l2_mechanism(3, 0.5),
    SphericalGamma.l2_mechanism(10, 0.4),
    SphericalGamma.l2_mechanism(300, 0.05),
    SphericalGamma(20, 20.0, 1e-5, 0.3),
    SphericalGamma(40, 20.0, 0.5, 1.0),
    SphericalGamma(8, 6.0, 1.0, 2.0),
    *SINGULAR,
]


def shift_of(law: SphericalGamma, deviations: float) -> float:
    """The shift at which the loss has roughly this standard deviation."""
    return deviations / (50 * default_step(law, 1.0))


def loss_tail(law: SphericalGamma, shift: float, loss: float) -> float:
    """P(ℓ > loss): quadrature over log r of the probability that the angle's cosine is below where ℓ = `loss`."""
    p, m, t, d = law.power, law.dimension - law.shape, shift / law.scale, law.dimension

    def log_radius(value):  # s with e^{ps} + m·s = value
        if m == 0:
            return math.log(value) / p if value > 0 else -math.inf
        return optimize.brentq(lambda s: math.exp(min(p * s, 700)) + m * s - value, -2000, 1000 / p, xtol=1e-15)

    def cosine(s):
        r, other = math.exp(s), math.exp(log_radius(math.exp(p * s) + m * s + loss))
        return (r * r + t * t - other * other) / (2 * r * t)

    def below(c):
        if d == 1:
            return 0.0 if c <= -1 else 0.5 if c < 1 else 1.0
        return float(special.betainc((d - 1) / 2, (d - 1) / 2, (1 + min(max(c, -1.0), 1.0)) / 2))

    def integrand(s):
        return math.exp(float(law.log_norm_density(law.scale * math.exp(s))) + s) * law.scale * below(cosine(s))

    k = law.gamma_shape
    left, right = -60 / k - 20 / math.sqrt(k), math.log1p(60 / k) + 15 / (1 + math.sqrt(k))
    s = np.unique(np.concatenate([np.linspace(left, 0, 400), np.linspace(0, right, 300)]) + math.log(k)) / p
    value = np.array([cosine(x) for x in s])
    ends = [*s[::20], s[-1]]
    for edge in (-1, 1):  # the integrand has kinks where the sphere is covered
        for i in np.flatnonzero((value[:-1] - edge) * (value[1:] - edge) < 0):
            ends.append(optimize.brentq(lambda x, e=edge: cosine(x) - e, s[i], s[i + 1], xtol=1e-15))
    ends = np.unique(ends)
    return sum(
        integrate.quad(integrand, a, b, epsabs=1e-15, epsrel=1e-11, limit=100)[0] for a, b in itertools.pairwise(ends)
    )


def delta(law: SphericalGamma, shift: float, epsilon: float) -> float:
    return loss_tail(law, shift, epsilon) - math.exp(epsilon) * (1 - loss_tail(law, shift, -epsilon))


# ---- known answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 2, 10, 10**3, 10**6, 10**9])
def test_gaussian_does_not_depend_on_the_dimension(dimension):
    law = SphericalGamma.gaussian(dimension, 2.0)
    pieces = spherical_pieces(law, 1.0, step=0.02)
    for epsilon, width in ((0.0, 1e-3), (0.3, 2e-3), (1.0, 0.01), (3.0, 0.1)):
        exact = gaussian.log_delta_bounds(epsilon, 0.5)
        lower, upper = pieces_log_delta(pieces, epsilon)
        assert lower <= exact[1]
        assert upper >= exact[0]
        assert upper - lower < width


def test_l2_mechanism_in_one_dimension_is_laplace():
    law = SphericalGamma.l2_mechanism(1, 2.0)
    for epsilon in (0.0, 0.1, 0.4):
        lower, upper = log_delta_bounds(law, 1.0, epsilon)
        exact = math.log(-math.expm1((epsilon - 0.5) / 2))
        assert lower <= exact <= upper
        assert upper - lower < 1e-3
    assert log_delta_bounds(law, 1.0, 0.5 + 1e-12) == (-math.inf, -math.inf)  # pure 1/2-DP


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_bracket_holds_quadrature_over_the_norm(law):
    shift = shift_of(law, 0.8)
    pieces = spherical_pieces(law, shift, step=4 * default_step(law, shift))
    for epsilon in (0.05, 0.6):
        lower, upper = pieces_log_delta(pieces, epsilon)
        exact = math.log(delta(law, shift, epsilon))
        assert lower - 1e-9 <= exact <= upper + 1e-9
        assert upper - lower < 0.015


def test_bracket_holds_monte_carlo():
    law, shift, epsilon = SphericalGamma.l2_mechanism(10, 0.4), 1.0, 0.6
    draws = law.sample((400_000, 10), generator=torch.Generator().manual_seed(5), dtype=torch.float64).numpy()
    moved = draws.copy()
    moved[:, 0] -= shift
    norms = np.linalg.norm(draws, axis=1), np.linalg.norm(moved, axis=1)
    loss = law.log_density(norms[0]) - law.log_density(norms[1])
    sample = np.maximum(-np.expm1(epsilon - loss), 0)
    error = sample.std() / math.sqrt(len(sample))
    lower, upper = np.exp(log_delta_bounds(law, shift, epsilon))
    assert lower - 4 * error < sample.mean() < upper + 4 * error


@pytest.mark.parametrize(("dimension", "distance"), [(10**3, 3e-3), (10**6, 2e-5), (10**9, 2e-5)])
def test_l2_mechanism_becomes_gaussian_in_high_dimension(dimension, distance):
    """At equal variance per coordinate the loss tends to the Gaussian's, at the rate 1/d."""
    law = SphericalGamma.l2_mechanism(dimension, 1 / math.sqrt(dimension + 1))
    pieces = spherical_pieces(law, 1.0, step=0.01)
    for epsilon in (0.2, 1.5):
        lower, upper = pieces_log_delta(pieces, epsilon)
        exact = sum(gaussian.log_delta_bounds(epsilon, 1.0)) / 2
        assert lower - distance <= exact <= upper + distance
        assert upper - lower < 3e-3


# ---- the pieces ------------------------------------------------------------------------------------------------------


def masses_of_q(pieces) -> tuple[float, float]:
    return (
        float(np.sum(np.exp(pieces.log_mass_low - pieces.mean_high))),
        float(np.sum(np.exp(pieces.log_mass_high - pieces.mean_low))),
    )


@pytest.mark.parametrize(
    "law", [*LAWS, SphericalGamma.gaussian(10**9, 1.0), SphericalGamma(1, 1.0, 1.0, 0.5)], ids=repr
)
@pytest.mark.parametrize("deviations", [0.1, 1.0])
def test_pieces_are_a_partition_with_ordered_brackets(law, deviations):
    shift = shift_of(law, deviations)
    step = 6 * default_step(law, shift)
    pieces = spherical_pieces(law, shift, step=step)
    assert np.all(pieces.log_mass_low <= pieces.log_mass_high)
    assert np.all(pieces.low <= pieces.mean_low)
    assert np.all(pieces.mean_low <= pieces.mean_high)
    assert np.all(pieces.mean_high <= pieces.high)
    assert np.all(np.isfinite(pieces.mean_low))
    assert np.all(np.isfinite(pieces.mean_high))
    low, high = np.exp(pieces.log_mass_low).sum(), np.exp(pieces.log_mass_high).sum()
    regular = law.shape == law.dimension and law.power >= 1
    slack = 1e-11 if regular else 0.1 * step**2 + 1e-11
    assert 1 - slack < low <= 1 <= high < 1 + slack
    low, high = masses_of_q(pieces)
    assert 1 - 2 * step**2 < low <= 1 <= high < 1 + 2 * step**2
    wide = pieces.high - pieces.low > 1.3 * step
    assert np.exp(pieces.log_mass_high[wide]).sum() < (0.05 if regular else 0.3)


@pytest.mark.parametrize(
    "law",
    [SphericalGamma.l2_mechanism(3, 0.5), SphericalGamma.gaussian(10, 1.0), SphericalGamma.l2_mechanism(300, 0.05)],
)
def test_halving_the_step_quarters_the_gaps(law):
    shift = shift_of(law, 1.0)
    gaps = []
    for step in (0.1, 0.05, 0.025):
        pieces = spherical_pieces(law, shift, step=step)
        mean_gap = float(np.sum(np.exp(pieces.log_mass_high) * (pieces.mean_high - pieces.mean_low)))
        bounds = [pieces_log_delta(pieces, epsilon) for epsilon in np.linspace(0.2, 0.6, 30)]
        gaps.append((mean_gap, sum(upper - lower for lower, upper in bounds)))
        assert np.exp(pieces.log_mass_high).sum() - np.exp(pieces.log_mass_low).sum() < 1e-11
    gaps = np.array(gaps)
    assert np.all(gaps[2] < 0.16 * gaps[0])  # 1/16 at second order
    assert gaps[2, 0] < 0.5 * 0.025**2


@pytest.mark.parametrize("law", [*SINGULAR, SphericalGamma.l2_mechanism(3, 0.5)], ids=repr)
def test_reflected_pieces_give_the_same_profile(law):
    """(Q, P) is (P, Q) reflected: masses Q, losses negated. Q's singular point is as well resolved as P's."""
    shift = shift_of(law, 0.8)
    pieces = spherical_pieces(law, shift, step=2 * default_step(law, shift))
    lower_p, upper_p = np.exp(pieces_log_delta(pieces, 0.5))
    log_low, log_high = pieces.log_mass_low - pieces.mean_high, pieces.log_mass_high - pieces.mean_low
    merged = np.maximum(-np.expm1(np.minimum(0.5 + pieces.mean_high, 0)), 0)
    crude = np.maximum(-np.expm1(np.minimum(0.5 + pieces.low, 0)), 0)
    lower_q, upper_q = np.exp(log_low) @ merged, np.exp(log_high) @ crude
    assert lower_q <= upper_p
    assert lower_p <= upper_q
    assert lower_q > lower_p * 0.998
    assert upper_q < upper_p * 1.08


def test_step_too_small_to_finish_is_refused():
    with pytest.raises(ValueError, match="step"):
        spherical_pieces(SphericalGamma.l2_mechanism(3, 1.0), 1.0, step=1e-6)


def test_only_the_ratio_of_shift_and_scale_matters():
    law = SphericalGamma(6, 5.0, 1.0, 1.4)
    first, second = spherical_pieces(law, 0.5, step=0.05), spherical_pieces(law.scaled(8.0), 4.0, step=0.05)
    assert first.mean_low == approx(second.mean_low, 1e-9)
    assert first.log_mass_high == approx(second.log_mass_high, 1e-9)


def test_tiny_shift_is_nearly_linear():
    """δ(0) = TV ~ t·E|∂ log density|/2: halving a tiny shift halves it."""
    law = SphericalGamma.l2_mechanism(5, 1.0)
    ends = [log_delta_bounds(law, shift, 0.0) for shift in (2e-5, 1e-5)]
    assert ends[0][0] - ends[1][1] == pytest.approx(math.log(2), abs=1e-3)
    assert ends[0][1] - ends[1][0] == pytest.approx(math.log(2), abs=1e-3)


# ---- what the proof rests on -----------------------------------------------------------------------------------------


def test_masses_of_one_dimensional_cells_are_within_their_error():
    pair = Pair(SphericalGamma(7, 6.0, 1.0, 1.5), 1.0)
    line = polar_line(pair, np.linspace(-math.pi / 2, math.pi / 2, 30))
    exact = np.diff(special.betainc(3, 3, (1 + np.append(line.low, 1.0)) / 2))
    assert line.mass / line.mass.sum() == approx(exact, 1e-9)
    assert line.error.max() < 1e-9
    for law in (pair, Pair(SphericalGamma.l2_mechanism(10**9, 1.0), 1.0)):
        k = law.gamma
        edges = np.array([-3.0, -2.8, 0.0, 0.3, 3.0, 3.1]) / math.sqrt(k)
        line = radial_line(law, edges)
        with mp.workdps(40):
            for i, (a, b) in enumerate(itertools.pairwise(edges)):
                exact = mp.quad(lambda x, k=k: mp.exp(-k * (mp.expm1(x) - x)), mp.linspace(mp.mpf(a), mp.mpf(b), 5))
                assert abs(line.mass[i] / float(exact) - 1) <= line.error[i] + 1e-15
                mean = mp.quad(lambda x, k=k: x * mp.exp(-k * (mp.expm1(x) - x)), mp.linspace(mp.mpf(a), mp.mpf(b), 5))
                assert line.mean[i] == pytest.approx(float(mean / exact), abs=1e-12 * (b - a))


@pytest.mark.parametrize("law", [LAWS[0], LAWS[3], LAWS[6], SINGULAR[2]], ids=repr)
def test_cells_bracket_the_loss_and_its_mean_within_them(law):
    """Random points of random cells, and the mean of e^{−ℓ} over a cell by a fine product rule."""
    pair = Pair(law, shift_of(law, 1.0) / law.scale)
    plan = plan_grid(pair, 0.3)
    cells = cells_of(pair, plan.rows, plan.cosines)
    rng = np.random.default_rng(0)
    node, weight = np.polynomial.legendre.leggauss(12)
    for i, j in zip(
        rng.integers(len(plan.rows.low), size=200), rng.integers(len(plan.cosines.low), size=200), strict=True
    ):
        a, b = plan.rows.low[i], plan.rows.high[i]
        x = (0.5 * (a + b) + 0.5 * (b - a) * node)[:, None]
        alpha = np.arcsin([plan.cosines.low[j], plan.cosines.high[j]])
        angle = alpha.mean() + 0.5 * np.diff(alpha) * node
        loss = -pair.loss(x, np.sin(angle)).u
        assert np.all(loss >= cells.low[i, j] - 1e-12 * (1 + np.abs(loss)))
        assert np.all(loss <= cells.high[i, j] + 1e-12 * (1 + np.abs(loss)))
        log_density = -pair.gamma * (np.expm1(x) - x) + (law.dimension - 2) * np.log(np.cos(angle))
        density = np.exp(log_density - log_density.max()) * weight[:, None] * weight
        low = loss.min()
        mean = low - math.log(np.sum(density * np.exp(low - loss)) / density.sum())
        assert cells.mean_low[i, j] - 1e-9 <= mean <= cells.mean_high[i, j] + 1e-9


@pytest.mark.parametrize(
    ("law", "shift", "name"),
    [
        (SphericalGamma(3, 3.0, 1.0, 2.1), 1.0, "power"),
        (SphericalGamma(3, 3.0, 1.0, 0.05), 1.0, "power"),
        (SphericalGamma(3, 3.5, 1.0, 1.0), 1.0, "shape"),
        (SphericalGamma(3, 0.05, 1.0, 1.0), 1.0, "shape"),
        (SphericalGamma.gaussian(10**11, 1.0), 1.0, "dimension"),
        (SphericalGamma.gaussian(3, 1.0), 0.0, "shift"),
        (SphericalGamma.gaussian(10**4, 1.0), 40.0, "shift"),
        (SphericalGamma.gaussian(1, 1.0), 40.0, "shift"),
    ],
)
def test_refusals_name_what_the_proof_lacks(law, shift, name):
    with pytest.raises(ValueError, match=name):
        spherical_pieces(law, shift, step=0.1)
