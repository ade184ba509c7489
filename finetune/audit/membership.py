"""Membership inference: call a record a member if its loss is small, and bound what that shows.

A threshold attack (Yeom et al. 2018, arXiv 1709.01604) with exact confidence limits of its two rates. The limits need
independent losses: one record from each of many runs gives a lower bound on ε that holds. Losses of many records under
*one* model are not independent of each other, as all members trained it together: rates are then those of this model,
and the ε is an estimate. Where membership was decided by fair coins, `epsilon_from_one_run` on −loss gives a bound that
holds for one model.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from ...accounting import EmpiricalEpsilon, ProbabilityInterval
from ...accounting.empirical import choose_test, judge_test, rate_at_least, rate_at_most
from ...mechanisms import _validate


@dataclasses.dataclass(frozen=True)
class MembershipResult:
    """The attack "member if loss < `threshold`", judged on losses that did not choose the threshold.

    Attributes:
        true_positive_rate, false_positive_rate: of members and of others; both hold with the confidence asked for.
        epsilon: what the two rates show (see the module).
    """

    threshold: float
    true_positive_rate: ProbabilityInterval
    false_positive_rate: ProbabilityInterval
    epsilon: EmpiricalEpsilon

    @property
    def lower(self) -> float:
        """The ε that is shown, at least 0."""
        return max(self.epsilon.lower, 0.0)

    @property
    def advantage(self) -> float:
        """A lower bound of the true minus the false positive rate, at least 0."""
        return max(self.true_positive_rate.lower - self.false_positive_rate.upper, 0.0)


def membership_inference(
    member_losses: ArrayLike, other_losses: ArrayLike, *, delta: float, confidence: float = 0.95
) -> MembershipResult:
    """Attack by a threshold on losses, those of even index choosing it and the others judging it.

    Args:
        member_losses: (n,), n >= 2, of records that were trained on.
        other_losses: (m,), m >= 2, of records like them that were not.
        delta: at which ε is bounded, in (0, 1).
        confidence: in (0, 1), that both rates lie in their intervals, and of the bound on ε.
    """
    _validate.open_unit("delta", delta)
    failure = (1 - _validate.open_unit("confidence", confidence)) / 4
    scores = []
    for name, losses in (("member_losses", member_losses), ("other_losses", other_losses)):
        values = -np.asarray(losses, dtype=np.float64)
        if values.ndim != 1 or len(values) < 2 or np.isnan(values).any():
            raise ValueError(f"expected {name} to be two numbers or more, shape (n,), got {name}={losses!r}")
        scores.append(values)
    test = choose_test(*(s[::2] for s in scores), delta=delta, confidence=confidence)
    members, others = (s[1::2] for s in scores)
    rates = []
    for judged in (members, others):
        called = int((judged > test.threshold).sum())
        ends = rate_at_least(called, len(judged), failure), rate_at_most(called, len(judged), failure)
        rates.append(ProbabilityInterval(*map(float, ends)))
    shown = judge_test(test, members, others, delta=delta, confidence=confidence)
    return MembershipResult(-test.threshold, rates[0], rates[1], shown)
