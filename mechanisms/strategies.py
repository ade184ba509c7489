"""Hypothesis strategies for noise: property tests of one's own accountant, trainer or family draw from them.

    from hypothesis import given
    from optnoise.mechanisms import strategies

    @given(strategies.mechanisms())
    def test_my_bound(noise): ...

Every family has one (`STRATEGIES`, by family name). Scales lie within a factor of 10 of 1 (units of C), shapes where
the noise has a finite variance unless `heavy_tails` allows more. hypothesis is an extra: `optnoise[strategies]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

try:
    from hypothesis import strategies as st
except ImportError as error:  # pragma: no cover - tested in a process without hypothesis
    raise ImportError(
        "optnoise.mechanisms.strategies needs hypothesis, which is not installed: pip install 'optnoise[strategies]'"
    ) from error

from .base import Mechanism
from .gamma_laplace import GammaLaplace
from .gaussian import Gaussian
from .gaussian_mixture import GaussianMixture
from .generalised_gaussian import GeneralisedGaussian
from .laplace import Laplace
from .registry import FAMILIES
from .scale_mixture import ScaleMixture
from .staircase import Staircase
from .tabulated import Tabulated
from .truncated_laplace import TruncatedLaplace

Strategy = st.SearchStrategy


def scales(low: float = 0.1, high: float = 10.0) -> Strategy[float]:
    """Lengths in units of C, spread evenly in their logarithm."""
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


def gaussian() -> Strategy[Gaussian]:
    """Gaussian noise."""
    return st.builds(Gaussian, scales())


def laplace() -> Strategy[Laplace]:
    """Laplace noise."""
    return st.builds(Laplace, scales())


def gamma_laplace(*, heavy_tails: bool = False) -> Strategy[GammaLaplace]:
    """Gamma–Laplace noise; shapes from 0.3 on with `heavy_tails`, else from 2.1 on (finite variance)."""
    return st.builds(lambda k, mean: GammaLaplace(k, 1 / (k * mean)), scales(0.3 if heavy_tails else 2.1, 30), scales())


@st.composite
def lmo(draw: st.DrawFn, *, heavy_tails: bool = False) -> ScaleMixture:
    """LMO mixtures with any of their three terms; a uniform term away from 0 keeps moments, unless `heavy_tails`."""
    parameters: dict[str, float] = {}
    terms = draw(st.sets(st.sampled_from(["gamma", "exponential", "uniform"]), min_size=1))
    if not heavy_tails:
        terms = terms | {"uniform"}
    if "gamma" in terms:
        parameters |= {
            "gamma_weight": draw(scales()),
            "gamma_shape": draw(scales(0.3, 5)),
            "gamma_scale": draw(scales(0.1, 3)),
        }
    if "exponential" in terms:
        parameters |= {"exponential_weight": draw(scales()), "exponential_rate": draw(scales(0.3, 5))}
    if "uniform" in terms:
        low = draw(st.floats(0.0 if heavy_tails else 0.05, 2))
        parameters |= {
            "uniform_weight": draw(scales()),
            "uniform_low": low,
            "uniform_high": low + draw(scales(0.01, 2)),
        }
    return ScaleMixture(**parameters)


def generalised_gaussian() -> Strategy[GeneralisedGaussian]:
    """Generalised Gaussian noise with E|X| in the scales' range, shapes from 0.3 to 12."""

    def build(mean: float, shape: float) -> GeneralisedGaussian:
        return GeneralisedGaussian(mean / GeneralisedGaussian(1.0, shape).mean_abs, shape)

    return st.builds(build, scales(), scales(0.3, 12))


def staircase() -> Strategy[Staircase]:
    """Staircase noise; falls from 0.05 to 8."""
    return st.builds(Staircase, scales(0.2, 5), scales(0.05, 8), st.floats(0.05, 1.0))


@st.composite
def gaussian_mixture(draw: st.DrawFn) -> GaussianMixture:
    """Unimodal mixtures of up to four components: means up to one deviation."""
    deviation, count = draw(scales()), draw(st.integers(1, 4))
    shares = draw(st.lists(st.floats(0, 1), min_size=count, max_size=count, unique=True))
    parts = draw(st.lists(st.floats(0.05, 1), min_size=count, max_size=count))
    weights = [part / math.fsum(parts) for part in parts]
    return GaussianMixture(deviation, tuple(0.95 * s * deviation for s in shares), tuple(weights))


def truncated_laplace() -> Strategy[TruncatedLaplace]:
    """Laplace noise cut off at 3 to 40 times its scale."""
    return st.builds(lambda scale, bound: TruncatedLaplace(scale, scale * bound), scales(), st.floats(3, 40))


@st.composite
def tabulated(draw: st.DrawFn, *, most_knots: int = 8) -> Tabulated:
    """Piecewise log-linear densities of any unimodal shape, flat pieces included."""
    scale, count = draw(scales()), draw(st.integers(0, most_knots))
    widths = draw(st.lists(st.floats(0.01, 2), min_size=count, max_size=count))
    slopes = draw(st.lists(st.floats(0, 4), min_size=count, max_size=count))
    knots = [scale * math.fsum(widths[: i + 1]) for i in range(count)]
    return Tabulated(tuple(knots), (*(slope / scale for slope in slopes), draw(scales(0.2, 4)) / scale))


STRATEGIES: Mapping[str, Callable[..., Strategy[Any]]] = {
    Gaussian.family: gaussian,
    Laplace.family: laplace,
    ScaleMixture.family: lmo,
    GammaLaplace.family: gamma_laplace,
    GeneralisedGaussian.family: generalised_gaussian,
    Staircase.family: staircase,
    GaussianMixture.family: gaussian_mixture,
    TruncatedLaplace.family: truncated_laplace,
    Tabulated.family: tabulated,
}
"""Family name -> strategy of that family."""


def mechanisms(*families: str) -> Strategy[Mechanism]:
    """Noise of any of `families`, by name; of every family of this package if none is named."""
    unknown = [name for name in families if name not in STRATEGIES]
    if unknown:
        hint = "; it is registered, but has no strategy here" if unknown[0] in FAMILIES else ""
        raise ValueError(f"expected families among {', '.join(STRATEGIES)}, got {unknown[0]!r}{hint}")
    return st.one_of([STRATEGIES[name]() for name in families or STRATEGIES])
