"""The demo's training: one recipe with the Gaussian, with another noise of equal guarantee, and without privacy."""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path

from ..mechanisms import Mechanism
from .prepare import prepare, trainable_dimension
from .recipe import Recipe, load_recipe
from .runner import RunResult, check_noise, run_recipe, run_without_privacy


@dataclasses.dataclass(frozen=True)
class DemoTraining:
    """The three runs, on the same data and with the same first weights."""

    gaussian: RunResult
    other: RunResult
    without_privacy: RunResult


def demo_recipe() -> Recipe:
    """The recipe that the package ships as recipes/demo.toml."""
    with resources.as_file(resources.files("optnoise.finetune") / "recipes" / "demo.toml") as path:
        return load_recipe(path)


def run_demo_training(
    other: Mechanism, *, output_dir: str | Path, recipe: Recipe | None = None, progress: bool = True
) -> DemoTraining:
    """Train three times; what the frozen part of the encoder says about the texts is computed once for all.

    Args:
        other: a noise calibrated for the recipe's ε, δ, steps, sampling rate and `trainable_dimension(recipe)`.
        output_dir: gets a folder for each private run.
        recipe: `demo_recipe()` by default.

    Raises:
        ValueError: `other` exceeds the recipe's ε (before anything is computed), or as `run_recipe`.
    """
    recipe = recipe or demo_recipe()
    check_noise(recipe, other, trainable_dimension(recipe))
    prepared = prepare(recipe, progress=progress)
    folder = Path(output_dir)
    gaussian = run_recipe(recipe, output_dir=folder / "gaussian", progress=progress, prepared=prepared)
    second = run_recipe(recipe, mechanism=other, output_dir=folder / "other", progress=progress, prepared=prepared)
    return DemoTraining(gaussian, second, run_without_privacy(recipe, progress=progress, prepared=prepared))
