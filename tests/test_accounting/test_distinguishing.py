"""`optnoise check`: the game stays below what is proven, and planted faults contradict it."""

import functools
import json
import math

import numpy as np
import pytest
import torch
from commands import run_command
from optnoise.accounting import Release, distinguishing_game, epsilon, epsilon_from_scores
from optnoise.accounting.empirical import epsilon_shown, rate_at_least, rate_at_most
from optnoise.mechanisms import Gaussian, Laplace, SphericalGamma, TruncatedLaplace, parse
from scipy import stats

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")


def play(noise, *, delta=1e-3, seed=0, of=None, **options):
    """The game on `noise`; `of` is the noise that is really drawn."""
    generator = torch.Generator().manual_seed(seed)
    names = ("steps", "sampling_rate", "dimension", "adjacency", "sampling")
    release = Release(noise, **{name: options.pop(name) for name in names if name in options})
    sampler = None if of is None else lambda shape: of.sample(shape, generator=generator, dtype=torch.float64)
    return distinguishing_game(release, delta=delta, generator=generator, sampler=sampler, **options)


# ---- the bound -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 7, 200])
def test_confidence_limits_of_rates_are_the_exact_binomial_ones(trials):
    """By their definition: at the lower limit, that many successes or more have exactly the failure probability."""
    for k in range(trials + 1):
        low, high = float(rate_at_least(k, trials, 0.01)), float(rate_at_most(k, trials, 0.01))
        assert low == 0 if k == 0 else stats.binom.sf(k - 1, trials, low) == pytest.approx(0.01)
        assert high == 1 if k == trials else stats.binom.cdf(k, trials, high) == pytest.approx(0.01)


def test_randomised_response_is_covered_with_the_stated_confidence():
    """ε = log 3, δ = 0: the bound may exceed it in at most 20 % of games (it is near that, not near 0), here of 400."""
    rng, above = np.random.default_rng(0), 0
    for _ in range(400):
        present, absent = (rng.random(200) < p for p in (0.75, 0.25))
        above += epsilon_from_scores(present, absent, delta=0.0, confidence=0.8).lower > math.log(3)
    assert 0 < above <= 400 * 0.2


@pytest.mark.parametrize("above", [True, False])
def test_both_sides_of_the_threshold_are_tested(above):
    """A set that only one law reaches: present above 1 with probability 1/2, or absent below 1."""
    rng = np.random.default_rng(0)
    common, rare = rng.random(4000), rng.random(4000) + np.where(rng.random(4000) < 0.5, 2.0, 0.0)
    scores = (rare, common) if above else (-common, -rare)
    found = epsilon_from_scores(*scores, delta=1e-3, confidence=0.99)
    assert found.above is above
    assert 0.47 < found.hits / 2000 < 0.53
    assert found.alarms == 0
    assert found.lower == float(epsilon_shown(found.hits, 2000, 0, 2000, delta=1e-3, confidence=0.99)) > 4.5


def test_equal_laws_show_nothing_and_infinite_scores_are_allowed():
    rng = np.random.default_rng(0)
    assert epsilon_from_scores(rng.random(9999), rng.random(9999), delta=0.0, confidence=0.99).lower < 0.02
    certain = epsilon_from_scores(np.full(100, np.inf), np.full(100, -np.inf), delta=0.0, confidence=0.99)
    assert certain.lower > 1.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [1.0], 0.1, 0.9), r"expected present to be scores of shape \(n,\), n >= 1, got shape \(0,\)"),
        (([1.0, 2.0], [0.0, math.nan], 0.1, 0.9), "expected absent to be numbers, got nan at index 1"),
        (([1.0, 2.0], [0.0, 1.0], 1.0, 0.9), "expected 0 <= delta < 1, got delta=1.0"),
        (([1.0, 2.0], [0.0, 1.0], 0.1, 1.0), "expected 0 < confidence < 1"),
    ],
)
def test_bad_scores_are_refused_by_name(arguments, message):
    present, absent, delta, confidence = arguments
    with pytest.raises(ValueError, match=message):
        epsilon_from_scores(present, absent, delta=delta, confidence=confidence)


# ---- right noise ---------------------------------------------------------------------------------------------------

RIGHT = [
    (Gaussian(1.0), {}),
    (Gaussian(2.0), {"steps": 10, "dimension": 50}),
    (Gaussian(1.0), {"steps": 20, "sampling_rate": 0.1}),
    (Gaussian(1.0), {"adjacency": "replace_one"}),
    (Gaussian(1.0), {"adjacency": "replace_one", "sampling_rate": 0.2, "steps": 5}),
    (Gaussian(1.0), {"adjacency": "replace_one", "sampling_rate": 0.2, "steps": 5, "sampling": "fixed_size"}),
    (Laplace(2.0), {"dimension": 1}),
    (Laplace(2.0), {"dimension": 30, "steps": 2}),
    (LMO, {"dimension": 1, "steps": 3, "sampling_rate": 0.5}),
    (TruncatedLaplace(1.0, 8.0), {"dimension": 1, "delta": 1e-2}),
    (SphericalGamma.l2_mechanism(20, 0.5), {}),
]


@pytest.mark.parametrize(("noise", "question"), RIGHT, ids=lambda value: str(value)[:60])
def test_right_noise_is_consistent_and_the_game_comes_near(noise, question):
    result = play(noise, draws=30_000, **question)
    assert result.verdict == "consistent"
    assert not result.contradicted
    assert 0.15 * result.proven.upper < result.lower <= result.proven.upper


def test_the_stated_confidence_holds_over_many_games():
    """Against the exact ε of Laplace noise, which its two-valued loss nearly attains: at most 20 % false alarms."""
    above = sum(play(Laplace(1.0), dimension=1, draws=400, confidence=0.8, seed=s).contradicted for s in range(200))
    assert above <= 40


def test_a_game_is_repeatable():
    assert play(Laplace(2.0), dimension=9, draws=2000, seed=5) == play(Laplace(2.0), dimension=9, draws=2000, seed=5)


# ---- planted faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "question"),
    [
        (Gaussian(1.0), {}),
        (Gaussian(1.0), {"steps": 10, "sampling_rate": 0.1}),
        (Laplace(2.0), {"dimension": 20}),
        (LMO, {"dimension": 1}),
        (SphericalGamma.l2_mechanism(20, 0.5), {}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_half_the_noise_is_caught(noise, question):
    result = play(noise, of=noise.scaled(0.5), draws=60_000, **question)
    assert result.verdict == "CONTRADICTION"
    assert result.lower > result.proven.upper


def test_a_noise_whose_own_sampler_draws_half_is_caught():
    class Halved(Laplace):
        family = "halved_laplace"

        def sample(self, shape, **options):
            return Laplace(self.scale).sample(shape, **options) / 2

    assert play(Halved(2.0), dimension=1, draws=20_000).contradicted


@pytest.mark.parametrize(
    ("noise", "draws"), [(LMO.scaled(0.5), 12_000), (Laplace(4.0), 100_000)], ids=["lmo", "laplace"]
)
def test_the_scalar_epsilon_claimed_in_dimension_100_is_caught(noise, draws):
    """The bound for d = 100 holds in the same game; in one dimension, the claim does."""
    claim = epsilon(noise, delta=1e-3, dimension=1).upper
    wide = play(noise, dimension=100, claim=claim, draws=draws)
    assert wide.contradicted
    assert wide.lower > 1.1 * claim
    assert wide.lower <= wide.proven.upper
    assert wide.by_direction["one coordinate"] <= claim
    assert len(wide.by_direction) == 4
    assert not play(noise, dimension=1, claim=claim, draws=draws).contradicted


def test_a_fixed_size_batch_under_a_poisson_claim_is_caught():
    """A record pushes another one out of a batch of fixed size: the sum moves by 2C, not by C."""
    question = {"steps": 10, "sampling_rate": 0.1, "draws": 50_000}
    assert play(Gaussian(1.0), **question).verdict == "consistent"
    assert play(Gaussian(1.0), batches="fixed_size", **question).verdict == "CONTRADICTION"
    replaced = {"adjacency": "replace_special", **question}
    assert play(Gaussian(1.0), batches="fixed_size", **replaced).verdict == "consistent"  # pushes nobody out


def test_shuffled_epochs_are_scored_by_their_own_likelihood():
    """One epoch without noise to speak of: the record is certain to be seen, so ε is as large as the draws can show."""
    quiet = play(Gaussian(0.05), steps=4, sampling_rate=0.25, batches="shuffled", claim=3.0, draws=4000)
    assert quiet.lower == pytest.approx(float(epsilon_shown(2000, 2000, 0, 2000, delta=1e-3, confidence=0.999)))
    loud = play(Gaussian(2.0), steps=4, sampling_rate=0.25, batches="shuffled", draws=50_000)
    one_release = epsilon(Gaussian(2.0), delta=1e-3).upper  # each record is used once in an epoch
    assert loud.lower <= one_release


def test_a_claim_can_be_tested_where_nothing_is_proven():
    unproven = SphericalGamma(5, 5.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="power"):
        play(unproven, draws=1000)
    result = play(unproven, draws=20_000, claim=0.01)
    assert result.proven is None
    assert result.contradicted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "expected a release that happens, got steps=0"),
        ({"claim": -1.0}, "expected claim >= 0"),
        ({"draws": 10}, "expected draws >= 100, got draws=10"),
        ({"batches": "sorted"}, "expected batches to be one of poisson, fixed_size, shuffled"),
        ({"batches": "shuffled", "sampling_rate": 0.3, "steps": 3}, "expected whole epochs"),
        ({"batches": "shuffled", "sampling_rate": 0.5, "steps": 3}, "expected whole epochs"),
        ({"batches": "shuffled", "adjacency": "replace_one"}, "expected adjacency=add_or_remove_one"),
        ({"confidence": 1.0}, "expected 0 < confidence < 1"),
    ],
)
def test_bad_games_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        play(Gaussian(1.0), **options)


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys):
    return functools.partial(run_command, capsys, "check")


def test_the_command_prints_a_verdict_and_repeats_itself(run):
    call = ("laplace:scale=4", "--delta", "1e-3", "--dimension", "100", "--draws", "20000")
    code, out, _ = run(*call, "--json")
    first = json.loads(out)
    assert (code, first["verdict"]) == (0, "consistent")
    assert first["shown"] <= first["proven"]["upper"]
    again = json.loads(run(*call, "--seed", str(first["seed"]), "--json")[1])
    assert again == first


def test_the_command_fails_on_a_contradiction(run):
    call = ("laplace:scale=4", "--delta", "1e-3", "--dimension", "100", "--claim", "0.25", "--seed", "1")
    code, out, err = run(*call, "--draws", "40000")
    assert code == 1
    assert err == ""
    assert "CONTRADICTION" in out
    assert "claimed: epsilon <= 0.25" in out


def test_the_documents_have_no_infinities(run):
    for noise, dimension in (("truncated_laplace:scale=1,bound=3", "1"), ("laplace:scale=9", "inf")):
        code, out, _ = run(noise, "--delta", "1e-3", "--dimension", dimension, "--draws", "1000", "--json")
        found = json.loads(out, parse_constant=pytest.fail)
        assert code == 0
        assert (found["proven"]["upper"] == "inf", found["dimension"] == "inf") == (
            dimension == "1",
            dimension == "inf",
        )


def test_the_command_explains_what_it_lacks(run):
    code, _, err = run("laplace:scale=4", "--delta", "1e-3")
    assert code == 2
    assert "expected a dimension for laplace noise" in err
