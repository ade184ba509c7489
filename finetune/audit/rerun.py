"""Canaries in a rerun of a finished run's recipe: the same model, optimizer and noise, with weights of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...mechanisms import from_spec
from ..private import PrivateTraining, make_private
from ..runs.pooled import PooledWorkload
from ..runs.trainers import optimizer_for
from .canaries import GradientCanaries, mislabelled
from .finished import FinishedRun
from .members import open_pooled
from .run import AuditResult, audit_run

_GRADIENT_CANARIES = 20_000  # half the noise in one release shows with so many: docs/audits.md


def audit_rerun(
    run: FinishedRun, *, canaries: int, steps: int, confidence: float, generator: torch.Generator
) -> dict[str, AuditResult]:
    """Train twice for `steps` from fresh weights: with gradient canaries, and with mislabelled input canaries.

    The input canaries are `canaries` of the run's own training rows, under other labels; the other rows are the data.
    Gradient canaries need no rows: there is one for each trained parameter, up to 20,000. Each result is about its
    rerun, whose proven ε at the report's δ stands beside it; the run's folder is not written.

    Raises ValueError for a kind other than mean_pooled, a zeroth-order run, or more canaries than rows.
    """
    if run.recipe.training.method != "first_order":
        raise ValueError(f"expected a first-order run, got training.method = {run.recipe.training.method}")
    pooled, rows, task = open_pooled(run, held_out=False)
    if not 2 <= canaries <= rows - 1:
        raise ValueError(f"expected 2 <= canaries <= {rows - 1} (training rows but one), got canaries={canaries}")
    chosen = torch.randperm(rows, generator=generator)
    extra, kept = chosen[:canaries], chosen[canaries:]
    wrong = mislabelled(pooled.labels[extra], len(task.labels), generator=generator)
    options = {
        "steps": steps,
        "delta": run.report["delta"],
        "confidence": confidence,
        "generator": generator,
        "microbatch": run.recipe.runtime.microbatch_size,
    }

    def losses(model: nn.Module, indices: Tensor, labels: Tensor) -> Tensor:
        batch = pooled.collate([{"index": int(index)} for index in indices])
        return pooled.losses(model, {**batch, "labels": labels})

    found = {}
    for name, data, put in (
        ("gradient canaries", (), GradientCanaries(min(pooled.dimension, _GRADIENT_CANARIES))),
        ("input canaries", (kept, pooled.labels[kept]), (extra, wrong)),
    ):
        fresh = pooled.again(run.recipe)
        found[name] = audit_run(lambda n, w=fresh: _training(run, w, n), losses, data, put, **options)
    return found


def _training(run: FinishedRun, workload: PooledWorkload, records: int) -> PrivateTraining:
    """What the run trained with, in memory; the noise is never seeded by the recipe."""
    settings = run.recipe.settings()
    return make_private(
        workload.model,
        optimizer_for(workload, workload.model),
        mechanism=from_spec(run.report["mechanism"]),
        clipping_norm=settings.clipping_norm,
        dataset_size=records,
        sampling_rate=settings.sampling_rate,
        divisor=settings.divisor,
    )
