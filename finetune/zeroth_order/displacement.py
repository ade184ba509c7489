"""θ + δ in place of θ, and back to the very bits of θ, without a copy of θ.

Floating-point addition forgets: s = fl(θ + δ), then b = fl(s − δ), and b is not always θ. What is forgotten is little.
Sums are taken in float64 and rounded to the dtype of θ. Where the exponent of s is not above that of b, s is at least
as fine as θ, and b = θ but for ties and powers of two. Where it is above by `level`, some `level` low bits are lost.
So `displace` keeps, and `restore` puts back,

- for 1 <= level <= 7 the difference of the bits of θ and b, one byte;
- for level > 7 (θ much smaller than δ) the bits of θ;
- for the few others that differ, index and bits.

The levels are not kept: they follow from s and δ, which `restore` has. Measured sizes are in docs/zeroth_order.md.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from .arena import Arena

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as wide as a float, by bytes
_MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
_ONE_BYTE_LEVELS = 7  # the error is below 2^(level − 1) + 1 units in the last place of θ

DTYPES = tuple(_MANTISSA)


@dataclasses.dataclass(frozen=True)
class Residual:
    """What `displace` would forget of one block: see the module."""

    near: Tensor
    """int8 (n_near,): bits of θ less bits of b, at levels 1 to 7."""
    far: Tensor
    """integers (n_far,): bits of θ, at levels above 7."""
    others: Tensor
    """int64 (n_others,): positions of what else differs."""
    other_bits: Tensor
    """integers (n_others,): bits of θ there."""

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(t.numel() * t.element_size() for t in (self.near, self.far, self.others, self.other_bits))


def displace(values: Tensor, offset: Tensor, arena: Arena) -> Residual:
    """values += offset in place, rounded to their dtype; the residual lies in `arena`.

    `values` (n,) of one of `DTYPES`, `offset` (n,) float64.
    """
    bits = values.view(_BITS[values.element_size()])
    moved = (values.double() + offset).to(values.dtype)
    back, level = _back(moved, offset)
    difference = bits - back
    lossy = (level > 0).nonzero().flatten()
    is_near = level[lossy] <= _ONE_BYTE_LEVELS
    near_at = lossy[is_near]
    near = difference[near_at].to(torch.int8)
    fits = near == difference[near_at]  # what does not fit is left in `difference`, for the others
    difference[lossy[~is_near]] = 0
    difference[near_at[fits]] = 0
    others = difference.nonzero().flatten()
    residual = Residual(*map(arena.keep, (near, bits[lossy[~is_near]], others, bits[others])))
    values.copy_(moved)
    return residual


def restore(values: Tensor, offset: Tensor, residual: Residual) -> None:
    """Undo `displace(values, offset)` in place, bit by bit; `offset` must be the same float64 numbers."""
    back, level = _back(values, offset)
    lossy = (level > 0).nonzero().flatten()
    is_near = level[lossy] <= _ONE_BYTE_LEVELS
    back[lossy[is_near]] += residual.near
    back[lossy[~is_near]] = residual.far
    back[residual.others] = residual.other_bits
    values.view(back.dtype).copy_(back)


def _back(moved: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Bits of b = fl(s − δ) and the levels, exponent of s less exponent of b: integers (n,) both."""
    back = (moved.double() - offset).to(moved.dtype).view(_BITS[moved.element_size()])
    return back, _exponent(moved.view(back.dtype), moved.dtype) - _exponent(back, moved.dtype)


def _exponent(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The biased exponent of floats given by their bits."""
    exponent_bits = 8 * dtype.itemsize - 1 - _MANTISSA[dtype]
    return (bits >> _MANTISSA[dtype]) & (2**exponent_bits - 1)
