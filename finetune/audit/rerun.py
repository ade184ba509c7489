"""Canaries in a rerun of a finished run's recipe: the same model, optimizer and noise, with weights of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...mechanisms import from_spec
from ..private import PrivateTraining, make_private
from ..runs.data import task_of
from ..runs.trainers import optimizer_for
from ..runs.workload import Workload
from ..tasks import ClassificationTask, Task
from ..trainer_rows import rows_at
from .canaries import GradientCanaries, mislabelled
from .finished import FinishedRun
from .members import prepared, training_rows
from .run import AuditResult, audit_run

_GRADIENT_CANARIES = 20_000  # half the noise in one release shows with so many: docs/audits.md


def audit_rerun(
    run: FinishedRun,
    *,
    canaries: int,
    steps: int,
    confidence: float,
    generator: torch.Generator,
    progress: bool = False,
) -> dict[str, AuditResult]:
    """Train twice for `steps` from fresh weights: with gradient canaries, and with input canaries.

    The input canaries are `canaries` of the run's own training rows under other labels, in generation each with the
    target of another; the other rows are the data. Gradient canaries need no rows: there is one for each trained
    parameter, up to 20,000. Each result is about its rerun, whose proven ε at the report's δ stands beside it; the
    run's folder is not written.

    Raises ValueError for a zeroth-order run, more canaries than rows, or data of another number of rows.
    """
    recipe = run.recipe
    if recipe.training.method != "first_order":
        raise ValueError(
            f"expected a first-order run to rerun with canaries, got training.method = {recipe.training.method}; leave "
            "--canaries and --steps out to check its ledger and membership"
        )
    task = task_of(recipe)
    rows = training_rows(run, task)
    if not 2 <= canaries <= len(rows) - 1:
        raise ValueError(f"expected 2 <= canaries <= {len(rows) - 1} (training rows but one), got canaries={canaries}")
    order = torch.randperm(len(rows), generator=generator).tolist()
    extra = altered([rows[place] for place in order[:canaries]], task, generator)
    first = prepared(recipe, task, [*(rows[place] for place in order[canaries:]), *extra], progress=progress)
    places = torch.arange(len(rows))
    data, put = (places[:-canaries],), (places[-canaries:],)
    options = {
        "steps": steps,
        "delta": run.report["delta"],
        "confidence": confidence,
        "generator": generator,
        "microbatch": recipe.runtime.microbatch_size,
        "progress": progress,
    }

    def losses(model: nn.Module, indices: Tensor) -> Tensor:
        return first.losses(model, first.collate(rows_at(first.rows, indices.tolist())))

    white = GradientCanaries(min(first.dimension, _GRADIENT_CANARIES))
    second = first.again(recipe)  # made now: training alters the first
    return {
        "gradient canaries": audit_run(lambda n: _training(run, first, n), losses, (), white, **options),
        "input canaries": audit_run(lambda n: _training(run, second, n), losses, data, put, **options),
    }


def altered(rows: Sequence[Any], task: Task, generator: torch.Generator) -> list[Any]:
    """Each row with another label, or with the target of the next."""
    if isinstance(task, ClassificationTask):
        labels = torch.tensor([row.label for row in rows])
        wrong = mislabelled(labels, len(task.labels), generator=generator).tolist()
        return [dataclasses.replace(row, label=label) for row, label in zip(rows, wrong, strict=True)]
    targets = [row.target for row in (*rows[1:], rows[0])]
    return [dataclasses.replace(row, target=text, references=(text,)) for row, text in zip(rows, targets, strict=True)]


def _training(run: FinishedRun, workload: Workload, records: int) -> PrivateTraining:
    """What the run trained with, in memory; the noise is never seeded by the recipe."""
    settings = run.recipe.settings()
    return make_private(
        workload.model.train(),
        optimizer_for(workload, workload.model),
        mechanism=from_spec(run.report["mechanism"]),
        clipping_norm=settings.clipping_norm,
        dataset_size=records,
        sampling_rate=settings.sampling_rate,
        divisor=settings.divisor,
    )
