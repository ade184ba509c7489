"""Lower ends of independent noise in many coordinates: spread shifts, their copies, and the Gaussian limit."""

import itertools
import math

import numpy as np
import pytest
from optnoise.accounting import epsilon
from optnoise.accounting.event import Event
from optnoise.accounting.pld import PrivacyLoss
from optnoise.accounting.pld.accountant import lower_bound
from optnoise.accounting.pld.questions import DeltaQuestion, EpsilonQuestion
from optnoise.accounting.pld.spread import product_pieces, spread_events
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
NOISES = [Laplace(3.0), GammaLaplace(4.0, 0.3), LMO]
PLD = PrivacyLoss()


def ask(delta, width=1e-3):
    return EpsilonQuestion(math.log(delta), width)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_spreading_without_sampling_multiplies_the_steps(noise):
    """m coordinates, T steps: m·T releases of one coordinate at shift 1/√m, with no `copies`."""
    compositions = spread_events([Event(noise, 1.0, 5, 1.0, 16)])
    assert [(e.steps, e.shift, e.dimension, e.copies) for (e,) in compositions] == [
        (5, 1.0, 1, 1),
        (20, 0.5, 1, 1),
        (80, 0.25, 1, 1),
    ]
    for composition in compositions:
        assert composition[0].steps * composition[0].shift ** 2 == 5  # the same L2 norm
        assert lower_bound(composition, ask(1e-6)) <= PLD.epsilon(composition, 1e-6, 1e-3).upper


def test_choices_of_copies():
    """Powers of 4 up to the dimension, which is tried itself; the Gaussian limit only in every dimension."""
    sampled = Event(Laplace(3.0), 1.0, 5, 0.1, 10)
    assert [(e.copies, e.steps) for (e,) in spread_events([sampled])] == [(1, 5), (4, 5), (10, 5)]
    many = spread_events([Event(Laplace(3.0), 1.0, 5, 0.1, math.inf)])
    assert [e.copies for (e,) in many] == [1, 4, 16, 64, 256, 1024, 1]
    assert isinstance(many[-1][0].mechanism, Gaussian)
    assert many[-1][0].mechanism.noise_multiplier == pytest.approx(3.0, rel=1e-3)  # I = 1/b²
    assert spread_events([Event(Gaussian(2.0), 1.0, 5, 0.1, None)]) == [[Event(Gaussian(2.0), 1.0, 5, 0.1, None)]]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("copies", [1, 3, 16])
def test_copies_equal_more_steps_without_sampling(noise, copies):
    """`product_pieces` composed again, against m·T plain steps: never above, and close."""
    steps, shift = 6, 1 / math.sqrt(copies)
    product = Event(noise, shift, steps, 1.0, 1, copies=copies)
    plain = PLD.epsilon([Event(noise, shift, steps * copies, 1.0, 1)], 1e-5, 1e-4)
    value = lower_bound([product], ask(1e-5))
    assert plain.lower * (1 - 3e-3) <= value <= plain.upper


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_product_pieces_are_a_law_below_the_product(noise):
    """Masses of at most 1 under both laws, little less, and additive mean losses."""
    one, four = (product_pieces(noise, 0.5, copies) for copies in (1, 4))
    for pieces in (one, four):
        mass = np.exp(pieces.log_mass_low)
        assert 1 - 1e-9 <= math.fsum(mass) <= 1
        assert math.fsum(mass * np.exp(-pieces.mean_low)) == pytest.approx(1.0, abs=1e-6)
        assert pieces.low is pieces.mean_low or np.array_equal(pieces.low, pieces.mean_low)
    mean = [math.fsum(np.exp(p.log_mass_low) * p.mean_low) for p in (one, four)]
    assert mean[1] == pytest.approx(4 * mean[0], rel=1e-3)


def two_coordinates(scale, rate, steps_target, grid=1500):
    """δ(ε) of one sampled release of two Laplace coordinates, each shifted by 1/√2: *remove*, on a 2-D grid of losses.

    A coordinate's loss at shift t is +t/b (1/2), −t/b (e^{−t/b}/2), or continuous between with density e^{(x−u)/2}/4.
    """
    u = 1 / math.sqrt(2) / scale
    edges = np.linspace(-u, u, grid + 1)
    middle = 0.5 * (edges[1:] + edges[:-1])
    mass = (np.exp((edges[1:] - u) / 2) - np.exp((edges[:-1] - u) / 2)) / 2
    loss, p = np.append(middle, [-u, u]), np.append(mass, [math.exp(-u) / 2, 0.5])
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    total, p = loss[:, None] + loss[None, :], p[:, None] * p[None, :]
    q = p * np.exp(-total)
    mixed = (1 - rate) * q + rate * p
    return float(np.sum(np.maximum(mixed - math.exp(steps_target) * q, 0.0)))


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_sampled_copies_against_a_grid_of_two_losses(rate, scale):
    """Coordinates are composed before sampling: sampling each alone would give another δ."""
    event = Event(Laplace(scale), 1 / math.sqrt(2), 1, rate, 1, copies=2)
    for target in (0.02 * rate, 0.3 * rate / scale):
        exact = two_coordinates(scale, rate, target)
        value = math.exp(lower_bound([event], DeltaQuestion(target, 1e-4)))
        assert value <= exact * (1 + 1e-5)
        assert value >= exact * (1 - 2e-3)
        found = lower_bound([event], ask(exact))
        assert target * (1 - 1e-2) <= found <= target * (1 + 1e-5)


def test_sampled_copies_compose_over_steps():
    """One coordinate as a `copy` is plain PLD; two, sampled and composed, lie between one step and T times one step."""
    noise = Laplace(2.0)
    one = Event(noise, 1.0, 20, 0.1, 1)
    plain = PLD.epsilon([one], 1e-5, 1e-4)
    assert plain.lower * (1 - 2e-3) <= lower_bound([one], ask(1e-5)) <= plain.upper
    values = [lower_bound([Event(noise, 0.5**0.5, t, 0.1, 1, copies=2)], ask(1e-5)) for t in (1, 2, 20)]
    assert values[0] < values[1] < values[2] < 20 * values[0]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_lower_ends_rise_with_the_dimension_up_to_the_limit(noise, rate):
    """Lower <= upper in every dimension; more dimensions allow more spreading; all of them reach the Gaussian's ε."""
    at = lambda d: epsilon(noise, delta=1e-5, steps=30, sampling_rate=rate, dimension=d)  # noqa: E731
    values = [at(d) for d in ((2, 16, 256, math.inf) if rate < 1 else (4, math.inf))]
    for value in values:
        assert 0 < value.lower <= value.upper
    lowers = [value.lower for value in values]
    assert all(after >= before * (1 - 2e-3) for before, after in itertools.pairwise(lowers))
    limit = epsilon(Gaussian(noise.fisher_information**-0.5), delta=1e-5, steps=30, sampling_rate=rate)
    assert lowers[-1] >= limit.lower * (1 - 5e-3)
    assert limit.lower <= values[-1].upper


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_many_copies_approach_the_gaussian_limit(rate):
    """Laplace noise, 256 coordinates: within 2 % of the Gaussian with the same Fisher information."""
    noise, steps = Laplace(3.0), 10
    event = Event(noise, 1 / 16, steps, rate, 1, copies=256)
    limit = PLD.epsilon([Event(Gaussian(3.0), 1.0, steps, rate, 1)], 1e-4, 1e-3)
    assert lower_bound([event], ask(1e-4)) == pytest.approx(limit.upper, rel=0.03)


def test_d_inf_equals_the_limit_where_it_is_the_largest():
    """Gamma–Laplace in every dimension at small ε: the lower end is the Gaussian limit's."""
    noise = GammaLaplace(8.0, 0.02)
    limit = epsilon(Gaussian(noise.fisher_information**-0.5), delta=1e-6, steps=5)
    value = epsilon(noise, delta=1e-6, steps=5, dimension=math.inf)
    assert value.lower == pytest.approx(limit.lower, rel=2e-3)
