"""A distinguishing game: draw with and without the record, guess by the likelihood ratio, bound ε from below.

With confidence 1 − 2e-6 the true (ε, δ) satisfies ε >= log((TPR − δ)/FPR), both rates at their Clopper–Pearson ends.
The game must not beat a proven bound, and must beat the claim when a fault is planted.
"""

import math

import numpy as np
import pytest
import torch
from optnoise.accounting import epsilon
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse
from scipy import stats

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")


def losses(noise, direction, draws, *, rate, present, generator):
    """Privacy losses (draws,) of outputs with or without the record, whose contribution is `direction` (d,)."""
    outputs = noise.sample((draws, len(direction)), generator=generator, dtype=torch.float64).numpy()
    if present:
        chosen = torch.rand((draws, 1), generator=generator, dtype=torch.float64).numpy() < rate
        outputs = outputs + chosen * direction
    loss = np.sum(noise.log_density(outputs - direction) - noise.log_density(outputs), axis=1)
    return np.logaddexp(np.log1p(-rate), np.log(rate) + loss) if rate < 1 else loss


def empirical_epsilon(noise, direction, *, delta, rate=1.0, seed=0, draws=200_000):
    """The largest lower bound over thresholds; they are chosen on the first half and judged on the second."""
    generator = torch.Generator().manual_seed(seed)
    direction = np.asarray(direction, dtype=np.float64)
    inside = losses(noise, direction, draws, rate=rate, present=True, generator=generator)
    outside = losses(noise, direction, draws, rate=rate, present=False, generator=generator)
    half = draws // 2
    thresholds = np.quantile(inside[:half], np.linspace(0.02, 0.999, 60)) + 1e-12
    best = max(thresholds, key=lambda t: _bound(inside[:half] > t, outside[:half] > t, delta))
    return _bound(inside[half:] > best, outside[half:] > best, delta)


def _bound(hits, false_alarms, delta):
    tail = 1e-6
    true_rate = stats.beta.ppf(tail, hits.sum(), (~hits).sum() + 1) if hits.any() else 0.0
    false_rate = stats.beta.ppf(1 - tail, false_alarms.sum() + 1, (~false_alarms).sum())
    return math.log((true_rate - delta) / false_rate) if true_rate > delta else -math.inf


@pytest.mark.parametrize("noise", [Gaussian(1.0), Laplace(1.2), GammaLaplace(3.0, 0.4), LMO], ids=repr)
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_game_stays_below_the_proven_bound_and_comes_near_it(noise, rate):
    proven = epsilon(noise, delta=1e-3, sampling_rate=rate, dimension=1).upper
    found = empirical_epsilon(noise, [1.0], delta=1e-3, rate=rate)
    assert 0.3 * proven < found <= proven


@pytest.mark.parametrize("noise", [Gaussian(1.0), Laplace(1.2), LMO], ids=repr)
def test_half_the_noise_is_caught(noise):
    claimed = epsilon(noise, delta=1e-3, dimension=1).upper
    assert empirical_epsilon(noise.scaled(0.5), [1.0], delta=1e-3) > claimed


@pytest.mark.parametrize("noise", [Gaussian(1.0), Laplace(1.2), LMO], ids=repr)
def test_a_sensitivity_of_two_claimed_as_one_is_caught(noise):
    claimed = epsilon(noise, delta=1e-3, dimension=1).upper
    assert empirical_epsilon(noise, [2.0], delta=1e-3) > claimed
    assert (
        empirical_epsilon(noise, [2.0], delta=1e-3)
        <= epsilon(noise, delta=1e-3, dimension=1, adjacency="replace_one").upper
    )


def test_the_scalar_bound_used_in_dimension_100_is_caught():
    """The shift of norm 1 is spread over 100 coordinates: the scalar ε is false there, the bound for d = 100 holds."""
    noise = LMO.scaled(0.25)
    scalar = epsilon(noise, delta=1e-3, dimension=1).upper
    found = empirical_epsilon(noise, np.full(100, 0.1), delta=1e-3, draws=40_000)
    assert found > 1.5 * scalar
    assert found <= epsilon(noise, delta=1e-3, dimension=100).upper
