"""What single examples add to the clipped sum, measured one by one against the clipping norm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...accounting import CONSISTENT, CONTRADICTION
from ..private import PrivateTraining

_LOUD = 1e3  # losses are multiplied by this: the gradients of examples that the model has learnt are clipped too
_MOST = 64  # examples that are looked at


@dataclasses.dataclass(frozen=True)
class ContributionCheck:
    """The sensitivity of the code that ran, on `examples` examples: no bound for others, and no probability in it.

    Attributes:
        largest: the largest ‖contribution to a group‖/C_k over examples and groups of parameters; at most 1 if the
            clipping is right. One group and C for flat clipping.
        examples: how many were measured.
    """

    largest: float
    examples: int

    @property
    def contradicted(self) -> bool:
        """True if one example adds more than the clipping norm."""
        return self.largest > 1

    @property
    def verdict(self) -> str:
        """`consistent` or `CONTRADICTION`."""
        return CONTRADICTION if self.contradicted else CONSISTENT


def check_contributions(
    training: PrivateTraining, losses: Callable[..., Tensor], examples: Sequence[Tensor]
) -> ContributionCheck:
    """Record each of the first 64 `examples` alone, as a batch of one, and measure what it adds to the clipped sum.

    White box, after the last step: nothing is released, and the model stays as it is. `losses` and `examples` are those
    of `audit_run`. Raises RuntimeError inside an open `record()`.
    """
    clipping, largest = training.clipping, 0.0
    chosen = torch.arange(min(_MOST, len(examples[0])))
    clipping.take()
    for index in chosen.split(1):
        with clipping.record(1) as recording:
            recording.backward(_LOUD * losses(training.model, *(column[index] for column in examples)))
        added = clipping.take()
        for group in clipping.groups:
            square = sum(float(added.of(name).double().square().sum()) for name in group.names)
            largest = max(largest, square**0.5 / group.clipping_norm)
    return ContributionCheck(largest, len(chosen))
