"""A finished run's folder, read without altering it: its report, its recipe, its ledger."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ...accounting import CONSISTENT, CONTRADICTION, EpsilonInterval, Ledger
from ...mechanisms._json import read_json, read_text
from ..runs import Recipe
from ..runs.files import recipe_from

_ROUNDING = 1e-9
"""Relative difference of two computations of the same ε."""


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """What a run left in `path`: the document of report.json and its recipe."""

    path: Path
    report: dict[str, Any]
    recipe: Recipe

    @property
    def reported(self) -> float:
        """The upper end of the report's ε; infinite where it is null."""
        upper = self.report["epsilon"]["upper"]
        return math.inf if upper is None else float(upper)


@dataclasses.dataclass(frozen=True)
class LedgerCheck:
    """ε of the ledger's releases (`recomputed`) beside the upper end that the report states."""

    recomputed: EpsilonInterval
    reported: float
    releases: int

    @property
    def contradicted(self) -> bool:
        """True if the ledger's proven ε is larger than the report's."""
        return self.recomputed.upper > self.reported * (1 + _ROUNDING)

    @property
    def verdict(self) -> str:
        """`consistent` or `CONTRADICTION`."""
        return CONTRADICTION if self.contradicted else CONSISTENT


def open_run(path: str | Path) -> FinishedRun:
    """Read the folder of a finished run of `optnoise finetune`.

    Raises ValueError if there is no report or ledger, the report is damaged, or the run was without privacy.
    """
    folder = Path(path)
    file = folder / "report.json"
    if not file.is_file():
        raise ValueError(f"expected {folder} to be the folder of a finished run: there is no {file}")
    try:
        document = read_json(read_text(file, "the report"))
        recipe = recipe_from(document["recipe"], source="recipe")
        private = document["epsilon"] is not None
        if private:
            _ = document["epsilon"]["upper"], document["delta"], document["mechanism"], document["training_rows"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not private:
        raise ValueError(f"the run in {folder} is without privacy: it claims no ε that could be audited")
    if not (folder / "ledger.jsonl").is_file():
        raise ValueError(
            f"there is no ledger at {folder / 'ledger.jsonl'}: without it the run's ε cannot be recomputed"
        )
    return FinishedRun(folder, document, recipe)


def check_ledger(run: FinishedRun) -> LedgerCheck:
    """Recompute ε at the report's δ from a copy of the ledger. Raises ValueError if the ledger is damaged or empty."""
    with tempfile.TemporaryDirectory() as folder:  # opening a ledger may mend its last line
        copy = Path(shutil.copy(run.path / "ledger.jsonl", folder))
        ledger = Ledger(copy)
        if not ledger.steps:
            raise ValueError(f"expected releases in {run.path / 'ledger.jsonl'}, it has none")
        return LedgerCheck(ledger.epsilon(delta=run.report["delta"]), run.reported, ledger.steps)
