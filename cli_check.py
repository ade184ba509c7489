"""The `optnoise check` command."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .accounting import GameResult, Release, rounded_down, rounded_up
from .cli_output import json_interval, json_number, print_json
from .mechanisms import inline, parse


def check_command(
    spec: Annotated[str, typer.Argument(help="Noise: FAMILY:KEY=VALUE,… or a JSON file.")],
    delta: Annotated[float, typer.Option(help="δ, a probability in (0, 1); larger ones need fewer draws.")],
    steps: Annotated[int, typer.Option(help="Number of releases T (optimizer updates).")] = 1,
    sampling_rate: Annotated[float, typer.Option(help="Inclusion probability q of every record per release.")] = 1.0,
    dimension: Annotated[float | None, typer.Option(help="Number of coordinates, or inf for every dimension.")] = None,
    adjacency: Annotated[
        str, typer.Option(help="add_or_remove_one, replace_one or replace_special.")
    ] = "add_or_remove_one",
    sampling: Annotated[
        str, typer.Option(help="poisson, or fixed_size (for replace_one): what is claimed.")
    ] = "poisson",
    batches: Annotated[
        str | None,
        typer.Option(help="poisson, fixed_size or shuffled: how batches are really drawn; default: as claimed."),
    ] = None,
    claim: Annotated[float | None, typer.Option(help="An ε that somebody states, to be tested.")] = None,
    draws: Annotated[int | None, typer.Option(help="Draws of each law and direction; default: by effort.")] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound, in (0, 1).")] = 0.999,
    seed: Annotated[int | None, typer.Option(help="Repeat a check; default: a new one, which is printed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Play a distinguishing game against a noise: is its ε true? Exit code 1 if it is contradicted."""
    import torch

    from .accounting import distinguishing_game

    release = Release(parse(spec), steps, sampling_rate, dimension, adjacency, sampling)
    if seed is None:
        seed = secrets.randbits(31)
    elif not 0 <= seed < 2**63:
        raise ValueError(f"expected 0 <= seed < 2**63, got seed={seed}")
    result = distinguishing_game(
        release,
        delta=delta,
        generator=torch.Generator().manual_seed(seed),
        draws=draws,
        confidence=confidence,
        claim=claim,
        batches=batches,
    )
    if as_json:
        print_json(_document(result, seed))
    else:
        _print(result, seed)
    if result.contradicted:
        raise typer.Exit(1)


def _print(result: GameResult, seed: int) -> None:
    out = Console()
    out.print(inline(result.release.mechanism), highlight=False, markup=False, soft_wrap=True)
    table = Table("contribution of the record", "ε shown")
    for label, lower in result.by_direction.items():
        table.add_row(label, rounded_down(max(lower, 0.0)))
    out.print(table)
    lines = [
        f"shown: epsilon >= {rounded_down(result.lower)} at delta = {result.delta!r} with confidence "
        f"{result.confidence!r} ({result.direction}; {result.draws} draws of each law, {result.batches} batches, "
        f"seed {seed})"
    ]
    if result.proven is not None:
        lines.append(f"proven for {result.release.sampling} batches: epsilon in {result.proven.text()}")
    if result.claim is not None:
        lines.append(f"claimed: epsilon <= {result.claim!r}")
    sign, compared = (">", "more than") if result.contradicted else ("<=", "no more than")
    lines.append(
        f"{result.verdict}: {rounded_down(result.lower)} {sign} {rounded_up(result.allowed)}, {compared} is allowed"
    )
    for line in lines:
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def _document(result: GameResult, seed: int) -> dict[str, Any]:
    proven, release = result.proven, result.release
    return {
        "verdict": result.verdict,
        "shown": result.lower,
        "proven": None if proven is None else json_interval(proven),
        "claim": result.claim,
        "delta": result.delta,
        "confidence": result.confidence,
        "direction": result.direction,
        "by_direction": {label: max(lower, 0.0) for label, lower in result.by_direction.items()},
        "hits": result.shown.hits,
        "alarms": result.shown.alarms,
        "draws": result.draws,
        "batches": result.batches,
        "seed": seed,
        "mechanism": release.mechanism.spec(),
        "steps": release.steps,
        "sampling_rate": release.sampling_rate,
        "dimension": None if release.dimension is None else json_number(release.dimension),
        "adjacency": release.adjacency,
        "sampling": release.sampling,
    }
