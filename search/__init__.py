"""Search: the cheapest noise for a privacy budget, its use and its dimension."""

from .constraint import Constraint
from .convex import ConvexOptimum, convex_optimum, with_optimum
from .exact import SearchError
from .families import PROPOSERS, register_family
from .laplace_mixing import MixingOptimum, best_laplace_mixture
from .many import Refused, search_many
from .marginal import MarginalSweep, marginal_sweep
from .parametric import NoFiniteCost, ParametricFamily, ShapeParameter
from .plan import Plan, PlanRow, plan, render_plan
from .plan_plots import plot_plan, plot_zeroth_plan
from .plan_zeroth import ZerothPlan, ZerothRow, plan_zeroth_order, render_zeroth_plan
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
from .runner import search

__all__ = [
    "PROPOSERS",
    "Constraint",
    "ConvexOptimum",
    "Costs",
    "MarginalSweep",
    "MixingOptimum",
    "NoFiniteCost",
    "ParameterSet",
    "ParametricFamily",
    "Plan",
    "PlanRow",
    "Problem",
    "PublishedSweep",
    "Refused",
    "RegimeMap",
    "Row",
    "SearchEntry",
    "SearchError",
    "SearchResult",
    "ShapeParameter",
    "ZerothPlan",
    "ZerothRow",
    "best_laplace_mixture",
    "convex_optimum",
    "laplace_below",
    "least_conversion",
    "marginal_sweep",
    "mixture_of",
    "plan",
    "plan_zeroth_order",
    "plot_densities",
    "plot_plan",
    "plot_zeroth_plan",
    "published_rows",
    "published_sets",
    "published_sweep",
    "read_parameters",
    "regime_map",
    "register_family",
    "render",
    "render_plan",
    "render_rows",
    "render_zeroth_plan",
    "search",
    "search_many",
    "with_optimum",
]
