"""A tensor that was recorded at a layer, and what several of the layer's parameters need of it, computed once.

B: examples, T: positions, w: width. Whatever is summed is summed in float32 at least, at most `RUN` terms at a time;
the runs are added in float64. So the rounding bounds do not grow with the width of a vocabulary.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

RUN = 512  # terms that are added in the dtype of the factors
CHUNK_ELEMENTS = 2**24  # elements of a temporary (64 MiB in float32)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32 or wider: half precision is never accumulated in half precision."""
    return tensor.to(wide_dtype(tensor.dtype))


def wide_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The widest of the dtypes and float32: what sums are made in."""
    result = torch.float32
    for dtype in dtypes:
        result = torch.promote_types(result, dtype)
    return result


def unit_roundoff(dtype: torch.dtype) -> float:
    """u, half the machine epsilon."""
    return torch.finfo(dtype).eps / 2


def with_positions(tensor: Tensor) -> Tensor:
    """(B, …, width) as (B, T, width); one position where there is no axis between."""
    return tensor.reshape(tensor.shape[0], -1, tensor.shape[-1])


def gram(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """All inner products ⟨x_t, y_s⟩, shape (B, T, S), of x (B, T, w) and y (B, S, w), in `dtype`; see `gram_terms`."""
    width = x.shape[-1]
    if width <= RUN:
        return x.to(dtype) @ y.to(dtype).mT
    runs = [slice(start, start + RUN) for start in range(0, width, RUN)]
    total = x[..., runs[0]].to(dtype) @ y[..., runs[0]].to(dtype).mT
    for run in runs[1:]:
        total += x[..., run].to(dtype) @ y[..., run].to(dtype).mT
    return total


def gram_terms(width: int) -> int:
    """Additions that one term of a `gram` over `width` goes through, at most."""
    return min(RUN, width) + width // RUN


def dots(x: Tensor, y: Tensor) -> Tensor:
    """⟨x_i, y_i⟩ of x and y (B, n), float64 (B,)."""
    whole = x.shape[1] // RUN * RUN
    total = (x[:, whole:] * y[:, whole:]).sum(dim=1).double()
    if whole:
        runs = (x[:, :whole] * y[:, :whole]).unflatten(1, (-1, RUN)).sum(dim=2)
        total = total + runs.double().sum(dim=1)
    return total


def squared_lengths(x: Tensor) -> Tensor:
    """‖x_i‖² of x (B, n), float64 (B,), without a temporary of the size of x."""
    whole = x.shape[1] // RUN * RUN
    total = torch.linalg.vector_norm(x[:, whole:], dim=1).double().square()
    if whole:
        runs = torch.linalg.vector_norm(x[:, :whole].unflatten(1, (-1, RUN)), dim=2)
        total = total + runs.double().square().sum(dim=1)
    return total


@final
class Recorded:
    """A tensor (B, …, w) of one layer call. `tensor` is the tensor itself, `positions` it as (B, T, w).

    The tensor may still be in use elsewhere, so it is never written to. Reading `positions` raises ValueError if
    somebody else has written to it since: norms and sums would then be taken of different gradients.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self._version = tensor._version
        self._row_norms: Tensor | None = None
        self._gram: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        self._check_unchanged()
        return self._tensor

    @property
    def positions(self) -> Tensor:
        return with_positions(self.tensor)

    @property
    def batch_size(self) -> int:
        return self._tensor.shape[0]

    @property
    def length(self) -> int:
        """T."""
        return math.prod(self._tensor.shape[1:-1])

    @property
    def width(self) -> int:
        """w."""
        return self._tensor.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """What sums over this tensor are made in."""
        return wide_dtype(self._tensor.dtype)

    def is_same(self, tensor: Tensor) -> bool:
        """Whether `tensor` is the very memory recorded here, seen in the same way and unchanged."""
        mine = self._tensor
        return (
            mine.data_ptr() == tensor.data_ptr()
            and mine.device == tensor.device
            and mine.dtype == tensor.dtype
            and mine.shape == tensor.shape
            and mine.stride() == tensor.stride()
            and self._version == tensor._version == mine._version
        )

    def row_norms(self) -> Tensor:
        """Upper bounds of the norms of all positions, float64 (B, T): roundings and underflow are added on top."""
        if self._row_norms is None:
            dtype = self.dtype
            rows = max(1, CHUNK_ELEMENTS // max(1, self.length * self.width))
            norms = torch.cat(
                [torch.linalg.vector_norm(part.to(dtype), dim=2).double() for part in self.positions.split(rows)]
            )
            self._note_row_norms(norms)
        assert self._row_norms is not None
        return self._row_norms

    def _note_row_norms(self, norms: Tensor) -> None:
        """Computed in `dtype` from sums of `width` squares, in any order."""
        dtype = self.dtype
        self._row_norms = norms * (1 + (self.width + 8) * unit_roundoff(dtype)) + padding(self.width, dtype)

    def new_gram(self, dtype: torch.dtype) -> Tensor:
        """`gram` of this tensor with itself, whose diagonal spares `row_norms` a pass."""
        positions = self.positions
        result = gram(positions, positions, dtype)
        if self._row_norms is None and dtype == self.dtype:
            self._note_row_norms(result.diagonal(dim1=1, dim2=2).double().sqrt())
        return result

    def own_gram(self, dtype: torch.dtype) -> Tensor:
        """`new_gram`, kept, since layers with the same input share it."""
        self._check_unchanged()
        if self._gram is None or self._gram.dtype != dtype:
            self._gram = self.new_gram(dtype)
        return self._gram

    def forget_gram(self) -> None:
        """Free the kept Gram matrix."""
        self._gram = None

    def keep(self, mask: Tensor) -> Recorded:
        """A copy that is exactly zero (not a product with zero: NaN · 0 is NaN) where `mask` (B,) is False."""
        return Recorded(zero_unless(mask, self.tensor))

    def _check_unchanged(self) -> None:
        if self._tensor._version != self._version:
            raise ValueError("a recorded tensor was changed in place after its use; use the out-of-place form")


def padding(width: int, dtype: torch.dtype) -> float:
    """√w·√(tiny/u): above what underflow can take from the norm of w numbers, and its square times u above what it can
    take from an inner product of w terms (each loses at most `tiny`, the smallest normal number)."""
    return math.sqrt(width * torch.finfo(dtype).tiny / unit_roundoff(dtype))


def zero_unless(mask: Tensor, tensor: Tensor) -> Tensor:
    """The tensor, exactly zero where `mask` (B,) is False."""
    return torch.where(mask.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1)), tensor, torch.zeros_like(tensor))
