"""Replacing one record under sampling: the symmetric pair dominates every explicit pair, on dense grids."""

import math

import numpy as np
import pytest
from optnoise.accounting import epsilon, scalar
from optnoise.accounting.event import Event
from optnoise.accounting.pld.sampling import REPLACE
from optnoise.accounting.pld.scalar import Cuts, scalar_pieces
from optnoise.accounting.renyi import renyi_curve
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace
from scipy import integrate

NOISES = [Gaussian(1.0), Gaussian(4.0), Laplace(0.7), Laplace(5.0), GammaLaplace(3.0, 0.5)]
GAMMAS = np.exp([-1.5, -0.4, -0.1, -0.02, -0.003, 0.0, 0.003, 0.02, 0.1, 0.4, 1.5])


def mixtures(noise, rate, one, other, absent=0.0):
    """(x, density with the record as `one`, with it as `other`): absent with probability 1 − rate."""
    reach = float(noise.tail_quantile(-35.0 if noise.tail_index == math.inf else -15.0)) + 4
    half = np.sinh(np.linspace(0, np.arcsinh(reach / noise.scale_hint * 100), 30_001)) * noise.scale_hint / 100
    x = np.unique(np.concatenate([centre + side * half for centre in (one, other, absent) for side in (-1, 1)]))
    density = lambda at: np.exp(noise.log_density(x - at))  # noqa: E731
    return x, (1 - rate) * density(absent) + rate * density(one), (1 - rate) * density(absent) + rate * density(other)


def stick(x, m, other, gamma):
    return float(integrate.trapezoid(np.maximum(m - gamma * other, 0.0), x))


def dominating(noise, rate, gamma, shift=2.0):
    """h(γ) for γ >= 1, 1 − γ + γ·h(1/γ) below; h the curve of *remove* at shift 2, by its level set."""
    curve = lambda g: math.exp(scalar.log_delta_bounds(Event(noise, shift, 1, rate, 1), math.log(g))[1])  # noqa: E731
    return curve(gamma) if gamma >= 1 else 1 - gamma + gamma * curve(1 / gamma)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", [0.9, 0.3, 0.02])
def test_the_symmetric_pair_dominates_replacements(noise, rate):
    """Poisson sampling: absent at 0, present at +1, replaced by −1, by nothing, by less; fixed size: absent at −1."""
    for one, other, absent in ((1, -1, 0), (-1, 1, 0), (1, 0, 0), (0, 1, 0), (1, -0.5, 0), (1, -1, -1), (-1, 1, -1)):
        x, m, replaced = mixtures(noise, rate, one, other, absent)
        for gamma in GAMMAS:
            assert stick(x, m, replaced, gamma) <= dominating(noise, rate, gamma) + 2e-7


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", [0.9, 0.3, 0.02])
def test_smaller_shifts_would_not_dominate(noise, rate):
    """The claim is sharp for fixed-size batches at γ >= 1, so a shift below 2 is too small."""
    x, m, replaced = mixtures(noise, rate, 1, -1, -1)
    for gamma in GAMMAS[GAMMAS >= 1]:
        value = stick(x, m, replaced, gamma)
        assert value == pytest.approx(dominating(noise, rate, gamma), abs=2e-6)
        if value > 1e-3:
            assert value > dominating(noise, rate, gamma, shift=1.9)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", [0.9, 0.3, 0.02])
def test_pieces_of_replace_have_the_dominating_curve(noise, rate):
    """For γ below and above 1: what is composed is the claim, up to the width of the pieces."""
    pieces = scalar_pieces(Event(noise, 2.0, 1, rate, 1), REPLACE, Cuts(60.0, 2e-3 * rate, 0.0, ((2.0, 0.01),)))
    u_low, u, u_high = (np.exp(-loss) for loss in (pieces.high, pieces.mean_high, pieces.low))
    with np.errstate(invalid="ignore"):
        weight = np.where(u_high > u_low, np.clip((u_high - u) / (u_high - u_low), 0.0, 1.0), 1.0)
        weight = np.where(np.isinf(u_high), 1.0, weight)  # nothing stays at a loss of −∞
    mass = np.exp(pieces.log_mass_high)
    for gamma in GAMMAS:
        exact, inside = dominating(noise, rate, gamma), lambda v, g=gamma: np.maximum(1 - g * v, 0.0)
        low = float(np.exp(pieces.log_mass_low) @ inside(np.exp(-pieces.mean_low)))
        high = float(mass @ (weight * inside(u_low) + (1 - weight) * inside(np.minimum(u_high, 1e200))))
        assert low <= exact * (1 + 1e-9)
        assert high >= exact * (1 - 1e-9)
        assert high - low <= 1e-4


@pytest.mark.parametrize("noise", [Gaussian(2.0), Laplace(3.0)], ids=repr)
def test_two_steps_on_a_grid_stay_below_the_bound(noise):
    """(+1 replaced by −1, absent at 0) twice, Poisson: losses of the explicit pair composed by sorting, not by FFT."""
    rate = 0.3
    x, m, replaced = mixtures(noise, rate, 1, -1)
    x, m, replaced = x[::150], m[::150], replaced[::150]
    mass = np.gradient(x) * m
    loss = np.log(m / replaced)
    total = (loss[:, None] + loss[None, :]).ravel()
    weight = (mass[:, None] * mass[None, :]).ravel()
    for target in (0.2, 0.5, 1.0):
        exact = float(np.sum(weight * -np.expm1(np.minimum(target - total, 0.0))))
        if exact < 1e-6:
            continue
        upper = epsilon(
            noise, delta=exact, steps=2, sampling_rate=rate, dimension=1, adjacency="replace_one", accountant="pld"
        ).upper
        assert upper >= target * (1 - 1e-3)


@pytest.mark.parametrize("noise", [Gaussian(2.0), Laplace(3.0)], ids=repr)
def test_renyi_bound_holds_for_explicit_pairs(noise):
    """F_symmetric − 1 <= 2·(F_remove − 1), against quadrature of the pair (+1, −1, absent at 0) and fixed size."""
    rate = 0.2
    curve = renyi_curve(Event(noise, 2.0, 1, rate, 1, symmetric=True))
    for absent in (0, -1):
        x, m, replaced = mixtures(noise, rate, 1, -1, absent)
        for order in (1.5, 2.0, 6.0):
            ratio = np.log(m / replaced)
            excess = integrate.trapezoid((np.expm1(order * ratio) - order * np.expm1(ratio)) * replaced, x)
            assert math.log1p(excess) / (order - 1) <= curve.at(np.array([order]))[0] * (1 + 1e-6)


def test_replacing_costs_at_least_removing_at_the_same_shift():
    """The symmetric pair has *remove*'s curve at γ >= 1, and a heavier one below: never cheaper, composed or not."""
    from optnoise.accounting.pld import PrivacyLoss

    for noise, rate, steps in ((Gaussian(2.0), 0.1, 50), (Laplace(4.0), 0.5, 10), (Gaussian(1.0), 0.3, 1)):
        plain = Event(noise, 2.0, steps, rate, 1)
        symmetric = Event(noise, 2.0, steps, rate, 1, symmetric=True, attained=1.0)
        pld = PrivacyLoss()
        one, two = (pld.epsilon([e], 1e-5, 1e-3) for e in (plain, symmetric))
        assert two.upper >= one.lower
        assert two.lower >= one.lower * (1 - 2e-3)
        if steps == 1:
            assert two.upper == pytest.approx(one.upper, rel=2e-3)
