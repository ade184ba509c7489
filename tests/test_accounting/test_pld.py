"""The privacy loss distribution accountant against references, published numbers, closed forms and itself."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from optnoise.accounting import (
    AccountantsDisagree,
    Release,
    calibrate,
    compose_delta,
    compose_epsilon,
    delta,
    epsilon,
    gaussian,
)
from optnoise.accounting.event import Event
from optnoise.accounting.pld import PrivacyLoss
from optnoise.accounting.pld.questions import EpsilonQuestion
from optnoise.accounting.pld.refinement import refined, refined_upper, rough_answer
from optnoise.accounting.pld.sampling import ADD, REMOVE
from optnoise.accounting.published import published_epsilon
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse
from references import approx, reference_cases, reference_mechanism

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
NOISES = [Gaussian(1.2), Laplace(1.5), GammaLaplace(4.0, 0.3), LMO]
PLD = PrivacyLoss()
CASES = {case["name"]: case for case in reference_cases()}
NARROW = [name for name in CASES if "hugeT" not in name and "tinyq" not in name]  # the others end near 5e-5


def pld(noise, *, delta, width=1e-3, **rest):
    return epsilon(noise, delta=delta, accountant="pld", relative_width=width, dimension=1, **rest)


def event_of(case) -> Event:
    return Event(reference_mechanism(case), 1.0, case["steps"], case["sampling_rate"], 1)


def assert_near(interval, value, relative):
    """The upper end is a guarantee: no lower than the published digits allow, and close."""
    assert interval.upper == approx(value, relative)
    assert interval.lower == approx(value, relative)


# ---- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "width"), [*((name, 1e-3) for name in CASES), *((name, 1e-5) for name in NARROW)], ids=str
)
def test_reference_cases_are_held_and_as_narrow_as_asked(name, width):
    case = CASES[name]
    lower, estimate, upper = PLD.epsilon([event_of(case)], case["delta"], width)
    assert upper - lower <= width * upper
    assert lower <= estimate <= upper
    assert lower <= case["eps_upper"]
    assert upper >= case["eps_lower"]
    rounding = (case["eps_upper"] - case["eps_lower"]) if "smallsigma" in name else 1e-11 * upper
    assert lower - rounding <= case["eps_best"] <= upper + rounding


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["sampling_rate"] < 1])
def test_each_direction_alone(name):
    """*Remove* and *add* hold their own references, and *add* is below."""
    case = CASES[name]
    width = 3e-3 if "tinyq" in name else 1e-3  # rare losses take their time
    question = EpsilonQuestion(math.log(case["delta"]), width)
    remove = refined([event_of(case)], REMOVE, question)
    add = refined([event_of(case)], ADD, question)
    assert remove[0] <= case["eps_remove"] * (1 + 1e-9)
    assert remove[1] >= case["eps_remove"] * (1 - 1e-9) - (1e-5 if "smallsigma" in name else 0)
    assert remove[1] - remove[0] <= width * remove[1]
    if case["eps_add"] is not None:
        assert add[0] <= case["eps_add"] <= add[1]
        assert add[1] - add[0] <= 2 * width * add[1]  # it does not decide, so its lattice is not pressed
    else:
        assert add[0] <= case["eps_add_upper"]
    assert add[1] < remove[0]


# ---- published numbers -----------------------------------------------------------------------------------------------


def test_b01_and_b05_many_steps_at_a_high_rate():
    """B05: σ=1, q=0.2, δ=1e-5: 4.984 at 10 steps and 38.170 at 500. B01: one step at a large δ costs nothing."""
    for steps, value in ((10, 4.984), (500, 38.170)):
        assert_near(pld(Gaussian(1.0), delta=1e-5, steps=steps, sampling_rate=0.2, width=1e-5), value, 1.1e-4)
    assert pld(Gaussian(1.0), delta=0.1, sampling_rate=0.01) == (0, 0, 0)
    assert pld(Gaussian(1.0), delta=0.1, sampling_rate=0.01, steps=2).upper == 0
    assert pld(Gaussian(1.0), delta=0.0038, sampling_rate=0.01).upper > 0
    at_zero = delta(Gaussian(1.0), epsilon=0, sampling_rate=0.01, accountant="pld")
    total_variation = 0.01 * math.erf(0.5 / math.sqrt(2))
    assert at_zero.lower <= total_variation <= at_zero.upper <= total_variation * (1 + 1e-5)


def test_b07_tiny_deltas():
    """B07: σ=4, T=10000, δ near 1e-18, where sums of many rare losses once lost their digits; monotone in δ."""
    for rate, pairs in (
        (0.00033, ((1.1e-18, 0.067214), (1.13e-18, 0.067186))),
        (0.00038, ((1.1e-18, 0.077573), (1.13e-18, 0.077541))),
    ):
        found = []
        for target, value in pairs:
            interval = pld(Gaussian(4.0), delta=target, steps=10_000, sampling_rate=rate, width=1e-4)
            assert_near(interval, value, 1.1e-4)
            found.append(interval)
        assert found[0].lower > found[1].upper  # 4e-4 apart
    uppers = [
        pld(Gaussian(4.0), delta=d, steps=10_000, sampling_rate=0.00033).upper for d in (1e-30, 1e-18, 1e-10, 1e-4)
    ]
    assert uppers == sorted(uppers, reverse=True)


def test_b08_large_epsilon():
    """B08: ε=1000, q=0.01, T=100: σ = 0.06043 (Rényi needs 0.0653); one full-batch step: 0.0245818."""
    noise = calibrate("gaussian", epsilon=1000, delta=1e-5, steps=100, sampling_rate=0.01, accountant="pld")
    assert noise.noise_multiplier == approx(0.06043, 5e-4)
    rest = {"delta": 1e-5, "steps": 100, "sampling_rate": 0.01}
    assert epsilon(noise, accountant="cf", **rest).estimate == approx(1000, 3e-4)
    assert epsilon(Gaussian(0.0653), accountant="rdp", **rest).upper == approx(1000, 5e-3)
    noise = calibrate("gaussian", epsilon=1000, delta=1e-5, accountant="pld")
    assert noise.noise_multiplier == approx(0.0245818, 1e-3)
    assert noise.noise_multiplier >= 0.0245818 * (1 - 1e-6)


def test_b09_small_epsilon():
    """B09: ε=0.01, δ=1e-5, one step: σ = 243.7854."""
    noise = calibrate("gaussian", epsilon=0.01, delta=1e-5, accountant="pld")
    assert 243.7854 * (1 - 1e-6) <= noise.noise_multiplier <= 243.7854 * (1 + 1e-3)


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "delta", "value", "digits"),
    [
        pytest.param(3.0, 0.2, 50, 1 / 48000, 1.96081, 1e-5, id="B11"),
        pytest.param(1.54, 1024 / 50000, 1464, 1e-5, 2.3863, 5e-5, id="B25"),
        pytest.param(0.6, 1 / 806, 2501, 1e-5, 2.0461, 5e-4, id="B30"),
        pytest.param(1.0, 0.01, 1000, 1e-5, 1.8282, 5e-5, id="B72"),
    ],
)
def test_published_training_runs(sigma, rate, steps, delta, value, digits):
    """B11, B25, B30 and B72: the exact values of runs for which a Rényi bound was once printed, or none."""
    assert_near(pld(Gaussian(sigma), delta=delta, steps=steps, sampling_rate=rate, width=2e-5), value, digits + 2e-5)


def test_b13_calibration_never_overshoots():
    """B13: q=0.01, T=1000, δ=1e-5, ε=14: the ε of the returned σ is at most the target, and above 0.9999 of it."""
    settings_ = {"delta": 1e-5, "steps": 1000, "sampling_rate": 0.01, "accountant": "pld"}
    found = calibrate("gaussian", epsilon=14.0, **settings_)
    assert 14.0 * (1 - 1e-4) <= epsilon(found, **settings_).upper <= 14.0


def test_b23_no_sampling():
    """B23: q=1, σ=2, T=10, δ=1e-5: 7.511276."""
    assert_near(pld(Gaussian(2.0), delta=1e-5, steps=10, width=1e-5), 7.511276, 1.1e-5)


def test_b33_poisson_and_a_fixed_partition():
    """B33: σ=1: 100 Poisson steps at q=0.01 cost 0.7180, an epoch of fixed batches 4.3772 (one step at q=1)."""
    assert_near(pld(Gaussian(1.0), delta=1e-5, steps=100, sampling_rate=0.01), 0.7180, 5e-3)
    assert_near(pld(Gaussian(1.0), delta=1e-5, width=1e-5), 4.3772, 2e-5)


# ---- against other accountants ---------------------------------------------------------------------------------------


@given(
    noise=st.sampled_from(NOISES),
    log_scale=st.floats(-0.7, 1.5),
    log_rate=st.one_of(st.just(0.0), st.floats(-4, -0.05)),
    log_steps=st.floats(0, 3),
    log_delta=st.floats(-14, -2),
)
@settings(max_examples=8)
def test_intervals_overlap_the_second_opinion(noise, log_scale, log_rate, log_steps, log_delta):
    noise, rate, steps = noise.scaled(10**log_scale), 10**log_rate, int(10**log_steps)
    rest = {"delta": 10**log_delta, "steps": steps, "sampling_rate": rate, "dimension": 1}
    try:
        other = epsilon(noise, accountant="cf", **rest)
    except ValueError:  # it refuses what it cannot resolve
        assume(False)
    lower, estimate, upper = epsilon(noise, accountant="pld", **rest)
    assert lower <= estimate <= upper
    assert lower <= other.upper * (1 + 1e-9)
    assert upper >= other.lower * (1 - 1e-9)
    if other.lower > 1e-3:
        assert upper <= other.upper * 1.01


@given(mus=st.lists(st.floats(0.01, 2.0), min_size=2, max_size=3), log_delta=st.floats(-40, -1))
@settings(max_examples=12)
def test_different_gaussians_compose_to_the_exact_one(mus, log_delta):
    """μ² adds over releases: the closed privacy profile, for ε and for δ."""
    total = math.sqrt(sum(mu * mu for mu in mus))
    releases = [Release(Gaussian(1 / mu)) for mu in mus]
    exact = gaussian.epsilon_interval(math.exp(log_delta), total)
    found = compose_epsilon(releases, delta=math.exp(log_delta), accountant="pld")
    assert found.lower <= exact.upper
    assert found.upper >= exact.lower
    assert found.upper <= exact.upper * 1.002 + 1e-3 * total
    at = 1.3 * exact.upper + 0.01
    low, high = gaussian.log_delta_bounds(at, total)
    interval = compose_delta(releases, epsilon=at, accountant="pld")
    assert interval.lower <= math.exp(high)
    assert interval.upper >= math.exp(low)


def test_merging_and_order_do_not_matter():
    """The same composition written differently: identical where kinds merge, overlapping and narrow in any order."""
    parts = [Release(Gaussian(2.0), 50, 0.05), Release(Laplace(5.0), 3, 1.0, 1), Release(Gaussian(4.0), 20, 0.3)]
    whole = compose_epsilon(parts, delta=1e-6, accountant="pld")
    split = [*parts[:1] * 1, *parts[1:], dataclasses.replace(parts[0], steps=0)]
    assert compose_epsilon(split, delta=1e-6, accountant="pld") == whole
    halves = [dataclasses.replace(parts[0], steps=20), *parts[1:], dataclasses.replace(parts[0], steps=30)]
    assert compose_epsilon(halves, delta=1e-6, accountant="pld") == whole
    back = compose_epsilon(parts[::-1], delta=1e-6, accountant="pld")
    assert back.upper == approx(whole.upper, 1e-3)
    assert back.lower <= whole.upper
    assert whole.lower <= back.upper
    assert whole.upper - whole.lower <= 1e-3 * whole.upper


# ---- structure -------------------------------------------------------------------------------------------------------


@given(
    noise=st.sampled_from(NOISES),
    steps=st.integers(1, 100),
    rate=st.sampled_from([1.0, 0.3, 0.01]),
    exponent=st.floats(-12, -1),
)
@settings(max_examples=6)
def test_monotone_in_every_argument(noise, steps, rate, exponent):
    """Lower ends never pass the upper end of what is at least as large."""

    def ask(noise=noise, delta=10**exponent, steps=steps, rate=rate):
        return pld(noise, delta=delta, steps=steps, sampling_rate=rate)

    base = ask()
    assert base.lower <= ask(steps=steps + 1 + steps // 3).upper
    assert base.lower <= ask(delta=10**exponent / 3).upper
    assert ask(rate=0.7 * rate).lower <= base.upper
    assert ask(noise=noise.scaled(1.2)).lower <= base.upper


@given(noise=st.sampled_from(NOISES), a=st.integers(1, 60), b=st.integers(1, 60), rate=st.sampled_from([1.0, 0.1]))
@settings(max_examples=8)
def test_composition_costs_no_more_than_its_parts(noise, a, b, rate):
    """Basic composition: ε(a+b, 2δ) <= ε(a, δ) + ε(b, δ)."""
    at = lambda steps, d: pld(noise, delta=d, steps=steps, sampling_rate=rate)  # noqa: E731
    assert at(a + b, 2e-6).lower <= at(a, 1e-6).upper + at(b, 1e-6).upper


@pytest.mark.parametrize("width", [0.1, 1e-2, 1e-3, 1e-5])
def test_the_width_asked_for_is_reached(width):
    for noise in NOISES:
        interval = pld(noise, delta=1e-6, steps=100, sampling_rate=0.05, width=width)
        assert interval.upper - interval.lower <= width * interval.upper
        assert interval.lower <= pld(noise, delta=1e-6, steps=100, sampling_rate=0.05, width=1e-5).upper


@pytest.mark.parametrize(("scale", "steps"), [(10.0, 40), (0.5, 2)])
def test_pure_dp_ends_at_the_sum_of_largest_losses(scale, steps):
    """Laplace, δ → 0: ε = T/b, never above; at and beyond it δ = 0. Near it the top atom decides."""
    largest = steps / scale
    interval = pld(Laplace(scale), delta=1e-200, steps=steps)
    assert interval.upper == approx(largest, 1e-12)
    assert interval.upper >= largest
    assert interval.lower >= largest * (1 - 1e-3)
    assert delta(Laplace(scale), epsilon=largest * (1 + 1e-12), dimension=1, steps=steps, accountant="pld").upper == 0
    gap = 0.3 / scale  # no other loss comes this close: each step less than +1/b falls short continuously
    value = delta(Laplace(scale), epsilon=largest - gap, dimension=1, steps=steps, accountant="pld")
    assert value.upper >= 2.0**-steps * -math.expm1(-gap)
    one = delta(Laplace(scale), epsilon=1 / scale - gap, dimension=1, accountant="pld")
    exact = -math.expm1(-gap / 2)
    assert one.lower <= exact <= one.upper
    assert one.upper - one.lower <= 2e-3 * exact


def test_log_delta_and_epsilon_are_inverse_to_each_other():
    """δ(ε_lower) is at least δ, δ(ε_upper) at most δ, within the widths; down to δ = 1e-200."""
    for noise, steps, rate in ((Gaussian(1.2), 100, 0.05), (Laplace(4.0), 30, 1.0)):
        one = [Event(noise, 1.0, steps, rate, 1)]
        for target in (1e-3, 1e-60):
            lower, _, upper = PLD.epsilon(one, target, 1e-3)
            assert PLD.log_delta(one, lower, 1e-3)[2] >= math.log(target)
            assert PLD.log_delta(one, upper, 1e-3)[0] <= math.log(target)
            low, middle, high = PLD.log_delta(one, 0.9 * lower, 1e-3)
            assert math.log(target) <= high
            assert low <= middle <= high
    one = [Event(Gaussian(5.0), 1.0, 100, 1.0, 1)]
    low, _, high = PLD.log_delta(one, 60.0, 1e-3)
    exact = gaussian.log_delta_bounds(60.0, 2.0)
    assert exact[0] < -400
    assert low <= exact[1]
    assert exact[0] <= high
    assert high - low <= 1.0


def test_upper_ends_alone_and_rough_answers_agree_with_intervals():
    for noise, steps, rate in ((Gaussian(1.2), 100, 0.05), (Laplace(4.0), 30, 1.0), (Gaussian(0.8), 20_000, 2e-4)):
        one = [Event(noise, 1.0, steps, rate, 1)]
        interval = PLD.epsilon(one, 1e-6, 1e-3)
        assert interval.lower <= PLD.epsilon_upper(one, 1e-6, 1e-3) <= interval.upper * (1 + 1e-3)
        middle = interval.estimate
        alone = PLD.log_delta_upper(one, middle, 1e-3)
        low, _, high = PLD.log_delta(one, middle, 1e-3)
        assert low <= alone <= high + 1e-2
        if rate > 1e-3:  # the saddle point does not see rare losses
            assert PLD.log_delta_rough(one, middle) == pytest.approx(alone, abs=0.3)
            guess = rough_answer(one, EpsilonQuestion(math.log(1e-6), 1e-3))
            assert guess == pytest.approx(middle, rel=0.02)


def test_stopping_early_does_not_undercut():
    """`enough` only saves work: what is returned is still a bound of this direction."""
    one, question = [Event(Gaussian(1.2), 1.0, 100, 0.05, 1)], EpsilonQuestion(math.log(1e-6), 1e-3)
    lower, upper = refined(one, ADD, question)
    for enough in (0.5 * upper, 1.5 * upper):
        early = refined(one, ADD, question, enough=enough)
        assert early[0] <= upper
        assert early[1] >= lower
        assert refined_upper(one, ADD, question, enough=enough) >= lower


def test_the_lmo_interval_lies_below_the_published_bound():
    """In its domain the published bound is one for a single scalar release; composed losses are below T times it."""
    for target in (1e-10, 1e-5):
        assert pld(LMO, delta=target).upper < published_epsilon(LMO, delta=target)
    assert pld(LMO, delta=2e-10, steps=2).upper < 2 * published_epsilon(LMO, delta=1e-10)


# ---- replacing one record --------------------------------------------------------------------------------------------

SETTINGS = [(Gaussian(2.0), 100, 0.05), (Laplace(4.0), 20, 0.3), (GammaLaplace(4.0, 0.15), 10, 0.5)]


@pytest.mark.parametrize(("noise", "steps", "rate"), SETTINGS)
def test_replacing_costs_at_least_what_its_neighbours_attain(noise, steps, rate):
    """Upper ends above *remove* and *add* at shift 2; fixed size attains these, Poisson those at shift 1."""
    ask = lambda **change: pld(noise, delta=1e-6, steps=steps, sampling_rate=rate, **change)  # noqa: E731
    poisson = ask(adjacency="replace_one")
    fixed = ask(adjacency="replace_one", sampling="fixed_size")
    question = EpsilonQuestion(math.log(1e-6), 1e-3)
    pair = Event(noise, 2.0, steps, rate, 1)
    both = [refined([pair], direction, question) for direction in (REMOVE, ADD)]
    assert fixed.upper == poisson.upper
    assert fixed.upper >= max(lower for lower, _ in both)
    assert fixed.lower == pytest.approx(max(lower for lower, _ in both), rel=2e-3)
    half = max(refined([Event(noise, 1.0, steps, rate, 1)], direction, question)[0] for direction in (REMOVE, ADD))
    assert poisson.lower == pytest.approx(half, rel=2e-3)
    assert poisson.lower <= fixed.lower <= fixed.upper
    assert poisson.lower <= ask().upper  # removing a record is a replacement by nothing


def test_fixed_size_batches_of_everyone_are_not_sampled():
    for noise in (Gaussian(2.0), Laplace(4.0)):
        rest = {"delta": 1e-6, "steps": 10, "adjacency": "replace_one"}
        plain, fixed = pld(noise, **rest), pld(noise, sampling="fixed_size", **rest)
        assert fixed == plain
        nearly = pld(noise, sampling="fixed_size", sampling_rate=1 - 1e-9, **rest)
        assert nearly.upper == approx(plain.upper, 2e-3)
        assert nearly.lower == approx(plain.lower, 2e-3)


# ---- refusals and faults ---------------------------------------------------------------------------------------------


def test_noise_in_several_dimensions_is_refused():
    with pytest.raises(ValueError, match="one coordinate"):
        epsilon(Laplace(1.0), delta=1e-5, dimension=2, accountant="pld")
    assert epsilon(Gaussian(1.0), delta=1e-5, dimension=10**6, steps=3, accountant="pld").upper > 0


def test_a_faulty_accountant_is_found(monkeypatch):
    """`verify` asks the others: an interval 10 % off overlaps none of them."""
    honest = PrivacyLoss.epsilon
    for factor in (0.9, 1.1):

        def faulty(self, events, delta, relative_width, factor=factor):
            interval = honest(self, events, delta, relative_width)
            return type(interval)(*(factor * value for value in interval))

        monkeypatch.setattr(PrivacyLoss, "epsilon", faulty)
        with pytest.raises(AccountantsDisagree, match="do not overlap"):
            epsilon(Gaussian(2.0), delta=1e-5, steps=10, verify=True)
        with pytest.raises(AccountantsDisagree, match="pld"):
            epsilon(Laplace(2.0), delta=1e-5, steps=10, dimension=1, accountant="pld", verify=True)
    monkeypatch.undo()
    epsilon(Gaussian(2.0), delta=1e-5, steps=10, verify=True)


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_extremes_give_an_interval(noise):
    """Tiny and huge noise, one step and 10^6, rates near 0 and 1: 0 <= lower <= upper, and no error."""
    for factor, steps, rate, target in (
        (1e-2, 1, 0.5, 1e-5),
        (1e3, 10**6, 1.0, 1e-5),
        (1.0, 10**6, 1e-7, 1e-9),
        (10.0, 20, 1 - 1e-12, 1e-30),
    ):
        lower, estimate, upper = pld(noise.scaled(factor), delta=target, steps=steps, sampling_rate=rate)
        assert 0 <= lower <= estimate <= upper
        assert not np.isnan(upper)
