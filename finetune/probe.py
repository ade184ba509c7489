"""Does the loss of one example depend on another? Asked of autograd: back-propagate some losses, look at the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor


def bit_splits(count: int) -> Iterator[Tensor]:
    """Boolean masks (count,) such that for any i ≠ j one of them holds i but not j: the bits of the index, and their
    complements, 2·⌈log₂ count⌉ masks."""
    indices = torch.arange(count)
    for bit in range((count - 1).bit_length()):
        mask = (indices >> bit & 1).bool()
        yield ~mask
        yield mask


@final
class Probe:
    """One backward pass of the losses of the `chosen` examples (B,) only."""

    def __init__(self, chosen: Tensor) -> None:
        self.chosen = chosen
        self._mixed: set[str] = set()
        self._finite = True

    def see(self, label: str, output_grads: list[Tensor]) -> None:
        """The gradients (B, …) that a layer's outputs got."""
        for grads in output_grads:
            others = grads[~self.chosen.to(grads.device)]
            if bool((others.nan_to_num(nan=0.0) != 0).any()):
                self._mixed.add(label)
            self._finite = self._finite and bool(torch.isfinite(others).all())

    def mixed(self) -> set[str]:
        """The layers at which other examples got a gradient."""
        return self._mixed

    def is_conclusive(self) -> bool:
        """False if a gradient that should be zero is NaN (zero times the infinity of a bad example)."""
        return self._finite
