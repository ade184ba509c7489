"""Quadrature nodes for the privacy loss of one release.

16-point Gauss–Legendre panels cover the pieces where ℓ = log dP/dQ is analytic: x < 0 and 0 < x < t/2, cut at the
kinks of p and of its shifted copy, in the variable r = log(1 + |x|/scale), which makes exponentials of power tails;
reflection x ↦ t−x gives the other half. Beyond a distance with tail mass e^−depth one atom stands for the rest (for
Laplace noise all of x < 0 is one atom). The Gaussian is cut at the same depth.

Panels are split until the error of the Gauss rule, which is exact up to degree 31, is below 1e-17 by extrapolation from
the Legendre coefficients of degree 10 to 15 of all that is to be integrated; their sum must also meet the values at the
panel's ends, lest a peak there hides between the nodes. That is a posteriori: no bound is proven.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...mechanisms import Laplace, Mechanism
from ..event import Event

Array = NDArray[np.float64]
Piece = Callable[[Array], tuple[Array, Array]]  # u -> (log P-density in u, ℓ)
Atom = tuple[float, float]  # (log P-mass, ℓ)

_ORDER = 16
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(_ORDER)
_TO_COEFFICIENTS = (  # Legendre coefficients of what interpolates the values at the nodes
    np.polynomial.legendre.legvander(_POINTS, _ORDER - 1) * _WEIGHTS[:, None] * (np.arange(_ORDER) + 0.5)
)
_ENDS = np.array([-1.0, 1.0])
_AT_ENDS = np.polynomial.legendre.legvander(_ENDS, _ORDER - 1).T
_QUADRATURE_ERROR = 1e-17  # of a panel, relative to the total mass
_LOSS_ROUNDING = 2e-15  # of ℓ, relative to 1+|ℓ|
_PANEL = 1.5  # first length of a panel
_PHASE_PER_PANEL = 8.0
_MOST_PARTS = 6  # few, as the tilted law may leave most of a panel without weight
_MOST_NODES = 400_000
_FARTHEST = 1e100
LARGE = 300.0  # ℓ beyond which e^ℓ is kept as a logarithm


class Unresolved(ValueError):
    """The method cannot compute this case to a stated error."""


class Undecided(Unresolved):
    """A line is too short or too far from where it is used; a longer one may do."""


class Resolution(NamedTuple):
    """What the nodes must resolve: the law tilted by each of `tilts`, oscillations e^{iyL} up to `frequency`, and tails
    of mass e^−`depth`."""

    tilts: tuple[float, ...]
    frequency: float
    depth: float


def log_sum(logs: Array) -> Array:
    """log Σ exp over the last axis, whose largest term is finite."""
    peak = np.max(logs, axis=-1)
    return np.log(np.sum(np.exp(logs - peak[..., None]), axis=-1)) + peak


def sampled(loss: Array, rate: float) -> tuple[Array, Array]:
    """(w, log(1+w)), w = q·(e^ℓ − 1) cut where it could overflow."""
    excess = rate * np.expm1(np.minimum(loss, LARGE))
    if rate == 1:
        return excess, loss
    far = np.logaddexp(math.log1p(-rate), np.maximum(loss, LARGE) + math.log(rate))
    return excess, np.where(loss > LARGE, far, np.log1p(excess))


class _Kit(NamedTuple):
    """What the nodes are tested with."""

    rate: float
    betas: Sequence[float]
    scales: list[float]  # log of the total of each tilted law, as far as known: a peak may be met late
    frequency: float

    @property
    def rounding(self) -> float:
        """Rounding error of exponents, relative to 1+|ℓ|."""
        return _LOSS_ROUNDING * (self.frequency + max(map(abs, self.betas)))


def nodes(event: Event, remove: bool, resolution: Resolution) -> tuple[Array, Array, Array]:
    """(log P-mass, log Q-mass, ℓ) at the nodes of the line."""
    if event.mechanism.isotropic:
        pieces, atoms = _gaussian_pieces(event, resolution.depth), []
    else:
        pieces, atoms = _sided_pieces(event.mechanism, event.shift, resolution.depth)
    mirrored = not event.mechanism.isotropic
    betas = [s + 1 if remove else -s for s in resolution.tilts]
    first = _joined([_nodes_of(*_at(piece, edges[:-1], edges[1:])) for piece, edges in pieces], atoms, mirrored)
    _, log_ratio = sampled(first[2], event.sampling_rate)
    scales = [float(log_sum(first[1] + beta * log_ratio)) for beta in betas]
    kit = _Kit(event.sampling_rate, betas, scales, resolution.frequency)
    return _joined([_refined(piece, edges, mirrored, kit) for piece, edges in pieces], atoms, mirrored)


def _gaussian_pieces(event: Event, depth: float) -> list[tuple[Piece, Array]]:
    """The line in standard deviations, Q around 0 and P around t."""
    t = event.shift * math.sqrt(event.mechanism.fisher_information)

    def piece(x: Array) -> tuple[Array, Array]:
        return -0.5 * (x - t) ** 2 - 0.5 * math.log(2 * math.pi), t * (x - t / 2)

    reach = math.sqrt(2 * depth) + 1
    return [(piece, np.linspace(-reach, t + reach, math.ceil((2 * reach + t) / _PANEL) + 1))]


def _sided_pieces(mechanism: Mechanism, t: float, depth: float) -> tuple[list[tuple[Piece, Array]], list[Atom]]:
    """Pieces and atoms (log P-mass, ℓ) of x < t/2."""
    scale, log_density = mechanism.scale_hint, mechanism.log_density

    breaks = mechanism.breaks(min(float(mechanism.tail_quantile(-depth)), _FARTHEST) + t)

    def panels(end: float, *kinks: Array) -> Array:
        regular = np.linspace(0.0, end, math.ceil(end / _PANEL) + 1)
        inside = np.concatenate(kinks)
        return np.union1d(
            regular, np.log1p(inside[(inside > 0) & (np.log1p(np.maximum(inside, 0) / scale) < end)] / scale)
        )

    def left(r: Array) -> tuple[Array, Array]:
        x = scale * np.expm1(r)
        near = log_density(x)
        return near + r + math.log(scale), np.maximum(near - log_density(x + t), 0.0)

    def middle(r: Array) -> tuple[Array, Array]:
        x = scale * np.expm1(r)
        near = log_density(x)
        return near + r + math.log(scale), np.maximum(near - log_density(np.maximum(t - x, 0.0)), 0.0)

    pieces: list[tuple[Piece, Array]] = [(middle, panels(math.log1p(t / 2 / scale), breaks, t - breaks))]
    if isinstance(mechanism, Laplace):
        return pieces, [(-math.log(2), mechanism.loss_at_zero(t))]
    end = min(float(mechanism.tail_quantile(-depth)), _FARTHEST)
    pieces.append((left, panels(math.log1p(end / scale), breaks, breaks - t)))
    return pieces, [(float(mechanism.log_tail(end)), max(float(log_density(end) - log_density(end + t)), 0.0))]


def _at(piece: Piece, low: Array, high: Array) -> tuple[Array, Array]:
    """(log P-mass, ℓ) at the nodes of panels, then log (half length·density) and ℓ at their two ends."""
    half = 0.5 * (high - low)[:, None]
    points, weights = np.concatenate([_POINTS, _ENDS]), np.concatenate([_WEIGHTS, np.ones(2)])
    log_p, loss = piece(0.5 * (low + high)[:, None] + half * points)
    return log_p + np.log(half * weights), loss


def _nodes_of(log_p: Array, loss: Array) -> tuple[Array, Array]:
    """Without the ends of the panels."""
    return log_p[:, :_ORDER], loss[:, :_ORDER]


def _refined(piece: Piece, edges: Array, mirrored: bool, kit: _Kit) -> tuple[Array, Array]:
    """Nodes (log P-mass, ℓ) of a piece after its panels were split until they resolve what `kit` asks."""
    low, high = edges[:-1], edges[1:]
    done: list[tuple[Array, Array]] = []
    count = 0
    for _ in range(40):
        log_p, loss = _at(piece, low, high)
        error, phase = _panel_errors(log_p, loss, mirrored, kit)
        noise = kit.rounding * (1 + np.max(np.abs(loss), axis=-1))
        good = error <= np.maximum(_QUADRATURE_ERROR, np.minimum(10 * noise**2, 1e-9))
        done.append(_nodes_of(log_p[good], loss[good]))
        count += int(np.sum(good)) * _ORDER
        if good.all():
            return np.concatenate([p.ravel() for p, _ in done]), np.concatenate([x.ravel() for _, x in done])
        parts = np.clip(np.ceil(phase[~good] / _PHASE_PER_PANEL), 2, _MOST_PARTS).astype(int)
        count_next = int(np.sum(parts)) * _ORDER
        if count + count_next > _MOST_NODES:
            break
        low, high = _split(low[~good], high[~good], parts)
    raise Unresolved("its moment function oscillates too fast for the quadrature: too many nodes are needed")


def _split(low: Array, high: Array, parts: NDArray[np.int_]) -> tuple[Array, Array]:
    """Each interval cut into equal parts."""
    index = np.repeat(np.arange(len(low)), parts)
    number = np.arange(len(index)) - np.repeat(np.cumsum(parts) - parts, parts)
    width = ((high - low) / parts)[index]
    return low[index] + number * width, low[index] + (number + 1) * width


def _panel_errors(log_p: Array, loss: Array, mirrored: bool, kit: _Kit) -> tuple[Array, Array]:
    """(estimated quadrature error relative to the total mass, change of phase) of each panel."""
    error, phase = np.zeros(len(log_p)), np.zeros(len(log_p))
    for sign in (1.0, -1.0) if mirrored else (1.0,):
        log_q = log_p - loss if sign > 0 else log_p
        _, log_ratio = sampled(sign * loss, kit.rate)
        tests = [np.exp(log_p - (0.0 if sign > 0 else loss)), np.exp(log_q)]
        turn = np.exp(1j * kit.frequency * log_ratio)
        for index, beta in enumerate(kit.betas):
            exponent = log_q + beta * log_ratio
            kit.scales[index] = max(kit.scales[index], float(log_sum(exponent[:, :_ORDER].ravel())))
            tests.append(np.exp(np.minimum(exponent - kit.scales[index], 300.0)) * turn)
        values = np.array(tests)
        inside, ends = values[..., :_ORDER] / _WEIGHTS, values[..., _ORDER:]
        coefficients = inside @ _TO_COEFFICIENTS
        sizes = np.abs(coefficients)
        late = np.maximum(np.max(sizes[..., -2:], axis=-1), np.max(np.abs(coefficients @ _AT_ENDS - ends), axis=-1))
        early = np.max(sizes[..., -6:-4], axis=-1)  # four degrees before; the rule is exact for 16 more
        largest = np.maximum(np.max(sizes, axis=-1), np.maximum(late, 1e-300))
        fall = late / np.maximum(np.maximum(early, late), 1e-300)
        error = np.maximum(error, np.max(2 * late * np.minimum(fall**4, late / largest), axis=0))
        phase = np.maximum(phase, kit.frequency * np.ptp(log_ratio, axis=-1))
    return error, phase


def _joined(parts: list[tuple[Array, Array]], atoms: list[Atom], mirrored: bool) -> tuple[Array, Array, Array]:
    """(log P-mass, log Q-mass, ℓ) of all nodes and atoms; `mirrored` adds the reflected half of the line."""
    log_p = np.concatenate([p.ravel() for p, _ in parts] + [np.array([mass]) for mass, _ in atoms])
    loss = np.concatenate([x.ravel() for _, x in parts] + [np.array([value]) for _, value in atoms])
    if not mirrored:
        return log_p, log_p - loss, loss
    return (
        np.concatenate([log_p, log_p - loss]),
        np.concatenate([log_p - loss, log_p]),
        np.concatenate([loss, -loss]),
    )
