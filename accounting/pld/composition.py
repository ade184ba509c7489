"""Composition of lattice losses by a tilted FFT, with every numerical error bounded.

Let a be the law of one loss (mass a_j at loss L_j) and K(s) = log Σ a_j·e^{sL_j}. The tilted law ã_j = a_j·e^{sL_j −
K(s)} has mass 1, sits where the composition's ε is if s is the saddle point, and

    A(ΣL = x) = e^{ΣK(s) − s·x}·ã^{*T}(x),

so double precision relative to the *tilted* law is relative precision of δ, however small δ is. Errors:

1. *Window.* A circular convolution of n points wraps the tilted mass outside a window onto it. That mass is at most
   e^{ΣK(s+θ) − ΣK(s) − θR} right of R and likewise left (Chernoff), for any θ; nothing is assumed about it but its
   amount (`outside`): an upper bound charges it at the loss where it does most harm, a lower bound takes it off there.
2. *FFT.* Each output of an FFT of n points is a sum of inputs times products of log2(n) rounded twiddle factors, with
   log2(n) roundings more, so its error is at most γ·‖input‖₁ with γ = 8·2^-53·(log2 n + 4) (Higham 2002, section 24.1
   has the argument; 8 allows for complex products, radices up to 11 and twiddles that are off by a rounding). For
   X(z) = Σ ã_j z^{j−c} directly this is γ. Summed by parts twice, with V_j the tail sums of ã and U_j those of V (both
   from the side on which they fall),

       X(z) − 1 = (z−1)·V(1) + (z−1)²·U(z),    V(1) = E[j − c],    ‖U‖₁ = O(E[(j−c)²]),

   and the error is |z−1|²·γ·‖U‖₁ and some roundings of X − 1: at the frequencies that survive T steps, |z−1|² is of
   order 1/(T·variance), so T times this does not grow with T. For each frequency the better of the two is used.
3. *Power.* X^T = exp(T·log(1 + (X−1))): if X̂ is within e of X, X̂^T is within T·(e + rounding)·(|X̂| + e)^{T−1} of
   X^T. Frequencies with |X̂|^T < e^-80 are set to 0.
4. *Inverse FFT*, as 2. The sum of 2 to 4, divided by n, bounds the error of every entry (`error`).
5. *Tilting* rounds each ã_j by at most 2^-53·(24 + 4|s(L_j − L̄)| + 2|s·L̄|), relative. The constant part is a
   factor on the whole composition, like the lattice masses' `mass_rounding` (each step once) and the rounding of K, of
   s·x and of the factor in front: all in `log_error`. The other part, averaged over j and summed over the steps, bounds
   misplaced mass and is added to `outside`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from .._numba import njit
from .lattice import LatticeLoss

Array = NDArray[np.float64]
Kinds = Sequence[tuple[LatticeLoss, int]]  # laws on one lattice step, and how often each

_U = 2.0**-53
_NEGLIGIBLE = -80.0  # log of |X|^T
_BY_PARTS_FROM = 32  # steps; below it the direct transform is as good


class Unresolved(Exception):
    """Floating-point numbers or memory do not suffice to place this composition on a lattice."""


class TooManyPoints(Unresolved):
    """The window needs more lattice points than allowed; `.points` says how many."""

    def __init__(self, points: float) -> None:
        super().__init__(f"{points:.3g} lattice points")
        self.points = points


@dataclasses.dataclass(frozen=True)
class Composed:
    """The tilted law of a composed loss on a window of the lattice.

    A(ΣL = loss_i) lies within exp(log_scale − tilt·loss_i)·(mass_i ± error), up to a factor exp(±log_error), apart from
    tilted mass `outside` at unknown losses and mass `infinity` at ∞.

    Attributes:
        mass: shape (points,), tilted; may be slightly negative by rounding.
        first_loss: loss of mass[0].
        step: lattice step.
        tilt: s >= 0.
        log_scale, log_error, error, outside, infinity: as above.
        loss_rounding: bound on the rounding error of every loss on the window.
        mean: the tilted mean of the loss, about where ε is.
    """

    mass: Array
    first_loss: float
    step: float
    tilt: float
    log_scale: float
    log_error: float
    error: float
    outside: float
    infinity: float
    loss_rounding: float
    mean: float


@dataclasses.dataclass(frozen=True)
class _Tilted:
    """One law tilted by e^{s(L − centre)}/constant: weights of mass 1, with log constant = K(s) − s·centre."""

    weights: Array
    centre: float
    log_constant: float
    rounding: float


def compose(kinds: Kinds, *, tilt: float, log_outside: float, most_points: int) -> Composed:
    """The law of the sum of all losses, tilted by `tilt`; tilted mass about exp(`log_outside`) is left outside.

    Raises TooManyPoints if the window is longer than `most_points`.
    """
    step = kinds[0][0].step
    if not all(np.isfinite(law.mass).all() and law.mass.any() for law, _ in kinds):
        raise Unresolved("a lattice law without finite masses")
    tilted = [_tilt(law, tilt) for law, _ in kinds]
    mean = math.fsum(steps * t.centre for (_, steps), t in zip(kinds, tilted, strict=True))
    low, high, log_left_out = _window(kinds, tilted, mean, log_outside)
    offset = math.fsum(steps * law.offset for law, steps in kinds)
    start, points = _lattice(low, high, offset, step, most_points)
    spectrum, spread = _spectrum(kinds, tilted, points)
    doubled = 2 * float(np.sum(np.abs(spectrum))) / points
    mass = np.asarray(scipy.fft.irfft(spectrum, points, overwrite_x=True))
    del spectrum
    error = spread + _gamma(points) * doubled
    first_loss = offset + step * start
    total = math.fsum(steps * (t.log_constant + tilt * t.centre) for (_, steps), t in zip(kinds, tilted, strict=True))
    charged = math.fsum(steps * (abs(t.log_constant) + 12) for (_, steps), t in zip(kinds, tilted, strict=True))
    charged += math.fsum(steps * abs(tilt * t.centre) for (_, steps), t in zip(kinds, tilted, strict=True))
    largest = max(abs(first_loss), abs(first_loss + step * points))
    masses = math.fsum(steps * law.mass_rounding for law, steps in kinds)
    numbers = (error, total, charged, masses, *(t.rounding for t in tilted))
    if not (all(math.isfinite(number) for number in numbers) and np.isfinite(mass).all()):
        raise Unresolved("numbers out of range")
    return Composed(
        mass=np.roll(mass, -(start % points)),
        first_loss=first_loss,
        step=step,
        tilt=tilt,
        log_scale=total,
        log_error=4 * _U * (charged + tilt * largest) + masses,
        error=error,
        outside=2 * math.exp(log_left_out) + math.fsum(n * t.rounding for (_, n), t in zip(kinds, tilted, strict=True)),
        infinity=math.fsum(steps * law.infinity for law, steps in kinds) * (1 + 1e-9),
        loss_rounding=8 * _U * (largest + math.fsum(steps * abs(law.offset) for law, steps in kinds)),
        mean=mean,
    )


def _lattice(low: float, high: float, offset: float, step: float, most_points: int) -> tuple[int, int]:
    """Index of the first lattice point of the window [low, high], and how many points a fast transform takes."""
    if not (math.isfinite(low) and math.isfinite(high) and abs(low / step) < 2**52 and abs(high / step) < 2**52):
        raise Unresolved("a window out of range")
    start = math.floor((low - offset) / step)
    needed = math.ceil((high - offset) / step) - start + 2
    if needed > most_points:
        raise TooManyPoints(needed)
    return start, int(scipy.fft.next_fast_len(max(needed, 16), real=True))  # type: ignore[arg-type]


def _tilt(law: LatticeLoss, tilt: float) -> _Tilted:
    loss = law.loss
    log_mass = np.log(law.mass, out=np.full(law.mass.shape, -np.inf), where=law.mass > 0)
    exponent = log_mass + tilt * loss
    peak = np.exp(exponent - np.max(exponent))
    centre = float(np.sum(peak * loss) / np.sum(peak))
    distance = tilt * (loss - centre)
    largest = float(np.max(np.where(law.mass > 0, distance, -np.inf)))
    if largest > 600:  # far from one step's mass the factor would overflow: work from the logarithms
        weights = np.exp(log_mass + distance - largest)
        weights[law.mass == 0] = 0.0
        log_constant = largest
    else:
        weights = law.mass * np.exp(np.minimum(distance, 700.0))
        log_constant = 0.0
    total = float(np.sum(weights))
    weights /= total
    lost = _U * float(np.sum(weights * 4 * np.abs(distance)))
    if log_constant:
        lost += _U * float(np.sum(weights * 2 * np.abs(np.where(law.mass > 0, log_mass, 0.0))))
    return _Tilted(weights, centre, log_constant + math.log(total), lost)


def _window(kinds: Kinds, tilted: Sequence[_Tilted], mean: float, log_outside: float) -> tuple[float, float, float]:
    """(low, high, log of the tilted mass that may lie outside [low, high])."""
    variance = 0.0
    for (law, steps), t in zip(kinds, tilted, strict=True):
        variance += steps * float(np.sum(t.weights * (law.loss - t.centre) ** 2))
    deviation = max(math.sqrt(max(variance, 0.0)), kinds[0][0].step)
    lowest = math.fsum(steps * float(law.loss[0]) for law, steps in kinds)
    highest = math.fsum(steps * float(law.loss[-1]) for law, steps in kinds)
    ends = []
    for sign, extreme in ((-1.0, lowest), (1.0, highest)):
        reach = abs(extreme - mean)
        if reach > 6 * deviation:
            reach = min(reach, _chernoff_reach(kinds, tilted, sign, deviation, log_outside))
        ends.append(mean + sign * reach)
    padding = 2 * kinds[0][0].step
    return ends[0] - padding, ends[1] + padding, log_outside + math.log(2)


def _chernoff_reach(
    kinds: Kinds, tilted: Sequence[_Tilted], sign: float, deviation: float, log_outside: float
) -> float:
    """Least (log E e^{θ|sum − mean|} − log_outside)/θ over θ = 5·1.7^k/deviation: it falls, then rises with θ."""

    def reach(k: int) -> float:
        theta = 5.0 * 1.7**k / deviation
        parts = zip(kinds, tilted, strict=True)
        grown = math.fsum(steps * _cumulant(t, law.loss, sign * theta) for (law, steps), t in parts)
        return (grown - log_outside) / theta

    best, k = reach(0), 0
    direction = 1 if reach(1) < best else -1
    while abs(k) < 40 and (following := reach(k + direction)) < best:
        best, k = following, k + direction
    return best


def _cumulant(tilted: _Tilted, loss: Array, theta: float) -> float:
    """log E e^{θ(L − centre)} under the tilted law; keeps digits when it is small, and adds its rounding."""
    distance = theta * (loss - tilted.centre)
    top = float(np.max(distance))
    if top > 600:
        with np.errstate(divide="ignore"):
            exponent = np.log(tilted.weights) + distance
        top = float(np.max(exponent))
        return top + math.log(float(np.sum(np.exp(exponent - top)))) + 1e-13 * abs(top)
    terms = tilted.weights * np.expm1(distance)
    growth = float(np.sum(terms))
    return math.log1p(growth) + 1e-14 * float(np.sum(np.abs(terms))) / (1 + growth)


def _gamma(points: int) -> float:
    return 8 * _U * (math.log2(points) + 4)


def _spectrum(kinds: Kinds, tilted: Sequence[_Tilted], points: int) -> tuple[NDArray[np.complex128], float]:
    """(Π X̂^T, bound on the error that its inverse transform inherits, per entry)."""
    half = points // 2 + 1
    log_size, relative, turns = np.zeros(half), np.zeros(half), 0
    exponent = np.empty(0, dtype=np.complex128)
    for (law, steps), t in zip(kinds, tilted, strict=True):
        centre = round((t.centre - law.offset) / law.step)
        part = _log_power(t.weights, law.first - centre, points, steps, log_size, relative)
        if len(exponent):
            exponent += part
        else:
            exponent = part
        turns += steps * centre
    if not log_size.max() <= 1:
        raise Unresolved("rounding outweighs the transform")
    return exponent, 2 * _power(exponent, log_size, relative, turns % points, points) / points


def _log_power(
    weights: Array, first: int, points: int, steps: int, log_size: Array, relative: Array
) -> NDArray[np.complex128]:
    """T·log X(z) at the `points`-th roots of unity z, for weights at indices from `first` on.

    Adds T·log(|X| + e) to `log_size`, e the bound on the error of X, and the error of T·log X to `relative`; where
    `log_size` is found negligible, the result and its error are left out.
    """
    gamma = _gamma(points) + (len(weights) // points + 2) * _U  # folding adds that many rows
    direct = _fft(_folded(weights, first, points))
    twice, mean, by_angle, by_square = np.empty(0, dtype=np.complex128), 0.0, 0.0, 0.0
    if steps >= _BY_PARTS_FROM:
        index = first + np.arange(len(weights), dtype=np.float64)
        mean = float(np.sum(weights * index))
        by_angle = 40 * _U * float(np.sum(weights * np.abs(index)))
        sums = _tail_sums(_tail_sums(weights, first), first)
        by_square = float(np.sum(np.abs(sums))) * (gamma + 8 * _U * math.sqrt(len(weights) + 16))
        twice = _fft(_folded(sums, first, points))
    _logarithms(direct, twice, mean, by_angle, by_square, gamma + 4 * _U, float(steps), points, log_size, relative)
    return direct


@njit()
def _logarithms(direct, twice, mean, by_angle, by_square, direct_error, steps, points, log_size, relative):  # pyright: ignore
    """X in `direct` becomes T·log X (module docstring, 2 and 3)."""
    for j in range(len(direct)):
        part, error = direct[j] - 1, direct_error
        if len(twice):
            angle = 2 * math.pi * j / points
            sine = math.sin(angle / 2)
            length = 2 * abs(sine)
            step = complex(-2 * sine * sine, -2 * sine * math.cos(angle / 2))  # z − 1 without cancellation
            parts = step * (mean + step * twice[j])
            parts_error = length * (length * by_square + by_angle) + 8 * _U * abs(parts)
            if parts_error < error:
                part, error = parts, parts_error
        size = abs(1 + part)
        log_size[j] += steps * math.log(size + error)
        if log_size[j] <= 2 * _NEGLIGIBLE:  # other kinds cannot raise it: |X| <= 1
            direct[j], log_size[j] = 0.0, -math.inf
            continue
        a, b = part.real, part.imag
        if size < 0.5:  # a zero: its power is 0 all the same
            real = max(math.log(math.hypot(1 + a, b)), -1e5)
        else:
            real = 0.5 * math.log1p(max(a * (2 + a) + b * b, -0.9))
        own = error + 6 * _U * abs(part) + (4 * _U if size < 0.5 else 0.0)
        relative[j] += steps * own / (size + error)
        direct[j] = steps * complex(real, math.atan2(b, 1 + a))


@njit()
def _power(exponent, log_size, relative, turns, points):  # pyright: ignore
    """exp(exponent)·z^turns, in place; returns the sum of its errors."""
    lost = 0.0
    for j in range(len(exponent)):
        if log_size[j] <= _NEGLIGIBLE:
            exponent[j] = 0.0
            lost += math.exp(_NEGLIGIBLE)
            continue
        phase = -2 * math.pi * ((j * turns) % points) / points  # below 2^53: exact
        own = relative[j] + 8 * _U * (abs(exponent[j]) + 2 * math.pi)
        lost += own * math.exp(log_size[j])
        size = math.exp(exponent[j].real)
        angle = exponent[j].imag + phase
        exponent[j] = complex(size * math.cos(angle), size * math.sin(angle))
    return lost * (1 + len(exponent) * _U)


def _fft(values: Array) -> NDArray[np.complex128]:
    return np.asarray(scipy.fft.rfft(values))


def _tail_sums(values: Array, first: int) -> Array:
    """Σ of the values beyond each index j >= 0, and minus Σ of those up to each j < 0; same indices as `values`."""
    zero = min(max(-first, 0), len(values))
    result = np.empty_like(values)
    result[:zero] = -_running_sums(values[:zero])
    beyond = _running_sums(values[zero:][::-1])[::-1]
    result[zero:] = np.append(beyond[1:], 0.0)
    if first > 0 or first + len(values) < 0:  # between 0 and the indices the tail sum would be the total
        raise Unresolved("the mean of a loss rounds to a point outside its lattice")
    return result


def _running_sums(values: Array) -> Array:
    """Cumulative sums in two levels: relative error of about 2·√n roundings for values of one sign."""
    width = max(math.isqrt(len(values)), 1)
    blocks = np.zeros(-(-max(len(values), 1) // width) * width)
    blocks[: len(values)] = values
    blocks = np.cumsum(blocks.reshape(-1, width), axis=1)
    blocks[1:] += np.cumsum(blocks[:-1, -1])[:, None]
    return blocks.reshape(-1)[: len(values)]


def _folded(weights: Array, first: int, points: int) -> Array:
    """`weights` at lattice indices first, first+1, … modulo `points`."""
    start, size = first % points, len(weights)
    if start + size <= points:
        result = np.zeros(points)
        result[start : start + size] = weights
        return result
    whole = np.zeros(-(-(start + size) // points) * points)
    whole[start : start + size] = weights
    return whole.reshape(-1, points).sum(axis=0)
