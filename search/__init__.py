"""Search: the cheapest noise for a privacy budget, its use and its dimension."""

from .constraint import Constraint
from .exact import SearchError
from .families import PROPOSERS, register_family
from .marginal import MarginalSweep, marginal_sweep
from .parametric import NoFiniteCost, ParametricFamily, ShapeParameter
from .plots import plot_densities
from .problem import Problem
from .published import PublishedSweep, laplace_below, least_conversion, published_sweep
from .result import SearchEntry, SearchResult, render
from .runner import search

__all__ = [
    "PROPOSERS",
    "Constraint",
    "MarginalSweep",
    "NoFiniteCost",
    "ParametricFamily",
    "Problem",
    "PublishedSweep",
    "SearchEntry",
    "SearchError",
    "SearchResult",
    "ShapeParameter",
    "laplace_below",
    "least_conversion",
    "marginal_sweep",
    "plot_densities",
    "published_sweep",
    "register_family",
    "render",
    "search",
]
