"""Random directions that are never stored: made again, block by block, from a public seed.

A direction depends on the seed, its number and the sizes of the parameters, never on data, and its generators are not
those of noise and sampling: everybody may know it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal, final

import torch
from torch import Tensor

Kind = Literal["gaussian", "sphere"]
KINDS = ("gaussian", "sphere")


@final
class Directions:
    """z_0, z_1, … in R^d with E[z zᵀ] = I: independent normal coordinates, or uniform on the sphere of radius √d.

    `layout` holds (size, device) of every block. The normal draws are float32; devices have generators of their own,
    so the same seed gives other directions on another kind of device.
    """

    def __init__(self, layout: Sequence[tuple[int, torch.device]], *, seed: int, kind: Kind) -> None:
        self.seed, self.kind = seed, kind
        self._layout = list(layout)
        self._scale_of: tuple[int, float] | None = None

    @property
    def dimension(self) -> int:
        """d, the number of coordinates."""
        return sum(size for size, _ in self._layout)

    def blocks(self, number: int) -> Iterator[Tensor]:
        """Direction `number`, one float64 tensor (size,) per block of the layout; the same each time it is asked."""
        scale = self._scale(number)
        for normal in self._normal_blocks(number):
            yield normal.double().mul_(scale) if scale != 1 else normal.double()

    def _normal_blocks(self, number: int) -> Iterator[Tensor]:
        generators: dict[torch.device, torch.Generator] = {}
        for size, device in self._layout:
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(self._seed_of(number, len(generators)))
            yield torch.randn(size, generator=generators[device], device=device)

    def _seed_of(self, number: int, device_index: int) -> int:
        text = f"direction {number} of {self.seed} on device {device_index}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def _scale(self, number: int) -> float:
        if self.kind == "gaussian":
            return 1.0
        if self._scale_of is None or self._scale_of[0] != number:
            squares = math.fsum(float(normal.double().square().sum()) for normal in self._normal_blocks(number))
            self._scale_of = number, math.sqrt(self.dimension / squares)
        return self._scale_of[1]
