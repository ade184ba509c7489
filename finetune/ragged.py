"""Sequences of different lengths, stored without padding and padded when a batch is taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor


@final
@dataclasses.dataclass(frozen=True)
class Ragged:
    """n sequences: `values` (total length, …) holds them one after another, `offsets` (n + 1,) where each begins."""

    values: Tensor
    offsets: Tensor

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]]) -> Self:
        """Sequences of integers, such as token ids."""
        lengths = torch.tensor([0, *(len(sequence) for sequence in sequences)])
        flat = [value for sequence in sequences for value in sequence]
        return cls(torch.tensor(flat, dtype=torch.long), lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Length of each sequence, shape (n,)."""
        return self.offsets.diff()

    def padded(self, indices: Tensor, *, fill: float = 0) -> tuple[Tensor, Tensor]:
        """The sequences at `indices` as (B, T, …), T their longest, and the mask (B, T), True where not filled."""
        lengths = self.lengths[indices]
        positions = torch.arange(int(lengths.max()) if len(lengths) else 0)
        mask = positions < lengths[:, None]
        source = (self.offsets[:-1][indices, None] + positions).clamp(max=max(len(self.values) - 1, 0))
        values = self.values[source]
        values[~mask] = fill
        return values, mask
