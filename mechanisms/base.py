"""The interface of a noise: density, tail, moments, sampler, and its JSON document.

Units. Noise is stated in units of the clipping norm C, an L2 bound on one example's contribution: adding or
removing an example shifts the released value by at most 1, replacing one by at most 2. The caller multiplies by C.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import integrate

from . import _validate

if TYPE_CHECKING:  # torch is imported where noise is drawn, so that accounting starts without it
    import torch

SPEC_FORMAT = 1  # version of the JSON document that `spec` writes
_DEEPEST_BREAK = 45.0  # −log P(X > x) up to which quadrature cuts at the density's breaks
_FRESH_FROM = 8.0  # of an exponential draw
LOSS_ROUNDING = 1e-13  # relative, of `Mechanism.loss_at_zero`


class DensityShape(enum.Enum):
    """What bounds may assume of a density p that is symmetric about 0 and falls with |x|.

    LOG_CONCAVE: log p is concave, so the privacy loss log p(x)/p(x−t) is monotone in x.
    LOG_CONVEX_SIDES: log p is convex on each side of 0 (every scale mixture of Laplace noise), so the loss rises up
    to x = 0, falls until x = t and rises again.
    UNIMODAL: nothing more than that p falls with |x|. Bounds then take the loss on an interval from
    `Mechanism.loss_range`, and cut the line at the `Mechanism.breaks`.
    """

    LOG_CONCAVE = "log-concave"
    LOG_CONVEX_SIDES = "log-convex on each side"
    UNIMODAL = "unimodal"


class Mechanism(abc.ABC):
    """Additive noise with a density that is symmetric about 0 and falls with |x|, drawn independently per coordinate.

    A family is a frozen dataclass whose fields are its parameters. It must supply `log_density`, `log_tail`,
    `scaled`, `scale_hint` and `density_shape`; whatever else it leaves out is derived numerically from those.
    """

    family: ClassVar[str]
    """Name in JSON documents and on the command line."""
    short_keys: ClassVar[Mapping[str, str]] = {}
    """Short parameter names that `parse` accepts, mapped to field names."""
    density_shape: ClassVar[DensityShape]
    isotropic: ClassVar[bool] = False
    """True if d independent coordinates have a rotation-invariant law (the Gaussian): bounds do not depend on d."""
    closed_renyi: ClassVar[bool] = False
    """True if `renyi_divergence` is a closed formula rather than quadrature."""
    has_jumps: ClassVar[bool] = False
    """True if the density jumps at its `breaks`: its Fisher information is infinite then."""
    drop_rounding: ClassVar[float | None] = None
    """Relative rounding error of `log_tail_drop` (or of log(1 − e^−drop), where the drop is large) and of
    `log_density_drop`; None if they are differences of logarithms."""

    # ---- what a family must supply -------------------------------------------------------------------------

    @abc.abstractmethod
    def log_density(self, x: ArrayLike) -> NDArray[np.float64]:
        """Natural log of the density at `x` (any shape, units of C); same shape."""

    @abc.abstractmethod
    def log_tail(self, x: ArrayLike) -> NDArray[np.float64]:
        """log P(X > x) for `x` >= 0 (any shape), accurate to relative rounding deep into the tail; same shape."""

    @abc.abstractmethod
    def scaled(self, factor: float) -> Self:
        """The law of `factor`·X, `factor` > 0. Epsilon never rises with the factor."""

    @property
    @abc.abstractmethod
    def scale_hint(self) -> float:
        """A length comparable to the noise (units of C), for numerical searches; not a statistic of its own."""

    # ---- derived; a family overrides what it knows in closed form -------------------------------------------

    def cdf(self, x: ArrayLike) -> NDArray[np.float64]:
        """P(X <= x), same shape as `x`."""
        x = np.asarray(x, dtype=np.float64)
        tail = np.exp(self.log_tail(np.abs(x)))
        return np.where(x >= 0, 1 - tail, tail)

    def quantile(self, p: ArrayLike) -> NDArray[np.float64]:
        """The x with P(X <= x) = p; `p` in [0, 1], same shape. Raises ValueError outside."""
        p = np.asarray(p, dtype=np.float64)
        if not np.all((p >= 0) & (p <= 1)):
            raise ValueError(f"expected 0 <= p <= 1, got p={p}")
        with np.errstate(divide="ignore"):
            magnitude = self.tail_quantile(np.log(np.minimum(p, 1 - p)))
        return np.where(p >= 0.5, magnitude, -magnitude)

    def tail_quantile(self, log_probability: ArrayLike) -> NDArray[np.float64]:
        """The x >= 0 with log P(X > x) = `log_probability` <= −log 2; same shape. Bisection to the last bits."""
        target = np.minimum(np.asarray(log_probability, dtype=np.float64), -math.log(2))
        low, high = np.zeros_like(target), np.full_like(target, self.scale_hint)
        finite_target = np.isfinite(target)
        for _ in range(1100):  # 2^1100 exceeds every float: the loop ends by its break
            short = finite_target & (self.log_tail(high) > target) & np.isfinite(high)
            if not short.any():
                break
            low, high = np.where(short, high, low), np.where(short, 2 * high, high)
        for _ in range(200):
            middle = 0.5 * (low + high)
            if np.all((middle <= low) | (middle >= high)):
                break
            above = self.log_tail(middle) > target
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        result = np.where(finite_target, 0.5 * (low + high), np.inf)
        return np.where(target >= -math.log(2), 0.0, result)

    @property
    def mean_abs(self) -> float:
        """E|X| per coordinate, in units of C; `inf` where it does not exist."""
        return 2 * self._tail_moment(1)

    @property
    def variance(self) -> float:
        """E X² per coordinate, in units of C²; `inf` where it does not exist."""
        return 4 * self._tail_moment(2)

    @property
    def support(self) -> float:
        """The least A with P(|X| > A) = 0, in units of C; `inf` unless the noise is bounded.

        A shift then takes some outcomes out of the other law's support: their loss is infinite.
        """
        return math.inf

    @property
    def tail_index(self) -> float:
        """κ with P(X > x) of order x^−κ; `inf` for lighter tails. E|X|^n is finite exactly for n < κ."""
        return math.inf

    @property
    def fisher_information(self) -> float:
        """∫ p′²/p for the location of one coordinate, in units of 1/C²; at least 1/variance."""
        return 2 * self._integrate_side(
            lambda x: self.score(x) ** 2 * np.exp(self.log_density(x)), decay=self.tail_index + 2
        )

    def score(self, x: ArrayLike) -> NDArray[np.float64]:
        """|d log p / dx| at `x` > 0, same shape, in units of 1/C; central difference unless the family overrides it."""
        x = np.asarray(x, dtype=np.float64)
        step = 1e-6 * np.maximum(x, 1e-3 * self.scale_hint)
        return np.abs(self.log_density(x + step) - self.log_density(x - step)) / (2 * step)

    def loss_at_zero(self, shift: float) -> float:
        """log p(0)/p(shift) for `shift` >= 0, the largest loss where the sides are log-convex (natural log).

        A family overrides this difference of logarithms wherever it can keep the relative precision of small shifts.
        """
        return float(self.log_density(0.0) - self.log_density(shift))

    def log_tail_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        """log P(X > x) − log P(X > x+width) >= 0 for `x`, `width` >= 0 (`width` may be inf); broadcast shape.

        A family overrides it where it can keep the relative precision of small widths, and sets `drop_rounding`.
        """
        x, width = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(width, dtype=np.float64))
        far = np.where(np.isfinite(width), x + width, x)
        return np.where(np.isfinite(width), self.log_tail(x) - self.log_tail(far), np.inf)

    def log_density_drop(self, x: ArrayLike, width: ArrayLike) -> NDArray[np.float64]:
        """log p(x) − log p(x+width) >= 0 for `x`, `width` >= 0, both finite; broadcast shape. As `log_tail_drop`."""
        x = np.asarray(x, dtype=np.float64)
        return self.log_density(x) - self.log_density(x + np.asarray(width, dtype=np.float64))

    @property
    def max_score(self) -> float:
        """sup over x of |d log p / dx|, in units of 1/C; `inf` where it is not bounded (the Gaussian)."""
        return math.inf

    def breaks(self, reach: float) -> NDArray[np.float64]:
        """Distances in (0, `reach`] from 0, increasing, at which log p has a kink or a jump, shape (breaks,).

        Bounds and quadrature cut the line there. In units of C, as `reach`.
        """
        return np.empty(0)

    def loss_range(
        self, near: ArrayLike, width: ArrayLike, shift: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(lower, upper) bounds of log p(x)/p(x+shift) over near <= x <= near+width, `near` >= 0; broadcast shape.

        `width` may be inf. Bounds of a UNIMODAL noise rest on it; rounding must be included. Here, unless the loss is
        known to be monotone, from the fall of p alone: the loss at `near`, less the fall of log p over the width, or
        plus that beyond `shift`. A family overrides it where it knows more: these bounds are wide.
        """
        near, width = np.broadcast_arrays(np.asarray(near, dtype=np.float64), np.asarray(width, dtype=np.float64))
        bounded = np.isfinite(width)
        step = np.where(bounded, width, 0.0)
        loss = self.log_density_drop(near, shift)
        if self.density_shape is DensityShape.UNIMODAL:
            low = loss - self.log_density_drop(near, step)
            high = loss + self.log_density_drop(near + shift, step)
        else:  # monotone
            end = self.log_density_drop(near + step, shift)
            low, high = np.minimum(loss, end), np.maximum(loss, end)
        scale = np.abs(self.log_density(near)) + np.abs(self.log_density(near + shift)) + np.abs(low) + np.abs(high)
        slack = 1e-15 * (2 + scale)
        low, high = np.maximum(low - slack, 0.0), high + slack
        if self.density_shape is DensityShape.LOG_CONCAVE:
            return low, np.where(bounded, high, self.largest_loss(shift))
        return np.where(bounded, low, 0.0), np.where(bounded, high, self.largest_loss(shift))

    def loss_step(self, shift: float) -> float:
        """A number of which every value of log p(x)/p(x−shift) is a multiple, or 0 if there is none."""
        return 0.0

    def largest_loss(self, shift: float) -> float:
        """An upper bound on log p(x)/p(x−shift) over all x, rounding included; `inf` where none is known."""
        if self.density_shape is DensityShape.LOG_CONVEX_SIDES:
            # log p convex on each side: the loss rises up to x = 0 and falls after it until x = shift.
            return self.loss_at_zero(shift) * (1 + LOSS_ROUNDING)
        return math.inf

    def renyi_divergence(self, order: float, shift: float) -> float:
        """Rényi divergence of `order` >= 1 between the laws of X and X + `shift`, one coordinate, natural log.

        Here by adaptive quadrature without a proven error: an *estimate*. `accounting.renyi` computes the proven
        bound; families with a closed formula override this and set `closed_renyi`.
        """
        order, shift = check_order(order), abs(_validate.finite("shift", shift))
        if shift == 0:
            return 0.0
        loss = lambda x: self.log_density(x) - self.log_density(x - shift)  # noqa: E731
        if math.isinf(order):
            grid = np.concatenate([[0.0], -self.tail_quantile(-np.geomspace(math.log(2), 700, 2000))])
            return float(np.max(loss(grid)))
        if order == 1:
            return self._integrate_line(lambda x: np.exp(self.log_density(x)) * loss(x), shift)
        integrand = lambda x: np.exp(self.log_density(x) + (order - 1) * loss(x))  # noqa: E731
        return math.log(self._integrate_line(integrand, shift)) / (order - 1)

    # ---- sampling ------------------------------------------------------------------------------------------

    def sample(
        self,
        shape: Sequence[int],
        *,
        generator: torch.Generator,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Draw independent noise of the given `shape`, in units of C.

        `generator` is required and is the only source of randomness; `device` is its device if not given. Draws are
        made in float64 and cast to `dtype` (default float32) at the end; one exception: 2^18 coordinates or more of
        Gaussian noise are drawn in float32, whose tail ends at 6.66 standard deviations (`_normal.py`). Training draws
        the noise of so many parameters in blocks of 2^18 or more: its Gaussian is float32, but for a shorter last
        block.
        """
        from . import _sampling  # torch starts here and no earlier

        return _sampling.draw(self, tuple(shape), generator=generator, device=device, dtype=dtype)

    def sample_numpy(self, shape: int | Sequence[int], *, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw independent noise of the given `shape` with numpy, float64, in units of C: for analyses without torch.

        By inversion of the tail at an exponential draw; `rng` is required and is the only source of randomness. Draws
        are equally dense at every depth of the tail.
        """
        if not isinstance(rng, np.random.Generator):
            raise ValueError(f"expected rng to be a numpy.random.Generator, got rng={rng!r}")
        magnitude = self.tail_quantile(-_exponential(shape, rng) - math.log(2))
        return np.where(rng.integers(0, 2, shape, dtype=np.int8) == 1, magnitude, -magnitude)

    def _draw(self, shape: tuple[int, ...], *, generator: torch.Generator) -> torch.Tensor:
        """float64 noise on the generator's device; by inverting the tail at an exponential draw, unless overridden."""
        from . import _sampling

        return _sampling.by_inversion(self, shape, generator=generator)

    # ---- JSON ----------------------------------------------------------------------------------------------

    def spec(self) -> dict[str, Any]:
        """A JSON-ready document: format version, family, parameters. `from_spec` reads it back to an equal object."""
        parameters = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) is not None
        }
        return {"format": SPEC_FORMAT, "family": self.family, "parameters": parameters}

    # ---- quadrature ----------------------------------------------------------------------------------------

    def _tail_moment(self, power: int) -> float:
        """∫_0^∞ x^(power−1) P(X > x) dx."""
        if self.tail_index <= power:
            return math.inf
        tail = lambda x: x ** (power - 1) * np.exp(self.log_tail(x))  # noqa: E731
        return self._integrate_side(tail, decay=self.tail_index - power)

    def _integrate_side(self, function: Any, *, decay: float) -> float:
        """∫_0^∞ function, in the variable log x; `decay` is the exponent c of an integrand·x of order x^−c.

        For slow power laws the variable is stretched by 1/c, so that one integrand unit is one length unit.
        """
        stretch = max(1.0, 1 / decay)

        def in_log(y: float, side: float) -> float:
            x = self.scale_hint * math.exp(min(side * y, 690.0))
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                value = float(function(np.float64(x))) * x
            return value if math.isfinite(value) else 0.0  # ∞·0 far out, where the density has underflowed

        total = 0.0
        for side, unit in ((-1.0, 1.0), (1.0, stretch)):
            part = integrate.quad(
                lambda y, s=side, u=unit: u * in_log(u * y, s),
                0,
                np.inf,
                limit=500,
                epsabs=0,
                epsrel=1e-11,
                full_output=1,
            )
            total += part[0]
        return total

    def _integrate_line(self, function: Any, shift: float) -> float:
        """∫ function over the line, split at 0, at `shift` and at the breaks of the density and of its shifted copy."""
        decay, breaks = self.tail_index, self.breaks(float(self.tail_quantile(-_DEEPEST_BREAK)))
        kinks = np.unique(np.concatenate([[0.0, shift / 2, shift], breaks, -breaks, shift + breaks, shift - breaks]))
        total = self._integrate_side(lambda x: function(kinks[0] - x), decay=decay)
        total += self._integrate_side(lambda x: function(kinks[-1] + x), decay=decay)
        for low, high in itertools.pairwise(kinks):
            total += integrate.quad(lambda x: float(function(np.float64(x))), low, high, limit=400, epsrel=1e-11)[0]
        return total


def _exponential(shape: int | Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
    """Exp(1) draws, float64. What is beyond 8 is drawn again from there (E has no memory), with 53 bits of its own.

    Those of one draw would leave gaps far out.
    """
    draws = rng.standard_exponential(shape)
    flat, depth = draws.reshape(-1), _FRESH_FROM
    beyond = np.flatnonzero(flat > depth)
    while len(beyond):
        flat[beyond] = depth + rng.standard_exponential(len(beyond))
        depth += _FRESH_FROM
        beyond = beyond[flat[beyond] > depth]
    return flat.reshape(draws.shape)


def check_order(order: float) -> float:
    """Return a Rényi order in [1, ∞] as a float."""
    number = _validate.real("order", order)
    if number < 1:
        raise ValueError(f"expected order >= 1, got order={order}")
    return number
