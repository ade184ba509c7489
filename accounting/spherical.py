"""The privacy loss of spherical noise under an L2 shift, in proven pieces, for dimensions up to 10^10.

Noise X = R·U of a `SphericalGamma` with −log density φ(|x|) = (|x|/b)^p + m·log|x| + const, m = d − a. P is its law, Q
the law of X + t·e_1, and ℓ = log dP/dQ = φ(|x − t·e_1|) − φ(|x|). Lengths are divided by b below.

**Two dimensions.** ℓ depends on r = |x| and c = x_1/|x| only. Under P they are independent: y = r^p ~ Gamma(a/p), and
c = sin α with α of density ∝ cos^{d−2} α (c = ±1 for d = 1). With τ = t/r, W = |x − t·e_1|²/r² = 1 − 2τc + τ²,

    u := −ℓ = y·(1 − W^{p/2}) − (m/2)·log W,                                                               (1)

computed by expm1 and log1p, so nothing of the size of φ (about d) cancels. Outcomes are cut into cells: an interval
of s = log r (a *row*) times an interval of c. The mass of a cell is the product of two one-dimensional masses.

**One-dimensional masses.** Both densities, exp(−k(e^x − 1 − x)) for x = log(y/k) with k = a/p, and cos^{d−2} α, are
entire functions without a normaliser. A Gauss rule with N nodes is exact on polynomials of degree 2N−1 and its weights
are positive, and a function bounded by M on the Bernstein ellipse of radius ϱ (in units of the half interval) is within
2Mϱ^{1−2N}/(ϱ−1) of one, so the rule errs by at most 8Mϱ^{−2N}/(1 − 1/ϱ) on [−1, 1]. M follows from |cos(α+ζ)| <=
cos α·cosh|ζ| + |sin α|·sinh|ζ| and |e^{x+ζ} − 1| <= |e^x − 1| + e^x(e^{|ζ|} − 1). Means and variances within the
interval come from the same nodes. The normaliser is the sum over all intervals plus the bounded tails. No special
function is trusted.

**The mean loss of a cell**, −log E[g | cell] with g = e^u. In c: for 0 < p <= 2 and a <= d, φ(√w) has a completely
monotone derivative in w (a sum of w^{p/2−1} and 1/w with weights >= 0), so e^{−φ(√w)} is completely monotone in w
(Bernstein; Feller II, XIII.4), and since w falls linearly in c every derivative of g in c is >= 0. Hence with c̄, V_c
the mean and variance of c in the cell, for every fixed s,

    g(c̄) + ½·V_c·g_cc(left end)  <=  E_c[g]  <=  g(c̄) + ½·V_c·g_cc(right end).                             (2)

In s, for every fixed c, E_s[g] − g(s̄) lies in ½·V_s·[min g_ss, max g_ss] over the cell, with g_ss = g·K and
K = u_s² + u_ss; taking E_c and using (2) at s = s̄,

    E[g | cell]  ∈  g(s̄, c̄) + ½·V_c·[g_cc ends] + ½·V_s·[min, max of g·K over the cell].                    (3)

K is known at the centre; across the cell it moves by what Cauchy's estimates allow: u is analytic where the relative
change ζ of W is below 1. For |δs| <= ϱ_s, |δc| <= ϱ_c, |ζ| <= Z := [τη(2|c−τ| + τη) + 2τ(1+η)ϱ_c]/W, η = e^{ϱ_s} − 1;
with η <= √W/(4τ) and ϱ_c <= W/(10τ(1+η)), Z < 0.77 because |c − τ| <= √W. The binomial and the logarithmic series have
majorants with |ζ| for ζ, and (1 − (1−Z)^q)/q <= −log(1−Z) <= 2Z for 0 < q <= 1, so u moves by at most

    B = y·|1 − W^{p/2}|·(e^{pϱ_s} − 1) + 2Z·[y·(1+η)^p·W^{p/2}·p/2 + m/2].                                  (4)

For r < t it is better to follow r²W = |x − t·e_1|², which hardly moves: its relative change is at most
Z := [η(2|1−τc| + η) + 2τ(1+η)ϱ_c]/W, below 0.77 for η <= √W/4 because |1 − τc| <= √W, and u = φ(r) − φ(r√W) moves by

    B = y·(e^{pϱ_s} − 1) + m·ϱ_s + 2Z·[y·W^{p/2}·p/2 + m/2].                                               (5)

Thus in a cell of half widths h_s < ϱ_s, h_c < ϱ_c about the centre |∂_s^i ∂_c^j u| is at most
i!·j!·B/((ϱ_s−h_s)^i·(ϱ_c−h_c)^j), and the width of (3) is of third order in the cell. Cells too large for this (next to
the point x = t·e_1, where W = 0) take the bounds of ℓ as those of the mean.

**Bounds of ℓ on a cell.** u rises with c for every s, so its extremes lie on the two edges in c, where Taylor's formula
in s with |u_ss| <= 2B/(ϱ_s−h_s)² brackets it. In large cells φ rising with r and with |x − t·e_1| may tell more.

**Pieces** join cells of nearly equal ℓ: masses and E[e^{−ℓ}] add up. Nothing is truncated: the ball inside the first
row and the space outside the last are pieces too (`_ball`, `_outside`), with Q-masses bounded by e^{−ℓ} or by the laws
of the norm, |x| and |x − t·e_1| differing by at most t.

Reflection x ↦ t·e_1 − x exchanges P and Q and negates ℓ: the pieces of (Q, P) are these with roles exchanged.
Family: Wei, Bienstock, Polychroniadou 2026, arXiv 2606.08681; ℓ2 mechanism: Joseph, Kulesza, Yu 2025, arXiv 2502.15929.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ..mechanisms import _validate
from ..mechanisms.spherical import SphericalGamma
from .pld.pieces import LossPieces

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_TINY = 1e-300
_DEPTH = 100.0  # −log of the mass, under P and under Q, at which the grid ends and the outer pieces begin
_DEEPEST = 340.0  # largest −log of a mass on the grid that products of two masses can carry
_SHARE = 0.35  # of `step`, the variation of ℓ planned across a cell in c and in s each
_NARROW = 0.75  # of `step`, the width up to which cells join the finest bins
_WILD = 64.0  # width of ℓ from which a cell's e^{−ℓ} is not averaged
_CELLS = 300_000  # per block
_MOST_CELLS = 10**9
_MOST_FOR_MEAN = 30.0  # rows made of one for the sake of the mean
_RADII = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1024.0)  # of the Bernstein ellipses tried
_CRUDE = 1e-6  # relative quadrature error from which a cell is bracketed by its density's ends
_EXCEPTIONS = 1e-18  # mass of the exceptions that `_mirrored` sets aside
_MAX_DIMENSION = 10**10


# ---- the interface ---------------------------------------------------------------------------------------------------


def spherical_pieces(noise: SphericalGamma, shift: float, *, step: float) -> LossPieces:
    """The loss of (A, B) = (P, Q): `noise` against itself shifted by `shift` > 0 (units of C, L2 norm).

    On a piece that matters ℓ varies by 1.25·`step` or less; pieces of small mass are wider. Brackets of the mean are of
    second order in `step` or better (measured averages: below step²/2 at losses near 1, step² at a tenth of that).
    Mass brackets are near 1e−12 relative; only where φ is singular (shape below the dimension, or power below 1) and
    the singular point of Q matters do the pieces far below 0 have brackets of order step², as `_mirrored` explains.
    Work grows as (range of ℓ/step)², for d above 10^4 as range/step; losses far below 1 in low dimension cost more.

    Raises ValueError where the proof does not hold: power outside [0.1, 2], or shape above the dimension (then the
    density vanishes at 0 and u is not known to be absolutely monotone in c); where the shift is so far outside the
    noise that masses leave the floats; and for a step that would need more than `_MOST_CELLS` cells.
    """
    _require_proof(noise)
    pair = _Pair(noise, _validate.positive("shift", shift) / noise.scale)
    return _collect(pair, _validate.positive("step", step))


def default_step(noise: SphericalGamma, shift: float) -> float:
    """A fiftieth of the loss's standard deviation, roughly: t·φ′(r)/√d at a typical norm r."""
    r = noise.mean_norm / noise.scale
    slope = noise.power * r ** (noise.power - 1) + (noise.dimension - noise.shape) / r
    return 0.02 * shift / noise.scale * slope / math.sqrt(noise.dimension)


def log_delta_bounds(
    noise: SphericalGamma, shift: float, epsilon: float, *, step: float | None = None
) -> tuple[float, float]:
    """(lower, upper) of log δ(ε) of one release under the L2 shift `shift` (units of C)."""
    epsilon = _validate.finite("epsilon", epsilon)
    pieces = spherical_pieces(noise, shift, step=default_step(noise, shift) if step is None else step)
    return pieces_log_delta(pieces, epsilon)


def pieces_log_delta(pieces: LossPieces, epsilon: float) -> tuple[float, float]:
    """(lower, upper) of log of δ(ε) = E_A[(1 − e^{ε−L})_+].

    Lower: every piece merged (Jensen). Upper: e^{−L} of every piece spread to the ends of its range, its mean kept.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        merged = -np.expm1(np.minimum(epsilon - pieces.mean_low, 0.0))
        spread = -np.expm1(np.minimum(epsilon - pieces.high, 0.0))
        near = -np.expm1(np.minimum(epsilon - pieces.low, 0.0))
        # weight of the low end: (e^{high−mean} − 1)/(e^{high−low} − 1); an infinite end takes the limit
        weight = np.expm1(pieces.high - pieces.mean_high) / np.expm1(pieces.high - pieces.low)
        limit = np.exp(pieces.low - pieces.mean_high)
    weight = np.where(np.isfinite(weight), weight, np.where(np.isfinite(limit), limit, 0.0))
    weight = np.clip(weight * (1 - 1e-12), 0.0, 1.0)
    lower = math.fsum(np.exp(pieces.log_mass_low) * merged) * (1 - 1e-14)
    upper = math.fsum(np.exp(pieces.log_mass_high) * (spread - weight * (spread - near))) * (1 + 1e-14)
    return _log(lower), min(_log(upper), 0.0)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _require_proof(noise: SphericalGamma) -> None:
    if not 0.1 <= noise.power <= 2:
        raise ValueError(
            f"expected 0.1 <= power <= 2 (above 2 the loss is not known to be convex in the angle's cosine), "
            f"got power={noise.power}"
        )
    if not 0.1 <= noise.shape <= noise.dimension:
        raise ValueError(
            f"expected 0.1 <= shape <= dimension (above it the density is not unimodal), got shape={noise.shape} "
            f"and dimension={noise.dimension}"
        )
    if noise.dimension > _MAX_DIMENSION:
        raise ValueError(f"expected dimension <= {_MAX_DIMENSION}, got dimension={noise.dimension}")


# ---- the pair and its loss -------------------------------------------------------------------------------------------


class _Loss(NamedTuple):
    """u = −ℓ of (1) with what bounds need: W, W^{p/2} − 1, u_s, (y·(p/2)·W^{p/2} + m/2)/W, rounding error of u."""

    u: Array
    w: Array
    growth: Array
    slope: Array
    sensitivity: Array
    error: Array


class _Pair:
    """(1) for one noise and one shift, lengths in units of b."""

    def __init__(self, noise: SphericalGamma, shift: float) -> None:
        self.dimension = noise.dimension
        self.power = float(noise.power)
        self.half = self.power / 2
        self.excess = float(noise.dimension - noise.shape)  # m
        self.gamma = noise.gamma_shape  # k
        self.shift = shift

    def radius(self, x: Array) -> Array:
        """r at x = log(y/k)."""
        return np.exp((x + math.log(self.gamma)) / self.power)

    def position(self, r: float) -> float:
        """x at r."""
        return self.power * math.log(r) - math.log(self.gamma)

    def loss(self, x: Array, c: Array) -> _Loss:
        """u at the rows' x = log(y/k) and the cosines c, broadcast.

        z = W − 1 = τ(τ − 2c) is off by a few roundings, and by the error of τ, times τ² + 2τ|c|; u moves by the
        sensitivity times that. The slope's error times the row's half width stays below five times that of u, because
        the half width is below 0.6 and √W/(4·min(τ, 1)) and |c − τ| <= √W.
        """
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        z = tau * (tau - 2 * c)
        w = np.maximum(1 + z, _TINY)
        log_w = np.log1p(np.maximum(z, -1 + _EPS / 2))
        growth = np.expm1(self.half * log_w)
        u = -(y * growth + 0.5 * self.excess * log_w)
        factor = y * self.half * (1 + growth) + 0.5 * self.excess
        slope = -y * self.power * growth - factor * (2 * tau * (c - tau) / w)
        relative = 8 * _EPS + 2 * _EPS * (np.abs(x) + abs(math.log(self.gamma))) / self.power
        error = factor / w * (2 * tau * tau + 2 * tau * np.abs(c)) * relative + 8 * _EPS * np.abs(u)
        return _Loss(u, w, growth, slope, factor / w, error)

    def curvature(self, x: Array, c: Array, at: _Loss) -> Array:
        """K = u_s² + u_ss."""
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        first = 2 * tau * (c - tau) / at.w
        second = (4 * tau * tau - 2 * tau * c) / at.w - first * first
        p, q, power = self.power, self.half, 1 + at.growth
        u_ss = -y * (p * p * at.growth + power * q * (2 * p * first + q * first * first + second))
        return at.slope**2 + u_ss - 0.5 * self.excess * second

    def cosine_curvature(self, x: Array, at: _Loss) -> Array:
        """u_c² + u_cc = g_cc/g."""
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        bend = (y * self.half * (1 - self.half) * (1 + at.growth) + 0.5 * self.excess) / at.w**2
        return 4 * tau * tau * (at.sensitivity**2 + bend)

    def phi(self, r: Array) -> Array:
        """φ(r) = r^p + m·log r."""
        with np.errstate(divide="ignore"):
            logarithm = self.excess * np.log(r) if self.excess > 0 else 0.0
        return r**self.power + logarithm

    def analytic(self, x: Array, c: Array, at: _Loss, wish: Array) -> tuple[Array, Array, Array]:
        """(ϱ_s, ϱ_c, B) of (4), or of (5) for r < t; ϱ_c is at most `wish`, η at most 1."""
        y, tau = self.gamma * np.exp(x), self.shift / self.radius(x)
        far = tau > 1
        size, distance = np.where(far, 1.0, tau), np.where(far, np.abs(1 - tau * c), np.abs(c - tau))
        eta = np.minimum(1.0, np.sqrt(at.w) / (4 * size))
        radius_s, radius_c = np.log1p(eta), np.minimum(at.w / (10 * tau * (1 + eta)), wish)
        change = (size * eta * (2 * distance + size * eta) + 2 * tau * (1 + eta) * radius_c) / at.w
        power, w_power = (1 + eta) ** self.power, 1 + at.growth
        bound = np.where(far, y * (power - 1) + self.excess * radius_s, y * np.abs(at.growth) * (power - 1))
        bound = bound + 2 * change * (y * np.where(far, 1.0, power) * w_power * self.half + 0.5 * self.excess)
        return radius_s, radius_c, bound * (1 + 1e-12)

    @property
    def largest(self) -> float:
        """sup |ℓ|: t^p if φ is subadditive, |φ(r′) − φ(r)| <= |r′ − r|^p, else ∞."""
        return self.shift**self.power * (1 + 4 * _EPS) if self.power <= 1 and self.excess == 0 else math.inf


# ---- one-dimensional cells -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Line:
    """Cells of one variable under its unnormalised density; all arrays have shape (cells,).

    Attributes:
        low, high: ends of the cell (x = log(y/k), or c).
        mean, variance: of the variable within the cell.
        mass: unnormalised.
        error: bound on the relative error of the mass, and of the mean and the variance relative to the cell's half
            width and its square; at most 1 and above `_CRUDE` only if mean and variance are placeholders.
    """

    low: Array
    high: Array
    mean: Array
    variance: Array
    mass: Array
    error: Array

    def pooled(self, stride: int) -> _Line:
        """Every `stride` cells joined, the first and the last kept apart."""
        count = len(self.mass)
        if stride == 1 or count < 4:
            return self
        starts = np.unique(np.concatenate([[0], np.arange(1, count - 1, stride), [count - 1]]))
        ends = np.append(starts[1:], count) - 1
        mass = np.add.reduceat(self.mass, starts)
        group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, count)))
        safe = np.maximum(mass, _TINY)
        offset = self.mean - self.mean[starts][group]
        mean = np.add.reduceat(self.mass * offset, starts) / safe
        spread = self.variance + (offset - mean[group]) ** 2
        variance = np.add.reduceat(self.mass * spread, starts) / safe
        error = np.minimum(np.maximum.reduceat(self.error, starts) + 4 * stride * _EPS, 1.0)
        return _Line(self.low[starts], self.high[ends], self.mean[starts] + mean, variance, mass, error)


def _gauss(nodes: int) -> tuple[Array, Array]:
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return node, weight


def _bulge(x: Array) -> Array:
    """e^x − 1 − x without cancellation."""
    near = np.abs(x) < 0.2
    small = np.where(near, x, 0.0)
    series = np.zeros_like(small)
    for n in range(14, 1, -1):
        series = (series + 1) * small / n
    return np.where(near, series * small, np.expm1(x) - x)


def _ellipse_error(nodes: int, half: Array, log_ratio, moment) -> Array:
    """Least bound on (error of the rule)/(half·density at the middle·moment²) over the ellipses tried.

    `log_ratio(reach)` bounds log |density| on the disc of radius `reach` about the middle, relative to the middle;
    `moment(reach)` bounds the variable's distance from the middle there, relative to that in the cell.
    """
    best = np.full_like(half, np.inf)
    for radius in _RADII:
        reach = 0.5 * half * (radius + 1 / radius)
        with np.errstate(over="ignore", invalid="ignore"):
            bound = np.log(8 / (1 - 1 / radius)) - 2 * nodes * math.log(radius) + log_ratio(reach)
            value = np.exp(np.minimum(bound, 700.0)) * np.maximum(1.0, moment(reach)) ** 2
        best = np.fmin(best, value)
    return best


def _radial_line(pair: _Pair, edges: Array) -> _Line:
    """Cells of x = log(y/k), density exp(−k(e^x − 1 − x))."""
    nodes, k = 16, pair.gamma
    node, weight = _gauss(nodes)
    middle, half = 0.5 * (edges[:-1] + edges[1:]), 0.5 * np.diff(edges)
    offset = half[:, None] * node
    log_middle = -k * _bulge(middle)
    # relative to the middle: e^{m+o} − e^m − o = e^m·(e^o − 1 − o) + (e^m − 1)·o
    relative = -k * (np.exp(middle)[:, None] * _bulge(offset) + np.expm1(middle)[:, None] * offset)
    density = weight * np.exp(relative)
    total = density.sum(axis=1)
    mean = (density * offset).sum(axis=1) / total
    variance = (density * (offset - mean[:, None]) ** 2).sum(axis=1) / total

    def log_ratio(reach: Array) -> Array:
        return reach * k * (np.abs(np.expm1(middle)) + np.exp(middle) * np.expm1(reach))

    error = _ellipse_error(nodes, half, log_ratio, lambda reach: reach / half) / total
    error = 4 * error + _EPS * (40 + 16 * np.abs(log_middle))
    mass = half * total * np.exp(log_middle)
    return _Line(edges[:-1], edges[1:], middle + mean, variance, mass, np.minimum(error, 1.0))


def _polar_line(pair: _Pair, edges: Array) -> _Line:
    """Cells of c = sin α between the given α, density of α cos^{d−2} α; for d = 1 the points ±1."""
    if pair.dimension == 1:
        one = np.array([-1.0, 1.0])
        return _Line(one, one, one, np.zeros(2), np.ones(2), np.zeros(2))
    nodes, n = 12, pair.dimension - 2
    node, weight = _gauss(nodes)
    middle, half = 0.5 * (edges[:-1] + edges[1:]), 0.5 * np.diff(edges)
    offset = half[:, None] * node
    distance = 2 * np.cos(middle[:, None] + offset / 2) * np.sin(offset / 2)  # of sin α from sin(middle)
    outward = np.abs(middle) > 0.7
    log_middle = n * np.where(
        outward, np.log(np.cos(middle)), 0.5 * np.log1p(-(np.sin(np.where(outward, 0.0, middle)) ** 2))
    )
    tangent = np.tan(middle)
    step = -2 * np.sin(offset / 2) ** 2 - tangent[:, None] * np.sin(offset)  # cos(m+o)/cos m − 1
    density = weight * np.exp(np.minimum(n * np.log1p(np.maximum(step, -1 + _EPS)), 300.0))
    total = density.sum(axis=1)
    mean = (density * distance).sum(axis=1) / total
    variance = (density * (distance - mean[:, None]) ** 2).sum(axis=1) / total
    low, high = np.sin(edges[:-1]), np.sin(edges[1:])
    reach_c = np.maximum(
        np.abs(2 * np.cos(middle + half / 2) * np.sin(half / 2)),
        np.abs(2 * np.cos(middle - half / 2) * np.sin(half / 2)),
    )

    def log_ratio(reach: Array) -> Array:
        return n * np.log1p(2 * np.sinh(reach / 2) ** 2 + np.abs(tangent) * np.sinh(reach))

    error = _ellipse_error(nodes, half, log_ratio, lambda reach: np.sinh(reach) / reach_c) / total
    # rounding: α near ±π/2 has an absolute error, cos α a relative one of it/cos α
    rounding = _EPS * (40 + 16 * np.abs(log_middle) + 8 * n * np.abs(tangent) * outward)
    error = 4 * error + rounding
    error = np.where(np.isfinite(error), error, np.inf)
    mass = half * total * np.exp(log_middle)
    mean = np.clip(np.sin(middle) + mean, low, high)
    line = _Line(low, high, mean, variance, mass, error)
    return _with_crude_cells(line, edges, n)


def _with_crude_cells(line: _Line, edges: Array, n: int) -> _Line:
    """Masses the rule cannot give, between width times the density's ends, or for a cell [c_0, 1] between

    ∫ c·(1−c²)^κ dc = (1 − c_0²)^{κ+1}/(2(κ+1))   and that divided by c_0,     κ = (d−3)/2.
    """
    crude = line.error > _CRUDE
    if not crude.any():
        return line
    near = np.minimum(np.abs(edges[:-1]), np.abs(edges[1:]))
    near = np.where(edges[:-1] * edges[1:] < 0, 0.0, near)
    far = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    with np.errstate(divide="ignore", over="ignore"):
        log_near, log_far = (n * 0.5 * np.log1p(-np.minimum(np.sin(a) ** 2, 1 - 1e-17)) for a in (near, far))
        width = np.diff(edges)
        high, low = width * np.exp(log_near), width * np.exp(log_far)
        outer = np.exp((n + 1) / n * log_near) / (n + 1) if n else high
    last = far >= math.pi / 2
    low = np.maximum(low, np.where(last, outer * (1 - 1e-9), 0.0))
    high = np.where(last & (near > 0), np.minimum(high, outer / np.maximum(np.sin(near), _TINY)), high)
    low, high = low * (1 - 1e-9), np.maximum(high * (1 + 1e-9), _TINY)
    middle = 0.5 * (line.low + line.high)
    return _Line(
        line.low,
        line.high,
        np.where(crude, middle, line.mean),
        np.where(crude, 0.0, line.variance),
        np.where(crude, 0.5 * (low + high), line.mass),
        np.where(crude, np.clip((high - low) / (high + low) + 8 * _EPS, 2 * _CRUDE, 1.0), line.error),
    )


# ---- the grid --------------------------------------------------------------------------------------------------------


def _coarse_rows(pair: _Pair) -> Array:
    """Edges in x for the masses alone, from where P's (and Q's) mass inside is negligible to where that outside is."""
    k, cap = pair.gamma, 0.1 * pair.power
    sides = []
    for sign in (-1.0, 1.0):
        x, edges, end = 0.0, [], None
        while end is None or (x < end if sign > 0 else x > end):
            x += sign * min(cap, 0.25 / (math.sqrt(k * math.exp(x)) + 0.5 * k * abs(math.expm1(x))))
            edges.append(x)
            drop = k * float(_bulge(np.array(x)))
            if drop > _DEEPEST:
                raise ValueError("expected a shift within about ten standard deviations of the noise, got a larger one")
            if end is None and drop > _DEPTH:
                end = _row_end(pair, x, sign)
        sides.append(edges)
    return np.array([*reversed(sides[0]), 0.0, *sides[1]])


def _row_end(pair: _Pair, x: float, sign: float) -> float:
    """x moved by t, so that |x − t·e_1| too has left the bulk; inwards only where that leaves a radius above t."""
    r = float(pair.radius(np.array(x)))
    if sign > 0:
        return pair.position(r + pair.shift)
    return pair.position(r - pair.shift) if r > 2 * pair.shift else x


class _Plan(NamedTuple):
    """Rows and cosine cells, and per row the number of cosine cells to join (a power of two)."""

    rows: _Line
    cosines: _Line
    stride: NDArray[np.int64]


def _plan(pair: _Pair, step: float) -> _Plan:
    coarse_edges = _coarse_rows(pair)
    coarse = _radial_line(pair, coarse_edges)
    mass = coarse.mass / coarse.mass.sum()
    typical = coarse.mean[np.searchsorted(np.cumsum(mass), [0.02, 0.5, 0.98])]
    sample, slopes, edges = _polar_edges(pair, typical, step)
    points, log_density, weights = _probe(pair, sample, typical[1])
    wanted = np.maximum(
        _variation(pair, coarse_edges, points, weights) / (_SHARE * step), _bend(pair, coarse, points, weights, step)
    )
    tail = 2.0 ** np.clip((_row_depth(pair, coarse, points, log_density) - 18) / 6, 0.0, 60.0)
    pieces = np.ceil(np.clip(wanted / tail, 1, 1e5)).astype(int)
    _require_fewer(float(pieces.sum()), _MOST_CELLS / 1000, step)
    fine = [
        np.linspace(a, b, n, endpoint=False) for a, b, n in zip(coarse_edges, coarse_edges[1:], pieces, strict=False)
    ]
    cosines = _polar_line(pair, edges)
    rows = _radial_line(pair, np.append(np.concatenate(fine), coarse_edges[-1]))
    here = np.abs(pair.loss(rows.mean[:, None], points).sensitivity) * pair.shift / pair.radius(rows.mean)[:, None] * 2
    ratio = np.max(here / np.maximum(np.interp(points, *slopes), _TINY), axis=1)
    tail = np.maximum(tail.repeat(pieces), 1.0)
    stride = 2 ** np.clip(np.floor(np.log2(tail / np.maximum(ratio, _TINY))), 0, 12).astype(np.int64)
    _require_fewer(float(np.sum(len(cosines.mass) / stride)), _MOST_CELLS, step)
    return _Plan(rows, cosines, stride)


def _require_fewer(cells: float, most: float, step: float) -> None:
    if cells > most:
        raise ValueError(
            f"expected a step that needs at most {most:.0e} cells, got step={step}, which needs {cells:.0e}"
        )


def _row_depth(pair: _Pair, rows: _Line, points: Array, log_density: Array) -> Array:
    """−log of the density of x in the rows relative to its maximum, under P or under Q, whichever is less."""
    log_p = -pair.gamma * _bulge(rows.mean)
    log_q = log_p + special.logsumexp(log_density + pair.loss(rows.mean[:, None], points).u, axis=1)
    return np.minimum(log_p.max() - log_p, log_q.max() - log_q)


def _polar_edges(pair: _Pair, typical: Array, step: float) -> tuple[Array, tuple[Array, Array], Array]:
    """(a dense sample of α, (its c, the slope of u in c the cells are made for), the cells' edges in α)."""
    if pair.dimension == 1:
        c = np.array([-1.0, 1.0])
        return np.array([-1.0, 1.0]) * math.pi / 2, (c, np.ones(2)), c
    n = pair.dimension - 2
    side = np.append(np.geomspace(1e-3 / math.sqrt(n + 1), math.pi / 2, 3000)[:-1], math.pi / 2)
    alpha = np.concatenate([-side[::-1], [0.0], side])
    c, cosine = np.sin(alpha), np.maximum(np.cos(alpha), 1e-17)
    log_p = n * np.log(cosine)
    losses = pair.loss(typical[:, None], c)
    log_q = log_p + losses.u[1]
    depth = np.minimum(-log_p, log_q.max() - log_q)
    inside = np.flatnonzero(depth <= _DEPTH)
    first, last = max(inside[0] - 1, 0), min(inside[-1] + 1, len(alpha) - 1)
    if -log_p[last - 1] > _DEEPEST:
        raise ValueError("expected a shift within about ten standard deviations of the noise, got a larger one")
    tau = pair.shift / pair.radius(typical)
    bounded = losses.sensitivity * losses.w / np.maximum(losses.w, 1e-3)
    slope = np.max(2 * tau[:, None] * bounded, axis=0)
    tail = 2.0 ** np.clip((depth - 20) / 8, 0.0, 60.0)
    density = np.maximum(slope * cosine / (_SHARE * step * tail), 4 * math.sqrt(n + 1)) + 4
    density = density[first : last + 1]
    kept = alpha[first : last + 1]
    count = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(kept))])
    _require_fewer(count[-1], _MOST_CELLS / 1000, step)
    edges = np.interp(np.linspace(0, count[-1], math.ceil(count[-1]) + 1), count, kept)
    edges = np.unique(np.concatenate([[-math.pi / 2], edges, [math.pi / 2]]))
    return alpha, (c, slope), edges


def _probe(pair: _Pair, alpha: Array, x: float) -> tuple[Array, Array, Array]:
    """(cosines, log of P's mass at each, weights of shape (2, points)) on which rows are tuned.

    The weights are cube roots of the densities under P and under Q at a typical row: an error of order mass·width² is
    least for widths that grow no faster than the mass's cube root falls.
    """
    if pair.dimension == 1:
        c, log_p = np.array([-1.0, 1.0]), np.zeros(2)
    else:
        c = np.sin(alpha[::60])
        log_p = (pair.dimension - 2) * np.log(np.maximum(np.cos(alpha[::60]), 1e-17))
        log_p = log_p + np.log(np.gradient(alpha[::60]))
    log_q = log_p + pair.loss(np.array(x), c).u
    weights = np.exp(np.stack([log_p - log_p.max(), log_q - log_q.max()]) / 3)
    weights /= weights.sum(axis=1, keepdims=True)
    keep = weights.max(axis=0) > 1e-8
    return c[keep], (log_p - log_p.max())[keep], weights[:, keep]


def _variation(pair: _Pair, edges: Array, points: Array, weights: Array) -> Array:
    """Twice the root mean square change of u across each row, the larger of P's and Q's mean."""
    u = pair.loss(edges[:, None], points).u
    change = np.minimum(np.abs(np.diff(u, axis=0)), 1e3)
    return 2 * np.sqrt(np.max(change**2 @ weights.T, axis=1))


def _bend(pair: _Pair, rows: _Line, points: Array, weights: Array, step: float) -> Array:
    """How many times too long each row is for its second-order terms in s: B·(h/ϱ)² <= step/10 in the bounds of ℓ and
    B·(h/ϱ)³ <= step²/8 in the mean, the latter up to `_MOST_FOR_MEAN` (losses far below 1 would ask for any number)."""
    x = 0.5 * (rows.low + rows.high)[:, None]
    half = 0.5 * (rows.high - rows.low)[:, None] / pair.power
    wish = np.abs(points) + pair.dimension**-0.5
    radius, _, bound = pair.analytic(x, points, pair.loss(x, points), wish)
    for_range = half / radius * np.sqrt(10 * bound / step)
    for_mean = half / radius * np.cbrt(8 * bound / step**2)
    return np.max(np.maximum(for_range, np.minimum(for_mean, _MOST_FOR_MEAN)) @ weights.T, axis=1)


# ---- cells -----------------------------------------------------------------------------------------------------------


class _Cells(NamedTuple):
    """Cells of a block of rows, shape (rows, cosines): bounds of ℓ and of the mean loss."""

    low: Array
    high: Array
    mean_low: Array
    mean_high: Array


def _cells(pair: _Pair, rows: _Line, cosines: _Line) -> _Cells:
    """Bounds of ℓ and of −log E[e^{−ℓ}] on every cell of the rows times the cosines."""
    x, p = rows.mean[:, None], pair.power
    half_s = np.maximum(rows.high - rows.mean, rows.mean - rows.low)[:, None] / p * (1 + 1e-12)
    c = cosines.mean
    half_c = np.maximum(cosines.high - c, c - cosines.low) * (1 + 1e-12)
    centre = pair.loss(x, c)
    radius_s, radius_c, bound = pair.analytic(x, c, centre, np.maximum(np.abs(c) + pair.dimension**-0.5, 8 * half_c))
    good = (half_s <= 0.8 * radius_s) & (half_c <= 0.8 * radius_c)
    radius_s, radius_c = np.maximum(radius_s - half_s, _TINY**0.1), np.maximum(radius_c - half_c, _TINY**0.1)
    left, right = _at_edges(pair, x, cosines)
    bend = bound / radius_s**2 * half_s**2  # ½·|u_ss|·half²
    u_low = left.u - np.abs(left.slope) * half_s - bend - 6 * left.error
    u_high = right.u + np.abs(right.slope) * half_s + bend + 6 * right.error
    large = np.nonzero(~good | (half_s > 0.3 * radius_s))
    crude_low, crude_high = _crude_range(pair, rows, cosines, large)
    u_low[large] = np.where(good[large], np.maximum(u_low[large], crude_low), crude_low)
    u_high[large] = np.where(good[large], np.minimum(u_high[large], crude_high), crude_high)
    most = pair.largest
    u_low, u_high = np.clip(u_low, -most, most), np.clip(u_high, -most, most)

    curvature = pair.curvature(x, c, centre)
    sway = half_s * (4 * bound**2 / radius_s**3 + 6 * bound / radius_s**3)
    sway = sway + half_c * (2 * bound**2 + 2 * bound) / (radius_s**2 * radius_c)
    variance_s, variance_c = rows.variance[:, None] / (p * p), cosines.variance
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        g_low, g_high = np.exp(u_low - centre.u), np.exp(u_high - centre.u)
        k_low, k_high = curvature - sway, curvature + sway
        in_s_low = np.minimum(k_low * g_low, k_low * g_high)
        in_s_high = np.maximum(k_high * g_low, k_high * g_high)
        in_c_low = np.exp(left.u - centre.u) * pair.cosine_curvature(x, left)
        in_c_high = np.exp(right.u - centre.u) * pair.cosine_curvature(x, right)
        slack = 64 * np.maximum(rows.error[:, None], cosines.error) + 1e-12
        sum_low = 0.5 * (variance_c * in_c_low + variance_s * in_s_low)
        sum_high = 0.5 * (variance_c * in_c_high + variance_s * in_s_high)
        wobble = slack * 0.5 * (variance_c * in_c_high + variance_s * np.maximum(np.abs(in_s_low), np.abs(in_s_high)))
        tau = pair.shift / pair.radius(x)
        place = 2 * rows.error[:, None] * half_s + 4 * _EPS * np.abs(x) / p
        error = 16 * centre.error + (np.abs(centre.slope) + bound / radius_s) * place
        error = error + 2 * tau * centre.sensitivity * 4 * cosines.error * half_c
        mean_high = -centre.u - np.log1p(sum_low - wobble) + error
        mean_low = -centre.u - np.log1p(sum_high + wobble) - error
    trusted = good & (rows.error[:, None] <= _CRUDE) & (cosines.error <= _CRUDE)
    low, high = -u_high, -u_low
    mean_low = np.where(trusted & np.isfinite(mean_low), np.clip(mean_low, low, high), low)
    mean_high = np.where(trusted & np.isfinite(mean_high), np.clip(mean_high, mean_low, high), high)
    return _Cells(low, high, mean_low, mean_high)


def _at_edges(pair: _Pair, x: Array, cosines: _Line) -> tuple[_Loss, _Loss]:
    """u at the lower and at the upper end of the cosine cells; shared ends once."""
    if len(cosines.low) > 1 and np.array_equal(cosines.low[1:], cosines.high[:-1]):
        edges = pair.loss(x, np.append(cosines.low, cosines.high[-1]))
        return _Loss(*(part[:, :-1] for part in edges)), _Loss(*(part[:, 1:] for part in edges))
    return pair.loss(x, cosines.low), pair.loss(x, cosines.high)


def _crude_range(pair: _Pair, rows: _Line, cosines: _Line, where: tuple) -> tuple[Array, Array]:
    """Bounds of u on the cells `where`, φ rising: φ(r_0) − φ(r′_max) <= u <= φ(r_1) − φ(r′_min).

    r′² = r² − 2rtc + t² falls with c, is convex in r and least at r = t·c.
    """
    i, j = where
    r0, r1 = pair.radius(rows.low[i]), pair.radius(rows.high[i])
    c0, c1, t = cosines.low[j], cosines.high[j], pair.shift
    squared = lambda r, c: np.maximum((r - t * c) ** 2 + t * t * (1 - c) * (1 + c), 0.0)  # noqa: E731
    least = squared(np.clip(t * c1, r0, r1), c1) - 8 * _EPS * t * t * (c1 < 1)  # c = sin α is rounded
    nearest = np.maximum(np.sqrt(np.maximum(least, 0.0)) * (1 - 1e-12) - 4 * _EPS * (r1 + t), 0.0)
    farthest = np.sqrt(np.maximum(squared(r0, c0), squared(r1, c0)) + 8 * _EPS * t * t) * (1 + 1e-12)
    r0, r1 = r0 * (1 - 1e-12), r1 * (1 + 1e-12)
    low, high = pair.phi(r0) - pair.phi(farthest), pair.phi(r1) - pair.phi(nearest)
    margin = 1e-14 * (np.abs(pair.phi(farthest)) + np.abs(pair.phi(r1)) + np.abs(pair.phi(r0)))
    return low - margin, high + margin


def _last_mean(pair: _Pair, rows: _Line, cosines: _Line, cells: _Cells) -> None:
    """Raise, in place, the lower bound of the mean in the last cell [c_0, 1] of each row if it is a crude one.

    There log of density·e^u has slope <= u_c(1) − 2κc_0 in c, κ = (d−3)/2, so if that is −λ < 0 the integral is at most
    the value at c_0 divided by λ. u_c rises with c and is at most 2τ·(y·(p/2)·W^{p/2−1} + m/(2W)), W >= (1−τ)².
    """
    if cosines.error[-1] <= _CRUDE or pair.dimension < 4 or len(cosines.mass) < 2:
        return
    c0 = float(cosines.low[-1])
    tau = pair.shift / pair.radius(rows.low)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        w = np.where(tau < 0.9, (1 - tau) ** 2, np.nan)
        y = pair.gamma * np.exp(rows.high)
        slope = 2 * tau * (y * pair.half * w ** (pair.half - 1) + 0.5 * pair.excess / w)
        fall = (pair.dimension - 3) * c0 - slope * (1 + 1e-9)
        log_density = 0.5 * (pair.dimension - 3) * math.log1p(-min(c0 * c0, 1 - _EPS))
        log_mass = _log(float(cosines.mass[-1] * (1 - cosines.error[-1])))
        mean = cells.low[:, -2] - log_density + np.log(fall) + log_mass - 1e-9 * (1 + abs(log_density))  # nan: no bound
    better = np.isfinite(mean) & (mean > cells.mean_low[:, -1])
    cells.mean_low[better, -1] = np.minimum(mean[better], cells.mean_high[better, -1])


# ---- pieces ----------------------------------------------------------------------------------------------------------


class _Bins:
    """Cells joined by the value of ℓ: bins of width step/2·2^j for cells of width up to step·¾·2^j."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.parts: list[tuple[NDArray[np.int64], Array]] = []

    def add(self, cells: _Cells, mass: Array, error: Array) -> None:
        """Add cells with their masses and the errors of these (absolute); flat arrays."""
        width = cells.high - cells.low
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.ceil(np.log2(np.maximum(width, _TINY) / (_NARROW * self.step)))
        level = np.clip(level, 0, 60).astype(np.int64)
        size = np.ldexp(self.step / 2, level)
        index = np.floor(0.5 * (cells.low + cells.high) / size).astype(np.int64)
        reference = np.asarray((index + 0.5) * size, dtype=np.float64)
        for one in np.unique(level):
            at = np.flatnonzero(level == one)
            self._add_level(
                int(one), index[at], reference[at], _Cells(*(part[at] for part in cells)), mass[at], error[at]
            )

    def _add_level(
        self, level: int, index: NDArray[np.int64], reference: Array, cells: _Cells, mass: Array, error: Array
    ) -> None:
        first, last = int(index.min()), int(index.max())
        if last - first < 4 * len(index) + 1000:
            unique, inverse = np.arange(first, last + 1), index - first
        else:
            unique, inverse = np.unique(index, return_inverse=True)
        count = len(unique)
        members = np.bincount(inverse, None, count)
        columns = [
            np.bincount(inverse, mass, count),
            np.bincount(inverse, mass * error, count),
            np.bincount(inverse, mass * np.expm1(reference - cells.mean_high), count),
            np.bincount(inverse, mass * np.expm1(reference - cells.mean_low), count),
            members.astype(float),
        ]
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(low, inverse, cells.low)
        np.maximum.at(high, inverse, cells.high)
        used = members > 0
        key = (level << 56) + unique[used] + (1 << 55)
        self.parts.append((key, np.stack([*columns, low, high])[:, used]))

    def pieces(self, scale: tuple[float, float]) -> list[Array]:
        """(mass low, mass high, low, high, mean low, mean high); `scale` brackets 1/normaliser.

        Sums of n terms are off by n·ε; the masses' errors move the average of v = e^{reference − mean} − 1 by at most
        twice their share times the largest |v|.
        """
        keys, inverse = np.unique(np.concatenate([key for key, _ in self.parts]), return_inverse=True)
        table = np.concatenate([values for _, values in self.parts], axis=1)
        mass, error, v_low, v_high, count = (np.bincount(inverse, row, len(keys)) for row in table[:5])
        low, high = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
        np.minimum.at(low, inverse, table[5])
        np.maximum.at(high, inverse, table[6])
        level = keys >> 56
        size = np.ldexp(self.step / 2, level)
        reference = ((keys - (level << 56) - (1 << 55)) + 0.5) * size
        least, most = np.expm1(reference - high), np.expm1(reference - low)
        share = error / mass + (count + len(self.parts)) * _EPS
        slack = (2 * share + 8 * _EPS) * np.maximum(np.abs(least), np.abs(most))
        with np.errstate(divide="ignore"):  # wide bins: −∞, cut back to the bounds of ℓ
            mean_high = reference - np.log1p(np.maximum(v_low / mass - slack, least)) + 4 * _EPS * np.abs(reference)
            mean_low = reference - np.log1p(np.minimum(v_high / mass + slack, most)) - 4 * _EPS * np.abs(reference)
        mean_low = np.clip(mean_low, low, high)
        mean_high = np.clip(mean_high, mean_low, high)
        mass_low = np.maximum(mass * (1 - share) - count * _TINY, 0.0) * float(scale[0])
        columns = mass_low, mass * (1 + share) * float(scale[1]), low, high, mean_low, mean_high
        return [np.asarray(column, dtype=np.float64) for column in columns]


def _collect(pair: _Pair, step: float) -> LossPieces:
    plan = _plan(pair, step)
    bins, wild = _Bins(step), _Wild()
    for stride in np.unique(plan.stride):
        cosines = plan.cosines.pooled(int(stride))
        chosen = np.flatnonzero(plan.stride == stride)
        block = max(1, _CELLS // len(cosines.mass))
        for start in range(0, len(chosen), block):
            rows = _take(plan.rows, chosen[start : start + block])
            cells = _cells(pair, rows, cosines)
            _last_mean(pair, rows, cosines, cells)
            mass = rows.mass[:, None] * cosines.mass
            error = rows.error[:, None] + cosines.error + rows.error[:, None] * cosines.error
            flat = _Cells(*(part.ravel() for part in cells))
            tame = flat.high - flat.low <= _WILD
            mass, error = np.maximum(mass.ravel(), _TINY), np.minimum(error.ravel(), 1.0)
            wild.add(_Cells(*(part[~tame] for part in flat)), mass[~tame], error[~tame])
            if tame.any():
                bins.add(_Cells(*(part[tame] for part in flat)), mass[tame], error[tame])
    rows, cosines = plan.rows, plan.cosines
    inner, outer = _inner_mass(pair, float(rows.low[0])), _outer_mass(pair, float(rows.high[-1]))
    radial = _total(rows, inner[0] + outer[0], inner[1] + outer[1])
    polar = _total(cosines, 0.0, 0.0)
    scale = (1 / (radial[1] * polar[1]) * (1 - 4 * _EPS), 1 / (radial[0] * polar[0]) * (1 + 4 * _EPS))
    table = [np.stack(bins.pieces(scale)).T]
    table += [
        np.array([_ball(pair, float(rows.low[0]), radial)]),
        np.array([_outside(pair, float(rows.high[-1]), radial)]),
    ]
    known = np.concatenate(table)
    others = math.fsum(known[:, 0] * np.exp(np.minimum(-known[:, 5], 700.0))) * (1 - 1e-12)
    table += [np.array([piece]) for piece in wild.pieces(scale, others)]
    table = np.concatenate(table)
    singular = pair.excess > 0 or pair.power < 1
    return _to_pieces(_mirrored(table) if singular else table)


class _Split(NamedTuple):
    """One λ of `_mirrored`: which pieces are U and N, and what is known of N∖U*."""

    cut: float
    upper: NDArray[np.bool_]
    lower: NDArray[np.bool_]
    width: float
    stray: NDArray[np.int64]
    stray_mass: tuple[float, float]
    mass: tuple[float, float]
    mass_q: tuple[float, float]
    cost: float


def _mirrored(table: Array) -> Array:
    """The pieces with those far below 0 replaced by the reflections of those far above, where that is much narrower.

    Cells resolve x = 0 but not x = t·e_1, where ℓ → −∞ if φ is singular at 0. For λ > 0 let U be the pieces with
    ℓ >= λ everywhere and N those that reach below −λ. The reflection U* of U lies in {ℓ <= −λ}, hence in N, so U*, N∖U*
    and the pieces outside N are a partition, with

        P(U*) = Q(U),   Q(U*) = P(U),   P(N∖U*) = P(N) − Q(U),   Q(N∖U*) = Q(N) − P(U),   Q(N) = 1 − Q(outside N).

    A point of N∖U* has −λ−w <= ℓ <= −λ+w unless it lies in a piece of N that reaches above −λ+w or its reflection in a
    piece outside U that reaches above λ+w; w is the least for which these exceptions have masses below `_EXCEPTIONS`.

    Of a few λ the one is taken that leaves the least uncertainty of the masses (and the least of w² times the mass of
    N∖U*), if that is less than a quarter of what it is without reflection and the masses of N∖U* are known within 2.
    """
    with np.errstate(over="ignore"):
        q_low, q_high = table[:, 0] * np.exp(-table[:, 5]), table[:, 1] * np.exp(-table[:, 4])
    q_high = np.minimum(q_high, 1.0)
    positive = np.isfinite(table[:, 2]) & (table[:, 2] > 0)
    if not positive.any():
        return table
    cuts = np.unique(np.quantile(table[positive, 2], np.linspace(0.02, 0.98, 33)))
    best = min((_split(table, q_low, q_high, float(cut)) for cut in cuts), key=lambda split: split.cost)
    if best.cost >= 0.25 * math.fsum(q_high - q_low):
        return table
    return _reflect(table, q_low, q_high, best)


def _split(table: Array, q_low: Array, q_high: Array, cut: float) -> _Split:
    upper, lower = table[:, 2] >= cut, table[:, 2] < -cut
    reach = np.where(lower, table[:, 3] + cut, np.where(upper, -np.inf, table[:, 3] - cut))
    across = np.flatnonzero(reach > 0)
    across = across[np.argsort(-reach[across])]
    count = int(np.searchsorted(np.cumsum(table[across, 1] + q_high[across]), _EXCEPTIONS))
    stray = across[:count]
    width = float(reach[across[count]]) if count < len(across) else 0.0
    stray_p = math.fsum(np.where(lower[stray], table[stray, 1], q_high[stray])) * (1 + 1e-12)
    stray_q = math.fsum(np.where(lower[stray], q_high[stray], table[stray, 1])) * (1 + 1e-12)
    p_low = math.fsum(table[lower, 0]) - math.fsum(q_high[upper]) - 4 * _EPS - stray_p
    p_high = math.fsum(table[lower, 1]) - math.fsum(q_low[upper]) + 4 * _EPS
    between_low = 1 - math.fsum(q_high[~lower]) - math.fsum(table[upper, 1]) - 4 * _EPS - stray_q
    between_high = 1 - math.fsum(q_low[~lower]) - math.fsum(table[upper, 0]) + 4 * _EPS
    cost = math.fsum((q_high - q_low) * ((~lower).astype(float) + upper)) + between_high * width**2 / 8
    if p_low < 0.5 * p_high or between_low < 0.5 * between_high:
        cost = math.inf
    masses = (stray_p, stray_q), (p_low, p_high), (between_low, between_high)
    return _Split(cut, upper, lower, width, stray, *masses, cost)


def _reflect(table: Array, q_low: Array, q_high: Array, split: _Split) -> Array:
    """`_mirrored` at one λ.

    The exceptions become a piece of their own, joined to a random part (an independent coin reveals nothing) of the
    heaviest piece, as heavy as they may be, which brackets its masses.
    """
    upper, lower = split.upper, split.lower
    u, (stray_p, stray_q), (p_low, p_high) = table[upper], split.stray_mass, split.mass
    reflected = np.column_stack([q_low[upper], q_high[upper], -u[:, 3], -u[:, 2], -u[:, 5], -u[:, 4]])
    ends = [-split.cut - split.width, -split.cut + split.width]
    means = [math.log(p_low / split.mass_q[1]), math.log(p_high / split.mass_q[0])]
    added = [[p_low, p_high, *ends, *np.clip(means, ends[0], ends[1])]]
    kept = table.copy()
    if len(split.stray):
        heaviest = int(np.argmax(np.where(lower, 0.0, np.minimum(table[:, 0], q_low))))
        part = min((stray_p + stray_q) / table[heaviest, 0], 0.5)
        low, high = -float(table[~upper, 3].max()), float(table[lower, 3].max())
        masses = part * table[heaviest, :2] + [0.0, stray_p]
        masses_q = part * q_low[heaviest], part * q_high[heaviest] + stray_q
        means = [math.log(masses[0] / masses_q[1]) - 1e-12, math.log(masses[1] / masses_q[0]) + 1e-12]
        ends = [min(low, table[heaviest, 2]), max(high, table[heaviest, 3])]
        added.append([masses[0] * (1 - 4 * _EPS), masses[1] * (1 + 4 * _EPS), *ends, *means])
        kept[heaviest, :2] *= (1 - part) * (1 + np.array([-4, 4]) * _EPS)
    return np.concatenate([kept[~lower], reflected, added])


def _to_pieces(table: Array) -> LossPieces:
    """Rows of (mass low, mass high, low, high, mean low, mean high) as pieces; masses rounded to nothing left out."""
    table = table[table[:, 1] > 0]
    table = table[np.argsort(table[:, 4], kind="stable")]
    with np.errstate(divide="ignore"):
        log_low = np.log(np.maximum(table[:, 0], 5e-324)) * (1 + 2 * _EPS) - 2 * _EPS
        log_high = np.log(table[:, 1]) * (1 - 2 * _EPS) + 2 * _EPS
    return LossPieces(np.where(table[:, 0] > 0, log_low, -np.inf), np.minimum(log_high, 0.0), *table.T[2:])


def _take(line: _Line, index: NDArray[np.int64]) -> _Line:
    return _Line(*(getattr(line, field.name)[index] for field in dataclasses.fields(line)))


def _total(line: _Line, low: float, high: float) -> tuple[float, float]:
    """Bounds of the normaliser: all cells and what lies outside them."""
    return (
        (math.fsum(line.mass * (1 - line.error)) + low) * (1 - 4 * _EPS),
        (math.fsum(line.mass * (1 + line.error)) + high) * (1 + 4 * _EPS),
    )


class _Wild:
    """Cells on which ℓ ranges too far (next to x = t·e_1, or behind the last cosine): one piece for either sign."""

    def __init__(self) -> None:
        self.sums = {sign: [0.0, 0.0, 0.0, math.inf, -math.inf, 0.0] for sign in (-1, 1)}

    def add(self, cells: _Cells, mass: Array, error: Array) -> None:
        negative = cells.low + cells.high < 0
        for sign, chosen in ((-1, negative), (1, ~negative)):
            if not chosen.any():
                continue
            sums, m, e = self.sums[sign], mass[chosen], error[chosen]
            low, high = cells.low[chosen], cells.high[chosen]
            sums[0] += max(math.fsum(m * (1 - e)) - len(m) * _TINY, 0.0)
            sums[1] += math.fsum(m * (1 + e))
            with np.errstate(over="ignore"):
                sums[2] += float(np.sum(np.exp(np.log(m * (1 + e)) - cells.mean_low[chosen])))
            sums[3], sums[4] = min(sums[3], float(low.min())), max(sums[4], float(high.max()))

    def pieces(self, scale: tuple[float, float], others: float) -> list[tuple[float, ...]]:
        """The pieces; their Q-mass is at most Σ P·e^{−mean} and at most what the other pieces leave of Q."""
        result = []
        for sums in self.sums.values():
            low, high = sums[3], sums[4]
            if sums[1] == 0:
                continue
            mass_low, mass_high = sums[0] * scale[0] * (1 - 1e-12), sums[1] * scale[1] * (1 + 1e-12)
            mass_q = max(min(sums[2] * scale[1] * (1 + 1e-12), max(1 - others, 0.0) + 1e-12), _TINY)
            mean_low = max(_log(mass_low) - math.log(mass_q), low)
            mean_high = max(high, mean_low)
            result.append((mass_low, mass_high, low, high, min(mean_low, high), mean_high))
        return result


# ---- the ball inside the first row and the space outside the last ----------------------------------------------------


def _density(pair: _Pair, x: float) -> float:
    """exp(−k(e^x − 1 − x))."""
    return math.exp(-pair.gamma * float(_bulge(np.array(x))))


def _inner_mass(pair: _Pair, x: float) -> tuple[float, float]:
    """Bounds of ∫_{−∞}^x exp(−k(e^v − 1 − v)) dv, x < 0.

    The exponent is concave with slope k(1 − e^x) at x, and k·v − k·e^v >= k·v − k·e^x.
    """
    value = _density(pair, x)
    return value / pair.gamma * (1 - 1e-9), value / (pair.gamma * -math.expm1(x)) * (1 + 1e-9)


def _outer_mass(pair: _Pair, x: float) -> tuple[float, float]:
    """Bounds of ∫_x^∞ exp(−k(e^v − 1 − v)) dv, x > 0, with y = k·e^x.

    Above: the exponent is concave with slope −k(e^x − 1). Below: Γ(k, y) >= y^k·e^{−y}/(y + max(0, 1−k)); the
    difference vanishes at ∞ and for k <= 1 has the derivative −(1−k)·y^{k−1}·e^{−y}/(y+1−k)² <= 0, while for k >= 1
    Γ(k, y) >= y^{k−1}·∫_y^∞ e^{−v} dv.
    """
    value, k = _density(pair, x), pair.gamma
    y = k * math.exp(x)
    return value / (y + max(0.0, 1 - k)) * (1 - 1e-9), value / (k * math.expm1(x)) * (1 + 1e-9)


def _ball(pair: _Pair, x: float, total: tuple[float, float]) -> tuple[float, ...]:
    """The piece |x| < r_0. Q(ball) >= volume·Q's least density there, that at distance r_0 + t.

    P's density at r_0 times the ball's volume is r_0·f_R(r_0)/d = p·(density of x)/d. Above: P(ball)·e^{−inf ℓ}, and
    P(|X| < r_0 + t).
    """
    r, t = float(pair.radius(np.array(x))), pair.shift
    low, high = _inner_mass(pair, x)
    mass_low, mass_high = low / total[1], high / total[0]
    phi = lambda radius: float(pair.phi(np.array(radius)))  # noqa: E731
    margin = 1e-13 * (1 + abs(phi(r + t)))
    loss_low = phi(max(t - r, 0.0)) - phi(r) - margin
    loss_high = math.inf if pair.excess > 0 else (r + t) ** pair.power + margin
    loss_low, loss_high = max(loss_low, -pair.largest), min(loss_high, pair.largest)
    least = pair.power * _density(pair, x) / total[1] / pair.dimension * (1 - 1e-9)
    mean_high = math.log(mass_high) - math.log(max(least, 5e-324)) + phi(r + t) - phi(r) + margin
    most = 0.0
    beyond = pair.position(r + t)
    if beyond < -1e-6:
        most = min(most, math.log(_inner_mass(pair, beyond)[1] / total[0]))
    mean_low = max(math.log(max(mass_low, 5e-324)) - most, loss_low)
    mean_high = min(max(mean_high, mean_low), loss_high)
    return mass_low, mass_high, loss_low, loss_high, min(mean_low, mean_high), mean_high


def _outside(pair: _Pair, x: float, total: tuple[float, float]) -> tuple[float, ...]:
    """The piece |x| > r_1: Q of it lies between P(|X| > r_1 + t) and P(|X| > r_1 − t)."""
    r, t = float(pair.radius(np.array(x))), pair.shift
    low, high = _outer_mass(pair, x)
    mass_low, mass_high = low / total[1], high / total[0]
    q_low = _outer_mass(pair, pair.position(r + t))[0] / total[1]
    inner = pair.position(r - t) if r > t else -math.inf
    q_high = min(_outer_mass(pair, inner)[1] / total[0], 1.0) if inner > 1e-6 else 1.0
    loss_low, loss_high = -math.inf, math.inf
    if pair.power <= 1 and r > t:  # |r′^p − r^p| <= t^p and |log(r′/r)| <= −log(1 − t/r)
        loss_high = min((t**pair.power - pair.excess * math.log1p(-t / r)) * (1 + 1e-12), pair.largest)
        loss_low = -loss_high
    mean_low = max(math.log(max(mass_low, 5e-324)) - math.log(q_high), loss_low)
    mean_high = min(math.log(mass_high) - math.log(max(q_low, 5e-324)), loss_high)
    return mass_low, mass_high, loss_low, loss_high, min(mean_low, mean_high), mean_high
