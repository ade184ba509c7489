"""A lower bound on ε from draws: an attack's rates at their Clopper–Pearson ends.

If a mechanism is (ε, δ)-private, P(S) <= e^ε·Q(S) + δ for every set S of outputs and both orders of two neighbours'
laws P, Q. So ε >= log((P(S) − δ)/Q(S)) wherever P(S) > δ, and that is what is shown if P(S) is at least its lower and
Q(S) at most its upper confidence limit. Each of the two (Clopper and Pearson 1934: exact for independent trials) fails
with probability at most half of 1 − confidence, hence both hold with at least `confidence`.

S is {score above a threshold} or {score not above it}. The set is chosen on one half of the draws and judged on the
other, so choosing costs no confidence. Any score is allowed; the likelihood ratio is the best one (Neyman, Pearson).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from ..mechanisms import _validate

Array = NDArray[np.float64]

_RANKS = 160  # candidate thresholds are at about so many ranks from each end
_STRICT = 1e-5  # share of the failure probability at which rates are taken when a test is chosen
_NEAR = 1e-9  # relative distance of thresholds from scores: their last bits tell draws apart, but not the noise's law


class EmpiricalEpsilon(NamedTuple):
    """ε >= `lower` is shown by the test {score above `threshold`} if `above`, else {score not above it}.

    `hits` of `present` and `alarms` of `absent` judged draws fell into the set if `above`; else the other way round:
    `hits` of `absent`, `alarms` of `present`. `lower` is −inf where nothing is shown.
    """

    lower: float
    threshold: float
    above: bool
    hits: int
    alarms: int


def rate_at_least(successes: ArrayLike, trials: int, failure: float) -> Array:
    """Clopper–Pearson: the rate below which so many `successes` have probability `failure` at most; same shape."""
    k = np.asarray(successes, dtype=np.float64)
    return np.where(k > 0, stats.beta.ppf(failure, np.maximum(k, 1), trials - k + 1), 0.0)


def rate_at_most(successes: ArrayLike, trials: int, failure: float) -> Array:
    """Clopper–Pearson: the rate above which so few `successes` have probability `failure` at most; same shape."""
    k = np.asarray(successes, dtype=np.float64)
    return np.where(k < trials, stats.beta.isf(failure, k + 1, np.maximum(trials - k, 1)), 1.0)


def epsilon_shown(
    hits: ArrayLike, hit_trials: int, alarms: ArrayLike, alarm_trials: int, *, delta: float, confidence: float
) -> Array:
    """log((P − δ)/Q) with P at its lower, Q at its upper confidence limit; −inf where P <= δ. Broadcast shape."""
    failure = (1 - confidence) / 2
    power, error = rate_at_least(hits, hit_trials, failure), rate_at_most(alarms, alarm_trials, failure)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(power - delta, 0.0)) - np.log(error)


class ThresholdTest(NamedTuple):
    """The set {score > threshold} if `above`, else {score <= threshold}, and the ε that the choosing draws show."""

    threshold: float
    above: bool
    expected: float


def choose_test(present: ArrayLike, absent: ArrayLike, *, delta: float, confidence: float) -> ThresholdTest:
    """The test that shows most on these draws, scores (n,) and (m,); what it shows on them is no bound.

    Sets of few draws look better than they are, so the rates are taken at stricter limits than `confidence`.
    """
    present, absent = _scores("present", present), _scores("absent", absent)
    thresholds, strict = _candidates(present, absent), 1 - _STRICT * (1 - confidence)
    shown = [
        _shown(present, absent, thresholds, above=above, delta=delta, confidence=strict)[0] for above in (True, False)
    ]
    side = int(np.argmax([row.max() for row in shown]))
    ties = np.flatnonzero(shown[side] >= shown[side].max())  # many where the scores are far apart: the middle is safest
    best = ties[len(ties) // 2]
    return ThresholdTest(float(thresholds[best]), side == 0, float(shown[side][best]))


def judge_test(
    test: ThresholdTest, present: ArrayLike, absent: ArrayLike, *, delta: float, confidence: float
) -> EmpiricalEpsilon:
    """The lower bound on ε that `test` shows on draws, scores (n,) and (m,), that did not choose it."""
    shown, hits, alarms = _shown(
        _scores("present", present),
        _scores("absent", absent),
        np.array([test.threshold]),
        above=test.above,
        delta=delta,
        confidence=confidence,
    )
    return EmpiricalEpsilon(float(shown[0]), test.threshold, test.above, int(hits[0]), int(alarms[0]))


def epsilon_from_scores(present: ArrayLike, absent: ArrayLike, *, delta: float, confidence: float) -> EmpiricalEpsilon:
    """The lower bound on ε at `delta` that scores of independent draws with and without the record show.

    Args:
        present: scores (n,) of draws with the record, n >= 2; infinities are allowed. Independent of each other.
        absent: scores (m,) of draws without it, m >= 2.
        delta: a probability in [0, 1).
        confidence: of the bound, in (0, 1).

    The draws of even index choose the test; the others judge it.
    """
    present, absent = _scores("present", present), _scores("absent", absent)
    if not 0 <= _validate.finite("delta", delta) < 1:
        raise ValueError(f"expected 0 <= delta < 1, got delta={delta}")
    _validate.open_unit("confidence", confidence)
    test = choose_test(present[::2], absent[::2], delta=delta, confidence=confidence)
    return judge_test(test, present[1::2], absent[1::2], delta=delta, confidence=confidence)


def _scores(name: str, values: ArrayLike) -> Array:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"expected {name} to be scores of shape (n,), n >= 1, got shape {scores.shape}")
    if np.isnan(scores).any():
        raise ValueError(f"expected {name} to be numbers, got nan at index {int(np.flatnonzero(np.isnan(scores))[0])}")
    return scores


def _candidates(present: Array, absent: Array) -> Array:
    """Thresholds between and just beside scores whose ranks are spaced evenly, or in logarithm from both ends."""
    found = []
    for scores in (present, absent):
        finite = np.sort(scores[np.isfinite(scores)])
        if len(finite):
            ranks = np.geomspace(1, len(finite), _RANKS) - 1
            picked = np.concatenate([ranks, len(finite) - 1 - ranks, np.linspace(0, len(finite) - 1, _RANKS)])
            found.append(finite[picked.round().astype(int)])
    values = np.unique(np.concatenate(found)) if found else np.zeros(1)
    margin = _NEAR * (1 + np.abs(values))
    apart = np.flatnonzero(np.diff(values) > 2 * (margin[1:] + margin[:-1]))
    return np.unique(np.concatenate([values - margin, values + margin, (values[apart] + values[apart + 1]) / 2]))


def _shown(
    present: Array, absent: Array, thresholds: Array, *, above: bool, delta: float, confidence: float
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """(lower bounds of ε, hits, alarms) at each threshold."""
    over = [len(x) - np.searchsorted(np.sort(x), thresholds, side="right") for x in (present, absent)]
    if above:
        (hits, alarms), trials = over, (len(present), len(absent))
    else:
        (hits, alarms), trials = (len(absent) - over[1], len(present) - over[0]), (len(absent), len(present))
    shown = epsilon_shown(hits, trials[0], alarms, trials[1], delta=delta, confidence=confidence)
    return shown, hits, alarms
