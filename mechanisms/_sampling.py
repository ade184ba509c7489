"""Drawing noise with torch. The generator is the only source of randomness; everything is float64 until the end, but
for long draws of Gaussian noise (see `Gaussian._draw`).
"""

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


def log_gamma(k: float, count: int, *, generator: torch.Generator) -> torch.Tensor:
    """Logs of `count` Gamma(k) draws, float64: by rejection (Marsaglia and Tsang 2000); for k < 1 of G_{k+1}·V^{1/k},

    V uniform.
    """
    draws = torch.log(_gamma(k if k >= 1 else k + 1, count, generator=generator))
    return draws if k >= 1 else draws - standard_exponential((count,), generator=generator) / k


def _gamma(k: float, count: int, *, generator: torch.Generator) -> torch.Tensor:
    """Gamma(k) draws, k >= 1, float64: w·(1 + c·x)³ for normal x, w = k − 1/3, c = 1/√(9w), accepted if

    −e < x²/2 + w·(1 − v + log v), v = (1 + c·x)³ > 0, e ~ Exp(1).
    """
    w = k - 1 / 3
    c = 1 / math.sqrt(9 * w)
    draws = torch.empty(count, dtype=torch.float64, device=generator.device)
    missing = torch.arange(count, device=generator.device)
    while len(missing):
        size = len(missing)
        x = torch.randn(size, generator=generator, device=generator.device, dtype=torch.float64)
        u = c * x
        valid = u > -1
        excess = 3 * torch.log1p(torch.where(valid, u, 0.0)) - u * (3 + u * (3 + u))  # log v − (v − 1)
        bound = x * x / 2 + w * excess
        accepted = valid & (-standard_exponential((size,), generator=generator) < bound)
        draws[missing[accepted]] = w * (1 + u[accepted]) ** 3
        missing = missing[~accepted]
    return draws
