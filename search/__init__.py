"""Search: the cheapest noise for a privacy budget, its use and its dimension."""

from .convex import ConvexOptimum, convex_optimum
from .families import PROPOSERS
from .laplace_mixing import MixingOptimum, best_laplace_mixture
from .marginal import MarginalSweep, marginal_sweep
from .plots import plot_densities
from .problem import Problem
from .published import PublishedSweep, laplace_below, least_conversion, published_sweep
from .regimes import RegimeMap, regime_map
from .reproduce import (
    Costs,
    ParameterSet,
    Row,
    mixture_of,
    published_rows,
    published_sets,
    read_parameters,
    render_rows,
)
from .result import SearchEntry, SearchResult, render
from .runner import SearchError, search

__all__ = [
    "PROPOSERS",
    "ConvexOptimum",
    "Costs",
    "MarginalSweep",
    "MixingOptimum",
    "ParameterSet",
    "Problem",
    "PublishedSweep",
    "RegimeMap",
    "Row",
    "SearchEntry",
    "SearchError",
    "SearchResult",
    "best_laplace_mixture",
    "convex_optimum",
    "laplace_below",
    "least_conversion",
    "marginal_sweep",
    "mixture_of",
    "plot_densities",
    "published_rows",
    "published_sets",
    "published_sweep",
    "read_parameters",
    "regime_map",
    "render",
    "render_rows",
    "search",
]
