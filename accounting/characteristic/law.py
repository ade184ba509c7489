"""The law of the privacy loss of one release, exponentially tilted, and its characteristic function.

With w = q·(e^ℓ − 1), ℓ = log dP/dQ, the loss is L = log(1+w) for *remove* and −log(1+w) for *add*, and

    E_A[e^{sL}] = E_Q[(1+w)^β],   β = s+1 (remove), −s (add),

here a sum over the nodes of `nodes`. Many steps multiply errors, so nothing of order 1 is subtracted
from what may be as small as q². As E_Q[w] = 0,

    E_A[e^{sL}] − 1 = E_Q[(1+w)^β − 1 − βw],    E_Q[(1+w)^β·log(1+w)] = E_Q[((1+w)^β − 1)·log(1+w) + log(1+w) − w],

and, under the law tilted by e^{sL} (weights ω, mean m from the line above),

    E_A[e^{(s+iy)L}]/E_A[e^{sL}] − 1 = Σ ω·(e^{iyL} − 1 − iyL) + iy·m.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._numba import njit
from ..cells import largest_loss
from ..event import Event
from ..poisson import sampled_loss
from .nodes import LARGE, Resolution, log_sum, nodes, sampled

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

_NO_WEIGHT = 1e-30
PERIODS = 3.0  # of a lattice that spans the loss; whether |E e^{iyL}| comes back is looked for this far


class Cumulants(NamedTuple):
    """log E_A[e^{sL}] and its first two derivatives in s."""

    value: float
    mean: float
    variance: float


class GaussianLaw:
    """The loss of unsampled Gaussian noise: normal with mean μ²/2 and variance μ², all in closed form."""

    largest = math.inf
    span = 0.0
    size = 1

    def __init__(self, event: Event):
        self._variance = event.shift**2 * event.mechanism.fisher_information

    def cumulants(self, s: float) -> Cumulants:
        return Cumulants(self._variance * s * (s + 1) / 2, self._variance * (s + 0.5), self._variance)

    def log_moments(self, s: Array) -> Array:
        return self._variance * s * (s + 1) / 2

    def log_ratio(self, s: float, step: float, count: int) -> ComplexArray:
        y = step * np.arange(count)
        return -0.5 * self._variance * y * y + 1j * y * (self._variance * (s + 0.5))


class NodeLaw:
    """The loss of one release at quadrature nodes.

    Attributes:
        largest: what the loss never exceeds.
        span: largest less smallest loss where the two ends may be atoms, or nearly; 0 if there are none.
    """

    def __init__(self, event: Event, remove: bool, resolution: Resolution):
        rate = event.sampling_rate
        self.largest, self.span = _ends(event, remove)
        if self.span and 0 < resolution.frequency < PERIODS * 2 * math.pi / self.span:
            beyond = resolution.frequency + (PERIODS + 1) * 2 * math.pi / self.span  # for `return_level`
            resolution = resolution._replace(frequency=beyond)
        log_p, self._log_q, loss = nodes(event, remove, resolution)
        self._remove = remove
        self._sign = 1.0 if remove else -1.0
        self._excess, self._log_ratio = sampled(loss, rate)
        self._q = np.exp(self._log_q)
        self._q_excess = rate * (np.exp(log_p) - self._q)  # w·Q, with no e^ℓ
        self._plain = (np.abs(self._excess) < 1) & (loss < LARGE)

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self._q)

    def _beta(self, s: float) -> float:
        return s + 1 if self._remove else -s

    def cumulants(self, s: float) -> Cumulants:
        return self._tilted(s)[0]

    def log_moments(self, s: Array) -> Array:
        beta = s + 1 if self._remove else -s
        return log_sum(self._log_q + beta[:, None] * self._log_ratio)

    def _tilted(self, s: float) -> tuple[Cumulants, Array]:
        beta = self._beta(s)
        power = beta * self._log_ratio
        exponent = self._log_q + power
        total = float(log_sum(exponent))
        weight = np.exp(exponent - total)
        weight /= np.sum(weight)  # the rounding of a large exponent
        mean = float(weight @ self._log_ratio)
        if abs(total) < 0.5:
            plain = self._plain & (np.abs(power) < 1)
            growth = np.expm1(np.where(plain, power, 0.0))
            absolute = np.exp(exponent)
            moment = np.where(
                plain, self._q * (growth - beta * self._excess), absolute - self._q - beta * self._q_excess
            )
            total = math.log1p(float(np.sum(moment)))
            first = np.where(
                plain,
                self._q * (growth * self._log_ratio + (self._log_ratio - self._excess)),
                absolute * self._log_ratio - self._q_excess,
            )
            mean = float(np.sum(first)) * math.exp(-total)
        variance = float(weight @ (self._log_ratio - mean) ** 2)
        return Cumulants(total, self._sign * mean, variance), weight

    def log_ratio(self, s: float, step: float, count: int, start: float = 0.0) -> ComplexArray:
        """log E_A[e^{zL}]/E_A[e^{sL}] at z = s + i(start + step·k), k < count; some branch of the logarithm."""
        cumulants, weight = self._tilted(s)
        loss = self._sign * self._log_ratio
        keep = weight > _NO_WEIGHT
        columns = max(1, math.isqrt(count))
        rows = -(-count // columns)
        outer, inner = start + step * columns * np.arange(rows), step * np.arange(columns)
        real, imaginary = _excess(weight[keep], loss[keep], outer, inner)
        y = (outer[:, None] + inner).ravel()[:count]
        return _log1p(real.ravel()[:count] + 1j * (imaginary.ravel()[:count] + y * cumulants.mean))

    def return_level(self, s: float, frequency: float) -> float:
        """max of log |E_A[e^{zL}]/E_A[e^{sL}]| over three periods of a lattice of the law's span, Im z >= frequency."""
        period = 2 * math.pi / self.span
        start, step, count = frequency, period / 16, 49
        best = -math.inf
        for _ in range(4):  # |·| to the power steps: its peaks are to be met within a small part of their width
            level = self.log_ratio(s, step, count, start).real
            peak = int(np.argmax(level))
            best = max(best, float(level[peak]))
            start, step, count = max(frequency, start + step * (peak - 1)), step / 8, 17
        return best


Law = GaussianLaw | NodeLaw


def loss_law(event: Event, remove: bool, resolution: Resolution) -> Law:
    """The law of the loss of one release of a scalar event."""
    if event.mechanism.isotropic and event.sampling_rate == 1:
        return GaussianLaw(event)
    return NodeLaw(event, remove, resolution)


def _ends(event: Event, remove: bool) -> tuple[float, float]:
    """(largest loss, largest less smallest loss or 0 if unbounded)."""
    rate, most = event.sampling_rate, largest_loss(event.mechanism, event.shift)
    if math.isinf(most):
        return (most if remove or rate == 1 else -math.log1p(-rate)), 0.0
    top, bottom = sampled_loss(most, rate), sampled_loss(-most, rate)
    return (top if remove else -bottom), top - bottom


@njit()
def _excess(weight: Array, loss: Array, outer: Array, inner: Array) -> tuple[Array, Array]:
    """(real, imaginary) parts of Σ ω·(e^{iyL} − 1 − iyL) at y = outer + inner, in one thread.

    e^{i(a+b)L} − 1 = E_a·E_b + E_a + E_b with E = e^{i·L} − 1, so a node takes 2·√count sines.
    """
    rows, columns = len(outer), len(inner)
    real, imaginary = np.zeros((rows, columns)), np.zeros((rows, columns))
    alone = np.zeros((4, max(rows, columns)))  # Σ ω·(E_a − iaL), then the same for b
    cosine, sine = np.empty(columns), np.empty(columns)
    for node in range(len(loss)):
        for column in range(columns):
            angle = inner[column] * loss[node]
            cosine[column], sine[column] = -2 * math.sin(angle / 2) ** 2, math.sin(angle)
            alone[2, column] += weight[node] * cosine[column]
            alone[3, column] += weight[node] * (sine[column] - angle)
        for row in range(rows):
            angle = outer[row] * loss[node]
            a, b = -2 * math.sin(angle / 2) ** 2 * weight[node], math.sin(angle) * weight[node]
            alone[0, row] += a
            alone[1, row] += b - weight[node] * angle
            for column in range(columns):
                real[row, column] += a * cosine[column] - b * sine[column]
                imaginary[row, column] += a * sine[column] + b * cosine[column]
    for row in range(rows):
        real[row] += alone[0, row] + alone[2, :columns]
        imaginary[row] += alone[1, row] + alone[3, :columns]
    return real, imaginary


def _log1p(z: ComplexArray) -> ComplexArray:
    """log(1+z); near 0 from 2·Re z + |z|², as numpy's complex log1p loses the digits of small z."""
    near = np.abs(z) < 0.5
    small: ComplexArray = np.where(near, z, 0j)
    modulus = np.where(near, 0.0, np.abs(1 + z))
    with np.errstate(divide="ignore"):
        far = np.log(np.maximum(modulus, 1e-300))
    real = np.where(near, 0.5 * np.log1p(2 * small.real + small.real**2 + small.imag**2), far)
    return real + 1j * np.arctan2(z.imag, 1 + z.real)


def refusal(event: Event) -> str | None:
    """Why the law of this event's loss is not available, or None."""
    if event.symmetric:
        return "it needs the pair of adding or removing a record, not a sampled replace-one"
    if not event.is_scalar:
        return "it needs one coordinate, or Gaussian noise"
    if event.mechanism.has_jumps:
        return f"it needs a continuous density; that of {event.mechanism.family} noise jumps"
    return None
