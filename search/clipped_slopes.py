"""What clipping, sampling and noise do to a zeroth-order estimate of the gradient, and the clip that does least harm.

A record's slope along a direction z ~ N(0, I_d) is s = g_i·z, with mean g·z over the records; g is the gradient. Let
S² = E s² over records and directions, and ρ = |g|/S the *signal*: the share that the records agree in, the rest is
their own. A step with k directions clips a record's k slopes to L2 norm C = c·S, sums over a Poisson batch of rate q
and expected size b, adds noise of standard deviation σ·C to each of the k sums, and moves along

    ĝ = (1/k) Σ_j z_j (Σ_i f_j(s_i) + C·noise_j)/b.

**Assumption**: the k slopes of a record drawn at random are normal with variance S², jointly normal with their mean.
Then (Stein's lemma) clipping keeps E f(s)·(g·z) = λ·|g|² with λ = E ∂f_j/∂s_j, so E ĝ = λ·g: the bias of clipping is a
shorter step in the right direction, which the learning rate makes good. What counts is E|ĝ/λ − g|². With h = E f_j²/S²
it is, to leading order in d and divided by |g|²·d/k, the sum of

    direction   1                        g·z is measured, and not g: only more directions, b·k·T fixed, lower it
    sample      (1−q)·h/(b·λ²·ρ²)         B is a Poisson sample: more records lower it
    noise       σ²·c²/(b²·λ²·ρ²)          the only part that a better noise lowers.

For one direction without clipping E|(g·z)z|² = (d+2)|g|² exactly (d|g|² on the sphere of radius √d): the error of the
first part is (d+1)|g|² ((d−1)|g|²); "1" stands for it. Clipping bends the mean too, which adds at most ρ⁴·(h − λ²)/λ²
to the direction's part when k = 1 (the terms of the Hermite series above the first); it is left out.

For one direction λ = P(|s| <= C) = 2Φ(c) − 1. Both λ and h are functions of c and k alone: chi laws.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

from scipy.optimize import minimize_scalar
from scipy.special import gammainc, gammaincc, gammaln

from ..mechanisms import _validate

LEAST_CLIP, LARGEST_CLIP = 0.01, 6.0
"""c/√k is looked for in between: below, the estimate is that of signs; above, nothing is clipped."""


def kept_share(clip: float, directions: int = 1) -> float:
    """λ in (0, 1]: what clipping k normal slopes to norm `clip`, in units of S, keeps of their mean."""
    k, half = directions, clip * clip / 2
    inside = float(gammainc(k / 2, half))
    if k == 1:
        return inside
    mean_inverse = math.exp(gammaln((k - 1) / 2) - gammaln(k / 2)) / math.sqrt(2)  # E 1/χ_k
    return inside + clip * (k - 1) / k * mean_inverse * float(gammaincc((k - 1) / 2, half))


def clipped_square(clip: float, directions: int = 1) -> float:
    """h in (0, 1]: mean square of a slope after clipping k of them to norm `clip`; both in units of S."""
    k, half = directions, clip * clip / 2
    return float(gammainc(k / 2 + 1, half)) + clip * clip / k * float(gammaincc(k / 2, half))


@final
@dataclasses.dataclass(frozen=True)
class SlopeError:
    """The three parts of E|ĝ/λ − g|²/|g|² of one step, each divided by d/k: no unit."""

    sample: float
    noise: float
    direction: float = 1.0

    @property
    def total(self) -> float:
        return self.direction + self.sample + self.noise

    @property
    def noise_share(self) -> float:
        """The part of the total that vanishes without noise."""
        return self.noise / self.total


def slope_error(
    clip: float, *, noise: float, batch_size: float, sampling_rate: float, signal: float, directions: int = 1
) -> SlopeError:
    """The error of one step at clip c; see the module's text.

    Args:
        clip: c = C/S > 0, the clipping norm over the root mean square slope.
        noise: σ >= 0, standard deviation of the noise per coordinate, in units of C.
        batch_size: b > 0, expected.
        sampling_rate: q in (0, 1].
        signal: ρ in (0, 1].
        directions: k >= 1, clipped and released jointly.

    Raises ValueError: an argument is out of range.
    """
    clip = _validate.positive("clip", clip)
    noise = _validate.non_negative("noise", noise)
    batch_size = _validate.positive("batch_size", batch_size)
    sampling_rate = _validate.unit_interval("sampling_rate", _validate.positive("sampling_rate", sampling_rate))
    directions = _validate.integer("directions", directions, minimum=1)
    scale = (kept_share(clip, directions) * check_signal(signal)) ** 2
    sample = (1 - sampling_rate) * clipped_square(clip, directions) / (batch_size * scale)
    return SlopeError(sample, (noise * clip / batch_size) ** 2 / scale)


def best_clip(
    *, noise: float, batch_size: float, sampling_rate: float, signal: float = 1.0, directions: int = 1
) -> float:
    """c = C/S with the least error at this noise: a large C adds noise, a small one loses what records differ in.

    It does not depend on `signal`, and needs no data but S. Where noise is all (q = 1), the least is at c → 0, the sum
    of signs, and LEAST_CLIP·√k is returned; without noise LARGEST_CLIP·√k. The minimum is flat: the sum of signs costs
    a factor π/2 in the sample's part, and c = 1 has 1.37 times the noise's least variance.

    Arguments and errors are those of `slope_error`.
    """
    question = {
        "noise": noise,
        "batch_size": batch_size,
        "sampling_rate": sampling_rate,
        "signal": signal,
        "directions": directions,
    }
    slope_error(1.0, **question)  # checks the arguments
    root = math.sqrt(directions)

    def error(log_clip: float) -> float:
        found = slope_error(math.exp(log_clip), **question)
        return math.log(found.sample + found.noise)

    low, high = LEAST_CLIP * root, LARGEST_CLIP * root
    if noise == 0:
        return high
    if sampling_rate == 1:
        return low
    found: Any = minimize_scalar(
        error, bounds=(math.log(low), math.log(high)), method="bounded", options={"xatol": 1e-6}
    )
    return math.exp(float(found.x))


def check_signal(signal: float) -> float:
    """`signal` in (0, 1], or a ValueError."""
    signal = _validate.positive("signal", signal)
    if signal > 1:
        raise ValueError(
            f"expected 0 < signal <= 1, got signal={signal!r}: it is the root mean square of the mean slope over that "
            "of the records' slopes"
        )
    return signal
