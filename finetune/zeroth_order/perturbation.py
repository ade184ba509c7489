"""Moves all parameters to θ + φz, to θ − φz, and back to θ, in place; the update goes with the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from .arena import Arena
from .blocks import blocks
from .directions import Directions
from .displacement import Residual, displace, restore


@final
class Perturbation:
    """Where the parameters stand: at θ, or displaced by ±φz, which direction, and what it takes to come back.

    One direction is generated three times a step: for the way to +, for + to − and for − back to θ with the update.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], directions: Directions, smoothing: float) -> None:
        self._parameters, self._directions, self._smoothing = dict(parameters), directions, smoothing
        self._number = 0
        self._displaced: dict[int, tuple[int, Residual]] = {}  # by block: sign and residual

    @property
    def residual_bytes(self) -> int:
        """Memory that the residuals hold now."""
        return sum(residual.bytes for _, residual in self._displaced.values())

    @torch.no_grad()
    def move_to(self, number: int, sign: int) -> None:
        """To θ + sign·φ·z_number, from θ or from the other side."""
        if self._displaced and number != self._number:
            raise RuntimeError(f"the parameters stand along direction {self._number}; restore them first")
        self._number, arena = number, Arena()
        for index, (block, z) in enumerate(self._walk(number)):
            self._bring_back(index, block, z)
            self._displaced[index] = sign, displace(block, z.mul_(sign * self._smoothing), arena)

    @torch.no_grad()
    def restore(self) -> None:
        """Back to θ, bit by bit; nothing happens at θ."""
        if self._displaced:
            for index, (block, z) in enumerate(self._walk(self._number)):
                self._bring_back(index, block, z)

    @torch.no_grad()
    def restore_and_update(self, numbers: Sequence[int], rates: Sequence[float], *, decay: float) -> None:
        """Back to θ, then to (1 − decay)·θ − Σ_j rates[j]·z_{numbers[j]}, rounded once per direction.

        If the parameters stand along the first of `numbers`, the way back and its update are one walk.
        """
        if numbers[0] != self._number:
            self.restore()
        for number, rate in zip(numbers, rates, strict=True):
            for index, (block, z) in enumerate(self._walk(number)):
                self._bring_back(index, block, z)
                if rate or decay:
                    block.copy_(block.double().mul_(1 - decay).sub_(z, alpha=rate))
            decay = 0.0

    def _walk(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(blocks(self._parameters), self._directions.blocks(number), strict=True)

    def _bring_back(self, index: int, block: Tensor, z: Tensor) -> None:
        if index in self._displaced:
            sign, residual = self._displaced[index]
            restore(block, z * (sign * self._smoothing), residual)
            del self._displaced[index]
