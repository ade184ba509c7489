"""Lower bounds on ε from one run, from losses and from batches: they hold where ε is known, and they are not empty."""

import math

import numpy as np
import pytest
from optnoise.accounting import epsilon
from optnoise.finetune.audit import (
    check_batches,
    epsilon_from_guesses,
    epsilon_from_one_run,
    membership_inference,
    tail_bound,
)
from optnoise.mechanisms import Gaussian
from scipy import stats

# ---- the theorem ---------------------------------------------------------------------------------------------------


def published(correct, guesses, canaries, *, epsilon, delta):
    """Theorem 5.2 of arXiv 2305.08846."""
    p = 1 / (1 + math.exp(-epsilon))
    tail = stats.binom.sf(np.arange(-1, correct), guesses, p)  # P(B >= 0 … correct)
    i = np.arange(1, correct + 1)
    return tail[-1] + 2 * canaries * delta * max((tail[correct - i] - tail[-1]) / i)


@pytest.mark.parametrize("guesses", [1, 2, 5, 10, 50, 200, 1000])
@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 3.0])
def test_the_bound_is_the_binomial_one_and_at_most_the_published_one(guesses, value):
    p = 1 / (1 + math.exp(-value))
    compared = 0
    for correct in range(1, guesses + 1):
        tail = stats.binom.sf(correct - 1, guesses, p)
        assert tail_bound(correct, guesses, 1000, epsilon=value, delta=0.0) == pytest.approx(tail)
        if 1e-3 <= tail <= 0.5:
            compared += 1
            ours = tail_bound(correct, guesses, 1000, epsilon=value, delta=1e-6)
            assert tail < ours <= published(correct, guesses, 1000, epsilon=value, delta=1e-6)
    assert compared or guesses <= 10


def test_randomised_response_attains_the_bound_without_delta():
    """The bound fails in at most 5 % of runs, and is not far from ε in the others."""
    rng, true = np.random.default_rng(0), 1.0
    found = []
    for _ in range(400):
        bits = rng.random(300) < 0.5
        told = bits ^ (rng.random(300) < 1 / (1 + math.exp(true)))
        found.append(epsilon_from_one_run(told, bits, delta=0.0, confidence=0.95, guesses=[(150, 150)]).lower)
    assert np.mean(np.array(found) > true) <= 0.05
    assert np.mean(found) > 0.6 * true


# Mechanisms on m = 20 bits that use up their δ, and their auditors: (probability of the output, right guesses).


def _answers(rng, runs, epsilon):
    return rng.random((runs, 20)) < 1 / (1 + math.exp(-epsilon))


def _tell_one(rng, runs, epsilon, delta):
    """Each bit: told as it is with probability δ, else by randomised response. Told bits are guessed first, r = 10."""
    told = rng.random((runs, 20)) < delta
    return np.sort(np.where(told, 2, _answers(rng, runs, epsilon)), axis=1)[:, ::-1], 10, told.sum(axis=1)


def _tell_all(rng, runs, epsilon, delta):
    """All bits are told with probability δ, else none: (ε, δ)-private with randomised response."""
    everything = rng.random((runs, 1)) < delta
    return np.where(everything, 1, _answers(rng, runs, epsilon)), 20, None


@pytest.mark.parametrize("spend", [_tell_one, _tell_all])
@pytest.mark.parametrize("delta", [0.01, 0.05])
def test_the_tail_bound_holds_where_delta_is_used_up(spend, delta):
    rng, runs, value = np.random.default_rng(1), 200_000, 0.5
    answers, guesses, told = spend(rng, runs, value, delta)
    if told is None:
        right = answers.sum(axis=1)
    else:  # the auditor guesses what it was told, and any others for the rest
        known = np.minimum(told, guesses)
        right = known + rng.binomial(guesses - known, 1 / (1 + math.exp(-value)))
    without_delta = []
    for correct in range(guesses + 1):
        rate = np.mean(right >= correct)
        slack = 4 * math.sqrt(max(rate, 1 / runs) / runs)
        assert rate <= tail_bound(correct, guesses, 20, epsilon=value, delta=delta) + slack
        without_delta.append(rate <= tail_bound(correct, guesses, 20, epsilon=value, delta=0.0) + slack)
    assert not all(without_delta)  # the second term is needed


@pytest.mark.parametrize("delta", [0.001, 0.02, 0.5])
@pytest.mark.parametrize("bits", [2, 9, 40])
def test_a_mechanism_that_tells_the_parity_is_bounded_exactly(bits, delta):
    """With probability δ it tells the parity of all bits, which is (0, δ)-private; guesses of that parity are all right
    whenever all but one are: the wrong ones are even in number. No simulation: both sides are sums."""
    wrong, rest = np.arange(bits), stats.binom.pmf(np.arange(bits), bits - 1, 0.5)
    above = 0
    for correct in range(bits + 1):
        blind = stats.binom.sf(correct - 1, bits, 0.5)
        told = rest[wrong + wrong % 2 <= bits - correct].sum()
        exact = (1 - delta) * blind + delta * told
        above += exact > blind * (1 + 1e-9)
        assert exact <= tail_bound(correct, bits, bits, epsilon=0.0, delta=delta) + 1e-12
    assert above


@pytest.mark.parametrize(("noise", "delta"), [(2.0, 1e-5), (1.0, 1e-5), (0.5, 1e-4)])
def test_the_gaussian_mechanism_stays_below_its_proven_epsilon(noise, delta):
    """Each canary shifts a coordinate of its own: in at least 95 % of runs, here of 100."""
    rng, proven = np.random.default_rng(3), epsilon(Gaussian(noise), delta=delta)
    found = []
    for _ in range(100):
        bits = rng.random(1000) < 0.5
        scores = bits + noise * rng.standard_normal(1000)
        found.append(epsilon_from_one_run(scores, bits, delta=delta, confidence=0.95).lower)
    assert np.mean(np.array(found) > proven.lower) <= 0.05
    assert np.median(found) > 0.15 * proven.upper


def test_useless_scores_show_nothing():
    """Trying seven numbers of guesses costs no confidence: fair coins are accused in at most 5 % of runs."""
    rng = np.random.default_rng(4)
    found = []
    for _ in range(300):
        bits = rng.random(200) < 0.5
        found.append(epsilon_from_one_run(rng.random(200), bits, delta=0.0, confidence=0.95).lower)
    assert np.mean(np.array(found) > 0) <= 0.05


def test_the_bound_falls_with_confidence_delta_and_wrong_guesses():
    def bound(correct=95, delta=1e-5, confidence=0.95, canaries=200):
        return epsilon_from_guesses(correct, 100, canaries, delta=delta, confidence=confidence)

    assert bound(100) > bound(95) > bound(80) > bound(55) == 0.0
    assert bound(delta=0.0) > bound(delta=1e-4) > bound(delta=1e-3)
    assert bound(confidence=0.5) > bound(confidence=0.95) > bound(confidence=0.999)
    assert bound(canaries=100) > bound(canaries=100_000)
    assert bound(100, delta=0.0) == pytest.approx(math.log(0.05**0.01 / (1 - 0.05**0.01)))  # p^100 = 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": [1.0, 2.0, 3.0]}, r"one shape \(m,\)"),
        ({"included": [1, 0]}, "included of int64"),
        ({"scores": [1.0, math.nan]}, "got nan"),
        ({"guesses": [(2, 1)]}, "expected 1 <= IN"),
        ({"guesses": [(0, 0)]}, "expected 1 <= IN"),
        ({"guesses": []}, "at least one pair"),
        ({"delta": 1.0}, "expected 0 <= delta < 1"),
        ({"confidence": 0.0}, "expected 0 < confidence < 1"),
    ],
)
def test_bad_one_run_arguments_are_refused(arguments, message):
    good = {"scores": [1.0, 2.0], "included": [True, False], "delta": 0.0, "confidence": 0.9}
    with pytest.raises(ValueError, match=message):
        epsilon_from_one_run(**{**good, **arguments})


def test_more_correct_than_guessed_is_refused():
    with pytest.raises(ValueError, match="expected correct <= guesses <= canaries"):
        epsilon_from_guesses(5, 4, 10, delta=0.0, confidence=0.9)


# ---- membership inference ------------------------------------------------------------------------------------------


def test_membership_rates_cover_the_true_ones():
    """Losses normal at 0 for members, at 1 for others: the rates of the chosen threshold are known."""
    rng, missed = np.random.default_rng(5), 0
    for _ in range(200):
        result = membership_inference(rng.normal(0, 1, 400), rng.normal(1, 1, 400), delta=1e-3, confidence=0.8)
        true = stats.norm.cdf(result.threshold), stats.norm.cdf(result.threshold - 1)
        rates = result.true_positive_rate, result.false_positive_rate
        missed += any(not low <= rate <= high for (low, high), rate in zip(rates, true, strict=True))
        assert result.advantage <= rates[0].upper
    assert missed <= 200 * 0.2


def test_membership_of_independent_runs_stays_below_the_proven_epsilon():
    rng, proven = np.random.default_rng(6), epsilon(Gaussian(1.0), delta=1e-3).upper
    found = [membership_inference(rng.normal(0, 1, 4000), rng.normal(1, 1, 4000), delta=1e-3).lower for _ in range(50)]
    assert max(found) <= proven
    assert min(found) > 0.2 * proven
    same = membership_inference(rng.normal(0, 1, 999), rng.normal(0, 1, 999), delta=1e-3)
    assert (same.lower, same.advantage) == (0.0, 0.0) or same.lower < 0.3


def test_bad_losses_are_refused_by_name():
    with pytest.raises(ValueError, match="expected other_losses to be two numbers or more"):
        membership_inference([1.0, 2.0], [math.nan, 1.0], delta=1e-3)


# ---- batches -------------------------------------------------------------------------------------------------------


def poisson(rng, records, rate, steps):
    return [np.flatnonzero(rng.random(records) < rate) for _ in range(steps)]


@pytest.mark.parametrize(("records", "rate", "steps"), [(100, 0.1, 60), (1000, 0.02, 40), (20, 0.5, 80), (10, 1.0, 5)])
def test_poisson_batches_are_accused_no_more_often_than_stated(records, rate, steps):
    rng = np.random.default_rng(7)
    accused = [
        check_batches(
            poisson(rng, records, rate, steps), dataset_size=records, sampling_rate=rate, confidence=0.8
        ).contradicted
        for _ in range(200)
    ]
    assert np.mean(accused) <= 0.2


def _fixed(rng):
    return [rng.choice(100, 10, replace=False) for _ in range(60)]


def _shuffled(rng):
    return [part for _ in range(6) for part in rng.permutation(100).reshape(10, 10)]


def _sticky(rng):
    batches = poisson(rng, 100, 0.1, 30)
    return [batch for batch in batches for _ in range(2)]


def _favourites(rng):
    return [np.flatnonzero(rng.random(100) < np.where(np.arange(100) < 50, 0.19, 0.01)) for _ in range(60)]


def _more(rng):
    return poisson(rng, 100, 0.15, 60)


@pytest.mark.parametrize(
    ("draw", "finding"),
    [
        (_fixed, "batch sizes"),
        (_shuffled, "draws of a record"),
        (_shuffled, "drawn twice in a row"),
        (_sticky, "drawn twice in a row"),
        (_favourites, "draws of a record"),
        (_more, "inclusions"),
    ],
)
def test_other_batches_are_caught(draw, finding):
    check = check_batches(draw(np.random.default_rng(8)), dataset_size=100, sampling_rate=0.1)
    assert check.verdict == "CONTRADICTION"
    assert check.p_values[finding] < 1e-4


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([[0, 1]], "expected two batches or more"),
        ([[0, 0], [1]], r"batches\[0\] repeats one"),
        ([[0], [10]], "expected indices from 0 to 9"),
        ([[0], [0.5]], r"expected batches\[1\] to be indices"),
    ],
)
def test_bad_batches_are_refused(batches, message):
    with pytest.raises(ValueError, match=message):
        check_batches(batches, dataset_size=10, sampling_rate=0.1)
