"""Convex programs: the cheapest noise of any symmetric density that falls with |x|, with a certificate."""

from .optimum import ConvexOptimum, OrderOptimum, convex_optimum
from .report import with_optimum

__all__ = ["ConvexOptimum", "OrderOptimum", "convex_optimum", "with_optimum"]
