"""Noise: density, tail, moments, sampler and JSON document of each family, in units of the clipping norm."""

from .base import DensityShape, Mechanism
from .gamma_laplace import GammaLaplace
from .gaussian import Gaussian
from .laplace import Laplace
from .registry import FAMILIES, Noise, family, from_spec, independent, load, parse
from .scale_mixture import ScaleMixture
from .spherical import SphericalGamma
from .tabulated import Tabulated

__all__ = [
    "FAMILIES",
    "DensityShape",
    "GammaLaplace",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "Noise",
    "ScaleMixture",
    "SphericalGamma",
    "Tabulated",
    "family",
    "from_spec",
    "independent",
    "load",
    "parse",
]
