"""Composition of lattice losses by a tilted FFT, with every numerical error bounded.

Let a be the law of one loss (mass a_j at loss L_j) and K(s) = log Σ a_j·e^{sL_j}. The tilted law ã_j = a_j·e^{sL_j − K(s)}
has mass 1, sits where the composition's ε is if s is the saddle point, and

    A(ΣL = x) = e^{ΣK(s) − s·x}·ã^{*T}(x),

so double precision relative to the *tilted* law is relative precision of δ, however small δ is. Errors:

1. *Window.* A circular convolution of n points wraps the tilted mass outside a window onto it. That mass is at most
   e^{ΣK(s+θ) − ΣK(s) − θR} right of R and likewise left (Chernoff), with θ tried on a grid; nothing is assumed about it but its amount
   (`outside`): an upper bound charges it at the loss where it does most harm, a lower bound takes it off there.
2. *FFT.* Each output of an FFT of n points is a sum of inputs times products of log2(n) rounded twiddle factors, with
   log2(n) roundings more, so its error is at most γ·‖input‖₁ with γ = 8·2^-53·(log2 n + 4). ‖ã‖₁ = 1 (Higham 2002, section 24.1
   has the argument; 8 allows for complex products, radices up to 11 and twiddles that are off by a rounding).
3. *Power.* Binary powering of X̂ with |X̂ − X| <= γ gives |X̂^T − X^T| <= T·(γ + 3·2^-53)·(|X̂| + γ)^{T−1}. Frequencies
   with |X̂|^T < e^-80 are set to 0.
4. *Inverse FFT*, as 2. The sum of 2 to 4, divided by n, bounds the error of every entry (`error`).
5. *Tilting* rounds each ã_j by at most 2^-53·(4 + 2|s(L_j − L̄)|), relative; summed over j and steps this is a bound
   on misplaced mass and is added to `outside`. K, s·x and the factor in front are rounded by `log_error`; the masses
   of the lattice laws by their `mass_rounding`, each step once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from .lattice import LatticeLoss

Array = NDArray[np.float64]
Kinds = Sequence[tuple[LatticeLoss, int]]  # laws on one lattice step, and how often each

_U = 2.0**-53
_NEGLIGIBLE = -80.0  # log of |X|^T
_REACHES = np.array([1.5, 2.5, 4.0, 6.0, 9.0, 14.0, 22.0])  # θ of the Chernoff bounds, in 1/standard deviation


class TooManyPoints(Exception):
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
    tilted = [_tilt(law, tilt) for law, _ in kinds]
    mean = math.fsum(steps * t.centre for (_, steps), t in zip(kinds, tilted, strict=True))
    low, high, log_left_out = _window(kinds, tilted, mean, log_outside)
    offset = math.fsum(steps * law.offset for law, steps in kinds)
    start = math.floor((low - offset) / step)
    needed = math.ceil((high - offset) / step) - start + 2
    if needed > most_points:
        raise TooManyPoints(needed)
    points = scipy.fft.next_fast_len(max(needed, 16), real=True)
    spectrum, spread = _spectrum(kinds, tilted, points)
    mass = scipy.fft.irfft(spectrum, points)
    doubled = 2 * float(np.sum(np.abs(spectrum))) / points
    error = spread + _gamma(points) * doubled
    first_loss = offset + step * start
    total = math.fsum(steps * (t.log_constant + tilt * t.centre) for (_, steps), t in zip(kinds, tilted, strict=True))
    charged = math.fsum(steps * (abs(t.log_constant) + 2) for (_, steps), t in zip(kinds, tilted, strict=True))
    charged += math.fsum(steps * abs(tilt * t.centre) for (_, steps), t in zip(kinds, tilted, strict=True))
    largest = max(abs(first_loss), abs(first_loss + step * points))
    masses = math.fsum(steps * law.mass_rounding for law, steps in kinds)
    return Composed(
        mass=np.roll(mass, -(start % points)),
        first_loss=first_loss,
        step=step,
        tilt=tilt,
        log_scale=total,
        log_error=4 * _U * (charged + tilt * largest) + masses,
        error=error,
        outside=2 * math.exp(log_left_out) + math.fsum(n * t.rounding for (_, n), t in zip(kinds, tilted, strict=True)),
        infinity=math.fsum(steps * law.infinity for law, steps in kinds),
        loss_rounding=8 * _U * (largest + math.fsum(steps * abs(law.offset) for law, steps in kinds)),
        mean=mean,
    )


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
    lost = _U * float(np.sum(weights * (8 + 4 * np.abs(distance))))
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
            for theta in _REACHES / deviation:
                grown = math.fsum(
                    steps * _cumulant(t, law.loss, sign * theta) for (law, steps), t in zip(kinds, tilted, strict=True)
                )
                reach = min(reach, (grown - log_outside) / theta)
        ends.append(mean + sign * reach)
    padding = 2 * kinds[0][0].step
    return ends[0] - padding, ends[1] + padding, log_outside + math.log(2)


def _cumulant(tilted: _Tilted, loss: Array, theta: float) -> float:
    """log E e^{θ(L − centre)} under the tilted law; keeps digits when it is small, and adds its rounding."""
    distance = theta * (loss - tilted.centre)
    top = float(np.max(distance))
    if top > 600:
        with np.errstate(divide="ignore"):
            exponent = np.log(tilted.weights) + distance
        top = float(np.max(exponent))
        return top + math.log(float(np.sum(np.exp(exponent - top)))) + 1e-13 * abs(top)
    growth = float(np.sum(tilted.weights * np.expm1(distance)))
    return math.log1p(growth) + 1e-14 * (abs(growth) + float(np.sum(tilted.weights * np.abs(distance))))


def _gamma(points: int) -> float:
    return 8 * _U * (math.log2(points) + 4)


def _spectrum(kinds: Kinds, tilted: Sequence[_Tilted], points: int) -> tuple[NDArray[np.complex128], float]:
    """(Π X̂^T, bound on the error that its inverse transform inherits, per entry)."""
    gamma = _gamma(points)
    transforms, log_size = [], np.zeros(points // 2 + 1)
    for (law, steps), t in zip(kinds, tilted, strict=True):
        transforms.append(scipy.fft.rfft(_folded(t.weights, law.first, points)))
        with np.errstate(divide="ignore"):
            log_size += steps * np.log(np.abs(transforms[-1]) + gamma)
    kept = np.flatnonzero(log_size > _NEGLIGIBLE)
    product, relative = np.ones(len(kept), dtype=np.complex128), np.zeros(len(kept))
    for (_, steps), transform in zip(kinds, transforms, strict=True):
        part = transform[kept]
        product *= _power(part, steps)
        relative += steps * (gamma / (np.abs(part) + gamma) + 3 * _U)
    spectrum = np.zeros(points // 2 + 1, dtype=np.complex128)
    spectrum[kept] = product
    error = np.full(points // 2 + 1, math.exp(_NEGLIGIBLE))
    error[kept] = relative * np.exp(np.minimum(log_size[kept], math.fsum(n for _, n in kinds) * 2 * gamma))
    return spectrum, 2 * float(np.sum(error)) / points


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


def _power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """base^exponent by repeated squaring: about one rounding a unit of the exponent."""
    result = None
    while exponent:
        if exponent & 1:
            result = base.copy() if result is None else result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return np.ones_like(base) if result is None else result
