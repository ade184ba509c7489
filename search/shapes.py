"""The shape parameters of each family and their ranges: what `parametric` searches, one declaration a family."""

from __future__ import annotations

from ..mechanisms import GammaLaplace, GaussianMixture, GeneralisedGaussian, Staircase, TruncatedLaplace
from .parametric import ParametricFamily, ShapeParameter
from .problem import Problem

_FALLS = (0.01, 30.0)


def _staircase_starts(problem: Problem) -> list[tuple[float, float]]:
    """Steps that are optimal for pure ε-DP of one release (1212.1186) at ε and at shares of it."""
    falls = {
        min(max(asked.epsilon / n, _FALLS[0]), _FALLS[1]) for asked in problem.constraints for n in (1, 2, 3, 5, 10)
    }
    best = (Staircase.least_variance, Staircase.least_mean_abs)
    return [(fall, choose(fall).fraction) for fall in sorted(falls) for choose in best]


def _mixture(spread: float, weight: float) -> GaussianMixture:
    """Two signed components N(±μ, 1) of total weight w beside a central Gaussian; μ in standard deviations."""
    return GaussianMixture(1.0, (0.0, spread), (1 - weight, weight))


def _truncation_starts(problem: Problem) -> list[tuple[float]]:
    """The bound that is optimal for (ε, δ) of one release, over the scale."""
    noises = [TruncatedLaplace.for_budget(asked.epsilon, min(asked.delta, 0.4)) for asked in problem.constraints]
    return [(noise.bound / noise.scale,) for noise in noises]


SHAPES = (
    ParametricFamily(
        GammaLaplace.family,
        (ShapeParameter("shape", 0.05, 1e4, logarithmic=True),),
        lambda shape: GammaLaplace(shape, 1 / shape),
    ),
    ParametricFamily(
        GeneralisedGaussian.family,
        (ShapeParameter("shape", 0.2, 30.0, logarithmic=True),),
        lambda shape: GeneralisedGaussian(1.0, shape),
    ),
    ParametricFamily(
        Staircase.family,
        (ShapeParameter("fall", *_FALLS, logarithmic=True), ShapeParameter("fraction", 1e-3, 1.0, logarithmic=True)),
        lambda fall, fraction: Staircase(1.0, fall, fraction),
        _staircase_starts,
    ),
    ParametricFamily(
        GaussianMixture.family,
        (
            ShapeParameter("spread", 0.1, 25.0, logarithmic=True),
            ShapeParameter("weight", 1e-9, 0.999, logarithmic=True),
        ),
        _mixture,
    ),
    ParametricFamily(
        TruncatedLaplace.family,
        (ShapeParameter("bound/scale", 0.1, 500.0, logarithmic=True),),
        lambda ratio: TruncatedLaplace(1.0, ratio),
        _truncation_starts,
    ),
)
