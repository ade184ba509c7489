"""Standard normal numbers in float32, at a third of the price of `torch.randn` on a CPU.

Box–Muller on the bits of Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, Random123), which is what torch draws from on
a GPU. Word i of the generator depends on (key, i) alone, so the loops have no order and the compiler makes vector code
of them; what `torch.randn` pays for is the Mersenne Twister, one word after the other. Key and upper half of the
counter are 128 bits of the caller's torch generator, drawn anew for each call.

u of the radius √(−2·log u) is (n + 1/2)/2^31 for a 31-bit n: no number is beyond √(64·log 2) = 6.66, where a mass of
2.8e-11 is missing. The angle has 32 bits. Logarithm and sine are polynomials, a few units of the last place off.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORDS = 4096  # of random bits that are made at a time: they stay in the first cache
_LEAST = 2**20  # coordinates that are worth a thread
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def _single(*numbers: float) -> tuple[np.float32, ...]:
    return tuple(np.float32(number) for number in numbers)


# (log(1 + f) − f + f²/2)/f³ on [√½ − 1, √2 − 1], and log 2 in two parts (Cephes, logf).
_LOG = _single(
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_LOG2 = _single(0.693359375, -2.12194440e-4)
# The series of sine and cosine up to x¹¹ and x¹²: on [−π/2, π/2] the rests are below 6e-8 and 7e-9.
_SINE = _single(*((-1) ** (n // 2) / math.factorial(n) for n in (11, 9, 7, 5, 3)))
_COSINE = _single(*((-1) ** (n // 2) / math.factorial(n) for n in (12, 10, 8, 6, 4, 2)))

_njit = numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"contract", "nsz"})
_inline = numba.njit(inline="always", error_model="numpy", fastmath={"contract", "nsz"})


def fill(out: torch.Tensor, scale: float, generator: torch.Generator) -> None:
    """Overwrite `out`, a contiguous float32 tensor on the CPU, by independent normal numbers of standard deviation
    `scale`."""
    _in_threads(out, True, scale, 1.0, generator)


def add(out: torch.Tensor, scale: float, divisor: float, generator: torch.Generator) -> None:
    """out = (out + normal numbers of standard deviation `scale`) / divisor in one pass; `out` as in `fill`."""
    _in_threads(out, False, scale, divisor, generator)


def _in_threads(out: torch.Tensor, fresh: bool, scale: float, divisor: float, generator: torch.Generator) -> None:
    """In as many threads as torch may use. The numbers do not depend on how many there are."""
    flat = out.view(-1).numpy()
    words = torch.randint(0, 2**32, (4,), generator=generator, dtype=torch.int64).numpy().astype(np.uint64)
    size = max(_LEAST, -(-len(flat) // torch.get_num_threads()))
    size += -size % _WORDS
    starts = range(0, len(flat), size)

    def part(start: int) -> None:
        _run(flat[start : start + size], fresh, np.float32(scale), np.float32(divisor), np.uint64(start // 4), *words)

    if len(starts) <= 1:
        for start in starts:
            part(start)
        return
    with ThreadPoolExecutor(len(starts)) as pool:
        list(pool.map(part, starts))


@_njit
def _run(flat: Any, fresh: Any, scale: Any, divisor: Any, first: Any, key0: Any, key1: Any, up0: Any, up1: Any) -> None:
    bits = np.empty(_WORDS, np.uint32)
    normal = np.empty(_WORDS, np.float32)
    for start in range(0, len(flat), _WORDS):
        philox(bits, first + np.uint64(start // 4), up0, up1, key0, key1)
        box_muller(bits, scale, normal)
        part = flat[start : start + _WORDS]
        if fresh:
            for i in range(len(part)):
                part[i] = normal[i]
        else:
            for i in range(len(part)):
                part[i] = (part[i] + normal[i]) / divisor


@_njit
def philox(out: Any, first: Any, upper0: Any, upper1: Any, key0: Any, key1: Any) -> None:
    """Philox4x32-10 at the counters first, first + 1, …: word j of the i-th stands at out[j·len(out)/4 + i].

    A counter is (low half of 64 bits, high half, upper0, upper1); all arguments are uint64 and below 2^32, but `first`.
    The four words are kept in 64 bits each, with rubbish above the lower 32 until they are masked.
    """
    count = len(out) // 4
    w, x, y, z = out[:count], out[count : 2 * count], out[2 * count : 3 * count], out[3 * count : 4 * count]
    for i in range(count):
        c0, c1, c2, c3 = first + np.uint64(i), (first + np.uint64(i)) >> _HALF, upper0, upper1
        k0, k1 = key0, key1
        for _ in range(_ROUNDS):
            p0, p1 = _MULTIPLIERS[0] * (c0 & _LOW), _MULTIPLIERS[1] * (c2 & _LOW)
            c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1, (p0 >> _HALF) ^ c3 ^ k1, p0
            k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
        w[i], x[i], y[i], z[i] = np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3)


@_njit
def box_muller(bits: Any, scale: Any, out: Any) -> None:
    """Normal numbers times `scale` from as many words: word i of the first half gives the radius, of the second the
    angle, of the numbers at i in both halves of `out`."""
    half = len(out) // 2
    radii, angles, first, second = bits[:half], bits[half:], out[:half], out[half:]
    one, two = np.float32(1), np.float32(2)
    for i in range(half):
        radius = scale * np.float32(np.sqrt(-two * _log_uniform(np.int32(radii[i] >> np.uint32(1)))))
        sine, cosine = _sine_cosine(np.float32(np.int32(angles[i])) * np.float32(math.pi * 2.0**-32))
        first[i] = radius * two * sine * cosine  # at twice the angle: the polynomials need a quarter of the circle
        second[i] = radius * (one - two * sine * sine)


@_inline
def _log_uniform(n: Any) -> Any:
    """log((n + ½)/2³¹) of an n below 2³¹: near 1 from the distance to 1, which float32 holds in full."""
    u = (np.float32(n) + np.float32(0.5)) * np.float32(2.0**-31)
    bits = _bits(u)
    exponent = (bits - np.int32(0x3F3504F3)) >> np.int32(23)  # what is left is in [√½, √2)
    below = np.float32(np.int32(2**31 - 1) - n) + np.float32(0.5)
    f = _float(bits - (exponent << np.int32(23))) - np.float32(1)
    f = -below * np.float32(2.0**-31) if exponent == 0 else f
    square, whole = f * f, np.float32(exponent)
    tail = f * square * _polynomial(_LOG, f) + whole * _LOG2[1] - np.float32(0.5) * square
    return f + tail + whole * _LOG2[0]


@_inline
def _sine_cosine(x: Any) -> Any:
    """Sine and cosine on [−π/2, π/2]."""
    square = x * x
    return x + x * square * _polynomial(_SINE, square), np.float32(1) + square * _polynomial(_COSINE, square)


@_inline
def _polynomial(coefficients: Any, x: Any) -> Any:
    """Horner's scheme; the highest power first."""
    total = np.float32(0)
    for coefficient in coefficients:
        total = total * x + coefficient
    return total


def _bit_cast(result: Any, argument: Any, bits: ir.Type) -> Any:
    """A compiled function that reads the bits of its argument as another type."""

    def typed(context: Any, x: Any) -> Any:
        return result(argument), lambda _context, builder, _signature, args: builder.bitcast(args[0], bits)

    return intrinsic(typed)


_bits = _bit_cast(types.int32, types.float32, ir.IntType(32))
_float = _bit_cast(types.float32, types.int32, ir.FloatType())
