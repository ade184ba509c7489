"""The `optnoise audit` command."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .accounting import CONSISTENT, CONTRADICTION, rounded_down, rounded_up
from .cli_output import json_interval, json_number, print_json

if TYPE_CHECKING:
    from .finetune.audit import AuditResult, MembershipResult
    from .finetune.audit.finished import FinishedRun, LedgerCheck


def audit_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of `optnoise finetune`.")],
    canaries: Annotated[int | None, typer.Option(help="Rerun the recipe with so many canaries; with --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the rerun; with --canaries.")] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of what canaries and losses show, in (0, 1).")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Of coins and canaries, not of noise; default: a new one.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the verdict alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Audit a finished run: its ledger, its model's losses, a rerun with canaries. Exit code 1 if contradicted."""
    from .finetune.audit.finished import check_ledger, open_run

    _check(canaries, steps, confidence, seed)
    seed = secrets.randbits(31) if seed is None else seed
    finished = open_run(run)
    ledger = check_ledger(finished)
    shown = not (quiet or as_json)
    members = _members(finished, confidence, shown)
    reruns = {} if canaries is None or steps is None else _reruns(finished, canaries, steps, confidence, seed, shown)
    contradicted = ledger.contradicted or any(result.contradicted for result in reruns.values())
    verdict = CONTRADICTION if contradicted else CONSISTENT
    document = {
        "verdict": verdict,
        "delta": finished.report["delta"],
        "confidence": confidence,
        "seed": seed,
        "ledger": _ledger(ledger),
        "membership": _membership(members),
        "reruns": {name: _rerun(result) for name, result in reruns.items()},
    }
    if as_json:
        print_json(document)
    else:
        _print(*([] if quiet else _lines(ledger, members, reruns, document)), verdict)
    if contradicted:
        raise typer.Exit(1)


def _check(canaries: int | None, steps: int | None, confidence: float, seed: int | None) -> None:
    if (canaries is None) != (steps is None):
        raise ValueError("--canaries and --steps go together")
    if steps is not None and steps < 1:
        raise ValueError(f"expected steps >= 1, got steps={steps}")
    if not 0 < confidence < 1:
        raise ValueError(f"expected 0 < confidence < 1, got confidence={confidence}")
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"expected 0 <= seed < 2**63, got seed={seed}")


def _members(run: FinishedRun, confidence: float, progress: bool) -> MembershipResult | str:
    """The attack's result, or why it is refused."""
    from .finetune.audit.members import Refused, attack_members

    try:
        return attack_members(run, confidence=confidence, progress=progress)
    except Refused as error:
        return str(error)


def _reruns(
    run: FinishedRun, canaries: int, steps: int, confidence: float, seed: int, progress: bool
) -> dict[str, AuditResult]:
    import torch

    from .finetune.audit.rerun import audit_rerun
    from .finetune.memory import keep_freed_memory

    keep_freed_memory()
    generator = torch.Generator().manual_seed(seed)
    return audit_rerun(
        run, canaries=canaries, steps=steps, confidence=confidence, generator=generator, progress=progress
    )


def _lines(
    ledger: LedgerCheck, members: MembershipResult | str, reruns: dict[str, AuditResult], document: dict[str, Any]
) -> list[str]:
    reported = rounded_up(ledger.reported)
    sign, compared = (">", "more than") if ledger.contradicted else ("<=", "no more than")
    if isinstance(members, str):
        attack = f"membership: refused: {members}"
    else:
        attack = (
            f"membership: estimate (records share one model): epsilon >= {rounded_down(members.lower)} with confidence "
            f"{document['confidence']:g}, advantage >= {rounded_down(members.advantage)}; proven: epsilon <= {reported}"
        )
    return [
        f"ledger: {ledger.verdict}: {ledger.releases} releases at delta = {document['delta']!r}, epsilon <= "
        f"{rounded_up(ledger.recomputed.upper)} {sign} {reported}, {compared} the report states",
        attack,
        *(f"rerun with {name} (seed {document['seed']}): {result}" for name, result in reruns.items()),
    ]


def _print(*lines: str) -> None:
    out = Console()
    for line in lines:
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def _ledger(check: LedgerCheck) -> dict[str, Any]:
    return {
        "verdict": check.verdict,
        "releases": check.releases,
        "recomputed": json_interval(check.recomputed),
        "reported": json_number(check.reported),
    }


def _membership(members: MembershipResult | str) -> dict[str, Any]:
    if isinstance(members, str):
        return {"refused": members}
    return {
        "estimate": members.lower,
        "advantage": members.advantage,
        "true_positive_rate": members.true_positive_rate._asdict(),
        "false_positive_rate": members.false_positive_rate._asdict(),
    }


def _rerun(result: AuditResult) -> dict[str, Any]:
    return {
        "verdict": result.verdict,
        "shown": result.lower,
        "as_games": None if result.games is None else max(result.games.lower, 0.0),
        "proven": json_interval(result.proven),
        "batches": None if result.batches is None else result.batches.verdict,
        "contributions": None if result.contributions is None else result.contributions.verdict,
    }
