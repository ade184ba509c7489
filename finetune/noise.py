"""The only place where noise is added: once per logical batch, to the sum of clipped gradients.

    gradient = (Σ_i clipped gradient_i + C · noise) / divisor

The noise is sized for the *sum*, whose sensitivity is C; the divisor is a constant chosen before seeing the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from ..mechanisms import Mechanism
from .factored import FactoredGradient


@final
class ClippedSum:
    """Σ over the examples of one logical batch of their clipped gradients, one tensor per trainable parameter.

    Kept in float32 at least. Without noise it is private data; `release` spends it, and a spent sum is refused.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._sums: dict[str, Tensor] = {}
        self.examples = 0
        self._spent = False

    def add(self, gradients: Mapping[str, Sequence[FactoredGradient]], factors: Tensor) -> None:
        """Add Σ_i factors[i]·gradient_i for each parameter named; `factors` (B,) counts B examples."""
        self._refuse_if_spent()
        self.examples += len(factors)
        for name, parts in gradients.items():
            out = self.of(name)
            for part in parts:
                part.add_weighted_sum(factors.to(out.device), out)

    def of(self, name: str) -> Tensor:
        """The running sum of the parameter called `name` (private data): zero if nothing was added to it."""
        if name not in self._sums:
            parameter = self._parameters[name]
            dtype = torch.promote_types(parameter.dtype, torch.float32)
            self._sums[name] = torch.zeros(parameter.shape, dtype=dtype, device=parameter.device)
        return self._sums[name]

    def spend(self) -> dict[str, tuple[nn.Parameter, Tensor]]:
        """Parameters and sums by name, all of them, in the model's order. A second call raises RuntimeError."""
        self._refuse_if_spent()
        sums = {name: (parameter, self.of(name)) for name, parameter in self._parameters.items()}
        self._spent = True
        self._sums = {}
        return sums

    def _refuse_if_spent(self) -> None:
        if self._spent:
            raise RuntimeError("the noise of this logical batch was already added; draw the next batch first")


def release(
    clipped_sum: ClippedSum,
    *,
    mechanism: Mechanism,
    clipping_norm: float,
    divisor: float,
    generator: torch.Generator,
) -> None:
    """Set each trainable parameter's `.grad` to (clipped sum + C·noise) / divisor, in the parameter's dtype.

    The noise is independent over coordinates and parameters, drawn from `generator` in the model's order; parameters
    that no example reached get noise too. Spends `clipped_sum`: raises RuntimeError on the second call.
    """
    for parameter, total in clipped_sum.spend().values():
        noise = mechanism.sample(tuple(total.shape), generator=generator, device=total.device, dtype=total.dtype)
        parameter.grad = total.add_(noise, alpha=clipping_norm).div_(divisor).to(parameter.dtype)
