"""What a run found."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from ...accounting import EpsilonInterval
from ...mechanisms import Mechanism
from .recipe import Recipe


@final
@dataclasses.dataclass(frozen=True)
class Training:
    """What a way of training gives back: evaluations on dev rows as it went, and how far it came.

    Each line of `history` has `step`, `epsilon` (proven upper end so far; None before the first release and without
    privacy) and the metrics.
    """

    history: tuple[dict[str, Any], ...]
    releases: int
    stopped_at_budget: bool = False


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run. `metrics` holds, for each evaluation split, names and values; nothing of the training rows."""

    recipe: Recipe
    mechanism: Mechanism | None
    epsilon: EpsilonInterval | None
    """Of all releases in the ledger, at the recipe's δ; None without privacy."""
    private: bool
    """False without privacy, and for a run whose noise has a seed."""
    metrics: dict[str, dict[str, float]]
    training: Training
    dimension: int
    """Numbers that one step releases."""
    trained_parameters: int
    train_rows: int
    seconds: float

    @property
    def score(self) -> tuple[str, float]:
        """The first metric on the dev rows, by its name."""
        return next(iter(self.metrics["dev"].items()))
