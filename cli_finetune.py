"""`optnoise finetune`: run a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .cli_output import print_json

if TYPE_CHECKING:
    from .finetune.runs import Recipe, RunResult

_out = Console()

RecipeName = Annotated[
    str | None, typer.Argument(help="Name of a shipped recipe (see --list), or a recipe file (TOML).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE over the recipe; repeatable.", show_default=False)
]


def finetune(
    recipe: RecipeName = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="Show the shipped recipes and the tasks.")] = False,
    noise: Annotated[str | None, typer.Option(help="Noise file or inline noise; default: calibrated Gaussian.")] = None,
    override: Overrides = None,
    method: Annotated[str | None, typer.Option(help="first-order or zeroth-order, instead of the recipe's.")] = None,
    output_dir: Annotated[Path, typer.Option(help="Folder of the report, the ledger and the model.")] = Path(
        "optnoise-run"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder.")] = False,
    without_privacy: Annotated[
        bool, typer.Option("--without-privacy", help="The yardstick: neither clipping nor noise.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Read data, load the model, find the noise; train nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fine-tune a model privately as a recipe says; leaves a report that states the guarantee."""
    from .finetune.runs import load_recipe

    if list_recipes:
        _print_list(as_json=as_json)
        return
    if recipe is None:
        raise ValueError("give a recipe: a name from `optnoise finetune --list`, or a file")
    chosen = [*(override or []), *([f"training.method={method.replace('-', '_')}"] if method else [])]
    loaded = load_recipe(recipe, chosen)
    _check_switches(noise, resume=resume, without_privacy=without_privacy, check=check)
    _go(
        loaded,
        noise,
        output_dir,
        resume=resume,
        without_privacy=without_privacy,
        check=check,
        progress=not (quiet or as_json),
        as_json=as_json,
    )


def budget_of(recipe: str | None, overrides: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """ε, δ, T, q and d of a search: those of a recipe, or those given. Raises ValueError for both, or too few."""
    set_ones = {name: value for name, value in given.items() if value is not None}
    if recipe is None:
        if overrides:
            raise ValueError("--set goes with --recipe")
        for name in ("epsilon", "delta"):
            if name not in set_ones:
                raise ValueError(f"give --{name}, or --recipe")
        return {"steps": 1, "sampling_rate": 1.0, "dimension": 1, **set_ones}
    if set_ones:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in set_ones)
        raise ValueError(f"--recipe gives {names} already: leave them out, or change the recipe with --set")
    from .finetune.runs import dimension_of, load_recipe

    loaded = load_recipe(recipe, overrides)
    settings = loaded.settings()
    question = settings.question(dimension_of(loaded))
    del question["adjacency"]  # the search has an option of its own
    return {"epsilon": settings.epsilon, **question}


def _go(
    recipe: Recipe,
    noise: str | None,
    output_dir: Path,
    *,
    resume: bool,
    without_privacy: bool,
    check: bool,
    progress: bool,
    as_json: bool,
) -> None:
    from .finetune.memory import keep_freed_memory
    from .finetune.runs import run_recipe, run_without_privacy
    from .mechanisms import independent, parse

    mechanism = independent(parse(noise)) if noise else None
    if check:
        _print_check(recipe, mechanism, as_json=as_json)
        return
    keep_freed_memory()
    try:
        if without_privacy:
            result = run_without_privacy(recipe, output_dir=output_dir, progress=progress)
        else:
            result = run_recipe(recipe, mechanism=mechanism, output_dir=output_dir, resume=resume, progress=progress)
    except KeyboardInterrupt:
        sys.stderr.write(f"optnoise: interrupted; go on with --resume --output-dir {output_dir}\n")
        raise SystemExit(130) from None
    _print_result(result, output_dir, as_json=as_json)


def _check_switches(noise: str | None, *, resume: bool, without_privacy: bool, check: bool) -> None:
    if without_privacy and (noise is not None or resume or check):
        raise ValueError("--without-privacy goes with none of --noise, --resume and --check")
    if check and resume:
        raise ValueError("--check trains nothing: leave --resume out")


def _print_list(*, as_json: bool) -> None:
    from .finetune.runs import shipped_recipes
    from .finetune.tasks import TASKS

    recipes = shipped_recipes()
    if as_json:
        print_json({"recipes": {n: r.model_dump(mode="json") for n, r in recipes.items()}, "tasks": list(TASKS)})
        return
    table = Table("recipe", "ε", "δ", "T", "what it is", title="shipped recipes", box=None)
    table.columns[0].no_wrap = True
    for name, recipe in recipes.items():
        privacy, steps = recipe.privacy, recipe.training.releases
        table.add_row(name, f"{privacy.epsilon:g}", f"{privacy.delta:.3g}", f"{steps}", recipe.description)
    _out.print(table)
    _out.print(f"tasks: {', '.join(TASKS)}, table (a file of your own)", highlight=False)


def _print_check(recipe: Recipe, mechanism: Any, *, as_json: bool) -> None:
    from .accounting import rounded_up
    from .finetune.runs import build, noise_for, released_dimension

    workload = build(recipe)
    dimension = released_dimension(recipe, workload.dimension)
    chosen, interval = noise_for(recipe, mechanism, dimension)
    settings = recipe.settings()
    document = {
        "training_rows": len(workload.splits.train),
        "dev_rows": len(workload.examples("dev")),
        "trained_parameters": workload.dimension,
        "dimension": dimension,
        "steps": settings.steps,
        "sampling_rate": settings.sampling_rate,
        "mechanism": chosen.spec(),
        "epsilon": interval._asdict(),
        "delta": settings.delta,
    }
    if as_json:
        print_json(document)
        return
    for name, value in document.items():
        shown = interval.text() if name == "epsilon" else value
        _out.print(f"{name}: {shown}", highlight=False, soft_wrap=True, markup=False)
    _out.print(f"ready: the run would end at ε <= {rounded_up(interval.upper)}; nothing was trained", highlight=False)


def _print_result(result: RunResult, output_dir: Path, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write((output_dir / "report.json").read_text(encoding="utf-8"))
        return
    for split, found in result.metrics.items():
        text = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
        _out.print(f"{split}: {text}", highlight=False)
    if result.epsilon is not None:
        text = f"ε in {result.epsilon.text()} at δ = {result.recipe.privacy.delta}; quote the upper end"
        _out.print(text if result.private else f"{text} (SEEDED: not private)", highlight=False)
    _out.print(f"report: {output_dir / 'report.md'} ({result.seconds:.0f} s)", highlight=False, soft_wrap=True)
