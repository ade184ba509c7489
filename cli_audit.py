"""The `optnoise audit` command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from .accounting import CONSISTENT, CONTRADICTION, rounded_up
from .cli_output import print_json

if TYPE_CHECKING:
    from .finetune.audit.finished import LedgerCheck


def audit_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of `optnoise finetune`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Audit a finished run: is the ε of its report that of its ledger? Exit code 1 if it is contradicted."""
    from .finetune.audit.finished import check_ledger, open_run

    finished = open_run(run)
    ledger = check_ledger(finished)
    verdict = CONTRADICTION if ledger.contradicted else CONSISTENT
    document = {"verdict": verdict, "delta": finished.report["delta"], "ledger": _ledger(ledger)}
    if as_json:
        print_json(document)
    else:
        sign, compared = (">", "more than") if ledger.contradicted else ("<=", "no more than")
        _print(
            f"ledger: {ledger.releases} releases, epsilon in {ledger.recomputed.text()} at delta = "
            f"{finished.report['delta']!r}",
            f"report: epsilon <= {rounded_up(ledger.reported)}",
            f"{verdict}: {rounded_up(ledger.recomputed.upper)} {sign} {rounded_up(ledger.reported)}, {compared} the "
            "report states",
        )
    if verdict == CONTRADICTION:
        raise typer.Exit(1)


def _print(*lines: str) -> None:
    out = Console()
    for line in lines:
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def _ledger(check: LedgerCheck) -> dict[str, Any]:
    return {
        "verdict": check.verdict,
        "releases": check.releases,
        "recomputed": {name: _number(value) for name, value in check.recomputed._asdict().items()},
        "reported": _number(check.reported),
    }


def _number(value: float) -> float | str:
    """For JSON, which has no infinity."""
    return value if math.isfinite(value) else "inf"
