"""The only place where noise is added: once per logical batch, to the sum of clipped gradients.

    gradient = (Σ_i clipped gradient_i + s · noise) / divisor

The noise is sized for the *sum*, whose sensitivity is C; s is C, or the group's own scale where parameters are clipped
in groups (`modes.py`). The divisor is a constant chosen before seeing the data. Where several processes have a part of
the sum each, the first adds all of the noise to its own part before the parts are added up: it is there once. In secure
mode the noisy sum is rounded to a grid (`secure.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from ..mechanisms import Mechanism, Noise, independent
from .factored import FactoredGradient
from .processes import ALONE, Processes
from .recorded import wide_dtype
from .secure import Generator, draw_noise, grid_of, rounded_sum

# Coordinates drawn at a time; a full block of Gaussian noise is drawn in float32 (`Mechanism.sample`).
_BLOCK = 2**18  # a block and its part of the sum fit the cache of a core
_DEVICE_BLOCK = 2**20  # on an accelerator, where every call costs a launch


@final
class ClippedSum:
    """Σ over the examples of one logical batch of their clipped gradients, one tensor per trainable parameter.

    Kept in float32 at least. Without noise it is private data; `release` spends it, and a spent sum is refused.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._sums: dict[str, Tensor] = {}
        self.examples = 0
        self._spent = self._partial = False

    @contextlib.contextmanager
    def adding(self, examples: int) -> Iterator[None]:
        """Around the `add_part` calls of one microbatch of `examples`: if one of them fails, the sum is unusable."""
        self._refuse_if_spent()
        self._partial = True
        yield
        self._partial = False
        self.examples += examples

    def add_part(self, name: str, parts: Sequence[FactoredGradient], factors: Tensor) -> None:
        """Add Σ_i factors[i]·gradient_i for the parameter called `name`; `factors` (B,)."""
        parameter = self._parameters[name]
        factors = factors.to(parameter.device)
        if name not in self._sums and parts[0].dtype == wide_dtype(parameter.dtype):
            self._sums[name] = parts[0].weighted_sum(factors, parameter.shape)
            parts = parts[1:]
        for part in parts:
            part.add_weighted_sum(factors, self.of(name))

    def absorb(self, other: ClippedSum) -> None:
        """Add another sum of the same microbatch, and use it up."""
        for name, total in other._sums.items():
            if name in self._sums:
                self._sums[name].add_(total)
            else:
                self._sums[name] = total
        other._spent, other._sums = True, {}

    def of(self, name: str) -> Tensor:
        """The running sum of the parameter called `name` (private data): zero if nothing was added to it."""
        if name not in self._sums:
            parameter = self._parameters[name]
            self._sums[name] = torch.zeros(parameter.shape, dtype=wide_dtype(parameter.dtype), device=parameter.device)
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
        if self._partial:
            raise RuntimeError("adding up the clipped gradients failed half way; this logical batch is lost")


def release(
    clipped_sum: ClippedSum,
    *,
    mechanism: Noise,
    noise_scales: Mapping[str, float] | float,
    divisor: float,
    generator: Generator,
    processes: Processes = ALONE,
) -> None:
    """Set each trainable parameter's `.grad` to (clipped sum + s·noise) / divisor, in the parameter's dtype.

    s is the entry of `noise_scales` for the parameter; one number, the clipping norm C, holds for all. The noise is
    independent over coordinates and parameters, or one vector of all of them if `mechanism` is spherical; drawn from
    `generator` in the model's order; parameters that no example reached get noise too. With several `processes`, the
    sum is that of their clipped sums, the noise is drawn by the first, and all get the same gradient. Spends
    `clipped_sum`: raises RuntimeError on the second call. A numpy generator is secure mode, for one process: clipped
    sum + s·noise is rounded to a multiple of `secure.grid_of` before it is divided.
    """

    def noisy_share() -> dict[str, tuple[nn.Parameter, Tensor]]:
        sums = clipped_sum.spend()
        coordinates = sum(total.numel() for _, total in sums.values())
        stream = _NoiseStream(mechanism, generator, coordinates) if processes.is_first else None
        for name, (_, total) in sums.items():
            if stream is not None:
                scale = noise_scales[name] if isinstance(noise_scales, Mapping) else noise_scales
                stream.privatise(total.view(-1), scale, divisor)
            else:
                total.div_(divisor)
        return sums

    shares = processes.agreed("adding the noise", noisy_share)
    processes.sum_([total for _, total in shares.values()])
    for parameter, total in shares.values():
        parameter.grad = total.to(parameter.dtype)


@final
class _NoiseStream:
    """The noise of one release, `total` coordinates of it, drawn block by block across the parameters.

    A draw of many coordinates is the cheapest, and a block is the largest temporary. Models with 2^18 parameters or
    more get full blocks, which for Gaussian noise are float32 draws: see `Mechanism.sample`. Spherical noise is one
    block of float64: its coordinates share a norm.
    """

    def __init__(self, mechanism: Noise, generator: Generator, total: int) -> None:
        self._mechanism, self._generator, self._left = mechanism, generator, total
        self._secure = not isinstance(generator, torch.Generator)
        self._block: Tensor | None = None
        self._used = 0

    def privatise(self, flat: Tensor, scale: float, divisor: float) -> None:
        """flat = (flat + scale · (the next coordinates)) / divisor, in place; secure: rounded to its grid before."""
        start, grid = 0, grid_of(independent(self._mechanism), scale) if self._secure else None
        while start < len(flat):
            block = self._next_block(flat)
            count = min(len(block) - self._used, len(flat) - start)
            part, noise = flat[start : start + count], block[self._used : self._used + count]
            if grid is None:
                part.add_(noise.to(flat), alpha=scale).div_(divisor)
            else:
                part.copy_(rounded_sum(part, noise * scale, grid) / divisor)
            self._used += count
            self._left -= count
            start += count

    def _next_block(self, like: Tensor) -> Tensor:
        """The block in use, a new one if it is used up or of another kind; no coordinate is given out twice."""
        block, dtype = self._block, torch.float64 if self._secure else like.dtype
        if not isinstance(self._mechanism, Mechanism):
            if block is None:
                self._block = block = draw_noise(
                    self._mechanism, (self._left,), generator=self._generator, dtype=torch.float64
                )
            return block
        if block is None or self._used == len(block) or (block.dtype, block.device) != (dtype, like.device):
            count = min(_BLOCK if like.device.type == "cpu" else _DEVICE_BLOCK, self._left)
            del block
            self._block = None  # its memory is used again: two alive cost a page fault on every page
            block = draw_noise(self._mechanism, (count,), generator=self._generator, device=like.device, dtype=dtype)
            self._block, self._used = block, 0
        return block
