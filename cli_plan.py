"""The `optnoise plan` command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .cli_output import print_json

if TYPE_CHECKING:
    from .search import Plan, ZerothPlan


def plan_command(
    records: Annotated[int, typer.Option(help="Number of records n of the data set (public).")],
    epsilon: Annotated[float, typer.Option(help="Target ε of the whole run (no unit).")],
    delta: Annotated[float, typer.Option(help="δ, a probability in (0, 1).")],
    epochs: Annotated[float | None, typer.Option(help="Examples one can afford, over n; or --examples.")] = None,
    examples: Annotated[int | None, typer.Option(help="Examples one can afford: batch size · steps.")] = None,
    dimension: Annotated[str, typer.Option(help="Coordinates per step; inf: all; 1: zeroth-order.")] = "inf",
    family: Annotated[list[str] | None, typer.Option(help="Family of noise; repeat for several.")] = None,
    least_steps: Annotated[int, typer.Option(help="Least number of steps.")] = 1,
    largest_batch: Annotated[int | None, typer.Option(help="Largest expected batch size.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="Batch size to try; repeat. Default: a grid.")] = None,
    method: Annotated[str, typer.Option(help="first-order or zeroth-order.")] = "first-order",
    directions: Annotated[list[int] | None, typer.Option(help="Zeroth order: joint directions; repeat.")] = None,
    trainable: Annotated[int | None, typer.Option(help="Zeroth order: number of trainable parameters.")] = None,
    signal: Annotated[float | None, typer.Option(help="Zeroth order: |g|/S at the start, assumed; 0.1.")] = None,
    clip: Annotated[float | None, typer.Option(help="Zeroth order: C/S; default: the best.")] = None,
    rms_slope: Annotated[
        float | None, typer.Option(help="Zeroth order: S, root mean square slope, assumed or of public data.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder that keeps finished parts.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan; also a noise file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Save a picture (png or svg).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Choose batch size, steps and noise for a data set and a budget: least noise in the mean of all updates."""
    from . import search

    if (epochs is None) == (examples is None):
        raise ValueError("expected either --epochs or --examples")
    for path in (output, plot):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"expected the folder of {str(path)!r} to exist; create it first")
    zeroth = _zeroth_options(
        method, directions=directions, trainable=trainable, signal=signal, clip=clip, rms_slope=rms_slope
    )
    common = {
        "records": records,
        "examples": examples if examples is not None else _examples(epochs, records),
        "epsilon": epsilon,
        "delta": delta,
        "families": tuple(family) if family else None,
        "least_steps": least_steps,
        "largest_batch": largest_batch,
        "batch_sizes": batch_size,
        "n_jobs": jobs,
        "progress": not (quiet or as_json),
        "resume": resume,
    }
    if zeroth is None:
        every = dimension.strip().lower() in ("inf", "infinity")
        found = search.plan(**common, dimension=math.inf if every else float(dimension))
    elif dimension != "inf":
        raise ValueError("leave --dimension out with --method zeroth-order: --directions says the dimension")
    else:
        found = search.plan_zeroth_order(**common, **zeroth)
    if output is not None:
        found.save(output)
    if plot is not None:
        search.plot_plan(found, plot) if isinstance(found, search.Plan) else search.plot_zeroth_plan(found, plot)
    if as_json:
        print_json(found.document())
    else:
        _print(found, output)


def _print(found: Plan | ZerothPlan, output: Path | None) -> None:
    """The table, the command that trains by it, and what was refused."""
    from . import search

    out = Console()
    ordinary = isinstance(found, search.Plan)
    out.print(search.render_plan(found) if ordinary else search.render_zeroth_plan(found))
    words = [f"--noise {output or 'NOISE.json'}", *([] if ordinary else ["--method zeroth-order"])]
    words += [f"--set {text}" for text in found.overrides()]
    out.print(f"optnoise finetune RECIPE {' '.join(words)}", highlight=False, soft_wrap=True)
    for reason in found.refused:
        out.print(f"note: {reason}", highlight=False)


def _zeroth_options(method: str, **given: Any) -> dict[str, Any] | None:
    """The options of `plan_zeroth_order` that were given; None for first-order, where none may be."""
    chosen = {name: value for name, value in given.items() if value not in (None, [])}
    if method == "zeroth-order":
        return chosen
    if method != "first-order":
        raise ValueError(f"expected method to be first-order or zeroth-order, got method={method!r}")
    if chosen:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise ValueError(f"{names} goes with --method zeroth-order")
    return None


def _examples(epochs: float | None, records: int) -> int:
    if epochs is None or not (math.isfinite(epochs) and epochs > 0):
        raise ValueError(f"expected epochs > 0, got epochs={epochs}")
    return max(round(epochs * records), 1)
