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
row and the space outside the last are pieces too (`ends`), with Q-masses bounded by e^{−ℓ} or by the laws
of the norm, |x| and |x − t·e_1| differing by at most t.

Reflection x ↦ t·e_1 − x exchanges P and Q and negates ℓ: the pieces of (Q, P) are these with roles exchanged.
Family: Wei, Bienstock, Polychroniadou 2026, arXiv 2606.08681; ℓ2 mechanism: Joseph, Kulesza, Yu 2025, arXiv 2502.15929.
"""

from __future__ import annotations

import math

import numpy as np

from ...mechanisms import _validate
from ...mechanisms.spherical import SphericalGamma
from ..pld.pieces import LossPieces
from .collect import collect
from .pair import Pair, log_of

_MAX_DIMENSION = 10**10


def spherical_pieces(noise: SphericalGamma, shift: float, *, step: float) -> LossPieces:
    """The loss of (A, B) = (P, Q): `noise` against itself shifted by `shift` > 0 (units of C, L2 norm).

    On a piece that matters ℓ varies by 1.25·`step` or less; pieces of small mass are wider. Brackets of the mean are of
    second order in `step` or better (measured averages: below step²/2 at losses near 1, step² at a tenth of that).
    Mass brackets are near 1e−12 relative; only where φ is singular (shape below the dimension, or power below 1) and
    the singular point of Q matters do the pieces far below 0 have brackets of order step², as `mirror` explains.
    Work grows as (range of ℓ/step)², for d above 10^4 as range/step; losses far below 1 in low dimension cost more.

    Raises ValueError where the proof does not hold: power outside [0.1, 2], or shape above the dimension (then the
    density vanishes at 0 and u is not known to be absolutely monotone in c); where the shift is so far outside the
    noise that masses leave the floats; and for a step that would need more than `grid._MOST_CELLS` cells.
    """
    _require_proof(noise)
    pair = Pair(noise, _validate.positive("shift", shift) / noise.scale)
    return collect(pair, _validate.positive("step", step))


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
    return log_of(lower), min(log_of(upper), 0.0)


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
