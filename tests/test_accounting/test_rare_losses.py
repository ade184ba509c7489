"""Bulk and single jumps against everything on one lattice, with a threshold so low that two jumps matter."""

import dataclasses

import pytest
from optnoise.accounting.event import Event
from optnoise.accounting.pld.questions import DeltaQuestion
from optnoise.accounting.pld.refinement import refined
from optnoise.accounting.pld.ways import RareWay
from optnoise.mechanisms import Gaussian

EVENT = Event(Gaussian(0.8), 1.0, 400, 0.01, None)
EPSILON = 0.5


@pytest.fixture(scope="module")
def truth():
    lower, upper = refined([EVENT], "remove", DeltaQuestion(EPSILON, 1e-4))
    assert upper - lower < 1e-3
    return lower, upper


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.3])
def test_both_ends_hold_although_two_jumps_are_likely(truth, threshold):
    way = RareWay([EVENT], "remove", DeltaQuestion(EPSILON, 1e-3))
    way.threshold = threshold
    step = way.first_step()
    upper, lower = way.law(step, upper=True), way.law(step, upper=False)
    assert float(upper.jumps[0].mass.sum()) > 0.05, "jumps are meant to be frequent here"
    assert lower.log_delta(EPSILON) <= truth[1]
    assert upper.log_delta(EPSILON) >= truth[0]


def test_two_jumps_are_what_one_jump_leaves_out(truth):
    """Without its last term the upper end falls below the truth: the term is needed, and the test above can fail."""
    way = RareWay([EVENT], "remove", DeltaQuestion(EPSILON, 1e-3))
    way.threshold = 0.1
    law = way.law(way.first_step(), upper=True)
    assert dataclasses.replace(law, more=0.0).log_delta(EPSILON) < truth[0]
