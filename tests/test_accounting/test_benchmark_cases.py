"""The privacy loss distribution against references, characteristic functions and closed forms: no code is shared.

A few cases in the default tier; random ones, over many orders of magnitude of every parameter, among the slow tests.
"""

import math
import tracemalloc

import numpy as np
import pytest
from optnoise.accounting.accountants import CharacteristicFunction, PrivacyLoss
from optnoise.accounting.event import Event
from optnoise.accounting.exact import ExactGaussian, ExactScalar
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse
from references import reference_cases, reference_mechanism

PLD, CF = PrivacyLoss(), CharacteristicFunction()
MIXTURE = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
ROUNDING = 1 + 1e-12

TRAINING = [  # noise multiplier, batch, records, epochs, δ
    (1.3, 256, 60_000, 15, 1e-5),
    (0.7, 256, 60_000, 45, 1e-5),
    (3.0, 4096, 50_000, 205, 1e-5),
    (0.79, 2000, 104_743, 6, 5e-6),
]
EDGES = [
    (Gaussian(1.0), 1e-5, 100_000, 1e-6),
    (Gaussian(0.4), 0.005, 100, 1e-5),
    (Gaussian(2.0), 0.05, 100_000, 1e-6),
    (Gaussian(5.0), 0.02, 3000, 1e-30),
    (Gaussian(20.0), 0.999, 300, 1e-6),
    (Laplace(2.0), 0.01, 2000, 1e-6),
    (Laplace(100.0), 1.0, 2000, 1e-7),
    (GammaLaplace(3.0, 0.1), 0.05, 500, 1e-6),
    (MIXTURE, 0.02, 1000, 1e-6),
]


def event(mechanism, steps, rate):
    return Event(mechanism, 1.0, steps, rate, None if mechanism.isotropic else 1)


def second_opinion(events, delta):
    """The interval of an accountant that shares no code, or None where there is none."""
    for exact in (ExactGaussian(), ExactScalar()):
        if exact.refusal(events) is None:
            return exact.epsilon(events, delta, 1e-6)
    try:
        return CF.epsilon(events, delta, 1e-6)
    except ValueError as error:
        if "cannot resolve" not in str(error):
            raise
        return None


def assert_sound(events, delta, relative_width=1e-3):
    """A finite interval that meets the second opinion; returns its relative width."""
    lower, estimate, upper = PLD.epsilon(events, delta, relative_width)
    assert 0 <= lower <= estimate <= upper < math.inf
    other = second_opinion(events, delta)
    if other is not None:
        assert lower <= other.upper * ROUNDING
        assert other.lower <= upper * ROUNDING
    return (upper - lower) / upper if upper else 0.0


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: case["name"])
def test_references_lie_in_the_interval(case):
    one = event(reference_mechanism(case), case["steps"], case["sampling_rate"])
    lower, _, upper = PLD.epsilon([one], case["delta"], 1e-3)
    assert lower <= case["eps_upper"]
    assert case["eps_lower"] <= upper
    assert upper - lower <= 1e-3 * upper


@pytest.mark.parametrize(("noise", "batch", "records", "epochs", "delta"), TRAINING)
def test_training_runs(noise, batch, records, epochs, delta):
    steps = round(epochs * records / batch)
    assert assert_sound([event(Gaussian(noise), steps, batch / records)], delta) <= 1e-3


@pytest.mark.parametrize(("mechanism", "rate", "steps", "delta"), EDGES, ids=repr)
def test_edges(mechanism, rate, steps, delta):
    assert assert_sound([event(mechanism, steps, rate)], delta) <= 1e-3


@pytest.mark.parametrize("delta", [1e-4, 1e-9])
def test_delta_at_the_ends_of_epsilon(delta):
    one = event(Gaussian(1.1), 2000, 0.01)
    lower, _, upper = PLD.epsilon([one], delta, 1e-3)
    target = math.log(delta)
    assert PLD.log_delta([one], upper, 1e-3)[0] <= target + 1e-9
    assert PLD.log_delta([one], lower, 1e-3)[2] >= target - 1e-9
    assert lower <= PLD.epsilon_upper([one], delta, 1e-3)


# ---- random cases ----------------------------------------------------------------------------------------------------


def random_noise(rng):
    scale = 10 ** rng.uniform(-1, math.log10(2000))
    shape = 10 ** rng.uniform(math.log10(1.05), 1.3)
    family = rng.integers(5)
    if family <= 1:
        return Gaussian(scale)
    return [Laplace(scale), GammaLaplace(shape, 1 / (shape * scale)), MIXTURE.scaled(scale / 2.5)][family - 2]


def random_rate(rng):
    choice = rng.random()
    return 1.0 if choice < 0.15 else 0.999999 if choice < 0.2 else 10 ** rng.uniform(-6, 0)


def random_case(seed, kinds=1):
    rng = np.random.default_rng([seed, kinds])
    delta = 10 ** rng.uniform(-30, math.log10(0.3))
    longest = 6 if kinds == 1 else 4
    return [event(random_noise(rng), int(10 ** rng.uniform(0, longest)), random_rate(rng)) for _ in range(kinds)], delta


@pytest.mark.slow
@pytest.mark.parametrize("block", range(12))
def test_random_releases(block):
    """One release alone may have a wider interval (where ε is beside 0): `best` asks the exact accountant first."""
    for seed in range(10 * block, 10 * block + 10):
        events, delta = random_case(seed)
        width = assert_sound(events, delta)
        single = sum(one.steps for one in events) == 1
        assert single or width <= 1e-3, (seed, events, delta, width)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_random_compositions(block):
    """Several kinds: atoms of one kind cannot all lie on the lattice of another, so widths may be larger."""
    for seed in range(10 * block, 10 * block + 10):
        events, delta = random_case(seed, kinds=2 + seed % 2)
        width = assert_sound(events, delta)
        assert width <= 1e-2, (seed, events, delta, width)


@pytest.mark.slow
def test_memory_of_random_compositions():
    """One to three kinds, at a width that many cannot reach: at most 150 MiB."""
    for seed in range(24):
        events, delta = random_case(seed, 1 + seed % 3)
        tracemalloc.start()
        PLD.epsilon(events, delta, 1e-5)
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        assert peak <= 150, (seed, events, delta)
