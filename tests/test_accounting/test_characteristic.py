"""The characteristic-function accountant against exact results, which its stated error must cover."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from optnoise.accounting import epsilon, gaussian, scalar
from optnoise.accounting.accountant import NoAnswer
from optnoise.accounting.cells import largest_loss
from optnoise.accounting.characteristic import CharacteristicFunction, Direction
from optnoise.accounting.characteristic.law import GaussianLaw, NodeLaw
from optnoise.accounting.characteristic.line import Line, compose
from optnoise.accounting.characteristic.nodes import Resolution
from optnoise.accounting.event import Event
from optnoise.accounting.exact import ExactScalar
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, from_spec, parse
from references import approx, reference_cases, reference_mechanism
from scipy import integrate, special

CF = CharacteristicFunction()
LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
NOISES = [Gaussian(0.6), Gaussian(20.0), Laplace(0.8), Laplace(30.0), GammaLaplace(2.5, 0.25), LMO]
SMALL_SIGMA = "subgauss_smallsigma_q0.005_T100_d1e-05"


def event(mechanism, steps=1, rate=1.0):
    return Event(mechanism, 1.0, steps, rate, 1)


def in_direction(events, delta, *, remove):
    return Direction(events, remove=remove).epsilon(math.log(delta), 1e-6)


def assert_covers(interval, exact, rounding=1e-13):
    lower, estimate, upper = interval
    assert lower <= estimate <= upper
    assert lower * (1 - rounding) - 1e-300 <= exact <= upper * (1 + rounding) + 1e-300


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: case["name"])
def test_reference_cases(case):
    events = [event(reference_mechanism(case), case["steps"], case["sampling_rate"])]
    remove = in_direction(events, case["delta"], remove=True)
    assert remove.upper - remove.lower <= 2e-9 * remove.upper
    assert case["eps_lower"] <= remove.estimate <= case["eps_upper"]
    if case["name"] != SMALL_SIGMA:  # its `eps_best` is the middle of the bracket and no better
        assert remove.estimate == approx(case["eps_best"], 2e-10)
    if case["sampling_rate"] < 1:
        add = in_direction(events, case["delta"], remove=False)
        assert add.upper <= remove.lower
        if case["eps_add"] is not None:
            assert add.estimate == approx(case["eps_add"], 2e-10)
    assert CF.epsilon(events, case["delta"], 1e-6) == remove


def test_small_sigma_does_not_depend_on_the_line():
    """The case whose reference is only a bracket: lines far apart in every respect give one δ."""
    values = []
    for s, frequency in ((0.55, 40.0), (1.1, 25.0), (1.2, 80.0)):
        composed = compose([event(Gaussian(0.4), 100, 0.005)], True, Resolution((s,), frequency, 80.0))
        values.append(Line(composed, s, 8.81277, math.log(1e-5), frequency).log_delta(8.8127713767215)[0])
    assert values == approx([math.log(1e-5)] * 3, 1e-12)


@pytest.mark.parametrize(
    ("rate", "delta", "value"),
    [
        (0.00033, 1.1e-18, 0.067214),
        (0.00033, 1.13e-18, 0.067186),
        (0.00038, 1.1e-18, 0.077573),
        (0.00038, 1.13e-18, 0.077541),
    ],
)
def test_b07_tiny_delta_is_smooth(rate, delta, value):
    assert CF.epsilon([event(Gaussian(4.0), 10_000, rate)], delta, 1e-6).estimate == pytest.approx(value, abs=1.5e-6)


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12, 1e-30])
@pytest.mark.parametrize("mu", [3e-4, 0.01, 0.3, 1.0, 7.0, 300.0, 1e4])
def test_gaussian_compositions(mu, delta):
    steps = 1000
    result = CF.epsilon([event(Gaussian(math.sqrt(steps) / mu), steps)], delta, 1e-6)
    exact = gaussian.epsilon_interval(delta, mu)
    assert_covers(result, exact.estimate)
    assert result.estimate == approx(exact.estimate, 1e-11)


def test_different_gaussians_compose_exactly():
    events = [event(Gaussian(2.0), 3), event(Gaussian(30.0), 500), event(Gaussian(0.9))]
    mu = math.sqrt(sum(e.steps / e.mechanism.noise_multiplier**2 for e in events))
    assert_covers(CF.epsilon(events, 1e-7, 1e-6), gaussian.epsilon_interval(1e-7, mu).estimate)


@pytest.mark.parametrize(("mu", "steps"), [(5e-4, 10**6), (0.3, 10), (4.0, 1)])
def test_quadrature_against_the_closed_gaussian(mu, steps):
    """Errors are multiplied by the number of steps: per release they are far below 1e-16."""
    deviation = mu * math.sqrt(steps)
    s, step, count = 5 / deviation, 0.3 / deviation, 30
    one = event(Gaussian(1 / mu))
    nodes, closed = NodeLaw(one, True, Resolution((s,), step * count, 70.0)), GaussianLaw(one)
    assert nodes.cumulants(s) == approx(closed.cumulants(s), 1e-11)
    ratio, exact = nodes.log_ratio(s, step, count), closed.log_ratio(s, step, count)
    assert np.max(np.abs(np.exp(steps * ratio) - np.exp(steps * exact))) < 1e-12


@pytest.mark.parametrize("delta", [0.01, 1e-8])
@pytest.mark.parametrize("rate", [1.0, 0.2, 1e-3])
@pytest.mark.parametrize("mechanism", NOISES, ids=repr)
def test_single_releases(mechanism, rate, delta):
    one = event(mechanism, 1, rate)
    result, exact = CF.epsilon([one], delta, 1e-6), ExactScalar().epsilon([one], delta, 1e-6)
    assert result.lower <= exact.upper
    assert exact.lower <= result.upper
    if result.estimate > 0:
        assert (result.upper - result.lower) / result.estimate < 2e-6


@pytest.mark.parametrize("mechanism", NOISES, ids=repr)
def test_single_releases_added(mechanism):
    one = event(mechanism, 1, 0.3)
    epsilon = 0.4 * in_direction([one], 1e-6, remove=False).estimate
    lower, _, upper = Direction([one], remove=False).log_delta(epsilon, 1e-6)
    exact_lower, exact_upper = scalar.log_delta_bounds_add(one, epsilon)
    assert lower <= exact_upper
    assert exact_lower <= upper
    assert upper - lower < 1e-5


def profile(one, epsilon):
    """δ of one unsampled release at any real ε: H_γ(P‖Q) = 1−γ+γ·H_{1/γ}(Q‖P), and P, Q are mirror images."""
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * profile(one, -epsilon)
    return math.exp(scalar.log_delta_bounds(one, epsilon)[1])


@pytest.mark.parametrize("mechanism", [Laplace(1.5), GammaLaplace(3.0, 0.4), LMO], ids=repr)
def test_two_releases_by_convolution(mechanism):
    """δ₂(ε) = E_P[δ₁(ε − ℓ)], integrated between the kinks."""
    one, epsilon = event(mechanism), 0.9 * largest_loss(mechanism, 1.0)

    def integrand(x):
        loss = float(mechanism.log_density(x) - mechanism.log_density(x - 1))
        return math.exp(float(mechanism.log_density(x))) * profile(one, epsilon - loss)

    edges = [-math.inf, -3.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 4.0, math.inf]
    parts = [integrate.quad(integrand, a, b, epsabs=1e-8)[0] for a, b in itertools.pairwise(edges)]
    lower, _, upper = CF.log_delta([event(mechanism, 2)], epsilon, 1e-6)
    assert upper - lower < 1e-8
    assert math.exp(lower) == approx(sum(parts), 1e-6)


def test_laplace_with_gaussian_noise():
    """A mixed composition: the Gaussian's profile averaged over the Laplace loss."""
    scale, mu, epsilon = 4.0, 0.5, 1.7
    noise = Laplace(scale)

    def delta(x):
        loss = float(noise.log_density(x) - noise.log_density(x - 1))
        return math.exp(float(noise.log_density(x)) + gaussian.log_delta_bounds(epsilon - loss, mu)[1])

    edges = [-np.inf, 0.0, 1.0, np.inf]
    exact = sum(integrate.quad(delta, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in itertools.pairwise(edges))
    events = [event(noise), event(Gaussian(2 / mu), 4)]
    assert_covers(CF.epsilon(events, exact, 1e-6), epsilon, rounding=1e-11)


def test_sampled_and_unsampled_releases_mix():
    """Between the parts alone and their sum, and the same in any order."""
    events = [event(Gaussian(2.0), 100, 0.02), event(Laplace(20.0), 30), event(GammaLaplace(3.0, 0.1), 10, 0.5)]
    whole = CF.epsilon(events, 1e-6, 1e-6)
    parts = [CF.epsilon([e], 1e-6, 1e-6).estimate for e in events]
    assert max(parts) < whole.estimate < sum(parts)
    assert CF.epsilon(events[::-1], 1e-6, 1e-6).estimate == approx(whole.estimate, 1e-12)


def laplace_delta_on_a_grid(scale, steps, epsilon, fine=2048):
    """δ of unsampled Laplace noise by FFT; the atoms ±u lie on the grid, and so do the kinks of δ.

    A release is +u (1/2), −u (e^−u/2) or continuous on (−u, u) with density e^{x/2 − u/2}/4, by the trapezoid rule.
    """
    u = 1 / scale
    x = np.linspace(-u, u, 2 * fine + 1)
    law = np.exp((x - u) / 2) / 4 * (u / fine)
    law[[0, -1]] /= 2
    law[0] += math.exp(-u) / 2
    law[-1] += 0.5
    total = np.fft.irfft(np.fft.rfft(law, 2 * fine * steps + 2) ** steps, 2 * fine * steps + 2)
    loss = u / fine * np.arange(len(total)) - steps * u
    return float(np.sum(total * np.maximum(0.0, -np.expm1(np.minimum(epsilon - loss, 0.0)))))


def test_losses_near_a_lattice_are_noticed():
    """4000 releases of Laplace(2000): |φ| comes back to e^−1 at 2π/(2u), far beyond the end of a normal loss."""
    events = [event(Laplace(2000.0), 4000)]
    delta = 1e-5
    found = CF.epsilon(events, delta, 1e-6)
    assert (found.upper - found.lower) / found.estimate < 1e-7
    s = 100.0
    composed = compose(events, True, Resolution((s,), 500.0, 70.0))
    line = Line(composed, s, found.estimate, math.log(delta), 500.0)
    assert not line.settled
    assert not line.sharp
    assert abs(line.log_delta(found.estimate)[0] - math.log(delta)) > 1e-6  # what such a line would have hidden
    many = [event(Laplace(2000.0), 10**6)]  # at a million releases nothing comes back
    composed = compose(many, True, Resolution((8.0,), 30.0, 70.0))
    assert Line(composed, 8.0, CF.epsilon(many, delta, 1e-6).estimate, math.log(delta), 30.0).sharp


def test_near_lattice_value():
    epsilon = 0.1571
    lower, _, upper = CF.log_delta([event(Laplace(200.0), 100)], epsilon, 1e-6)
    assert upper - lower < 1e-7
    assert math.exp(upper) == approx(laplace_delta_on_a_grid(200.0, 100, epsilon), 1e-6)


def test_the_end_of_a_bounded_loss():
    for mechanism in (Laplace(3.0), GammaLaplace(3.0, 0.4), LMO):
        one = event(mechanism)
        for delta in (1e-9, 1e-30):
            result, exact = CF.epsilon([one], delta, 1e-6), ExactScalar().epsilon([one], delta, 1e-6)
            assert result.lower <= exact.upper
            assert exact.lower <= result.upper <= largest_loss(mechanism, 1.0)
            assert result.upper - result.lower < 2e-6 * result.upper
    assert CF.log_delta([event(Laplace(3.0), 2)], 0.7, 1e-6) == (-math.inf, -math.inf, -math.inf)


@pytest.mark.parametrize("rate", [1.0, 0.01])
@pytest.mark.parametrize("mechanism", [Gaussian(3.0), Laplace(5.0), GammaLaplace(2.0, 0.1), LMO], ids=repr)
def test_delta_and_epsilon_are_inverse(mechanism, rate):
    events = [event(mechanism, 200, rate)]
    epsilon = CF.epsilon(events, 1e-9, 1e-6)
    lower, estimate, upper = CF.log_delta(events, epsilon.estimate, 1e-6)
    assert estimate == approx(math.log(1e-9), 1e-10)
    assert lower <= estimate <= upper


def test_zero():
    assert CF.epsilon([], 1e-5, 1e-6) == (0.0, 0.0, 0.0)
    assert CF.log_delta([], 1.0, 1e-6)[2] == -math.inf
    assert CF.epsilon([event(Gaussian(2000.0), 10, 1e-4)], 1e-5, 1e-6) == (0.0, 0.0, 0.0)
    mu = 0.01
    at_zero = math.log(2 * special.ndtr(mu / 2) - 1)
    lower, _, upper = CF.log_delta([event(Gaussian(1 / mu))], 0.0, 1e-6)
    assert lower - 1e-12 <= at_zero <= upper + 1e-12
    just_below = CF.epsilon([event(Gaussian(1 / mu))], math.exp(at_zero) * 0.999, 1e-6)
    assert_covers(just_below, gaussian.epsilon_interval(math.exp(at_zero) * 0.999, mu).estimate, rounding=1e-9)


@pytest.mark.parametrize("delta", [0.1, 1e-8, 1e-30])
@pytest.mark.parametrize(("steps", "rate"), [(10**6, 1e-6), (10**6, 1.0), (30, 1e-6), (10**6, 0.3), (3, 0.9)])
@pytest.mark.parametrize("scale", [0.1, 2000.0])
def test_extremes_are_computed_or_refused(scale, steps, rate, delta):
    noises = [Gaussian(scale), Laplace(scale), GammaLaplace(3.0, 1 / (3 * scale)), LMO.scaled(scale / 2.5)]
    for mechanism in noises:
        try:
            result = CF.epsilon([event(mechanism, steps, rate)], delta, 1e-6)
        except ValueError as error:
            if "cannot resolve" not in str(error) or (rate > 1e-5 and steps > 3):
                raise
        else:
            assert 0 <= result.lower <= result.estimate <= result.upper < math.inf


def test_what_is_refused():
    sided = Event(Laplace(1.0), 1.0, 5, 0.5, 1)
    assert CF.refusal([sided]) is None
    assert "replace-one" in str(CF.refusal([sided, Event(Laplace(1.0), 2.0, 5, 0.5, 1, True, 0.5)]))
    assert "one coordinate" in str(CF.refusal([Event(Laplace(1.0), 1.0, 5, 0.5, 7)]))
    assert CF.refusal([Event(Gaussian(1.0), 1.0, 5, 0.5, None)]) is None
    with pytest.raises(ValueError, match="one coordinate"):
        CF.epsilon([Event(Laplace(1.0), 1.0, 5, 0.5, 7)], 1e-5, 1e-6)


def test_what_cannot_be_resolved_is_an_error():
    """Large losses are so rare and so large that every line lies far above δ."""
    with pytest.raises(ValueError, match="cannot resolve"):
        CF.epsilon([event(Gaussian(1.3341407105943819), 23515, 3.56e-6)], 2.81e-25, 1e-6)


def test_near_atoms_are_not_answered_from_two_windows_that_agree_by_chance():
    """The loss of this searched noise is nearly an atom: two windows once agreed on 3.0004, 2.99995 is proven."""
    noise = from_spec(json.loads((Path(__file__).parents[1] / "data" / "near_atoms.json").read_text()))
    settings = {"delta": 1e-6, "steps": 1000, "sampling_rate": 0.001, "dimension": 1}
    proven = epsilon(noise, **settings, accountant="pld", relative_width=1e-4)
    assert 2.9998 <= proven.lower <= proven.upper <= 3.0
    with pytest.raises(NoAnswer, match="cannot resolve"):
        epsilon(noise, **settings, accountant="cf")
    assert epsilon(noise, **settings, verify=True).upper <= 3.0
