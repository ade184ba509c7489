"""Runs from recipes: a recipe, a noise and data become a private model with a report."""

from .build import build, dimension_of
from .files import load_recipe, recipe_from, shipped_names, shipped_recipes
from .noise import noise_for, released_dimension
from .outcome import RunResult
from .recipe import Recipe
from .run import run_recipe, run_without_privacy
from .workload import Workload

__all__ = [
    "Recipe",
    "RunResult",
    "Workload",
    "build",
    "dimension_of",
    "load_recipe",
    "noise_for",
    "recipe_from",
    "released_dimension",
    "run_recipe",
    "run_without_privacy",
    "shipped_names",
    "shipped_recipes",
]
