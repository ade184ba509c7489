"""`epsilon`, `delta`, composition: reference cases, monotonicity, refusals."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optnoise.accounting import AccountantsDisagree, EpsilonInterval, Release, compose_epsilon, delta, epsilon
from optnoise.accounting.api import _check_overlap
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, parse
from references import approx, reference_cases, reference_mechanism

LMO = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")
NOISES = [Gaussian(1.2), Laplace(1.5), GammaLaplace(4.0, 0.3), LMO]


@pytest.mark.parametrize("case", reference_cases(), ids=lambda case: case["name"])
def test_reference_cases_are_inside(case):
    """A correct interval overlaps the bracket; a correct upper end is never below its lower end."""
    value = epsilon(
        reference_mechanism(case),
        delta=case["delta"],
        steps=case["steps"],
        sampling_rate=case["sampling_rate"],
        dimension=1,
        verify=True,
    )
    assert value.lower <= case["eps_upper"]
    assert value.upper >= case["eps_lower"]
    if case["steps"] == 1 or (case["sampling_rate"] == 1 and case["mechanism"]["type"] == "gaussian"):
        assert value.upper <= case["eps_upper"] * (1 + 1e-8)  # exact here


def test_b21_no_steps_no_loss():
    """B21: T=0 gives ε=0 and δ=0, without a warning."""
    assert epsilon(Gaussian(1.0), delta=1e-5, steps=0) == (0, 0, 0)
    assert delta(Gaussian(1.0), epsilon=1.0, steps=0) == (0, 0, 0)
    assert epsilon(Laplace(1.0), delta=1e-5, sampling_rate=0.0, dimension=3) == (0, 0, 0)


@given(
    noise=st.sampled_from(NOISES),
    steps=st.integers(1, 200),
    rate=st.sampled_from([1.0, 0.3, 0.01]),
    exponent=st.floats(-12, -1),
)
@settings(max_examples=25)
def test_monotone_in_every_argument(noise, steps, rate, exponent):
    def ask(**change):
        return epsilon(
            change.get("noise", noise),
            delta=change.get("delta", 10**exponent),
            steps=change.get("steps", steps),
            sampling_rate=change.get("rate", rate),
            dimension=1,
            accountant="rdp",
        ).upper

    base, slack = ask(), 1 + 1e-3  # the search over orders ends within a thousandth
    assert base <= ask(steps=2 * steps) * slack
    assert base <= ask(delta=10**exponent / 10) * slack
    assert ask(rate=rate / 2) <= base * slack
    assert ask(noise=noise.scaled(1.5)) <= base * slack


@given(noise=st.sampled_from(NOISES), rate=st.sampled_from([1.0, 0.1]), steps=st.integers(1, 50))
@settings(max_examples=25)
def test_accountants_overlap_and_lower_is_below_upper(noise, rate, steps):
    value = epsilon(noise, delta=1e-6, steps=steps, sampling_rate=rate, dimension=1, verify=True)
    assert 0 <= value.lower <= value.estimate <= value.upper


def test_composition_of_kinds():
    """Two Gaussians without sampling are one with added μ²; splitting the steps of one kind changes nothing."""
    mixed = compose_epsilon([Release(Gaussian(3.0), 4), Release(Gaussian(2.0), 1)], delta=1e-6)
    sigma = (4 / 9 + 1 / 4) ** -0.5
    assert mixed.upper == approx(epsilon(Gaussian(sigma), delta=1e-6).upper, 1e-9)
    split = [Release(LMO, 3, 0.1, 50), Release(LMO, 4, 0.1, 50)]
    whole = epsilon(LMO, delta=1e-6, steps=7, sampling_rate=0.1, dimension=50)
    assert compose_epsilon(split, delta=1e-6) == whole


def test_mixed_noises_cost_at_least_each_part_and_at_most_their_sum():
    parts = [Release(Gaussian(2.0), 10, 0.1), Release(Laplace(3.0), 5, dimension=1)]
    together = compose_epsilon(parts, delta=1e-6).upper
    single = [compose_epsilon([part], delta=0.5e-6, accountant="rdp").upper for part in parts]
    assert max(compose_epsilon([part], delta=1e-6, accountant="rdp").upper for part in parts) <= together
    assert together <= sum(single)


def test_lmo_interval_lies_below_the_published_bound_in_its_domain():
    from optnoise.accounting.published import published_epsilon

    assert epsilon(LMO, delta=1e-10, dimension=1).upper < published_epsilon(LMO, delta=1e-10)


def test_intervals_that_do_not_overlap_raise():
    good, wrong = EpsilonInterval(1.0, 1.1, 1.2), EpsilonInterval(0.5, 0.6, 0.7)
    with pytest.raises(AccountantsDisagree, match="do not overlap"):
        _check_overlap("a", good, "b", wrong)
    _check_overlap("a", good, "b", EpsilonInterval(0.0, 5.0, 5.0))


BASE = {"delta": 1e-5, "dimension": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, "0 < delta < 1, got delta=0.0"),
        ({"delta": 1.0}, "delta"),
        ({"delta": float("nan")}, "delta=nan"),
        ({"delta": "small"}, "delta='small'"),
        ({"steps": -1}, "steps >= 0, got steps=-1"),
        ({"steps": 1.5}, "steps to be an integer"),
        ({"steps": math.inf}, "steps"),
        ({"sampling_rate": 1.1}, "0 <= sampling_rate <= 1"),
        ({"sampling_rate": -0.1}, "sampling_rate"),
        ({"sampling_rate": float("nan")}, "sampling_rate=nan"),
        ({"dimension": 0}, "dimension >= 1"),
        ({"dimension": 2.5}, "dimension to be an integer"),
        ({"dimension": -math.inf}, "dimension"),
        ({"dimension": None}, "expected a dimension for laplace"),
        ({"adjacency": "swap"}, "adjacency to be one of add_or_remove_one"),
        ({"sampling": "fixed_size", "sampling_rate": 0.1}, "expected adjacency=replace_one with sampling=fixed_size"),
        ({"sampling": "shuffled", "sampling_rate": 0.1}, "no proven amplification"),
        ({"sampling": "systematic"}, "sampling to be one of poisson, fixed_size"),
        ({"accountant": "clt"}, "accountant to be one of best, exact, pld, rdp, cf"),
        ({"accountant": "exact", "steps": 2}, "one release of one coordinate"),
        ({"relative_width": 0}, "relative_width > 0"),
    ],
)
def test_bad_arguments_name_argument_value_and_rule(change, message):
    with pytest.raises(ValueError, match=message):
        epsilon(Laplace(1.0), **{**BASE, **change})


def test_other_bad_arguments():
    with pytest.raises(ValueError, match="mechanism to be a noise"):
        epsilon("gaussian", delta=1e-5)
    with pytest.raises(ValueError, match="epsilon >= 0"):
        delta(Gaussian(1.0), epsilon=-1)
    with pytest.raises(ValueError, match="one adjacency"):
        compose_epsilon([Release(Gaussian(1.0)), Release(Gaussian(1.0), adjacency="replace_one")], delta=1e-5)
