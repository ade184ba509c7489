"""Drawing noise with torch. The generator is the only source of randomness; everything is float64 until the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .base import Mechanism


def draw(
    mechanism: Mechanism,
    shape: tuple[int, ...],
    *,
    generator: torch.Generator,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """Noise of `shape` on `device` (default: the generator's) as `dtype` (default: float32)."""
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"expected generator to be a torch.Generator, got generator={generator!r}")
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"expected dtype to be a floating-point type, got dtype={dtype}")
    noise = mechanism._draw(shape, generator=generator)
    return noise.to(device=device or generator.device, dtype=dtype or torch.float32)


def standard_exponential(shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
    """Exp(1) draws in float64, from the 53 random bits of a uniform u in [0, 1): −log(1 − u), never infinite."""
    return -torch.log1p(-uniform(shape, generator=generator))


def uniform(shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
    """Uniform draws on [0, 1) in float64, on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)


def with_random_sign(magnitude: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
    """The magnitudes with independent fair signs."""
    bits = torch.randint(0, 2, magnitude.shape, generator=generator, device=magnitude.device, dtype=torch.int8)
    return torch.where(bits == 1, magnitude, -magnitude)


def by_inversion(mechanism: Mechanism, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
    """|X| solves log P(|X| > x) = −E with E ~ Exp(1), so the tail is as exact as the exponential draw."""
    exponential = standard_exponential(shape, generator=generator)
    magnitude = mechanism.tail_quantile(-exponential.cpu().numpy() - math.log(2))
    return with_random_sign(torch.from_numpy(magnitude).to(generator.device), generator=generator)
