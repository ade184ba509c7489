"""The only place where noise is added: once per logical batch, to the sum of clipped gradients.

    gradient = (Σ_i clipped gradient_i + s · noise) / divisor

The noise is sized for the *sum*, whose sensitivity is C; s is C, or the group's own scale where parameters are clipped
in groups (`modes.py`). The divisor is a constant chosen before seeing the data. Where several processes have a part of
the sum each, the first adds all of the noise to its own part before the parts are added up: it is there once. In secure
mode the noisy sum is rounded to a grid (`secure.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from ..mechanisms import Gaussian, Mechanism, Noise, _normal, independent
from .clipped_sum import ClippedSum, TableRows
from .processes import ALONE, Processes
from .secure import Generator, draw_noise, grid_of, rounded_sum

# Coordinates drawn at a time; a full block of Gaussian noise is drawn in float32 (`Mechanism.sample`).
_BLOCK = 2**18  # a block and its part of the sum fit the cache of a core
_ONE_PASS = 2**16  # coordinates of a parameter from which float32 Gaussian noise goes into it without a block
_DEVICE_BLOCK = 2**20  # on an accelerator, where every call costs a launch


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
        sums = clipped_sum.spend_rows()
        coordinates = sum(parameter.numel() for parameter, _ in sums.values())
        stream = _NoiseStream(mechanism, generator, coordinates) if processes.is_first else None
        shares: dict[str, tuple[nn.Parameter, Tensor]] = {}
        for name, (parameter, total) in sums.items():
            if stream is not None:
                scale = noise_scales[name] if isinstance(noise_scales, Mapping) else noise_scales
                shares[name] = parameter, stream.privatised(total, scale, divisor)
            else:
                shares[name] = parameter, (total if isinstance(total, Tensor) else total.dense()).div_(divisor)
        return shares

    shares = processes.agreed("adding the noise", noisy_share)
    processes.sum_([total for _, total in shares.values()])
    for parameter, total in shares.values():
        parameter.grad = total.to(parameter.dtype)


@final
class _NoiseStream:
    """The noise of one release, `total` coordinates of it, drawn block by block across the parameters.

    A draw of many coordinates is the cheapest, and a block is the largest temporary. Models with 2^18 parameters or
    more get full blocks, which for Gaussian noise are float32 draws: see `Mechanism.sample`. Such noise goes into the
    larger parameters in one pass, without a block. Spherical noise is one block of float64: its coordinates share a
    norm.
    """

    def __init__(self, mechanism: Noise, generator: Generator, total: int) -> None:
        self._mechanism, self._generator, self._left = mechanism, generator, total
        self._secure = not isinstance(generator, torch.Generator)
        self._one_pass = _one_pass(mechanism, generator) if total >= _BLOCK else None
        self._block: Tensor | None = None
        self._used = 0

    def privatised(self, total: Tensor | TableRows, scale: float, divisor: float) -> Tensor:
        """(total + scale · (the next coordinates)) / divisor: in a new tensor for rows, else in place; secure: rounded
        to its grid before it is divided."""
        rows = total if isinstance(total, TableRows) else None
        out = total if isinstance(total, Tensor) else total.empty()
        flat = out.view(-1)
        fits = flat.device.type == "cpu" and flat.dtype == torch.float32 and len(flat) >= _ONE_PASS
        if self._one_pass is None or not fits:
            if rows is not None:
                rows.add_to(out.zero_())
            self._add_in_blocks(flat, scale, divisor)
            return out
        multiplier, generator = self._one_pass
        self._left -= len(flat)
        if rows is None:
            _normal.add(flat, scale * multiplier, divisor, generator)
        else:  # the rows on top of the noise: the table is written once
            _normal.fill(flat, scale * multiplier / divisor, generator)
            rows.add_to(out, divisor=divisor)
        return out

    def _add_in_blocks(self, flat: Tensor, scale: float, divisor: float) -> None:
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


def _one_pass(mechanism: Noise, generator: Generator) -> tuple[float, torch.Generator] | None:
    """Noise multiplier and generator of noise that `_normal` can draw, None for other noise."""
    if isinstance(mechanism, Gaussian) and isinstance(generator, torch.Generator) and generator.device.type == "cpu":
        return mechanism.noise_multiplier, generator
    return None
