"""A lower bound on ε from one run: how many secret bits can be guessed from its output.

Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run" (arXiv 2305.08846). m canaries are each put
into the data or not by fair coins S, uniform on {−1, +1}^m. From the output of the run an auditor derives guesses T in
{−1, 0, +1}^m, exactly r of them not 0 (0: no guess). W counts the right ones.

**Theorem.** If putting one canary in or out, the others fixed, keeps the run (ε, δ)-private, then for every v

    P(W >= v) <= f(v) + δ·(m/r)·(1−p)·Σ_{k<r} g_k(v),         p = e^ε/(1+e^ε),
    f(v) = P(B_r >= v),   g_k(v) = max {P(B_k = j) : j >= v−r+k},   B_n ~ Binomial(n, p).

For δ = 0 this is their Theorem 5.1, attained by randomised response. For δ > 0 their Theorem 5.2 has the second term
2mδ·max_{1 <= i <= v} (f(v−i) − f(v))/i instead. Ours comes with the proof below, and is the smaller of the two on the
grid that our tests compare, r from 1 to 1000 and f(v) from 10^−3 to 1/2; deep in the tail it is the larger.

*Proof.* Fix the output T = t and an order of its r guesses. Reveal the bits without a guess never, those with a guess
one by one. Let A be the bits revealed before i. With a = P(T=t | S_A, S_i=t_i) and b = P(T=t | S_A, S_i=−t_i), guess i
is right with probability a/(a+b), as the coin is fair, and

    a/(a+b) − p = (1−p)·(a − e^ε·b)/(a+b).                                                                       (1)

Let Φ_k(h) = P(B_k >= v−h): the chance of v right guesses if h are right, k are left, and those are right with
probability p. Φ_{k+1}(h) = p·Φ_k(h+1) + (1−p)·Φ_k(h), so revealing i, with k left behind it, changes the chance by
(a/(a+b) − p)·(Φ_k(h+1) − Φ_k(h)) on average. The last factor is P(B_k = v−h−1) <= g_k(v), as h <= r−k−1, and not
negative. Summing from Φ_r(0) = f(v) to the end, where the chance is 1{W >= v}:

    P(W >= v) <= f(v) + Σ_t Σ_i g_k(i)(v)·E[1{T=t}·(a/(a+b) − p)_+].                                             (2)

P(T=t, S_A=s) = 2^{−|A|}·(a+b)/2 turns (1) into: the expectation in (2) is at most (1−p)·Σ_s 2^{−|A|}·(a − e^ε·b)_+ / 2.
a and b are means over the bits that are not revealed, and x -> x_+ is convex: the sum is at most

    y_i(t) = ½·mean over all s_{−i} of (P(A(s_{−i}, t_i)=t) − e^ε·P(A(s_{−i}, −t_i)=t))_+ ,

which does not depend on the order. So average (2) over all orders of t's guesses: i has k guesses behind it with
probability 1/r for each k < r. And Σ_t y_i(t) <= ½·(δ + δ), the outputs with t_i = 1 and with t_i = −1 giving at most
δ/2 each. Hence the second term is at most (1−p)·(1/r)·Σ_k g_k(v)·m·δ.  ∎

**The bound.** f and g_k fall in v, so {W >= v} is rejected as a test of ε if the right side is at most 1 − confidence.
Being (ε, δ)-private implies being (ε', δ)-private for ε' > ε, so every rejected ε is a lower bound, with `confidence`,
even the largest one found. r must not depend on the bits; trying K values of r costs a factor K in 1 − confidence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from ...mechanisms import _validate

Array = NDArray[np.float64]

_SHARES = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)  # of the canaries that are guessed, by default each tried
_FEWEST = 10  # guesses that such a default has
_LARGEST = 60.0  # ε at which the search stops: 1 − p is below the rounding of p there
_HALVINGS = 40


@dataclasses.dataclass(frozen=True)
class OneRunBound:
    """ε >= `lower` is shown with the confidence asked for: `correct` of `guesses` = (IN, OUT) were right."""

    lower: float
    correct: int
    guesses: tuple[int, int]


def tail_bound(correct: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    """The theorem's bound of P(at least `correct` of `guesses` are right), for m = `canaries`; at most 1.

    Needs 0 <= correct <= guesses <= canaries, guesses >= 1, epsilon >= 0 and 0 <= delta < 1; ValueError otherwise.
    """
    _check_counts(correct, guesses, canaries)
    return _tail_bound(correct, guesses, canaries, _validate.non_negative("epsilon", epsilon), _check_delta(delta))


def _tail_bound(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    p, other = float(special.expit(epsilon)), float(special.expit(-epsilon))
    value = float(stats.binom.sf(correct - 1, guesses, p)) if correct > 0 else 1.0
    if delta > 0:
        k = np.arange(guesses)
        mode = np.minimum(np.floor((k + 1) * p), k)
        likeliest = stats.binom.pmf(np.maximum(mode, correct - guesses + k), k, p)
        value += delta * canaries / guesses * other * float(likeliest.sum())
    return min(value, 1.0)


def epsilon_from_guesses(correct: int, guesses: int, canaries: int, *, delta: float, confidence: float) -> float:
    """The largest ε that `correct` right ones of `guesses` on `canaries` fair coins contradict; 0 if none.

    Args:
        correct: 0 <= correct <= guesses.
        guesses: r <= canaries; a number that does not depend on the coins.
        canaries: m.
        delta: a probability in [0, 1).
        confidence: in (0, 1): the true ε is smaller than the result with probability at most 1 − confidence.
    """
    _check_counts(correct, guesses, canaries)
    delta = _check_delta(delta)
    allowed = 1 - _validate.open_unit("confidence", confidence)

    def rejected(epsilon: float) -> bool:
        return _tail_bound(correct, guesses, canaries, epsilon, delta) <= allowed

    if not rejected(0.0):
        return 0.0
    low, high = 0.0, _LARGEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def epsilon_from_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float,
    guesses: Sequence[tuple[int, int]] | None = None,
) -> OneRunBound:
    """The lower bound on ε at `delta` from one score for each canary.

    Args:
        scores: (m,), larger for canaries that look included; any function of the run's output. Equal scores are
            ordered by index.
        included: (m,) booleans, the fair coins.
        guesses: numbers (IN, OUT): so many highest scores are guessed to be included, so many lowest not. Every pair
            is tried, at a price (see the module). Default: 100 % down to 1.5 % of the canaries, half of them each.
    """
    scores, included = np.asarray(scores, dtype=np.float64), np.asarray(included)
    if scores.ndim != 1 or scores.shape != included.shape or included.dtype != np.bool_ or not len(scores):
        raise ValueError(
            f"expected scores and included (booleans) of one shape (m,), m >= 1, got shapes {scores.shape} and "
            f"{included.shape}, included of {included.dtype}"
        )
    if np.isnan(scores).any():
        raise ValueError("expected scores to be numbers, got nan; a run that diverged says nothing")
    options = guess_options(guesses, len(scores))
    allowed = (1 - _validate.open_unit("confidence", confidence)) / len(options)
    order = np.argsort(scores, kind="stable")
    found = []
    for ins, outs in options:
        correct = int(included[order[len(order) - ins :]].sum() + (~included[order[:outs]]).sum())
        lower = epsilon_from_guesses(correct, ins + outs, len(scores), delta=delta, confidence=1 - allowed)
        found.append(OneRunBound(lower, correct, (ins, outs)))
    return max(found, key=lambda bound: bound.lower)


def guess_options(guesses: Sequence[tuple[int, int]] | None, canaries: int) -> list[tuple[int, int]]:
    """The pairs (IN, OUT) that are tried on so many canaries; ValueError for one that does not fit."""
    if guesses is None:
        return _options(canaries)
    if not len(guesses):
        raise ValueError("expected at least one pair in guesses, got none")
    return [_pair(pair, canaries) for pair in guesses]


def _options(canaries: int) -> list[tuple[int, int]]:
    """The default pairs; at least one."""
    halves = dict.fromkeys(math.ceil(share * canaries / 2) for share in _SHARES)
    pairs = [(min(half, canaries - canaries // 2), min(half, canaries // 2)) for half in halves]
    return [pair for pair in pairs if sum(pair) >= _FEWEST] or pairs[:1]


def _pair(pair: tuple[int, int], canaries: int) -> tuple[int, int]:
    ins, outs = (_validate.integer("guesses", number, minimum=0) for number in pair)
    if not 1 <= ins + outs <= canaries:
        raise ValueError(f"expected 1 <= IN + OUT <= {canaries}, the number of canaries, got guesses={pair}")
    return ins, outs


def _check_counts(correct: int, guesses: int, canaries: int) -> None:
    _validate.integer("canaries", canaries, minimum=1)
    _validate.integer("guesses", guesses, minimum=1)
    _validate.integer("correct", correct, minimum=0)
    if not correct <= guesses <= canaries:
        raise ValueError(f"expected correct <= guesses <= canaries, got {correct=}, {guesses=}, {canaries=}")


def _check_delta(delta: float) -> float:
    if not 0 <= _validate.finite("delta", delta) < 1:
        raise ValueError(f"expected 0 <= delta < 1, got delta={delta}")
    return delta
