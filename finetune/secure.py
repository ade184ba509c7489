"""Secure mode: noise and samples from a cryptographic generator, noisy sums rounded to a grid.

What it removes. torch's CPU generator is a Mersenne Twister: whoever knows enough of its output can solve for its state
and so for all other noise. ChaCha20 has no known way back from output to state, nor from one part of it to another. And
in floating point the low bits of sum + noise tell of the sum: which numbers can come out depends on it (Mironov, *On
Significance of the Least Significant Bits for Differential Privacy*, CCS 2012). Here sum and noise are added without
rounding error and the result is rounded once, to a multiple of a grid that does not depend on the data; so the same
numbers can come out whatever the data, each with about the probability that real arithmetic would give it.

What it does not remove. The samplers compute in floating point: their law is that of the mechanism up to rounding, and
nothing is proven about the rest. Neighbouring noise values are some 2^−50 of its size apart and a grid cell is 2^−16 of
it, so cells hold some 2^34 of them; that is an argument, not a proof of the ideal distribution, still less of an exact
discrete one. Times, memory and power are not hidden either.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..mechanisms import Mechanism, Noise

Generator = torch.Generator | np.random.Generator
"""Where noise and samples come from: numpy's kind is the secure one."""
_FINENESS = (
    16  # binary digits between the noise and its grid: rounding adds 2^−32/12 of the squared size to the variance
)
_MEDIAN = math.log(1 / 4)  # log P(X > x) at the median x of |X|


def cryptographic_generator() -> np.random.Generator:
    """ChaCha20 under a 256-bit key from the operating system. Raises ImportError with the pip command."""
    try:
        from randomgen import ChaCha  # pyright: ignore[reportMissingImports]  # the extra `secure`
    except ImportError as error:
        raise ImportError("secure=True needs randomgen: pip install 'optnoise[secure]'") from error
    bits: Any = ChaCha(key=secrets.randbits(256), rounds=20)
    return np.random.Generator(bits)


def check_secure(secure: bool, seed: int | None, *, name: str = "seed") -> None:
    """Raise ValueError for a seed in secure mode, ImportError without its package; nothing unless `secure`."""
    if not isinstance(secure, bool):
        raise ValueError(f"expected secure to be True or False, got {secure=}")
    if secure and seed is not None:
        raise ValueError(f"expected no {name} with secure=True, got {name}={seed}: a run with a seed is not private")
    if secure:
        cryptographic_generator()


def draw_noise(
    mechanism: Noise,
    shape: Sequence[int],
    *,
    generator: Generator,
    device: torch.device | str | None = None,
    dtype: torch.dtype,
) -> Tensor:
    """Noise of `shape` in units of C, from either kind of generator; numpy's draws float64 on the CPU first."""
    if isinstance(generator, torch.Generator):
        return mechanism.sample(shape, generator=generator, device=device, dtype=dtype)
    noise = torch.from_numpy(mechanism.sample_numpy(tuple(shape), rng=generator))
    return noise.to(device=device or "cpu", dtype=dtype)


def uniform(count: int, generator: Generator) -> Tensor:
    """`count` multiples of 2^−53 in [0, 1), float64, on the CPU."""
    if isinstance(generator, torch.Generator):
        return torch.rand(count, generator=generator, dtype=torch.float64)
    return torch.from_numpy(generator.random(count))


def grid_of(mechanism: Mechanism, scale: float) -> float:
    """The grid of a released sum with `scale`·noise: a power of two, 2^−17 to 2^−16 of the noise's median size.

    It depends on the mechanism and on `scale` (C, or a group's share of it; units of the sum), never on data.
    """
    size = scale * float(mechanism.tail_quantile(_MEDIAN))
    return 2.0 ** (math.frexp(size)[1] - 1 - _FINENESS)


def rounded_sum(total: Tensor, noise: Tensor, grid: float) -> Tensor:
    """The multiple of `grid` (a power of two) nearest to total + noise as real numbers, float64; ties go to the even.

    `total` (n,) of any float dtype, `noise` (n,) float64. Exactly so, although the addition rounds: s, the rounded sum,
    lies on the same side of every half-way point as the real one or on the point itself, and there the addition's
    exact error (Knuth's TwoSum) decides. So the result is a function of the real sum alone.
    """
    a, b = total.double() / grid, noise / grid  # exact: a power of two
    s = a + b
    result = s.round()
    ties = (s - s.floor() == 0.5).nonzero(as_tuple=True)
    a, b, s = a[ties], b[ties], s[ties]
    error = (a - (s - (s - a))) + (b - (s - a))
    result[ties] = torch.where(error == 0, result[ties], s.floor() + (error > 0))
    return result * grid
