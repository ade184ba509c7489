"""What one record adds to the sum, and the noisy sum: integers, so that sums are exact and C is never exceeded.

A contribution is a vector of k loss differences with L2 norm at most C (k = 1: a number in [−C, C]), rounded towards
zero to a multiple of C·2^−32. Sums of multiples are exact in int64, whatever the order, the microbatches and the
number of processes. The noise is rounded to the same grid: since the sum lies on it, that is the rounding of the noisy
sum, a post-processing; and no low bit of what is released depends on the data in another way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...mechanisms import Noise
from ..processes import ALONE, Processes
from ..secure import Generator, draw_noise

GRID = 2**32  # multiples of C/GRID
MOST_RECORDS = 2**29  # GRID · MOST_RECORDS = 2^61: no sum leaves int64
_MOST_NOISE = 2.0**61
_MARGIN = 1 - 2.0**-40  # far above the roundings of a norm of k < 2^20 numbers in float64


def contributions(differences: Tensor, clipping_norm: float) -> Tensor:
    """Multiples (m, k), int64, of C/GRID with Σ_j n_ij² <= GRID²: the rows of `differences` (m, k), float64, clipped.

    A row with a number that is not finite becomes zero. Each row depends on itself alone.
    """
    finite = torch.isfinite(differences).all(dim=1, keepdim=True)
    rows = torch.where(finite, differences, torch.zeros_like(differences))
    if rows.shape[1] == 1:
        return (rows / clipping_norm).clamp(-1, 1).mul(GRID).trunc().to(torch.int64)
    largest = rows.abs().amax(dim=1, keepdim=True)
    shapes = rows / torch.where(largest > 0, largest, torch.ones_like(largest))
    norms = torch.linalg.vector_norm(shapes, dim=1, keepdim=True).clamp(min=1)
    sizes = torch.minimum(largest / clipping_norm, _MARGIN / norms)
    return (shapes * sizes).mul(GRID).trunc().to(torch.int64)


def noisy_sum(
    total: Tensor,
    *,
    mechanism: Noise,
    clipping_norm: float,
    generator: Generator,
    processes: Processes = ALONE,
) -> Tensor:
    """total·C/GRID + C·noise, (k,) float64, on the grid. `total` (k,) int64 is private data; noise in units of C.

    With several `processes`, `total` is the sum over all of theirs, and the first adds the noise to its own before:
    integers, so the result is that of one process to the bit. The only place where noise is added.
    """

    def noisy_share() -> Tensor:
        if not processes.is_first:
            return total.clone()
        noise = draw_noise(mechanism, tuple(total.shape), generator=generator, dtype=torch.float64, device="cpu")
        return total + noise.mul(GRID).round().clamp(-_MOST_NOISE, _MOST_NOISE).to(torch.int64)

    whole = processes.agreed("adding the noise", noisy_share)
    processes.sum_([whole])
    return whole.double() * (clipping_norm / GRID)
