"""Noise: density, tail, moments, sampler and JSON document of each family, in units of the clipping norm."""

from .base import DensityShape, Mechanism
from .check import CheckReport, CheckResult, MechanismCheckError, check_mechanism
from .gamma_laplace import GammaLaplace
from .gaussian import Gaussian
from .gaussian_mixture import GaussianMixture
from .generalised_gaussian import GeneralisedGaussian
from .laplace import Laplace
from .registry import FAMILIES, Noise, family, from_spec, independent, inline, load, parse, register, save
from .scale_mixture import ScaleMixture
from .spherical import SphericalGamma
from .staircase import Staircase
from .tabulated import Tabulated
from .truncated_laplace import TruncatedLaplace

__all__ = [
    "FAMILIES",
    "CheckReport",
    "CheckResult",
    "DensityShape",
    "GammaLaplace",
    "Gaussian",
    "GaussianMixture",
    "GeneralisedGaussian",
    "Laplace",
    "Mechanism",
    "MechanismCheckError",
    "Noise",
    "ScaleMixture",
    "SphericalGamma",
    "Staircase",
    "Tabulated",
    "TruncatedLaplace",
    "check_mechanism",
    "family",
    "from_spec",
    "independent",
    "inline",
    "load",
    "parse",
    "register",
    "save",
]
