"""The demo: search a noise for one scalar and for the model's dimension, train with both kinds, show one table.

It uses only what the packages offer to everybody; `finetune/recipes/demo.toml` has the settings.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .accounting import EpsilonInterval
from .finetune import Recipe, RunResult, load_recipe, run_recipe, run_without_privacy
from .finetune.runs import build, released_dimension
from .finetune.runs.pooled import PooledWorkload
from .mechanisms import Mechanism
from .search import Problem, SearchResult, plot_densities, render, search

_ROWS = (("Gaussian, calibrated", "gaussian"), ("LMO, best found", "other"), ("no privacy", "without_privacy"))


Runs = dict[str, RunResult]
"""By the names in `_ROWS`."""


def run_demo(output_dir: Path, *, console: Console) -> dict[str, Any]:
    """Run the demo into `output_dir` (tables, plots, reports) and return what it found as a JSON document.

    An earlier demo's runs in that folder are replaced.
    """
    recipe = load_recipe("demo")
    workload = build(recipe)
    assert isinstance(workload, PooledWorkload)
    dimension = released_dimension(recipe, workload.dimension)
    output_dir.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(output_dir / "runs", ignore_errors=True)
    console.rule(f"1. Search: ε = {recipe.privacy.epsilon:g}, δ = {recipe.privacy.delta:g}")
    scalar = _search(recipe, 1, output_dir / "noise_scalar", console)
    model = _search(recipe, dimension, output_dir / "noise_model", console)
    _explain(scalar, model, console)
    console.rule(f"2. Fine-tune: {dimension:,} parameters, real text, ghost clipping")
    runs = train_three(workload, model.best_of("lmo").mechanism, output_dir / "runs")
    console.print(_table(runs))
    _plot_accuracy(runs, output_dir / "accuracy.png")
    document = {
        "dimension": dimension,
        "scalar_search": scalar.document(),
        "model_search": model.document(),
        "runs": {
            name: json.loads((output_dir / "runs" / name / "report.json").read_text(encoding="utf-8")) for name in runs
        },
    }
    (output_dir / "demo.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"tables, plots and reports: {output_dir}", highlight=False)
    return document


def train_three(workload: PooledWorkload, other: Mechanism, folder: Path, *, progress: bool = True) -> Runs:
    """Train with the calibrated Gaussian, with `other` at the same guarantee, and without privacy.

    All from the same first weights; what the frozen part says of the texts is computed once.
    """
    recipe = workload.recipe
    workload.prepare(progress=progress)
    common: dict[str, Any] = {"progress": progress}
    return {
        "gaussian": run_recipe(recipe, output_dir=folder / "gaussian", workload=workload, **common),
        "other": run_recipe(
            recipe, mechanism=other, output_dir=folder / "other", workload=workload.again(recipe), **common
        ),
        "without_privacy": run_without_privacy(
            recipe, output_dir=folder / "without_privacy", workload=workload.again(recipe), **common
        ),
    }


def _search(recipe: Recipe, dimension: int, path: Path, console: Console) -> SearchResult:
    settings = recipe.settings()
    problem = Problem(epsilon=settings.epsilon, cost="variance", **settings.question(dimension))
    result = search(problem, top=1)
    result.save(path.with_suffix(".json"))
    plot_densities(result, path.with_suffix(".png"))
    console.print(render(result))
    return result


def _explain(scalar: SearchResult, model: SearchResult, console: Console) -> None:
    """Why the answers for one coordinate and for the model differ, with the numbers just found."""
    console.print(
        f"Variance over the Gaussian's at equal guarantee: the best LMO noise has {_gain(scalar):.2f} for one scalar "
        f"a step, {_gain(model):.2f} for the model. A clipped gradient may spread over all "
        f"{model.problem.dimension:,} coordinates; then the noise is judged by its Fisher information I, and "
        "I·variance is 1 for the Gaussian, 2 or more for every mixture of Laplace noises. One scalar cannot be "
        "spread, and there the shape of the density decides.",
        highlight=False,
    )


def _gain(result: SearchResult) -> float:
    best = result.best_of("lmo")
    return best.cost / best.gaussian_cost


def _table(runs: Runs) -> Table:
    table = Table(title="Equal guarantees: sentiment of short texts")
    for column in ("noise", "std per coordinate [C]", "ε interval", "accuracy", "majority class", "seconds"):
        table.add_column(column, justify="left" if column == "noise" else "right")
    for label, name in _ROWS:
        run = runs[name]
        deviation = "0" if run.mechanism is None else f"{math.sqrt(run.mechanism.variance):.3f}"
        table.add_row(
            label,
            deviation,
            _interval_text(run.epsilon),
            f"{run.metrics['dev']['accuracy']:.4f}",
            f"{run.metrics['dev']['majority_accuracy']:.4f}",
            f"{run.seconds:.0f}",
        )
    return table


def _interval_text(interval: EpsilonInterval | None) -> str:
    return "none" if interval is None else interval.text(4)


def _plot_accuracy(runs: Runs, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for label, name in _ROWS:
        history = runs[name].training.history
        axes.plot([line["step"] for line in history], [line["accuracy"] for line in history], marker="o", label=label)
    majority = runs["gaussian"].metrics["dev"]["majority_accuracy"]
    axes.axhline(majority, color="grey", linestyle="--", label="majority class")
    axes.set_xlabel("optimizer updates")
    axes.set_ylabel("test accuracy")
    axes.set_title("Accuracy by step at equal guarantee")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
