"""Search: the cheapest noise for a privacy budget, its use and its dimension."""

from .families import PROPOSERS
from .marginal import MarginalSweep, marginal_sweep
from .plots import plot_densities
from .problem import Problem
from .published import PublishedSweep, laplace_below, least_conversion, published_sweep
from .result import SearchEntry, SearchResult, render
from .runner import SearchError, search

__all__ = [
    "PROPOSERS",
    "MarginalSweep",
    "Problem",
    "PublishedSweep",
    "SearchEntry",
    "SearchError",
    "SearchResult",
    "laplace_below",
    "least_conversion",
    "marginal_sweep",
    "plot_densities",
    "published_sweep",
    "render",
    "search",
]
